"""The indicators that talipp calculates: against TA-Lib or the formula in numpy, live against columns, bounded
memory, bad numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import talib

from bot import (
    adx,
    atr,
    bollinger,
    donchian,
    ema,
    highest,
    keltner,
    lowest,
    macd,
    roc,
    rsi,
    sma,
    stddev,
    stochastic,
    supertrend,
    vwap,
)
from bot.errors import StrategyError
from bot.extras import install
from bot.strategy import Bar, Field, Indicator, Params
from bot.strategy.indicator_library import series_of
from bot.strategy.indicators import Columns
from tests.strategy.toy import walk

BARS = 600
# bars after which two recursive averages with different first values agree
SETTLED = 300

Arrays = dict[str, Any]
NO_PARAMS = Params()


@pytest.fixture(scope="module")
def bars() -> list[Bar]:
    return list(walk(bars=BARS, seed=5))


@pytest.fixture(scope="module")
def arrays(bars: list[Bar]) -> Arrays:
    names = ("open", "high", "low", "close", "volume")
    return {name: np.array([getattr(bar, name) for bar in bars], dtype=float) for name in names}


def values(declared: Indicator, bars: Sequence[Bar]) -> list[float | None]:
    series = declared.start(NO_PARAMS)
    return [series.update(bar) for bar in bars]


def hlc(a: Arrays) -> tuple[Any, Any, Any]:
    return a["high"], a["low"], a["close"]


def rolling(of: Callable[[Any], float], n: int, *columns: Any) -> Any:
    rows = [of(*(column[i - n + 1 : i + 1] for column in columns)) for i in range(n - 1, len(columns[0]))]
    return np.array([np.nan] * (n - 1) + rows)


def weighted(prices: Any, volumes: Any) -> float:
    return float((prices * volumes).sum() / volumes.sum())


def keltner_of(a: Arrays, sign: int) -> Any:
    return talib.EMA(a["close"], 20) + sign * 1.5 * talib.ATR(*hlc(a), 10)


EXPECTED: list[tuple[str, Indicator, Callable[[Arrays], Any]]] = [
    ("macd", macd(line="macd"), lambda a: talib.MACD(a["close"])[0]),
    ("macd signal", macd(line="signal"), lambda a: talib.MACD(a["close"])[1]),
    ("macd histogram", macd(line="histogram"), lambda a: talib.MACD(a["close"])[2]),
    ("bollinger upper", bollinger(20, 2.5, line="upper"), lambda a: talib.BBANDS(a["close"], 20, 2.5, 2.5)[0]),
    ("bollinger middle", bollinger(20), lambda a: talib.BBANDS(a["close"], 20)[1]),
    ("bollinger lower", bollinger(20, source="high", line="lower"), lambda a: talib.BBANDS(a["high"], 20)[2]),
    ("adx", adx(14), lambda a: talib.ADX(*hlc(a), 14)),
    ("+DI", adx(14, line="plus"), lambda a: talib.PLUS_DI(*hlc(a), 14)),
    ("-DI", adx(14, line="minus"), lambda a: talib.MINUS_DI(*hlc(a), 14)),
    ("stochastic k", stochastic(14), lambda a: talib.STOCHF(*hlc(a), 14, 1)[0]),
    ("stochastic d", stochastic(14, 3, line="d"), lambda a: talib.STOCHF(*hlc(a), 14, 3)[1]),
    ("keltner upper", keltner(20, 10, 1.5, line="upper"), lambda a: keltner_of(a, 1)),
    ("keltner middle", keltner(20, 10, 1.5), lambda a: keltner_of(a, 0)),
    ("keltner lower", keltner(20, 10, 1.5, line="lower"), lambda a: keltner_of(a, -1)),
    ("donchian upper", donchian(20, line="upper"), lambda a: talib.MAX(a["high"], 20)),
    ("donchian middle", donchian(20), lambda a: (talib.MAX(a["high"], 20) + talib.MIN(a["low"], 20)) / 2),
    ("donchian lower", donchian(20, line="lower"), lambda a: talib.MIN(a["low"], 20)),
    ("vwap", vwap(30), lambda a: rolling(weighted, 30, talib.TYPPRICE(*hlc(a)), a["volume"])),
    ("stddev", stddev(20), lambda a: talib.STDDEV(a["close"], 20)),
    ("roc", roc(10), lambda a: talib.ROC(a["close"], 10)),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "expected"), [row[1:] for row in EXPECTED], ids=[row[0] for row in EXPECTED])
def test_it_agrees_with_ta_lib(
    declared: Indicator, expected: Callable[[Arrays], Any], bars: list[Bar], arrays: Arrays
) -> None:
    ours = [value for value in values(declared, bars)[SETTLED:] if value is not None]
    assert len(ours) == BARS - SETTLED
    assert ours == pytest.approx(expected(arrays)[SETTLED:].tolist(), rel=1e-6, abs=1e-9)


def supertrend_of(a: Arrays, period: int, multiplier: float) -> tuple[list[float], list[float]]:
    """The rule as its author states it: a band moves only towards the price, unless the close has crossed it."""
    width = multiplier * talib.ATR(*hlc(a), period)
    middle, close = (a["high"] + a["low"]) / 2, a["close"]
    upper, lower, trend = middle + width, middle - width, 1.0
    lines, trends = [], []
    for i in range(period + 1, len(close)):
        upper[i] = min(upper[i], upper[i - 1]) if close[i - 1] <= upper[i - 1] else upper[i]
        lower[i] = max(lower[i], lower[i - 1]) if close[i - 1] >= lower[i - 1] else lower[i]
        trend = -1.0 if trend > 0 and close[i] < lower[i] else 1.0 if trend < 0 and close[i] > upper[i] else trend
        lines.append(float(lower[i] if trend > 0 else upper[i]))
        trends.append(trend)
    return lines[-(BARS - SETTLED) :], trends[-(BARS - SETTLED) :]


def test_supertrend_follows_the_rule_of_its_author(bars: list[Bar], arrays: Arrays) -> None:
    lines, trends = supertrend_of(arrays, 10, 1.0)
    assert {*trends} == {1.0, -1.0}, "the walk turns"
    assert values(supertrend(10, 1.0), bars)[SETTLED:] == pytest.approx(lines)
    assert values(supertrend(10, 1.0, line="trend"), bars)[SETTLED:] == trends


EVERY = [*EXPECTED, ("supertrend", supertrend(10), None), ("supertrend trend", supertrend(10, 2, line="trend"), None)]
every = pytest.mark.parametrize("declared", [row[1] for row in EVERY], ids=[row[0] for row in EVERY])


@every
def test_the_first_value_comes_with_the_last_warm_up_bar(declared: Indicator, bars: list[Bar]) -> None:
    found = values(declared, bars)
    first = declared.bars(NO_PARAMS)
    assert found[: first - 1] == [None] * (first - 1)
    assert None not in found[first - 1 :]


@every
def test_columns_in_chunks_equal_bar_by_bar_to_the_last_bit(declared: Indicator, bars: list[Bar]) -> None:
    series = declared.start(NO_PARAMS)
    found: list[float | None] = []
    for first, end in ((0, 1), (1, 45), (45, 333), (333, BARS)):
        rows = [bar[2:] for bar in bars[first:end]]
        found += series.column(Columns(*map(list, zip(*rows, strict=True))))
    assert found == values(declared, bars)


@every
def test_an_indicator_made_from_its_description_has_the_same_values(declared: Indicator, bars: list[Bar]) -> None:
    series = series_of(declared.described(NO_PARAMS))
    assert [series.update(bar) for bar in bars] == values(declared, bars)


def test_a_label_names_the_function_its_numbers_and_its_line() -> None:
    assert bollinger(20, 2.5, line="upper").described(NO_PARAMS).label == "BOLLINGER 20 2.5 upper"


@every
def test_memory_is_bounded_and_changes_no_value(declared: Indicator) -> None:
    bars = list(walk(bars=2_000, seed=9))
    series: Any = declared.start(NO_PARAMS)
    found = [series.update(bar) for bar in bars]
    assert len(series._calculation.input_values) < 6 * (declared.bars(NO_PARAMS) + 30)
    series._kept = sys.maxsize
    keeps: Any = declared.start(NO_PARAMS)
    keeps._kept = sys.maxsize
    assert found == [keeps.update(bar) for bar in bars]


def test_vwap_has_no_value_while_there_is_no_volume() -> None:
    quiet = [Bar("X", i, 1.0, 1.0, 1.0, 1.0, 0.0) for i in range(3)]
    busy = [Bar("X", 3 + i, 2.0, 2.0, 2.0, 2.0, 5.0) for i in range(2)]
    assert values(vwap(2), [*quiet, *busy]) == [None, None, None, 2.0, 2.0]


def test_a_number_may_be_the_name_of_a_param() -> None:
    class Named(Params):
        width: float = Field(2.5, gt=0)
        bars: int = Field(7, ge=2)

    declared = bollinger("bars", "width", line="upper")
    assert declared.bars(Named()) == 7
    assert declared.bars(Named(bars=9)) == 9
    with pytest.raises(StrategyError, match="'widht' is not one of its params"):
        bollinger(20, "widht").bars(Named())


@pytest.mark.parametrize("factor", [0, -1, 101, True, float("nan"), None])
def test_a_multiplier_out_of_its_bounds_is_refused(factor: float) -> None:
    with pytest.raises(StrategyError, match="a multiplier is a number above 0 and at most 100"):
        keltner(20, 10, factor)


def test_an_unknown_line_is_refused() -> None:
    with pytest.raises(StrategyError, match="line is one of lower, middle, upper, not 'top'"):
        donchian(20, line="top")  # type: ignore[arg-type]


def test_without_talipp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "talipp", None)
    with pytest.raises(StrategyError, match=re.escape(install("indicators"))):
        roc(3).start(NO_PARAMS)


# Volumes of a coin whose market dies: none, or a millionth of a millionth.
ENDS = {"none": [0.0] * 60, "next to none": [0.001 * (n % 3) for n in range(60)], "back": [0.0] * 30 + [7e10] * 30}
MEANS = {
    "sma": sma(20, "volume"),
    "ema": ema(20, "volume"),
    "stddev": stddev(20, source="volume"),
    "bollinger middle": bollinger(20, source="volume"),
    "highest": highest(20, "volume"),
    "lowest": lowest(20, "volume"),
}


def of_volume(volumes: Sequence[float]) -> list[Bar]:
    return [Bar("X", n, 1.0, 1.0, 1.0, 1.0, volume) for n, volume in enumerate(volumes)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", MEANS)
def test_a_figure_of_volumes_stays_between_the_least_and_the_largest_of_its_window(name: str, end: str) -> None:
    chance = Random(1)
    volumes = [chance.uniform(1e10, 9e11) for _ in range(500)] + ENDS[end]
    found = values(MEANS[name], of_volume(volumes))
    for row in range(20, len(volumes)):
        window = volumes[row - 19 : row + 1]
        value = found[row]
        assert value is not None
        assert value >= 0
        if name not in ("ema", "stddev"):
            assert min(window) <= value * (1 + 1e-9), row
            assert value <= max(window) * (1 + 1e-9), row
    if end == "none" and name != "ema":
        assert found[-1] == 0
    columns = Columns(*(list(column) for column in zip(*(bar[2:] for bar in of_volume(volumes)), strict=True)))
    assert MEANS[name].start(NO_PARAMS).column(columns) == found


FLAT = [Bar("X", n, 3_300.0, 3_300.0, 3_300.0, 3_300.0, 0.0) for n in range(40)]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (rsi(14), 50.0),
        (stochastic(14, 3), 50.0),
        (stochastic(14, 3, line="d"), 50.0),
        (roc(10), 0.0),
        (macd(), 0.0),
        (stddev(20), 0.0),
        (atr(14), 0.0),
    ],
    ids=["rsi", "stochastic k", "stochastic d", "roc", "macd", "stddev", "atr"],
)
def test_an_oscillator_of_a_market_that_does_not_move_stands_in_its_middle(
    declared: Indicator, expected: float
) -> None:
    assert values(declared, FLAT)[-1] == expected


def test_a_stochastic_is_in_its_middle_only_while_the_range_is_zero() -> None:
    moves = [Bar("X", 40 + n, 3_300.0, 3_300.0 + n, 3_300.0, 3_300.0 + n, 1.0) for n in range(1, 4)]
    assert values(stochastic(5, 3), [*FLAT, *moves])[-4:] == [50.0, 100.0, 100.0, 100.0]
    assert values(stochastic(5, 3, line="d"), [*FLAT, *moves])[-4:] == pytest.approx([50.0, 200 / 3, 250 / 3, 100.0])
