"""Reseating: strategies come, go and change in a running loop, between two passes. What it needs of the service is asked first.

A strategy that goes keeps what it has: its positions stay its own in the books, with their stops. One that is built anew
begins like at a start: on_start with its durable state, then the bars of the past with its intents dropped. That may take
long, so the passes of the others go on meanwhile; what happens to it waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from bot.runtime.bar_feed import BarFeed, Breathe, Closed, Series
from bot.runtime.decisions.bar_queue import wanted_series
from bot.runtime.strategy_host.host import StrategySpec

if TYPE_CHECKING:
    from bot.runtime.kernel import Kernel
    from bot.runtime.strategy_host.instance import StrategyInstance

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Warm:
    """The past of one strategy that is to be built, and a feed of its own to live through it."""

    feed: BarFeed
    past: Sequence[Closed]
    due: Sequence[Closed] = field(default=())


async def warm_up(loop: Kernel, one: StrategySpec) -> Warm:
    """Ask for the bars of one strategy. Nothing is changed by it; what the service answers with is raised.

    Of a series that runs already only the bars that were decided are past: the next one is decided by all.
    """
    feed = BarFeed(wanted_series([one]))
    found = await feed.warm_up(loop.port, loop.journal.done_until, loop.now_ms())
    past: list[Closed] = []
    due: list[Closed] = []
    for closed in sorted([*found.past, *found.due]):
        running = loop.feed.histories.get(closed.series)
        if running is None:
            (due if closed in found.due else past).append(closed)
        elif running.last_at_ms is not None and closed.at_ms <= running.last_at_ms:
            past.append(closed)
    return Warm(feed, past, due)


async def reseat(
    loop: Kernel, placed: Sequence[StrategySpec], *, fresh: dict[str, Warm], gone: Sequence[str], renew: Callable[[str], None], breathe: Breathe,
) -> None:  # fmt: skip
    """From now on these strategies, in this order. `fresh` are those to be built, `gone` those to be stopped first (the old of
    a fresh one too); `renew` is told each of them between, so that its next call has a thread that waits for nothing.

    Each takes its seat as soon as it is built; a series to which nobody listens until then waits.
    """
    seats = {seat.name: seat for seat in loop.desk.seats}
    order = [one.strategy.name for one in placed]
    away: list[str] = []
    waiting: list[Closed] = []
    decided: dict[str, dict[Series, int]] = {}  # by the old of a fresh one
    for name in gone:
        seat = seats.pop(name)
        await loop.desk.stop_one(seat, now_ms=loop.now_ms())
        decided[name] = _decided(loop, seat)
        _give_up(loop, name)
        renew(name)
        away += [name] if name in fresh else []
        waiting += _take_seats(loop, list(seats.values()), away)
        await breathe()
    loop.gate.allowances = {one.strategy.name: one.allowance for one in placed}
    for one in placed:
        name = one.strategy.name
        if name not in fresh:
            continue
        if name not in gone:
            renew(name)
            away.append(name)  # From its on_start on.
            loop.desk.seat(loop.desk.seats, away=away)
        warm = fresh[name]
        seat = await _built(loop, one, warm, breathe)
        await _catch_up(loop, seat, warm.feed, decided.get(name, {}), breathe)
        loop.bars.join(closed for closed in warm.due if closed.series not in loop.feed.histories)
        loop.bars.join(closed for closed in waiting if closed.series in seat.series)
        waiting = [closed for closed in waiting if closed.series not in seat.series]
        loop.feed.join(warm.feed)
        seats[name] = seat
        away = [other for other in away if other != name]
        waiting += _take_seats(loop, sorted(seats.values(), key=lambda seat: order.index(seat.name)), away)
    wanted = wanted_series(placed)
    for series in [series for series in loop.feed.histories if series not in wanted]:
        loop.feed.drop(series)
    waiting += _take_seats(loop, [seats[name] for name in order], ())
    assert not any(closed.series in wanted for closed in waiting), "a bar that somebody waits for is due"
    loop.look_again()
    loop.journal.flush()


def _take_seats(loop: Kernel, seats: Sequence[StrategyInstance], away: Sequence[str]) -> list[Closed]:
    """These and no others. Answers the due bars of series to which none of them listens; no more of those are asked for."""
    for seat in seats:
        seat.look_at(loop.feed)
    heard: set[Series] = {series for seat in seats for series in seat.series}
    for series in [series for series in loop.feed.wanted if series not in heard]:
        loop.feed.rest(series)
    loop.desk.seat(seats, away=away)
    loop.timers.follow(seats, loop.journal, now_ms=loop.now_ms())
    due = loop.bars.take_all()
    loop.bars.join(closed for closed in due if closed.series in heard)
    return [closed for closed in due if closed.series not in heard]


async def _built(loop: Kernel, one: StrategySpec, warm: Warm, breathe: Breathe) -> StrategyInstance:
    """One that fails on the way is in quarantine, as at a start."""
    desk = loop.desk
    seat = desk.made(one, warm.feed)
    if seat.quarantined is None:
        await desk.start_one(seat, now_ms=loop.now_ms())
    for closed in warm.past:
        warm.feed.take(closed)
        loop.mirror.marks.setdefault(closed.market, closed.bar.close)
        seat.indicators.update(closed.bar)
        await desk.rehearse_one(seat, closed)
        await breathe()
    return seat


def _decided(loop: Kernel, seat: StrategyInstance) -> dict[Series, int]:
    """Series -> close instant of the newest bar that the seat has seen."""
    last = {series: loop.feed.histories[series].last_at_ms for series in seat.series}
    return {series: at_ms for series, at_ms in last.items() if at_ms is not None}


async def _catch_up(
    loop: Kernel, seat: StrategyInstance, feed: BarFeed, decided: Mapping[Series, int], breathe: Breathe
) -> None:
    """What has happened while it was being built: its events; and the bars that others have decided, which are past but for the newest.

    `decided`: up to there it has decided them itself, before it was built anew.
    """
    loop.desk.late = seat
    while True:
        await loop.tell_late(seat, breathe)
        missed = sorted(closed for series in seat.series for closed in _missed(loop, series, feed))
        if not missed:
            return
        closed = missed[0]
        feed.take(closed)
        seat.indicators.update(closed.bar)
        is_newest = not any(later.series == closed.series for later in missed[1:])
        if not is_newest or closed.at_ms <= decided.get(closed.series, 0):
            await loop.desk.rehearse_one(seat, closed)
        else:
            await loop.decide_late(seat, closed)
        await breathe()


def _missed(loop: Kernel, series: Series, feed: BarFeed) -> list[Closed]:
    """Bars of a series that runs and that are not in this feed yet."""
    running, last_ms = loop.feed.histories.get(series), feed.histories[series].last_at_ms
    if running is None or running.last_at_ms is None or running.last_at_ms == last_ms:
        return []
    bars = [bar for bar in running.bars(len(running)) if last_ms is None or bar.at_ms > last_ms]
    return [Closed(bar.at_ms, *series, bar) for bar in bars]


def _give_up(loop: Kernel, strategy: str) -> None:
    """What it decided and never sent is not wanted any more; what may have left is settled as ever."""
    for intent in list(loop.live.values()):
        if intent.strategy == strategy:
            loop.live[intent.id] = loop.sender.give_up(intent)
