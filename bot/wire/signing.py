"""Signatures of webhook deliveries, Standard Webhooks 1.0: how a secret becomes a key, and a delivery a signature. Pure; no header is read here."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  the mark of the base64 form, not a secret
SIGNATURE_VERSION: Final = "v1"
KEY_BYTES_MIN: Final = 8  # the interface's bound on a secret, in the bytes that sign
GENERATED_BYTES: Final = 32

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"


def key_of(secret: str) -> bytes:
    """The bytes that sign: base64 behind `whsec_`, otherwise the text's own UTF-8. ValueError when it is neither."""
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
    """A key as people pass it on."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signature(key: bytes, delivery_id: str, timestamp: str, body: bytes) -> str:
    """`v1,<base64>` over the id, the time in unix seconds and the body, byte for byte as they are sent."""
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return f"{SIGNATURE_VERSION},{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
