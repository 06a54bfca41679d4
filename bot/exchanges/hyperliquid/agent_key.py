"""The file with an agent's key, and the address of that key. The key itself is never shown and never kept."""

from __future__ import annotations

import os
import re
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from bot.errors import ConfigError
from bot.extras import install

KEY: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{64})", re.ASCII)
BYTES_MAX: Final = 200
CURVE_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def address_of_key_file(path: Path) -> str:
    """The address of the key in this file, in lower case. ConfigError says what is wrong with the file."""
    key = key_in(path)
    public = ec.derive_private_key(key, ec.SECP256K1()).public_key().public_numbers()
    if find_spec("Crypto") is None:
        raise ConfigError(f"an agent's key needs pycryptodome: {install('exchange')}")
    from Crypto.Hash import keccak

    data = public.x.to_bytes(32, "big") + public.y.to_bytes(32, "big")
    return "0x" + keccak.new(digest_bits=256, data=data).digest()[12:].hex()


def key_in(path: Path) -> int:
    """The key in this file, for the link process alone. ConfigError says what is wrong with the file."""
    try:
        # Without O_NONBLOCK a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"agent key {path}: {os.strerror(error.errno or 0)}; name a file with the key") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ConfigError(f"agent key {path}: is not a file; name a file with the key")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(f"agent key {path}: is readable by other users (mode {mode:04o}); chmod 600 it")
        text = file.read(BYTES_MAX).decode("ascii", errors="replace").strip()
    match = KEY.fullmatch(text)
    key = 0 if match is None else int(match[1], 16)
    if not 0 < key < CURVE_ORDER:
        raise ConfigError(f"agent key {path}: must hold the key alone, 64 hexadecimal digits with or without 0x")
    return key
