"""A calibration: the spread, the fees and the latency that live paid, as options of a backtest with their intervals.

The reference of a fill is the candle's price at its instant, as in the test (`PriceHistory`). Half of the spread is
what a taker's market order paid beyond it, its walk through the order book included. The latency is the time from the
close of a bar to the fill of the market order that was decided on it. Pure, except for reading and writing its file.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import floor, sqrt
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import drivers
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.options import LATENCY_MS_MAX, MarketRules
from bot.backtest.replay.records import ReplayedFill, RunRecord
from bot.backtest.results.slippage import PriceHistory
from bot.clock import iso
from bot.errors import ConfigError
from bot.files import write_private
from bot.venue.model.numbers import E8

FORMAT: Final = 1
BYTES_MAX: Final = 1_000_000
# fewer say nothing
SAMPLES_MIN: Final = 5
# deviations of a normal distribution that hold 95 %
Z: Final = 1.96
BPS: Final = 10_000
# USD; the service rounds fees to it
FEE_STEP: Final = Decimal("0.000001")
# kinds of fills that pay the spread at an instant of their own
AT_MARKET: Final = frozenset({"market", "close"})
# What is measured of a market: fields of MarketRules.
FIELDS: Final = ("spread_bps", "taker", "maker")


class Measured(NamedTuple):
    """A median, its interval of 95 %, and the number of fills that it comes from."""

    value: float
    low: float
    high: float
    samples: int

    @property
    def text(self) -> str:
        return f"{self.value:.6g} ({self.low:.6g} to {self.high:.6g}, {self.samples:,} fills)"


@dataclass(frozen=True)
class Calibration:
    """What a daemon's fills of a range paid. `markets`: market -> a field of FIELDS -> measure.

    `digest` names the file.
    """

    name: str
    from_ms: int
    to_ms: int
    markets: Mapping[str, Mapping[str, Measured]]
    latency_ms: Measured | None
    digest: str = ""

    @property
    def text(self) -> str:
        """Which calibration a run used, in one sentence."""
        parts = [
            f"{market} {' '.join((field.removesuffix('_bps'), measure.text))}{' bps' if field.endswith('bps') else ''}"
            for market, measures in self.markets.items()
            for field, measure in measures.items()
        ]
        parts += [] if self.latency_ms is None else [f"latency {self.latency_ms.text} ms"]
        days = f"{iso(self.from_ms)[:10]} to {iso(self.to_ms)[:10]}"
        return f"calibration {self.digest} of {self.name}, {days}: {'; '.join(parts) or 'nothing was measured'}"

    def rules(self, markets: Iterable[str], without: Iterable[str] = ()) -> dict[str, MarketRules]:
        """Rules of these markets. Fields in `without` are left as they are, because the command gives them."""
        left = set(without)
        rules = {}
        for market in markets:
            given = {
                field: _rule_value(field, measure)
                for field, measure in self.markets.get(market, {}).items()
                if field not in left
            }
            if given:
                rules[market] = MarketRules(**given)
        return rules

    def plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "fromMs": self.from_ms,
            "toMs": self.to_ms,
            "markets": {
                market: {field: measure._asdict() for field, measure in measures.items()}
                for market, measures in self.markets.items()
            },
            "latencyMs": None if self.latency_ms is None else self.latency_ms._asdict(),
        }


def _rule_value(field: str, measure: Measured) -> Decimal:
    """The median in the unit of the rule, as fine as the rule allows. A spread below zero comes from moved prices."""
    value = max(0.0, measure.value) if field == "spread_bps" else measure.value
    return Decimal(f"{value:.3f}" if field == "spread_bps" else f"{value:.8f}")


def measure(samples: Sequence[float], resolution: float = 0.0) -> Measured | None:
    """The median with its interval by order statistics; None for too few samples.

    `resolution`: how far rounded prices may move every sample.
    """
    count = len(samples)
    if count < SAMPLES_MIN:
        return None
    ordered = sorted(samples)
    rank = max(0, floor((count - Z * sqrt(count)) / 2) - 1)
    return Measured(median(ordered), ordered[rank] - resolution, ordered[-1 - rank] + resolution, count)


def calibrate(recorded: RunRecord, candles: Sequence[Candles], name: str, from_ms: int, to_ms: int) -> Calibration:
    """Measure the fills of a record in a range."""
    used = {series.market: series for series in drivers(candles)}
    readers = [CandleReader(series, start_ms=series.at_ms[0], end_ms=series.end_ms) for series in used.values()]
    prices = PriceHistory(readers, "adaptive")
    by_market: defaultdict[str, list[ReplayedFill]] = defaultdict(list)
    for fill in recorded.fills.values():
        if from_ms <= fill.ts < to_ms and fill.notional:
            by_market[fill.market].append(fill)
    markets = {}
    for market, fills in sorted(by_market.items()):
        series = used.get(market)
        measures = {
            "spread_bps": None if series is None else _spread(_at_market(fills), prices, series),
            **{side: _rate([fill for fill in fills if fill.liquidity == side]) for side in ("taker", "maker")},
        }
        known = {field: measured for field, measured in measures.items() if measured is not None}
        if known:
            markets[market] = known
    return Calibration(name, from_ms, to_ms, markets, _latency(by_market))


def _at_market(fills: Iterable[ReplayedFill]) -> list[ReplayedFill]:
    """The market orders of this daemon."""
    return [fill for fill in fills if fill.key.is_own and fill.kind in AT_MARKET and fill.liquidity == "taker"]


def _rate(fills: Sequence[ReplayedFill]) -> Measured | None:
    """The fee as a part of the notional."""
    resolution = max((float(FEE_STEP / fill.notional) for fill in fills), default=0.0)
    return measure([float(fill.fee / fill.notional) for fill in fills], resolution)


def _spread(fills: Iterable[ReplayedFill], prices: PriceHistory, series: Candles) -> Measured | None:
    """Twice what the fills paid beyond the price of their instant, in bps."""
    samples, resolution = [], 0.0
    for fill in fills:
        at = prices.at(fill.market, fill.ts) if fill.ts < series.end_ms else None
        if not at:
            continue
        px = Decimal(at) / E8
        worse = (fill.px - px) if fill.is_buy else (px - fill.px)
        samples.append(float(2 * worse / px * BPS))
        resolution = max(resolution, float(2 * Decimal(1).scaleb(_exponent(fill.px)) / px * BPS))
    return measure(samples, resolution)


def _exponent(px: Decimal) -> int:
    exponent = px.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _latency(by_market: Mapping[str, Sequence[ReplayedFill]]) -> Measured | None:
    """From the close of a bar to the fill of the order that was decided on it."""
    samples = [
        float(fill.ts - closed_ms)
        for fills in by_market.values()
        for fill in _at_market(fills)
        if fill.key.owner is not None and (closed_ms := fill.key.owner.bar_ms) is not None and fill.key.number == 1
    ]
    return measure([sample for sample in samples if 0 <= sample <= LATENCY_MS_MAX])


def write_calibration(path: Path, calibration: Calibration) -> Calibration:
    """Write the file; returns the calibration with the file's digest."""
    data = (json.dumps(calibration.plain(), indent=1) + "\n").encode()
    write_private(path, data)
    return replace(calibration, digest=_digest(data))


def read_calibration(path: Path) -> Calibration:
    """Read a file of `bot proof calibrate`. ConfigError says what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX)
        plain = json.loads(data)
        if plain["format"] != FORMAT:
            raise ConfigError(f"{path}: is of format {plain['format']}, and this version reads {FORMAT}")
        markets = {
            str(market): {field: _measured(path, field, row) for field, row in fields.items()}
            for market, fields in plain["markets"].items()
        }
        latency = None if plain["latencyMs"] is None else _measured(path, "latencyMs", plain["latencyMs"])
        return Calibration(
            str(plain["name"]), int(plain["fromMs"]), int(plain["toMs"]), markets, latency, _digest(data)
        )
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: is no calibration ({type(error).__name__}: {error}); bot proof calibrate --out {path} writes one"
        ) from None


def _measured(path: Path, field: str, row: Mapping[str, Any]) -> Measured:
    if field not in {*FIELDS, "latencyMs"}:
        raise ConfigError(f"{path}: {field}: is not known; a market has {', '.join(FIELDS)}")
    values = [float(row[name]) for name in ("value", "low", "high")]
    if not values[1] <= values[0] <= values[2]:
        raise ConfigError(f"{path}: {field}: value {values[0]:g} must lie between low {values[1]:g} and {values[2]:g}")
    return Measured(values[0], values[1], values[2], int(row["samples"]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
