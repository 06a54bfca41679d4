"""A socket counts as good only while it is acknowledged, heard and young."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bot.exchanges.hyperliquid.live import market_feed
from bot.exchanges.hyperliquid.live.subscriptions import (
    ACKNOWLEDGE_MAX_MS,
    PING,
    PING_EVERY_MS,
    SILENCE_MAX_MS,
    ChannelMessage,
    SocketProtocol,
    pause_ms,
)
from bot.exchanges.protocol import UnknownForm

ANN = "0x" + "a1" * 20
WANTED = [{"type": "l2Book", "coin": "BTC"}, {"type": "userFills", "user": ANN}]


def acknowledgement(subscription: dict[str, Any], **more: Any) -> str:
    data = {"method": "subscribe", "subscription": {**subscription, **more}}
    return json.dumps({"channel": "subscriptionResponse", "data": data})


def test_a_subscription_is_acknowledged_by_an_echo_that_has_defaults_besides() -> None:
    protocol = SocketProtocol(WANTED, 0)
    assert [json.loads(text)["subscription"] for text in protocol.first_texts()] == WANTED
    assert protocol.take("Websocket connection established.", 1) is None
    assert protocol.take(acknowledgement(WANTED[0], nSigFigs=None, mantissa=None, fast=False), 2) is None
    assert not protocol.is_acknowledged
    assert protocol.take(acknowledgement({"type": "userFills", "user": "0x" + "b2" * 20}), 3) is None
    assert not protocol.is_acknowledged
    repeated = json.dumps({"channel": "error", "data": f"Already subscribed: {json.dumps(WANTED[1])}"})
    assert protocol.take(repeated, 4) is None
    assert protocol.is_acknowledged and protocol.trouble(4) is None
    assert protocol.take('{"channel":"bbo","data":{"coin":"BTC"}}', 5) == ChannelMessage("bbo", {"coin": "BTC"})


def test_a_socket_is_dead_when_neither_a_message_nor_a_pong_has_come_for_20_s() -> None:
    protocol = SocketProtocol([], 0)
    assert protocol.due_text(PING_EVERY_MS - 1) is None
    assert protocol.due_text(PING_EVERY_MS) == PING
    assert protocol.due_text(PING_EVERY_MS + 1) is None
    assert protocol.take('{"channel":"pong"}', 9_000) is None
    assert protocol.trouble(9_000 + SILENCE_MAX_MS) is None
    assert "has sent nothing for 20 s" in str(protocol.trouble(9_001 + SILENCE_MAX_MS))


def test_a_subscription_without_an_acknowledgement_is_named() -> None:
    protocol = SocketProtocol(WANTED, 0)
    protocol.take(acknowledgement(WANTED[0]), ACKNOWLEDGE_MAX_MS)
    assert protocol.trouble(ACKNOWLEDGE_MAX_MS) is None
    assert "has not acknowledged userFills within 10 s" in str(protocol.trouble(ACKNOWLEDGE_MAX_MS + 1))


def test_a_refused_subscription_ends_the_socket_with_the_words_of_the_exchange() -> None:
    protocol = SocketProtocol(WANTED, 0)
    protocol.take(json.dumps({"channel": "error", "data": "Cannot track more than 10 total users."}), 1)
    assert "Cannot track more than 10 total users." in str(protocol.trouble(1))


def test_an_invalid_subscription_is_left_out_where_the_others_are_enough() -> None:
    wanted = [{"type": "bbo", "coin": "BTC"}, {"type": "bbo", "coin": "GONE"}]
    refusals = [json.dumps({"channel": "error", "data": f"Invalid subscription {json.dumps(one)}"}) for one in wanted]
    strict, lenient = SocketProtocol(wanted, 0), SocketProtocol(wanted, 0, needs_all=False)
    for protocol in (strict, lenient):
        protocol.take(refusals[1], 1)
        protocol.take(acknowledgement(wanted[0]), 2)
    assert "Invalid subscription" in str(strict.trouble(2))
    assert lenient.trouble(2) is None and lenient.is_acknowledged
    nothing = SocketProtocol(wanted, 0, needs_all=False)
    for text in refusals:
        nothing.take(text, 1)
    assert "Invalid subscription" in str(nothing.trouble(1))


def test_a_socket_is_replaced_when_it_is_old() -> None:
    protocol = SocketProtocol([], 0, age_ms=1_000)
    assert not protocol.is_old(1_000)
    assert protocol.is_old(1_001)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[" * 100_000,
        "[]",
        "{}",
        '{"channel":7}',
        '{"channel":"subscriptionResponse","data":[]}',
        '{"channel":"subscriptionResponse","data":{"subscription":"x"}}',
        '{"channel":"error","data":{}}',
    ],
)
def test_a_message_in_an_unknown_form_is_named_and_not_used(text: str) -> None:
    with pytest.raises(UnknownForm, match="a message of the socket"):
        SocketProtocol(WANTED, 0).take(text, 1)


def test_pauses_between_connections_keep_to_the_30_a_minute_of_the_exchange() -> None:
    pauses = [pause_ms(failures) for failures in range(200)]
    assert pauses[0] == 250 and pauses[-1] == 60_000 and pauses == sorted(pauses)
    assert sum(sum(pauses[:count]) < 60_000 for count in range(len(pauses))) <= 15


def test_all_subscriptions_of_the_most_markets_go_over_one_socket() -> None:
    markets = [f"M{number}" for number in range(market_feed.MARKETS_MAX)]
    assert len(SocketProtocol(market_feed.subscriptions_of(markets), 0).first_texts()) == 4 * len(markets)
