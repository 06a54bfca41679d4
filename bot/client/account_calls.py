"""Operations beside trading: sign-in, keys, settings, webhooks, and reads of the account and of any wallet.

Each call is one attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from bot.client.calls import Caller, present
from bot.errors import ApiError
from bot.wire import interface
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
from bot.wire.market import ChangelogResult, Country, StartResult
from bot.wire.orders import TradesPage
from bot.wire.requests import (
    DeviceRequest,
    DeviceTokenRequest,
    KeyRequest,
    OtpRequest,
    SettingsRequest,
    VerifyRequest,
    WebhookRequest,
)
from bot.wire.resources import Key, KeyCreated, Revoked, Webhook, WebhookCreated
from bot.wire.wallets import WalletNavResult, WalletPnlResult, WalletPositionsResult, WalletResult

_WAITING: Final = frozenset({"authorization_pending", "slow_down"})


class AccountCalls(Caller):
    """The methods of `Client` that concern people, credentials and reads."""

    # ── Onboarding ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> StartResult:
        return await self._call(interface.START)

    async def changelog(self) -> ChangelogResult:
        return await self._call(interface.CHANGELOG)

    async def countries(self) -> list[Country]:
        """All countries, sorted by name, with ISO code and calling code."""
        return list((await self._call(interface.COUNTRIES)).countries)

    # ── Signing in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def send_code(self, request: OtpRequest) -> OtpResult:
        """Send a sign-in code to a phone. A sandbox sends no SMS: its answer contains `sandbox_code`."""
        return await self._call(interface.SEND_CODE, body=request)

    async def verify(self, request: VerifyRequest) -> VerifyResult:
        """Sign in with the code; the first sign-in opens the account.

        Use `access_token` as the credential of another client.
        """
        return await self._call(interface.VERIFY, body=request)

    async def end_session(self) -> None:
        """End the session of this client's token. The service refuses this for an API key; revoke the key instead."""
        await self._call(interface.END_SESSION)

    async def start_device(self) -> DeviceResult:
        """Start the device flow. Show `user_code` and `verification_uri` to a person, then call `wait_for_device`."""
        return await self._call(interface.START_DEVICE, body=DeviceRequest())

    async def device_token(self, device_code: str) -> DeviceTokenResult:
        """Poll once. Raises with details.oauthError `authorization_pending` until a person has decided."""
        return await self._call(interface.DEVICE_TOKEN, body=DeviceTokenRequest(device_code=device_code))

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
        return await self._call(interface.CREATE_KEY, body=request, key=key)

    async def keys(self) -> list[Key]:
        return list((await self._call(interface.KEYS)).keys)

    async def revoke_key(self, key_id: str) -> None:
        """Revoke a key. The service refuses it from the next request on."""
        await self._call(interface.REVOKE_KEY.answering(Revoked), key_id)

    async def settings(self) -> SettingsResult:
        return await self._call(interface.SETTINGS)

    async def change_settings(self, request: SettingsRequest) -> SettingsResult:
        """Set or clear the self-limits. Fields that the request omits stay unchanged; None clears a cap."""
        return await self._call(interface.CHANGE_SETTINGS, body=request)

    async def create_webhook(self, request: WebhookRequest, *, key: str) -> WebhookCreated:
        """Register a URL.

        Only this answer contains the signing secret. A receiver checks deliveries with `bot.client.webhooks.verify`.
        """
        return await self._call(interface.CREATE_WEBHOOK, body=request, key=key)

    async def webhooks(self) -> list[Webhook]:
        return list((await self._call(interface.WEBHOOKS)).webhooks)

    async def revoke_webhook(self, webhook_id: str) -> None:
        await self._call(interface.REMOVE_WEBHOOK, webhook_id)

    # ── Reads ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def portfolio(self) -> Portfolio:
        return await self._call(interface.PORTFOLIO)

    async def home(self) -> Home:
        return await self._call(interface.HOME)

    async def funding(self) -> Funding:
        """Instructions for funding the account. Moves no money."""
        return await self._call(interface.FUNDING)

    async def wallet(self, address: str) -> WalletResult:
        """What is public of an address. `registered` is False if it is no account of this service."""
        return await self._call(interface.WALLET, address)

    async def wallet_positions(self, address: str) -> WalletPositionsResult:
        return await self._call(interface.WALLET_POSITIONS, address)

    async def wallet_pnl(self, address: str) -> WalletPnlResult:
        return await self._call(interface.WALLET_PNL, address)

    async def wallet_nav(self, address: str, span: str = "7d") -> WalletNavResult:
        """`span`: 1d, 7d, 30d or all."""
        return await self._call(interface.WALLET_NAV, address, query={"range": span})

    async def wallet_trades(self, address: str, *, limit: int = 50, before: int | None = None) -> TradesPage:
        """Trades, newest first. Pass `next_before` as `before` to get the next page."""
        query = present({"limit": limit, "before": before})
        return await self._call(interface.WALLET_TRADES, address, query=query)
