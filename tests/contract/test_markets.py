"""What anybody may read: start, status, the markets and their candles and books, held against each other."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from tests.contract.shapes import judge
from tests.contract.target import Target

D = Decimal
MS = {"1m": 60_000, "5m": 300_000, "15m": 900_000, "1h": 3_600_000, "4h": 14_400_000, "1d": 86_400_000}


def get(target: Target, path: str) -> Any:
    answer = target.send("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def candles(target: Target, coin: str, interval: str, limit: int) -> list[dict[str, Any]]:
    body = get(target, f"/v1/markets/{coin}/candles?interval={interval}&limit={limit}")
    judge("candles", body)
    assert (body["coin"], body["interval"]) == (coin, interval)
    found: list[dict[str, Any]] = body["candles"]
    return found


def coins(target: Target) -> list[str]:
    return [m["coin"] for m in get(target, "/v1/markets?view=all&limit=250")["markets"]]


def test_start_leads_through_the_first_order(simulated: Target) -> None:
    start = get(simulated, "/v1/start")
    judge("start", start)
    assert [s["n"] for s in start["steps"]] == list(range(1, len(start["steps"]) + 1))
    assert start["scopes"] == ["read", "trade", "trade:close_only", "outcomes"]
    assert start["apis"]["rest"]["baseUrl"].startswith(simulated.base_url)
    # The steps are followed as they are written, with the key of the first.
    headers: dict[str, str] = {}
    token = ""
    for step in start["steps"]:
        if "{" in step["path"]:
            continue
        body = step["body"]
        if body and "confirmToken" in body:
            body = body | {"confirmToken": token}
        answer = simulated.send(
            step["method"], step["path"], body, headers=headers if step["auth"] == "bearer" else None
        )
        assert answer.status_code == 200, (step, answer.text)
        if "apiKey" in answer.json():
            headers = {"Authorization": f"Bearer {answer.json()['apiKey']}"}
        token = answer.json().get("confirmToken", token)
    assert headers


def test_status(simulated: Target) -> None:
    status = get(simulated, "/v1/system/status")
    judge("status", status)
    assert (status["apiVersion"], status["limitsVersion"], status["clock"]) == (
        "2026-10-19",
        2,
        {"mode": "manual", "speed": 0},
    )
    answer = simulated.send("GET", "/v1/system/status")
    assert answer.headers["x-sandbox-clock"] == f"{status['serverTime']}; speed=0"


def test_views_sort_and_filters_filter(simulated: Target) -> None:
    whole = get(simulated, "/v1/markets?view=all&limit=250")
    judge("markets", whole)
    markets = {m["coin"]: m for m in whole["markets"]}
    names = list(markets)
    assert names == sorted(names)
    assert {"BTC", "ETH"} <= set(names)
    trending = get(simulated, "/v1/markets")["markets"]
    volumes = [D(m["volume24hUsd"]) for m in trending]
    assert volumes == sorted(volumes, reverse=True)
    assert len(trending) == min(150, len(names))
    assert all(m["status"] == "open" for m in get(simulated, "/v1/markets?view=opportunities")["markets"])
    assert get(simulated, "/v1/markets?limit=1&view=all")["markets"] == whole["markets"][:1]
    seen = 0
    for kind in ("crypto", "stocks", "bonds", "prediction"):
        some = get(simulated, f"/v1/markets?asset_class={kind}&view=all&limit=250")["markets"]
        assert {m["assetClass"] for m in some} <= {kind}
        assert {m["book"] for m in some} <= {{"crypto": "main", "prediction": "events"}.get(kind, "stocks")}
        seen += len(some)
    assert seen == len(names)
    for query in ("btc", "BTC", "Bitcoin", "bItC"):
        assert "BTC" in [m["coin"] for m in get(simulated, f"/v1/markets?query={query}")["markets"]]
    assert get(simulated, "/v1/markets?query=no-such-thing") == {"markets": []}
    for market in markets.values():
        assert market["market"] == (market["coin"] if market["book"] == "events" else f"perp:{market['coin']}")
        assert market["minNotionalUsd"] == "10"
        if market["nextFundingAt"] is not None:
            assert market["nextFundingAt"] % 3_600_000 == 0


def test_books_are_not_crossed_and_agree_with_the_market(simulated: Target) -> None:
    for market in get(simulated, "/v1/markets?view=all&limit=250")["markets"]:
        book = get(simulated, f"/v1/markets/{market['coin']}/book")
        judge("book", book)
        bids, asks = [[D(level["px"]) for level in book[side]] for side in ("bids", "asks")]
        assert 0 < len(bids) <= 20
        assert 0 < len(asks) <= 20
        assert bids == sorted(set(bids), reverse=True)
        assert asks == sorted(set(asks))
        assert bids[0] < asks[0]
        assert (market["bidPx"], market["askPx"], market["midPx"]) == (
            book["bids"][0]["px"],
            book["asks"][0]["px"],
            book["midPx"],
        )
        assert bids[0] <= D(book["midPx"]) <= asks[0]
        assert market["spreadBps"] == book["spreadBps"]
        spread = (asks[0] - bids[0]) / D(book["midPx"]) * 10_000
        assert abs(spread - D(str(book["spreadBps"]))) < D("0.01")
        places = max(0, 6 - market["szDecimals"])
        for px in (*bids, *asks):
            assert -px.as_tuple().exponent <= places  # type: ignore[operator]
            assert px == px.to_integral_value() or len(px.normalize().as_tuple().digits) <= 5
        for level in (*book["bids"], *book["asks"]):
            assert D(level["sz"]) > 0
            assert -D(level["sz"]).as_tuple().exponent <= market["szDecimals"]  # type: ignore[operator]


@pytest.mark.parametrize("interval", list(MS))
def test_candles_stand_in_a_row_and_the_last_one_runs(simulated: Target, interval: str) -> None:
    now = simulated.now()
    found = candles(simulated, "BTC", interval, 1001)
    assert len(found) >= 1000
    assert [c["closed"] for c in found] == [True] * (len(found) - 1) + [False]
    step = MS[interval]
    assert all(c["ts"] % step == 0 for c in found)
    assert all(b["ts"] - a["ts"] == step for a, b in pairwise(found))
    assert found[-1]["ts"] <= now < found[-1]["ts"] + step
    for c in found:
        assert D(c["low"]) <= min(D(c["open"]), D(c["close"])) <= max(D(c["open"]), D(c["close"])) <= D(c["high"])
        assert D(c["volume"]) >= 0
    assert candles(simulated, "BTC", interval, 1) == found[-1:]
    assert candles(simulated, "BTC", interval, 7) == found[-7:]


def test_an_hour_and_two_hundred_by_default(simulated: Target) -> None:
    body = get(simulated, "/v1/markets/BTC/candles")
    assert (body["interval"], len(body["candles"])) == ("1h", 200)
    assert get(simulated, "/v1/markets/btc/candles?interval=1h&limit=200") == body


@pytest.mark.parametrize("coin_number", [0, -1])
def test_coarse_candles_are_made_of_the_fine_ones(simulated: Target, coin_number: int) -> None:
    coin = coins(simulated)[coin_number]
    for fine_name, coarse_name in (
        ("1m", "5m"),
        ("5m", "15m"),
        ("15m", "1h"),
        ("1h", "4h"),
        ("4h", "1d"),
        ("1m", "1h"),
    ):
        fine = {c["ts"]: c for c in candles(simulated, coin, fine_name, 1000)}
        checked = 0
        for coarse in candles(simulated, coin, coarse_name, 1000):
            inside = [fine.get(ts) for ts in range(coarse["ts"], coarse["ts"] + MS[coarse_name], MS[fine_name])]
            if not coarse["closed"]:
                while inside and inside[-1] is None:
                    inside.pop()
            if any(one is None for one in inside) or not inside:
                continue
            checked += 1
            parts = [one for one in inside if one is not None]
            assert coarse["open"] == parts[0]["open"], (fine_name, coarse)
            assert coarse["close"] == parts[-1]["close"], (fine_name, coarse)
            assert D(coarse["high"]) == max(D(p["high"]) for p in parts)
            assert D(coarse["low"]) == min(D(p["low"]) for p in parts)
            assert D(coarse["volume"]) == sum(D(p["volume"]) for p in parts), (fine_name, coarse)
        assert checked >= 10, (fine_name, coarse_name)


def test_the_running_bar_closes_as_it_was_going(simulated: Target) -> None:
    for _ in range(8):
        before = candles(simulated, "ETH", "1m", 3)
        simulated.advance(20_000)
        after = {c["ts"]: c for c in candles(simulated, "ETH", "1m", 4)}
        for one in before[:-1]:
            # what is closed never changes
            assert after[one["ts"]] == one
        running = before[-1]
        later = after[running["ts"]]
        assert later["open"] == running["open"]
        assert D(later["high"]) >= D(running["high"])
        assert D(later["low"]) <= D(running["low"])
        assert D(later["volume"]) >= D(running["volume"])
        market = next(m for m in get(simulated, "/v1/markets?query=ETH&view=all")["markets"] if m["coin"] == "ETH")
        for interval in MS:
            assert candles(simulated, "ETH", interval, 1)[0]["close"] == market["markPx"]


def test_the_change_of_a_day_is_that_of_its_candles(simulated: Target) -> None:
    for market in get(simulated, "/v1/markets?view=all")["markets"][:5]:
        day = candles(simulated, market["coin"], "1m", 1)
        assert day[0]["close"] == market["markPx"]
        if market["change24hPct"] is not None:
            assert abs(market["change24hPct"]) < 100


def test_a_market_reads_the_same_under_any_of_its_names(simulated: Target) -> None:
    for path in ("book", "candles?interval=5m&limit=3"):
        assert (
            get(simulated, f"/v1/markets/BTC/{path}")
            == get(simulated, f"/v1/markets/perp%3Abtc/{path}")
            == get(simulated, f"/v1/markets/Perp:Btc/{path}")
        )


def test_stock_perps_are_isolated_and_their_margin_leaves_the_balance(simulated: Target) -> None:
    stocks = get(simulated, "/v1/markets?asset_class=stocks&view=all")["markets"]
    if not stocks:
        pytest.skip("no stock market is served")
    caller = simulated.caller()
    answer = caller.order(market=stocks[0]["coin"], usdAmount=200, leverage=2)
    judge("ordered", answer)
    assert answer["position"]["book"] == "stocks"
    assert stocks[0]["marginMode"] == "isolated"
    account = caller.get("/v1/account")
    assert D(account["balanceUsd"]) < 9_950
    assert D(account["accountValueUsd"]) > 9_990


def test_event_markets_are_paid_in_full(simulated: Target) -> None:
    events = get(simulated, "/v1/markets?asset_class=prediction&view=all")["markets"]
    if not events:
        pytest.skip("no event market is served")
    caller = simulated.caller()
    status, error = caller.refused(
        "POST", "/v1/orders", {"market": events[0]["coin"], "side": "long", "usdAmount": 50, "leverage": 2}
    )
    assert (status, error["code"]) == (422, "leverage_too_high")
    answer = caller.order(market=events[0]["coin"], usdAmount=50)
    judge("ordered", answer)
    assert (answer["position"]["liquidationPx"], answer["position"]["book"]) == (None, "events")
