"""Which strategy an order or a position belongs to.

The service does not know strategies; the journal knows which strategy sent which key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.account.attribution_fold import align, give_back
from bot.runtime.account.trade_log import TradeLog
from bot.runtime.journal.journal import Journal, Notice
from bot.runtime.model.intents import Intent, TradeOf

# the newest keys that were looked up; the journal has the others
OWNERS_KEPT: Final = 2_000


class OrderOwners:
    """The strategy of each order, by the key that the order was sent with."""

    def __init__(self, journal: Journal, live: Mapping[str, Intent]) -> None:
        self._journal = journal
        self._live = live
        self.by_key: dict[str, str] = {}

    def owner_of(self, key: str) -> str | None:
        """The strategy whose intent has this key."""
        owner = self.by_key.get(key)
        if owner is None:
            intent = self._journal.intents.find(key)
            if intent is None:
                return None
            owner = self.by_key[key] = intent.strategy
        return owner

    def keys_of(self, trade_ids: Iterable[str], epoch: int) -> Mapping[TradeOf, str]:
        """The keys of our orders among these trades of an epoch."""
        return self._journal.intents.keys_of_trades(trade_ids, epoch=epoch)

    def leverage_of(self, key: str) -> int | None:
        """The leverage that an entry of ours asked for. None if it asked for none."""
        intent = self._live.get(key) or self._journal.intents.find(key)
        return None if intent is None or intent.action != "open" else intent.order().leverage

    def forget_oldest(self) -> None:
        """Keep the newest OWNERS_KEPT keys in memory."""
        for key in list(islice(self.by_key, max(0, len(self.by_key) - OWNERS_KEPT))):
            del self.by_key[key]


class PositionOwners:
    """The strategy of each position, and the shares of the strategies in it."""

    def __init__(
        self,
        journal: Journal,
        account_state: AccountState,
        attribution: Attribution,
        orders: OrderOwners,
        now_ms: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._account_state = account_state
        self._attribution = attribution
        self._orders = orders
        self._now_ms = now_ms
        # None: nobody follows the trades
        self.trade_log: TradeLog | None = None

    def follow_by(self, log: TradeLog) -> None:
        """Keep this log in step with the owners from now on."""
        self.trade_log = log

    def own_positions(self, *, events_skipped: bool = False) -> None:
        """Find the owner of each position after a snapshot, and fit the shares to the positions.

        A position belongs to its opener, which is found by the entries that the journal has of it. `events_skipped`:
        those entries may be missing, and then the position belongs to the strategy of our newest accepted entry before
        it.
        """
        self.find_owners(events_skipped=events_skipped)
        self.align_shares()

    def find_owners(self, *, events_skipped: bool = False) -> None:
        """Like `own_positions`, without the shares."""
        account_state, journal = self._account_state, self._journal
        for position in list(account_state.positions.values()):
            # Without the opening time, every earlier entry would count as an entry of this position.
            if not position.opened_ms:
                position = account_state.date(
                    position.market, journal.events.opened_ms(position.market, epoch=account_state.epoch)
                )
            if position.owner is not None:
                continue
            keys = journal.events.entry_keys(position.market, epoch=account_state.epoch, since_ms=position.opened_ms)
            owner = next(filter(None, map(self._orders.owner_of, keys)), None)
            if owner is None and events_skipped and not keys:
                opener = journal.intents.last_open(position.market, account_state.epoch)
                owner = opener.strategy if opener is not None and opener.opened_ms <= position.opened_ms else None
            if owner is not None:
                account_state.adopt(position.market, owner)

    def align_shares(self) -> None:
        """Fit the shares of the strategies to the positions.

        Call it only when every event of the positions was read; a fill that is read later would be attributed to
        FOREIGN.
        """
        align(self._attribution, self._account_state.positions, self._account_state.epoch, self._now_ms())
        if self.trade_log is not None:
            self.trade_log.fit(self._now_ms())
        self.write_attribution()
        for market in self._account_state.positions:
            self.pass_on(market)

    def disown(self, market: str) -> None:
        """Leave a position to the hand that opened it."""
        self._account_state.adopt(market, None)
        give_back(self._attribution, market, self._now_ms())
        if self.trade_log is not None:
            self.trade_log.drop(market)
        self.write_attribution()

    def write_attribution(self, *notices: Notice) -> None:
        """Write what has changed in the attribution, with these notices."""
        changes = self._attribution.changes()
        if changes is not None or notices:
            self._journal.write_attribution(changes, notices, now_ms=self._now_ms())

    def mend_day(self) -> None:
        """Correct the value at 00:00 UTC, once the price of that instant is known."""
        self._attribution.mend_day()
        self.write_attribution()

    def pass_on(self, market: str | None) -> None:
        """Give a shared position whose owner has closed its share to the next strategy that holds a share."""
        position = self._account_state.positions.get(market or "")
        if position is None or position.owner is None:
            return
        shares = self._attribution.shares.get(position.market, {})
        if position.owner not in shares:
            next_owner = next((name for name in shares if not name.startswith("@")), None)
            if next_owner is not None:
                self._account_state.adopt(position.market, next_owner, is_adopted=position.is_adopted)
