"""A small struct in a file: one process writes it, others read it, without a lock and without a torn read.

The record has a checksum, so a reader of a half-written record tries again. A write is a copy into the page cache and
outlives the writer. The file is not mapped: whoever shortens a mapped file ends the process that touches it by a
signal. Standard library only: the heartbeat process imports this.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib

from bot.operating_system import reserve_bytes

_CHECK = struct.Struct("<I")
# A write takes about a microsecond; fifty torn reads in a row mean a damaged file.
READ_TRIES = 50


class SharedRecord:
    """The writer opens with `write=True` and creates the file; readers may open before it exists."""

    def __init__(self, path: str, layout: str, *, magic: bytes, version: int, write: bool = False) -> None:
        assert len(magic) == 4
        self.path = path
        self._head = struct.Struct("<4sI").pack(magic, version)
        self._struct = struct.Struct("<" + layout)
        self._size = len(self._head) + self._struct.size + _CHECK.size
        self._write = write
        # what was written last
        self._newest = b""
        self._fd: int | None = None
        # the device and inode of the open file
        self._file: tuple[int, int] | None = None
        if write:
            self._fd = self._open()
            assert self._fd is not None

    def write(self, *values: int | bytes) -> None:
        """Write a record.

        On a disk that fails the last one stays: to its readers the writer makes no progress, and that is safe.
        """
        assert self._write
        assert self._fd is not None
        body = self._head + self._struct.pack(*values)
        self._newest = body + _CHECK.pack(zlib.crc32(body))
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, self._newest, 0)

    def read(self) -> tuple[int | bytes, ...] | None:
        """The newest complete record; None if there is none (no file yet, another version, shortened, damaged)."""
        if self._fd is None:
            self._fd = self._open()
            if self._fd is None:
                return None
        for _ in range(READ_TRIES):
            try:
                raw = os.pread(self._fd, self._size, 0)
            except OSError:
                return None
            if len(raw) < self._size:
                return None
            body = raw[: -_CHECK.size]
            if _CHECK.unpack(raw[-_CHECK.size :])[0] == zlib.crc32(body) and body.startswith(self._head):
                return self._struct.unpack_from(body, len(self._head))
        return None

    def renew(self) -> None:
        """Follow the path after its file was removed or replaced: a writer writes its newest record there, a reader
        opens the new file.

        If the disk fails, the old file stays open and the next call tries again.
        """
        old, before = self._fd, self._file
        if old is None:
            return
        with contextlib.suppress(OSError):
            try:
                status = os.stat(self.path)  # noqa: PTH116 - the heartbeat process imports no pathlib
            except FileNotFoundError:
                if not self._write:
                    return
            else:
                if (status.st_dev, status.st_ino) == before:
                    return
            fresh = self._open()
            if fresh is None:
                return
            self._fd = fresh
            os.close(old)
            if self._newest:
                os.pwrite(fresh, self._newest, 0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int | None:
        flags = os.O_RDWR | os.O_CREAT if self._write else os.O_RDONLY
        fd = -1
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        if fd < 0:
            return None
        try:
            status = os.fstat(fd)
            if status.st_size < self._size:
                if not self._write:
                    os.close(fd)
                    # The writer is creating the file now.
                    return None
                # A full disk raises here, at the start, because the space is taken now.
                reserve_bytes(fd, self._size)
        except OSError:
            os.close(fd)
            raise
        self._file = status.st_dev, status.st_ino
        return fd
