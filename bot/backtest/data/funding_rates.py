"""Recorded funding rates of a market: read them from a file, and check that they cover the hours of a backtest."""

from __future__ import annotations

import csv
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bot.backtest.data.candles import MS_MAX, MS_MIN, unit_of
from bot.backtest.data.column_files import is_number, is_parquet, opened
from bot.backtest.data.findings import instant
from bot.backtest.data.gaps import GAP_BARS
from bot.clock import HOUR_MS, iso
from bot.errors import ConfigError
from bot.venue.model.numbers import E12
from bot.words import many

TS_NAMES: Final = ("ts", "time", "at_ms", "timestamp", "fundingtime", "funding_time", "calc_time")
RATE_NAMES: Final = ("rate", "funding_rate", "fundingrate", "last_funding_rate")
# largest number of hours between two payments
HOURS_MAX: Final = 24
# largest rate an hour; venues have this cap
RATE_MAX: Final = E12 // 25
# a stamp up to so long after a full hour is of that hour
LATE_MS: Final = 60_000
# median rate an hour, 350 % a year; a larger one is probably in percent
USUAL_MAX: Final = E12 // 2_500
# consecutive missing payments, as for candles
ROWS_MISSING_MAX: Final = GAP_BARS
_STAMP: Final = re.compile(r"([0-9]{1,19})(?:\.0*)?", re.ASCII)
_UNIT_NAMES: Final = {"s": "seconds", "us": "microseconds", "ns": "nanoseconds"}


class Payment(NamedTuple):
    """A recorded rate, scaled 1e12, which is paid whole at the full hour `at_ms`, and again every `hours` hours until
    the next row says another.
    """

    at_ms: int
    rate: int
    hours: int = 1

    @property
    def since_ms(self) -> int:
        """The first of the full hours that this payment is for."""
        return self.at_ms - (self.hours - 1) * HOUR_MS


@dataclass(frozen=True, slots=True)
class FundingRates:
    """The rates of a file, oldest first. A file with one row gives one rate for all time from then on."""

    path: Path
    rates: list[Payment]
    rows: array[int]
    sha256: str

    def judged(self, start_ms: int, end_ms: int, accept: Collection[str] = ()) -> str | None:
        """The assumption about missing rates between `start_ms` and `end_ms`, if any. ConfigError if all rates are
        missing, if many are missing and `accept` has no `gaps`, or if the rates look like percent and it has no
        `jumps`.
        """
        middle = median(abs(rate.rate) / rate.hours for rate in self.rates)
        if middle > USUAL_MAX and "jumps" not in accept:
            yearly = middle * 24 * 365 / E12
            raise ConfigError(
                f"{self.path}: column 'rate': the middle rate is {middle / E12:.6f} an hour, {yearly:.0%} a year: it"
                " looks like percent, and a fraction is meant (0.0001 is 0.01 %). --accept-jumps: the rates are used"
                " unchanged"
            )
        paid = range(start_ms - start_ms % HOUR_MS + HOUR_MS, end_ms, HOUR_MS)
        recorded = self._recorded(end_ms)
        holes = _runs([at for at in paid if at not in recorded])
        missing = sum(count for _, count in holes)
        if not missing:
            return None
        if missing == len(paid):
            first, last = self.rates[0].since_ms, self.rates[-1].at_ms
            raise ConfigError(
                f"{self.path}: no rate from {iso(start_ms)} to {iso(end_ms)}, which is the session; they are of"
                f" {iso(first)} to {iso(last)}"
            )
        longest_ms, longest = max(holes, key=lambda hole: hole[1])
        usual = Counter(rate.hours for rate in self.rates).most_common(1)[0][0]
        unit = "payment" if usual == 1 else "hour"
        said = f"{missing:,} of {many(len(paid), unit)} are not recorded"
        then = "the rate before goes on, and before the first the baseline"
        if longest > ROWS_MISSING_MAX * usual and "gaps" not in accept:
            raise ConfigError(
                f"{self.path}: {said}; the longest hole begins at {instant(longest_ms)}, {self._place(longest_ms)}: "
                f"{many(longest, unit)}."
                f" --accept-gaps: {then}"
            )
        return f"{said}: {then}"

    @property
    def parts(self) -> str | None:
        """The assumption about rates that are paid less often than every hour."""
        longest = max(rate.hours for rate in self.rates)
        if longest == 1:
            return None
        return (
            f"a rate of {longest} hours is paid whole at its instant: a position that is held across this instant "
            "pays all of it, and a position that is closed before pays nothing"
        )

    def _recorded(self, end_ms: int) -> set[int]:
        hours: set[int] = set()
        for rate in self.rates:
            last = end_ms if len(self.rates) == 1 else rate.at_ms + HOUR_MS
            hours.update(range(rate.since_ms, last, HOUR_MS))
        return hours

    def _place(self, at_ms: int) -> str:
        before = [row for rate, row in zip(self.rates, self.rows, strict=True) if rate.since_ms <= at_ms]
        return f"after row {before[-1]}" if before else f"before row {self.rows[0]}"


def from_start(rates: Sequence[Payment], start_ms: int) -> list[Payment]:
    """The payments from `start_ms` on, and before them the one that goes on from before.

    The hours before a file's first payment belong to it, so that nothing is paid in them.
    """
    rates = [Payment(*payment) for payment in rates]
    before = [rate for rate in rates if rate.at_ms < start_ms][-1:]
    later = [rate for rate in rates if rate.at_ms >= start_ms]
    if not before and later and later[0].hours > 1:
        before = [Payment(later[0].since_ms, 0, later[0].hours)]
    return [*before, *later]


def hour_by_hour(rates: Sequence[Payment], start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """The rate that is paid from each instant on, at every full hour: 0 between the payments of a rate for several
    hours.
    """
    rates, hourly = from_start(rates, start_ms), []
    ends = [*(after.at_ms for after in rates[1:]), end_ms]
    # If there are no rates, `ends` has one value more than `rates`.
    for rate, until_ms in zip(rates, ends, strict=False):
        if rate.hours == 1:
            hourly.append((rate.at_ms, rate.rate))
            continue
        for at_ms in range(rate.at_ms, until_ms, rate.hours * HOUR_MS):
            hourly += [(at_ms, rate.rate), (at_ms + HOUR_MS, 0)]
    return hourly


def _runs(instants: Sequence[int]) -> list[tuple[int, int]]:
    """Groups of consecutive hours as (first, number)."""
    runs: list[tuple[int, int]] = []
    for at in instants:
        if runs and at == runs[-1][0] + runs[-1][1] * HOUR_MS:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((at, 1))
    return runs


def read_funding(path: Path) -> FundingRates:
    """The rates of a file `ts,rate` (ms UTC of the payment, fraction), oldest first.

    The hours of each rate are its distance from the one before, so the venue may have changed its period, and a gap
    has no effect.
    """
    if is_parquet(path):
        raise ConfigError(f"{path}: funding is read from CSV: columns ts and rate")
    stamps: list[int] = []
    rates: list[int] = []
    lines = array("q")
    with opened(path) as stream:
        rows = csv.reader(stream)
        header = [name.strip().lower() for name in next(rows, [])]
        ts_name, rate_name = (
            next((name for name in names if name in header), None) for names in (TS_NAMES, RATE_NAMES)
        )
        if rate_name is None or ts_name is None:
            raise ConfigError(f"{path}: row 1: the columns are {','.join(header)[:120]!r}, they must hold ts and rate")
        ts_at, rate_at = header.index(ts_name), header.index(rate_name)
        for number, row in enumerate(rows, start=2):
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                raise ConfigError(f"{path}: row {number}: has {many(len(row), 'column')}, not {len(header)}")
            ts = _stamp(row[ts_at].strip(), path, number)
            if stamps and ts <= stamps[-1]:
                raise ConfigError(f"{path}: row {number}: {_out_of_order(ts, stamps, lines)}")
            stamps.append(ts)
            rates.append(_rate(row[rate_at].strip(), path, number))
            lines.append(number)
    if not stamps:
        raise ConfigError(f"{path}: has no rates below its header")
    hours = _hours(stamps, path, lines)
    payments: list[Payment] = []
    for ts, rate, every, number in zip(stamps, rates, hours, lines, strict=True):
        if abs(rate) > RATE_MAX * every:
            raise ConfigError(
                f"{path}: row {number}: rate {rate / E12:g} is more than 0.04 an hour either way; a fraction is meant,"
                " 0.0001 is 0.01 %"
            )
        at_ms = _full_hour(ts)
        if payments and payments[-1].at_ms == at_ms:
            raise ConfigError(
                f"{path}: row {number}: is paid at {instant(at_ms)} as the row before is; "
                "rates are paid at full hours, once in an hour at most"
            )
        payments.append(Payment(at_ms, rate, every))
    return FundingRates(path, payments, lines, hashlib.sha256(path.read_bytes()).hexdigest())


def _full_hour(ts: int) -> int:
    """The full hour of a payment, which venues record a little after it. A stamp between two hours is paid at the
    later one, never before its time.
    """
    return ts - ts % HOUR_MS if ts % HOUR_MS < LATE_MS else -(-ts // HOUR_MS) * HOUR_MS


def _stamp(cell: str, path: Path, row: int) -> int:
    stamp = _STAMP.fullmatch(cell)
    if stamp is None:
        raise ConfigError(f"{path}: row {row}: ts {cell[:40]!r} is no whole number of milliseconds UTC")
    ts = int(stamp[1])
    if not MS_MIN <= ts < MS_MAX:
        raise ConfigError(
            f"{path}: row {row}: ts {ts} looks like {_UNIT_NAMES[unit_of(ts)]}, it must be milliseconds UTC"
        )
    return ts - ts % 1_000


def _rate(cell: str, path: Path, row: int) -> int:
    rate = Decimal(cell) if is_number(cell) else None
    if rate is None or not rate.is_finite():
        raise ConfigError(f"{path}: row {row}: rate {cell[:40]!r} is no number; a fraction is meant, 0.0001 is 0.01 %")
    return int(rate * E12) if abs(rate) < E12 else E12 * E12


def _out_of_order(ts: int, stamps: Sequence[int], rows: Sequence[int]) -> str:
    if ts in stamps:
        return f"ts {ts} ({instant(ts)}) is there already in row {rows[stamps.index(ts)]}; cut one of them out"
    return (
        f"ts {ts} ({instant(ts)}) does not come after the row before it ({instant(stamps[-1])}); sort the rows by ts,"
        " oldest first"
    )


def _hours(stamps: Sequence[int], path: Path, rows: Sequence[int]) -> array[int]:
    """The number of hours of each rate: its distance from the one before, unless no neighbour has the same distance,
    which means a gap.
    """
    apart = [round((b - a) / HOUR_MS) for a, b in pairwise(stamps)]
    if not apart:
        return array("q", [1])
    if min(apart) < 1:
        at = apart.index(min(apart)) + 1
        seconds = (stamps[at] - stamps[at - 1]) // 1_000
        raise ConfigError(
            f"{path}: row {rows[at]}: is {seconds} s after the one before; rates are paid once in an hour at most"
        )
    usual = Counter(apart).most_common(1)[0][0]
    if usual > HOURS_MAX:
        raise ConfigError(f"{path}: its rates are {usual} hours apart; at most a day")
    hours = array("q")
    for at in range(len(stamps)):
        own, others = (
            apart[max(0, at - 1)],
            [*apart[max(0, at - 2) : max(0, at - 1)], *apart[max(1, at) : max(1, at) + 1]],
        )
        every = own if own in others or not others else min(own, *others)
        hours.append(every if every <= HOURS_MAX else usual)
    return hours
