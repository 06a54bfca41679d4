"""The longer texts of the OpenAPI description: a note for some operations, and a valid body of each request."""

from __future__ import annotations

from typing import Any, Final

from bot.wire import interface, requests
from bot.wire.interface import Operation

WEBHOOK_NOTE: Final = (
    "This response is the only one that contains the signing secret. Its form is whsec_ and base64; a secret "
    "that you give in another form is converted, with the warning secret_converted. Deliveries are POST requests "
    "by Standard Webhooks 1.0, and any library of that standard verifies them: the headers are webhook-id (the "
    "event's id), webhook-timestamp (unix seconds) and webhook-signature: v1, and the base64 of HMAC-SHA256 with "
    "the key (the decoded base64) over ID.TIMESTAMP.BODY. An answer of 2xx within 15 s ends a delivery. "
    "Otherwise the service tries ten times over about three days, under the same webhook-id; Retry-After is "
    "kept, redirects are not followed, and 410 disables the webhook."
)
NOTES: Final[dict[Operation[Any], str]] = {
    interface.MARKETS: (
        "A settled event market leaves the lists after one day. The next market of its series is listed at "
        "settlement. A search for the full name still finds the settled market."
    ),
    interface.OPEN_ACCOUNT: "This response is the only one that contains the API key.",
    interface.RESET_ACCOUNT: (
        "Deletes positions, orders, plans, trades, events and guardians, and sets the balance. Keys, webhooks and "
        "settings stay."
    ),
    interface.EVENTS: "Responds 410 when a reset wiped the cursor.",
    interface.PLACE_ORDER: (
        "Send exactly one of usdAmount and size. With dryRun the service executes nothing and returns a plan and a "
        "single-use confirmToken."
    ),
    interface.CANCEL_ORDERS: (
        "Also cancels stops and targets; the field unprotected says whether a position has lost its stop."
    ),
    interface.CONFIRM_ORDER: (
        "The token works once. If the price has drifted beyond maxDriftBps, or the depth is gone, the service "
        "responds plan_stale."
    ),
    interface.CLOSE_POSITION: "An empty body closes the whole position.",
    interface.KILL: (
        "Blocks new positions of the whole account until the owner removes the block. Cancels entries. With flatten, "
        "closes the positions that the key may trade."
    ),
    interface.HEARTBEAT: "Moves nextDeadline of every armed dead-man switch.",
    interface.SEND_CODE: "The sandbox sends no SMS; the response contains the code.",
    interface.VERIFY: "The first sign-in creates the account and its wallet.",
    interface.CREATE_KEY: "This response is the only one that contains the secret.",
    interface.REVOKE_KEY: (
        "Cancels the key's resting entries and disarms its schedules. Stops, targets and other guardians stay."
    ),
    interface.CHANGE_SETTINGS: "To clear a cap send null, an empty string, or the text none or null.",
    interface.DEVICE_TOKEN: "Responds 403 with details.oauthError authorization_pending until a person approves.",
    interface.EVENT_STREAM: (
        "text/event-stream. Each message has id (the event's id), event (its type) and data (one Event). The service "
        "sends retry once, and a comment ping every 15 s. The header Last-Event-ID, or since, resumes after an id. "
        "The service ends a stream with one message that has event: error, no id, and the error object as its data: "
        "session_expired or unauthorized when the credential is no longer valid, not_found with fix.action resync "
        "when unread events were wiped. Close the stream then; the same request would get that error as plain JSON."
    ),
    interface.CREATE_WEBHOOK: WEBHOOK_NOTE,
    interface.WALLET_NAV: (
        "The step is 5 minutes for 1d, 1 hour for 7d, 4 hours for 30d and 1 day for all. The last point is the present."
    ),
    interface.WALLET_TRADES: "Only filled trades. Resting orders are private to the owner.",
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
