"""Seals secrets that the service needs after a restart: a copy of the database alone does not reveal them.

A signing secret cannot be stored as a digest. It is encrypted (bot/encryption.py) with a random key in a file beside
the database (mode 0600, made on first use), and decrypted only to sign. A stolen backup, dump or snapshot without the
key file reveals nothing. A reader of both files can decrypt, as with any service that starts unattended.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from bot.encryption import Cipher
from bot.errors import ConfigError
from bot.files import write_private

KEY_BYTES: Final = 32
# the key file's name: the database's name and this suffix
KEY_FILE_SUFFIX: Final = ".webhook-key"
PURPOSE: Final = "webhook secret"


class SecretCipher:
    """Encrypts and decrypts short secrets. `path` None: a key in memory, for a database in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._cipher = Cipher(secrets.token_bytes(KEY_BYTES), PURPOSE) if path is None else None

    def prepare(self) -> None:
        """Read or create the key file now. ConfigError if that fails."""
        self._with_key()

    def encrypt(self, secret: bytes, owner: str) -> str:
        """The encrypted text. ConfigError if the key file cannot be created or read."""
        return self._with_key().encrypt(secret, owner)

    def decrypt(self, encrypted: str, owner: str) -> bytes:
        """The secret. DecryptionFailed for another key, text or owner; ConfigError if the key file cannot be read."""
        return self._with_key().decrypt(encrypted, owner)

    def mark(self, text: str) -> str:
        """A keyed digest, so that a reader of the digest cannot guess the secret."""
        return self._with_key().mark(text)

    def _with_key(self) -> Cipher:
        if self._cipher is None:
            assert self._path is not None
            self._cipher = Cipher(_key_file(self._path), PURPOSE)
        return self._cipher


def _key_file(path: Path) -> bytes:
    """The key of the file. A new file is durable before the key is used."""
    try:
        if not path.exists():
            write_private(path, secrets.token_bytes(KEY_BYTES))
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
