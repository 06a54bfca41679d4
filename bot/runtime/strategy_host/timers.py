"""Timers: when a strategy's `timers` are due on the service's clock, and which have fired. This module calls no
strategy.

An instant fires once: the journal stores the newest fired instant in one transaction with the strategy's signals. If
several instants passed during a downtime, only the newest fires.

A sandbox may be restored to an earlier state. Then a timer continues from there, and repeated instants fire again. The
number of restores is part of their orders' keys, because orders with the old keys were already sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot import cron
from bot.clock import MINUTE_MS, SECOND_MS
from bot.errors import StrategyError
from bot.logs import log
from bot.strategy import Strategy
from bot.strategy.view import Timer

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal
    from bot.runtime.strategy_host.instance import StrategyInstance

# tolerated lead of the newest instant over the clock, for small clock corrections
BACK_MS: Final = MINUTE_MS
# The number for one strategy.
TIMERS_MAX: Final = 20
SECONDS_MAX: Final = 31 * 86_400
NAME_MAX: Final = 40

Spec = str | int


class Due(NamedTuple):
    """A timer that is due; the order of the fields is the order of firing."""

    at_ms: int
    strategy: str
    name: str
    # how often the service was restored
    backs: int = 0

    @property
    def trigger(self) -> str:
        return trigger_of(self.name, self.at_ms, self.backs)

    @property
    def timer(self) -> Timer:
        return Timer(self.name, self.at_ms)

    @property
    def done(self) -> tuple[str, str, int]:
        """Its row in the journal's table of progress, which also has the rows of markets; no market has such a name."""
        return (progress_name(self.strategy, self.backs), self.name, self.at_ms)


@dataclass(slots=True)
class _Clocked:
    strategy: str
    name: str
    spec: Spec
    last_ms: int
    next_ms: int
    backs: int


class Timers:
    """The timers of all strategies. `next_ms` is the first instant at which one is due."""

    def __init__(self) -> None:
        self._timers: list[_Clocked] = []
        self.next_ms: int | None = None

    def follow(self, instances: Iterable[StrategyInstance], journal: Journal, *, now_ms: int) -> None:
        """Follow the timers of these strategies. The first instant of a new timer is in the future."""
        self._timers = []
        for instance in instances:
            for name, spec in instance.timers.items():
                backs = backs_of(journal, instance.name, name)
                done = (progress_name(instance.name, backs), name)
                last_ms = journal.state.done_until(*done)
                if last_ms is None:
                    last_ms = now_ms
                    journal.state.bar_done(*done, now_ms)
                self._timers.append(_Clocked(instance.name, name, spec, last_ms, next_after(spec, last_ms), backs))
        self._look()

    def go_back(self, journal: Journal, *, now_ms: int) -> None:
        """Continue timers from now if the service was restored to before their last instant."""
        ahead = [timer for timer in self._timers if timer.last_ms > now_ms + BACK_MS]
        for timer in ahead:
            log.warning(
                "timer.went_back", strategy=timer.strategy, timer=timer.name, from_ms=timer.last_ms, to_ms=now_ms
            )
            timer.last_ms, timer.next_ms, timer.backs = now_ms, next_after(timer.spec, now_ms), timer.backs + 1
            journal.state.bar_done(progress_name(timer.strategy, timer.backs), timer.name, now_ms)
            journal.state.bar_done(_backs_name(timer.strategy), timer.name, timer.backs)
        if ahead:
            self._look()

    def due(self, until_ms: int) -> list[Due]:
        """Timers that are due at or before `until_ms`, in order of firing.

        Each timer comes once, with its newest due instant.
        """
        if self.next_ms is None or self.next_ms > until_ms:
            return []
        dues = [
            Due(newest_until(timer.spec, until_ms), timer.strategy, timer.name, timer.backs)
            for timer in self._timers
            if timer.next_ms <= until_ms
        ]
        return sorted(dues)

    def fired(self, due: Due) -> None:
        for timer in self._timers:
            if (timer.strategy, timer.name) == (due.strategy, due.name):
                timer.last_ms = due.at_ms
                timer.next_ms = next_after(timer.spec, due.at_ms)
        self._look()

    def _look(self) -> None:
        self.next_ms = min((timer.next_ms for timer in self._timers), default=None)


def progress_name(strategy: str, backs: int) -> str:
    """The progress row of a strategy's timers. Each restore needs a new row, because a row only goes forward."""
    return f"@timer:{strategy}" if backs == 0 else f"@timer.{backs}:{strategy}"


def _backs_name(strategy: str) -> str:
    """The progress row that counts restores."""
    return f"@timer_backs:{strategy}"


def backs_of(journal: Journal, strategy: str, name: str) -> int:
    return journal.state.done_until(_backs_name(strategy), name) or 0


def trigger_of(name: str, at_ms: int, backs: int) -> str:
    """The count comes before the name, which may contain colons."""
    return f"timer:{name}:{at_ms}" if backs == 0 else f"timer.{backs}:{name}:{at_ms}"


def next_after(spec: Spec, at_ms: int) -> int:
    """The first instant after `at_ms`. Seconds count from 1970, so that every run has the same instants."""
    if isinstance(spec, int):
        step = spec * SECOND_MS
        return at_ms // step * step + step
    return _or_never(cron.next_run(cron.parse(spec), at_ms + 1))


def newest_until(spec: Spec, at_ms: int) -> int:
    """The newest instant at or before `at_ms`."""
    if isinstance(spec, int):
        step = spec * SECOND_MS
        return at_ms // step * step
    return _or_never(cron.last_run(cron.parse(spec), at_ms))


def _or_never(at_ms: int | None) -> int:
    """An instant of a timer that `check_timers` has accepted, which always comes."""
    assert at_ms is not None
    return at_ms


def instants(spec: Spec, first_ms: int, last_ms: int) -> Iterable[int]:
    """Every instant in (first, last]."""
    at_ms = first_ms
    while (at_ms := next_after(spec, at_ms)) <= last_ms:
        yield at_ms


def check_timers(strategy: type[Strategy], where: str) -> None:
    """StrategyError for a timer that could never fire."""
    # The author may have written anything.
    timers: Any = strategy.timers
    at = f"{where}: {strategy.__name__}.timers"
    if not isinstance(timers, Mapping):
        raise StrategyError(f'{at}: must be a mapping such as {{"rebalance": "0 * * * *"}}, not {timers!r}')
    if len(timers) > TIMERS_MAX:
        raise StrategyError(f"{at}: has {len(timers)} timers; the limit is {TIMERS_MAX}")
    for name, spec in timers.items():
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= NAME_MAX:
            raise StrategyError(f"{at}: a timer's name must be a string of 1 to {NAME_MAX} characters, not {name!r}")
        if isinstance(spec, int) and not isinstance(spec, bool):
            if not 1 <= spec <= SECONDS_MAX:
                raise StrategyError(f"{at}[{name!r}]: seconds must be 1 to {SECONDS_MAX}, not {spec}")
            continue
        _check_cron(spec, f"{at}[{name!r}]")


def _check_cron(line: Any, what: str) -> None:
    if not isinstance(line, str):
        raise StrategyError(f"{what}: give five cron fields or a whole number of seconds, not {line!r:.100}")
    try:
        cron.parse(line)
    except cron.BadCron as error:
        raise StrategyError(f"{what}: {line!r:.100} is not a cron line: {error}") from error
