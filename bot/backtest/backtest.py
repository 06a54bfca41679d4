"""Run a backtest: config, candles and funding in, a result out.

Also the band of path policies and the proof of causality. `bot backtest` calls it.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment
from bot.backtest.engine.driver import BacktestSession, local
from bot.backtest.engine.memory_journal import MemoryJournal, OrderFailure, OrderFailures
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import Progress
from bot.backtest.engine.simulated_exchange import ADDRESS, EVENTS_SHOWN, SimulatedExchange
from bot.backtest.results.excursions import record_extremes
from bot.backtest.results.layout import BY_GUARDIAN, COLUMNS
from bot.backtest.results.run_writer import Result, result_of
from bot.backtest.results.slippage import PriceHistory, SlippageMeter
from bot.backtest.results.trade_ledger import RoundTrip, TradeLedger
from bot.config import Settings
from bot.logs import redact
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.model.intents import RUNTIME
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.loader import load
from bot.runtime.strategy_host.package_versions import packages_of
from bot.strategy import Strategy
from bot.venue.model.numbers import E8

# lines of log.jsonl; more come only from a strategy that logs at every bar
LOG_LINES_MAX: Final = 100_000
# events in memory before they are added to the ledger and written
EVENTS_HELD: Final = 6_000
# orders listed in summary.json
BAND_ORDERS_MAX: Final = 1_000
# relative difference; a smaller one between two prices comes from another order size
WALKED: Final = 0.0005

Rates = Mapping[str, Sequence[Payment]]


class Lines(Protocol):
    """Takes lines of text, like a file."""

    def write(self, text: str, /) -> object: ...


class StrategyLog:
    """Writes the lines that strategies log with view.log. If there are too many, the last line says so."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._count = 0

    def __call__(self, at_ms: int, strategy: str, event: str, fields: Mapping[str, Any]) -> None:
        self._count += 1
        if self._count <= LOG_LINES_MAX:
            line = {"atMs": at_ms, "strategy": strategy, "event": redact(event), "fields": redact(dict(fields))}
        elif self._count == LOG_LINES_MAX + 1:
            line = {"atMs": at_ms, "strategy": strategy, "event": "log.full", "fields": {"lines": LOG_LINES_MAX}}
        else:
            return
        self._lines.write(json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str) + "\n")


@dataclass(slots=True)
class Backtest:
    """One backtest with its trade ledger. Make it, then `run` it once."""

    settings: Settings
    candles: Sequence[Candles]
    options: SessionOptions
    rates: Rates = field(default_factory=dict)
    journal_path: Path | None = None
    place: Callable[[Settings], list[StrategySpec]] | None = None
    address: str = ADDRESS
    # the candles are cut for --prove-causal
    is_cut: bool = False
    session: BacktestSession = field(init=False)
    exchange: SimulatedExchange = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = (
            MemoryJournal(address=self.address)
            if self.journal_path is None
            else open_journal(self.journal_path, address=self.address)
        )
        named: dict[str, Any] = {} if self.place is None else {"place": self.place}
        try:
            self.session, self.exchange = local(
                self.settings,
                self.candles,
                self.options,
                journal=self.journal,
                address=self.address,
                rates=self.rates,
                is_cut=self.is_cut,
                **named,
            )
        except BaseException:
            self.journal.close()
            raise

    def run(
        self, *, progress: Progress | None = None, events: Lines | None = None, log_lines: Lines | None = None
    ) -> Result:
        """Run to the end, or until `progress` returns False.

        `events` and `log_lines` take the lines of events.jsonl and log.jsonl.
        """
        exchange, session = self.exchange, self.session
        slippage_meter = SlippageMeter(PriceHistory(session.timeline.readers, self.options.path))
        event_buffer, memory = exchange.event_buffer, self.journal if isinstance(self.journal, MemoryJournal) else None
        failures = OrderFailures() if memory is None else memory.failures
        write = None if events is None else events.write
        ledger = TradeLedger(
            int(self.options.balance_usd * E8), self._owner_of, write, slippage_meter, failures=failures
        )

        def spill(done: int, of: int) -> bool:
            if len(event_buffer.events) > EVENTS_HELD or (memory is not None and memory.is_full):
                ready = max(0, len(event_buffer.events) - EVENTS_SHOWN)
                ledger.take(event_buffer.events[ledger.count + 1 - event_buffer.first : ready])
                del event_buffer.events[:ready]
                event_buffer.first += ready
                exchange.forget(event_buffer.first)
                if memory is not None and session.kernel is not None:
                    memory.trim(session.kernel.upkeep.held)
            return True if progress is None else progress(done, of)

        try:
            stats = session.run(spill, None if log_lines is None else StrategyLog(log_lines))
            if memory is None:
                self._read_failures(failures)
                record_extremes(self.journal, session.timeline.readers, self.options.path)
            stats.orders = failures.refusals.total() + self._intents(memory)
            books = {} if session.kernel is None else session.kernel.account.attribution.rows
            return result_of(exchange, ledger, stats, session.timeline, self.options, failures, books, session.specs)
        finally:
            self.journal.close()

    def _owner_of(self, key: str) -> str | None:
        kernel = self.session.kernel
        if kernel is not None:
            return kernel.account.order_owners.owner_of(key)
        intent = self.journal.intents.find(key)
        return None if intent is None else intent.strategy

    def _intents(self, memory: MemoryJournal | None) -> int:
        """How many intents the strategies had."""
        if memory is not None:
            return memory.intents.of_strategies
        ((count,),) = self.journal.db.execute("SELECT count(*) FROM intents WHERE strategy != ?", [RUNTIME])
        return int(count)

    def _read_failures(self, failures: OrderFailures) -> None:
        """The orders that the risk check refused, and those that the service refused, from a journal on disk."""
        self.journal.flush()
        for by, sql in ((failures.refused, _REFUSED), (failures.rejected, _REJECTED)):
            for at_ms, strategy, market, code, message in self.journal.db.execute(sql):
                by(str(code or ""), OrderFailure(at_ms, strategy, market, message or ""))


_REFUSED: Final = "SELECT at_ms, strategy, market, code, message FROM refusals ORDER BY seq"
_REJECTED: Final = (
    "SELECT moved_ms, strategy, market, code, message FROM intents WHERE state IN ('rejected', 'expired', 'void') ORDER"
    " BY moved_ms, seq"
)


def strategies_of(settings: Settings) -> list[dict[str, Any]]:
    """For the manifest: each strategy with its markets and all its params, the hash of its source, and the versions
    of the packages that it imports.
    """
    loaded = {
        use: load(use, settings.strategies_dir) for use in {strategy.use: None for strategy in settings.strategies}
    }
    packages = dict(zip(loaded, packages_of([*loaded.values()]), strict=True))
    return [
        {
            "name": strategy.name,
            "use": strategy.use,
            "sha256": loaded[strategy.use].sha256,
            "packages": packages[strategy.use],
            "markets": list(strategy.markets),
            "interval": strategy.interval,
            "params": _params_of(loaded[strategy.use].strategy, strategy.params),
        }
        for strategy in settings.strategies
    ]


def _params_of(strategy: type[Strategy], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every param of a strategy as JSON, those with their default included."""
    params: dict[str, Any] = json.loads(strategy.Params.model_validate(dict(given)).model_dump_json(fallback=str))
    return params


def band_of(path: str, results: Mapping[str, Result], candles: Sequence[Candles]) -> dict[str, Any]:
    """Compare the results of all path policies. `results` has one result for each policy; `path` is the policy of the
    run itself.

    For each other policy: its figures, and the number of trades that differ in more than the instant inside a bar. Also
    the orders for which the path mattered: trades that all policies entered on the same bar, with different fills or
    exits. Other trades differ only as a consequence.
    """
    here = Counter(map(_without_instants, results[path].trade_ledger.trips))
    paths = {}
    for name, result in results.items():
        if name != path:
            there = Counter(map(_without_instants, result.trade_ledger.trips))
            differing = {"here": (here - there).total(), "there": (there - here).total()}
            paths[name] = {"figures": dict(result.figures), "endUsd": result.end_usd, "differing": differing}
    orders = list(_moved_by_path(path, results, {series.market: series.at_ms for series in candles}))
    ends = [result.end_usd for result in results.values()]
    return {
        "paths": paths,
        "endUsd": [min(ends), max(ends)],
        "orders": orders[:BAND_ORDERS_MAX],
        "orderCount": len(orders),
    }


def _moved_by_path(
    path: str, results: Mapping[str, Result], bars: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """The trades whose entry price or exit differs under another path policy."""
    trades = {name: _by_entry(result, bars) for name, result in results.items()}
    for entry, (number, trip, _) in trades[path].items():
        fills = {name: those[entry][2] for name, those in trades.items() if entry in those}
        if not all(_are_alike(fills[path], other) for other in fills.values()):
            yield {
                "trade": number,
                "strategy": trip.strategy,
                "market": trip.coin,
                "side": trip.side,
                "entryMs": trip.entry_ms,
                "fills": {name: " ".join(filter(None, parts)) for name, parts in fills.items()},
            }


def _are_alike(fills: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """True if both have the same kinds of fills at the same prices.

    A small difference is allowed, because another size walks the book differently.
    """
    (kind, px, _, end, out_px), (kind_, px_, _, end_, out_px_) = fills, other
    prices = ((float(px), float(px_)), (float(out_px or 0), float(out_px_ or 0)))
    return (kind, end) == (kind_, end_) and all(isclose(a, b, rel_tol=WALKED) for a, b in prices)


def _by_entry(
    result: Result, bars: Mapping[str, Sequence[int]]
) -> dict[tuple[Any, ...], tuple[int, RoundTrip, tuple[str, ...]]]:
    """Each trade with its number and its fills, by strategy, market and entry bar."""
    ledger = result.trade_ledger
    guardians = {number: guardian.event.guardian_type for guardian in ledger.guardians for number in guardian.trips}
    by_entry: dict[tuple[Any, ...], tuple[int, RoundTrip, tuple[str, ...]]] = {}
    for number, trip in enumerate(ledger.trips, start=1):
        row = dict(zip(COLUMNS, trip.row(number), strict=True))
        kind = guardians.get(number, trip.exit_kind) if trip.exit_kind in BY_GUARDIAN else trip.exit_kind
        fills = (trip.entry_kind, row["entry_px"], "->", kind or "open", row["exit_px"])
        entry = (trip.coin, trip.strategy, trip.side, bisect_right(bars[trip.coin], trip.entry_ms))
        by_entry.setdefault(entry, (number, trip, fills))
    return by_entry


def _without_instants(trip: RoundTrip) -> tuple[str, ...]:
    return tuple(value for name, value in zip(COLUMNS, trip.row(0), strict=True) if name not in ("entry_ms", "exit_ms"))


# ── Causality ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Proof:
    """`cut_ms` are the instants at which the data ended in the repeated runs. `differs` names the first event that was
    different, if any. Not whole: a run was stopped, no cut was possible, a strategy read something besides the candles
    (`outside`), or the candles' times are not those of their source (`moved`, a sentence about each market). Then
    nothing is proved.
    """

    cut_ms: tuple[int, ...]
    compared: int
    differs: str | None = None
    is_whole: bool = True
    outside: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    def of_moved(self, moved: Sequence[str]) -> Proof:
        """This proof for candles whose times were changed or doubted, as `moved` says.

        An empty `moved` gives this proof unchanged.
        """
        return replace(self, is_whole=False, moved=tuple(moved)) if moved else self

    def spoiled_by(self, outside: Sequence[str]) -> Proof:
        """This proof with what strategies have read `outside` (see outside_reads.py).

        The same object if they have read nothing.
        """
        return replace(self, is_whole=False, outside=tuple(outside)) if outside else self

    def plain(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "cutsMs": list(self.cut_ms),
            "eventsCompared": self.compared,
            "differs": self.differs,
            "isWhole": self.is_whole,
            "outside": list(self.outside),
            "moved": list(self.moved),
        }


def prove_causal(
    make: Callable[[SessionOptions, int], Backtest],
    options: SessionOptions,
    whole: Sequence[str],
    cuts: Sequence[int],
    *,
    progress: Progress | None = None,
) -> Proof:
    """Run again on data that end at each cut. Every event before the cut must be the same, line by line.

    `make(options, cut_ms)` makes a backtest without the candles that open at the cut or later. Outages after the cut
    are left out too. A cut in a gap (a night) is moved to the last candle before it. `progress` may stop the runs.
    """
    compared = 0
    for number, cut_ms in enumerate(cuts):
        again = make(replace(options, end_ms=cut_ms), cut_ms)
        lines = io.StringIO(newline="")
        result = again.run(progress=progress, events=lines)
        if result.stats.is_partial:
            return Proof(tuple(cuts[:number]), compared, is_whole=False)
        mine = lines.getvalue().splitlines(keepends=True)
        if any(outage.at_ms < result.end_ms < outage.end_ms for outage in again.options.outages):
            # The cut data end in an outage: this daemon starts again at their end, while the daemon on all data is
            # still down.
            mine = [line for line in mine if _ts(line) < result.end_ms - 1]
        compared += len(mine)
        if mine != list(whole[: len(mine)]) or (len(whole) > len(mine) and _ts(whole[len(mine)]) < result.end_ms - 1):
            at = next(
                (n for n, (a, b) in enumerate(zip(mine, whole, strict=False)) if a != b), min(len(mine), len(whole))
            )
            seen = whole[at].strip() if at < len(whole) else "nothing"
            cut = mine[at].strip() if at < len(mine) else "nothing"
            return Proof(tuple(cuts), compared, f"event {at + 1}: with all data {seen}, with data until {cut_ms} {cut}")
    return Proof(tuple(cuts), compared, is_whole=bool(cuts))


def cuts_between(count: int, start_ms: int, end_ms: int, *, step_ms: int, seed: int) -> list[int]:
    """The instants of the cuts: the middle of each of `count` equal parts, moved a little at random. A short range has
    fewer, or none.

    They lie on the grid of `step_ms`, the longest candles of the data, because a cut inside a bar would remove the
    whole bar.
    """
    chance = Random(f"{seed}:cuts")
    part = (end_ms - start_ms) // count
    cuts = [start_ms + int((number + 0.25 + chance.random() / 2) * part) for number in range(count)]
    return sorted({at - at % step_ms for at in cuts if at - at % step_ms > start_ms})


def _ts(line: str) -> int:
    return int(json.loads(line)["ts"])
