"""Timers: when a strategy's `timers` are due on the service's clock, and which of them have fired. Arithmetic and the journal's progress; asks no strategy.

An instant fires once: the newest that was fired is kept in the journal's progress, beside the bars, and is written in one
transaction with what the strategy wanted on it. Of the instants that passed while nobody looked only the newest fires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cronsim import CronSim, CronSimError

from bot.clock import MINUTE_MS, SECOND_MS, datetime_of, ms_of
from bot.errors import StrategyError
from bot.runtime.journal import Journal
from bot.runtime.seats import Seat
from bot.strategy import Strategy
from bot.strategy.view import Timer

TIMERS_MAX: Final = 20  # of one strategy
SECONDS_MAX: Final = 31 * 86_400
NAME_MAX: Final = 40

Spec = str | int


class Due(NamedTuple):
    """A timer that is due; the order of the fields is the order of firing."""

    at_ms: int
    strategy: str
    name: str

    @property
    def trigger(self) -> str:
        return f"timer:{self.name}:{self.at_ms}"

    @property
    def timer(self) -> Timer:
        return Timer(self.name, self.at_ms)

    @property
    def done(self) -> tuple[str, str, int]:
        """Its row of the journal's progress; no market is called like that."""
        return (progress_name(self.strategy), self.name, self.at_ms)


@dataclass(slots=True)
class _Clocked:
    strategy: str
    name: str
    spec: Spec
    last_ms: int
    next_ms: int


class Timers:
    """The timers of all seats. `next_ms` is the first instant at which one of them is due."""

    def __init__(self) -> None:
        self._timers: list[_Clocked] = []
        self.next_ms: int | None = None

    def follow(self, seats: Iterable[Seat], journal: Journal, *, now_ms: int) -> None:
        """From now on the timers of these seats. One that was never seen before begins now: its first instant lies ahead."""
        self._timers = []
        for seat in seats:
            for name, spec in seat.strategy.timers.items():
                done = (progress_name(seat.name), name)
                last_ms = journal.done_until(*done)
                if last_ms is None:
                    last_ms = now_ms
                    journal.bar_done(*done, now_ms)
                self._timers.append(_Clocked(seat.name, name, spec, last_ms, next_after(spec, last_ms)))
        self._look()

    def due(self, until_ms: int) -> list[Due]:
        """What is due at or before that instant, in its order; of each timer only the newest."""
        if self.next_ms is None or self.next_ms > until_ms:
            return []
        found = [
            Due(newest_until(one.spec, until_ms), one.strategy, one.name)
            for one in self._timers
            if one.next_ms <= until_ms
        ]
        return sorted(found)

    def fired(self, due: Due) -> None:
        for one in self._timers:
            if (one.strategy, one.name) == (due.strategy, due.name):
                one.last_ms = due.at_ms
                one.next_ms = next_after(one.spec, due.at_ms)
        self._look()

    def _look(self) -> None:
        self.next_ms = min((one.next_ms for one in self._timers), default=None)


def progress_name(strategy: str) -> str:
    return f"@timer:{strategy}"


def next_after(spec: Spec, at_ms: int) -> int:
    """The first instant after that one. Seconds count from the epoch, so that every run has the same instants."""
    if isinstance(spec, int):
        step = spec * SECOND_MS
        return at_ms // step * step + step
    return ms_of(next(CronSim(spec, datetime_of(at_ms))))


def newest_until(spec: Spec, at_ms: int) -> int:
    """The newest instant that is not after that one."""
    if isinstance(spec, int):
        step = spec * SECOND_MS
        return at_ms // step * step
    after = datetime_of((at_ms // MINUTE_MS + 1) * MINUTE_MS)
    return ms_of(next(CronSim(spec, after, reverse=True)))


def instants(spec: Spec, first_ms: int, last_ms: int) -> Iterable[int]:
    """Every instant in (first, last]."""
    at_ms = first_ms
    while (at_ms := next_after(spec, at_ms)) <= last_ms:
        yield at_ms


def check_timers(strategy: type[Strategy], where: str) -> None:
    """StrategyError names the timer that could never be kept."""
    timers: Any = strategy.timers  # The type is the author's word; this is what there is.
    at = f"{where}: {strategy.__name__}.timers"
    if not isinstance(timers, Mapping):
        raise StrategyError(f'{at}: is a mapping such as {{"rebalance": "0 * * * *"}}, not {timers!r}')
    if len(timers) > TIMERS_MAX:
        raise StrategyError(f"{at}: has {len(timers)}, at most {TIMERS_MAX}")
    for name, spec in timers.items():
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= NAME_MAX:
            raise StrategyError(f"{at}: a timer's name is a text of 1 to {NAME_MAX} characters, not {name!r}")
        if isinstance(spec, int) and not isinstance(spec, bool):
            if not 1 <= spec <= SECONDS_MAX:
                raise StrategyError(f"{at}[{name!r}]: seconds are 1 to {SECONDS_MAX}, not {spec}")
            continue
        _check_cron(spec, f"{at}[{name!r}]")


def _check_cron(line: Any, what: str) -> None:
    try:
        if not isinstance(line, str) or len(line.split()) != 5:
            raise CronSimError("five fields are wanted (minute hour day month weekday), or a whole number of seconds")
        next(CronSim(line, datetime_of(0)))
    except StopIteration:
        raise StrategyError(f"{what}: {line!r} names a day that never comes") from None
    except CronSimError as error:
        raise StrategyError(f"{what}: {line!r} is not a cron line: {error}") from error
