"""Signatures are those of the official SDK's vectors, and an action reaches the exchange through a real link process
once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bot.clock import SystemClock
from bot.errors import ConfigError
from bot.exchanges.actions import ExchangeAction, OrderName, Rank
from bot.exchanges.hyperliquid.actions.form import WrongSigner
from bot.exchanges.hyperliquid.actions.sender import ActionSender, sender_of
from bot.exchanges.hyperliquid.actions.signing import Signer
from bot.exchanges.hyperliquid.requests import Requests
from bot.exchanges.link.client import ExchangeLink
from bot.exchanges.protocol import BudgetUsedUp, NoExchangeAnswer
from bot.testing.hyperliquid import LocalExchange
from tests.exchanges.agents import AGENT, FUNDED, KEY, MASTER, approve, client_order_id, entry, key_file

# The key of the SDK's own test vectors, which is public.
VECTOR_KEY = "0123456789012345678901234567890123456789012345678901234567890123"


@pytest.fixture
def approved(hyperliquid: LocalExchange, tmp_path: Path) -> ExchangeLink:
    """A link whose agent may act for the funded account."""
    approve(hyperliquid)
    return ExchangeLink("hyperliquid", hyperliquid.base_url.rpartition(":")[2], agent_key_file=key_file(tmp_path))


def test_signatures_are_those_of_the_vectors(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "hyperliquid" / "signing" / "vectors.json"
    if not path.is_file():
        pytest.skip("the signing vectors are not here")
    signers = {is_main: Signer(key_file(tmp_path, VECTOR_KEY), is_mainnet=is_main) for is_main in (True, False)}
    compared = 0
    for vector in json.loads(path.read_text())["vectors"]:
        is_plain = vector.get("scheme", "l1") == "l1" and vector.get("signature") and not vector.get("vaultAddress")
        if is_plain and "action" in vector:
            signer = signers[vector["is_mainnet"]]
            body = signer.body(vector["action"], vector["nonce"], vector.get("expiresAfter"))
            assert body["signature"] == vector["signature"], vector
            compared += 1
    assert compared >= 20


@FUNDED
async def test_an_action_is_performed_once_and_a_void_fences_its_nonce(
    hyperliquid: LocalExchange, approved: ExchangeLink
) -> None:
    async with approved as link:
        now_ms = SystemClock().now_ms()
        placed = await link.act(entry(now_ms, expires_ms=now_ms + 15_000))
        assert placed.outcome == "done" and placed.orders[0].outcome == "resting", placed
        assert (await link.act(entry(now_ms))).outcome == "duplicate"
        looked_up = await link.look(MASTER.address, client_order_id(now_ms))
        assert looked_up is not None
        assert (looked_up.order_id, looked_up.state) == (placed.orders[0].order_id, "open")
        assert await link.look(MASTER.address, client_order_id(1)) is None
        assert (await link.act(ExchangeAction(now_ms, "void", AGENT, Rank.STOP))).outcome == "duplicate"

        assert (await link.act(ExchangeAction(now_ms + 1, "void", AGENT, Rank.STOP))).outcome == "done"
        assert (await link.act(entry(now_ms + 1))).outcome == "duplicate"

        name = OrderName("BTC", client_order_id(now_ms))
        cancel = ExchangeAction(now_ms + 2, "cancel", AGENT, Rank.CANCEL, cancels=(name,))
        assert (await link.act(cancel)).orders[0].outcome == "canceled"
        ended = await link.look(MASTER.address, str(placed.orders[0].order_id))
        assert ended is not None and (ended.state, ended.reason) == ("canceled", "user")
        expired = await link.act(entry(now_ms + 3, expires_ms=now_ms - 1_000))
        assert (expired.outcome, expired.text) == ("not_sent", "the action has expired before it could be sent")
        health = await link.health()
        assert health.signer == AGENT and health.actions_left is not None
        assert 9_980 < health.actions_left < 10_000
    orders = hyperliquid.info("historicalOrders", user=MASTER.address.lower())
    assert {one["order"]["cloid"] for one in orders} == {client_order_id(now_ms)}


@FUNDED
@pytest.mark.parametrize(
    ("point", "kind", "is_placed"),
    [
        ("request_in", "lost", False),
        ("request_in", "status_500", False),
        ("request_in", "html_502", False),
        ("request_in", "status_429", False),
        ("after_execution", "lost", True),
        ("after_execution", "html_502", True),
    ],
)
async def test_an_action_without_an_answer_is_in_doubt_and_its_copy_places_nothing_twice(
    hyperliquid: LocalExchange, approved: ExchangeLink, point: str, kind: str, is_placed: bool
) -> None:
    async with approved as link:
        first = SystemClock().now_ms()
        assert (await link.act(entry(first))).outcome == "done"
        hyperliquid.fault(point, kind, path="/exchange")
        with pytest.raises(NoExchangeAnswer):
            await link.act(entry(first + 1))
        again = await link.act(entry(first + 1))
        # After "too many requests" the link itself refuses entries for a while, and says so.
        not_placed = "not_sent" if kind == "status_429" else "done"
        assert again.outcome == ("duplicate" if is_placed else not_placed)
    orders = hyperliquid.info("frontendOpenOrders", user=MASTER.address.lower())
    placed = [first] if again.outcome == "not_sent" else [first, first + 1]
    assert sorted(order["cloid"] for order in orders) == [client_order_id(nonce) for nonce in placed]


@FUNDED
async def test_what_must_not_be_sent_is_refused_by_the_link(hyperliquid: LocalExchange, approved: ExchangeLink) -> None:
    async with approved as link:
        now_ms = SystemClock().now_ms()
        other = await link.act(entry(now_ms, agent="0x" + "d2" * 20))
        assert (other.outcome, "the action is for the agent 0xd2d2" in str(other.text)) == ("not_sent", True)
        hyperliquid.fault("exchange", "empty_budget", address=MASTER.address.lower())
        empty = await link.act(entry(now_ms))
        assert (empty.outcome, "500 are kept for stops and exits" in str(empty.text)) == ("not_sent", True)
    assert hyperliquid.info("historicalOrders", user=MASTER.address.lower()) == []


class Answers:
    """Info answers and one answer to every action, without an exchange."""

    def __init__(self, action_answer: Any, *, is_there: bool = True) -> None:
        self.action_answer, self.is_there = action_answer, is_there
        self.posted: list[Any] = []

    async def info(self, query: Any) -> Any:
        if not self.is_there:
            raise NoExchangeAnswer("no answer in time")
        market = {"name": "BTC", "szDecimals": 5, "maxLeverage": 40}
        found: dict[str, Any] = {
            "perpDexs": [None],
            "meta": {"universe": [market]},
            "userRole": {"role": "agent", "data": {"user": MASTER.address}},
            "userRateLimit": {"nRequestsUsed": 100, "nRequestsCap": 10_000},
        }
        return found[query["type"]]

    async def exchange(self, body: Any) -> Any:
        self.posted.append(body)
        return self.action_answer


def sender_with(answers: Answers, folder: Path) -> ActionSender:
    clock = SystemClock()
    return sender_of(str(key_file(folder)), answers, Requests(answers, clock), clock, is_mainnet=False)


async def test_an_action_that_the_exchange_calls_expired_costs_five_more(tmp_path: Path) -> None:
    answers = Answers({"status": "err", "response": "Action already expired"})
    sender = sender_with(answers, tmp_path)
    assert (await sender.act(entry(1, expires_ms=SystemClock().now_ms() + 60_000))).outcome == "refused"
    assert sender.left == 9_900 - 1 - 5
    assert answers.posted[0]["expiresAfter"] > 0


async def test_after_a_signature_that_was_misread_nothing_more_is_signed(tmp_path: Path) -> None:
    other = "0x" + "d2" * 20
    answers = Answers({"status": "err", "response": f"User or API Wallet {other} does not exist."})
    sender = sender_with(answers, tmp_path)
    with pytest.raises(WrongSigner, match=f"reads the signature of {AGENT} as {other}"):
        await sender.act(entry(1))
    again = await sender.act(entry(2))
    assert (again.outcome, "nothing more is signed" in str(again.text), len(answers.posted)) == ("not_sent", True, 1)


class TooMany(Answers):
    async def exchange(self, body: Any) -> Any:
        self.posted.append(body)
        raise BudgetUsedUp("429")


async def test_too_many_requests_at_an_action_pauses_reads_and_refuses_entries_at_the_door(tmp_path: Path) -> None:
    answers, clock = TooMany({}), SystemClock()
    requests = Requests(answers, clock)
    sender = sender_of(str(key_file(tmp_path)), answers, requests, clock, is_mainnet=False)
    with pytest.raises(BudgetUsedUp):
        await sender.act(entry(1))
    assert requests.window.wait_ms(Rank.REPAIR, 2, clock.now_ms()) > 0
    again = await sender.act(entry(2))
    assert (again.outcome, len(answers.posted)) == ("not_sent", 1)
    assert "would wait longer than 2 s" in str(again.text)


async def test_an_action_whose_market_could_not_be_read_was_not_sent(tmp_path: Path) -> None:
    answers = Answers({}, is_there=False)
    answer = await sender_with(answers, tmp_path).act(entry(1))
    assert (answer.outcome, answer.text, answers.posted) == ("not_sent", "no answer in time", [])


async def test_a_link_without_a_key_only_reads(hyperliquid: LocalExchange) -> None:
    async with ExchangeLink("hyperliquid", hyperliquid.base_url.rpartition(":")[2]) as link:
        answer = await link.act(entry(1))
        assert (answer.outcome, answer.text) == ("not_sent", "the link has no agent's key; it only reads")
        assert (await link.health()).signer is None


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("no key", 0o600, "must hold the key alone"),
        (KEY, 0o644, "is readable by other users"),
        (None, 0o600, "No such file or directory; name a file with the key"),
    ],
)
async def test_a_bad_key_file_ends_the_link_with_one_sentence(
    tmp_path: Path, text: str | None, mode: int, message: str
) -> None:
    path = tmp_path / "agent"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=message) as raised:
        await ExchangeLink("hyperliquid", "testnet", agent_key_file=path).__aenter__()
    assert KEY not in str(raised.value)


def test_the_service_imports_neither_the_sdk_nor_the_code_that_signs() -> None:
    text = (
        "import sys, bot.exchanges.link.client, bot.exchanges.link.price_source, bot.service.host\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('hyperliquid', 'eth_account', 'wsproto')"
        " or 'actions.signing' in name])"
    )
    found = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_the_key_is_shown_by_nothing(tmp_path: Path) -> None:
    signer = Signer(key_file(tmp_path), is_mainnet=False)
    shown: list[Any] = [repr(signer), str(signer), signer.body({"type": "noop"}, 1, None)]
    assert KEY not in str(shown) and signer.address == AGENT
