"""The real history of an account: its requests, the prices of that time, and when its daemon was up."""

from __future__ import annotations

import io
import json
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bot.backtest.backtest import Backtest, Rates
from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import drivers
from bot.backtest.engine.options import SessionOptions
from bot.backtest.proof.day_proof import ProofStart
from bot.backtest.replay.records import of_journal, whole_since
from bot.backtest.results.run_reader import StoredRun
from bot.clock import iso
from bot.config import Settings
from bot.errors import BotError, ConfigError
from bot.logs import quiet_log
from bot.research.what_if.recorded_requests import Body, GivenRequest, RequestReader
from bot.runtime.journal import queries
from bot.runtime.journal.journal import INTENTS_KEPT
from bot.wire import INTERVAL_MS

DEAD_MAN: Final = "dead_man_switch"


@dataclass(frozen=True)
class AccountHistory:
    """`lives`: when the daemon was up and sent heartbeats, from and to. `since_ms`: settings apply from then on.

    `fills` and `balance_usd` are those of the record, the balance None if it has none.
    """

    name: str
    requests: tuple[GivenRequest, ...] = field(repr=False)
    candles: tuple[Candles, ...] = field(repr=False)
    options: SessionOptions
    lives: tuple[tuple[int, int], ...]
    since_ms: int
    fills: int
    balance_usd: str | None
    rates: Rates = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def dead_man(self) -> Body | None:
        """The body of the dead-man switch, which the daemon arms again at each start."""
        return next((request.body for request in reversed(self.requests) if request.armed == DEAD_MAN), None)

    def has(self, kind: str) -> bool:
        """True if a request of its own armed a guardian of this type."""
        return any(request.armed == kind for request in self.requests)

    def since(self, since_ms: int | None) -> AccountHistory:
        """The same history with another instant for the settings. ConfigError if it has no order from then on."""
        since_ms = max(since_ms or 0, self.options.start_ms or 0)
        orders = [request.at_ms for request in self.requests if request.action == "order"]
        if not orders or orders[-1] < since_ms:
            last = f"the last order is of {iso(orders[-1])[:19]}: begin earlier" if orders else "it has no order at all"
            raise ConfigError(f"{self.name}: there is no history since {iso(since_ms)[:19]}: {last}")
        return replace(self, since_ms=since_ms)


def history_of_run(
    run: StoredRun, settings: Settings, candles: Sequence[Candles], options: SessionOptions, rates: Rates
) -> AccountHistory:
    """The history of a backtest. Its folder has no bodies of orders, so it runs again and must give the same events."""
    lines = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="bot-whatif-") as folder, quiet_log():
        again = Backtest(settings, candles, options, rates=rates, journal_path=Path(folder) / queries.FILE)
        # The file is deleted afterwards, so it need not survive a power cut.
        again.journal.db.execute("PRAGMA synchronous=OFF")
        if again.run(events=lines).digest != run.summary["eventDigest"]:
            raise BotError(
                f"{run.folder}: it cannot be repeated, because its code, config or data have changed;"
                f" bot replay {run.folder} says what, or make a new backtest"
            )
        return history_of_session(str(run.folder), again, Path(folder), lines.getvalue())


def history_of_session(name: str, session: Backtest, folder: Path, lines: str) -> AccountHistory:
    """The history of a backtest that has run, from its journal in `folder` and the lines of its events."""
    options, timeline = session.options, session.session.timeline
    events = [json.loads(line) for line in lines.splitlines()]
    with queries.opened(folder) as db:
        if whole_since(db):
            raise BotError(f"{name}: it has more than {INTENTS_KEPT:,} orders; make a backtest of a shorter range")
        reader = RequestReader(db, of_journal(db, name=name), events, late_ms=options.latency_ms)
        requests = reader.requests(timeline.start_ms)
    outages = sorted(options.outages, key=lambda outage: outage.at_ms)
    # A session stands in the millisecond before an instant.
    starts = [timeline.start_ms, *(min(outage.end_ms, timeline.end_ms) - 1 for outage in outages)]
    lives = zip(starts, [*(outage.at_ms for outage in outages), timeline.end_ms], strict=True)
    traded = {reader.coin for reader in timeline.readers}
    return AccountHistory(
        name,
        tuple(requests),
        tuple(series for series in drivers(session.candles) if series.market in traded),
        replace(options, start_ms=timeline.start_ms, outages=(), latency_ms=0),
        tuple(lives),
        timeline.start_ms,
        *_recorded(events),
        session.rates,
        tuple(reader.notes()),
    )


def history_of_journal(
    folder: Path, start: ProofStart, settings: Settings, candles: Sequence[Candles]
) -> AccountHistory:
    """The history of a daemon from its journal, from an instant without a position on."""
    record, used = start.record, tuple(drivers(candles))
    for series in used:
        if series.at_ms[0] > start.at_ms:
            raise ConfigError(
                f"{series.market}: the candles begin at {iso(series.at_ms[0])}, and the history at"
                f" {iso(start.at_ms)}: give older candles with --data"
            )
    step_ms = max(series.step_ms for series in used)
    end_ms = min([-(-record.end_ms // step_ms) * step_ms, *(series.end_ms for series in used)])
    with queries.opened(folder) as db:
        rows = queries.rows(db, "SELECT payload FROM events WHERE epoch=? ORDER BY seq", (record.epoch,))
        events = [json.loads(row["payload"]) for row in rows]
        delays = {series.market: series.step_ms // 3 for series in used}
        reader = RequestReader(db, record, events, next_px_ms=delays)
        requests = reader.requests(start.at_ms)
    bar_ms = max(INTERVAL_MS[strategy.interval] for strategy in settings.strategies)
    active = {
        *(decided.at_ms for decided in record.decisions.values()),
        *(c for seen in record.seen.values() for c in seen),
    }
    starts = [start.at_ms, *(mark["atMs"] for mark in record.marks if mark["atMs"] > start.at_ms)]
    return AccountHistory(
        str(folder),
        tuple(requests),
        used,
        SessionOptions(start_ms=start.at_ms, end_ms=end_ms, balance_usd=start.balance_usd, path="adaptive"),
        lives_of(starts, sorted(active), end_ms, 2 * bar_ms),
        start.at_ms,
        *_recorded([event for event in events if start.at_ms <= event["ts"] < end_ms]),
        notes=tuple(reader.notes()),
    )


def lives_of(starts: Iterable[int], active: Sequence[int], end_ms: int, gap_ms: int) -> tuple[tuple[int, int], ...]:
    """When a daemon was up: from each start to the last instant before the next at which it was active.

    A start at most `gap_ms` after that instant was no outage.
    """
    lives: list[tuple[int, int]] = []
    for start_ms in sorted(starts):
        row = bisect_left(active, start_ms)
        if lives and (not row or start_ms - active[row - 1] <= gap_ms):
            continue
        if lives:
            lives[-1] = (lives[-1][0], max(lives[-1][0], active[row - 1]))
        lives.append((start_ms, end_ms))
    return tuple(lives)


def _recorded(events: Sequence[Mapping[str, Any]]) -> tuple[int, str | None]:
    """The number of fills and the last balance."""
    balances = [event["data"]["balanceUsd"] for event in events if "balanceUsd" in event["data"]]
    return sum(event["type"] == "fill" for event in events), balances[-1] if balances else None
