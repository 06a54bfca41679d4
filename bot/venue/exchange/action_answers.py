"""What a client is told about the actions of its request: the result, or one sentence that says why there is none."""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.venue.exchange.protection_reports import FIRED
from bot.venue.model.numbers import text_of
from bot.venue.model.state import State, VenueAccount, VenueAction, VenueOrder, oid_text
from bot.venue.orders import exchange_actions, open_orders
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.orders.exchange_entries import NOT_SENT
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
    ("leverage", "rate_limited"): "the exchange takes no more actions of this account at present; nothing was done",
    ("cancel", "rate_limited"): "the exchange takes no more actions of this account at present; nothing was canceled",
}
REFUSED: Final = "the exchange has refused it; nothing was done"
STANDS: Final = "the exchange has performed the cancel, and the order stands there still; try again"
UNCOVERED: Final = (
    "a stop for the whole position did not stand at the exchange in time, so nothing was added to the position; try"
    " again"
)
LAPSED: Final = "the exchange has not performed it before it expired; nothing was done, and it cannot be done any more"


def is_open(account: VenueAccount, sent: ActionsSent) -> bool:
    """True while the exchange has not decided what was sent."""
    exchange = exchange_actions.known(account)
    if sent.trade is not None and exchange_actions.sent_order(account, sent.trade) is not None:
        return True
    if any(order.leg is not None and order.number in account.orders for order in sent.orders):
        return True
    actions = (exchange.actions.get(nonce) for nonce in sent.nonces)
    return any(action is not None and not action.over_ms for action in actions)


def answer_of(state: State, account: VenueAccount, sent: ActionsSent) -> OrderPlaced | OrderCanceled | Refusal | None:
    """What these actions have come to; None while one of them is not over."""
    if is_open(account, sent):
        return None
    exchange = exchange_actions.known(account)
    if sent.trade is not None:
        return _of_trade(state, account, sent)
    actions = [exchange.actions[nonce] for nonce in sent.nonces]
    if actions and actions[0].kind == "place":
        return _of_close(account, actions[0])
    return _of_cancels(state, account, actions, sent.orders)


def _of_trade(state: State, account: VenueAccount, sent: ActionsSent) -> OrderPlaced | Refusal:
    trade = pages.trade_of(account, sent.trade or "")
    asked = exchange_actions.of_trade(exchange_actions.known(account), trade.id)
    if trade.status == exchange_actions.VOID:
        return refusal_of(asked[-1]) if asked else Refusal(NOT_SENT, UNCOVERED)
    if asked and trade.intent == "close" and trade.kind == "close":
        return _of_close(account, asked[-1])
    rest = trade.size - trade.filled if trade.status == "done" else 0
    warnings = sent.warnings + ((("partial_depth", f"only {text_of(trade.filled)} was filled"),) if rest else ())
    armed = tuple(g.number for g in account.guardians.values() if g.trade == trade.id)
    is_bare = open_orders.unprotected(state, account, trade.coin)
    return OrderPlaced(trade, sent.clamped, warnings, armed, protected=not is_bare)


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
            return (
                refusal_of(refused or actions[0]) if actions else Refusal("not_found", SENTENCES["cancel", "not_found"])
            )
        return Refusal("not_found", SENTENCES["cancel", "not_found"])
    coin = gone[0].coin
    oids = tuple(oid_text(account, order.number) for order in gone)
    return OrderCanceled(coin, oids, sum(order.filled for order in gone), open_orders.unprotected(state, account, coin))


def _is_filled(account: VenueAccount, order: VenueOrder) -> bool:
    if order.leg is not None:
        return order.status == FIRED
    return order.trade is not None and pages.trade_of(account, order.trade).status == "done"


def refusal_of(action: VenueAction) -> Refusal:
    """Why nothing came of an action."""
    if action.code is None:
        text = STANDS if action.status == "placed" else LAPSED
        return Refusal("trade_failed", text, fix={"action": "resync"})
    text = SENTENCES.get((action.kind, action.code), REFUSED).format(coin=action.coin)
    return Refusal(action.code, f"{text}. The exchange: {action.text}" if action.text else text)
