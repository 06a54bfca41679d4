"""The proof of a day: where its replay begins, the replay, and the document with its differences and measures.

A replay begins without positions. So it begins at the newest instant before the day at which the account had none
(`FlatPoint`), or with the journal. What differs before the day belongs to the proof of an earlier day.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import drivers
from bot.backtest.engine.options import SessionOptions
from bot.backtest.proof.causes import ProofCause, causes_of
from bot.backtest.replay.comparison import ReplayResult, replay_journal
from bot.backtest.replay.differences import Difference
from bot.backtest.replay.records import (
    FlatPoint,
    ReplayedFill,
    RunRecord,
    flat_points,
    read_journal,
    whole_since,
    with_trades,
)
from bot.clock import HOUR_MS, iso
from bot.config import Settings
from bot.errors import BotError
from bot.money import format_decimal
from bot.runtime.journal import proof_files, queries

# differences that a document lists; the counts have all of them
DIFFERENCES_MAX: Final = 1_000
BPS: Final = 10_000


class NotProvable(BotError):
    """The journal lacks what the proof of this range needs; the message says what."""


class Range(NamedTuple):
    """What is proved. `day` names it: a UTC day, or the day on which a longer range ends."""

    day: str
    from_ms: int
    to_ms: int
    # the caller knows that it is over; else the journal's newest instant says so
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class ProofStart:
    """Where the replay begins, and from when on its differences count. `point` is None at the journal's beginning."""

    record: RunRecord
    at_ms: int
    from_ms: int
    point: FlatPoint | None = None

    @property
    def balance_usd(self) -> Decimal:
        balance = self.record.balance(self.at_ms) if self.point is None else self.point.balance_usd
        if balance is None or balance <= 0:
            raise NotProvable(f"{self.record.name}: the journal does not contain the account's balance at the start")
        return balance


def start_of(folder: Path, asked: Range) -> ProofStart:
    """Where the replay of a range begins. NotProvable says what the journal lacks."""
    with queries.opened(folder) as db:
        since_ms = whole_since(db)
        epochs = queries.rows(db, "SELECT epoch FROM cursor")
        epoch = epochs[0]["epoch"] if epochs else 0
        points = flat_points(db, epoch=epoch)
    before = [point for point in points if since_ms <= point.at_ms < asked.from_ms]
    record = read_journal(folder, since_ms=before[-1].next_ms if before else 0)
    if asked.to_ms <= record.start_ms or asked.from_ms > record.end_ms:
        raise NotProvable(
            f"{folder}: the journal runs from {iso(record.start_ms)} to {iso(record.end_ms)}, and {asked.day} is not in"
            " it"
        )
    if before:
        return ProofStart(record, before[-1].next_ms, asked.from_ms, _counted(folder, before[-1], epoch))
    if not since_ms and not record.begins_open:
        return ProofStart(record, record.start_ms, max(asked.from_ms, record.start_ms))
    later = [point for point in points if max(since_ms, asked.from_ms) < point.at_ms < asked.to_ms]
    if later:
        point = _counted(folder, later[0], epoch)
        return ProofStart(read_journal(folder, since_ms=point.next_ms), point.next_ms, point.next_ms, point)
    gone = f"it has removed its rows before {iso(since_ms)}" if since_ms else "it begins with open positions"
    raise NotProvable(
        f"{folder}: {asked.day} cannot be proved{' any more' if since_ms else ''}: {gone}, and it has no instant"
        " without positions from which a replay could begin"
    )


def _counted(folder: Path, point: FlatPoint, epoch: int) -> FlatPoint:
    with queries.opened(folder) as db:
        return with_trades(db, point, epoch=epoch)


def provable_since(folder: Path) -> int:
    """The instant before which the journal has removed rows; 0 if it has all."""
    with queries.opened(folder) as db:
        return whole_since(db)


def prove(
    start: ProofStart, asked: Range, settings: Settings, candles: Sequence[Candles], options: SessionOptions
) -> dict[str, Any]:
    """The document of a proof. `options` has the path, the latency and the rules of the test."""
    result = replay_journal(start.record, settings, candles, options, begins=start.point)
    to_ms = min(asked.to_ms, result.end_ms + 1)
    caused = [
        (difference, cause)
        for difference, cause in causes_of(result.differences, start.record)
        if start.from_ms <= difference.at_ms < asked.to_ms
    ]
    counts = {what: _inside(instants, start.from_ms, asked.to_ms) for what, instants in result.compared.items()}
    counts["bars"] = sum(_inside(tuple(closes), start.from_ms, asked.to_ms) for closes in start.record.seen.values())
    differing = {(difference.decision, difference.at_ms) for difference, _ in caused if difference.what == "decision"}
    decisions = counts.get("decisions", 0)
    return {
        "format": proof_files.FORMAT,
        "day": asked.day,
        "name": settings.name,
        "isWhole": asked.is_over or start.record.end_ms >= asked.to_ms,
        "fromMs": start.from_ms,
        "toMs": to_ms,
        "replayedFromMs": start.at_ms,
        "counts": counts,
        "differing": dict(Counter(difference.what for difference, _ in caused)),
        "equalShare": None if not decisions else round(1 - len(differing) / decisions, 6),
        "causes": dict(Counter(cause for _, cause in caused).most_common()),
        "resultUsd": _results(caused, candles, to_ms),
        "measures": _measures(result, start, asked),
        "differences": [_plain(difference, cause) for difference, cause in caused[:DIFFERENCES_MAX]],
        "changed": list(result.changed),
        "notes": _notes(result, start, asked, len(caused)),
        "options": options.plain(),
    }


def _inside(instants: Sequence[int], from_ms: int, to_ms: int) -> int:
    return sum(from_ms <= at_ms < to_ms for at_ms in instants)


def _plain(difference: Difference, cause: ProofCause) -> dict[str, Any]:
    plain = difference.plain() | {"cause": cause}
    if difference.cash_usd:
        plain["cashUsd"] = format_decimal(difference.cash_usd)
    return plain


def _notes(result: ReplayResult, start: ProofStart, asked: Range, count: int) -> list[str]:
    notes = list(result.notes)
    if start.from_ms > asked.from_ms:
        begins = "the journal begins then" if start.point is None else "positions from before the journal were open"
        notes.append(f"proved from {iso(start.from_ms)} on: {begins}")
    if count > DIFFERENCES_MAX:
        notes.append(f"{count - DIFFERENCES_MAX:,} more differences are counted and not listed")
    return notes


def _results(caused: Sequence[tuple[Difference, ProofCause]], candles: Sequence[Candles], to_ms: int) -> dict[str, str]:
    """Cause -> USD that live had more (negative: less) than the test because of it.

    It is the cash of the fills and of the funding; a size that is left is valued at the last close.
    """
    cash: defaultdict[ProofCause, Decimal] = defaultdict(Decimal)
    left: defaultdict[tuple[ProofCause, str], Decimal] = defaultdict(Decimal)
    for difference, cause in caused:
        cash[cause] += difference.cash_usd
        left[cause, difference.market] += difference.size
    closes = {series.market: _last_close(series, to_ms) for series in drivers(candles)}
    for (cause, market), size in left.items():
        if size and market in closes:
            cash[cause] += size * closes[market]
    return {cause: format_decimal(usd.quantize(Decimal("0.000001"))) for cause, usd in cash.items()}


def _last_close(series: Candles, to_ms: int) -> Decimal:
    row = bisect_right(series.at_ms, to_ms - series.step_ms) - 1
    return Decimal(str(series.close[max(0, row)]))


def _measures(result: ReplayResult, start: ProofStart, asked: Range) -> list[dict[str, Any]]:
    """Slippage, fees and delay of the fills against the test, by market and hour of the day."""
    groups: defaultdict[tuple[str, int], list[tuple[ReplayedFill, ReplayedFill]]] = defaultdict(list)
    for live, tested in result.pairs:
        if start.from_ms <= live.ts < asked.to_ms and tested.px and live.notional:
            groups[live.market, live.ts // HOUR_MS % 24].append((live, tested))
    return [_measure(market, hour, pairs) for (market, hour), pairs in sorted(groups.items())]


def _measure(market: str, hour: int, pairs: Sequence[tuple[ReplayedFill, ReplayedFill]]) -> dict[str, Any]:
    worse = [_worse(live, tested) for live, tested in pairs]
    return {
        "market": market,
        "hour": hour,
        "fills": len(pairs),
        "notionalUsd": format_decimal(sum((live.notional for live, _ in pairs), Decimal(0)).quantize(Decimal("0.01"))),
        "slippageUsd": format_decimal(
            sum((part * live.size for part, (live, _) in zip(worse, pairs, strict=True)), Decimal(0)).quantize(
                Decimal("0.000001")
            )
        ),
        "slippageBps": [
            round(float(part / tested.px * BPS), 4) for part, (_, tested) in zip(worse, pairs, strict=True)
        ],
        "feeUsd": format_decimal(sum((live.fee for live, _ in pairs), Decimal(0))),
        "testedFeeUsd": format_decimal(sum((tested.fee for _, tested in pairs), Decimal(0))),
        "lateMs": round(median(live.ts - tested.ts for live, tested in pairs)),
    }


def _worse(live: ReplayedFill, tested: ReplayedFill) -> Decimal:
    """How much worse the live price was, in USD a unit; negative: better."""
    return live.px - tested.px if live.is_buy else tested.px - live.px


def tested_options(start: ProofStart, asked: Range, given: Mapping[str, Any]) -> SessionOptions:
    """The options of the replay: path, latency, rules and agents of `given`, on the proof's range and balance."""
    return SessionOptions(
        start_ms=None if start.point is None else start.at_ms,
        end_ms=asked.to_ms,
        balance_usd=start.balance_usd,
        **given,
    )
