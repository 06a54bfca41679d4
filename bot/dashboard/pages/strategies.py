"""The strategies: state, budget used, profit, params, the newest decisions, and the refusals with their reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import number
from bot.dashboard.values.identity import account_of, strategy_stamp
from bot.dashboard.values.signal_words import signal_words
from bot.dashboard.values.snapshot import DaemonSnapshot

Data = Mapping[str, Any]

TONES: Final = {"RUNNING": "good", "STARTING": "warn", "PAUSED": "warn", "QUARANTINED": "bad"}
# State of an intent -> tone and words.
OUTCOMES: Final = {
    "opened": ("warn", "not sent yet"),
    "planned": ("warn", "planned"),
    "sending": ("bad", "in doubt"),
    "accepted": ("good", "accepted"),
    "rejected": ("bad", "rejected"),
    "expired": ("warn", "expired"),
    "void": ("warn", "void"),
    "quarantined": ("bad", "waits for a person"),
}
# newest of each page
DECISIONS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class StrategyRow:
    name: str
    state: str
    tone: str
    why: str
    markets: str
    interval: str
    budget: str
    used: str
    # the used part, 0 to 1; None if it is not known
    used_part: float | None
    today: str
    today_direction: str
    total: str
    total_direction: str
    fills: str
    fees: str
    open_profit: str
    stamp: str


@dataclass(frozen=True, slots=True)
class DecisionRow:
    at: str
    signal: str
    market: str
    outcome: str
    tone: str
    reason: str
    id: str


@dataclass(frozen=True, slots=True)
class RefusalRow:
    at: str
    strategy: str
    market: str
    code: str
    message: str


def rows(snapshot: DaemonSnapshot) -> list[StrategyRow]:
    used = budgets_used(snapshot) if snapshot.knows_account else None
    status = snapshot.status or {}
    return [
        _row(strategy, used, account_of(snapshot), protection_texts(status, strategy["name"]))
        for strategy in status.get("strategies", ())
    ]


def protection_texts(status: Data, name: str) -> list[str]:
    """What protections of the strategy and of the account refuse now, and how many entries they have refused."""
    protections = status.get("protections") or {}
    waits = [
        f"{wait['protection']}: no entries{' in ' + wait['market'] if wait['market'] else ''} until"
        f" {formatting.instant(wait['until_ms'])}: {wait['why']}"
        for wait in protections.get("waits", ())
        if wait["strategy"] in (None, name)
    ]
    refused = [
        f"{row['protection']} {row['count']:,}" for row in protections.get("refused", ()) if row["strategy"] == name
    ]
    return waits + ([f"entries refused by protections: {', '.join(refused)}"] if refused else [])


def _row(
    strategy: Data, budgets: Mapping[str, Decimal] | None, account: str, protections: Sequence[str]
) -> StrategyRow:
    book, budget = strategy.get("book") or {}, number(strategy.get("budget_usd"))
    used = None if budgets is None else budgets.get(strategy["name"], Decimal(0))
    total = book.get("net_usd", book.get("closed_usd"))
    return StrategyRow(
        name=strategy["name"],
        state=strategy["state"],
        tone=TONES.get(strategy["state"], "bad"),
        why="; ".join(filter(None, (strategy["why"], *protections))),
        markets=", ".join(strategy["markets"]),
        interval=strategy["interval"],
        budget=_or_unknown(formatting.usd, budget),
        used=_or_unknown(formatting.usd, used),
        used_part=float(min(used / budget, Decimal(1))) if budget and used is not None else None,
        today=_or_unknown(formatting.signed_usd, book.get("day_usd")),
        today_direction=formatting.direction(book.get("day_usd")),
        total=_or_unknown(formatting.signed_usd, total),
        total_direction=formatting.direction(total),
        fills=_or_unknown("{:,}".format, book.get("fills")),
        fees=_or_unknown(formatting.cost_usd, book.get("fees_usd")),
        open_profit=_or_unknown(formatting.signed_usd, book.get("unrealized_usd")),
        stamp=strategy_stamp(account, strategy),
    )


def _or_unknown(form: Callable[[Any], str], value: Any) -> str:
    return formatting.NOT_KNOWN if value is None else form(value)


def budgets_used(snapshot: DaemonSnapshot) -> Mapping[str, Decimal]:
    """Per strategy the entry notional of its positions, or of its shares of them, and of its resting entries at
    their limits.
    """
    used: dict[str, Decimal] = defaultdict(Decimal)
    for position in snapshot.positions:
        size = number(position["size"]) or Decimal(0)
        for name, share in (position.get("shares") or {position["strategy"]: size}).items():
            if size:
                used[name] += (number(position["notional_usd"]) or Decimal(0)) * abs(number(share) or Decimal(0)) / size
    for order in snapshot.orders:
        px = number(order.get("limit_px"))
        if order["action"] == "open" and px is not None:
            used[order["strategy"]] += (
                (number(order["size"]) or Decimal(0)) - (number(order["filled"]) or Decimal(0))
            ) * px
    return used


def params(strategies: Sequence[Data], name: str) -> list[tuple[str, str]]:
    """Each param of a strategy with its value."""
    given = next((strategy.get("params") or {} for strategy in strategies if strategy["name"] == name), {})
    return [
        (param, "yes" if value is True else "no" if value is False else str(value)) for param, value in given.items()
    ]


def decisions(intents: Sequence[Data], signals: Mapping[str, str]) -> list[DecisionRow]:
    """The newest intents first, each with the signal that it answers."""
    decided = []
    for intent in intents:
        tone, words = OUTCOMES.get(intent["state"], ("warn", intent["state"]))
        signal = signals.get(intent["id"])
        decided.append(
            DecisionRow(
                formatting.minute(intent["opened_ms"]),
                intent["action"] if signal is None else signal_words(signal),
                intent["market"],
                words,
                tone,
                intent["message"] or intent["code"] or "",
                intent["id"],
            )
        )
    return decided[::-1]


def refusals(noted: Sequence[Data]) -> list[RefusalRow]:
    """The refusals of a strategy, newest first."""
    return [
        RefusalRow(
            formatting.instant(refusal["at_ms"]),
            refusal["strategy"],
            refusal["market"],
            refusal["code"],
            refusal["message"],
        )
        for refusal in noted
    ]
