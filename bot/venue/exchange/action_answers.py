"""What a client is told about the actions of its request: the result, or one sentence that says why there is none."""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.venue.model.numbers import text_of
from bot.venue.model.state import State, VenueAccount, VenueAction, VenueOrder, oid_text
from bot.venue.orders import exchange_actions, open_orders
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.orders.open_orders import OrderCanceled
from bot.venue.orders.orders import OrderPlaced
from bot.venue.storage import pages

# What an answer means, by the kind of its action and its code. `{coin}` is the market.
SENTENCES: Final = {
    ("place", "not_found"): "there is no position in {coin} any more that this order could reduce; nothing was done",
    ("place", "insufficient_depth"): "nothing in the exchange's book of {coin} lies within the bound; nothing was done",
    ("cancel", "not_found"): "the order was filled or canceled before the cancel reached the exchange",
    ("place", "service_unavailable"): "the exchange takes no such order at present; nothing was done, try again later",
    ("place", "rate_limited"): "the exchange takes no more actions of this account at present; nothing was done",
    ("cancel", "rate_limited"): "the exchange takes no more actions of this account at present; nothing was canceled",
}
REFUSED: Final = "the exchange has refused it; nothing was done"
STANDS: Final = "the exchange has performed the cancel, and the order stands there still; try again"
LAPSED: Final = "the exchange has not performed it before it expired; nothing was done, and it cannot be done any more"


def answer_of(state: State, account: VenueAccount, sent: ActionsSent) -> OrderPlaced | OrderCanceled | Refusal | None:
    """What these actions have come to; None while one of them is not over."""
    exchange = exchange_actions.known(account)
    actions = [exchange.actions[nonce] for nonce in sent.nonces]
    if not all(action.over_ms for action in actions):
        return None
    if actions[0].kind == "place":
        return _of_close(account, actions[0])
    return _of_cancels(state, account, actions, sent.orders)


def _of_close(account: VenueAccount, action: VenueAction) -> OrderPlaced | Refusal:
    if not action.filled:
        return refusal_of(action)
    trade = pages.trade_of(account, action.trade or "")
    rest = trade.size - trade.filled
    return OrderPlaced(trade, warnings=(("partial_depth", f"{text_of(rest)} stays open"),) if rest else ())


def _of_cancels(
    state: State, account: VenueAccount, actions: list[VenueAction], orders: tuple[VenueOrder, ...]
) -> OrderCanceled | Refusal:
    gone = [order for order in orders if order.number not in account.orders and not _is_filled(account, order)]
    if not gone:
        refused = next((action for action in actions if action.code is not None), None)
        if refused is not None or any(order.number in account.orders for order in orders):
            return refusal_of(refused or actions[0])
        return Refusal("not_found", SENTENCES["cancel", "not_found"])
    coin = gone[0].coin
    oids = tuple(oid_text(account, order.number) for order in gone)
    return OrderCanceled(coin, oids, sum(order.filled for order in gone), open_orders.unprotected(state, account, coin))


def _is_filled(account: VenueAccount, order: VenueOrder) -> bool:
    return order.trade is not None and pages.trade_of(account, order.trade).status == "done"


def refusal_of(action: VenueAction) -> Refusal:
    """Why nothing came of an action."""
    if action.code is None:
        text = STANDS if action.status == "placed" else LAPSED
        return Refusal("trade_failed", text, fix={"action": "resync"})
    text = SENTENCES.get((action.kind, action.code), REFUSED).format(coin=action.coin)
    return Refusal(action.code, f"{text}. The exchange: {action.text}" if action.text else text)
