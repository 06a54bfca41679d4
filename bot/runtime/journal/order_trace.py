"""Explaining one order or trade as a causal chain: bar, decision, intent, plan, request, events, fill, and the way out.
From the journal alone.

Each step says what happened, when (the service's clock), and the figures that decided it. Nothing here asks a service.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bot.money import format_decimal
from bot.runtime.journal import queries
from bot.runtime.journal.queries import NotFound, Row
from bot.runtime.model.intents import FINAL
from bot.runtime.model.protection_rules import PROTECTIONS
from bot.words import many

# characters of an intent's id that may stand for it
PREFIX_MIN: Final = 6
# begins the cause of an intent that a model's answer decided
AGENT: Final = "agent:"
# The number for one strategy.
ASKS_SHOWN: Final = 20
# the newest refusals of a strategy
REFUSALS_SHOWN: Final = 20
# The events of one position. A longer list is cut, and a last step says so.
EVENTS_MAX: Final = 200
_RUNTIME: Final = {
    "naked": "the position had no stop, and none could be armed",
    "foreign": "safety.foreign_positions: flatten",
    "exit": "safety.on_exit: flatten",
    "left_over": "the position that the order was to reduce is gone",
    "operator": "an operator closed the position",
}

# What a person wants to see of an event, in this order.
_FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "fill": ("kind", "side", "size", "px", "feeUsd", "realizedPnlUsd", "positionSize", "tradeId"),
    "order": ("kind", "side", "size", "limitPx", "triggerPx", "reason", "oid"),
    "trigger": ("side", "size", "triggerPx", "markPx", "tradeId"),
    "guardian": ("guardianType", "action", "reason", "markPx", "guardianId"),
    "funding": ("rate", "amountUsd"),
    "liquidation": ("side", "size", "px", "realizedPnlUsd", "marginLostUsd", "absorbedUsd", "tradeId"),
    "settlement": ("side", "size", "outcomePx", "payoutUsd", "tradeId"),
}


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One link:

    `what` is bar, event, ask, reply, proposal, decision, refused, intent, plan, request, answer, or `<type>` of an
    event.
    """

    what: str
    at_ms: int | None
    text: str
    data: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        return {"what": self.what, "at_ms": self.at_ms, "text": self.text, "data": dict(self.data)}


def explain(db: sqlite3.Connection, name: str) -> list[TraceStep]:
    """The chain for the id of an intent (or its first letters), a trade, an order (oid), an event or a guardian. For
    the name of a strategy the newest questions of an agent, or its newest refusals. NotFound otherwise.
    """
    intent = _intent_of(db, name)
    if intent is not None:
        return _chain(db, intent)
    asked = [step for ask in reversed(queries.asks(db, strategy=name, limit=ASKS_SHOWN)) for step in _ask(ask, None)]
    if asked or (refused := _refusals_of(db, name)):
        return asked or refused
    events = [event for event in queries.events_like(db, name) if _is_about(event, name)]
    if not events:
        raise NotFound(
            f"the journal has nothing with the id {name}: give the id of an intent, a trade (trd_...), an order (its"
            " digits) or an event, as `bot events` and `bot orders` show them"
        )
    return _of_events(db, events)


def _intent_of(db: sqlite3.Connection, name: str) -> Row | None:
    intent = queries.intent_where(db, "id", name) or queries.intent_where(db, "trade_id", name)
    if intent is None and len(name) >= PREFIX_MIN and name.isalnum():
        near = queries.intents_by_prefix(db, name.upper())
        if len(near) > 1:
            raise NotFound(f"more than one intent begins with {name}: write more letters of its id")
        intent = near[0] if near else None
    return intent


def _is_about(event: Row, name: str) -> bool:
    data = event["data"]
    return name in (
        event["id"],
        event.get("idempotencyKey"),
        *(data.get(field) for field in ("tradeId", "oid", "guardianId")),
    ) or name in (data.get("tradeIds") or ())


# -- an intent's chain


def _chain(db: sqlite3.Connection, intent: Row) -> list[TraceStep]:
    traces = queries.traces(db, intent["id"])
    steps = _cause(db, intent["cause"], intent, traces)
    if intent["cause"].startswith(AGENT):
        asked = queries.asks(db, strategy=intent["strategy"], cause=intent["cause"].removeprefix(AGENT), limit=1)
        steps += _ask(asked[0], intent["ordinal"]) if asked else []
    steps.append(_decision(intent, traces))
    steps += [_refusal(refusal) for refusal in queries.refusals(db, strategy=intent["strategy"], cause=intent["cause"])]
    steps.append(_written(intent))
    if "plan" in traces:
        steps.append(_plan(traces["plan"]))
    steps += _approval(db, intent)
    steps += _requests(db, intent)
    steps.append(_answer(intent))
    return steps + _consequences(db, intent)


def _approval(db: sqlite3.Connection, intent: Row) -> list[TraceStep]:
    """Who was asked about the plan, and the answer."""
    approval = queries.approval(db, intent["id"])
    if approval is None:
        return []
    steps = []
    if not (approval["decider"] or "").startswith("the policy"):
        text = f"a person is asked; the price that is shown is {_px(approval['px'])}"
        steps.append(TraceStep("asked", approval["asked_ms"], text, {"shown_px": approval["px"]}))
    if approval["state"] != "pending":
        by, why = (
            f" by {approval['decider']}" if approval["decider"] else "",
            f": {approval['reason']}" if approval["reason"] else "",
        )
        data = {"state": approval["state"], "decider": approval["decider"], "reason": approval["reason"]}
        steps.append(TraceStep("approval", approval["decided_ms"], f"{approval['state']}{by}{why}", data))
    return steps


def _ask(row: Row, ordinal: int | None) -> list[TraceStep]:
    """A question to a model and its answer. `ordinal`: only the decision that became this intent; None: all of them."""
    tokens = row["tokens_in"] + row["tokens_out"]
    asked = TraceStep(
        "ask",
        row["asked_ms"],
        f"{row['strategy']} asks {row['model']} on {row['cause']}, prompt {row['key'][:12]}",
        {name: row[name] for name in ("strategy", "cause", "key", "model", "setup", "prompt")},
    )
    text = f"{tokens:,} tokens, {row['usd']} USD, {row['took_ms'] / 1000:.1f} s"
    if row["problem"] is not None:
        text = f"no answer: {row['problem']} ({text})"
    data = {name: row[name] for name in ("answer", "problem", "tokens_in", "tokens_out", "usd", "took_ms", "outcomes")}
    steps = [asked, TraceStep("reply", None, text, data)]
    for outcome in row["outcomes"]:
        if ordinal is None or outcome.get("ordinal") == ordinal:
            refused = f"; refused: {outcome['refused']}" if "refused" in outcome else ""
            said = (
                f"{outcome['action']} {outcome['market']}, confidence {outcome['confidence']:g}:"
                f" {outcome['reason']}{refused}"
            )
            steps.append(TraceStep("proposal", None, said, outcome))
    return steps


def _cause(db: sqlite3.Connection, cause: str, intent: Row, traces: Mapping[str, Row]) -> list[TraceStep]:
    kind, _, rest = cause.removeprefix(AGENT).partition(":")
    if kind == "bar":
        market, _, at = rest.rpartition(":")
        bar = traces.get("bar")
        if bar is None:
            return [TraceStep("bar", int(at), f"{market} bar closed", {"market": market})]
        figures: Row = {
            name: bar[name] for name in ("market", "interval", "open", "high", "low", "close", "volume") if name in bar
        }
        close, opened, low, high = (_px(bar[name]) for name in ("close", "open", "low", "high"))
        text = f"{market} {bar.get('interval', '')} bar closed at {close} (from {opened}, between {low} and {high})"
        return [TraceStep("bar", int(at), text, figures)]
    if kind == "event":
        name, _, at = rest.partition(":")
        events = [
            event for event in queries.events_like(db, name) if event["id"] == name and at in ("", str(event["ts"]))
        ]
        return [event_step(event) for event in events] or [
            TraceStep("event", None, f"event {name}, which is no longer in the journal", {"id": name})
        ]
    if kind == "proposal":
        origin = queries.origin(db, intent)
        by, why = origin.get("by"), origin.get("why")
        text = f"{by or 'an assistant'} proposed it for {intent['strategy']}{f': {why}' if why else ''}"
        return [TraceStep("proposal", intent["opened_ms"], text, {"by": by, "why": why, "key": rest})]
    if kind == "target":
        n, _, entry = rest.partition(":")
        return [
            TraceStep(
                "target", intent["opened_ms"], f"target {n} of the entry {entry}", {"target": int(n), "entry": entry}
            )
        ]
    if not intent["strategy"].startswith("@"):
        return [TraceStep(kind.partition(".")[0], intent["opened_ms"], cause, {"cause": cause})]
    reason = _RUNTIME.get(kind, cause)
    return [TraceStep("cause", intent["opened_ms"], f"the runtime, not a strategy: {reason}", {"cause": cause})]


def _decision(intent: Row, traces: Mapping[str, Row]) -> TraceStep:
    signal = traces.get("wish", {}).get("wish")
    data = {"strategy": intent["strategy"], "ordinal": intent["ordinal"], "wish": signal}
    who = "the runtime" if intent["strategy"].startswith("@") else intent["strategy"]
    return TraceStep("decision", intent["opened_ms"], f"{who}: {signal or intent['action']}", data)


def _refusal(row: Row) -> TraceStep:
    return TraceStep(
        "refused",
        row["at_ms"],
        f"{row['strategy']} also asked for an order in {row['market'] or 'a market'}, which was refused:"
        f" {row['message']} ({row['code']})",
        row,
    )


def _refusals_of(db: sqlite3.Connection, strategy: str) -> list[TraceStep]:
    """How many entries of a strategy the protections have refused, and its newest refusals, oldest first."""
    newest = queries.newest_refusals(db, strategy=strategy, limit=REFUSALS_SHOWN)
    counts = queries.refusal_counts(db, strategy=strategy, codes=PROTECTIONS)
    text = ", ".join(f"{code} {count:,}" for code, count in counts.items())
    head = (
        [TraceStep("refused", None, f"entries of {strategy} refused by protections: {text}", counts)] if counts else []
    )
    texts = [f"an order in {row['market'] or 'a market'}: {row['message']} ({row['code']})" for row in newest]
    steps = [TraceStep("refused", row["at_ms"], text, row) for row, text in zip(newest, texts, strict=True)]
    return head + steps[::-1]


def _written(intent: Row) -> TraceStep:
    data = {
        name: intent[name]
        for name in ("id", "action", "path", "market", "body", "notional_usd", "not_after_ms", "state")
    }
    body = ", ".join(
        f"{name} {_short(value)}" for name, value in intent["body"].items() if name not in ("market", "source")
    )
    return TraceStep(
        "intent",
        intent["opened_ms"],
        f"{intent['id'][:12]} written: {intent['action']} {intent['market']}, {body}",
        data,
    )


def _plan(plan: Row) -> TraceStep:
    words = [
        f"{plan.get('side', '')} {plan.get('size', '')} at about {plan.get('est_px') or plan.get('estPx')}".strip()
    ]
    bracket = plan.get("bracket") or {}
    for word, names in (("stop", ("stop_loss", "stopLoss")), ("target", ("take_profit", "takeProfit"))):
        leg = next((bracket[name] for name in names if bracket.get(name)), None)
        words += [f"{word} {leg['px']}"] if leg else []
    fee = plan.get("fee_usd") or plan.get("feeUsd")
    words += [f"fee {fee} USD"] if fee else []
    return TraceStep(
        "plan", plan["at_ms"], ", ".join(words), {name: value for name, value in plan.items() if name != "at_ms"}
    )


def _requests(db: sqlite3.Connection, intent: Row) -> list[TraceStep]:
    outcomes = {"done": "answered", "unknown": "outcome unknown", "no": "not executed", None: "no answer"}
    steps = []
    for attempt in queries.attempts(db, intent["id"]):
        code = f" ({attempt['code']})" if attempt["code"] else ""
        steps.append(
            TraceStep(
                "request", attempt["sent_ms"], f"attempt {attempt['n']}: {outcomes[attempt['outcome']]}{code}", attempt
            )
        )
    return steps


def _answer(intent: Row) -> TraceStep:
    state, data = intent["state"], {name: intent[name] for name in ("state", "trade_id", "code", "message", "attempts")}
    if state == "accepted":
        text = f"accepted as {intent['trade_id']}"
    elif state in FINAL:
        text = f"{state}: {intent['message'] or intent['code'] or 'no reason given'}"
    else:
        why = intent["message"] or intent["code"] or "its outcome is unknown"
        words = {
            "opened": "not sent yet",
            "planned": "planned, not sent yet",
            "quarantined": f"waits for a person: {why}; look at the account, then bot resume",
        }
        text = f"{state}: {words.get(state, 'in doubt: the order may exist, and no new entry goes to this market')}"
    return TraceStep("answer", intent["moved_ms"], text, data)


# -- what followed


def _consequences(db: sqlite3.Connection, intent: Row) -> list[TraceStep]:
    """The events of this order; from its first fill on, all events of its market until the position is flat."""
    if intent["action"] == "cancel":
        wanted = set(map(str, intent["body"]["oids"]))
        return [
            event_step(row)
            for oid in wanted
            for row in queries.events_like(db, oid)
            if row["data"].get("oid") == oid and row["ts"] >= intent["opened_ms"]
        ][:EVENTS_MAX]
    life: list[Row] = []
    is_filled = False
    for event in queries.events_of_coin(db, intent["market"]):
        if event["epoch"] != intent["epoch"]:
            continue
        is_ours = event.get("idempotencyKey") == intent["id"] or (
            intent["trade_id"] is not None and event["data"].get("tradeId") == intent["trade_id"]
        )
        is_filled = is_filled or (is_ours and event["type"] == "fill")
        if is_filled or is_ours:
            life.append(event)
        if is_filled and _is_flat(event):
            break
    return _events(life)


def _of_events(db: sqlite3.Connection, events: list[Row]) -> list[TraceStep]:
    """Events without an intent of ours, such as a stop or a guardian's close: the chain of their position, if it is
    ours.
    """
    coin = events[0].get("coin")
    if coin is None:
        return _events(events)
    ids = {row["id"] for row in events}
    life: list[Row] = []
    for event in queries.events_of_coin(db, coin):
        # A reset wiped the position.
        if life and event["epoch"] != life[0]["epoch"]:
            if ids & {row["id"] for row in life}:
                break
            life = []
        life.append(event)
        if _is_flat(event):
            if ids & {row["id"] for row in life}:
                break
            life = []
    entry = next((row for row in life if row["type"] == "fill" and row["subtype"] == "entry"), None)
    intent = (
        None
        if entry is None or not entry.get("idempotencyKey")
        else queries.intent_where(db, "id", entry["idempotencyKey"])
    )
    if intent is not None:
        return _chain(db, intent)
    foreign = TraceStep("decision", life[0]["ts"], "no strategy of this daemon: a foreign order, or a guardian", {})
    return [foreign, *_events(life)]


def _is_flat(event: Row) -> bool:
    if event["type"] == "fill":
        size = str(event["data"].get("positionSize", ""))
        return not size.strip("-0.")
    return bool(event["type"] == "settlement") or bool(event["type"] == "liquidation" and event["subtype"] != "partial")


def _events(life: list[Row]) -> list[TraceStep]:
    steps = [event_step(row) for row in life[:EVENTS_MAX]]
    if len(life) > EVENTS_MAX:
        steps.append(
            TraceStep(
                "cut",
                None,
                f"{many(len(life) - EVENTS_MAX, 'more event')}: `bot events --since {life[EVENTS_MAX - 1]['id']}`",
                {},
            )
        )
    return steps


def event_step(event: Row) -> TraceStep:
    data = event["data"]
    figures = {name: data[name] for name in _FIGURES.get(event["type"], ()) if data.get(name) is not None}
    text = ", ".join(f"{_word(name)} {value}" for name, value in figures.items())
    return TraceStep(
        event["type"],
        event["ts"],
        f"{event['subtype']}: {text}" if text else event["subtype"],
        {"id": event["id"], **figures},
    )


def _word(name: str) -> str:
    """`realizedPnlUsd` -> `realized pnl usd`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _px(value: float) -> str:
    """`105,577`, without the `.0` of a float."""
    return f"{Decimal(format_decimal(Decimal(str(value)))):,f}"


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_short(inner)}" for name, inner in value.items()) + "}"
    return str(value)
