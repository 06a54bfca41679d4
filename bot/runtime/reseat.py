"""Reseating: strategies come, go and change in a running loop, between two passes. What it needs of the service is asked first.

A strategy that goes keeps what it has: its positions stay its own in the books, with their stops. One that is built anew
begins like at a start: on_start with its durable state, then the bars of the past with its intents dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from bot.runtime.desk import Placed
from bot.runtime.feed import Closed, Feed
from bot.runtime.loop import wanted_series

if TYPE_CHECKING:
    from bot.runtime.loop import Loop
    from bot.runtime.seats import Seat

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Warm:
    """The past of one strategy that is to be built, and a feed of its own to live through it."""

    feed: Feed
    past: Sequence[Closed]
    due: Sequence[Closed] = field(default=())


async def warm_up(loop: Loop, one: Placed) -> Warm:
    """Ask for the bars of one strategy. Nothing is changed by it; what the service answers with is raised.

    Of a series that runs already only the bars that were decided are past: the next one is decided by all.
    """
    feed = Feed(wanted_series([one]))
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
    loop: Loop, placed: Sequence[Placed], *, fresh: dict[str, Warm], gone: Sequence[str], renew: Callable[[str], None]
) -> None:
    """From now on these strategies, in this order. `fresh` are those to be built, `gone` those to be stopped first (the old of
    a fresh one too); `renew` is told each of them between, so that its next call has a thread that waits for nothing.
    """
    now_ms = loop.now_ms()
    seats = {seat.name: seat for seat in loop.desk.seats}
    for name in gone:
        seat = seats.pop(name)
        await loop.desk.stop_one(seat, now_ms=now_ms)
        _give_up(loop, name)
        renew(name)
    loop.gate.allowances = {one.strategy.name: one.allowance for one in placed}
    for one in placed:
        name = one.strategy.name
        if name in fresh:
            if name not in gone:
                renew(name)
            seats[name] = await _built(loop, one, fresh[name])
    wanted = wanted_series(placed)
    for series in [series for series in loop.feed.wanted if series not in wanted]:
        loop.feed.drop(series)
    loop.forget_due(lambda series: series not in wanted)
    for warm in fresh.values():
        loop.join_due(closed for closed in warm.due if closed.series not in loop.feed.histories)
        loop.feed.join(warm.feed)
    for seat in seats.values():
        seat.look_at(loop.feed)
    loop.desk.seat([seats[one.strategy.name] for one in placed])
    loop.timers.follow(loop.desk.seats, loop.journal, now_ms=now_ms)
    loop.journal.flush()


async def _built(loop: Loop, one: Placed, warm: Warm) -> Seat:
    """One that fails on the way is in quarantine, as at a start."""
    desk = loop.desk
    seat = desk.made(one, warm.feed)
    if seat.quarantined is None:
        await desk.start_one(seat, now_ms=loop.now_ms())
    for closed in warm.past:
        warm.feed.take(closed)
        loop.mirror.marks.setdefault(closed.market, closed.bar.close)
        seat.strategy.indicators.update(closed.bar)
        await desk.rehearse_one(seat, closed)
    return seat


def _give_up(loop: Loop, strategy: str) -> None:
    """What it decided and never sent is not wanted any more; what may have left is settled as ever."""
    for intent in list(loop.live.values()):
        if intent.strategy == strategy and intent.action == "open" and intent.state in ("opened", "planned"):
            loop.live[intent.id] = loop.sender.give_up(intent)
