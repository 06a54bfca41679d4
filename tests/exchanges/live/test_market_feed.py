"""Messages of markets become quotes, marks, depth, funding and whole minutes."""

from __future__ import annotations

from typing import Any

import pytest

from bot.clock import MINUTE_MS
from bot.exchanges.hyperliquid.live.candle_record import CLOSE_MARGIN_MS, KEPT, MinuteCandles, closed_until
from bot.exchanges.hyperliquid.live.market_feed import MarketFeed
from bot.exchanges.hyperliquid.live.subscriptions import ChannelMessage
from bot.exchanges.protocol import UnknownForm
from bot.market_data.source import Depth, FundingRate, Mark, Quote, Row

LEVEL = {"px": "100.5", "sz": "2.0", "n": 1}


def candle(at_ms: int, trades: int, last: str = "101.0", market: str = "BTC", interval: str = "1m") -> dict[str, Any]:
    prices = {"o": "100.0", "c": last, "h": "102.0", "l": "99.0"}
    return {"t": at_ms, "T": at_ms + 59_999, "s": market, "i": interval, **prices, "v": "3.0", "n": trades}


@pytest.mark.parametrize(
    ("channel", "data", "expected"),
    [
        (
            "bbo",
            {"coin": "BTC", "time": 7, "bbo": [LEVEL, {**LEVEL, "px": "100.6"}]},
            [Quote("BTC", 7, 100.5, 100.6, None)],
        ),
        ("bbo", {"coin": "BTC", "time": 7, "bbo": [None, LEVEL]}, [Quote("BTC", 7, None, 100.5, None)]),
        ("l2Book", {"coin": "BTC", "time": 7, "levels": [[LEVEL], []]}, [Depth("BTC", [(100.5, 2.0)], [])]),
        (
            "activeAssetCtx",
            {"coin": "BTC", "ctx": {"markPx": "100.5", "funding": "-0.0000125"}},
            [Mark("BTC", None, 100.5), FundingRate("BTC", -0.0000125, 1, 0)],
        ),
        ("candle", candle(0, 1), []),
        ("candle", None, []),
        ("news", {"anything": 1}, []),
    ],
)
def test_a_message_of_a_channel_becomes_updates(channel: str, data: Any, expected: list[Any]) -> None:
    assert MarketFeed(["BTC"]).take(ChannelMessage(channel, data), 7) == expected


@pytest.mark.parametrize(
    ("channel", "data", "field"),
    [
        ("bbo", {"coin": "BTC", "time": 7, "bbo": [LEVEL]}, "bbo.bbo"),
        ("bbo", {"coin": "BTC", "time": 7, "bbo": [LEVEL, 5]}, "bbo.bbo"),
        ("bbo", {"coin": "BTC", "time": -7, "bbo": [LEVEL, None]}, "bbo.time"),
        ("bbo", {"coin": "BTC", "time": 7, "bbo": [{**LEVEL, "px": "nan"}, None]}, "bbo.bbo.px"),
        ("bbo", {"coin": "BTC", "time": 7, "bbo": [{**LEVEL, "px": "0.0"}, None]}, "bbo.bbo.px"),
        ("l2Book", None, "l2Book"),
        ("l2Book", {"coin": "BTC", "time": 7, "levels": [[LEVEL], [{**LEVEL, "sz": 1}]]}, "l2Book.levels[0].sz"),
        ("activeAssetCtx", {"coin": "BTC", "ctx": {"markPx": "1e5", "funding": "0.0"}}, "activeAssetCtx.ctx.markPx"),
        ("candle", {**candle(0, 1), "n": -1}, "candle.n"),
        ("candle", {**candle(0, 1), "v": "1,5"}, "candle.v"),
    ],
)
def test_a_message_in_an_unknown_form_names_its_field(channel: str, data: Any, field: str) -> None:
    with pytest.raises(UnknownForm) as raised:
        MarketFeed(["BTC"]).take(ChannelMessage(channel, data), 7)
    assert str(raised.value).startswith(f"{field}: expected ")


def test_an_older_state_of_a_minute_changes_nothing() -> None:
    kept = MinuteCandles()
    for one in (candle(0, 2, "101.5"), candle(0, 1, "100.1"), candle(0, 2, "101.7"), candle(MINUTE_MS, 1)):
        kept.take(one)
    assert kept.rows(0, MINUTE_MS) == [Row(0, 100.0, 102.0, 99.0, 101.7, 3.0)]


def test_minutes_are_whole_only_after_the_socket_has_told_all_of_them() -> None:
    feed = MarketFeed(["BTC"])
    feed.take(ChannelMessage("bbo", {"coin": "BTC", "time": 90_000, "bbo": [LEVEL, LEVEL]}), 0)
    assert feed.candles["BTC"].whole_from_ms is None
    feed.up(10)
    assert feed.candles["BTC"].whole_from_ms == 2 * MINUTE_MS
    feed.down()
    assert feed.candles["BTC"].whole_from_ms is None
    feed.up(10)
    feed.take(ChannelMessage("bbo", {"coin": "BTC", "time": 190_000, "bbo": [LEVEL, LEVEL]}), 100_000)
    assert feed.candles["BTC"].whole_from_ms == 2 * MINUTE_MS


def test_a_late_message_does_not_move_the_clock_of_the_exchange_back() -> None:
    feed = MarketFeed(["BTC"])
    for at_ms, heard_ms in ((5_000, 1_000), (1_000, 2_000)):
        feed.take(ChannelMessage("bbo", {"coin": "BTC", "time": at_ms, "bbo": [LEVEL, LEVEL]}), heard_ms)
    assert (feed.clock_difference_ms, feed.exchange_ms(3_000)) == (4_000, 7_000)
    assert closed_until(MINUTE_MS + CLOSE_MARGIN_MS - 1) == 0
    assert closed_until(MINUTE_MS + CLOSE_MARGIN_MS) == MINUTE_MS


def test_candles_of_other_markets_and_intervals_are_left_out_and_old_ones_forgotten() -> None:
    feed = MarketFeed(["BTC"])
    for one in (candle(0, 1, market="ETH"), candle(0, 1, interval="1h")):
        feed.take(ChannelMessage("candle", one), 0)
    assert feed.candles["BTC"].rows(0, MINUTE_MS) == []
    for minute in range(KEPT + 10):
        feed.take(ChannelMessage("candle", candle(minute * MINUTE_MS, 1)), 0)
    assert len(feed.candles["BTC"].rows(0, 10**12)) == KEPT
