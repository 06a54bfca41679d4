"""Neutral actions in the wire form, and every answer of the exchange as a neutral value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bot.errors import CODES
from bot.exchanges.actions import (
    ActionAnswer,
    ExchangeAction,
    LeverageRequest,
    OrderAnswer,
    OrderName,
    OrderPlacement,
    Rank,
)
from bot.exchanges.hyperliquid.actions.budget import READ_EVERY_MS, ActionBudget
from bot.exchanges.hyperliquid.actions.form import REMEDIES, UNKNOWN_AGENT, WrongSigner, action_answer, wire_action
from bot.exchanges.protocol import RequestBudget, UnknownForm
from bot.money import parse_e8
from bot.wire.exchange_facts import ACTIONS_KEPT

AGENT, OTHER = "0x" + "c1" * 20, "0x" + "d2" * 20
ASSETS = {"BTC": 0, "ETH": 1, "xyz:TSLA": 110_000}
OURS = "0x" + "0a" * 16


def order(role: Any = "entry", **more: Any) -> OrderPlacement:
    is_trigger = role in ("stop", "target")
    made = OrderPlacement(
        OURS,
        "BTC",
        True,
        parse_e8("0.02"),
        parse_e8("100500"),
        parse_e8("98000") if is_trigger else None,
        role,
        "now",
        is_trigger,
    )
    return replace(made, **more)


def place(*orders: OrderPlacement, **more: Any) -> ExchangeAction:
    return ExchangeAction(7, "place", AGENT, Rank.ENTRY, orders=orders, **more)


LIMIT = {"a": 0, "b": True, "p": "100500", "s": "0.02", "r": False, "t": {"limit": {"tif": "Ioc"}}, "c": OURS}
STOP = {
    **LIMIT,
    "b": False,
    "s": "0",
    "r": True,
    "t": {"trigger": {"isMarket": True, "triggerPx": "98000", "tpsl": "sl"}},
}


@pytest.mark.parametrize(
    ("action", "wire"),
    [
        (place(order()), {"type": "order", "orders": [LIMIT], "grouping": "na"}),
        (
            place(order("close", market="xyz:TSLA", time_in_force="post", is_reduce_only=True)),
            {
                "type": "order",
                "orders": [{**LIMIT, "a": 110_000, "r": True, "t": {"limit": {"tif": "Alo"}}}],
                "grouping": "na",
            },
        ),
        (
            place(order(time_in_force="rest"), order("stop", is_buy=False, size=0), group="entry"),
            {"type": "order", "orders": [{**LIMIT, "t": {"limit": {"tif": "Gtc"}}}, STOP], "grouping": "normalTpsl"},
        ),
        (
            ExchangeAction(7, "cancel", AGENT, Rank.CANCEL, cancels=(OrderName("ETH", OURS),)),
            {"type": "cancelByCloid", "cancels": [{"asset": 1, "cloid": OURS}]},
        ),
        (
            ExchangeAction(7, "cancel", AGENT, Rank.CANCEL, cancels=(OrderName("ETH", None, "77"),)),
            {"type": "cancel", "cancels": [{"a": 1, "o": 77}]},
        ),
        (
            ExchangeAction(7, "leverage", AGENT, Rank.ENTRY, leverage=LeverageRequest("ETH", 5, is_isolated=True)),
            {"type": "updateLeverage", "asset": 1, "isCross": False, "leverage": 5},
        ),
        (ExchangeAction(7, "void", AGENT, Rank.STOP), {"type": "noop"}),
    ],
)
def test_an_action_has_its_wire_form_with_keys_in_the_order_of_the_signature(action: ExchangeAction, wire: Any) -> None:
    made = wire_action(action, ASSETS)
    assert made == wire
    assert list(made) == list(wire)
    assert [list(one) for one in made.get("orders", [])] == [list(one) for one in wire.get("orders", [])]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (place(order(market="DOGE")), "DOGE is not listed"),
        (place(order(client_order_id="mine")), "client order id 'mine': must be 0x and 32 hexadecimal digits"),
        (place(order("stop", trigger_px=None)), "stop of BTC: needs a trigger price"),
        (
            ExchangeAction(
                7, "cancel", AGENT, Rank.CANCEL, cancels=(OrderName("ETH", OURS), OrderName("ETH", None, "77"))
            ),
            "one cancel names its orders by our ids or by the exchange's",
        ),
    ],
)
def test_what_the_wire_cannot_say_is_named(action: ExchangeAction, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wire_action(action, ASSETS)


def ok(*statuses: Any) -> dict[str, Any]:
    return {"status": "ok", "response": {"type": "order", "data": {"statuses": list(statuses)}}}


TWO = place(order(), order("stop", is_buy=False), group="entry")


@pytest.mark.parametrize(
    ("action", "body", "answer"),
    [
        (
            place(order()),
            ok({"resting": {"oid": 9, "cloid": OURS}}),
            ActionAnswer(7, "done", (OrderAnswer("resting", "9"),)),
        ),
        (
            TWO,
            ok({"filled": {"totalSz": "0.01", "avgPx": "1.0", "oid": 9}}, "waitingForTrigger"),
            ActionAnswer(7, "done", (OrderAnswer("filled", "9", parse_e8("0.01")), OrderAnswer("waiting"))),
        ),
        (
            TWO,
            ok({"error": "Price must be divisible by tick size."}),
            ActionAnswer(
                7,
                "done",
                (OrderAnswer("refused", text="Price must be divisible by tick size.", code="invalid_input"),) * 2,
            ),
        ),
        (
            ExchangeAction(7, "cancel", AGENT, Rank.CANCEL, cancels=(OrderName("ETH", OURS),) * 2),
            ok("success", {"error": "Order was never placed, already canceled, or filled."}),
            ActionAnswer(
                7,
                "done",
                (
                    OrderAnswer("canceled"),
                    OrderAnswer(
                        "refused", text="Order was never placed, already canceled, or filled.", code="not_found"
                    ),
                ),
            ),
        ),
        (
            ExchangeAction(7, "void", AGENT, Rank.STOP),
            {"status": "ok", "response": {"type": "default"}},
            ActionAnswer(7, "done"),
        ),
        *(
            (
                place(order()),
                {"status": "err", "response": text},
                ActionAnswer(7, outcome, text=text + remedy, code="trade_failed"),
            )
            for text, outcome, remedy in (
                ("Invalid nonce: duplicate nonce 7", "duplicate", ""),
                ("Invalid nonce: nonce too low 7 < 8", "nonce_too_low", REMEDIES["nonce_too_low"]),
                ("Invalid nonce: nonce too high 7 > 6", "refused", ""),
                ("Action already expired", "refused", ""),
                (f"User or API Wallet {AGENT} does not exist.", "refused", UNKNOWN_AGENT),
            )
        ),
    ],
)
def test_an_answer_is_read(action: ExchangeAction, body: Any, answer: Any) -> None:
    assert action_answer(action, body) == answer


# What the words of a refusal mean.
MEANINGS = {
    "Reduce only order would increase position. asset=0": "not_found",
    "Order was never placed, already canceled, or filled. asset=0": "not_found",
    "Order could not immediately match against any resting orders. asset=0": "insufficient_depth",
    "No liquidity available for market order. asset=0": "insufficient_depth",
    "Order must have minimum value of $10. asset=0": "below_min_notional",
    "Order has invalid size.": "invalid_input",
    "Order has invalid price.": "invalid_input",
    "Price must be divisible by tick size. asset=0": "invalid_input",
    "Order price cannot be more than 80% away from the reference price": "invalid_input",
    "Insufficient margin to place order. asset=0": "insufficient_funds",
    "Too many open orders. asset=0": "limit_exceeded",
    "Only post-only orders allowed immediately after network upgrade asset=0": "service_unavailable",
    "Too many cumulative requests sent (2 > 1) for cumulative volume traded $1": "rate_limited",
    "Trading is halted. asset=0": "market_closed",
    "Something that nobody knows": "trade_failed",
}


@pytest.mark.parametrize("text", MEANINGS)
def test_the_words_of_a_refusal_mean_a_code_of_the_interface(text: str) -> None:
    answer = action_answer(place(order()), ok({"error": text}))
    assert (answer.orders[0].code, answer.orders[0].text) == (MEANINGS[text], text)
    assert MEANINGS[text] in CODES
    whole = action_answer(place(order()), {"status": "err", "response": text})
    assert (whole.outcome, whole.code) == ("refused", MEANINGS[text])


@pytest.mark.parametrize("prefix", ["", "L1 error: "])
def test_a_signature_that_is_read_as_another_address_is_our_fault(prefix: str) -> None:
    body = {"status": "err", "response": f"{prefix}User or API Wallet {OTHER} does not exist."}
    with pytest.raises(WrongSigner, match=f"reads the signature of {AGENT} as {OTHER}; nothing more is signed"):
        action_answer(place(order()), body)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "exchange"),
        ({"status": "maybe", "response": "x"}, "exchange.status"),
        ({"status": "err", "response": {}}, "exchange.response"),
        ({"status": "ok", "response": {"type": "order"}}, "exchange.response.data"),
        (ok(), "exchange.response.data.statuses"),
        (ok("success", "success"), "exchange.response.data.statuses"),
        (ok("running"), "exchange.response.data.statuses"),
        (ok({"filled": {"oid": -1, "totalSz": "1.0"}}), "exchange.response.data.statuses.filled.oid"),
        (ok({"resting": {}}), "exchange.response.data.statuses.resting.oid"),
    ],
)
def test_an_answer_in_an_unknown_form_names_its_field(body: Any, field: str) -> None:
    with pytest.raises(UnknownForm) as raised:
        action_answer(place(order()), body)
    assert str(raised.value).startswith(f"{field}: expected ")


def test_the_last_actions_are_kept_for_stops_exits_and_cancels() -> None:
    budget, entry = ActionBudget(), place(order())
    assert "not known yet" in str(budget.refusal(entry)) and budget.is_read_due(0)
    assert budget.refusal(replace(entry, rank=Rank.STOP)) is None
    budget.correct(RequestBudget(10_000, 10_000 + ACTIONS_KEPT + 2), 1_000)
    assert not budget.is_read_due(1_000 + READ_EVERY_MS - 1) and budget.is_read_due(1_000 + READ_EVERY_MS)
    assert budget.refusal(TWO) is None
    budget.count(entry)
    assert budget.refusal(entry) is None
    assert budget.refusal(TWO) == (
        "501 actions are left of the account's budget, and 500 are kept for stops and exits; "
        "trade 1 USD for each further action"
    )
    budget.count(TWO, is_expired=True)
    assert budget.left == ACTIONS_KEPT + 2 - 1 - 10
    for rank in (Rank.STOP, Rank.EXIT, Rank.CANCEL):
        assert budget.refusal(replace(TWO, rank=rank)) is None
