"""Keeps the stop and the target of each position at an exchange: places a missing order, cancels an unwanted one.

`phase` names what the exchange has of a level. No step of ours takes a stop away before another one stands, and the
venue guards a level itself while the exchange has no order for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from bot.model.events import triggered
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import (
    ExchangeAccount,
    PositionProtection,
    ProtectionOrder,
    State,
    VenueAccount,
    VenueGuardian,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    guardian_id,
    oid_text,
    side_name,
    trade_id,
)
from bot.venue.orders import exchange_actions, exchange_levels, exits
from bot.venue.orders.exchange_actions import ENDED
from bot.venue.orders.exchange_levels import KINDS, MUTED, ProtectionLevel, own, placed, wanted
from bot.venue.prices import index
from bot.venue.protection import protection

# carried: the children of an entry wait for its whole fill. children, standing: an order there has the level and the
# size. placing: one is asked for. moving: it stands at another level, and the new one is asked for. firing: it was
# reached. naked: the venue alone guards the level.
Phase = Literal["carried", "children", "placing", "standing", "moving", "firing", "naked"]
# An order that was reached has so long to fill before the venue exits by itself.
FIRING_MS: Final = 3_000
# The answer to an entry says after the first fill whether all of it has filled, and so whether its children stand.
ANSWER_MS: Final = 1_000
# The exchange cancels the orders of a position that is gone. What is left after this, the venue cancels.
GONE_MS: Final = 1_000
# Pauses before another order is asked for after refusals in a row; after the last one the venue exits.
PAUSES_MS: Final = (1_000, 2_000, 4_000)
# The exchange refuses a level that its price has passed.
PASSED: Final = "invalid_input"


# ── What stands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_filled(exchange: ExchangeAccount, child: ProtectionOrder) -> bool:
    """True if the entry of a child has filled whole. One that was forgotten has."""
    action = exchange.actions.get(child.nonce)
    return action is None or action.filled >= action.size


def _covers(
    account: VenueAccount, position: VenuePosition, level: ProtectionLevel, there: ProtectionOrder, *, whole: bool
) -> bool:
    """True if an order at the exchange stands at the wanted level for all of the position."""
    if there.status != "there" or (there.side, there.px) != (position.side, level.px):
        return False
    if not there.size:
        return True
    return not whole and there.size == position.size and _is_filled(exchange_actions.known(account), there)


def covering(account: VenueAccount, coin: str, kind: str) -> ProtectionOrder | None:
    """The order at the exchange that has the wanted level of this market; None if there is none."""
    position, level = account.positions.get(coin), wanted(account, coin, kind)
    if position is None or level is None:
        return None
    whole = _is_added_to(account, coin)
    there, leaving = placed(account, coin, kind), exchange_actions.leaving(account)
    staying = [order for order in there if order.client_order_id not in leaving]
    fitting = [order for order in staying if _covers(account, position, level, order, whole=whole)]
    fitting = [
        order for order in fitting if not any(_is_later(account, rival, order) for rival in _rivals(account, order))
    ]
    return min(fitting, key=lambda order: (order.size, -order.nonce), default=None)


def _rivals(account: VenueAccount, order: ProtectionOrder) -> list[ProtectionOrder]:
    """The other orders of the whole position. An exchange may let one take the place of the one before it."""
    if order.size:
        return []
    known = exchange_actions.known(account).protection_orders.values()
    return [o for o in known if (o.coin, o.kind, o.size) == (order.coin, order.kind, 0) and o is not order]


def _is_later(account: VenueAccount, rival: ProtectionOrder, order: ProtectionOrder) -> bool:
    """True if the exchange may have performed a rival after an order, and so in its place."""
    actions = exchange_actions.known(account).actions
    action, asked = actions.get(rival.nonce), actions.get(order.nonce)
    if action is None:
        return rival.status == "there" and rival.nonce > order.nonce
    if not action.over_ms or action.status in exchange_actions.NO_ORDER:
        return False
    return asked is None or action.over_ms > asked.made_ms


def _may_cancel(
    account: VenueAccount, watched: PositionProtection, kept: ProtectionOrder, order: ProtectionOrder
) -> bool:
    """The rule for every cancel beside a position: no stop goes before another one stands for certain, and none gives
    way to a looser one unless a looser one is wanted.
    """
    actions = exchange_actions.known(account).actions
    asked = [actions.get(rival.nonce) for rival in _rivals(account, kept)]
    if any(action is not None and not action.over_ms for action in asked):
        return False
    return order.side != kept.side or exchange_levels.may_loosen(watched, order, kept.px)


def _is_added_to(account: VenueAccount, coin: str) -> bool:
    """True while an order without children may add to the position: then its stop must follow the size."""
    exchange = exchange_actions.known(account)
    parents = {
        action.oid
        for there in exchange.protection_orders.values()
        if there.size and (action := exchange.actions.get(there.nonce)) is not None
    }
    return any(
        order.coin == coin and order.kind in ("market", "limit") and not order.reduce_only
        for order in account.orders.values()
        if order.number not in parents
    )


def phase(account: VenueAccount, coin: str, kind: str) -> Phase | None:
    """What the exchange has of a level; None: there is none to be had."""
    there, reached = placed(account, coin, kind), _reached(account, coin, kind)
    if not reached and wanted(account, coin, kind) is None:
        return "carried" if any(exchange_actions.is_carried(account, order) for order in there) else None
    if reached or any(order.status == "fired" for order in there):
        return "firing"
    if (kept := covering(account, coin, kind)) is not None:
        return "children" if kept.size else "standing"
    if not any(order.status == "asked" and not order.size for order in there):
        return "naked"
    return "moving" if any(order.status == "there" and not order.size for order in there) else "placing"


# ── What is done ────────────────────────────────────────────────────────────────────────────────────────────────────


def settle(state: State, account: VenueAccount) -> None:
    """Bring the exchange's stops and targets of all markets to what the positions need now."""
    for coin in list(exchange_actions.known(account).protections):
        settle_coin(state, account, coin)


def settle_coin(state: State, account: VenueAccount, coin: str) -> None:
    """Place the missing orders of one market, cancel the unwanted ones, and note when to do so again."""
    exchange = exchange_actions.known(account)
    watched, now_ms = exchange.protections[coin], state.now_ms
    position = account.positions.get(coin)
    if position is not None:
        watched.gone_ms = 0
    elif not watched.gone_ms:
        watched.gone_ms, watched.refused, watched.again_ms, watched.fired = now_ms, 0, 0, None
    instants: list[int] = []
    if position is not None:
        instants += _watch_exits(state, account, watched, position)
    if (step_ms := exchange_levels.step(state, account, watched, coin)) is not None:
        instants.append(step_ms)
    for kind in KINDS:
        level = wanted(account, coin, kind)
        if position is None or level is None:
            instants += _clear(state, account, watched, coin, kind)
        else:
            instants += _cover(state, account, watched, position, level)
    future = [at_ms for at_ms in instants if at_ms > now_ms]
    watched.due_ms = min(future, default=None)
    if watched.due_ms is not None:
        index.schedule_protection(state, account, coin, watched.due_ms)
    for name, order in list(exchange.protection_orders.items()):
        if order.status == "ended" and order.nonce not in exchange.actions:
            del exchange.protection_orders[name]


def _clear(state: State, account: VenueAccount, watched: PositionProtection, coin: str, kind: str) -> Iterable[int]:
    """Cancel the orders of a level that is not wanted any more. A level that a caller has canceled ends with them."""
    there, level = placed(account, coin, kind), own(account, coin, kind)
    standing = [order for order in there if order.status == "there"]
    if level is None and _is_exit_at_work(state, account, coin):
        return
    # An entry without a fill keeps its children.
    left = [order for order in standing if level is not None or not exchange_actions.is_carried(account, order)]
    is_over_ms = watched.gone_ms + GONE_MS if watched.gone_ms else 0
    if left and state.now_ms < is_over_ms:
        yield is_over_ms
    else:
        exchange_actions.cancel_protection(state, account, left)
    if level is not None and not any(order.status not in ENDED for order in there):
        _drop_canceled(state, account, level)


def _drop_canceled(state: State, account: VenueAccount, level: VenueOrder) -> None:
    """A level that a caller has canceled ends."""
    if level.reason is not None:
        position = account.positions[level.coin]
        protection.drop_child(state, account, state.markets[level.coin], position, level, level.reason)


def _is_exit_at_work(state: State, account: VenueAccount, coin: str) -> bool:
    """True while an exit of the position works. What stands of its stop is not taken away then, nor loosened."""
    return coin in account.positions and bool(protection.working_exits(account, state.markets[coin]))


def _cover(
    state: State, account: VenueAccount, watched: PositionProtection, position: VenuePosition, level: ProtectionLevel
) -> Iterable[int]:
    """Keep one order of a level: the others go when it stands, and it is asked for if there is none."""
    exchange, now_ms, coin = exchange_actions.known(account), state.now_ms, position.coin
    there, kept = placed(account, coin, level.kind), covering(account, coin, level.kind)
    if level.trail is not None and (canceled := own(account, coin, level.kind)) is not None:
        _drop_canceled(state, account, canceled)
    if any((o.status, o.side, o.size) == ("there", position.side, 0) for o in there) and _is_exit_at_work(
        state, account, coin
    ):
        return
    if kept is not None:
        if level.kind == "stop_loss":
            watched.refused, watched.again_ms = 0, 0
        others = [
            order for order in there if order is not kept and (order.status == "there" or _is_unknown(exchange, order))
        ]
        unwanted = [order for order in others if _may_cancel(account, watched, kept, order)]
        exchange_actions.cancel_protection(state, account, unwanted)
        return
    waits_ms = _waits_until(exchange, position, level, there)
    if waits_ms is None:
        return
    if max(waits_ms, watched.again_ms) > now_ms:
        yield max(waits_ms, watched.again_ms)
        return
    for order in there:
        if order.status == "fired":
            order.status = "ended"
    exchange_actions.protect(state, account, position, level.kind, level.px)


def _is_unknown(exchange: ExchangeAccount, order: ProtectionOrder) -> bool:
    """True if the action of an order is over, and nothing was heard of the order itself."""
    action = exchange.actions.get(order.nonce)
    return order.status == "asked" and (action is None or bool(action.over_ms))


def _waits_until(
    exchange: ExchangeAccount, position: VenuePosition, level: ProtectionLevel, there: list[ProtectionOrder]
) -> int | None:
    """When an order of a level may be asked for; None: one is on its way."""
    until_ms = 0
    for order in there:
        if order.status == "fired":
            until_ms = max(until_ms, order.fired_ms + FIRING_MS)
            continue
        action = exchange.actions.get(order.nonce)
        if action is None:
            continue
        if not order.size:
            if not action.over_ms and order.status == "asked" and order.px == level.px:
                return None
        elif order.status == "asked" and (not action.over_ms or action.filled == position.size == order.size):
            # The answer, or a report, will say whether the entry has filled whole and its children stand.
            until_ms = max(until_ms, position.opened_ms + ANSWER_MS)
        elif not action.over_ms and action.owed == action.size == order.size:
            # It has: its other fills are on their way here.
            until_ms = max(until_ms, position.opened_ms + FIRING_MS)
    return until_ms


# ── Guarding ────────────────────────────────────────────────────────────────────────────────────────────────────────


def reach(state: State, account: VenueAccount, coin: str, kind: str, owner: VenueOrder | VenueGuardian) -> None:
    """The price has reached a level: the order at the exchange fires, or the venue exits if that does not stand there
    or is not reached.
    """
    watched, market = exchange_actions.known(account).protections[coin], state.markets[coin]
    owner.born = MUTED
    kept = covering(account, coin, kind)
    fires = kept is not None and _is_beyond(account.positions[coin], market, kind, kept.px)
    watched.exit_ms = state.now_ms + FIRING_MS if fires else state.now_ms
    settle_coin(state, account, coin)


def _is_beyond(position: VenuePosition, market: VenueMarket, kind: str, px: int) -> bool:
    """True if the price has reached a level or has passed it."""
    gain = (market.mark - px) * position.side
    return gain <= 0 if kind == "stop_loss" else gain >= 0


def _reached(account: VenueAccount, coin: str, kind: str) -> list[ProtectionLevel]:
    """The levels that the price has reached, and that the exchange or the venue exits at."""
    return [level for level in exchange_levels.levels(account, coin, kind) if level.owner.born >= MUTED]


def _watch_exits(
    state: State, account: VenueAccount, watched: PositionProtection, position: VenuePosition
) -> Iterable[int]:
    """Exit at a level that was reached and still is, if the exchange has not done it in time."""
    market, waits_ms = state.markets[position.coin], max(watched.exit_ms, state.now_ms + FIRING_MS)
    is_waiting = state.now_ms < watched.exit_ms or bool(protection.working_exits(account, market))
    for level in [level for kind in KINDS for level in _reached(account, position.coin, kind)]:
        if is_waiting:
            yield waits_ms
        elif _is_beyond(position, market, level.kind, level.exact_px):
            leave(state, account, position, level)
            yield waits_ms
        else:
            level.owner.born = market.point
    yield from _close_rest(state, account, watched, position)


def _close_rest(
    state: State, account: VenueAccount, watched: PositionProtection, position: VenuePosition
) -> Iterable[int]:
    """Close what a trailing stop has left at the exchange: it has fired, and fires once."""
    market = state.markets[position.coin]
    if watched.fired is None or watched.fired[1] != position.side:
        watched.fired = None
    elif state.now_ms < watched.exit_ms:
        yield watched.exit_ms
    elif not protection.working_exits(account, market):
        size, by = position.size, watched.fired[0]
        exits.force_exit(state, account, market, position, size=size, kind="guardian", ref_px=market.mid, guardian=by)


def leave(state: State, account: VenueAccount, position: VenuePosition, level: ProtectionLevel) -> None:
    """Close the position at the price of now, as its stop, target or trailing stop would have."""
    market = state.markets[position.coin]
    if protection.working_exits(account, market):
        return
    if level.trail is not None:
        fire_trail(state, account, market, level.trail)
        exits.close_position(state, account, market, level.trail, market.mid, "trail")
        return
    level.owner.born = MUTED
    told = (
        account.id,
        next_seq(account),
        state.now_ms,
        level.kind,
        position.coin,
        oid_text(account, level.owner.number),
        trade_id(account, account.trade_seq + 1),
        side_name(position.side),
        position.size,
        level.exact_px,
        market.mark,
    )
    emit(state, account, triggered(told))
    exits.force_exit(state, account, market, position, size=position.size, kind=level.kind, ref_px=market.mid)


def fire_trail(state: State, account: VenueAccount, market: VenueMarket, trail: VenueGuardian) -> None:
    """A trailing stop fires, here or at the exchange. What is left of its position is closed a little later."""
    watched = exchange_actions.known(account).protections[market.spec.coin]
    watched.fired = (guardian_id(account, trail.number), trail.side)
    watched.exit_ms = state.now_ms + FIRING_MS
    index.unwatch_trail(market, trail)


def refused(state: State, account: VenueAccount, order: ProtectionOrder, code: str | None) -> None:
    """The exchange has refused a stop or target of the whole position: it is asked for again, or the venue exits."""
    watched = exchange_actions.known(account).protections[order.coin]
    position, level = account.positions.get(order.coin), wanted(account, order.coin, order.kind)
    pause_ms = PAUSES_MS[min(watched.refused, len(PAUSES_MS) - 1)]
    watched.again_ms = state.now_ms + pause_ms
    if code != PASSED and exchange_levels.step_refused(account, watched, order):
        return
    watched.refused += 1
    is_last = order.kind == "stop_loss" and (code == PASSED or watched.refused > len(PAUSES_MS))
    if is_last and position is not None and level is not None and level.px == order.px:
        leave(state, account, position, level)


def begin(account: VenueAccount, coin: str) -> None:
    """From now on the protection of this market is kept."""
    exchange_actions.known(account).protections.setdefault(coin, PositionProtection())
