"""The intents of a strategy: Open, Close, Cancel. Frozen values that are checked when they are made.

An intent has no id, key or time. The daemon gives it an id that is a function of the decision, and the risk check
accepts or refuses it. A value that can never be an order raises a StrategyError here, in the author's own line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from bot.errors import StrategyError
from bot.strategy.targets import break_even_r, pairs_of, plan_of

Side: TypeAlias = Literal["long", "short"]
Number: TypeAlias = int | float | Decimal

# Bounds of the interface.
TRAIL_PCT_MAX = 50
TRAIL_R_MAX = 20
HOLD_SECONDS_MIN = 60
HOLD_SECONDS_MAX = 2**53 - 1
SLIPPAGE_BPS_MAX = 1000
LEVERAGE_MAX = 50
USD_MIN = 10
USD_MAX = 1_000_000

_PLAIN = (int, float, Decimal)
_NOTHING: Final = ()


@dataclass(frozen=True, slots=True)
class Bracket:
    """A stop, a target, or both, sent in one request with the entry and linked to the position.

    At most one of `stop_pct` (percent away from the entry) and `stop_px` (a price); at most one of `target_pct`,
    `target_px`, `target_r` (multiples of the stop's distance, so it needs a stop) and `targets`.
    Give at least a stop or a target.

    targets        pairs of a fraction of the entry and a level, the nearest first: [(0.5, "1R"), (0.5, "3R")]. A level
    is "1R", "2%" or a price.
                   Fractions that add up to 1 close everything; of less, the rest has no target
    break_even_at  "1R", or with stop_pct also "2%": once the mark has met it, a second stop stands at the entry,
    without fees. It follows
                   the price at that distance and never moves back

    Both need a stop.
    """

    stop_pct: Number | None = None
    stop_px: Number | None = None
    target_pct: Number | None = None
    target_px: Number | None = None
    target_r: Number | None = None
    targets: Sequence[tuple[Number, str | Number]] | None = None
    break_even_at: str | None = None

    def __post_init__(self) -> None:
        stops = _given(self, "stop_pct", "stop_px")
        targets = _given(self, "target_pct", "target_px", "target_r", "targets")
        if len(stops) > 1 or len(targets) > 1:
            raise StrategyError(f"Bracket: choose one of {' and '.join(stops if len(stops) > 1 else targets)}")
        if not stops and not targets:
            raise StrategyError(
                "Bracket: give a stop (stop_pct or stop_px) or a target (target_pct, target_px, target_r, targets)"
            )
        if self.target_r is not None and not stops:
            raise StrategyError("Bracket: target_r is a multiple of the stop's distance; give stop_pct or stop_px too")
        for name in (*stops, *targets):
            if name != "targets":
                _positive(self, name, below=100 if name == "stop_pct" else None)
        if self.targets is not None or self.break_even_at is not None:
            self._check_scale_out(has_stop=bool(stops))

    def _check_scale_out(self, *, has_stop: bool) -> None:
        for name in _given(self, "targets", "break_even_at"):
            if not has_stop:
                raise StrategyError(f"Bracket: {name} needs a stop; give stop_pct or stop_px as well")
        if self.targets is not None:
            object.__setattr__(self, "targets", pairs_of(self.targets))
            plan_of(self.targets)
        if self.break_even_at is not None:
            break_even_r(self.break_even_at, self.stop_pct)

    @property
    def has_stop(self) -> bool:
        return self.stop_pct is not None or self.stop_px is not None


@dataclass(frozen=True, slots=True)
class TrailingStop:
    """A stop that follows the price at the service, armed with the entry's first fill.

    Exactly one of `trail_pct` (percent, at most 50) and `trail_r` (multiples of the bracket's stop distance, at most
    20). With `activate_at_r` it becomes active when the profit reaches that many stop distances.
    """

    trail_pct: Number | None = None
    trail_r: Number | None = None
    activate_at_r: Number | None = None

    def __post_init__(self) -> None:
        if (self.trail_pct is None) == (self.trail_r is None):
            raise StrategyError("TrailingStop: give exactly one of trail_pct and trail_r")
        for name, most in (("trail_pct", TRAIL_PCT_MAX), ("trail_r", TRAIL_R_MAX), ("activate_at_r", TRAIL_R_MAX)):
            if getattr(self, name) is not None:
                _positive(self, name, most=most)


@dataclass(frozen=True, slots=True)
class MaxHold:
    """A time stop: the service closes the position at market this many seconds after its first fill, even if the daemon
    does not run.

    `seconds`: a whole number, at least 60. If the entry adds to a position that is older than this, the service closes
    the position at once. It closes the whole position, including the shares of other strategies. A MaxHold does not
    replace a stop, because it does not limit the loss.
    """

    seconds: int

    def __post_init__(self) -> None:
        if self.seconds is None:
            raise StrategyError("MaxHold: give seconds")
        _whole(self, "seconds", HOLD_SECONDS_MIN, HOLD_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Open:
    """Open a position, or add to it. Exactly one of `usd` (notional; the service computes the size from the fill price)
    and `size` (units of the coin).

    market               a coin of this strategy, "BTC"
    side                 "long" or "short"
    leverage             whole number; None: the position's, else 1
    bracket, guardians   protection that is sent with the order; the risk check requires a stop unless the config says
    otherwise
    limit_px             rest at this price; None: a market order
    max_slippage_bps     market orders only: the worst price taken, in basis points from the mid

    Prices, including those of the bracket, are rounded to the market's grid: a long's limit and target down, its stop
    up; a short's the other way. A size is rounded down to the market's lot.
    """

    market: str
    side: Side
    usd: Number | None = None
    size: Number | None = None
    leverage: int | None = None
    bracket: Bracket | None = None
    guardians: tuple[TrailingStop | MaxHold, ...] = _NOTHING
    limit_px: Number | None = None
    max_slippage_bps: int | None = None

    def __post_init__(self) -> None:
        _market(self)
        # A one-element array equals its element, so check the type first.
        side: Any = self.side
        if not isinstance(side, str) or side not in ("long", "short"):
            raise StrategyError(f'Open: side is "long" or "short", not {side!r}')
        if (self.usd is None) == (self.size is None):
            raise StrategyError("Open: give exactly one of usd and size")
        _positive(self, "size" if self.usd is None else "usd")
        if self.leverage is not None:
            _whole(self, "leverage", 1, LEVERAGE_MAX)
        if self.max_slippage_bps is not None:
            _whole(self, "max_slippage_bps", 0, SLIPPAGE_BPS_MAX)
        if self.limit_px is not None:
            _positive(self, "limit_px")
            if self.max_slippage_bps is not None:
                raise StrategyError("Open: max_slippage_bps is for market orders; limit_px is its own bound")
        if self.bracket is not None and not isinstance(self.bracket, Bracket):
            raise StrategyError(f"Open: bracket is a Bracket(...), not {type(self.bracket).__name__}")
        if self.guardians is not _NOTHING:
            self._check_guardians()

    def _check_guardians(self) -> None:
        # The author may pass anything, whatever the annotation says.
        given: Any = self.guardians
        if isinstance(given, TrailingStop | MaxHold):
            raise StrategyError(f"Open: guardians is a tuple; write guardians=({type(given).__name__}(...),)")
        if not isinstance(given, Iterable):
            raise StrategyError(f"Open: guardians is a tuple, () for none, not {given!r:.100}")
        object.__setattr__(self, "guardians", tuple(given))
        for guardian in tuple(given):
            if isinstance(guardian, MaxHold):
                continue
            if not isinstance(guardian, TrailingStop):
                raise StrategyError(
                    f"Open: guardians may hold TrailingStop(...) and MaxHold(...), not {type(guardian).__name__}"
                )
            in_r = guardian.trail_r is not None or guardian.activate_at_r is not None
            if in_r and not (self.bracket is not None and self.bracket.has_stop):
                raise StrategyError(
                    "Open: trail_r and activate_at_r are multiples of the stop's distance; give a bracket with a stop"
                )


@dataclass(frozen=True, slots=True)
class Close:
    """Close a position, reduce-only. At most one of `fraction` (0 to 1), `usd` and `size`; none of them: all of it.

    If strategies share the market, it closes only the share of this strategy.
    """

    market: str
    fraction: Number | None = None
    usd: Number | None = None
    size: Number | None = None

    def __post_init__(self) -> None:
        _market(self)
        given = _given(self, "fraction", "usd", "size")
        if len(given) > 1:
            raise StrategyError(f"Close: choose one of {' and '.join(given)}")
        for name in given:
            _positive(self, name, most=1 if name == "fraction" else None)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel one order by its `oid`, or every entry that rests in a `market`. Exactly one of the two.

    The risk check refuses to cancel the stop of a position, unless the config allows positions without one
    (safety.require_protection).
    """

    oid: str | None = None
    market: str | None = None

    def __post_init__(self) -> None:
        if (self.oid is None) == (self.market is None):
            raise StrategyError("Cancel: give exactly one of oid and market")
        oid: Any = self.oid
        if oid is not None and not (isinstance(oid, str) and oid and oid.isprintable()):
            raise StrategyError(f"Cancel: oid is the text of an order's id, not {self.oid!r}")
        if self.market is not None:
            _market(self)


Intent: TypeAlias = Open | Close | Cancel


def _given(intent: Any, *names: str) -> list[str]:
    return [name for name in names if getattr(intent, name) is not None]


def _market(intent: Any) -> None:
    market = intent.market
    if not isinstance(market, str) or not 1 <= len(market) <= 80 or not market.isprintable():
        raise StrategyError(f'{type(intent).__name__}: market is a name such as "BTC", not {market!r}')


def _positive(intent: Any, name: str, *, most: int | None = None, below: int | None = None) -> None:
    """A positive, finite number, or StrategyError; a number of another library becomes a plain float."""
    value = getattr(intent, name)
    if (
        type(value) in _PLAIN
        and math.isfinite(value)
        and value > 0
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        return
    where = f"{type(intent).__name__}: {name}"
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise StrategyError(f"{where} is a number, not {value!r}")
    if type(value) not in _PLAIN:
        value = float(value)
        object.__setattr__(intent, name, value)
    if not math.isfinite(value):
        raise StrategyError(f"{where} is {value}: an indicator was probably not ready")
    if value <= 0:
        raise StrategyError(f"{where} is above 0, not {value}")
    if most is not None and value > most:
        raise StrategyError(f"{where} is at most {most}, not {value}")
    if below is not None and value >= below:
        raise StrategyError(f"{where} is below {below}, not {value}")


def _whole(intent: Any, name: str, least: int, most: int) -> None:
    value: Any = getattr(intent, name)
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or value != int(value):
        raise StrategyError(f"{type(intent).__name__}: {name} is a whole number from {least} to {most}, not {value!r}")
    object.__setattr__(intent, name, int(value))
