"""Options of a session besides the config and the candles: frozen values with a JSON form for the manifest.

Reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

from bot.backtest.engine.caps import Cap, caps_as_json, caps_from_json, check_caps
from bot.backtest.engine.recorded_answers import RECORDED_ONLY, AgentOptions
from bot.errors import ConfigError
from bot.service.market_data.instruments import CATALOGUE, Listing, listing_of_plain, plain_listing
from bot.venue.model.numbers import E8, decimals_of
from bot.venue.model.state import MarketSpec

if TYPE_CHECKING:
    from bot.backtest.data.candles import Candles

PathPolicy = Literal["sl_first", "ohlc", "olhc", "adaptive"]
PATHS: Final[tuple[PathPolicy, ...]] = ("sl_first", "ohlc", "olhc", "adaptive")
# what a sandbox account starts with
BALANCE_USD: Final = Decimal(10_000)
BALANCE_USD_MAX: Final = Decimal(1_000_000_000)
LATENCY_MS_MAX: Final = 600_000
# The largest tick, size step and smallest order: more than any exchange has.
STEP_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Outage:
    """The daemon is down for `ms` from `at_ms` on. The service keeps running."""

    at_ms: int
    ms: int

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.ms


def chance_outages(count: int, start_ms: int, end_ms: int, *, mean_ms: float, seed: int) -> tuple[Outage, ...]:
    """Seeded outages with a mean length of `mean_ms` that do not overlap: one in each of `count` equal parts of the
    range.
    """
    if not count or end_ms <= start_ms:
        return ()
    chance = Random(f"{seed}:outages")
    part = (end_ms - start_ms) // count
    outages = []
    for number in range(count):
        length = min(part // 2, max(1_000, int(chance.expovariate(1 / mean_ms))))
        at = start_ms + number * part + int(chance.random() * (part - length))
        outages.append(Outage(at, max(1, length)))
    return tuple(outages)


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of an event market.

    `at_ms` None: at the end of its candles. `outcome`: what a share of Yes pays, 0 to 1; None: the last price, rounded
    to 0 or 1.
    """

    at_ms: int | None = None
    outcome: Decimal | None = None

    def __post_init__(self) -> None:
        if self.outcome is not None and not (
            self.outcome.is_finite() and 0 <= self.outcome <= 1 and self.outcome * E8 % 1 == 0
        ):
            raise ConfigError(f"outcome {self.outcome}: must be from 0 (No) to 1 (Yes), with at most 8 decimals")

    def after(self, candles_end_ms: int) -> int:
        """When trading ends."""
        return candles_end_ms if self.at_ms is None else self.at_ms


def start_of(asked_ms: int | None, candles: Sequence[Candles]) -> int:
    """When a session of these candles begins: at the latest first candle of all markets.

    With `--from`: then, but not before the earliest first candle.
    """
    firsts = [series.at_ms[0] for series in candles]
    return max(firsts, default=0) if asked_ms is None else max(asked_ms, min(firsts, default=0))


def within(options: SessionOptions, candles: Sequence[Candles]) -> SessionOptions:
    """The options for a shorter session, or one with fewer candles: without the outages that begin outside of it."""
    start_ms = start_of(options.start_ms, candles)
    ends = [series.end_ms for series in candles]
    end_ms = min([max(ends, default=0), *([] if options.end_ms is None else [options.end_ms])])
    reached = [outage for outage in options.outages if start_ms <= outage.at_ms < end_ms]
    return replace(options, outages=tuple(reached))


@dataclass(frozen=True, slots=True)
class MarketRules:
    """Overrides of the service's listing of a market. None: as listed. Rates are fractions, a negative `maker` is a
    rebate, `tick` is a price, `depth_usd` 0 is unlimited depth.
    """

    taker: Decimal | None = None
    maker: Decimal | None = None
    # distance from best bid to best ask
    spread_bps: Decimal | None = None
    # size of the first of twenty levels
    depth_usd: Decimal | None = None
    tick: Decimal | None = None
    lot: Decimal | None = None
    # USD of the smallest order
    min_notional: Decimal | None = None

    def over(self, other: MarketRules) -> MarketRules:
        """These overrides, with the other's where these have None."""
        return MarketRules(
            **{
                name: mine if (mine := getattr(self, name)) is not None else getattr(other, name)
                for name in self.__slots__
            }
        )

    def of(self, spec: MarketSpec, px: int) -> MarketSpec:
        """The listing with these overrides, at a price."""
        changed: dict[str, Any] = {}
        if self.taker is not None:
            changed["taker_rate"] = _scaled(self.taker, "fee")
        if self.maker is not None:
            changed["maker_rate"] = _scaled(self.maker, "maker fee", least=-1)
        if self.spread_bps is not None:
            changed["half_spread"] = _scaled(self.spread_bps / 20_000, "half of the spread")
        if self.lot is not None:
            step = _step(self.lot, "lot")
            decimals = changed["sz_decimals"] = decimals_of(step)
            changed["size_step"] = None if step == 10 ** (8 - decimals) else step
            # A new lot size leaves the listing's tick unchanged.
            changed["px_decimals"] = spec.px_decimals if spec.px_decimals is not None else 6 - spec.sz_decimals
        if self.tick is not None:
            changed["tick"], changed["sig_figs"] = _step(self.tick, "tick"), None
        if self.min_notional is not None:
            changed["min_notional"] = _step(self.min_notional, "least order")
        if self.depth_usd is not None:
            lot = replace(spec, **changed).lot
            size = int(self.depth_usd * E8) * E8 // px // lot * lot
            changed["level_size"] = max(lot, size) if self.depth_usd else 0
        return replace(spec, **changed)


def _scaled(value: Decimal, name: str, *, least: int = 0) -> int:
    """A fraction scaled 1e8. ConfigError unless it is below 1, and at least 0 or above `least`."""
    scaled = int(value * E8)
    if scaled != value * E8 or not (0 <= scaled < E8 or least * E8 < scaled < 0):
        low = f"above {least}" if least else "from 0"
        raise ConfigError(f"{name} {value}: must be a fraction {low} to below 1 with at most 8 decimals")
    return scaled


def _step(value: Decimal, name: str) -> int:
    """A tick, a size step or an amount in units of 1e-8."""
    scaled = int(value * E8)
    if scaled != value * E8 or not 0 < value <= STEP_MAX:
        raise ConfigError(f"{name} {value:f}: must be above 0 and at most {STEP_MAX:,}, with at most 8 decimals")
    return scaled


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`rules` by market name, by class (crypto, stocks, bonds, prediction), or for all under "".

    Instants are ms UTC; None: as far as the data go.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    balance_usd: Decimal = BALANCE_USD
    path: PathPolicy = "sl_first"
    latency_ms: int = 0
    rules: Mapping[str, MarketRules] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    # markets without one are never settled
    settlements: Mapping[str, Settlement] = field(default_factory=dict)
    # the traded markets of a listing file
    listings: Mapping[str, Listing] = field(default_factory=dict)
    seed: int = 1
    # The caps of the session's key and account: caps.py.
    caps: Mapping[str, Cap] = field(default_factory=dict)
    # the answer to entries that wait for a person in a live run
    approve: Literal["all", "none"] = "all"
    agents: AgentOptions = RECORDED_ONLY
    # which calibration the rules and the latency come from, as a sentence; empty: none
    calibration: str = ""
    # False: the venue is shown every bar; a check that skipping changes nothing
    skip: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.balance_usd <= BALANCE_USD_MAX:
            raise ConfigError(f"balance {self.balance_usd}: must be above 0 and at most {BALANCE_USD_MAX} USD")
        if not 0 <= self.latency_ms <= LATENCY_MS_MAX:
            raise ConfigError(f"latency {self.latency_ms} ms: must be from 0 to {LATENCY_MS_MAX}")
        if self.start_ms is not None and self.end_ms is not None and self.start_ms >= self.end_ms:
            raise ConfigError("the range is empty: --from must lie before --to")
        if self.caps:
            check_caps(self.caps)
        last = 0
        for outage in sorted(self.outages, key=lambda outage: outage.at_ms):
            if outage.ms <= 0 or outage.at_ms < last:
                raise ConfigError("outages must have a length and must not overlap")
            last = outage.end_ms

    def listing_of(self, market: str) -> Listing:
        """The listing of a market: as it was when these options were made."""
        return self.listings[market] if market in self.listings else CATALOGUE[market]

    def spec_of(self, spec: MarketSpec, px: int) -> MarketSpec:
        """A market's listing in this session."""
        none = MarketRules()
        asked = [self.rules.get(name, none) for name in (spec.coin, spec.asset_class, "")]
        return asked[0].over(asked[1]).over(asked[2]).of(spec, px)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> SessionOptions:
        """From a manifest: the reverse of `plain`."""
        return cls(
            start_ms=plain["from_ms"],
            end_ms=plain["to_ms"],
            balance_usd=Decimal(plain["balance_usd"]),
            path=plain["path"],
            latency_ms=plain["latency_ms"],
            rules={
                "" if name == "*" else name: MarketRules(**{key: Decimal(value) for key, value in rule.items()})
                for name, rule in plain["rules"].items()
            },
            outages=tuple(Outage(outage["at_ms"], outage["for_ms"]) for outage in plain["outages"]),
            settlements={
                name: Settlement(
                    settlement["at_ms"], None if settlement["outcome"] is None else Decimal(settlement["outcome"])
                )
                for name, settlement in plain.get("settlements", {}).items()
            },
            listings={coin: listing_of_plain(coin, row) for coin, row in plain.get("listings", {}).items()},
            seed=plain["seed"],
            caps=caps_from_json(plain.get("caps", {})),
            approve=plain.get("approve", "all"),
            agents=AgentOptions.of_plain(plain["agents"]) if "agents" in plain else RECORDED_ONLY,
            calibration=plain.get("calibration", ""),
        )

    def plain(self) -> dict[str, Any]:
        """The options as JSON values for the manifest."""
        return {
            "from_ms": self.start_ms,
            "to_ms": self.end_ms,
            "balance_usd": str(self.balance_usd),
            "path": self.path,
            "latency_ms": self.latency_ms,
            "rules": {
                name or "*": {key: str(value) for key in rule.__slots__ if (value := getattr(rule, key)) is not None}
                for name, rule in sorted(self.rules.items())
            },
            "outages": [{"at_ms": outage.at_ms, "for_ms": outage.ms} for outage in self.outages],
            "settlements": {
                name: {
                    "at_ms": settlement.at_ms,
                    "outcome": None if settlement.outcome is None else str(settlement.outcome),
                }
                for name, settlement in sorted(self.settlements.items())
            },
            **(
                {"listings": {name: plain_listing(listing) for name, listing in sorted(self.listings.items())}}
                if self.listings
                else {}
            ),
            "seed": self.seed,
            "caps": caps_as_json(self.caps),
            **({"approve": self.approve} if self.approve != "all" else {}),
            **({"agents": self.agents.plain()} if self.agents != RECORDED_ONLY else {}),
            **({"calibration": self.calibration} if self.calibration else {}),
        }
