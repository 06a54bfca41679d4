"""The progress stamp: the brain's proof of life. Written at the END of each completed cycle, never by a timer.

The heartbeat process reads it and beats only while it is young. Standard library only: that process imports this.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.runtime.liveness.mapped_record import MappedRecord

_LAYOUT = "QQQq"  # fence, cycles, boot_ns, last_bar_at_ms
_MAGIC, _VERSION = b"BBPS", 1
STARTING: Final = -2  # in place of a bar: the cycle was one of a start that is not over


class Stamp(NamedTuple):
    """`fence` names one run of the brain; `boot_ns` is CLOCK_BOOTTIME at the end of the cycle; `cycles` counts from 1."""

    fence: int
    cycles: int
    boot_ns: int
    last_bar_at_ms: int  # -1: no bar yet

    @property
    def is_of_start(self) -> bool:
        """Of a start that is not over: it may come to nothing, and the next one too."""
        return self.last_bar_at_ms == STARTING


class ProgressWriter:
    """The brain's side. `fence` is a number that this run alone has (64 bits, made at the edge)."""

    def __init__(self, path: str, *, fence: int) -> None:
        self.path = path
        self.fence = fence
        self.cycles = 0
        self._record = MappedRecord(path, _LAYOUT, magic=_MAGIC, version=_VERSION, write=True)
        self._record.write(fence, 0, 0, -1)  # An earlier run's stamp proves nothing about this one.

    def cycle_done(self, *, boot_ns: int, last_bar_at_ms: int | None) -> None:
        """One pass of the loop is complete: drained, due bars decided, orders settled."""
        self._record.renew()  # A heartbeat process that starts anew finds the stamp by its path.
        self.cycles += 1
        self._record.write(self.fence, self.cycles, boot_ns, -1 if last_bar_at_ms is None else last_bar_at_ms)

    def close(self) -> None:
        self._record.close()


class ProgressReader:
    def __init__(self, path: str) -> None:
        self._record = MappedRecord(path, _LAYOUT, magic=_MAGIC, version=_VERSION)

    def read(self) -> Stamp | None:
        """The newest stamp; None when none can be read, which a caller must take for no progress."""
        values = self._record.read()
        return None if values is None else Stamp._make(values)

    def renew(self) -> None:
        """Read from now on what is at the path, when its file was removed or replaced."""
        self._record.renew()

    def close(self) -> None:
        self._record.close()
