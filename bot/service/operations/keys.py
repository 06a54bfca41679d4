"""Keys and settings of an account's owner. A key cannot create a key with more rights. A secret is shown once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from bot.errors import Refusal
from bot.money import format_e8
from bot.service.bodies import account_bodies
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.operations.accounts import AccountOperations
from bot.service.operations.executor import Context, expired
from bot.service.operations.orders import exact
from bot.service.security.auth import Minted, Principal, mint
from bot.service.security.rate_limits import RateLimits
from bot.service.state_machine.machine import Machine
from bot.venue.apply import RevokedKey
from bot.venue.model.commands import ChangeSettings, Command, CreateKey, RevokeKey
from bot.venue.model.state import VenueAccount, VenueKey
from bot.wire.requests import KeyRequest, SettingsRequest
from bot.wire.vocabulary import bare_coin

# a time below this is in seconds: as milliseconds it would be in 1973
SECONDS_MAX: Final = 10**11
_KEY_ID: Final = re.compile(r"key_[0-9]{1,20}", re.ASCII)


class KeyOperations(AccountOperations):
    """The owner's keys and self-limits."""

    def __init__(self, machine: Machine, rate_limits: RateLimits, base_url: str) -> None:
        super().__init__(machine, rate_limits, base_url)
        # Last use of each key since the service started or was restored; for display only.
        self._used: dict[str, int] = {}
        self._generation = machine.generation

    def key_used(self, key_id: str) -> None:
        """Note the time of a request with this key."""
        self._forget_another_state()
        self._used[key_id] = self.machine.clock.now_ms()

    def _forget_another_state(self) -> None:
        """Forget the times after a restore: a key id may then belong to another key, and a time may lie in the
        future.
        """
        if self._generation != self.machine.generation:
            self._generation = self.machine.generation
            self._used.clear()

    def create_key(self, principal: Principal, request: KeyRequest, context: Context) -> ServiceAnswer:
        """POST /v1/keys."""
        now = self.machine.catch_up()
        minted = mint(len(self.machine.state.keys) + 1)
        key = key_of(request, minted, principal.account, now, "key" if principal.key is not None else "session")
        parent = self.key(principal)
        if parent is not None:
            self.check_width(parent, key)

        def answer_body(key: VenueKey, now: int) -> Any:
            return {**account_bodies.key(key, None), "apiKey": minted.secret}

        def replay(key: VenueKey, now: int) -> Any:
            return {**account_bodies.key(key, None), "apiKey": None}

        def command(now: int) -> Command | Refusal:
            return expired(context, now) or refuse_past(key.expires_ms, now) or CreateKey(key)

        return self.decide(principal, context, command, answer_body, replay=replay)

    @staticmethod
    def check_width(parent: VenueKey, key: VenueKey) -> None:
        """Refuse a key with more rights than the key that creates it."""
        wider = wider_than(parent, key)
        if wider is not None:
            field, most = wider
            text = f"a key cannot create a key with more rights than its own: {field} is beyond its own value"
            raise OperationRefused(
                Refusal("key_limit_exceeded", text, fix={"field": field, "value": most}, details={"cap": field})
            )

    def keys(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/keys: the keys that are not revoked, oldest first."""
        self.refresh()
        self._forget_another_state()
        listed = [
            account_bodies.key(key, self._used.get(key.id))
            for key in self.machine.state.keys.values()
            if key.account == principal.account and not key.revoked
        ]
        return ServiceAnswer.ok({"keys": listed})

    def revoke_key(self, principal: Principal, key_id: str, context: Context) -> ServiceAnswer:
        """DELETE /v1/keys/{id}: also cancels the key's resting entries and schedules.

        Orders that protect a position stay.
        """
        if not _KEY_ID.fullmatch(key_id):
            # The text may be the secret, sent by mistake, so it goes into no log and no response.
            return self.refusal(Refusal("not_found", "no key has this id; key ids begin with key_"), context)
        command = RevokeKey(principal.account, key_id, sweeps=True)

        def answer_body(gone: RevokedKey, now: int) -> Any:
            return {
                "id": gone.key.id,
                "revoked": True,
                "canceledOids": list(gone.canceled),
                "disarmedGuardianIds": list(gone.disarmed),
            }

        return self.decide(principal, context, lambda now: command, answer_body)

    def settings(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/settings."""
        self.refresh()
        return ServiceAnswer.ok(_settings(self.account(principal)))

    def change_settings(self, principal: Principal, request: SettingsRequest, context: Context) -> ServiceAnswer:
        """PATCH /v1/settings: changes the fields of the request only."""
        account, named = self.account(principal), request.model_fields_set
        trade, daily = account.max_trade, account.daily_cap
        if "max_trade_usd" in named:
            trade = cap(request.max_trade_usd, "maxTradeUsd")
        if "daily_trade_cap_usd" in named:
            daily = cap(request.daily_trade_cap_usd, "dailyTradeCapUsd")
        return self.decide(
            principal,
            context,
            lambda now: ChangeSettings(principal.account, trade, daily),
            lambda changed, now: _settings(changed),
        )


def refuse_past(expires_ms: int | None, now_ms: int) -> Refusal | None:
    """Why a key may not expire at this time, or None. A time in the past is often seconds sent as milliseconds."""
    if expires_ms is None or expires_ms > now_ms:
        return None
    problem = f"{expires_ms} lies in the past, the service's clock is at {now_ms}: milliseconds?"
    seconds = expires_ms if expires_ms < SECONDS_MAX else 0
    fix = {"field": "expiresAt", "value": seconds * 1000} if seconds * 1000 > now_ms else None
    fields = [{"field": "expiresAt", "problem": problem, "allowed": f"> {now_ms}"}]
    return Refusal("invalid_input", f"expiresAt: {problem}", fix=fix, details={"fields": fields})


def _settings(account: VenueAccount) -> dict[str, Any]:
    return {
        "maxTradeUsd": account_bodies.opt(account.max_trade),
        "dailyTradeCapUsd": account_bodies.opt(account.daily_cap),
    }


def cap(value: Any, name: str) -> int | None:
    """The amount of a cap as a scaled integer; None means no cap."""
    if value is None:
        return None
    scaled = exact(value, name)
    if scaled <= 0:
        raise OperationRefused(invalid(name, "must be at least 0.00000001", "> 0"))
    return scaled


def key_of(request: KeyRequest, minted: Minted, account: str, now_ms: int, source: str) -> VenueKey:
    """The requested key, which is not in the state yet."""
    coins = request.allowed_coins
    return VenueKey(
        minted.key_id,
        account,
        request.name,
        minted.prefix,
        minted.digest,
        tuple(request.scopes),
        now_ms,
        source,
        max_exposure=cap(request.max_exposure_usd, "maxExposureUsd"),
        max_daily_notional=cap(request.max_daily_notional_usd, "maxDailyNotionalUsd"),
        max_leverage=request.max_leverage,
        allowed_coins=None if coins is None else tuple(dict.fromkeys(bare_coin(coin) for coin in coins)),
        max_open_positions=request.max_open_positions,
        expires_ms=request.expires_at,
    )


def covers(own: Sequence[str], scope: str) -> bool:
    """True if these scopes include `scope`. The scope trade includes trade:close_only."""
    return scope in own or (scope == "trade:close_only" and "trade" in own)


def wider_than(parent: VenueKey, key: VenueKey) -> tuple[str, Any] | None:
    """The first field in which `key` has more rights than `parent`, and the largest allowed value;

    None if there is none.
    """
    if not all(covers(parent.scopes, scope) for scope in key.scopes):
        return "scopes", list(parent.scopes)
    caps = (
        ("maxExposureUsd", parent.max_exposure, key.max_exposure, format_e8),
        ("maxDailyNotionalUsd", parent.max_daily_notional, key.max_daily_notional, format_e8),
        ("maxLeverage", parent.max_leverage, key.max_leverage, int),
        ("maxOpenPositions", parent.max_open_positions, key.max_open_positions, int),
        ("expiresAt", parent.expires_ms, key.expires_ms, int),
    )
    for field, own, asked, shown in caps:
        if own is not None and (asked is None or asked > own):
            return field, shown(own)
    coins = parent.allowed_coins
    if coins is not None and (key.allowed_coins is None or not set(key.allowed_coins) <= set(coins)):
        return "allowedCoins", list(coins)
    return None
