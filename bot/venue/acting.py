"""What callers do with guardians: arm, beat, let go; and the trailing stop on its way. What one does when its instant comes: firing.py."""

from __future__ import annotations

from bot.errors import Refusal
from bot.venue import cron, firing, floors, guardians, index, ledger, limits, outcome, protection
from bot.venue.commands import Kill
from bot.venue.protection import emit_guardian
from bot.venue.refusals import no_market
from bot.venue.state import GUARDIANS_MAX, Account, Guardian, GuardianSpec, Market, Position, State, guardian_id


def arm(state: State, account: Account, spec: GuardianSpec, *, key: str | None = None) -> Guardian | Refusal:
    """Arm a guardian on the caller's word."""
    whole = guardians.normalise(spec)
    if isinstance(whole, Refusal):
        return whole
    if whole.type == "kill_switch":
        return _kill(state, account, whole, key).guardian
    if limits.guardians_there(account) >= GUARDIANS_MAX:
        return Refusal(
            "limit_exceeded",
            f"{GUARDIANS_MAX} guardians are armed or ride on resting orders, the most an account may have",
            fix={"action": "disarm"},
        )
    if whole.order is not None and whole.order.coin not in state.markets:
        return no_market(whole.order.coin, state.markets, field="orderTemplate.market")
    if whole.coin is None:
        return arm_clock(state, account, whole, key=key)
    market = state.markets.get(whole.coin)
    if market is None:
        return no_market(whole.coin, state.markets)
    position = account.positions.get(whole.coin)
    if position is None:
        return Refusal(
            "not_found",
            f"a {whole.type} needs an open position in {whole.coin}, or an order to ride on",
            fix={"action": "open_first"},
        )
    if whole.type == "max_hold":
        return protection.arm_hold(state, account, position, whole)
    if position.r_px is None and (whole.trail_r is not None or whole.activate_at_r is not None):
        return guardians.needs_stop(whole)
    return protection.arm_trail(state, account, market, position, whole, extreme=market.mark)


def arm_inline(
    state: State, account: Account, position: Position, spec: GuardianSpec, *, trade: str | None, key: str | None
) -> Guardian:
    """Arm what an order brought along (a trailing stop has its own way: it starts at the entry)."""
    if spec.type == "max_hold":
        return protection.arm_hold(state, account, position, spec, trade=trade)
    return arm_clock(state, account, spec, trade=trade, key=key)


def arm_clock(
    state: State, account: Account, spec: GuardianSpec, *, trade: str | None = None, key: str | None = None
) -> Guardian:
    """Arm a guardian of the whole account. A new dead-man switch lifts the block of one that fired, if it acts wherever that one does."""
    account.guardian_seq += 1
    guardian = Guardian(
        number=account.guardian_seq, account=account.id, spec=spec, created_ms=state.now_ms, trade=trade, key=key
    )
    if spec.type == "dead_man_switch":
        latched = [g for g in account.guardians.values() if g.spec.type == spec.type and g.status == "latched"]
        for old in latched:
            if limits.covers(state, guardian, old):
                firing.release(state, account, old, "manual")
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
    if spec.type == "kill_switch":  # An order's: its fill is still being booked, so it acts right after.
        guardian.deadline_ms = state.now_ms
        index.schedule_guardian(state, account, guardian)
    if spec.type == floors.TYPE:
        floors.begin_day(account, state.now_ms, ledger.account_value(state, account))
        index.schedule_day(state)
        ledger.rewatch_floor(state, account)
    return guardian


def kill(state: State, account: Account, command: Kill) -> firing.Killed | Refusal:
    """The kill switch by its own route."""
    if command.idempotency_key is not None and account.is_fenced(command.idempotency_key):
        return Refusal("idempotency_conflict", "the account was reset after this key was used", fix={"action": "resync"},
                       details={"reason": "account_reset", "epoch": account.epoch})  # fmt: skip
    if command.expires_ms is not None and state.now_ms > command.expires_ms:
        return Refusal(
            "idempotency_conflict", "the request arrived after its X-Expires-After", details={"reason": "expired"}
        )
    action = "flatten" if command.flatten else "cancel_orders"
    return _kill(state, account, GuardianSpec("kill_switch", "account", action=action, bounded=True), command.key)


def _kill(state: State, account: Account, spec: GuardianSpec, key: str | None) -> firing.Killed:
    """A kill is never refused. A second one acts again by the guardian that stands, so that one DELETE lifts them all."""
    for guardian in account.guardians.values():
        if guardian.spec.type == "kill_switch" and guardian.status == "latched":
            guardian.spec, guardian.key = spec, key
            return firing.kill(state, account, guardian)
    account.guardian_seq += 1
    guardian = Guardian(
        number=account.guardian_seq, account=account.id, spec=spec, created_ms=state.now_ms, status="latched", blocks_opens=True, key=key,
    )  # fmt: skip
    account.guardians[guardian.number] = guardian
    emit_guardian(state, account, guardian, "armed")
    return firing.kill(state, account, guardian)


def disarm(state: State, account: Account, guardian_ref: str) -> Guardian | Refusal:
    for guardian in account.guardians.values():
        if guardian_id(account, guardian.number) == guardian_ref:
            if guardian.spec.type == "trailing_stop" and guardian.spec.coin is not None:
                index.unwatch_trail(state.markets[guardian.spec.coin], guardian)
            firing.release(state, account, guardian, "user", subtype="disarmed")
            return guardian
    return Refusal("not_found", f"no guardian {guardian_ref}")


def beat(state: State, account: Account, ahead_ms: int = 0) -> tuple[Guardian, ...]:
    """A heartbeat: every armed dead-man switch has its whole time again. One that fired is not brought back by it."""
    beaten = []
    for guardian in account.guardians.values():
        if guardian.spec.type == "dead_man_switch" and guardian.status == "armed":
            assert guardian.spec.heartbeat_seconds is not None
            guardian.deadline_ms = state.now_ms + ahead_ms + guardian.spec.heartbeat_seconds * 1000
            guardian.last_heartbeat_ms = state.now_ms
            beaten.append(guardian)
    return tuple(beaten)


def fire_trail(state: State, account: Account, market: Market, guardian: Guardian, ref_px: int) -> None:
    """The trail was reached: close reduce-only around `ref_px`. The bracket goes with the position."""
    index.unwatch_trail(market, guardian)
    firing.close_position(state, account, market, guardian, ref_px, "trail")


def move_trail(state: State, account: Account, market: Market, guardian: Guardian, px: int) -> None:
    """A new extreme (or the activation): the stop follows, and never loosens."""
    index.unwatch_trail(market, guardian)
    woke = not guardian.active
    guardian.active, guardian.extreme = True, px
    stop = outcome.clamp(market.spec, guardians.trail_stop(guardian))
    if guardian.stop_px is None or (stop - guardian.stop_px) * guardian.side > 0:
        guardian.stop_px = stop
    guardian.born = market.point
    index.watch_trail(market, guardian)
    if woke:
        emit_guardian(state, account, guardian, "activated", mark=px)
