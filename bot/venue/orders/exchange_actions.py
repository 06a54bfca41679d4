"""Makes the actions of an account at an exchange: what the sandbox would execute, the exchange is asked to do.

An action is part of the state and made by the command that wants it, so the commit of the command is the commit of the
action. `bot/venue/exchange/action_reports.py` ends it. Another nonce for the same wish is given only when the action
before it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from bot.errors import Refusal
from bot.venue.model.record import note_action
from bot.venue.model.state import (
    DAY_MS,
    ExchangeAccount,
    ProtectionOrder,
    State,
    VenueAccount,
    VenueAction,
    VenueOrder,
    VenuePosition,
)
from bot.venue.storage import pages

# What goes first.
STOP_RANK: Final = 0
EXIT_RANK: Final = 1
CANCEL_RANK: Final = 2
ENTRY_RANK: Final = 3
# The exchange performs no action that is older by its own clock.
EXPIRY_MS: Final = 15_000
# Orders that one action cancels: it then weighs as little as one order.
CANCELS_MAX: Final = 39
# An action that is over answers a repeated request for so long.
KEPT_MS: Final = DAY_MS
# An exit that is not complete is asked for anew after this pause, which doubles while nothing comes of it.
AGAIN_MS: Final = 2_000
AGAIN_MAX_MS: Final = 32_000
# Each try of a key has an id of its own, and a key is known by one of so many.
ATTEMPTS_SEEN: Final = 16
# Stream of `ExchangeAccount.seen` with the ids of orders that the log does not know.
CLIENT: Final = "client"
UNDECIDED: Final = "undecided"
WAITING: Final = "entry_waits"
# status of an order that the exchange has not decided, and of a trade that never became an order there
SENT: Final = "sent"
VOID: Final = "void"
# ends of an action without an order
NO_ORDER: Final = ("refused", "void")
# statuses of protection orders that do not stand any more
ENDED: Final = ("fired", "ended")


@dataclass(slots=True)
class ActionsSent:
    """The answer of a command whose effect the exchange decides.

    `orders`: those that are to be canceled. `answer`: of a kill, which is told whatever has come of it by then.
    `trade`: of an entry, whose actions follow one after another. `clamped`, `warnings`: of its preview.
    """

    nonces: tuple[int, ...]
    orders: tuple[VenueOrder, ...] = ()
    answer: Any = None
    trade: str | None = None
    clamped: bool = False
    warnings: tuple[tuple[str, str], ...] = ()


def known(account: VenueAccount) -> ExchangeAccount:
    """What is known of the exchange of this account."""
    assert account.exchange is not None, account.id
    return account.exchange


def undecided(exchange: ExchangeAccount) -> list[VenueAction]:
    """Actions that are not over, oldest first."""
    return [action for action in exchange.actions.values() if not action.over_ms]


def of_key(exchange: ExchangeAccount, key: str) -> VenueAction | None:
    """The newest action of an idempotency key."""
    return next((action for action in reversed(exchange.actions.values()) if action.idempotency_key == key), None)


def of_trade(exchange: ExchangeAccount, trade: str | None) -> list[VenueAction]:
    """The actions of a trade, oldest first."""
    return [action for action in exchange.actions.values() if action.trade == trade and trade is not None]


def sent_order(account: VenueAccount, trade: str) -> VenueOrder | None:
    """The order of a trade that the exchange has not decided; None if there is none."""
    return next((o for o in account.orders.values() if o.trade == trade and o.status == SENT), None)


def order_of(account: VenueAccount, client_order_id: str | None) -> VenueOrder | None:
    """The order that has this id of ours, unless it has ended."""
    exchange = known(account)
    nonce = exchange.sent.get(client_order_id or "")
    return None if nonce is None else account.orders.get(exchange.actions[nonce].oid or 0)


def sent_of_key(account: VenueAccount, key: str) -> ActionsSent | None:
    """What a request with this key has made, unless the exchange has refused it for a reason that passes."""
    if account.exchange is None or (trade := pages.trade_of_key(account, key)) is None:
        return None
    if is_released_key(account, key):
        return None
    if sent_order(account, trade) is None and not of_trade(account.exchange, trade):
        return None
    return ActionsSent((), trade=trade)


def is_released_key(account: VenueAccount, key: str) -> bool:
    """True if nothing came of the request with this key for a reason that passes, so that the key asks anew."""
    trade_id = pages.trade_of_key(account, key)
    if account.exchange is None or trade_id is None:
        return False
    trade = pages.trade_of(account, trade_id)
    asked = of_trade(account.exchange, trade_id)
    return trade.status == VOID and (is_released(asked[-1]) if asked else True)


def refuse_undecided(account: VenueAccount, coin: str) -> Refusal | None:
    """The refusal of an order in a market where an order of ours is not decided yet; None if there is none."""
    exchange = account.exchange
    if exchange is None or not any(a.kind == "place" and a.coin == coin for a in undecided(exchange)):
        return None
    return _undecided(f"an order in {coin} was sent to the exchange and is not decided yet")


def refuse_entry(account: VenueAccount, coin: str) -> Refusal | None:
    """The refusal of an entry beside anything of this market that is not decided; None if there is nothing.

    A stop that outlives its position would be the stop of the next one.
    """
    exchange = known(account)
    if any(action.coin == coin for action in undecided(exchange)) or any(
        order.coin == coin and order.status == SENT for order in account.orders.values()
    ):
        return _undecided(f"something in {coin} was sent to the exchange and is not decided yet")
    if any(order.coin == coin and not order.reduce_only and order.kind == "limit" for order in account.orders.values()):
        text = f"an entry waits in the exchange's book of {coin}, and a market has one at a time there; cancel it first"
        return Refusal("limit_exceeded", text, fix={"action": "cancel_orders"}, details={"reason": WAITING})
    if is_leftover(account, coin):
        return _undecided(f"a stop or target of the last position in {coin} still stands at the exchange")
    return None


def is_leftover(account: VenueAccount, coin: str) -> bool:
    """True if a stop or target of a position that is gone stands at the exchange, or may come to stand there."""
    there = [p for p in known(account).protection_orders.values() if p.coin == coin and p.status in ("asked", "there")]
    return coin not in account.positions and any(not is_carried(account, protecting) for protecting in there)


def _undecided(text: str) -> Refusal:
    return Refusal(
        "service_unavailable",
        f"{text}; try again in a few seconds",
        fix={"action": "wait", "seconds": 2},
        details={"reason": UNDECIDED},
    )


def is_carried(account: VenueAccount, protecting: ProtectionOrder) -> bool:
    """True for a child of an entry that may still fill."""
    action = known(account).actions.get(protecting.nonce)
    return bool(protecting.size) and action is not None and action.oid in account.orders


def refuse_known(account: VenueAccount, key: str | None) -> Refusal | None:
    """The refusal of a key whose order the exchange has although the log does not know it.

    The database is older than the exchange: it was restored from a backup.
    """
    if key is None or account.exchange is None:
        return None
    seen = account.exchange.seen
    if not any(f"{CLIENT} {_client_order_id(account, key, attempt)}" in seen for attempt in range(ATTEMPTS_SEEN)):
        return None
    text = "the exchange has the order of this key already, and this database is older than that order"
    return Refusal("idempotency_conflict", text, fix={"action": "resync"}, details={"reason": "expired"})


def place(
    state: State, account: VenueAccount, order: VenueOrder, size: int, rank: int, *, before: VenueAction | None = None
) -> VenueAction:
    """Ask for `size` of a reduce-only order, which what cannot fill at once leaves. `before`: an earlier try of it."""
    exchange = known(account)
    assert order.number in account.orders and 0 < size <= order.size - order.filled
    assert before is None or before.over_ms, "one nonce of a wish at a time"
    key = order.idempotency_key
    if key is not None and (earlier := of_key(exchange, key)) is not None:
        assert earlier.over_ms and is_released(earlier), "one nonce of a key at a time"
        before = earlier
    attempt = 0 if before is None else before.attempt + 1
    action = _new_action(state, account, "place", order.coin, rank, attempt)
    action.idempotency_key = key
    action.oid, action.trade, action.size = order.number, order.trade, size
    action.client_order_id = _client_order_id(account, key or f"trade:{order.trade}", attempt)
    position = account.positions.get(order.coin)
    action.is_part = not order.reduce_only or position is None or size < position.size
    exchange.sent[action.client_order_id] = action.nonce
    return action


def with_child(account: VenueAccount, action: VenueAction, kind: str, side: int, px: int) -> None:
    """Place a stop or target together with an entry. It stands there from the instant of the whole fill."""
    name = _client_order_id(account, f"{action.client_order_id} {kind}", action.attempt)
    child = ProtectionOrder(name, action.coin, kind, side, px, action.size, action.nonce)
    known(account).protection_orders[name] = child
    action.protections += (name,)


def protect(state: State, account: VenueAccount, position: VenuePosition, kind: str, px: int) -> ProtectionOrder:
    """Ask for a stop or target of the whole position."""
    action = _new_action(state, account, "protect", position.coin, STOP_RANK, 0)
    name = _client_order_id(account, f"{kind} {position.coin} {action.nonce}", 0)
    protecting = ProtectionOrder(name, position.coin, kind, position.side, px, 0, action.nonce)
    known(account).protection_orders[name] = protecting
    action.protections = (name,)
    return protecting


def change_leverage(state: State, account: VenueAccount, order: VenueOrder, *, isolated: bool) -> VenueAction:
    """Ask for the leverage that an entry needs."""
    attempt = len(of_trade(known(account), order.trade))
    action = _new_action(state, account, "leverage", order.coin, ENTRY_RANK, attempt)
    action.trade, action.leverage, action.isolated = order.trade, order.leverage, isolated
    return action


def give_up(state: State, account: VenueAccount, order: VenueOrder) -> bool:
    """An entry on its way is not wanted any more. False if it was not sent yet."""
    asked = [action for action in of_trade(known(account), order.trade) if action.kind == "place"]
    for action in asked:
        action.unwanted = True
        if action.status == "open":
            action.status = "voiding"
        note_action(state, action)
    return bool(asked)


def is_released(action: VenueAction) -> bool:
    """True if the key of an action may ask again: the exchange has refused it for a reason that passes."""
    return action.is_final and action.status == "refused" and action.code in RETRYABLE


RETRYABLE: Final = frozenset(("insufficient_depth", "service_unavailable", "rate_limited"))


def cancel(state: State, account: VenueAccount, orders: Sequence[VenueOrder], rank: int) -> list[VenueAction]:
    """Ask the exchange to cancel its waiting orders, also orders of others. An order has one cancel at a time."""
    exchange = known(account)
    asked = {order_id for action in undecided(exchange) for order_id in action.cancels}
    ids = {number: order_id for order_id, number in exchange.orders.items()}
    actions = []
    for coin in dict.fromkeys(order.coin for order in orders):
        known_ids = [ids[order.number] for order in orders if order.coin == coin and order.number in ids]
        wanted = [order_id for order_id in known_ids if order_id not in asked]
        for first in range(0, len(wanted), CANCELS_MAX):
            action = _new_action(state, account, "cancel", coin, rank, 0)
            action.cancels = tuple(wanted[first : first + CANCELS_MAX])
            actions.append(action)
    return actions


def leaving(account: VenueAccount) -> set[str]:
    """Stops and targets of ours that the exchange is asked to cancel."""
    return {name for a in undecided(known(account)) if a.kind == "cancel" for name in a.protections}


def cancel_protection(state: State, account: VenueAccount, unwanted: Sequence[ProtectionOrder]) -> None:
    """Ask the exchange to cancel stops and targets of ours, each by one action at a time."""
    asked = leaving(account)
    for order in unwanted:
        if order.client_order_id not in asked:
            action = _new_action(state, account, "cancel", order.coin, CANCEL_RANK, 0)
            action.protections = (order.client_order_id,)


def nonces_of(account: VenueAccount, orders: Iterable[VenueOrder]) -> tuple[int, ...]:
    """The actions that are not over and cancel one of these orders."""
    exchange = known(account)
    numbers = {order.number for order in orders}
    ids = {order_id for order_id, number in exchange.orders.items() if number in numbers}
    return tuple(action.nonce for action in undecided(exchange) if ids.intersection(action.cancels))


def again_after(action: VenueAction) -> int:
    """How long to wait before the rest of an exit is asked for anew."""
    return AGAIN_MS if action.filled else min(AGAIN_MAX_MS, AGAIN_MS << min(action.attempt, 4))


def _new_action(state: State, account: VenueAccount, kind: str, coin: str, rank: int, attempt: int) -> VenueAction:
    exchange = known(account)
    _forget(account, exchange, state.now_ms)
    nonce = exchange.action_nonce = max(exchange.action_nonce + 1, state.now_ms)
    expires_ms = state.now_ms + exchange.clock_difference_ms + EXPIRY_MS
    action = VenueAction(nonce, kind, coin, rank, exchange.signer or "", state.now_ms, expires_ms, attempt)
    exchange.actions[nonce] = action
    note_action(state, action)
    return action


def _forget(account: VenueAccount, exchange: ExchangeAccount, now_ms: int) -> None:
    """Drop actions that are over for so long that no request asks for them, and their orders have ended."""
    for nonce, action in list(exchange.actions.items()):
        if action.made_ms > now_ms - KEPT_MS:
            break
        is_old = action.over_ms and action.over_ms < now_ms - KEPT_MS and action.again_ms is None
        if not is_old or action.oid in account.orders:
            continue
        del exchange.actions[nonce]
        exchange.sent.pop(action.client_order_id or "", None)
        if action.kind != "cancel":
            for name in action.protections:
                if exchange.protection_orders[name].status in ENDED:
                    del exchange.protection_orders[name]


def _client_order_id(account: VenueAccount, name: str, attempt: int) -> str:
    """Our id of an order. The same request has the same id, also after the service has lost its disk."""
    text = f"{account.address} {account.epoch} {name} {attempt}"
    return "0x" + sha256(text.encode()).hexdigest()[:32]
