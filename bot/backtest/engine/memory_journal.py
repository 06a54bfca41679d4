"""The journal of a backtest, in memory. It answers as the journal on disk does.

Rows that every order writes are in dictionaries. Guardians, notes and notices are in an SQLite database in memory. A
test runs both journals through the same histories. `bot backtest --journal` uses the journal on disk instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.errors import Refusal
from bot.model.events import Event as ModelEvent
from bot.model.events import FillEvent, GuardianMoved, OrderChanged
from bot.money import decimal_of_e8
from bot.runtime.journal.database import JournalDatabase
from bot.runtime.journal.event_log import CAUSES_READ, Cursor, EventLog, next_cursor
from bot.runtime.journal.intent_log import IntentLog, Outcome
from bot.runtime.journal.journal import OF_THIS_PROCESS, Journal, Notice, TraceKind
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.pending_writes import PendingWrites
from bot.runtime.journal.retention import HeldKeys
from bot.runtime.journal.state_store import StateStore
from bot.runtime.model.intents import FINAL, INTENT_MOVES, RUNTIME, Intent, State, TradeOf, moved
from bot.runtime.model.named_event import Named
from bot.service.bodies import event_bodies
from bot.venue.model.state import event_id
from bot.wire.events import model_event

if TYPE_CHECKING:
    from bot.runtime.account.attribution import Attribution
    from bot.runtime.model.shares import AttributionChanges, EntryRow, Share, TotalsRow, TradeRow
    from bot.strategy import AskRecord
    from bot.wire import Event

# the check of overlapping pages and the search for a stop read the newest events
EVENTS_KEPT: Final = 2_000
# more than the intents that EVENTS_KEPT events belong to
INTENTS_KEPT: Final = 4_000
# number of intents at which old ones are removed, even if few intents led to events
INTENTS_MAX: Final = 50_000


_NUMBER: Final = attrgetter("seq")


class OrderFailure(NamedTuple):
    """One order that failed or was not filled, and why."""

    at_ms: int
    strategy: str
    market: str
    message: str


@dataclass(frozen=True, slots=True)
class OrderFailures:
    """Orders that failed or were not filled: their number by code, and the first of each code, which often explains the
    others.

    `refusals`: the risk check refused them. `rejections`: the service refused them, or did not accept them in time.
    `unfilled`: the service accepted them and filled nothing or only a part.
    """

    refusals: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    unfilled: Counter[str] = field(default_factory=Counter)
    first_refusals: dict[str, OrderFailure] = field(default_factory=dict)
    first_rejections: dict[str, OrderFailure] = field(default_factory=dict)
    first_unfilled: dict[str, OrderFailure] = field(default_factory=dict)

    def refused(self, code: str, failure: OrderFailure) -> None:
        self.refusals[code] += 1
        self.first_refusals.setdefault(code, failure)

    def rejected(self, code: str, failure: OrderFailure) -> None:
        self.rejections[code] += 1
        self.first_rejections.setdefault(code, failure)

    def not_filled(self, code: str, failure: OrderFailure) -> None:
        self.unfilled[code] += 1
        self.first_unfilled.setdefault(code, failure)


class MemoryIntents(IntentLog):
    """The intents of a MemoryJournal, in dictionaries."""

    def __init__(self, database: JournalDatabase, failures: OrderFailures) -> None:
        super().__init__(database, OF_THIS_PROCESS)
        self.failures = failures
        self.by_id: dict[str, Intent] = {}
        # intents so far
        self.of_strategies = 0
        # ids of the runtime's own intents
        self.repairs: list[str] = []
        # by market, accepted
        self.newest_entries: dict[str, Intent] = {}
        # intents that are not final, in the order of the decisions
        self._open: dict[str, Intent] = {}
        # intent -> its attempts that may have arrived
        self._unsure: dict[str, set[int]] = {}

    def insert(self, i: Intent) -> bool:
        assert i.state == "opened", i.state
        if i.id in self.by_id:
            return False
        self.by_id[i.id] = self._open[i.id] = i
        if i.strategy == RUNTIME:
            self.repairs.append(i.id)
        else:
            self.of_strategies += 1
        return True

    def planned(self, intent: Intent, confirm_token: str, token_expires_ms: int, *, now_ms: int) -> Intent:
        return self._go(moved(intent, "planned", token=confirm_token, token_expires_ms=token_expires_ms), intent.state)

    def sending(self, intent: Intent, *, now_ms: int) -> Intent:
        after = moved(intent, "sending", attempts=intent.attempts + 1)
        self._unsure.setdefault(intent.id, set()).add(after.attempts)
        if intent.state == "sending":
            self.by_id[intent.id] = self._open[intent.id] = after
            return after
        return self._go(after, intent.state)

    def sending_all(self, intents: Sequence[Intent], *, now_ms: int) -> list[Intent]:
        return [self.sending(intent, now_ms=now_ms) for intent in intents]

    def accept_all(self, answered: Sequence[tuple[Intent, str]], *, now_ms: int) -> list[Intent]:
        return [self.accept(intent, trade_id, now_ms=now_ms) for intent, trade_id in answered]

    def attempt_ended(self, intent: Intent, outcome: Outcome, *, code: str, order_submitted: object) -> None:
        if outcome != "unknown":
            self._unsure.get(intent.id, set()).discard(intent.attempts)

    def accept(self, intent: Intent, trade_id: str, *, now_ms: int) -> Intent:
        self._unsure.pop(intent.id, None)
        return self._go(moved(intent, "accepted", trade_id=trade_id), intent.state)

    def end(self, intent: Intent, state: State, code: str, message: str, *, now_ms: int) -> Intent:
        if state != "quarantined":
            self._unsure.pop(intent.id, None)
        if state in ("rejected", "expired", "void"):
            self.failures.rejected(code, OrderFailure(now_ms, intent.strategy, intent.market, message))
        return self._go(moved(intent, state, code=code, message=message), intent.state)

    def _go(self, after: Intent, before: State) -> Intent:
        to = after.state
        assert to in INTENT_MOVES[before], f"{after.id}: {before} -> {to}"
        known = self._open.get(after.id)
        assert known is not None and known.state == before, f"{after.id} is not {before} in the journal"
        self.by_id[after.id] = after
        if to not in FINAL:
            self._open[after.id] = after
            return after
        del self._open[after.id]
        if to == "accepted" and after.action == "open":
            self.newest_entries[after.market] = after
        return after

    def void(self, intents: Sequence[Intent], *, now_ms: int) -> list[Intent]:
        return [
            self._go(moved(intent, "void", code="account_reset", message="the account was reset"), intent.state)
            for intent in intents
        ]

    def is_ambiguous(self, intent: Intent) -> bool:
        return bool(self._unsure.get(intent.id))

    def live(self) -> list[Intent]:
        return list(self._open.values())

    def find(self, intent_id: str) -> Intent | None:
        return self.by_id.get(intent_id)

    def last_open(self, market: str, epoch: int) -> Intent | None:
        intent = self.newest_entries.get(market)
        return intent if intent is not None and intent.epoch == epoch else None

    def last_of(self, strategy: str, market: str, trigger: str, *, epoch: int) -> Intent | None:
        """The newest intent of one trigger.

        Only the runtime's own intents can be asked for: those of strategies are too many to search.
        """
        assert strategy == RUNTIME, strategy
        repairs = (self.by_id[intent_id] for intent_id in reversed(self.repairs))
        return next((i for i in repairs if (i.market, i.trigger, i.epoch) == (market, trigger, epoch)), None)

    def keys_of_trades(self, trade_ids: Iterable[str], *, epoch: int) -> dict[TradeOf, str]:
        wanted = set(trade_ids)
        return {
            (intent.market, intent.trade_id, intent.action): intent.id
            for intent in self.by_id.values()
            if intent.trade_id is not None and intent.trade_id in wanted and intent.epoch == epoch
        }


class MemoryEvents(EventLog):
    """The newest events of a MemoryJournal, in a dictionary by their numbers."""

    def __init__(self, database: JournalDatabase, intents: MemoryIntents) -> None:
        super().__init__(database)
        self.taken: dict[int, ModelEvent] = {}
        # number of the newest event that was taken from the venue itself, if the cursor was not set since
        self.newest = -1
        self._intents = intents
        self._cursor: Cursor | None = None
        self._epoch = 0
        self._own_key_seen = False

    def write(self, events: Sequence[Event], last_id: str, *, epoch: int) -> None:
        by_number = {number_of(event.id): model_event(event) for event in events}
        self.taken.update({number: event for number, event in by_number.items() if event is not None})
        if not self._own_key_seen:
            keys = self._intents.by_id
            self._own_key_seen = any(event.idempotency_key in keys and not isinstance(event, Named) for event in events)
        old = self.cursor
        if old is None or old.last_id != last_id:
            self.put_cursor(next_cursor(old, events, last_id, epoch))

    def take_own(self, events: Sequence[ModelEvent]) -> None:
        """Take the next events of a venue in this process. They are numbered without a gap."""
        self.taken.update(zip(map(_NUMBER, events), events, strict=True))
        self.newest = events[-1].seq
        self._cursor = None
        if not self._own_key_seen:
            keys = self._intents.by_id
            self._own_key_seen = any(key_of(event) in keys for event in events)

    def put_cursor(self, cursor: Cursor) -> None:
        self._cursor, self._epoch, self.newest = cursor, cursor.epoch, -1

    def unseen(self, events: Sequence[Event]) -> list[Event]:
        taken = self.taken
        return list({event.id: event for event in events if number_of(event.id) not in taken}.values())

    @property
    def cursor(self) -> Cursor | None:
        if self._cursor is None and self.newest >= 0:
            before = event_id(self.newest - 1) if self.newest > 1 else None
            self._cursor = Cursor(event_id(self.newest), before, self._epoch)
        return self._cursor

    def last_taken(self) -> tuple[Cursor | None, int | None]:
        cursor = self.cursor
        event = None if cursor is None else self.taken.get(number_of(cursor.last_id))
        return cursor, None if event is None else event.ts

    def last_event(
        self, coin: str, type_: str, subtype: str, *, epoch: int, kind: str | None = None
    ) -> dict[str, Any] | None:
        for number, event in reversed(self.taken.items()):
            if event.coin == coin and kind in (None, getattr(event, "kind", None)):
                body = event_bodies.event(event._replace(seq=number))
                if (body["type"], body["subtype"]) == (type_, subtype):
                    return body
        return None

    def guardian_trades(self) -> list[tuple[str, str]]:
        events = list(self.taken.values())[-CAUSES_READ:]
        fired = [event for event in events if isinstance(event, GuardianMoved) and event.subtype == "fired"]
        return [(trade, event.guardian_type) for event in fired for trade in event.trades]

    def entry_keys(self, coin: str, *, epoch: int, since_ms: int) -> list[str]:
        return [
            event.idempotency_key
            for event in self.taken.values()
            # The instant is compared first, because most events are older.
            if event.ts >= since_ms and type(event) is FillEvent and event.coin == coin and event.subtype == "entry"
            if event.idempotency_key
        ]

    def entry_fills(self, key: str, *, epoch: int) -> list[tuple[Decimal, Decimal, int]]:
        return [
            (decimal_of_e8(event.size), decimal_of_e8(event.px), event.ts)
            for event in self.taken.values()
            if type(event) is FillEvent and event.idempotency_key == key and event.subtype == "entry"
        ]

    def has_seen_own_key(self) -> bool:
        return self._own_key_seen

    def trades_by_key(self, keys: Iterable[str], *, epoch: int) -> dict[str, str]:
        wanted = set(keys)
        return {
            event.idempotency_key: event.trade
            for event in self.taken.values()
            if isinstance(event, FillEvent | OrderChanged)
            and event.idempotency_key in wanted
            and event.trade is not None
        }


def number_of(id_: str) -> int:
    """The number in an event's id."""
    return int(id_[4:])


def key_of(event: ModelEvent) -> str | None:
    return event.idempotency_key if isinstance(event, FillEvent | OrderChanged) else None


class MemoryState(StateStore):
    """Bars, strategies' states and attribution of a MemoryJournal, in dictionaries.

    Notes and guardians are in the database in memory.
    """

    def __init__(self, database: JournalDatabase, pending: PendingWrites) -> None:
        super().__init__(database, pending)
        # (market, interval) -> close instant of the newest finished bar
        self.bars: dict[tuple[str, str], int] = {}
        self.states: dict[str, str] = {}
        self._rows: dict[str, TotalsRow] = {}
        self._shares: dict[str, tuple[Share, ...]] = {}
        self._followed: Attribution | None = None
        self._open_trades: dict[tuple[str, str], TradeRow] = {}
        self._closed_trades: list[TradeRow] = []
        self._entries: dict[str, EntryRow] = {}

    def bar_done(self, market: str, interval: str, at_ms: int) -> None:
        self.bars[market, interval] = at_ms

    def done_until(self, market: str, interval: str) -> int | None:
        return self.bars.get((market, interval))

    def of_strategy(self, strategy: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.states.get(strategy, "{}"))
        return state

    def follow(self, attribution: Attribution) -> None:
        """Read rows and shares from this attribution from now on, because nothing of it is ever undone."""
        self._take_changes()
        self._followed = attribution

    def _take_changes(self) -> None:
        changes = None if self._followed is None else self._followed.changes()
        if changes is not None:
            self.put_attribution(changes)

    def put_attribution(self, changes: AttributionChanges) -> None:
        if changes.wiped:
            self._rows, self._shares = {}, {}
            self._open_trades, self._closed_trades, self._entries = {}, [], {}
        if changes.trades or changes.entries:
            self._put_trades(changes)
        for row in changes.rows:
            self._rows[row.strategy] = row
        # The usual case: one market has filled an order.
        if len(changes.markets) == 1:
            self._shares[changes.markets[0]] = changes.shares
            return
        for market in changes.markets:
            self._shares[market] = tuple(share for share in changes.shares if share.market == market)

    def _put_trades(self, changes: AttributionChanges) -> None:
        for trade in changes.trades:
            self._open_trades.pop((trade.strategy, trade.market), None)
            if trade.closed_ms is not None:
                self._closed_trades.append(trade)
            elif trade.net is not None:
                self._open_trades[trade.strategy, trade.market] = trade
        self._entries |= {entry.key: entry for entry in changes.entries}

    def trade_rows(self, epoch: int) -> list[TradeRow]:
        self._take_changes()
        return [*self._closed_trades, *self._open_trades.values()]

    def entry_rows(self, epoch: int) -> list[EntryRow]:
        self._take_changes()
        return list(self._entries.values())

    def attribution_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        self._take_changes()
        return [tuple(self._rows[name]) for name in sorted(self._rows)]

    def share_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        self._take_changes()
        return [tuple(share) for shares in self._shares.values() for share in shares]


class MemoryJournal(Journal):
    """A Journal whose order path writes no SQL."""

    intents: MemoryIntents
    events: MemoryEvents
    state: MemoryState

    def __init__(self, *, address: str) -> None:
        empty = open_journal(None, address=address)
        super().__init__(empty.db, address=address)
        self.keeps_traces = self.keeps_bodies = False
        self.failures = OrderFailures()
        self.intents = MemoryIntents(self.database, self.failures)
        self.events = MemoryEvents(self.database, self.intents)
        self.state = MemoryState(self.database, self._pending)

    def decided(
        self,
        intents: Sequence[Intent],
        *,
        states: Mapping[str, str] | None = None,
        bars: Sequence[tuple[str, str, int]] = (),
    ) -> list[Intent]:
        if states:
            self.state.states.update(states)
        for market, interval, at_ms in bars:
            self.state.bars[market, interval] = at_ms
        return [intent for intent in intents if self.intents.insert(intent)] if intents else []

    def take(
        self,
        events: Sequence[Event],
        last_id: str,
        *,
        epoch: int,
        states: Mapping[str, str] | None = None,
        intents: Sequence[Intent] = (),
        notices: Iterable[Notice] = (),
        attribution: AttributionChanges | None = None,
        now_ms: int = 0,
    ) -> list[Intent]:
        self.events.write(events, last_id, epoch=epoch)
        if states:
            self.state.states.update(states)
        if notices and (written := list(notices)):
            self.notify(written, now_ms=now_ms)
        if attribution is not None:
            self.state.put_attribution(attribution)
        return [intent for intent in intents if self.intents.insert(intent)] if intents else []

    def restart_cursor(self, last_id: str, *, epoch: int, now_ms: int) -> list[Intent]:
        void = self.intents.void([intent for intent in self.intents.live() if intent.epoch != epoch], now_ms=now_ms)
        self.events.put_cursor(Cursor(last_id, None, epoch))
        return void

    def newest_ms(self) -> int:
        return max(
            (*self.state.bars.values(), *(intent.opened_ms for intent in self.intents.newest_entries.values())),
            default=0,
        )

    def flush(self) -> None:
        """Do nothing: no row waits for a file."""

    def refused(self, refusal: Refusal, *, strategy: str, market: str, trigger: str, ordinal: int, at_ms: int) -> None:
        self.failures.refused(refusal.code, OrderFailure(at_ms, strategy, market, refusal.message))

    def trace(self, intent_id: str, kind: TraceKind, payload: str, *, at_ms: int) -> None:
        """Do nothing: nobody reads traces after a backtest."""

    def keep_ask(self, strategy: str, record: AskRecord) -> None:
        """Do nothing: the answers are in the file of recorded answers."""

    def write_attribution(
        self, attribution: AttributionChanges | None, notices: Iterable[Notice] = (), *, now_ms: int = 0
    ) -> None:
        if attribution is not None:
            self.state.put_attribution(attribution)
        written = list(notices)
        if written:
            self.notify(written, now_ms=now_ms)

    @property
    def is_full(self) -> bool:
        """True if a trim is due because of the number of intents, even if few events came."""
        return len(self.intents.by_id) > INTENTS_MAX

    def trim(self, held: Callable[[], HeldKeys] = HeldKeys, *, now_ms: int = 0) -> int:
        """Forget old events and final intents.

        It keeps the newest, and those that name the owner of an open position or order.
        """
        account = held()
        events, intents = list(self.events.taken.items()), list(self.intents.by_id.items())
        kept = [(number, event) for number, event in events[:-EVENTS_KEPT] if key_of(event) in account.keys]
        self.events.taken = dict(kept + events[-EVENTS_KEPT:])
        keys = account.keys.union([key for event in self.events.taken.values() if (key := key_of(event))])
        old = [
            (key, intent)
            for key, intent in intents[:-INTENTS_KEPT]
            if key in keys
            or intent.state not in FINAL
            or ((intent.strategy == RUNTIME or intent.is_target) and intent.market in account.positions)
        ]
        self.intents.by_id = dict(old + intents[-INTENTS_KEPT:])
        self.intents.repairs = [key for key in self.intents.repairs if key in self.intents.by_id]
        return len(intents) - len(self.intents.by_id)
