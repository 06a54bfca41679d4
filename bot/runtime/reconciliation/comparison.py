"""One comparison: align a snapshot with the events, compare, repair.

Between comparisons, `repair` keeps stops and guardians in every pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bot.errors import ApiError, Refused, TryLater, is_access_lost
from bot.logs import log
from bot.runtime.account.account import DaemonAccount
from bot.runtime.model.positions import Drift
from bot.runtime.reconciliation import foreign_review, protection, reconciler, target_orders
from bot.runtime.reconciliation.daemon_run import DaemonRun
from bot.runtime.reconciliation.reconciler import CursorLost
from bot.runtime.reconciliation.repair_actions import RepairActions

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot

# tries to get a snapshot as new as the events; on a busier feed the next comparison tries again
TRIES_MAX: Final = 4


class Reconciliation:
    """Compares and repairs. A service that does not answer is asked again in a later pass; lost access is raised."""

    def __init__(self, run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
        self.run = run
        self.account = account
        self.actions = actions
        # the last repairs took all time of their pass
        self.repairs_were_long = False

    def forget_long_repairs(self) -> None:
        """Bars are decided before repairs again."""
        self.repairs_were_long = False

    async def reconcile(self) -> list[Drift] | None:
        """Compare with the service and repair. Returns what differed; None if nothing could be compared.

        The time of the next comparison is set first, so that a repair can bring it forward.
        """
        self.run.comparison.began()
        drifts: list[Drift] | None
        try:
            snapshot = await self._aligned_snapshot()
        except CursorLost as lost:
            log.warning("drift.cursor_lost", message=lost.why)
            await self.actions.restart(lost.snapshot)
            drifts = [lost.drift]
        else:
            drifts = (
                None if snapshot is None else await reconciler.reconcile(self.run, self.account, self.actions, snapshot)
            )
        if drifts is None:
            self.run.comparison.soon()
        else:
            self.run.health.restore("reconcile")
        await self.actions.guardians.retire()
        await self.actions.execution.send_replies()
        return drifts

    async def reconcile_if_due(self) -> None:
        """As `reconcile`, if it is time and the pass has time.

        A refusal degrades the run until a comparison succeeds.
        """
        if not (self.run.comparison.is_due and self.run.budget.has_time()):
            return
        try:
            await self.reconcile()
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("reconcile.postponed", code=error.code, message=error.message)
            # The service is there, so the account may differ from what we believe.
            if isinstance(error, Refused):
                self.run.health.degrade(
                    "reconcile", f"the service refuses a comparison ({error.code}): {error.message}"
                )
            self.run.comparison.soon()

    async def compare(self) -> list[Drift]:
        """What `reconcile` would find now. Repairs nothing, but reads the events first."""
        try:
            snapshot = await self._aligned_snapshot(needs_all_events=False)
        except CursorLost as lost:
            return [lost.drift]
        if snapshot is None:
            raise TryLater("busy", "events keep coming faster than they can be compared; ask again")
        return reconciler.differences(self.run, self.account, self.actions, snapshot)

    def has_nothing_to_do(self) -> bool:
        """True if `repair` would do nothing. Every pass asks this, so it must be cheap."""
        return protection.nothing_to_do(self.run, self.account, self.actions) and not target_orders.is_due(
            self.account, self.actions
        )

    async def repair(self) -> None:
        """Put back missing stops and guardians and place target orders, before a decision and right after orders
        were sent.
        """
        if not self.run.budget.has_time() or self.run.state.is_page_cut or self.has_nothing_to_do():
            return
        try:
            if not protection.nothing_to_do(self.run, self.account, self.actions):
                await protection.protect(self.run, self.account, self.actions)
                if self.run.budget.has_time():
                    await protection.stand(self.run, self.account, self.actions)
            if self.run.budget.has_time():
                await target_orders.place(self.run, self.account, self.actions)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("repair.postponed", code=error.code, message=error.message)
        self.repairs_were_long = not self.run.budget.has_time()

    async def review_foreign_activity(self) -> None:
        """Ask the service who made the orders and dead-man switches that are not ours."""
        try:
            await foreign_review.look_closer(self.run, self.account, self.actions)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("foreign_activity.postponed", code=error.code, message=error.message)
            # Who else trades here stays unknown.
            if isinstance(error, Refused):
                self.run.health.degrade(
                    "foreign_activity", f"the service refuses its trades ({error.code}): {error.message}"
                )
        else:
            self.run.health.restore("foreign_activity")

    def compare_strategies_anew(self) -> None:
        """Compare in the next pass, because the strategies have changed: a position without an owner may belong to
        one of them now.
        """
        self.account.foreign_activity.judge_anew()
        self.run.comparison.in_next_pass()

    async def _aligned_snapshot(self, *, needs_all_events: bool = True) -> AccountSnapshot | None:
        """A snapshot that is as new as the events that were read. None if there is none: events keep coming, or could
        not be read.

        `needs_all_events`: give up when the events cannot be read to their end. Raises CursorLost when events are
        missing.
        """
        if not await reconciler.overlaps(self.account, self.actions):
            raise CursorLost("the event before the cursor is not the one that we took")
        for _ in range(TRIES_MAX):
            if not await self.actions.drain() and needs_all_events:
                return None
            snapshot = await self.actions.port.account()
            cursor = self.account.journal.events.cursor
            if cursor is None or cursor.epoch != snapshot.epoch:
                raise CursorLost("the account was reset", snapshot)
            if snapshot.last_event_id == cursor.last_id:
                return snapshot
        if needs_all_events:
            log.info("reconcile.postponed", why="events keep coming")
        return None
