"""Several intervals in one strategy: nothing is seen before its close, and every way of running gives the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from bot import Bar, Bracket, Close, Intent, Open, Strategy, View, atr, ema, highest, sma
from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import resample
from bot.backtest.engine.options import Outage
from bot.clock import INTERVALS
from bot.testing import SessionOptions, assert_causal, backtest
from bot.wire import INTERVAL_MS
from tests.backtest.builders import START_MS, minutes

DAY_BARS = 96


def quarters(count: int, *, seed: int, hole: float = 0.0) -> Candles:
    return minutes(count, interval="15m", seed=seed, hole=hole, vol=0.004)


class Rule(Strategy):
    """Long above the average of the 4h bars while the newest 4h bar rises. The subclasses differ in how they read."""

    # the bars of the hand-made file
    four: ClassVar[list[Bar]] = []

    def slow(self, view: View, bar: Bar) -> tuple[float, float] | None:
        """Average and rise of the 4h bars; None while they are not known."""
        return None

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        read = self.slow(view, bar)
        view.log("read", at=bar.at_ms, value=read)
        if read is None:
            return
        average, rise = read
        held = view.position(bar.market)
        if held is None and bar.close > average and rise > 0:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=3))
        elif held is not None and (bar.close < average or rise < 0):
            yield Close(bar.market)


class Declared(Rule):
    average = sma(5, interval="4h")
    last = highest(1, interval="4h")
    first = highest(1, "open", interval="4h")

    def slow(self, view: View, bar: Bar) -> tuple[float, float] | None:
        average, last, first = (line[bar.market] for line in (self.average, self.last, self.first))
        return None if average is None or last is None or first is None else (average, last - first)


class Viewed(Rule):
    intervals: ClassVar[dict[str, int | str]] = {"4h": 5}

    def slow(self, view: View, bar: Bar) -> tuple[float, float] | None:
        bars = view.bars(bar.market, 5, interval="4h")
        return None if len(bars) < 5 else (sum(one.close for one in bars) / 5, bars[-1].close - bars[-1].open)


class Undeclared(Viewed):
    intervals: ClassVar[dict[str, int | str]] = {}


class TwoFiles(Rule):
    """Reads the second file by hand: the rows that have closed."""

    def slow(self, view: View, bar: Bar) -> tuple[float, float] | None:
        bars = [one for one in self.four if one.at_ms <= bar.at_ms][-5:]
        return None if len(bars) < 5 else (sum(one.close for one in bars) / 5, bars[-1].close - bars[-1].open)


def rows_of(candles: Candles) -> list[Bar]:
    return [Bar("BTC", ts + candles.step_ms, *row) for ts, *row in zip(*candles.columns, strict=True)]


def noted(run: Any) -> list[Any]:
    return [line["fields"] for line in run.log]


def decisions(run: Any) -> list[tuple[Any, ...]]:
    return [(one.side, one.entry_ms, one.exit_ms, one.size, one.pnl_usd) for one in run.trades]


def reads(run: Any) -> list[Any]:
    return [
        (line["at"], None if line["value"] is None else [round(value, 6) for value in line["value"]])
        for line in noted(run)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("skip", [True, False])
def test_the_rule_gives_the_decisions_of_the_same_rule_on_two_files(seed: int, skip: bool):
    candles = quarters(DAY_BARS * 8, seed=seed)
    TwoFiles.four = rows_of(resample(candles, "4h"))
    options = SessionOptions(skip=skip)
    expected = backtest(TwoFiles, candles, options=options)
    assert len(expected.trades) > 5
    for kind in (Declared, Viewed, Undeclared):
        run = backtest(kind, candles, options=options)
        assert decisions(run) == decisions(expected), kind
        assert reads(run) == reads(expected), kind


@pytest.mark.parametrize("kind", [Declared, Viewed, Undeclared])
def test_a_start_inside_the_data_reads_what_an_unbroken_run_reads(kind: type[Rule]):
    candles = quarters(DAY_BARS * 6, seed=4, hole=0.02)
    whole = backtest(kind, candles)
    later = backtest(kind, candles, options=SessionOptions(start_ms=START_MS + 3 * 86_400_000 + 5 * 900_000))
    tail = reads(later)
    assert len(tail) > 200
    assert tail == reads(whole)[-len(tail) :]


def test_a_deep_average_is_there_at_the_start_though_own_bars_are_too_few():
    class Deep(Declared):
        average = ema(400, interval="4h")
        own = atr(3)

    candles = minutes(DAY_BARS * 3 * 75, interval="5m", seed=2, vol=0.001)
    start_ms = candles.at_ms[0] + 70 * 86_400_000
    run = backtest(Deep, candles, options=SessionOptions(start_ms=start_ms))
    first = noted(run)[0]
    assert first["value"] is not None
    four = [bar.close for bar in rows_of(resample(candles, "4h")) if bar.at_ms <= first["at"]]
    value = sum(four[:400]) / 400
    for close in four[400:]:
        value += 2 / 401 * (close - value)
    assert first["value"][0] == pytest.approx(value)


class Cheat(Strategy):
    """Wants the running bar: it trades on whatever the view gives as the newest longer bar and notes how old it is."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        newest = {name: view.bars(bar.market, 1, interval=name) for name in ("30m", "1h", "4h", "1d")}
        view.log("ages", ages={name: bar.at_ms - bars[0].at_ms for name, bars in newest.items() if bars})
        four = newest["4h"]
        if four and not view.position(bar.market):
            side = "long" if four[0].close > four[0].open else "short"
            yield Open(bar.market, side, usd=300, bracket=Bracket(stop_pct=0.5, target_pct=0.5))


def test_a_cheat_that_reads_the_running_bar_gains_nothing():
    run = backtest(Cheat, quarters(DAY_BARS * 6, seed=7))
    ages = [line["ages"] for line in noted(run)]
    for name in ("30m", "1h", "4h", "1d"):
        # At the close of a longer bar it is there, and until the next one closes it stays the newest.
        seen = {age[name] for age in ages if name in age}
        assert seen == set(range(0, INTERVALS[name], INTERVAL_MS["15m"]))
    # Knowing the direction of the running bar would win nearly always.
    won = sum(trade.pnl_usd + trade.fees_usd > 0 for trade in run.trades)
    assert len(run.trades) > 40
    assert won < 0.75 * len(run.trades)


FILE = """
from bot import Bracket, Close, Open, Strategy, sma


class Mine(Strategy):
    slow = sma(5, interval="4h")

    def on_bar(self, view, bar):
        slow, held = self.slow[bar.market], view.position(bar.market)
        rise = view.closes(bar.market, 2, interval="1h")
        if slow and held is None and bar.close > slow and rise[-1] > rise[0]:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=3))
        elif slow and held and bar.close < slow:
            yield Close(bar.market)
"""


def test_the_proof_of_causality_covers_longer_intervals(tmp_path: Path):
    (tmp_path / "mine.py").write_text(FILE)
    run = backtest("mine:Mine", quarters(DAY_BARS * 6, seed=3, hole=0.02), strategies_dir=tmp_path)
    assert_causal(run, cuts=8)


def test_days_of_two_markets_are_kept_apart():
    class Both(Strategy):
        slow = sma(2, interval="1d")

        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            view.log("slow", market=bar.market, at=bar.at_ms, value=self.slow[bar.market])
            view.log("days", market=bar.market, days=view.closes(bar.market, 9, interval="1d"))
            return ()

    files = [minutes(DAY_BARS * 4, interval="15m", market=market, px=px) for market, px in (("BTC", 9e4), ("ETH", 3e3))]
    run = backtest(Both, files)
    for candles in files:
        days = list(resample(candles, "1d").close)
        mine = [line for line in noted(run) if line["market"] == candles.market]
        assert [line["value"] for line in mine if "value" in line][-1] == pytest.approx((days[-1] + days[-2]) / 2)
        assert [line["days"] for line in mine if "days" in line][-1] == days


def seeded(seed: int) -> type[Rule]:
    """A rule with intervals, periods and sources of its own."""
    chance = Random(seed)
    interval = chance.choice(["30m", "1h", "2h", "4h", "6h", "12h", "1d"])
    period = chance.randint(2, 6)
    reader = chance.choice([Declared, Viewed, Undeclared])
    other = chance.choice([sma, ema, highest])(period, chance.choice(["close", "high", "low"]), interval=interval)

    def on_bar(self: Any, view: View, bar: Bar) -> Iterable[Intent]:
        view.log("line", value=self.line[bar.market], closes=view.closes(bar.market, period, interval=interval))
        yield from reader.on_bar(self, view, bar)

    kind: type[Rule] = type("Seeded", (reader,), {"line": other, "on_bar": on_bar, "__module__": __name__})
    return kind


@pytest.mark.soak(worlds=3, full=1_000)
def test_seeded_strategies_give_the_same_on_every_path(worlds: int):
    trades = 0
    for seed in range(worlds):
        kind, candles = seeded(seed), quarters(DAY_BARS * 8, seed=seed, hole=seed % 3 * 0.02)
        runs = [backtest(kind, candles, options=SessionOptions(skip=skip)) for skip in (True, False)]
        assert runs[0].lines == runs[1].lines, seed
        assert json.dumps(runs[0].log) == json.dumps(runs[1].log), seed
        trades += len(runs[0].trades)
    assert trades > worlds


class WithTheOther(Strategy):
    """Trades SOL when BTC, which it reads, is above its own average of hours."""

    slow = sma(3, interval="1h")
    quick = sma(2)

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        newest, hours = view.bars("BTC", 1), view.bars("BTC", 2, interval="1h")
        slow = self.slow["BTC"]
        view.log(
            "read", own=bar.market, at=bar.at_ms, newest=newest[0].at_ms if newest else None, quick=self.quick["BTC"]
        )
        if slow is None or len(hours) < 2:
            return
        held = view.position(bar.market)
        if held is None and newest[0].close > slow:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=3))
        elif held is not None and newest[0].close < slow:
            yield Close(bar.market)


@pytest.mark.parametrize("traded", ["AAVE", "SOL"])
def test_the_bars_of_an_informative_market_come_first_and_are_not_traded(traded: str):
    files = [
        minutes(DAY_BARS * 5, interval="15m", market=market, px=px, vol=0.004, seed=6)
        for market, px in (("BTC", 9e4), (traded, 150.0))
    ]
    run = backtest(WithTheOther, files, informative=["BTC"])
    read = noted(run)
    assert {line["own"] for line in read} == {traded}
    assert all(line["newest"] == line["at"] for line in read)
    closes = dict(zip((ts + files[0].step_ms for ts in files[0].at_ms), files[0].close, strict=True))
    last = read[-1]
    assert last["quick"] == pytest.approx((closes[last["at"]] + closes[last["at"] - 900_000]) / 2)
    assert {trade.market for trade in run.trades} == {traded}
    assert len(run.trades) > 5
    slowly = backtest(WithTheOther, files, informative=["BTC"], options=SessionOptions(skip=False))
    assert slowly.lines == run.lines


class Foreign(Strategy):
    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        yield Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=3))


def test_an_entry_in_an_informative_market_is_refused():
    files = [minutes(20, market=market, px=px) for market, px in (("BTC", 9e4), ("ETH", 3e3))]
    run = backtest(Foreign, files, informative=["BTC"])
    assert run.trades == ()
    assert set(run.result.failures.refusals) == {"market_not_yours"}


def test_the_proof_of_causality_covers_informative_markets(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        FILE.replace("self.slow[bar.market]", 'self.slow["BTC"]').replace("bar.close", 'view.closes("BTC", 1)[0]')
    )
    files = [
        minutes(DAY_BARS * 5, interval="15m", market=market, px=px, vol=0.004, hole=0.02)
        for market, px in (("BTC", 9e4), ("SOL", 150.0))
    ]
    run = backtest("mine:Mine", files, strategies_dir=tmp_path, informative=["BTC"])
    assert_causal(run, cuts=6)


@pytest.mark.parametrize("kind", [Declared, Viewed])
@pytest.mark.parametrize("skip", [True, False])
def test_after_an_outage_a_strategy_reads_what_it_would_have_read(kind: type[Rule], skip: bool):
    candles = quarters(DAY_BARS * 6, seed=5, hole=0.01)
    outage = Outage(candles.at_ms[300] + 60_000, 5 * 3_600_000)
    whole = dict(reads(backtest(kind, candles, options=SessionOptions(skip=skip))))
    broken = reads(backtest(kind, candles, options=SessionOptions(skip=skip, outages=(outage,))))
    after = [(at_ms, value) for at_ms, value in broken if at_ms > outage.end_ms]
    assert len(after) > 200
    assert after == [(at_ms, whole[at_ms]) for at_ms, _ in after]
