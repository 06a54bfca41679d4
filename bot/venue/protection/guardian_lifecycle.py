"""Start and end of guardians that act for the whole account."""

from __future__ import annotations

from bot import cron
from bot.venue.accounting import drawdown_floors, ledger, limits
from bot.venue.model.state import GuardianSpec, State, VenueAccount, VenueGuardian, VenuePosition
from bot.venue.prices import index
from bot.venue.protection import protection
from bot.venue.protection.protection import emit_guardian


def arm_inline(
    state: State,
    account: VenueAccount,
    position: VenuePosition,
    spec: GuardianSpec,
    *,
    trade: str | None,
    key: str | None,
) -> VenueGuardian:
    """Arm an inline guardian of an order.

    A trailing stop starts at the entry price instead: see `protection.arm_trail`.
    """
    if spec.type == "max_hold":
        return protection.arm_hold(state, account, position, spec, trade=trade)
    return arm_account_guardian(state, account, spec, trade=trade, key=key)


def arm_account_guardian(
    state: State, account: VenueAccount, spec: GuardianSpec, *, trade: str | None = None, key: str | None = None
) -> VenueGuardian:
    """Arm a guardian of the whole account.

    A new dead-man switch lifts the block of a fired one if it covers all markets of that one.
    """
    account.guardian_seq += 1
    guardian = VenueGuardian(
        number=account.guardian_seq, account=account.id, spec=spec, created_ms=state.now_ms, trade=trade, key=key
    )
    if spec.type == "dead_man_switch":
        latched = [g for g in account.guardians.values() if g.spec.type == spec.type and g.status == "latched"]
        for old in latched:
            if limits.covers(state, guardian, old):
                release(state, account, old, "manual")
        assert spec.heartbeat_seconds is not None
        guardian.deadline_ms = state.now_ms + spec.heartbeat_seconds * 1000
        guardian.last_heartbeat_ms = state.now_ms
    elif spec.type == "schedule":
        assert spec.cron is not None
        guardian.deadline_ms = cron.next_run(cron.parse(spec.cron), state.now_ms + 1)
    elif spec.type == "kill_switch":
        guardian.blocks_opens = True
    account.guardians[guardian.number] = guardian
    if guardian.deadline_ms is not None:
        index.schedule_guardian(state, account, guardian)
    emit_guardian(state, account, guardian, "armed")
    # Armed by an order whose fill is being booked; it acts just after that.
    if spec.type == "kill_switch":
        guardian.deadline_ms = state.now_ms
        index.schedule_guardian(state, account, guardian)
    if spec.type == drawdown_floors.TYPE:
        drawdown_floors.begin_day(account, state.now_ms, ledger.account_value(state, account))
        index.schedule_day(state)
        ledger.rewatch_floor(state, account)
    return guardian


def release(
    state: State, account: VenueAccount, guardian: VenueGuardian, reason: str, *, subtype: str = "released"
) -> None:
    """End a guardian, its block of openings and its price levels."""
    del account.guardians[guardian.number]
    guardian.blocks_opens = False
    guardian.deadline_ms = None
    emit_guardian(state, account, guardian, subtype, reason=reason)
    if guardian.spec.type == drawdown_floors.TYPE:
        ledger.rewatch_floor(state, account)
