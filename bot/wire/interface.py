"""Every operation of the interface, one row each: the only list of routes, rights, bodies, answers and their texts.

The service's routes and its OpenAPI document, the tools of MCP and the methods of the client are made from these rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, cast

from bot.wire.account import (
    AccountSnapshot,
    DeviceResult,
    DeviceTokenResult,
    Funding,
    Home,
    KillResult,
    OtpResult,
    Portfolio,
    ResetResult,
    SandboxAccountResult,
    SettingsResult,
    VerifyResult,
)
from bot.wire.base import Request, Resource
from bot.wire.control import (
    AdvanceRequest,
    ClockAdvanced,
    ClockRequest,
    ClockState,
    ControlResetResult,
    DigestResult,
    FaultRequest,
    FaultsResult,
    ForkResult,
    MintKeyRequest,
    MintKeyResult,
    NameRequest,
    PriceRequest,
    SeedRequest,
    SeedResult,
    SnapshotResult,
)
from bot.wire.events import EventsPage
from bot.wire.guardian_requests import GuardianRequest
from bot.wire.limits import Limits
from bot.wire.market import (
    AgentDocument,
    BookResult,
    CandlesResult,
    ChangelogResult,
    CountriesResult,
    MarketsResult,
    StartResult,
    StatusResult,
)
from bot.wire.order_requests import CancelCoinRequest, CloseRequest, ConfirmRequest, OrderRequest, SuggestRequest
from bot.wire.orders import (
    CancelCoinResult,
    CancelResult,
    DisarmResult,
    GuardiansPage,
    HeartbeatResult,
    OrderResult,
    OrdersPage,
    PlanResult,
    SuggestResult,
    TradesPage,
)
from bot.wire.queries import (
    CandlesQuery,
    EmptyQuery,
    EventsQuery,
    EventStreamQuery,
    MarketsQuery,
    NavQuery,
    OrdersQuery,
    TradesQuery,
    WalletTradesQuery,
    WatchQuery,
)
from bot.wire.requests import (
    DeviceRequest,
    DeviceTokenRequest,
    EmptyRequest,
    HeartbeatRequest,
    KeyRequest,
    KillRequest,
    OtpRequest,
    ResetRequest,
    SandboxAccountRequest,
    SettingsRequest,
    VerifyRequest,
    WebhookRequest,
)
from bot.wire.resources import (
    GuardianArmed,
    KeyCreated,
    KeyRevoked,
    KeysResult,
    Market,
    Revoked,
    WebhookCreated,
    WebhooksResult,
)
from bot.wire.wallets import WalletNavResult, WalletPnlResult, WalletPositionsResult, WalletResult

A = TypeVar("A", bound=Resource)
B = TypeVar("B", bound=Resource)

JSON: Final = "application/json"
HTML: Final = "text/html"
PLAIN: Final = "text/plain"
STREAM: Final = "text/event-stream"


class Access(StrEnum):
    """The access that an operation requires."""

    NONE = "none"
    READ = "read"
    TRADE = "trade"
    # trade, trade:close_only to shrink a position, outcomes for event markets; the operation checks which
    SHRINK = "shrink"
    # any credential; the operation checks the rest
    ANY = "any"
    OWNER = "owner"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Operation(Generic[A]):
    """One operation: what the gateway checks before it runs, and its row in the OpenAPI document.

    `policy`: its rate limit, or None. `codes`: failures that the other fields do not imply. An operation without a
    `group` is not in the document.
    """

    method: str
    path: str
    access: Access
    policy: str | None
    group: str = ""
    title: str = ""
    answer: type[A] | None = None
    # the answer to a dry run
    plan: type[Resource] | None = None
    media: str = JSON
    body: type[Request] | None = None
    query: type[Request] = EmptyQuery
    is_order: bool = False
    keyed: bool = False
    codes: tuple[str, ...] = ()
    # web pages that may call this route; None: any
    origins: frozenset[str] | None = None
    # address that tells a caller without a credential how to get one
    metadata: str = ""
    # errors are JSON-RPC errors, with the error object as their data
    is_rpc: bool = False

    @property
    def name(self) -> str:
        """The operationId, also for the sandbox's faults: `GET /v1/markets/{coin}/book` is get_markets_coin_book."""
        words = re.findall(r"[A-Za-z0-9]+", self.path.removeprefix("/v1"))
        return "_".join([self.method.lower(), *words])

    def path_to(self, *names: str) -> str:
        """The path with these names, which are already encoded."""
        return self.path.format(**dict(zip(self.places, names, strict=True)))

    def answering(self, model: type[B]) -> Operation[B]:
        """The same operation for a caller who reads its answer as another model."""
        return cast(Operation[B], replace(cast(Any, self), answer=model))

    @property
    def places(self) -> list[str]:
        """The names in its path."""
        return re.findall(r"\{([a-z_]+)\}", self.path)


@dataclass(frozen=True, slots=True)
class OperationGroup:
    """A chapter of the OpenAPI document. A call makes one row of the table that belongs to it."""

    name: str
    text: str

    def __call__(
        self,
        route: str,
        access: Access,
        title: str,
        answer: type[A],
        takes: type[Request] | None = None,
        *,
        policy: str | None = None,
        **more: Any,
    ) -> Operation[A]:
        """A row. `takes`: the query of a GET, otherwise the body. `policy`: by default that of the access."""
        method, path = route.split(" ")
        if method == "GET":
            more["query"] = takes or EmptyQuery
        else:
            more["body"] = takes or EmptyRequest
        if more.get("is_order"):
            policy, more["keyed"] = policy or "orders", True
        policy = policy or {Access.NONE: "public", Access.CONTROL: None}.get(access, "default")
        return Operation(method, path, access, policy, self.name, title, answer, **more)


_onboarding: Final = OperationGroup("Onboarding", "How to start, and the markets. No credential needed.")
_keys: Final = OperationGroup("Accounts and keys", "Create and end accounts, sessions and scoped keys.")
_account: Final = OperationGroup("Account", "The account's positions and balance, its limits, and the kill switch.")
_orders: Final = OperationGroup(
    "Orders", "Plan, place, confirm, close and cancel orders. An order may carry a stop, a target and guardians."
)
_guardians: Final = OperationGroup("Guardians", "Rules that the service executes, also while no client is connected.")
_events: Final = OperationGroup(
    "Events",
    "Everything that happened on an account, in order and without gaps: by cursor, as a stream, or by webhook.",
)
_wallets: Final = OperationGroup("Wallets", "Public read-only views of any address.")
_documents: Final = OperationGroup("Documents", "Descriptions of the interface for programs and people.")
_control: Final = OperationGroup(
    "Sandbox control",
    "Only the sandbox has these operations. They need the control token. They set time, prices and faults, and copy "
    "the whole service.",
)
GROUPS: Final = (_onboarding, _keys, _account, _orders, _guardians, _events, _wallets, _documents, _control)

NONE, READ, TRADE, SHRINK, ANY, OWNER, CONTROL = Access
_NOT_FOUND: Final = ("not_found",)
_KEY_LIMIT: Final = ("not_found", "key_limit_exceeded")
_CONFIRMED: Final = (
    "not_found",
    "plan_stale",
    "insufficient_funds",
    "limit_exceeded",
    "below_min_notional",
    "leverage_too_high",
    "market_closed",
    "trade_failed",
    "key_limit_exceeded",
)
_PLACED: Final = ("insufficient_depth", *(code for code in _CONFIRMED if code != "plan_stale"))

START: Final = _onboarding("GET /v1/start", NONE, "First steps", StartResult)
SYSTEM_STATUS: Final = _onboarding("GET /v1/system/status", NONE, "State and limits of the service", StatusResult)
MARKETS: Final = _onboarding("GET /v1/markets", NONE, "Search markets", MarketsResult, MarketsQuery)
CANDLES: Final = _onboarding(
    "GET /v1/markets/{coin}/candles", NONE, "Candles of a market", CandlesResult, CandlesQuery, codes=_NOT_FOUND
)
ORDER_BOOK: Final = _onboarding(
    "GET /v1/markets/{coin}/book", NONE, "Order book of a market", BookResult, codes=_NOT_FOUND
)
OPEN_ACCOUNT: Final = _keys(
    "POST /v1/sandbox/accounts",
    NONE,
    "Open a sandbox account",
    SandboxAccountResult,
    SandboxAccountRequest,
    policy="accounts",
)
RESET_ACCOUNT: Final = _keys(
    "POST /v1/sandbox/accounts/reset", OWNER, "Reset a sandbox account", ResetResult, ResetRequest
)
ACCOUNT: Final = _account("GET /v1/account", READ, "The account at one instant", AccountSnapshot)
LIMITS: Final = _account("GET /v1/limits", READ, "Limits of platform, account and key", Limits)
EVENTS: Final = _events("GET /v1/events", READ, "Events after a cursor", EventsPage, EventsQuery, codes=_NOT_FOUND)
TRADES: Final = _orders("GET /v1/trades", READ, "Trades, newest first", TradesPage, TradesQuery, codes=_NOT_FOUND)
PLACE_ORDER: Final = _orders(
    "POST /v1/orders",
    SHRINK,
    "Place or plan an order",
    OrderResult,
    OrderRequest,
    plan=PlanResult,
    is_order=True,
    codes=_PLACED,
)
OPEN_ORDERS: Final = _orders(
    "GET /v1/orders", READ, "Open orders and armed triggers", OrdersPage, OrdersQuery, codes=_NOT_FOUND
)
CANCEL_ORDERS: Final = _orders(
    "DELETE /v1/orders",
    SHRINK,
    "Cancel all orders of a coin",
    CancelCoinResult,
    CancelCoinRequest,
    policy="orders",
    codes=_KEY_LIMIT,
)
CANCEL_ORDER: Final = _orders(
    "DELETE /v1/orders/{oid}", SHRINK, "Cancel one order", CancelResult, policy="orders", codes=_KEY_LIMIT
)
CONFIRM_ORDER: Final = _orders(
    "POST /v1/orders/confirm", SHRINK, "Execute a plan", OrderResult, ConfirmRequest, is_order=True, codes=_CONFIRMED
)
SUGGEST_ORDER: Final = _orders(
    "POST /v1/orders/suggest",
    READ,
    "Suggest executable parameters",
    SuggestResult,
    SuggestRequest,
    codes=("not_found", "market_closed", "below_min_notional", "limit_exceeded", "leverage_too_high"),
)
CLOSE_POSITION: Final = _orders(
    "POST /v1/positions/{market}/close",
    SHRINK,
    "Close a position",
    OrderResult,
    CloseRequest,
    is_order=True,
    codes=_PLACED,
)
GUARDIANS: Final = _guardians("GET /v1/guardians", READ, "Armed guardians", GuardiansPage)
ARM_GUARDIAN: Final = _guardians(
    "POST /v1/guardians",
    SHRINK,
    "Arm a guardian",
    GuardianArmed,
    GuardianRequest,
    keyed=True,
    codes=("not_found", "limit_exceeded", "insufficient_funds", "key_limit_exceeded"),
)
DISARM_GUARDIAN: Final = _guardians(
    "DELETE /v1/guardians/{id}", TRADE, "Disarm a guardian", DisarmResult, codes=_KEY_LIMIT
)
KILL: Final = _account(
    "POST /v1/account/kill",
    TRADE,
    "Kill switch",
    KillResult,
    KillRequest,
    is_order=True,
    policy="kill",
    codes=("limit_exceeded", "trade_failed"),
)
HEARTBEAT: Final = _guardians(
    "POST /v1/heartbeat", SHRINK, "Heartbeat", HeartbeatResult, HeartbeatRequest, policy="heartbeat"
)
COUNTRIES: Final = _onboarding("GET /v1/auth/countries", NONE, "Countries and calling codes", CountriesResult)
SEND_CODE: Final = _keys("POST /v1/auth/otp", NONE, "Send a sign-in code", OtpResult, OtpRequest)
VERIFY: Final = _keys(
    "POST /v1/auth/verify",
    NONE,
    "Sign in with a code",
    VerifyResult,
    VerifyRequest,
    codes=("unauthorized", "session_expired", "forbidden", "not_found"),
)
END_SESSION: Final = _keys("DELETE /v1/auth/session", ANY, "End the session", Revoked, codes=("forbidden",))
CREATE_KEY: Final = _keys(
    "POST /v1/keys", OWNER, "Create a scoped key", KeyCreated, KeyRequest, keyed=True, codes=("limit_exceeded",)
)
KEYS: Final = _keys("GET /v1/keys", OWNER, "List keys", KeysResult)
REVOKE_KEY: Final = _keys("DELETE /v1/keys/{id}", OWNER, "Revoke a key", KeyRevoked, codes=_NOT_FOUND)
SETTINGS: Final = _account("GET /v1/settings", READ, "Self-limits", SettingsResult)
CHANGE_SETTINGS: Final = _account("PATCH /v1/settings", OWNER, "Change self-limits", SettingsResult, SettingsRequest)
START_DEVICE: Final = _keys(
    "POST /v1/oauth/device", NONE, "Start the device flow", DeviceResult, DeviceRequest, policy="accounts"
)
DEVICE_TOKEN: Final = _keys(
    "POST /v1/oauth/device/token",
    NONE,
    "Poll the device flow",
    DeviceTokenResult,
    DeviceTokenRequest,
    codes=("forbidden", "rate_limited", "session_expired", "unauthorized", "not_found", "limit_exceeded"),
)
EVENT_STREAM: Final = _events(
    "GET /v1/events/stream", READ, "Events as a stream", Resource, EventStreamQuery, media=STREAM, codes=_NOT_FOUND
)
CREATE_WEBHOOK: Final = _events(
    "POST /v1/webhooks",
    OWNER,
    "Register a webhook",
    WebhookCreated,
    WebhookRequest,
    keyed=True,
    codes=("limit_exceeded",),
)
WEBHOOKS: Final = _events("GET /v1/webhooks", OWNER, "List webhooks", WebhooksResult)
REMOVE_WEBHOOK: Final = _events("DELETE /v1/webhooks/{id}", OWNER, "Revoke a webhook", Revoked, codes=_NOT_FOUND)
CLOCK: Final = _control("GET /sandbox/v1/clock", CONTROL, "The service's clock", ClockState)
SET_SPEED: Final = _control("PATCH /sandbox/v1/clock", CONTROL, "Set the clock's speed", ClockState, ClockRequest)
ADVANCE: Final = _control(
    "POST /sandbox/v1/clock/advance", CONTROL, "Advance a manual clock", ClockAdvanced, AdvanceRequest
)
DIGEST: Final = _control("GET /sandbox/v1/digest", CONTROL, "Digest of the event log", DigestResult)
MINT_KEY: Final = _control(
    "POST /sandbox/v1/keys",
    CONTROL,
    "Create a key for an embedded daemon",
    MintKeyResult,
    MintKeyRequest,
    codes=_NOT_FOUND,
)
SET_SEED: Final = _control("POST /sandbox/v1/seed", CONTROL, "Set the seed", SeedResult, SeedRequest)
FAULTS: Final = _control("GET /sandbox/v1/faults", CONTROL, "Set faults", FaultsResult)
ADD_FAULT: Final = _control("POST /sandbox/v1/faults", CONTROL, "Set a fault", FaultsResult, FaultRequest)
CLEAR_FAULTS: Final = _control("DELETE /sandbox/v1/faults", CONTROL, "Remove all faults", FaultsResult)
SNAPSHOT: Final = _control("POST /sandbox/v1/snapshot", CONTROL, "Save a named snapshot", SnapshotResult, NameRequest)
RESTORE: Final = _control(
    "POST /sandbox/v1/restore", CONTROL, "Restore a named snapshot", SnapshotResult, NameRequest, codes=_NOT_FOUND
)
FORK: Final = _control(
    "POST /sandbox/v1/fork",
    CONTROL,
    "Start a second service from a snapshot",
    ForkResult,
    NameRequest,
    codes=_NOT_FOUND,
)
RESET_SERVICE: Final = _control(
    "POST /sandbox/v1/reset", CONTROL, "Reset the service to its start", ControlResetResult, EmptyRequest
)
PUSH_PRICE: Final = _control(
    "POST /sandbox/v1/markets/{coin}/price", CONTROL, "Push a price", Market, PriceRequest, codes=_NOT_FOUND
)
CHANGELOG: Final = _onboarding("GET /v1/changelog", NONE, "Versions of the interface", ChangelogResult)
PORTFOLIO: Final = _account("GET /v1/portfolio", READ, "Portfolio with guidance", Portfolio)
HOME: Final = _account("GET /v1/home", READ, "Home screen", Home)
FUNDING: Final = _account("GET /v1/funding", READ, "How the account is funded", Funding)
WALLET: Final = _wallets("GET /v1/wallets/{address}", NONE, "Portfolio of an address", WalletResult)
WALLET_POSITIONS: Final = _wallets(
    "GET /v1/wallets/{address}/positions", NONE, "Positions of an address", WalletPositionsResult
)
WALLET_PNL: Final = _wallets("GET /v1/wallets/{address}/pnl", NONE, "Profit and loss of an address", WalletPnlResult)
WALLET_NAV: Final = _wallets(
    "GET /v1/wallets/{address}/nav", NONE, "Value of an address through time", WalletNavResult, NavQuery
)
WALLET_TRADES: Final = _wallets(
    "GET /v1/wallets/{address}/trades", NONE, "Trades of an address", TradesPage, WalletTradesQuery
)
OPENAPI: Final = _documents("GET /openapi.json", NONE, "This description", Resource)
AGENT: Final = _documents("GET /agent.json", NONE, "Description of the service for agents", AgentDocument)
LLMS: Final = _documents("GET /llms.txt", NONE, "The interface for language models", Resource, media=PLAIN)
DOCS: Final = _documents("GET /docs", NONE, "Documentation", Resource, media=HTML)
DOCS_ERRORS: Final = _documents("GET /docs/errors", NONE, "Error codes", Resource, media=HTML)
DOCS_MODELS: Final = _documents("GET /docs/models", NONE, "Bodies and their fields", Resource, media=HTML)
WATCH_WALLET: Final = _wallets("GET /watch/{address}", NONE, "Page of an address", Resource, WatchQuery, media=HTML)


OPERATIONS: Final[tuple[Operation[Any], ...]] = tuple(row for row in globals().values() if isinstance(row, Operation))
