"""Target orders by the production kernel, client and journal against the real service: placed, filled, left over,
and after kills between any two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.runtime.model.intents import moved
from bot.strategy import Bar, Bracket, Close, Open, View
from tests.integration.builders import (
    BotAndOwner,
    Box,
    Points,
    Script,
    bot_and_owner,
    crash_anywhere,
    make_bot,
    story,
    wire_to,
)
from tests.runtime.builders import later

TWO = Bracket(stop_pct=1, targets=[(0.5, "1R"), (0.5, "3R")], break_even_at="1R")
Orders = list[tuple[str, str, str | None]]


def once(bracket: Bracket = TWO, **more: Any) -> Script:
    """One entry, and never another."""

    def script(view: View, bar: Bar) -> Iterator[Any]:
        if bar.market == "BTC" and "entered" not in view.state:
            view.state["entered"] = True
            yield Open("BTC", "long", **({"size": 0.01} | more), bracket=bracket)

    return script


async def orders(one: BotAndOwner) -> Orders:
    listed = (await one.hand.ask("GET", "/v1/orders?coin=BTC"))["orders"]
    return sorted((order["kind"], order["size"], order["limitPx"] or order["triggerPx"]) for order in listed)


async def entered(box: Box, script: Script | None = None, **more: Any) -> BotAndOwner:
    """A long of 0.01 at 100,000 or a little above, with its targets."""
    await box.price("BTC", 100_000)
    one = await bot_and_owner(box, script or once(), **more)
    await one.bot.cycle()
    return one


async def to(one: BotAndOwner, px: float) -> None:
    one.px["BTC"] = px
    await one.minute()
    await one.bot.cycle()


async def kinds(one: BotAndOwner) -> list[tuple[str, str]]:
    """Kind and size of the fills."""
    return [(e["data"]["kind"], e["data"]["size"]) for e in await one.hand.events() if e["type"] == "fill"]


async def test_right_after_the_fill_stop_and_both_targets_stand_at_the_service(box: Box) -> None:
    one = await entered(box)
    stop, target, last = [
        order for kind in ("stop_loss", "limit", "take_profit") for order in await orders(one) if order[0] == kind
    ]
    entry = float((await one.held() or {})["entryPx"])
    assert (stop[1], target[1], last[1]) == ("0.01", "0.005", "0.01")
    risk = entry - float(stop[2] or 0)
    assert abs(float(target[2] or 0) - (entry + risk)) <= 1
    assert abs(float(last[2] or 0) - (entry + 3 * risk)) <= 1
    (trailing,) = await one.guardians("trailing_stop")
    assert trailing["active"] is False


async def test_after_the_first_target_the_stop_at_the_entry_closes_the_rest_while_the_daemon_is_dead(box: Box) -> None:
    one = await entered(box)
    await one.bot.kill()
    entry = float((await one.held() or {})["entryPx"])
    await box.price("BTC", 101_100)
    # The stop stands 1R below the 101,100 that the mark has reached.
    await box.price("BTC", 100_095)
    assert await kinds(one) == [("market", "0.01"), ("limit", "0.005"), ("guardian", "0.005")]
    last = [e for e in await one.hand.events() if e["type"] == "fill"][-1]
    assert entry < float(last["data"]["px"]) < entry + 100
    assert await orders(one) == []


async def test_the_last_target_closes_all_that_is_left_while_the_daemon_is_dead(box: Box) -> None:
    one = await entered(box)
    await one.bot.kill()
    await box.price("BTC", 101_500)
    await box.price("BTC", 103_500)
    assert await kinds(one) == [("market", "0.01"), ("limit", "0.005"), ("take_profit", "0.005")]


async def test_the_stop_takes_the_target_orders_with_it(box: Box) -> None:
    one = await entered(box)
    await to(one, 98_000)
    assert (await one.held(), await orders(one)) == (None, [])
    assert one.bot.kernel.account.account_state.orders == {}
    await to(one, 101_500)
    assert await kinds(one) == [("market", "0.01"), ("stop_loss", "0.01")]


async def test_a_close_by_hand_takes_the_target_orders_with_it(box: Box) -> None:
    one = await entered(box)
    await one.hand.ask("POST", "/v1/positions/BTC/close", {})
    await to(one, 101_500)
    assert (await one.held(), await orders(one)) == (None, [])


async def test_a_target_that_a_person_cancels_is_not_placed_again(box: Box, folder: Path) -> None:
    one = await entered(box, path=folder / "one.db")
    (oid,) = [o["oid"] for o in (await one.hand.ask("GET", "/v1/orders"))["orders"] if o["kind"] == "limit"]
    await one.hand.ask("DELETE", f"/v1/orders/{oid}")
    await to(one, 100_100)
    await one.bot.kill()
    one.bot = make_bot(one.hand, one.wire, folder / "one.db", script=once())
    await to(one, 100_100)
    assert [kind for kind, _, _ in await orders(one)] == ["stop_loss", "take_profit"]


async def test_a_limit_entry_has_its_target_orders_once_nothing_of_it_rests(box: Box) -> None:
    one = await entered(box, once(limit_px=99_000))
    await to(one, 100_000)
    assert [kind for kind, _, _ in await orders(one)] == ["limit"]
    await to(one, 98_900)
    assert [(kind, size) for kind, size, _ in await orders(one)] == [
        ("limit", "0.005"),
        ("stop_loss", "0.01"),
        ("take_profit", "0.01"),
    ]


async def test_a_target_order_is_refused_if_the_position_was_closed_before_it_arrives(box: Box) -> None:
    """Between the fill and the target order somebody closes the position: the order must not open the other side."""
    await box.price("BTC", 100_000)
    hand = await box.hand()
    wire = wire_to(box)
    deliver = wire.deliver

    async def closing(request: httpx.Request) -> httpx.Response:
        if b'"side":"short"' in request.content:
            await hand.ask("POST", "/v1/positions/BTC/close", {})
        return await deliver(request)

    wire.deliver = closing
    one = BotAndOwner(box, hand, make_bot(hand, wire, None, script=once()), wire)
    for _ in range(3):
        await one.minute()
    assert (await one.held(), await orders(one)) == (None, [])
    (target,) = [row for row in one.rows() if row["leg"] == "target"]
    assert (target["state"], target["code"]) == ("rejected", "invalid_input")


async def test_no_entry_is_sent_while_a_target_order_of_the_position_before_is_on_its_way(box: Box) -> None:
    """It would grow a short: the target order of a long sells."""
    await box.price("BTC", 100_000)
    hand = await box.hand()
    wire = wire_to(box)
    deliver, is_lost = wire.deliver, True

    async def losing(request: httpx.Request) -> httpx.Response:
        if is_lost and b'"type":"limit"' in request.content:
            raise httpx.ConnectError("away", request=request)
        return await deliver(request)

    def turning(view: View, bar: Bar) -> Iterator[Any]:
        if bar.market == "BTC" and view.position("BTC") is None:
            yield Open("BTC", "long" if view.state.setdefault("n", 0) == 0 else "short", size=0.01, bracket=TWO)
            view.state["n"] = 1

    wire.deliver = losing
    one = BotAndOwner(box, hand, make_bot(hand, wire, None, script=turning), wire)
    await one.minute()
    # The stop fires; the target order is still on its way.
    await to(one, 98_000)
    assert (await one.held(), "market_in_doubt" in one.refusals()) == (None, True)
    is_lost = False
    for _ in range(3):
        later(one.bot.kernel, 60_000)
        await to(one, 98_000)
    assert next(row["state"] for row in one.rows() if row["leg"] == "target") in ("rejected", "expired")
    held = await one.held()
    assert held is not None
    assert (held["side"], held["size"]) == ("short", "0.01")


async def test_a_target_order_that_waits_to_be_sent_holds_back_entries_of_its_market(box: Box) -> None:
    one = await entered(box)
    kernel = one.bot.kernel
    assert not kernel.intents.is_doubtful("BTC")
    (key,) = [row["id"] for row in one.rows() if row["leg"] == "target"]
    target = kernel.journal.intents.find(key)
    assert target is not None
    kernel.intents.live[key] = moved(target, "opened")
    assert (kernel.intents.is_doubtful("BTC"), kernel.intents.is_doubtful("ETH")) == (True, False)


async def test_an_order_left_behind_by_a_service_that_does_not_cancel_it_is_canceled(box: Box) -> None:
    """Our service cancels it itself, so the account state is told of one that stayed."""
    one = await entered(box)
    kernel = one.bot.kernel
    kept = next(order for order in kernel.account.account_state.orders.values() if order.kind == "limit")
    await to(one, 98_000)
    kernel.account.account_state.orders[kept.oid] = kept
    await one.bot.cycle()
    (cancel,) = [row for row in one.rows() if row["action"] == "cancel"]
    assert (cancel["cause"], cancel["state"], cancel["strategy"]) == (f"left_over:{kept.oid}", "accepted", "@runtime")


def _script(start_ms: int) -> Script:
    """In the first minute it opens with two targets; in the fifth it closes the rest of the position."""

    def script(view: View, bar: Bar) -> Iterator[Any]:
        n = (bar.at_ms - start_ms) // 60_000
        if bar.market == "BTC" and n == 1 and view.position("BTC") is None:
            yield Open("BTC", "long", usd=1_000, bracket=Bracket(stop_pct=5, targets=[(0.3, "0.2R"), (0.3, "0.4R")]))
        elif bar.market == "BTC" and n == 5 and view.position("BTC") is not None:
            yield Close("BTC")

    return script


async def _story(box: Box, path_of_orders: str, path: Path, points: Points) -> Orders:
    """Entry, first target, second target, close; the orders that there were, in their order."""
    await box.price("BTC", 100_000)
    script = _script(box.service.machine.clock.now_ms())
    prices = (100_000, 100_200, 101_500, 102_500, 102_000, None)
    trades = await story(box, path, points, script, prices, path_of_orders)
    return [(trade["intent"], trade["kind"], trade["size"]) for trade in reversed(trades)]


@pytest.mark.soak(kills=10, full=600)
@pytest.mark.parametrize("path_of_orders", ["plan", "direct"])
async def test_a_crash_at_any_statement_or_request_ends_in_the_same_target_orders(
    box: Box, folder: Path, path_of_orders: str, kills: int, base_seed: int
) -> None:
    orders, points = await crash_anywhere(folder, partial(_story, box, path_of_orders), kills, base_seed)
    assert [(intent, kind) for intent, kind, _ in orders] == [
        ("open", "market"),
        ("close", "limit"),
        ("close", "limit"),
        ("close", "close"),
    ]
    assert points > 200
