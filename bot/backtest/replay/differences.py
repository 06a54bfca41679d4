"""A difference between a recorded run and its replay, and the causes that it may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from bot.backtest.replay.records import DecisionKey
from bot.clock import iso

Cause = Literal[
    "data",
    "code",
    "agent",
    "config",
    "timing",
    "price",
    "fee",
    "funding",
    "guardian",
    "operator",
    "foreign",
    "refused",
    "down",
    "follows",
    "unknown",
]
CAUSES: Final[Mapping[Cause, str]] = {
    "data": "the data have another bar than the recorded decision",
    "code": "the source of the strategy or of bot has changed",
    "agent": "the model of an agent, or what it is told or shown, has changed",
    "config": "a param, a limit or a section of the config has changed",
    "timing": "filled at another time; the replay fills at the open unless --latency is given",
    "price": "the same instant at another price: spread, depth, tick, or the path inside a bar",
    "fee": "another fee rate, or maker instead of taker",
    "funding": "another funding rate, or another price that it is paid on",
    "guardian": "a guardian fired on one side only, or at another time",
    "operator": "a person closed a position through the daemon",
    "foreign": "someone else traded on the account",
    "refused": "the risk check or the service refused it on one side",
    "down": "the recorded daemon was not running then",
    "follows": "an earlier difference led to another position or balance",
    "unknown": "the record shows no reason: the strategy uses time, chance or the network, or code without a digest",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `recorded` and `replayed` show each side; None: this side has nothing."""

    what: Literal["bar", "decision", "refusal", "fill", "funding", "guardian"]
    cause: Cause
    at_ms: int
    market: str
    strategy: str
    recorded: str | None
    replayed: str | None
    why: str
    # for `bot proof`: the decision that it is of or follows from; the code of the record's refusal, or the kind of a
    # fill or of a guardian
    decision: DecisionKey | None = None
    code: str | None = None
    # code, agent, config or data, if something of it has changed since
    changed: Cause | None = None
    # what it brought: the cash and the signed size of the record, less those of the replay
    cash_usd: Decimal = Decimal(0)
    size: Decimal = Decimal(0)

    def plain(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "cause": self.cause,
            "atMs": self.at_ms,
            "at": iso(self.at_ms),
            "market": self.market,
            "strategy": self.strategy,
            "recorded": self.recorded,
            "replayed": self.replayed,
            "why": self.why,
        }
