"""Simulated time of a world: it moves the venue's clock through the candles, and runs at its instant what happens
beside the daemon's own work.

Real time and the service's time are the same here. Waits of the daemon and of its requests pass in it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.client.retry import Backoff
from bot.drill.faults import DrillFault
from bot.model.events import GuardianMoved
from bot.service.bodies import event_bodies
from bot.service.state_machine.clock import MachineClock
from bot.venue.accounting.ledger import account_value
from bot.venue.model.state import guardian_id

Task = Callable[[], None]


class RealTimeClock:
    """The exchange's clock as the daemon sees it: a service in real time. The exchange itself is moved by hand."""

    speed: Final = 1.0
    is_sandbox: Final = False

    def __init__(self, clock: MachineClock) -> None:
        self.now_ms = clock.now_ms


class SimulatedTime:
    """`note` gets each event of the venue, as (instant, text), when it happens."""

    def __init__(
        self, exchange: SimulatedExchange, *, end_ms: int, note: Callable[[int, str], None] | None = None
    ) -> None:
        self.exchange = exchange
        self.end_ms = end_ms
        self.now_ms = exchange.clock.now_ms
        self.note = note
        # guardians that are no stop before they are activated
        self.sleepers: set[str] = set()
        self.begin_usd_e8 = self.lowest_usd_e8 = account_value(exchange.state, exchange.account)
        self._agenda: list[tuple[int, int, Task]] = []
        self._entries = 0
        # number of the newest event that `_observe` has read
        self._seen = 0

    def at(self, ms: int, task: Task) -> None:
        """Run `task` at that instant, or now if it is past. What it raises ends the work that moved the time."""
        self._entries += 1
        heappush(self._agenda, (ms, self._entries, task))

    def say(self, text: str) -> None:
        """A line of the record of what happened."""
        if self.note is not None:
            self.note(self.now_ms(), text)

    def pass_ms(self, ms: int) -> None:
        self.move_to(self.now_ms() + ms)

    def move_to(self, to_ms: int) -> None:
        while self.now_ms() < min(to_ms, self.end_ms - 1):
            self.step(to_ms)

    def step(self, to_ms: int) -> None:
        """Move to the next price, the next task or `to_ms`, whatever comes first."""
        now_ms = self.now_ms()
        to_ms = min(to_ms, self.end_ms - 1)
        if self._agenda:
            to_ms = min(to_ms, max(now_ms, self._agenda[0][0]))
        for reader in self.exchange.readers.values():
            if reader.at < reader.end:
                to_ms = min(to_ms, max(now_ms + 1, reader.next_point_ms()))
        if to_ms > now_ms:
            self.exchange.advance(to_ms)
            self.observe()
        while self._agenda and self._agenda[0][0] <= self.now_ms():
            heappop(self._agenda)[2]()
            self.observe()

    def observe(self) -> None:
        """Note what has just happened at the venue."""
        exchange = self.exchange
        self.lowest_usd_e8 = min(self.lowest_usd_e8, account_value(exchange.state, exchange.account))
        if exchange.count == self._seen:
            return
        for event in exchange.event_buffer.events[self._seen :]:
            if isinstance(event, GuardianMoved) and event.subtype == "armed" and event.guardian_type == "trailing_stop":
                armed = {
                    guardian_id(exchange.account, n): guardian for n, guardian in exchange.account.guardians.items()
                }
                if (guardian := armed.get(event.guardian)) is not None and guardian.spec.activate_at_r is not None:
                    self.sleepers.add(event.guardian)
            if self.note is not None:
                self.note(event.ts, _line(event_bodies.event(event)))
        self._seen = exchange.count


class SimulatedPacer:
    """The daemon's waits between retries, as those of RealPacer, in simulated time."""

    def __init__(self, time: SimulatedTime, chance: Random) -> None:
        self._time = time
        self._chance = chance
        self._backoff = Backoff()
        self._start_ms = time.now_ms()

    def mono_ms(self) -> int:
        return 1_000_000 + self._time.now_ms() - self._start_ms

    def delay_ms(self, attempt: int) -> int:
        return self._backoff.wait_ms(attempt, self._chance.random())

    async def sleep(self, ms: int) -> None:
        self._time.pass_ms(ms)


def span_of(faults: tuple[DrillFault, ...], at_ms: int) -> DrillFault | None:
    """The fault of these that lasts at that instant."""
    return next((fault for fault in faults if fault.at_ms <= at_ms < fault.end_ms), None)


_SHOWN: Final = (
    "guardianType",
    "kind",
    "intent",
    "side",
    "size",
    "px",
    "triggerPx",
    "realizedPnlUsd",
    "positionSize",
    "action",
    "reason",
)


def _line(event: dict[str, object]) -> str:
    data = event["data"]
    assert isinstance(data, dict)
    shown = " ".join(f"{name}={data[name]}" for name in _SHOWN if data.get(name) is not None)
    return f"venue: {event['type']} {event['subtype']} {event.get('coin') or ''} {shown}".replace("  ", " ")
