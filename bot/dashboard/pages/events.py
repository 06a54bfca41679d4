"""Orders and events: what rests at the service, what happened on the account, and the chain of one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bot.dashboard.values import formatting
from bot.dashboard.values.identity import account_of, order_stamp
from bot.dashboard.values.signal_words import short_signal
from bot.dashboard.values.snapshot import DaemonSnapshot
from bot.dashboard.values.tables import TableRows
from bot.runtime.journal.order_trace import TraceStep, event_step

Data = Mapping[str, Any]

PAGE_ROWS: Final = 100
KINDS: Final = {"limit": "entry order", "stop_loss": "stop", "take_profit": "target"}
# Type of an event -> its shape beside the text, so that a row can be told without reading it.
MARKS: Final = {
    "fill": "●",
    "order": "○",
    "trigger": "◆",
    "guardian": "▣",
    "funding": "%",
    "liquidation": "✕",
    "settlement": "■",
    "account": "◇",
}


@dataclass(frozen=True, slots=True)
class OrderRow:
    oid: str
    market: str
    kind: str
    side: str
    size: str
    filled: str
    px: str
    strategy: str
    created: str
    is_entry: bool
    stamp: str


@dataclass(frozen=True, slots=True)
class EventRow:
    at: str
    type: str
    subtype: str
    mark: str
    market: str
    text: str
    # what `explain` takes
    id: str


@dataclass(frozen=True, slots=True)
class StepRow:
    at: str
    what: str
    text: str
    id: str


def orders(snapshot: DaemonSnapshot) -> TableRows[OrderRow]:
    """Entries first, then stops and targets, by market."""
    account = account_of(snapshot)

    def kind(order: Data) -> str:
        is_target = order["kind"] == "limit" and order["action"] != "open"
        return "target" if is_target else str(KINDS.get(order["kind"], order["kind"]))

    def row(order: Data) -> OrderRow:
        size = formatting.size(order["size"]) if formatting.number(order["size"]) else "whole position"
        return OrderRow(
            order["oid"],
            order["market"],
            kind(order),
            order["side"],
            size,
            formatting.size(order["filled"]),
            formatting.px(order["limit_px"] or order["trigger_px"]),
            order["strategy"] or "not ours",
            formatting.instant(order["created_ms"] or None),
            order["action"] == "open",
            order_stamp(account, order),
        )

    return TableRows(
        sorted(snapshot.orders, key=lambda order: (order["action"] != "open", order["market"], kind(order))), row
    )


def rows(events: Sequence[Data]) -> list[EventRow]:
    """The newest first."""
    event_rows = []
    for event in reversed(events):
        data, text = event["data"], in_words(event)
        subject = data.get("tradeId") or data.get("oid") or data.get("guardianId") or event["id"]
        event_rows.append(
            EventRow(
                formatting.instant(event["ts"]),
                event["type"],
                formatting.words(event["subtype"]),
                MARKS.get(event["type"], "·"),
                event.get("coin") or "",
                text,
                str(subject),
            )
        )
    return event_rows


def in_words(event: Data) -> str:
    """What the event says, with its figures as traders read them.

    Types without words of their own list their figures.
    """
    data, kind = event["data"], event["type"]
    if kind == "fill":
        is_buy = (data["side"] == "long") == (event["subtype"] == "entry")
        text = (
            f"{'bought' if is_buy else 'sold'} {formatting.size(data['size'])} at {formatting.px(data['px'])}, fee"
            f" {formatting.cost_usd(data['feeUsd'])} USD"
        )
        is_exit = event["subtype"] == "exit" and data.get("realizedPnlUsd") is not None
        return text + (f", profit {formatting.signed_usd(data['realizedPnlUsd'])} USD" if is_exit else "")
    if kind == "order":
        px = data.get("triggerPx") or data.get("limitPx")
        reason = f", {formatting.words(data['reason'])}" if data.get("reason") else ""
        at = "" if px is None else f" at {formatting.px(px)}"
        size = formatting.size(data["size"]) if formatting.number(data.get("size")) else "the whole position"
        return f"{KINDS.get(data.get('kind', ''), 'order')}{at} for {size}{reason}"
    if kind == "guardian":
        parts = [
            formatting.words(data.get("guardianType", "")),
            *(formatting.words(data[name]) for name in ("action", "reason") if data.get(name)),
        ]
        return ", ".join(parts) + ("" if data.get("markPx") is None else f", mark {formatting.px(data['markPx'])}")
    if kind == "funding":
        return f"{formatting.signed_usd(data['amountUsd'])} USD at a rate of {data['rate']}"
    step = event_step(dict(event))
    return step.text.partition(": ")[2] or step.text


def steps(trace: Sequence[TraceStep]) -> list[StepRow]:
    """The chain of an order, oldest first. A signal is shown without the members that it leaves open."""
    return [
        StepRow(formatting.instant(step.at_ms), step.what, short_signal(step.text), str(step.data.get("id") or ""))
        for step in trace
    ]
