"""The records of the service:

Position, Trade, Order, Bracket, Guardian, Key, Webhook, Market, Plan. Unknown fields and values are accepted.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from bot.wire.base import AbsentNone, Amount, Num, Resource


class Warning_(Resource):  # noqa: N801  the wire calls it Warning, a name Python has taken
    """What the service did differently from the request, or what the caller should know. Never a refusal."""

    code: str
    message: str


class Position(Resource):
    """The position in one market. Amounts that do not apply are None. Instants are unix ms on the service's clock."""

    coin: str
    side: str
    size: Amount
    leverage: Num
    entry_px: Amount | None = None
    mark_px: Amount | None = None
    liquidation_px: Amount | None = None
    unrealized_pnl_usd: Amount | None = None
    funding_usd: Amount | None = None
    margin_used_usd: Amount | None = None
    book: str
    market: str | None = None
    notional_usd: Amount | None = None
    stop_px: Amount | None = None
    take_profit_px: Amount | None = None
    risk_usd: Amount | None = None
    opened_at: int | None = None


class TradeResource(Resource):
    """One accepted order and its result so far. `seq` is the cursor for `?before`."""

    id: str
    request_id: str | None = None
    source: str | None = None
    kind: str
    symbol: str
    side: str
    intent: str
    reduce_only: bool
    size: Amount
    avg_px: Amount | None = None
    fee_usd: Amount | None = None
    realized_pnl_usd: Amount | None = None
    fill_status: str | None = None
    status: str
    venue_oid: str | None = None
    idempotency_key: str | None = None
    seq: int | None = None
    market: str | None = None
    filled_size: Amount | None = None
    leverage: Num | None = None
    guardian_id: str | None = None
    reason: str | None = None
    ts: int | None = None
    updated_at: int | None = None
    margin_lost_usd: Amount | None = None
    absorbed_usd: Amount | None = None


class StopLeg(Resource):
    """A leg of a bracket at the service: its price on the price grid, and pct or r as the caller gave them."""

    px: Amount
    pct: Num | None = None
    r: Num | None = None


class BracketResource(Resource):
    stop_loss: StopLeg | None = None
    take_profit: StopLeg | None = None


class Order(Resource):
    """An open limit order or an armed trigger."""

    oid: str
    trade_id: str | None = None
    coin: str
    market: str | None = None
    side: str
    intent: str
    kind: str
    reduce_only: bool
    size: Amount
    filled_size: Amount
    limit_px: Amount | None = None
    trigger_px: Amount | None = None
    bracket: BracketResource | None = None
    status: str
    source: str | None = None
    idempotency_key: str | None = None
    created_at: int | None = None


class Guardian(Resource):
    """An armed guardian, or a latched one: it has fired and still blocks openings."""

    id: str
    type: str
    scope: str
    status: str
    coin: str | None = None
    market: str | None = None
    heartbeat_seconds: int | None = None
    on_miss: str | None = None
    seconds: int | None = None
    trail_pct: Num | None = None
    trail_r: Num | None = None
    activate_at_r: Num | None = None
    max_loss_pct_from_day_start: Num | None = None
    action: str | None = None
    cron: str | None = None
    order_template: dict[str, Any] | None = None
    next_deadline: int | None = None
    last_heartbeat_at: int | None = None
    active: bool = True
    extreme_px: Amount | None = None
    stop_px: Amount | None = None
    day_start_value_usd: Amount | None = None
    floor_value_usd: Amount | None = None
    blocks_opens: bool = False
    trade_id: str | None = None
    fired_at: int | None = None
    fire_count: int = 0
    created_at: int | None = None


class GuardianArmed(Guardian):
    """Answer of POST /v1/guardians. `warnings` is absent if there are none."""

    warnings: tuple[Warning_, ...] = Field(default=(), exclude_if=lambda value: not value)


class Key(Resource):
    """An API key without its secret."""

    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...] = ()
    max_exposure_usd: Amount | None = None
    max_daily_notional_usd: Amount | None = None
    max_leverage: int | None = None
    allowed_coins: tuple[str, ...] | None = None
    max_open_positions: int | None = None
    expires_at: int | None = None
    created_at: int | None = None
    last_used_at: int | None = None
    source: str | None = None


class KeyCreated(Key):
    """Answer of POST /v1/keys. It is the only answer that contains the secret; in a replay `api_key` is None."""

    api_key: str | None = Field(default=None, repr=False)


class KeysResult(Resource):
    keys: tuple[Key, ...] = ()


class Webhook(Resource):
    id: str
    url: str
    types: tuple[str, ...] | None = None
    status: str
    created_at: int | None = None
    last_delivery_at: int | None = None
    last_status: int | None = None
    failures: int = 0
    disabled_reason: str | None = None


class WebhookCreated(Webhook):
    """Answer of POST /v1/webhooks.

    It is the only answer that contains the signing secret; in a replay `secret` is None.
    """

    secret: str | None = Field(default=None, repr=False)
    warnings: tuple[Warning_, ...] = Field(default=(), exclude_if=lambda value: not value)


class WebhooksResult(Resource):
    webhooks: tuple[Webhook, ...] = ()


class Revoked(Resource):
    """Answer of DELETE for a key, a webhook or a session (without id)."""

    id: str | None = Field(default=None, exclude_if=lambda value: value is None)
    revoked: bool = True


class KeyRevoked(Revoked):
    """Answer of DELETE for a key: the resting entries that were canceled and the schedules that were disarmed with
    it.
    """

    canceled_oids: tuple[str, ...] = ()
    disarmed_guardian_ids: tuple[str, ...] = ()


class Market(Resource):
    """`tick_size` and `size_step`: the grids of prices and sizes where they do not follow from `sz_decimals`."""

    coin: str
    market: str
    name: str
    asset_class: str
    book: str
    status: str
    mark_px: Amount | None = None
    mid_px: Amount | None = None
    oracle_px: Amount | None = None
    bid_px: Amount | None = None
    ask_px: Amount | None = None
    spread_bps: Num | None = None
    change24h_pct: Num | None = Field(default=None, alias="change24hPct")
    volume24h_usd: Amount | None = Field(default=None, alias="volume24hUsd")
    open_interest_usd: Amount | None = None
    funding_rate_hourly: str | None = None
    next_funding_at: int | None = None
    sz_decimals: int
    max_leverage: int
    margin_mode: str | None = None
    min_notional_usd: Amount | None = None
    taker_fee_bps: Num | None = None
    maker_fee_bps: Num | None = None
    external: str | None = None
    opens_at: int | None = None
    closes_at: int | None = None
    expires_at: int | None = None
    outcome_px: Amount | None = None
    tick_size: Amount | None = AbsentNone
    size_step: Amount | None = AbsentNone


class Plan(Resource):
    """What an order would do with the present order book. `bound_px` is the worst price that it accepts."""

    coin: str
    market: str
    side: str
    intent: str
    type: str
    size: Amount
    fill_size: Amount | None = None
    notional_usd: Amount
    mid_px: Amount | None = None
    est_px: Amount | None = None
    bound_px: Amount | None = None
    slippage_bps: Num | None = None
    fee_usd: Amount | None = None
    leverage: Num | None = None
    leverage_clamped: bool = False
    margin_usd: Amount | None = None
    liquidation_px: Amount | None = None
    bracket: BracketResource | None = None
    risk_usd: Amount | None = None
    guardians: tuple[dict[str, Any], ...] = ()
    max_drift_bps: int | None = None
    protected: bool = False
    warnings: tuple[Warning_, ...] = ()
