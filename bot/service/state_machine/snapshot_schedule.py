"""Decides when a snapshot of the state is due, and writes the running snapshot piece by piece."""

from __future__ import annotations

from typing import Final

from bot.clock import SystemClock
from bot.service.state_machine.command_log import CommandLog, Snapshot
from bot.service.state_machine.snapshots import SnapshotWriter, tracked
from bot.venue.model.state import State

# commands that a start after a crash replays at most, about a second's work
SNAPSHOT_EVERY: Final = 10_000


class SnapshotSchedule:
    """`stored_seq`: the last command in the snapshot on disk.

    A service in memory (a log without a path) writes no snapshots.
    """

    def __init__(self, command_log: CommandLog, state: State, stored_seq: int) -> None:
        self._log = command_log
        self._seq = stored_seq
        # Counted from the last snapshot, so that the log does not grow when the service is killed again and again.
        self.due_seq = stored_seq + SNAPSHOT_EVERY
        self._running: tuple[SnapshotWriter, Snapshot] | None = None
        if command_log.path is not None:
            tracked(state)

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def is_due(self, seq: int) -> bool:
        return seq >= self.due_seq and self._log.path is not None

    def is_behind(self, seq: int) -> bool:
        """True if the snapshot on disk lacks commands."""
        return seq != self._seq and self._log.path is not None

    def begin(self, state: State, seq: int, chain: bytes, events: int) -> None:
        """Begin a snapshot of the present state."""
        writer = SnapshotWriter(state, tracked(state))
        self._running = writer, Snapshot(seq, state.now_ms, writer.head, chain, events)

    def write_piece(self, *, whole: bool = False) -> bool:
        """Continue the running snapshot. True once it is complete; the log stores it in one transaction."""
        assert self._running is not None, "begin comes first"
        writer, snapshot = self._running
        if not writer.go_on(None) if whole else not writer.go_on():
            return False
        self._log.save_snapshot(snapshot, SystemClock().now_ms(), writer.written)
        self._running = None
        self._seq = snapshot.seq
        self.due_seq = snapshot.seq + SNAPSHOT_EVERY
        return True

    def finish(self) -> None:
        """Write the rest of the running snapshot, if one is running."""
        if self._running is not None:
            self.write_piece(whole=True)
