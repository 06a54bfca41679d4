"""The tail of the log: the newest lines in memory for `bot logs`, and a bounded file for after the run. bot.logs calls
it, without secrets.

A log file that cannot be written stops nothing: it is tried again after RETRY_MS, and a line in memory says so. A file
that was renamed or removed is made anew, with the newest lines, so that `bot logs` shows them when the daemon is dead.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from bot.clock import SystemClock
from bot.files import is_moved

FILE: Final = "daemon.log"
LINES_MAX: Final = 2_000
# a longer file is renamed to the older one, and replaces it
FILE_BYTES_MAX: Final = 8 * 1024 * 1024
# before a file that could not be written is tried again
RETRY_MS: Final = 60_000
# lines that a file begins with when it takes the place of one that was moved
LINES_AGAIN: Final = 100
LINE_CHARS_MAX: Final = 16_000
# The characters of one field of a line.
VALUE_CHARS_MAX: Final = 4_000
# Fields of an event that have the name of a line's own field, renamed: `at_ms` of a bar is when it closed.
_RENAMED: Final = {"at_ms": "of_ms", "seq": "of_seq"}


class LogLine(NamedTuple):
    """`seq` counts the run's lines from 1; `event` is what was logged."""

    seq: int
    at_ms: int
    event: dict[str, Any]


class Tail:
    """A listener of the log. The event loop's thread and the threads of strategies call it."""

    def __init__(self, path: Path | None, *, lines_max: int = LINES_MAX, bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = path
        self.seq = 0
        self.lines: deque[LogLine] = deque(maxlen=lines_max)
        self._bytes_max = bytes_max
        self._file: int | None = None
        self._size = 0
        self._retry_ms = 0
        # the file was moved, or could not be written
        self._is_lost = False
        # the disk took only a part of the last line
        self._is_torn = False
        self._clock = SystemClock()
        # Reentrant, because a garbage collection meanwhile may log too.
        self._lock = threading.RLock()

    def __call__(self, event: Mapping[str, Any]) -> None:
        fields = {_RENAMED.get(name, name): _short(value) for name, value in event.items() if name != "timestamp"}
        at_ms = self._clock.now_ms()
        raw = _raw(fields, at_ms) if self.path is not None and at_ms >= self._retry_ms else b""
        with self._lock:
            self.seq += 1
            self.lines.append(LogLine(self.seq, at_ms, fields))
            if self.path is not None and raw and at_ms >= self._retry_ms:
                self._write(raw, at_ms, self.path)

    def newest(self, count: int) -> list[LogLine]:
        with self._lock:
            return list(islice(self.lines, max(0, len(self.lines) - count), None))

    def after(self, seq: int, count: int) -> list[LogLine]:
        """The oldest lines after line `seq` that are still in memory."""
        with self._lock:
            return list(islice((line for line in self.lines if line.seq > seq), count))

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def follow(self) -> None:
        """Make the file anew if it was renamed or removed. Called at each pass, because a quiet daemon logs rarely."""
        at_ms = self._clock.now_ms()
        with self._lock:
            if self.path is not None and (self._file is not None or self._is_lost) and at_ms >= self._retry_ms:
                self._write(b"", at_ms, self.path)

    def _write(self, raw: bytes, at_ms: int, path: Path) -> None:
        try:
            if self._file is not None and is_moved(self._file, path):
                self._close()
                self._is_lost = True
            if self._file is None:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = os.fstat(self._file).st_size
                if self._is_lost and self._size == 0:
                    raw = b"".join(_raw(line.event, line.at_ms) for line in self.newest(LINES_AGAIN))
                self._is_lost = False
                self._is_torn = self._is_torn and self._size > 0
            if not raw:
                return
            raw = b"\n" * self._is_torn + raw
            written = os.write(self._file, raw)
            self._is_torn = written < len(raw)
            if self._is_torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += written
            if self._size > self._bytes_max:
                # A rotation that copies and truncates has made the file smaller.
                self._size = os.fstat(self._file).st_size
            if self._size > self._bytes_max:
                self._close()
                path.replace(older(path))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._close()
            self._file = None
            was_lost, self._is_lost = self._is_lost, True
            self._retry_ms = at_ms + RETRY_MS
            if was_lost and not raw:
                # An earlier note has reported the failure.
                return
            note = {"level": "warning", "event": "log.unwritten", "path": str(path), "message": error.strerror}
            self.seq += 1
            self.lines.append(LogLine(self.seq, at_ms, note))


def _raw(event: dict[str, Any], at_ms: int) -> bytes:
    """A line of the file. It is made outside the lock, because a value's __str__ may be a strategy's code."""
    text = json.dumps({"at_ms": at_ms, **event}, ensure_ascii=False, separators=(",", ":"), default=str)
    raw = text.encode(errors="replace")
    if len(raw) > LINE_CHARS_MAX:
        raw = json.dumps({"at_ms": at_ms, "event": event.get("event"), "cut": len(raw)}).encode()
    return raw + b"\n"


def _short(value: Any) -> Any:
    """The value, cut to VALUE_CHARS_MAX: a strategy may log values of any size, and LINES_MAX lines stay in memory."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, default=str)
        if len(text) <= VALUE_CHARS_MAX:
            return value
        value = text
    return value if len(value) <= VALUE_CHARS_MAX else f"{value[:VALUE_CHARS_MAX]}... ({len(value)} characters)"


def older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """The newest lines of the log file of an earlier run, oldest first. Lines in another format are left out."""
    lines: deque[dict[str, Any]] = deque(maxlen=max(count, 1))
    for part in (older(path), path):
        lines.extend(_lines(part))
    return list(lines)[-count:] if count else []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                with contextlib.suppress(ValueError):
                    line = json.loads(text)
                    if isinstance(line, dict) and "event" in line:
                        yield line
    except FileNotFoundError:
        return
