"""Lines of events.jsonl: the events of the API without `requestId`, which differs between runs. Pure.

Orders and fills come a hundred thousand times in a run, so they are formatted directly as text. A test compares this
text with the API's JSON. All other events are that JSON.
"""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

from bot.model.events import Event, FillEvent, OrderChanged
from bot.money import format_e8
from bot.service.bodies import event_bodies

# the same size and levels come in all events of an order
AMOUNTS_KEPT: Final = 512

_dumps: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def line_of(event: Event) -> str:
    """One event as a line of events.jsonl."""
    if isinstance(event, OrderChanged):
        return _order(event)
    if isinstance(event, FillEvent) and event.venue_ts is None:
        return _fill(event)
    return line_of_body(event_bodies.event(event))


def line_of_body(body: dict[str, Any]) -> str:
    """One line of events.jsonl from an event that is already JSON."""
    return _dumps({name: value for name, value in body.items() if name != "requestId"}) + "\n"


@lru_cache(maxsize=AMOUNTS_KEPT)
def _amount(value: int | None) -> str:
    return "null" if value is None else f'"{format_e8(value)}"'


def _order(e: OrderChanged) -> str:
    text, amount = quoted, _amount
    key = "" if e.idempotency_key is None else f',"idempotencyKey":{quoted(e.idempotency_key)}'
    return (
        f'{{"id":"evt_{e.seq:012d}","type":"order","subtype":{text(e.subtype)},"ts":{e.ts},"coin":{text(e.coin)},'
        f'"data":{{"oid":{text(e.oid)},'
        f'"tradeId":{"null" if e.trade is None else text(e.trade)},"kind":{text(e.kind)},"side":{text(e.side)},'
        f'"intent":{text(e.intent)},"size":{amount(e.size)},'
        f'"filledSize":{amount(e.filled)},"limitPx":{amount(e.limit_px)},"triggerPx":{amount(e.trigger_px)},'
        f'"reason":{"null" if e.reason is None else text(e.reason)}}}{key}}}\n'
    )


def _fill(e: FillEvent) -> str:
    text, amount = quoted, _amount
    key = "" if e.idempotency_key is None else f',"idempotencyKey":{quoted(e.idempotency_key)}'
    realized = "null" if e.realized is None else f'"{format_e8(e.realized)}"'
    return (
        f'{{"id":"evt_{e.seq:012d}","type":"fill","subtype":{text(e.subtype)},"ts":{e.ts},"coin":{text(e.coin)},'
        f'"data":{{"tradeId":{text(e.trade)},'
        f'"oid":{text(e.oid)},"kind":{text(e.kind)},"side":{text(e.side)},"intent":{text(e.intent)},'
        f'"reduceOnly":{"true" if e.reduce_only else "false"},"size":{amount(e.size)},"px":{amount(e.px)},'
        f'"feeUsd":"{format_e8(e.fee)}",'
        f'"realizedPnlUsd":{realized},"liquidity":{text(e.liquidity)},"remainingSize":{amount(e.remaining)},'
        f'"positionSize":{amount(e.position_size)},"entryPx":{amount(e.entry_px)},'
        f'"balanceUsd":"{format_e8(e.balance)}",'
        f'"absorbedUsd":{amount(e.absorbed)}}}{key}}}\n'
    )
