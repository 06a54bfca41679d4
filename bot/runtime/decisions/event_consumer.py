"""The event consumer reads the account's events, page after page. One page and all that it changes is one transaction of the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from bot import logs
from bot.errors import ApiError, Refused, is_access_lost
from bot.runtime.account.attribution_fold import ATTRIBUTED, attribute_event, name_foreign_entries
from bot.runtime.account.event_logging import log_event
from bot.runtime.account.fold import fold_event, with_our_keys
from bot.runtime.decisions.intent_builder import IntentBuilder
from bot.runtime.execution.approvals import Approvals
from bot.runtime.journal.journal import Notice
from bot.runtime.model.intents import Intent
from bot.runtime.model.shares import Part
from bot.runtime.ports import EventSource
from bot.runtime.reconciliation import reconciler
from bot.runtime.reconciliation.context import RepairContext
from bot.runtime.strategy_host.host import Decision
from bot.wire import EVENTS_PAGE_MAX, Event

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot

log = logs.FastLogger()

NoticesOf = Callable[[Event, Mapping[str, Part]], Iterable[Notice]]


class EventConsumer:
    """`notices_of` makes the notices of an event, given the shares that the strategies have in it.

    `approvals` is set right after the consumer is built, because it needs the execution that needs the consumer.
    """

    approvals: Approvals

    def __init__(self, context: RepairContext, builder: IntentBuilder, notices_of: NoticesOf | None = None) -> None:
        self.notices_of = notices_of
        self.source: EventSource | None = None  # a venue in this process, whose events need no pages
        self._context = context
        self._account = context.account
        self._builder = builder

    async def drain(self) -> bool:
        """Read every event there is. False if the service did not answer, or if the strategies took the time of the pass.

        After False nothing is opened until the events could be read. Lost access is raised.
        """
        state = self._context.state
        state.is_page_cut = False
        try:
            try:
                is_page_cut = not await (self._read_pages() if self.source is None else self._read_source(self.source))
            except Refused as error:
                if not reconciler.is_cursor_lost(error):
                    raise
                log.warning("drift.cursor_lost", message=error.message)
                await self.restart()
                is_page_cut = False
        except ApiError as error:
            if is_access_lost(error):
                raise
            state.fell_behind(self._context.pacer.mono_ms())
            log.warning("feed.behind", code=error.code, message=error.message)
            return False
        state.caught_up(is_page_cut=is_page_cut)
        if is_page_cut:
            return False
        self._context.execution.learn_from_events()
        return True

    async def drain_or_wait(self) -> bool:
        """As `drain`. Also True once the events could not be read for so long that exits are decided without them."""
        return await self.drain() or self._context.state.is_behind_for_long(self._context.pacer.mono_ms())

    async def restart(self, snapshot: AccountSnapshot | None = None) -> None:
        """Begin the events anew at this snapshot, or at one of now."""
        context = self._context
        self.approvals.end_all()
        if await reconciler.restart(context, snapshot or await context.port.account()):
            context.foreign_activity.clear()

    def attach_events(self, accepted: Intent) -> None:
        """Give the events of an order to its strategy: on a service that shows no keys, they may come before the reply that names the trade."""
        context, account = self._context, self._account
        events = context.journal.events.attach_key(accepted)
        name_foreign_entries(account.attribution, map(Event.model_validate, events), accepted.strategy)
        account.position_owners.write_attribution()
        if events:
            context.foreign_activity.known_markets.discard(accepted.market)
            context.comparison.in_next_pass()  # It finds the owner of the position and of its orders.

    async def _read_pages(self) -> bool:
        """Read page after page. False: the pass had no time for all of them."""
        journal = self._context.journal
        while True:
            cursor = journal.events.cursor
            assert cursor is not None, "recover sets the cursor"
            events = (await self._context.port.events(cursor.last_id, limit=EVENTS_PAGE_MAX)).events
            for event in events:
                if event.type == "account" and _begins_epoch(event, cursor.epoch):
                    # Nothing of the page is applied: if the cursor were past it and the snapshot lost, the reset would be forgotten.
                    await self.restart()
                    return True
            # The cursor moves to the last applied event, even if the page names a later one.
            if events and not await self._apply_page(events, events[-1].id, cursor.epoch):
                return False
            if len(events) < EVENTS_PAGE_MAX or events[-1].id == cursor.last_id:
                return True

    async def _read_source(self, source: EventSource) -> bool:
        """As `_read_pages`, with no page to repeat or to undo."""
        cursor = self._context.journal.events.cursor
        assert cursor is not None, "recover sets the cursor"
        events = source.events_after(cursor.last_id)
        return not events or await self._fold(events, events[-1].id, cursor.epoch)

    async def _apply_page(self, events: Sequence[Event], last_id: str, epoch: int) -> bool:
        """Apply one page, call the strategies, and write the page with all that it changed in one transaction.

        False: only a part of the page, because a strategy took the time of the pass.
        """
        attribution = self._account.attribution
        is_written = False
        attribution.begin_page()
        try:
            is_whole = await self._fold(self._context.journal.events.unseen(events), last_id, epoch)
            is_written = True
        finally:
            attribution.end_page(is_written=is_written)
        return is_whole

    async def _fold(self, fresh: Sequence[Event], last_id: str, epoch: int) -> bool:
        context, account, host = self._context, self._account, self._context.strategy_host
        mirror, journal, budget = account.mirror, context.journal, context.budget
        if not mirror.events_named:
            fresh = with_our_keys(mirror, fresh)
        decision: Decision | None = None
        intents: list[Intent] = []
        notices: list[Notice] = []
        is_logged, notices_of, hooked = logs.is_shown(logs.INFO), self.notices_of, host.event_types
        began_ms, count = context.pacer.mono_ms() if hooked else 0, len(fresh)
        our_keys = account.order_owners.by_key
        for n, event in enumerate(fresh, start=1):
            type_ = event.type
            parts: Mapping[str, Part] = _NO_PARTS
            if type_ in ATTRIBUTED:
                parts = attribute_event(account.attribution, event)
            fold_event(mirror, event)
            if type_ in ATTRIBUTED:
                account.position_owners.pass_on(event.coin)
            if event.idempotency_key not in our_keys:
                context.foreign_activity.see(event, account.order_owners.owner_of)
            if notices_of is not None:
                notices += notices_of(event, parts)
            if is_logged:
                log_event(event)
            if type_ not in hooked:
                continue
            decision = decision or Decision()
            signals = await host.deliver(event, decision, now_ms=context.now_ms(), parts=parts)
            if signals:
                intents += self._builder.build(signals, trigger=journal.events.trigger_of(event), at_ms=event.ts)
            if n < count and budget.is_used_up_since(began_ms):
                fresh, last_id = fresh[:n], event.id
                break
        with journal.together() if host.backlogs else _NO_TRANSACTION:
            for backlog in host.backlogs.values():
                backlog.write(epoch)
            opened = self.approvals.take(
                fresh, last_id, epoch=epoch, states=None if decision is None else decision.states, intents=intents, notices=notices,
                attribution=account.attribution.changes(), now_ms=context.now_ms(),
            )  # fmt: skip
        if intents:
            context.execution.forget_unwritten(intents, opened)
            context.execution.replies += opened
        for position in mirror.positions.values():
            if position.owner is None and context.foreign_activity.must_judge(position, mirror):
                context.comparison.in_next_pass()  # Somebody else trades on the account.
        return len(fresh) == count


_NO_PARTS: Final[Mapping[str, Part]] = {}
_NO_TRANSACTION: Final = nullcontext()


def _begins_epoch(event: Event, epoch: int) -> bool:
    """True of a reset that came as an event, before the feed could say that the cursor is gone."""
    return (event.type, event.subtype) == ("account", "reset") and event.data.epoch != epoch
