"""Changelog, portfolio, home, funding and the public wallets: exactly the fields of the interface, and a value
through time that adds up.
"""

from __future__ import annotations

import base64
import hashlib
import re
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bot.wire
from bot.venue.accounting import ledger, nav
from bot.venue.model.state import DAY_MS, HOUR_MS, Stand
from bot.venue.storage import codec, pages
from tests.service.conftest import START_MS, Box, Caller, OpenBox

UNREGISTERED = "0x" + "ab" * 20
FIVE_MINUTES = 300_000
BODIES = {
    "/v1/changelog": "ChangelogResult",
    "/v1/portfolio": "Portfolio",
    "/v1/home": "Home",
    "/v1/funding": "Funding",
    "/v1/trades": "TradesPage",
    "/v1/wallets/{address}": "WalletResult",
    "/v1/wallets/{address}/positions": "WalletPositionsResult",
    "/v1/wallets/{address}/pnl": "WalletPnlResult",
    "/v1/wallets/{address}/nav": "WalletNavResult",
    "/v1/wallets/{address}/trades": "TradesPage",
}


def address(caller: Caller) -> str:
    return str(caller.opened["address"])


async def buy(caller: Caller, usd: int = 1000, **more: Any) -> Any:
    return await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": usd, **more}, key=f"k{usd}")


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_equals_the_output_of_its_model(path: str, caller: Caller) -> None:
    await buy(caller, bracket={"stopLoss": {"pct": 5}})
    body = await caller.get(path.format(address=address(caller)))
    model = getattr(bot.wire, BODIES[path])
    again = model.model_validate(body).model_dump(mode="json")
    assert again == body


async def test_a_wallet_is_read_without_a_credential_and_shows_no_plan(box: Box, caller: Caller) -> None:
    await buy(caller, bracket={"stopLoss": {"pct": 5}, "takeProfit": {"r": 2}})
    body = (await box.http.get(f"/v1/wallets/{address(caller).upper().replace('X', 'x')}")).json()
    assert body["registered"] is True
    assert body["address"] == address(caller)
    held = body["positions"][0]
    assert (held["stopPx"], held["takeProfitPx"], held["riskUsd"]) == (None, None, None)
    assert held["coin"] == "BTC"
    traded = (await box.http.get(f"/v1/wallets/{address(caller)}/trades")).json()["trades"][0]
    assert {traded[name] for name in ("requestId", "idempotencyKey", "source", "venueOid", "guardianId")} == {None}


async def test_a_wallet_shows_only_the_filled_part_of_an_order(box: Box, caller: Caller) -> None:
    placed = await buy(caller, 9000, type="limit", limitPx="90000")
    await box.price("BTC", "89000", volume="0.2")
    mine = (await caller.get("/v1/trades"))["trades"][0]
    assert (mine["status"], mine["fillStatus"], mine["size"], mine["filledSize"]) == ("open", "partial", "0.1", "0.02")
    seen = (await box.http.get(f"/v1/wallets/{address(caller)}/trades")).json()["trades"][0]
    assert (seen["status"], seen["fillStatus"], seen["size"], seen["filledSize"]) == ("done", "filled", "0.02", "0.02")
    await caller.delete(f"/v1/orders/{placed['trade']['venueOid']}")
    seen = (await box.http.get(f"/v1/wallets/{address(caller)}/trades")).json()["trades"][0]
    assert (seen["status"], seen["fillStatus"], seen["filledSize"]) == ("canceled", "partial", "0.02")


async def test_a_wallet_shows_no_order_that_has_not_filled(box: Box, caller: Caller) -> None:
    async def seen(query: str = "") -> tuple[list[int], int | None]:
        page = (await box.http.get(f"/v1/wallets/{address(caller)}/trades{query}")).json()
        return [trade["seq"] for trade in page["trades"]], page["nextBefore"]

    await buy(caller, 100)
    await buy(caller, 200, type="limit", limitPx="90000")
    gone = await buy(caller, 300, type="limit", limitPx="80000")
    await caller.delete(f"/v1/orders/{gone['trade']['venueOid']}")
    await buy(caller, 400)
    assert [trade["seq"] for trade in (await caller.get("/v1/trades"))["trades"]] == [4, 3, 2, 1]
    assert await seen() == ([4, 1], None)
    assert await seen("?limit=1") == ([4], 4)
    assert await seen("?limit=1&before=4") == ([1], None)
    assert (await box.http.get(f"/v1/wallets/{address(caller)}/pnl")).json()["trades"] == 2
    await box.price("BTC", "89000")
    assert await seen() == ([4, 2, 1], None)


async def test_an_address_that_is_no_account_is_not_registered(box: Box) -> None:
    async def get(tail: str) -> Any:
        answer = await box.http.get(f"/v1/wallets/{UNREGISTERED}{tail}")
        assert answer.status_code == 200
        return answer.json()

    assert (await get(""))["registered"] is False
    assert (await get(""))["accountValueUsd"] == "0"
    assert (await get("/positions")) == {"address": UNREGISTERED, "registered": False, "positions": []}
    pnl = await get("/pnl")
    assert pnl["ranges"] == {"1d": "0", "7d": "0", "30d": "0", "all": "0"}
    assert (pnl["trades"], pnl["winRatePct"]) == (0, None)
    assert (await get("/nav?range=30d")) == {
        "address": UNREGISTERED,
        "registered": False,
        "range": "30d",
        "navUsd": "0",
        "series": None,
    }
    assert (await get("/trades")) == {"trades": [], "nextBefore": None}


@pytest.mark.parametrize(
    "wrong", ["0x", "0x" + "a" * 39, "0x" + "a" * 41, "0x" + "g" * 40, "a" * 42, "0x" + "\u0661" * 40]
)
@pytest.mark.parametrize("tail", ["", "/positions", "/pnl", "/nav", "/trades"])
async def test_a_malformed_address_is_refused(wrong: str, tail: str, box: Box) -> None:
    answer = await box.http.get(f"/v1/wallets/{wrong}{tail}")
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["fields"][0]["field"] == "address"


async def test_trades_are_paged_by_before_without_gap_or_repeat(box: Box, caller: Caller) -> None:
    for usd in range(100, 107):
        await buy(caller, usd)
    seen: list[int] = []
    before = ""
    while True:
        page = (await box.http.get(f"/v1/wallets/{address(caller)}/trades?limit=3{before}")).json()
        seen += [trade["seq"] for trade in page["trades"]]
        if page["nextBefore"] is None:
            break
        before = f"&before={page['nextBefore']}"
    assert seen == list(range(7, 0, -1))
    assert (await box.http.get(f"/v1/wallets/{address(caller)}/trades?before=0")).json()["trades"] == []


async def test_profit_and_loss_adds_up(box: Box, caller: Caller) -> None:
    await buy(caller)
    await box.price("BTC", "110000")
    await caller.post("/v1/positions/BTC/close", {"fraction": 0.5})
    await box.advance(HOUR_MS)
    body = (await box.http.get(f"/v1/wallets/{address(caller)}/pnl")).json()
    parts = {
        name: Decimal(body[name])
        for name in ("realizedPnlUsd", "unrealizedPnlUsd", "feesUsd", "fundingUsd", "netPnlUsd")
    }
    assert parts["netPnlUsd"] == (
        parts["realizedPnlUsd"] + parts["unrealizedPnlUsd"] - parts["feesUsd"] + parts["fundingUsd"]
    )
    assert parts["fundingUsd"] < 0 < parts["realizedPnlUsd"]
    value = Decimal((await caller.get("/v1/account"))["accountValueUsd"])
    assert value - 10_000 == parts["netPnlUsd"]
    assert {Decimal(gain) for gain in body["ranges"].values()} == {parts["netPnlUsd"]}
    assert (body["trades"], body["winRatePct"]) == (2, 100)


async def series(box: Box, caller: Caller, span: str) -> list[tuple[int, str]]:
    body = (await box.http.get(f"/v1/wallets/{address(caller)}/nav?range={span}")).json()
    assert body["navUsd"] == body["series"][-1]["navUsd"]
    return [(point["ts"], point["navUsd"]) for point in body["series"]]


async def test_the_series_has_a_point_at_each_step_boundary_and_one_now(box: Box, caller: Caller) -> None:
    await buy(caller)
    await box.advance(40 * DAY_MS)
    now = START_MS + 40 * DAY_MS
    steps = {"1d": FIVE_MINUTES, "7d": HOUR_MS, "30d": 4 * HOUR_MS, "all": DAY_MS}
    for span, count in {"1d": 288, "7d": 168, "30d": 180, "all": 40}.items():
        found = await series(box, caller, span)
        assert len(found) == count + 1
        assert found[-1][0] == now
        assert all(ts % steps[span] == 0 for ts, _ in found[:-1])
        assert [b - a for (a, _), (b, _) in pairwise(found[:-1])] == [steps[span]] * (count - 1)


async def test_a_point_is_the_value_at_the_end_of_its_step(box: Box, caller: Caller) -> None:
    """Read live just before each boundary, and again in the series."""
    first = START_MS - START_MS % FIVE_MINUTES + FIVE_MINUTES
    await box.advance(first - START_MS - 1)
    live: dict[int, str] = {}
    for at in range(6):
        if at == 1:
            await buy(caller)
        if at == 4:
            await caller.post("/v1/positions/BTC/close", {})
        await box.price("BTC", str(100_000 + 700 * at))
        live[first + at * FIVE_MINUTES] = (await caller.get("/v1/account"))["accountValueUsd"]
        await box.advance(FIVE_MINUTES)
    found = dict((await series(box, caller, "1d"))[:-1])
    assert found == live


async def gained_in_a_day(box: Box, caller: Caller, begin_ms: int) -> tuple[Decimal, Decimal, Decimal]:
    """The gain of the day from this boundary on: by the account, by the wallet's range, and by the first point of
    its series.
    """
    await box.advance(begin_ms - box.service.machine.clock.now_ms())
    before = Decimal((await caller.get("/v1/account"))["accountValueUsd"])
    await box.advance(DAY_MS)
    value = Decimal((await caller.get("/v1/account"))["accountValueUsd"])
    body = (await box.http.get(f"/v1/wallets/{address(caller)}/pnl")).json()
    first = (await series(box, caller, "1d"))[0]
    assert first[0] == begin_ms
    return value - before, Decimal(body["ranges"]["1d"]), value - Decimal(first[1])


# at 60 funding is paid
@pytest.mark.parametrize("minute", [55, 60])
@pytest.mark.parametrize(
    ("market", "side", "usd"),
    [("event:RAIN-TOMORROW", "long", 500), ("event:RAIN-TOMORROW", "short", 500), ("ETH", "long", 5000)],
)
async def test_a_range_of_an_older_account_begins_with_the_value_of_its_first_point(
    open_box: OpenBox, market: str, side: str, usd: int, minute: int
) -> None:
    box: Box = await open_box(markets=("BTC", "ETH", "event:RAIN-TOMORROW"), hold_prices=False, seed=7)
    caller = await box.caller()
    await caller.post("/v1/orders", {"market": market, "side": side, "usdAmount": usd})
    begin = START_MS - START_MS % HOUR_MS + HOUR_MS + minute * 60_000
    by_account, by_range, by_series = await gained_in_a_day(box, caller, begin)
    assert by_account == by_range == by_series != 0


async def test_an_event_on_a_boundary_belongs_to_the_point_of_that_boundary(box: Box, caller: Caller) -> None:
    await box.advance(FIVE_MINUTES - START_MS % FIVE_MINUTES)
    at = box.service.machine.clock.now_ms()
    await buy(caller)
    seen = (await caller.get("/v1/account"))["accountValueUsd"]
    assert seen != "10000"
    for _ in range(2):
        await box.advance(1)
        await buy(caller, 500)
        assert (await series(box, caller, "1d"))[0] == (at, seen)
        await box.advance(FIVE_MINUTES)


async def test_the_series_is_the_same_after_a_restart(tmp_path: Path, open_box: OpenBox) -> None:
    db = tmp_path / "service.db"
    box: Box = await open_box(db=db)
    await box.price("BTC", "100000")
    caller = await box.caller()
    await buy(caller)
    for at in range(20):
        await box.advance(HOUR_MS // 2)
        await box.price("BTC", str(100_000 + 31 * at))
    before = [await series(box, caller, span) for span in ("1d", "7d", "30d", "all")]
    pnl = (await box.http.get(f"/v1/wallets/{address(caller)}/pnl")).json()
    await box.service.stop()
    again: Box = await open_box(db=db)
    caller = Caller(again.http, caller.opened)
    assert [await series(again, caller, span) for span in ("1d", "7d", "30d", "all")] == before
    assert (await again.http.get(f"/v1/wallets/{address(caller)}/pnl")).json() == pnl


async def test_a_reset_starts_the_series_anew(box: Box, caller: Caller) -> None:
    await buy(caller)
    await box.advance(HOUR_MS)
    await caller.post("/v1/sandbox/accounts/reset", {"balanceUsd": 500})
    at = START_MS + HOUR_MS
    assert await series(box, caller, "1d") == [(at, "500")]
    await box.advance(FIVE_MINUTES)
    assert [worth for _, worth in await series(box, caller, "1d")] == ["500", "500"]
    assert (await box.http.get(f"/v1/wallets/{address(caller)}/pnl")).json()["netPnlUsd"] == "0"


@pytest.mark.parametrize("late", [0, 1])
def test_stored_values_are_bounded_and_cover_every_boundary(late: int) -> None:
    """A value every five minutes for 60 days, thinned each day: each range has the same boundaries as without
    thinning.
    """
    whole: list[Stand] = []
    kept: list[Stand] = []
    for at in range(0, 60 * DAY_MS, FIVE_MINUTES):
        stand = Stand(at + late, at)
        whole.append(stand)
        kept.append(stand)
        if at % DAY_MS == 0:
            kept = nav.thinned(kept, at + 1)
    now = 60 * DAY_MS
    kept = nav.thinned(kept, now)
    assert len(kept) < 288 + 168 + 180 + 60 + 8
    for reach, step in nav.KEPT:
        for boundary in range(max(step, now - reach), now, step):
            last = [max((one for one in held if one.ts <= boundary), key=lambda one: one.ts) for held in (whole, kept)]
            assert last[0] == last[1], (reach, step, boundary)
            if reach > 7 * DAY_MS and boundary > 50 * DAY_MS:
                break


async def test_home_shows_the_largest_positions_first(open_box: OpenBox) -> None:
    box: Box = await open_box()
    await box.price("BTC", "100000")
    await box.price("ETH", "3000")
    caller = await box.caller(name="ada")
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 100})
    await caller.post("/v1/orders", {"market": "ETH", "side": "short", "usdAmount": 900})
    home = await caller.get("/v1/home")
    assert home["nickname"] == "ada"
    assert home["portfolio"]["openPositions"] == 2
    assert [held["coin"] for held in home["portfolio"]["positions"]] == ["ETH", "BTC"]
    assert any("The service has no stop" in said for said in home["guidance"])


async def test_home_values_a_no_position_at_the_price_of_no(open_box: OpenBox) -> None:
    box: Box = await open_box(markets=("BTC", "event:RAIN-TOMORROW"))
    await box.price("BTC", "100000")
    await box.price("event:RAIN-TOMORROW", "0.05")
    caller = await box.caller()
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 400})
    await caller.post("/v1/orders", {"market": "event:RAIN-TOMORROW", "side": "short", "usdAmount": 500})
    held = (await caller.get("/v1/home"))["portfolio"]["positions"]
    assert [one["coin"] for one in held] == ["event:RAIN-TOMORROW", "BTC"]
    assert Decimal(held[0]["notionalUsd"]) > Decimal(held[1]["notionalUsd"])


async def test_the_page_of_a_wallet_is_escaped_and_loads_nothing(box: Box) -> None:
    caller = await box.caller(name="<script>alert(1)</script>\u202e\x1b")
    await buy(caller)
    url = (await caller.get("/v1/portfolio"))["webWatch"]
    answer = await box.http.get(url)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    assert answer.text.count("<script") == len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "&lt;script&gt;" in answer.text
    assert "\u202e" not in answer.text
    assert "\x1b" not in answer.text
    assert (await box.http.get("/watch/zz")).json()["error"]["code"] == "invalid_input"
    assert "no account on this service" in (await box.http.get(f"/watch/{UNREGISTERED}")).text


async def test_a_position_value_equals_the_ledgers(open_box: OpenBox) -> None:
    """Long and short, cross and isolated: the same to the last digit."""
    box: Box = await open_box(markets=("BTC", "ETH", "AAPL"))
    for coin, px in (("BTC", "100000"), ("ETH", "3000.7"), ("AAPL", "231.13")):
        await box.price(coin, px)
    caller = await box.caller()
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 777.7, "leverage": 3})
    await caller.post("/v1/orders", {"market": "ETH", "side": "short", "usdAmount": 333.3, "leverage": 2})
    await caller.post("/v1/orders", {"market": "AAPL", "side": "short", "usdAmount": 555.5, "leverage": 2})
    await box.price("ETH", "3111.1")
    await box.price("AAPL", "219.87")
    state = box.service.machine.state
    account = next(iter(state.accounts.values()))
    assert len(account.positions) == 3
    stand = account.history[-1]
    sizes = [(size, state.markets[coin].mark) for coin, size, _ in stand.held]
    assert nav.value(stand.cash, sizes) == ledger.account_value(state, account)


async def test_finished_trades_are_counted_once(
    open_box: OpenBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await open_box(db=tmp_path / "s.db")
    machine = box.service.machine
    unpacked: list[bytes] = []
    caller = await box.caller()

    async def control(act: str) -> None:
        done = await box.http.post(f"/sandbox/v1/{act}", json={"name": "a"}, headers=box.control)
        assert done.status_code == 200

    async def counted() -> tuple[int, Any, int]:
        """The wallet's figures, checked against a full count, and the pages that were unpacked for them."""
        pages._read.cache_clear()
        unpacked.clear()
        body = (await box.http.get(f"/v1/wallets/{address(caller)}/pnl")).json()
        read = len(unpacked)
        account = machine.state.accounts[caller.opened["accountId"]]
        filled = [trade for trade in pages.trades_before(account) if trade.filled]
        closing = [trade.realized > 0 for trade in filled if trade.realized is not None]
        rate = round(100 * sum(closing) / len(closing), 2) if closing else None
        assert (body["trades"], body["winRatePct"]) == (len(filled), rate)
        return len(filled), rate, read

    def unpack(packed: bytes) -> Any:
        unpacked.append(packed)
        return codec_unpack(packed)

    codec_unpack = codec.unpack
    monkeypatch.setattr(codec, "unpack", unpack)
    for number in range(70):
        await box.price("BTC", "100000")
        await buy(caller, 100 + number)
        await box.price("BTC", str(100_000 + (700 if number % 3 else -700)))
        await caller.post("/v1/positions/BTC/close", {})
    machine.snapshot()
    first = await counted()
    assert first[0] == 140
    assert first[2] >= 2
    await buy(caller, 200, type="limit", limitPx="90000")
    await buy(caller, 300)
    assert (await counted())[::2] == (141, 0)
    await control("snapshot")
    await box.price("BTC", "89000")
    await caller.post("/v1/positions/BTC/close", {"fraction": 0.5})
    assert (await counted())[::2] == (143, 0)
    assert (await caller.get("/v1/orders"))["orders"] == []
    await caller.post("/v1/sandbox/accounts/reset")
    assert (await counted())[:2] == (0, None)
    await box.price("BTC", "100000")
    await buy(caller, 400)
    assert (await counted())[:2] == (1, None)
    await control("restore")
    assert (await counted())[0] == 141
