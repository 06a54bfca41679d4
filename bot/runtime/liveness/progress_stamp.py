"""The progress stamp proves that the daemon makes progress. It is written at the END of each completed pass, never by a
timer.

The heartbeat process sends heartbeats only while the stamp is recent. Standard library only: that process imports this.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.runtime.liveness.shared_record import SharedRecord

# fence, cycles, boot_ns, last_bar_at_ms
_LAYOUT = "QQQq"
_MAGIC, _VERSION = b"BBPS", 1
# stands in place of a bar while the start is not complete
STARTING: Final = -2


class Stamp(NamedTuple):
    """`fence` names one run of the daemon;

    `boot_ns` is CLOCK_BOOTTIME at the end of the pass; `cycles` counts passes from 1.
    """

    fence: int
    cycles: int
    boot_ns: int
    # -1: no bar yet
    last_bar_at_ms: int

    @property
    def is_of_start(self) -> bool:
        """True if the start is not complete; it may still fail, and so may the next one."""
        return self.last_bar_at_ms == STARTING


class ProgressWriter:
    """The daemon's side. `fence` is a random 64-bit number of this run."""

    def __init__(self, path: str, *, fence: int) -> None:
        self.path = path
        self.fence = fence
        self.cycles = 0
        self._record = SharedRecord(path, _LAYOUT, magic=_MAGIC, version=_VERSION, write=True)
        # An earlier run's stamp must not count.
        self._record.write(fence, 0, 0, -1)

    def cycle_done(self, *, boot_ns: int, last_bar_at_ms: int | None) -> None:
        """Stamp a completed pass: events taken, due bars decided, orders settled."""
        # A restarted heartbeat process finds the stamp by its path.
        self._record.renew()
        self.cycles += 1
        self._record.write(self.fence, self.cycles, boot_ns, -1 if last_bar_at_ms is None else last_bar_at_ms)

    def close(self) -> None:
        self._record.close()


class ProgressReader:
    def __init__(self, path: str) -> None:
        self._record = SharedRecord(path, _LAYOUT, magic=_MAGIC, version=_VERSION)

    def read(self) -> Stamp | None:
        """The newest stamp; None if none can be read, which the caller must treat as no progress."""
        values = self._record.read()
        return None if values is None else Stamp._make(values)

    def renew(self) -> None:
        """Follow the path after its file was removed or replaced."""
        self._record.renew()

    def close(self) -> None:
        self._record.close()
