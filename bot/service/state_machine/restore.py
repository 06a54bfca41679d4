"""Generations: the whole service at another of its states. Keep a snapshot, go back to one, begin again, take up another service's.

Between the first and the last line of a change nobody else has a turn: the log's new generation is on disk before the next request is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bot.clock import SystemClock
from bot.errors import ConfigError, Refusal
from bot.service.state_machine.bootstrap import PriceOptions, begin_again, go_back
from bot.service.state_machine.machine import Machine
from bot.service.state_machine.named_snapshots import KEPT_MAX, Kept, NamedSnapshots, Replies
from bot.service.views.responses import Refused, invalid
from bot.venue import codec

SEED_MAX: Final = 2**63 - 1


class Generations:
    """`speed` is the clock's at the start. `on_change` is told when the state has become another one."""

    def __init__(self, machine: Machine, options: PriceOptions, speed: float, on_change: Callable[[], None]) -> None:
        self.machine = machine
        self.archive = NamedSnapshots(machine.log)
        self._options = options
        self._speed = speed
        self._on_change = on_change
        self._is_real = machine.clock.is_real

    def keep(self, name: str) -> Kept:
        """The present state under a name; what had that name is gone."""
        machine = self.machine
        now = machine.catch_up()
        names = self.archive.names()
        if name not in names and len(names) >= KEPT_MAX:
            raise Refused(invalid("name", f"is one too many: {KEPT_MAX} snapshots are kept; reset forgets them"))
        machine.say_marks()
        kept = Kept(
            name,
            codec.dumps(machine.state),
            machine.seq,
            now,
            machine.chain,
            machine.events,
            machine.known,
            self.archive.pushes(),
        )
        self.archive.keep(kept)
        machine.log.flush()
        return kept

    def find(self, name: str) -> Kept:
        try:
            kept = self.archive.find(name)
        except ConfigError as error:
            raise _unavailable(error) from None
        if kept is None:
            names = sorted(self.archive.names())
            raise Refused(Refusal("not_found", f"no snapshot {name!r}", details={"names": names}))
        return kept

    def restore(self, name: str) -> Kept:
        """Back to a snapshot of this service: state, time, candles, and the answers kept for idempotency keys."""
        kept = self.find(name)
        self._go_back(kept, None)
        return kept

    def adopt(self, kept: Kept, replies: Replies) -> None:
        """Become what another service was."""
        self._go_back(kept, replies)

    def _go_back(self, kept: Kept, replies: Replies | None) -> None:
        def rewind_log() -> None:
            self.archive.take_log_back(kept, replies)

        self._change(lambda: go_back(self.machine, self._options, kept, rewind_log=rewind_log))

    def reset(self) -> None:
        """As at the start, with the seed that was set; snapshots are forgotten."""

        def empty() -> None:
            self.archive.forget()
            self.archive.empty_log()

        self._begin(empty, None, speed=self._speed, real=self._is_real)

    def seed(self, seed: int) -> None:
        """Other simulated prices from now on, before anybody has done anything."""
        machine = self.machine
        now = machine.catch_up()
        state, clock = machine.state, machine.clock
        if state.account_seq or state.otps or machine.events or self.archive.pushes():
            text = "the seed is set before the first command; reset the service first"
            raise Refused(Refusal("invalid_input", text, fix={"action": "reset", "path": "/sandbox/v1/reset"}))
        if seed > SEED_MAX:
            raise Refused(invalid("seed", "is too large", f"0..{SEED_MAX}"))
        start_ms = now if clock.speed else None
        self._begin(self.archive.empty_log, seed, speed=clock.speed, real=clock.is_real, start_ms=start_ms)

    def _begin(
        self, rewind_log: Callable[[], None], seed: int | None, *, speed: float, real: bool, start_ms: int | None = None
    ) -> None:
        """`real`: the clock follows the wall, so the beginning is now."""
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
            # Its candle files are gone, say; nothing has been changed.
            raise _unavailable(error) from None
        self.machine.log.flush()
        self._on_change()


def _unavailable(error: ConfigError) -> Refused:
    return Refused(Refusal("service_unavailable", str(error)), None, {"Retry-After": "1"})
