"""An action of the state in the values of the link. Pure: reads the state, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from bot.exchanges.actions import (
    ActionKind,
    ExchangeAction,
    LeverageRequest,
    OrderGroup,
    OrderName,
    OrderPlacement,
    OrderRole,
    Rank,
)
from bot.venue.accounting.order_sizes import TRIGGER_SLIPPAGE_BPS, bound_of
from bot.venue.model.state import ProtectionOrder, State, VenueAccount, VenueAction
from bot.venue.orders import exchange_actions

KINDS: Final[dict[str, ActionKind]] = {"place": "place", "protect": "place", "cancel": "cancel", "leverage": "leverage"}
ROLES: Final[dict[str, OrderRole]] = {"stop_loss": "stop", "take_profit": "target"}


def wire_action(state: State, account: VenueAccount, action: VenueAction, market: str) -> ExchangeAction:
    """The action, with the exchange's name for its market."""
    kind = KINDS[action.kind]
    orders = tuple(_orders(state, account, action, market)) if kind == "place" else ()
    group: OrderGroup = "single"
    if action.kind == "protect":
        group = "position"
    elif len(orders) > 1:
        group = "entry"
    cancels = [OrderName(market, order_id=order_id) for order_id in action.cancels]
    if kind == "cancel":
        cancels += [OrderName(market, client_order_id=name) for name in action.protections]
    leverage = LeverageRequest(market, action.leverage, action.isolated) if kind == "leverage" else None
    return ExchangeAction(
        action.nonce, kind, action.signer, Rank(action.rank), action.expires_ms, orders, group, tuple(cancels), leverage
    )


def _orders(state: State, account: VenueAccount, action: VenueAction, market: str) -> Iterator[OrderPlacement]:
    if action.kind == "place":
        order = account.orders[action.oid or 0]
        yield OrderPlacement(
            cast(str, action.client_order_id),
            market,
            order.buy > 0,
            action.size,
            order.bound_px,
            None,
            "close" if order.reduce_only else "entry",
            "rest" if order.kind == "limit" else "now",
            is_reduce_only=order.reduce_only,
        )
    for name in action.protections:
        yield _protection(state, exchange_actions.known(account).protection_orders[name], market)


def _protection(state: State, protecting: ProtectionOrder, market: str) -> OrderPlacement:
    """A stop or target, which fires as a market order within a bound around its trigger."""
    buy = -protecting.side
    bound = bound_of(state.markets[protecting.coin], protecting.px, buy, TRIGGER_SLIPPAGE_BPS)
    return OrderPlacement(
        protecting.client_order_id,
        market,
        buy > 0,
        protecting.size,
        bound,
        protecting.px,
        ROLES[protecting.kind],
        "now",
        is_reduce_only=True,
    )
