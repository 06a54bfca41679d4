"""Replay: a recorded stretch is run again as a session, and whatever differs is laid to one cause. Compares; trades nothing, changes no record.

Decisions are compared by what made them and fills by the decision behind them, so that one difference is told once and what follows from it is
called so. A cause is what the record proves (another bar, another digest, another fee); where it proves nothing, it says so.
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
from typing import Any, Final, Literal

from bot.backtest.backtest import Backtest, Rates
from bot.backtest.data.candles import Candles, drivers, resample
from bot.backtest.engine.options import Outage, SessionOptions, Settlement
from bot.backtest.engine.simulated_exchange import ADDRESS
from bot.backtest.replay.records import Decided, Filled, FillKey, Key, Record, of_events, of_journal
from bot.backtest.results.layout import BY_GUARDIAN
from bot.clock import iso
from bot.config import Settings
from bot.errors import ConfigError
from bot.runtime.journal import queries
from bot.runtime.strategy_host import fingerprints
from bot.wire import INTERVAL_MS
from bot.words import many

Cause = Literal["data", "code", "config", "timing", "price", "fee", "guardian", "refused", "down", "follows", "unknown"]
CAUSES: Final[Mapping[Cause, str]] = {
    "data": "a bar is another than the one that was decided on",
    "code": "the strategy's source, or bot itself, is another",
    "config": "a param, a limit or a section of the config is another",
    "timing": "it was filled at another instant than in the replay, which takes the open unless it is told of a latency",
    "price": "the same instant, another price: spread, depth, tick, or the path inside a bar",
    "fee": "another fee rate, or maker for taker",
    "guardian": "a guardian acted on one side only, or at another time",
    "refused": "the gate or the service said no on one side",
    "down": "the daemon that was recorded was not up then",
    "follows": "an earlier difference left another position or balance",
    "unknown": "nothing in the record tells them apart: not a function of its view (time, chance, network), or code without a digest",
}
FEE_STEP: Final = Decimal("0.000002")  # two fees that are cut to 1e-6 differ by less
PX_SAME: Final = 1e-9  # of a candle's price, whose text and float are one value


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same. `recorded` and `replayed` are what each side has, None where it has nothing."""

    what: Literal["bar", "decision", "fill", "guardian"]
    cause: Cause
    at_ms: int
    market: str
    strategy: str
    recorded: str | None
    replayed: str | None
    why: str

    def plain(self) -> dict[str, Any]:
        return {
            "what": self.what, "cause": self.cause, "atMs": self.at_ms, "at": iso(self.at_ms), "market": self.market,
            "strategy": self.strategy, "recorded": self.recorded, "replayed": self.replayed, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found. `changed` are digests that differ, whether or not anything came of it."""

    name: str
    start_ms: int
    end_ms: int
    counts: Mapping[str, tuple[int, int]]
    differences: tuple[Difference, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    late_ms: tuple[int, ...]  # how long after the replay's the recorded market fills came

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def plain(self) -> dict[str, Any]:
        return {
            "replayed": self.name, "fromMs": self.start_ms, "toMs": self.end_ms, "equal": self.is_equal,
            "counts": {name: {"recorded": one, "replayed": other} for name, (one, other) in self.counts.items()},
            "causes": dict(Counter(one.cause for one in self.differences).most_common()),
            "differences": [one.plain() for one in self.differences], "changed": list(self.changed), "notes": list(self.notes),
            "lateMs": {"median": median(self.late_ms), "max": max(self.late_ms)} if self.late_ms else None,
        }  # fmt: skip


def of_journal_again(
    recorded: Record,
    settings: Settings,
    candles: Sequence[Candles],
    options: SessionOptions,
    *,
    rates: Rates | None = None,
) -> Replayed:
    """A journal's stretch, from its first start to its last bar. `options` may name another range, or a balance that the record does not tell."""
    start_ms = recorded.start_ms if options.start_ms is None else options.start_ms
    last_ms = recorded.end_ms if options.end_ms is None else min(recorded.end_ms, options.end_ms - 1)
    notes = _notes(recorded, start_ms, last_ms)
    used = drivers(candles)
    for one in used:
        if one.at_ms[0] > start_ms:
            raise ConfigError(
                f"the {one.interval} candles of {one.market} begin at {iso(one.at_ms[0])}, and the record at {iso(start_ms)}: "
                "give older ones, or begin later with --from"
            )
    going_on = [one.end_ms for one in used if one.market not in recorded.settled]  # the others have come to their end
    data_end_ms = min(going_on, default=max((one.end_ms for one in used), default=0))
    if data_end_ms <= last_ms:
        notes.append(f"the data end at {iso(data_end_ms)}, before the record does: what comes later is not compared")
        last_ms = data_end_ms - 1
    settled = {
        market: Settlement(*recorded.settled[market])
        for market in (one.market for one in used)
        if market in recorded.settled and recorded.settled[market][0] <= max(one.end_ms for one in used)
    }
    options = replace(options, start_ms=start_ms, end_ms=_whole(last_ms, used), settlements=settled)
    again = _run(settings, candles, options, address=recorded.address or ADDRESS, rates=rates)
    now = fingerprints.mark_of(settings, fingerprints.sources_of(settings))
    changes = fingerprints.changes_since(recorded.marks, now, known_ms=recorded.marked_ms)
    return _Comparison(recorded, again, candles, changes, start_ms=start_ms, last_ms=last_ms).replayed(notes)


def of_run_again(
    folder: Path, manifest: Mapping[str, Any], settings: Settings, candles: Sequence[Candles], options: SessionOptions, *,
    rates: Rates | None = None, changed: fingerprints.Changes, ended_ms: int, is_stopped: bool = False,
) -> Replayed:  # fmt: skip
    """A backtest's folder, up to its last close, which was at `ended_ms`, or to an earlier end of `options`; its journal when it kept one, else its events."""
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
            folder / "events.jsonl", again=again, start_usd=Decimal(manifest["options"]["balance_usd"])
        )
    recorded.name = str(folder)
    last_ms, notes = max(recorded.end_ms, again.end_ms), []
    if cut_ms is not None:
        last_ms = cut_ms - 1
    elif is_stopped and ended_ms < last_ms:
        last_ms = ended_ms - 1  # What its last close has caused was not filled any more.
        notes.append(f"the run was stopped at {iso(ended_ms)}: what comes later is not compared")
    comparison = _Comparison(recorded, again, candles, [(0, changed)], start_ms=again.start_ms, last_ms=last_ms)
    return comparison.replayed(notes)


def _whole(last_ms: int, used: Sequence[Candles], outages: Sequence[Outage] = ()) -> int:
    """Where a session ends that is compared up to an instant. The last decision is filled in the bar after it, which has to be there as a whole,
    and a daemon that is down then is not started again before its time."""
    last_ms = max([last_ms, *(one.end_ms - 1 for one in outages if one.at_ms <= last_ms)])
    step_ms = max((one.step_ms for one in used), default=1)
    return (last_ms // step_ms + 1) * step_ms


def _run(
    settings: Settings, candles: Sequence[Candles], options: SessionOptions, *, address: str, rates: Rates | None
) -> Record:
    """The session, with the daemon's own journal: that is what the two sides are compared by."""
    folder = Path(tempfile.mkdtemp(prefix="bot-replay-"))
    try:
        made = Backtest(
            settings, candles, options, rates=rates or {}, journal_path=folder / queries.FILE, address=address
        )
        made.journal.db.execute("PRAGMA synchronous=OFF")  # Nobody needs it after a power cut.
        made.run(events=io.StringIO())
        with queries.opened(folder) as db:
            found = of_journal(db, name="replay")
        found.start_ms = made.session.timeline.start_ms  # Of the whole session, whenever its first decision is.
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _notes(recorded: Record, start_ms: int, last_ms: int) -> list[str]:
    """What the replay cannot know. ConfigError when nothing of the record lies in the range."""
    if last_ms < start_ms or last_ms < recorded.start_ms or start_ms > recorded.end_ms:
        there = f"{iso(recorded.start_ms)} to {iso(recorded.end_ms)}"
        raise ConfigError(f"the range is empty: the record is of {there}")
    said = []
    if not recorded.marks:
        said.append("the journal has no digests of code and config: it was written by an earlier version")
    if recorded.is_cut:
        said.append(f"the oldest events are not kept any more: the replay begins at {iso(recorded.start_ms)}")
    if recorded.begins_open:
        said.append(f"open when the record begins, and not known to the replay: {', '.join(recorded.begins_open)}")
    if len(recorded.marks) > 1:
        said.append(
            f"the daemon was started, or read its config again, {len(recorded.marks)} times; the replay is never down"
        )
    return said


@dataclass(slots=True)
class _Bars:
    """Closed bars of one series, by the instant of their close."""

    candles: Candles

    def at(self, close_ms: int) -> dict[str, float] | None:
        c = self.candles
        row = bisect_left(c.at_ms, close_ms - c.step_ms)
        if row >= len(c) or c.at_ms[row] != close_ms - c.step_ms:
            return None
        return {
            "open": c.open[row],
            "high": c.high[row],
            "low": c.low[row],
            "close": c.close[row],
            "volume": c.volume[row],
        }

    def over(self, at_ms: int) -> dict[str, float] | None:
        """The bar in which an instant lies."""
        c = self.candles
        row = bisect_right(c.at_ms, at_ms) - 1
        return None if row < 0 or at_ms >= c.at_ms[row] + c.step_ms else self.at(c.at_ms[row] + c.step_ms)


@dataclass(slots=True)
class _Comparison:
    """`changes` are provenance's, each with the instant from which on they are what differs; empty when nobody knows."""

    one: Record
    other: Record
    candles: Sequence[Candles]
    changes: Sequence[tuple[int, fingerprints.Changes]]
    start_ms: int
    last_ms: int
    found: list[Difference] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    _bars: dict[tuple[str, str], _Bars | None] = field(default_factory=dict)
    _other_bars: dict[str, list[int]] = field(default_factory=dict)  # closes of bars that differ, by market
    _first: int | None = None  # when the first difference was that is not a bar
    _driving: dict[str, Candles] = field(default_factory=dict)

    def replayed(self, notes: Sequence[str]) -> Replayed:
        self._driving = {one.market: one for one in drivers(self.candles)}
        self._judge_bars()
        for _, _, judge, args in sorted(self._due(), key=lambda due: due[:2]):
            judge(*args)
        self.found.sort(key=lambda one: (one.at_ms, one.what != "bar"))
        mine, theirs = self._within(self.one.decisions), self._within(self.other.decisions)
        if not self.one.is_whole:
            known = {key: one for key, one in theirs.items() if key in mine or self._has_left(one)}
            if len(known) < len(theirs):
                notes = [
                    *notes,
                    f"not compared: {many(len(theirs) - len(known), 'decision')} of the replay that became no order, which the record does not keep",
                ]
            theirs = known
        counts = {
            "decisions": (len(mine), len(theirs)),
            "fills": (sum(map(self._in_range, self.one.fills.values())), sum(map(self._in_range, self.other.fills.values()))),
        }  # fmt: skip
        return Replayed(
            self.one.name, self.start_ms, self.last_ms, counts, tuple(self.found), self._changed(), tuple(notes), tuple(self.late)
        )  # fmt: skip

    # -- what has changed

    def _in_force(self, at_ms: int) -> int:
        """The row of the changes of an instant. What is before the first of them was the same start's: it decides on the bar before it."""
        return max(0, bisect_right(self.changes, at_ms, key=lambda one: one[0]) - 1)

    def _changes_at(self, at_ms: int) -> fingerprints.Changes:
        return self.changes[self._in_force(at_ms)][1] if self.changes else {}

    def _changed(self) -> tuple[str, ...]:
        """All that was another at some time of the stretch."""
        stretch = self.changes[self._in_force(self.start_ms) : self._in_force(self.last_ms) + 1]
        return tuple(dict.fromkeys(text for _, found in stretch for said in found.values() for _, text in said))

    # -- what is compared

    def _due(self) -> list[tuple[int, int, Any, tuple[Any, ...]]]:
        """Everything to judge with its instant: causes before what they cause."""
        due: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        mine, theirs = self._within(self.one.decisions), self._within(self.other.decisions)
        for key in {**mine, **theirs}:
            pair = mine.get(key), theirs.get(key)
            if pair[0] is None and not self.one.is_whole and pair[1] is not None and not self._has_left(pair[1]):
                continue  # The record knows only what became an order.
            at = key.bar_ms or min(one.at_ms for one in pair if one is not None)
            due.append((at, 1, self._judge_decision, (key, *pair)))
        for fill in {**self.one.fills, **self.other.fills}:
            fills = self.one.fills.get(fill), self.other.fills.get(fill)
            instants = [one.ts for one in fills if one is not None and self._in_range(one)]
            if instants:
                due.append((min(instants), 2, self._judge_fill, (fill, *fills)))
        for fired in {**self.one.fired, **self.other.fired}:
            acts = self.one.fired.get(fired), self.other.fired.get(fired)
            at = min(act[0] for act in acts if act is not None)
            if self.start_ms <= at <= self.last_ms:
                due.append((at, 0, self._judge_fired, (fired, *acts)))
        return due

    def _within(self, decisions: Mapping[Key, Decided]) -> dict[Key, Decided]:
        """Those of the stretch: not before its start, and on no bar after the last that the record has decided."""
        kept = {}
        for key, one in decisions.items():
            if key.strategy.startswith("@"):
                continue  # The runtime's own repairs are the fills' and guardians' to tell.
            at = key.bar_ms or one.at_ms
            ends = [done for (market, _), done in self.one.done.items() if market == key.market]
            if self.start_ms <= max(at, one.at_ms) and at <= min(self.last_ms, max(ends, default=self.last_ms)):
                kept[key] = one
        return kept

    def _in_range(self, one: Filled) -> bool:
        return self.start_ms <= one.ts <= self.last_ms

    def _has_left(self, one: Decided) -> bool:
        return one.state == "accepted" and one.action != "cancel"

    # -- bars

    def _judge_bars(self) -> None:
        seen: set[tuple[str, str, int]] = set()
        for one in self._within(self.one.decisions).values():
            bar = one.bar
            if bar is None or (bar["market"], bar["interval"], bar["at_ms"]) in seen:
                continue
            seen.add((bar["market"], bar["interval"], bar["at_ms"]))
            mine = self._series(bar["market"], bar["interval"])
            if mine is None:
                continue
            data = mine.at(bar["at_ms"])
            text = _bar_text(bar)
            if data is None:
                self._add_bar(bar, text, None, "the data have no such candle")
                continue
            differing = [
                name for name, value in data.items() if abs(value - bar[name]) > PX_SAME * max(1.0, abs(value))
            ]
            if differing:
                self._add_bar(bar, text, _bar_text(data), f"{', '.join(differing)} of the bar that was decided on")
        for past in self._other_bars.values():
            past.sort()

    def _add_bar(self, bar: Mapping[str, Any], recorded: str, replayed: str | None, why: str) -> None:
        self._other_bars.setdefault(bar["market"], []).append(bar["at_ms"])
        why = f"{bar['interval']} bar: {why}"
        self.found.append(Difference("bar", "data", bar["at_ms"], bar["market"], "", recorded, replayed, why))

    def _series(self, market: str, interval: str) -> _Bars | None:
        if (market, interval) not in self._bars:
            driving = self._driving.get(market)
            is_there = driving is not None and INTERVAL_MS[interval] >= driving.step_ms
            known_ms = max(one.at_ms[-1] + one.step_ms for one in self._driving.values()) if is_there else 0
            self._bars[market, interval] = (
                _Bars(resample(driving, interval, known_ms=known_ms)) if is_there and driving is not None else None
            )
        return self._bars[market, interval]

    def _bar_differs(self, market: str, at_ms: int) -> bool:
        past = self._other_bars.get(market, [])
        row = bisect_left(past, at_ms)
        return row < len(past) and past[row] == at_ms

    # -- decisions

    def _judge_decision(self, key: Key, one: Decided | None, other: Decided | None) -> None:
        if one is not None and other is not None:
            same_body = not one.body or _meant(one.body) == _meant(other.body)
            if same_body and one.action in (other.action, "order") and one.state == other.state:
                return
            if same_body and one.state != other.state:
                cause, why = self._why_state(key, one, other)
            else:
                cause, why = self._why(key, one)
        else:
            there = one or other
            assert there is not None
            cause, why = self._why_alone(key, there, is_recorded=one is not None)
        at = key.bar_ms or (one or other).at_ms  # type: ignore[union-attr]
        self._add("decision", cause, at, key.market, key.strategy, _text_of(one), _text_of(other), why)

    def _why_state(self, key: Key, one: Decided, other: Decided) -> tuple[Cause, str]:
        for side, it in (("recorded", one), ("replayed", other)):
            if it.state != "accepted" and it.code is not None:
                kind: Cause = "guardian" if "guardian" in f"{it.code} {it.message}".lower() else "refused"
                return kind, f"{side}: {it.state}, {it.message or it.code}"
        return self._why(key, one)

    def _why_alone(self, key: Key, there: Decided, *, is_recorded: bool) -> tuple[Cause, str]:
        at = key.bar_ms or there.at_ms
        if self._bar_differs(key.market, at):
            return "data", "the bar that it was decided on is another"
        absent, side = (self.other, "replayed") if is_recorded else (self.one, "recorded")
        no = absent.refusals.get((key.strategy, key.cause, key.ordinal))
        if no is not None:
            kind: Cause = "guardian" if "guardian" in no[0] or no[0].startswith("dead_man") else "refused"
            return kind, f"{side}: the gate refused it ({no[0]}): {no[1]}"
        if not is_recorded:
            starts = (int(mark["atMs"]) for mark in self.one.marks if fingerprints.is_start(mark))
            later = next((start for start in starts if start > at), None)
            if later is not None and not self._was_up(at, later):
                return "down", f"nothing was decided until the daemon was started again at {iso(later)}"
        return self._why(key, there)

    def _was_up(self, from_ms: int, to_ms: int) -> bool:
        return any(from_ms <= one.at_ms < to_ms for one in self.one.decisions.values())

    def _why(self, key: Key, there: Decided) -> tuple[Cause, str]:
        """What may make a strategy want something else: its bars, its code and params, what it holds and has."""
        at_ms = key.bar_ms or there.at_ms
        if self._bar_differs(key.market, at_ms):
            return "data", "the bar that it was decided on is another"
        # A reload may have come between a bar and what was decided on it.
        changes = self._changes_at(max(at_ms, there.at_ms))
        # Of an order that the replay has not, a run's folder does not say whose it was.
        for whose in (key.strategy, "") if key.strategy else changes:
            for kind, text in changes.get(whose, ()):
                return ("code" if kind == "code" else "data" if kind == "data" else "config"), text
        held = self.one.held(key.market, at_ms), self.other.held(key.market, at_ms)
        if held[0] != held[1]:
            since = "" if self._first is None else f", since the difference of {iso(self._first)}"
            return "follows", f"it held {_held(held[0])} then, {_held(held[1])} in the replay{since}"
        past = self._other_bars.get(key.market, [])
        before = bisect_left(past, at_ms)
        if before:
            return "data", f"of the bars before it, that of {iso(past[before - 1])} is another"
        balances = self.one.balance(at_ms), self.other.balance(at_ms)
        if None not in balances and balances[0] != balances[1]:
            return "follows", f"the balance was {balances[0]:f} then, {balances[1]:f} in the replay"
        return "unknown", CAUSES["unknown"]

    # -- fills

    def _judge_fill(self, key: FillKey, one: Filled | None, other: Filled | None) -> None:
        strategy = "" if key.owner is None else key.owner.strategy
        there = one or other
        assert there is not None
        if one is None or other is None:
            cause, why = self._why_unfilled(key, there, is_recorded=one is not None)
            self._add("fill", cause, there.ts, key.market, strategy, _text_of(one), _text_of(other), why)
            return
        if key.is_own and one.kind == "market":
            self.late.append(one.ts - other.ts)
        shown = one.text, other.text
        moved = self._why_moved(key, one, other)
        if moved is not None:
            self._add("fill", moved[0], one.ts, key.market, strategy, *shown, moved[1])
        rates = [it.fee / it.notional if it.notional else Decimal(0) for it in (one, other)]
        if abs(rates[0] - rates[1]) * min(one.notional, other.notional) > FEE_STEP:
            how = (
                "" if one.liquidity == other.liquidity else f" ({one.liquidity} then, {other.liquidity} in the replay)"
            )
            why = f"fee {rates[0] * 100:.4f} % then, {rates[1] * 100:.4f} % in the replay{how}"
            self._add(
                "fill",
                "fee",
                one.ts,
                key.market,
                strategy,
                f"{shown[0]}, fee {one.fee:f}",
                f"{shown[1]}, fee {other.fee:f}",
                why,
            )

    def _why_unfilled(self, key: FillKey, there: Filled, *, is_recorded: bool) -> tuple[Cause, str]:
        absent = self.other if is_recorded else self.one
        if key.owner is None:
            if there.kind in BY_GUARDIAN:
                return "guardian", "a guardian closed it on one side only"
            return "unknown", "no decision of this daemon: another hand on the account"
        if key.is_own:
            decided = absent.decisions.get(key.owner)
            if decided is None:
                return "follows", "its decision is on one side only"
            if decided.state != "accepted":
                return "follows", "its decision became no order on one side"
            return "price", "the order was filled on one side only, or in another number of parts"
        for record in (self.one, self.other):
            if not record.own(key.owner):
                return "follows", "the position that it ends was opened on one side only"
        if there.kind in BY_GUARDIAN:
            return "guardian", "a guardian closed it on one side only"
        otherwise = self._why_otherwise(key.owner, there.ts)
        if otherwise is not None:
            return otherwise
        if not absent.held(key.market, there.ts + 1):
            return "follows", "the position ended otherwise there"
        driving = self._driving.get(key.market)
        if driving is not None and self._data_changed(key.market, there.ts, there.ts, driving.step_ms):
            return "data", "the candles around it are others"
        where = "in the replay" if is_recorded else "then"
        return "price", f"not met {where}, where it was held on: tick, or the path inside the bar"

    def _why_moved(self, key: FillKey, one: Filled, other: Filled) -> tuple[Cause, str] | None:
        """Why size, price, kind or bar of a fill differ; None when they are the same."""
        driving = self._driving.get(key.market)
        step_ms = 1 if driving is None else driving.step_ms
        is_same_bar = one.ts // step_ms == other.ts // step_ms
        same = one.size == other.size and one.px == other.px and one.kind == other.kind and one.subtype == other.subtype
        if same and is_same_bar:
            return None
        owner = key.owner
        if owner is not None and key.is_own and self._decision_differs(owner):
            return "follows", "its decision was another"
        if one.kind != other.kind and not BY_GUARDIAN.isdisjoint((one.kind, other.kind)):
            return "guardian", f"ended by {one.kind} then, by {other.kind} in the replay"
        otherwise = None if owner is None or key.is_own else self._why_otherwise(owner, min(one.ts, other.ts))
        if otherwise is not None:
            return otherwise
        if self._data_changed(key.market, one.ts, other.ts, step_ms):
            return "data", "the candles around it are others"
        bar = _Bars(driving).over(other.ts) if driving is not None else None
        late_ms = one.ts - other.ts
        if one.px == other.px and one.size != other.size:
            held = self.one.held(key.market, one.ts), self.other.held(key.market, other.ts)
            if held[0] != held[1]:
                return "follows", f"it held {_held(held[0])} then, {_held(held[1])} in the replay"
            asked = self.one.decisions.get(owner) if owner is not None else None
            if asked is not None and "usdAmount" in asked.body:
                return "timing", "asked for in USD, it was sized at the price of the instant at which it was planned"
            return "price", "the same price for another size: depth, or the grid of sizes"
        if not is_same_bar:
            return "timing", f"filled {late_ms / 1000:+.1f} s from the replay's fill, in another bar"
        gap = f"{(one.px / other.px - 1) * 10_000:+.2f} bps" if other.px else ""
        if bar is None:
            return "price", f"{gap} at another price"
        opened = (
            f"the open {bar['open']:,}, of which the replay paid {other.px:f}"
            if key.is_own
            else f"the replay's {other.px:f}"
        )
        # Spread and depth take an order that met the low or the high beyond it.
        if late_ms < 0 and key.is_own:
            return "timing", f"filled {late_ms / 1000:+.1f} s from the replay's fill, in the same bar"
        if late_ms > 0 and (key.is_own or bar["low"] <= float(one.px) <= bar["high"]):
            return (
                "timing",
                f"{gap} from {opened}: filled {late_ms} ms later, where the bar had been from {bar['low']:,} to {bar['high']:,}",
            )
        if one.kind != other.kind:
            return "price", f"ended by {one.kind} then, by {other.kind} in the replay: the path inside the bar"
        return "price", f"{gap} from {opened}: spread, depth or tick"

    def _why_otherwise(self, owner: Key, at_ms: int) -> tuple[Cause, str] | None:
        """Why a position ends otherwise up to an instant, where its beginning says it: its entry, its decision, or where stop and target stood."""
        if self._entry_differs(owner):
            return "follows", "the entry of this position was filled otherwise"
        if self._decision_differs(owner):
            return "follows", "the decision that opened this position was another"
        decided = self.one.decisions.get(owner)
        if not self.one.is_whole and decided is not None and self._levels_differ(owner, at_ms):
            # The record does not keep what was decided: this is the first that shows it.
            why = self._why(owner, decided)
            return why if why[0] in ("data", "code", "config") else None
        return None

    def _entry_differs(self, owner: Key) -> bool:
        pairs = [[(it.size, it.px) for it in record.own(owner)] for record in (self.one, self.other)]
        return pairs[0] != pairs[1]

    def _decision_differs(self, owner: Key) -> bool:
        one, other = self.one.decisions.get(owner), self.other.decisions.get(owner)
        return one is not None and other is not None and bool(one.body) and _meant(one.body) != _meant(other.body)

    def _levels_differ(self, owner: Key, at_ms: int) -> bool:
        stood = [{it[1:] for it in record.levels.get(owner, ()) if it[0] <= at_ms} for record in (self.one, self.other)]
        return stood[0] != stood[1]

    def _data_changed(self, market: str, one_ms: int, other_ms: int, step_ms: int) -> bool:
        """Whether a bar that ends or begins at a fill is another; of a run's folder the digest is all that is known."""
        near = {at for ts in (one_ms, other_ms) for at in (ts - ts % step_ms, ts - ts % step_ms + step_ms)}
        if any(self._bar_differs(market, at) for at in near):
            return True
        of_all = self._changes_at(one_ms).get("", ())
        return any(kind == "data" and text.startswith(f"{market} ") for kind, text in of_all)

    # -- guardians

    def _judge_fired(self, key: Any, one: tuple[int, str] | None, other: tuple[int, str] | None) -> None:
        driving = self._driving.get(key.market)
        step_ms = 60_000 if driving is None else driving.step_ms
        if one is not None and other is not None and one[1] == other[1] and one[0] // step_ms == other[0] // step_ms:
            return
        texts = [None if act is None else f"{key.kind} fired at {iso(act[0])}: {act[1]}" for act in (one, other)]
        if one is None or other is None:
            why = "it fired on one side only"
            if one is not None and key.kind == "dead_man_switch":
                why += ": the daemon's heartbeats stayed out, and the replay's never do"
            elif one is not None and key.kind == "kill_switch":
                why += ": a hand threw it"
        else:
            why = "it fired at another time, or did something else"
        at = min(act[0] for act in (one, other) if act is not None)
        self._add("guardian", "guardian", at, key.market, "", texts[0], texts[1], why)

    def _add(
        self, what: Any, cause: Cause, at_ms: int, market: str, strategy: str, recorded: str | None, replayed: str | None, why: str
    ) -> None:  # fmt: skip
        if self._first is None:
            self._first = at_ms
        self.found.append(Difference(what, cause, at_ms, market, strategy, recorded, replayed, why))


def _text_of(one: Decided | Filled | None) -> str | None:
    return None if one is None else one.text


def _meant(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request without what says nothing of the decision."""
    return {name: value for name, value in body.items() if name != "source"}


def _bar_text(bar: Mapping[str, Any]) -> str:
    return f"open {bar['open']:.10g} high {bar['high']:.10g} low {bar['low']:.10g} close {bar['close']:.10g} volume {bar['volume']:.10g}"


def _held(size: Decimal) -> str:
    return "nothing" if not size else f"{'long' if size > 0 else 'short'} {abs(size):f}"
