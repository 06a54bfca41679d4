"""The journal's approvals: which planned entries wait for a person or a policy, and what the answer was.

A row belongs to one plan. It holds no token: the token of the plan is in `intents`, and only until the intent ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from bot.money import format_decimal
from bot.runtime.journal.database import JournalDatabase
from bot.runtime.journal.failover import seal
from bot.runtime.model.intents import Intent

ApprovalState = Literal["pending", "approved", "refused", "superseded"]
COLUMNS: Final = ("intent_id", "state", "px", "figures", "asked_ms", "decided_ms", "decider", "reason")
# Constants only.
_SELECT: Final = f"SELECT {', '.join(f'a.{name}' for name in COLUMNS)} FROM approvals AS a "  # noqa: S608
_OF_DECISION: Final = (
    "JOIN intents AS i ON i.id = a.intent_id WHERE i.strategy=? AND i.market=? AND i.cause=? AND i.ordinal=? AND"
    " i.epoch=?"
)


class ApprovalRow(NamedTuple):
    """One plan that needs an answer. `px` is the price that was shown; `figures` are those of the plan, for people."""

    intent_id: str
    state: ApprovalState
    px: Decimal
    figures: Mapping[str, Any]
    asked_ms: int
    decided_ms: int | None = None
    decider: str | None = None
    reason: str | None = None

    def columns(self) -> tuple[object, ...]:
        figures = json.dumps(self.figures, sort_keys=True)
        return (self.intent_id, self.state, format_decimal(self.px), figures, *self[4:])


class ApprovalLog:
    """Every method that writes has committed when it returns, or joins the caller's transaction."""

    def __init__(self, database: JournalDatabase) -> None:
        self._database = database

    def write(self, row: ApprovalRow) -> None:
        """Write a new row, or the answer in place of the pending one."""
        columns = row.columns()
        with self._database.transaction():
            self._database.execute(
                # Constants only.
                f"INSERT INTO approvals ({', '.join(COLUMNS)}, seal) VALUES (?,?,?,?,?,?,?,?,?)"  # noqa: S608
                " ON CONFLICT (intent_id) DO UPDATE SET state=excluded.state, decided_ms=excluded.decided_ms,"
                " decider=excluded.decider,"
                " reason=excluded.reason, seal=excluded.seal",
                (*columns, seal(*columns)),
            )

    def of(self, intent_id: str) -> ApprovalRow | None:
        rows = self._rows("WHERE a.intent_id=?", intent_id)
        return rows[0] if rows else None

    def is_any_pending(self) -> bool:
        """True if a plan waits for an answer."""
        return self._database.read("SELECT 1 FROM approvals WHERE state = 'pending' LIMIT 1").fetchone() is not None

    def newest_of(self, intent: Intent) -> ApprovalRow | None:
        """The newest row of the decision behind this intent, whichever of its plans it is about."""
        decision = (intent.strategy, intent.market, intent.trigger, intent.ordinal, intent.epoch)
        rows = self._rows(f"{_OF_DECISION} ORDER BY a.seq DESC LIMIT 1", *decision)
        return rows[0] if rows else None

    def origin_of(self, intent: Intent) -> Mapping[str, Any]:
        """Who proposed this entry, why, and what was asked for.

        Empty if no assistant proposed it. All its plans have one origin.
        """
        row = self._database.read(
            "SELECT t.payload FROM intents AS i JOIN traces AS t ON t.intent_id = i.id AND t.kind = 'wish'"
            " WHERE i.market=? AND i.strategy=? AND i.cause=? AND i.epoch=? ORDER BY i.seq LIMIT 1",
            (intent.market, intent.strategy, intent.trigger, intent.epoch),
        ).fetchone()
        origin: Mapping[str, Any] = {} if row is None else json.loads(row[0]).get("proposal", {})
        return origin

    def named(self, prefix: str) -> list[ApprovalRow]:
        """The rows whose id begins with these letters."""
        return self._rows("WHERE substr(a.intent_id, 1, ?) = ? ORDER BY a.seq DESC LIMIT 2", len(prefix), prefix)

    def _rows(self, where: str, *values: object) -> list[ApprovalRow]:
        return [row_of(row) for row in self._database.read(_SELECT + where, values)]


def row_of(row: tuple[Any, ...]) -> ApprovalRow:
    intent_id, state, px, figures, *rest = row
    return ApprovalRow(intent_id, state, Decimal(px), json.loads(figures), *rest)
