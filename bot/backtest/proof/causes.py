"""The closed list of causes, and the one cause of each difference of a replay.

A replay says that a difference follows from an earlier one. Here it gets the cause of that earlier difference. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from bot.backtest.replay.differences import Difference
from bot.backtest.replay.records import DecisionKey, RunRecord
from bot.runtime.model.intents import RUNTIME

ProofCause = Literal[
    "timing",
    "price",
    "slippage",
    "fee",
    "funding",
    "guardian",
    "foreign activity",
    "operator",
    "approval",
    "agent",
    "code",
    "config",
    "data revised",
    "outage",
    "unknown",
]
PROOF_CAUSES: Final[Mapping[ProofCause, str]] = {
    "timing": "the order was filled, or planned, at another instant than the test assumes",
    "price": "a limit, stop or target was reached on one side only, or a limit was filled at another price",
    "slippage": "a market order or a stop was filled at the same time for another price or size: spread, depth, tick",
    "fee": "another fee rate, or maker instead of taker",
    "funding": "another funding rate, or another price that it is paid on",
    "guardian": "a guardian fired on one side only, or at another time",
    "foreign activity": "someone else traded on the account, or the daemon waited because of that",
    "operator": "a person paused a strategy, closed a position or used the kill switch",
    "approval": "a person or a policy refused an entry, or the entry waited for the answer",
    "agent": "the model of an agent, or what it is told or shown, has changed",
    "code": "the source of a strategy, of bot or of a package has changed, or a strategy failed",
    "config": "a param, a limit or a section of the config has changed",
    "data revised": "the service gives another candle now than the daemon decided on, or one that the daemon never got",
    "outage": "the daemon or the service was down, behind, or could not act",
    "unknown": "the record shows no reason: the strategy uses time, chance or the network",
}
# Code of a refusal, by the risk check or by the service -> its cause. A code that is not here follows from an earlier
# difference, such as another balance.
REFUSAL_CAUSES: Final[Mapping[str, ProofCause]] = {
    "paused": "operator",
    "no_strategy": "config",
    "quarantined": "code",
    "vetoed": "code",
    "foreign_writer": "foreign activity",
    "foreign_position": "foreign activity",
    "foreign_order": "foreign activity",
    "not_approved": "approval",
    "policy_failed": "approval",
    "superseded": "approval",
    "dead_man_gone": "guardian",
    "guardian_gone": "guardian",
    "plan_stale": "timing",
    "insufficient_depth": "slippage",
    **dict.fromkeys(
        (
            "not_ready",
            "behind",
            "journal_fault",
            "degraded",
            "forbidden",
            "clock_lapsed",
            "clock_skewed",
            "heartbeat_unsure",
            "rate_limited",
            "stale_bar",
            "no_price",
            "market_in_doubt",
            "market_closed",
            "unauthorized",
            "session_expired",
            "service_unavailable",
            "internal_error",
            "trade_failed",
        ),
        "outage",
    ),
}
# Kind of a guardian -> the cause if it fired on one side only. The heartbeats of a replay never stop.
GUARDIAN_CAUSES: Final[Mapping[str, ProofCause]] = {"kill_switch": "operator", "dead_man_switch": "outage"}
# Trigger of an order of the daemon itself, before its colon -> its cause.
REPAIR_CAUSES: Final[Mapping[str, ProofCause]] = {
    "operator": "operator",
    "foreign": "foreign activity",
    "naked": "outage",
}
_DIRECT: Final[Mapping[str, ProofCause]] = {
    "data": "data revised",
    "code": "code",
    "agent": "agent",
    "config": "config",
    "timing": "timing",
    "fee": "fee",
    "funding": "funding",
    "operator": "operator",
    "foreign": "foreign activity",
    "down": "outage",
}
# orders that are filled at a price of their own
AT_A_LIMIT: Final = frozenset({"limit", "take_profit"})
# a guardian's fill belongs to a firing that was at most so long ago
FIRED_MS: Final = 60_000


def causes_of(differences: Iterable[Difference], recorded: RunRecord) -> list[tuple[Difference, ProofCause]]:
    """Each difference with its one cause; the differences in the order of time."""
    waited = {key._replace(leg="") for key in recorded.answers}
    trail = _Trail()
    return [(difference, trail.cause_of(difference, waited)) for difference in differences]


class _Trail:
    """The causes so far: of each decision, of each market, and of the newest guardian that fired."""

    def __init__(self) -> None:
        self._of_decision: dict[DecisionKey, ProofCause] = {}
        self._of_market: dict[str, ProofCause] = {}
        self._newest: ProofCause | None = None
        self._fired: tuple[int, ProofCause] = (-FIRED_MS, "guardian")

    def cause_of(self, difference: Difference, waited: set[DecisionKey]) -> ProofCause:
        otherwise: ProofCause = "guardian" if difference.cause == "guardian" else "unknown"
        cause = self._direct(difference, waited) or self._earlier(difference) or otherwise
        if difference.what == "guardian":
            self._fired = difference.at_ms, cause
        # A bar that differs is a cause only of the decisions that say so.
        if difference.what != "bar" and cause != "unknown":
            self._of_market[difference.market] = self._newest = cause
            if difference.decision is not None:
                self._of_decision.setdefault(difference.decision, cause)
        return cause

    def _direct(self, difference: Difference, waited: set[DecisionKey]) -> ProofCause | None:
        """The cause that the difference has by itself; None if it follows from an earlier one."""
        kind, code, decision = difference.cause, difference.code or "", difference.decision
        if difference.what == "guardian":
            return GUARDIAN_CAUSES.get(code) or ("config" if difference.changed == "config" else "guardian")
        if kind in ("timing", "price", "refused") and decision is not None and decision._replace(leg="") in waited:
            return "approval"
        if difference.what == "fill" and kind == "guardian":
            fired_ms, cause = self._fired
            return cause if difference.at_ms - fired_ms <= FIRED_MS else "operator" if code == "kill" else "guardian"
        if kind == "price":
            both = difference.recorded is not None and difference.replayed is not None
            return "slippage" if both and code not in AT_A_LIMIT else "price"
        if kind in ("guardian", "refused"):
            refused = REFUSAL_CAUSES.get(code, "guardian" if kind == "guardian" and code else None)
            return _DIRECT.get(difference.changed or "") if refused is None else refused
        if kind == "follows" and decision is not None and decision.strategy == RUNTIME:
            return REPAIR_CAUSES.get(decision.cause.partition(":")[0])
        return _DIRECT.get(kind)

    def _earlier(self, difference: Difference) -> ProofCause | None:
        """The earlier cause that a difference follows from; None for a difference whose own cause is unknown."""
        if difference.cause == "unknown":
            return None
        of_decision = None if difference.decision is None else self._of_decision.get(difference.decision)
        return of_decision or self._of_market.get(difference.market) or self._of_market.get("") or self._newest
