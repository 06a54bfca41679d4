"""Commands of callers about guardians: arm, disarm, kill, heartbeat."""

from __future__ import annotations

from bot.errors import Refusal
from bot.venue.accounting import limits
from bot.venue.model.commands import Kill
from bot.venue.model.refusals import no_market
from bot.venue.model.state import GUARDIANS_MAX, GuardianSpec, State, VenueAccount, VenueGuardian, guardian_id
from bot.venue.orders import protection_orders
from bot.venue.prices import index
from bot.venue.protection import guardian_lifecycle, guardians, protection
from bot.venue.protection.protection import emit_guardian
from bot.venue.triggers import guardian_actions


def arm(state: State, account: VenueAccount, spec: GuardianSpec, *, key: str | None = None) -> VenueGuardian | Refusal:
    """Arm the guardian of a caller's request."""
    whole = guardians.normalise(spec)
    if isinstance(whole, Refusal):
        return whole
    if whole.type == "kill_switch":
        return _kill(state, account, whole, key).guardian
    if limits.guardians_there(account) >= GUARDIANS_MAX:
        return Refusal(
            "limit_exceeded",
            f"{GUARDIANS_MAX} guardians are armed or attached to resting orders, the most that an account may have",
            fix={"action": "disarm"},
        )
    if whole.order is not None and whole.order.coin not in state.markets:
        return no_market(whole.order.coin, state.markets, field="orderTemplate.market")
    if whole.coin is None:
        return guardian_lifecycle.arm_account_guardian(state, account, whole, key=key)
    market = state.markets.get(whole.coin)
    if market is None:
        return no_market(whole.coin, state.markets)
    position = account.positions.get(whole.coin)
    if position is None:
        return Refusal(
            "not_found",
            f"a {whole.type} needs an open position in {whole.coin}, or an order to attach it to",
            fix={"action": "open_first"},
        )
    if whole.type == "max_hold":
        return protection.arm_hold(state, account, position, whole)
    if position.r_px is None and (whole.trail_r is not None or whole.activate_at_r is not None):
        return guardians.needs_stop(whole)
    if account.exchange is not None:
        protection_orders.begin(account, whole.coin)
    return protection.arm_trail(state, account, market, position, whole, extreme=market.mark)


def kill(state: State, account: VenueAccount, command: Kill) -> guardian_actions.KillEffects | Refusal:
    """POST /v1/account/kill."""
    if command.idempotency_key is not None and account.is_fenced(command.idempotency_key):
        return Refusal(
            "idempotency_conflict",
            "the account was reset after this key was used",
            fix={"action": "resync"},
            details={"reason": "account_reset", "epoch": account.epoch},
        )
    if command.expires_ms is not None and state.now_ms > command.expires_ms:
        return Refusal(
            "idempotency_conflict", "the request arrived after its X-Expires-After", details={"reason": "expired"}
        )
    action = "flatten" if command.flatten else "cancel_orders"
    return _kill(state, account, GuardianSpec("kill_switch", "account", action=action, bounded=True), command.key)


def _kill(state: State, account: VenueAccount, spec: GuardianSpec, key: str | None) -> guardian_actions.KillEffects:
    """A kill is never refused.

    A second kill acts again through the same guardian, so that one DELETE lifts the block.
    """
    for guardian in account.guardians.values():
        if guardian.spec.type == "kill_switch" and guardian.status == "latched":
            guardian.spec, guardian.key = spec, key
            return guardian_actions.kill(state, account, guardian)
    account.guardian_seq += 1
    guardian = VenueGuardian(
        number=account.guardian_seq,
        account=account.id,
        spec=spec,
        created_ms=state.now_ms,
        status="latched",
        blocks_opens=True,
        key=key,
    )
    account.guardians[guardian.number] = guardian
    emit_guardian(state, account, guardian, "armed")
    return guardian_actions.kill(state, account, guardian)


def disarm(state: State, account: VenueAccount, guardian_ref: str) -> VenueGuardian | Refusal:
    for guardian in account.guardians.values():
        if guardian_id(account, guardian.number) == guardian_ref:
            if guardian.spec.type == "trailing_stop" and guardian.spec.coin is not None:
                index.unwatch_trail(state.markets[guardian.spec.coin], guardian)
            guardian_lifecycle.release(state, account, guardian, "user", subtype="disarmed")
            return guardian
    return Refusal("not_found", f"no guardian {guardian_ref}")


def beat(state: State, account: VenueAccount, ahead_ms: int = 0) -> tuple[VenueGuardian, ...]:
    """A heartbeat: every armed dead-man switch gets its whole interval again. A fired one stays latched."""
    beaten = []
    for guardian in account.guardians.values():
        if guardian.spec.type == "dead_man_switch" and guardian.status == "armed":
            assert guardian.spec.heartbeat_seconds is not None
            guardian.deadline_ms = state.now_ms + ahead_ms + guardian.spec.heartbeat_seconds * 1000
            guardian.last_heartbeat_ms = state.now_ms
            beaten.append(guardian)
    return tuple(beaten)
