"""The event consumer reads the account's events, page after page.

One page and all that it changes is one transaction of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from bot import logs
from bot.errors import ApiError, Refused, is_access_lost
from bot.logs import log
from bot.runtime.account.account import DaemonAccount
from bot.runtime.account.event_logging import log_event
from bot.runtime.account.fold import with_our_keys
from bot.runtime.decisions.intent_builder import IntentBuilder
from bot.runtime.execution.order_sender import OrderSender
from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.journal.journal import Notice
from bot.runtime.model.intents import Intent
from bot.runtime.model.named_event import Named
from bot.runtime.model.shares import Part
from bot.runtime.passes.ports import EventSource
from bot.runtime.reconciliation import protection, reconciler
from bot.runtime.reconciliation.daemon_run import DaemonRun
from bot.runtime.reconciliation.guardians import Guardians
from bot.runtime.strategy_host.host import Decision
from bot.wire import EVENTS_PAGE_MAX, Event
from bot.wire.events import model_event

if TYPE_CHECKING:
    from bot.model.events import Event as ModelEvent
    from bot.wire import AccountSnapshot


@dataclass(slots=True)
class _Followed:
    """What hooks and notices have made of some events."""

    states: dict[str, str] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    is_logged: bool = field(default_factory=partial(logs.is_shown, logs.INFO))


NoticesOf = Callable[[Event, Mapping[str, Part]], Iterable[Notice]]


class EventConsumer:
    """`notices_of` makes the notices of an event, given the shares that the strategies have in it."""

    def __init__(
        self,
        run: DaemonRun,
        account: DaemonAccount,
        sender: OrderSender,
        guardians: Guardians,
        builder: IntentBuilder,
        notices_of: NoticesOf | None = None,
        source: EventSource | None = None,
    ) -> None:
        self.approvals = sender.approvals
        self.notices_of = notices_of
        # a venue in this process, whose events need no pages
        self.source = source
        self._run = run
        self._account = account
        self._sender = sender
        self._intents = sender.intents
        self._port = sender.port
        self._guardians = guardians
        self._builder = builder

    async def drain(self) -> bool:
        """Read every event there is. False if the service did not answer, or if the strategies took the time of the
        pass.

        After False nothing is opened until the events could be read. Lost access is raised.
        """
        if self.source is not None:
            if not self.take_now():
                await self._fold_source(self.source)
                self._sender.learn_from_events()
            return True
        state = self._run.state
        state.is_page_cut = False
        try:
            try:
                is_page_cut = not await self._read_pages()
            except Refused as error:
                if not reconciler.is_cursor_lost(error):
                    raise
                log.warning("drift.cursor_lost", message=error.message)
                await self.restart()
                is_page_cut = False
        except ApiError as error:
            if is_access_lost(error):
                raise
            state.fell_behind(self._run.budget.pacer.mono_ms())
            log.warning("feed.behind", code=error.code, message=error.message)
            return False
        state.caught_up(is_page_cut=is_page_cut)
        if is_page_cut:
            return False
        self._sender.learn_from_events()
        return True

    async def drain_or_wait(self) -> bool:
        """As `drain`. Also True once the events could not be read for so long that exits are decided without them."""
        return await self.drain() or self._run.state.is_behind_for_long(self._run.budget.pacer.mono_ms())

    async def restart(self, snapshot: AccountSnapshot | None = None) -> None:
        """Begin the events anew at this snapshot, or at one of now."""
        self.approvals.end_all()
        self._account.bare_before_page = None
        if await self._begin_at(snapshot or await self._port.account()):
            self._account.foreign_activity.clear()

    async def _begin_at(self, snapshot: AccountSnapshot) -> bool:
        """Begin the events anew at this snapshot, and arm the guardians first. Returns whether the account was reset.

        Intents of an earlier epoch become void.
        """
        run, account, journal = self._run, self._account, self._account.journal
        before = journal.events.cursor
        is_reset = before is not None and before.epoch != snapshot.epoch
        if before is not None and is_reset:
            # The intents are read before the cursor moves, because afterwards their epoch is lost.
            self._guardians.outlive(before.epoch)
            for backlog in run.strategy_host.backlogs.values():
                backlog.clear()
        with journal.together():
            void = journal.restart_cursor(snapshot.last_event_id, epoch=snapshot.epoch, now_ms=run.now_ms())
            # The event of the reset itself is never read: the cursor is past it.
            if is_reset:
                run.health.incident(
                    "account.reset", f"epoch:{snapshot.epoch}", epoch=snapshot.epoch, balance_usd=snapshot.balance_usd
                )
                # With positions or orders after the reset, another writer is active again, and its events are skipped.
                if not snapshot.positions and not snapshot.orders:
                    run.health.restore(FOREIGN)
        account.account_state.of_snapshot(snapshot)
        self._intents.reload(account.account_state)
        account.position_owners.own_positions(events_skipped=True)
        for intent in void:
            log.warning("intent.void", intent=intent.id, strategy=intent.strategy, market=intent.market)
        await protection.arm_all(run, account, self._guardians)
        return is_reset

    async def _read_pages(self) -> bool:
        """Read page after page. False: the pass had no time for all of them."""
        journal = self._account.journal
        while True:
            cursor = journal.events.cursor
            assert cursor is not None, "recover sets the cursor"
            events = (await self._port.events(cursor.last_id, limit=EVENTS_PAGE_MAX)).events
            for event in events:
                if event.type == "account" and _begins_epoch(event, cursor.epoch):
                    # Nothing of the page is applied: if the cursor were past it and the snapshot lost, the reset would
                    # be forgotten.
                    await self.restart()
                    return True
            # The cursor moves to the last applied event, even if the page names a later one.
            if events and not await self._apply_page(events, events[-1].id, cursor.epoch):
                return False
            if len(events) < EVENTS_PAGE_MAX or events[-1].id == cursor.last_id:
                return True

    def take_now(self) -> bool:
        """Take the new events of a venue in this process. False: `drain` must read them."""
        source = self.source
        if source is None or self._is_followed():
            return False
        fresh = source.fresh()
        if fresh:
            folds = self._account.folds
            for event in fresh:
                folds[type(event)](event)
            source.take(fresh)
            self._look_for_foreign()
        if self._intents.live or self._account.account_state.closed:
            self._sender.learn_from_events()
        return True

    def _is_followed(self) -> bool:
        """True if somebody follows the events themselves: hooks, notices or the log."""
        host = self._run.strategy_host
        return bool(host.event_types or host.backlogs) or self.notices_of is not None or logs.is_shown(logs.INFO)

    async def _apply_page(self, events: Sequence[Event], last_id: str, epoch: int) -> bool:
        """Apply one page, call the strategies, and write the page with all that it changed in one transaction.

        False: only a part of the page, because a strategy took the time of the pass.
        """
        account, attribution = self._account, self._account.attribution
        is_whole, is_written = True, False
        attribution.begin_page()
        if self._run.strategy_host.event_types and account.bare_before_page is None:
            account.bare_before_page = account.account_state.bare
        try:
            is_whole = await self._fold(self._account.journal.events.unseen(events), last_id, epoch)
            is_written = True
        finally:
            attribution.end_page(is_written=is_written)
            if is_whole:
                account.bare_before_page = None
        return is_whole

    async def _fold(self, fresh: Sequence[Event], last_id: str, epoch: int) -> bool:
        run, account, journal = self._run, self._account, self._account.journal
        account_state = account.account_state
        if not account_state.events_named:
            fresh = with_our_keys(account_state, fresh)
        followed = _Followed()
        hooked = run.strategy_host.event_types
        began_ms, count = run.budget.pacer.mono_ms() if hooked else 0, len(fresh)
        for n, event in enumerate(fresh, start=1):
            account_state.is_named_by_us = isinstance(event, Named)
            happened = model_event(event)
            parts = _NO_PARTS if happened is None else account.apply(happened)
            self._note(event, parts, followed)
            if happened is None or type(happened) not in hooked:
                continue
            if run.strategy_host.backlogs:
                run.strategy_host.keep(event, parts)
            await self._deliver(happened, event.id, parts, followed)
            if n < count and run.budget.is_used_up_since(began_ms):
                fresh, last_id = fresh[:n], event.id
                break
        with journal.together() if run.strategy_host.backlogs else _NO_TRANSACTION:
            for backlog in run.strategy_host.backlogs.values():
                backlog.write(epoch)
            opened = self.approvals.take(
                fresh,
                last_id,
                epoch=epoch,
                states=followed.states,
                intents=followed.intents,
                notices=followed.notices,
                attribution=account.attribution.changes(),
                now_ms=run.now_ms(),
            )
        self._open(followed.intents, opened)
        return len(fresh) == count

    async def _fold_source(self, source: EventSource) -> None:
        """As `take_now`, for hooks, notices and the log."""
        fresh = source.fresh()
        if not fresh:
            return
        run, account, journal = self._run, self._account, self._account.journal
        host, cursor = run.strategy_host, journal.events.cursor
        assert cursor is not None, "recover sets the cursor"
        followed = _Followed()
        is_noted = self.notices_of is not None or followed.is_logged
        for event in fresh:
            parts = account.apply(event)
            is_hooked = type(event) in host.event_types
            if is_noted or (is_hooked and host.backlogs):
                read = source.as_wire(event)
                self._note(read, parts, followed)
                if is_hooked and host.backlogs:
                    host.keep(read, parts)
            if is_hooked:
                await self._deliver(event, source.id_of(event), parts, followed)
        source.take(fresh)
        with journal.together() if host.backlogs else _NO_TRANSACTION:
            for backlog in host.backlogs.values():
                backlog.write(cursor.epoch)
            opened = self.approvals.write_decision(followed.intents, states=followed.states)
            journal.write_attribution(None, followed.notices, now_ms=run.now_ms())
        self._open(followed.intents, opened)

    def _note(self, event: Event, parts: Mapping[str, Part], followed: _Followed) -> None:
        """Give a folded event to the notices and the log."""
        if self.notices_of is not None:
            followed.notices += self.notices_of(event, parts)
        if followed.is_logged:
            log_event(event)

    async def _deliver(self, event: ModelEvent, event_id: str, parts: Mapping[str, Part], followed: _Followed) -> None:
        """Give a folded event to the hooks of the strategies, and collect what they make of it."""
        run = self._run
        decision = Decision(states=followed.states)
        signals = await run.strategy_host.deliver(event, decision, now_ms=run.now_ms(), parts=parts)
        if signals:
            trigger = self._account.journal.events.trigger_of(event_id, event.ts)
            followed.intents += self._builder.build(signals, trigger=trigger, at_ms=event.ts)

    def _open(self, intents: Sequence[Intent], opened: Sequence[Intent]) -> None:
        """Send the new intents of hooks next, and look for positions of others."""
        if intents:
            self._intents.forget_unwritten(intents, opened)
            self._intents.replies.extend(opened)
        self._look_for_foreign()

    def _look_for_foreign(self) -> None:
        account_state, foreign_activity = self._account.account_state, self._account.foreign_activity
        for position in account_state.positions.values():
            if position.owner is None and foreign_activity.must_judge(position, account_state):
                # Somebody else trades on the account.
                self._run.comparison.in_next_pass()


_NO_PARTS: Final[Mapping[str, Part]] = {}
_NO_TRANSACTION: Final = nullcontext()


def _begins_epoch(event: Event, epoch: int) -> bool:
    """True of a reset that came as an event, before the feed could say that the cursor is gone."""
    return (event.type, event.subtype) == ("account", "reset") and event.data.epoch != epoch
