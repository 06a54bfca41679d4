"""How many actions an account may still send. Pure.

The exchange allows an account 10,000 actions and one more for each USD that it has traded. The last 500 are kept for
what protects a position.
"""

from __future__ import annotations

from typing import Final

from bot.clock import MINUTE_MS
from bot.exchanges.actions import ExchangeAction, Rank
from bot.exchanges.protocol import RequestBudget
from bot.wire.exchange_facts import ACTIONS_KEPT

# The exchange's own count corrects ours so often.
READ_EVERY_MS: Final = 5 * MINUTE_MS
# An action that the exchange refuses because it has expired costs so many.
EXPIRED_COST: Final = 5


class ActionBudget:
    """The exchange's count, and what was sent since."""

    def __init__(self) -> None:
        self._told: RequestBudget | None = None
        self._read_ms = 0
        self._sent = 0

    def is_read_due(self, now_ms: int) -> bool:
        return self._told is None or now_ms - self._read_ms >= READ_EVERY_MS

    def correct(self, told: RequestBudget, now_ms: int) -> None:
        self._told, self._read_ms, self._sent = told, now_ms, 0

    @property
    def left(self) -> int | None:
        """Actions that are left; None before the exchange has told it."""
        return None if self._told is None else self._told.most - self._told.used - self._sent

    def count(self, action: ExchangeAction, *, is_expired: bool = False) -> None:
        self._sent += (EXPIRED_COST if is_expired else 1) * cost(action)

    def refusal(self, action: ExchangeAction) -> str | None:
        """Why an action must not be sent; None if it may. Stops, exits, cancels and voids always may."""
        if action.rank <= Rank.CANCEL:
            return None
        if self.left is None:
            return "how many actions are left is not known yet; try again"
        if self.left - cost(action) < ACTIONS_KEPT:
            return (
                f"{max(0, self.left):,} actions are left of the account's budget, and {ACTIONS_KEPT} are kept for stops"
                " and exits; trade 1 USD for each further action"
            )
        return None


def cost(action: ExchangeAction) -> int:
    """A batch counts as many actions as it has orders or cancels."""
    return max(1, len(action.orders), len(action.cancels))
