"""Authentication and scopes:

API keys and session tokens. The service stores only the digest of a secret, and shows the secret once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bot.clock import SystemClock
from bot.errors import Refusal
from bot.venue.model.state import Session, State, VenueKey
from bot.wire.interface import Access

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# 256 bits in base 62
SECRET_LETTERS: Final = 43
PREFIX_SHOWN: Final = 12
# The principals of the callers that were seen last.
PRINCIPALS_KEPT: Final = 4_096

OWNER_SCOPES: Final = ("read", "trade", "outcomes")

_FORM: Final = re.compile(r"bbk_test_([0-9]{8})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
_SESSION_FORM: Final = re.compile(r"bbs_test_([0-9]{8})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
# an unknown key is compared with this digest, so that it takes the same time
_DUMMY: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `key` is None for a session."""

    account: str
    key: str | None
    scopes: frozenset[str]
    owner: bool
    session: str | None = None

    @property
    def caller(self) -> str:
        """The owner of the rate limits: the key or the session."""
        return self.key or self.session or ""

    @property
    def close_only(self) -> bool:
        """True if this caller may only shrink positions."""
        return "trade" not in self.scopes and "trade:close_only" in self.scopes

    @property
    def outcomes_only(self) -> bool:
        """True if this caller may trade only event markets."""
        return not self.scopes & {"trade", "trade:close_only"} and "outcomes" in self.scopes


@dataclass(frozen=True, slots=True)
class Minted:
    """A new key: the secret for its owner, the other fields for the venue."""

    secret: str
    key_id: str
    prefix: str
    digest: str


def mint(number: int) -> Minted:
    """Create the `number`-th key of the service.

    The secret holds the number reversed, so that the shown prefixes differ.
    """
    shown = f"{number:08d}"[::-1]
    body = f"bbk_test_{shown}_{_letters(int.from_bytes(secrets.token_bytes(32)), SECRET_LETTERS)}"
    secret = f"{body}_{_check(body)}"
    return Minted(secret, f"key_{number:08d}", secret[:PREFIX_SHOWN], digest_of(secret))


def mint_session(number: int) -> tuple[str, str, str]:
    """(token, id, digest) of the `number`-th session of the service."""
    shown = f"{number:08d}"[::-1]
    body = f"bbs_test_{shown}_{_letters(int.from_bytes(secrets.token_bytes(32)), SECRET_LETTERS)}"
    token = f"{body}_{_check(body)}"
    return token, f"ses_{number:08d}", digest_of(token)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _check(body: str) -> str:
    return _letters(zlib.crc32(body.encode()), 6)


def _letters(value: int, width: int) -> str:
    text = ""
    while value:
        value, digit = divmod(value, 62)
        text = ALPHABET[digit] + text
    return text.rjust(width, "0")[-width:]


def authenticate(state: State, header: str | None, now_ms: int, real_ms: int | None = None) -> Principal | Refusal:
    """The caller of an Authorization header, or a refusal.

    Keys expire by the service's clock, sessions by real time (`real_ms`).
    """
    if header is None:
        return Refusal("unauthorized", "an Authorization header is required: Bearer <API key>", fix=_SIGN_UP)
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return Refusal("unauthorized", "the Authorization header must read: Bearer <API key>", fix=_SIGN_UP)
    token = token.strip()
    if token.startswith("bbs_"):
        return _session_of(state, token, SystemClock().now_ms() if real_ms is None else real_ms)
    form = _FORM.fullmatch(token)
    key = state.keys.get(f"key_{form[1][::-1]}") if form is not None else None
    known = hmac.compare_digest(key.digest if key is not None else _DUMMY, digest_of(token))
    if key is None or not known:
        return Refusal("unauthorized", "the API key is unknown", fix=_SIGN_UP)
    return _end_of_key(key, now_ms) or principal_of(key)


def end_of(state: State, principal: Principal, now_ms: int) -> Refusal | None:
    """The refusal for a caller whose key or session ended while the request arrived, or None."""
    if principal.key is not None:
        return _end_of_key(state.keys[principal.key], now_ms)
    session = state.sessions.get(principal.session or "")
    return _UNKNOWN_SESSION if session is None else _end_of_session(session, SystemClock().now_ms())


def _end_of_key(key: VenueKey, now_ms: int) -> Refusal | None:
    if key.revoked:
        return Refusal("unauthorized", "the API key has been revoked", fix=_SIGN_UP)
    if key.expires_ms is not None and now_ms >= key.expires_ms:
        return Refusal("session_expired", "the API key has expired", details={"expiresAt": key.expires_ms})
    return None


def principal_of(key: VenueKey) -> Principal:
    return _principal(key.account, key.id, key.scopes, owner=key.owner)


@lru_cache(PRINCIPALS_KEPT)
def _principal(account: str, key: str, scopes: tuple[str, ...], *, owner: bool) -> Principal:
    return Principal(account, key, frozenset(scopes), owner)


def _session_of(state: State, token: str, real_ms: int) -> Principal | Refusal:
    form = _SESSION_FORM.fullmatch(token)
    session = state.sessions.get(f"ses_{form[1][::-1]}") if form is not None else None
    known = hmac.compare_digest(session.digest if session is not None else _DUMMY, digest_of(token))
    if session is None or not known:
        return _UNKNOWN_SESSION
    return _end_of_session(session, real_ms) or principal_of_session(session)


def _end_of_session(session: Session, real_ms: int) -> Refusal | None:
    if session.revoked:
        return Refusal("unauthorized", "the session has been ended", fix=_SIGN_IN)
    if real_ms >= session.expires_ms:
        return Refusal("session_expired", "the session has expired", fix=_SIGN_IN)
    return None


def principal_of_session(session: Session) -> Principal:
    """The principal of a session, which has all rights of the owner."""
    return Principal(session.account, None, frozenset(OWNER_SCOPES), owner=True, session=session.id)


def needs_outcomes(market: str) -> bool:
    """True for an event market, where trading needs the scope outcomes."""
    return market.strip().lower().startswith("event:")


def refuse_market(principal: Principal, market: str) -> Refusal | None:
    """The refusal if the caller's scopes do not allow trading in this market, or None."""
    if needs_outcomes(market):
        return None if "outcomes" in principal.scopes else _lacks("outcomes")
    return _lacks("trade") if principal.outcomes_only else None


def refuse_blocking(principal: Principal, *, is_brake: bool) -> Refusal | None:
    """The refusal if this caller may not arm a guardian that blocks openings, or None.

    It needs the scope trade; outcomes suffices unless the guardian is a brake, which blocks the whole account.
    """
    if "trade" in principal.scopes or (principal.outcomes_only and not is_brake):
        return None
    return _lacks("trade")


def refuse_access(principal: Principal, access: Access) -> Refusal | None:
    """The refusal if this caller lacks the access, or None. trade does not include read.

    The operation checks the scope outcomes per market.
    """
    scopes = principal.scopes
    if access is Access.READ and "read" not in scopes:
        return _lacks("read")
    if access is Access.TRADE and "trade" not in scopes:
        return _lacks("trade")
    if access is Access.SHRINK and not scopes & {"trade", "trade:close_only", "outcomes"}:
        return _lacks("trade")
    if access is Access.OWNER and not principal.owner:
        return Refusal("forbidden", "only the owner's key may do this", details={"requiredScope": "owner"})
    return None


def _lacks(scope: str) -> Refusal:
    return Refusal("forbidden", f"this key lacks the scope {scope}", details={"requiredScope": scope})


_SIGN_UP: Final = {"action": "authenticate", "method": "POST", "path": "/v1/sandbox/accounts"}
_SIGN_IN: Final = {"action": "authenticate", "method": "POST", "path": "/v1/auth/otp"}
_UNKNOWN_SESSION: Final = Refusal("unauthorized", "the session token is unknown", fix=_SIGN_IN)
