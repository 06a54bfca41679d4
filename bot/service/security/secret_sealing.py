"""Sealed secrets: what the service must be able to use again after a restart, kept so that a copy of the database alone is of no use.

A signing secret cannot be a digest: it has to sign. So it is sealed under a key that lies beside the database in a file of its own (0600;
random, made on first use), and is opened only for the moment of a signature. A stolen backup, dump or snapshot without that file opens
nothing; whoever reads both files as the service's user can, as with any service that starts unattended. The construction is
encrypt-then-MAC from HMAC-SHA256 alone (a counter-mode keystream under one derived key, a tag under another, a fresh 128-bit nonce
each), so that no cipher library is needed for a few hundred bytes. The tag binds the owner: a sealed text moved to another row is refused.
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
SEAL_SUFFIX: Final = ".webhook-key"  # the key file's name is the database's with this behind it


class SealBroken(Exception):
    """Not sealed by this key for this owner."""


class Sealer:
    """Seals and opens short secrets. `path` None: a key that ends with the process, as a database in memory does."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._key: bytes | None = secrets.token_bytes(KEY_BYTES) if path is None else None

    def prepare(self) -> None:
        """Read or make the key file now. ConfigError when that cannot be."""
        self._derived("encrypt")

    def seal(self, secret: bytes, owner: str) -> str:
        """The sealed text. ConfigError when the key file cannot be made or read."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        hidden = _crypt(self._derived("encrypt"), nonce, secret)
        return FORM + base64.b64encode(nonce + hidden + self._tag(nonce, hidden, owner)).decode()

    def open(self, sealed: str, owner: str) -> bytes:
        """The secret. SealBroken when the key, the text or its owner is another; ConfigError when the key file cannot be read."""
        try:
            raw = base64.b64decode(sealed.removeprefix(FORM), validate=True)
        except (binascii.Error, ValueError):
            raise SealBroken("not a sealed text") from None
        nonce, hidden, tag = raw[:NONCE_BYTES], raw[NONCE_BYTES:-TAG_BYTES], raw[-TAG_BYTES:]
        if len(tag) != TAG_BYTES or not hmac.compare_digest(tag, self._tag(nonce, hidden, owner)):
            raise SealBroken("sealed by another key or for another owner")
        return _crypt(self._derived("encrypt"), nonce, hidden)

    def mark(self, text: str) -> str:
        """A digest that only the key's holder can make, so that nobody can try secrets out against a copy of it."""
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
    """The key in the file, which is made on first use and durable before anything is sealed with it."""
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
            raise ConfigError(f"{path}: others may read it; chmod 600 it, and let webhooks have new secrets")
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: is no sealing key ({KEY_BYTES} bytes); restore a copy of it")
    return key
