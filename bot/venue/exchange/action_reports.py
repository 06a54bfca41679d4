"""What becomes of an action at an exchange: its end, the fills that it owes, and what waits for it.

`action_lifecycle` decides what an answer means. Here its decision becomes part of the state, and an action is over when
all that it did is booked, or when its end without an order may be told.
"""

from __future__ import annotations

from typing import Final

from bot.venue.exchange import order_reports, protection_reports
from bot.venue.exchange.action_lifecycle import NO_ORDER, PATIENCE_MS
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import EndReportedOrder, SeeAction, SeeAgent, SettleActions
from bot.venue.model.record import emit_order, note_action
from bot.venue.model.state import (
    ExchangeAccount,
    ExchangeMargin,
    ReportedExecution,
    State,
    VenueAccount,
    VenueAction,
    VenueOrder,
)
from bot.venue.orders import exchange_actions, exchange_entries, exits, order_fills
from bot.venue.prices import index
from bot.venue.storage import pages

# Which status may follow which. An order that is seen after an end without one is believed.
FOLLOWING: Final[dict[str, frozenset[str]]] = {
    "open": frozenset(("open", "voiding", "placed", "refused", "void")),
    "voiding": frozenset(("voiding", "placed", "refused", "void")),
    "placed": frozenset(("placed",)),
    "refused": frozenset(("refused", "placed")),
    "void": frozenset(("void", "refused", "placed")),
}
USER: Final = "user"
NOT_PERFORMED: Final = "trade_failed"


# ── Reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def see_agent(state: State, command: SeeAgent) -> None:
    _, exchange = followed(state, command.account)
    exchange.signer, exchange.clock_difference_ms = command.signer, command.clock_difference_ms
    exchange.actions_left = command.actions_left


def see(state: State, command: SeeAction) -> None:
    """Take what is known of an action now. One that was forgotten is over for a day already."""
    account, exchange = followed(state, command.account)
    action = exchange.actions.get(command.nonce)
    if action is None:
        return
    assert command.status in FOLLOWING[action.status], (action.status, command.status)
    action.status, action.is_final = command.status, command.is_final
    if command.code is not None:
        action.code, action.text = command.code, command.text
    if command.filled is not None:
        action.owed = command.filled
    if command.status == "placed" and not action.placed_ms:
        action.placed_ms = command.at_ms
    if command.order_id is not None:
        action.order_id = command.order_id
    protection_reports.take_statuses(state, exchange, action, command.protections)
    for order_id in command.canceled:
        if order_id in exchange.orders:
            order_reports.drop(state, account, order_id, USER, command.at_ms)
    note_action(state, action)
    _finish(state, account, action)


def settle(state: State, command: SettleActions) -> None:
    """Everything that the exchange did until this instant is booked, so an action owes no more than is booked of it."""
    account, exchange = followed(state, command.account)
    for action in unsettled(exchange, command.at_ms):
        action.owed = action.filled
        note_action(state, action)
        _finish(state, account, action)


def unsettled(exchange: ExchangeAccount, at_ms: int) -> list[VenueAction]:
    """Actions that are performed and not over although all fills until `at_ms` are booked."""
    return [
        action
        for action in exchange_actions.undecided(exchange)
        if action.status == "placed" and at_ms > action.placed_ms + PATIENCE_MS
    ]


def of_fill(account: VenueAccount, fill: ReportedExecution) -> VenueAction | None:
    """The action that asked for the order of a fill; None if it is not ours, over, or asked for less than is filled.

    Such a fill is booked as one that somebody else has caused. A limit goes on after its action.
    """
    exchange = exchange_actions.known(account)
    nonce = exchange.sent.get(fill.client_order_id or "")
    action = None if nonce is None else exchange.actions[nonce]
    if action is None or action.filled + fill.size > action.size:
        return None
    order = account.orders.get(action.oid or 0)
    return action if order is not None and (not action.over_ms or order.status == "open") else None


def see_fill(state: State, account: VenueAccount, action: VenueAction, fill: ReportedExecution) -> None:
    """A fill is booked: its action was performed, whatever an answer says."""
    action.filled += fill.size
    action.status, action.is_final = "placed", False
    action.placed_ms = action.placed_ms or fill.at_ms
    note_action(state, action)
    _finish(state, account, action)
    order = account.orders.get(action.oid or 0)
    if action.over_ms and order is not None and order.status == "open" and order.filled >= order.size:
        _end_limit(state, account, order, None)


def end(state: State, command: EndReportedOrder) -> None:
    """An order has ended at the exchange."""
    order_reports.end(state, command)
    see_ended(state, state.accounts[command.account])


def see_ended(state: State, account: VenueAccount) -> None:
    """Orders may have ended, and with them the actions that cancel them."""
    for action in exchange_actions.undecided(exchange_actions.known(account)):
        if action.kind == "cancel":
            _finish(state, account, action)


# ── The end of an action ────────────────────────────────────────────────────────────────────────────────────────────


def _finish(state: State, account: VenueAccount, action: VenueAction) -> None:
    exchange = exchange_actions.known(account)
    if action.over_ms or not _is_over(exchange, action):
        return
    action.over_ms = max(state.now_ms, 1)
    note_action(state, action)
    if action.status in NO_ORDER:
        protection_reports.see_without_order(state, account, action)
    elif action.kind == "leverage":
        told = exchange.margins.get(action.coin)
        liquidation_px = None if told is None else told.liquidation_px
        exchange.margins[action.coin] = ExchangeMargin(action.leverage, action.isolated, liquidation_px)
    if action.kind == "place":
        _end_order(state, account, action)


def _is_over(exchange: ExchangeAccount, action: VenueAction) -> bool:
    if action.status in NO_ORDER:
        return action.is_final
    if action.kind == "cancel" and not action.protections:
        # The orders may end by themselves while it is on its way.
        return action.owed is not None or not any(order_id in exchange.orders for order_id in action.cancels)
    if action.status != "placed":
        return False
    if action.kind != "place":
        return True
    assert action.filled <= action.size, action
    return action.filled == action.size or (action.owed is not None and action.filled >= action.owed)


def _end_order(state: State, account: VenueAccount, action: VenueAction) -> None:
    """The order of an action is over. What is left of an exit that a guardian makes is asked for anew."""
    order = account.orders[action.oid or 0]
    rest = order.size - order.filled
    if order.status == "working":
        position = account.positions.get(order.coin)
        if rest and position is not None and position.side == order.side:
            action.again_ms = state.now_ms + exchange_actions.again_after(action)
            index.schedule_exit(state, account, action)
        else:
            exits.end_exit(state, account, order)
        return
    if not order.filled and action.status in NO_ORDER:
        exchange_entries.end_without_order(state, account, order, action.code or NOT_PERFORMED)
    elif order.kind == "limit":
        _rest(state, account, action, order)
    else:
        del account.orders[order.number]
        trade = pages.trade_of(account, order.trade or "")
        order_fills.finish(state, trade, reason="slippage_bound" if rest else None)
        if rest and order.kind == "close":
            emit_order(state, account, order, "canceled", reason=trade.reason)
        if action.unwanted:
            _leave_unwanted(state, account, order)


def _leave_unwanted(state: State, account: VenueAccount, order: VenueOrder) -> None:
    """An entry has filled after a guardian has closed everything: what it opened is closed too."""
    position = account.positions.get(order.coin)
    actions = {guardian.spec.action or guardian.spec.on_miss for guardian in account.guardians.values()}
    if position is None or position.side != order.buy or "flatten" not in actions:
        return
    market, size = state.markets[order.coin], min(order.filled, position.size)
    exits.force_exit(state, account, market, position, size=size, kind="guardian", ref_px=market.mid)


def _rest(state: State, account: VenueAccount, action: VenueAction, order: VenueOrder) -> None:
    """A limit waits in the exchange's book, unless it has filled or ended by now."""
    ended = order.reason
    order.reason = order_reports.FILLED if ended == order_reports.FILLED else None
    exchange_entries.rest(state, account, order, action.order_id)
    if order.filled >= order.size:
        _end_limit(state, account, order, None)
    elif ended is not None and ended != order_reports.FILLED:
        _end_limit(state, account, order, ended)
    elif action.unwanted:
        exchange_actions.cancel(state, account, [order], exchange_actions.STOP_RANK)


def _end_limit(state: State, account: VenueAccount, order: VenueOrder, reason: str | None) -> None:
    """A limit of ours has filled, or has ended."""
    exchange = exchange_actions.known(account)
    for order_id in [key for key, number in exchange.orders.items() if number == order.number]:
        order_reports.drop(state, account, order_id, reason, state.now_ms)
    if account.orders.pop(order.number, None) is not None:
        trade = pages.trade_of(account, order.trade or "")
        trade.status, trade.reason = "done" if reason is None else "canceled", reason
        trade.updated_ms = state.now_ms
        if reason is not None:
            emit_order(state, account, order, "canceled", reason=reason)
