"""From an approved size to the request that is sent: price grid, rounding, bracket."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from bot.money import format_decimal
from bot.runtime.model.positions import unit_px
from bot.strategy import Bracket, MaxHold, Number, Open, TrailingStop
from bot.strategy.targets import Target, TargetLevel, TargetPlan, break_even_r, plan_of
from bot.wire import BracketRequest, InlineGuardian, LegRequest, OrderRequest

# requests in the cache
REQUESTS_KEPT: Final = 256


# significant figures of a price; a whole number may have more
PX_FIGURES: Final = 5


# the decimals of a market's prices and those of its sizes add up to this
PX_DECIMALS: Final = 6


# decimals of an event price, which is between 0 and 1
EVENT_PX_DECIMALS: Final = 3


class Grid(NamedTuple):
    """The prices that a market accepts: multiples of `tick`, or by the venue's rule on size decimals.

    `figures` None: the same decimals at every price.
    """

    decimals: int = 0
    figures: int | None = None
    tick: Decimal | None = None

    def down(self, px: Decimal) -> Decimal:
        return self._whole(px, ROUND_FLOOR)

    def up(self, px: Decimal) -> Decimal:
        return self._whole(px, ROUND_CEILING)

    def _whole(self, px: Decimal, rounding: str) -> Decimal:
        # 0.1 + 0.2 is 0.3, not the tick above.
        px = px.quantize(_UNIT)
        if self.tick is not None:
            return (px / self.tick).to_integral_value(rounding) * self.tick
        least = -self.decimals
        power = least if self.figures is None else max(least, min(0, px.adjusted() - self.figures + 1))
        return px.quantize(Decimal(1).scaleb(power), rounding)


Rounding: TypeAlias = Callable[[Decimal], Decimal]


_CENT: Final = Decimal("0.01")


# finest price or size in a request
_UNIT: Final = Decimal("0.00000001")


def exact(value: Number) -> Decimal:
    """A strategy's number as a decimal with the digits that it prints."""
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def _maybe(value: Number | None) -> Decimal | None:
    return None if value is None else exact(value)


@lru_cache(maxsize=REQUESTS_KEPT)
def order_request(signal: Open, size: str | None, require_protection: bool, grid: Grid) -> OrderRequest:
    """The request of an entry. Cached, because a strategy with fixed sizes makes the same request again and again.

    Prices are rounded to the market's grid: limit and target of a long down and its stop up, those of a short the other
    way. So no entry is worse than the strategy asked for, and stop and target are nearer to it.
    """
    down, up = (grid.down, grid.up) if signal.side == "long" else (grid.up, grid.down)
    return OrderRequest(
        market=signal.market,
        side=signal.side,
        usd_amount=None if signal.usd is None else exact(signal.usd).quantize(_CENT, ROUND_DOWN),
        size=size,
        leverage=signal.leverage,
        type="market" if signal.limit_px is None else "limit",
        limit_px=_price(signal.limit_px, down),
        max_slippage_bps=signal.max_slippage_bps,
        require_protection=require_protection,
        bracket=None if signal.bracket is None else _bracket(signal.bracket, stop=up, target=down),
        guardians=(*map(_inline, signal.guardians), *_break_even(signal.bracket)),
        source="agent",
    )


def _inline(guardian: TrailingStop | MaxHold) -> InlineGuardian:
    if isinstance(guardian, MaxHold):
        return InlineGuardian(type="max_hold", seconds=guardian.seconds)
    return InlineGuardian(
        type="trailing_stop",
        trail_pct=_maybe(guardian.trail_pct),
        trail_r=_maybe(guardian.trail_r),
        activate_at_r=_maybe(guardian.activate_at_r),
    )


def _break_even(bracket: Bracket | None) -> tuple[InlineGuardian, ...]:
    """The stop at the entry.

    A trailing stop whose distance equals its activation stands there when it becomes active.
    """
    if bracket is None or bracket.break_even_at is None:
        return ()
    r = break_even_r(bracket.break_even_at, bracket.stop_pct)
    return (InlineGuardian(type="trailing_stop", trail_r=r, activate_at_r=r),)


def target_plan(signal: Open) -> TargetPlan | None:
    """The targets of an entry. None if it has at most the one target of the interface."""
    if signal.bracket is None or signal.bracket.targets is None:
        return None
    return plan_of(tuple(signal.bracket.targets))


def targets_text(plan: TargetPlan | None) -> str | None:
    """The targets that become limit orders, as the journal keeps them. None if there are none."""
    if plan is None or not plan.orders:
        return None
    return json.dumps([[str(order.fraction), order.level.unit, str(order.level.value)] for order in plan.orders])


def targets_in(text: str) -> list[Target]:
    return [Target(Decimal(part), TargetLevel(unit, Decimal(value))) for part, unit, value in json.loads(text)]


def target_px(level: TargetLevel, entry_px: Decimal, stop_px: Decimal | None, side: str, grid: Grid) -> Decimal | None:
    """The price of a target, on the grid and never beyond the level.

    None if the level is a multiple of the distance of an unknown stop.
    """
    px, away = level.value, 1 if side == "long" else -1
    if level.unit == "pct":
        px = entry_px + away * entry_px * level.value / 100
    elif level.unit == "r":
        if stop_px is None:
            return None
        px = entry_px + away * abs(entry_px - stop_px) * level.value
    return grid.down(px) if side == "long" else grid.up(px)


def target_request(market: str, side: str, size: Decimal, px: Decimal) -> OrderRequest:
    """The order that closes this size of a position at the price.

    With `require_protection` the service refuses it if it would open one.
    """
    return OrderRequest(
        market=market,
        side="short" if side == "long" else "long",
        size=format_decimal(size),
        type="limit",
        limit_px=format_decimal(px),
        require_protection=True,
        source="agent",
    )


def notional_usd(signal: Open, price: Decimal | None) -> Decimal | None:
    if signal.usd is not None:
        return exact(signal.usd)
    assert signal.size is not None
    px = _maybe(signal.limit_px) or price
    return None if px is None else exact(signal.size) * unit_px(signal.market, signal.side, px)


def _bracket(bracket: Bracket, *, stop: Rounding, target: Rounding) -> BracketRequest:
    given = {"pct": bracket.target_pct, "px": bracket.target_px, "r": bracket.target_r}
    if bracket.targets is not None and (last := plan_of(tuple(bracket.targets)).last) is not None:
        given[last.level.unit] = last.level.value
    return BracketRequest(
        stop_loss=_leg(bracket.stop_pct, _price(bracket.stop_px, stop)),
        take_profit=_leg(given["pct"], _price(given["px"], target), given["r"]),
    )


def _price(px: Number | None, rounded: Rounding) -> str | None:
    return None if px is None else format_decimal(rounded(exact(px)))


def _leg(pct: Number | None, px: str | None, r: Number | None = None) -> LegRequest | None:
    given: dict[str, Any] = {"pct": _maybe(pct), "px": px, "r": _maybe(r)}
    return None if not any(value is not None for value in given.values()) else LegRequest(**given)
