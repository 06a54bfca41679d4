"""Operations beside trading: sign-in, keys, settings, webhooks, and views of the account and of any wallet.

Each call is one attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from bot.client.calls import Caller, present, segment
from bot.errors import ApiError
from bot.wire.account import (
    DeviceResult,
    DeviceTokenResult,
    Funding,
    Home,
    OtpResult,
    Portfolio,
    SettingsResult,
    VerifyResult,
)
from bot.wire.market import ChangelogResult, CountriesResult, Country, StartResult
from bot.wire.orders import TradesPage
from bot.wire.requests import DeviceTokenRequest, KeyRequest, OtpRequest, SettingsRequest, VerifyRequest, WebhookRequest
from bot.wire.resources import Key, KeyCreated, KeysResult, Revoked, Webhook, WebhookCreated, WebhooksResult
from bot.wire.wallets import WalletNavResult, WalletPnlResult, WalletPositionsResult, WalletResult

_WAITING: Final = frozenset({"authorization_pending", "slow_down"})


class AccountCalls(Caller):
    """The methods of `Client` that concern people, credentials and views."""

    # ── Onboarding ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> StartResult:
        return await self._call(StartResult, "GET", "/v1/start", reads=True)

    async def changelog(self) -> ChangelogResult:
        return await self._call(ChangelogResult, "GET", "/v1/changelog", reads=True)

    async def countries(self) -> list[Country]:
        """All countries, sorted by name, with ISO code and calling code."""
        return list((await self._call(CountriesResult, "GET", "/v1/auth/countries", reads=True)).countries)

    # ── Signing in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def send_code(self, request: OtpRequest) -> OtpResult:
        """Send a sign-in code to a phone. A sandbox sends no SMS: its answer contains `sandbox_code`."""
        return await self._call(OtpResult, "POST", "/v1/auth/otp", body=request.body())

    async def verify(self, request: VerifyRequest) -> VerifyResult:
        """Sign in with the code; the first sign-in opens the account.

        Use `access_token` as the credential of another client.
        """
        return await self._call(VerifyResult, "POST", "/v1/auth/verify", body=request.body())

    async def end_session(self) -> None:
        """End the session of this client's token. The service refuses this for an API key; revoke the key instead."""
        await self._call(Revoked, "DELETE", "/v1/auth/session")

    async def start_device(self) -> DeviceResult:
        """Start the device flow. Show `user_code` and `verification_uri` to a person, then call `wait_for_device`."""
        return await self._call(DeviceResult, "POST", "/v1/oauth/device", body=b"{}")

    async def device_token(self, device_code: str) -> DeviceTokenResult:
        """Poll once. Raises with details.oauthError `authorization_pending` until a person has decided."""
        body = DeviceTokenRequest(device_code=device_code).body()
        return await self._call(DeviceTokenResult, "POST", "/v1/oauth/device/token", body=body)

    async def wait_for_device(
        self, device: DeviceResult, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> DeviceTokenResult:
        """Poll at the service's interval until the person has approved.

        Raises if the person denied or the code has expired.
        """
        interval: float = device.interval
        while True:
            await sleep(interval)
            try:
                return await self.device_token(device.device_code)
            except ApiError as error:
                details = error.details or {}
                if details.get("oauthError") not in _WAITING:
                    raise
                interval = max(interval, float(details.get("interval", interval)))

    # ── Keys, settings, webhooks: the owner's ───────────────────────────────────────────────────────────────────────

    async def create_key(self, request: KeyRequest, *, key: str) -> KeyCreated:
        """Create a scoped key.

        Only this answer contains its secret; a repeat with the same idempotency `key` returns the key without it.
        """
        return await self._call(KeyCreated, "POST", "/v1/keys", body=request.body(), key=key)

    async def keys(self) -> list[Key]:
        return list((await self._call(KeysResult, "GET", "/v1/keys", reads=True)).keys)

    async def revoke_key(self, key_id: str) -> None:
        """Revoke a key. The service refuses it from the next request on."""
        await self._call(Revoked, "DELETE", f"/v1/keys/{segment(key_id)}")

    async def settings(self) -> SettingsResult:
        return await self._call(SettingsResult, "GET", "/v1/settings", reads=True)

    async def change_settings(self, request: SettingsRequest) -> SettingsResult:
        """Set or clear the self-limits. Fields that the request omits stay unchanged; None clears a cap."""
        return await self._call(SettingsResult, "PATCH", "/v1/settings", body=request.body())

    async def create_webhook(self, request: WebhookRequest, *, key: str) -> WebhookCreated:
        """Register a URL.

        Only this answer contains the signing secret. A receiver checks deliveries with `bot.client.webhooks.verify`.
        """
        return await self._call(WebhookCreated, "POST", "/v1/webhooks", body=request.body(), key=key)

    async def webhooks(self) -> list[Webhook]:
        return list((await self._call(WebhooksResult, "GET", "/v1/webhooks", reads=True)).webhooks)

    async def revoke_webhook(self, webhook_id: str) -> None:
        await self._call(Revoked, "DELETE", f"/v1/webhooks/{segment(webhook_id)}")

    # ── Views ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def portfolio(self) -> Portfolio:
        return await self._call(Portfolio, "GET", "/v1/portfolio", reads=True)

    async def home(self) -> Home:
        return await self._call(Home, "GET", "/v1/home", reads=True)

    async def funding(self) -> Funding:
        """Instructions for funding the account. Moves no money."""
        return await self._call(Funding, "GET", "/v1/funding", reads=True)

    async def wallet(self, address: str) -> WalletResult:
        """The public view of an address. `registered` is False if it is no account of this service."""
        return await self._call(WalletResult, "GET", f"/v1/wallets/{segment(address)}", reads=True)

    async def wallet_positions(self, address: str) -> WalletPositionsResult:
        return await self._call(WalletPositionsResult, "GET", f"/v1/wallets/{segment(address)}/positions", reads=True)

    async def wallet_pnl(self, address: str) -> WalletPnlResult:
        return await self._call(WalletPnlResult, "GET", f"/v1/wallets/{segment(address)}/pnl", reads=True)

    async def wallet_nav(self, address: str, span: str = "7d") -> WalletNavResult:
        """`span`: 1d, 7d, 30d or all."""
        path = f"/v1/wallets/{segment(address)}/nav"
        return await self._call(WalletNavResult, "GET", path, query={"range": span}, reads=True)

    async def wallet_trades(self, address: str, *, limit: int = 50, before: int | None = None) -> TradesPage:
        """Trades, newest first. Pass `next_before` as `before` to get the next page."""
        query = present({"limit": limit, "before": before})
        return await self._call(TradesPage, "GET", f"/v1/wallets/{segment(address)}/trades", query=query, reads=True)
