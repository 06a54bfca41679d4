"""Orders and closes of callers: checked by a preview, then executed."""

from __future__ import annotations

from dataclasses import dataclass

from bot.errors import Refusal
from bot.model.events import AccountChanged
from bot.venue.accounting import ledger, limits
from bot.venue.accounting.order_margin import leverage_margin, position_at_its_turn
from bot.venue.accounting.order_sizes import CLOSE_SLIPPAGE_BPS, bound_of, invalid, least_size, shallow_text
from bot.venue.model import outcome
from bot.venue.model.commands import ClosePosition, ConfirmPlan, PlaceOrder
from bot.venue.model.numbers import E8, div_up, text_of
from bot.venue.model.record import emit, emit_order, next_oid, next_seq, open_trade
from bot.venue.model.refusals import no_market
from bot.venue.model.state import (
    OrderSpec,
    State,
    VenueAccount,
    VenueKey,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    VenueTrade,
)
from bot.venue.orders import exchange_actions, exchange_entries, exits, open_orders, order_fills
from bot.venue.orders.exchange_actions import EXIT_RANK, ActionsSent
from bot.venue.orders.preview import preview_order
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.prices.book import walk
from bot.venue.storage import pages


@dataclass(slots=True)
class OrderPlaced:
    """An accepted order: its trade, the guardians armed with it, and warnings."""

    trade: VenueTrade
    leverage_clamped: bool = False
    warnings: tuple[tuple[str, str], ...] = ()
    guardians: tuple[int, ...] = ()
    # The position of a resting order is protected now and will be at the first fill.
    protected: bool = True


def fenced(state: State, account: VenueAccount, command: PlaceOrder | ConfirmPlan | ClosePosition) -> Refusal | None:
    """Refuse a request that is too late, or whose idempotency key was used before."""
    key = command.idempotency_key
    if key is not None:
        if account.is_fenced(key):
            return Refusal(
                "idempotency_conflict",
                "the account was reset after this key was used",
                fix={"action": "resync"},
                details={"reason": "account_reset", "epoch": account.epoch},
            )
        if (trade_id := pages.trade_of_key(account, key)) is not None and not exchange_actions.is_released_key(
            account, key
        ):
            return Refusal(
                "idempotency_conflict",
                "the response of the order with this key is no longer kept",
                details={"reason": "expired", "tradeId": trade_id},
            )
    if command.expires_ms is not None and state.now_ms > command.expires_ms:
        return Refusal(
            "idempotency_conflict",
            "the request arrived after its X-Expires-After",
            fix={"action": "replan"},
            details={"reason": "expired"},
        )
    return None


def place(
    state: State, account: VenueAccount, key: VenueKey | None, command: PlaceOrder
) -> OrderPlaced | ActionsSent | Refusal:
    """Check and execute one order."""
    if refused := fenced(state, account, command):
        return refused
    preview = preview_order(state, account, command.order, key)
    if isinstance(preview, Refusal):
        return preview
    return execute(state, account, command.order, preview, key, command.request_id, command.idempotency_key)


def execute(
    state: State,
    account: VenueAccount,
    spec: OrderSpec,
    preview: OrderPreview,
    key: VenueKey | None,
    request_id: str | None,
    idempotency_key: str | None,
) -> OrderPlaced | ActionsSent | Refusal:
    """Execute a previewed order: fill now, or rest, or wait for the next point. At an exchange it is sent."""
    market = state.markets[spec.coin]
    held = account.positions.get(spec.coin)
    if held is not None and held.side == spec.side and preview.leverage != held.leverage:
        position, _ = position_at_its_turn(account, market)
        if position is not None and position.side == held.side and account.exchange is None:
            change_leverage(state, account, market, held, preview.leverage)
    # An order no larger than the opposite position was previewed as a close. It stays reduce-only even if the position
    # shrinks before it fills.
    order = VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=spec.coin,
        kind=spec.type,
        side=preview.side,
        buy=spec.side,
        size=preview.size,
        created_ms=state.now_ms,
        limit_px=spec.limit_px,
        stop_leg=spec.stop,
        target_leg=spec.target,
        guardians=preview.guardians,
        require_protection=spec.require_protection,
        reduce_only=not preview.opening,
        leverage=preview.leverage,
        bound_px=preview.bound_px,
        slippage_bps=spec.slippage_bps,
        source=spec.source,
        idempotency_key=idempotency_key,
        request_id=request_id,
        key=key.id if key is not None else None,
        born=market.point,
        opens=preview.size - preview.reduce if preview.reduce else None,
    )
    if account.exchange is not None:
        return exchange_entries.send(state, account, spec, order, preview)
    trade = open_trade(state, account, order, kind=spec.type, intent=preview.intent)
    if state.rules.fill_at == "next" and (spec.type == "market" or preview.fills):
        if spec.type == "market" and not preview.reduce:
            order.usd = spec.usd
        open_orders.keep_until_next_point(state, account, market, order, preview.margin + preview.fee + preview.rebate)
    else:
        armed = order_fills.take(state, account, market, order, trade, preview.fills)
        rest = order.size - order.filled
        if rest and spec.type == "limit":
            open_orders.rest_at_limit(account, market, order)
            emit_order(state, account, order, "open")
        else:
            order_fills.finish(state, trade, reason="slippage_bound" if rest else None)
        return OrderPlaced(trade, preview.clamped, tuple(preview.warnings), armed, preview.protected)
    return OrderPlaced(trade, preview.clamped, tuple(preview.warnings), protected=preview.protected)


def change_leverage(
    state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition, leverage: int
) -> None:
    """Set an open position's leverage; margin of an isolated position moves to or from the balance.

    The preview has checked that it is affordable.
    """
    if position.isolated:
        delta = leverage_margin(market, position, leverage)
        position.margin += delta
        account.balance -= delta
    old, position.leverage = position.leverage, leverage
    emit(
        state,
        account,
        AccountChanged(
            account.id,
            next_seq(account),
            state.now_ms,
            "leverage",
            coin=position.coin,
            leverage_from=old,
            leverage_to=leverage,
        ),
    )
    ledger.rewatch(state, account, position)


def close(
    state: State, account: VenueAccount, key: VenueKey | None, command: ClosePosition
) -> OrderPlaced | ActionsSent | Refusal:
    """A caller's reduce-only exit of a part or of the whole position."""
    if refused := fenced(state, account, command):
        return refused
    if account.exchange is not None and (
        refused := exchange_actions.refuse_known(account, command.idempotency_key)
        or exchange_actions.refuse_undecided(account, command.coin)
    ):
        return refused
    market = state.markets.get(command.coin)
    if market is None:
        return no_market(command.coin, state.markets)
    if refused := limits.refuse_coin(market, key):
        return refused
    position, _ = position_at_its_turn(account, market)
    if position is None:
        return Refusal("not_found", f"there is no position in {command.coin}")
    if market.status != "open":
        return Refusal("market_closed", f"{command.coin} is {market.status}", details={"opensAt": market.opens_ms})
    size = _size_of_close(market, position, command)
    if isinstance(size, Refusal):
        return size
    bps = command.slippage_bps if command.slippage_bps is not None else CLOSE_SLIPPAGE_BPS
    bound = bound_of(market, market.mid, -position.side, bps)
    is_sent = account.exchange is not None
    waits = state.rules.fill_at == "next" or is_sent
    fills = [] if waits else walk(market, market.mid, -position.side, size, bound)
    if not waits and not fills:
        text = shallow_text(market, -position.side, bps, 0, size)
        return Refusal("insufficient_depth", text, fix={"action": "wait"})
    order = exits.exit_order(state, account, market, position, size=size, bound_px=bound)
    order.source, order.request_id, order.idempotency_key = command.source, command.request_id, command.idempotency_key
    order.key, order.slippage_bps = key.id if key else None, command.slippage_bps
    trade = open_trade(state, account, order, kind="close", intent="close")
    if is_sent:
        return _send(state, account, order)
    if waits:
        open_orders.keep_until_next_point(state, account, market, order, 0)
        return OrderPlaced(trade)
    order_fills.take(state, account, market, order, trade, fills)
    rest = order.filled < order.size
    order_fills.finish(state, trade, reason="slippage_bound" if rest else None)
    return OrderPlaced(
        trade, warnings=(("partial_depth", f"{text_of(order.size - order.filled)} stays open"),) if rest else ()
    )


def _send(state: State, account: VenueAccount, order: VenueOrder) -> ActionsSent:
    """Ask the exchange for a close. No event shows it before a fill, because it may never become an order."""
    order.status = "sent"
    account.orders[order.number] = order
    return ActionsSent((exchange_actions.place(state, account, order, order.size, EXIT_RANK).nonce,))


def _size_of_close(market: VenueMarket, position: VenuePosition, command: ClosePosition) -> int | Refusal:
    size = position.size
    unit_px = outcome.share_px(market.spec, position.side, market.mid)
    if command.fraction is not None and command.fraction < E8:
        size = position.size * command.fraction // E8 // market.lot * market.lot
    elif command.usd is not None:
        size = min(position.size, command.usd * E8 // unit_px // market.lot * market.lot)
    elif command.size is not None:
        if command.size < position.size and command.size % market.lot:
            down = command.size - command.size % market.lot
            return invalid(
                "size",
                f"{text_of(command.size)} is no multiple of {text_of(market.lot)}",
                value=text_of(down or market.lot),
            )
        size = min(position.size, command.size)
    if size < position.size and unit_px * size // E8 < market.spec.min_notional:
        least = min(least_size(market, unit_px), position.size)
        fix = {"field": "size", "value": text_of(least)}
        if command.usd is not None:
            fix = {"field": "usdAmount", "value": text_of(div_up(least * unit_px, E8))}
        elif command.fraction is not None:
            fix = {"field": "fraction", "value": text_of(div_up(least * E8, position.size))}
        return Refusal(
            "below_min_notional",
            f"this part is worth {text_of(unit_px * size // E8)} USD; the minimum is"
            f" {text_of(market.spec.min_notional)} USD. The whole position can always be closed",
            fix=fix,
        )
    return size
