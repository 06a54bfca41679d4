"""Compare the service's snapshot with the account state, and repair each drift that is found.

A repair never guesses: the service's data count. After a lost cursor, the daemon first arms the guardians and then
begins a new feed. `protection` keeps the stops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from bot.errors import ApiError, Refused
from bot.logs import log
from bot.runtime.account.diff import diff
from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.model.positions import Drift, DriftKind
from bot.runtime.reconciliation import adoption, protection
from bot.runtime.reconciliation.context import RepairContext
from bot.runtime.reconciliation.key_recovery import claim_orders, claim_positions

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot


async def reconcile(context: RepairContext, snapshot: AccountSnapshot) -> list[Drift]:
    """Take over a snapshot that is as new as the events read so far, and repair the differences. Returns the drifts."""
    claim_orders(context, snapshot)
    drifts = diff(context.account_state, snapshot)
    context.account_state.of_snapshot(snapshot)
    context.position_owners.own_positions()
    await claim_positions(context)
    context.foreign_activity.keep_open(context.account_state.positions.keys())
    drifts += _unowned(context) + protection.found_naked(context) + _unguarded(context, snapshot)
    unanswered: ApiError | None = None
    has_repaired = False
    for drift in drifts:
        repair = REPAIRS[drift.kind]
        if has_repaired and not context.budget.may_go_on():
            # The next comparison finds the rest.
            context.comparison.soon()
            break
        has_repaired = has_repaired or repair is not _believe
        log.warning(f"drift.{drift.kind}", market=drift.market, subject=drift.subject, message=drift.message)
        try:
            await repair(context, drift)
        # Another repair may succeed.
        except ApiError as error:
            protection.postpone(error, [drift.market or drift.subject])
            unanswered = unanswered or error
            if not context.budget.has_time():
                break
    context.position_owners.align_shares()
    protection.note_covered(context)
    # The caller compares again soon.
    if unanswered is not None:
        raise unanswered
    return drifts


def differences(context: RepairContext, snapshot: AccountSnapshot) -> list[Drift]:
    """The drifts that `reconcile` would find in this snapshot. Changes nothing."""
    return (
        diff(context.account_state, snapshot)
        + _unowned(context)
        + protection.naked(context)
        + _unguarded(context, snapshot)
    )


class CursorLost(Exception):
    """The events cannot go on where the journal stands; they must begin anew at a snapshot.

    `why` is a sentence. `snapshot` is the one that showed it, if a snapshot did.
    """

    def __init__(self, why: str, snapshot: AccountSnapshot | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.snapshot = snapshot

    @property
    def drift(self) -> Drift:
        return Drift("cursor_lost", None, "", self.why)


async def overlaps(context: RepairContext) -> bool:
    """True if the service still has the last event that we read, right after the one before it.

    Otherwise events are missing.
    """
    cursor, at_ms = context.journal.events.last_taken()
    if cursor is None or cursor.prev_id is None:
        return True
    try:
        page = await context.port.events(cursor.prev_id, limit=1)
    except Refused as error:
        if is_cursor_lost(error):
            return False
        raise
    # Another instant: the service was restored to an earlier state and has given the id again.
    return bool(page.events) and page.events[0].id == cursor.last_id and at_ms in (None, page.events[0].ts)


def is_cursor_lost(error: Refused) -> bool:
    """410: a reset wiped the event that we stand on, or it lies beyond the newest."""
    return error.status == 410 or (
        error.code == "not_found" and bool(error.fix) and (error.fix or {}).get("action") == "resync"
    )


async def restart(context: RepairContext, snapshot: AccountSnapshot) -> bool:
    """Begin the events anew at this snapshot, and arm the guardians first. Returns whether the account was reset.

    Intents of an earlier epoch become void.
    """
    before = context.journal.events.cursor
    is_reset = before is not None and before.epoch != snapshot.epoch
    if before is not None and is_reset:
        # The intents are read before the cursor moves, because afterwards their epoch is lost.
        context.guardians.outlive(before.epoch)
        context.strategy_host.clear_backlogs()
    with context.journal.together():
        void = context.journal.restart_cursor(snapshot.last_event_id, epoch=snapshot.epoch, now_ms=context.now_ms())
        # The event of the reset itself is never read: the cursor is past it.
        if is_reset:
            context.health.incident(
                "account.reset", f"epoch:{snapshot.epoch}", epoch=snapshot.epoch, balance_usd=snapshot.balance_usd
            )
            # With positions or orders after the reset, another writer is active again, and its events are skipped.
            if not snapshot.positions and not snapshot.orders:
                context.health.restore(FOREIGN)
    context.account_state.of_snapshot(snapshot)
    context.intents.reload(context.account_state)
    context.position_owners.own_positions(events_skipped=True)
    for intent in void:
        log.warning("intent.void", intent=intent.id, strategy=intent.strategy, market=intent.market)
    await protection.arm_all(context)
    return is_reset


# -- drifts that the account state cannot see by itself


def _unowned(context: RepairContext) -> list[Drift]:
    return [
        Drift("foreign_position", p.market, "", f"the {p.market} position was not opened by us")
        for p in context.account_state.positions.values()
        if context.foreign_activity.must_judge(p, context.account_state)
    ]


def _unguarded(context: RepairContext, snapshot: AccountSnapshot) -> list[Drift]:
    missing = context.guardians.missing(snapshot.guardians)
    return [
        Drift("guardian_gone", None, guardian.name, f"guardian {guardian.name} of the config is not armed")
        for guardian in missing
    ]


# -- repairs, one for each kind of drift


async def _believe(context: RepairContext, drift: Drift) -> None:
    """The snapshot has been believed already."""


async def _rearm(context: RepairContext, drift: Drift) -> None:
    await protection.arm_all(context)


async def _judge_order(context: RepairContext, drift: Drift) -> None:
    if context.foreign_positions == "flatten":
        try:
            await context.port.cancel(drift.subject)
        # Filled or gone meanwhile; the next comparison shows it.
        except Refused as error:
            log.warning("repair.refused", market=drift.market, code=error.code, message=error.message)


async def _judge_position(context: RepairContext, drift: Drift) -> None:
    """adopt: the first strategy of the market owns it, if it has a stop; flatten: close it; ignore: report it once."""
    assert drift.market is not None
    policy = context.foreign_positions
    instance = context.strategy_host.instance_for(drift.market)
    position = context.account_state.positions.get(drift.market)
    if position is None or position.owner is not None:
        # An earlier repair found the owner.
        return
    if policy == "adopt" and instance is not None:
        await adoption.adopt(context, position, instance.name)
    elif policy == "flatten":
        if context.account_state.events_named or not context.intents.in_doubt(
            drift.market
            # Otherwise the trade may be ours; the reply will show it.
        ):
            await protection.close_all(context, position, "foreign")
    else:
        context.foreign_activity.known_markets.add(drift.market)


Repair = Callable[[RepairContext, Drift], Awaitable[None]]


async def _nothing(context: RepairContext, drift: Drift) -> None:
    """A lost cursor never reaches the table, because the events begin anew before anything is compared."""
    raise AssertionError(drift)


REPAIRS: Final[Mapping[DriftKind, Repair]] = {
    "missing_fill": _believe,
    "order_gone": _believe,
    "foreign_order": _judge_order,
    "foreign_position": _judge_position,
    "naked_position": protection.cover,
    "guardian_gone": _rearm,
    "cursor_lost": _nothing,
}
