"""Encrypts secrets that the service needs again after a restart, so that a copy of the database alone does not reveal them.

A signing secret cannot be stored as a digest. It is encrypted with a random key in a file beside the database (mode 0600, made on first use), and
decrypted only to sign. A stolen backup, dump or snapshot without the key file reveals nothing. A reader of both files can decrypt, as with any
service that starts unattended. The construction is encrypt-then-MAC with HMAC-SHA256: a counter-mode keystream under one derived key, a tag
under another, and a new 128-bit nonce each time. No cipher library is needed. The tag includes the owner, so a text moved to another row is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from itertools import count
from pathlib import Path
from typing import Final

from bot.errors import ConfigError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 16
TAG_BYTES: Final = 32
FORM: Final = "s1."
KEY_FILE_SUFFIX: Final = ".webhook-key"  # the key file's name: the database's name and this suffix


class DecryptionFailed(Exception):
    """The text was not encrypted with this key for this owner."""


class SecretCipher:
    """Encrypts and decrypts short secrets. `path` None: a key in memory, for a database in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._key: bytes | None = secrets.token_bytes(KEY_BYTES) if path is None else None

    def prepare(self) -> None:
        """Read or create the key file now. ConfigError if that fails."""
        self._derived("encrypt")

    def encrypt(self, secret: bytes, owner: str) -> str:
        """The encrypted text. ConfigError if the key file cannot be created or read."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        hidden = _crypt(self._derived("encrypt"), nonce, secret)
        return FORM + base64.b64encode(nonce + hidden + self._tag(nonce, hidden, owner)).decode()

    def decrypt(self, encrypted: str, owner: str) -> bytes:
        """The secret. DecryptionFailed for another key, text or owner; ConfigError if the key file cannot be read."""
        try:
            raw = base64.b64decode(encrypted.removeprefix(FORM), validate=True)
        except (binascii.Error, ValueError):
            raise DecryptionFailed("not an encrypted text") from None
        nonce, hidden, tag = raw[:NONCE_BYTES], raw[NONCE_BYTES:-TAG_BYTES], raw[-TAG_BYTES:]
        if len(tag) != TAG_BYTES or not hmac.compare_digest(tag, self._tag(nonce, hidden, owner)):
            raise DecryptionFailed("encrypted with another key or for another owner")
        return _crypt(self._derived("encrypt"), nonce, hidden)

    def mark(self, text: str) -> str:
        """A keyed digest, so that a reader of the digest cannot guess the secret."""
        return hmac.digest(self._derived("mark"), text.encode(), hashlib.sha256).hex()

    def _tag(self, nonce: bytes, hidden: bytes, owner: str) -> bytes:
        return hmac.digest(self._derived("authenticate"), nonce + hidden + owner.encode(), hashlib.sha256)

    def _derived(self, use: str) -> bytes:
        if self._key is None:
            assert self._path is not None
            self._key = _key_file(self._path)
        return hmac.digest(self._key, f"bracketbot webhook secret {use}".encode(), hashlib.sha256)


def _crypt(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """XOR with HMAC(key, nonce, 0), HMAC(key, nonce, 1), ...: the same call encrypts and decrypts."""
    stream = b""
    for block in count():
        if len(stream) >= len(text):
            break
        stream += hmac.digest(key, nonce + block.to_bytes(4), hashlib.sha256)
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))


def _key_file(path: Path) -> bytes:
    """The key of the file. A new file is durable before the key is used."""
    try:
        if not path.exists():
            part = path.with_name(path.name + ".part")
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(fd)
            part.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        if path.stat().st_mode & 0o077:
            raise ConfigError(
                f"{path}: other users may read this key file; chmod 600 it, and give every webhook a new secret"
            )
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: is not a key file of {KEY_BYTES} bytes; restore a backup of it")
    return key
