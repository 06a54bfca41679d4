"""The device flow: a device asks for a key, a person approves on the page, the device collects its key once.

Grants are venue state and hold only digests of both codes. This module limits polling and wrong codes, in real time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from bot.clock import SystemClock, monotonic_ns
from bot.errors import Refusal
from bot.service.bodies.responses import OperationRefused, ServiceAnswer
from bot.service.operations.executor import Context
from bot.service.operations.keys import KeyOperations, covers
from bot.service.security.attempt_limits import AttemptLimits
from bot.service.security.auth import Principal, mint
from bot.service.security.rate_limits import RateLimits, network_of
from bot.service.state_machine.machine import Machine
from bot.venue.identity.sign_in import is_waiting
from bot.venue.model.commands import DecideGrant, RedeemGrant, StartGrant
from bot.venue.model.state import Grant, VenueKey
from bot.wire.requests import DeviceTokenRequest

INTERVAL_SECONDS: Final = 5
# added each time a device polls too soon
SLOWER_SECONDS: Final = 5
GRANT_TTL_MS: Final = 600_000
# Consonants that look different from each other and form no words: 8 of 20 letters are 34.6 bits.
USER_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
USER_LENGTH: Final = 8
# (wrong user codes of one address, seconds)
WRONG_CODES: Final = (5, 60)
# characters of a User-Agent that the page shows
AGENT_MAX: Final = 80
PACES_MAX: Final = 10_000

_PLAIN: Final = re.compile(r"[^\x20-\x7e]")


@dataclass(slots=True)
class _Pace:
    interval: int
    asked_ns: int | None = None


class DeviceOperations(KeyOperations):
    """Both sides of a device's request: the device's requests, and the person's decision."""

    def __init__(self, machine: Machine, rate_limits: RateLimits, base_url: str) -> None:
        super().__init__(machine, rate_limits, base_url)
        self._paces: OrderedDict[str, _Pace] = OrderedDict()
        self._wrong_codes = AttemptLimits(*WRONG_CODES)

    # ── Requests of the device
    # ──────────────────────────────────────────────────────────────────────────────────────────

    def start_device(self, context: Context, user_agent: str) -> ServiceAnswer:
        """POST /v1/oauth/device."""
        self.machine.catch_up()
        real_ms = SystemClock().now_ms()
        device_code = f"bbd_{secrets.token_urlsafe(32)}"
        letters = "".join(secrets.choice(USER_LETTERS) for _ in range(USER_LENGTH))
        agent = _PLAIN.sub("?", user_agent)[:AGENT_MAX]
        grant = Grant(_device_digest(device_code), _user_digest(letters), context.ip, agent, real_ms + GRANT_TTL_MS)
        answer = self.machine.run(StartGrant(grant, real_ms))
        if isinstance(answer, Refusal):
            raise OperationRefused(answer, None, {"Retry-After": "60"})
        self._pace(grant.device)
        user_code = f"{letters[:4]}-{letters[4:]}"
        uri = f"{self.base_url}/device"
        return ServiceAnswer.ok(
            {
                "deviceCode": device_code,
                "userCode": user_code,
                "verificationUri": uri,
                "verificationUriComplete": f"{uri}?userCode={user_code}",
                "expiresIn": GRANT_TTL_MS // 1000,
                "interval": INTERVAL_SECONDS,
            }
        )

    def device_token(self, request: DeviceTokenRequest, context: Context) -> ServiceAnswer:
        """POST /v1/oauth/device/token: returns the key once, after a person has approved."""
        now = self.machine.catch_up()
        grant = self.machine.state.grants.get(_device_digest(request.device_code))
        if grant is None:
            raise OperationRefused(_no("unauthorized", "the deviceCode is unknown", "invalid_grant", "restart"))
        if grant.status == "used":
            raise OperationRefused(
                _no("unauthorized", "the key of this deviceCode has already been collected", "invalid_grant", "restart")
            )
        if grant.status == "denied":
            raise OperationRefused(_no("forbidden", "the owner denied this device", "access_denied", "restart"))
        if SystemClock().now_ms() >= grant.expires_ms:
            raise OperationRefused(_no("session_expired", "the deviceCode has expired", "expired_token", "restart"))
        interval = self._ask(grant.device)
        if grant.status == "pending":
            text = f"the owner has not decided yet; poll again in {interval} s"
            raise OperationRefused(_no("forbidden", text, "authorization_pending", "wait", interval=interval))
        return self._redeem(grant, now)

    def _redeem(self, grant: Grant, now: int) -> ServiceAnswer:
        assert grant.account is not None
        parent = None if grant.by is None else self.machine.state.keys[grant.by]
        if parent is not None and (parent.revoked or (parent.expires_ms is not None and now >= parent.expires_ms)):
            text = "the key that approved this device is no longer valid"
            raise OperationRefused(_no("forbidden", text, "access_denied", "restart"))
        minted = mint(len(self.machine.state.keys) + 1)
        key = VenueKey(
            minted.key_id,
            grant.account,
            grant.name,
            minted.prefix,
            minted.digest,
            grant.scopes,
            now,
            "device",
            max_exposure=parent.max_exposure if parent else None,
            max_daily_notional=parent.max_daily_notional if parent else None,
            max_leverage=parent.max_leverage if parent else None,
            allowed_coins=parent.allowed_coins if parent else None,
            max_open_positions=parent.max_open_positions if parent else None,
            expires_ms=parent.expires_ms if parent else None,
        )
        created = self.machine.run(RedeemGrant(grant.device, key))
        if isinstance(created, Refusal):
            raise OperationRefused(created)
        account = self.machine.state.accounts[grant.account]
        return ServiceAnswer.ok(
            {
                "accessToken": minted.secret,
                "tokenType": "Bearer",
                "keyId": key.id,
                "scopes": list(key.scopes),
                "accountId": account.id,
                "address": account.address,
                "expiresAt": key.expires_ms,
            }
        )

    def _pace(self, device: str) -> _Pace:
        pace = self._paces.get(device)
        if pace is None:
            pace = self._paces[device] = _Pace(INTERVAL_SECONDS)
            if len(self._paces) > PACES_MAX:
                self._paces.popitem(last=False)
        return pace

    def _ask(self, device: str) -> int:
        """Count one poll and return the current interval. Refused if the poll came too soon."""
        pace, now = self._pace(device), monotonic_ns()
        asked, pace.asked_ns = pace.asked_ns, now
        if asked is not None and now - asked < pace.interval * 1_000_000_000:
            pace.interval += SLOWER_SECONDS
            text = f"polled too soon; wait {pace.interval} s before each request"
            refusal = _no("rate_limited", text, "slow_down", "wait", interval=pace.interval)
            raise OperationRefused(refusal, None, {"Retry-After": str(pace.interval)})
        return pace.interval

    # ── Requests of the person who approves or denies a device
    # ──────────────────────────────────────────────────────────────────────────────────────────

    def find_device(self, user_code: str, ip: str) -> Grant:
        """The waiting request of a user code, in any spelling. Wrong codes are counted by IP address."""
        network = network_of(ip)
        wait = self._wrong_codes.wait_seconds(network)
        if wait:
            text = f"too many wrong codes; wait {wait} s"
            raise OperationRefused(Refusal("rate_limited", text), None, {"Retry-After": str(wait)})
        digest, real_ms = _user_digest(_letters_of(user_code)), SystemClock().now_ms()
        for grant in self.machine.state.grants.values():
            if grant.user == digest and is_waiting(grant, real_ms):
                return grant
        self._wrong_codes.note(network)
        raise OperationRefused(
            Refusal("not_found", "no device waits with this code: the code is mistyped, used or expired")
        )

    def waiting_device(self, device: str) -> Grant | None:
        """The request of this device if it still waits, else None."""
        grant = self.machine.state.grants.get(device)
        return grant if grant is not None and is_waiting(grant, SystemClock().now_ms()) else None

    def decide_device(
        self, principal: Principal, device: str, name: str, scopes: tuple[str, ...], *, yes: bool
    ) -> Grant:
        """Record the owner's decision. Refused if it comes too late, or grants more than the owner's credential has."""
        assert principal.owner
        if yes and not all(covers(tuple(principal.scopes), scope) for scope in scopes):
            raise OperationRefused(
                Refusal(
                    "key_limit_exceeded",
                    "a key cannot create a key with more rights than its own",
                    details={"cap": "scopes"},
                )
            )
        self.machine.catch_up()
        command = DecideGrant(
            device, principal.account, yes, SystemClock().now_ms(), name, scopes if yes else (), principal.key
        )
        answer = self.machine.run(command)
        if isinstance(answer, Refusal):
            raise OperationRefused(answer)
        assert isinstance(answer, Grant)
        return answer


def _device_digest(code: str) -> str:
    return hashlib.sha256(f"device {code}".encode()).hexdigest()


def _user_digest(letters: str) -> str:
    return hashlib.sha256(f"user {letters}".encode()).hexdigest()


def _letters_of(user_code: str) -> str:
    """The letters of a user code in any case, with or without the dash."""
    return re.sub(r"[^A-Z0-9]", "", user_code[:32].upper())


def _no(code: str, text: str, oauth: str, action: str, *, interval: int | None = None) -> Refusal:
    details: dict[str, Any] = {"oauthError": oauth}
    fix: dict[str, Any] = {"action": action}
    if interval is not None:
        details["interval"] = fix["seconds"] = interval
    if action == "restart":
        fix |= {"method": "POST", "path": "/v1/oauth/device"}
    return Refusal(code, text, fix=fix, details=details)
