"""Prices: seeded, consistent over the six intervals, without lookahead, the same for repeated requests; recorded
files play and end.
"""

from __future__ import annotations

import sqlite3
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from bot.service.market_data.candles import CandleStore, merge
from bot.service.market_data.event_odds import EventOdds
from bot.service.market_data.instruments import CATALOGUE, starting_at
from bot.service.market_data.price_feed import HISTORY_BARS, PriceFeed, RecordedSource, SimulatedSource, points_of
from bot.service.market_data.simulator import GridCandle, SimulatedMarket, path_of
from bot.venue.model.commands import Heartbeat
from bot.venue.model.state import VenueMarket
from bot.wire.vocabulary import INTERVAL_MS
from tests.service.conftest import START_MS, Box, Caller, OpenBox

DAY_MS = 86_400_000
# markets of each class
SAMPLE = ("BTC", "KPEPE", "MINA", "AAPL", "SP500", "USBOND", "event:BTC-UP-6H", "event:BTC-150K")


def test_the_sample_has_every_class() -> None:
    assert {CATALOGUE[coin].spec.asset_class for coin in SAMPLE} == {
        listing.spec.asset_class for listing in CATALOGUE.values()
    }


def simulated(coin: str, seed: int = 1, start_ms: int = START_MS) -> SimulatedSource:
    listing = starting_at(CATALOGUE[coin], start_ms)
    if listing.spec.expires_ms is not None:
        event = EventOdds(
            coin=coin,
            seed=seed,
            prior=listing.px,
            start_ms=start_ms,
            expires_ms=listing.spec.expires_ms,
            pace=listing.daily_vol,
            day_usd=listing.day_usd,
        )
        return SimulatedSource(event, start_ms)
    grid = VenueMarket(listing.spec, listing.px, listing.px, listing.px)
    market = SimulatedMarket(
        grid, seed=seed, px=listing.px, start_ms=start_ms, daily_vol=listing.daily_vol, day_usd=listing.day_usd
    )
    return SimulatedSource(market, start_ms)


def feed_at(coins: tuple[str, ...], at_ms: int, seed: int = 1) -> PriceFeed:
    feed = PriceFeed({coin: simulated(coin, seed) for coin in coins})
    feed.start(at_ms)
    return feed


def pages(feed: PriceFeed, coin: str, at_ms: int) -> dict[str, Any]:
    return {name: feed.store(coin).page(name, 5000, at_ms) for name in INTERVAL_MS}


@pytest.mark.parametrize("coin", SAMPLE)
def test_fine_candles_make_up_the_coarse_ones(coin: str) -> None:
    feed = feed_at((coin,), START_MS)
    names = list(INTERVAL_MS)
    for fine, coarse in pairwise(names):
        parts = [c for c, _ in feed.store(coin).page(fine, 5000, START_MS)]
        ratio, step = INTERVAL_MS[coarse] // INTERVAL_MS[fine], INTERVAL_MS[coarse]
        compared = 0
        for whole, closed in feed.store(coin).page(coarse, 5000, START_MS):
            inside = [p for p in parts if whole.ts <= p.ts < whole.ts + step]
            if closed and len(inside) == ratio:
                assert merge(inside, whole.ts) == whole
                compared += 1
        assert compared > 100, (fine, coarse)


@pytest.mark.parametrize("coin", SAMPLE)
def test_every_candle_lies_on_the_grid_and_is_whole(coin: str) -> None:
    market = VenueMarket(CATALOGUE[coin].spec, 1, 1, 1)
    feed = feed_at((coin,), START_MS)
    for name in INTERVAL_MS:
        page = feed.store(coin).page(name, 5000, START_MS)
        assert len([c for c, closed in page if closed]) >= HISTORY_BARS
        for candle, _ in page:
            assert 0 < candle.low <= min(candle.open, candle.close) <= max(candle.open, candle.close) <= candle.high
            assert candle.volume >= 0
            assert candle.volume % market.lot == 0
            for px in candle[1:5]:
                assert market.grid_down(px) == px, (name, candle)
        assert [c.ts for c, _ in page] == [page[0][0].ts + i * INTERVAL_MS[name] for i in range(len(page))]


@pytest.mark.parametrize("coin", ["BTC", "ETH", "SOL"])
def test_a_price_that_comes_to_the_extreme_of_a_longer_candle_does_not_stand_still_there(coin: str) -> None:
    source = simulated(coin)
    bars = [source.bar_at(START_MS + n * 60_000) for n in range(5 * 1_440)]
    minutes = [bar for bar in bars if bar is not None]
    assert max(len(list(same)) for _, same in groupby(minutes, key=lambda bar: bar.close)) <= 15
    assert sum(bar.high == bar.low for bar in minutes) < 0.01 * len(minutes)


def test_advancing_to_an_instant_and_starting_at_it_give_the_same_prices() -> None:
    coins = ("BTC", "AAPL")
    walked = feed_at(coins, START_MS)
    for at in (START_MS + 1, START_MS + 20_000, START_MS + 3_599_999, START_MS + 5_000_000):
        while (due := walked.next_ms()) is not None and due <= at:
            walked.pop()
        fresh = feed_at(coins, at)
        for coin in coins:
            assert pages(walked, coin, at) == pages(fresh, coin, at)
        assert fresh.next_ms() == walked.next_ms()


def test_a_start_in_the_middle_of_an_instant_still_sends_the_later_markets() -> None:
    feed = PriceFeed({coin: simulated(coin) for coin in ("BTC", "ETH", "SOL")})
    feed.start(START_MS, upto="ETH")
    assert (feed.next_ms(), feed.pop().coin) == (START_MS, "SOL")
    assert feed.next_ms() == START_MS + 20_000


def test_prices_depend_on_the_seed_and_not_on_the_order_of_requests() -> None:
    one, two = simulated("BTC"), simulated("BTC")
    far = [one.bar_at(START_MS + days * DAY_MS) for days in (30, 3, 0)]
    assert [two.bar_at(START_MS + days * DAY_MS) for days in (0, 3, 30)] == far[::-1]
    assert simulated("BTC", seed=2).bar_at(START_MS) != far[2]


def test_a_candle_is_four_points_in_the_adaptive_order() -> None:
    candle = GridCandle(0, 100, 110, 95, 105, 10)
    # The low is nearer to the open.
    assert path_of(candle) == (100, 95, 110, 105)
    assert path_of(candle._replace(high=102)) == (100, 102, 95, 105)
    points = points_of("BTC", candle, 60_000)
    assert [p.at_ms for p in points] == [0, 20_000, 40_000, 59_999]
    assert sum(p.part for p in points) == 10


def test_a_store_shows_the_running_bar_and_closes_it_by_the_clock() -> None:
    store = CandleStore()
    store.point(0, 100, 1)
    store.point(20_000, 120, 1)
    assert store.page("1m", 10, 59_999) == [(GridCandle(0, 100, 120, 100, 120, 2), False)]
    assert store.page("1m", 10, 60_000)[-1][1] is True
    store.point(60_000, 90, 1)
    assert [c.ts for c, _ in store.page("1m", 10, 60_000)] == [0, 60_000]
    assert store.page("5m", 10, 60_000) == [(GridCandle(0, 100, 120, 90, 90, 3), False)]
    assert store.page("1m", 1, 60_000)[0][0].ts == 60_000


async def test_no_answer_depends_on_later_prices(open_box: OpenBox) -> None:
    box = await open_box(hold_prices=False)
    await box.advance(300_000)
    seen = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=5000")).json()["candles"]
    now = box.service.machine.clock.now_ms()
    assert all(c["ts"] <= now for c in seen)
    assert [c["closed"] for c in seen][-2:] == [True, False]
    await box.advance(300_000)
    later = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=5000")).json()["candles"]
    closed = {c["ts"]: c for c in later}
    assert all(closed[c["ts"]] == c for c in seen if c["closed"])


async def test_quiet_prices_are_not_logged_but_change_the_mark(open_box: OpenBox) -> None:
    box = await open_box(hold_prices=False)
    caller = await box.caller()
    await caller.post(
        "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 1000, "bracket": {"stopLoss": {"pct": 40}}}
    )
    seq = box.service.machine.seq
    await box.advance(1_800_000)
    # Funding at the full hour, with the marks of its instant.
    assert box.service.machine.seq - seq <= 2
    mark = (await caller.get("/v1/account"))["positions"][0]["markPx"]
    last = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=1")).json()["candles"][0]["close"]
    assert mark == last


# ── Recorded files ──────────────────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("ts,open,high,low,close,volume\n" + "\n".join(rows) + "\n")
    return path


def flat_rows(count: int, start: int = START_MS, step: int = 60_000) -> list[str]:
    return [f"{start + i * step},{100_000 + i},{100_010 + i},{99_990 + i},{100_001 + i},1.5" for i in range(count)]


async def test_a_command_does_not_overtake_the_prices_that_are_due_while_it_is_on_its_way(open_box: OpenBox) -> None:
    box: Box = await open_box(hold_prices=False, markets=("BTC",))
    caller = await box.caller()
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 500})
    machine = box.service.machine
    now = machine.catch_up()
    hour = now - now % 3_600_000 + 3_600_000
    # A fast clock moves this far in a moment; actions due meanwhile cannot be run in the past.
    machine.clock.move_to(hour + 60_000)
    machine.run(Heartbeat(caller.opened["accountId"]))
    assert machine.state.now_ms == now
    await box.advance(1_000)
    assert machine.fault is None
    paid = (await caller.get("/v1/events?types=funding"))["events"]
    assert [event["ts"] for event in paid] == [hour]


def stepping(folder: Path, at_ms: int, **steps: tuple[int, int]) -> dict[str, Any]:
    """Options with recorded minutes of these markets: one price, and another from `at_ms` on."""
    data = []
    for coin, (before, after) in steps.items():
        pxs = [before if n < 100 else after for n in range(160)]
        rows = [f"{at_ms + (n - 100) * 60_000},{px},{px},{px},{px},1.5" for n, px in enumerate(pxs)]
        data.append((None, write(folder / f"{coin}.csv", rows)))
    return {"data": tuple(data), "markets": (), "hold_prices": False, "start_ms": None}


async def test_funding_of_all_markets_comes_before_any_price_of_the_same_instant(
    open_box: OpenBox, tmp_path: Path
) -> None:
    """Two recorded markets: the open of the first closes the position in the second."""
    hour = START_MS - START_MS % 3_600_000 + 7_200_000
    box = await open_box(**stepping(tmp_path, hour, BTC=(100_000, 90_000), ETH=(2_500, 2_400)))
    caller = await box.caller()
    await caller.post("/v1/guardians", {"type": "account_drawdown", "maxLossPctFromDayStart": 2})
    for coin in ("BTC", "ETH"):
        await caller.post("/v1/orders", {"market": coin, "side": "long", "usdAmount": 4_000})
    await box.advance(hour - box.service.machine.clock.now_ms())
    events = (await caller.get("/v1/events?limit=200"))["events"]
    at_hour = [(e["type"], e.get("coin"), e["data"].get("oraclePx")) for e in events if e["ts"] == hour]
    assert at_hour[:3] == [("funding", "BTC", "90000"), ("funding", "ETH", "2400"), ("guardian", None, None)]


async def test_an_expired_max_hold_acts_after_the_prices_of_its_instant(open_box: OpenBox, tmp_path: Path) -> None:
    """Two recorded markets: the open of the first fills an entry with an expired max_hold; the open of the second
    fills an entry that a schedule would cancel.
    """
    hour = START_MS - START_MS % 3_600_000 + 7_200_000
    options = stepping(tmp_path, hour, BTC=(100_000, 99_000), ETH=(2_500, 2_480))
    box = await open_box(db=tmp_path / "box.db", **options)
    caller = await box.caller()
    await caller.post("/v1/guardians", {"type": "schedule", "cron": "0 * * * *", "action": "cancel_orders"})
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 500})
    await box.advance(hour - 60_000 - box.service.machine.clock.now_ms())
    limit = {"side": "long", "type": "limit", "usdAmount": 200}
    hold = [{"type": "max_hold", "seconds": 60}]
    await caller.post("/v1/orders", {**limit, "market": "BTC", "limitPx": "99500", "guardians": hold})
    await caller.post("/v1/orders", {**limit, "market": "ETH", "limitPx": "2490"})
    await box.advance(60_000)
    events = (await caller.get("/v1/events?limit=200"))["events"]
    fills = [(e["type"], e["subtype"], e.get("coin")) for e in events if e["ts"] == hour and e["type"] == "fill"]
    assert fills == [("fill", "entry", "BTC"), ("fill", "exit", "BTC"), ("fill", "entry", "ETH")]
    await box.service.machine.settle()
    with sqlite3.connect(tmp_path / "box.db") as source, sqlite3.connect(tmp_path / "killed.db") as target:
        source.backup(target)
        # Killed between the two markets' prices.
        ((last,),) = target.execute("SELECT max(seq) FROM commands WHERE command LIKE '%RunOverdue%'")
        target.execute("DELETE FROM commands WHERE seq > ?", (last,))
        target.execute("UPDATE clock SET alive_ms = ?", (hour - 1,))
    again = await open_box(db=tmp_path / "killed.db", **options)
    after = (await Caller(again.http, caller.opened).get("/v1/events?limit=200"))["events"]
    assert [e for e in after if e["type"] == "fill"] == [e for e in events if e["type"] == "fill"]


async def test_a_recorded_file_is_played_and_its_market_closes_at_the_end(open_box: OpenBox, tmp_path: Path) -> None:
    path = write(tmp_path / "BTC.csv", flat_rows(40))
    box = await open_box(data=((None, path),), markets=(), hold_prices=False, start_ms=None)
    assert list(box.service.machine.state.markets) == ["BTC"]
    # Half of a short file is history.
    assert box.service.machine.clock.now_ms() == START_MS + 20 * 60_000
    before = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=100")).json()["candles"]
    assert len([c for c in before if c["closed"]]) == 20
    await box.advance(20 * 60_000)
    candles = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=100")).json()["candles"]
    assert [(c["open"], c["high"], c["low"], c["close"], c["volume"]) for c in candles] == [
        tuple(r.split(",")[1:]) for r in flat_rows(40)
    ]
    fives = (await box.http.get("/v1/markets/BTC/candles?interval=5m&limit=100")).json()["candles"]
    assert sum(float(c["volume"]) for c in fives) == 60
    market = (await box.http.get("/v1/markets")).json()["markets"][0]
    assert market["status"] == "closed"
    assert (await box.http.get("/v1/system/status")).json()["status"] == "degraded"
    caller = await box.caller()
    refused = await caller.send("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 100})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "market_closed")
    assert (await caller.get("/v1/account"))["health"]["venue"] == "halted"
    await box.advance(3_600_000)


async def test_health_and_status_agree_on_a_closed_market(open_box: OpenBox, tmp_path: Path) -> None:
    path = write(tmp_path / "BTC.csv", flat_rows(40))
    box = await open_box(data=((None, path),), markets=("BTC", "ETH"), hold_prices=False, start_ms=None)
    caller = await box.caller()
    seen = []
    for _ in range(2):
        status = (await box.http.get("/v1/system/status")).json()["status"]
        seen.append((status, (await caller.get("/v1/account"))["health"]["venue"]))
        await box.advance(20 * 60_000)
    assert seen == [("ok", "ok"), ("degraded", "degraded")]


async def test_coarse_files_and_gaps_are_played_unchanged(open_box: OpenBox, tmp_path: Path) -> None:
    start = START_MS - START_MS % 3_600_000
    rows = flat_rows(30, start, 3_600_000)
    del rows[20]
    box = await open_box(data=(("BTC", write(tmp_path / "x.csv", rows)),), markets=(), hold_prices=False, start_ms=None)
    await box.advance(20 * 3_600_000)
    hours = (await box.http.get("/v1/markets/BTC/candles?interval=1h&limit=100")).json()["candles"]
    assert [c["ts"] for c in hours] == [int(row.split(",")[0]) for row in rows]
    assert (await box.http.get("/v1/markets/BTC/candles?interval=1m")).json()["candles"] == []


async def test_a_restart_in_the_middle_of_a_file_continues_there(open_box: OpenBox, tmp_path: Path) -> None:
    path = write(tmp_path / "BTC.csv", flat_rows(60))
    more: dict[str, Any] = {
        "data": ((None, path),),
        "markets": (),
        "hold_prices": False,
        "start_ms": None,
        "db": tmp_path / "s.db",
    }
    box = await open_box(**more)
    await box.advance(10 * 60_000 + 30_000)
    await box.service.stop()
    box = await open_box(**(more | {"data": ()}))
    await box.advance(30_000)
    candles = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=100")).json()["candles"]
    assert [c["close"] for c in candles if c["closed"]] == [str(100_001 + i) for i in range(41)]


async def test_a_command_in_the_middle_of_a_bar_does_not_change_resting_orders_fills(
    open_box: OpenBox, tmp_path: Path
) -> None:
    rows = flat_rows(20)
    rows[11] = f"{START_MS + 11 * 60_000},100100,100900,100050,100100,500"
    path = write(tmp_path / "BTC.csv", rows)
    box = await open_box(data=((None, path),), markets=(), hold_prices=False, start_ms=None)
    caller = await box.caller()
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "size": "0.01"})
    await caller.post("/v1/guardians", {"type": "trailing_stop", "market": "BTC", "trailPct": 5})
    await caller.post(
        "/v1/orders", {"market": "BTC", "side": "short", "type": "limit", "size": "0.01", "limitPx": "100800"}
    )
    # The open is a new extreme of the trailing stop, so the venue gets it.
    await box.advance(60_000)
    # The low is in the quiet band.
    await box.advance(21_000)
    await caller.post("/v1/heartbeat")
    await box.advance(60_000)
    fills = [(e["data"]["px"], e["data"]["size"]) for e in (await caller.get("/v1/events?types=fill"))["events"]]
    assert fills[1:] == [("100800", "0.01")]


def test_a_recorded_source_reports_its_gaps() -> None:
    source = RecordedSource([GridCandle(0, 1, 1, 1, 1, 0), GridCandle(120_000, 1, 1, 1, 1, 0)], 60_000)
    assert source.bar_at(59_999) is not None
    assert source.bar_at(60_000) is None
    after = source.next_bar(0)
    assert after is not None
    assert after.ts == 120_000
    assert source.next_bar(120_000) is None


async def test_the_recorded_btc_month_opens_and_plays(open_box: OpenBox, shared: Path) -> None:
    path = shared / "data" / "crypto" / "binance_BTCUSDT_1m_202505.csv.gz"
    if not path.is_file():
        pytest.skip("the recorded month is not among the shared data")
    box = await open_box(data=((None, path),), markets=(), hold_prices=False, start_ms=None)
    candles = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=1000")).json()["candles"]
    assert len([c for c in candles if c["closed"]]) == 200
    report = await box.advance(3_600_000)
    assert report["processed"] >= 240
