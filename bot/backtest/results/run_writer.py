"""The result of a backtest and its folder. `bot report`, `bot compare` and `bot replay` read that folder. Its files:

runs/<name>-<time>/
  manifest.json   what was run: {"format": 1, "code": {"version", "sha256"}, "python", "config": {"name", "sha256",
  "text"},
                  "strategies": [{"name", "use", "sha256", "packages": {name: version}, "markets", "interval", "params":
                  {name: value}}], "data": [{"market", "interval", "candles", "first_ms", "last_ms", "sha256"}],
                  "funding": {market: sha256}, "options": SessionOptions.plain(), "accepted": [...], "besides": ["band",
                  "prove_causal", "monte_carlo=1000", "bootstrap=100"] (which of them summary.json has), "assumptions":
                  [text, ...]}. It does not say when or where it ran: the same manifest gives the same bytes in every
                  other file.
  events.jsonl    every event of the account, oldest first: the wire's own objects without requestId. SHA-256 of the
  file = summary.eventDigest.
  log.jsonl       what the strategies logged by view.log, if anything: {"atMs", "strategy", "event", "fields"}; at most
  100,000 lines.
  trades.csv      round trips, flat to flat in one market (layout.COLUMNS). Instants ms UTC; amounts in USD, exact; an
  open trade has no exit.
                  Slippage is inside the prices, and so inside the result. low_px, high_px: the market's lowest and
                  highest price during the trade (excursions.extremes_of).
  equity.npy      at every close: structured rows at_ms (<i8), equity_usd (<f8), exposure_usd (<f8); numpy.load reads
  it.
  summary.json    {"figures": {field's name: number}, "costs": {...}, "exits": {kind: count}, "guardians": [fired_row],
  "outages": [...], "eventDigest",
                  "course": {"bars", "touched", "decisions", "orders", "isPartial"}, "strategies": {name: {...}} (trips
                  shared by several under "one+two"), "booked": {name: {...}} (if there are such trips: what the daemon
                  attributes to each strategy), "refusals": {code: count} (by the risk check), "rejections": {code:
                  count} (by the service, and orders that it had not accepted in time), "unfilled": {code: count}
                  (accepted orders that were not filled, or only in part), "firstRefusals", "firstRejections" and
                  "firstUnfilled": {code: {"atMs", "strategy", "market", "message"}}, "left": [...], "band": null or
                  {"paths": {policy: {"figures", "endUsd", "differing"}}, "endUsd": [lowest, highest], "orders":
                  [{"trade", "strategy", "market", "side", "entryMs", "fills": {policy: text}}] (at most 1,000),
                  "orderCount"}, "proof": null or {"cutsMs", "eventsCompared", "differs", "isWhole", "outside": [what
                  strategies read besides the data], "moved": [candles whose times are not their source's]}; with
                  --monte-carlo or --bootstrap also "monteCarlo": {"trades", "candles"} (monte_carlo.py)}.
  chart.json      each market's candles, thinned for drawing, and the declared indicators (chart_data.chart_of). No
  figure of summary.json comes from
                  it; a report works without it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Any, Final

from bot import __version__
from bot.backtest.data.candles import Candles
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.memory_journal import OrderFailure, OrderFailures
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import RunStats
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import Timeline
from bot.backtest.results.chart_data import chart_of
from bot.backtest.results.equity import Curve, curve_of, figures_of
from bot.backtest.results.excursions import extremes_of
from bot.backtest.results.layout import COLUMNS, EXTREMES, FORMAT
from bot.backtest.results.trade_ledger import BOTH, GuardianAction, RoundTrip, TradeLedger, usd_of
from bot.clock import iso
from bot.errors import BotError
from bot.money import format_e8, format_e16
from bot.runtime.model.shares import TotalsRow
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.package_versions import code_sha256
from bot.venue.accounting import ledger
from bot.venue.model.numbers import E8
from bot.venue.model.record import order_as_event

# A fraction of the price. A larger tick is listed among the assumptions.
COARSE: Final = 0.001
# first instants of a timer, to find out whether it is due between two closes
INSTANTS: Final = 200


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a backtest. `figures` have the usual names of trading statistics."""

    stats: RunStats
    trade_ledger: TradeLedger
    curve: Curve
    figures: Mapping[str, Any]
    start_ms: int
    end_ms: int
    start_usd: float
    end_usd: float
    liquidations: int
    timeline: Timeline
    path: str
    specs: Sequence[StrategySpec] = ()
    failures: OrderFailures = field(default_factory=OrderFailures)
    left: Sequence[str] = ()
    # result of open positions at the last close
    unrealized: int = 0
    # totals of each strategy, if strategies shared a trip
    booked: Sequence[TotalsRow] = ()

    @property
    def digest(self) -> str:
        return self.trade_ledger.digest

    @property
    def refusals(self) -> Mapping[str, int]:
        return self.failures.refusals

    @property
    def rejections(self) -> Mapping[str, int]:
        return self.failures.rejections

    def summary(
        self,
        band: Mapping[str, Any] | None = None,
        proof: Mapping[str, Any] | None = None,
        monte_carlo: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The content of summary.json."""
        trade_ledger, stats = self.trade_ledger, self.stats
        return {
            "figures": dict(self.figures),
            "costs": {
                "feesUsd": format_e8(trade_ledger.fees),
                "fundingUsd": format_e8(trade_ledger.funding),
                "realizedUsd": format_e8(trade_ledger.realized),
                "slippageUsd": format_e8(trade_ledger.slippage),
                "unrealizedUsd": format_e8(self.unrealized),
                "backstopUsd": format_e8(trade_ledger.backstop),
            },
            "exits": dict(sorted(trade_ledger.kinds.items())),
            "strategies": by_strategy(trade_ledger.trips),
            "booked": {row.strategy: _totals_as_json(row) for row in self.booked},
            "guardians": [fired_row(guardian) for guardian in trade_ledger.guardians],
            "outages": [_outage_as_json(outage_record) for outage_record in stats.outage_records],
            **failures_as_json(self.failures),
            "quarantined": dict(stats.quarantined),
            "left": list(self.left),
            "course": {
                "bars": stats.bars,
                "barsInAll": stats.bars_in_all,
                "touched": stats.touched,
                "decisions": stats.decisions,
                "orders": stats.orders,
                "isPartial": stats.is_partial,
                "fromMs": self.start_ms,
                "toMs": self.end_ms,
            },
            "startUsd": self.start_usd,
            "endUsd": self.end_usd,
            "eventDigest": self.digest,
            "events": trade_ledger.count,
            "band": None if band is None else dict(band),
            "proof": None if proof is None else dict(proof),
        } | ({"monteCarlo": dict(monte_carlo)} if monte_carlo else {})


def fired_row(action: GuardianAction) -> dict[str, Any]:
    """A guardian that acted, as JSON.

    `resultUsd` is what its own fills realised, less their fees; None without fills.
    """
    e = action.event
    return {
        "ts": e.ts,
        "type": e.guardian_type,
        "market": e.coin,
        "action": e.action,
        "reason": e.reason,
        "code": e.code,
        "trades": list(action.trips),
        "resultUsd": format_e8(action.gained) if action.trips else None,
    }


def failures_as_json(failures: OrderFailures) -> dict[str, Any]:
    return {
        "refusals": dict(sorted(failures.refusals.items())),
        "rejections": dict(sorted(failures.rejections.items())),
        "unfilled": dict(sorted(failures.unfilled.items())),
        "firstRefusals": {code: _failure_as_json(failure) for code, failure in sorted(failures.first_refusals.items())},
        "firstRejections": {
            code: _failure_as_json(failure) for code, failure in sorted(failures.first_rejections.items())
        },
        "firstUnfilled": {code: _failure_as_json(failure) for code, failure in sorted(failures.first_unfilled.items())},
    }


def _failure_as_json(failure: OrderFailure) -> dict[str, Any]:
    return {"atMs": failure.at_ms, "strategy": failure.strategy, "market": failure.market, "message": failure.message}


def _outage_as_json(crossed: Any) -> dict[str, Any]:
    return {
        "atMs": crossed.outage.at_ms,
        "forMs": crossed.outage.ms,
        "events": max(0, crossed.last_event - crossed.first_event + 1),
        "openBefore": list(crossed.open_before),
        "openAfter": list(crossed.open_after),
        "equityBeforeUsd": round(crossed.equity_before_usd, 8),
        "equityAfterUsd": round(crossed.equity_after_usd, 8),
    }


def _totals_as_json(row: TotalsRow) -> dict[str, str]:
    return {"pnlUsd": format_e16(row.net), "feesUsd": format_e16(row.fees), "fundingUsd": format_e16(row.funding)}


def by_strategy(trips: Iterable[RoundTrip]) -> dict[str, dict[str, Any]]:
    """Number, profit and costs of the finished trades of each strategy; positions that no strategy opened are under
    "".
    """
    by_name: dict[str, list[int]] = {}
    for trip in trips:
        sums = by_name.setdefault(trip.strategy, [0] * 6)
        is_done = trip.exit_ms > 0
        event_buffer = (is_done, is_done and trip.pnl > 0, trip.pnl, trip.fees, trip.funding, trip.slipped)
        by_name[trip.strategy] = list(map(add, sums, event_buffer))
    return {
        name: {
            "# Trades": done,
            "Win Rate [%]": round(100 * won / done, 6) if done else None,
            "pnlUsd": format_e8(pnl),
            "feesUsd": format_e8(fees),
            "fundingUsd": format_e8(funding),
            "slippageUsd": format_e8(usd_of(slipped)),
        }
        for name, (done, won, pnl, fees, funding, slipped) in sorted(by_name.items())
    }


def result_of(
    exchange: SimulatedExchange,
    trade_ledger: TradeLedger,
    stats: RunStats,
    timeline: Timeline,
    options: SessionOptions,
    failures: OrderFailures,
    books: Mapping[str, TotalsRow],
    specs: Sequence[StrategySpec] = (),
) -> Result:
    """Fold the remaining events and compute the figures."""
    trade_ledger.take(exchange.event_buffer.events[trade_ledger.count + 1 - exchange.event_buffer.first :])
    start_usd = float(options.balance_usd)
    over_ms = timeline.end_ms if exchange.clock.now_ms() >= timeline.end_ms - 1 else 0
    curve = curve_of(timeline.readers, trade_ledger.steps, start_cash=int(options.balance_usd * E8), end_ms=over_ms)
    exchange.show_marks()
    for reader in timeline.readers:
        # The run was stopped inside this bar, before its close.
        if reader.step and reader.coin in curve.last:
            exchange.state.markets[reader.coin].see(round(curve.last[reader.coin] * E8))
    account = exchange.account
    for order in (account.orders[number] for number in account.resting):
        trade_ledger.not_filled(order_as_event(exchange.state, account, order, "open"), "session_ended")
    end_usd = ledger.account_value(exchange.state, account) / E8
    if curve.equity and abs(curve.equity[-1] - end_usd) > 1e-6 * max(1.0, abs(end_usd)):
        raise AssertionError(f"the equity curve ends at {curve.equity[-1]}, but the venue's ledger at {end_usd}")
    end_ms = curve.at_ms[-1] if curve.at_ms else timeline.start_ms
    left = [
        f"{held.coin} {'long' if held.side > 0 else 'short'} {format_e8(held.size)} @ {format_e8(held.entry_px())}, "
        f"{held.pnl(exchange.state.markets[held.coin].mark) / E8:+,.2f} USD unrealised"
        for held in account.positions.values()
    ]
    prices = {
        reader.coin: (reader.open[reader.first], _last_px(reader, exchange))
        for reader in timeline.readers
        if reader.at > reader.first
    }
    is_shared = any(BOTH in trip.strategy for trip in trade_ledger.trips)
    figures = figures_of(curve, trade_ledger.trips, start_usd=start_usd, start_ms=timeline.start_ms, prices=prices)
    return Result(
        stats,
        trade_ledger,
        curve,
        figures,
        timeline.start_ms,
        end_ms,
        start_usd,
        end_usd,
        trade_ledger.liquidations,
        timeline,
        options.path,
        specs,
        failures,
        left,
        ledger.unrealized(exchange.state, account),
        [row for _, row in sorted(books.items())] if is_shared else (),
    )


def _last_px(reader: CandleReader, exchange: SimulatedExchange) -> float:
    """The price of one unit at the end of the session."""
    outcome = exchange.state.markets[reader.coin].outcome_px
    return reader.close[reader.at - 1] if outcome is None else outcome / E8


# ── Manifest ────────────────────────────────────────────────────────────────────────────────────────────────────────


def manifest_of(
    *,
    name: str,
    config_text: str,
    strategies: Sequence[Mapping[str, Any]],
    candles: Sequence[Candles],
    funding: Mapping[str, str],
    options: SessionOptions,
    accepted: Sequence[str],
    notes: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The content of manifest.json: everything that determines the result, and `notes`, lists of sentences."""
    return {
        "format": FORMAT,
        "code": {"version": __version__, "sha256": code_sha256()},
        "python": platform.python_version(),
        "config": {"name": name, "sha256": hashlib.sha256(config_text.encode()).hexdigest(), "text": config_text},
        "strategies": [dict(strategy) for strategy in strategies],
        "data": [
            {
                "market": series.market,
                "interval": series.interval,
                "candles": len(series),
                "first_ms": series.at_ms[0],
                "last_ms": series.at_ms[-1],
                "sha256": series.digest(),
            }
            for series in candles
        ],
        "funding": dict(funding),
        "options": options.plain(),
        "accepted": sorted(accepted),
        **{heading: list(sentences) for heading, sentences in notes.items()},
    }


# ── The folder ──────────────────────────────────────────────────────────────────────────────────────────────────────


def folder_for(out: Path, name: str, at_ms: int) -> Path:
    """Create the folder of this run. A second run within the same second gets a number."""
    stamp = iso(at_ms)[:19].replace(":", "").replace("-", "")
    for number in range(1, 1_000):
        folder = out / (f"{name}-{stamp}Z" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise BotError(
                f"{folder}: cannot be created: {error.strerror or error}; choose another place with --out"
            ) from None
        return folder
    raise BotError(f"{out}: has 1,000 runs of this second; choose another place with --out")


def write(folder: Path, result: Result, manifest: Mapping[str, Any]) -> None:
    """Write every file except events.jsonl, which was written during the run."""
    (folder / "manifest.json").write_bytes(_json(manifest))
    with (folder / "trades.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow((*COLUMNS, *EXTREMES))
        trips = result.trade_ledger.trips
        extremes = extremes_of(result.timeline.readers, trips, result.path)
        for number, (trip, (low, high)) in enumerate(zip(trips, extremes, strict=True), start=1):
            rows.writerow((*trip.row(number), format_e8(low), format_e8(high)))
    (folder / "equity.npy").write_bytes(result.curve.npy())
    write_summary(folder, result.summary())
    chart = chart_of(result.timeline, result.specs)
    (folder / "chart.json").write_bytes(json.dumps(chart, separators=(",", ":")).encode())


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    (folder / "summary.json").write_bytes(_json(summary))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
