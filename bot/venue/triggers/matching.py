"""Applies a price: which orders, stops and liquidations it reaches, in which order, at which price.

A point is a movement from the last price to this one. Levels between them act nearest first, each at its own price. If
the market jumps (a bar's open), everything fills at the end of the jump, and liquidations come before stops.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from bot.model.events import triggered
from bot.venue.accounting import funding, ledger, limits
from bot.venue.accounting.order_margin import freed_by_closing
from bot.venue.accounting.order_sizes import CLOSE_SLIPPAGE_BPS, bound_of, cost_of_opening, size_at_fill
from bot.venue.model import outcome
from bot.venue.model.commands import PassBar, PricePoint, QuotePoint
from bot.venue.model.numbers import E8, div_up
from bot.venue.model.record import emit, emit_order, next_seq, open_trade
from bot.venue.model.state import (
    State,
    VenueAccount,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    VenueTrade,
    WaitingLevel,
    oid_text,
    side_name,
)
from bot.venue.orders import exits, open_orders, order_fills, protection_orders
from bot.venue.prices import index
from bot.venue.prices.book import level_px, walk
from bot.venue.protection import protection
from bot.venue.storage import pages
from bot.venue.triggers import guardian_actions, liquidation

# lowest and highest of the points still to come in this bar
Ahead = tuple[int, int]
# Start, volume (None: not known) and close of the bar that a point belongs to.
BarOfPoint = tuple[int, int | None, int]
# The bar of a point that a command moves the market to.
NO_BAR: Final[BarOfPoint] = (0, None, 0)


# ── Points ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def point(
    state: State,
    market: VenueMarket,
    px: int,
    *,
    step: int = 0,
    bar: BarOfPoint = NO_BAR,
    oracle: int | None = None,
    mid: int | None = None,
    ahead: Ahead | None = None,
) -> None:
    """Move the market to `px`.

    Step 0 opens a bar: the price may jump, due funding is paid, and resting limits get the bar's volume.
    """
    if market.status == "settled":
        return
    last = market.mark
    market.point += 1
    market.is_quoted = False
    if step == 0:
        bar_ms, volume, close = bar
        market.bar_ms = bar_ms
        market.begin_bar(bar_ms, px, close)
        market.volume_left = -1 if volume is None else volume * market.spec.participation // E8
        if market.next_funding_ms and state.now_ms >= market.next_funding_ms:
            funding.pay(
                state, market, oracle if oracle is not None else market.oracle if market.external == "closed" else px
            )
        # The oracle is frozen while the outside price is closed.
        if oracle is not None or market.external != "closed":
            market.oracle = oracle if oracle is not None else px
    elif oracle is not None:
        market.oracle = oracle
    elif (
        market.oracle == last and market.external != "closed"
        # The oracle follows the price unless a command has set it.
    ):
        market.oracle = px
    if market.working:
        market.mark = market.mid = px
        for account_id, number in list(market.working):
            account = state.accounts[account_id]
            if number in account.orders:
                exits.work(state, account, market, account.orders[number])
    _meet(state, market, last, px, step=step, jump=step == 0, ahead=ahead)
    market.mark = px
    market.mid = px if mid is None else mid
    if market.pending:
        _fill_pending(state, market)
        _meet(state, market, px, px, step=step, jump=True, ahead=ahead)
        market.mark = px
        market.mid = px if mid is None else mid


def quote_point(state: State, command: QuotePoint) -> None:
    """Move the market to a quote. The price jumps, so everything that it reaches fills around the bid or the ask."""
    market = state.markets[command.coin]
    assert not market.pending, "orders wait for the next point only in backtests, which have no quotes"
    assert 0 < command.bid <= command.ask
    if market.status == "settled":
        return
    if market.next_funding_ms and state.now_ms >= market.next_funding_ms:
        funding.pay(state, market, market.oracle)
    last = market.mark
    market.point += 1
    # A single price is in no bar, and limits no volume.
    market.bar_ms, market.volume_left = 0, -1
    market.see_quote(command.mark, command.bid, command.ask)
    for account_id, number in list(market.working):
        account = state.accounts[account_id]
        if number in account.orders:
            exits.work(state, account, market, account.orders[number])
    _meet(state, market, last, command.mark, step=0, jump=True, ahead=None)


def sweep(state: State, market: VenueMarket) -> None:
    """Fire stops and targets that a command armed beyond their triggers, at the current price."""
    mark, falling, rising = market.mark, market.falling, market.rising
    if (falling and falling[-1][0] >= mark) or (rising and -rising[-1][0] <= mark) or market.is_quoted:
        _meet(state, market, mark, mark, step=0, jump=True, ahead=None)


def _meet(state: State, market: VenueMarket, last: int, px: int, *, step: int, jump: bool, ahead: Ahead | None) -> None:
    """Act on every level between `last` and `px` that this point may reach, until none is left."""
    falling, rising = market.falling, market.rising
    low, high = _reach(market, px) if market.is_quoted else (px, px)
    if (not falling or falling[-1][0] < low) and (not rising or -rising[-1][0] > high):
        # The usual case: the nearest level on each side lies beyond.
        return
    watched: list[str] = []
    drawn: list[str] = []
    placed = -1
    while True:
        # On a jump, liquidations and drawdowns come first. They are searched again only after one was placed.
        urgent = jump and placed != market.watches
        placed = market.watches
        next_level = _next(state, market, last, px, step=step, urgent=urgent, ahead=ahead)
        if next_level is None:
            break
        level_px, level = next_level
        if urgent and level.kind in _URGENT:
            placed = -1
        account = state.accounts[level.account]
        kind = level.kind
        if kind == "liquidation":
            position = account.positions[market.spec.coin]
            ref = px if jump else _nearer(level_px, px, last)
            if not _liquidated(state, account, market, position, ref, px):
                position.watched_point = market.point
                watched.append(account.id)
            continue
        if kind == "drawdown":
            _stand_at(market, px if jump else _nearer(level_px, px, last))
            drawn.append(account.id)
            guardian_actions.touch_floor(state, account, market)
            continue
        if kind == "trail_move":
            _stand_at(market, px)
            guardian_actions.move_trail(state, account, market, account.guardians[level.number], px)
            continue
        if kind == "trail":
            guardian = account.guardians[level.number]
            _stand_at(market, px if jump or guardian.through else level_px)
            guardian_actions.fire_trail(state, account, market, guardian, market.mid)
            continue
        order = account.orders[level.number]
        if kind == "limit":
            _fill_limit(
                state, account, market, order, _limits_meet(market, order, px if jump else last), by_limit=not jump
            )
        else:
            _stand_at(market, px if jump or order.through else level_px)
            fire_trigger(state, account, market, order, market.mid, gapped=jump or order.through)
    if watched or drawn:
        _stand_at(market, px)
        for account_id in drawn:
            ledger.rewatch_floor(state, state.accounts[account_id])
        for account_id in watched:
            account = state.accounts[account_id]
            held = account.positions.get(market.spec.coin)
            if held is not None:
                ledger.rewatch(state, account, held)


_URGENT: Final = frozenset({"liquidation", "drawdown"})


def _stand_at(market: VenueMarket, px: int) -> None:
    """Set mark and mid to the price of an action. A quote has set both already."""
    if not market.is_quoted:
        market.mark = market.mid = px


def _reach(market: VenueMarket, px: int) -> tuple[int, int]:
    """The lowest and the highest price at which a quote with the mark `px` may meet a level."""
    return min(px, level_px(market, market.mid, 1, 0)), max(px, level_px(market, market.mid, -1, 0))


def _limits_meet(market: VenueMarket, order: VenueOrder, px: int) -> int:
    """The price that a resting limit meets: of a quote the ask or the bid."""
    return level_px(market, market.mid, order.buy, 0) if market.is_quoted else px


def _is_met(market: VenueMarket, level: WaitingLevel, stored_px: int, *, falls: bool) -> bool:
    """Whether a quote has reached this level: a limit meets ask or bid, every other level the mark."""
    px = level_px(market, market.mid, 1 if falls else -1, 0) if level.kind == "limit" else market.mark
    return stored_px >= px if falls else stored_px <= px


def _nearer(level_px: int, px: int, last: int) -> int:
    """The level, or the start of the path if the path starts beyond the level."""
    if px <= last:
        return min(last, max(level_px, px))
    return max(last, min(level_px, px))


def _next(
    state: State, market: VenueMarket, last: int, px: int, *, step: int, urgent: bool, ahead: Ahead | None
) -> tuple[int, WaitingLevel] | None:
    """The level that acts next: if `urgent`, liquidations first and then drawdowns; otherwise the one nearest to the
    start of the path.
    """
    first: tuple[int, WaitingLevel] | None = None
    low, high = _reach(market, px) if market.is_quoted else (px, px)
    for falls in (True, False) if px <= last else (False, True):
        levels, reach = (market.falling, low) if falls else (market.rising, -high)
        for at in range(len(levels) - 1, -1, -1):
            stored, _, _, level = levels[at]
            if stored < reach:
                break
            if market.is_quoted and not _is_met(market, level, stored if falls else -stored, falls=falls):
                continue
            if not _may_act(state, market, level, step=step, ahead=ahead):
                continue
            candidate = (stored if falls else -stored), level
            if not urgent or level.kind == "liquidation":
                return candidate
            if first is None or (level.kind == "drawdown" and first[1].kind != "drawdown"):
                first = candidate
    return first


def _may_act(state: State, market: VenueMarket, level: WaitingLevel, *, step: int, ahead: Ahead | None) -> bool:
    """True if this point may reach the level.

    It must be older than the point. With sl_first a target waits if the bar still reaches the stop.
    """
    account = state.accounts[level.account]
    kind = level.kind
    if kind == "liquidation":
        return account.positions[market.spec.coin].watched_point < market.point
    if kind == "drawdown":
        return True
    if kind in ("trail", "trail_move"):
        return account.guardians[level.number].born < market.point
    order = account.orders[level.number]
    if order.born >= market.point:
        return False
    if kind == "limit":
        if market.volume_left == 0 or _is_shut(state, account, market, order):
            return False
        position = account.positions.get(order.coin)
        if ahead is None or not step or position is None or position.side == order.buy or order.left_to_open():
            return True
        # The order only takes profit, as a target does.
        return not _adverse_ahead(account, position, ahead)
    if kind == "take_profit":
        if order.limit_bar_ms == market.bar_ms and market.bar_ms and step != 3:
            return False
        if ahead is not None and step and _adverse_ahead(account, account.positions[market.spec.coin], ahead):
            return False
    return True


def _is_shut(state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder) -> bool:
    """True if this fill would open a position while strict hours or a guardian block openings.

    The order then waits until the block ends.
    """
    is_closed = market.external == "closed" and market.spec.strict_hours
    if not is_closed and not limits.is_blocked(state, account, market.spec.coin):
        return False
    position = account.positions.get(order.coin)
    return position is None or position.side == order.buy or order.size - order.filled > position.size


def _adverse_ahead(account: VenueAccount, position: VenuePosition, ahead: Ahead) -> bool:
    """True if this bar will still reach a stop, a trailing stop or the liquidation of this position.

    Drawdown floors are left out: whether a floor is reached depends on the account's other markets, and each market's
    points are processed alone.
    """
    low, high = ahead
    levels = [position.liquidation_level]
    if position.stop_oid is not None:
        levels.append(account.orders[position.stop_oid].trigger_px)
    for guardian in account.guardians.values():
        if guardian.spec.coin == position.coin and guardian.stop_px is not None:
            levels.append(guardian.stop_px)
    return any(level is not None and (low <= level if position.side > 0 else high >= level) for level in levels)


# ── What acts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fire_trigger(
    state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder, ref_px: int, *, gapped: bool
) -> None:
    """A stop or target fires: exit the whole position around `ref_px`, cancel the other of the two, and keep trying
    an unfilled rest.
    """
    if account.exchange is not None:
        protection_orders.reach(state, account, order.coin, order.kind, order)
        return
    position = account.positions[market.spec.coin]
    trigger = order.trigger_px
    assert trigger is not None
    index.unwatch_order(market, order)
    order.size, order.status = position.size, "fired"
    trade = open_trade(state, account, order, kind=order.kind, intent="close")
    emit(
        state,
        account,
        triggered(
            (
                account.id,
                next_seq(account),
                state.now_ms,
                order.kind,
                market.spec.coin,
                oid_text(account, order.number),
                trade.id,
                side_name(position.side),
                position.size,
                trigger,
                market.mark,
            )
        ),
    )
    sibling = position.target_oid if order.kind == "stop_loss" else position.stop_oid
    if order.kind == "stop_loss":
        position.stop_oid = None
    else:
        position.target_oid = None
    fills = walk(
        market, ref_px, order.buy, order.size, exits.bound_of_trigger(market, ref_px if gapped else trigger, order.buy)
    )
    whole = sum([size for _, size in fills]) == order.size
    if sibling is not None and (whole or order.kind == "stop_loss"):
        protection.drop_child(state, account, market, position, account.orders[sibling], "sibling_filled")
    order_fills.take(state, account, market, order, trade, fills)
    if not whole and order.kind == "stop_loss":
        position.stop_oid = order.number
    exits.settle_exit(state, account, market, order, trade)


def _fill_limit(
    state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder, begin: int, *, by_limit: bool
) -> None:
    """Fill a resting limit at its price, or at the better price where the path starts (a bar's open, later the book's
    price), within its part of the bar's volume.
    """
    assert order.limit_px is not None
    fill_px = order.limit_px
    _stand_at(market, fill_px)
    if (order.limit_px - begin) * order.buy > 0:
        _stand_at(market, begin)
        if by_limit:
            start_px = level_px(market, begin, order.buy, 0)
        else:
            start_px = market.grid_up(begin) if order.buy > 0 else market.grid_down(begin)
        if (order.limit_px - start_px) * order.buy > 0:
            fill_px = start_px
    size = order.size - order.filled
    if market.volume_left >= 0:
        size = min(size, market.volume_left // market.lot * market.lot)
        if size == 0:
            market.volume_left = 0
            return
    position = account.positions.get(order.coin)
    against = position.size if position is not None and position.side != order.buy else 0
    opens = order.left_to_open()
    # The position that the order should close has become smaller.
    if size > against + opens:
        size = against + opens
        if not size:
            open_orders.drop_entry(state, account, market, order, "reduce_only")
            return
    rest = order.size - order.filled - size
    opening = max(0, size - against)
    left = min(rest, opens - opening)
    open_orders.unreserve(account, order, keep=order.reserved * left // opens if left else 0)
    leverage = position.leverage if position is not None and not against else order.leverage
    fills = [(fill_px, size)]
    if opening:
        if limits.exceeds_leverage(state, order, leverage) or protection.lacks_stop(
            state, account, market, order, fills, against, leverage, maker=True
        ):
            open_orders.drop_entry(state, account, market, order, "position_closed")
            return
        unit_px = outcome.share_px(market.spec, order.buy, fill_px)
        back = freed_by_closing(market, position, [], (fill_px, size)) if against else 0
        if div_up(unit_px * opening // E8, leverage) > ledger.free_margin(state, account, back):
            open_orders.drop_entry(state, account, market, order, "insufficient_funds")
            return
    trade = pages.trade_of(account, order.trade or "")
    if opening:
        trade.leverage = leverage
    order.born = market.point
    if market.volume_left >= 0:
        market.volume_left -= size
    order_fills.take(state, account, market, order, trade, fills, maker=True, by_limit=by_limit)
    if order.filled >= order.size:
        open_orders.unreserve(account, order)
        index.unwatch_order(market, order)
        del account.resting[order.number]
        del account.orders[order.number]
        order_fills.finish(state, trade)
    elif not order.reduce_only and not order.left_to_open():
        open_orders.drop_entry(state, account, market, order, "position_closed")


def _fill_pending(state: State, market: VenueMarket) -> None:
    """Fill orders that waited for this point: market orders within their slippage of its price, limits within their
    limit. The unfilled rest of a limit keeps waiting.
    """
    for waiting in tuple(market.pending):
        # canceled by the fill of an order before it
        if waiting not in market.pending:
            continue
        market.pending.remove(waiting)
        account_id, number = waiting
        account = state.accounts[account_id]
        order = account.orders[number]
        trade = pages.trade_of(account, order.trade or "")
        open_orders.unreserve(account, order)
        del account.resting[number]
        del account.orders[number]
        position = account.positions.get(order.coin)
        against = position.size if position is not None and position.side != order.buy else 0
        bound = _bound_of_pending(market, order)
        if not against:
            order.size = trade.size = size_at_fill(market, order, bound)
        size = min(order.size, against + order.left_to_open())
        fills = walk(market, market.mid, order.buy, size, bound) if size else []
        is_limit = order.kind == "limit"
        if is_limit and size and (not fills or _is_shut(state, account, market, order)):
            _rest_at_limit(state, account, market, order, trade)
            continue
        opening = sum([sz for _, sz in fills]) - against
        leverage = position.leverage if position is not None and not against else order.leverage
        reason = None
        if not fills:
            reason = "slippage_bound" if size else "reduce_only"
        elif opening > 0:
            reason = _why_not_opened(state, account, market, order, position, fills, against, leverage)
        if reason is not None:
            _give_up(state, account, order, trade, reason)
            continue
        if opening > 0:
            trade.leverage = leverage
        order_fills.take(state, account, market, order, trade, fills)
        rest = None
        if order.filled < size:
            rest = "slippage_bound"
        # The position that the order should close has become smaller.
        elif order.filled < order.size:
            rest = "reduce_only" if order.reduce_only else "position_closed"
        if is_limit and rest == "slippage_bound":
            _rest_at_limit(state, account, market, order, trade)
        elif is_limit and rest is not None:
            _give_up(state, account, order, trade, rest)
        else:
            order_fills.finish(state, trade, reason=rest)
            # The order had an "open" event, so its end needs an event too.
            if rest is not None:
                emit_order(state, account, order, "canceled", reason=rest)


def _why_not_opened(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    order: VenueOrder,
    position: VenuePosition | None,
    fills: list[tuple[int, int]],
    against: int,
    leverage: int,
) -> str | None:
    """Why the fills of a waiting order may not open a position; None if they may."""
    spec = market.spec
    if limits.is_blocked(state, account, spec.coin):
        return "guardian"
    if limits.exceeds_leverage(state, order, leverage) or protection.lacks_stop(
        state, account, market, order, fills, against, leverage, maker=False
    ):
        return "position_closed"
    _, margin = cost_of_opening(outcome.paid(spec, order.buy, fills), against, (0, 0), leverage)
    if spec.margin_mode == "full":
        margin += sum(ledger.fee_on(spec, px, sz, maker=False) for px, sz in fills)
    back = freed_by_closing(market, position, fills, (0, 0)) if against else 0
    back += ledger.coming_back(state, account, market) + _behind(account, market, order)
    return "insufficient_funds" if margin > ledger.free_margin(state, account, back) else None


def _behind(account: VenueAccount, market: VenueMarket, order: VenueOrder) -> int:
    """Margin reserved by later orders.

    It does not count against this order, because they are checked again when they fill.
    """
    if not account.resting:
        return 0
    later = [account.orders[number] for number in account.resting if number > order.number]
    waiting = {number for owner, number in market.pending if owner == account.id}
    return sum(
        resting.reserved
        for resting in later
        if resting.number in waiting or (resting.coin == order.coin and resting.buy != order.buy)
    )


def _rest_at_limit(
    state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder, trade: VenueTrade
) -> None:
    """Rest a limit at its price.

    Cancels it if margin does not suffice, because the limit price may cost more than the book's price.
    """
    if open_orders.held_at_limit(market, order) > ledger.free_margin(state, account):
        _give_up(state, account, order, trade, "insufficient_funds")
    else:
        open_orders.rest_at_limit(account, market, order)


def _give_up(state: State, account: VenueAccount, order: VenueOrder, trade: VenueTrade, reason: str) -> None:
    trade.status, trade.reason, trade.updated_ms = "canceled", reason, state.now_ms
    emit_order(state, account, order, "canceled", reason=reason)


def _bound_of_pending(market: VenueMarket, order: VenueOrder) -> int:
    if order.limit_px is not None:
        return order.limit_px
    bps = order.slippage_bps
    if bps is None:
        bps = market.spec.slippage_bps if order.kind == "market" else CLOSE_SLIPPAGE_BPS
    return bound_of(market, market.mid, order.buy, bps)


def _liquidated(
    state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition, ref: int, px: int
) -> bool:
    """Liquidate if the account is below maintenance on the way to `px`.

    False if only this market's share of the slack was used up.
    """
    _stand_at(market, ref)
    equity, need = liquidation.standing(state, account, position)
    if equity >= need and ref != px:
        level = ledger.level_of_slack(market, position, ledger.slack_of(state, account, position))
        if level is None or (level - px) * position.side < 0:
            return False
        ref = level if (level - ref) * position.side < 0 else ref
        market.mark = market.mid = ref
        equity, need = liquidation.standing(state, account, position)
        # The level is rounded to 1e-8: one unit further on, the account is below.
        if equity > need:
            market.mark = market.mid = ref = ref - position.side
            equity, need = liquidation.standing(state, account, position)
    if equity > need or (equity == need and ref == px):
        return False
    liquidation.liquidate(state, account, position, ref)
    return True


# ── Bars ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def path_of(bar: PassBar, policy: str) -> tuple[int, int, int, int]:
    """The four prices of a candle in path order."""
    up = policy == "ohlc"
    if policy in ("adaptive", "sl_first"):
        up = abs(bar.high - bar.open) < abs(bar.open - bar.low)
    elif policy == "seeded":
        # A Brownian path from the open reaches the high before the low with probability (open - low) / (high - low).
        draw = int.from_bytes(blake2b(f"{bar.seed}:{bar.coin}:{bar.at_ms}".encode(), digest_size=8).digest(), "big")
        up = draw * (bar.high - bar.low) < (bar.open - bar.low) << 64
    if up:
        return bar.open, bar.high, bar.low, bar.close
    return bar.open, bar.low, bar.high, bar.close


def is_calm(state: State, market: VenueMarket, low: int, high: int) -> bool:
    """True if no order or level lies between low and high, and no order waits that any price may fill."""
    falling, rising = market.falling, market.rising
    return (
        not market.pending
        and not market.working
        and (not falling or falling[-1][0] < low)
        and (not rising or -rising[-1][0] > high)
    )


def price_point(state: State, command: PricePoint) -> None:
    market = state.markets[command.coin]
    point(
        state,
        market,
        command.px,
        step=command.step,
        bar=(command.bar_ms, command.volume, 0),
        oracle=command.oracle,
        mid=command.mid,
    )
