"""How all packages look at files, and how they write one that must be whole: `replacing`, `write_private`."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from bot.operating_system import sync_descriptor

# Faults of a disk that is full, read-only or failing. A change of the config does not help; a later start may succeed.
DISK_FAULTS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class OutsideFolder(ValueError):
    """A file from outside names a path that is not inside its own folder. The text says why."""


def inside(folder: Path, name: str) -> Path:
    """The path that a file from outside names.

    OutsideFolder unless it is relative, inside `folder`, and no part of it is a link.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or name.startswith(("/", "~")) or {"", ".", ".."} & set(parts):
        raise OutsideFolder(f"{name!r} is not a relative path inside of the folder")
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise OutsideFolder(f"{path} is a link, and links are not followed")
    return path


def is_file(path: Path) -> bool:
    """True if the file exists. OSError if that cannot be seen, such as in a folder that this user may not enter."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when the block ends: a reader sees the old file or the whole new one.

    It is written beside `path`, synced and renamed, and then the folder is synced. After a failure nothing of it is
    left. OSError if the disk fails. For its owner only, unless `mode` says more.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            sync_descriptor(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def open_private(path: Path) -> IO[bytes]:
    """Open a file to append to it; one that is made here is for its owner only. OSError as `open`."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def write_private(path: Path, data: bytes) -> None:
    """Write a whole file for its owner only, and wait until it is on disk. OSError if the disk fails."""
    with replacing(path) as file:
        file.write(data)


def sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(number)
    finally:
        os.close(number)


def is_moved(descriptor: int, path: Path) -> bool:
    """True if the open file is no longer the one at the path: it was renamed, as a log rotation does, or removed."""
    try:
        there = path.stat()
    except OSError:
        return True
    return not os.path.samestat(os.fstat(descriptor), there)
