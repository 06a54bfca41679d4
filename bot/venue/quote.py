"""What an order would do now: sizes, price, margin, protection, or the rule that says no. Reads only; a plan and an order both start here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from bot.errors import Refusal
from bot.venue import guardians, ledger, limits, outcome
from bot.venue.book import book, level_px, walk
from bot.venue.numbers import BPS, E8, div_up, fee_of, round_figures, text_of
from bot.venue.refusals import no_market
from bot.venue.state import (
    MIN_NOTIONAL,
    Account,
    Bracket,
    GuardianSpec,
    Key,
    Leg,
    LegSpec,
    Market,
    MarketSpec,
    Order,
    OrderSpec,
    Position,
    State,
    side_name,
)  # fmt: skip

PERCENT: Final = 100 * E8
WIDE_SPREAD_BPS: Final = 50
NEAR_LIQUIDATION_PCT: Final = 2
MARGIN_SLACK: Final = 1_000  # 1e-5 USD of rounding over the fills of one order
CLOSE_SLIPPAGE_BPS: Final = 500
TRIGGER_SLIPPAGE_BPS: Final = 1000  # A stop or target accepts ten per cent from its trigger.

Warning_ = tuple[str, str]


@dataclass(slots=True)
class Quote:
    """A dry run's answer. `fills` are the executions the book offers now; `reduce` is the part of `size` that closes the position."""

    coin: str
    side: int
    intent: str
    type: str
    buy: int
    size: int
    reduce: int
    fill_size: int
    fills: list[tuple[int, int]]
    notional: int
    mid: int
    est_px: int | None
    bound_px: int
    slippage_bps: int | None
    fee: int
    leverage: int
    clamped: bool
    margin: int
    liquidation_px: int | None
    bracket: Bracket | None
    risk: int | None
    guardians: tuple[GuardianSpec, ...]
    protected: bool
    max_drift_bps: int = 50
    warnings: tuple[Warning_, ...] = ()


def invalid(field_: str, message: str, *, value: Any = None, fix: dict[str, Any] | None = None) -> Refusal:
    """A bad field: named in the message and in details.fields."""
    if fix is None and value is not None:
        fix = {"field": field_, "value": value}
    problem = {"field": field_, "problem": message, "allowed": fix.get("value") if fix else None}
    return Refusal("invalid_input", f"{field_}: {message}", fix=fix, details={"fields": [problem]})


def quote(state: State, account: Account, order: OrderSpec, key: Key | None = None) -> Quote | Refusal:
    """Judge an order against the state as it is. Nothing is changed."""
    market = state.markets.get(order.coin)
    if market is None:
        return no_market(order.coin, state.markets)
    if market.status != "open":
        return Refusal("market_closed", f"{order.coin} is {market.status}", details={"opensAt": market.opens_ms})
    if refused := limits.refuse_coin(market, key):
        return refused
    spec = market.spec
    full = outcome.is_paid(spec)
    position, _ = at_its_turn(account, market)
    buy = order.side
    limit = order.type == "limit"
    if limit:
        assert order.limit_px is not None
        if refused := _off_grid(market, "limitPx", order.limit_px):
            return refused

    # Price and size.
    mid = market.mid
    bps = spec.slippage_bps if order.slippage_bps is None else order.slippage_bps
    bound = order.limit_px if limit and order.limit_px is not None else bound_of(market, mid, buy, bps)
    size = order.size
    if size is None:
        assert order.usd is not None
        if full:
            size = _shares_of_usd(market, position, buy, order.usd, bound, limit=limit)
        else:
            size = _size_of_usd(market, mid, buy, order.usd, bound, limit=limit)
    elif size % market.lot:
        down = size - size % market.lot
        return invalid("size", f"{text_of(size)} is no multiple of {text_of(market.lot)}", value=text_of(down or market.lot), fix={
            "field": "size", "value": text_of(down or market.lot), "neighbours": _above_zero(down, down + market.lot)})  # fmt: skip
    against = position is not None and position.side != buy
    reduce = min(size, position.size) if position is not None and against else 0
    if order.reduce_only:
        if not against:
            return Refusal(
                "forbidden",
                "this key may only shrink positions: the order would open or grow one",
                fix={"action": "close_first"},
            )
        size = reduce
    value_px = order.limit_px if limit and order.limit_px is not None else mid
    whole_exit = position is not None and against and size == position.size
    opening = size - reduce
    unit_px = outcome.share_px(spec, buy if opening else -buy, value_px) if full else value_px
    if unit_px * size // E8 < MIN_NOTIONAL and not whole_exit:
        least = least_size(market, unit_px)
        fix = (
            {
                "field": "usdAmount",
                "value": text_of(
                    div_up(
                        least
                        * outcome.share_px(
                            market.spec, buy if opening else -buy, _sizing_px(market, mid, buy, bound, limit=limit)
                        ),
                        E8,
                    )
                ),
            }
            if order.usd is not None
            else {"field": "size", "value": text_of(least)}
        )
        return Refusal(
            "below_min_notional", f"the order is worth {text_of(unit_px * size // E8)} USD, the least is 10", fix=fix
        )
    if opening and spec.strict_hours and market.external == "closed":
        return Refusal(
            "market_closed",
            f"{order.coin} opens no position while its outside price is closed; what is open may be closed",
            fix={"action": "wait"},
            details={"opensAt": market.opens_ms},
        )
    intent = "open" if opening else "close"
    side = buy if opening else -buy

    # Leverage.
    leverage, clamped = position.leverage if position is not None and not opening else 1, False
    if opening:
        judged = _leverage(market, position, against, order, key)
        if isinstance(judged, Refusal):
            return judged
        leverage, clamped = judged

    # What the book gives.
    fills = walk(market, mid, buy, size, bound)
    fill_size = fill_notional = 0
    for px, part in fills:
        fill_size += part
        fill_notional += px * part // E8
    warnings: list[Warning_] = []
    if clamped:
        warnings.append(("leverage_clamped", f"leverage is clamped to {leverage}"))
    if not limit and fill_size < size:
        if not order.allow_partial or fill_size == 0:
            return Refusal(
                "insufficient_depth", f"the book holds {text_of(fill_size)} of {text_of(size)} within {bps} bps",
                fix={"field": "size", "value": text_of(fill_size)} if fill_size else {"action": "wait"}, details={"availableSize": text_of(fill_size)},
            )  # fmt: skip
        warnings.append(("partial_depth", f"only {text_of(fill_size)} of {text_of(size)} lies within {bps} bps"))
    est_px = fill_notional * E8 // fill_size if fill_size else None
    slippage = _bps_off(market, est_px, mid) if est_px is not None else None
    notional = value_px * size // E8 if limit else (fill_notional if fill_size else mid * size // E8)
    if full:
        worth = [(value_px, size)] if limit else fills
        notional = sum(px * part // E8 for px, part in outcome.paid(spec, side, worth))
    entry_px = entry_of(fills, reduce) or value_px
    opened = opening if limit else max(0, fill_size - reduce)
    if limit:
        rest = outcome.share_px(spec, buy, value_px), size - fill_size
        open_notional, margin = cost_of_opening(outcome.paid(spec, buy, fills), reduce, rest, leverage)
    elif reduce or full or len(fills) != 1:
        open_notional, margin = cost_of_opening(outcome.paid(spec, buy, fills), reduce, (0, 0), leverage)
    else:
        open_notional, margin = fill_notional, div_up(fill_notional, leverage)
    if len(fills) != 1 or full or 0 < reduce < fill_size:
        fee = fee_of_fills(spec, fills, reduce, maker=False)
    else:
        fee = fee_of(fill_notional, spec.taker_rate)
    if limit:
        fee += fee_of_fills(spec, [(value_px, size - fill_size)], max(0, reduce - fill_size), maker=True)

    # Caps and margin.
    if opening:
        last_px = order.limit_px if limit else None
        largest = partial(_largest, market, order, fills, last_px, reduce)
        if refused := limits.refuse_opening(state, account, key, market, order, open_notional, largest):
            return refused
        at_limit = (value_px, size - fill_size) if limit else (0, 0)
        back = sum(at_its_turn(account, state.markets[coin])[1] for coin in {*account.positions, order.coin})
        free = ledger.free_margin(state, account, back + (freed(market, position, fills, at_limit) if reduce else 0))
        there = account.positions.get(order.coin)
        changes = there is not None and position is not None and there.side == position.side
        needed = _needed(market, there if changes else None, reduce, margin, fee, leverage)
        if needed > free:
            sizing_px = _sizing_px(market, mid, buy, bound, limit=limit)
            dearest = _dearest(market, buy, fills, last_px)
            own = margin + (0 if spec.margin_mode == "isolated" else fee)
            return _no_margin(market, buy, reduce, needed, needed - own, free, leverage, order, dearest, sizing_px)
    elif limit and fill_size < size and (refused := limits.refuse_orders(account)):
        return refused

    # Protection.
    realized = 0
    if opening or position is None:
        after = _position_after(market, position, buy, opened, open_notional, leverage)
    else:
        at_limit = (value_px, size - fill_size) if limit else (0, 0)
        after, realized = _position_left(position, fills, at_limit, fee)
    liquidation = (
        _liquidation_after(state, account, market, position, after, margin, fee - realized, fee * opening // size)
        if after is not None
        else None
    )
    # A limit leaves more than one position: what it crosses the book for first, and before any of it fills the one that there is.
    beyond, alone = liquidation, None
    same = position if position is not None and not against else None
    if limit and same is not None and same.isolated:
        if 0 < fill_size < size:
            crossing = liquidation_of_fills(state, account, market, buy, fills, 0, leverage, maker=False)
            beyond = guardians.nearest(buy, liquidation, crossing)
        if not fill_size and leverage != same.leverage:
            alone = _liquidation_at(market, same, leverage)
    bracket: Bracket | None = None
    if not opening and (rides := _riding(order)):
        return invalid(
            rides,
            f"this order only reduces a position; {rides} belongs to an order that opens",
            fix={"action": "remove", "field": rides},
        )
    if order.stop is not None or order.target is not None:
        resolved = resolve_bracket(
            market, buy, entry_px, order.stop, order.target, mark=market.mark, resting=limit and fill_size <= reduce
        )
        if isinstance(resolved, Refusal):
            return resolved
        bracket = resolved
        if bracket.stop is not None and beyond is not None and not guardians.can_fire(bracket.stop.px, buy, beyond):
            return invalid("bracket.stopLoss", f"{text_of(bracket.stop.px)} lies beyond the liquidation price {text_of(beyond)}: it could never fire",
                           fix={"action": "lower_leverage", "field": "leverage"})  # fmt: skip
    specs: tuple[GuardianSpec, ...] = ()
    if order.guardians:
        normal = guardians.normalise_inline(order.guardians, order.coin)
        if isinstance(normal, Refusal):
            return normal
        specs = normal
        for at, inline in enumerate(specs):
            if inline.order is not None and inline.order.coin not in state.markets:
                field_ = f"guardians.{at}.orderTemplate.market"
                return no_market(inline.order.coin, state.markets, field=field_)
    dead_stop: str | None = None
    has_stop = bracket is not None and bracket.stop is not None
    if not opening:  # What it leaves of the position needs a stop; nothing left needs none.
        protected = position is None or position.size <= fill_size
        if position is not None and not protected:
            left_at = ledger.liquidation_px(state, position) if limit else liquidation
            protected = guardians.can_fire(guardians.held_stop(account, position), position.side, left_at)
    else:
        protected = has_stop
        if not has_stop:
            stop_px = guardians.coming_trail(specs, buy, entry_px, None if same is None else same.r_px)
            if same is not None:
                held = guardians.held_stop(account, same)
                if bracket is not None:  # A target alone replaces the old bracket, stop and all.
                    held = guardians.held_trail(account, order.coin, buy)
                stop_px = guardians.nearest(buy, stop_px, held)
            protected = guardians.can_fire(stop_px, buy, beyond)
            if stop_px is not None and beyond is not None and not protected:
                dead_stop = _dead(stop_px, beyond)
        if alone is not None and same is not None and protected:
            held = guardians.held_stop(account, same)
            if held is not None and not guardians.can_fire(held, buy, alone):
                protected, dead_stop = False, _dead(held, alone)
    if specs:
        has_r = has_stop or (position is not None and not against and position.r_px is not None)
        if (refused := guardians.refuse_inline(specs, has_r=has_r)) is not None:
            return refused
    if opening and order.require_protection and not protected:
        return invalid("bracket.stopLoss", dead_stop or "requireProtection needs a stop: in the bracket, on the position already, or an inline trailing_stop",
                       fix={"action": "arm_stop", "field": "bracket.stopLoss", "value": {"pct": 2}})  # fmt: skip
    if opening and not protected:
        warnings.append(
            ("unprotected", f"{dead_stop}: it could never fire" if dead_stop else "the position will have no stop")
        )
    elif opening and limit and position is not None and (fill_size < reduce or not fill_size):
        # The position stands as it is until the order opens, and then only has what comes with it.
        left_at = ledger.liquidation_px(state, position) if alone is None else alone
        if not guardians.can_fire(guardians.held_stop(account, position), position.side, left_at):
            protected = False
            warnings.append(("unprotected", "the position has no stop until this order fills"))
    if opening and market.external == "closed":
        warnings.append(
            (
                "external_closed",
                "the outside price is closed: the spread is wider, the book thinner, and it may reopen elsewhere",
            )
        )
    if liquidation is not None and abs(liquidation - market.mark) * 100 < NEAR_LIQUIDATION_PCT * market.mark:
        warnings.append(
            (
                "near_liquidation",
                f"the liquidation price {text_of(liquidation)} is within {NEAR_LIQUIDATION_PCT} % of the mark",
            )
        )
    spread = _spread_bps(market, mid, side)
    if spread > WIDE_SPREAD_BPS * E8:
        warnings.append(("wide_spread", f"the spread is {text_of(spread)} bps"))
    risk = abs(entry_px - bracket.stop.px) * opened // E8 if bracket is not None and bracket.stop is not None else None
    return Quote(
        coin=order.coin, side=side, intent=intent, type=order.type, buy=buy, size=size, reduce=reduce, fill_size=fill_size, fills=fills,
        notional=notional, mid=mid, est_px=est_px, bound_px=bound, slippage_bps=slippage, fee=fee, leverage=leverage, clamped=clamped, margin=margin,
        liquidation_px=liquidation, bracket=bracket, risk=risk, guardians=specs, protected=protected, warnings=tuple(warnings),
    )  # fmt: skip


# ── Prices and sizes ────────────────────────────────────────────────────────────────────────────────────────────────


def bound_of(market: Market, mid: int, buy: int, bps: int) -> int:
    """Worst price of a market order: mid * (1 ± bps), to five figures and the market's decimals, as the venue's own client rounds it."""
    spec = market.spec
    if outcome.is_paid(spec):  # Of the payout of 1 USD: 100 bps are a cent at any price, for Yes and No alike.
        return outcome.clamp(spec, mid + buy * outcome.PAYOUT * bps // BPS)
    raw = mid * (BPS + buy * bps) // BPS
    if spec.sig_figs is None:
        return raw
    return max(
        1, round_figures(raw, spec.sig_figs, spec.px_decimals if spec.px_decimals is not None else 6 - spec.sz_decimals)
    )


def least_size(market: Market, px: int) -> int:
    """Smallest size that is worth the minimum at `px`: 10 USD of BTC at 103,457 are 0.0001."""
    return div_up(div_up(MIN_NOTIONAL * E8, px), market.lot) * market.lot


def _sizing_px(market: Market, mid: int, buy: int, bound: int, *, limit: bool) -> int:
    """Price at which the first unit of an order in USD is bought; of a sale that crosses its limit the book's own, which is worth more."""
    first_px = level_px(market, mid, buy, 0) or mid
    if not limit:
        return first_px
    return bound if buy > 0 or outcome.is_paid(market.spec) else max(bound, first_px)


def _size_of_usd(market: Market, mid: int, buy: int, usd: int, bound: int, *, limit: bool) -> int:
    """Largest size in lots that costs at most `usd`: at the limit, or along the book for a market order."""
    lot = market.lot
    px = _sizing_px(market, mid, buy, bound, limit=limit)
    size = usd * E8 // px // lot * lot
    if limit or not size or not market.level_sizes or size <= market.level_sizes[0]:
        return size
    fills = walk(market, mid, buy, size, bound)
    if len(fills) > 1 and (cost := sum(p * s // E8 for p, s in fills)) > usd:
        size = size * usd // cost // lot * lot
    return size


def resized(market: Market, order: Order, bound: int) -> int:
    """Size of an entry that waited for this price: of one in USD what they buy here, as of a service that is asked here; never less than the least order."""
    if order.usd is None:
        return order.size
    if outcome.is_paid(market.spec):
        size = _shares_of_usd(market, None, order.buy, order.usd, bound, limit=False)
    else:
        size = _size_of_usd(market, market.mid, order.buy, order.usd, bound, limit=False)
    return max(size, least_size(market, outcome.share_px(market.spec, order.buy, market.mid)))


def _spread_bps(market: Market, mid: int, side: int) -> int:
    """Between the best prices, in bps scaled 1e8 of what a unit of this side is worth at the mid."""
    spec = market.spec
    if market.external != "closed" and not outcome.is_paid(spec):  # But for the grid, what the market says.
        return spec.half_spread * 2 * BPS
    between = level_px(market, mid, 1, 0) - level_px(market, mid, -1, 0)
    return between * BPS * E8 // outcome.share_px(spec, side, mid)


def _bps_off(market: Market, px: int, mid: int) -> int:
    """Distance from the mid in bps scaled 1e8: of the mid, or of an event's payout, as its bound is measured."""
    return abs(px - mid) * BPS * E8 // (outcome.PAYOUT if outcome.is_paid(market.spec) else mid)


def _shares_of_usd(market: Market, position: Position | None, buy: int, usd: int, bound: int, *, limit: bool) -> int:
    """Most shares that `usd` pay for: what a position against it fetches first, then the other side at what that costs."""
    spec, lot = market.spec, market.lot
    px = bound if limit else level_px(market, market.mid, buy, 0)
    against = position.size if position is not None and position.side != buy else 0
    fetched = outcome.worth(spec, -buy, px, against)
    if usd <= fetched:
        return usd * E8 // outcome.share_px(spec, -buy, px) // lot * lot
    size = (against + (usd - fetched) * E8 // outcome.share_px(spec, buy, px)) // lot * lot
    fills = walk(market, market.mid, buy, size, bound) if not limit and size else []
    if len(fills) > 1 and not against:
        cost = sum(p * s // E8 for p, s in outcome.paid(spec, buy, fills))
        if cost > usd:
            size = size * usd // cost // lot * lot
    return size


def cost_of_opening(fills: list[tuple[int, int]], reduce: int, rest: tuple[int, int], leverage: int) -> tuple[int, int]:
    """Notional and margin of what opens: the fills beyond the part that closes, then the rest at its limit; to the unit as the fills will book it."""
    notional = margin = 0
    for px, size in (*fills, rest):
        if reduce:
            closed = min(reduce, size)
            reduce -= closed
            size -= closed
        if size:
            part = px * size // E8
            notional += part
            margin += div_up(part, leverage)
    return notional, margin


def fee_of_fills(spec: MarketSpec, fills: list[tuple[int, int]], reduce: int, *, maker: bool) -> int:
    """Fee of each fill as the ledger will book it: the one that turns the position round is two."""
    fee = 0
    for px, size in fills:
        closed = min(reduce, size)
        reduce -= closed
        for part in (closed, size - closed):
            fee += ledger.fee_on(spec, px, part, maker=maker)
    return fee


def entry_of(fills: list[tuple[int, int]], reduce: int) -> int | None:
    """Average price of what the fills open: its bracket is measured from there, also where they are a limit's that crosses. None: they open nothing."""
    notional = size = 0
    for px, part in fills:
        closed = min(reduce, part)
        reduce -= closed
        notional += px * (part - closed) // E8
        size += part - closed
    return notional * E8 // size if size else None


def _above_zero(*values: int) -> list[str]:
    """The legal ones of a value's neighbours on its grid."""
    return [text_of(value) for value in values if value > 0]


def _riding(order: OrderSpec) -> str | None:
    """What an order would arm at its first fill that opens: one that only reduces would drop it without a word."""
    if order.stop is not None or order.target is not None:
        return "bracket"
    return "guardians" if order.guardians else None


def _off_grid(market: Market, name: str, px: int) -> Refusal | None:
    tick = market.tick(px)
    if px != outcome.clamp(market.spec, px):
        down, up = outcome.PX_MIN, outcome.PX_MAX
        return invalid(name, f"{text_of(px)} does not lie within {text_of(down)}..{text_of(up)}", fix={
            "field": name, "value": text_of(outcome.clamp(market.spec, px)), "neighbours": [text_of(down), text_of(up)]})  # fmt: skip
    if px <= 0 or px % tick:
        down, up = px - px % tick, px - px % tick + tick
        return invalid(name, f"{text_of(px)} is not on the price grid (tick {text_of(tick)})", fix={
            "field": name, "value": text_of(down or up), "neighbours": _above_zero(down, up)})  # fmt: skip
    return None


# ── Leverage and margin ─────────────────────────────────────────────────────────────────────────────────────────────


def _leverage(
    market: Market, position: Position | None, against: bool, order: OrderSpec, key: Key | None
) -> tuple[int, bool] | Refusal:
    held = position.leverage if position is not None and not against else None
    # Without a leverage of its own an order has the position's: a key's maximum binds that one too.
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


def freed(market: Market, position: Position | None, fills: list[tuple[int, int]], rest: tuple[int, int]) -> int:
    """What an order that turns the position gives back by closing it: what its shares fetch, or the margin; of an isolated one with the PnL
    and the fees of these very fills, and of the rest at its limit."""
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
    if outcome.is_paid(spec):
        return fetched  # Its fees are the order's.
    return 0 if left else max(0, position.margin + position.side * (got - position.entry_notional) - fees)


def _needed(market: Market, position: Position | None, reduce: int, margin: int, fee: int, leverage: int) -> int:
    """Margin, fee, and what a change of leverage takes."""
    needed = margin if market.spec.margin_mode == "isolated" else margin + fee
    if position is not None and not reduce and leverage != position.leverage:
        needed += leverage_margin(market, position, leverage)
    return needed


def _dearest(market: Market, buy: int, fills: list[tuple[int, int]], limit_px: int | None) -> int:
    """What one unit can cost at most: a buy's last price, a sale's first one, a No what is missing to 1 USD."""
    prices = [px for px, _ in fills] + ([] if limit_px is None else [limit_px])
    return max([outcome.share_px(market.spec, buy, px) for px in prices], default=market.mid)


def _largest(
    market: Market, order: OrderSpec, fills: list[tuple[int, int]], limit_px: int | None, reduce: int, left: int
) -> dict[str, Any] | None:
    """The largest order that opens no more than `left` USD, as its caller says sizes. None: that is less than the least order."""
    dearest = _dearest(market, order.side, fills, limit_px)
    most = reduce + max(0, left) * E8 // dearest // market.lot * market.lot
    if most * min(dearest, market.mid) // E8 < MIN_NOTIONAL:
        return None
    if order.usd is not None:
        # What the part that closes fetches, and what may be opened.
        sizing_px = _sizing_px(market, market.mid, order.side, limit_px or 0, limit=limit_px is not None)
        room = max(0, left)
        # Shares of an order that turns are reckoned at the first price, whatever the later ones are.
        if reduce and outcome.is_paid(market.spec):
            room = room * outcome.share_px(market.spec, order.side, sizing_px) // dearest
        usd = reduce * outcome.share_px(market.spec, -order.side, sizing_px) // E8 + room
        return {"field": "usdAmount", "value": text_of(usd)} if usd >= MIN_NOTIONAL else None
    return {"field": "size", "value": text_of(most)}


def _no_margin(
    market: Market, buy: int, reduce: int, needed: int, besides: int, free: int, leverage: int, order: OrderSpec, dearest: int, sizing_px: int
) -> Refusal:  # fmt: skip
    """The refusal, with the largest order that surely passes: the part that closes costs its fee, the rest margin and fee at the dearest price.
    `besides`: what is needed whatever the size."""
    spec = market.spec
    fee_closing = 0 if spec.margin_mode == "isolated" else fee_of(dearest * reduce // E8, spec.taker_rate)
    room = free - besides - fee_closing - MARGIN_SLACK
    unit = div_up(dearest, leverage) + div_up(dearest * spec.taker_rate, E8)
    most = (reduce + max(0, room) * E8 // unit) // market.lot * market.lot
    fix: dict[str, Any] = {"action": "close_first"}
    unit_px = outcome.share_px(spec, buy, sizing_px)
    if most * min(unit_px, market.mid) // E8 >= MIN_NOTIONAL:
        # In USD: what the part that closes fetches, and what the rest costs.
        usd = div_up(reduce * outcome.share_px(spec, -buy, sizing_px) + (most - reduce) * unit_px, E8)
        fix = {"field": "size", "value": text_of(most)}
        if order.usd is not None:
            fix = {"field": "usdAmount", "value": text_of(usd)}
    return Refusal(
        "insufficient_funds", f"the order needs {text_of(needed)} USD of margin and fee, {text_of(free)} is free", fix=fix,
        details={"neededUsd": text_of(needed), "freeMarginUsd": text_of(free)},
    )  # fmt: skip


def leverage_margin(market: Market, position: Position, leverage: int) -> int:
    """USD that changing an open position's leverage takes from free margin (negative: gives back)."""
    if position.isolated:
        delta = div_up(position.entry_notional, leverage) - div_up(position.entry_notional, position.leverage)
        # Raising gives back no more than leaves the new initial margin in place, and nothing that is not realised.
        if delta < 0:
            spare = position.margin + position.pnl(market.mark) - div_up(market.mark * position.size // E8, leverage)
            delta = -min(-delta, max(0, spare), max(0, position.margin))
        return delta
    value = market.mark * position.size // E8
    return div_up(value, leverage) - div_up(value, position.leverage)


def _position_after(
    market: Market, position: Position | None, buy: int, opening: int, notional: int, leverage: int
) -> Position | None:
    """The position as the order would leave it (its margin aside), or None when it is gone."""
    if not opening:
        return None
    same = position if position is not None and position.side == buy else None
    return Position(
        account="", coin=market.spec.coin, side=buy, size=opening + (same.size if same else 0), leverage=leverage,
        entry_notional=notional + (same.entry_notional if same else 0), isolated=market.spec.margin_mode != "cross", opened_ms=0,
        margin=same.margin if same else 0,
    )  # fmt: skip


def _liquidation_at(market: Market, position: Position, leverage: int) -> int | None:
    """Where an isolated position is liquidated once it has this leverage."""
    moved = replace(position, margin=position.margin + leverage_margin(market, position, leverage))
    mm = ledger.maintenance(market, market.mark * moved.size // E8)
    return ledger.level_of_slack(market, moved, moved.margin + moved.pnl(market.mark) - mm)


def liquidation_of_fills(
    state: State, account: Account, market: Market, buy: int, fills: list[tuple[int, int]], reduce: int, leverage: int, *, maker: bool
) -> int | None:  # fmt: skip
    """The liquidation price of the position that these fills leave, where they open or grow one."""
    if outcome.is_paid(market.spec):
        return None
    notional, margin = cost_of_opening(fills, reduce, (0, 0), leverage)
    size = sum([part for _, part in fills])
    fee = sum([ledger.fee_on(market.spec, px, part, maker=maker) for px, part in fills])
    position = account.positions.get(market.spec.coin)
    after = _position_after(market, position, buy, size - reduce, notional, leverage)
    assert after is not None
    return _liquidation_after(state, account, market, position, after, margin, fee, fee * (size - reduce) // size)


def _dead(stop_px: int, liquidation: int) -> str:
    return f"the position's stop {text_of(stop_px)} would lie beyond the liquidation price {text_of(liquidation)}"


def _position_left(
    position: Position, fills: list[tuple[int, int]], rest: tuple[int, int], fee: int
) -> tuple[Position | None, int]:
    """What an order that only reduces leaves of the position, None when that is nothing; and the PnL that it realises."""
    closed = rest[1] + sum(size for _, size in fills)
    part = position.entry_notional * closed // position.size
    realized = position.side * (sum(px * size // E8 for px, size in (*fills, rest)) - part)
    if closed >= position.size:
        return None, realized
    margin = min(position.margin * (position.size - closed) // position.size, max(0, position.margin + realized - fee))
    return replace(
        position, size=position.size - closed, entry_notional=position.entry_notional - part, margin=margin
    ), realized


def at_its_turn(account: Account, market: Market) -> tuple[Position | None, int]:
    """The position as an order finds it at the next point, once those at market that wait before it are filled, at the mid; and the margin that what they
    close gives back."""
    position, back = account.positions.get(market.spec.coin), 0
    if not market.pending:
        return position, 0
    for order in ledger.at_market(account, market):
        closed = 0
        if position is not None and position.side != order.buy:
            closed = min(order.size, position.size)
            fills = [(market.mid, closed)]
            back += freed(market, position, fills, (0, 0))
            position, _ = _position_left(position, fills, (0, 0), 0)
            if position is not None and market.spec.margin_mode == "cross":
                back -= ledger.initial_margin(market, position)
        opened = min(order.size - closed, order.left_to_open())
        if opened:
            position = _grown(market, position, order, opened)
    return position, back


def _grown(market: Market, position: Position | None, order: Order, opened: int) -> Position:
    """With what an order opens or adds at the mid."""
    leverage = order.leverage if position is None else position.leverage
    notional = market.mid * opened // E8
    margin = div_up(outcome.worth(market.spec, order.buy, market.mid, opened), leverage)
    if position is None:
        after = _position_after(market, None, order.buy, opened, notional, leverage)
        assert after is not None
        return replace(after, account=order.account, margin=margin)
    return replace(
        position, size=position.size + opened, entry_notional=position.entry_notional + notional, margin=position.margin + margin
    )  # fmt: skip


def _liquidation_after(
    state: State,
    account: Account,
    market: Market,
    position: Position | None,
    after: Position,
    margin: int,
    fee: int,
    fee_opening: int,
) -> int | None:
    """`fee`: less the PnL that an order which only reduces realises. `fee_opening`: the part of the fee that the opening costs, which is all
    that an isolated margin pays; the close before it pays its own."""
    if outcome.is_paid(market.spec):
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


# ── Brackets ────────────────────────────────────────────────────────────────────────────────────────────────────────


def resolve_bracket(
    market: Market, side: int, entry_px: int, stop: LegSpec | None, target: LegSpec | None, *, mark: int, resting: bool
) -> Bracket | Refusal:
    """Stop and target on the grid. pct is price percent of the entry; r is measured in |entry - stop|; both round to the safer side."""
    resolved = Bracket()
    if stop is not None:
        if stop.px is not None:
            if refused := _off_grid(market, "bracket.stopLoss.px", stop.px):
                return refused
            px = stop.px
        else:
            assert stop.pct is not None
            px = off_entry(market, entry_px, -side, entry_px * stop.pct // PERCENT, safer=side)
        if px <= 0 or (entry_px - px) * side <= 0:
            return invalid("bracket.stopLoss", f"{text_of(px)} is on the wrong side of the entry {text_of(entry_px)} of a {side_name(side)}",
                           fix={"action": "move", "field": "bracket.stopLoss"})  # fmt: skip
        if not resting and (mark - px) * side <= 0:
            return invalid(
                "bracket.stopLoss",
                f"{text_of(px)} is already through the mark {text_of(mark)}",
                fix={"action": "move", "field": "bracket.stopLoss"},
            )
        resolved.stop = Leg(px, pct=stop.pct)
    if target is not None:
        if target.px is not None:
            if refused := _off_grid(market, "bracket.takeProfit.px", target.px):
                return refused
            px = target.px
        elif target.pct is not None:
            px = off_entry(market, entry_px, side, entry_px * target.pct // PERCENT, safer=-side)
        else:
            assert target.r is not None
            if resolved.stop is None:
                return invalid(
                    "bracket.takeProfit.r",
                    "a target in R needs a stop in the same bracket",
                    fix={"action": "arm_stop", "field": "bracket.stopLoss"},
                )
            px = off_entry(market, entry_px, side, abs(entry_px - resolved.stop.px) * target.r // E8, safer=-side)
        if px <= 0 or (px - entry_px) * side <= 0:
            return invalid("bracket.takeProfit", f"{text_of(px)} is on the wrong side of the entry {text_of(entry_px)} of a {side_name(side)}",
                           fix={"action": "move", "field": "bracket.takeProfit"})  # fmt: skip
        if not resting and (px - mark) * side <= 0:
            return invalid("bracket.takeProfit", f"{text_of(px)} is already through the mark {text_of(mark)}",
                           fix={"action": "move", "field": "bracket.takeProfit"})  # fmt: skip
        resolved.target = Leg(px, pct=target.pct, r=target.r)
    return resolved


def off_entry(market: Market, entry_px: int, way: int, distance: int, *, safer: int) -> int:
    """entry + way * distance on the grid, rounded up when `safer` is +1, down when -1; 0 when it would not be positive."""
    px = outcome.clamp(market.spec, entry_px + way * distance)
    if px <= 0:
        return 0
    return market.grid_up(px) if safer > 0 else market.grid_down(px)


# ── Suggest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Suggestion:
    """Executable parameters. `size` None with `feasible` false: nothing legal fits."""

    coin: str
    intent: str
    side: int
    feasible: bool
    size: int | None
    notional: int | None
    leverage: int | None
    mid: int
    est_px: int | None
    slippage_bps: int | None
    fee: int | None
    margin: int | None
    min_size: int
    max_size: int
    bound_bps: int
    changes_leverage: bool = False  # of the open position, which an order has to acknowledge
    warnings: list[Warning_] = field(default_factory=list)


def suggest(
    state: State, account: Account, key: Key | None, *, coin: str, intent: str = "open", side: int = 1, notional: int | None = None,
    size: int | None = None, leverage: int | None = None, slippage_bps: int | None = None,
) -> Suggestion | Refusal:  # fmt: skip
    """Sizes an order (or a reduce-only exit) that would pass now: within depth and slippage, margin and caps, not below the minimum."""
    market = state.markets.get(coin)
    if market is None:
        return no_market(coin, state.markets)
    if market.status != "open":
        return Refusal("market_closed", f"{coin} is {market.status}", details={"opensAt": market.opens_ms})
    closing = intent == "close"
    position = account.positions.get(coin)
    if closing and position is None:
        return Refusal("not_found", f"there is no position in {coin} to close")
    if closing and position is not None:
        side = position.side
    buy = -side if closing else side
    bps = slippage_bps if slippage_bps is not None else CLOSE_SLIPPAGE_BPS if closing else market.spec.slippage_bps
    bound = bound_of(market, market.mid, buy, bps)
    deep = sum(s for _, s in book(market)[1 if buy > 0 else 0])
    depth = sum(s for _, s in walk(market, market.mid, buy, deep, bound))
    unit_px = outcome.share_px(market.spec, -buy if closing else buy, market.mid)
    low = least_size(market, unit_px)
    warnings: list[Warning_] = []
    used = 1
    if closing and position is not None:
        most, low = min(depth, position.size), min(low, position.size)
    else:
        used = min(
            leverage or (position.leverage if position else 1),
            market.spec.max_leverage,
            (key.max_leverage if key and key.max_leverage else 50),
        )
        if leverage and used < leverage:
            warnings.append(("leverage_clamped", f"leverage {leverage} is clamped to {used}"))
        most = min(depth, _affordable(state, account, key, market, used, buy))
        if market.spec.strict_hours and market.external == "closed":
            most = min(most, position.size if position is not None and position.side != side else 0)
            warnings.append(("external_closed", f"{coin} opens no position while its outside price is closed"))
    if limits.refuse_coin(market, key) is not None:
        most = 0
    fetched_px, held = outcome.share_px(market.spec, -buy, market.mid), 0
    if not closing and position is not None and position.side != side and outcome.is_paid(market.spec):
        held = position.size
    asked = size if size is not None else notional * E8 // fetched_px if notional is not None else low
    reduces = 0 < asked <= held
    if reduces:  # It only closes: worth what those shares fetch.
        unit_px, low, held = fetched_px, min(held, least_size(market, fetched_px)), 0
    want = most if closing else low
    if size is not None:
        want = size
    elif notional is not None:  # Shares that are held against it are closed first.
        want = held + (notional - fetched_px * held // E8) * E8 // unit_px
    want = max(low, min(want, most)) if closing or want <= most else most
    want -= want % market.lot if not (closing and position is not None and want == position.size) else 0
    if (size or 0) > want:
        warnings.append(("partial_depth" if depth < (size or 0) else "rounded", f"the size is cut to {text_of(want)}"))
    feasible = 0 < low <= want <= most
    fills = walk(market, market.mid, buy, want, bound) if feasible else []
    spec = market.spec
    got = sum(p * s // E8 for p, s in outcome.paid(spec, -buy if closing or reduces else buy, fills))
    est = sum(p * s // E8 for p, s in fills) * E8 // want if feasible and want else None
    against = position.size if position is not None and position.side != buy else 0
    return Suggestion(
        coin=coin, intent=intent, side=side, feasible=feasible, size=want if feasible else None, notional=got if feasible else None,
        leverage=None if closing else used, mid=market.mid, est_px=est, slippage_bps=_bps_off(market, est, market.mid) if est else None,
        fee=fee_of_fills(spec, fills, against, maker=False) if feasible else None, margin=0 if closing or reduces else div_up(got, used),
        min_size=low, max_size=most, bound_bps=bps, changes_leverage=not closing and _extra_margin(account, market, used, buy) is not None, warnings=warnings,
    )  # fmt: skip


def _extra_margin(account: Account, market: Market, leverage: int, buy: int) -> int | None:
    """What an open position asks for when an order that grows it changes its leverage; None when none does."""
    position = account.positions.get(market.spec.coin)
    if position is None or position.side != buy or position.leverage == leverage:
        return None
    return leverage_margin(market, position, leverage)


def _affordable(state: State, account: Account, key: Key | None, market: Market, leverage: int, buy: int) -> int:
    """Largest opening size that margin and caps leave, in lots."""
    free = ledger.free_margin(state, account) - max(0, _extra_margin(account, market, leverage, buy) or 0)
    usd = free * leverage * E8 // (E8 + leverage * market.spec.taker_rate) * 999 // 1000
    if limits.blocker(state, account, market.spec.coin) is not None or limits.refuse_orders(account) is not None:
        return 0
    if key is not None and limits.is_full(state, account, key, market):
        return 0
    today = limits.spoken_for_today(state, account)
    for cap in (account.max_trade, None if account.daily_cap is None else account.daily_cap - today):
        usd = usd if cap is None else min(usd, cap)
    if key is not None:
        if key.max_exposure is not None:
            usd = min(usd, key.max_exposure - limits.exposure_beside(state, account, market, buy))
        if key.max_daily_notional is not None:
            usd = min(usd, key.max_daily_notional - limits.spoken_for_today(state, account, key))
    usd = max(usd, 0)  # Caps may have been lowered below what was used, and losses may exceed what is free.
    size = usd * E8 // outcome.share_px(market.spec, buy, market.mid) // market.lot * market.lot
    fills = outcome.paid(market.spec, buy, walk(market, market.mid, buy, size)) if size else []
    cost = sum(px * sz // E8 for px, sz in fills)
    return size * usd // cost // market.lot * market.lot if cost > usd else size
