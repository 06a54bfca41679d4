"""Shared by the service tests: an order, another key, an owner signed in by phone, and the check of a refusal."""

from __future__ import annotations

from typing import Any

import httpx

from bot.errors import CODES, Refusal
from bot.service.security.auth import mint
from bot.venue.model.commands import CreateKey
from bot.venue.model.state import VenueKey
from bot.wire.errors import ErrorEnvelope
from tests.service.conftest import Box, Caller


def assert_refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The answer is the error object with this status and code, and its headers agree with it."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    error: dict[str, Any] = answer.json()["error"]
    ErrorEnvelope.model_validate(answer.json())
    assert answer.headers["x-api-version"] == "2026-10-19"
    assert answer.headers["x-request-id"] == error["requestId"]
    assert answer.headers["content-type"] == "application/json"
    assert "ratelimit" in answer.headers
    assert "ratelimit-policy" in answer.headers
    assert error["docsUrl"].endswith(f"/docs/errors#{code}")
    assert error["message"]
    assert isinstance(error["retryable"], bool)
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    if status in (429, 503):
        assert int(answer.headers["retry-after"]) >= 1
    assert code in CODES
    return error


ENTRY: dict[str, Any] = {
    "market": "perp:BTC",
    "side": "long",
    "usdAmount": 1000,
    "leverage": 5,
    "requireProtection": True,
    "bracket": {"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}},
}


async def make(caller: Caller, **body: Any) -> Caller:
    """A key of the caller's account, over the interface."""
    return Caller(caller.http, await caller.post("/v1/keys", body))


def order(usd: float, market: str = "BTC", side: str = "long", **more: Any) -> dict[str, Any]:
    return {"market": market, "side": side, "usdAmount": usd, **more}


def scoped(box: Box, caller: Caller, *scopes: str, **more: Any) -> Caller:
    """Another key of the caller's account."""
    minted = mint(len(box.service.machine.state.keys) + 1)
    account = caller.opened["accountId"]
    key = VenueKey(minted.key_id, account, "k", minted.prefix, minted.digest, scopes, 0, "key", **more)
    box.service.machine.catch_up()
    made = box.service.machine.run(CreateKey(key))
    assert not isinstance(made, Refusal)
    return Caller(box.http, {"apiKey": minted.secret, "accountId": account, "keyId": minted.key_id})


PHONE = "+447911123456"


async def ask(box: Box, phone: str = PHONE, **more: Any) -> Any:
    answer = await box.http.post("/v1/auth/otp", json={"phoneNumber": phone, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def verify(box: Box, code: str, phone: str = PHONE, **more: Any) -> httpx.Response:
    return await box.http.post("/v1/auth/verify", json={"phoneNumber": phone, "code": code, **more})


async def owner(box: Box, phone: str = PHONE, **more: Any) -> Caller:
    """An owner who signed in by phone."""
    answer = await verify(box, (await ask(box, phone))["sandboxCode"], phone, **more)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return Caller(box.http, {**said, "apiKey": said["accessToken"]})
