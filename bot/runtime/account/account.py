"""The account of one run: its state, the owners of its orders and positions, and the profit and loss of each
strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bot.model.events import (
    AccountChanged,
    Event,
    FillEvent,
    FundingPaid,
    GuardianMoved,
    Liquidated,
    OrderChanged,
    Settled,
    Triggered,
)
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.account.attribution_fold import attribute_event, attribute_fill
from bot.runtime.account.entry_margin import entry_terms
from bot.runtime.account.fold import filled, fold_event, order_changed, triggered
from bot.runtime.account.foreign_activity import ForeignActivity
from bot.runtime.account.ownership import OrderOwners, PositionOwners
from bot.runtime.account.trade_log import TradeLog
from bot.runtime.model.order_rules import OrderRules, order_rules, rules_of
from bot.wire import bare_coin

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal
    from bot.runtime.model.intents import Intent
    from bot.runtime.model.positions import AccountPosition
    from bot.runtime.model.shares import Part
    from bot.runtime.passes.bar_feed import BarFeed
    from bot.wire import Market

_NO_PARTS: Final[Mapping[str, Part]] = {}


class DaemonAccount:
    """`live` are the intents that are not final. Service time comes from `now_ms`."""

    def __init__(self, journal: Journal, live: Mapping[str, Intent], feed: BarFeed, now_ms: Callable[[], int]) -> None:
        self.journal = journal
        self._feed = feed
        # market -> its rules; empty until `learn_markets`
        self.order_rules: dict[str, OrderRules] = {}
        self.order_owners = OrderOwners(journal, live)
        self._owners_by_key = self.order_owners.by_key
        self.foreign_activity = ForeignActivity(self.order_owners.owner_of)
        self._see_foreign = self.foreign_activity.see
        self.account_state = AccountState(
            self.order_owners.owner_of,
            self.order_owners.keys_of,
            self.order_owners.leverage_of,
            self.foreign_activity.see,
        )
        self.attribution = Attribution.of_journal(
            journal,
            owner_of=self.order_owners.owner_of,
            mark_at=self.mark_at,
            step_of=lambda market: rules_of(self.order_rules, market).size_step,
        )
        self.position_owners = PositionOwners(journal, self.account_state, self.attribution, self.order_owners, now_ms)
        # Our positions without a stop before the page of events that is being folded, perhaps in several passes. A fill
        # and its stop are two events.
        self.bare_before_page: list[AccountPosition] | None = None
        # One function for each class of event, as `apply` calls it.
        self.folds: Mapping[type, Callable[[Any], Mapping[str, Part] | None]] = {
            FillEvent: self._filled,
            OrderChanged: partial(order_changed, self.account_state),
            Triggered: partial(triggered, self.account_state),
            GuardianMoved: self._guardian_moved,
            FundingPaid: self._money_moved,
            Liquidated: self._money_moved,
            Settled: self._money_moved,
            AccountChanged: partial(fold_event, self.account_state),
        }
        if journal.path is not None:
            self.log_trades()

    def log_trades(self) -> TradeLog:
        """The trade log of this account. A journal on disk always has one, for protections that a reload may bring."""
        log = self.position_owners.trade_log
        if log is None:
            log = TradeLog(self.attribution, self.journal)
            self.attribution.follow_by(log)
            self.position_owners.follow_by(log)
            folds: dict[type, Any] = dict(self.folds)
            for kind in (FillEvent, FundingPaid, Liquidated, Settled):
                folds[kind] = log.watching(folds[kind])
            folds[GuardianMoved] = log.guarding(folds[GuardianMoved])
            self.folds = folds
        return log

    def apply(self, event: Event) -> Mapping[str, Part]:
        """Fold one event into shares, state and owners. Returns the parts of the strategies in a fill."""
        return self.folds[type(event)](event) or _NO_PARTS

    def seen_unprotected(self) -> list[AccountPosition]:
        """Own positions without a working stop, for people and monitors.

        Between a fill and the event of its stop a position only seems to have no stop. So while a page of events is
        folded, this gives what was seen before the page.
        """
        if self.bare_before_page is None:
            return self.account_state.unprotected()
        return [position for position in self.bare_before_page if position.market in self.account_state.positions]

    def seen_protected(self, position: AccountPosition) -> bool | None:
        """True if the position has a working stop. None while a page is folded that may hold its stop."""
        if self.account_state.is_protected(position.market):
            return True
        bare = self.bare_before_page
        return False if bare is None or any(uncovered.market == position.market for uncovered in bare) else None

    def _filled(self, event: FillEvent) -> Mapping[str, Part]:
        key, attribution, account_state = event.idempotency_key, self.attribution, self.account_state
        owner = None
        if key is not None:
            owner = self._owners_by_key.get(key) or attribution.owner_of(key)
        if owner is None:
            self._see_foreign(event)
        parts = attribute_fill(attribution, event, owner)
        filled(account_state, event, owner)
        if event.position_size:
            holder = account_state.positions[event.coin].owner
            if holder is not None and holder not in attribution.shares[event.coin]:
                self.position_owners.pass_on(event.coin)
        return parts

    def _guardian_moved(self, event: GuardianMoved) -> None:
        fold_event(self.account_state, event)
        self._see_foreign(event)

    def _money_moved(self, event: FundingPaid | Liquidated | Settled) -> None:
        attribute_event(self.attribution, event)
        fold_event(self.account_state, event)
        self.position_owners.pass_on(event.coin)

    def learn_markets(self, markets: Iterable[Market]) -> None:
        """Take over the order rules and the entry terms of each market."""
        for market in markets:
            self.order_rules[bare_coin(market.coin)] = order_rules(market)
            self.account_state.terms[bare_coin(market.coin)] = entry_terms(market)

    def mark_at(self, market: str, at_ms: int | None) -> Decimal | None:
        """The close of the newest bar by that instant that the history still has; otherwise the mark price of now."""
        close: float | None = None
        if at_ms is not None:
            newest_ms = -1
            for series, history in self._feed.histories.items():
                past = history.close_at(at_ms) if series.market == market else None
                if past is not None and past[0] > newest_ms:
                    newest_ms, close = past
        mark = self.account_state.marks.get(market) if close is None else close
        return None if mark is None else Decimal(repr(mark))
