"""Longer bars are made of the strategy's own bars, and exist from their close on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from bot import Bar, Strategy, View, sma
from bot.backtest.data.resampling import resample
from bot.clock import DAY_MS, INTERVALS, MINUTE_MS, WEEK_MS
from bot.errors import StrategyError
from bot.strategy.base import begin_bars
from bot.strategy.history import History
from bot.strategy.indicators import Columns, Indicators
from bot.strategy.longer_bars import LongerBars, check_longer, pieces_of
from bot.wire.vocabulary import INTERVAL_MS
from tests.backtest.builders import minutes

MONDAY_MS = 1_748_822_400_000
PAIRS = [
    (own, longer)
    for own, own_ms in INTERVAL_MS.items()
    for longer, ms in INTERVALS.items()
    if ms % own_ms == 0 and ms > own_ms
]
WRONG = [(own, other) for own, own_ms in INTERVAL_MS.items() for other, ms in INTERVALS.items() if ms % own_ms]


def walk(own: str, count: int, *, start_ms: int, hole: float = 0.0, seed: int = 1) -> list[Bar]:
    candles = minutes(count, interval=own, start_ms=start_ms, hole=hole, seed=seed)
    at_ms = [ts + candles.step_ms for ts in candles.at_ms]
    return [Bar("BTC", at, *row) for at, *row in zip(at_ms, *candles.columns[1:], strict=True)]


def by_hand(own: str, longer: str, bars: Sequence[Bar]) -> Iterator[tuple[int, Bar]]:
    """(index of the own bar that makes it known, longer bar), from the definition: one pass for each longer bar."""
    step_ms, own_ms = INTERVALS[longer], INTERVALS[own]
    shift_ms = MONDAY_MS % WEEK_MS if longer == "1w" else 0
    starts = sorted({(bar.at_ms - own_ms - shift_ms) // step_ms * step_ms + shift_ms for bar in bars})
    for start_ms in starts:
        parts = [bar for bar in bars if start_ms <= bar.at_ms - own_ms < start_ms + step_ms]
        known = next((n for n, bar in enumerate(bars) if bar.at_ms >= start_ms + step_ms), None)
        is_begun = start_ms != starts[0] or parts[0].at_ms - own_ms == start_ms
        if known is not None and is_begun:
            high, low = max(bar.high for bar in parts), min(bar.low for bar in parts)
            volume = sum(bar.volume for bar in parts)
            yield known, Bar("BTC", start_ms + step_ms, parts[0].open, high, low, parts[-1].close, volume)


@pytest.mark.parametrize(("own", "longer"), PAIRS)
@pytest.mark.parametrize("hole", [0.0, 0.3])
def test_every_longer_bar_is_that_of_the_definition_and_known_from_its_close_on(own: str, longer: str, hole: float):
    per = INTERVALS[longer] // INTERVALS[own]
    count = min(2_000, per * 3 + 7) if per < 2_000 else per + per // 2
    start_ms = MONDAY_MS - WEEK_MS + INTERVALS[own] * (per - 5)
    bars = walk(own, count, start_ms=start_ms, hole=hole)
    maker = LongerBars(longer, own)
    got = [(n, closed) for n, bar in enumerate(bars) for closed in maker.add(bar)]
    expected = list(by_hand(own, longer, bars))
    assert [(n, bar[:-1]) for n, bar in got] == [(n, bar[:-1]) for n, bar in expected]
    assert [bar.volume for _, bar in got] == pytest.approx([bar.volume for _, bar in expected])
    assert all(closed.at_ms <= bars[n].at_ms for n, closed in got)
    assert got


def test_they_equal_the_candles_of_a_longer_file():
    candles = minutes(3_000, hole=0.1)
    maker = LongerBars("15m", "1m")
    bars = walk("1m", 3_000, start_ms=candles.at_ms[0], hole=0.1, seed=0)
    got = [closed for bar in bars for closed in maker.add(bar)]
    file = resample(candles, "15m")
    wanted = [Bar("BTC", ts + file.step_ms, *row) for ts, *row in zip(*file.columns, strict=True)]
    assert got == wanted[: len(got)]
    assert len(wanted) - len(got) <= 1


def test_a_week_begins_on_monday_in_utc():
    bars = walk("1d", 21, start_ms=MONDAY_MS - 3 * DAY_MS)
    maker = LongerBars("1w", "1d")
    got = [closed for bar in bars for closed in maker.add(bar)]
    assert [bar.at_ms for bar in got] == [MONDAY_MS + WEEK_MS, MONDAY_MS + 2 * WEEK_MS]
    assert got[0].open == bars[3].open


@pytest.mark.parametrize("shift_hours", [-2, 0, 1])
def test_trading_days_belong_to_the_week_of_their_own_day(shift_hours: int):
    # From Monday to Friday, each from the evening before or from the early morning on.
    starts = [MONDAY_MS + day * DAY_MS + shift_hours * 3_600_000 for day in range(28) if day % 7 < 5]
    bars = [Bar("US500", start + DAY_MS, float(n), n + 0.5, n - 0.5, n + 0.1, 1.0) for n, start in enumerate(starts)]
    maker = LongerBars("1w", "1d")
    got = [closed for bar in bars for closed in maker.add(bar)]
    weeks = [bar for bar in got if bar.volume == 5.0]
    assert [bar.open % 5 for bar in weeks] == [0.0] * len(weeks)
    assert len(weeks) == len(got) >= 2


@pytest.mark.parametrize(("own", "longer"), PAIRS)
def test_past_pieces_make_the_bars_that_own_bars_alone_would_have_made(own: str, longer: str):
    pieces = pieces_of(longer, own)
    per = INTERVALS[longer] // INTERVALS[own]
    piece = INTERVALS[pieces] // INTERVALS[own]
    count = 3 * per + piece * 2 if per < 2_000 else per + 2 * piece
    whole = walk(own, count, start_ms=MONDAY_MS)
    alone = LongerBars(longer, own)
    expected = [closed for bar in whole for closed in alone.add(bar)]
    shorter = LongerBars(pieces, own)
    past = whole if piece == 1 else [closed for bar in whole for closed in shorter.add(bar)]
    # The own bars begin inside a piece, and end after the last one.
    first = count - piece - piece // 2 - 1
    begun = LongerBars(longer, own)
    begun.begin([bar for bar in past if bar.at_ms <= whole[-1].at_ms - INTERVALS[own]], pieces)
    got = [closed for bar in whole[first:] for closed in begun.add(bar)]
    assert [bar[:-1] for bar in got] == [bar[:-1] for bar in expected]
    assert got


@pytest.mark.parametrize(("own", "other"), WRONG)
def test_an_interval_that_own_bars_do_not_make_is_refused_and_the_way_out_works(own: str, other: str):
    with pytest.raises(StrategyError) as refused:
        check_longer(other, own)
    text = str(refused.value)
    assert f"the strategy's own interval {own}" in text
    assert ("shorter" in text) == (INTERVALS[other] < INTERVALS[own])
    for usable in text.partition("read ")[2].partition(", or")[0].split(", "):
        check_longer(usable, own)
    finer = text.partition("`interval: ")[2].partition("`")[0]
    assert finer in INTERVAL_MS
    check_longer(other, finer)


@pytest.mark.parametrize("bad", ["7m", "4H", "", 4, None, "4h ", ["4h"]])
def test_an_unknown_interval_is_refused_with_those_that_there_are(bad: Any):
    with pytest.raises(StrategyError, match="interval is one of 1m, 3m, 5m, .* 1d, 1w, not"):
        check_longer(bad, "1m")
    if bad is not None:
        with pytest.raises(StrategyError, match="interval is one of 1m, 3m"):
            sma(5, interval=bad)


class Two(Strategy):
    """An indicator of its own bars, one of 15m and one of 1h."""

    own = sma(3)
    quick = sma(2, interval="15m")
    slow = sma(4, "high", interval="1h")

    def on_bar(self, view: View, bar: Bar) -> list[object]:
        return []


def values_of(strategy: Two) -> list[float | None]:
    return [strategy.own["BTC"], strategy.quick["BTC"], strategy.slow["BTC"]]


@pytest.mark.parametrize("chunk", [1, 7, 400])
def test_a_chunk_gives_the_values_of_bars_one_by_one(chunk: int):
    bars = walk("5m", 400, start_ms=MONDAY_MS, hole=0.1)
    live, chunked = Two(name="a", markets=["BTC"]), Two(name="b", markets=["BTC"])
    for strategy in (live, chunked):
        begin_bars(strategy, "5m")
    for first in range(0, len(bars), chunk):
        part = bars[first : first + chunk]
        columns = Columns._make(
            [*(list(column) for column in list(zip(*part, strict=True))[2:]), [b.at_ms for b in part]]
        )
        chunked.indicators.precompute("BTC", columns)
        for bar in part:
            live.indicators.update(bar)
            chunked.indicators.update(bar)
            assert values_of(live) == values_of(chunked)
    assert None not in values_of(live)
    assert live.longer_bars == {"15m": 2, "1h": 4}


def test_a_value_is_that_of_the_closed_longer_bars():
    bars = walk("5m", 200, start_ms=MONDAY_MS)
    strategy = Two(name="a", markets=["BTC"])
    begin_bars(strategy, "5m")
    for n, bar in enumerate(bars, start=1):
        strategy.indicators.update(bar)
        hours = [max(one.high for one in bars[12 * hour : 12 * hour + 12]) for hour in range(n // 12)]
        expected = None if len(hours) < 4 else sum(hours[-4:]) / 4
        assert strategy.slow["BTC"] == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("limit", [50, 1_000])
def test_a_history_keeps_longer_bars_that_its_own_bars_no_longer_cover(limit: int):
    bars, random = walk("1m", 3_000, start_ms=MONDAY_MS), Random(1)
    history = History("BTC", limit)
    history.keep("1h", "1m")
    for bar in bars:
        history.take(bar)
        if random.random() < 0.05:
            history.trim()
    assert [bar.at_ms for bar in history.of("1h", "1m").bars(99)] == [
        MONDAY_MS + n * 60 * MINUTE_MS for n in range(1, 51)
    ]
    # An interval that is not kept is made of the bars that are there.
    read = history.of("15m", "1m").bars(99)
    made = LongerBars("15m", "1m")
    assert read == [closed for bar in history.bars(limit) for closed in made.add(bar)]


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        ({"1m": 5}, 'intervals: interval="1m" is shorter than the strategy\'s own interval 5m'),
        ({"7h": 5}, "intervals: interval is one of"),
        (["4h"], "intervals is a mapping"),
        ({"4h": 0}, r"intervals\['4h'\]: a period is a whole number from 1 to 1000, not 0"),
        ({"4h": "slow"}, "'slow' is not one of its params"),
    ],
)
def test_a_wrong_declaration_names_the_field(intervals: object, says: str):
    kind = type("Mine", (Two,), {"intervals": intervals, "quick": None, "slow": None})
    with pytest.raises(StrategyError, match=says):
        begin_bars(kind(name="a", markets=["BTC"]), "5m")


def test_an_indicator_of_a_shorter_interval_is_named():
    with pytest.raises(StrategyError, match=r'quick: interval="15m" is shorter than .* own interval 1h'):
        begin_bars(Two(name="a", markets=["BTC"]), "1h")


def test_indicators_of_the_own_interval_need_no_at_ms():
    indicators = Indicators({"own": Two.own}, ["BTC"], None)
    indicators.begin("5m")
    rows = [float(n) for n in range(5)]
    assert indicators.columns("BTC", Columns(rows, rows, rows, rows, rows))[0][1][-1] == 3.0
