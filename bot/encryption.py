"""Encrypts short secrets at rest, with a key that stands elsewhere. No cipher library is needed.

The construction is encrypt-then-MAC with HMAC-SHA256: a counter-mode keystream under one derived key, a tag under another, and a new 128-bit
nonce each time. The tag includes the owner, so a text that is moved to another row is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from itertools import count
from typing import Final

NONCE_BYTES: Final = 16
TAG_BYTES: Final = 32
FORM: Final = "s1."


class DecryptionFailed(Exception):
    """The text was not encrypted with this key for this owner."""


class Cipher:
    """Encrypts and decrypts short secrets of one `purpose`, for which keys of their own are derived."""

    def __init__(self, key: bytes, purpose: str) -> None:
        def derived(use: str) -> bytes:
            return hmac.digest(key, f"bracketbot {purpose} {use}".encode(), hashlib.sha256)

        self._encrypt, self._authenticate, self._mark = map(derived, ("encrypt", "authenticate", "mark"))

    def encrypt(self, secret: bytes, owner: str) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        hidden = _crypt(self._encrypt, nonce, secret)
        return FORM + base64.b64encode(nonce + hidden + self._tag(nonce, hidden, owner)).decode()

    def decrypt(self, encrypted: str, owner: str) -> bytes:
        """The secret. DecryptionFailed for another key, text or owner."""
        try:
            raw = base64.b64decode(encrypted.removeprefix(FORM), validate=True)
        except (binascii.Error, ValueError):
            raise DecryptionFailed("not an encrypted text") from None
        nonce, hidden, tag = raw[:NONCE_BYTES], raw[NONCE_BYTES:-TAG_BYTES], raw[-TAG_BYTES:]
        if len(tag) != TAG_BYTES or not hmac.compare_digest(tag, self._tag(nonce, hidden, owner)):
            raise DecryptionFailed("encrypted with another key or for another owner")
        return _crypt(self._encrypt, nonce, hidden)

    def mark(self, text: str) -> str:
        """A keyed digest, so that a reader of the digest cannot guess the secret."""
        return hmac.digest(self._mark, text.encode(), hashlib.sha256).hex()

    def _tag(self, nonce: bytes, hidden: bytes, owner: str) -> bytes:
        return hmac.digest(self._authenticate, nonce + hidden + owner.encode(), hashlib.sha256)


def _crypt(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """XOR with HMAC(key, nonce, 0), HMAC(key, nonce, 1), ...: the same call encrypts and decrypts."""
    stream = b""
    for block in count():
        if len(stream) >= len(text):
            break
        stream += hmac.digest(key, nonce + block.to_bytes(4), hashlib.sha256)
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))
