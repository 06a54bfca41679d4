"""A backtest that shows the venue every bar and one that skips quiet bars have the same events: one or many markets
and intervals, guardians, funding, gaps.
"""

from __future__ import annotations

import gc
import io
import threading
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from itertools import accumulate, chain, product, repeat
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.engine import candle_readers, progress
from bot.backtest.engine.driver import local
from bot.backtest.engine.memory_journal import MemoryJournal
from bot.backtest.engine.options import PATHS, Outage, SessionOptions
from bot.backtest.engine.simulated_exchange import ADDRESS
from bot.backtest.results.run_writer import write
from bot.cli.backtest.summary import summary_lines
from bot.clock import HOUR_MS
from bot.config import Settings
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, Open, Timer, View, sma
from tests.backtest.builders import MINUTE_MS, START_MS, Ran, Scripted, busy, minutes, placing, ran, settings

DRAWDOWN = [{"type": "account_drawdown", "max_loss_pct_from_day_start": 2, "action": "flatten"}]


def kinds(one: Ran) -> Counter[str]:
    return one.result.trade_ledger.kinds


def rates_of(hours: int) -> dict[str, list[tuple[int, int]]]:
    """Recorded funding of one market that changes with each hour."""
    return {"BTC": [(START_MS + n * HOUR_MS, 12_500_000 + n * 1_000_000) for n in range(hours)]}


@pytest.mark.soak(worlds=2, full=300)
def test_bars_skipped_and_bars_fed_give_the_same_events(worlds: int, base_seed: int):
    for world in range(base_seed, base_seed + worlds):
        _one_market(world)


def _one_market(world: int) -> None:
    candles = [minutes(1_500, seed=world, hole=0.01 if world % 2 else 0.0)]
    rates = rates_of(24)
    path = PATHS[world % len(PATHS)]
    made = settings(dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"}, guardians=DRAWDOWN)
    skipped, fed = (ran(candles, made=made, rates=rates, path=path, skip=skip) for skip in (True, False))
    assert skipped.lines == fed.lines
    assert skipped.digest == fed.digest
    assert skipped.result.stats.touched < fed.result.stats.touched == len(candles[0])
    assert sum(kinds(skipped).values()) > 10


def test_a_strategy_that_becomes_slow_can_be_stopped_before_the_end_of_its_chunk():
    """From bar 5,000 on each decision takes 5 ms; the chunk in which that begins has 3,000 more of them."""
    slow = 0

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        nonlocal slow
        if (bar.at_ms - START_MS) // MINUTE_MS >= 5_000:
            slow += 1
            threading.Event().wait(0.005)
        return ()

    alone = ran([minutes(10_000)], script=script, progress=lambda _done, _of: not slow)
    assert (alone.result.stats.is_partial, slow < 600) == (True, True), slow
    slow = 0
    both = [minutes(10_000), minutes(10_000, market="ETH", px=2_500.0)]
    together = ran(both, script=script, progress=lambda _done, _of: not slow)
    assert (together.result.stats.is_partial, slow < 600) == (True, True), slow


# earlier candles are history
PAST_MS = START_MS + 2_000 * MINUTE_MS
DOWN = Outage(PAST_MS + 100 * MINUTE_MS, 100 * MINUTE_MS)


@pytest.mark.parametrize(
    ("newest_ms", "outages", "bars"), [(PAST_MS, (), 0), (0, (DOWN,), 200)], ids=["start", "outage"]
)
def test_a_long_warm_up_can_be_stopped_at_once(newest_ms: int, outages: tuple[Outage, ...], bars: int, tmp_path: Path):
    """A warm-up of a thousand bars, each taking 5 ms: before the first decision, or after an outage."""
    slow = 0

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        nonlocal slow, newest_ms
        if bar.at_ms <= newest_ms:
            slow += 1
            threading.Event().wait(0.005)
        newest_ms = max(newest_ms, bar.at_ms)
        return ()

    one = ran([minutes(3_000)], script=script, start_ms=PAST_MS, outages=outages, progress=lambda _done, _of: not slow)
    stats = one.result.stats
    assert (stats.is_partial, stats.bars, slow < 300) == (True, bars, True), slow
    write(tmp_path, one.result, {})
    assert summary_lines(one.result, [])


def test_a_backtest_whose_granted_bars_are_withdrawn_continues_there(monkeypatch: pytest.MonkeyPatch):
    """Indicators are computed for whole chunks, and each chunk's values are used to its end."""

    class Crossed(Scripted):
        average = sma(5)

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        average = crossed[0].average[bar.market]
        if average is not None and (bar.close > average) == (view.position(bar.market) is None):
            held = view.position(bar.market)
            yield Close(bar.market) if held else Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=1))

    crossed: list[Crossed] = []

    def place(made: Settings) -> list[StrategySpec]:
        (one,) = placing(script)(made)
        crossed[:] = [Crossed(script, name="s0", markets=("BTC",))]
        return [one._replace(strategy=crossed[0])]

    def lived() -> list[str]:
        lines = io.StringIO()
        Backtest(settings(), [minutes(3_000, seed=4)], SessionOptions(), place=place).run(events=lines)
        return lines.getvalue().splitlines()

    whole, handed = lived(), 0

    def grant(self: progress.ProgressPolling, coin: str, count: int) -> list[str]:
        nonlocal handed
        handed += 1
        return [coin] * min(count, 1 + handed % 7)

    monkeypatch.setattr(progress.ProgressPolling, "grant", grant)
    assert lived() == whole
    assert len(whole) > 300
    assert handed > 500


@pytest.mark.soak(worlds=2, full=200)
def test_bars_of_several_markets_skipped_and_fed_give_the_same_events(worlds: int, base_seed: int):
    for world in range(base_seed, base_seed + worlds):
        _several_markets(world)


def _several_markets(world: int) -> None:
    candles = [
        minutes(700, seed=world, market="BTC"),
        minutes(700, seed=world, market="ETH", px=2_500, vol=0.001, hole=0.02),
        minutes(140, seed=world, market="SOL", px=170, vol=0.002, interval="5m", decimals=3),
    ]
    markets = ("BTC", "ETH")
    made = settings(markets, guardians=DRAWDOWN)
    five = {"name": "five", "use": "x", "markets": ["SOL"], "interval": "5m", "budget_usd": 1_000, "max_leverage": 3}
    made = type(made).model_validate(made.model_dump() | {"strategies": [*made.model_dump()["strategies"], five]})
    skipped, fed = (ran(candles, made=made, skip=skip) for skip in (True, False))
    assert skipped.lines == fed.lines
    assert {trip.coin for trip in skipped.result.trade_ledger.trips} == {"BTC", "ETH", "SOL"}


class Between(Scripted):
    """Trades its market with longer bars also inside a bar, by a timer: at market, with a resting order, and out
    again.
    """

    timers: ClassVar[dict[str, str]] = {"look": "*/7 * * * *"}

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        number = timer.at_ms // (7 * MINUTE_MS)
        last = next(iter(view.closes("BTC", 1)), None)
        if last is None or number % 5 > 3:
            return
        if view.position("BTC") is not None:
            yield Close("BTC", fraction=0.5 if number % 2 else 1.0)
        elif not view.orders("BTC"):
            limit = float(f"{last * 0.9995:.5g}") if number % 3 else None
            yield Open("BTC", "long", usd=40_000, limit_px=limit, bracket=Bracket(stop_pct=0.4, target_pct=0.5))
        elif number % 4 == 0:
            yield Cancel(market="BTC")


@pytest.mark.soak(worlds=2, full=200)
def test_bars_of_different_lengths_skipped_and_fed_give_the_same_events(worlds: int, base_seed: int):
    for world in range(base_seed, base_seed + worlds):
        _different_lengths(world)


def _different_lengths(world: int) -> None:
    """Two markets on minutes and one on bars that are five times as long, or an hour's."""
    coarse = ("5m", "1h")[world % 2]
    candles = [
        minutes(
            1_200 // (5 if coarse == "5m" else 60), seed=world, vol=0.001, interval=coarse, hole=0.02 * (world % 3)
        ),
        minutes(1_200, seed=world, market="ETH", px=2_500, vol=0.0003, hole=0.01 * (world % 2)),
        minutes(1_200, seed=world, market="SOL", px=170, vol=0.0003, decimals=3),
    ]
    body = settings(("BTC", "ETH", "SOL"), guardians=DRAWDOWN).model_dump()
    first, *others = body["strategies"]
    body["strategies"] = [first | {"interval": coarse, "budget_usd": 100_000}, *others]
    made = Settings.model_validate(body)

    def place(config: Settings) -> list[StrategySpec]:
        first, *rest = placing(seldom)(config)
        between = Between(nothing, name=first.strategy.name, markets=first.strategy.markets)
        return [first._replace(strategy=between), *rest]

    rates = rates_of(20)
    found = []
    for skip in (True, False):
        lines = io.StringIO()
        options = SessionOptions(path=PATHS[world % len(PATHS)], skip=skip, balance_usd=Decimal(100_000))
        result = Backtest(made, candles, options, rates=rates, place=place).run(events=lines)
        found.append((lines.getvalue(), list(result.curve.equity), result.stats))
    (lines_of_skipped, curve, skipped), (lines_of_fed, other_curve, fed) = found
    assert lines_of_skipped == lines_of_fed
    assert curve == other_curve
    assert lines_of_skipped.count('"type":"fill"') > 5
    assert skipped.touched < 0.9 * fed.touched, (skipped.touched, fed.touched)
    assert fed.touched == sum(map(len, candles))


class Averaged(Scripted):
    """Like `busy`, with an exit when the bar closes below a declared average; it keeps the values of the average."""

    average = sma(40)
    timers: ClassVar[dict[str, str]] = {}

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        average = self.average[bar.market]
        held = view.position(bar.market)
        if bar.at_ms % (5 * MINUTE_MS) == 0:
            view.state["seen"] = view.state.get("seen", 0.0) + (average or 0.0)
        if held is not None and held.side == "long" and average is not None and bar.close < average * 0.9985:
            return (Close(bar.market),)
        return super().on_bar(view, bar)

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        for market in self.markets:
            if view.position(market) is not None:
                yield Close(market, fraction=0.5)


class Alarmed(Averaged):
    timers: ClassVar[dict[str, str]] = {"look": "*/40 * * * *"}


def played(test: Backtest) -> tuple[str, list[Any]]:
    """The results that must not depend on skipping: the events, the curve and the counts of a whole backtest."""
    lines = io.StringIO()
    result = test.run(events=lines)
    placed = test.settings.strategies
    states = [test.journal.state.of_strategy(one.name) for one in placed]
    done = [test.journal.state.done_until(market, one.interval) for one in placed for market in one.markets]
    stats = result.stats
    return lines.getvalue(), [list(result.curve.equity), stats.bars, stats.decisions, result.refusals, states, done]


@pytest.mark.soak(worlds=4, full=300)
def test_several_markets_skipped_and_fed_with_limits_timers_and_outages_give_the_same_events(
    worlds: int, base_seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Also where one market has no candle at an instant at which the others have one."""
    monkeypatch.setattr(candle_readers, "BATCH_ROWS", 64)
    for world in range(base_seed, base_seed + worlds):
        _limited_markets(world)


def _limited_markets(world: int) -> None:
    candles = [
        minutes(900, seed=world),
        minutes(900, seed=world, market="ETH", px=2_500, vol=0.001, hole=0.003 * (world % 3)),
        minutes(900 - 100 * (world % 2), seed=world, market="SOL", px=170, vol=0.002, decimals=3),
    ]
    made = settings(
        ("BTC", "ETH", "SOL"),
        daily_loss_usd=Decimal(2) if world % 5 > 2 else None,
        guardians=DRAWDOWN,
        dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"},
    )
    place = placing(kind=Alarmed if world % 4 == 3 else Averaged)
    outages = (Outage(START_MS + 333_333 + 387 * MINUTE_MS, 70 * MINUTE_MS),) if world % 2 else ()
    rates = rates_of(15)
    found = []
    for skip in (True, False):
        options = SessionOptions(
            path=PATHS[world % len(PATHS)], skip=skip, outages=outages, latency_ms=(0, 0, 300, 20_000)[world % 7 % 4]
        )
        found.append(played(Backtest(made, candles, options, rates=rates, place=place)))
    skipped, fed = found
    assert skipped == fed
    assert skipped[0].count('"type":"fill"') > 20


@pytest.mark.soak(worlds=4, full=300)
def test_one_market_on_the_fast_path_and_on_the_slot_path_gives_the_same_events(
    worlds: int, base_seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Also with latency, so that orders arrive in the middle of a bar.

    Without it, one of the two sends each order as one request.
    """
    monkeypatch.setattr(candle_readers, "BATCH_ROWS", 64)
    monkeypatch.setattr(progress, "CHUNK", 96)
    for world in range(base_seed, base_seed + worlds):
        _driven(world)


def _driven(world: int) -> None:
    candles = [minutes(900, seed=world, vol=0.001, hole=(0.0, 0.02, 0.3)[world % 3])]
    made = settings(
        daily_loss_usd=Decimal(2) if world % 5 > 2 else None,
        guardians=DRAWDOWN,
        dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"},
    )
    place = placing(kind=Alarmed if world % 4 == 3 else Averaged)
    outages = (Outage(START_MS + 333_333 + 387 * MINUTE_MS, 70 * MINUTE_MS),) if world % 2 else ()
    rates = rates_of(15)
    latency_ms = (0, 300, 20_000, 45_000)[world % 4]
    start_ms = START_MS + 7_777 if world % 3 == 1 else None
    found = []
    for is_fast, skip in product((True, False), repeat=2):
        options = SessionOptions(
            path=PATHS[world % len(PATHS)], skip=skip, outages=outages, latency_ms=latency_ms, start_ms=start_ms
        )
        test = Backtest(made, candles, options, rates=rates, place=place)
        test.session.paths.single_market = is_fast
        # The slot path plans and confirms, as over a wire.
        test.session.is_atomic = is_fast and not latency_ms
        found.append(played(test))
    assert all(one == found[0] for one in found[1:])
    assert found[0][0].count('"type":"fill"') > 2


class Hourly(Scripted):
    """Trades on bars longer than the candles, and by a timer between them."""

    average = sma(5)
    timers: ClassVar[dict[str, str]] = {"look": "*/35 * * * *"}

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        average = self.average[bar.market]
        view.state["seen"] = view.state.get("seen", 0.0) + (average or 0.0) + bar.high - bar.low + bar.volume
        number = bar.at_ms // (15 * MINUTE_MS) * 2_654_435_761 % 7
        if view.position(bar.market) is None:
            if number < 4 and not view.orders(bar.market):
                limit = float(f"{bar.close * 0.998:.5g}") if number == 1 else None
                bracket = Bracket(stop_pct=0.4 + number / 10, target_pct=0.5)
                yield Open(
                    bar.market,
                    "long" if number < 3 else "short",
                    usd=300,
                    limit_px=limit if number < 3 else None,
                    bracket=bracket,
                )
            elif number == 5:
                yield Cancel(market=bar.market)
        elif number == 6:
            yield Close(bar.market)

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        view.state["heard"] = [*view.state.get("heard", [])[-20:], fill.at_ms]
        return ()

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        view.state["rang"] = timer.at_ms
        for market in self.markets:
            if view.position(market) is not None and timer.at_ms % 3 == 0:
                yield Close(market, fraction=0.5)


@pytest.mark.soak(worlds=6, full=300)
def test_only_closes_that_no_strategy_receives_are_skipped(worlds: int, base_seed: int):
    """Strategies on bars of 15 minutes or an hour, with candles of a minute: every minute is processed, or only
    those that can matter.
    """
    for world in range(base_seed, base_seed + worlds):
        _leaping(world)


def _leaping(world: int) -> None:
    interval = ("15m", "1h")[world % 2]
    candles = [
        minutes(1_700, seed=world, vol=0.0004, hole=(0.0, 0.01, 0.5)[world % 3]),
        minutes(1_500, seed=world, market="ETH", px=2_500, vol=0.0006, hole=0.005 * (world % 4)),
    ][: 1 + world % 5 % 2]
    markets = sorted(one.market for one in candles)
    body: dict[str, Any] = {"guardians": DRAWDOWN, "dead_man": {"heartbeat_seconds": 300, "on_miss": "flatten"}}
    made = settings(markets, interval=interval, daily_loss_usd=Decimal(2) if world % 7 > 3 else None, **body)
    place = placing(nothing, kind=Hourly)
    outages = (Outage(START_MS + 33_333 + 633 * MINUTE_MS, 80 * MINUTE_MS),) if world % 2 else ()
    rates = rates_of(28)
    latency_ms = 20_000 if world % 6 == 5 else 0
    found = []
    for leaps, skip in ((True, True), (False, True), (False, False)):
        options = SessionOptions(path=PATHS[world % len(PATHS)], skip=skip, outages=outages, latency_ms=latency_ms)
        test = Backtest(made, candles, options, rates=rates, place=place)
        test.session.paths.leap = test.session.paths.leap and leaps
        found.append(played(test))
    assert all(one == found[0] for one in found[1:])
    assert found[0][0].count('"type":"fill"') > 1


def seldom(view: View, bar: Bar) -> Iterable[Intent]:
    """Rarely has a position, so most bars are quiet."""
    kind = bar.at_ms // MINUTE_MS * 2_654_435_761 % 397
    if view.position(bar.market) is None and kind < 8:
        yield Open(
            bar.market,
            "long" if kind % 2 else "short",
            usd=300,
            bracket=Bracket(stop_pct=round(0.3 + kind / 20, 2), target_r=1.5),
        )


def test_one_market_driven_bar_by_bar_and_point_by_point_gives_the_same_events():
    # The second config has an idle strategy on a coarser interval, so the backtest uses the path for many markets.
    candles = [minutes(1_500, seed=3)]
    alone = ran(candles, made=settings())
    body = settings().model_dump()
    idle = body["strategies"][0] | {"name": "idle", "interval": "5m", "markets": ("ETH",)}
    together = ran(
        [*candles, minutes(300, seed=9, market="ETH", px=2_500, interval="5m")],
        made=type(settings()).model_validate(body | {"strategies": [*body["strategies"], idle]}),
        script=only_btc,
    )
    assert alone.lines == together.lines
    assert alone.result.stats.touched


def only_btc(view: View, bar: Bar) -> Iterable[Intent]:
    return busy(view, bar) if bar.market == "BTC" else ()


def nothing(_view: View, _bar: Bar) -> Iterable[Intent]:
    return ()


@pytest.mark.parametrize("markets", [("BTC",), ("BTC", "ETH")], ids=["one", "two"])
def test_frequent_progress_reports_do_not_change_the_events(markets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """Between two progress reports no time or a second passes: more and more bars per report, or fewer and fewer."""
    # The thread would use up instants that are meant for the reports.
    monkeypatch.setattr(progress, "WATCH_S", 600.0)
    candles = [minutes(600, market=market) for market in markets]

    def looks(steps_ns: Iterable[int]) -> tuple[list[int], Ran]:
        at: list[int] = []
        monkeypatch.setattr(progress, "monotonic_ns", accumulate(steps_ns).__next__)
        one = ran(candles, progress=lambda done, _of: at.append(done // len(markets)) or True)
        return at, one

    slow_at, slow = looks(chain(repeat(0, 6), repeat(10**9)))
    assert slow_at[:10] == [1, 3, 7, 15, 31, 39, 43, 45, 46, 47]
    quick_at, quick = looks(repeat(0))
    assert quick_at[:4] == [1, 3, 7, 15]
    assert (slow.lines, slow.digest) == (quick.lines, quick.digest)
    assert sum(kinds(slow).values()) > 10


@pytest.mark.parametrize("markets", [("BTC",), ("BTC", "ETH")], ids=["one", "two"])
def test_a_backtest_stopped_at_its_last_bar_is_complete(markets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "CHUNK", 1)
    one = ran([minutes(50, market=market) for market in markets], progress=lambda done, of: done < of)
    stats = one.result.stats
    assert (stats.bars, stats.is_partial) == (50 * len(markets), False)


def test_a_backtest_restores_the_garbage_collectors_settings():
    before = gc.get_threshold()
    ran([minutes(50)])
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_many_short_backtests_leave_few_kernels_behind():
    """A worker of a sweep runs thousands of them, and what the collector froze counts as old."""
    gc.collect()
    before = sum(isinstance(known, Kernel) for known in gc.get_objects())
    for _ in range(3 * progress.LONG // progress.LEAST):
        ran([minutes(2)])
    left = sum(isinstance(known, Kernel) for known in gc.get_objects()) - before
    assert left <= progress.LONG // progress.LEAST + 1


def test_a_backtest_of_one_idle_market_sends_the_venue_no_bar():
    candles = [minutes(300)]
    made = settings()
    session, exchange = local(
        made, candles, SessionOptions(), journal=MemoryJournal(address=ADDRESS), place=placing(nothing)
    )
    before = exchange.seq
    stats = session.run()
    assert (stats.bars, stats.touched) == (300, 0)
    assert exchange.seq == before


def held(view: View, bar: Bar) -> Iterable[Intent]:
    """One position, opened on the first bar and kept; its stop is never reached."""
    if view.position(bar.market) is None:
        yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=50))


def test_an_hours_funding_gives_the_venue_one_bar_and_not_the_one_that_closes_at_the_hour():
    rates = {"BTC": [(START_MS - HOUR_MS, 12_500_000)]}
    skipped, fed = (
        ran([minutes(600, seed=4)], made=settings(), rates=rates, script=held, skip=skip) for skip in (True, False)
    )
    assert skipped.lines == fed.lines
    assert sum('"type":"funding"' in line for line in skipped.lines) == 9
    assert skipped.result.stats.touched == 1 + 9, "the bar of the fill, and the first one of each hour"


def test_an_order_of_the_last_close_does_not_extend_the_backtest():
    """With latency the order would arrive after the hour's funding, after the end."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=50))
        elif bar.at_ms == START_MS + HOUR_MS:
            yield Close(bar.market)

    rates = {"BTC": [(START_MS, 12_500_000)]}
    for latency_ms in (0, 300):
        one = ran([minutes(60)], made=settings(), rates=rates, script=script, latency_ms=latency_ms)
        assert not kinds(one)
        assert sum('"kind":"close"' in line for line in one.lines) == 1
        assert not any('"type":"funding"' in line for line in one.lines)
