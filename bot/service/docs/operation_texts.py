"""Texts of the OpenAPI description: for each operation its title, group, response body and failures.

One row per operation. A test names routes without a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bot.wire import account, control, limits, market, orders, requests, resources, wallets
from bot.wire import events as wire_events
from bot.wire.base import Resource

HTML: Final = "text/html"
PLAIN: Final = "text/plain"
STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Described:
    """The texts of one operation.

    `answer`: one model, several, or a media type. `codes`: failures that the rule does not imply.
    """

    group: str
    title: str
    answer: type[Resource] | tuple[type[Resource], ...] | str
    codes: tuple[str, ...] = ()
    note: str = ""


GROUPS: Final[dict[str, str]] = {
    "Onboarding": "How to start, and the markets. No credential needed.",
    "Accounts and keys": "Create and end accounts, sessions and scoped keys.",
    "Account": "The account's positions and balance, its limits, and the kill switch.",
    "Orders": "Plan, place, confirm, close and cancel orders. An order may carry a stop, a target and guardians.",
    "Guardians": "Rules that the service executes, also while no client is connected.",
    "Events": (
        "Everything that happened on an account, in order and without gaps: by cursor, as a stream, or by webhook."
    ),
    "Wallets": "Public read-only views of any address.",
    "Documents": "Descriptions of the interface for programs and people.",
    "Sandbox control": (
        "Only the sandbox has these operations. They need the control token. They set time, prices and faults, and copy"
        " the whole service."
    ),
}

_ORDER: Final = (
    "insufficient_funds",
    "limit_exceeded",
    "below_min_notional",
    "leverage_too_high",
    "insufficient_depth",
    "market_closed",
    "trade_failed",
    "key_limit_exceeded",
)

WEBHOOK_NOTE: Final = (
    "This response is the only one that contains the signing secret. Its form is whsec_ and base64; a secret that you"
    " give in another form is converted, with the warning secret_converted. Deliveries are POST requests by Standard"
    " Webhooks 1.0, and any library of that standard verifies them: the headers are webhook-id (the event's id),"
    " webhook-timestamp (unix seconds) and webhook-signature: v1, and the base64 of HMAC-SHA256 with the key (the"
    " decoded base64) over ID.TIMESTAMP.BODY. An answer of 2xx within 15 s ends a delivery. Otherwise the service tries"
    " ten times over about three days, under the same webhook-id; Retry-After is kept, redirects are not followed, and"
    " 410 disables the webhook."
)

DESCRIBED: Final[dict[tuple[str, str], Described]] = {
    ("GET", "/v1/start"): Described("Onboarding", "First steps", market.StartResult),
    ("GET", "/v1/changelog"): Described("Onboarding", "Versions of the interface", market.ChangelogResult),
    ("GET", "/v1/auth/countries"): Described("Onboarding", "Countries and calling codes", market.CountriesResult),
    ("GET", "/v1/markets"): Described(
        "Onboarding",
        "Search markets",
        market.MarketsResult,
        (),
        "A settled event market leaves the lists after one day. The next market of its series is listed at settlement."
        " A search for the full name still finds the settled market.",
    ),
    ("GET", "/v1/markets/{coin}/candles"): Described(
        "Onboarding", "Candles of a market", market.CandlesResult, ("not_found",)
    ),
    ("GET", "/v1/markets/{coin}/book"): Described(
        "Onboarding", "Order book of a market", market.BookResult, ("not_found",)
    ),
    ("GET", "/v1/system/status"): Described("Onboarding", "State and limits of the service", market.StatusResult),
    ("POST", "/v1/sandbox/accounts"): Described(
        "Accounts and keys",
        "Open a sandbox account",
        account.SandboxAccountResult,
        (),
        "This response is the only one that contains the API key.",
    ),
    ("POST", "/v1/sandbox/accounts/reset"): Described(
        "Accounts and keys",
        "Reset a sandbox account",
        account.ResetResult,
        (),
        "Deletes positions, orders, plans, trades, events and guardians, and sets the balance. Keys, webhooks and"
        " settings stay.",
    ),
    ("POST", "/v1/auth/otp"): Described(
        "Accounts and keys",
        "Send a sign-in code",
        account.OtpResult,
        (),
        "The sandbox sends no SMS; the response contains the code.",
    ),
    ("POST", "/v1/auth/verify"): Described(
        "Accounts and keys",
        "Sign in with a code",
        account.VerifyResult,
        ("unauthorized", "session_expired", "forbidden", "not_found"),
        "The first sign-in creates the account and its wallet.",
    ),
    ("DELETE", "/v1/auth/session"): Described(
        "Accounts and keys", "End the session", resources.Revoked, ("forbidden",)
    ),
    ("POST", "/v1/keys"): Described(
        "Accounts and keys",
        "Create a scoped key",
        resources.KeyCreated,
        ("limit_exceeded",),
        "This response is the only one that contains the secret.",
    ),
    ("GET", "/v1/keys"): Described("Accounts and keys", "List keys", resources.KeysResult),
    ("DELETE", "/v1/keys/{id}"): Described(
        "Accounts and keys",
        "Revoke a key",
        resources.KeyRevoked,
        ("not_found",),
        "Cancels the key's resting entries and disarms its schedules. Stops, targets and other guardians stay.",
    ),
    ("POST", "/v1/oauth/device"): Described("Accounts and keys", "Start the device flow", account.DeviceResult),
    ("POST", "/v1/oauth/device/token"): Described(
        "Accounts and keys",
        "Poll the device flow",
        account.DeviceTokenResult,
        ("forbidden", "rate_limited", "session_expired", "unauthorized", "not_found", "limit_exceeded"),
        "Responds 403 with details.oauthError authorization_pending until a person approves.",
    ),
    ("GET", "/v1/account"): Described("Account", "The account at one instant", account.AccountSnapshot),
    ("GET", "/v1/limits"): Described("Account", "Limits of platform, account and key", limits.Limits),
    ("GET", "/v1/portfolio"): Described("Account", "Portfolio with guidance", account.Portfolio),
    ("GET", "/v1/home"): Described("Account", "Home screen", account.Home),
    ("GET", "/v1/funding"): Described("Account", "How the account is funded", account.Funding),
    ("GET", "/v1/settings"): Described("Account", "Self-limits", account.SettingsResult),
    ("PATCH", "/v1/settings"): Described(
        "Account",
        "Change self-limits",
        account.SettingsResult,
        (),
        "To clear a cap send null, an empty string, or the text none or null.",
    ),
    ("POST", "/v1/account/kill"): Described(
        "Account",
        "Kill switch",
        account.KillResult,
        ("limit_exceeded", "trade_failed"),
        "Blocks new positions of the whole account until the owner removes the block. Cancels entries. With flatten,"
        " closes the positions that the key may trade.",
    ),
    ("POST", "/v1/orders"): Described(
        "Orders",
        "Place or plan an order",
        (orders.OrderResult, orders.PlanResult),
        ("not_found", *_ORDER),
        "Send exactly one of usdAmount and size. With dryRun the service executes nothing and returns a plan and a"
        " single-use confirmToken.",
    ),
    ("GET", "/v1/orders"): Described("Orders", "Open orders and armed triggers", orders.OrdersPage, ("not_found",)),
    ("DELETE", "/v1/orders"): Described(
        "Orders",
        "Cancel all orders of a coin",
        orders.CancelCoinResult,
        ("not_found", "key_limit_exceeded"),
        "Also cancels stops and targets; the field unprotected says whether a position has lost its stop.",
    ),
    ("DELETE", "/v1/orders/{oid}"): Described(
        "Orders", "Cancel one order", orders.CancelResult, ("not_found", "key_limit_exceeded")
    ),
    ("POST", "/v1/orders/confirm"): Described(
        "Orders",
        "Execute a plan",
        orders.OrderResult,
        ("not_found", "plan_stale", *(code for code in _ORDER if code != "insufficient_depth")),
        "The token works once. If the price has drifted beyond maxDriftBps, or the depth is gone, the service responds"
        " plan_stale.",
    ),
    ("POST", "/v1/orders/suggest"): Described(
        "Orders",
        "Suggest executable parameters",
        orders.SuggestResult,
        ("not_found", "market_closed", "below_min_notional", "limit_exceeded", "leverage_too_high"),
    ),
    ("POST", "/v1/positions/{market}/close"): Described(
        "Orders",
        "Close a position",
        orders.OrderResult,
        ("not_found", *_ORDER),
        "An empty body closes the whole position.",
    ),
    ("GET", "/v1/trades"): Described("Orders", "Trades, newest first", orders.TradesPage, ("not_found",)),
    ("GET", "/v1/guardians"): Described("Guardians", "Armed guardians", orders.GuardiansPage),
    ("POST", "/v1/guardians"): Described(
        "Guardians",
        "Arm a guardian",
        resources.GuardianArmed,
        ("not_found", "limit_exceeded", "insufficient_funds", "key_limit_exceeded"),
    ),
    ("DELETE", "/v1/guardians/{id}"): Described(
        "Guardians", "Disarm a guardian", orders.DisarmResult, ("not_found", "key_limit_exceeded")
    ),
    ("POST", "/v1/heartbeat"): Described(
        "Guardians", "Heartbeat", orders.HeartbeatResult, (), "Moves nextDeadline of every armed dead-man switch."
    ),
    ("GET", "/v1/events"): Described(
        "Events",
        "Events after a cursor",
        wire_events.EventsPage,
        ("not_found",),
        "Responds 410 when a reset wiped the cursor.",
    ),
    ("GET", "/v1/events/stream"): Described(
        "Events",
        "Events as a stream",
        STREAM,
        ("not_found",),
        "text/event-stream. Each message has id (the event's id), event (its type) and data (one Event). The service"
        " sends retry once, and a comment ping every 15 s. The header Last-Event-ID, or since, resumes after an id. The"
        " service ends a stream with one message that has event: error, no id, and the error object as its data:"
        " session_expired or unauthorized when the credential is no longer valid, not_found with fix.action resync when"
        " unread events were wiped. Close the stream then; the same request would get that error as plain JSON.",
    ),
    ("POST", "/v1/webhooks"): Described(
        "Events", "Register a webhook", resources.WebhookCreated, ("limit_exceeded",), WEBHOOK_NOTE
    ),
    ("GET", "/v1/webhooks"): Described("Events", "List webhooks", resources.WebhooksResult),
    ("DELETE", "/v1/webhooks/{id}"): Described("Events", "Revoke a webhook", resources.Revoked, ("not_found",)),
    ("GET", "/v1/wallets/{address}"): Described("Wallets", "Portfolio of an address", wallets.WalletResult),
    ("GET", "/v1/wallets/{address}/positions"): Described(
        "Wallets", "Positions of an address", wallets.WalletPositionsResult
    ),
    ("GET", "/v1/wallets/{address}/pnl"): Described(
        "Wallets", "Profit and loss of an address", wallets.WalletPnlResult
    ),
    ("GET", "/v1/wallets/{address}/nav"): Described(
        "Wallets",
        "Value of an address through time",
        wallets.WalletNavResult,
        (),
        "The step is 5 minutes for 1d, 1 hour for 7d, 4 hours for 30d and 1 day for all. The last point is the"
        " present.",
    ),
    ("GET", "/v1/wallets/{address}/trades"): Described(
        "Wallets",
        "Trades of an address",
        orders.TradesPage,
        (),
        "Only filled trades. Resting orders are private to the owner.",
    ),
    ("GET", "/watch/{address}"): Described("Wallets", "Page of an address", HTML),
    ("GET", "/openapi.json"): Described("Documents", "This description", "application/json"),
    ("GET", "/llms.txt"): Described("Documents", "The interface for language models", PLAIN),
    ("GET", "/agent.json"): Described("Documents", "Description of the service for agents", market.AgentDocument),
    ("GET", "/docs"): Described("Documents", "Documentation", HTML),
    ("GET", "/docs/errors"): Described("Documents", "Error codes", HTML),
    ("GET", "/docs/models"): Described("Documents", "Bodies and their fields", HTML),
    ("GET", "/sandbox/v1/clock"): Described("Sandbox control", "The service's clock", control.ClockState),
    ("PATCH", "/sandbox/v1/clock"): Described("Sandbox control", "Set the clock's speed", control.ClockState),
    ("POST", "/sandbox/v1/clock/advance"): Described(
        "Sandbox control", "Advance a manual clock", control.ClockAdvanced
    ),
    ("POST", "/sandbox/v1/markets/{coin}/price"): Described(
        "Sandbox control", "Push a price", resources.Market, ("not_found",)
    ),
    ("POST", "/sandbox/v1/seed"): Described("Sandbox control", "Set the seed", control.SeedResult),
    ("GET", "/sandbox/v1/faults"): Described("Sandbox control", "Set faults", control.FaultsResult),
    ("POST", "/sandbox/v1/faults"): Described("Sandbox control", "Set a fault", control.FaultsResult),
    ("DELETE", "/sandbox/v1/faults"): Described("Sandbox control", "Remove all faults", control.FaultsResult),
    ("POST", "/sandbox/v1/snapshot"): Described("Sandbox control", "Save a named snapshot", control.SnapshotResult),
    ("POST", "/sandbox/v1/restore"): Described(
        "Sandbox control", "Restore a named snapshot", control.SnapshotResult, ("not_found",)
    ),
    ("POST", "/sandbox/v1/fork"): Described(
        "Sandbox control", "Start a second service from a snapshot", control.ForkResult, ("not_found",)
    ),
    ("POST", "/sandbox/v1/reset"): Described(
        "Sandbox control", "Reset the service to its start", control.ControlResetResult
    ),
    ("GET", "/sandbox/v1/digest"): Described("Sandbox control", "Digest of the event log", control.DigestResult),
    ("POST", "/sandbox/v1/keys"): Described(
        "Sandbox control", "Create a key for an embedded daemon", control.MintKeyResult, ("not_found",)
    ),
}

# Routes that the description leaves out, with the reason.
OUTSIDE: Final[dict[str, str]] = {
    "/": "redirects a browser to /docs",
    "/mcp": "uses the MCP protocol, which describes itself",
    "/device": "is an HTML form for the person who approves a device",
    "/.well-known/": "belongs to OAuth, which describes it",
}

# A valid body of each request, shown in the documentation.
EXAMPLES: Final[dict[str, dict[str, object]]] = {
    requests.SandboxAccountRequest.__name__: {"name": "my bot", "startingBalanceUsd": 10000},
    requests.ResetRequest.__name__: {"balanceUsd": 10000},
    requests.OtpRequest.__name__: {"phoneNumber": "+442079460000"},
    requests.VerifyRequest.__name__: {"phoneNumber": "+442079460000", "code": "123456", "nickname": "ada"},
    requests.DeviceTokenRequest.__name__: {"deviceCode": "<deviceCode>"},
    requests.KeyRequest.__name__: {"name": "reader", "scopes": ["read"], "maxLeverage": 3},
    requests.SettingsRequest.__name__: {"maxTradeUsd": 500, "dailyTradeCapUsd": None},
    requests.KillRequest.__name__: {"flatten": False},
    requests.WebhookRequest.__name__: {"url": "https://example.com/hook", "types": ["fill", "guardian"]},
    "OrderRequest": {
        "market": "perp:BTC",
        "side": "long",
        "usdAmount": 100,
        "bracket": {"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}},
        "requireProtection": True,
        "dryRun": True,
    },
    "CancelCoinRequest": {"coin": "BTC"},
    "ConfirmRequest": {"confirmToken": "<confirmToken>"},
    "SuggestRequest": {"coin": "BTC", "notionalUsd": 100},
    "CloseRequest": {"fraction": 0.5},
    "GuardianRequest": {"type": "dead_man_switch", "heartbeatSeconds": 300, "onMiss": "cancel_orders"},
    "ClockRequest": {"speed": 60},
    "AdvanceRequest": {"ms": 60000},
    "PriceRequest": {"px": "100000"},
    "SeedRequest": {"seed": 7},
    "FaultRequest": {"op": "*", "kind": "delay", "count": 1, "ms": 500},
    "NameRequest": {"name": "before"},
}
