"""Events as dicts of the interface.

A table picks one function per event class. Plain dicts, because this code is hot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bot.model.events import (
    AccountChanged,
    Event,
    FillEvent,
    FundingPaid,
    GuardianMoved,
    Liquidated,
    OrderChanged,
    Settled,
    Triggered,
)
from bot.money import format_e8, format_e12
from bot.service.bodies.account_bodies import opt
from bot.venue.model.state import event_id
from bot.wire.errors import clean
from bot.wire.vocabulary import EVENT_SUBTYPES

Body = dict[str, Any]


def event(happened: Event) -> Body:
    """One event as the feed, the stream and the webhooks send it."""
    return _VIEWS[type(happened)](happened)


def kind_of(happened: Event) -> tuple[str, str]:
    """(type, subtype), which filters match."""
    return _TYPES[type(happened)], getattr(happened, "subtype", "payment")


def _fill(e: FillEvent) -> Body:
    body: Body = {
        "id": event_id(e.seq),
        "type": "fill",
        "subtype": e.subtype,
        "ts": e.ts,
        "coin": e.coin,
        "data": {
            "tradeId": e.trade,
            "oid": e.oid,
            "kind": e.kind,
            "side": e.side,
            "intent": e.intent,
            "reduceOnly": e.reduce_only,
            "size": format_e8(e.size),
            "px": format_e8(e.px),
            "feeUsd": format_e8(e.fee),
            "realizedPnlUsd": opt(e.realized),
            "liquidity": e.liquidity,
            "remainingSize": format_e8(e.remaining),
            "positionSize": format_e8(e.position_size),
            "entryPx": opt(e.entry_px),
            "balanceUsd": format_e8(e.balance),
            "absorbedUsd": format_e8(e.absorbed),
        },
    }
    if e.venue_ts is not None:
        body["data"]["venueTs"] = e.venue_ts
    return _origin(body, e.request_id, e.idempotency_key)


def _origin(body: Body, request_id: str | None, idempotency_key: str | None) -> Body:
    """Add the request that caused the event, if there is one."""
    if request_id is not None:
        body["requestId"] = request_id
    if idempotency_key is not None:
        body["idempotencyKey"] = idempotency_key
    return body


def _order(e: OrderChanged) -> Body:
    body: Body = {
        "id": event_id(e.seq),
        "type": "order",
        "subtype": e.subtype,
        "ts": e.ts,
        "coin": e.coin,
        "data": {
            "oid": e.oid,
            "tradeId": e.trade,
            "kind": e.kind,
            "side": e.side,
            "intent": e.intent,
            "size": format_e8(e.size),
            "filledSize": format_e8(e.filled),
            "limitPx": opt(e.limit_px),
            "triggerPx": opt(e.trigger_px),
            "reason": e.reason,
        },
    }
    return _origin(body, e.request_id, e.idempotency_key)


def _trigger(e: Triggered) -> Body:
    return {
        "id": event_id(e.seq),
        "type": "trigger",
        "subtype": e.subtype,
        "ts": e.ts,
        "coin": e.coin,
        "data": {
            "oid": e.oid,
            "tradeId": e.trade,
            "side": e.side,
            "size": format_e8(e.size),
            "triggerPx": format_e8(e.trigger_px),
            "markPx": format_e8(e.mark),
        },
    }


def _guardian(e: GuardianMoved) -> Body:
    body: Body = {"id": event_id(e.seq), "type": "guardian", "subtype": e.subtype, "ts": e.ts}
    if e.coin is not None:
        body["coin"] = e.coin
    body["data"] = {
        "guardianId": e.guardian,
        "guardianType": e.guardian_type,
        "scope": e.scope,
        "action": e.action,
        "reason": e.reason,
        "nextDeadline": e.next_deadline,
        "markPx": opt(e.mark),
        "accountValueUsd": opt(e.account_value),
        "canceledOids": list(e.canceled),
        "tradeIds": list(e.trades),
        "blocksOpens": e.blocks_opens,
        "code": e.code,
    }
    return body


def _funding(e: FundingPaid) -> Body:
    body: Body = {
        "id": event_id(e.seq),
        "type": "funding",
        "subtype": "payment",
        "ts": e.ts,
        "coin": e.coin,
        "data": {
            "side": e.side,
            "size": format_e8(e.size),
            "oraclePx": format_e8(e.oracle),
            "rate": format_e12(e.rate),
            "amountUsd": format_e8(e.amount),
            "balanceUsd": format_e8(e.balance),
        },
    }
    if e.venue_ts is not None:
        body["data"]["venueTs"] = e.venue_ts
    return body


def _liquidation(e: Liquidated) -> Body:
    return {
        "id": event_id(e.seq),
        "type": "liquidation",
        "subtype": e.subtype,
        "ts": e.ts,
        "coin": e.coin,
        "data": {
            "tradeId": e.trade,
            "side": e.side,
            "size": format_e8(e.size),
            "px": format_e8(e.px),
            "markPx": format_e8(e.mark),
            "realizedPnlUsd": format_e8(e.realized),
            "feeUsd": format_e8(e.fee),
            "marginLostUsd": format_e8(e.margin_lost),
            "absorbedUsd": format_e8(e.absorbed),
            "balanceUsd": format_e8(e.balance),
        },
    }


def _settlement(e: Settled) -> Body:
    return {
        "id": event_id(e.seq),
        "type": "settlement",
        "subtype": e.subtype,
        "ts": e.ts,
        "coin": e.coin,
        "data": {
            "tradeId": e.trade,
            "side": e.side,
            "size": format_e8(e.size),
            "outcomePx": format_e8(e.outcome_px),
            "payoutUsd": format_e8(e.payout),
            "feeUsd": format_e8(e.fee),
            "realizedPnlUsd": format_e8(e.realized),
            "absorbedUsd": format_e8(e.absorbed),
            "balanceUsd": format_e8(e.balance),
        },
    }


def _account(e: AccountChanged) -> Body:
    body: Body = {"id": event_id(e.seq), "type": "account", "subtype": e.subtype, "ts": e.ts}
    if e.coin is not None:
        body["coin"] = e.coin
    body["data"] = _ACCOUNT_DATA[e.subtype](e)
    return body


_ACCOUNT_DATA: Final[dict[str, Callable[[AccountChanged], Body]]] = {
    "created": lambda e: {"balanceUsd": opt(e.balance)},
    "reset": lambda e: {"balanceUsd": opt(e.balance), "epoch": e.epoch},
    "settings": lambda e: {"maxTradeUsd": opt(e.max_trade), "dailyTradeCapUsd": opt(e.daily_cap)},
    "leverage": lambda e: {"coin": e.coin, "from": e.leverage_from, "to": e.leverage_to},
    "key_created": lambda e: {"keyId": e.key, "name": e.name},
    "key_revoked": lambda e: {"keyId": e.key, "name": e.name},
    "transfer": lambda e: {
        "kind": e.state,
        "amountUsd": opt(e.amount),
        "balanceUsd": opt(e.balance),
        "venueTs": e.venue_ts,
    },
    "margin": lambda e: {"coin": e.coin, "marginUsd": opt(e.margin), "balanceUsd": opt(e.balance)},
    "link": lambda e: {"state": e.state, "reason": e.reason},
    "audit": lambda e: {"state": e.state, "reason": e.reason},
}

_VIEWS: Final[dict[type, Callable[[Any], Body]]] = {
    FillEvent: _fill,
    OrderChanged: _order,
    Triggered: _trigger,
    GuardianMoved: _guardian,
    FundingPaid: _funding,
    Liquidated: _liquidation,
    Settled: _settlement,
    AccountChanged: _account,
}

_TYPES: Final[dict[type, str]] = {
    FillEvent: "fill",
    OrderChanged: "order",
    Triggered: "trigger",
    GuardianMoved: "guardian",
    FundingPaid: "funding",
    Liquidated: "liquidation",
    Settled: "settlement",
    AccountChanged: "account",
}


def unknown_type(name: str) -> Body:
    """The warning for a filter that matches no event type of this version."""
    text = f"there is no event type {clean(name)}; the types are {', '.join(EVENT_SUBTYPES)}"
    return {"code": "unknown_type", "message": text}
