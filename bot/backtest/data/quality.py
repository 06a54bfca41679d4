"""Check every candle for faults. A backtest refuses candles with faults, unless a flag accepts the fault; `mended` then
repairs it as findings.py says.

Reading is candles.py's, time and holes are gaps.py's; nothing here changes a file.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from operator import le, truediv
from typing import Final

from bot.backtest.data.candles import MS_MAX, MS_MIN, Candles, unit_of
from bot.backtest.data.findings import (
    ACCEPTS,
    EXAMPLES_MAX,
    AuditReport,
    DataFinding,
    FaultyData,
    Severity,
    finding,
    rows_of,
)
from bot.backtest.data.gaps import (
    CONTINUOUS,
    EQUITY,
    HOURS,
    holidays,
    hours_of,
    is_listed,
    listed_hours,
    session_hours,
    times,
    trading_date,
)
from bot.clock import DAY_MS
from bot.errors import ConfigError
from bot.venue.model import outcome
from bot.venue.model.numbers import E8

ZERO_VOLUME_SHARE: Final = 0.05
# A larger relative move in one bar is reported. In a volatile market the limit is higher.
JUMPS: Final = {"1m": 0.05, "5m": 0.10, "15m": 0.12, "1h": 0.20, "4h": 0.25, "1d": 0.35}
# highest limit: a move by half of the price is reported in every market
FALL_MAX: Final = 0.5
LONG_MS: Final = 14 * DAY_MS
JUMP_DEVIATIONS: Final = 12.0
DEVIATION_SAMPLE: Final = 5_000
# ratio of standard deviation to median absolute deviation for a normal distribution
MAD_TO_DEVIATION: Final = 1.4826
# The usual splits: new shares for old ones.
SPLITS: Final = (
    *((new, 1) for new in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 50)),
    *((3, 2), (4, 3), (5, 2), (5, 3), (5, 4), (7, 5)),
    *((1, old) for old in (2, 3, 4, 5, 8, 10, 15, 20, 25, 30, 50)),
)
# A share moves as far by news as by these. They are suspected only where the move is far beyond the usual ones over a
# night, and the volume is not.
SMALL_SPLITS: Final = ((6, 5), (11, 10))
SMALL_DEVIATIONS: Final = 6.0
# times the median of the first candles of the nights before
SMALL_VOLUMES: Final = 1.5
NIGHTS: Final = 20
# Of an open to what a split makes of the close before; of the close of that bar twice as much.
SPLIT_WITHIN: Final = 0.02
SMALL_WITHIN: Final = 0.01
# a close over the close before; none of the splits lies between
NO_SPLIT: Final = (0.93, 1.9)
# USD; a higher price does not fit the venue's integers
PX_MAX: Final = 1e12
VOLUME_MAX: Final = 1e18
# relative difference of one basis point, the size of a spread
DIGITS_LOST: Final = 0.0001
# lowest and highest price of an event market
ODDS_MIN, ODDS_MAX = outcome.PX_MIN / E8, outcome.PX_MAX / E8


def checked(
    candles: Iterable[Candles], *, accept: Collection[str] = (), hours: str | None = None
) -> tuple[list[Candles], list[AuditReport]]:
    """Return the candles for a backtest, mended where faults are accepted, with their reports.

    FaultyData if a fault is not accepted.
    """
    unknown = sorted(set(accept) - set(ACCEPTS))
    if unknown:
        raise ConfigError(
            f"--accept-{unknown[0]} is not known; there are {', '.join(f'--accept-{name}' for name in ACCEPTS)}"
        )
    given = list(candles)
    reports = [audit(series, hours=hours) for series in given]
    refused = [report for report in reports if report.refused(accept)]
    if refused:
        raise FaultyData(refused, accept)
    return [mended(series, report) for series, report in zip(given, reports, strict=True)], reports


def mended(candles: Candles, report: AuditReport) -> Candles:
    """Repair accepted faults as KINDS says: sort, move to the grid, remove duplicates, widen high and low.

    Returns the same object if nothing changes.
    """
    kinds = {item.kind for item in report.findings}
    if not kinds & {"unsorted", "duplicate", "off_grid", "ohlc", "odds"}:
        return candles
    at_ms = candles.grid_ms if "off_grid" in kinds else candles.at_ms
    last: dict[int, int] = {}
    # The source's own times decide: of two candles that meet on the grid the later one counts.
    for index in sorted(range(len(at_ms)), key=candles.at_ms.__getitem__):
        last[at_ms[index]] = index
    repaired = candles.pick([last[at] for at in sorted(last)])
    repaired = replace(repaired, at_ms=array("q", sorted(last)), is_moved=repaired.is_moved or "off_grid" in kinds)
    if "ohlc" in kinds:
        highs = array("d", map(max, repaired.open, repaired.high, repaired.low, repaired.close))
        lows = array("d", map(min, repaired.open, repaired.high, repaired.low, repaired.close))
        repaired = replace(repaired, high=highs, low=lows)
    if "odds" in kinds:
        opens, highs, lows, closes = (
            array("d", [max(ODDS_MIN, min(ODDS_MAX, px)) for px in column]) for _, column in _prices_of(repaired)
        )
        repaired = replace(repaired, open=opens, high=highs, low=lows, close=closes)
    return repaired


# ── The audit ───────────────────────────────────────────────────────────────────────────────────────────────────────


def audit(candles: Candles, *, hours: str | None = None) -> AuditReport:
    """Check every candle.

    `hours` is continuous, equity or index; by default the service's hours of the market, or those detected from the
    rows.
    """
    is_known = hours is not None or is_listed(candles.market)
    if hours is not None and hours not in HOURS:
        raise ConfigError(f"hours {hours!r} are not known; there are {', '.join(HOURS)}")
    hours = hours or hours_of(candles)
    files = tuple(dict.fromkeys(part.path for part in candles.parts))
    findings: list[DataFinding] = []
    if len(candles):
        findings += _units(candles)
        if not findings:
            is_sound = _is_sound(candles)
            findings += _prices(candles, is_sound=is_sound)
            if hours == EQUITY:
                findings += session_hours(candles, "fault" if is_known else "note")
            findings += times(candles, hours)
            if (
                is_known and hours in (EQUITY, *listed_hours(candles.market))
                # Detected hours may be those of currencies, which trade on an exchange's holidays.
            ):
                findings += holidays(candles, hours)
            if not any(item.kind == "price" for item in findings):
                findings += _odds(candles) if candles.market.startswith("event:") else _digits(candles)
            findings += [*(() if is_sound else _ohlc(candles)), *_volumes(candles)]
            if not candles.market.startswith("event:") and not any(
                item.kind in ("price", "unsorted") for item in findings
            ):
                findings += _jumps(candles, hours)
    findings.sort(key=lambda item: item.severity == "note")
    first, last = (min(candles.at_ms), max(candles.at_ms)) if len(candles) else (0, 0)
    return AuditReport(candles.market, candles.interval, len(candles), first, last, hours, files, tuple(findings))


def _units(candles: Candles) -> Iterator[DataFinding]:
    at_ms = candles.at_ms
    if min(at_ms) >= MS_MIN and max(at_ms) < MS_MAX:
        return
    units = Counter(map(unit_of, at_ms))
    names = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
    wrong = [
        (index, f"ts {at} looks like {names[unit_of(at)]}")
        for index, at in enumerate(at_ms)
        if not MS_MIN <= at < MS_MAX
    ]
    if len(units) > 1:
        text = "units are mixed: " + ", ".join(
            f"{rows_of(count)} in {names[unit]}" for unit, count in units.most_common()
        )
    else:
        unit = next(iter(units))
        text = f"the instants look like {names[unit]}, they must be milliseconds; import the file with --unit {unit}"
    yield finding(candles, "units", "fault", text + "; nothing else was looked at", wrong)


def _is_sound(candles: Candles) -> bool:
    """True if all prices are valid and each high and low enclose open and close.

    False for NaN, because every comparison with NaN is false.
    """
    opens, highs, lows, closes = candles.open, candles.high, candles.low, candles.close
    return (
        all(map(le, lows, opens))
        and all(map(le, lows, closes))
        and all(map(le, opens, highs))
        and all(map(le, closes, highs))
        and min(lows) > 0
        and max(highs) < PX_MAX
    )


def _prices(candles: Candles, *, is_sound: bool) -> Iterator[DataFinding]:
    places: list[tuple[int, str]] = []
    for name, column in () if is_sound else _prices_of(candles):
        if not math.isfinite(sum(column)) or min(column) <= 0 or max(column) >= PX_MAX:
            places += [
                (index, f"{name} is {px:g}, it must be above 0{_bound(px, PX_MAX)}")
                for index, px in enumerate(column)
                if not 0 < px < PX_MAX
            ]
    if not math.isfinite(sum(candles.volume)) or min(candles.volume) < 0 or max(candles.volume) >= VOLUME_MAX:
        places += [
            (index, f"volume is {size:g}, it must be at least 0{_bound(size, VOLUME_MAX)}")
            for index, size in enumerate(candles.volume)
            if not 0 <= size < VOLUME_MAX
        ]
    if places:
        places.sort()
        rows = len({index for index, _ in places})
        yield finding(candles, "price", "fault", f"{rows_of(rows)} with a price or volume that is none", places)


def _prices_of(candles: Candles) -> tuple[tuple[str, array[float]], ...]:
    return ("open", candles.open), ("high", candles.high), ("low", candles.low), ("close", candles.close)


def _bound(value: float, most: float) -> str:
    return f" and below {most:g}" if value >= most else ""


def _digits(candles: Candles) -> Iterator[DataFinding]:
    """Prices that lose too much when they are rounded to the venue's 0.00000001, which matters for small prices."""
    places: list[tuple[int, str]] = []
    for name, column in _prices_of(candles):
        # The largest relative error of rounding.
        if min(column) * DIGITS_LOST * E8 < 0.5:
            places += [
                (index, f"{name} is {px:.12g}, and {round(px * E8) / E8:.8f} would be traded")
                for index, px in enumerate(column)
                if abs(round(px * E8) - px * E8) > DIGITS_LOST * px * E8
            ]
    if places:
        places.sort()
        rows = len({index for index, _ in places})
        text = f"{rows_of(rows)} with a price that loses more than {DIGITS_LOST:.2%}: prices are counted in 0.00000001"
        yield finding(candles, "digits", "fault", text, places, rows)


def _odds(candles: Candles) -> Iterator[DataFinding]:
    """Prices of an event market above 1 USD, the most that a share pays, and prices beyond the venue's lowest and
    highest, as sources have near an event's end.
    """
    places: list[tuple[int, str]] = []
    above: list[tuple[int, str]] = []
    for name, column in _prices_of(candles):
        if min(column) < ODDS_MIN or max(column) > ODDS_MAX:
            outside = [
                (index, f"{name} is {px:g}") for index, px in enumerate(column) if not ODDS_MIN <= px <= ODDS_MAX
            ]
            places += outside
            above += [(index, f"{text}, it must not be above 1") for index, text in outside if column[index] > 1]
    rows = len({index for index, _ in above or places})
    if above:
        text = (
            f"{rows_of(rows)} with a price above 1, which is all that a share pays: odds in cents or percent are"
            " divided by 100"
        )
        yield finding(candles, "price", "fault", text, sorted(above), rows)
    elif places:
        text = f"{rows_of(rows)} with odds below {ODDS_MIN:g} or above {ODDS_MAX:g}: held to these"
        yield finding(candles, "odds", "note", text, sorted(places), rows)


def _ohlc(candles: Candles) -> Iterator[DataFinding]:
    opens, highs, lows, closes = candles.open, candles.high, candles.low, candles.close
    places: list[tuple[int, str]] = []
    for index, (o, h, low, c) in enumerate(zip(opens, highs, lows, closes, strict=True)):
        if h < low:
            places.append((index, f"high {h:g} is below low {low:g}"))
        # NaN is reported by another finding.
        elif o < low or o > h:
            places.append((index, f"open {o:.12g} lies outside low..high ({low:.12g}..{h:.12g})"))
        elif c < low or c > h:
            places.append((index, f"close {c:.12g} lies outside low..high ({low:.12g}..{h:.12g})"))
    if places:
        yield finding(
            candles, "ohlc", "fault", f"{rows_of(len(places))} whose high and low do not hold open and close", places
        )


def _volumes(candles: Candles) -> Iterator[DataFinding]:
    count = 0 if min(candles.volume) > 0 else candles.volume.count(0.0)
    if not count:
        return
    share = count / len(candles)
    severity: Severity = "fault" if share > ZERO_VOLUME_SHARE else "note"
    first = [index for index, size in zip(range(len(candles)), candles.volume, strict=True) if size == 0][:EXAMPLES_MAX]
    text = f"{rows_of(count)} ({share:.2%}) without any volume"
    if count == len(candles):
        text = "no row has any volume: an index, a mark price, or a source that does not know it"
    yield finding(candles, "zero_volume", severity, text, [(index, "volume is 0") for index in first], count)


# ── Jumps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _jumps(candles: Candles, hours: str) -> Iterator[DataFinding]:
    """Report closes far from the close before, wicks far from open and close, and moves that look like a share's split.
    After a gap the limit is that of a day."""
    closes, highs, lows, opens, at_ms, step = (
        candles.close,
        candles.high,
        candles.low,
        candles.open,
        candles.at_ms,
        candles.step_ms,
    )
    most = max(JUMPS[candles.interval], JUMP_DEVIATIONS * _deviation(closes))
    moves = array("d", map(truediv, islice(closes, 1, None), closes))
    fell = 1 - min(most, FALL_MAX)
    splits = hours == EQUITY
    least, greatest = (max(fell, NO_SPLIT[0]), min(1 + most, NO_SPLIT[1])) if splits else (fell, 1 + most)
    if (not moves or (max(moves) <= greatest and min(moves) >= least)) and max(map(truediv, highs, lows)) <= 1 + most:
        return
    places: list[tuple[int, str]] = []
    by_split, small = 0, _small_moves(candles) if splits else frozenset[int]()
    for index, (o, h, low, c) in enumerate(zip(opens, highs, lows, closes, strict=True)):
        if index:
            bars = (at_ms[index] - at_ms[index - 1]) / step
            bound = most if bars <= 1 else most * math.sqrt(bars) if hours == CONTINUOUS else max(most, JUMPS["1d"])
            if at_ms[index] - at_ms[index - 1] > LONG_MS:
                # A gap of weeks is reported as a gap.
                bound = math.inf
            if not 1 - min(bound, FALL_MAX) <= moves[index - 1] <= 1 + bound:
                places.append((index, _jump_text(candles, index, moves[index - 1], index in small)))
                continue
            if splits and bound < math.inf and _is_split(candles, index, moves[index - 1], index in small):
                places.append((index, _jump_text(candles, index, moves[index - 1], index in small)))
                by_split += 1
                continue
        top, bottom = max(o, c), min(o, c)
        if h > top * (1 + most):
            places.append((index, f"high {h:.12g} is {h / top - 1:.0%} above open and close"))
        elif low < bottom * fell:
            places.append((index, f"low {low:.12g} is {1 - low / bottom:.0%} below open and close"))
    if places:
        kinds = [f"a move of more than {most:.0%} at once"] if len(places) > by_split else []
        kinds += ["the move of an unadjusted split"] if by_split else []
        text = f"{rows_of(len(places))} with {' or '.join(kinds)}"
        yield finding(candles, "jump", "fault", text, places)


def _jump_text(candles: Candles, index: int, move: float, may_be_small: bool) -> str:
    closes = candles.close
    text = f"close {closes[index]:.12g} is {move - 1:+.1%} from {closes[index - 1]:.12g}"
    if _comes_back(closes, index, move):
        return text + " and comes back at once: probably a wrong price"
    split = _split_of(candles.open[index] / closes[index - 1], move, may_be_small)
    if split is None:
        return text
    new, old = split
    way = f"divide the prices before it by {new / old:.6g}" if new > old else f"multiply the prices before it by {old}"
    return f"{text}: perhaps a {new}-for-{old} split that was not adjusted; {way}"


def _is_split(candles: Candles, index: int, move: float, may_be_small: bool) -> bool:
    """True if a share opens at the price of a usual split after a closed exchange, and stays there."""
    opened = candles.open[index] / candles.close[index - 1]
    if NO_SPLIT[0] <= move <= NO_SPLIT[1] or _split_of(opened, move, may_be_small) is None:
        return False
    before, at = (trading_date(candles.at_ms[row], candles.step_ms) for row in (index - 1, index))
    return before != at and not _comes_back(candles.close, index, move)


def _comes_back(closes: array[float], index: int, move: float) -> bool:
    return index + 1 < len(closes) and abs(closes[index + 1] / closes[index - 1] - 1) < abs(move - 1) / 4


def _split_of(opened: float, move: float, may_be_small: bool) -> tuple[int, int] | None:
    """The split that fits both ratios: the open and the close, each divided by the close before."""
    for within, splits in ((SPLIT_WITHIN, SPLITS), (SMALL_WITHIN, SMALL_SPLITS if may_be_small else ())):
        for new, old in splits:
            if abs(opened * new / old - 1) < within and abs(move * new / old - 1) < 2 * within:
                return new, old
    return None


def _small_moves(candles: Candles) -> frozenset[int]:
    """The rows after a closed night whose open is far from the close before, by the usual moves over a night, without
    the volume that news bring.
    """
    closes, opens, volumes, step_ms = candles.close, candles.open, candles.volume, candles.step_ms
    days = [trading_date(at_ms, step_ms) for at_ms in candles.at_ms]
    nights = [row for row in range(1, len(closes)) if days[row] != days[row - 1]]
    moves = [abs(opens[row] / closes[row - 1] - 1) for row in nights]
    # The largest is the one in question.
    others = sorted(moves)[:-1]
    least = SMALL_DEVIATIONS * MAD_TO_DEVIATION * others[len(others) // 2] if others else 0.0
    rows = set()
    for number, (row, move) in enumerate(zip(nights, moves, strict=True)):
        if move > least:
            before = sorted(volumes[night] for night in nights[max(0, number - NIGHTS) : number])
            if not before or volumes[row] <= SMALL_VOLUMES * before[len(before) // 2]:
                rows.add(row)
    return frozenset(rows)


def _deviation(closes: array[float]) -> float:
    """The usual move of a bar: a standard deviation estimated from the median absolute return of a sample, so that a
    few jumps do not matter.
    """
    stride = max(1, len(closes) // DEVIATION_SAMPLE)
    moves = sorted(abs(closes[i] / closes[i - 1] - 1) for i in range(1, len(closes), stride))
    return moves[len(moves) // 2] * MAD_TO_DEVIATION if moves else 0.0
