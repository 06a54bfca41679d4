"""Answers of the order routes: orders placed, planned and canceled."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from bot.wire.base import Amount, Num, Resource
from bot.wire.resources import Guardian, Order, Plan, Position, TradeResource, Warning_


class OrderResult(Resource):
    """Answer of POST orders, confirm and close.

    `position` is None if the account is flat. `protected`: the position has a stop at the service.
    """

    dry_run: bool = False
    order_submitted: bool = True
    trade: TradeResource
    position: Position | None = None
    orders: tuple[Order, ...] = ()
    guardians: tuple[Guardian, ...] = ()
    leverage: Num | None = None
    leverage_clamped: bool = False
    protected: bool = False
    warnings: tuple[Warning_, ...] = ()
    last_event_id: str | None = None


class PlanResult(Resource):
    """Answer of POST /v1/orders with dryRun. The token executes this plan once."""

    dry_run: bool = True
    order_submitted: bool = False
    confirm_token: str = Field(repr=False)
    expires_at: int | None = None
    plan: Plan


class OrdersPage(Resource):
    # Required, so that a client does not take a missing list for an empty one.
    orders: tuple[Order, ...]


class CancelResult(Resource):
    """Answer of DELETE /v1/orders/{oid}. `unprotected`: the position has no stop now."""

    oid: str
    coin: str | None = None
    canceled: bool = True
    filled_size: Amount | None = None
    unprotected: bool = False


class CancelCoinResult(Resource):
    coin: str
    canceled_oids: tuple[str, ...] = ()
    unprotected: bool = False


class SuggestedCall(Resource):
    """A request that the caller can send unchanged."""

    method: str
    path: str
    body: dict[str, Any]


class SuggestResult(Resource):
    coin: str
    market: str
    intent: str
    side: str
    feasible: bool
    request: SuggestedCall | None = None
    size: Amount | None = None
    notional_usd: Amount | None = None
    leverage: Num | None = None
    mid_px: Amount | None = None
    est_px: Amount | None = None
    slippage_bps: Num | None = None
    fee_usd: Amount | None = None
    margin_usd: Amount | None = None
    min_size: Amount | None = None
    min_notional_usd: Amount | None = None
    max_size: Amount | None = None
    warnings: tuple[Warning_, ...] = ()


class TradesPage(Resource):
    """Trades, newest first. `next_before` is the cursor of the next page; None at the end."""

    trades: tuple[TradeResource, ...]
    next_before: int | None = None


class GuardiansPage(Resource):
    guardians: tuple[Guardian, ...]


class DisarmResult(Resource):
    id: str
    type: str | None = None
    disarmed: bool = True


class HeartbeatGuardian(Resource):
    id: str
    next_deadline: int | None = None


class HeartbeatResult(Resource):
    """Answer of POST /v1/heartbeat. If `guardians` is empty, no dead-man switch is armed."""

    guardians: tuple[HeartbeatGuardian, ...]
    server_time: int | None = None
