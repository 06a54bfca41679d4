"""What an order would do now: size, price, margin, protection, or the rule that refuses it.

Only reads. Plans and orders start with a preview.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from bot.errors import Refusal
from bot.venue.accounting import ledger, limits
from bot.venue.accounting.order_margin import (
    MarginNeed,
    freed_by_closing,
    highest_unit_cost,
    largest_order,
    leverage_of,
    liquidation_after,
    liquidation_at_leverage,
    liquidation_of_fills,
    margin_needed,
    position_after,
    position_at_its_turn,
    position_left,
    refuse_margin,
)
from bot.venue.accounting.order_sizes import (
    above_zero,
    bound_of,
    cost_of_opening,
    entry_of,
    fee_of_fills,
    invalid,
    least_size,
    refuse_off_grid,
    shallow_text,
    shares_of_usd,
    size_of_usd,
    sizing_px,
    spread_bps,
)
from bot.venue.model import outcome
from bot.venue.model.numbers import E8, div_up, fee_of, text_of
from bot.venue.model.refusals import no_market
from bot.venue.model.state import OrderSpec, State, VenueAccount, VenueKey
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.orders.preview_protection import set_bracket, set_guardians, set_protection
from bot.venue.prices.book import walk
from bot.venue.protection import guardians

WIDE_SPREAD_BPS: Final = 50
NEAR_LIQUIDATION_PCT: Final = 2


def preview_order(
    state: State, account: VenueAccount, order: OrderSpec, key: VenueKey | None = None
) -> OrderPreview | Refusal:
    """Check an order against the present state without changing it.

    Returns the preview, or the refusal of the first rule that fails.
    """
    market = state.markets.get(order.coin)
    if market is None:
        return no_market(order.coin, state.markets)
    if market.status != "open":
        return Refusal("market_closed", f"{order.coin} is {market.status}", details={"opensAt": market.opens_ms})
    if refused := limits.refuse_coin(market, key):
        return refused
    position, _ = position_at_its_turn(account, market)
    limit, full = order.type == "limit", market.spec.margin_mode == "full"
    draft = OrderPreview(state, account, order, key, market, position, limit, full, warnings=[])
    refused = _set_size(draft) or _refuse_size(draft) or _set_leverage(draft) or _set_fills(draft)
    if refused is not None:
        return refused
    _set_cost(draft)
    refused = _refuse_limits(draft)
    if refused is not None:
        return refused
    _set_liquidation(draft)
    refused = set_bracket(draft) or set_guardians(draft) or set_protection(draft)
    if refused is not None:
        return refused
    _warn(draft)
    return draft


# ── Size and price ──────────────────────────────────────────────────────────────────────────────────────────────────


def _set_size(draft: OrderPreview) -> Refusal | None:
    order, market, position = draft.order, draft.market, draft.position
    mid, buy, limit = market.mid, order.side, draft.limit
    draft.mid = mid
    if limit:
        assert order.limit_px is not None
        if refused := refuse_off_grid(market, "limitPx", order.limit_px):
            return refused
        bound = draft.value_px = order.limit_px
    else:
        bound = bound_of(market, mid, buy, _slippage_bps(draft))
        draft.value_px = mid
    size = order.size
    if size is None:
        assert order.usd is not None
        if draft.full:
            size = shares_of_usd(market, position, buy, order.usd, bound, limit=limit)
        else:
            size = size_of_usd(market, mid, buy, order.usd, bound, limit=limit)
    elif size % market.lot:
        down = size - size % market.lot
        return invalid(
            "size",
            f"{text_of(size)} is not a multiple of {text_of(market.lot)}",
            fix={
                "field": "size",
                "value": text_of(down or market.lot),
                "neighbours": above_zero(down, down + market.lot),
            },
        )
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
    draft.bound_px, draft.against, draft.size, draft.reduce, draft.opening = bound, against, size, reduce, size - reduce
    draft.side = buy if draft.opening else -buy
    return None


def _slippage_bps(draft: OrderPreview) -> int:
    bps = draft.order.slippage_bps
    return draft.market.spec.slippage_bps if bps is None else bps


def _refuse_size(draft: OrderPreview) -> Refusal | None:
    """Refuse an order below the minimum, or an opening in a market with strict hours while its outside price is
    closed.
    """
    order, market, position, size = draft.order, draft.market, draft.position, draft.size
    spec = market.spec
    whole_exit = position is not None and draft.against and size == position.size
    unit_px = outcome.share_px(spec, draft.side, draft.value_px)
    if unit_px * size // E8 < spec.min_notional and not whole_exit:
        least = least_size(market, unit_px)
        fix = {"field": "size", "value": text_of(least)}
        if order.usd is not None:
            px = sizing_px(market, market.mid, order.side, draft.bound_px, limit=draft.limit)
            usd = div_up(least * outcome.share_px(spec, draft.side, px), E8)
            fix = {"field": "usdAmount", "value": text_of(usd)}
        text = f"the order is worth {text_of(unit_px * size // E8)} USD"
        if not size and order.usd is not None:
            step = f"{text_of(market.lot)} {order.coin}, worth {text_of(unit_px * market.lot // E8)} USD"
            text = f"{text_of(order.usd)} USD buy less than the size step of {step}"
        return Refusal("below_min_notional", f"{text}; the minimum is {text_of(spec.min_notional)} USD", fix=fix)
    if draft.opening and spec.strict_hours and market.external == "closed":
        return Refusal(
            "market_closed",
            f"{order.coin} opens no position while its outside price is closed; what is open may be closed",
            fix={"action": "wait"},
            details={"opensAt": market.opens_ms},
        )
    return None


def _set_leverage(draft: OrderPreview) -> Refusal | None:
    position = draft.position
    draft.leverage, draft.clamped = position.leverage if position is not None and not draft.opening else 1, False
    if draft.opening:
        judged = leverage_of(draft.market, position, draft.against, draft.order, draft.key)
        if isinstance(judged, Refusal):
            return judged
        draft.leverage, draft.clamped = judged
        if draft.clamped:
            draft.warnings.append(("leverage_clamped", f"leverage is clamped to {draft.leverage}"))
    return None


def _set_fills(draft: OrderPreview) -> Refusal | None:
    """The fills that the book gives now."""
    size = draft.size
    draft.fills = walk(draft.market, draft.market.mid, draft.order.side, size, draft.bound_px)
    fill_size = fill_notional = 0
    for px, part in draft.fills:
        fill_size += part
        fill_notional += px * part // E8
    draft.fill_size, draft.fill_notional = fill_size, fill_notional
    if draft.limit or fill_size >= size:
        return None
    bps = _slippage_bps(draft)
    if not draft.order.allow_partial or fill_size == 0:
        return Refusal(
            "insufficient_depth",
            shallow_text(draft.market, draft.order.side, bps, fill_size, size),
            fix={"field": "size", "value": text_of(fill_size)} if fill_size else {"action": "wait"},
            details={"availableSize": text_of(fill_size)},
        )
    draft.warnings.append(("partial_depth", f"only {text_of(fill_size)} of {text_of(size)} lies within {bps} bps"))
    return None


def _set_cost(draft: OrderPreview) -> None:
    """Notional, entry price, margin and fee."""
    spec, buy, size, reduce, leverage = draft.market.spec, draft.order.side, draft.size, draft.reduce, draft.leverage
    fills, fill_size, fill_notional = draft.fills, draft.fill_size, draft.fill_notional
    limit, full, value_px = draft.limit, draft.full, draft.value_px
    draft.est_px = fill_notional * E8 // fill_size if fill_size else None
    if full:
        worth = [(value_px, size)] if limit else fills
        draft.notional = sum(px * part // E8 for px, part in outcome.paid(spec, draft.side, worth))
    else:
        draft.notional = value_px * size // E8 if limit or not fill_size else fill_notional
    draft.entry_px = entry_of(fills, reduce) or value_px
    draft.opened = draft.opening if limit else max(0, fill_size - reduce)
    if limit or reduce or full or len(fills) != 1:
        rest = (outcome.share_px(spec, buy, value_px), size - fill_size) if limit else (0, 0)
        paid = outcome.paid(spec, buy, fills)
        draft.open_notional, draft.margin = cost_of_opening(paid, reduce, rest, leverage)
    else:
        draft.open_notional, draft.margin = fill_notional, div_up(fill_notional, leverage)
    if len(fills) != 1 or full or 0 < reduce < fill_size:
        draft.fee = fee_of_fills(spec, fills, reduce, maker=False)
    else:
        draft.fee = fee_of(fill_notional, spec.taker_rate)
    draft.rebate = 0
    if limit:
        rest_fee = fee_of_fills(spec, [(value_px, size - fill_size)], max(0, reduce - fill_size), maker=True)
        draft.fee += rest_fee
        draft.rebate = max(0, -rest_fee)


# ── Limits and margin ───────────────────────────────────────────────────────────────────────────────────────────────


def _refuse_limits(draft: OrderPreview) -> Refusal | None:
    """Refuse an order that exceeds caps, the number of open orders, or free margin."""
    state, account, order, market = draft.state, draft.account, draft.order, draft.market
    if not draft.opening:
        return limits.refuse_orders(account) if draft.limit and draft.fill_size < draft.size else None
    position, fills, reduce, leverage = draft.position, draft.fills, draft.reduce, draft.leverage
    last_px = order.limit_px if draft.limit else None
    largest = partial(largest_order, market, order, fills, last_px, reduce)
    if refused := limits.refuse_opening(state, account, draft.key, market, order, draft.open_notional, largest):
        return refused
    back = 0
    for coin in {*account.positions, order.coin}:
        if (other := state.markets[coin]).pending:
            back += position_at_its_turn(account, other)[1]
    freed = freed_by_closing(market, position, fills, draft.at_limit) if reduce else 0
    free = ledger.free_margin(state, account, back + freed)
    held = account.positions.get(order.coin)
    changes_leverage = held is not None and position is not None and held.side == position.side
    # A rebate comes with the fill, so it pays for nothing before.
    margin, fee = draft.margin, draft.fee + draft.rebate
    needed = margin_needed(market, held if changes_leverage else None, reduce, margin, fee, leverage)
    if needed <= free:
        return None
    first_px = sizing_px(market, market.mid, order.side, draft.bound_px, limit=draft.limit)
    unit_cost = highest_unit_cost(market, order.side, fills, last_px)
    own = margin + (0 if market.spec.margin_mode == "isolated" else fee)
    need = MarginNeed(needed, needed - own, free)
    return refuse_margin(market, order, need, reduce=reduce, leverage=leverage, unit_cost=unit_cost, sizing_px=first_px)


def _set_liquidation(draft: OrderPreview) -> None:
    """Liquidation prices of the positions that the order would leave."""
    state, account, market, position = draft.state, draft.account, draft.market, draft.position
    buy, fills, leverage, fee = draft.order.side, draft.fills, draft.leverage, draft.fee
    realized = 0
    if draft.opening or position is None:
        after = position_after(market, position, buy, draft.opened, draft.open_notional, leverage)
    else:
        after, realized = position_left(position, fills, draft.at_limit, fee)
    draft.liquidation_px = None
    if after is not None:
        fee_opening = fee * draft.opening // draft.size
        draft.liquidation_px = liquidation_after(
            state, account, market, position, after, draft.margin, fee - realized, fee_opening
        )
    # A limit leaves more than one position: the one after the part that crosses the book, and the present one until the
    # rest fills.
    draft.beyond, draft.alone = draft.liquidation_px, None
    same = draft.same = position if position is not None and not draft.against else None
    if draft.limit and same is not None and same.isolated:
        if 0 < draft.fill_size < draft.size:
            crossing = liquidation_of_fills(state, account, market, buy, fills, 0, leverage, maker=False)
            draft.beyond = guardians.nearest(buy, draft.liquidation_px, crossing)
        if not draft.fill_size and leverage != same.leverage:
            draft.alone = liquidation_at_leverage(market, same, leverage)


# ── The answer ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _warn(draft: OrderPreview) -> None:
    market, liquidation, warnings = draft.market, draft.liquidation_px, draft.warnings
    if draft.opening and market.external == "closed":
        text = "the outside price is closed: the spread is wider, the book thinner, and it may reopen elsewhere"
        warnings.append(("external_closed", text))
    if liquidation is not None and abs(liquidation - market.mark) * 100 < NEAR_LIQUIDATION_PCT * market.mark:
        text = f"the liquidation price {text_of(liquidation)} is within {NEAR_LIQUIDATION_PCT} % of the mark"
        warnings.append(("near_liquidation", text))
    spread = spread_bps(market, market.mid, draft.side)
    if spread > WIDE_SPREAD_BPS * E8:
        warnings.append(("wide_spread", f"the spread is {text_of(spread)} bps"))
