"""The sandbox's control: the clock stands, moves, runs; prices are pushed; the digest names the event log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.service.builders import ENTRY, assert_refused
from tests.service.conftest import START_MS, Box, Caller, OpenBox


async def test_the_clock_advances_by_a_time_to_a_time_and_to_the_next_instant(box: Box, caller: Caller) -> None:
    assert (await box.advance(500))["now"] == START_MS + 500
    to = await box.http.post("/sandbox/v1/clock/advance", json={"toMs": START_MS + 1000}, headers=box.control)
    assert to.json()["now"] == START_MS + 1000
    await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    step = await box.http.post("/sandbox/v1/clock/advance", json={"toNext": True}, headers=box.control)
    assert step.json()["now"] == START_MS + 61_000
    assert step.json()["processed"] == 1
    assert step.json()["nextDeadlineMs"] is None
    assert (await caller.get("/v1/guardians"))["guardians"] == []


async def test_the_refusal_of_a_too_large_step_names_the_largest_step(box: Box) -> None:
    most = 400 * 86_400_000
    for body, allowed in (({"ms": most + 1}, most), ({"toMs": START_MS + most + 1}, START_MS + most)):
        answer = await box.http.post("/sandbox/v1/clock/advance", json=body, headers=box.control)
        (field,) = assert_refused(answer, 400, "invalid_input")["details"]["fields"]
        assert (field["field"], field["allowed"]) == (next(iter(body)), f"<= {allowed}")


async def test_the_refusal_of_a_distant_next_instant_says_what_to_do(box: Box, caller: Caller) -> None:
    await caller.post("/v1/guardians", {"type": "schedule", "cron": "0 0 29 2 *", "action": "cancel_orders"})
    answer = await box.http.post("/sandbox/v1/clock/advance", json={"toNext": True}, headers=box.control)
    error = assert_refused(answer, 400, "invalid_input")
    assert [one["field"] for one in error["details"]["fields"]] == ["toNext"]
    assert error["fix"] == {"field": "ms", "value": 400 * 86_400_000}
    # 988 days from June 2025
    for _ in range(2):
        await box.advance(error["fix"]["value"])
    step = await box.http.post("/sandbox/v1/clock/advance", json={"toNext": True}, headers=box.control)
    assert (step.status_code, step.json()["processed"]) == (200, 1)


async def test_the_clock_never_goes_back_and_refuses_two_targets(box: Box) -> None:
    await box.advance(10)
    for body in (
        {"toMs": START_MS},
        {"ms": 1, "toMs": 5},
        {},
        {"ms": -1},
        {"ms": 1.5},
        {"toNext": False},
        {"ms": 10**15},
    ):
        answer = await box.http.post("/sandbox/v1/clock/advance", json=body, headers=box.control)
        assert_refused(answer, 400, "invalid_input")


async def test_a_clock_changes_speed_and_reports_it(box: Box) -> None:
    faster = await box.http.patch("/sandbox/v1/clock", json={"speed": 60}, headers=box.control)
    assert (faster.json()["mode"], faster.json()["speed"]) == ("accelerated", 60)
    assert faster.headers["x-sandbox-clock"].endswith("; speed=60")
    refused = await box.http.post("/sandbox/v1/clock/advance", json={"ms": 1}, headers=box.control)
    assert_refused(refused, 400, "invalid_input")
    for speed in (3601, -1, 0.5, "60"):
        answer = await box.http.patch("/sandbox/v1/clock", json={"speed": speed}, headers=box.control)
        assert_refused(answer, 400, "invalid_input")
    stopped = await box.http.patch("/sandbox/v1/clock", json={"speed": 0}, headers=box.control)
    assert stopped.json()["mode"] == "manual"


@pytest.mark.parametrize(
    "body",
    [
        {"px": "92233720368.54775808"},
        {"px": "1", "oraclePx": "100000000000"},
        {"px": "1", "bidPx": "1", "askPx": "100000000000"},
        {"px": "1", "volume": "92233720368.54775808"},
    ],
)
async def test_a_pushed_price_that_a_file_cannot_store_is_refused(
    open_box: OpenBox, tmp_path: Path, body: dict[str, str]
) -> None:
    box = await open_box(db=tmp_path / "s.db")
    async with asyncio.timeout(60):
        pushed = await box.http.post("/sandbox/v1/markets/BTC/price", json=body, headers=box.control)
        assert_refused(pushed, 400, "invalid_input")
        most = "92233720368.54775807"
        assert (await box.price("BTC", most, oraclePx=most, volume=most))["markPx"]


async def test_a_pushed_price_is_the_mark_and_the_running_candle(box: Box) -> None:
    market = await box.price("btc", "100123", volume="1.5")
    assert (market["markPx"], market["midPx"], market["oraclePx"]) == ("100123", "100123", "100123")
    candles = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=2")).json()["candles"]
    assert candles[-1]["high"] == candles[-1]["close"] == "100123"
    assert candles[-1]["volume"] == "1.5"
    assert candles[-1]["closed"] is False
    await box.advance(60_000)
    candles = (await box.http.get("/v1/markets/BTC/candles?interval=1m&limit=2")).json()["candles"]
    assert candles[-1]["closed"] is True


async def test_a_pushed_price_may_have_its_own_oracle_and_quotes(box: Box) -> None:
    market = await box.price("BTC", "100000", oraclePx="99990", bidPx="100010", askPx="100020")
    assert (market["markPx"], market["oraclePx"], market["midPx"]) == ("100000", "99990", "100015")
    for body in (
        {"px": "0"},
        {"px": "-1"},
        {"px": 5},
        {},
        {"px": "1", "bidPx": "1"},
        {"px": "1", "bidPx": "2", "askPx": "1"},
    ):
        answer = await box.http.post("/sandbox/v1/markets/BTC/price", json=body, headers=box.control)
        assert_refused(answer, 400, "invalid_input")
    missing = await box.http.post("/sandbox/v1/markets/NOPE/price", json={"px": "1"}, headers=box.control)
    assert_refused(missing, 404, "not_found")


async def test_quotes_of_an_event_market_lie_within_its_prices(open_box: OpenBox) -> None:
    coin = "event:BTC-UP-6H"
    box = await open_box(markets=("BTC", coin))
    for body, field in (
        ({"px": "0.5", "bidPx": "0.9", "askPx": "1.1"}, "askPx"),
        ({"px": "0.5", "bidPx": "0.0001", "askPx": "0.5"}, "bidPx"),
        ({"px": "1"}, "px"),
    ):
        answer = await box.http.post(f"/sandbox/v1/markets/{coin}/price", json=body, headers=box.control)
        assert assert_refused(answer, 400, "invalid_input")["details"]["fields"][0]["field"] == field
    caller = await box.caller()
    for px, side in (("0.001", "long"), ("0.999", "short")):
        await box.price(coin, "0.5", bidPx=px, askPx=px)
        answer = await caller.send("POST", "/v1/orders", {"market": coin, "side": side, "usdAmount": 100})
        assert answer.status_code in (200, 422)


async def test_a_pushed_price_ends_the_simulation_of_its_market(open_box: OpenBox) -> None:
    box = await open_box(hold_prices=False)
    await box.advance(60_000)
    await box.price("BTC", "50000")
    await box.advance(600_000)
    book = (await box.http.get("/v1/markets/BTC/book")).json()
    assert book["midPx"] == "50000"
    other = (await box.http.get("/v1/markets/ETH/candles?interval=1m&limit=12")).json()["candles"]
    assert other[-1]["ts"] == START_MS + 660_000


async def test_only_events_change_the_digest(box: Box, caller: Caller) -> None:
    before = await box.digest()
    await caller.get("/v1/account")
    await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    assert (await box.digest())["digest"] == before["digest"]
    await caller.post("/v1/orders", ENTRY)
    after = await box.digest()
    assert after["digest"] != before["digest"]
    assert after["events"] == before["events"] + 3
