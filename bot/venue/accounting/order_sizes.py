"""Price bounds, sizes and fees of an order, from the book and the market's grid."""

from __future__ import annotations

from typing import Any, Final

from bot.errors import Refusal
from bot.venue.accounting import ledger
from bot.venue.model import outcome
from bot.venue.model.numbers import BPS, E8, div_up, round_figures, text_of
from bot.venue.model.state import MarketSpec, VenueMarket, VenueOrder, VenuePosition
from bot.venue.prices.book import level_px, walk

CLOSE_SLIPPAGE_BPS: Final = 500
# A stop or target accepts ten per cent from its trigger.
TRIGGER_SLIPPAGE_BPS: Final = 1000


def bound_of(market: VenueMarket, mid: int, buy: int, bps: int) -> int:
    """Worst price of a market order: mid * (1 ± bps), rounded to five figures and the market's decimals like the
    venue's own client.
    """
    spec = market.spec
    # Of the payout of 1 USD: 100 bps are one cent at any price, for Yes and No alike.
    if spec.margin_mode == "full":
        return outcome.clamp(spec, mid + buy * outcome.PAYOUT * bps // BPS)
    raw = mid * (BPS + buy * bps) // BPS
    if spec.sig_figs is None:
        return raw
    return max(
        1, round_figures(raw, spec.sig_figs, spec.px_decimals if spec.px_decimals is not None else 6 - spec.sz_decimals)
    )


def least_size(market: VenueMarket, px: int) -> int:
    """Smallest size worth the minimum notional at `px`: 10 USD of BTC at 103,457 are 0.0001."""
    return div_up(div_up(market.spec.min_notional * E8, px), market.lot) * market.lot


def sizing_px(market: VenueMarket, mid: int, buy: int, bound: int, *, limit: bool) -> int:
    """The price that converts USD to size: of the order's first unit; for a sale that crosses its limit, the book's
    better price.
    """
    first_px = level_px(market, mid, buy, 0) or mid
    if not limit:
        return first_px
    return bound if buy > 0 or market.spec.margin_mode == "full" else max(bound, first_px)


def size_of_usd(market: VenueMarket, mid: int, buy: int, usd: int, bound: int, *, limit: bool) -> int:
    """Largest size in lots that costs at most `usd`: at the limit, or along the book for a market order."""
    lot = market.lot
    px = sizing_px(market, mid, buy, bound, limit=limit)
    size = usd * E8 // px // lot * lot
    if limit or not size or not market.level_sizes or size <= market.level_sizes[0]:
        return size
    fills = walk(market, mid, buy, size, bound)
    if len(fills) > 1 and (cost := sum(p * s // E8 for p, s in fills)) > usd:
        size = size * usd // cost // lot * lot
    return size


def shares_of_usd(
    market: VenueMarket, position: VenuePosition | None, buy: int, usd: int, bound: int, *, limit: bool
) -> int:
    """The most shares that `usd` buys: first those that close an opposite position, then new ones at their cost."""
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


def size_at_fill(market: VenueMarket, order: VenueOrder, bound: int) -> int:
    """Size of an entry that has waited for its price. One in USD is sized at the price of now, never below the market's
    minimum order.
    """
    if order.usd is None:
        return order.size
    if market.spec.margin_mode == "full":
        size = shares_of_usd(market, None, order.buy, order.usd, bound, limit=False)
    else:
        size = size_of_usd(market, market.mid, order.buy, order.usd, bound, limit=False)
    return max(size, least_size(market, outcome.share_px(market.spec, order.buy, market.mid)))


def spread_bps(market: VenueMarket, mid: int, side: int) -> int:
    """Spread between the best prices, in bps scaled 1e8 of the value of one unit of this side at the mid."""
    spec = market.spec
    # The configured spread, before rounding to the grid.
    if market.external != "closed" and spec.margin_mode != "full":
        return spec.half_spread * 2 * BPS
    between = level_px(market, mid, 1, 0) - level_px(market, mid, -1, 0)
    return between * BPS * E8 // outcome.share_px(spec, side, mid)


def bps_from_mid(market: VenueMarket, px: int, mid: int) -> int:
    """Distance from the mid in bps scaled 1e8: relative to the mid, or in an event market to the payout."""
    return abs(px - mid) * BPS * E8 // (outcome.PAYOUT if market.spec.margin_mode == "full" else mid)


def shallow_text(market: VenueMarket, buy: int, bps: int, available: int, wanted: int) -> str:
    """Why a taker found less than it wanted. A tick that is larger than the slippage is the cause if nothing was
    found.
    """
    text = f"the book holds {text_of(available)} of {text_of(wanted)} within {bps} bps"
    tick, best = market.tick(market.mid), level_px(market, market.mid, buy, 0)
    if available or market.spec.margin_mode == "full" or tick * BPS <= market.mid * bps:
        return text
    share = tick * 10_000 // market.mid
    coarse = f"the tick of {text_of(tick)} is {share / 100:g} % of the price"
    return f"{text}: {coarse}, so the best price is {text_of(best)} at a middle of {text_of(market.mid)}"


def cost_of_opening(fills: list[tuple[int, int]], reduce: int, rest: tuple[int, int], leverage: int) -> tuple[int, int]:
    """Notional and margin of the opening part: fills after `reduce`, then the rest at its limit.

    Equal to what the ledger will book.
    """
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
    """Fees as the ledger will book them. A fill that reverses the position is booked as two."""
    fee = 0
    for px, size in fills:
        closed = min(reduce, size)
        reduce -= closed
        for part in (closed, size - closed):
            fee += ledger.fee_on(spec, px, part, maker=maker)
    return fee


def entry_of(fills: list[tuple[int, int]], reduce: int) -> int | None:
    """Average price of the part that opens, from which the bracket is measured. None if the fills open nothing."""
    notional = size = 0
    for px, part in fills:
        closed = min(reduce, part)
        reduce -= closed
        notional += px * (part - closed) // E8
        size += part - closed
    return notional * E8 // size if size else None


def refuse_off_grid(market: VenueMarket, name: str, px: int) -> Refusal | None:
    tick = market.tick(px)
    if px != outcome.clamp(market.spec, px):
        down, up = outcome.PX_MIN, outcome.PX_MAX
        return invalid(
            name,
            f"{text_of(px)} does not lie within {text_of(down)}..{text_of(up)}",
            fix={
                "field": name,
                "value": text_of(outcome.clamp(market.spec, px)),
                "neighbours": [text_of(down), text_of(up)],
            },
        )
    if px <= 0 or px % tick:
        down, up = px - px % tick, px - px % tick + tick
        return invalid(
            name,
            f"{text_of(px)} is not on the price grid (tick {text_of(tick)})",
            fix={"field": name, "value": text_of(down or up), "neighbours": above_zero(down, up)},
        )
    return None


def above_zero(*values: int) -> list[str]:
    """The positive values, as texts."""
    return [text_of(value) for value in values if value > 0]


def invalid(field_: str, message: str, *, value: Any = None, fix: dict[str, Any] | None = None) -> Refusal:
    """The refusal of a bad field: the message and details.fields name it."""
    if fix is None and value is not None:
        fix = {"field": field_, "value": value}
    problem = {"field": field_, "problem": message, "allowed": fix.get("value") if fix else None}
    return Refusal("invalid_input", f"{field_}: {message}", fix=fix, details={"fields": [problem]})
