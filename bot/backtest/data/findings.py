"""The findings of an audit: kind, places, severity, and the flag that accepts it. quality.py makes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bot.backtest.data.candles import MS_MAX, Candles
from bot.clock import MINUTE_MS, iso
from bot.errors import BotError
from bot.service.market_data.session_calendars import hours_name
from bot.words import many

Severity = Literal["fault", "note"]


class FindingKind(NamedTuple):
    """A kind of finding: the flag that accepts it (None: no flag), and what a backtest does with accepted data, or
    what the user can do.
    """

    accept: str | None
    then: str


KINDS: Final[dict[str, FindingKind]] = {
    "units": FindingKind(
        None, "a backtest reads milliseconds UTC; `bot data import --unit` turns other units into them"
    ),
    "price": FindingKind(
        None, "prices must be above zero and finite, volumes at least zero; correct the rows or cut them out"
    ),
    "digits": FindingKind(
        None, "multiply the prices by a thousand and divide the volumes by it, as a market like KPEPE is counted"
    ),
    "odds": FindingKind(None, "they are held to 0.001 and 0.999"),
    "unsorted": FindingKind("unsorted", "the rows are sorted by time"),
    "duplicate": FindingKind("duplicates", "the last row of an instant counts"),
    "off_grid": FindingKind("off-grid", "each row is moved forward to the next start of its interval, never back"),
    "ohlc": FindingKind("ohlc", "high and low are widened to hold open and close"),
    "hours": FindingKind("hours", "the times are used unchanged"),
    "gap": FindingKind("gaps", "no price moves in the hole and the next open is a jump; stops fill there"),
    "holiday": FindingKind(None, "nothing is done; cut them out if there was no trading then"),
    "jump": FindingKind("jumps", "the prices are used unchanged"),
    "zero_volume": FindingKind("zero-volume", "resting limit orders fill nothing in such bars"),
}
ACCEPTS: Final = tuple(kind.accept for kind in KINDS.values() if kind.accept is not None)
EXAMPLES_MAX: Final = 3


class FindingExample(NamedTuple):
    """One place of a finding. `file` is None for candles without a file."""

    file: Path | None
    row: int
    at_ms: int
    text: str

    def __str__(self) -> str:
        where = f"{self.file}: row {self.row}" if self.file is not None else f"candle {self.row}"
        return f"{where}: {instant(self.at_ms)}: {self.text}"


@dataclass(frozen=True, slots=True)
class DataFinding:
    """All places of one kind of finding: their number and the first few."""

    kind: str
    severity: Severity
    count: int
    text: str
    examples: tuple[FindingExample, ...] = ()

    @property
    def accept(self) -> str | None:
        """The name of the flag that accepts it: `gaps` for --accept-gaps."""
        return KINDS[self.kind].accept

    def data(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "count": self.count,
            "text": self.text,
            "flag": None if self.accept is None else f"--accept-{self.accept}",
            "then": KINDS[self.kind].then,
            "examples": [
                {
                    "file": None if example.file is None else str(example.file),
                    "row": example.row,
                    "ts": example.at_ms,
                    "text": example.text,
                }
                for example in self.examples
            ],
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The findings in the candles of one market and interval."""

    market: str
    interval: str
    rows: int
    first_ms: int
    last_ms: int
    hours: str
    files: tuple[Path, ...]
    findings: tuple[DataFinding, ...]

    @property
    def faults(self) -> tuple[DataFinding, ...]:
        return tuple(item for item in self.findings if item.severity == "fault")

    def refused(self, accept: Collection[str] = ()) -> tuple[DataFinding, ...]:
        """The faults that `accept` does not cover. With any of these a backtest does not start."""
        return tuple(fault for fault in self.faults if fault.accept is None or fault.accept not in accept)

    def lines(self, accept: Collection[str] = ()) -> list[str]:
        """The report as text: one line about the candles, then each finding with its first places and what to do."""
        span = f"{instant(self.first_ms)} to {instant(self.last_ms)}" if self.rows else "no rows"
        state = "a backtest refuses them" if self.refused(accept) else "usable" if self.findings else "sound"
        lines = [f"{self.market} {self.interval}: {many(self.rows, 'candle')}, {span}: {state}"]
        for item in self.findings:
            mark = "note " if item.severity == "note" else "FAULT"
            lines.append(f"  {mark} {item.kind}: {item.text}")
            lines += [f"        {example}" for example in item.examples]
            if item.count > len(item.examples) > 0:
                lines.append(f"        and {item.count - len(item.examples):,} more")
            if item.severity == "fault":
                way = KINDS[item.kind]
                flag = f"--accept-{way.accept}: {way.then}" if way.accept is not None else way.then
                lines.append(f"        {'accepted by ' if way.accept in accept else ''}{flag}")
        return lines

    def data(self) -> dict[str, Any]:
        return {
            "market": self.market,
            "interval": self.interval,
            "rows": self.rows,
            "firstTs": self.first_ms if self.rows else None,
            "lastTs": self.last_ms if self.rows else None,
            "hours": hours_name(self.hours),
            "files": [str(file) for file in self.files],
            "sound": not self.faults,
            "findings": [item.data() for item in self.findings],
        }


class FaultyData(BotError):
    """Candles that a backtest refuses. The message is the report."""

    def __init__(self, reports: Sequence[AuditReport], accept: Collection[str] = ()) -> None:
        self.reports = tuple(reports)
        flags = sorted(
            {
                f"--accept-{fault.accept}"
                for report in reports
                for fault in report.refused(accept)
                if fault.accept is not None
            }
        )
        shut = any(fault.accept is None for report in reports for fault in report.refused(accept))
        lines = [line for report in reports for line in report.lines(accept)]
        is_changed = bool({"--accept-off-grid", "--accept-ohlc", "--accept-unsorted"} & set(flags))
        way = (
            f"Take them {'' if is_changed else 'as they are '}with {' '.join(flags)}"
            if flags and not shut
            else "Correct the data first"
        )
        if any(report.files for report in reports):
            way += "; `bot data audit` shows the same"
        super().__init__("\n".join(["the candles have faults", *lines, way]))


def finding(
    candles: Candles,
    kind: str,
    severity: Severity,
    text: str,
    places: Sequence[tuple[int, str]],
    count: int | None = None,
) -> DataFinding:
    examples = tuple(
        FindingExample(*candles.where(index), candles.at_ms[index], text_here)
        for index, text_here in islice(places, EXAMPLES_MAX)
    )
    return DataFinding(kind, severity, len(places) if count is None else count, text, examples)


def rows_of(count: int) -> str:
    return many(count, "row")


def instant(at_ms: int) -> str:
    """An instant as text: 2025-06-01 00:00 (UTC). A number outside the calendar stays a number."""
    if not 0 <= at_ms < MS_MAX:
        return str(at_ms)
    text = iso(at_ms)
    return f"{text[:10]} {text[11:16]}" if at_ms % MINUTE_MS == 0 else f"{text[:10]} {text[11:-1]}"
