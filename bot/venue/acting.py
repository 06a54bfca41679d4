"""What guardians do: arm, beat, fire at their instant, let go."""

from __future__ import annotations

from bot.errors import Refusal
from bot.venue import guardians, index, ledger, orders, protection
from bot.venue.protection import emit_guardian
from bot.venue.state import (
    GUARDIANS_MAX,
    Account,
    Guardian,
    GuardianSpec,
    Market,
    Position,
    State,
    guardian_id,
    oid_text,
    trade_id,
)  # fmt: skip


def arm(state: State, account: Account, spec: GuardianSpec) -> Guardian | Refusal:
    """Arm a guardian on the caller's word."""
    whole = guardians.normalise(spec)
    if isinstance(whole, Refusal):
        return whole
    if len(account.guardians) >= GUARDIANS_MAX:
        return Refusal(
            "limit_exceeded",
            f"{GUARDIANS_MAX} guardians are armed, the most an account may have",
            fix={"action": "disarm"},
        )
    if whole.type != "trailing_stop":
        return arm_clock(state, account, whole)
    assert whole.coin is not None
    market = state.markets.get(whole.coin)
    if market is None:
        return Refusal("not_found", f"no market {whole.coin}")
    position = account.positions.get(whole.coin)
    if position is None:
        return Refusal(
            "not_found",
            f"a trailing_stop needs an open position in {whole.coin}, or an order to ride on",
            fix={"action": "open_first"},
        )
    if position.r_px is None and (whole.trail_r is not None or whole.activate_at_r is not None):
        return guardians.needs_stop(whole)
    return protection.arm_trail(state, account, market, position, whole, extreme=market.mark)


def arm_clock(state: State, account: Account, spec: GuardianSpec, *, trade: str | None = None) -> Guardian:
    """Arm a guardian that waits for the clock. A new dead-man switch lifts the block of one that fired."""
    account.guardian_seq += 1
    guardian = Guardian(
        number=account.guardian_seq, account=account.id, spec=spec, created_ms=state.now_ms, trade=trade
    )
    assert spec.heartbeat_seconds is not None
    for old in [g for g in account.guardians.values() if g.spec.type == "dead_man_switch" and g.status == "latched"]:
        release(state, account, old, "manual")
    guardian.deadline_ms = state.now_ms + spec.heartbeat_seconds * 1000
    guardian.last_heartbeat_ms = state.now_ms
    account.guardians[guardian.number] = guardian
    index.schedule_guardian(state, account, guardian)
    emit_guardian(state, account, guardian, "armed")
    return guardian


def release(state: State, account: Account, guardian: Guardian, reason: str, *, subtype: str = "released") -> None:
    del account.guardians[guardian.number]
    guardian.blocks_opens = False
    emit_guardian(state, account, guardian, subtype, reason=reason)


def disarm(state: State, account: Account, guardian_ref: str) -> Guardian | Refusal:
    for guardian in account.guardians.values():
        if guardian_id(account, guardian.number) == guardian_ref:
            if guardian.spec.type == "trailing_stop" and guardian.spec.coin is not None:
                index.unwatch_trail(state.markets[guardian.spec.coin], guardian)
            release(state, account, guardian, "user", subtype="disarmed")
            return guardian
    return Refusal("not_found", f"no guardian {guardian_ref}")


def beat(state: State, account: Account) -> tuple[Guardian, ...]:
    """A heartbeat: every armed dead-man switch has its whole time again. One that fired is not brought back by it."""
    beaten = []
    for guardian in account.guardians.values():
        if guardian.spec.type == "dead_man_switch" and guardian.status == "armed":
            assert guardian.spec.heartbeat_seconds is not None
            guardian.deadline_ms = state.now_ms + guardian.spec.heartbeat_seconds * 1000
            guardian.last_heartbeat_ms = state.now_ms
            beaten.append(guardian)
    return tuple(beaten)


def fire_clock(state: State, account: Account, guardian: Guardian) -> None:
    """A dead-man switch has seen no heartbeat: do its onMiss, once."""
    action = guardian.spec.on_miss
    guardian.status, guardian.fired_ms, guardian.fire_count = "latched", state.now_ms, guardian.fire_count + 1
    guardian.blocks_opens = action in ("flatten", "block_opens")
    guardian.deadline_ms = None
    act(state, account, guardian, action or "cancel_orders", "deadline")
    if not guardian.blocks_opens:
        del account.guardians[guardian.number]


def act(state: State, account: Account, guardian: Guardian, action: str, reason: str) -> None:
    """Write that it fired and what it is about to do, cancel what could open, close what shall be closed."""
    # The event stands before its effects (responses.md) and names them: each exit below makes one trade, in this order.
    gone = tuple(oid_text(account, n) for n in account.resting) if action in ("cancel_orders", "flatten") else ()
    leaving = _without_exit(state, account) if action == "flatten" else []
    trades = tuple(trade_id(account, account.trade_seq + n) for n in range(1, len(leaving) + 1))
    emit_guardian(state, account, guardian, "fired", reason=reason, action=action, value=ledger.account_value(state, account), canceled=gone,
                  trades=trades)  # fmt: skip
    if action in ("cancel_orders", "flatten"):
        canceled = orders.cancel_entries(state, account, "guardian")
        assert canceled == gone
    for position, trade in zip(leaving, trades, strict=True):
        market = state.markets[position.coin]
        made = orders.force_exit(state, account, market, position, kind="guardian", reason="guardian", ref_px=market.mid,
                                 guardian=guardian_id(account, guardian.number))  # fmt: skip
        assert made.id == trade


def _without_exit(state: State, account: Account) -> list[Position]:
    """Positions that no exit of the whole is at work on already."""
    busy = {
        account.orders[n].coin
        for coin in account.positions
        for a, n in state.markets[coin].working
        if a == account.id and account.orders[n].kind == "close"
    }
    return [position for coin, position in account.positions.items() if coin not in busy]


def fire_trail(state: State, account: Account, market: Market, guardian: Guardian, ref_px: int) -> None:
    """The trail was reached: close reduce-only around `ref_px`. The bracket goes with the position."""
    index.unwatch_trail(market, guardian)
    del account.guardians[guardian.number]
    guardian.fired_ms, guardian.fire_count = state.now_ms, 1
    position = account.positions[market.spec.coin]
    children = [
        account.orders[oid]
        for oid in (position.stop_oid, position.target_oid)
        if oid is not None and account.orders[oid].status == "armed"
    ]
    emit_guardian(state, account, guardian, "fired", reason="trail", mark=market.mark, action="close",
                  canceled=tuple(oid_text(account, o.number) for o in children), trades=(trade_id(account, account.trade_seq + 1),))  # fmt: skip
    for child in children:
        protection.drop_child(state, account, market, position, child, "guardian")
    orders.force_exit(state, account, market, position, kind="guardian", reason="guardian", ref_px=ref_px,
                      guardian=guardian_id(account, guardian.number))  # fmt: skip


def move_trail(state: State, account: Account, market: Market, guardian: Guardian, px: int) -> None:
    """A new extreme (or the activation): the stop follows, and never loosens."""
    index.unwatch_trail(market, guardian)
    woke = not guardian.active
    guardian.active, guardian.extreme = True, px
    stop = guardians.trail_stop(guardian)
    if guardian.stop_px is None or (stop - guardian.stop_px) * guardian.side > 0:
        guardian.stop_px = stop
    guardian.born = market.point
    index.watch_trail(market, guardian)
    if woke:
        emit_guardian(state, account, guardian, "activated", mark=px)
