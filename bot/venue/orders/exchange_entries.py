"""Orders of callers at an exchange: refused, or sent step by step, each step after the one before it is decided.

First the leverage, if it differs; then a stop for the whole position, if the order adds to one; then the order itself,
with its stop and target.
"""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.venue.model.record import emit_order, open_trade
from bot.venue.model.state import LegSpec, OrderSpec, State, VenueAccount, VenueMarket, VenueOrder, VenueTrade
from bot.venue.orders import exchange_actions, exchange_levels, protection_orders
from bot.venue.orders.exchange_actions import ENTRY_RANK, EXIT_RANK, SENT, VOID, ActionsSent
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.prices import index
from bot.venue.protection import guardians
from bot.venue.storage import pages

# An entry waits so long for a stop that follows the position that it adds to.
WHOLE_MS: Final = 8_000
# Changes of leverage that are tried for one entry.
LEVERAGE_TRIES: Final = 3
NOT_SENT: Final = "service_unavailable"
NOT_AT_EXCHANGE: Final = "not_at_exchange"
WATCHED_ONLY: Final = "watched_only"
MAINNET: Final = "mainnet"
IN_STEP: Final = "in_step"


def refuse_watched(account: VenueAccount) -> Refusal | None:
    """The refusal of everything that would send something to the exchange, for want of an agent's key."""
    exchange = exchange_actions.known(account)
    if exchange.signer is not None:
        return None
    name = f"{exchange.exchange}:{exchange.network}"
    text = (
        f"this account is watched only: it follows {account.address} at {name} without an agent's key, so nothing is"
        " sent there; place, close and cancel on the exchange's own page, or give `agent_key`"
    )
    return Refusal("service_unavailable", text, details={"reason": WATCHED_ONLY})


def refuse_sending(account: VenueAccount) -> Refusal | None:
    """The refusal of a close or a cancel that cannot reach the exchange. A kill is taken also while it is away."""
    exchange = exchange_actions.known(account)
    if (refused := refuse_watched(account)) is not None or exchange.link != "away":
        return refused
    text = f"the exchange cannot be reached now: {exchange.link_reason}; nothing was sent, try again"
    return Refusal("service_unavailable", text, fix={"action": "wait", "seconds": 5}, details={"reason": "away"})


def refuse(account: VenueAccount, order: OrderSpec, preview: OrderPreview, key: str | None) -> Refusal | None:
    """The refusal of an order that this version does not send, or not now; None if it is sent."""
    if refused := refuse_sending(account) or exchange_actions.refuse_known(account, key):
        return refused
    if not preview.opening:
        return exchange_actions.refuse_undecided(account, order.coin)
    if preview.reduce:
        text = (
            "an order that closes a position and opens the opposite one is not sent to an exchange; close first, and"
            " open when the close is done"
        )
        return Refusal("invalid_input", text, fix={"action": "close_first"})
    return _refuse_now(account) or exchange_actions.refuse_entry(account, order.coin)


def _refuse_now(account: VenueAccount) -> Refusal | None:
    """The refusal of an entry: on the main network without a cap, or while the link is not in step."""
    exchange = exchange_actions.known(account)
    if exchange.network == MAINNET and exchange.exposure_cap is None:
        text = (
            "entries are sent to the main network only with an exposure cap and the typed word: run bot exchange"
            " connect CONFIG --network mainnet, which writes both; close, cancel, kill and guardians are sent"
        )
        return Refusal("service_unavailable", text, details={"reason": NOT_AT_EXCHANGE})
    if exchange.link != IN_STEP:
        text = f"the exchange is {exchange.link}: {exchange.link_reason}; nothing was sent, try again"
        return Refusal("service_unavailable", text, fix={"action": "wait", "seconds": 5}, details={"reason": "behind"})
    return None


def send(
    state: State, account: VenueAccount, spec: OrderSpec, order: VenueOrder, preview: OrderPreview
) -> ActionsSent | Refusal:
    """Begin an order. Its levels are fixed now, from the price that the preview expects."""
    if refused := refuse(account, spec, preview, order.idempotency_key):
        return refused
    open_trade(state, account, order, kind=spec.type, intent=preview.intent)
    order.status, order.bound_px = SENT, order.limit_px or preview.bound_px
    if preview.bracket is not None:
        stop, target = preview.bracket.stop, preview.bracket.target
        order.stop_leg = None if stop is None else LegSpec(stop.pct, stop.px, stop.r)
        order.target_leg = None if target is None else LegSpec(target.pct, target.px, target.r)
    account.orders[order.number] = order
    protection_orders.begin(account, order.coin)
    protection_orders.settle_coin(state, account, order.coin)
    advance(state, account, order)
    return ActionsSent((), trade=order.trade, clamped=preview.clamped, warnings=tuple(preview.warnings))


def settle(state: State, account: VenueAccount) -> None:
    """Go on with orders that wait for a step, and with the protection of all positions."""
    protection_orders.settle(state, account)
    for order in [order for order in account.orders.values() if order.status == SENT]:
        advance(state, account, order)


def advance(state: State, account: VenueAccount, order: VenueOrder) -> None:
    """Do the next step of an order that is not decided."""
    exchange, market = exchange_actions.known(account), state.markets[order.coin]
    asked = exchange_actions.of_trade(exchange, order.trade)
    if any(action.kind == "place" for action in asked):
        return
    last = asked[-1] if asked else None
    if last is not None and last.status not in ("placed", *exchange_actions.NO_ORDER):
        return
    if order.reason is not None:
        # Somebody has canceled it before it was sent.
        end_without_order(state, account, order, order.reason)
        return
    if last is not None and last.status in exchange_actions.NO_ORDER:
        if last.code is not None or len(asked) >= LEVERAGE_TRIES:
            if last.is_final:
                end_without_order(state, account, order, last.code or NOT_SENT)
            return
        exchange_actions.change_leverage(state, account, order, isolated=last.isolated)
        return
    if last is None and (isolated := _new_mode(account, market, order)) is not None:
        exchange_actions.change_leverage(state, account, order, isolated=isolated)
        return
    level = exchange_levels.wanted(account, order.coin, "stop_loss")
    adds = not order.reduce_only and level is not None
    if adds and protection_orders.covering(account, order.coin, "stop_loss") is None:
        _wait_for_stop(state, account, order)
        return
    if not order.reduce_only and exchange_actions.is_leftover(account, order.coin):
        # The position that it was to add to is gone, and a stop of it may still come to stand.
        _wait_for_stop(state, account, order)
        return
    rank = EXIT_RANK if order.reduce_only else ENTRY_RANK
    action = exchange_actions.place(state, account, order, order.size, rank)
    for kind, px in zip(exchange_levels.KINDS, _levels_of(market, order), strict=True):
        # Those of a position are replaced after the first fill.
        if level is None and px is not None:
            exchange_actions.with_child(account, action, kind, order.side, px)


def _levels_of(market: VenueMarket, order: VenueOrder) -> tuple[int | None, int | None]:
    """Stop and target that an entry takes along. That of a trailing stop counts from the price of now."""
    stop_px = None if order.stop_leg is None else order.stop_leg.px
    target_px = None if order.target_leg is None else order.target_leg.px
    trail_px = guardians.coming_trail(order.guardians, order.side, order.limit_px or market.mid, None)
    if stop_px is None and trail_px is not None:
        stop_px = exchange_levels.aim(market, order.side, trail_px)
    return stop_px, target_px


def _new_mode(account: VenueAccount, market: VenueMarket, order: VenueOrder) -> bool | None:
    """Whether the margin of the market must become isolated (or cross) with the order's leverage; None: it is so."""
    if order.reduce_only:
        return None
    position = account.positions.get(order.coin)
    wanted = market.spec.margin_mode == "isolated" if position is None else position.isolated
    told = exchange_actions.known(account).margins.get(order.coin)
    is_so = told is not None and (told.leverage, told.isolated) == (order.leverage, wanted)
    return None if is_so else wanted


def _wait_for_stop(state: State, account: VenueAccount, order: VenueOrder) -> None:
    """Nothing is added to a position before a stop at the exchange follows its size."""
    until_ms = order.created_ms + WHOLE_MS
    if state.now_ms >= until_ms:
        end_without_order(state, account, order, NOT_SENT)
        return
    watched = exchange_actions.known(account).protections[order.coin]
    if watched.due_ms is None or watched.due_ms > until_ms:
        watched.due_ms = until_ms
        index.schedule_protection(state, account, order.coin, until_ms)


def end_without_order(state: State, account: VenueAccount, order: VenueOrder, reason: str) -> VenueTrade:
    """An order never was one at the exchange, and cannot become one any more. A plan of it must be made anew."""
    del account.orders[order.number]
    trade = pages.trade_of(account, order.trade or "")
    trade.status, trade.reason, trade.updated_ms = VOID, reason, state.now_ms
    for plan in state.plans.values():
        if plan.trade == trade.id and plan.account == account.id:
            plan.state, plan.trade = "refused", None
    return trade


def rest(state: State, account: VenueAccount, order: VenueOrder, order_id: str | None) -> None:
    """A limit of ours waits in the exchange's book."""
    exchange = exchange_actions.known(account)
    order.status = "open"
    if order_id is not None:
        exchange.orders[order_id] = order.number
    emit_order(state, account, order, "open")
