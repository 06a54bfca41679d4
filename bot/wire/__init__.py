"""The /v1 interface as frozen models, shared by service and client: strict requests, tolerant answers, and the error
object. No trading rule lives here.

A name loads at its first use, so that a process imports only the modules that it needs. `Request.from_wire` reads an
incoming request. `Request.body` and `Resource.json_bytes` write outgoing text.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bot.wire.account import *  # noqa: F403  so that a type checker sees every name below
    from bot.wire.base import *  # noqa: F403
    from bot.wire.control import *  # noqa: F403
    from bot.wire.errors import *  # noqa: F403
    from bot.wire.events import *  # noqa: F403
    from bot.wire.guardian_requests import *  # noqa: F403
    from bot.wire.headers import *  # noqa: F403
    from bot.wire.limits import *  # noqa: F403
    from bot.wire.market import *  # noqa: F403
    from bot.wire.order_requests import *  # noqa: F403
    from bot.wire.orders import *  # noqa: F403
    from bot.wire.queries import *  # noqa: F403
    from bot.wire.requests import *  # noqa: F403
    from bot.wire.resources import *  # noqa: F403
    from bot.wire.vocabulary import *  # noqa: F403
    from bot.wire.wallets import *  # noqa: F403

# module -> the names that the package exports from it
_HOME = {
    "base": (
        "Amount Bps CoinName DIGITS_MAX Digits EXPONENT_MAX Flag Integer Leverage MarketName Num Number Request"
        " Resource SAFE_INT_MAX Text UsdAmount encode is_digits json_number"
    ),
    "headers": (
        "API_VERSION API_VERSION_HEADER DESCRIPTION_VERSION EXPIRES_AFTER_HEADER IDEMPOTENCY_KEY_HEADER"
        " IDEMPOTENCY_KEY_MAX IDEMPOTENCY_REPLAYED_HEADER LIMITS_VERSION REQUEST_ID_HEADER SANDBOX_CLOCK_HEADER"
        " format_sandbox_clock parse_expires_after parse_idempotency_key parse_sandbox_clock"
    ),
    "vocabulary": (
        "AssetClass CANDLES_MAX EVENTS_PAGE_MAX EVENT_FILTERS EVENT_SUBTYPES FaultKind GuardianAction GuardianScope"
        " GuardianType INTERVAL_MS Intent Interval LeverageMode MarketsView NavRange OrderType Scope Side Source"
        " TRADES_PAGE_MAX bare_coin"
    ),
    "order_requests": (
        "BracketRequest CancelCoinRequest CloseRequest ConfirmRequest LegRequest OrderRequest SuggestRequest"
    ),
    "guardian_requests": "GUARDIAN_RULES GuardianFields GuardianRequest GuardianRule InlineGuardian",
    "requests": (
        "CLEARS_CAP DeviceRequest DeviceTokenRequest EmptyRequest HeartbeatRequest KeyRequest KillRequest OtpRequest"
        " ResetRequest SandboxAccountRequest SettingsRequest URL_MAX VerifyRequest WebhookRequest"
    ),
    "queries": "CandlesQuery EmptyQuery EventsQuery MarketsQuery NavQuery OrdersQuery TradesQuery WalletTradesQuery",
    "control": (
        "AdvanceRequest ClockAdvanced ClockRequest ClockState ControlResetResult DigestResult Fault FaultRequest"
        " FaultsResult ForkResult MintKeyRequest MintKeyResult NameRequest PriceRequest SPEED_MAX SeedRequest"
        " SeedResult SnapshotResult"
    ),
    "resources": (
        "BracketResource Guardian Key KeyCreated KeyRevoked KeysResult Market Order Plan Position Revoked StopLeg"
        " TradeResource Warning_ Webhook WebhookCreated WebhooksResult"
    ),
    "limits": "AccountLimits Apis Credit Health KeyLimits Limits McpApi Platform RateResource RestApi SlippageDefaults",
    "account": (
        "AccountExchange AccountSnapshot DeviceResult DeviceTokenResult Funding FundingMethod Home HomePortfolio"
        " HomeWallet KillResult OtpResult Portfolio ResetResult SandboxAccountResult SettingsResult VerifyResult"
    ),
    "orders": (
        "CancelCoinResult CancelResult DisarmResult GuardiansPage HeartbeatGuardian HeartbeatResult OrderResult"
        " OrdersPage PlanResult SuggestResult SuggestedCall TradesPage"
    ),
    "market": (
        "AgentDocument BookResult Candle CandlesResult ChangelogEntry ChangelogResult CountriesResult Country Level"
        " MarketsResult StartResult StartStep ExchangeLinkStatus StatusClock StatusLimits StatusResult"
    ),
    "wallets": "NavPoint PnlRanges WalletNavResult WalletPnlResult WalletPositionsResult WalletResult",
    "events": (
        "AccountCreatedData AccountKeyData AccountLeverageData AccountLinkData AccountMarginData AccountResetData"
        " AccountSettingsData AccountTransferData DATA_OF Event EventData EventsPage FillData FundingData"
        " GuardianData LiquidationData OrderData SettlementData TriggerData"
    ),
    "errors": "ErrorBody ErrorEnvelope FIELDS_SHOWN_MAX FieldProblem fields_of message_of",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}


# Only at run time, so that a type checker reports a wrong name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module 'bot.wire' has no attribute {name!r}")
        value = getattr(import_module(f"bot.wire.{module}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
