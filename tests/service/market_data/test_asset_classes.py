"""The four classes in a served sandbox: listed with their figures, priced as they should be, settled and reopened at
their instants.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from statistics import pstdev
from typing import Any

import pytest

from bot.service.market_data.event_odds import EventOdds
from bot.service.market_data.instruments import CATALOGUE, starting_at
from bot.service.market_data.simulator import SimulatedMarket
from bot.venue.model.numbers import E8
from bot.venue.model.state import VenueMarket
from tests.service.conftest import OpenBox

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# 2025-06-09 00:00 UTC, Sunday 20:00 in New York
MONDAY_MS = 1_749_427_200_000
FRIDAY_MS = MONDAY_MS + 4 * DAY_MS
EVENT = "event:BTC-UP-6H"
PAST: dict[str, Any] = {"hold_prices": False}


def event(seed: int, *, hours: int = 48, prior: float = 0.4, pace: float = 1.0) -> EventOdds:
    return EventOdds(
        coin="event:X",
        seed=seed,
        prior=round(prior * E8),
        start_ms=MONDAY_MS,
        expires_ms=MONDAY_MS + hours * HOUR_MS,
        pace=pace,
        day_usd=10_000,
    )


# ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_events_price_is_the_probability_of_yes() -> None:
    """A martingale: of the markets seen at a price, this fraction is settled Yes, in every bin and at every distance
    from the end.
    """
    bins: dict[int, list[float]] = {}
    for seed in range(1_500):
        market = event(seed, prior=0.1 + 0.2 * (seed % 5))
        won = market.outcome / E8
        for hours in (0, 24, 40, 47):
            px = market.minute(MONDAY_MS + hours * HOUR_MS + 17 * 60_000).open / E8
            bins.setdefault(min(9, int(px * 10)), []).append(won - px)
    assert len(bins) == 10
    for place, errors in bins.items():
        assert abs(math.fsum(errors) / len(errors)) < 4.5 * 0.5 / math.sqrt(len(errors) / 4), (place, len(errors))


def test_an_event_ends_at_its_outcome_and_has_no_price_after() -> None:
    for seed in range(40):
        market = event(seed)
        last = market.candles("1m", market.expires_ms - 60_000, market.expires_ms + DAY_MS)
        assert [c.ts for c in last] == [market.expires_ms - 60_000]
        assert last[0].close == (99_900_000 if market.outcome else 100_000)
        assert market.candles("1d", market.expires_ms - 60_000, market.expires_ms + DAY_MS) == []


def test_a_stock_is_nearly_still_while_its_outside_price_is_closed_and_reopens_with_a_gap() -> None:
    listing = CATALOGUE["TSLA"]
    grid = VenueMarket(listing.spec, listing.px, listing.px, listing.px)
    week: list[float] = []
    weekend: list[float] = []
    gaps: list[float] = []
    for seed in range(12):
        market = SimulatedMarket(
            grid, seed=seed, px=listing.px, start_ms=MONDAY_MS, daily_vol=listing.daily_vol, day_usd=listing.day_usd
        )
        hours = market.candles("1h", MONDAY_MS, MONDAY_MS + 8 * DAY_MS)
        moves = [math.log(c.close / c.open) for c in hours]
        week += moves[:96]
        weekend += moves[122:166]
        gaps.append(math.log(hours[168].open / hours[167].close))
        assert all(a.close == b.open for i, (a, b) in enumerate(pairwise(hours)) if i != 167)
    assert pstdev(weekend) < pstdev(week) / 10
    assert pstdev(gaps) > 1.5 * pstdev(week)


def test_events_are_settled_from_hours_to_months_after_the_start() -> None:
    lasts = sorted(
        (listing.spec.expires_ms or 0) - MONDAY_MS
        for listing in (starting_at(found, MONDAY_MS) for found in CATALOGUE.values())
        if listing.spec.expires_ms is not None
    )
    assert len(lasts) > 10
    assert lasts[0] == 6 * HOUR_MS
    assert lasts[-1] > 150 * DAY_MS


# ── Lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_default_service_lists_all_markets_of_all_classes(open_box: OpenBox) -> None:
    box = await open_box(markets=(), start_ms=MONDAY_MS + HOUR_MS, **PAST)
    listed = (await box.http.get("/v1/markets?view=all&limit=250")).json()["markets"]
    assert [m["coin"] for m in listed] == sorted(CATALOGUE)
    for name, book, mode in (
        ("crypto", "main", "cross"),
        ("stocks", "stocks", "isolated"),
        ("prediction", "events", "full"),
    ):
        found = (await box.http.get(f"/v1/markets?asset_class={name}&limit=250")).json()["markets"]
        assert {(m["assetClass"], m["book"], m["marginMode"]) for m in found} == {(name, book, mode)}
    assert {m["external"] for m in listed if m["book"] == "stocks"} == {"open"}
    trending = (await box.http.get("/v1/markets?limit=250")).json()["markets"]
    volumes = [float(m["volume24hUsd"]) for m in trending]
    assert volumes == sorted(volumes, reverse=True)
    assert min(volumes) > 0
    assert (await box.http.get("/v1/markets?query=treasury")).json()["markets"][0]["assetClass"] == "bonds"
    one = next(m for m in listed if m["coin"] == EVENT)
    assert (one["maxLeverage"], one["fundingRateHourly"], one["nextFundingAt"], one["outcomePx"]) == (
        1,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("name", ["event:btc-up-6h", "EVENT:BTC-UP-6H", "Event:Btc-Up-6h", "perp:tsla", "TSLA", "tsla"])
async def test_a_market_has_one_name_in_any_case(open_box: OpenBox, name: str) -> None:
    box = await open_box(markets=(EVENT, "TSLA"))
    for what in ("candles", "book"):
        answer = await box.http.get(f"/v1/markets/{name}/{what}")
        assert answer.json()["coin"] == (EVENT if "event" in name.lower() else "TSLA")


# ── At their instants ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_event_is_traded_and_settled_and_the_account_gets_the_event(open_box: OpenBox, tmp_path: Path) -> None:
    options = {"markets": ("BTC", EVENT), "start_ms": MONDAY_MS, "db": tmp_path / "s.db"}
    box = await open_box(**options)
    await box.price(EVENT, "0.4")
    caller = await box.caller()
    placed = await caller.post("/v1/orders", {"market": "event:btc-up-6h", "side": "short", "size": "100"})
    held = placed["position"]
    assert (held["side"], held["liquidationPx"], held["leverage"], held["book"]) == ("short", None, 1, "events")
    asked = await caller.send("POST", "/v1/orders", {"market": EVENT, "side": "long", "size": "500", "leverage": 2})
    assert asked.json()["error"]["code"] == "leverage_too_high"
    await box.advance(5 * HOUR_MS)
    await box.service.stop()
    # Also across a restart.
    box = await open_box(**options)
    caller.http = box.http
    await box.price(EVENT, "0.03")
    await box.advance(2 * HOUR_MS)
    events = (await caller.get("/v1/events?types=settlement"))["events"]
    assert [(e["subtype"], e["ts"], e["data"]["outcomePx"]) for e in events] == [
        ("settled", MONDAY_MS + 6 * HOUR_MS, "0")
    ]
    assert events[0]["data"]["payoutUsd"] == "100"
    account = await caller.get("/v1/account")
    assert account["positions"] == []
    assert account["balanceUsd"] == account["accountValueUsd"] == events[0]["data"]["balanceUsd"]
    market = next(m for m in (await box.http.get("/v1/markets")).json()["markets"] if m["coin"] == EVENT)
    assert (market["status"], market["outcomePx"], market["bidPx"], market["midPx"]) == ("settled", "0", None, None)
    refused = await caller.send("POST", "/v1/orders", {"market": EVENT, "side": "long", "size": "100"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "market_closed")
    digest = (await box.digest())["digest"]
    await box.service.stop()
    box = await open_box(**options)
    assert (await box.digest())["digest"] == digest


async def test_a_simulated_event_is_settled_to_its_last_price(open_box: OpenBox) -> None:
    box = await open_box(markets=(EVENT,), start_ms=MONDAY_MS, **PAST)
    await box.advance(7 * HOUR_MS)
    market = (await box.http.get("/v1/markets")).json()["markets"][0]
    candles = (await box.http.get(f"/v1/markets/{EVENT}/candles?interval=1m&limit=5000")).json()["candles"]
    assert candles[-1]["ts"] == MONDAY_MS + 6 * HOUR_MS - 60_000
    assert (market["outcomePx"], candles[-1]["close"]) in (("1", "0.999"), ("0", "0.001"))
    assert (await box.http.get("/v1/system/status")).json()["status"] == "ok"


async def test_the_outside_price_closes_on_friday_evening_and_reopens_on_sunday(
    open_box: OpenBox, tmp_path: Path
) -> None:
    options = {"markets": ("TSLA", "HYG"), "start_ms": FRIDAY_MS + 23 * HOUR_MS, "db": tmp_path / "s.db"} | PAST
    box = await open_box(**options)
    caller = await box.caller()

    async def market() -> Any:
        return (await box.http.get("/v1/markets?query=tesla")).json()["markets"][0]

    before = await market()
    assert (before["external"], before["closesAt"], before["opensAt"]) == ("open", FRIDAY_MS + DAY_MS, None)
    await box.advance(DAY_MS // 2)
    closed = await market()
    assert (closed["external"], closed["closesAt"], closed["opensAt"]) == ("closed", None, MONDAY_MS + 7 * DAY_MS)
    assert closed["spreadBps"] > 2 * before["spreadBps"]
    oracle = closed["oraclePx"]
    await caller.post("/v1/orders", {"market": "TSLA", "side": "long", "usdAmount": 1000})
    refused = await caller.send("POST", "/v1/orders", {"market": "HYG", "side": "long", "usdAmount": 1000})
    assert refused.json()["error"]["details"]["opensAt"] == MONDAY_MS + 7 * DAY_MS
    await box.advance(DAY_MS)
    assert (await market())["oraclePx"] == oracle
    await box.service.stop()
    box = await open_box(**options)
    assert (await market())["external"] == "closed"
    await box.advance(DAY_MS)
    opened = await market()
    assert opened["external"] == "open"
    assert opened["oraclePx"] == opened["markPx"] != oracle
