"""Bracketed orders at an exchange: sent once, protected from the first fill on, told when they are booked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.testing.hyperliquid import LocalExchange
from bot.venue.accounting.order_sizes import bound_of
from bot.venue.model.numbers import E8
from bot.venue.orders import protection_orders
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED, account_of, size_of, until
from tests.service.exchange_accounts.traders import Trader, trading
from tests.service.exchange_accounts.virtual_time import in_virtual_time

BRACKET = {"stopLoss": {"pct": 2}, "takeProfit": {"pct": 4}}


async def enter(trader: Trader, key: str | None = "e", **body: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    order = {"market": "BTC", "side": "long", "size": "0.02", "bracket": BRACKET, **body}
    return await trader.http.post("/v1/orders", json=order, headers=headers)


def there(trader: Trader) -> list[dict[str, Any]]:
    """Stops and targets that stand at the exchange."""
    rows = trader.hand.exchange.info("frontendOpenOrders", user=ADDRESS)
    return [row for row in rows if row["isTrigger"]]


def whole_stop(trader: Trader) -> dict[str, Any] | None:
    """The stop of the whole position."""
    rows = [row for row in there(trader) if row["isPositionTpsl"] and row["orderType"] == "Stop Market"]
    return rows[0] if rows else None


@FUNDED
@in_virtual_time
async def test_a_market_entry_with_its_bracket_is_one_order_and_closes_with_it(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        answer = await enter(trader)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["trade"]["status"], body["trade"]["filledSize"], body["protected"]) == ("done", "0.02", True)
        assert sorted(row["kind"] for row in body["orders"]) == ["stop_loss", "take_profit"]
        assert size_of(trader.service) == 2 * E8 // 100
        assert sorted((row["orderType"], row["sz"]) for row in there(trader)) == [
            ("Stop Market", "0.02"),
            ("Take Profit Market", "0.02"),
        ]
        account = account_of(trader.service)
        # The fills may be reported before the answer that says that the children stand.
        await until(lambda: protection_orders.phase(account, "BTC", "stop_loss") == "children")
        again = await enter(trader)
        assert again.content == answer.content
        trader.check_books()
        assert (await trader.close(fraction=1)).status_code == 200
        await until(lambda: there(trader) == [])
        assert account_of(trader.service).orders == {}
        trader.check_books()


@FUNDED
@in_virtual_time
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partial_gtc", "filled"),
        ("children_rows", "once"),
        ("two_position_stops", "replaces"),
        ("position_stop_alone", "kept"),
        ("trigger_oid", "new"),
        ("cloid_open", "accepted"),
        ("reduce_larger", "cap"),
        ("reduce_sum", "older_canceled"),
        ("channel_order", "drawn"),
    ],
)
async def test_a_limit_that_fills_in_parts_has_a_stop_for_the_whole_position_that_fires(
    hyperliquid: LocalExchange, tmp_path: Path, name: str, value: str
) -> None:
    hyperliquid.switch(name, value)
    async with trading(hyperliquid, tmp_path) as trader:
        px = trader.service.machine.state.markets["BTC"].mid // E8
        answer = await enter(trader, type="limit", limitPx=str(px))
        assert answer.status_code == 200, answer.text
        assert answer.json()["trade"]["status"] == "open"
        assert not any(row["kind"] == "stop_loss" for row in answer.json()["orders"])
        await asyncio.to_thread(hyperliquid.trade, "BTC", "A", "0.01", str(px))
        await until(lambda: whole_stop(trader) is not None, show=lambda: there(trader))
        assert size_of(trader.service) == E8 // 100
        await asyncio.to_thread(hyperliquid.trade, "BTC", "A", "0.01", str(px))
        await until(lambda: size_of(trader.service) == 2 * E8 // 100)
        await until(lambda: sorted(row["sz"] for row in there(trader)) == ["0.0", "0.0"], show=lambda: there(trader))
        trader.check_books()
        await asyncio.to_thread(hyperliquid.price, "BTC", str(round(px * 0.975)))
        await until(lambda: size_of(trader.service) == 0)
        assert [t.kind for t in account_of(trader.service).trades if t.kind == "stop_loss"] == ["stop_loss"]
        await until(lambda: there(trader) == [] and account_of(trader.service).orders == {})
        trader.check_books()


@FUNDED
@in_virtual_time
@pytest.mark.parametrize("children", ["canceled", "placed"])
async def test_a_market_entry_that_fills_in_part_is_told_as_it_is_and_covered_whole(
    hyperliquid: LocalExchange, tmp_path: Path, children: str
) -> None:
    hyperliquid.switch("partial_ioc_children", children)
    async with trading(hyperliquid, tmp_path) as trader:
        market = trader.service.machine.state.markets["BTC"]
        bound = bound_of(market, market.mid, 1, market.spec.slippage_bps)
        # The exchange has moved, and the service's bound leaves the first price of its book.
        await asyncio.to_thread(hyperliquid.price, "BTC", str(bound // E8 - 1))
        answer = await enter(trader, size="3", leverage=5, bracket={"stopLoss": {"pct": 1}})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["trade"]["status"], body["trade"]["fillStatus"]) == ("done", "partial"), body["trade"]
        assert [warning["code"] for warning in body["warnings"]] == ["partial_depth"]
        await until(lambda: [row["sz"] for row in there(trader)] == ["0.0"], show=lambda: there(trader))
        trader.check_books()


@FUNDED
@in_virtual_time
@pytest.mark.parametrize(("point", "count"), [("request_in", 1), ("after_execution", 1), ("after_execution", 2)])
async def test_an_entry_whose_answers_are_lost_is_one_order(
    hyperliquid: LocalExchange, tmp_path: Path, point: str, count: int
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        hyperliquid.fault(point, "lost", action="order", count=count)
        answer = await enter(trader)
        while answer.status_code != 200:
            assert answer.json()["error"]["orderSubmitted"] == "unknown", answer.text
            answer = await enter(trader)
        assert [fill["sz"] for fill in trader.placed()] == ["0.02"]
        await until(lambda: len(there(trader)) == 2, show=lambda: there(trader))
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_an_entry_that_never_arrives_is_pending_in_doubt_and_then_void(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        hyperliquid.fault("request_in", "lost", action="order", count=50)
        answer = await enter(trader)
        error = answer.json()["error"]
        assert (answer.status_code, error["orderSubmitted"], error["details"]["reason"]) == (503, "unknown", "doubt")
        (row,) = (await trader.http.get("/v1/trades")).json()["trades"]
        assert (row["status"], row["idempotencyKey"]) == ("pending", "e")
        while answer.status_code in (503, 409):
            answer = await enter(trader)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "trade_failed"), answer.text
        (row,) = (await trader.http.get("/v1/trades")).json()["trades"]
        assert row["status"] == "void" and trader.placed() == [] and there(trader) == []
        assert (await enter(trader)).content == answer.content


@FUNDED
@in_virtual_time
async def test_a_position_that_grows_has_a_stop_that_follows_before_anything_is_added(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        assert (await enter(trader)).status_code == 200
        added = await enter(trader, "e2", size="0.01", bracket={"stopLoss": {"pct": 1}})
        assert added.status_code == 200, added.text
        px = trader.service.machine.state.markets["BTC"].mid / E8
        await until(lambda: [row["sz"] for row in there(trader)] == ["0.0"], show=lambda: there(trader))
        assert float(there(trader)[0]["triggerPx"]) > px * 0.985, "the new bracket has taken the place of the old one"
        assert size_of(trader.service) == 3 * E8 // 100
        stop = next(o for o in account_of(trader.service).orders.values() if o.kind == "stop_loss")
        (listed,) = (await trader.http.get("/v1/orders")).json()["orders"]
        gone = await trader.http.delete(f"/v1/orders/{listed['oid']}")
        assert (gone.status_code, gone.json().get("unprotected")) == (200, True), gone.text
        assert there(trader) == [] and stop.number not in account_of(trader.service).orders
        trader.check_books()
