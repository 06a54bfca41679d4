"""The account of one run: its state, the owners of its orders and positions, and the profit and loss of each strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.account.entry_margin import entry_terms
from bot.runtime.account.ownership import OrderOwners, PositionOwners
from bot.runtime.model.order_rules import OrderRules, order_rules, rules_of
from bot.wire import bare_coin

if TYPE_CHECKING:
    from bot.runtime.bar_feed import BarFeed
    from bot.runtime.journal.journal import Journal
    from bot.runtime.model.intents import Intent
    from bot.wire import Market


class Account:
    """`live` are the intents that are not final. Service time comes from `now_ms`."""

    def __init__(self, journal: Journal, live: Mapping[str, Intent], feed: BarFeed, now_ms: Callable[[], int]) -> None:
        self._feed = feed
        self.order_rules: dict[str, OrderRules] = {}  # by market; empty until `learn_markets`
        self.order_owners = OrderOwners(journal, live)
        self.mirror = AccountState(self.order_owners.owner_of, self.order_owners.keys_of, self.order_owners.leverage_of)
        self.attribution = Attribution.of_journal(
            journal,
            owner_of=self.order_owners.owner_of,
            mark_at=self.mark_at,
            step_of=lambda market: rules_of(self.order_rules, market).size_step,
        )
        self.position_owners = PositionOwners(journal, self.mirror, self.attribution, self.order_owners, now_ms)

    def learn_markets(self, markets: Iterable[Market]) -> None:
        """Take over the order rules and the entry terms of each market."""
        for one in markets:
            self.order_rules[bare_coin(one.coin)] = order_rules(one)
            self.mirror.terms[bare_coin(one.coin)] = entry_terms(one)

    def mark_at(self, market: str, at_ms: int | None) -> Decimal | None:
        """The close of the newest bar by that instant that the history still has; otherwise the mark price of now."""
        close: float | None = None
        if at_ms is not None:
            newest_ms = -1
            for series, history in self._feed.histories.items():
                past = history.close_at(at_ms) if series.market == market else None
                if past is not None and past[0] > newest_ms:
                    newest_ms, close = past
        mark = self.mirror.marks.get(market) if close is None else close
        return None if mark is None else Decimal(repr(mark))
