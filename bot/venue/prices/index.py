"""Index of waiting prices and instants: two sorted lists of price levels per market, and one heap of deadlines.

It is derived from the state and not stored: `rebuild` makes it again after a restore. The last element of each list is
the one nearest to the price, so two comparisons decide whether a bar touches any level.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from functools import partial
from heapq import heappop, heappush
from typing import Final

from bot.venue.model.outcome import clamp
from bot.venue.model.state import (
    DAY_MS,
    HOUR_MS,
    PositionProtection,
    State,
    VenueAccount,
    VenueAction,
    VenueGuardian,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    WaitingLevel,
)

LevelEntry = tuple[int, int, int, WaitingLevel]

# Order of actions at one price level.
RANKS: Final = {
    "liquidation": 0,
    "drawdown": 1,
    "stop_loss": 2,
    "trail": 2,
    "take_profit": 3,
    "limit": 4,
    "trail_move": 5,
}

# Order of actions at one instant: funding, then guardians by deadline (venue.md 2.11).
# Settlement comes before the guardians.
EXPIRY_RANK: Final = -1
FUNDING_RANK: Final = 0
DAY_RANK: Final = 1
EXIT_RANK: Final = 8
PROTECTION_RANK: Final = 9
CLOCK_RANKS: Final = {"kill_switch": 2, "account_drawdown": 3, "dead_man_switch": 5, "max_hold": 6, "schedule": 7}


_level: Final = partial(tuple.__new__, WaitingLevel)


def _entry(
    market: VenueMarket, px: int, kind: str, account: str, number: int, *, falls: bool
) -> tuple[list[LevelEntry], LevelEntry]:
    """A level and the list that it belongs to. `falls`: it waits for a falling price."""
    entry = (px if falls else -px, -RANKS[kind], -number, _level((kind, account, number)))
    return market.falling if falls else market.rising, entry


def _drop(levels: list[LevelEntry], entry: LevelEntry) -> None:
    at = bisect_left(levels, entry)
    assert levels[at] == entry, entry
    del levels[at]


# ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def order_falls(order: VenueOrder) -> bool:
    """True if the order waits for a price at or below its level."""
    if order.kind == "limit":
        return order.buy > 0
    return (order.side > 0) == (order.kind == "stop_loss")


def order_level(market: VenueMarket, order: VenueOrder) -> int:
    """The price at which the order acts: its trigger, or for a limit one tick beyond its price (the price itself if a
    touch fills, and at the ends of an event market, where no price lies beyond).
    """
    if order.kind != "limit":
        assert order.trigger_px is not None
        return order.trigger_px
    assert order.limit_px is not None
    if market.spec.limit_touch:
        return order.limit_px
    # Below a power of ten the grid is finer, so a buy uses the tick of the prices below its limit.
    through = order.limit_px - order.buy * market.tick(order.limit_px - 1 if order.buy > 0 else order.limit_px)
    return clamp(market.spec, through)


def _order_entry(market: VenueMarket, order: VenueOrder) -> tuple[list[LevelEntry], LevelEntry]:
    px = order.trigger_px
    if px is None:
        px = order_level(market, order)
    return _entry(market, px, order.kind, order.account, order.number, falls=order_falls(order))


def watch_order(market: VenueMarket, order: VenueOrder) -> None:
    insort(*_order_entry(market, order))


def unwatch_order(market: VenueMarket, order: VenueOrder) -> None:
    _drop(*_order_entry(market, order))


def is_watched(market: VenueMarket, order: VenueOrder) -> bool:
    """True if the order waits at a level. A limit that waits for the next point does not yet."""
    if order.status == "armed":
        return True
    return order.status == "open" and order.kind == "limit" and (order.account, order.number) not in market.pending


# ── Trailing stops ──────────────────────────────────────────────────────────────────────────────────────────────────


def _trail_entries(market: VenueMarket, guardian: VenueGuardian) -> list[tuple[list[LevelEntry], LevelEntry]]:
    """A trailing stop has two levels: its stop, and one unit beyond its extreme (or its activation price)."""
    assert guardian.extreme is not None
    falls, account, number = guardian.side > 0, guardian.account, guardian.number
    if not guardian.active:
        return [_entry(market, guardian.extreme, "trail_move", account, number, falls=not falls)]
    assert guardian.stop_px is not None
    beyond = guardian.extreme + guardian.side
    return [
        _entry(market, beyond, "trail_move", account, number, falls=not falls),
        _entry(market, guardian.stop_px, "trail", account, number, falls=falls),
    ]


def watch_trail(market: VenueMarket, guardian: VenueGuardian) -> None:
    for levels, entry in _trail_entries(market, guardian):
        insort(levels, entry)


def unwatch_trail(market: VenueMarket, guardian: VenueGuardian) -> None:
    for levels, entry in _trail_entries(market, guardian):
        _drop(levels, entry)


# ── Margin watches ──────────────────────────────────────────────────────────────────────────────────────────────────


def move_watch(market: VenueMarket, position: VenuePosition, level: int | None) -> None:
    """Set the position's margin level to `level`. None: no price can liquidate it."""
    if position.liquidation_level != level:
        _move(market, position, position.liquidation_level, level, "liquidation")
        position.liquidation_level = level


def move_floor(market: VenueMarket, position: VenuePosition, level: int | None) -> None:
    """Set the position's drawdown level to `level`. None: the position has none."""
    if position.floor_level != level:
        _move(market, position, position.floor_level, level, "drawdown")
        position.floor_level = level


def _move(market: VenueMarket, position: VenuePosition, old: int | None, level: int | None, kind: str) -> None:
    falls = position.side > 0
    if old is not None:
        _drop(*_entry(market, old, kind, position.account, 0, falls=falls))
    if level is not None:
        insort(*_entry(market, level, kind, position.account, 0, falls=falls))
        market.watches += 1


# ── Deadlines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def schedule_funding(state: State, market: VenueMarket) -> None:
    """Called when the first position opens: the next full hour pays funding."""
    if market.next_funding_ms == 0 and market.spec.margin_mode != "full":
        market.next_funding_ms = state.now_ms // HOUR_MS * HOUR_MS + HOUR_MS
        heappush(state.deadlines, (market.next_funding_ms, FUNDING_RANK, 0, "funding", market.spec.coin))


def schedule_expiry(state: State, market: VenueMarket) -> None:
    """Called when a market is listed: an event market is settled at its end."""
    if market.spec.expires_ms is not None and market.status != "settled":
        heappush(state.deadlines, (market.spec.expires_ms, EXPIRY_RANK, 0, "expiry", market.spec.coin))


def schedule_day(state: State) -> None:
    """Called when the first position or floor appears: schedules the next 00:00 UTC."""
    if state.next_day_ms == 0:
        state.next_day_ms = state.now_ms // DAY_MS * DAY_MS + DAY_MS
        heappush(state.deadlines, (state.next_day_ms, DAY_RANK, 0, "day", ""))


def schedule_guardian(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    assert guardian.deadline_ms is not None
    heappush(
        state.deadlines,
        (guardian.deadline_ms, CLOCK_RANKS[guardian.spec.type], guardian.number, "guardian", account.id),
    )


def schedule_exit(state: State, account: VenueAccount, action: VenueAction) -> None:
    """What is left of an exit at an exchange is asked for anew."""
    assert action.again_ms is not None
    heappush(state.deadlines, (action.again_ms, EXIT_RANK, action.nonce, "exit", account.id))


def schedule_protection(state: State, account: VenueAccount, coin: str, due_ms: int) -> None:
    """The venue looks again at the protection of a position at an exchange."""
    heappush(state.deadlines, (due_ms, PROTECTION_RANK, 0, "exit", f"{account.id} {coin}"))


def due(state: State, now_ms: int, *, inclusive: bool = True) -> tuple[int, str, str, int] | None:
    """Take the earliest deadline at or before now (before now if not `inclusive`) as (deadline, kind, reference,
    number).
    """
    if not state.deadlines or state.deadlines[0][0] > now_ms:
        # A stale entry of the heap is too early, never too late.
        return None
    at = next_deadline_ms(state)
    if at is None or at > now_ms or (at == now_ms and not inclusive):
        return None
    deadline, _, number, kind, ref = heappop(state.deadlines)
    return deadline, kind, ref, number


def next_deadline_ms(state: State) -> int | None:
    """The next instant at which time alone causes something.

    Corrects entries of the heap that a heartbeat or an exit made stale.
    """
    heap = state.deadlines
    while heap:
        at, rank, number, kind, ref = heap[0]
        if kind == "expiry":
            if state.markets[ref].status != "settled":
                return at
            heappop(heap)
            continue
        if kind == "funding":
            if state.markets[ref].next_funding_ms == at:
                return at
            heappop(heap)
            continue
        if kind == "day":
            if state.next_day_ms == at:
                return at
            heappop(heap)
            continue
        account = state.accounts.get(ref)
        if kind == "exit":
            if not number:
                # the protection of one market is due
                if _protection(state, ref).due_ms == at:
                    return at
                heappop(heap)
                continue
            asked = None if account is None or account.exchange is None else account.exchange.actions.get(number)
            if asked is not None and asked.again_ms == at:
                return at
            heappop(heap)
            continue
        guardian = account.guardians.get(number) if account else None
        if guardian is None or guardian.deadline_ms is None:
            heappop(heap)
        elif guardian.deadline_ms > at:
            heappop(heap)
            heappush(heap, (guardian.deadline_ms, rank, number, kind, ref))
        else:
            return at
    return None


def _protection(state: State, ref: str) -> PositionProtection:
    account, coin = ref.split(" ")
    exchange = state.accounts[account].exchange
    assert exchange is not None, ref
    return exchange.protections[coin]


# ── After a restore ─────────────────────────────────────────────────────────────────────────────────────────────────


def rebuild(state: State) -> None:
    """Make the level lists and the deadline heap again from the state."""
    state.deadlines.clear()
    state.fresh.clear()
    state.changed_actions.clear()
    if state.next_day_ms:
        heappush(state.deadlines, (state.next_day_ms, DAY_RANK, 0, "day", ""))
    for market in state.markets.values():
        market.falling.clear()
        market.rising.clear()
        schedule_expiry(state, market)
        if market.next_funding_ms:
            heappush(state.deadlines, (market.next_funding_ms, FUNDING_RANK, 0, "funding", market.spec.coin))
    # dict.values, because a mapping of accounts may count its own reads, and nothing stored changes here.
    for account in dict.values(state.accounts):
        for levels, entry in _entries(state, account):
            levels.append(entry)
        for guardian in account.guardians.values():
            if guardian.deadline_ms is not None:
                schedule_guardian(state, account, guardian)
        for action in () if account.exchange is None else account.exchange.actions.values():
            if action.again_ms is not None:
                schedule_exit(state, account, action)
        for coin, protection in () if account.exchange is None else account.exchange.protections.items():
            if protection.due_ms is not None:
                schedule_protection(state, account, coin, protection.due_ms)
    for market in state.markets.values():
        market.falling.sort()
        market.rising.sort()


def forget(state: State, account: VenueAccount) -> None:
    """Remove every level of an account. Its deadlines in the heap are ignored once its guardians are removed."""
    for levels, entry in _entries(state, account):
        _drop(levels, entry)


def _entries(state: State, account: VenueAccount) -> Iterator[tuple[list[LevelEntry], LevelEntry]]:
    """All levels of an account, each with its list."""
    markets = state.markets
    # Orders that an exchange reports wait there. The stops and targets of the venue wait here too.
    for order in account.orders.values():
        market = markets[order.coin]
        if is_watched(market, order) and (account.exchange is None or order.leg is not None):
            yield _order_entry(market, order)
    for guardian in account.guardians.values():
        coin = guardian.spec.coin
        if guardian.spec.type == "trailing_stop" and coin is not None and guardian.extreme is not None:
            yield from _trail_entries(markets[coin], guardian)
    for position in account.positions.values():
        falls = position.side > 0
        for kind, level in (("liquidation", position.liquidation_level), ("drawdown", position.floor_level)):
            if level is not None:
                yield _entry(markets[position.coin], level, kind, account.id, 0, falls=falls)
