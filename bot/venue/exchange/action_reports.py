"""What becomes of an action at an exchange: its end, the fills that it owes, and what waits for it.

`action_lifecycle` decides what an answer means. Here its decision becomes part of the state, and an action is over when
all that it did is booked, or when its end without an order may be told.
"""

from __future__ import annotations

from typing import Final

from bot.venue.exchange import order_reports
from bot.venue.exchange.action_lifecycle import NO_ORDER, PATIENCE_MS
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import EndReportedOrder, SeeAction, SeeAgent, SettleActions
from bot.venue.model.record import emit_order, note_action
from bot.venue.model.state import ExchangeAccount, ReportedExecution, State, VenueAccount, VenueAction
from bot.venue.orders import exchange_actions, exits, order_fills
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


def of_fill(exchange: ExchangeAccount, fill: ReportedExecution) -> VenueAction | None:
    """The action that asked for the order of a fill; None if it is not ours, over, or asked for less than is filled.

    Such a fill is booked as one that somebody else has caused.
    """
    nonce = exchange.sent.get(fill.client_order_id or "")
    action = None if nonce is None else exchange.actions[nonce]
    is_owed = action is not None and not action.over_ms and action.filled + fill.size <= action.size
    return action if is_owed else None


def see_fill(state: State, account: VenueAccount, action: VenueAction, fill: ReportedExecution) -> None:
    """A fill is booked: its action was performed, whatever an answer says."""
    action.filled += fill.size
    action.status, action.is_final = "placed", False
    action.placed_ms = action.placed_ms or fill.at_ms
    note_action(state, action)
    _finish(state, account, action)


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
    if action.over_ms or not _is_over(exchange_actions.known(account), action):
        return
    action.over_ms = max(state.now_ms, 1)
    note_action(state, action)
    if action.kind == "place":
        _end_order(state, account, action)


def _is_over(exchange: ExchangeAccount, action: VenueAction) -> bool:
    if action.status in NO_ORDER:
        return action.is_final
    if action.kind == "cancel":
        # The orders may end by themselves while it is on its way.
        return action.owed is not None or not any(order_id in exchange.orders for order_id in action.cancels)
    if action.status != "placed":
        return False
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
    del account.orders[order.number]
    trade = pages.trade_of(account, order.trade or "")
    if order.filled:
        order_fills.finish(state, trade, reason="slippage_bound" if rest else None)
    else:
        trade.status, trade.updated_ms, trade.reason = "canceled", state.now_ms, action.code or NOT_PERFORMED
    if rest:
        emit_order(state, account, order, "canceled", reason=trade.reason)
