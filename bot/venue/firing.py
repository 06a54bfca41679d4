"""What guardians do when their instant comes: at a deadline, at a floor, at a kill. When that is: guardians.py, floors.py, cron.py.

Several in one step: liquidation, kill, drawdown, stop and trailing stop, dead-man switch, max_hold, schedule. Those of the clock stand in
this order in the heap (index.CLOCK_RANKS), those of a price in the level lists (index.RANKS).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bot.errors import Refusal
from bot.venue import cron, floors, index, ledger, limits, orders, protection, quote
from bot.venue.protection import emit_guardian
from bot.venue.state import (
    DAY_MS,
    Account,
    Guardian,
    Key,
    Market,
    OrderSpec,
    Position,
    State,
    guardian_id,
    oid_text,
    trade_id,
)

BLOCKING: Final = ("flatten", "block_opens")


@dataclass(slots=True)
class Killed:
    """A kill's guardian and what it did."""

    guardian: Guardian
    canceled: tuple[str, ...]
    trades: tuple[str, ...]


def fire_clock(state: State, account: Account, guardian: Guardian) -> None:
    """A guardian's deadline has come."""
    BY_CLOCK[guardian.spec.type](state, account, guardian)


def release(state: State, account: Account, guardian: Guardian, reason: str, *, subtype: str = "released") -> None:
    """Let a guardian go, and with it what it blocked and watched."""
    del account.guardians[guardian.number]
    guardian.blocks_opens = False
    guardian.deadline_ms = None
    emit_guardian(state, account, guardian, subtype, reason=reason)
    if guardian.spec.type == floors.TYPE:
        ledger.rewatch_floor(state, account)


def _count(state: State, guardian: Guardian) -> None:
    guardian.fired_ms, guardian.fire_count = state.now_ms, guardian.fire_count + 1


# ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def act(
    state: State, account: Account, guardian: Guardian, action: str, reason: str, *, kind: str = "guardian"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write that it fired and what it is about to do, cancel what could open, close what shall be closed. Answers the orders canceled and the trades made."""
    # The event stands before its effects (responses.md) and names them: each exit below makes one trade, in this order.
    sweeps = action in ("cancel_orders", "flatten")
    entries = [one for one in orders.entries(account) if limits.reaches(state, guardian, one.coin)] if sweeps else []
    gone = tuple(oid_text(account, order.number) for order in entries)
    leaving = _staying(state, account, guardian) if action == "flatten" else []
    trades = tuple(trade_id(account, account.trade_seq + n) for n in range(1, len(leaving) + 1))
    emit_guardian(state, account, guardian, "fired", reason=reason, action=action, value=ledger.account_value(state, account), canceled=gone,
                  trades=trades)  # fmt: skip
    orders.cancel_each(state, account, entries, kind)
    for (position, size), trade in zip(leaving, trades, strict=True):
        market = state.markets[position.coin]
        made = orders.force_exit(state, account, market, position, size=size, kind=kind, reason=kind, ref_px=market.mid,
                                 guardian=guardian_id(account, guardian.number))  # fmt: skip
        assert made.id == trade
    return gone, trades


def _staying(state: State, account: Account, guardian: Guardian) -> list[tuple[Position, int]]:
    """Positions that the guardian may close, each with as much of it as no exit is at work on already."""
    held = [position for position in account.positions.values() if limits.reaches(state, guardian, position.coin)]
    found = [(position, _left(state, account, position)) for position in held]
    return [(position, size) for position, size in found if size]


def _left(state: State, account: Account, position: Position) -> int:
    """How much of a position stays when the exits at work on it are done: what was added since they began is none of theirs."""
    at_work = [o for o in protection.working_exits(account, state.markets[position.coin]) if o.kind == "close"]
    return max(0, position.size - sum(order.size - order.filled for order in at_work))


def close_position(
    state: State, account: Account, market: Market, guardian: Guardian, ref_px: int, reason: str
) -> None:
    """A guardian that closes its position once: reduce-only around `ref_px`. The bracket goes with the position, the guardian with its work."""
    del account.guardians[guardian.number]
    guardian.deadline_ms = None
    _count(state, guardian)
    position = account.positions[market.spec.coin]
    left = _left(state, account, position)
    # Where the market has no price the exit waits for one, and the bracket stays until then.
    children = [] if not left or market.px_at(state.now_ms) is None else [
        account.orders[oid]
        for oid in (position.stop_oid, position.target_oid)
        if oid is not None and account.orders[oid].status == "armed"
    ]  # fmt: skip
    trades = (trade_id(account, account.trade_seq + 1),) if left else ()
    emit_guardian(state, account, guardian, "fired", reason=reason, mark=market.mark, action="close",
                  canceled=tuple(oid_text(account, o.number) for o in children), trades=trades)  # fmt: skip
    if not left:  # An exit of the whole is under way; a second one would only stand beside it.
        return
    for child in children:
        protection.drop_child(state, account, market, position, child, "guardian")
    orders.force_exit(state, account, market, position, size=left, kind="guardian", reason="guardian", ref_px=ref_px,
                      guardian=guardian_id(account, guardian.number))  # fmt: skip


# ── By the clock ────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _prices_of_now(state: State) -> Iterator[None]:
    """A deadline lies between two points: while this lasts each market whose prices come in bars has the price of that instant."""
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


def _fire_dead_man(state: State, account: Account, guardian: Guardian) -> None:
    """A dead-man switch has seen no heartbeat: do its onMiss, once."""
    action = guardian.spec.on_miss or "cancel_orders"
    guardian.status = "latched"
    _count(state, guardian)
    guardian.blocks_opens = action in BLOCKING
    guardian.deadline_ms = None
    with _prices_of_now(state):
        act(state, account, guardian, action, "deadline")
    if not guardian.blocks_opens:
        del account.guardians[guardian.number]


def _fire_hold(state: State, account: Account, guardian: Guardian) -> None:
    """A position has been held as long as it may."""
    market = state.markets[guardian.spec.coin or ""]
    with _prices_of_now(state):
        close_position(state, account, market, guardian, market.mid, "time")


def _fire_schedule(state: State, account: Account, guardian: Guardian) -> None:
    """A minute that the cron expression names: one action, or one order by the ordinary path."""
    spec = guardian.spec
    assert spec.cron is not None
    assert guardian.deadline_ms is not None
    guardian.deadline_ms = cron.next_run(cron.parse(spec.cron), guardian.deadline_ms + 1)
    _count(state, guardian)
    if guardian.deadline_ms is not None:
        index.schedule_guardian(state, account, guardian)
    key = state.keys[guardian.key] if guardian.key is not None else None
    if spec.order is None:
        assert spec.action is not None
        if spec.bounded and (ended := _end_of(state, key)) is not None:
            emit_guardian(state, account, guardian, "fired", reason="skipped", code=ended.code)
            return
        if spec.action in BLOCKING:
            guardian.status, guardian.blocks_opens = "latched", True
        with _prices_of_now(state):
            act(state, account, guardian, spec.action, "schedule")
        return
    from bot.venue import matching  # The one way back: a price fires guardians, a scheduled order may meet the price.

    quoted = _refuse_caller(state, spec.order, key) or quote.quote(state, account, spec.order, key)
    if isinstance(quoted, Refusal):
        emit_guardian(state, account, guardian, "fired", reason="skipped", code=quoted.code)
        return
    trade = trade_id(account, account.trade_seq + 1)
    value = ledger.account_value(state, account)
    emit_guardian(state, account, guardian, "fired", reason="schedule", value=value, trades=(trade,))
    placed = orders.execute(state, account, spec.order, quoted, key, None, None)
    assert placed.trade.id == trade
    placed.trade.guardian = guardian_id(account, guardian.number)
    matching.sweep(state, state.markets[spec.order.coin])


def _end_of(state: State, key: Key | None) -> Refusal | None:
    """Why a schedule does nothing more, if so: its key has ended."""
    if key is None:
        return None
    if key.revoked:
        return Refusal("unauthorized", "the key that armed this schedule has been revoked")
    if key.expires_ms is not None and state.now_ms >= key.expires_ms:
        return Refusal("session_expired", "the key that armed this schedule has expired")
    return None


def _refuse_caller(state: State, order: OrderSpec, key: Key | None) -> Refusal | None:
    """A scheduled order is its key's order: none after the key has ended, none that the key could not place."""
    if key is None:
        return None
    if (ended := _end_of(state, key)) is not None:
        return ended
    market = state.markets.get(order.coin)  # None: judged by the quote.
    if market is not None and not limits.has_scope(key, market.spec):
        return Refusal("forbidden", f"the key that armed this schedule lacks the scope for {order.coin}")
    return None


# ── Drawdown ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _clock_of_drawdown(state: State, account: Account, guardian: Guardian) -> None:
    """A floor that something other than a price has reached; or, while latched, the end of the day that it blocked."""
    if guardian.status == "armed":
        fire_drawdown(state, account, guardian)
        return
    guardian.status, guardian.blocks_opens, guardian.deadline_ms = "armed", False, None
    emit_guardian(state, account, guardian, "released", reason="day_end")
    emit_guardian(state, account, guardian, "armed", reason="day_end")
    ledger.rewatch_floor(state, account)


def fire_drawdown(state: State, account: Account, guardian: Guardian) -> None:
    """The day's loss is the greatest allowed: do its action and block openings until 00:00 UTC."""
    guardian.status, guardian.blocks_opens = "latched", True
    _count(state, guardian)
    guardian.deadline_ms = state.now_ms // DAY_MS * DAY_MS + DAY_MS
    index.schedule_guardian(state, account, guardian)
    act(state, account, guardian, guardian.spec.action or "flatten", "drawdown")
    ledger.rewatch_floor(state, account)


def touch_floor(state: State, account: Account, market: Market) -> None:
    """A price has used up a position's share of the slack above the floor: judge the account as it stands at this price."""
    value = ledger.account_value(state, account)
    if floors.is_rolling(state) or not floors.armed(account):
        floors.rewatch(state, account, value)
        return
    found = floors.breached(account, value)
    for guardian in found:
        fire_drawdown(state, account, guardian)
    if not found:
        floors.widen(state, account, market, value)


def begin_day(state: State) -> None:
    """00:00 UTC: what accounts with positions or a floor are worth now is what today's loss is measured from."""
    state.next_day_ms = 0
    kept = False
    for account in state.accounts.values():
        if account.positions or floors.is_watched(account):
            kept = True
            floors.begin_day(account, state.now_ms, ledger.account_value(state, account))
            ledger.rewatch_floor(state, account)
    if kept:
        index.schedule_day(state)


# ── Kill ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kill(state: State, account: Account, guardian: Guardian) -> Killed:
    """Act at arming and block openings until somebody lifts it."""
    guardian.status, guardian.blocks_opens, guardian.deadline_ms = "latched", True, None
    _count(state, guardian)
    canceled, trades = act(state, account, guardian, guardian.spec.action or "cancel_orders", "manual", kind="kill")
    return Killed(guardian, canceled, trades)


def _fire_kill(state: State, account: Account, guardian: Guardian) -> None:
    """An order's inline kill_switch acts right after the fill that armed it, at the same instant."""
    kill(state, account, guardian)


BY_CLOCK: Final[dict[str, Callable[[State, Account, Guardian], None]]] = {
    "dead_man_switch": _fire_dead_man,
    "max_hold": _fire_hold,
    "schedule": _fire_schedule,
    "account_drawdown": _clock_of_drawdown,
    "kill_switch": _fire_kill,
}
