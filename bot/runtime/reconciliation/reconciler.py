"""Compare the service's snapshot with the account state, and repair each drift that is found.

A repair never guesses: the service's data count. After a lost cursor, the daemon first arms the guardians and then
begins a new feed. `protection` keeps the stops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from bot.errors import ApiError, Refused
from bot.logs import log
from bot.runtime.account.account import DaemonAccount
from bot.runtime.account.diff import diff
from bot.runtime.model.positions import Drift, DriftKind
from bot.runtime.reconciliation import adoption, protection
from bot.runtime.reconciliation.daemon_run import DaemonRun
from bot.runtime.reconciliation.key_recovery import claim_orders, claim_positions
from bot.runtime.reconciliation.repair_actions import RepairActions

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot


async def reconcile(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, snapshot: AccountSnapshot
) -> list[Drift]:
    """Take over a snapshot that is as new as the events read so far, and repair the differences. Returns the drifts."""
    claim_orders(run, account, snapshot)
    drifts = diff(account.account_state, snapshot)
    account.account_state.of_snapshot(snapshot)
    account.position_owners.own_positions()
    await claim_positions(run, account, actions)
    account.foreign_activity.keep_open(account.account_state.positions.keys())
    drifts += _unowned(account) + protection.found_naked(run, account, actions) + _unguarded(actions, snapshot)
    unanswered: ApiError | None = None
    has_repaired = False
    for drift in drifts:
        repair = REPAIRS[drift.kind]
        if has_repaired and not run.budget.may_go_on():
            # The next comparison finds the rest.
            run.comparison.soon()
            break
        has_repaired = has_repaired or repair is not _believe
        log.warning(f"drift.{drift.kind}", market=drift.market, subject=drift.subject, message=drift.message)
        try:
            await repair(run, account, actions, drift)
        # Another repair may succeed.
        except ApiError as error:
            protection.postpone(error, [drift.market or drift.subject])
            unanswered = unanswered or error
            if not run.budget.has_time():
                break
    account.position_owners.align_shares()
    protection.note_covered(run, account)
    # The caller compares again soon.
    if unanswered is not None:
        raise unanswered
    return drifts


def differences(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, snapshot: AccountSnapshot
) -> list[Drift]:
    """The drifts that `reconcile` would find in this snapshot. Changes nothing."""
    return (
        diff(account.account_state, snapshot)
        + _unowned(account)
        + protection.naked(run, account, actions)
        + _unguarded(actions, snapshot)
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


async def overlaps(account: DaemonAccount, actions: RepairActions) -> bool:
    """True if the service still has the last event that we read, right after the one before it.

    Otherwise events are missing.
    """
    cursor, at_ms = account.journal.events.last_taken()
    if cursor is None or cursor.prev_id is None:
        return True
    try:
        page = await actions.port.events(cursor.prev_id, limit=1)
    except Refused as error:
        if is_cursor_lost(error):
            return False
        raise
    # Another instant: the service was restored to an earlier state and has given the id again.
    return bool(page.events) and page.events[0].id == cursor.last_id and at_ms in (None, page.events[0].ts)


def is_cursor_lost(error: Refused) -> bool:
    """410: the service no longer has the event of our cursor, or its newest event is older than the cursor."""
    return error.status == 410 or (
        error.code == "not_found" and bool(error.fix) and (error.fix or {}).get("action") == "resync"
    )


# -- drifts that the account state cannot see by itself


def _unowned(account: DaemonAccount) -> list[Drift]:
    return [
        Drift("foreign_position", p.market, "", f"the {p.market} position was not opened by us")
        for p in account.account_state.positions.values()
        if account.foreign_activity.must_judge(p, account.account_state)
    ]


def _unguarded(actions: RepairActions, snapshot: AccountSnapshot) -> list[Drift]:
    missing = actions.guardians.missing(snapshot.guardians)
    return [
        Drift("guardian_gone", None, guardian.name, f"guardian {guardian.name} of the config is not armed")
        for guardian in missing
    ]


# -- repairs, one for each kind of drift


async def _believe(run: DaemonRun, account: DaemonAccount, actions: RepairActions, drift: Drift) -> None:
    """The snapshot has been believed already."""


async def _rearm(run: DaemonRun, account: DaemonAccount, actions: RepairActions, drift: Drift) -> None:
    await protection.arm_all(run, account, actions.guardians)


async def _judge_order(run: DaemonRun, account: DaemonAccount, actions: RepairActions, drift: Drift) -> None:
    if run.settings.foreign_positions == "flatten":
        try:
            await actions.port.cancel(drift.subject)
        # Filled or gone meanwhile; the next comparison shows it.
        except Refused as error:
            log.warning("repair.refused", market=drift.market, code=error.code, message=error.message)


async def _judge_position(run: DaemonRun, account: DaemonAccount, actions: RepairActions, drift: Drift) -> None:
    """adopt: the first strategy of the market owns it, if it has a stop; flatten: close it; ignore: report it once."""
    assert drift.market is not None
    policy = run.settings.foreign_positions
    instance = run.strategy_host.instance_for(drift.market)
    position = account.account_state.positions.get(drift.market)
    if position is None or position.owner is not None:
        # An earlier repair found the owner.
        return
    if policy == "adopt" and instance is not None:
        await adoption.adopt(run, account, actions, position, instance.name)
    elif policy == "flatten":
        if account.account_state.events_named or not actions.intents.in_doubt(
            drift.market
            # Otherwise the trade may be ours; the reply will show it.
        ):
            await protection.close_all(run, account, actions, position, "foreign")
    else:
        account.foreign_activity.known_markets.add(drift.market)


Repair = Callable[[DaemonRun, DaemonAccount, RepairActions, Drift], Awaitable[None]]


async def _nothing(run: DaemonRun, account: DaemonAccount, actions: RepairActions, drift: Drift) -> None:
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
