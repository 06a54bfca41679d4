"""The call record: a file that shows, also after a crash, which strategies were being called.

A strategy that never releases the interpreter (a loop inside C code) blocks the event loop that would quarantine it,
and the next run would call it again. So the daemon records the begin and the end of each call, and the heartbeat
process, which a strategy cannot block, records how long the daemon was alive. A call during which the process ended
stays in the record too. One such end may be chance (any kill); several in a row are not.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple

from bot.clock import boot_ns
from bot.operating_system import reserve_bytes
from bot.runtime.liveness.heartbeat_process import LEASE, LeaseFile

FILE: Final = "calls"
# A call that began this long before the last sign of life blocked the daemon: the limit of a call is 5 s, and the
# heartbeat process may outlive the daemon by one attempt of 2 s.
STUCK_S: Final = 8.0
# more strategies than a config may name
ROWS: Final = 1_000
# magic, and the run that wrote the file
_HEAD: Final = struct.Struct("<8sQ")
# name, version, CLOCK_BOOTTIME at which the call began (0: none)
_ROW: Final = struct.Struct("<40s16sQ")
_BEGAN: Final = struct.Struct("<Q")
_MAGIC: Final = b"BBCALLS\x01"
SIZE: Final = _HEAD.size + ROWS * _ROW.size


class UnfinishedCall(NamedTuple):
    """A strategy that the last run was calling when the run ended.

    `seconds`: least length of the call; 0 or less if not observed.
    """

    strategy: str
    version: str
    seconds: float

    @property
    def blocked_daemon(self) -> bool:
        """True if the call blocked the daemon for at least STUCK_S."""
        return self.seconds >= STUCK_S


class CallRow:
    """One strategy's row in the file, written by its own thread. Before that thread is abandoned, call `leave`."""

    __slots__ = ("_at", "_calls", "_turn", "_written")

    def __init__(self, calls: CallRecord, at: int) -> None:
        self._calls: CallRecord | None = calls
        self._at = at
        self._written = b""
        self._turn = threading.Lock()

    def begin(self, name: str, version: str) -> None:
        record = _ROW.pack(name.encode()[:40], version.encode()[:16], 0)
        with self._turn:
            if self._calls is None:
                return
            if record != self._written:
                self._written = record
                self._calls.write(self._at, record)
            self._calls.write(self._at + _ROW.size - _BEGAN.size, _BEGAN.pack(boot_ns()))

    def end(self) -> None:
        with self._turn:
            self._end()

    def leave(self) -> None:
        """Free the row. Later calls of this thread are not recorded, because the thread was abandoned or replaced."""
        with self._turn:
            self._end()
            calls, self._calls = self._calls, None
        if calls is not None:
            calls.free.append(self._at)

    def _end(self) -> None:
        if self._calls is not None:
            self._calls.write(self._at + _ROW.size - _BEGAN.size, _BEGAN.pack(0))


class CallRecord:
    """The daemon's side. OSError if the file cannot be created; then only this record is lost."""

    def __init__(self, path: Path, *, fence: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_open = True
        self._turn = threading.Lock()
        try:
            reserve_bytes(self._fd, SIZE)
            os.pwrite(self._fd, _HEAD.pack(_MAGIC, fence).ljust(SIZE, b"\0"), 0)
        except OSError:
            os.close(self._fd)
            raise
        self.free = list(range(SIZE - _ROW.size, _HEAD.size - 1, -_ROW.size))

    def row(self) -> CallRow | None:
        """A free row. None if all are used; then the strategy's calls are not recorded."""
        return CallRow(self, self.free.pop()) if self.free else None

    def write(self, at: int, part: bytes) -> None:
        """Write a part. Not mapped: whoever shortens a mapped file ends the process that touches it by a signal."""
        # Closed: an abandoned thread has returned late. On a disk that fails only this record is lost.
        with self._turn, contextlib.suppress(OSError):
            if self._is_open:
                os.pwrite(self._fd, part, at)

    def close(self) -> None:
        with self._turn:
            if self._is_open:
                self._is_open = False
                os.close(self._fd)


def asked(folder: Path) -> tuple[int, list[UnfinishedCall]]:
    """The newest run with recorded calls in this folder, and the strategies that it was calling when it ended,
    longest call first.
    """
    with contextlib.suppress(OSError, ValueError):
        raw = (folder / FILE).read_bytes()
        magic, fence = _HEAD.unpack_from(raw) if len(raw) == SIZE else (b"", 0)
        if magic != _MAGIC:
            return 0, []
        seen_ns = _seen_ns(folder, fence)
        calls = [
            UnfinishedCall(name.rstrip(b"\0").decode(), version.rstrip(b"\0").decode(), (seen_ns - began_ns) / 1e9)
            for name, version, began_ns in _ROW.iter_unpack(raw[_HEAD.size :])
            if began_ns
        ]
        return fence, sorted(calls, key=lambda call: -call.seconds)
    return 0, []


def _seen_ns(folder: Path, fence: int) -> int:
    """When the heartbeat process last saw that run alive; 0: never."""
    try:
        lease = LeaseFile(str(folder / LEASE))
    except (OSError, ValueError):
        return 0
    try:
        record = lease.read()
    finally:
        lease.close()
    return 0 if record is None or record.fence != fence else record.written_ns
