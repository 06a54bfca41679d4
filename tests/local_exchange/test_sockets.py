"""WebSockets: greeting, subscriptions and their first messages, posts, limits, faults of messages and connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import eth_account
import pytest
import websocket
from hyperliquid.utils import signing

from bot.local_exchange.wire.channels import CHANNELS
from bot.testing.hyperliquid import LocalExchange

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "10000"})
BUY = {"a": 0, "b": True, "p": "100100", "s": "0.01", "r": False, "t": {"limit": {"tif": "Ioc"}}}


class Socket:
    """A connection; `next` gives the next message, of one channel if it is named."""

    def __init__(self, exchange: LocalExchange) -> None:
        self.exchange = exchange
        self.wire = websocket.WebSocket()
        self.wire.timeout = 20
        try:
            self.wire.connect(exchange.base_url.replace("http", "ws") + "/ws")
        except websocket.WebSocketBadStatusException:
            self.wire.shutdown()
            raise
        assert self.wire.recv() == "Websocket connection established."
        self.number = 0

    def send(self, **message: Any) -> None:
        self.wire.send(json.dumps(message))

    def next(self, channel: str | None = None) -> Any:
        while True:
            message = json.loads(self.wire.recv())
            if channel in (None, message["channel"]):
                return message

    def subscribe(self, kind: str, **more: Any) -> Any:
        self.send(method="subscribe", subscription={"type": kind, **more})
        return self.next()

    def waits(self) -> list[Any]:
        """The messages before the answer to a ping."""
        self.send(method="ping")
        found = []
        while (message := self.next()) != {"channel": "pong"}:
            found.append(message)
        return found

    def act(self, action: Any) -> Any:
        """Post an action over the socket; returns the answer."""
        self.number += 1
        nonce = self.exchange.state()["now"] + self.number
        signature = signing.sign_l1_action(WALLET, action, None, nonce, None, False)
        payload = {"action": action, "nonce": nonce, "signature": signature, "vaultAddress": None}
        self.send(method="post", id=self.number, request={"type": "action", "payload": payload})
        return self.next("post")["data"]


@contextmanager
def connected(exchange: LocalExchange) -> Iterator[Socket]:
    socket = Socket(exchange)
    try:
        yield socket
    finally:
        socket.wire.close()
        socket.wire.shutdown()


def order(*orders: Any) -> dict[str, Any]:
    return {"type": "order", "orders": list(orders), "grouping": "na"}


@FUNDED
def test_subscribing_is_answered_with_the_normalised_subscription(hyperliquid: LocalExchange) -> None:
    with connected(hyperliquid) as socket:
        answer = socket.subscribe("l2Book", coin="BTC")
        echo = {"type": "l2Book", "coin": "BTC", "nSigFigs": None, "mantissa": None, "fast": False}
        assert answer == {"channel": "subscriptionResponse", "data": {"method": "subscribe", "subscription": echo}}
        assert set(socket.next()["data"]) == {"coin", "levels", "time"}
        assert socket.subscribe("l2Book", coin="BTC")["data"].startswith("Already subscribed: {")
        assert socket.subscribe("l2Book", coin="NONE")["data"].startswith("Invalid subscription {")
        assert socket.subscribe("userFills", user=7)["channel"] == "error"
        upper = socket.subscribe("orderUpdates", user=WALLET.address)
        assert upper["data"]["subscription"]["user"] == ADDRESS
        socket.send(method="unsubscribe", subscription={"type": "l2Book", "coin": "BTC"})
        assert socket.next()["data"]["method"] == "unsubscribe"
        socket.send(method="unsubscribe", subscription={"type": "l2Book", "coin": "BTC"})
        assert socket.next()["data"].startswith("Already unsubscribed: {")
        socket.wire.send("no JSON")
        assert socket.next()["data"].startswith("Error parsing JSON")
        assert socket.waits() == []


FIRST: dict[str, set[str] | None] = {
    "allMids": {"mids"},
    "l2Book": {"coin", "levels", "time"},
    "bbo": {"coin", "time", "bbo"},
    "trades": None,
    "candle": {"t", "T", "s", "i", "o", "c", "h", "l", "v", "n"},
    "activeAssetCtx": {"coin", "ctx"},
    "activeAssetData": {"user", "coin", "leverage", "maxTradeSzs", "availableToTrade", "markPx"},
    "orderUpdates": None,
    "userEvents": None,
    "userFills": {"isSnapshot", "user", "fills"},
    "userFundings": {"isSnapshot", "user", "fundings"},
    "userNonFundingLedgerUpdates": {"isSnapshot", "user", "nonFundingLedgerUpdates"},
    "userHistoricalOrders": {"isSnapshot", "user", "orderHistory"},
    "notification": None,
    "clearinghouseState": {"dex", "user", "clearinghouseState"},
    "openOrders": {"dex", "user", "orders"},
    "allDexsClearinghouseState": {"user", "clearinghouseStates"},
    "allDexsAssetCtxs": {"ctxs"},
    "webData2": {"clearinghouseState", "openOrders", "meta", "assetCtxs", "serverTime", "user", "isVault"},
    "webData3": {"userState", "perpDexStates"},
}


@FUNDED
def test_each_channel_begins_with_its_snapshot_or_with_nothing(hyperliquid: LocalExchange) -> None:
    assert set(FIRST) == set(CHANNELS)
    hyperliquid.price("BTC", 100_000)
    with connected(hyperliquid) as socket:
        for kind, keys in FIRST.items():
            needs = {"coin": "BTC", "interval": "1m", "user": ADDRESS}
            socket.subscribe(kind, **{name: needs[name] for name in CHANNELS[kind].needs})
            first = socket.waits()
            told = [set(message["data"]) for message in first if message["channel"] == CHANNELS[kind].name]
            assert told == ([] if keys is None else [keys]), kind


@FUNDED
def test_a_fill_is_told_on_every_channel_in_its_form(hyperliquid: LocalExchange) -> None:
    with connected(hyperliquid) as socket:
        for kind in ("orderUpdates", "userEvents", "userFills", "userHistoricalOrders"):
            socket.subscribe(kind, user=ADDRESS)
        socket.subscribe("trades", coin="BTC")
        socket.waits()
        answer = socket.act(order(BUY, BUY | {"p": "99000", "t": {"limit": {"tif": "Gtc"}}}))
        statuses = answer["response"]["payload"]["response"]["data"]["statuses"]
        assert [*statuses[0], *statuses[1]] == ["filled", "resting"]
    with connected(hyperliquid) as socket:
        for kind in ("orderUpdates", "userEvents", "userFills", "userHistoricalOrders"):
            socket.subscribe(kind, user=ADDRESS)
        socket.subscribe("trades", coin="BTC")
        before = socket.waits()
        assert any(message["data"].get("isSnapshot") for message in before if isinstance(message["data"], dict))
        hyperliquid.price("BTC", 98_900)
        told = {message["channel"]: message["data"] for message in socket.waits()}
    (update,) = told["orderUpdates"]
    assert set(update) == {"order", "status", "statusTimestamp"} and update["status"] == "filled"
    assert "reduceOnly" not in update["order"] and "cloid" not in update["order"]
    assert told["user"]["fills"] == told["userFills"]["fills"]
    assert "isSnapshot" not in told["userFills"]
    assert told["userHistoricalOrders"]["orderHistory"][0]["order"]["tif"] == "Gtc"
    assert told["trades"][0]["users"][0] == ADDRESS
    assert told["trades"][0]["tid"] == told["userFills"]["fills"][0]["tid"]


@FUNDED
def test_posts_answer_info_actions_and_errors(hyperliquid: LocalExchange) -> None:
    with connected(hyperliquid) as socket:
        assert socket.act({"type": "noop"}) == {
            "id": 1,
            "response": {"type": "action", "payload": {"status": "ok", "response": {"type": "default"}}},
        }
        socket.send(method="post", id=8, request={"type": "info", "payload": {"type": "allMids"}})
        data = socket.next("post")["data"]
        assert (data["id"], data["response"]["payload"]["type"]) == (8, "allMids")
        assert data["response"]["payload"]["data"]["BTC"] == "100000.0"
        socket.send(method="post", id=9, request={"type": "info", "payload": {"type": "nothing"}})
        response = socket.next("post")["data"]["response"]
        assert response["type"] == "error" and response["payload"].startswith("422 ")


@pytest.mark.hyperliquid(accounts={ADDRESS: "10000"}, switches={"ip_limit": "on"})
def test_an_ip_may_follow_ten_users_and_open_ten_connections(hyperliquid: LocalExchange) -> None:
    sockets = []
    try:
        for _ in range(10):
            sockets.append(Socket(hyperliquid))
        with pytest.raises(websocket.WebSocketBadStatusException):
            Socket(hyperliquid)
        for number in range(10):
            assert sockets[0].subscribe("orderUpdates", user=f"0x{number:040x}")["channel"] == "subscriptionResponse"
        refused = sockets[0].subscribe("orderUpdates", user=ADDRESS)
        assert refused == {"channel": "error", "data": "Cannot track more than 10 total users."}
    finally:
        for socket in sockets:
            socket.wire.close()


@FUNDED
def test_messages_can_be_lost_doubled_late_and_reordered(hyperliquid: LocalExchange) -> None:
    with connected(hyperliquid) as socket:
        socket.subscribe("trades", coin="BTC")
        for kind, expected in (
            ("lost", []),
            ("double", ["0.01", "0.01"]),
            ("reorder", ["0.02", "0.01"]),
            ("late", ["0.02", "0.01"]),
        ):
            hyperliquid.fault("socket_message", kind, channel="trades", ms=2_000)
            hyperliquid.trade("BTC", "B", "0.01")
            if kind in ("reorder", "late"):
                hyperliquid.trade("BTC", "B", "0.02")
            told = [message["data"][0]["sz"] for message in socket.waits()]
            while len(told) < len(expected):
                told.append(socket.next("trades")["data"][0]["sz"])
            assert told == expected, kind


@FUNDED
def test_a_connection_can_be_closed_silenced_and_refused(hyperliquid: LocalExchange) -> None:
    with connected(hyperliquid) as socket:
        hyperliquid.fault("socket", "close")
        opcode, data = socket.wire.recv_data()
        assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1000)
    hyperliquid.fault("socket", "refuse")
    with pytest.raises(websocket.WebSocketBadStatusException):
        Socket(hyperliquid)
    with connected(hyperliquid) as socket:
        hyperliquid.fault("socket", "silence")
        socket.wire.settimeout(0.3)
        socket.send(method="ping")
        with pytest.raises(websocket.WebSocketTimeoutException):
            socket.next()


@FUNDED
def test_the_order_of_channels_is_drawn_from_the_seed(hyperliquid: LocalExchange) -> None:
    kinds = ("orderUpdates", "userEvents", "userFills", "userHistoricalOrders")
    with connected(hyperliquid) as socket:
        for kind in kinds:
            socket.subscribe(kind, user=ADDRESS)
        socket.waits()

        def told() -> tuple[str, ...]:
            answer_first: list[str] = []
            socket.number += 1
            nonce = hyperliquid.state()["now"] + socket.number
            signature = signing.sign_l1_action(WALLET, order(BUY), None, nonce, None, False)
            payload = {"action": order(BUY), "nonce": nonce, "signature": signature, "vaultAddress": None}
            socket.send(method="post", id=socket.number, request={"type": "action", "payload": payload})
            while len(answer_first) < 5:
                answer_first.append(socket.next()["channel"])
            return tuple(name for name in answer_first if name != "post")

        fixed = {told() for _ in range(3)}
        assert fixed == {("userFills", "user", "orderUpdates", "userHistoricalOrders")}
        hyperliquid.switch("channel_order", "drawn")
        assert len({told() for _ in range(6)}) > 1


@pytest.mark.hyperliquid(clock="real", prices="held")
def test_a_connection_to_which_nothing_is_sent_is_closed(
    hyperliquid: LocalExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(hyperliquid) as silent:
        monkeypatch.setattr("bot.local_exchange.server.socket.IDLE_SECONDS", 0.2)
        assert silent.waits() == [], "a pong counts as something sent"
        opcode, data = silent.wire.recv_data()
        assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1000)
