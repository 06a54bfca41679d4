"""Answers about one account: snapshot, portfolio, home, funding, settings and kill, and the answers that create
accounts and credentials.
"""

from __future__ import annotations

from pydantic import Field

from bot.wire.base import Amount, Resource
from bot.wire.limits import AccountLimits, Apis, Credit, Health, Limits
from bot.wire.resources import Guardian, Order, Position, TradeResource


class AccountExchange(Resource):
    """The account at an exchange that this account follows. `link`: away, behind or in_step, `since` when and why."""

    name: str
    network: str
    link: str
    since: int
    reason: str | None = None
    transferred_usd: Amount


class AccountSnapshot(Resource):
    """Answer of GET /v1/account: the whole account at one instant. Read events from `last_event_id` on."""

    account_id: str
    address: str
    epoch: int = 0
    nickname: str | None = None
    environment: str | None = None
    account_value_usd: Amount
    balance_usd: Amount
    free_margin_usd: Amount
    margin_used_usd: Amount
    unrealized_pnl_usd: Amount
    positions: tuple[Position, ...]
    orders: tuple[Order, ...]
    guardians: tuple[Guardian, ...]
    limits: Limits
    budget: AccountLimits | None = None
    credit: Credit | None = None
    last_event_id: str
    health: Health
    server_time: int | None = None
    # absent for a sandbox account
    exchange: AccountExchange | None = Field(default=None, exclude_if=lambda value: value is None)


class FundingMethod(Resource):
    kind: str
    method: str
    path: str
    max_usd: Amount | None = None


class Funding(Resource):
    environment: str
    play_money: bool
    address: str
    instructions: tuple[str, ...] = ()
    methods: tuple[FundingMethod, ...] = ()
    withdrawals: bool = False


class Portfolio(Resource):
    """Answer of GET /v1/portfolio.

    `realized_pnl_today_usd`: realised PnL of this UTC day, less the margin lost, plus what the service absorbed; fees
    are not included.
    """

    address: str
    account_value_usd: Amount
    balance_usd: Amount
    free_margin_usd: Amount
    margin_used_usd: Amount
    unrealized_pnl_usd: Amount
    realized_pnl_today_usd: Amount
    positions: tuple[Position, ...] = ()
    funding: Funding
    guidance: tuple[str, ...] = ()
    web_watch: str


class HomeWallet(Resource):
    address: str
    environment: str


class HomePortfolio(Resource):
    account_value_usd: Amount
    unrealized_pnl_usd: Amount
    open_positions: int
    positions: tuple[Position, ...] = ()


class Home(Resource):
    nickname: str | None = None
    wallet: HomeWallet
    portfolio: HomePortfolio
    guidance: tuple[str, ...] = ()
    web_watch: str


class SettingsResult(Resource):
    max_trade_usd: Amount | None = None
    daily_trade_cap_usd: Amount | None = None


class KillResult(Resource):
    guardian: Guardian
    flatten: bool
    canceled_oids: tuple[str, ...] = ()
    trades: tuple[TradeResource, ...] = ()
    positions: tuple[Position, ...] = ()
    order_submitted: bool
    last_event_id: str


class SandboxAccountResult(Resource):
    """Answer of POST /v1/sandbox/accounts. It is the only answer that contains the key's secret."""

    api_key: str = Field(repr=False)
    key_id: str
    account_id: str
    address: str
    name: str | None = None
    balance_usd: Amount
    environment: str
    scopes: tuple[str, ...] = ()
    last_event_id: str
    created_at: int | None = None
    apis: Apis | None = None
    docs: str | None = None


class ResetResult(Resource):
    account_id: str
    address: str
    balance_usd: Amount
    environment: str
    epoch: int
    last_event_id: str
    reset_at: int | None = None


class OtpResult(Resource):
    sent: bool = True
    phone_number: str = Field(repr=False)
    country: str | None = None
    expires_at: int
    retry_after_seconds: int
    # a field of the sandbox only, which sends no SMS
    sandbox_code: str | None = Field(default=None, repr=False, exclude_if=lambda value: value is None)


class VerifyResult(Resource):
    access_token: str = Field(repr=False)
    token_type: str = "Bearer"  # noqa: S105  a scheme, not a secret
    expires_at: int
    new_user: bool
    account_id: str
    address: str
    nickname: str
    environment: str
    apis: Apis
    credit: Credit


class DeviceResult(Resource):
    device_code: str = Field(repr=False)
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class DeviceTokenResult(Resource):
    access_token: str = Field(repr=False)
    token_type: str = "Bearer"  # noqa: S105  a scheme, not a secret
    key_id: str
    scopes: tuple[str, ...] = ()
    account_id: str
    address: str
    expires_at: int | None = None
