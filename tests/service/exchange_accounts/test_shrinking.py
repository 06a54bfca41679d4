"""A service sends closes, cancels and kills to a local exchange: each once, whatever is lost or killed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import eth_account
import pytest

from bot.money import format_e8
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model.numbers import E8
from bot.wire import KillResult, OrderResult
from tests.exchanges.agents import AGENT, KEY, approve, key_file
from tests.service.exchange_accounts.followers import (
    ADDRESS,
    FUNDED,
    Hand,
    account_of,
    is_in_step,
    kill_link,
    options_of,
    running,
    size_of,
    until,
)
from tests.service.exchange_accounts.traders import Trader, actions_of, can_send, owner, trading, trading_options
from tests.service.exchange_accounts.virtual_time import in_virtual_time


@FUNDED
@in_virtual_time
async def test_a_close_is_told_when_its_fills_are_booked(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        answer = await trader.close(fraction=0.5)
        assert answer.status_code == 200, answer.text
        result = OrderResult.model_validate(answer.json())
        assert (format_e8(size_of(trader.service)), result.trade.fill_status) == ("0.01", "filled")
        assert result.position is not None and str(result.position.size) == "0.01"
        again = await trader.close(fraction=0.5)
        assert (again.content, again.headers["idempotency-replayed"]) == (answer.content, "true")
        other = await trader.close(fraction=0.25)
        assert other.json()["error"]["details"] == {"reason": "fingerprint"}
        whole = await trader.close(key="k2")
        assert whole.status_code == 200 and size_of(trader.service) == 0
        gone = await trader.close(key="k3")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
        assert [fill["sz"] for fill in trader.placed()] == ["0.01", "0.01"]
        trader.check_books()


FAULTS = [
    {"point": "request_in", "kind": "lost"},
    {"point": "request_in", "kind": "html_502"},
    {"point": "after_execution", "kind": "lost"},
    {"point": "after_execution", "kind": "status_500"},
    {"point": "before_execution", "kind": "copy"},
    {"point": "reply_out", "kind": "late", "ms": 4_000},
]


@FUNDED
@in_virtual_time
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['point']}-{fault['kind']}")
async def test_a_close_whose_request_or_answer_is_lost_is_done_once(
    hyperliquid: LocalExchange, tmp_path: Path, fault: dict[str, Any]
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.04)
        hyperliquid.fault(**fault, action="order")
        answer = await trader.close(fraction=0.25)
        while answer.status_code != 200:
            error = answer.json()["error"]
            assert (answer.status_code, error["retryable"], error["orderSubmitted"]) in (
                (503, True, "unknown"),
                (409, True, "unknown"),
            )
            assert error["details"] == {"reason": "doubt" if answer.status_code == 503 else "in_flight"}
            answer = await trader.close(fraction=0.25)
        assert [fill["sz"] for fill in trader.placed()] == ["0.01"]
        assert answer.json()["trade"]["filledSize"] == "0.01"
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_a_close_that_never_arrives_is_in_doubt_until_it_can_act_no_more(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        hyperliquid.fault("request_in", "lost", action="order", count=4)
        first = await trader.close(fraction=0.5)
        error = first.json()["error"]
        assert (first.status_code, error["orderSubmitted"], error["details"]) == (503, "unknown", {"reason": "doubt"})
        another = await trader.close(key="other")
        assert another.json()["error"]["details"] == {"reason": "undecided"}
        assert another.json()["error"]["orderSubmitted"] is False
        again = await trader.close(fraction=0.5)
        while again.status_code == 409:
            assert again.json()["error"]["details"] == {"reason": "in_flight"}
            again = await trader.close(fraction=0.5)
        error = again.json()["error"]
        assert (again.status_code, error["code"], error["orderSubmitted"]) == (422, "trade_failed", False)
        action = next(iter(actions_of(trader.service)))
        assert action.status == "void" and action.over_ms > action.expires_ms
        assert trader.placed() == [] and size_of(trader.service) == 2 * E8 // 100
        # The stored refusal is told for ever, and another key closes.
        assert (await trader.close(fraction=0.5)).content == again.content
        assert (await trader.close(key="new")).status_code == 200
        trader.check_books()


@FUNDED
@in_virtual_time
@pytest.mark.parametrize(
    ("fault", "status", "code", "text"),
    [
        ({"kind": "post_only", "ms": 60_000}, 503, "service_unavailable", "no such order at present"),
        ({"kind": "empty_budget", "address": ADDRESS}, 429, "rate_limited", "no more actions of this account"),
        ({"kind": "revoke_agent", "address": AGENT}, 422, "trade_failed", "the exchange has refused it"),
    ],
    ids=["post-only minutes", "empty budget", "agent revoked"],
)
async def test_what_the_exchange_refuses_is_one_sentence_and_nothing_is_done(
    hyperliquid: LocalExchange, tmp_path: Path, fault: dict[str, Any], status: int, code: str, text: str
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        hyperliquid.fault("exchange", **fault)
        answer = await trader.close()
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["orderSubmitted"]) == (status, code, False), answer.text
        assert text in error["message"]
        assert trader.placed() == [] and size_of(trader.service) == 2 * E8 // 100
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_a_close_of_a_position_that_is_gone_meanwhile_opens_nothing(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        hyperliquid.fault("socket_message", "late", channel="userFills", ms=3_000)
        await asyncio.to_thread(trader.hand.trade, -0.02)
        answer = await trader.close()
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), answer.text
        await until(lambda: size_of(trader.service) == 0)
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_a_close_that_the_book_fills_in_part_is_told_with_its_rest(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        for attempt in range(9):
            await trader.trade(0.2 - size_of(trader.service) / E8)
            # Somebody else takes all bids but a few. The exchange lays new ones every 3 s.
            bids = sum(float(level["sz"]) for level in hyperliquid.info("l2Book", coin="BTC")["levels"][0])
            hyperliquid.trade("BTC", "A", f"{bids - 0.1:.5f}")
            answer = await trader.close(key=f"k{attempt}")
            assert answer.status_code == 200, answer.text
            if size_of(trader.service):
                break
        result = OrderResult.model_validate(answer.json())
        assert (result.trade.fill_status, result.trade.status, result.trade.reason) == (
            "partial",
            "done",
            "slippage_bound",
        )
        assert [warning.code for warning in result.warnings] == ["partial_depth"]
        assert result.trade.filled_size is not None
        assert size_of(trader.service) == E8 // 5 - round(float(result.trade.filled_size) * E8) > 0
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_orders_of_others_are_canceled_one_by_one_and_all(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        for px in (80_000, 81_000, 82_000):
            await asyncio.to_thread(trader.hand.rest, 0.01, px)
        await until(lambda: len(account_of(trader.service).orders) == 3)
        listed = (await trader.http.get("/v1/orders")).json()["orders"]
        first = listed[0]["oid"]
        hyperliquid.fault("after_execution", "lost", action="cancel")
        canceled = await trader.http.delete(f"/v1/orders/{first}")
        assert (canceled.status_code, canceled.json()["canceled"]) == (200, True), canceled.text
        rest = await trader.http.request("DELETE", "/v1/orders", json={"coin": "BTC"})
        assert sorted(rest.json()["canceledOids"]) == sorted(row["oid"] for row in listed[1:]), rest.text
        assert hyperliquid.info("openOrders", user=ADDRESS) == [] and account_of(trader.service).orders == {}
        gone = await trader.http.delete(f"/v1/orders/{first}")
        assert gone.status_code == 404


@FUNDED
@in_virtual_time
async def test_a_kill_closes_everything_and_is_repeated_without_effect(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        await trader.trade(-0.3, "ETH")
        await asyncio.to_thread(trader.hand.rest, 0.01, 80_000)
        await until(lambda: len(account_of(trader.service).orders) == 1)
        killed = await trader.http.post("/v1/account/kill", json={"flatten": True}, headers={"Idempotency-Key": "k"})
        result = KillResult.model_validate(killed.json())
        assert killed.status_code == 200 and result.order_submitted is True
        assert [trade.status for trade in result.trades] == ["done", "done"] and not result.positions
        assert hyperliquid.info("openOrders", user=ADDRESS) == []
        again = await trader.http.post("/v1/account/kill", json={"flatten": True}, headers={"Idempotency-Key": "k"})
        assert again.content == killed.content
        assert len(trader.placed()) == 2
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_a_kill_whose_orders_never_arrive_is_told_after_8_s_and_tried_until_it_is_done(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        hyperliquid.fault("exchange", "post_only", ms=12_000)
        killed = await trader.http.post("/v1/account/kill", json={"flatten": True})
        assert killed.status_code == 200 and [row["coin"] for row in killed.json()["positions"]] == ["BTC"]
        await until(lambda: size_of(trader.service) == 0, 60)
        await until(lambda: not account_of(trader.service).orders)
        assert len(trader.placed()) == 1
        assert sorted({action.nonce for action in actions_of(trader.service)}) == [
            action.nonce for action in actions_of(trader.service)
        ]
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_an_exit_that_never_arrived_is_asked_for_under_another_nonce_when_it_can_act_no_more(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        # All copies until the expiry.
        hyperliquid.fault("request_in", "lost", action="order", count=10)
        killed = await trader.http.post("/v1/account/kill", json={"flatten": True})
        assert killed.status_code == 200 and [row["size"] for row in killed.json()["positions"]] == ["0.02"]
        assert trader.service.follower is not None
        kill_link(trader.service.follower.link)
        await until(lambda: size_of(trader.service) == 0 and not account_of(trader.service).orders, 90)
        first, *_, last = actions_of(trader.service)
        assert (first.status, last.status) == ("void", "placed") and last.made_ms > first.expires_ms
        assert [fill["cloid"] for fill in trader.placed()] == [last.client_order_id]
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_a_dead_man_switch_flattens_the_account_at_the_exchange(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        body = {"type": "dead_man_switch", "scope": "account", "heartbeatSeconds": 60, "onMiss": "flatten"}
        armed = await trader.http.post("/v1/guardians", json=body)
        assert armed.status_code == 200, armed.text
        # Nobody waits a minute in a test: the deadline is moved, not the clock.
        (guardian,) = account_of(trader.service).guardians.values()
        assert guardian.deadline_ms is not None
        guardian.deadline_ms -= 58_000
        trader.service.machine.state.deadlines.append((guardian.deadline_ms, 5, 1, "guardian", "acc_00000001"))
        trader.service.machine.state.deadlines.sort()
        trader.service.machine.signals.moved.set()
        await until(lambda: size_of(trader.service) == 0)
        trader.check_books()


@FUNDED
@in_virtual_time
async def test_a_service_that_starts_again_answers_the_key_of_a_close_that_was_on_its_way(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.02)
        hyperliquid.fault("after_execution", "silence", action="order", count=9)
        closing = asyncio.create_task(trader.close(fraction=0.5))
        await until(lambda: len(trader.placed()) == 1)
        hyperliquid.fault("socket_message", "lost", channel="userFills", count=9)
        closing.cancel()
        nonces = [action.nonce for action in actions_of(trader.service)]
    async with running(trading_options(hyperliquid, tmp_path)) as service:
        await until(lambda: can_send(service))
        async with owner(service) as http:
            again = Trader(service, http, trader.hand)
            answer = await again.close(fraction=0.5)
            while answer.status_code == 409:
                answer = await again.close(fraction=0.5)
            assert answer.status_code == 200, answer.text
            assert [action.nonce for action in actions_of(service)] == nonces
            assert [fill["sz"] for fill in again.placed()] == ["0.01"]
            again.check_books()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("a.db*"))
    assert KEY.encode() not in stored and bytes.fromhex(KEY) not in stored
    # Without the key the account is watched only, and what was sent is still booked.
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        async with owner(service) as http:
            watched = await http.post("/v1/positions/BTC/close", json={})
            assert watched.json()["error"]["details"] == {"reason": "watched_only"}


@FUNDED
@in_virtual_time
@pytest.mark.parametrize(
    ("mode", "content", "text"),
    [
        (0o644, "02" * 32, r"is readable by other users \(mode 0644\); chmod 600 it"),
        (0o600, "x", "must hold the key alone"),
    ],
)
async def test_a_key_that_cannot_be_used_is_named_and_never_shown(
    hyperliquid: LocalExchange, tmp_path: Path, mode: int, content: str, text: str
) -> None:
    options = trading_options(hyperliquid, tmp_path)
    assert options.followed is not None and options.followed.agent_key_file is not None
    options.followed.agent_key_file.write_text(content)
    options.followed.agent_key_file.chmod(mode)
    async with running(options) as service:
        follower = service.follower
        assert follower is not None
        await until(lambda: follower.trouble is not None)
        assert re.search(text, follower.trouble or "")
        assert content == "x" or content not in str(follower.body())


STRANGER = eth_account.Account.from_key("0x" + "07" * 32)


@pytest.mark.hyperliquid(accounts={ADDRESS: "100000", STRANGER.address.lower(): "100000"}, clock="real")
@in_virtual_time
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("02" * 32, f"is an agent of {STRANGER.address.lower()}, not of {ADDRESS}; give that address or another key"),
        ("01" * 32, "is the account itself: its key can withdraw; approve an agent and give the agent's key"),
        ("09" * 32, "is no agent on this test network: it has expired, was revoked or replaced"),
    ],
    ids=["of another account", "the account's own", "of nobody"],
)
async def test_nothing_is_sent_with_a_key_that_may_not_act_for_the_account(
    hyperliquid: LocalExchange, tmp_path: Path, key: str, text: str
) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    await asyncio.to_thread(approve, hyperliquid, STRANGER)
    await asyncio.to_thread(hand.trade, 0.02)
    options = trading_options(hyperliquid, tmp_path)
    key_file(tmp_path, key)
    async with running(options) as service:
        await until(lambda: can_send(service))
        async with owner(service) as http:
            trader = Trader(service, http, hand)
            answer = await trader.close()
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "trade_failed"), answer.text
            assert text in answer.json()["error"]["message"]
            assert trader.placed() == [] and size_of(service) == 2 * E8 // 100


@FUNDED
@in_virtual_time
async def test_a_database_of_a_backup_does_not_repeat_the_close_that_it_does_not_know(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.04)
        hand = trader.hand
    backup = {path.name: path.read_bytes() for path in tmp_path.glob("a.db*")}
    async with running(trading_options(hyperliquid, tmp_path)) as service:
        await until(lambda: can_send(service))
        async with owner(service) as http:
            assert (await Trader(service, http, hand).close(fraction=0.25)).status_code == 200
    for path in tmp_path.glob("a.db*"):
        path.unlink()
    for name, content in backup.items():
        (tmp_path / name).write_bytes(content)
    async with running(trading_options(hyperliquid, tmp_path)) as service:
        await until(lambda: can_send(service))
        async with owner(service) as http:
            trader = Trader(service, http, hand)
            answer = await trader.close(fraction=0.25)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["details"]) == (
                409,
                "idempotency_conflict",
                {"reason": "expired"},
            )
            assert [fill["sz"] for fill in trader.placed()] == ["0.01"]
            assert size_of(service) == 3 * E8 // 100
            trader.check_books()
