"""The requests that reached the service, read from the events of an account and its journal.

The events say what arrived and when; the journal's intents and arms have the bodies. An order that the service refused
is a request too, because under another setting it may be accepted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from bot.backtest.replay.records import RunRecord
from bot.runtime.journal import queries
from bot.runtime.model.intents import TARGET_LEG
from bot.wire.guardian_requests import GUARDIAN_RULES
from bot.words import many

KILL: Final = "kill_switch"
Body = Mapping[str, Any]


class GivenRequest(NamedTuple):
    """One request at the instant of its arrival.

    `key`: the order's idempotency key, for a cancel that of the order that it ends, for a guardian its recorded id.
    `kind`: the leg of an order, for a cancel the kind of the order that it ends.
    """

    at_ms: int
    action: Literal["order", "close", "cancel", "arm", "disarm"]
    key: str
    market: str = ""
    strategy: str = ""
    body: Body = MappingProxyType({})
    kind: str = ""

    @property
    def armed(self) -> str | None:
        """The type of the guardian that it arms."""
        return self.body["type"] if self.action == "arm" else None


class RequestReader:
    """Reads the requests of one account.

    `next_px_ms`, for a live record, is the delay of a candle's second price by market. An order that was decided on a
    bar and arrived within it counts as sent at the bar's close, as a backtest assumes. `late_ms` is the latency of
    orders in a backtest.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        record: RunRecord,
        events: Sequence[Body],
        *,
        next_px_ms: Mapping[str, int] | None = None,
        late_ms: int = 0,
    ) -> None:
        self._events, self._next_px_ms, self._late_ms = events, next_px_ms or {}, late_ms
        decided = {name: record.decisions[key] for name, key in record.keys.items()}
        self._intents = {name: intent for name, intent in decided.items() if intent.state in ("accepted", "rejected")}
        rows = queries.rows(db, "SELECT guardian_id, body FROM arms WHERE body NOT IN ('', '{}')")
        self._arms = {str(row["guardian_id"]): json.loads(row["body"]) for row in rows}
        # a max_hold is armed again when its position changes the side
        self._armed: set[str] = set()
        self._others = self._unknown_guardians = 0

    def requests(self, start_ms: int) -> list[GivenRequest]:
        """Every request from an instant on, in the order of arrival. Guardians armed before it are armed then."""
        ranked = [(request.at_ms, float(rank), request) for rank, request in enumerate(self._sent())]
        ranks = {request.body.get("oid", request.key): rank for _, rank, request in ranked}
        rank = -1.0
        for key, intent in self._intents.items():
            # A refused order left no event: it comes after the intent before it.
            is_cancel = intent.action == "cancel"
            known = ranks.get(intent.body["oids"][-1] if is_cancel else key)
            rank = rank + 1e-6 if known is None else known
            if known is None and not is_cancel:
                request = self._of_intent(key, intent.at_ms + self._late_ms)
                ranked.append((request.at_ms, rank, request))
        ranked.sort(key=lambda item: item[:2])
        ended = {request.key for _, _, request in ranked if request.action == "disarm" and request.at_ms < start_ms}
        return [
            request._replace(at_ms=max(request.at_ms, start_ms))
            for _, _, request in ranked
            # The decision on the bar before the start was sent at its close.
            if request.at_ms >= start_ms - 1 or (request.armed not in (None, KILL) and request.key not in ended)
        ]

    def notes(self) -> Iterator[str]:
        """What the record does not have, as sentences."""
        if self._others:
            orders = many(self._others, "order")
            yield f"{orders} of others on the account: played without stops and guardians, which the journal lacks."
        if self._unknown_guardians:
            yield f"{many(self._unknown_guardians, 'guardian')} with fields that the journal lacks: not played."

    def _sent(self) -> Iterator[GivenRequest]:
        """The requests that left events, in the order of these."""
        seen: set[str] = set()
        # oid -> key and kind of its order; trade -> key
        orders: dict[str, tuple[str, str]] = {}
        trades: dict[str, str] = {}
        for number, event in enumerate(self._events):
            data, kind, is_open = event["data"], event["type"], event["subtype"] == "open"
            key = event.get("idempotencyKey") or f"other:{number}"
            if key in self._intents and key not in seen:
                seen.add(key)
                yield self._of_intent(key, event["ts"])
            elif kind == "order" and is_open and key not in seen:
                self._others += 1
                yield _of_other(event, key)
            if kind == "order":
                if is_open:
                    trades[data["tradeId"]] = key
                orders.setdefault(data["oid"], (trades.get(data["tradeId"], key), data["kind"]))
                if event["subtype"] == "canceled" and data["reason"] == "user":
                    key, order_kind = orders[data["oid"]]
                    yield GivenRequest(
                        event["ts"], "cancel", key, event["coin"], body={"oid": data["oid"]}, kind=order_kind
                    )
            elif kind == "guardian":
                yield from self._of_guardian(event, data)

    def _of_intent(self, key: str, at_ms: int) -> GivenRequest:
        intent = self._intents[key]
        strategy, market, *_, leg = intent.key
        decided_ms = intent.key.bar_ms
        if decided_ms is not None and at_ms - decided_ms < self._next_px_ms.get(market, -1):
            at_ms = decided_ms - 1
        is_order = intent.action == "open" or leg == TARGET_LEG
        return GivenRequest(at_ms, "order" if is_order else "close", key, market, strategy, intent.body, leg)

    def _of_guardian(self, event: Body, data: Body) -> Iterator[GivenRequest]:
        at_ms, name, kind = event["ts"], data["guardianId"], data["guardianType"]
        is_armed = event["subtype"] == "armed" and data["reason"] is None
        if kind == KILL and event["subtype"] == "fired" and data["reason"] == "manual":
            yield GivenRequest(at_ms, "arm", name, body={"type": KILL, "action": data["action"]})
        elif is_armed and kind != KILL and name not in self._armed:
            self._armed.add(name)
            is_of_account = GUARDIAN_RULES[kind].scope == "account"
            # A guardian of the account that was armed again has the body of the only one of its type.
            alike = [body for body in self._arms.values() if is_of_account and body["type"] == kind]
            body = self._arms.get(name) or (alike[0] if len(alike) == 1 else None)
            if body is not None:
                yield GivenRequest(at_ms, "arm", name, event.get("coin") or "", body=body)
            self._unknown_guardians += body is None and is_of_account
        elif event["subtype"] == "disarmed":
            yield GivenRequest(at_ms, "disarm", name)


def _of_other(event: Body, key: str) -> GivenRequest:
    """The request of an order that the daemon has not sent, from its event."""
    data, market = event["data"], event["coin"]
    if data["kind"] == "close":
        return GivenRequest(event["ts"], "close", key, market, body={"size": data["size"]})
    side = data["side"] if data["intent"] == "open" else {"long": "short", "short": "long"}[data["side"]]
    body = {"market": market, "side": side, "size": data["size"], "type": data["kind"]}
    body |= {"limitPx": data["limitPx"]} if data["limitPx"] else {}
    return GivenRequest(event["ts"], "order", key, market, body=body)
