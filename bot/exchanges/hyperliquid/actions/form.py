"""Neutral actions in the wire form, and answers of `/exchange` as neutral values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bot.exchanges.actions import ActionAnswer, ActionOutcome, ExchangeAction, OrderAnswer, OrderName, OrderPlacement
from bot.exchanges.hyperliquid.json_rows import JsonRow, unknown
from bot.exchanges.protocol import UnknownForm
from bot.money import format_e8

TIFS: Final = {"now": "Ioc", "rest": "Gtc", "post": "Alo"}
TRIGGERS: Final = {"stop": "sl", "target": "tp"}
GROUPS: Final = {"single": "na", "entry": "normalTpsl", "position": "positionTpsl"}
CLIENT_ORDER_ID: Final = re.compile(r"0x[0-9a-f]{32}", re.ASCII)
# Texts of a whole action that is refused, by what they contain.
NONCE_TEXTS: Final[tuple[tuple[str, ActionOutcome], ...]] = (
    ("duplicate nonce", "duplicate"),
    ("nonce too low", "nonce_too_low"),
)
SIGNER: Final = re.compile(r"User or API Wallet (0x[0-9a-fA-F]{40}) does not exist", re.ASCII)
# What a refusal means, by what its text contains; any other one is `trade_failed`.
CODES: Final[tuple[tuple[str, str], ...]] = (
    ("Reduce only order would increase position", "not_found"),
    ("never placed, already canceled, or filled", "not_found"),
    ("could not immediately match", "insufficient_depth"),
    ("No liquidity available", "insufficient_depth"),
    ("minimum value", "below_min_notional"),
    ("divisible by tick size", "invalid_input"),
    ("invalid size", "invalid_input"),
    ("invalid price", "invalid_input"),
    ("Invalid TP/SL price", "invalid_input"),
    ("away from the reference price", "invalid_input"),
    ("Insufficient margin", "insufficient_funds"),
    ("Insufficient balance", "insufficient_funds"),
    ("Too many open orders", "limit_exceeded"),
    ("open interest", "limit_exceeded"),
    ("margin tier", "limit_exceeded"),
    ("Only post-only orders allowed", "service_unavailable"),
    ("Too many cumulative requests", "rate_limited"),
    ("Trading is halted", "market_closed"),
)
FAILED: Final = "trade_failed"
ORDERS_WAIT: Final = ("waitingForFill", "waitingForTrigger")


UNKNOWN_AGENT: Final = (
    " The agent has expired, or was revoked or replaced: approve a new one and run bot exchange connect"
)
# A new nonce of ours is the highest, unless others act with the same agent. A second copy is a duplicate.
REMEDIES: Final[Mapping[str, str]] = {
    "nonce_too_low": " Another program acts with this agent: approve one for this service and run bot exchange connect"
}


class WrongSigner(UnknownForm):
    """The exchange has recovered another address from our signature: our signature is wrong, and so would be every
    other.
    """


def wire_action(action: ExchangeAction, assets: Mapping[str, int]) -> dict[str, Any]:
    """An action as it is signed and sent: keys in the order of the signature. ValueError names what it cannot say."""
    if action.kind == "void":
        return {"type": "noop"}
    if action.kind == "place":
        orders = [_order(order, assets) for order in action.orders]
        return {"type": "order", "orders": orders, "grouping": GROUPS[action.group]}
    if action.kind == "cancel":
        return _cancel(action.cancels, assets)
    wanted = action.leverage
    assert wanted is not None
    asset = _asset(wanted.market, assets)
    return {"type": "updateLeverage", "asset": asset, "isCross": not wanted.is_isolated, "leverage": wanted.leverage}


def _asset(market: str, assets: Mapping[str, int]) -> int:
    if market not in assets:
        raise ValueError(f"{market} is not listed; check the market's name")
    return assets[market]


def _client_order_id(text: str) -> str:
    if not CLIENT_ORDER_ID.fullmatch(text):
        raise ValueError(f"client order id {text!r}: must be 0x and 32 hexadecimal digits")
    return text


def _order(order: OrderPlacement, assets: Mapping[str, int]) -> dict[str, Any]:
    kind: dict[str, Any]
    if order.role in TRIGGERS:
        if order.trigger_px is None:
            raise ValueError(f"{order.role} of {order.market}: needs a trigger price")
        trigger_px = format_e8(order.trigger_px)
        kind = {"trigger": {"isMarket": True, "triggerPx": trigger_px, "tpsl": TRIGGERS[order.role]}}
    else:
        kind = {"limit": {"tif": TIFS[order.time_in_force]}}
    return {
        "a": _asset(order.market, assets),
        "b": order.is_buy,
        "p": format_e8(order.px),
        "s": format_e8(order.size),
        "r": order.is_reduce_only,
        "t": kind,
        "c": _client_order_id(order.client_order_id),
    }


def _cancel(names: tuple[OrderName, ...], assets: Mapping[str, int]) -> dict[str, Any]:
    if all(name.client_order_id is not None for name in names):
        ours = [
            {"asset": _asset(name.market, assets), "cloid": _client_order_id(str(name.client_order_id))}
            for name in names
        ]
        return {"type": "cancelByCloid", "cancels": ours}
    if any(name.order_id is None for name in names):
        raise ValueError("one cancel names its orders by our ids or by the exchange's, not by both; send two")
    return {
        "type": "cancel",
        "cancels": [{"a": _asset(name.market, assets), "o": int(str(name.order_id))} for name in names],
    }


def action_answer(action: ExchangeAction, body: Any) -> ActionAnswer:
    """An answer of HTTP 200.

    WrongSigner if it names an address that is not the signer's; UnknownForm for any other form.
    """
    row = JsonRow(body, "exchange")
    if row.choice("status", {"ok": True, "err": False}):
        return ActionAnswer(action.action_nonce, "done", _orders(action, row.row("response")))
    text = row.text("response")
    match = SIGNER.search(text)
    if match is not None and match[1].lower() != action.signer:
        raise WrongSigner(
            f"the exchange reads the signature of {action.signer} as {match[1]}; nothing more is signed. Check the"
            " network of the key, and update bracketbot"
        )
    outcome: ActionOutcome = next((outcome for part, outcome in NONCE_TEXTS if part in text), "refused")
    remedy = UNKNOWN_AGENT if match is not None else REMEDIES.get(outcome, "")
    return ActionAnswer(action.action_nonce, outcome, text=text + remedy, code=code_of(text))


def code_of(text: str) -> str:
    """What the words of a refusal mean, as an error code of the interface."""
    return next((code for part, code in CODES if part in text), FAILED)


def _orders(action: ExchangeAction, response: JsonRow) -> tuple[OrderAnswer, ...]:
    """One answer for each order or cancel. A fault of the whole batch has one status for all."""
    count = len(action.orders) or len(action.cancels)
    if not count:
        return ()
    statuses = response.row("data").items("statuses")
    answers = tuple(_status(status) for status in statuses)
    if len(answers) == count:
        return answers
    if len(answers) == 1 and answers[0].outcome == "refused":
        return answers * count
    raise unknown("exchange.response.data.statuses", f"{count} statuses", statuses)


def _status(status: Any) -> OrderAnswer:
    if status == "success":
        return OrderAnswer("canceled")
    if isinstance(status, str) and status in ORDERS_WAIT:
        return OrderAnswer("waiting")
    row = JsonRow(status, "exchange.response.data.statuses")
    if row.has("error"):
        text = row.text("error")
        return OrderAnswer("refused", text=text, code=code_of(text))
    if row.has("resting"):
        return OrderAnswer("resting", str(row.row("resting").whole("oid")))
    filled = row.row("filled")
    return OrderAnswer("filled", str(filled.whole("oid")), filled.size("totalSz"))
