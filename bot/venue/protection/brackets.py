"""Stop and target prices of an order."""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.venue.accounting.order_sizes import invalid, refuse_off_grid
from bot.venue.model import outcome
from bot.venue.model.numbers import E8, text_of
from bot.venue.model.state import LegSpec, VenueBracket, VenueMarket, new_leg, side_name

PERCENT: Final = 100 * E8


def resolve_bracket(
    market: VenueMarket,
    side: int,
    entry_px: int,
    stop: LegSpec | None,
    target: LegSpec | None,
    *,
    mark: int,
    resting: bool,
) -> VenueBracket | Refusal:
    """Stop and target prices on the grid. pct is a percentage of the entry; r is a multiple of |entry - stop|.

    Both round to the safer side.
    """
    if refused := refuse_r(stop, target):
        return refused
    resolved = VenueBracket()
    if stop is not None:
        if stop.px is not None:
            if refused := refuse_off_grid(market, "bracket.stopLoss.px", stop.px):
                return refused
            px = stop.px
        else:
            assert stop.pct is not None
            px = off_entry(market, entry_px, -side, entry_px * stop.pct // PERCENT, safer=side)
        if px <= 0 or (entry_px - px) * side <= 0:
            return invalid(
                "bracket.stopLoss",
                f"{text_of(px)} is on the wrong side of the entry {text_of(entry_px)} of a {side_name(side)}",
                fix={"action": "move", "field": "bracket.stopLoss"},
            )
        if not resting and (mark - px) * side <= 0:
            return invalid(
                "bracket.stopLoss",
                f"{text_of(px)} is already through the mark {text_of(mark)}",
                fix={"action": "move", "field": "bracket.stopLoss"},
            )
        resolved.stop = new_leg((px, stop.pct, None))
    if target is not None:
        if target.px is not None:
            if refused := refuse_off_grid(market, "bracket.takeProfit.px", target.px):
                return refused
            px = target.px
        elif target.pct is not None:
            px = off_entry(market, entry_px, side, entry_px * target.pct // PERCENT, safer=-side)
        else:
            assert target.r is not None
            assert resolved.stop is not None
            px = off_entry(market, entry_px, side, abs(entry_px - resolved.stop.px) * target.r // E8, safer=-side)
        if px <= 0 or (px - entry_px) * side <= 0:
            return invalid(
                "bracket.takeProfit",
                f"{text_of(px)} is on the wrong side of the entry {text_of(entry_px)} of a {side_name(side)}",
                fix={"action": "move", "field": "bracket.takeProfit"},
            )
        if not resting and (px - mark) * side <= 0:
            return invalid(
                "bracket.takeProfit",
                f"{text_of(px)} is already through the mark {text_of(mark)}",
                fix={"action": "move", "field": "bracket.takeProfit"},
            )
        resolved.target = new_leg((px, target.pct, target.r))
    return resolved


def refuse_r(stop: LegSpec | None, target: LegSpec | None, at: str = "") -> Refusal | None:
    """The refusal of a leg in R that has no stop to be measured from;

    None if there is none. `at`: the path of the order.
    """
    fix = {"action": "arm_stop", "field": f"{at}bracket.stopLoss", "value": {"pct": 2}}
    if stop is not None and stop.r is not None:
        text = (
            "R is the distance from the entry to the stop, so a stop in R has no distance; give the stop as pct or px"
        )
        return invalid(f"{at}bracket.stopLoss.r", text, fix=fix)
    if target is not None and target.r is not None and stop is None:
        text = "a target in R needs a stop in the same bracket; add a stop, or give the target as pct or px"
        return invalid(f"{at}bracket.takeProfit.r", text, fix=fix)
    return None


def off_entry(market: VenueMarket, entry_px: int, way: int, distance: int, *, safer: int) -> int:
    """entry + way * distance on the grid: rounded up if `safer` is +1, down if -1.

    Returns 0 if the price would not be positive.
    """
    px = outcome.clamp(market.spec, entry_px + way * distance)
    if px <= 0:
        return 0
    return market.grid_up(px) if safer > 0 else market.grid_down(px)
