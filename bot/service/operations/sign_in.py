"""Sign-in by phone: countries, codes, sessions.

A code or token is sent once; venue state keeps its digest. Times are real time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Collection
from typing import Any, Final

from bot.clock import SystemClock
from bot.errors import Refusal
from bot.service.bodies import account_bodies
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.operations import phone_numbers
from bot.service.operations.accounts import AccountOperations
from bot.service.operations.executor import Context
from bot.service.security.attempt_limits import AttemptLimits
from bot.service.security.auth import Principal, mint_session
from bot.service.security.rate_limits import RateLimits, network_of
from bot.service.state_machine.machine import Machine
from bot.venue.identity.sign_in import SignedIn
from bot.venue.model.commands import OpenAccount, RevokeSession, SendOtp, SignIn
from bot.venue.model.numbers import E8
from bot.venue.model.state import Otp, Session
from bot.wire.requests import OtpRequest, VerifyRequest

OTP_TRIES: Final = 5
OTP_TTL_MS: Final = 10 * 60_000
# time between two codes for one number
RESEND_SECONDS: Final = 30
# (codes, seconds)
SENDS_PER_NUMBER: Final = (5, 3_600)
SENDS_PER_IP: Final = (30, 3_600)
# wrong codes of one caller, over all numbers
WRONG_PER_IP: Final = (30, 600)
SESSION_TTL_MS: Final = 30 * 86_400_000
START_BALANCE: Final = 10_000 * E8

_NICKS: Final = (
    (
        "amber",
        "bold",
        "brisk",
        "calm",
        "clear",
        "deft",
        "fair",
        "keen",
        "lucid",
        "quick",
        "quiet",
        "steady",
        "sunny",
        "swift",
        "wry",
        "young",
    ),
    (
        "badger",
        "crane",
        "falcon",
        "finch",
        "fox",
        "hare",
        "heron",
        "ibis",
        "lynx",
        "marten",
        "otter",
        "owl",
        "raven",
        "robin",
        "tern",
        "wren",
    ),
)


class SignInOperations(AccountOperations):
    """Signs people in and out."""

    def __init__(self, machine: Machine, rate_limits: RateLimits, base_url: str) -> None:
        super().__init__(machine, rate_limits, base_url)
        # empty: nobody needs one
        self.invite_codes: Collection[str] = ()
        self._resends = AttemptLimits(1, RESEND_SECONDS)
        self._per_number = AttemptLimits(*SENDS_PER_NUMBER)
        self._per_ip = AttemptLimits(*SENDS_PER_IP)
        self._wrong = AttemptLimits(*WRONG_PER_IP)

    def countries(self) -> ServiceAnswer:
        """GET /v1/auth/countries."""
        listed = [{"code": c.code, "name": c.name, "callingCode": c.calling_code} for c in phone_numbers.countries()]
        return ServiceAnswer.ok({"countries": listed})

    def send_code(self, request: OtpRequest, context: Context) -> ServiceAnswer:
        """POST /v1/auth/otp: the response is the same whether or not the number has an account."""
        code = self.new_code(request, context)
        phone = phone_numbers.parse_phone(request.phone_number, request.country, request.country_code)
        return ServiceAnswer.ok(
            {
                "sent": True,
                "phoneNumber": phone.e164,
                "country": phone.country,
                "expiresAt": self.shown_ms(OTP_TTL_MS),
                "retryAfterSeconds": RESEND_SECONDS if self._is_limited() else 0,
                "sandboxCode": code,
            }
        )

    def new_code(self, request: OtpRequest, context: Context) -> str:
        """Create a code for a number. The sandbox sends no message, so the caller gets the code."""
        phone = phone_numbers.parse_phone(request.phone_number, request.country, request.country_code)
        who = phone_digest(phone.e164)
        self._limit((self._resends, who), (self._per_number, who), (self._per_ip, network_of(context.ip)))
        self.machine.catch_up()
        real_ms = SystemClock().now_ms()
        code, salt = f"{secrets.randbelow(1_000_000):06d}", secrets.token_hex(16)
        otp = Otp(salt, code_digest(salt, code), real_ms + OTP_TTL_MS, OTP_TRIES)
        self.machine.run(SendOtp(who, otp, real_ms))
        for limits, caller in ((self._resends, who), (self._per_number, who), (self._per_ip, network_of(context.ip))):
            limits.note(caller)
        return code

    def verify(self, request: VerifyRequest, context: Context) -> ServiceAnswer:
        """POST /v1/auth/verify: returns a session token. The first sign-in also creates an account and its wallet."""
        token, session_id, digest = mint_session(self.machine.state.session_seq + 1)
        real_ms = SystemClock().now_ms()
        session = Session(session_id, "", digest, self.machine.catch_up(), real_ms + SESSION_TTL_MS)
        signed = self.judge_code(request, context, session)
        state, account = self.machine.state, signed.account
        return ServiceAnswer.ok(
            {
                "accessToken": token,
                "tokenType": "Bearer",
                "expiresAt": self.shown_ms(SESSION_TTL_MS),
                "newUser": signed.is_new,
                "accountId": account.id,
                "address": account.address,
                "nickname": account.name,
                "environment": "sandbox",
                "apis": self.apis(),
                "credit": account_bodies.credit(state, account),
            }
        )

    def judge_code(self, request: VerifyRequest, context: Context, session: Session | None) -> SignedIn:
        """The digest of the number if the code is right; Refused otherwise."""
        phone = phone_numbers.parse_phone(request.phone_number, request.country, request.country_code)
        nickname = None if request.nickname is None else clean_nickname(request.nickname)
        self._limit((self._wrong, network_of(context.ip)))
        self.machine.catch_up()
        state, who = self.machine.state, phone_digest(phone.e164)
        otp = state.otps.get(who)
        digest = code_digest(otp.salt if otp is not None else "", request.code)
        number = state.account_seq + 1
        opening = OpenAccount(
            f"acc_{number:08d}", f"0x{secrets.token_hex(20)}", nickname or generated_nickname(), START_BALANCE
        )
        answer: Any = self.machine.run(
            SignIn(who, digest, SystemClock().now_ms(), opening, self._is_invited(request.invite_code), session)
        )
        if isinstance(answer, Refusal):
            self._wrong.note(network_of(context.ip))
            raise OperationRefused(answer)
        assert isinstance(answer, SignedIn)
        return answer

    def _is_invited(self, code: str | None) -> bool:
        if not self.invite_codes:
            return True
        given = (code or "").encode()
        return any(hmac.compare_digest(known.encode(), given) for known in self.invite_codes)

    def end_session(self, principal: Principal) -> ServiceAnswer:
        """DELETE /v1/auth/session."""
        if principal.session is None:
            text = "an API key is not a session; revoke it with DELETE /v1/keys/{id}"
            fix = {"action": "revoke_key", "method": "DELETE", "path": f"/v1/keys/{principal.key}"}
            raise OperationRefused(Refusal("forbidden", text, fix=fix))
        self.machine.catch_up()
        answer = self.machine.run(RevokeSession(principal.account, principal.session))
        assert isinstance(answer, Session), "the gateway accepted an ended session"
        return ServiceAnswer.ok({"revoked": True})

    def shown_ms(self, real_ttl_ms: int) -> int:
        """The service time at which a span of real time will end."""
        clock = self.machine.clock
        return clock.now_ms() + int(real_ttl_ms * (clock.speed or 1))

    def _is_limited(self) -> bool:
        return self.rate_limits.enabled and self.machine.clock.speed != 0

    def _limit(self, *asked: tuple[AttemptLimits, str]) -> None:
        """Refuse a caller who asks too often. Without rate limits, or with a manual clock, nobody is refused."""
        wait = max(limits.wait_seconds(caller) for limits, caller in asked) if self._is_limited() else 0
        if wait:
            text = f"too many codes requested or tried; wait {wait} s"
            fix = {"action": "wait", "seconds": wait}
            raise OperationRefused(Refusal("rate_limited", text, fix=fix), None, {"Retry-After": str(wait)})


def phone_digest(e164: str) -> str:
    """The digest of a phone number, which the venue stores."""
    return hashlib.sha256(f"phone {e164}".encode()).hexdigest()


def code_digest(salt: str, code: str) -> str:
    """The digest of a code, which the venue stores.

    Six digits are easy to guess, so a code allows ten minutes and five tries.
    """
    return hashlib.sha256(f"otp {salt} {code}".encode()).hexdigest()


def clean_nickname(text: str) -> str:
    """A nickname trimmed, in composed Unicode, and printable. Refused if it is then too short."""
    name = unicodedata.normalize("NFC", text).strip(" ")
    if any(unicodedata.category(letter)[0] in "CZ" and letter != " " for letter in name):
        raise OperationRefused(
            invalid("nickname", "has a control or invisible character", "2..32 printable characters")
        )
    if not 2 <= len(name) <= 32:
        raise OperationRefused(
            invalid("nickname", "must have 2..32 characters and no spaces at its ends", "2..32 characters")
        )
    return name


def generated_nickname() -> str:
    return "-".join([*(secrets.choice(words) for words in _NICKS), f"{secrets.randbelow(10_000):04d}"])
