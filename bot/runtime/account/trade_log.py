"""The trade log: the trades of each strategy in each market, and its entries of the last days.

It watches the attribution: what an event changed in a strategy's result belongs to the trade in the event's market,
and a trade ends when the strategy holds nothing there. So an exit by a stop, a guardian, an operator, a liquidation or
a settlement counts alike, and what no strategy of ours did is in no trade. The journal writes the changes with the page
of events that caused them, and the next run reads them again: old events are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from bot.clock import DAY_MS
from bot.model.events import Event, FillEvent, GuardianMoved, Liquidated
from bot.runtime.model.protection_rules import EndedTrade
from bot.runtime.model.shares import EntryRow, TotalsRow, TradeRow

if TYPE_CHECKING:
    from bot.runtime.account.attribution import Attribution
    from bot.runtime.journal.journal import Journal
    from bot.runtime.model.intents import Intent

# kinds of fill that end a trade as a stop does
STOPS: Final = frozenset({"stop_loss", "liquidation"})
TRAILING_STOP: Final = "trailing_stop"
# Trades remembered as caused by a guardian. Their fills come in the same page of events.
CAUSES_KEPT: Final = 1_000
# an entry counts for its UTC day
ENTRIES_MS: Final = 2 * DAY_MS


class Follower(Protocol):
    """What follows the trade log."""

    def begin_anew(self, trades: Iterable[EndedTrade]) -> None:
        """Forget everything, and follow these trades, oldest first."""

    def take(self, trade: EndedTrade) -> None:
        """Follow one more trade."""


@dataclass(slots=True)
class OpenTrade:
    """A trade that has not ended. `net` is its result so far, in 1e-16 USD."""

    side: str
    opened_ms: int
    net: int = 0


class BeforeEvent(NamedTuple):
    """The attribution before an event: the sums of the strategies, and the holders in the event's market."""

    rows: Mapping[str, TotalsRow]
    holders: tuple[str, ...]


class TradeLog:
    """The trades and entries of an attribution. `follower` gets each closed trade."""

    def __init__(self, attribution: Attribution, journal: Journal) -> None:
        self.follower: Follower | None = None
        # (strategy, market) -> its trade
        self.open: dict[tuple[str, str], OpenTrade] = {}
        # key of the order -> the entry
        self.entries: dict[str, EntryRow] = {}
        self._attribution = attribution
        self._journal = journal
        # trade id -> type of the guardian that caused it
        self._causes: dict[str, str] = {}
        # what the journal does not have yet: closed trades, places whose open trade has changed, entries
        self._closed: list[TradeRow] = []
        self._touched: set[tuple[str, str]] = set()
        self._entries_changed: list[EntryRow] = []
        self._is_page_changed = False
        self._load()

    def follow(self, follower: Follower) -> None:
        """Give the follower every closed trade that the journal has, and each later one."""
        self.follower = follower
        follower.begin_anew(self.closed_trades())

    def closed_trades(self) -> list[EndedTrade]:
        """The closed trades of the journal, and those that it does not have yet. Oldest first."""
        rows = [*self._journal.state.trade_rows(self._attribution.epoch), *self._closed]
        return [row.closed() for row in rows if row.closed_ms is not None]

    # -- changes

    def watching(self, fold: Callable[[Event], object]) -> Callable[[Event], object]:
        """A function that folds an event and notes in this log what the event did."""

        def apply(event: Event) -> object:
            market = event.coin or ""
            before = self.mark(market)
            parts = fold(event)
            self.see(event, market, before)
            return parts

        return apply

    def guarding(self, fold: Callable[[GuardianMoved], object]) -> Callable[[GuardianMoved], object]:
        """Like `watching`, for the event of a guardian, which comes before the fills that the guardian caused."""

        def apply(event: GuardianMoved) -> object:
            for trade_id in event.trades:
                self._causes[trade_id] = event.guardian_type
            while len(self._causes) > CAUSES_KEPT:
                del self._causes[next(iter(self._causes))]
            return fold(event)

        return apply

    def mark(self, market: str) -> BeforeEvent:
        """The attribution as it is now, for `note`."""
        attribution = self._attribution
        return BeforeEvent(dict(attribution.rows), tuple(attribution.shares.get(market, ())))

    def see(self, event: Event, market: str, before: BeforeEvent) -> None:
        """Note one event that was folded."""
        is_stop = isinstance(event, Liquidated)
        if isinstance(event, FillEvent):
            is_stop = event.kind in STOPS or self._causes.get(event.trade) == TRAILING_STOP
        self.note(market, before, event.ts, is_stop=is_stop)
        if isinstance(event, FillEvent) and event.subtype == "entry" and event.idempotency_key is not None:
            owner = self._attribution.owner_of(event.idempotency_key)
            if owner is not None:
                self.enter(event.idempotency_key, owner, market, event.ts)

    def note(self, market: str, before: BeforeEvent, at_ms: int, *, is_stop: bool = False) -> None:
        """Note what has changed in a market since `before`."""
        attribution = self._attribution
        held = attribution.shares.get(market, {})
        for name in dict.fromkeys((*before.holders, *held)):
            if name.startswith("@"):
                continue
            known, now = before.rows.get(name), attribution.rows.get(name)
            gained = (0 if now is None else now.net) - (0 if known is None else known.net)
            share, trade = held.get(name), self.open.get((name, market))
            if trade is None:
                if share is None:
                    continue
                trade = self.open[name, market] = OpenTrade(share.side, at_ms)
            elif not gained and share is not None and share.side == trade.side:
                continue
            trade.net += gained
            if share is None or share.side != trade.side:
                self._close(name, market, at_ms, is_stop=is_stop)
                if share is not None:
                    self.open[name, market] = OpenTrade(share.side, at_ms)
            self._touch(name, market)

    def enter(self, key: str, strategy: str, market: str, at_ms: int) -> None:
        """Note the first fill of an entry order."""
        if key in self.entries or strategy.startswith("@"):
            return
        row = self.entries[key] = EntryRow(key, strategy, market, at_ms)
        self._entries_changed.append(row)
        self._is_page_changed = True
        while self.entries and next(iter(self.entries.values())).at_ms < at_ms - ENTRIES_MS:
            del self.entries[next(iter(self.entries))]

    def attached(self, events: Sequence[Event], intent: Intent, before: BeforeEvent) -> None:
        """Note the fills of an entry that came before the reply to its order, now that its strategy is known."""
        fills = [event for event in events if isinstance(event, FillEvent) and event.subtype == "entry"]
        if fills:
            self.note(intent.market, before, fills[0].ts)
            self.enter(intent.id, intent.strategy, intent.market, fills[0].ts)

    def fit(self, now_ms: int) -> None:
        """Make the open trades those of the shares, after events were missed or a position got another owner.

        A trade whose end was missed ends now, with the result that is known of it.
        """
        attribution = self._attribution
        if attribution.is_wiped:
            self.open, self.entries = {}, {}
            self._forget_changes()
            if self.follower is not None:
                self.follower.begin_anew(())
        holds = {(name, market) for market, held in attribution.shares.items() for name in held if name[:1] != "@"}
        for name, market in [at for at in self.open if at not in holds]:
            self._close(name, market, now_ms, is_stop=False)
        for name, market in sorted(holds - self.open.keys()):
            self.open[name, market] = OpenTrade(attribution.shares[market][name].side, now_ms)
            self._touch(name, market)

    def drop(self, market: str) -> None:
        """Forget the trades of a position that belongs to no strategy any more."""
        for name, there in [at for at in self.open if at[1] == market]:
            del self.open[name, there]
            self._touch(name, there)

    def _close(self, name: str, market: str, at_ms: int, *, is_stop: bool) -> None:
        trade = self.open.pop((name, market))
        row = TradeRow(name, market, trade.side, trade.opened_ms, at_ms, trade.net, is_stop)
        self._closed.append(row)
        self._touch(name, market)
        if self.follower is not None:
            self.follower.take(row.closed())

    def _touch(self, name: str, market: str) -> None:
        self._touched.add((name, market))
        self._is_page_changed = True

    def _forget_changes(self) -> None:
        self._closed, self._touched, self._entries_changed = [], set(), []

    # -- the journal

    def changes(self) -> tuple[tuple[TradeRow, ...], tuple[EntryRow, ...]]:
        """What the journal must write since the last call."""
        trades = [*self._closed]
        for name, market in sorted(self._touched):
            trade = self.open.get((name, market))
            if trade is None:
                trades.append(TradeRow(name, market, "", 0, None, None, is_stop=False))
            else:
                trades.append(TradeRow(name, market, trade.side, trade.opened_ms, None, trade.net, is_stop=False))
        changed = tuple(trades), tuple(self._entries_changed)
        self._forget_changes()
        return changed

    @property
    def has_changed(self) -> bool:
        return bool(self._touched or self._entries_changed)

    def begin_page(self) -> None:
        self._is_page_changed = False

    def end_page(self, *, is_written: bool) -> None:
        """After a page of events that was not written: read the journal again, because the events come again."""
        if is_written or not self._is_page_changed:
            return
        self._forget_changes()
        self._load()
        if self.follower is not None:
            self.follower.begin_anew(self.closed_trades())

    def _load(self) -> None:
        state, epoch = self._journal.state, self._attribution.epoch
        self.open = {
            (row.strategy, row.market): OpenTrade(row.side, row.opened_ms, row.net or 0)
            for row in state.trade_rows(epoch)
            if row.closed_ms is None
        }
        self.entries = {row.key: row for row in state.entry_rows(epoch)}
        self._causes = dict(self._journal.events.guardian_trades())
