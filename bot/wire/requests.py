"""Requests about accounts, keys, sign-in, settings and webhooks.

Orders, guardians, queries and the sandbox control have modules of their own.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from bot.wire.base import (
    SAFE_INT_MAX,
    Flag,
    Integer,
    Leverage,
    Number,
    Request,
    Text,
    encode,
    is_digits,
    problem,
    refuse,
)
from bot.wire.vocabulary import Scope

# characters of a webhook URL
URL_MAX = 2048

_Cap = Annotated[Decimal, Number(gt=0, le=1_000_000_000)]


class EmptyRequest(Request):
    """A body without fields: end a session, start a device flow, revoke."""


class HeartbeatRequest(EmptyRequest):
    """Body of POST /v1/heartbeat."""


class DeviceRequest(EmptyRequest):
    """Body of POST /v1/oauth/device."""


class SandboxAccountRequest(Request):
    """Body of POST /v1/sandbox/accounts."""

    name: Annotated[str, Text(1, 64)] | None = None
    starting_balance_usd: Annotated[Decimal, Number(gt=0, le=100_000)] = Decimal(10_000)


class ResetRequest(Request):
    """Body of POST /v1/sandbox/accounts/reset. Without a balance, the account gets its starting balance."""

    balance_usd: Annotated[Decimal, Number(ge=0, le=100_000)] | None = None


class OtpRequest(Request):
    """Body of POST /v1/auth/otp."""

    phone_number: Annotated[str, Text(3, 80)] = Field(repr=False)
    country: Annotated[str, Text(1, 64)] | None = None
    country_code: Annotated[str, Text(1, 64)] | None = None


class VerifyRequest(OtpRequest):
    """Body of POST /v1/auth/verify."""

    code: Annotated[str, Text(6, 6, r"[0-9]{6}", "six digits")] = Field(repr=False)
    nickname: Annotated[str, Text(2, 32)] | None = None
    invite_code: Annotated[str, Text(6, 64)] | None = Field(None, repr=False)


class DeviceTokenRequest(Request):
    """Body of POST /v1/oauth/device/token."""

    device_code: Annotated[str, Text(8)] = Field(repr=False)


class KeyRequest(Request):
    """Body of POST /v1/keys."""

    nullable: ClassVar[frozenset[str]] = frozenset({"maxExposureUsd", "maxDailyNotionalUsd"})

    name: Annotated[str, Text(1, 64)] = "key"
    scopes: tuple[Scope, ...] = Field(("read",), min_length=1, max_length=4)
    max_exposure_usd: _Cap | None = None
    max_daily_notional_usd: _Cap | None = None
    max_leverage: Leverage | None = None
    allowed_coins: Annotated[tuple[Annotated[str, Text(1, 32)], ...], Field(max_length=50)] | None = None
    max_open_positions: Annotated[int, Integer(1, 100)] | None = None
    expires_at: Annotated[int, Integer(1, SAFE_INT_MAX)] | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.scopes)) != len(self.scopes):
            refuse(("scopes",), "must not name a scope twice")
        return self


# besides null
CLEARS_CAP = ("", "empty", "none", "null")


def _cap(value: Any) -> Any:
    if isinstance(value, str):
        if value in CLEARS_CAP:
            return None
        if not is_digits(value):
            allowed = 'null, "", "empty", "none", "null", a number or digits as a string'
            raise problem("cap_form", f"must be {allowed}", allowed)
        return Decimal(value)
    return value


_CapForm = Annotated[_Cap | None, BeforeValidator(_cap)]


class SettingsRequest(Request):
    """Body of PATCH /v1/settings. Only fields that are present change; null clears a cap."""

    nullable: ClassVar[frozenset[str]] = frozenset({"maxTradeUsd", "dailyTradeCapUsd"})

    max_trade_usd: _CapForm = None
    daily_trade_cap_usd: _CapForm = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            refuse(
                ("maxTradeUsd",),
                "at least one of maxTradeUsd and dailyTradeCapUsd is required",
                ["maxTradeUsd", "dailyTradeCapUsd"],
            )
        return self

    def body(self) -> bytes:
        return encode(self.model_dump(exclude_unset=True)).encode()


class KillRequest(Request):
    """Body of POST /v1/account/kill."""

    flatten: Flag = False


class WebhookRequest(Request):
    """Body of POST /v1/webhooks. The service decides whether it may call the URL."""

    url: Annotated[str, Text(1, URL_MAX)]
    types: Annotated[tuple[Annotated[str, Text(1, 64)], ...], Field(max_length=20)] | None = None
    secret: Annotated[str, Text(8, 128)] | None = Field(None, repr=False)

    @model_validator(mode="after")
    def _uri(self) -> Self:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            known = False
        if not known or not self.url.isascii() or any(letter <= " " for letter in self.url):
            refuse(("url",), "must be an absolute http or https URI", "a URI")
        return self
