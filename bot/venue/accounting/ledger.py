"""Money: the effect of fills, fees, funding and liquidations on a balance, and the margin that is left.

After every command, exact to 1e-8: balance + isolated margins = start + realised - fees + funding - margin lost +
absorbed. An account that follows an exchange also has transfers, and never absorbed.
"""

from __future__ import annotations

from typing import NamedTuple

from bot.model.events import fill as fill_event
from bot.venue.accounting import drawdown_floors
from bot.venue.model import outcome
from bot.venue.model.numbers import E8, div_up, fee_of
from bot.venue.model.record import emit
from bot.venue.model.state import (
    DAY_MS,
    MarketSpec,
    State,
    VenueAccount,
    VenueKey,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    VenueTrade,
    oid_text,
    side_name,
)
from bot.venue.prices import index

# ── Reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def unrealized(state: State, account: VenueAccount) -> int:
    """Sum of unrealised PnL of all positions at mark."""
    return sum(p.pnl(state.markets[coin].mark) for coin, p in account.positions.items())


def account_value(state: State, account: VenueAccount) -> int:
    """Balance, isolated margins and unrealised PnL at mark."""
    return account.balance + sum(p.margin + p.pnl(state.markets[coin].mark) for coin, p in account.positions.items())


def cross_value(state: State, account: VenueAccount) -> int:
    """Equity of the cross positions: the balance and their PnL."""
    markets = state.markets
    value = account.balance
    for coin, position in account.positions.items():
        if not position.isolated:
            value += position.pnl(markets[coin].mark)
    return value


def initial_margin(market: VenueMarket, position: VenuePosition) -> int:
    return div_up(market.mark * position.size // E8, position.leverage)


def at_market(account: VenueAccount, market: VenueMarket) -> list[VenueOrder]:
    """Market orders that wait for the next point, in order. Limit orders are left out, because they may not fill."""
    waiting = [account.orders[number] for owner, number in market.pending if owner == account.id]
    return [order for order in waiting if order.limit_px is None]


def leaving(account: VenueAccount, market: VenueMarket) -> int:
    """The size of the position that waiting exits will close."""
    position = account.positions.get(market.spec.coin)
    if position is None or not market.pending:
        return 0
    return min(position.size, sum(order.size for order in at_market(account, market) if order.reduce_only))


def coming_back(state: State, account: VenueAccount, beside: VenueMarket) -> int:
    """Initial margin of cross positions that waiting exits in other markets will free at the same instant's open."""
    back = 0
    for coin, position in account.positions.items():
        market = state.markets[coin]
        if market is not beside and not position.isolated and (closed := leaving(account, market)):
            left = market.mark * (position.size - closed) // E8
            back += initial_margin(market, position) - div_up(left, position.leverage)
    return back


def margin_used(state: State, account: VenueAccount) -> int:
    """Initial margin of cross positions, own margin of isolated ones, and what resting entries reserve."""
    used = account.reserved
    for coin, position in account.positions.items():
        used += position.margin if position.isolated else initial_margin(state.markets[coin], position)
    return used


def free_margin(state: State, account: VenueAccount, freed: int = 0) -> int:
    """Margin for a new position. `freed`: margin of the part that the same order closes. Never negative."""
    free = account.balance - account.reserved + freed
    for coin, position in account.positions.items():
        if not position.isolated:
            value = state.markets[coin].mark * position.size // E8
            free += position.side * (value - position.entry_notional) - div_up(value, position.leverage)
    return max(0, free)


def maintenance(market: VenueMarket, notional: int) -> int:
    """Maintenance margin: notional / (2 * max leverage of its tier) less the tier's deduction. The chosen leverage does
    not matter. A fully paid position needs none.
    """
    if market.spec.margin_mode == "full":
        return 0
    tier = market.tier(notional)
    return div_up(notional, 2 * tier.max_leverage) - tier.deduction


def margin_ratio(state: State, account: VenueAccount) -> tuple[int, int]:
    """(maintenance, account value) of the worst among the cross account and each isolated position.

    At a ratio of 1 it is liquidated.
    """
    worst = (0, 1)
    need, value = 0, 0
    for coin, position in account.positions.items():
        market = state.markets[coin]
        mm = maintenance(market, market.mark * position.size // E8)
        if position.isolated:
            worst = _worse(worst, (mm, max(1, position.margin + position.pnl(market.mark))))
        else:
            need += mm
    if need:
        value = max(1, cross_value(state, account))
        worst = _worse(worst, (need, value))
    return worst


def _worse(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return b if b[0] * a[1] > a[0] * b[1] else a


def slack_of(state: State, account: VenueAccount, position: VenuePosition) -> int:
    """Equity above maintenance behind this position: its own if isolated, that of the cross account otherwise."""
    if position.isolated:
        market = state.markets[position.coin]
        return position.margin + position.pnl(market.mark) - maintenance(market, market.mark * position.size // E8)
    slack = account.balance
    for coin, other in account.positions.items():
        if not other.isolated:
            market = state.markets[coin]
            value = market.mark * other.size // E8
            slack += other.side * (value - other.entry_notional) - maintenance(market, value)
    return slack


def level_of_slack(market: VenueMarket, position: VenuePosition, slack: int) -> int | None:
    """Price at which this position has used up `slack` USD of its equity above maintenance, if nothing else changes.
    None if there is no such price.

    From slack + s*(p - mark)*size = mm(p) - mm(mark), mm(p) = p*size/(2L) - D, with L and D of the tier at p (venue.md
    2.3).
    """
    if market.spec.margin_mode == "full":
        return None
    value = market.mark * position.size // E8
    return _level(market, position, slack, value, maintenance(market, value))


def _level(market: VenueMarket, position: VenuePosition, slack: int, value: int, mm: int) -> int | None:
    """The same, given the position's value and maintenance margin at mark."""
    side, size = position.side, position.size
    base = side * value - slack - mm
    tiers = market.tiers
    for at, tier in enumerate(tiers):
        leverage2 = 2 * tier.max_leverage
        # p = (side*value - slack - mm - D) / (size * (side - 1/(2L)))
        numerator = (base - tier.deduction) * leverage2 * E8
        denominator = size * (side * leverage2 - 1)
        if denominator < 0:
            numerator, denominator = -numerator, -denominator
        px = numerator // denominator if side > 0 else div_up(numerator, denominator)
        notional = px * size // E8
        if at + 1 < len(tiers) and notional >= tiers[at + 1].lower:
            # Maintenance is continuous, so the level lies in the next tier.
            continue
        if px > 0:
            return px
        # A short is below maintenance at every price.
        return None if side > 0 else 1
    return None


def liquidation_px(state: State, position: VenuePosition) -> int | None:
    """Mark price at which this position alone brings its account to maintenance; None if no price does."""
    account = state.accounts[position.account]
    if account.exchange is not None:
        told = account.exchange.margins.get(position.coin)
        return None if told is None else told.liquidation_px
    return level_of_slack(state.markets[position.coin], position, slack_of(state, account, position))


# ── Watches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rewatch(state: State, account: VenueAccount, position: VenuePosition | None = None) -> None:
    """Place the margin levels. The positions of a cross account share its slack: the account cannot be below
    maintenance before one position has used up its share; then the slack is divided again.
    """
    rewatch_floor(state, account)
    if position is not None and position.isolated:
        market = state.markets[position.coin]
        index.move_watch(market, position, level_of_slack(market, position, slack_of(state, account, position)))
        if len(account.positions) == 1:
            return
    # Margin that moved into an isolated position no longer backs the cross ones.
    cross = []
    slack = account.balance
    for coin, p in account.positions.items():
        if not p.isolated:
            market = state.markets[coin]
            value = market.mark * p.size // E8
            mm = maintenance(market, value)
            slack += p.side * (value - p.entry_notional) - mm
            cross.append((market, p, value, mm))
    # A shortfall is not divided: each position must make up for all of it.
    share = slack // len(cross) if cross and slack > 0 else slack
    for market, p, value, mm in cross:
        index.move_watch(market, p, _level(market, p, share, value, mm))


def rewatch_floor(state: State, account: VenueAccount) -> None:
    """Place the levels of drawdown floors. An account without positions may be at its floor too."""
    if account.guardians:
        drawdown_floors.rewatch(state, account, account_value(state, account))


def fee_on(spec: MarketSpec, px: int, size: int, *, maker: bool) -> int:
    """Fee of one fill: a fraction of the notional; in an event market rate * p * (1 - p) per share, as on Polymarket
    (venue.md 2.14).
    """
    notional = px * size // E8
    if spec.margin_mode == "full":
        notional = notional * (outcome.PAYOUT - px) // outcome.PAYOUT
    return fee_of(notional, spec.maker_rate if maker else spec.taker_rate)


class ReportedFill(NamedTuple):
    """What an exchange says of a fill besides price and size: the fee that it took, and its instant."""

    fee: int
    venue_ts: int


# One execution of an order: price, size, whether it rested in the book, and what an exchange reports of it.
Execution = tuple[int, int, bool, ReportedFill | None]
# What an execution did: its fee, its realised PnL (None for an entry), and the part of a loss that is absorbed.
Amounts = tuple[int, int | None, int]


# ── Fills ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def roll_day(account: VenueAccount, now_ms: int) -> None:
    """Daily sums restart at 00:00 UTC."""
    day = now_ms // DAY_MS
    if account.day != day:
        account.day, account.day_notional, account.day_realized = day, 0, 0


def realize_today(account: VenueAccount, now_ms: int, amount: int) -> None:
    """Add to the day's realised PnL what an exit did to the balance, without its fee."""
    roll_day(account, now_ms)
    account.day_realized += amount


def roll_key_day(key: VenueKey, now_ms: int) -> None:
    day = now_ms // DAY_MS
    if key.day != day:
        key.day, key.day_notional = day, 0


def fill(
    state: State, account: VenueAccount, market: VenueMarket, trade: VenueTrade, order: VenueOrder, execution: Execution
) -> None:
    """Book one execution.

    The part against the position closes it, the rest opens; each part is one Fill event. The fee of a reported fill is
    divided by size.
    """
    position = account.positions.get(market.spec.coin)
    if position is None or position.side == order.buy:
        _fill_open(state, account, market, position, trade, order, execution)
    elif execution[1] <= position.size:
        _fill_close(state, account, market, position, trade, order, execution)
    else:
        px, size, maker, reported = execution
        closing, part = reported, position.size
        if reported is not None:
            closing = reported._replace(fee=reported.fee * part // size)
            reported = reported._replace(fee=reported.fee - closing.fee)
        _fill_close(state, account, market, position, trade, order, (px, part, maker, closing))
        _fill_open(state, account, market, None, trade, order, (px, size - part, maker, reported))


def _new_position(state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder) -> VenuePosition:
    """An empty position for the first fill of an order, known to the market and to the deadlines."""
    spec = market.spec
    if not account.positions:
        drawdown_floors.begin_day(account, state.now_ms, account.balance)
    position = VenuePosition(
        account=account.id,
        coin=spec.coin,
        side=order.buy,
        size=0,
        entry_notional=0,
        leverage=order.leverage,
        isolated=spec.margin_mode != "cross",
        opened_ms=state.now_ms,
    )
    account.positions[spec.coin] = position
    index.schedule_day(state)
    if account.exchange is None:
        market.holders[account.id] = None
        index.schedule_funding(state, market)
    else:
        # The exchange pays funding and liquidates.
        told = account.exchange.margins.get(spec.coin)
        position.isolated = told is not None and told.isolated
    return position


def _fill_open(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition | None,
    trade: VenueTrade,
    order: VenueOrder,
    execution: Execution,
) -> None:
    spec = market.spec
    px, size, maker, reported = execution
    notional = px * size // E8
    fee = fee_on(spec, px, size, maker=maker) if reported is None else reported.fee
    if position is None:
        position = _new_position(state, account, market, order)
    position.size += size
    position.entry_notional += notional
    if spec.margin_mode == "full":
        moved = outcome.cost(position.side, notional, size)
        account.balance -= moved + fee
        position.margin += moved
        # Caps count the amount spent.
        notional = moved
    elif position.isolated:
        moved = div_up(notional, position.leverage)
        account.balance -= moved
        position.margin += moved - fee
    else:
        account.balance -= fee
    account.fees += fee
    roll_day(account, state.now_ms)
    account.day_notional += notional
    if order.key is not None and (key := state.keys.get(order.key)) is not None:
        roll_key_day(key, state.now_ms)
        key.day_notional += notional
    if order.opens is not None:
        order.opens -= size
    _book(state, account, position, trade, order, execution, (fee, None, 0))


def _fill_close(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    trade: VenueTrade,
    order: VenueOrder,
    execution: Execution,
) -> None:
    spec = market.spec
    px, size, maker, reported = execution
    notional = px * size // E8
    fee = fee_on(spec, px, size, maker=maker) if reported is None else reported.fee
    part = position.entry_notional if size == position.size else position.entry_notional * size // position.size
    realized = position.side * (notional - part)
    absorbed_before = account.absorbed
    take(account, position, size=size, entry_part=part, realized=realized, fee=fee, full=spec.margin_mode == "full")
    if not position.size:
        leave(state, account, market, position)
    absorbed = account.absorbed - absorbed_before
    trade.absorbed += absorbed
    realize_today(account, state.now_ms, realized + absorbed)
    _book(state, account, position, trade, order, execution, (fee, realized, absorbed))


def _book(
    state: State,
    account: VenueAccount,
    position: VenuePosition,
    trade: VenueTrade,
    order: VenueOrder,
    execution: Execution,
    amounts: Amounts,
) -> None:
    """Book one execution in its trade and its order, and emit its event."""
    px, size, maker, reported = execution
    fee, realized, absorbed = amounts
    now_ms, is_entry = state.now_ms, realized is None
    trade.filled += size
    trade.filled_notional += px * size // E8
    trade.fee += fee
    trade.updated_ms = now_ms
    if realized is not None:
        trade.realized = (trade.realized or 0) + realized
    order.filled += size
    account.event_seq += 1
    emit(
        state,
        account,
        fill_event(
            (
                account.id,
                account.event_seq,
                now_ms,
                "entry" if is_entry else "exit",
                position.coin,
                trade.id,
                oid_text(account, order.number),
                trade.kind,
                side_name(position.side),
                "open" if is_entry else "close",
                order.reduce_only,
                size,
                px,
                fee,
                realized,
                "maker" if maker else "taker",
                order.size - order.filled,
                position.size,
                position.entry_px() if position.size else None,
                account.balance,
                order.request_id,
                order.idempotency_key,
                absorbed,
                None if reported is None else reported.venue_ts,
            )
        ),
    )


def take(
    account: VenueAccount,
    position: VenuePosition,
    *,
    size: int,
    entry_part: int,
    realized: int,
    fee: int,
    full: bool = False,
) -> None:
    """Reduce a position by `size`: its PnL and its share of isolated margin go to the balance.

    An isolated loss never exceeds its margin, except at an exchange, whose cash is booked as it is.
    """
    if full:
        keep = outcome.cost(position.side, position.entry_notional - entry_part, position.size - size)
        account.balance += position.margin + realized - fee - keep
        position.margin = keep
    elif position.isolated:
        keep = position.margin * (position.size - size) // position.size
        left = position.margin + realized - fee
        if account.exchange is None:
            if left < 0:
                account.absorbed -= left
                left = 0
            keep = min(keep, left)
        account.balance += left - keep
        position.margin = keep
    else:
        account.balance += realized - fee
    account.realized += realized
    account.fees += fee
    position.size -= size
    position.entry_notional -= entry_part


def leave(state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition) -> None:
    """Remove a closed position and its price levels.

    If a cross account without positions has a debt, the venue pays it.
    """
    assert position.size == 0 and position.entry_notional == 0 and position.margin == 0, position
    index.move_watch(market, position, None)
    index.move_floor(market, position, None)
    del account.positions[position.coin]
    market.holders.pop(account.id, None)
    if not market.holders:
        market.next_funding_ms = 0
    if account.exchange is None and account.balance < 0 and not any(not p.isolated for p in account.positions.values()):
        account.absorbed -= account.balance
        account.balance = 0
