"""The kit for authors of strategies: bars, a backtest in one call, and assertions that fail for the right reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bot import Bar, Bracket, Close, Intent, Open, Strategy, TrailingStop, View
from bot.errors import ConfigError
from bot.testing import (
    MarketRules,
    SessionOptions,
    assert_causal,
    assert_flat,
    assert_opened,
    assert_protected,
    backtest,
    bars,
    flat,
    ramp,
    walk,
    wave,
)
from tests.documents import PAGES, README, blocks

# A rise of 0.5 %, then a bar whose high reaches a target of 1 %.
RISE = [*flat(100_000, 3), 100_500.0, (100_500.0, 102_000.0, 100_400.0, 100_450.0), *flat(100_450, 2)]


class Follows(Strategy):
    """Buys after a rise of 0.2 %, with the bracket of its class."""

    bracket: Bracket | None = Bracket(stop_pct=1, target_pct=1)
    guardians: tuple[TrailingStop, ...] = ()

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        closes = view.closes(bar.market, 2)
        if len(closes) == 2 and closes[1] > closes[0] * 1.002 and not view.position(bar.market):
            view.log("rise", px=bar.close)
            yield Open(bar.market, "long", usd=200, bracket=self.bracket, guardians=self.guardians)


class Bare(Follows):
    bracket = None


class Trailed(Bare):
    guardians = (TrailingStop(trail_pct=1),)


class Adds(Strategy):
    """Adds to its position at 100,000, until that is larger than a thin book."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if bar.close == 100_000:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=1))


class Rests(Strategy):
    """Leaves a limit order that is never filled."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if not view.orders(bar.market):
            yield Open(bar.market, "long", usd=100, limit_px=bar.close * 0.9, bracket=Bracket(stop_pct=1))


class Breaks(Strategy):
    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        raise RuntimeError("a mistake")


# ── Bars ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bar_opens_at_the_close_before_it_unless_it_is_given_whole() -> None:
    made = bars([100, 101, (103, 105, 102, 104), 103], market="ETH", interval="5m", start="2026-02-03T04:05")
    assert (made.market, made.interval) == ("ETH", "5m")
    assert list(made.at_ms) == [1_770_091_500_000 + n * 300_000 for n in range(4)]
    rows = list(zip(made.open, made.high, made.low, made.close, strict=True))
    assert rows == [(100, 100, 100, 100), (100, 101, 100, 101), (103, 105, 102, 104), (104, 104, 103, 103)]


def test_closes_by_rule() -> None:
    assert flat(5, 3) == [5, 5, 5]
    assert ramp(100, 106, 3) == [102, 104, 106]
    assert wave(100, 10, 4, 8) == [110, 100, 90, 100, 110, 100, 90, 100]
    assert walk(100, 50, seed=1) == walk(100, 50, seed=1) != walk(100, 50, seed=2)
    assert 90 < min(walk(100, 200, volatility=0.001)) < 100


@pytest.mark.parametrize(
    ("closes", "more", "said"),
    [
        ([], {}, "at least one close"),
        ([100, -1], {}, "bar 1: open 100"),
        ([(100, 99, 98, 100)], {}, "the high is the highest"),
        ([(100, 101, 99)], {}, r"give \(open, high, low, close\)"),
        ([float("nan")], {}, "prices are above 0"),
        ([100], {"interval": "7m"}, "interval '7m' is not known"),
        ([100], {"interval": "1h", "start": "2026-01-01T00:05"}, "is not the beginning of a 1h bar"),
    ],
)
def test_bars_that_cannot_be_are_refused(closes: list[float], more: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bars(closes, **more)


# ── Backtests and assertions ────────────────────────────────────────────────────────────────────────────────────────


def test_a_strategy_is_run_in_one_call_and_its_trade_can_be_read() -> None:
    run = backtest(Follows, bars(RISE))
    (trade,) = run.trades
    assert (trade.market, trade.side, trade.exit_kind, trade.is_open) == ("BTC", "long", "take_profit", False)
    assert trade.entry_px * 0.989 < (trade.stop_px or 0) < trade.entry_px < (trade.target_px or 0)
    assert trade.pnl_usd == pytest.approx(run.result.end_usd - 10_000)
    assert trade.r == pytest.approx(trade.pnl_usd / (trade.size * (trade.entry_px - (trade.stop_px or 0))), rel=1e-6)
    assert [line["event"] for line in run.log][:1] == ["rise"]
    assert {event.type for event in run.events} == {"account", "order", "fill", "trigger"}
    assert_opened(run)
    assert_opened(run, "BTC", side="long", count=1)
    assert_opened(run, side="short", count=0)
    assert_protected(run)
    assert_flat(run)


def test_options_and_params_of_the_config_apply() -> None:
    free = {"": MarketRules(taker=0, maker=0)}
    assert backtest(Follows, bars(RISE), options=SessionOptions(rules=free)).trades[0].fees_usd == 0
    with pytest.raises(ConfigError, match="unknown param"):
        backtest(Follows, bars(RISE), params={"usd": 5})
    with pytest.raises(ValueError, match=r"backtest: budget_usd: must be > 0, <= 1000000000$"):
        backtest(Follows, bars(RISE), budget_usd=0)
    with pytest.raises(ValueError, match="candles is empty"):
        backtest(Follows, [])
    with pytest.raises(AssertionError, match=r"quarantined: tested: RuntimeError: a mistake \(.*test_kit"):
        backtest(Breaks, bars(RISE))


def test_several_markets_and_longer_bars() -> None:
    candles = [bars(RISE), bars([*flat(2_500, 3), 2_520, *flat(2_520, 3)], market="ETH")]
    run = backtest(Follows, candles)
    assert_opened(run, "ETH", count=1)
    assert {trade.market for trade in run.trades} == {"BTC", "ETH"}
    assert {len(one.log) for one in (run, backtest(Follows, candles, interval="5m"))} == {2, 0}


def test_assert_opened_says_why_nothing_opened() -> None:
    run = backtest(Follows, bars(RISE), budget_usd=50)
    with pytest.raises(
        AssertionError, match=r"expected 1 long position in BTC, and 0 opened.*over_budget.*more than the 50.00 USD"
    ):
        assert_opened(run, "BTC", side="long", count=1)
    with pytest.raises(AssertionError, match=r"expected 2 positions, and 1 opened.*take_profit at"):
        assert_opened(backtest(Follows, bars(RISE)), count=2)


def test_assert_protected_finds_a_position_without_a_stop() -> None:
    allowed = {"safety": {"require_protection": False}}
    run = backtest(Bare, bars(RISE), config=allowed)
    assert_opened(run)
    with pytest.raises(AssertionError, match=r"the long position of 0.00199 BTC had no stop .* at 2026-01-01T00:0"):
        assert_protected(run)
    assert_protected(backtest(Trailed, bars(RISE), config=allowed))
    with pytest.raises(AssertionError, match="no position was opened, so no stop was tested"):
        assert_protected(backtest(Bare, bars(RISE)))


def test_a_stop_that_a_thin_book_fills_over_several_bars_protects_until_the_end() -> None:
    thin = SessionOptions(rules={"": MarketRules(depth_usd=5)})
    run = backtest(Adds, bars([*flat(100_000, 8), *flat(98_900, 12)]), options=thin)
    exits = {event.ts for event in run.events if event.type == "fill" and event.subtype == "exit"}
    assert (run.trades[0].exit_kind, len(exits)) == ("stop_loss", 3)
    assert_protected(run)


def test_assert_flat_finds_positions_and_resting_entries() -> None:
    with pytest.raises(AssertionError, match=r"there is BTC long 0.00199 at 10\d+ .*still open"):
        assert_flat(backtest(Follows, bars([*RISE[:4], 100_500])))
    run = backtest(Rests, bars(RISE))
    with pytest.raises(AssertionError, match="there is an order to open long"):
        assert_flat(run)
    assert_flat(run, "ETH")


# ── Causality ───────────────────────────────────────────────────────────────────────────────────────────────────────

CHEAT = """
import json
from pathlib import Path
from bot import Bracket, Close, Open, Strategy
{at_import}

class Cheat(Strategy):
    def on_bar(self, view, bar):
        {reads}
        later = closes[min(len(closes) - 1, closes.index(bar.close) + 3)]
        held = view.position(bar.market)
        if later > bar.close and not held:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2, target_pct=3))
        elif later < bar.close and held:
            yield Close(bar.market)
"""
FILE = "Path(__file__).with_name('closes.json').read_text()"
CLOSES = walk(100_000, 120, seed=5)


@pytest.mark.parametrize(
    ("at_import", "reads"), [("", f"closes = json.loads({FILE})"), (f"LATER = json.loads({FILE})", "closes = LATER")]
)
def test_a_strategy_that_trades_on_closes_of_a_file_is_not_causal(tmp_path: Path, at_import: str, reads: str) -> None:
    (tmp_path / "closes.json").write_text(json.dumps(CLOSES))
    (tmp_path / "cheat.py").write_text(CHEAT.format(at_import=at_import, reads=reads))
    run = backtest("cheat:Cheat", bars(CLOSES), strategies_dir=tmp_path)
    assert len(run.trades) > 10
    with pytest.raises(AssertionError, match=r"not proved causal: the strategy reads .*closes.json, and cutting"):
        assert_causal(run)


def test_assert_causal_passes_a_sound_strategy_and_finds_a_clock_and_later_bars() -> None:
    class Clocked(Follows):
        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            import time

            time.time()
            return super().on_bar(view, bar)

    class Ahead(Strategy):
        """Knows the number of bars of this test, so it decides by what comes later."""

        seen: ClassVar[list[int]] = []

        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            if bar.at_ms not in self.seen:
                self.seen.append(bar.at_ms)
            after = self.seen.index(bar.at_ms) + 1 < len(self.seen)
            if view.position(bar.market):
                yield Close(bar.market)
            elif after or bar.at_ms % 300_000 == 0:
                yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=1))

    candles = bars(walk(100_000, 100, volatility=0.002))
    assert_causal(backtest(Follows, candles))
    with pytest.raises(AssertionError, match=r"the strategy reads the clock \(time.time\)"):
        assert_causal(backtest(Clocked, candles))
    with pytest.raises(AssertionError, match=r"not causal: event \d+: with all data"):
        assert_causal(backtest(Ahead, candles))


def test_assert_causal_does_not_pass_what_it_could_not_test() -> None:
    with pytest.raises(AssertionError, match="no position was opened, so nothing was proved"):
        assert_causal(backtest(Follows, bars(flat(100_000, 50))))

    class AtOnce(Strategy):
        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=1))

    short = backtest(AtOnce, bars(flat(100_000, 2)), options=SessionOptions(seed=2))
    with pytest.raises(AssertionError, match="2 bars are too few for a cut, so nothing was proved"):
        assert_causal(short, cuts=1)


# ── Documentation ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tests_of_the_strategy_page_pass_with_the_strategy_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (strategy,), (tests,) = blocks("python", README.read_text()), blocks("py", PAGES["strategies"])
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "breakout.py").write_text(strategy)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(tests, names)
    examples = [one for name, one in names.items() if name.startswith("test_")]
    assert len(examples) == 3
    for example in examples:
        example()


def test_the_page_names_all_that_the_kit_offers() -> None:
    import bot.testing

    missing = [name for name in bot.testing.__all__ if name not in ("Run", "Trade", "MarketRules", "Settlement")]
    assert [name for name in missing if f"`{name}" not in PAGES["strategies"]] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = bot.testing.nothing
