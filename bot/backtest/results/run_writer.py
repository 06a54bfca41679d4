"""A session's result and the folder that it is kept in. Others read that folder (report, compare, replay); its form is written down here.

runs/<name>-<time>/
  manifest.json   what was run: {"format": 1, "code": {"version", "sha256"}, "python", "config": {"name", "sha256", "text"},
                  "strategies": [{"name", "use", "sha256", "packages": {name: version}}], "data": [{"market", "interval", "candles", "first_ms", "last_ms", "sha256"}],
                  "funding": {market: sha256}, "options": SessionOptions.plain(), "accepted": [...],
                  "besides": ["band", "prove_causal"] (what summary.json has of it), "assumptions": [text, ...]}.
                  Nothing in it says when or where it ran: the same manifest gives the same bytes in every other file.
  events.jsonl    every event of the account, oldest first: the wire's own objects without requestId. SHA-256 of the file = summary.eventDigest.
  log.jsonl       what the strategies said by view.log, where they did: {"atMs", "strategy", "event", "fields"}; at most 100,000 lines.
  trades.csv      round trips, flat to flat in one market (folder.COLUMNS). Instants ms UTC; amounts in USD, exact; an open one has no exit.
                  Slippage is inside the prices, so inside the result too.
  equity.npy      at every close: structured rows at_ms (<i8), equity_usd (<f8), exposure_usd (<f8); numpy.load reads it.
  summary.json    {"figures": {field's name: number}, "costs": {...}, "exits": {kind: count}, "guardians": [fired_row], "outages": [...], "eventDigest",
                  "course": {"bars", "touched", "decisions", "isPartial"}, "strategies": {name: {...}} (trips that several share under
                  "one+two"), "booked": {name: {...}} (where there are such trips: what the daemon has booked to each), "refusals": {code: count} (of the gate), "rejections": {code: count} (of the
                  service, and of orders that it had not taken in time), "unfilled": {code: count} (orders that it took and did not fill, or not wholly),
                  "firstRefusals", "firstRejections" and "firstUnfilled": {code: {"atMs", "strategy", "market", "message"}}, "left": [...],
                  "band": null or {"paths": {policy: {"figures", "endUsd", "differing"}}, "endUsd": [lowest, highest], "orders": [{"trade", "strategy", "market",
                  "side", "entryMs", "fills": {policy: text}}] (at most 1,000), "orderCount"}, "proof": null or {"cutsMs", "eventsCompared", "differs", "isWhole",
                  "outside": [what strategies read by themselves]}}.
  chart.json      each market's candles, thinned for drawing (chart.chart_of). No figure is reckoned from it; a report goes on without.
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import add, attrgetter
from pathlib import Path
from typing import Any, Final

from bot import __version__
from bot.backtest.data.candles import Candles
from bot.backtest.engine.caps import assumption_lines
from bot.backtest.engine.market_cursor import MarketCursor
from bot.backtest.engine.memory_journal import OrderFailure, OrderFailures
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import RunStats
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import Timeline
from bot.backtest.results.chart_data import chart_of
from bot.backtest.results.equity import Curve, curve_of, figures_of
from bot.backtest.results.layout import COLUMNS, FORMAT
from bot.backtest.results.trade_ledger import BOTH, GuardianAction, RoundTrip, TradeLedger, usd_of
from bot.clock import DAY_MS, iso
from bot.errors import BotError
from bot.money import format_decimal, format_e8
from bot.runtime.model.shares import TotalsRow
from bot.runtime.strategy_host.timers import Spec, instants
from bot.venue import ledger
from bot.venue.funding import CLAMP, INTEREST
from bot.venue.liquidation import PARTIAL_FROM
from bot.venue.numbers import BPS, E8, E12, digits_of
from bot.venue.order_sizes import CLOSE_SLIPPAGE_BPS, TRIGGER_SLIPPAGE_BPS
from bot.venue.record import order_as_event
from bot.venue.state import BOOK_LEVELS, CLOSED_DEPTH, Market

COARSE: Final = 0.001  # of a price: a tick of more is said
INSTANTS: Final = 200  # of a timer, by which it is seen whether it is due where no candle closes


@dataclass(frozen=True, slots=True)
class Result:
    """What a session came to. `figures` have the field's own names."""

    stats: RunStats
    trade_ledger: TradeLedger
    curve: Curve
    figures: Mapping[str, Any]
    start_ms: int
    end_ms: int
    start_usd: float
    end_usd: float
    liquidations: int
    chart: Mapping[str, Any] = field(default_factory=dict)
    failures: OrderFailures = field(default_factory=OrderFailures)
    left: Sequence[str] = ()
    unrealized: int = 0  # of what is open at the end, at the last close
    booked: Sequence[TotalsRow] = ()  # of each strategy, where some have shared a trip

    @property
    def digest(self) -> str:
        return self.trade_ledger.digest

    @property
    def refusals(self) -> Mapping[str, int]:
        return self.failures.refusals

    @property
    def rejections(self) -> Mapping[str, int]:
        return self.failures.rejections

    def summary(self, band: Mapping[str, Any] | None = None, proof: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """summary.json."""
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
            "guardians": [fired_row(one) for one in trade_ledger.guardians],
            "outages": [_outage_as_json(one) for one in stats.outage_records],
            **failures_as_json(self.failures),
            "quarantined": dict(stats.quarantined),
            "left": list(self.left),
            "course": {
                "bars": stats.bars,
                "barsInAll": stats.bars_in_all,
                "touched": stats.touched,
                "decisions": stats.decisions,
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
        }


def fired_row(one: GuardianAction) -> dict[str, Any]:
    """A guardian that acted. `resultUsd` is what its own fills realised, less their fees; None where it had none."""
    e = one.event
    return {
        "ts": e.ts, "type": e.guardian_type, "market": e.coin, "action": e.action, "reason": e.reason, "code": e.code,
        "trades": list(one.trips), "resultUsd": format_e8(one.gained) if one.trips else None,
    }  # fmt: skip


def failures_as_json(failures: OrderFailures) -> dict[str, Any]:
    return {
        "refusals": dict(sorted(failures.refusals.items())),
        "rejections": dict(sorted(failures.rejections.items())),
        "unfilled": dict(sorted(failures.unfilled.items())),
        "firstRefusals": {code: _failure_as_json(one) for code, one in sorted(failures.first_refusals.items())},
        "firstRejections": {code: _failure_as_json(one) for code, one in sorted(failures.first_rejections.items())},
        "firstUnfilled": {code: _failure_as_json(one) for code, one in sorted(failures.first_unfilled.items())},
    }


def _failure_as_json(one: OrderFailure) -> dict[str, Any]:
    return {"atMs": one.at_ms, "strategy": one.strategy, "market": one.market, "message": one.message}


def _outage_as_json(one: Any) -> dict[str, Any]:
    return {
        "atMs": one.outage.at_ms,
        "forMs": one.outage.ms,
        "events": max(0, one.last_event - one.first_event + 1),
        "openBefore": list(one.open_before),
        "openAfter": list(one.open_after),
        "equityBeforeUsd": round(one.equity_before_usd, 8),
        "equityAfterUsd": round(one.equity_after_usd, 8),
    }


def _totals_as_json(row: TotalsRow) -> dict[str, str]:
    return {
        "pnlUsd": format_decimal(row.net_usd), "feesUsd": format_decimal(row.fees_usd), "fundingUsd": format_decimal(row.funding_usd),
    }  # fmt: skip


def by_strategy(trips: Iterable[RoundTrip]) -> dict[str, dict[str, Any]]:
    """Finished trades, their profit and costs of each strategy; positions that no strategy opened under ""."""
    found: dict[str, list[int]] = {}
    for trip in trips:
        sums = found.setdefault(trip.strategy, [0] * 6)
        is_done = trip.exit_ms > 0
        event_buffer = (is_done, is_done and trip.pnl > 0, trip.pnl, trip.fees, trip.funding, trip.slipped)
        found[trip.strategy] = list(map(add, sums, event_buffer))
    return {
        name: {
            "# Trades": done,
            "Win Rate [%]": round(100 * won / done, 6) if done else None,
            "pnlUsd": format_e8(pnl),
            "feesUsd": format_e8(fees),
            "fundingUsd": format_e8(funding),
            "slippageUsd": format_e8(usd_of(slipped)),
        }
        for name, (done, won, pnl, fees, funding, slipped) in sorted(found.items())
    }


def result_of(
    exchange: SimulatedExchange, trade_ledger: TradeLedger, stats: RunStats, timeline: Timeline, options: SessionOptions, failures: OrderFailures,
    books: Mapping[str, TotalsRow],
) -> Result:  # fmt: skip
    """Fold what is left of the events, and make the figures."""
    trade_ledger.take(exchange.event_buffer.events[trade_ledger.count + 1 - exchange.event_buffer.first :])
    start_usd = float(options.balance_usd)
    over_ms = timeline.end_ms if exchange.clock.now_ms() >= timeline.end_ms - 1 else 0
    curve = curve_of(timeline.cursors, trade_ledger.steps, start_cash=int(options.balance_usd * E8), end_ms=over_ms)
    exchange.show_marks()
    for cursor in timeline.cursors:
        if cursor.step and cursor.coin in curve.last:  # It was stopped inside of this bar, whose close nobody knows.
            exchange.state.markets[cursor.coin].see(round(curve.last[cursor.coin] * E8))
    account = exchange.account
    for order in (account.orders[number] for number in account.resting):
        trade_ledger.not_filled(order_as_event(exchange.state, account, order, "open"), "session_ended")
    end_usd = ledger.account_value(exchange.state, account) / E8
    if curve.equity and abs(curve.equity[-1] - end_usd) > 1e-6 * max(1.0, abs(end_usd)):
        raise AssertionError(f"the curve ends at {curve.equity[-1]}, the venue's ledger at {end_usd}")
    end_ms = curve.at_ms[-1] if curve.at_ms else timeline.start_ms
    left = [
        f"{held.coin} {'long' if held.side > 0 else 'short'} {format_e8(held.size)} @ {format_e8(held.entry_px())}, "
        f"{held.pnl(exchange.state.markets[held.coin].mark) / E8:+,.2f} USD unrealised"
        for held in account.positions.values()
    ]
    prices = {
        cursor.coin: (cursor.open[cursor.first], _last_px(cursor, exchange))
        for cursor in timeline.cursors
        if cursor.at > cursor.first
    }
    is_shared = any(BOTH in trip.strategy for trip in trade_ledger.trips)
    figures = figures_of(curve, trade_ledger.trips, start_usd=start_usd, start_ms=timeline.start_ms, prices=prices)
    return Result(
        stats, trade_ledger, curve, figures, timeline.start_ms, end_ms, start_usd, end_usd,
        trade_ledger.liquidations, chart_of(timeline.cursors), failures, left, ledger.unrealized(exchange.state, account),
        [row for _, row in sorted(books.items())] if is_shared else (),
    )  # fmt: skip


def _last_px(cursor: MarketCursor, exchange: SimulatedExchange) -> float:
    """What a unit that was held through the session is worth at its end."""
    outcome = exchange.state.markets[cursor.coin].outcome_px
    return cursor.close[cursor.at - 1] if outcome is None else outcome / E8


# ── Manifest ────────────────────────────────────────────────────────────────────────────────────────────────────────


def manifest_of(
    *, name: str, config_text: str, strategies: Sequence[Mapping[str, Any]], candles: Sequence[Candles], funding: Mapping[str, str],
    options: SessionOptions, accepted: Sequence[str], assumptions: Sequence[str], besides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """manifest.json: everything that the result follows from."""
    return {
        "format": FORMAT,
        "code": {"version": __version__, "sha256": code_sha256()},
        "python": platform.python_version(),
        "config": {"name": name, "sha256": hashlib.sha256(config_text.encode()).hexdigest(), "text": config_text},
        "strategies": [dict(one) for one in strategies],
        "data": [
            {
                "market": one.market,
                "interval": one.interval,
                "candles": len(one),
                "first_ms": one.at_ms[0],
                "last_ms": one.at_ms[-1],
                "sha256": one.digest(),
            }
            for one in candles
        ],
        "funding": dict(funding),
        "options": options.plain(),
        "accepted": sorted(accepted),
        "besides": list(besides),
        "assumptions": list(assumptions),
    }


def code_sha256() -> str:
    """Of every source file of the package, by name."""
    made = hashlib.sha256()
    package = Path(__file__).resolve().parents[2]
    for path in sorted(package.rglob("*.py")):
        made.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()


def assumptions_of(
    timeline: Timeline, options: SessionOptions, exchange: SimulatedExchange, *, funded: Sequence[str], timers: Sequence[tuple[str, str, Spec]] = (),
) -> list[str]:  # fmt: skip
    """What the figures rest on, said one by one."""
    paths = {
        "sl_first": "inside a bar the extreme nearer to the open comes first, and of a stop and a target in one bar the stop wins",
        "adaptive": "inside a bar the extreme nearer to the open comes first",
        "ohlc": "inside a bar the high comes before the low",
        "olhc": "inside a bar the low comes before the high",
    }
    said = [
        f"path {options.path}: {paths[options.path]}",
        "a market order that is decided on a bar's close fills at the next bar's open, plus half the spread and what it walks of the book; an entry in USD is sized there",
        "a stop, a target or a trailing stop fills at its level, or at the open when the bar opens beyond it",
        "MaxHold, schedules and the dead-man switch close at their instant, inside a candle at the price on the straight line from its open to its close",
        "where candles are missing there is no price: what a guardian closes there fills at the open that follows",
        "a resting limit order fills one tick through its price, at most a tenth of the bar's volume",
        "prices are those of trades: mark, mid and oracle are the candle's own price",
        f"latency {options.latency_ms} ms"
        + (
            ": an order reaches the venue so long after the close, and meets the next point of the path (a bar's open, after a third of it an extreme, "
            "after two thirds the other, its close): up to a third of a bar later, at a low or a high as a rule"
            if options.latency_ms
            else ": an order is there before the next open"
        ),
        "slippage is what takers paid against the open, or the level, that they met; of liquidations and drawdown guardians it is not reckoned",
        "positions that are open at the end are valued at the last close; nothing is closed for the report",
        "a year has 365 days: what is annual is of returns from 00:00 to 00:00 UTC, 0 on a day without prices; the riskless rate is 0",
    ]
    if options.start_ms is not None and options.start_ms < timeline.start_ms:
        said.append(
            f"the session begins at {iso(timeline.start_ms)[:16]}, with the first candle there is, and not at {iso(options.start_ms)[:16]}"
        )
    for cursor in timeline.cursors:
        if cursor.ts[cursor.first] < timeline.start_ms:
            said.append(
                f"{cursor.coin}: the session begins amid a candle: until that is over an order meets the next point of its path, a low or a high as a rule, and no open"
            )
        market = exchange.state.markets[cursor.coin]
        spec = market.spec
        depth = "unlimited depth" if not spec.level_size else f"first level {format_e8(spec.level_size)} {cursor.coin}"
        of_what, of = (" of price x (1 - price)", " of the payout") if spec.margin_mode == "full" else ("", "")
        said.append(
            f"{cursor.coin}: {cursor.interval} candles drive; taker {spec.taker_rate / E8 * 100:.4g} %{of_what}, "
            f"maker {spec.maker_rate / E8 * 100:.4g} %{of_what}, spread {2 * spec.half_spread / E8 * 10_000:.4g} bps{of}, {depth}, tick by "
            + (f"{spec.sig_figs} figures" if spec.sig_figs else f"{spec.px_decimals} decimals")
        )
        lowest = round(min(cursor.low[cursor.first : cursor.end]) * E8)
        tick = market.ticks[digits_of(lowest)]
        if spec.margin_mode != "full" and tick > lowest * COARSE:
            said.append(
                f"{cursor.coin}: the listing's tick is {format_e8(tick)} where the price is {format_e8(lowest)}: orders and fills are rounded to it"
            )
        if spec.margin_mode != "full":
            said.append(
                f"{cursor.coin}: funding "
                + (
                    "as recorded"
                    if cursor.coin in funded
                    else f"at the baseline of {spec.funding_rate / 10**12 * 100:.6g} % an hour"
                )
                + ", on the open of the hour"
            )
        if spec.hours is not None:
            said.append(
                f"{cursor.coin}: outside of its exchange's hours the oracle stands still, and funding is paid on that"
                + (
                    ""
                    if cursor.coin in funded
                    else "; what the price is above or below it moves the rate off the baseline"
                )
                + "; from the instant the exchange opens the oracle is the price again"
            )
        if spec.margin_mode == "full":
            said.append(f"{cursor.coin}: {_settled(options, cursor, timeline.end_ms)}")
        said += [f"{cursor.coin}: {line}" for line in _multipliers(market, is_funded=cursor.coin in funded)]
        begins_ms, ends_ms = cursor.ts[cursor.first], cursor.ts[cursor.end - 1] + cursor.step_ms
        if not cursor.first and begins_ms > timeline.start_ms:
            said.append(
                f"{cursor.coin}: closed until its first candle, of {iso(begins_ms)[:16]}: what is ordered before is refused"
            )
        if begins_ms - timeline.start_ms >= DAY_MS or timeline.end_ms - ends_ms >= DAY_MS:
            said.append(
                f"{cursor.coin}: the candles are from {iso(begins_ms)[:16]} to {iso(ends_ms)[:16]} alone; outside of that its price stands still"
            )
        holes = _holes(cursor.ts, cursor.step_ms, cursor.first, cursor.end)
        if holes:
            said.append(
                f"{cursor.coin}: {holes} {'candle is' if holes == 1 else 'candles are'} missing inside the range"
                f"{', nights and holidays among them' if spec.hours is not None else ''}: no price moves there, the next open is a jump"
            )
    said += [*timeline.cold, *_between_closes(timers, timeline), *assumption_lines(options.caps)]
    if options.outages:
        times = "once" if len(options.outages) == 1 else f"{len(options.outages)} times"
        said.append(
            f"the daemon was down {times}; it beats its dead-man switch, where it has one, every period until then"
        )
    return said


def _multipliers(market: Market, *, is_funded: bool) -> Iterator[str]:
    """By what the venue multiplies the listing's figures, and how far from the mid an order may fill."""
    spec, of = market.spec, " of the payout" if market.spec.margin_mode == "full" else ""
    if spec.hours is not None:
        wider = f"the spread is {CLOSED_DEPTH} times as wide, {2 * CLOSED_DEPTH * spec.half_spread / E8 * BPS:.4g} bps"
        thinner = f"each level of the book holds 1/{CLOSED_DEPTH} of its size"
        closed = [text for text, applies in ((wider, spec.half_spread), (thinner, spec.level_size)) if applies]
        closed += ["nothing is opened"] if spec.strict_hours else []
        if closed:
            yield f"while its exchange is closed {', and '.join(closed)}"
    if spec.level_size:
        yield (
            f"the book has {BOOK_LEVELS} levels: each is {spec.level_step / E8 * BPS:.4g} bps{of} further from the mid than the one before it, and larger "
            f"by {spec.level_growth / E8 * 100:.4g} % of the first"
        )
    yield (
        f"an entry at market fills at most {spec.slippage_bps} bps{of} from the mid unless it says another bound, a close {CLOSE_SLIPPAGE_BPS} bps, "
        f"a stop, a target or a guardian {TRIGGER_SLIPPAGE_BPS} bps"
    )
    if spec.margin_mode == "full":
        return
    if spec.hours is not None and not is_funded:
        yield (
            f"the funding rate of a premium P over the oracle is {spec.funding_factor / E8:.4g} x (P + clamp({INTEREST / E12 * 100:.4g} % - P, "
            f"-{CLAMP / E12 * 100:.4g} % to {CLAMP / E12 * 100:.4g} %)) / 8 an hour"
        )
    tiers = [
        f"{50 / tier.max_leverage:.4g} % of "
        + (f"what lies above {tier.lower // E8:,} USD" if tier.lower else "the notional")
        for tier in market.tiers
    ]
    yield (
        f"maintenance margin is {' and '.join(tiers)}; below it a position is liquidated, of one above {PARTIAL_FROM // E8:,} USD a fifth first, and below two "
        f"thirds of it the liquidator takes the position with its margin"
    )


def _settled(options: SessionOptions, cursor: MarketCursor, end_ms: int) -> str:
    """How an event market ends."""
    one = options.settlements.get(cursor.coin)
    at_ms = None if one is None else one.after(cursor.ts[-1] + cursor.step_ms)
    if one is None or at_ms is None or at_ms > end_ms:
        return "is not settled within the session: what is held at the end is valued at the last close"
    pays = "what its last price is nearer to, 0 or 1" if one.outcome is None else f"{one.outcome:f}"
    return f"settled at {iso(at_ms)[:19]}: a share of Yes pays {pays}; what rests is canceled, and nothing is traded any more"


def _between_closes(timers: Sequence[tuple[str, str, Spec]], timeline: Timeline) -> Iterator[str]:
    """Timers that are due where no candle closes, by the first of their instants."""
    finest = min(timeline.cursors, key=attrgetter("step_ms"))
    for strategy, name, spec in timers:
        first = islice(instants(spec, timeline.start_ms, timeline.end_ms), INSTANTS)
        if any(at_ms % finest.step_ms for at_ms in first):
            yield f"{strategy}: timer {name}: of its instants between two closes of {finest.interval} candles only the newest is told, at the later close"


def _holes(ts: Sequence[int], step_ms: int, first: int, end: int) -> int:
    return (ts[end - 1] - ts[first]) // step_ms + 1 - (end - first) if end > first else 0


# ── The folder ──────────────────────────────────────────────────────────────────────────────────────────────────────


def folder_for(out: Path, name: str, at_ms: int) -> Path:
    """A new folder for this run; a second one within the same second gets a number."""
    stamp = iso(at_ms)[:19].replace(":", "").replace("-", "")
    for number in range(1, 1_000):
        folder = out / (f"{name}-{stamp}Z" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise BotError(
                f"{folder}: cannot be made: {error.strerror or error}; choose another place with --out"
            ) from None
        return folder
    raise BotError(f"{out}: has a thousand runs of this second; choose another place with --out")


def write(folder: Path, result: Result, manifest: Mapping[str, Any]) -> None:
    """Everything but events.jsonl, which was written on the way."""
    (folder / "manifest.json").write_bytes(_json(manifest))
    with (folder / "trades.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows(trip.row(number) for number, trip in enumerate(result.trade_ledger.trips, start=1))
    (folder / "equity.npy").write_bytes(result.curve.npy())
    write_summary(folder, result.summary())
    (folder / "chart.json").write_bytes(json.dumps(result.chart, separators=(",", ":")).encode())


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    (folder / "summary.json").write_bytes(_json(summary))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
