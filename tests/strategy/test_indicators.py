"""Declared indicators: by hand, against talipp, and the one formula live and in columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talipp import indicators as oracle
from talipp.ohlcv import OHLCV

from bot.errors import StrategyError
from bot.strategy import Bar, Field, Intent, Params, Strategy, View, atr, ema, highest, lowest, rsi, sma
from bot.strategy.indicators import Atr, Columns, Ema, Highest, Indicators, Lowest, Rsi, Series, Sma
from tests.strategy.toy import walk

KINDS: list[Callable[[int], Series]] = [Sma, Ema, Rsi, Atr, Highest, Lowest]


def columns(bars: list[Bar]) -> Columns:
    return (
        Columns(*(list(column) for column in zip(*(bar[2:] for bar in bars), strict=True)))
        if bars
        else Columns(*([],) * 5)
    )


def after(series: Series, closes: Iterable[float]) -> list[float | None]:
    return [series.step(x) for x in closes]


def test_sma_is_the_mean_of_the_last_n() -> None:
    assert after(Sma(3), [1, 2, 6, 10]) == [None, None, 3.0, 6.0]


def test_ema_starts_with_the_mean_and_moves_by_its_weight() -> None:
    # n = 3: weight 1/2. Mean of 1, 2, 6 is 3; then halfway to 10, then halfway to 0.5.
    assert after(Ema(3), [1, 2, 6, 10, 0.5]) == [None, None, 3.0, 6.5, 3.5]


def test_rsi_is_wilders() -> None:
    # Changes +1, +1, -2: means 2/3 and 2/3 -> 50. Then +2: U = (4/3 + 2)/3 = 10/9, D = (4/3)/3 = 4/9 -> 100 * 10/14.
    assert after(Rsi(3), [10, 11, 12, 10, 12]) == [None, None, None, 50.0, pytest.approx(100 * 10 / 14)]


def test_rsi_of_a_market_that_only_rises_is_100_only_falls_0_never_moves_50() -> None:
    assert after(Rsi(2), [1, 2, 3])[-1] == 100.0
    assert after(Rsi(2), [3, 2, 1])[-1] == 0.0
    assert after(Rsi(2), [1, 1, 1])[-1] == 50.0


def test_atr_takes_the_gap_from_the_last_close_into_the_range() -> None:
    atr3 = Atr(2)
    bars = [Bar("X", 1, 10, 12, 10, 11, 0), Bar("X", 2, 15, 16, 15, 15, 0), Bar("X", 3, 9, 10, 9, 9, 0)]
    # True ranges 2, 16 - 11 = 5, 15 - 9 = 6; mean of two is 3.5, then (3.5 * 1 + 6) / 2.
    assert [atr3.update(bar) for bar in bars] == [None, 3.5, 4.75]


def test_highest_and_lowest_include_the_present_bar_and_forget_the_old() -> None:
    closes = [5, 1, 4, 2, 3, 3]
    assert after(Highest(3), closes) == [None, None, 5, 4, 4, 3]
    assert after(Lowest(3), closes) == [None, None, 1, 1, 2, 2]


@pytest.mark.parametrize("n", [1, 2, 14, 50])
def test_they_agree_with_talipp(n: int) -> None:
    bars = list(walk(bars=400, seed=n))
    closes = [bar.close for bar in bars]
    rows = [OHLCV(bar.open, bar.high, bar.low, bar.close, bar.volume) for bar in bars]
    pairs: list[tuple[Series, list[float | None]]] = [
        (Sma(n), list(oracle.SMA(n, closes))),
        (Ema(n), list(oracle.EMA(n, closes))),
        (Atr(n), list(oracle.ATR(n, rows))),
    ]
    # talipp divides by n - 1.
    if n > 1:
        pairs.append((Rsi(n), list(oracle.RSI(n, closes))))
    for series, expected in pairs:
        ours = [series.update(bar) for bar in bars]
        assert [one is None for one in ours] == [one is None for one in expected]
        assert [one for one in ours if one is not None] == pytest.approx(
            [one for one in expected if one is not None], rel=1e-9
        )


@pytest.mark.parametrize("n", [1, 2, 7])
def test_highest_and_lowest_agree_with_a_look_at_the_window(n: int) -> None:
    closes = [bar.close for bar in walk(bars=200)]
    for i, (high, low) in enumerate(zip(after(Highest(n), closes), after(Lowest(n), closes), strict=True)):
        window = closes[max(0, i - n + 1) : i + 1]
        if len(window) == n:
            assert (high, low) == (max(window), min(window))


price = st.floats(min_value=1e-6, max_value=1e9, allow_nan=False)
row = st.tuples(price, price, price, price, st.floats(min_value=0, max_value=1e9))


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 12),
    rows=st.lists(row, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_columns_in_any_chunks_equal_bar_by_bar_to_the_last_bit(
    kind: Callable[[int], Series], n: int, rows: list[tuple[float, ...]], cuts: list[int]
) -> None:
    bars = [Bar("X", i + 1, *one) for i, one in enumerate(rows)]
    live, session = kind(n), kind(n)
    expected = [live.update(bar) for bar in bars]
    got: list[float | None] = []
    for a, b in itertools.pairwise([0, *sorted(min(cut, len(bars)) for cut in cuts), len(bars)]):
        got += session.column(columns(bars[a:b]))
    assert [None if one is None else one.hex() for one in map(_float, got)] == [
        None if one is None else one.hex() for one in map(_float, expected)
    ]
    # And on: after any columns, live goes on from there.
    assert live.update(Bar("X", 99, 1, 2, 1, 1.5, 3)) == session.update(Bar("X", 99, 1, 2, 1, 1.5, 3))


def _float(x: float | None) -> float | None:
    return None if x is None else float(x)


def test_the_running_sum_of_sma_equals_a_cumulative_sum_of_differences() -> None:
    numpy = pytest.importorskip("numpy")
    closes = [bar.close for bar in walk(bars=5_000, seed=3)]
    old = [0.0] * 20 + closes[:-20]
    by_numpy = numpy.cumsum(numpy.array(closes) - numpy.array(old)) / 20
    assert after(Sma(20), closes)[19:] == by_numpy[19:].tolist()


class Declares(Strategy):
    class Params(Params):
        slow_bars: int = Field(5, ge=2)

    fast = sma(2)
    slow = ema("slow_bars", source="high")
    strength = rsi(4)
    width = atr(3)
    top, bottom = highest(3, source="high"), lowest(3, source="low")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        return ()


def test_a_declared_indicator_is_read_by_market() -> None:
    one = Declares(name="d", markets=["BTC", "ETH"])
    assert one.fast["BTC"] is None
    for close in (1.0, 3.0):
        one.indicators.update(Bar("BTC", int(close), close, close, close, close, 1))
    assert one.fast["BTC"] == 2.0
    assert one.fast["ETH"] is None
    with pytest.raises(StrategyError, match="'DOGE' is not one of this strategy's: BTC, ETH"):
        one.fast["DOGE"]


def test_two_strategies_of_one_class_share_no_state() -> None:
    one, two = Declares(name="1", markets=["BTC"]), Declares(name="2", markets=["BTC"])
    for i in (1, 2):
        one.indicators.update(Bar("BTC", i, 1, 1, 1, 1, 1))
    assert (one.fast["BTC"], two.fast["BTC"]) == (1.0, None)


def test_warmup_is_what_the_slowest_needs_with_its_param() -> None:
    assert Declares(name="d", markets=["BTC"]).warmup_bars == 5
    assert Declares(name="d", markets=["BTC"], params={"slow_bars": 30}).warmup_bars == 30
    bars = list(walk(bars=5))
    one = Declares(name="d", markets=["BTC"])
    for bar in bars:
        one.indicators.update(bar)
    assert all(values["BTC"] is not None for values in one.indicators.values.values())


def test_a_chunk_of_a_session_gives_the_values_that_live_would_have_had() -> None:
    bars = list(walk(bars=100))
    live, session = Declares(name="l", markets=["BTC"]), Declares(name="s", markets=["BTC"])
    seen = []
    for bar in bars:
        live.indicators.update(bar)
        seen.append([live.indicators.values[name]["BTC"] for name in live.indicators.names])
    parts = [session.indicators.columns("BTC", columns(bars[a:b])) for a, b in ((0, 33), (33, 100))]
    assert seen == [list(row) for part in parts for row in zip(*(column for _, column in part), strict=True)]


@pytest.mark.parametrize("period", [0, -1, 1001, 2.5, True, None])
def test_a_period_that_is_no_number_of_bars_is_refused(period: int) -> None:
    with pytest.raises(StrategyError, match="a period is a whole number"):
        sma(period)


def test_a_period_that_names_no_param_is_refused() -> None:
    class Wrong(Declares):
        other = sma("slow_barz")

    with pytest.raises(StrategyError, match="other: 'slow_barz' is not one of its params"):
        Wrong(name="w", markets=["BTC"])


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(StrategyError, match="source is one of open, high, low, close, volume"):
        sma(3, source="mid")  # type: ignore[arg-type]


def test_the_calculation_of_an_indicator_stands_alone() -> None:
    values = Indicators({"fast": sma(1)}, ["BTC"], Declares.Params())
    values.update(Bar("BTC", 1, 1, 1, 1, 7, 1))
    assert values.values["fast"]["BTC"] == 7
