"""Faults of requests and answers, limits of an IP, and answers that lag behind an acknowledgment."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import eth_account
import httpx
import pytest
from hyperliquid.utils import signing

from bot.local_exchange.server.blocks import Blocks
from bot.local_exchange.wire.requests import Signed
from bot.testing.hyperliquid import LocalExchange
from tests.local_exchange.exchanges import ANN, BTC, Venue, limit

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "10000"})
ORDER = {"type": "order", "orders": [limit(BTC, "B", "0.01", "100100", "Ioc")], "grouping": "na"}


class Client:
    """Sends the order, or the same bytes once more."""

    def __init__(self, exchange: LocalExchange) -> None:
        self.exchange = exchange
        self.nonce = exchange.state()["now"]

    def body(self, action: Any = ORDER) -> dict[str, Any]:
        self.nonce += 1
        signature = signing.sign_l1_action(WALLET, action, None, self.nonce, None, False)
        return {"action": action, "nonce": self.nonce, "signature": signature, "vaultAddress": None}

    def send(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.exchange.base_url + "/exchange", json=body, timeout=10, trust_env=False)

    def fills(self) -> int:
        return len(self.exchange.info("userFills", user=ADDRESS))


@FUNDED
@pytest.mark.parametrize(
    ("point", "kind", "status", "is_executed"),
    [
        ("request_in", "lost", None, False),
        ("request_in", "silence", None, False),
        ("request_in", "status_400", 400, False),
        ("request_in", "status_429", 429, False),
        ("request_in", "status_500", 500, False),
        ("request_in", "html_502", 502, False),
        ("after_execution", "lost", None, True),
        ("after_execution", "silence", None, True),
        ("after_execution", "status_500", 500, True),
        ("after_execution", "html_502", 502, True),
        ("before_execution", "late", 200, True),
        ("reply_out", "late", 200, True),
    ],
)
def test_after_each_fault_the_same_bytes_make_one_order(
    point: str, kind: str, status: int | None, is_executed: bool, hyperliquid: LocalExchange
) -> None:
    client = Client(hyperliquid)
    body = client.body()
    hyperliquid.fault(point, kind, action="order", ms=50)
    if status is None:
        with pytest.raises(httpx.TransportError):
            client.send(body)
    else:
        answer = client.send(body)
        assert answer.status_code == status
        assert (status == 502) is answer.text.startswith("<html>")
    assert client.fills() == is_executed
    again = client.send(body).json()
    assert again["status"] == ("err" if is_executed else "ok")
    assert client.fills() == 1


@FUNDED
@pytest.mark.parametrize(
    ("kind", "status"), [("status_400", 400), ("status_429", 429), ("status_500", 500), ("html_502", 502)]
)
def test_a_fault_of_requests_meets_info_requests_too(hyperliquid: LocalExchange, kind: str, status: int) -> None:
    hyperliquid.fault("request_in", kind, path="/info", action="meta")
    url, query = hyperliquid.base_url + "/info", {"type": "meta"}
    codes = [httpx.post(url, json=query, trust_env=False).status_code for _ in range(2)]
    assert codes == [status, 200]


@FUNDED
def test_a_late_copy_of_a_request_is_refused_as_a_duplicate(hyperliquid: LocalExchange) -> None:
    client = Client(hyperliquid)
    hyperliquid.fault("before_execution", "copy", ms=20)
    assert client.send(client.body()).json()["status"] == "ok"
    deadline = time.monotonic() + 5
    used = hyperliquid.info("userRateLimit", user=ADDRESS)["nRequestsUsed"]
    while used < 2 and time.monotonic() < deadline:
        used = hyperliquid.info("userRateLimit", user=ADDRESS)["nRequestsUsed"]
    assert used == 2 and client.fills() == 1


@FUNDED
def test_a_fault_meets_only_its_signer_action_and_count(hyperliquid: LocalExchange) -> None:
    client = Client(hyperliquid)
    hyperliquid.fault("request_in", "status_500", action="noop", count=2)
    hyperliquid.fault("request_in", "status_500", user="0x" + "9" * 40)
    codes = [client.send(client.body({"type": "noop"})).status_code for _ in range(3)]
    assert codes == [500, 500, 200]
    assert client.send(client.body()).status_code == 200


@pytest.mark.hyperliquid(accounts={ADDRESS: "10000"}, switches={"ip_limit": "on"})
def test_an_ip_has_a_weight_of_1200_a_minute(hyperliquid: LocalExchange) -> None:
    url = hyperliquid.base_url + "/info"
    with httpx.Client(trust_env=False) as http:
        codes = [http.post(url, json={"type": "userRole", "user": ADDRESS}).status_code for _ in range(21)]
        assert codes == [200] * 20 + [429], "60 each"
        assert http.post(url, json={"type": "userRole", "user": ADDRESS}).text == "null"
        hyperliquid.advance(60_000)
        assert http.post(url, json={"type": "allMids"}).status_code == 200


def test_an_answer_may_be_older_than_an_acknowledged_action() -> None:
    venue = Venue(switches={"info_lag": "drawn"})
    seen = []
    for _ in range(6):
        oid = venue.rest(ANN, limit(BTC, "B", "0.01", "99000"))[0]
        waited = 0
        while venue.status(ANN, oid) == "unknownOid":
            assert oid not in [row["oid"] for row in venue.info("openOrders", user=ANN)]
            venue.control("advance", ms=50)
            waited += 50
        seen.append(waited)
        assert oid in [row["oid"] for row in venue.info("openOrders", user=ANN)]
    assert max(seen) > 0 and max(seen) <= 1_250
    fresh = Venue(switches={"info_lag": "drawn"})
    fresh.place(ANN, limit(BTC, "B", "0.01", "100100", "Ioc"))
    assert fresh.info("userFills", user=ANN) == [] and fresh.size(ANN, "BTC") == "0.0"
    fresh.control("advance", ms=1_200)
    assert len(fresh.info("userFills", user=ANN)) == 1 and fresh.size(ANN, "BTC") == "0.01"


def test_a_changed_tick_or_minimum_refuses_what_was_allowed() -> None:
    venue = Venue()
    venue.control("fault", point="exchange", kind="rules", coin="BTC", szDecimals=3, minNotional="20")
    assert venue.info("meta")["universe"][0]["szDecimals"] == 3
    assert venue.place(ANN, limit(BTC, "B", "0.0101", "99000")) == [{"error": "Order has invalid size."}]
    venue.control("fault", point="exchange", kind="rules", coin="ETH", minNotional="20")
    assert venue.place(ANN, limit(1, "B", "0.005", "2900")) == [
        {"error": "Order must have minimum value of $20. asset=1"}
    ]


def test_a_revoked_agent_is_unknown() -> None:
    venue = Venue()
    agent, nonce = "0x" + "c1" * 20, venue.nonce()
    action = {
        "type": "approveAgent",
        "hyperliquidChain": "Testnet",
        "signatureChainId": "0x66eee",
        "agentAddress": agent,
    }
    venue.act(ANN, {**action, "nonce": nonce}, nonce=nonce)
    venue.control("fault", point="exchange", kind="revoke_agent", address=agent)
    assert venue.act(agent, {"type": "noop"})["response"] == f"User or API Wallet {agent} does not exist."


async def test_the_actions_of_a_block_are_performed_in_the_order_of_the_exchange() -> None:
    """An Ioc order, a cancel and an Alo order that arrive in this order are performed in the reverse one."""
    venue = Venue()
    blocks = Blocks(venue.service, 1)
    alo, ioc = ({**ORDER, "orders": [limit(BTC, "B", "0.01", *more)]} for more in (("99000", "Alo"), ("100100", "Ioc")))
    cancel = {"type": "cancel", "cancels": [{"a": BTC, "o": 300_000_000_001}]}
    requests = [Signed(ANN, action, venue.nonce(), None, None) for action in (ioc, cancel, alo)]
    answers = await asyncio.gather(*(blocks.perform(request) for request in requests))
    filled, canceled, placed = (answer["response"]["data"]["statuses"][0] for answer in answers)
    assert placed == {"resting": {"oid": 300_000_000_001}}
    assert canceled == "success"
    assert filled["filled"]["oid"] == 300_000_000_002
