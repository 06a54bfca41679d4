"""The guardians: rules at the service that act without the daemon, and what they did. And what waits for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bot.dashboard.values import formatting
from bot.dashboard.values.identity import proposal_stamp
from bot.dashboard.values.tables import TableRows

Data = Mapping[str, Any]

WORDS: Final = {
    "dead_man_switch": "acts if no heartbeat arrives in time",
    "account_drawdown": "acts at a loss of the day",
    "schedule": "acts at set times",
    "kill_switch": "blocks openings until the account's owner lifts it",
    "trailing_stop": "follows the best price at a distance",
    "max_hold": "closes a position after a time",
}


@dataclass(frozen=True, slots=True)
class GuardianRow:
    id: str
    # the name in the config; "" for a guardian of a position or of others
    name: str
    type: str
    market: str
    what: str
    state: str
    tone: str


@dataclass(frozen=True, slots=True)
class WaitingOrder:
    """An order that waits for a person."""

    id: str
    text: str
    message: str


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """An entry that waits for an approval."""

    id: str
    strategy: str
    proposed_by: str
    why: str
    market: str
    side: str
    size: str
    px: str
    usd: str
    stop: str
    left: str
    stamp: str


def proposals(waiting: Sequence[Data], account: str) -> TableRows[ProposalRow]:
    def row(proposal: Data) -> ProposalRow:
        return ProposalRow(
            id=proposal["id"],
            strategy=proposal["strategy"],
            proposed_by=proposal.get("proposed_by") or "",
            why=proposal.get("why") or "",
            market=proposal["market"],
            side=proposal["side"],
            size=formatting.size(proposal["size"]),
            px=formatting.px(proposal["est_px"]),
            usd=formatting.usd(proposal["notional_usd"]),
            stop=formatting.px(proposal["stop_px"]) if proposal["stop_px"] else "no stop",
            left=formatting.duration(proposal["left_s"]),
            stamp=proposal_stamp(account, proposal),
        )

    return TableRows(waiting, row)


def rows(answer: Data | None) -> list[GuardianRow]:
    """Missing guardians of the config first, then all of the account."""
    if answer is None:
        return []
    names = {guardian["id"]: guardian["name"] for guardian in answer["config"] if guardian["id"] is not None}
    guardian_rows = [
        GuardianRow(
            guardian["id"] or "–",
            guardian["name"],
            formatting.words(guardian["type"]),
            "account",
            WORDS.get(guardian["type"], ""),
            "NOT ARMED",
            "bad",
        )
        for guardian in answer["config"]
        if not guardian["stands"]
    ]
    for guardian in answer["guardians"]:
        state, tone = _state(guardian)
        guardian_rows.append(
            GuardianRow(
                guardian["id"],
                names.get(guardian["id"], ""),
                formatting.words(guardian["type"]),
                guardian["market"] or "account",
                WORDS.get(guardian["type"], ""),
                state,
                tone,
            )
        )
    return guardian_rows


def _state(guardian: Data) -> tuple[str, str]:
    if guardian["blocks_opens"]:
        return "blocks entries", "bad"
    if guardian["latched"]:
        return "has acted", "warn"
    if guardian["active"] is False:
        return "armed, not active yet", "idle"
    return "armed", "good"


def waiting(status: Data | None) -> list[WaitingOrder]:
    intents: Sequence[Data] = ((status or {}).get("intents") or {}).get("waiting", ())
    return [
        WaitingOrder(
            intent["id"], f"{intent['action']} {intent['market']} of {intent['strategy']}", intent["message"] or ""
        )
        for intent in intents
    ]
