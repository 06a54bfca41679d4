"""Orders and dead-man switches on the account that are not in our journal, until somebody has looked at them.

The daemon expects to be the only writer on its account. A person at the dashboard is no writer in this sense, and what the service does by
itself has no source. What another writer has done is treated as foreign_positions says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from bot.runtime.reconciliation.guardians import SWITCH

if TYPE_CHECKING:
    from bot.runtime.account.account_state import AccountState
    from bot.runtime.model.positions import MirrorPosition
    from bot.wire import Event

TYPES: Final = ("fill", "order")  # with one of these subtypes: a fill, or an order that rests
SUBTYPES: Final = ("entry", "exit", "open")
BY_REQUEST: Final = frozenset(
    {"market", "limit", "close"}
)  # kinds of order that somebody asks for; stops fire by themselves
WAITING_MAX: Final = 100  # orders that are looked at together; of a flood the first ones tell enough


class ForeignActivity:
    """Foreign activity that is not reviewed yet: trades of orders, id -> (market, key, instant), and armed dead-man switches, id -> instant."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[str, str | None, int]] = {}
        self.switches: dict[str, int] = {}
        self.known_markets: set[str] = set()  # of positions that are not ours, and that were reported
        self.declined_markets: set[str] = set()  # those of them that are not adopted, because they have no stop
        self.has_late_switch = False  # One that a lost journal had asked for has come late; there is one at most.

    def clear(self) -> None:
        """The account was reset."""
        self.waiting.clear()
        self.switches.clear()

    def must_judge(self, position: MirrorPosition, mirror: AccountState) -> bool:
        """True for a position without an owner that is new, or that was declined and has a stop now."""
        if position.owner is not None:
            return False
        if position.market in self.declined_markets:
            return mirror.is_protected(position.market)
        return position.market not in self.known_markets

    def keep_open(self, markets: Collection[str]) -> None:
        """Forget the positions that are closed."""
        self.known_markets.intersection_update(markets)
        self.declined_markets.intersection_update(markets)

    def judge_anew(self) -> None:
        """Judge every position without an owner again, because the strategies or the config have changed."""
        self.known_markets.clear()
        self.declined_markets.clear()

    def see(self, event: Event, owner_of: Callable[[str], str | None]) -> None:
        """Note a fill or an order that rests, when its key is not in our journal; and a dead-man, whose request may be one of ours."""
        if event.type == "guardian":
            if event.subtype != "armed":
                return
            if event.data.guardian_type == SWITCH and len(self.switches) < WAITING_MAX:
                self.switches[event.data.guardian_id] = event.ts
            return
        if event.subtype not in SUBTYPES or event.type not in TYPES:
            return
        data = event.data
        if data.trade_id is None or data.kind not in BY_REQUEST or len(self.waiting) >= WAITING_MAX:
            return
        key = event.idempotency_key
        if key is None or owner_of(key) is None:
            self.waiting[data.trade_id] = (event.coin or "", key, event.ts)
