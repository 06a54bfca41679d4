"""A small struct in a mapped file: one process writes it, others read it, without a lock and without a torn read.

The record has a checksum, so a reader of a half-written record tries again. A write is a copy into the page
cache: it never waits for the disk and outlives the writer. Standard library only: the heartbeat
process imports this.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib

_CHECK = struct.Struct("<I")
READ_TRIES = 50  # A write takes about a microsecond; fifty torn reads in a row mean a damaged file.


class MappedRecord:
    """The writer opens with `write=True` and creates the file; readers may open before it exists."""

    def __init__(self, path: str, layout: str, *, magic: bytes, version: int, write: bool = False) -> None:
        assert len(magic) == 4
        self.path = path
        self._head = struct.Struct("<4sI").pack(magic, version)
        self._struct = struct.Struct("<" + layout)
        self._size = len(self._head) + self._struct.size + _CHECK.size
        self._write = write
        self._map: mmap.mmap | None = None
        self._file: tuple[int, int] | None = None  # the device and inode that are mapped
        if write:
            self._map = self._open()
            assert self._map is not None

    def write(self, *values: int | bytes) -> None:
        assert self._write
        assert self._map is not None
        body = self._head + self._struct.pack(*values)
        self._map[: self._size] = body + _CHECK.pack(zlib.crc32(body))

    def read(self) -> tuple[int | bytes, ...] | None:
        """The newest complete record; None if there is none (no file yet, another version, damaged)."""
        if self._map is None:
            self._map = self._open()
            if self._map is None:
                return None
        for _ in range(READ_TRIES):
            raw = self._map[: self._size]
            body = raw[: -_CHECK.size]
            if _CHECK.unpack(raw[-_CHECK.size :])[0] == zlib.crc32(body) and body.startswith(self._head):
                return self._struct.unpack_from(body, len(self._head))
        return None

    def renew(self) -> None:
        """Follow the path after its file was removed or replaced: a writer writes its newest record there, a reader maps the new file.

        If the disk fails, the old mapping stays and the next call tries again.
        """
        old, before = self._map, self._file
        if old is None:
            return
        with contextlib.suppress(OSError):
            try:
                found = os.stat(self.path)  # noqa: PTH116 - the heartbeat process imports no pathlib
            except FileNotFoundError:
                if not self._write:
                    return
            else:
                if (found.st_dev, found.st_ino) == before:
                    return
            fresh = self._open()
            if fresh is None:
                return
            if self._write:
                fresh[: self._size] = old[: self._size]
            self._map = fresh
            old.close()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def _open(self) -> mmap.mmap | None:
        flags = os.O_RDWR | os.O_CREAT if self._write else os.O_RDONLY
        fd = -1
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        if fd < 0:
            return None
        try:
            found = os.fstat(fd)
            if found.st_size < self._size:
                if not self._write:
                    return None  # Its writer is creating it now.
                # So a full disk raises here instead of sending a signal at the first write.
                os.posix_fallocate(fd, 0, self._size)
            made = mmap.mmap(fd, self._size, access=mmap.ACCESS_WRITE if self._write else mmap.ACCESS_READ)
            self._file = found.st_dev, found.st_ino
            return made
        finally:
            os.close(fd)
