"""A small struct in a mapped file: one process writes it, others read it, without a lock and without a torn read.

The record carries a checksum, so a reader that met a half-written one tries again. A write is a copy into the page
cache: it never waits for the disk, and it outlives the process that made it. Standard library only: the heartbeat
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
    """The writer's side opens with `write=True` and makes the file; readers may come before it exists."""

    def __init__(self, path: str, layout: str, *, magic: bytes, version: int, write: bool = False) -> None:
        assert len(magic) == 4
        self.path = path
        self._head = struct.Struct("<4sI").pack(magic, version)
        self._struct = struct.Struct("<" + layout)
        self._size = len(self._head) + self._struct.size + _CHECK.size
        self._write = write
        self._map: mmap.mmap | None = None
        if write:
            self._map = self._open()
            assert self._map is not None

    def write(self, *values: int | bytes) -> None:
        assert self._write
        assert self._map is not None
        body = self._head + self._struct.pack(*values)
        self._map[: self._size] = body + _CHECK.pack(zlib.crc32(body))

    def read(self) -> tuple[int | bytes, ...] | None:
        """The newest whole record; None while there is none (no file yet, another version, damaged)."""
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
            if os.fstat(fd).st_size < self._size:
                if not self._write:
                    return None  # Its writer is just making it.
                # A full disk says so here, and not by a signal at the first write.
                os.posix_fallocate(fd, 0, self._size)
            return mmap.mmap(fd, self._size, access=mmap.ACCESS_WRITE if self._write else mmap.ACCESS_READ)
        finally:
            os.close(fd)
