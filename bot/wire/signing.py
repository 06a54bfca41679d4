"""Signatures of webhook deliveries by Standard Webhooks 1.0. Pure functions; they read no headers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  the mark of the base64 form, not a secret
SIGNATURE_VERSION: Final = "v1"
# the interface's lower bound of a secret, in bytes of the signing key
KEY_BYTES_MIN: Final = 8
GENERATED_BYTES: Final = 32

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"


def key_of(secret: str) -> bytes:
    """The signing key of a secret, as the libraries of Standard Webhooks read it: base64, with or without `whsec_`
    before it.

    `v1,whsec_...`, as some services show it, is the same secret. Any other text is no secret of that standard: its
    UTF-8 bytes are the key, and `secret_of` gives the form that the libraries take. ValueError if the base64 after
    `whsec_` is invalid or too short.
    """
    secret = (
        secret.removeprefix(f"{SIGNATURE_VERSION},")
        if secret.startswith(f"{SIGNATURE_VERSION},{SECRET_PREFIX}")
        else secret
    )
    if not secret.startswith(SECRET_PREFIX):
        return _decoded(secret) or secret.encode()
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64 behind whsec_") from None
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"has fewer than {KEY_BYTES_MIN} bytes behind whsec_")
    return key


def _decoded(text: str) -> bytes | None:
    """The bytes of whole base64; None for a text that is none, or holds too short a key."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) >= KEY_BYTES_MIN else None


def secret_of(key: bytes) -> str:
    """A signing key in its text form, `whsec_...`."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signature(key: bytes, delivery_id: str, timestamp: str, body: bytes) -> str:
    """`v1,<base64>`: the signature of the id, the time in unix seconds and the body bytes as sent."""
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return f"{SIGNATURE_VERSION},{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
