"""Header names, versions, and the header values that have a form of their own."""

from __future__ import annotations

import re

# value of X-API-Version, a date
API_VERSION = "2026-10-19"
LIMITS_VERSION = 2
# version of the OpenAPI description
DESCRIPTION_VERSION = "0.6.0"

API_VERSION_HEADER = "X-API-Version"
REQUEST_ID_HEADER = "X-Request-Id"
IDEMPOTENCY_KEY_HEADER = "Idempotency-Key"
IDEMPOTENCY_REPLAYED_HEADER = "Idempotency-Replayed"
EXPIRES_AFTER_HEADER = "X-Expires-After"
# The token of the plan that previewed the order of a schedule.
CONFIRM_HEADER = "X-Confirm-Token"
SANDBOX_CLOCK_HEADER = "X-Sandbox-Clock"

# visible ASCII characters
IDEMPOTENCY_KEY_MAX = 255


def parse_idempotency_key(text: str) -> str:
    """The key without the quotes of its structured-field form.

    ValueError unless it has 1..255 visible ASCII characters.
    """
    key = text.strip(" \t")
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not re.fullmatch(r"[\x21-\x7e]{1,255}", key):
        raise ValueError("Idempotency-Key must be 1..255 visible ASCII characters")
    return key


def parse_expires_after(text: str) -> int:
    """The instant after which the request must not run, in unix ms on the service's clock.

    ValueError if it is not such a number.
    """
    if not re.fullmatch(r"[0-9]{1,16}", text.strip(" \t")):
        raise ValueError("X-Expires-After must be unix milliseconds, digits only")
    return int(text)


def format_sandbox_clock(now_ms: int, speed: float) -> str:
    """`<unix ms>; speed=60`. A whole speed has no decimal point; 0 means manual."""
    return f"{now_ms}; speed={int(speed) if speed == int(speed) else speed}"


def parse_sandbox_clock(text: str) -> tuple[int, float]:
    """(now_ms, speed) of an X-Sandbox-Clock header. ValueError if it has another form."""
    match = re.fullmatch(r"\s*([0-9]{1,16})\s*;\s*speed=([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*", text)
    if match is None:
        raise ValueError("X-Sandbox-Clock must read '<unix ms>; speed=<number>'")
    return int(match[1]), float(match[2])
