"""Replaces the state of the whole service: save and restore named snapshots, reset, set the seed, adopt another
service's state.

A change is synchronous: the new log is on disk before the service reads the next request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bot.clock import SystemClock
from bot.errors import ConfigError, Refusal
from bot.service.bodies.responses import OperationRefused, invalid
from bot.service.state_machine.bootstrap import PriceOptions, begin_again, go_back
from bot.service.state_machine.machine import Machine
from bot.service.state_machine.named_snapshots import NAMED_SNAPSHOTS_MAX, NamedSnapshot, NamedSnapshots, Replies
from bot.venue.storage import codec

SEED_MAX: Final = 2**63 - 1


class StateRestorer:
    """Saves, restores and resets the state.

    `speed`: the clock's speed at the start. `on_change` is called after each replacement.
    """

    def __init__(self, machine: Machine, options: PriceOptions, speed: float, on_change: Callable[[], None]) -> None:
        self.machine = machine
        self.named_snapshots = NamedSnapshots(machine.log)
        self._options = options
        self._speed = speed
        self._on_change = on_change
        self._is_real = machine.clock.is_real

    def keep(self, name: str) -> NamedSnapshot:
        """Save the present state under a name. It replaces an older snapshot of that name."""
        machine = self.machine
        now = machine.catch_up()
        names = self.named_snapshots.names()
        if name not in names and len(names) >= NAMED_SNAPSHOTS_MAX:
            raise OperationRefused(
                invalid(
                    "name",
                    f"would be snapshot {NAMED_SNAPSHOTS_MAX + 1}: the service keeps {NAMED_SNAPSHOTS_MAX}; a reset"
                    " deletes all of them",
                )
            )
        machine.log_marks()
        snapshot = NamedSnapshot(
            name,
            codec.dumps(machine.state),
            machine.seq,
            now,
            machine.chain,
            machine.events,
            machine.feed.options,
            self.named_snapshots.pushes(),
        )
        self.named_snapshots.keep(snapshot)
        machine.log.flush()
        return snapshot

    def find(self, name: str) -> NamedSnapshot:
        try:
            snapshot = self.named_snapshots.find(name)
        except ConfigError as error:
            raise _snapshot_unavailable(error) from None
        if snapshot is None:
            names = sorted(self.named_snapshots.names())
            raise OperationRefused(Refusal("not_found", f"no snapshot {name!r}", details={"names": names}))
        return snapshot

    def restore(self, name: str) -> NamedSnapshot:
        """Restore a snapshot of this service: state, time, candles and idempotency answers."""
        snapshot = self.find(name)
        self._go_back(snapshot, None)
        return snapshot

    def adopt(self, snapshot: NamedSnapshot, replies: Replies) -> None:
        """Take over the state of another service."""
        self._go_back(snapshot, replies)

    def _go_back(self, snapshot: NamedSnapshot, replies: Replies | None) -> None:
        def rewind_log() -> None:
            self.named_snapshots.take_log_back(snapshot, replies)

        self._change(lambda: go_back(self.machine, self._options, snapshot, rewind_log=rewind_log))

    def reset(self) -> None:
        """Reset to the start with the present seed, and delete all snapshots."""

        def empty() -> None:
            self.named_snapshots.forget()
            self.named_snapshots.empty_log()

        self._begin(empty, None, speed=self._speed, real=self._is_real)

    def seed(self, seed: int) -> None:
        """Change the simulated prices. Allowed only before the first command."""
        machine = self.machine
        now = machine.catch_up()
        state, clock = machine.state, machine.clock
        if state.account_seq or state.otps or machine.events or self.named_snapshots.pushes():
            text = "the seed can be set only before the first command; reset the service first"
            raise OperationRefused(Refusal("invalid_input", text, fix={"action": "reset", "path": "/sandbox/v1/reset"}))
        if seed > SEED_MAX:
            raise OperationRefused(invalid("seed", "is too large", f"0..{SEED_MAX}"))
        start_ms = now if clock.speed else None
        self._begin(self.named_snapshots.empty_log, seed, speed=clock.speed, real=clock.is_real, start_ms=start_ms)

    def _begin(
        self, rewind_log: Callable[[], None], seed: int | None, *, speed: float, real: bool, start_ms: int | None = None
    ) -> None:
        """`real`: the clock follows the system clock, so the start is now."""
        self._change(
            lambda: begin_again(
                self.machine,
                self._options,
                speed=speed,
                seed=seed,
                start_ms=SystemClock().now_ms() if real else start_ms,
                real=real,
                rewind_log=rewind_log,
            )
        )

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except ConfigError as error:
            # The files of its candles may be gone. Nothing has changed.
            raise _snapshot_unavailable(error) from None
        self.machine.log.flush()
        self._on_change()


def _snapshot_unavailable(error: ConfigError) -> OperationRefused:
    return OperationRefused(Refusal("service_unavailable", str(error)), None, {"Retry-After": "1"})
