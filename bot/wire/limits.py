"""Limits of an account: platform limits, self-limits, limits of the key, rate limits.

Also its health and its credit.
"""

from __future__ import annotations

from pydantic import Field

from bot.wire.base import Amount, Num, Resource


class SlippageDefaults(Resource):
    main: int
    stocks: int
    events: int
    close: int


class Platform(Resource):
    max_notional_usd: Amount | None = None
    min_notional_usd: Amount
    usd_amount_max: Amount
    leverage_max: int
    slippage_bps_max: int
    slippage_bps_default: SlippageDefaults | None = None
    drift_bps_default: int | None = None
    drift_bps_max: int | None = None
    plan_ttl_ms: int | None = None
    heartbeat_seconds_min: int
    heartbeat_seconds_max: int
    guardian_seconds_min: int | None = None
    open_orders_max: int | None = None
    guardians_max: int | None = None
    keys_max: int | None = None
    webhooks_max: int | None = None
    events_kept: int | None = None
    idempotency_ttl_ms: int | None = None
    body_bytes_max: int | None = None


class AccountLimits(Resource):
    """The account's own limits. The account snapshot contains them as `budget` too."""

    max_trade_usd: Amount | None = None
    daily_trade_cap_usd: Amount | None = None
    used_today_usd: Amount | None = None
    remaining_today_usd: Amount | None = None
    resets_at: int | None = None


class KeyLimits(Resource):
    id: str
    scopes: tuple[str, ...] = ()
    max_exposure_usd: Amount | None = None
    exposure_usd: Amount | None = None
    max_daily_notional_usd: Amount | None = None
    used_today_usd: Amount | None = None
    max_leverage: int | None = None
    allowed_coins: tuple[str, ...] | None = None
    max_open_positions: int | None = None
    open_positions: int | None = None
    expires_at: int | None = None


class RateResource(Resource):
    policy: str
    scope: str
    per_second: Num
    burst: int
    remaining: int


class Limits(Resource):
    limits_version: int
    platform: Platform
    account: AccountLimits
    key: KeyLimits | None = None
    rate: tuple[RateResource, ...] = ()


class Health(Resource):
    """`margin_ratio` is maintenance margin divided by account value. At 1 the account is liquidated."""

    status: str
    opens_blocked: bool = False
    blocked_by: tuple[str, ...] = ()
    margin_ratio: Num | None = None
    unprotected: tuple[str, ...] = ()
    venue: str = "ok"


class Credit(Resource):
    granted_usd: Amount
    # absent in a policy
    remaining_usd: Amount | None = Field(default=None, exclude_if=lambda value: value is None)
    expires_at: int | None = None
    policy: str


class RestApi(Resource):
    base_url: str
    openapi: str | None = None
    docs: str | None = None


class McpApi(Resource):
    url: str
    protocol_versions: tuple[str, ...] = ()


class Apis(Resource):
    rest: RestApi
    mcp: McpApi | None = None
