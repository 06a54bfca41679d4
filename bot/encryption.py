"""Encrypts short secrets at rest, with a key that stands elsewhere: AES-256-GCM and HKDF of the package cryptography.

Each text has a new random nonce of 96 bits. The owner is authenticated with it, so a text that is moved to another row
is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
FORM: Final = "s2."


class DecryptionFailed(Exception):
    """The text was not encrypted with this key for this owner, or in the form of another version."""


class Cipher:
    """Encrypts and decrypts short secrets of one `purpose`, for which keys of their own are derived."""

    def __init__(self, key: bytes, purpose: str) -> None:
        def derived(use: str) -> bytes:
            info = f"bracketbot {purpose} {use}".encode()
            return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(key)

        self._aead = AESGCM(derived("encrypt"))
        self._mark = derived("mark")

    def encrypt(self, secret: bytes, owner: str) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return FORM + base64.b64encode(nonce + self._aead.encrypt(nonce, secret, owner.encode())).decode()

    def decrypt(self, encrypted: str, owner: str) -> bytes:
        """The secret. DecryptionFailed for another key, text, owner or form."""
        if not encrypted.startswith(FORM):
            raise DecryptionFailed("not an encrypted text of this version")
        try:
            raw = base64.b64decode(encrypted.removeprefix(FORM), validate=True)
            return self._aead.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], owner.encode())
        except (binascii.Error, ValueError):
            raise DecryptionFailed("not an encrypted text") from None
        except InvalidTag:
            raise DecryptionFailed("encrypted with another key or for another owner") from None

    def mark(self, text: str) -> str:
        """A keyed digest, so that a reader of the digest cannot guess the secret."""
        return hmac.digest(self._mark, text.encode(), hashlib.sha256).hex()
