"""The service's memory has a bound, and data that it keeps for ever takes a few bytes."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from bot.service.market_data import candles
from bot.service.market_data.candles import CandleStore
from bot.service.market_data.simulator import GridCandle
from bot.service.state_machine import command_log, machine
from bot.venue.model import record
from bot.venue.storage import pages
from bot.wire.queries import CANDLES_MAX
from tests.service.conftest import Box, Caller, OpenBox

LONG = {"market": "BTC", "side": "long", "usdAmount": 50}


def minutes(first: int, count: int, chance: Random) -> list[GridCandle]:
    made = []
    for n in range(first, first + count):
        px = chance.randrange(10**6, 10**7)
        made.append(GridCandle(n * 60_000, px, px + 7, px - 7, px + 1, chance.randrange(10**12)))
    return made


@pytest.mark.parametrize(("older", "newer"), [(0, 3), (31, 200), (CANDLES_MAX, 64), (CANDLES_MAX, CANDLES_MAX)])
def test_packed_candles_are_read_unchanged_and_the_oldest_are_dropped(older: int, newer: int, base_seed: int) -> None:
    everything = minutes(0, older + newer, Random(base_seed))
    asked: list[int] = []

    def history(interval: str, limit: int) -> list[GridCandle]:
        asked.append(limit)
        return everything[:older][-limit:]

    store = CandleStore(history=history)
    for candle in everything[older:]:
        for px in (candle.open, candle.high, candle.low, candle.close):
            store.point(candle.ts, px, candle.volume if px == candle.close else 0)
    now_ms = (older + newer) * 60_000
    for limit in (1, 5, candles.HELPING, 300, CANDLES_MAX):
        page = store.page("1m", limit, now_ms)
        assert [candle for candle, _ in page] == everything[-limit:]
    assert asked == [candles.HELPING, CANDLES_MAX]
    assert store.last_px == everything[-1].close


def test_a_thousand_candles_take_little_memory(base_seed: int) -> None:
    store = CandleStore()
    for candle in minutes(0, 3 * CANDLES_MAX, Random(base_seed)):
        store.point(candle.ts, candle.open, candle.volume)
    kept = store._closed["1m"]
    assert len(kept._newest) < 2 * candles.PAGE
    assert (len(kept._pages) - 1) * candles.PAGE < CANDLES_MAX


async def test_events_trades_and_answers_without_a_file_have_a_bound(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "EVENTS_OPEN", 20)
    monkeypatch.setattr(command_log, "REPLIES_IN_MEMORY", 10)
    for n in range(80):
        await caller.send("POST", "/v1/orders", LONG, key=f"o{n}")
        await caller.send("POST", "/v1/positions/BTC/close", {}, key=f"c{n}")
    (account,) = box.service.machine.state.accounts.values()
    assert len(account.events) < pages.PAGE + 2 * 20 + 10 and len(account.trades) < pages.PAGE + 2 * 20 + 10
    assert len(account.trade_by_key) < 2 * pages.PAGE + 2 * 20
    assert len(box.service.machine.log.replies_in_memory()) <= 11
    trades = (await caller.get("/v1/trades?limit=200"))["trades"]
    assert [trade["idempotencyKey"] for trade in trades] == [
        key for n in reversed(range(80)) for key in (f"c{n}", f"o{n}")
    ]
    again = await caller.send("POST", "/v1/orders", LONG, key="o0")
    assert again.json()["error"]["details"] == {"reason": "expired", "tradeId": trades[-1]["id"]}
    ids = [event["id"] for event in (await caller.get("/v1/events?limit=200"))["events"]]
    assert ids == [f"evt_{n:012d}" for n in range(1, account.event_seq + 1)]


async def test_a_reader_at_the_newest_event_unpacks_no_old_page(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "EVENTS_OPEN", 20)
    monkeypatch.setattr(record, "EVENTS_KEPT", 100)
    pages._read.cache_clear()
    newest = (await caller.get("/v1/events?limit=200"))["lastEventId"]
    for n in range(160):
        await caller.send("POST", "/v1/orders", LONG, key=f"o{n}")
        await caller.send("POST", "/v1/positions/BTC/close", {}, key=f"c{n}")
        newest = (await caller.get(f"/v1/events?since={newest}"))["lastEventId"]
    (account,) = box.service.machine.state.accounts.values()
    # The oldest page has changed a few times.
    assert account.events_first > 2 * pages.PAGE
    assert pages._read.cache_info().currsize == 0


async def test_candles_of_a_settled_market_are_dropped_and_made_again_on_request(open_box: OpenBox) -> None:
    box = await open_box(markets=("event:BTC-UP-6H",), hold_prices=False)
    caller = await box.caller()
    feed = box.service.machine.feed
    before = await caller.get("/v1/markets/event:BTC-UP-6H/candles?interval=1h&limit=3")
    for _ in range(2):
        await box.advance(7 * 3_600_000)
    market_feed = feed._markets["event:BTC-UP-6H"]
    assert market_feed.store is None and not market_feed.source._market._blocks
    after = await caller.get("/v1/markets/event:BTC-UP-6H/candles?interval=1h&limit=20")
    assert [one for one in before["candles"] if one["closed"]] == [
        one for one in after["candles"] if one["ts"] in {b["ts"] for b in before["candles"] if b["closed"]}
    ]
    assert list(itertools.islice(feed._markets, 3)) == [f"event:BTC-UP-6H{n}" for n in ("", "-2", "-3")]
