"""The interface's fields as one table: the words are those of the interface document, which a test compares when it
is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

BTC = {"market": "BTC", "side": "long", "usdAmount": 50}
TRAIL = {"type": "trailing_stop", "market": "BTC", "trailPct": 2}
# in `with`: the field of the base body is left out
GONE = object()


@dataclass(frozen=True)
class Shape:
    """A valid body of one request, and each field in the document's words.

    `around`: what else a field needs to be judged alone.
    """

    operation: str
    body: dict[str, Any]
    fields: dict[str, str]
    around: dict[str, dict[str, Any]] = field(default_factory=dict)


SHAPES = {
    "SandboxAccountRequest": Shape(
        "POST /v1/sandbox/accounts", {}, {"name": "string 1..64", "startingBalanceUsd": "number >0, max 100000"}
    ),
    "ResetRequest": Shape("POST /v1/sandbox/accounts/reset", {}, {"balanceUsd": "number 0..100000"}),
    "OtpRequest": Shape(
        "POST /v1/auth/otp",
        {"phoneNumber": "+15550100"},
        {
            "phoneNumber": "string 3..80, required",
            "country": "string 1..64",
            "countryCode": "string 1..64, alias of country",
        },
    ),
    "VerifyRequest": Shape(
        "POST /v1/auth/verify",
        {"phoneNumber": "+15550100", "code": "123456"},
        {
            "phoneNumber": "required",
            "code": "string, pattern six digits, required",
            "nickname": "string 2..32",
            "inviteCode": "string 6..64",
        },
    ),
    "KeyRequest": Shape(
        "POST /v1/keys",
        {},
        {
            "name": "string 1..64",
            "scopes": "array of 1..4 of read, trade, trade:close_only, outcomes",
            "maxExposureUsd": "number >0, max 1e9, or null",
            "maxDailyNotionalUsd": "same",
            "maxLeverage": "integer 1..50",
            "allowedCoins": "array max 50 of strings 1..32 chars",
            "maxOpenPositions": "integer 1..100",
            "expiresAt": "integer >0, max 9007199254740991",
        },
    ),
    "DeviceTokenRequest": Shape(
        "POST /v1/oauth/device/token", {"deviceCode": "x" * 8}, {"deviceCode": "string, min length 8, required"}
    ),
    "KillRequest": Shape("POST /v1/account/kill", {}, {"flatten": "boolean"}),
    "OrderRequest": Shape(
        "POST /v1/orders",
        BTC,
        {
            "market": "string required, 1..80 chars",
            "side": "string required, long or short",
            "usdAmount": "number >0, max 1000000",
            "size": "string pattern digits with optional decimals",
            "leverage": "integer 1..50",
            "leverageMode": "string error or clamp, default error",
            "type": "string market or limit, default market",
            "limitPx": "string numeric string",
            "maxSlippageBps": "integer 0..1000",
            "allowPartial": "boolean",
            "requireProtection": "boolean",
            "dryRun": "boolean returns plan and confirmToken instead of executing",
            "maxDriftBps": "integer 1..5000",
            "acknowledgeLeverageChange": "boolean",
            "source": "string dashboard, agent or api",
        },
        {"size": {"usdAmount": GONE}, "limitPx": {"type": "limit"}, "type": {"limitPx": "100"}},
    ),
    "CancelCoinRequest": Shape("DELETE /v1/orders", {"coin": "BTC"}, {"coin": "string 1..64, required"}),
    "ConfirmRequest": Shape(
        "POST /v1/orders/confirm", {"confirmToken": "x" * 8}, {"confirmToken": "string 8..128, required"}
    ),
    "SuggestRequest": Shape(
        "POST /v1/orders/suggest",
        {"coin": "BTC"},
        {
            "coin": "string 1..64, required",
            "intent": "open or close, default open",
            "side": "long or short, default long",
            "notionalUsd": "number >0, max 1000000",
            "size": "numeric string",
            "leverage": "integer 1..50",
            "slippageBps": "integer 0..1000",
        },
    ),
    "CloseRequest": Shape(
        "POST /v1/positions/{market}/close",
        {},
        {
            "fraction": "number >0, max 1",
            "usdAmount": "number >0, max 1000000",
            "size": "numeric string",
            "slippageBps": "integer 0..1000",
            "source": "dashboard, agent, api",
        },
    ),
    "GuardianRequest": Shape(
        "POST /v1/guardians",
        TRAIL,
        {
            "market": "string 1..80",
            "heartbeatSeconds": "integer 60..86400",
            "onMiss": "flatten, block_opens, cancel_orders",
            "seconds": "integer >= 60, max 9007199254740991",
            "trailPct": "number >0, max 50",
            "trailR": "number >0, max 20",
            "activateAtR": "number >0, max 20",
            "maxLossPctFromDayStart": "number >0, max 100",
            "action": "flatten, block_opens, cancel_orders",
            "cron": "string 1..64",
        },
        {
            "heartbeatSeconds": {"type": "dead_man_switch", "market": GONE, "trailPct": GONE},
            "onMiss": {"type": "dead_man_switch", "market": GONE, "trailPct": GONE, "heartbeatSeconds": 60},
            "seconds": {"type": "max_hold", "trailPct": GONE},
            "trailR": {"trailPct": GONE},
            "maxLossPctFromDayStart": {"type": "account_drawdown", "market": GONE, "trailPct": GONE},
            "action": {"type": "kill_switch", "market": GONE, "trailPct": GONE},
            "cron": {"type": "schedule", "market": GONE, "trailPct": GONE, "action": "flatten"},
        },
    ),
    "WebhookRequest": Shape(
        "POST /v1/webhooks",
        {"url": "https://example.com/hook"},
        {"types": "array max 20 of strings 1..64", "secret": "string 8..128"},
    ),
    "MarketsQuery": Shape(
        "GET /v1/markets",
        {},
        {
            "query": "string, max 64, default empty",
            "asset_class": "stocks, bonds, crypto, prediction, all; default all",
            "view": "trending, opportunities, all; default trending",
            "limit": "integer 1..250, default 150",
        },
    ),
    "CandlesQuery": Shape("GET /v1/markets/{coin}/candles", {}, {"interval": "1m, 5m, 15m, 1h, 4h, 1d"}),
    "OrdersQuery": Shape("GET /v1/orders", {}, {"coin": "string 1..64, optional"}),
    "EventsQuery": Shape("GET /v1/events", {}, {"limit": "integer 1..200, default 50"}),
    "NavQuery": Shape("GET /v1/wallets/{address}/nav", {}, {"range": "1d, 7d, 30d, all; default 7d"}),
    "WalletTradesQuery": Shape("GET /v1/wallets/{address}/trades", {}, {"limit": "integer 1..200, default 50"}),
}


@pytest.fixture(scope="session")
def shapes() -> dict[str, Shape]:
    return SHAPES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`model_name` walks the requests; with `field_name`, each of their fields."""
    if {"model_name", "field_name"} <= set(metafunc.fixturenames):
        cells = [(name, field) for name, shape in SHAPES.items() for field in shape.fields]
        metafunc.parametrize(("model_name", "field_name"), cells)
    elif "model_name" in metafunc.fixturenames:
        metafunc.parametrize("model_name", list(SHAPES))


@pytest.fixture
def gone() -> object:
    return GONE
