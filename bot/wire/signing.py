"""Signatures of webhook deliveries by Standard Webhooks 1.0. Pure functions; they read no headers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  the mark of the base64 form, not a secret
SIGNATURE_VERSION: Final = "v1"
KEY_BYTES_MIN: Final = 8  # the interface's lower bound of a secret, in bytes of the signing key
GENERATED_BYTES: Final = 32

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"


def key_of(secret: str) -> bytes:
    """The signing key of a secret: base64 after `whsec_`, otherwise the UTF-8 bytes of the text. ValueError if the base64 is invalid or too short."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64 behind whsec_") from None
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"has fewer than {KEY_BYTES_MIN} bytes behind whsec_")
    return key


def secret_of(key: bytes) -> str:
    """A signing key in its text form, `whsec_...`."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signature(key: bytes, delivery_id: str, timestamp: str, body: bytes) -> str:
    """`v1,<base64>`: the signature of the id, the time in unix seconds and the body bytes as sent."""
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return f"{SIGNATURE_VERSION},{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
