"""What a guardian does at its deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bot import cron
from bot.errors import Refusal
from bot.venue.accounting import ledger, limits
from bot.venue.model.state import OrderSpec, State, VenueAccount, VenueGuardian, VenueKey, guardian_id, trade_id
from bot.venue.orders import exchange_entries, exits, orders
from bot.venue.orders.preview import preview_order
from bot.venue.prices import index
from bot.venue.protection.protection import GuardianEffects, emit_guardian
from bot.venue.storage import pages
from bot.venue.triggers import guardian_actions, matching


def fire_clock(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """Act on the deadline of a guardian."""
    BY_CLOCK[guardian.spec.type](state, account, guardian)


@contextmanager
def _prices_of_now(state: State) -> Iterator[None]:
    """Set the present price of each market whose prices come in bars, because the deadline may lie between two
    points.
    """
    points = [
        (market, market.mark, market.mid, px)
        for market in state.markets.values()
        if market.spec.bar_length_ms and (px := market.px_at(state.now_ms)) is not None
    ]
    for market, _, _, px in points:
        market.mark = market.mid = px
    yield
    for market, mark, mid, _ in points:
        market.mark, market.mid = mark, mid


def _fire_dead_man(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """A dead-man switch had no heartbeat in time: do its `onMiss` action once."""
    action = guardian.spec.on_miss or "cancel_orders"
    guardian.status = "latched"
    exits.count_fire(state, guardian)
    guardian.blocks_opens = action in guardian_actions.BLOCKING
    guardian.deadline_ms = None
    with _prices_of_now(state):
        guardian_actions.act(state, account, guardian, action, "deadline")
    if not guardian.blocks_opens:
        del account.guardians[guardian.number]


def _fire_hold(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """A position reached its maximum holding time."""
    market = state.markets[guardian.spec.coin or ""]
    with _prices_of_now(state):
        exits.close_position(state, account, market, guardian, market.mid, "time")


def _fire_schedule(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """Run a schedule: do its action, or place its order as a caller would."""
    spec = guardian.spec
    assert spec.cron is not None
    assert guardian.deadline_ms is not None
    guardian.deadline_ms = cron.next_run(cron.parse(spec.cron), guardian.deadline_ms + 1)
    exits.count_fire(state, guardian)
    if guardian.deadline_ms is not None:
        index.schedule_guardian(state, account, guardian)
    key = state.keys[guardian.key] if guardian.key is not None else None
    if spec.order is None:
        assert spec.action is not None
        if spec.bounded and (ended := _end_of(state, key)) is not None:
            emit_guardian(state, account, guardian, "fired", reason="skipped", effects=GuardianEffects(code=ended.code))
            return
        if spec.action in guardian_actions.BLOCKING:
            guardian.status, guardian.blocks_opens = "latched", True
        with _prices_of_now(state):
            guardian_actions.act(state, account, guardian, spec.action, "schedule")
        return
    preview = _refuse_caller(state, spec.order, key) or preview_order(state, account, spec.order, key)
    if account.exchange is not None and not isinstance(preview, Refusal):
        preview = exchange_entries.refuse(account, spec.order, preview, None) or preview
    if isinstance(preview, Refusal):
        emit_guardian(state, account, guardian, "fired", reason="skipped", effects=GuardianEffects(code=preview.code))
        return
    trade = trade_id(account, account.trade_seq + 1)
    value = ledger.account_value(state, account)
    emit_guardian(
        state, account, guardian, "fired", reason="schedule", value=value, effects=GuardianEffects(trades=(trade,))
    )
    placed = orders.execute(state, account, spec.order, preview, key, None, None)
    assert not isinstance(placed, Refusal)
    pages.trade_of(account, trade).guardian = guardian_id(account, guardian.number)
    matching.sweep(state, state.markets[spec.order.coin])


def _end_of(state: State, key: VenueKey | None) -> Refusal | None:
    """The refusal of a schedule whose key was revoked or has expired; None otherwise."""
    if key is None:
        return None
    if key.revoked:
        return Refusal("unauthorized", "the key that armed this schedule has been revoked")
    if key.expires_ms is not None and state.now_ms >= key.expires_ms:
        return Refusal("session_expired", "the key that armed this schedule has expired")
    return None


def _refuse_caller(state: State, order: OrderSpec, key: VenueKey | None) -> Refusal | None:
    """Refuse a scheduled order that its key could not place itself."""
    if key is None:
        return None
    if (ended := _end_of(state, key)) is not None:
        return ended
    # An unknown market is refused by its preview.
    market = state.markets.get(order.coin)
    if market is not None and not limits.has_scope(key, market.spec):
        return Refusal("forbidden", f"the key that armed this schedule lacks the scope for {order.coin}")
    return None


def _clock_of_drawdown(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """A fill or fee reached the floor; or, if latched, the day that the guardian blocked has ended."""
    if guardian.status == "armed":
        guardian_actions.fire_drawdown(state, account, guardian)
        return
    guardian.status, guardian.blocks_opens, guardian.deadline_ms = "armed", False, None
    emit_guardian(state, account, guardian, "released", reason="day_end")
    emit_guardian(state, account, guardian, "armed", reason="day_end")
    ledger.rewatch_floor(state, account)


def _fire_kill(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """An order's inline kill_switch acts just after the fill that armed it, at the same instant."""
    guardian_actions.kill(state, account, guardian)


BY_CLOCK: Final[dict[str, Callable[[State, VenueAccount, VenueGuardian], None]]] = {
    "dead_man_switch": _fire_dead_man,
    "max_hold": _fire_hold,
    "schedule": _fire_schedule,
    "account_drawdown": _clock_of_drawdown,
    "kill_switch": _fire_kill,
}
