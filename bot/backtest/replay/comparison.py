"""Compare a recorded run with a backtest of the same time, and give each difference one cause.

A decision is compared with the decision that has the same trigger, and a fill with the fill of the same decision. So a
difference is reported once, and its consequences have the cause `follows`. A cause needs proof in the record (another
bar, digest or fee); without proof it is `unknown`.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any, Final

from bot.backtest.backtest import Backtest, Rates
from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import drivers
from bot.backtest.engine.options import Outage, SessionOptions, Settlement
from bot.backtest.engine.simulated_exchange import ADDRESS
from bot.backtest.replay.bar_comparison import BarComparison, ClosedBars
from bot.backtest.replay.differences import CAUSES, Cause, Difference
from bot.backtest.replay.records import (
    Decided,
    DecisionKey,
    FillKey,
    FlatPoint,
    Paid,
    RefusedSignal,
    ReplayedFill,
    RunRecord,
    of_events,
    of_journal,
)
from bot.backtest.results.layout import BY_GUARDIAN
from bot.backtest.results.run_reader import StoredRun
from bot.clock import iso
from bot.config import Settings
from bot.errors import ConfigError
from bot.runtime.account.foreign_activity import BY_REQUEST
from bot.runtime.journal import queries
from bot.runtime.model.intents import FIRST_LEG, RUNTIME
from bot.runtime.strategy_host import fingerprints
from bot.words import many

# the cause of an operator's close, as bot/runtime/control_plane/order_commands.py writes it
OPERATOR: Final = "operator:"
# A strategy that fails at a bar is quarantined at most so long after its close.
FAILED_MS: Final = 10_000
# USD; fees are rounded to 1e-6, so smaller differences do not count
FEE_STEP: Final = Decimal("0.000002")
# USD; a payment of funding is rounded to 1e-8, and a size may differ by a rounding
FUNDING_STEP: Final = Decimal("0.00001")


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. `changed` lists digests that differ, even if they made no difference."""

    name: str
    start_ms: int
    end_ms: int
    counts: Mapping[str, tuple[int, int]]
    differences: tuple[Difference, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    # delay of each recorded market fill against the replay's fill
    late_ms: tuple[int, ...]
    # each fill that both sides have: of the record, of the replay
    pairs: tuple[tuple[ReplayedFill, ReplayedFill], ...] = ()
    # what each side has of everything that is compared, by name: instants
    compared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def plain(self) -> dict[str, Any]:
        return {
            "replayed": self.name,
            "fromMs": self.start_ms,
            "toMs": self.end_ms,
            "equal": self.is_equal,
            "counts": {
                name: {"recorded": recorded, "replayed": replayed} for name, (recorded, replayed) in self.counts.items()
            },
            "causes": dict(Counter(difference.cause for difference in self.differences).most_common()),
            "differences": [difference.plain() for difference in self.differences],
            "changed": list(self.changed),
            "notes": list(self.notes),
            "lateMs": {"median": median(self.late_ms), "max": max(self.late_ms)} if self.late_ms else None,
        }


def replay_journal(
    recorded: RunRecord,
    settings: Settings,
    candles: Sequence[Candles],
    options: SessionOptions,
    *,
    rates: Rates | None = None,
    begins: FlatPoint | None = None,
) -> ReplayResult:
    """Replay a journal from its first start to its last bar.

    `options` may give another range, or the balance if the record has none. `begins`: what strategies knew at the
    start, and which bars were decided by then.
    """
    start_ms = recorded.start_ms if options.start_ms is None else options.start_ms
    last_ms = recorded.end_ms if options.end_ms is None else min(recorded.end_ms, options.end_ms - 1)
    notes = _notes(recorded, start_ms, last_ms)
    used = drivers(candles)
    for series in used:
        if series.at_ms[0] > start_ms:
            raise ConfigError(
                f"the {series.interval} candles of {series.market} begin at {iso(series.at_ms[0])}, and the record at"
                f" {iso(start_ms)}: give older candles, or begin later with --from"
            )
    # settled markets have no later candles
    going_on = [series.end_ms for series in used if series.market not in recorded.settled]
    data_end_ms = min(going_on, default=max((series.end_ms for series in used), default=0))
    if data_end_ms <= last_ms:
        notes.append(
            f"the data end at {iso(data_end_ms)}, before the record ends: later decisions and fills are not compared"
        )
        last_ms = data_end_ms - 1
    settled = {
        market: Settlement(*recorded.settled[market])
        for market in (series.market for series in used)
        if market in recorded.settled and recorded.settled[market][0] <= max(series.end_ms for series in used)
    }
    options = replace(options, start_ms=start_ms, end_ms=_whole(last_ms, used), settlements=settled)
    again = _run(settings, candles, options, address=recorded.address or ADDRESS, rates=rates, begins=begins)
    now = fingerprints.mark_of(settings, fingerprints.sources_of(settings), fingerprints.packages_of(settings))
    changes = fingerprints.changes_since(recorded.marks, now, known_ms=recorded.marked_ms)
    return _Comparison(recorded, again, candles, changes, start_ms=start_ms, last_ms=last_ms).result(notes)


def replay_run(
    run: StoredRun,
    settings: Settings,
    candles: Sequence[Candles],
    options: SessionOptions,
    *,
    rates: Rates | None = None,
    changed: fingerprints.Changes,
) -> ReplayResult:
    """Replay a backtest up to its last close, or to an earlier end in `options`.

    Its journal is compared if its folder has one, otherwise its events.
    """
    folder, ended_ms = run.folder, run.summary["course"]["toMs"]
    cut_ms = None
    if options.end_ms is not None and options.end_ms < ended_ms:
        cut_ms = options.end_ms
        options = replace(options, end_ms=_whole(cut_ms - 1, drivers(candles), options.outages))
    again = _run(settings, candles, options, address=ADDRESS, rates=rates)
    if (folder / queries.FILE).is_file():
        with queries.opened(folder) as db:
            recorded = of_journal(db, name=str(folder), since_ms=again.start_ms)
    else:
        recorded = of_events(
            folder / "events.jsonl", again=again, start_usd=Decimal(run.manifest["options"]["balance_usd"])
        )
    recorded.name = str(folder)
    last_ms, notes = max(recorded.end_ms, again.end_ms), []
    if cut_ms is not None:
        last_ms = cut_ms - 1
    elif run.summary["course"]["isPartial"] and ended_ms < last_ms:
        # Orders decided on the last close were not filled.
        last_ms = ended_ms - 1
        notes.append(f"the run was stopped at {iso(ended_ms)}: later decisions and fills are not compared")
    comparison = _Comparison(recorded, again, candles, [(0, changed)], start_ms=again.start_ms, last_ms=last_ms)
    return comparison.result(notes)


def _whole(last_ms: int, used: Sequence[Candles], outages: Sequence[Outage] = ()) -> int:
    """The end of a backtest that is compared up to `last_ms`. It includes the whole bar after the last decision, which
    fills its orders, and the whole of an outage that has begun.
    """
    last_ms = max([last_ms, *(outage.end_ms - 1 for outage in outages if outage.at_ms <= last_ms)])
    step_ms = max((series.step_ms for series in used), default=1)
    return (last_ms // step_ms + 1) * step_ms


def _run(
    settings: Settings,
    candles: Sequence[Candles],
    options: SessionOptions,
    *,
    address: str,
    rates: Rates | None,
    begins: FlatPoint | None = None,
) -> RunRecord:
    """Run the backtest with a journal on disk, and read that journal."""
    folder = Path(tempfile.mkdtemp(prefix="bot-replay-"))
    try:
        repeated = Backtest(
            settings, candles, options, rates=rates or {}, journal_path=folder / queries.FILE, address=address
        )
        # The file is deleted afterwards, so it need not survive a power cut.
        repeated.journal.db.execute("PRAGMA synchronous=OFF")
        if begins is not None:
            repeated.journal.decided((), states=begins.states, bars=begins.bars)
            repeated.journal.write_attribution(begins.counted)
        repeated.run(events=io.StringIO())
        with queries.opened(folder) as db:
            record = of_journal(db, name="replay")
        # The first decision may be later.
        record.start_ms = repeated.session.timeline.start_ms
        return record
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _notes(recorded: RunRecord, start_ms: int, last_ms: int) -> list[str]:
    """Notes on what the replay cannot know. ConfigError if the range contains no part of the record."""
    if last_ms < start_ms or last_ms < recorded.start_ms or start_ms > recorded.end_ms:
        there = f"{iso(recorded.start_ms)} to {iso(recorded.end_ms)}"
        raise ConfigError(f"the range is empty: the record runs from {there}")
    texts = []
    if not recorded.marks:
        texts.append("the journal has no digests of code and config: it was written by an earlier version")
    if recorded.is_cut:
        texts.append(f"the journal has deleted its oldest events: the replay begins at {iso(recorded.start_ms)}")
    if recorded.begins_open:
        texts.append(
            "positions were open when the record begins, and the replay starts without them:"
            f" {', '.join(recorded.begins_open)}"
        )
    if len(recorded.marks) > 1:
        texts.append(
            f"the daemon was started, or read its config again, {len(recorded.marks)} times; the replay is never down"
        )
    return texts


@dataclass(slots=True)
class _Comparison:
    """Compares two records.

    `changes` lists what has changed in code, config and data, each with the instant from which it applies; empty if not
    known.
    """

    recorded: RunRecord
    replayed: RunRecord
    candles: Sequence[Candles]
    changes: Sequence[tuple[int, fingerprints.Changes]]
    start_ms: int
    last_ms: int
    differences: list[Difference] = field(default_factory=list)
    late_ms: list[int] = field(default_factory=list)
    pairs: list[tuple[ReplayedFill, ReplayedFill]] = field(default_factory=list)
    compared: dict[str, list[int]] = field(default_factory=dict)
    # instant of the first difference that is not a bar
    _first: int | None = None
    _bars: BarComparison = field(init=False)

    def result(self, notes: Sequence[str]) -> ReplayResult:
        self._bars = BarComparison(self.recorded, self.candles, self.start_ms, self.last_ms)
        self.differences += self._bars.compare(self._within(self.recorded.decisions).values())
        for _, _, judge, args in sorted(self._due(), key=lambda due: due[:2]):
            judge(*args)
        self._judge_money()
        self.differences.sort(key=lambda difference: (difference.at_ms, difference.what != "bar"))
        mine, theirs = self._within(self.recorded.decisions), self._within(self.replayed.decisions)
        if not self.recorded.is_whole:
            known = {key: recorded for key, recorded in theirs.items() if key in mine or self._became_order(recorded)}
            if len(known) < len(theirs):
                notes = [
                    *notes,
                    (
                        f"not compared: {many(len(theirs) - len(known), 'decision')} of the replay without an order,"
                        " because the record keeps only orders"
                    ),
                ]
            theirs = known
        counts = {
            "decisions": (len(mine), len(theirs)),
            "fills": (
                sum(map(self._in_range, self.recorded.fills.values())),
                sum(map(self._in_range, self.replayed.fills.values())),
            ),
        }
        return ReplayResult(
            self.recorded.name,
            self.start_ms,
            self.last_ms,
            counts,
            tuple(self.differences),
            self._changed(),
            tuple(notes),
            tuple(self.late_ms),
            tuple(self.pairs),
            {what: tuple(instants) for what, instants in self.compared.items()},
        )

    # -- what has changed

    def _in_force(self, at_ms: int) -> int:
        """Index into `changes` for an instant.

        The first entry also covers the time before it, because a start decides on the bar before it.
        """
        return max(0, bisect_right(self.changes, at_ms, key=lambda recorded: recorded[0]) - 1)

    def _changes_at(self, at_ms: int) -> fingerprints.Changes:
        return self.changes[self._in_force(at_ms)][1] if self.changes else {}

    def _changed(self) -> tuple[str, ...]:
        """Everything that had changed at some time in the range."""
        stretch = self.changes[self._in_force(self.start_ms) : self._in_force(self.last_ms) + 1]
        return tuple(dict.fromkeys(text for _, changes in stretch for texts in changes.values() for _, text in texts))

    # -- what is compared

    def _due(self) -> list[tuple[int, int, Any, tuple[Any, ...]]]:
        """Everything to compare, with its instant.

        At one instant, guardians come first, because they may cause decisions and fills.
        """
        due: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        mine, theirs = self._within(self.recorded.decisions), self._within(self.replayed.decisions)
        for key in {**mine, **theirs}:
            pair = mine.get(key), theirs.get(key)
            if (
                pair[0] is None
                and not self.recorded.is_whole
                and pair[1] is not None
                and not self._became_order(pair[1])
            ):
                # The record has only decisions that became orders.
                continue
            at = key.bar_ms or min(side.at_ms for side in pair if side is not None)
            due.append((at, 1, self._judge_decision, (key, *pair)))
            self.compared.setdefault("decisions", []).append(at)
        due += self._refusals_due()
        for fill in {**self.recorded.fills, **self.replayed.fills}:
            fills = self.recorded.fills.get(fill), self.replayed.fills.get(fill)
            instants = [fill.ts for fill in fills if fill is not None and self._in_range(fill)]
            if instants:
                due.append((min(instants), 2, self._judge_fill, (fill, *fills)))
                self.compared.setdefault("fills", []).append(min(instants))
        for fired in {**self.recorded.fired, **self.replayed.fired}:
            acts = self.recorded.fired.get(fired), self.replayed.fired.get(fired)
            at = min(act[0] for act in acts if act is not None)
            if self.start_ms <= at <= self.last_ms:
                due.append((at, 0, self._judge_fired, (fired, *acts)))
        return due

    def _refusals_due(self) -> list[tuple[int, int, Any, tuple[Any, ...]]]:
        """What the risk check refused, where neither side has a decision in its place."""
        if not self.recorded.is_whole:
            return []
        decided = {
            (key.strategy, key.cause, key.ordinal)
            for record in (self.recorded, self.replayed)
            for key in record.decisions
        }
        due: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        for name in {**self.recorded.refusals, **self.replayed.refusals}:
            pair = self.recorded.refusals.get(name), self.replayed.refusals.get(name)
            there = pair[0] or pair[1]
            assert there is not None
            key = DecisionKey(name[0], there.market, name[1], name[2], "order")
            at = key.bar_ms or there.at_ms
            if name not in decided and self.start_ms <= at and self._is_decided(there.market, at):
                due.append((at, 1, self._judge_refusal, (key, *pair)))
                self.compared.setdefault("refusals", []).append(at)
        return due

    def _is_decided(self, market: str, at_ms: int) -> bool:
        """True if the record has decided the bars of this market up to that instant."""
        ends = [done for (of_market, _), done in self.recorded.done.items() if of_market == market]
        return at_ms <= min(self.last_ms, max(ends, default=self.last_ms))

    def _within(self, decisions: Mapping[DecisionKey, Decided]) -> dict[DecisionKey, Decided]:
        """The decisions in the range: not before its start, and not on a bar after the last one that the record has
        decided.
        """
        within = {}
        for key, decision in decisions.items():
            if key.strategy.startswith("@"):
                # The daemon's own repairs show in the fills and guardians.
                continue
            at = key.bar_ms or decision.at_ms
            if self.start_ms <= max(at, decision.at_ms) and self._is_decided(key.market, at):
                within[key] = decision
        return within

    def _in_range(self, fill: ReplayedFill) -> bool:
        return self.start_ms <= fill.ts <= self.last_ms

    def _became_order(self, decision: Decided) -> bool:
        return decision.state == "accepted" and decision.action != "cancel"

    # -- decisions

    def _judge_decision(self, key: DecisionKey, recorded: Decided | None, replayed: Decided | None) -> None:
        there = recorded or replayed
        assert there is not None
        if recorded is not None and replayed is not None:
            same_body = not recorded.body or _meant(recorded.body) == _meant(replayed.body)
            if same_body and recorded.action in (replayed.action, "order") and recorded.state == replayed.state:
                return
            if same_body and recorded.state != replayed.state:
                cause, why = self._why_state(key, recorded, replayed)
            else:
                cause, why = self._why(key, recorded)
            code = recorded.code if recorded.state != "accepted" else None
        else:
            cause, why = self._why_alone(key, there, is_recorded=recorded is not None)
            no = self.recorded.refusals.get((key.strategy, key.cause, key.ordinal))
            code = None if no is None else no.code
        sides = _text_of(recorded), _text_of(replayed)
        self._add(
            Difference("decision", cause, key.bar_ms or there.at_ms, key.market, key.strategy, *sides, why, key, code)
        )

    def _judge_refusal(self, key: DecisionKey, recorded: RefusedSignal | None, replayed: RefusedSignal | None) -> None:
        there = recorded or replayed
        assert there is not None
        if recorded is not None and replayed is not None and recorded.code == replayed.code:
            return
        cause: Cause = "refused"
        if recorded is not None and replayed is not None:
            why = f"refused for another reason: {recorded.message}"
        else:
            decided = Decided(key, there.at_ms, "refused", {}, "refused", there.code, there.message, None)
            cause, why = self._why_alone(key, decided, is_recorded=recorded is not None)
        sides = [None if no is None else f"refused ({no.code}): {no.message}" for no in (recorded, replayed)]
        at_ms = key.bar_ms or there.at_ms
        self._add(
            Difference(
                "refusal",
                cause,
                at_ms,
                key.market,
                key.strategy,
                sides[0],
                sides[1],
                why,
                key,
                None if recorded is None else recorded.code,
            )
        )

    def _why_state(self, key: DecisionKey, recorded: Decided, replayed: Decided) -> tuple[Cause, str]:
        for side, it in (("recorded", recorded), ("replayed", replayed)):
            if it.state != "accepted" and it.code is not None:
                kind: Cause = "guardian" if "guardian" in f"{it.code} {it.message}".lower() else "refused"
                return kind, f"{side}: {it.state}, {it.message or it.code}"
        return self._why(key, recorded)

    def _why_alone(self, key: DecisionKey, there: Decided, *, is_recorded: bool) -> tuple[Cause, str]:
        at = key.bar_ms or there.at_ms
        if self._bars.differs(key.market, at):
            return "data", "the data have another bar at this decision"
        absent, side = (self.replayed, "replayed") if is_recorded else (self.recorded, "recorded")
        no = absent.refusals.get((key.strategy, key.cause, key.ordinal))
        if no is not None:
            kind: Cause = "guardian" if "guardian" in no[0] or no[0].startswith("dead_man") else "refused"
            return kind, f"{side}: the risk check refused it ({no[0]}): {no[1]}"
        if key.leg not in FIRST_LEG.values() and any(
            record.decisions.get(key._replace(leg="order")) is not None for record in (self.recorded, self.replayed)
        ):
            return "timing", "it was planned again, because its plan had run out"
        if not is_recorded:
            later = next((start for start in self._bars.starts if start > at), None)
            if later is not None and not self._was_up(at, later):
                return "down", f"nothing was decided until the daemon was started again at {iso(later)}"
            since_ms, failed = self.recorded.quarantined.get(key.strategy, (at, ""))
            if failed and since_ms <= at + FAILED_MS and not self._was_called(key.strategy, since_ms, at):
                return "code", f"the strategy was quarantined at {iso(since_ms)}: {failed}"
        return self._why(key, there)

    def _was_called(self, strategy: str, from_ms: int, to_ms: int) -> bool:
        """True if the record has a decision of the strategy in this time."""
        return any(key.strategy == strategy and from_ms < (key.bar_ms or 0) <= to_ms for key in self.recorded.decisions)

    def _was_up(self, from_ms: int, to_ms: int) -> bool:
        return any(from_ms <= decision.at_ms < to_ms for decision in self.recorded.decisions.values())

    def _why(self, key: DecisionKey, there: Decided) -> tuple[Cause, str]:
        """Why a strategy decided differently: its bars, its code and params, its position or the balance."""
        at_ms = key.bar_ms or there.at_ms
        if self._bars.differs(key.market, at_ms):
            return "data", "the data have another bar at this decision"
        # A reload may lie between a bar and the decision on it.
        change = self._change_at(key.strategy, max(at_ms, there.at_ms))
        if change is not None:
            return change
        held = self.recorded.position(key.market, at_ms), self.replayed.position(key.market, at_ms)
        if held[0] != held[1]:
            since = "" if self._first is None else f", since the difference at {iso(self._first)}"
            return "follows", f"the position was {_held(held[0])} then, {_held(held[1])} in the replay{since}"
        past = self._bars.past.get(key.market, [])
        before = bisect_left(past, at_ms)
        if before:
            return "data", f"the data have another bar at {iso(past[before - 1])}, before this decision"
        balances = self.recorded.balance(at_ms), self.replayed.balance(at_ms)
        if None not in balances and balances[0] != balances[1]:
            return "follows", f"the balance was {balances[0]:f} then, {balances[1]:f} in the replay"
        return "unknown", CAUSES["unknown"]

    # -- fills

    def _judge_fill(self, key: FillKey, recorded: ReplayedFill | None, replayed: ReplayedFill | None) -> None:
        strategy = "" if key.owner is None else key.owner.strategy
        there = recorded or replayed
        assert there is not None
        shown = _text_of(recorded), _text_of(replayed)
        cash = (recorded.cash if recorded else Decimal(0)) - (replayed.cash if replayed else Decimal(0))
        size = (recorded.signed if recorded else Decimal(0)) - (replayed.signed if replayed else Decimal(0))
        at = there.ts, key.market, strategy
        if recorded is None or replayed is None:
            cause, why = self._why_unfilled(key, there, is_recorded=recorded is not None)
            self._add(_fill_difference(at, cause, shown, why, key.owner, there.kind, cash, size))
            return
        self.pairs.append((recorded, replayed))
        if key.is_own and recorded.kind == "market":
            self.late_ms.append(recorded.ts - replayed.ts)
        moved = self._why_moved(key, recorded, replayed)
        if moved is not None:
            self._add(_fill_difference(at, moved[0], shown, moved[1], key.owner, recorded.kind, cash, size))
        rates = [it.fee / it.notional if it.notional else Decimal(0) for it in (recorded, replayed)]
        if abs(rates[0] - rates[1]) * min(recorded.notional, replayed.notional) > FEE_STEP:
            how = (
                ""
                if recorded.liquidity == replayed.liquidity
                else f" ({recorded.liquidity} then, {replayed.liquidity} in the replay)"
            )
            why = f"fee {rates[0] * 100:.4f} % then, {rates[1] * 100:.4f} % in the replay{how}"
            paid = f"{shown[0]}, fee {recorded.fee:f}", f"{shown[1]}, fee {replayed.fee:f}"
            # The cash of a fill that also moved is in the difference of its instant or price.
            cost = cash if moved is None else Decimal(0)
            self._add(_fill_difference(at, "fee", paid, why, key.owner, recorded.kind, cost, Decimal(0)))

    def _why_unfilled(self, key: FillKey, there: ReplayedFill, *, is_recorded: bool) -> tuple[Cause, str]:
        absent = self.replayed if is_recorded else self.recorded
        if key.owner is None:
            if there.kind in BY_GUARDIAN:
                return "guardian", "a guardian closed it on one side only"
            return "foreign", "no decision of this daemon: someone else traded on the account"
        if key.is_own and key.owner.strategy == RUNTIME and key.owner.cause.startswith(OPERATOR):
            return "operator", "a person closed it through the daemon"
        if key.is_own and key.owner.strategy == RUNTIME:
            return "follows", f"the daemon closed it by itself ({key.owner.cause.partition(':')[0]})"
        if not key.is_own and there.kind in BY_REQUEST:
            return "foreign", "no decision of this daemon: someone else traded in its position"
        if key.is_own:
            decided = absent.decisions.get(key.owner)
            if decided is None:
                return "follows", "its decision is on one side only"
            if decided.state != "accepted":
                return "follows", "its decision did not become an order on one side"
            return "price", "the order was filled on one side only, or in another number of parts"
        for record in (self.recorded, self.replayed):
            if not record.fills_of(key.owner):
                return "follows", "the position that it closes was opened on one side only"
        if there.kind in BY_GUARDIAN:
            return "guardian", "a guardian closed it on one side only"
        otherwise = self._why_otherwise(key.owner, there.ts)
        if otherwise is not None:
            return otherwise
        if not absent.position(key.market, there.ts + 1) or absent.was_flat(key.market, key.owner, there.ts):
            return "follows", "the position was closed in another way there"
        driving = self._bars.driving.get(key.market)
        if driving is not None and self._data_changed(key.market, there.ts, there.ts, driving.step_ms):
            return "data", "the candles around it differ"
        where = "in the replay" if is_recorded else "then"
        return (
            "price",
            f"its level was not reached {where}, and the position stayed open: tick, or the path inside the bar",
        )

    def _why_moved(self, key: FillKey, recorded: ReplayedFill, replayed: ReplayedFill) -> tuple[Cause, str] | None:
        """Why size, price, kind or bar of a fill differ; None if they are the same."""
        driving = self._bars.driving.get(key.market)
        step_ms = 1 if driving is None else driving.step_ms
        is_same_bar = recorded.ts // step_ms == replayed.ts // step_ms
        same = (
            recorded.size == replayed.size
            and recorded.px == replayed.px
            and recorded.kind == replayed.kind
            and recorded.subtype == replayed.subtype
        )
        if same and is_same_bar:
            return None
        owner = key.owner
        if owner is not None and key.is_own and self._decision_differs(owner):
            return "follows", "its decision was different"
        if not key.is_own and recorded.kind in BY_REQUEST and replayed.kind not in BY_REQUEST:
            return "foreign", f"no decision of this daemon: someone else closed it before the {replayed.kind}"
        if recorded.kind != replayed.kind and not BY_GUARDIAN.isdisjoint((recorded.kind, replayed.kind)):
            return "guardian", f"closed by {recorded.kind} then, by {replayed.kind} in the replay"
        otherwise = None if owner is None or key.is_own else self._why_otherwise(owner, min(recorded.ts, replayed.ts))
        if otherwise is not None:
            return otherwise
        if self._data_changed(key.market, recorded.ts, replayed.ts, step_ms):
            return "data", "the candles around it differ"
        bar = ClosedBars(driving).over(replayed.ts) if driving is not None else None
        late_ms = recorded.ts - replayed.ts
        if recorded.px == replayed.px and recorded.size != replayed.size:
            held = self.recorded.position(key.market, recorded.ts), self.replayed.position(key.market, replayed.ts)
            if held[0] != held[1]:
                return "follows", f"it held {_held(held[0])} then, {_held(held[1])} in the replay"
            asked = self.recorded.decisions.get(owner) if owner is not None else None
            if asked is not None and "usdAmount" in asked.body:
                return "timing", "an order in USD: its size follows from the price at the instant of its plan"
            return "price", "the same price for another size: depth, or the lot size"
        if not is_same_bar:
            return "timing", f"filled {late_ms / 1000:+.1f} s from the replay's fill, in another bar"
        difference = f"{(recorded.px / replayed.px - 1) * 10_000:+.2f} bps" if replayed.px else ""
        if bar is None:
            return "price", f"{difference} at another price"
        expected = f"the replay's price {replayed.px:f}"
        if key.is_own:
            expected += f" (the bar's open: {bar['open']:,})"
        # Spread and depth can move a fill beyond the bar's low or high.
        if late_ms < 0 and key.is_own:
            return "timing", f"filled {late_ms / 1000:+.1f} s from the replay's fill, in the same bar"
        if late_ms > 0 and (key.is_own or bar["low"] <= float(recorded.px) <= bar["high"]):
            return (
                "timing",
                (
                    f"{difference} from {expected}: filled {late_ms} ms later, inside the bar's range from"
                    f" {bar['low']:,} to {bar['high']:,}"
                ),
            )
        if recorded.kind != replayed.kind:
            return "price", f"closed by {recorded.kind} then, by {replayed.kind} in the replay: the path inside the bar"
        return "price", f"{difference} from {expected}: spread, depth or tick"

    def _why_otherwise(self, owner: DecisionKey, at_ms: int) -> tuple[Cause, str] | None:
        """Why a position was closed in another way, if its entry, its decision, or its stop and target explain it;
        otherwise None.
        """
        if self._entry_differs(owner):
            return "follows", "the entry of this position was filled differently"
        if self._decision_differs(owner):
            return "follows", "the decision that opened this position was different"
        decided = self.recorded.decisions.get(owner)
        if not self.recorded.is_whole and decided is not None and self._levels_differ(owner, at_ms):
            # The record has no decisions, so the levels are the first sign of a different one.
            why = self._why(owner, decided)
            return why if why[0] in ("data", "code", "config") else None
        return None

    def _entry_differs(self, owner: DecisionKey) -> bool:
        pairs = [[(it.size, it.px) for it in record.fills_of(owner)] for record in (self.recorded, self.replayed)]
        return pairs[0] != pairs[1]

    def _decision_differs(self, owner: DecisionKey) -> bool:
        recorded, replayed = self.recorded.decisions.get(owner), self.replayed.decisions.get(owner)
        return (
            recorded is not None
            and replayed is not None
            and bool(recorded.body)
            and _meant(recorded.body) != _meant(replayed.body)
        )

    def _levels_differ(self, owner: DecisionKey, at_ms: int) -> bool:
        stood = [
            {it[1:] for it in record.levels.get(owner, ()) if it[0] <= at_ms}
            for record in (self.recorded, self.replayed)
        ]
        return stood[0] != stood[1]

    def _data_changed(self, market: str, one_ms: int, other_ms: int, step_ms: int) -> bool:
        """True if a bar that ends or begins at a fill differs.

        For a run's folder only the digest of all candles is known.
        """
        near = {at for ts in (one_ms, other_ms) for at in (ts - ts % step_ms, ts - ts % step_ms + step_ms)}
        if any(self._bars.differs(market, at) for at in near):
            return True
        of_all = self._changes_at(one_ms).get("", ())
        return any(kind == "data" and text.startswith(f"{market} ") for kind, text in of_all)

    # -- guardians

    def _judge_fired(self, key: Any, recorded: tuple[int, str] | None, replayed: tuple[int, str] | None) -> None:
        driving = self._bars.driving.get(key.market)
        step_ms = 60_000 if driving is None else driving.step_ms
        if (
            recorded is not None
            and replayed is not None
            and recorded[1] == replayed[1]
            and recorded[0] // step_ms == replayed[0] // step_ms
        ):
            return
        texts = [
            None if act is None else f"{key.kind} fired at {iso(act[0])}: {act[1]}" for act in (recorded, replayed)
        ]
        if recorded is None or replayed is None:
            why = "it fired on one side only"
            if recorded is not None and key.kind == "dead_man_switch":
                why += ": the daemon's heartbeats stopped, which never happens in a replay"
            elif recorded is not None and key.kind == "kill_switch":
                why += ": someone operated the kill switch"
        else:
            why = "it fired at another time, or did something else"
        at = min(act[0] for act in (recorded, replayed) if act is not None)
        self._add(Difference("guardian", "guardian", at, key.market, "", texts[0], texts[1], why, code=key.kind))

    # -- funding

    def _judge_money(self) -> None:
        """The payments of funding, after the fills that say who held what."""
        theirs = self.replayed.fundings
        for (market, hour), paid in {**theirs, **self.recorded.fundings}.items():
            # A position from before the start is not in the replay.
            if not self.start_ms <= paid.ts <= self.last_ms or self.recorded.position(market, self.start_ms):
                continue
            self.compared.setdefault("fundings", []).append(paid.ts)
            pair = self.recorded.fundings.get((market, hour)), theirs.get((market, hour))
            usd = [Decimal(0) if it is None else it.usd for it in pair]
            if abs(usd[0] - usd[1]) <= FUNDING_STEP:
                continue
            sides = zip((self.recorded, self.replayed), pair, strict=True)
            sizes = [side.position(market, paid.ts) if it is None else it.size for side, it in sides]
            cause: Cause = "funding" if sizes[0] == sizes[1] else "follows"
            why = "another rate or price" if cause == "funding" else f"{_held(sizes[0])} then, {_held(sizes[1])} here"
            texts = [None if it is None else _paid_text(it) for it in pair]
            self._add(
                Difference("funding", cause, paid.ts, market, "", texts[0], texts[1], why, cash_usd=usd[0] - usd[1])
            )

    def _add(self, difference: Difference) -> None:
        if self._first is None:
            self._first = difference.at_ms
        change = self._change_at(difference.strategy, difference.at_ms)
        self.differences.append(difference if change is None else replace(difference, changed=change[0]))

    def _change_at(self, strategy: str, at_ms: int) -> tuple[Cause, str] | None:
        """The first thing that has changed for a strategy since that instant."""
        changes = self._changes_at(at_ms)
        # A run's folder does not name the strategy of an order that the replay does not have.
        for whose in (strategy, "") if strategy else changes:
            for kind, text in changes.get(whose, ()):
                causes: dict[str, Cause] = {"code": "code", "data": "data", "agent": "agent"}
                return causes.get(kind, "config"), text
        return None


def _fill_difference(
    at: tuple[int, str, str],
    cause: Cause,
    sides: tuple[str | None, str | None],
    why: str,
    owner: DecisionKey | None,
    kind: str,
    cash: Decimal,
    size: Decimal,
) -> Difference:
    return Difference("fill", cause, *at, *sides, why, owner, kind, cash_usd=cash, size=size)


def _paid_text(paid: Paid) -> str:
    return f"{_held(paid.size)} at {paid.rate:f}: {paid.usd:f} USD"


def _text_of(recorded: Decided | ReplayedFill | None) -> str | None:
    return None if recorded is None else recorded.text


def _meant(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request without the fields that say nothing about the decision."""
    return {name: value for name, value in body.items() if name != "source"}


def _held(size: Decimal) -> str:
    return "nothing" if not size else f"{'long' if size > 0 else 'short'} {abs(size):f}"
