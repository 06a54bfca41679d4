"""Event markets that follow one another: at every instant there is one of each series to trade, the same after a
restart, a restore or a kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bot.service.market_data.event_series import EventSeries
from bot.service.market_data.instruments import CATALOGUE
from tests.service.builders import assert_refused
from tests.service.conftest import START_MS, Box, Caller, OpenBox

HOUR_MS = 3_600_000
SIX_HOURS, FINAL = "event:BTC-UP-6H", "event:HOME-WIN"
MARKETS = ("BTC", SIX_HOURS, FINAL)


async def listed(box: Box, more: str = "") -> dict[str, Any]:
    found = (await box.http.get(f"/v1/markets?view=all&asset_class=prediction{more}")).json()["markets"]
    return {one["coin"]: one for one in found}


async def test_the_next_market_of_a_series_opens_when_one_is_settled(open_box: OpenBox) -> None:
    box = await open_box(hold_prices=False, markets=MARKETS, seed=5)
    first = (await listed(box))[SIX_HOURS]
    await box.http.post("/sandbox/v1/clock/advance", json={"toMs": first["expiresAt"] - 1}, headers=box.control)
    assert set(await listed(box)) == {SIX_HOURS, FINAL}
    await box.advance(1)
    found = await listed(box)
    following = found[f"{SIX_HOURS}-2"]
    assert (found[SIX_HOURS]["status"], following["status"]) == ("settled", "open")
    assert following["expiresAt"] == first["expiresAt"] + 6 * HOUR_MS
    assert (following["name"], following["takerFeeBps"] > 0) == (first["name"], True)
    assert 0.02 < float(following["midPx"]) < 0.98
    candles = (await box.http.get(f"/v1/markets/{SIX_HOURS}-2/candles?interval=1m&limit=5")).json()["candles"]
    assert candles[-1]["ts"] == first["expiresAt"]
    assert candles[-1]["close"] == following["markPx"]


async def test_a_market_is_traded_to_its_end_and_then_the_next_of_its_series(open_box: OpenBox) -> None:
    box = await open_box(hold_prices=False, markets=MARKETS, seed=5)
    caller = await box.caller()
    for number in (1, 2, 3):
        coin = SIX_HOURS if number == 1 else f"{SIX_HOURS}-{number}"
        made = await caller.post("/v1/orders", {"market": coin.lower(), "side": "long", "usdAmount": 50})
        assert made["position"]["coin"] == coin
        over = (await listed(box))[coin]["expiresAt"]
        await box.http.post("/sandbox/v1/clock/advance", json={"toMs": over}, headers=box.control)
        paid = (await caller.get("/v1/events?types=settlement&limit=200"))["events"][-1]
        assert (paid["coin"], paid["data"]["outcomePx"]) == (coin, (await listed(box))[coin]["outcomePx"])
        late = await caller.send("POST", "/v1/orders", {"market": coin, "side": "long", "usdAmount": 50})
        assert_refused(late, 409, "market_closed")
    assert (await caller.get("/v1/account"))["positions"] == []


async def test_after_weeks_each_series_has_one_open_market_and_old_ones_are_not_listed(open_box: OpenBox) -> None:
    box = await open_box(hold_prices=False, markets=(SIX_HOURS,), seed=2)
    await box.advance(20 * 24 * HOUR_MS)
    found = await listed(box)
    assert [one["status"] for one in found.values()].count("open") == 1
    # the open market, and those settled within a day
    assert len(found) <= 6
    assert f"{SIX_HOURS}-40" not in found
    assert list(await listed(box, f"&query={SIX_HOURS}-40")) == [f"{SIX_HOURS}-40"]
    outcomes = {m.outcome_px for m in box.service.machine.state.markets.values() if m.status == "settled"}
    assert outcomes == {0, 100_000_000}


async def test_a_restart_at_any_instant_continues_with_the_same_markets_and_prices(
    open_box: OpenBox, tmp_path: Path
) -> None:
    whole = await open_box(hold_prices=False, markets=MARKETS, seed=3)
    first = (await listed(whole))[SIX_HOURS]["expiresAt"]
    stops = [first - 1, first, first + 1, first + 6 * HOUR_MS, first + 7 * HOUR_MS + 12_345]
    for at in stops:
        await whole.http.post("/sandbox/v1/clock/advance", json={"toMs": at}, headers=whole.control)
    cut: Any = None
    for at in [START_MS, *stops]:
        if cut is not None:
            await cut.service.stop()
        cut = await open_box(hold_prices=False, markets=MARKETS, seed=3, db=tmp_path / "s.db")
        await cut.http.post("/sandbox/v1/clock/advance", json={"toMs": at}, headers=cut.control)
    assert await listed(cut) == await listed(whole)
    for coin in (f"{SIX_HOURS}-2", f"{SIX_HOURS}-3", f"{FINAL}-2"):
        path = f"/v1/markets/{coin}/candles?interval=5m&limit=50"
        assert (await cut.http.get(path)).content == (await whole.http.get(path)).content


async def test_a_restored_service_and_one_with_held_prices_have_the_later_markets(open_box: OpenBox) -> None:
    box = await open_box(markets=MARKETS)
    first = (await listed(box))[SIX_HOURS]["expiresAt"]
    await box.http.post("/sandbox/v1/clock/advance", json={"toMs": first + HOUR_MS}, headers=box.control)
    await box.price(f"{SIX_HOURS}-2", "0.4")
    caller = Caller(box.http, (await box.caller()).opened)
    held = await caller.post("/v1/orders", {"market": f"{SIX_HOURS}-2", "side": "long", "usdAmount": 40})
    assert float(held["trade"]["avgPx"]) < 0.42
    kept = await box.http.post("/sandbox/v1/snapshot", json={"name": "a"}, headers=box.control)
    await box.http.post("/sandbox/v1/clock/advance", json={"toMs": first + 20 * HOUR_MS}, headers=box.control)
    assert f"{SIX_HOURS}-4" in await listed(box)
    back = await box.http.post("/sandbox/v1/restore", json={"name": "a"}, headers=box.control)
    assert back.json()["digest"] == kept.json()["digest"]
    found = await listed(box)
    assert (found[f"{SIX_HOURS}-2"]["markPx"], f"{SIX_HOURS}-3" in found) == ("0.4", False)
    await box.http.post("/sandbox/v1/clock/advance", json={"toMs": first + 6 * HOUR_MS}, headers=box.control)
    assert (await listed(box))[f"{SIX_HOURS}-3"]["status"] == "open"
    await box.http.post("/sandbox/v1/reset", headers=box.control)
    assert set(await listed(box)) == {SIX_HOURS, FINAL}


def test_later_markets_of_a_kind_differ_and_their_outcomes_are_open() -> None:
    series = EventSeries(dict(CATALOGUE), seed=1, start_ms=START_MS, is_held=False)
    for coin in ("event:HOME-WIN", "event:RAIN-TOMORROW", "event:TREATY-SIGNED", "event:CPI-ABOVE-3"):
        at, seen = START_MS - START_MS % HOUR_MS, []
        for _ in range(30):
            following = series.after(coin, at)
            coin, at = following.spec.coin, following.spec.expires_ms or 0
            seen.append(following.px / 10**8)
        assert len(set(seen)) > 20
        assert sum(0.03 < px < 0.97 for px in seen) >= 25, (coin, seen)
    assert series.next_coin("event:CPI-ABOVE-3-2") == "event:CPI-ABOVE-3-3"
    assert series.next_coin("event:NONE") is None
