"""Leverage and margin of an order, and the position and liquidation price that it leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from bot.errors import Refusal
from bot.venue.accounting import ledger
from bot.venue.accounting.order_sizes import cost_of_opening, invalid, sizing_px
from bot.venue.model import outcome
from bot.venue.model.numbers import E8, div_up, fee_of, text_of
from bot.venue.model.state import OrderSpec, State, VenueAccount, VenueKey, VenueMarket, VenueOrder, VenuePosition

# 1e-5 USD for rounding over the fills of one order
MARGIN_SLACK: Final = 1_000


def leverage_of(
    market: VenueMarket, position: VenuePosition | None, against: bool, order: OrderSpec, key: VenueKey | None
) -> tuple[int, bool] | Refusal:
    held = position.leverage if position is not None and not against else None
    # An order without leverage uses the position's, which a key's maximum limits too.
    default = position.leverage if position is not None else 1
    leverage, clamped = (order.leverage if order.leverage is not None else default), False
    key_max = key.max_leverage if key is not None and key.max_leverage is not None else None
    most = min(market.spec.max_leverage, key_max) if key_max is not None else market.spec.max_leverage
    if leverage > most:
        if order.leverage_mode == "clamp":
            leverage, clamped = most, True
        elif leverage > market.spec.max_leverage:
            return Refusal(
                "leverage_too_high",
                f"{market.spec.coin} allows at most {most}x",
                fix={"field": "leverage", "value": most},
            )
        else:
            return Refusal(
                "key_limit_exceeded",
                f"this key allows at most {most}x",
                fix={"field": "leverage", "value": most},
                details={"cap": "maxLeverage"},
            )
    if held is not None and leverage != held and not order.acknowledge_leverage_change:
        return invalid(
            "acknowledgeLeverageChange",
            f"the open position has {held}x; changing it to {leverage}x must be acknowledged",
            value=True,
        )
    return leverage, clamped


def freed_by_closing(
    market: VenueMarket, position: VenuePosition | None, fills: list[tuple[int, int]], rest: tuple[int, int]
) -> int:
    """Margin that an order frees by closing the opposite position: the proceeds of its shares, or its margin; for an
    isolated position including the PnL and fees of these fills and of the rest at its limit.
    """
    if position is None:
        return 0
    spec = market.spec
    if spec.margin_mode == "cross":
        return ledger.initial_margin(market, position)
    left, got, fetched, fees = position.size, 0, 0, 0
    for at, (px, size) in enumerate((*fills, rest)):
        part = min(left, size)
        left -= part
        got += px * part // E8
        fetched += outcome.worth(spec, position.side, px, part)
        fees += ledger.fee_on(spec, px, part, maker=at == len(fills))
    if spec.margin_mode == "full":
        # The order's fees include those of this part.
        return fetched
    return 0 if left else max(0, position.margin + position.side * (got - position.entry_notional) - fees)


def margin_needed(
    market: VenueMarket, position: VenuePosition | None, reduce: int, margin: int, fee: int, leverage: int
) -> int:
    """Margin, fee, and the amount that a change of leverage needs."""
    needed = margin if market.spec.margin_mode == "isolated" else margin + fee
    if position is not None and not reduce and leverage != position.leverage:
        needed += leverage_margin(market, position, leverage)
    return needed


def highest_unit_cost(market: VenueMarket, buy: int, fills: list[tuple[int, int]], limit_px: int | None) -> int:
    """The highest cost of one unit: the last price of a buy, the first of a sale; for a No share 1 USD less the
    price.
    """
    prices = [px for px, _ in fills] + ([] if limit_px is None else [limit_px])
    return max([outcome.share_px(market.spec, buy, px) for px in prices], default=market.mid)


def largest_order(
    market: VenueMarket, order: OrderSpec, fills: list[tuple[int, int]], limit_px: int | None, reduce: int, left: int
) -> dict[str, Any] | None:
    """The largest order that opens at most `left` USD, in the caller's unit.

    None if that is below the minimum order.
    """
    unit_cost = highest_unit_cost(market, order.side, fills, limit_px)
    most = reduce + max(0, left) * E8 // unit_cost // market.lot * market.lot
    if most * min(unit_cost, market.mid) // E8 < market.spec.min_notional:
        return None
    if order.usd is not None:
        # The proceeds of the closing part, and the amount that may be opened.
        first_px = sizing_px(market, market.mid, order.side, limit_px or 0, limit=limit_px is not None)
        spendable = max(0, left)
        # Shares of an order that reverses the position are sized by the first price.
        if reduce and market.spec.margin_mode == "full":
            spendable = spendable * outcome.share_px(market.spec, order.side, first_px) // unit_cost
        usd = reduce * outcome.share_px(market.spec, -order.side, first_px) // E8 + spendable
        return {"field": "usdAmount", "value": text_of(usd)} if usd >= market.spec.min_notional else None
    return {"field": "size", "value": text_of(most)}


class MarginNeed(NamedTuple):
    """USD of margin and fee that an order needs, the part of it that it needs at any size, and the free margin."""

    needed: int
    besides: int
    free: int


def refuse_margin(
    market: VenueMarket,
    order: OrderSpec,
    need: MarginNeed,
    *,
    reduce: int,
    leverage: int,
    unit_cost: int,
    sizing_px: int,
) -> Refusal:
    """The refusal, with the largest order that surely passes: the closing part costs its fee, the rest costs margin and
    fee at the highest price.
    """
    spec, buy = market.spec, order.side
    needed, besides, free = need
    fee_closing = 0 if spec.margin_mode == "isolated" else fee_of(unit_cost * reduce // E8, spec.taker_rate)
    spendable = free - besides - fee_closing - MARGIN_SLACK
    unit = div_up(unit_cost, leverage) + div_up(unit_cost * spec.taker_rate, E8)
    most = (reduce + max(0, spendable) * E8 // unit) // market.lot * market.lot
    fix: dict[str, Any] = {"action": "close_first"}
    unit_px = outcome.share_px(spec, buy, sizing_px)
    if most * min(unit_px, market.mid) // E8 >= spec.min_notional:
        # In USD: the proceeds of the closing part, and the cost of the rest.
        usd = div_up(reduce * outcome.share_px(spec, -buy, sizing_px) + (most - reduce) * unit_px, E8)
        fix = {"field": "size", "value": text_of(most)}
        if order.usd is not None:
            fix = {"field": "usdAmount", "value": text_of(usd)}
    return Refusal(
        "insufficient_funds",
        f"the order needs {text_of(needed)} USD of margin and fee, {text_of(free)} is free",
        fix=fix,
        details={"neededUsd": text_of(needed), "freeMarginUsd": text_of(free)},
    )


def leverage_margin(market: VenueMarket, position: VenuePosition, leverage: int) -> int:
    """USD that a change of the position's leverage takes from free margin. Negative: gives back."""
    if position.isolated:
        delta = div_up(position.entry_notional, leverage) - div_up(position.entry_notional, position.leverage)
        # A higher leverage frees only margin above the new initial margin, never unrealised profit.
        if delta < 0:
            spare = position.margin + position.pnl(market.mark) - div_up(market.mark * position.size // E8, leverage)
            delta = -min(-delta, max(0, spare), max(0, position.margin))
        return delta
    value = market.mark * position.size // E8
    return div_up(value, leverage) - div_up(value, position.leverage)


def position_at_its_turn(account: VenueAccount, market: VenueMarket) -> tuple[VenuePosition | None, int]:
    """The position that an order will find at the next point, after the waiting market orders before it have filled at
    the mid; and the margin that those orders free by closing.
    """
    position, back = account.positions.get(market.spec.coin), 0
    if not market.pending:
        return position, 0
    for order in ledger.at_market(account, market):
        closed = 0
        if position is not None and position.side != order.buy:
            closed = min(order.size, position.size)
            fills = [(market.mid, closed)]
            back += freed_by_closing(market, position, fills, (0, 0))
            position, _ = position_left(position, fills, (0, 0), 0)
            if position is not None and market.spec.margin_mode == "cross":
                back -= ledger.initial_margin(market, position)
        opened = min(order.size - closed, order.left_to_open())
        if opened:
            position = _grown(market, position, order, opened)
    return position, back


def _grown(market: VenueMarket, position: VenuePosition | None, order: VenueOrder, opened: int) -> VenuePosition:
    """The position after an order opens or adds to it at the mid."""
    leverage = order.leverage if position is None else position.leverage
    notional = market.mid * opened // E8
    margin = div_up(outcome.worth(market.spec, order.buy, market.mid, opened), leverage)
    if position is None:
        after = position_after(market, None, order.buy, opened, notional, leverage)
        assert after is not None
        return replace(after, account=order.account, margin=margin)
    return replace(
        position,
        size=position.size + opened,
        entry_notional=position.entry_notional + notional,
        margin=position.margin + margin,
    )


def position_after(
    market: VenueMarket, position: VenuePosition | None, buy: int, opening: int, notional: int, leverage: int
) -> VenuePosition | None:
    """The position that the order would leave, without the margin of the opening; None if the order opens nothing."""
    if not opening:
        return None
    same = position if position is not None and position.side == buy else None
    return VenuePosition(
        account="",
        coin=market.spec.coin,
        side=buy,
        size=opening + (same.size if same else 0),
        leverage=leverage,
        entry_notional=notional + (same.entry_notional if same else 0),
        isolated=market.spec.margin_mode != "cross",
        opened_ms=0,
        margin=same.margin if same else 0,
    )


def position_left(
    position: VenuePosition, fills: list[tuple[int, int]], rest: tuple[int, int], fee: int
) -> tuple[VenuePosition | None, int]:
    """The rest of a position after a reducing order, None if nothing is left; and the order's realised PnL."""
    closed = rest[1] + sum(size for _, size in fills)
    part = position.entry_notional * closed // position.size
    realized = position.side * (sum(px * size // E8 for px, size in (*fills, rest)) - part)
    if closed >= position.size:
        return None, realized
    margin = min(position.margin * (position.size - closed) // position.size, max(0, position.margin + realized - fee))
    return replace(
        position, size=position.size - closed, entry_notional=position.entry_notional - part, margin=margin
    ), realized


def liquidation_at_leverage(market: VenueMarket, position: VenuePosition, leverage: int) -> int | None:
    """The liquidation price of an isolated position at this leverage."""
    moved = replace(position, margin=position.margin + leverage_margin(market, position, leverage))
    mm = ledger.maintenance(market, market.mark * moved.size // E8)
    return ledger.level_of_slack(market, moved, moved.margin + moved.pnl(market.mark) - mm)


def liquidation_of_fills(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    buy: int,
    fills: list[tuple[int, int]],
    reduce: int,
    leverage: int,
    *,
    maker: bool,
) -> int | None:
    """The liquidation price of the position that these fills open or grow."""
    if market.spec.margin_mode == "full":
        return None
    notional, margin = cost_of_opening(fills, reduce, (0, 0), leverage)
    size = sum([part for _, part in fills])
    fee = sum([ledger.fee_on(market.spec, px, part, maker=maker) for px, part in fills])
    position = account.positions.get(market.spec.coin)
    after = position_after(market, position, buy, size - reduce, notional, leverage)
    assert after is not None
    return liquidation_after(state, account, market, position, after, margin, fee, fee * (size - reduce) // size)


def liquidation_after(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition | None,
    after: VenuePosition,
    margin: int,
    fee: int,
    fee_opening: int,
) -> int | None:
    """`fee`: the fee, less the realised PnL of an order that only reduces. `fee_opening`: the part of the fee for the
    opening, the only part that an isolated margin pays.
    """
    if market.spec.margin_mode == "full":
        return None
    mm = ledger.maintenance(market, market.mark * after.size // E8)
    if after.isolated:
        after.margin += margin - fee_opening
        if position is not None and position.side == after.side and position.leverage != after.leverage:
            after.margin += leverage_margin(market, position, after.leverage)
        return ledger.level_of_slack(market, after, after.margin + after.pnl(market.mark) - mm)
    slack = ledger.cross_value(state, account) - fee - mm + after.pnl(market.mark)
    for coin, other in account.positions.items():
        if other.isolated:
            continue
        if coin == after.coin:
            if position is not None and position.side == after.side:
                slack -= position.pnl(market.mark)
            continue
        other_market = state.markets[coin]
        slack -= ledger.maintenance(other_market, other_market.mark * other.size // E8)
    return ledger.level_of_slack(market, after, slack)
