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
from bot.venue.model.state import DAY_MS, ExchangeAccount, State, VenueAccount, VenueAction, VenueOrder

# What goes first.
STOP_RANK: Final = 0
EXIT_RANK: Final = 1
CANCEL_RANK: Final = 2
# The exchange performs no action that is older by its own clock.
EXPIRY_MS: Final = 15_000
# Orders that one action cancels: it then weighs as little as one order.
CANCELS_MAX: Final = 39
# An action that is over answers a repeated request for so long.
KEPT_MS: Final = DAY_MS
# An exit that is not complete is asked for anew after this pause, which doubles while nothing comes of it.
AGAIN_MS: Final = 2_000
AGAIN_MAX_MS: Final = 32_000
# Stream of `ExchangeAccount.seen` with the ids of orders that the log does not know.
CLIENT: Final = "client"
UNDECIDED: Final = "undecided"


@dataclass(slots=True)
class ActionsSent:
    """The answer of a command whose effect the exchange decides.

    `orders`: those that are to be canceled. `answer`: of a kill, which is told whatever has come of it by then.
    """

    nonces: tuple[int, ...]
    orders: tuple[VenueOrder, ...] = ()
    answer: Any = None


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


def refuse_undecided(account: VenueAccount, coin: str) -> Refusal | None:
    """The refusal of an order in a market where an order of ours is not decided yet; None if there is none."""
    exchange = account.exchange
    if exchange is None or not any(a.kind == "place" and a.coin == coin for a in undecided(exchange)):
        return None
    text = f"an order in {coin} was sent to the exchange and is not decided yet; try again in a few seconds"
    return Refusal("service_unavailable", text, fix={"action": "wait", "seconds": 2}, details={"reason": UNDECIDED})


def refuse_known(account: VenueAccount, key: str | None) -> Refusal | None:
    """The refusal of a key whose order the exchange has filled although the log does not know it.

    The database is older than the exchange: it was restored from a backup.
    """
    if key is None or account.exchange is None:
        return None
    if f"{CLIENT} {_client_order_id(account, key, 0)}" not in account.exchange.seen:
        return None
    text = "the exchange has filled the order of this key already, and this database is older than that order"
    return Refusal("idempotency_conflict", text, fix={"action": "resync"}, details={"reason": "expired"})


def place(
    state: State, account: VenueAccount, order: VenueOrder, size: int, rank: int, *, before: VenueAction | None = None
) -> VenueAction:
    """Ask for `size` of a reduce-only order, which what cannot fill at once leaves. `before`: an earlier try of it."""
    exchange = known(account)
    assert order.reduce_only and order.number in account.orders and 0 < size <= order.size - order.filled
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
    action.is_part = position is None or size < position.size
    exchange.sent[action.client_order_id] = action.nonce
    return action


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
        wanted = [ids[order.number] for order in orders if order.coin == coin and ids[order.number] not in asked]
        for first in range(0, len(wanted), CANCELS_MAX):
            action = _new_action(state, account, "cancel", coin, rank, 0)
            action.cancels = tuple(wanted[first : first + CANCELS_MAX])
            actions.append(action)
    return actions


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
    _forget(exchange, state.now_ms)
    nonce = exchange.action_nonce = max(exchange.action_nonce + 1, state.now_ms)
    expires_ms = state.now_ms + exchange.clock_difference_ms + EXPIRY_MS
    action = VenueAction(nonce, kind, coin, rank, exchange.signer or "", state.now_ms, expires_ms, attempt)
    exchange.actions[nonce] = action
    note_action(state, action)
    return action


def _forget(exchange: ExchangeAccount, now_ms: int) -> None:
    """Drop actions that are over for so long that no request asks for them."""
    for nonce, action in list(exchange.actions.items()):
        if action.made_ms > now_ms - KEPT_MS:
            break
        if action.over_ms and action.over_ms < now_ms - KEPT_MS and action.again_ms is None:
            del exchange.actions[nonce]
            exchange.sent.pop(action.client_order_id or "", None)


def _client_order_id(account: VenueAccount, name: str, attempt: int) -> str:
    """Our id of an order. The same request has the same id, also after the service has lost its disk."""
    text = f"{account.address} {account.epoch} {name} {attempt}"
    return "0x" + sha256(text.encode()).hexdigest()[:32]
