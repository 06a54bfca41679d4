"""Orders and dead-man switches on the account that are not in our journal, until somebody has looked at them.

The daemon expects to be the only writer on its account. A person at the dashboard is no writer in this sense, and what
the service does by itself has no source. What another writer has done is treated as foreign_positions says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from bot.model.events import FillEvent, GuardianMoved, OrderChanged
from bot.runtime.model.positions import SWITCH

if TYPE_CHECKING:
    from bot.runtime.account.account_state import AccountState
    from bot.runtime.model.positions import AccountPosition

# kinds of order that somebody asks for; stops fire by themselves
BY_REQUEST: Final = frozenset({"market", "limit", "close"})
# orders that are looked at together; of a flood the first ones tell enough
WAITING_MAX: Final = 100


class ForeignActivity:
    """Foreign activity that is not reviewed yet: trades of orders, id -> (market, key, instant), and armed dead-man
    switches, id -> instant.
    """

    def __init__(self, owner_of: Callable[[str], str | None]) -> None:
        self._owner_of = owner_of
        self.waiting: dict[str, tuple[str, str | None, int]] = {}
        self.switches: dict[str, int] = {}
        # The markets of positions that are not ours and that were reported.
        self.known_markets: set[str] = set()
        # the known markets that are not adopted, because their positions have no stop
        self.declined_markets: set[str] = set()
        # One that a lost journal had asked for has come late; there is one at most.
        self.has_late_switch = False

    def saw_late_switch(self) -> None:
        """The dead-man switch of a lost journal has come."""
        self.has_late_switch = True

    def clear(self) -> None:
        """The account was reset."""
        self.waiting.clear()
        self.switches.clear()

    def must_judge(self, position: AccountPosition, account_state: AccountState) -> bool:
        """True for a position without an owner that is new, or that was declined and has a stop now."""
        if position.owner is not None:
            return False
        if position.market in self.declined_markets:
            return account_state.is_protected(position.market)
        return position.market not in self.known_markets

    def keep_open(self, markets: Collection[str]) -> None:
        """Forget the positions that are closed."""
        self.known_markets.intersection_update(markets)
        self.declined_markets.intersection_update(markets)

    def judge_anew(self) -> None:
        """Judge every position without an owner again, because the strategies or the config have changed."""
        self.known_markets.clear()
        self.declined_markets.clear()

    def see(self, event: FillEvent | OrderChanged | GuardianMoved) -> None:
        """Note a fill or an order that rests, when its key is not in our journal; and a dead-man, whose request may
        be one of ours.
        """
        if isinstance(event, GuardianMoved):
            is_switch = event.subtype == "armed" and event.guardian_type == SWITCH
            if is_switch and len(self.switches) < WAITING_MAX:
                self.switches[event.guardian] = event.ts
            return
        if event.trade is None or event.kind not in BY_REQUEST or len(self.waiting) >= WAITING_MAX:
            return
        key = event.idempotency_key
        if key is None or self._owner_of(key) is None:
            self.waiting[event.trade] = (event.coin, key, event.ts)
