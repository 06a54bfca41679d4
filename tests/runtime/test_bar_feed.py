"""The feed: closed bars, each once, in order, and never one from the future."""

from __future__ import annotations

import pytest

from bot.runtime.passes.bar_feed import BarFeed, BarSeries
from bot.strategy import Bar
from bot.strategy.longer_bars import LongerBars
from bot.wire import CandlesResult
from tests.faulty_port import START_MS, Fault, FaultyPort, refused, unknown

BTC, ETH = BarSeries("BTC", "1m"), BarSeries("ETH", "1m")
MINUTE = 60_000


def never_done(market: str, interval: str) -> int | None:
    return None


async def test_bars_come_in_order_of_time_then_market_each_once() -> None:
    venue = FaultyPort()
    venue.minute()
    feed = BarFeed({ETH: 1, BTC: 1})
    await feed.warm_up(venue, never_done, venue.clock.now_ms())
    for _ in range(3):
        venue.minute()
    found = await feed.poll(venue, never_done, venue.clock.now_ms())
    assert [(one.at_ms - START_MS, one.market) for one in found] == [
        (n * MINUTE, coin) for n in (2, 3, 4) for coin in ("BTC", "ETH")
    ]
    assert feed.due(venue.clock.now_ms()) == []
    assert await feed.poll(venue, never_done, venue.clock.now_ms()) == []


async def test_a_running_bar_is_not_a_bar() -> None:
    venue = FaultyPort()
    venue.minute()
    running = venue.candle_rows["BTC"][-1].model_copy(update={"closed": False, "ts": venue.clock.now_ms()})
    venue.candle_rows["BTC"].append(running)
    feed = BarFeed({BTC: 1})
    warm = await feed.warm_up(venue, never_done, venue.clock.now_ms())
    assert [one.at_ms for one in [*warm.past, *warm.due]] == [START_MS + MINUTE]


async def test_after_downtime_only_the_newest_bar_that_was_not_done_is_due() -> None:
    venue = FaultyPort()
    for _ in range(6):
        venue.minute()
    warm = await BarFeed({BTC: 2}).warm_up(venue, lambda _m, _i: START_MS + 2 * MINUTE, venue.clock.now_ms())
    assert [one.at_ms for one in warm.due] == [START_MS + 6 * MINUTE]
    assert [one.at_ms for one in warm.past][-1] == START_MS + 5 * MINUTE
    again = await BarFeed({BTC: 2}).warm_up(venue, lambda _m, _i: START_MS + 6 * MINUTE, venue.clock.now_ms())
    assert again.due == []


async def test_a_market_that_the_service_spells_otherwise_is_not_traded() -> None:
    """Positions and events are told in the service's spelling: by another they would be taken for nobody's."""
    venue = FaultyPort()
    venue.minute()
    feed = BarFeed({BarSeries("btc", "1m"): 1, ETH: 1})
    warm = await feed.warm_up(venue, never_done, venue.clock.now_ms())
    assert {one.market for one in [*warm.past, *warm.due]} == {"ETH"}
    assert feed.gone == {"btc": "no candles of btc (not_found): the service calls it BTC; write it so in the config"}


async def test_a_series_that_could_not_be_asked_is_asked_again() -> None:
    venue = FaultyPort()
    venue.minute()
    feed = BarFeed({BTC: 1, ETH: 1})
    await feed.warm_up(venue, never_done, venue.clock.now_ms())
    venue.minute()
    venue.faults = [Fault("candles", unknown(), count=1)]
    assert [one.market for one in await feed.poll(venue, never_done, venue.clock.now_ms())] == ["ETH"]
    assert [one.market for one in await feed.poll(venue, never_done, venue.clock.now_ms())] == ["BTC"]


async def test_a_series_that_was_refused_at_the_start_has_its_past_when_its_bars_come() -> None:
    venue = FaultyPort(("BTC",))
    for _ in range(9):
        venue.minute()
    feed = BarFeed({BTC: 9})
    venue.faults = [Fault("candles", refused("not_found"), count=1)]
    assert await feed.warm_up(venue, never_done, venue.clock.now_ms()) == ([], [])
    assert list(feed.gone) == ["BTC"]
    bars = await feed.poll(venue, never_done, venue.clock.now_ms())
    assert [feed.is_past(one) for one in bars] == [True] * 8 + [False]
    assert list(feed.gone) == []
    venue.minute()
    bars = await feed.poll(venue, never_done, venue.clock.now_ms())
    assert [feed.is_past(one) for one in bars] == [False]


async def test_the_history_holds_no_bar_before_it_is_taken() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    feed = BarFeed({BTC: 1})
    warm = await feed.warm_up(venue, never_done, venue.clock.now_ms())
    venue.minute(BTC="101")
    venue.minute(BTC="102")
    bars = [*warm.due, *await feed.poll(venue, never_done, venue.clock.now_ms())]
    for closed in bars[:2]:
        feed.take(closed)
    assert feed.histories[BTC].closes(10) == [100.0, 101.0]


def longer_feed() -> BarFeed:
    feed = BarFeed({BTC: 1_000})
    feed.histories[BTC].keep("15m", "1m")
    return feed


async def test_the_past_of_longer_bars_is_asked_for_and_goes_on_with_own_bars() -> None:
    venue = FaultyPort(("BTC",))
    for n in range(2_000):
        venue.minute(BTC=str(100 + n % 37))
    feed = longer_feed()
    warm = await feed.warm_up(venue, never_done, venue.clock.now_ms())
    assert len(warm.past) < 1_010, "the own bars cover 67 longer bars"
    for closed in [*warm.past, *warm.due]:
        feed.take(closed)
    for n in range(40):
        venue.minute(BTC=str(200 + n))
        for closed in await feed.poll(venue, never_done, venue.clock.now_ms()):
            feed.take(closed)
    bars = feed.histories[BTC].of("15m", "1m").bars(999)
    whole = LongerBars("15m", "1m")
    minutes = [
        Bar("BTC", row.ts + MINUTE, *map(float, (row.open, row.high, row.low, row.close, row.volume)))
        for row in venue.candle_rows["BTC"]
    ]
    assert bars == [closed for bar in minutes for closed in whole.add(bar)]
    assert len(bars) > 130
    assert venue.calls.count("longer candles") == 1


async def test_a_service_without_longer_candles_gives_longer_bars_of_the_own_ones() -> None:
    venue = FaultyPort(("BTC",))
    for _ in range(50):
        venue.minute()
    venue.faults = [Fault("longer candles", refused("not_found"), count=1)]
    feed = longer_feed()
    warm = await feed.warm_up(venue, never_done, venue.clock.now_ms())
    for closed in [*warm.past, *warm.due]:
        feed.take(closed)
    assert feed.gone == {}
    assert len(feed.histories[BTC].of("15m", "1m")) >= 2


async def test_a_series_whose_longer_candles_did_not_come_begins_with_the_next_poll() -> None:
    venue = FaultyPort(("BTC",))
    for _ in range(50):
        venue.minute()
    feed = longer_feed()
    venue.faults = [Fault("longer candles", unknown(), count=1)]
    assert await feed.poll(venue, never_done, venue.clock.now_ms()) == []
    bars = await feed.poll(venue, never_done, venue.clock.now_ms())
    assert len(bars) == 50


async def test_a_joined_feed_brings_its_longer_bars_and_counts_no_bar_twice() -> None:
    venue = FaultyPort(("BTC",))
    for n in range(1_500):
        venue.minute(BTC=str(100 + n % 11))
    running, fresh = BarFeed({BTC: 1}), longer_feed()
    running.histories[BTC].keep("5m", "1m")
    for feed in (running, fresh):
        warm = await feed.warm_up(venue, never_done, venue.clock.now_ms())
        for closed in [*warm.past, *warm.due]:
            feed.take(closed)
    running.join(fresh)
    for _ in range(30):
        venue.minute()
        for closed in await running.poll(venue, never_done, venue.clock.now_ms()):
            running.take(closed)
    for name, step in (("5m", 5), ("15m", 15)):
        bars = running.histories[BTC].of(name, "1m").bars(999)
        closes = [bar.at_ms for bar in bars]
        assert closes == list(range(closes[0], closes[-1] + 1, step * MINUTE)), name
        assert all(bar.volume == bars[0].volume for bar in bars), name


async def test_a_series_that_others_read_comes_first_and_is_asked_again_when_it_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    venue = FaultyPort()
    venue.minute()
    feed = BarFeed({BTC: 1, ETH: 1})
    feed.read_first({BTC: frozenset({ETH})})
    await feed.warm_up(venue, never_done, venue.clock.now_ms())
    venue.minute()
    # The bar of ETH closes a moment after the first request for it.
    late = venue.candle_rows["ETH"].pop()
    candles = venue.candles

    async def asked(coin: str, interval: str, limit: int) -> CandlesResult:
        answer = await candles(coin, interval, limit)
        if coin == "ETH" and late not in venue.candle_rows["ETH"]:
            venue.candle_rows["ETH"].append(late)
        return answer

    monkeypatch.setattr(venue, "candles", asked)
    for abreast in (1, 8):
        bars = await feed.poll(venue, never_done, venue.clock.now_ms(), abreast=abreast)
        assert [bar.market for bar in bars] == ["ETH", "BTC"], abreast
        assert bars[0].at_ms == bars[1].at_ms
        venue.minute()
        late = venue.candle_rows["ETH"].pop()
    assert feed.in_order(reversed(bars)) == bars
