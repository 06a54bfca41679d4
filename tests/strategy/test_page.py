"""The page an author learns: Strategy, View, History."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pydantic
import pytest

from bot.strategy import Bar, Bracket, Field, History, Intent, Open, Params, Strategy, Timer, View, sma
from tests.strategy.toy import Toy, ToySource, walk


class Momentum(Strategy):
    """Buy a market whose close is above its close `lookback` bars ago; one position a market."""

    class Params(Params):
        lookback: int = Field(20, ge=2, le=500)
        usd: float = Field(100, gt=0)
        stop_pct: float = Field(2, gt=0, le=50)

    warmup = "lookback"

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market):
            return
        closes = view.closes(bar.market, self.params.lookback)
        if len(closes) == self.params.lookback and closes[-1] > closes[0]:
            yield Open(
                bar.market, "long", usd=self.params.usd, bracket=Bracket(stop_pct=self.params.stop_pct, target_r=2)
            )


def test_the_strategy_of_the_architecture_page_runs() -> None:
    toy = Toy(Momentum(name="m", markets=["BTC"], params={"lookback": 5})).run(walk(bars=600, sigma=0.006))
    assert toy.intents
    assert all(isinstance(one, Open) for one in toy.intents)
    assert set(toy.exits) == {"stop", "target"}


def test_params_are_checked_against_their_bounds_and_frozen() -> None:
    for bad in ({"lookback": 1}, {"lookbak": 5}, {"usd": float("nan")}, {"usd": None}):
        with pytest.raises(pydantic.ValidationError):
            Momentum(name="m", markets=["BTC"], params=bad)
    one = Momentum(name="m", markets=["BTC"])
    assert one.params.lookback == 20
    with pytest.raises(pydantic.ValidationError):
        one.params.lookback = 3


def test_warmup_may_name_a_param() -> None:
    assert Momentum(name="m", markets=["BTC"]).warmup_bars == 20
    assert Momentum(name="m", markets=["BTC"], params={"lookback": 100}).warmup_bars == 100


def test_hooks_left_out_do_nothing() -> None:
    one = Momentum(name="m", markets=["BTC"])
    view = View(ToySource(["BTC"]))
    one.on_start(view)
    one.on_stop(view)
    assert list(one.on_timer(view, Timer("hourly", 0))) == []
    assert one.confirm(None) is True  # type: ignore[arg-type]


def test_a_subclass_inherits_and_replaces_declared_indicators() -> None:
    class Slower(Momentum):
        fast = sma(5)

    class Slowest(Slower):
        fast = sma(9)

    class Without(Slower):
        fast = None  # type: ignore[assignment]

    assert Slowest(name="s", markets=["BTC"], params={"lookback": 2}).warmup_bars == 9
    assert Without(name="w", markets=["BTC"]).indicators.names == ()


def test_a_strategy_without_on_bar_cannot_be_made() -> None:
    class Lazy(Strategy):
        pass

    with pytest.raises(TypeError, match="on_bar"):
        Lazy(name="l", markets=[])  # type: ignore[abstract]


def test_history_gives_at_most_n_newest_last_and_never_its_own_list() -> None:
    history = History("BTC", limit=10)
    bars = list(walk(bars=37))
    for i, bar in enumerate(bars, 1):
        history.append(bar)
        assert len(history) == min(i, 10)
        assert history.bars(4) == bars[max(0, i - 4) : i]
        assert history.closes(99) == [one.close for one in bars[max(0, i - 10) : i]]
        assert history.last_at_ms == bar.at_ms
    assert history.highs(2) == [bars[-2].high, bars[-1].high]
    assert history.opens(1) + history.lows(1) + history.volumes(1) == [bars[-1].open, bars[-1].low, bars[-1].volume]
    assert history.closes(0) == []
    history.closes(5).clear()
    assert len(history.closes(5)) == 5


def test_history_refuses_a_negative_number_and_a_bar_out_of_order() -> None:
    history = History("BTC")
    bars = list(walk(bars=2))
    history.append(bars[1])
    with pytest.raises(ValueError, match="0 or more"):
        history.closes(-1)
    with pytest.raises(AssertionError, match="order of time"):
        history.append(bars[0])


def test_a_view_shows_its_source_and_writes_only_state_and_log() -> None:
    source = ToySource(["BTC"])
    view = View(source)
    for bar in walk(bars=3):
        source.histories["BTC"].append(bar)
        source.now_ms = bar.at_ms
    assert view.now_ms == 180_000
    assert (view.equity_usd, view.free_margin_usd) == (10_000.0, 10_000.0)
    assert [bar.at_ms for bar in view.bars("BTC", 2)] == [120_000, 180_000]
    assert len(view.closes("BTC", 10)) == len(view.opens("BTC", 10)) == len(view.volumes("BTC", 10)) == 3
    assert view.highs("BTC", 1)[0] >= view.lows("BTC", 1)[0]
    assert list(view.orders("BTC")) == []
    view.state["seen"] = 1
    view.log("signal.seen", market="BTC")
    assert source.state == {"seen": 1}
    assert source.lines == [("signal.seen", {"market": "BTC"})]
    with pytest.raises(AttributeError):
        view.now_ms = 5  # type: ignore[misc]


def test_the_page_brings_no_transport_with_it() -> None:
    program = "import sys; import bot.strategy; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(out.stdout.split()) & {
        "httpx",
        "starlette",
        "sqlite3",
        "structlog",
        "bot.venue",
        "bot.service",
        "bot.client",
    }
