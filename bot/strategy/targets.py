"""Targets of a bracket: which part of an entry is closed, and at which distance. Checked when the bracket is made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_DOWN, Decimal
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from bot.errors import StrategyError

Unit = Literal["r", "pct", "px"]

# most targets: each is an order, and the service keeps 200 of an account
TARGETS_MAX: Final = 10
# three times 1/3 is 1
FRACTION_STEP: Final = Decimal("1e-9")
R_MIN: Final = Decimal("0.01")
# the interface's bound
R_MAX: Final = Decimal(20)
_DISTANCE: Final = re.compile(r"(\d+(?:\.\d+)?) ?(R|%)", re.ASCII)
_R_STEP: Final = Decimal("0.0001")


class TargetLevel(NamedTuple):
    """`r`: multiples of the distance from the entry to its stop. `pct`: percent of the entry. `px`: a price."""

    unit: Unit
    value: Decimal


class Target(NamedTuple):
    """Close this fraction of the entry's filled size at the level."""

    fraction: Decimal
    level: TargetLevel


class TargetPlan(NamedTuple):
    """`orders` become limit orders after the fill. `last` is the service's target, which closes all that is left."""

    orders: tuple[Target, ...]
    last: Target | None


@lru_cache(maxsize=64)
def plan_of(targets: tuple[tuple[Any, Any], ...]) -> TargetPlan:
    """The plan of a bracket's targets. StrategyError if one of them cannot be a target."""
    orders = tuple(
        Target(_fraction(n, fraction), level_of(f"targets[{n}]", level)) for n, (fraction, level) in enumerate(targets)
    )
    levels = [order.level for order in orders]
    if len({level.unit for level in levels}) > 1:
        raise StrategyError("Bracket: write all targets in one unit: R, percent or prices")
    values = [level.value for level in levels]
    rising = values == sorted(set(values))
    falling = levels[0].unit == "px" and values == sorted(set(values), reverse=True)
    if not rising and not falling:
        raise StrategyError(f"Bracket: each target lies beyond the one before it, not {', '.join(map(str, values))}")
    total = sum((order.fraction for order in orders), Decimal(0)).quantize(FRACTION_STEP)
    if total > 1:
        raise StrategyError(f"Bracket: the fractions of targets add up to at most 1, not {total.normalize():f}")
    return TargetPlan(orders[:-1], orders[-1]) if total == 1 else TargetPlan(orders, None)


def pairs_of(given: Any) -> tuple[tuple[Any, Any], ...]:
    """The targets that an author gives, as a tuple of pairs."""
    rows = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    pairs = tuple(tuple(row) if isinstance(row, tuple | list) else () for row in rows)
    if not 1 <= len(pairs) <= TARGETS_MAX or any(len(pair) != 2 for pair in pairs):
        raise StrategyError(
            f'Bracket: targets is a list of 1 to {TARGETS_MAX} pairs such as (0.5, "1R"), not {given!r:.100}'
        )
    return tuple((_plain(fraction), _plain(level)) for fraction, level in pairs)


def level_of(name: str, given: Any) -> TargetLevel:
    """A distance ("1R", "2%") or a price."""
    if isinstance(given, str):
        match = _DISTANCE.fullmatch(given)
        if match is None:
            raise StrategyError(f'Bracket: {name} is "1R", "2%" or a price, not {given!r:.100}')
        level = TargetLevel("r" if match[2] == "R" else "pct", Decimal(match[1]))
    else:
        level = TargetLevel("px", _number(name, given))
    if not level.value > 0:
        raise StrategyError(f"Bracket: {name} is above 0, not {given}")
    return level


def break_even_r(given: Any, stop_pct: Any) -> Decimal:
    """The profit, in multiples of the stop's distance, at which the stop moves to the entry."""
    level = level_of("break_even_at", given)
    if level.unit == "px" or (level.unit == "pct" and stop_pct is None):
        raise StrategyError(f'Bracket: break_even_at is "1R", or with stop_pct also "2%", not {given!r:.100}')
    value = level.value
    if level.unit == "pct":
        value = (value / _number("stop_pct", stop_pct)).quantize(_R_STEP, ROUND_DOWN)
    if not R_MIN <= value <= R_MAX:
        raise StrategyError(f"Bracket: break_even_at is from {R_MIN}R to {R_MAX}R, not {value.normalize():f}R")
    return value


def _fraction(n: int, given: Any) -> Decimal:
    value = _number(f"the fraction of targets[{n}]", given)
    if not 0 < value <= 1:
        raise StrategyError(f"Bracket: the fraction of targets[{n}] is above 0 and at most 1, not {given}")
    return value


def _number(name: str, given: Any) -> Decimal:
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise StrategyError(f"Bracket: {name} is a number, not {given!r:.100}")
    value = given if isinstance(given, Decimal) else Decimal(repr(given))
    if not value.is_finite():
        raise StrategyError(f"Bracket: {name} is {given}: an indicator was probably not ready")
    return value


def _plain(value: Any) -> Any:
    """A number of another library as a float, so that a bracket can be compared and kept."""
    return value if isinstance(value, str | int | float | Decimal) or not hasattr(value, "__float__") else float(value)
