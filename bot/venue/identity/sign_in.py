"""Sign-in, sessions and device grants: digests, tries, single use.

Makes no secret and reads no clock; real time is an argument.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bot.errors import Refusal
from bot.venue.model.commands import (
    CreateKey,
    DecideGrant,
    OpenAccount,
    RedeemGrant,
    RevokeSession,
    SendOtp,
    SignIn,
    StartGrant,
)
from bot.venue.model.state import DAY_MS, Grant, Otp, Session, State, VenueAccount, VenueKey

# per account; a new session removes the oldest
SESSIONS_MAX: Final = 50
# time after its end in which a token is answered "expired", not "unknown"
SESSION_KEPT_MS: Final = 30 * DAY_MS
# waiting devices of all accounts together
GRANTS_MAX: Final = 10_000
# time after its end in which a device code is answered with its result
GRANT_KEPT_MS: Final = DAY_MS


@dataclass(slots=True)
class SignedIn:
    """The account of the number, and whether it is new."""

    account: VenueAccount
    is_new: bool


# ── Codes and sessions ──────────────────────────────────────────────────────────────────────────────────────────────


def send_otp(state: State, command: SendOtp) -> Otp:
    """Store the code that was sent. The result does not depend on whether the number has an account."""
    for phone in [phone for phone, otp in state.otps.items() if otp.expires_ms <= command.real_ms]:
        del state.otps[phone]
    state.otps.pop(command.phone, None)
    otp = state.otps[command.phone] = replace(command.otp)
    return otp


def sign_in(
    state: State, command: SignIn, open_account: Callable[[State, OpenAccount], VenueAccount]
) -> SignedIn | Refusal:
    """A right code is used up and opens a session. A wrong one costs a try."""
    otp = state.otps.get(command.phone)
    if otp is None or otp.expires_ms <= command.real_ms:
        return _wrong("no code is waiting for this number, or it has expired", 0)
    otp.tries_left -= 1
    if not hmac.compare_digest(otp.digest, command.digest):
        if otp.tries_left == 0:
            del state.otps[command.phone]
        return _wrong("the code is wrong", otp.tries_left)
    known = state.phones.get(command.phone)
    if known is None and not command.invited:
        if otp.tries_left == 0:
            del state.otps[command.phone]
        return Refusal(
            "forbidden",
            "a new account needs a valid inviteCode here",
            fix={"field": "inviteCode"},
            details={"attemptsLeft": otp.tries_left},
        )
    del state.otps[command.phone]
    if known is None:
        account = open_account(state, command.opening)
        state.phones[command.phone] = account.id
    else:
        account = state.accounts[known]
    if command.session is not None:
        _open_session(state, replace(command.session, account=account.id), command.real_ms)
    return SignedIn(account, known is None)


def _wrong(text: str, left: int) -> Refusal:
    fix = {"action": "retry" if left else "request_code", "path": "/v1/auth/verify" if left else "/v1/auth/otp"}
    return Refusal("unauthorized", text, fix=fix, details={"attemptsLeft": left})


def _open_session(state: State, session: Session, real_ms: int) -> None:
    assert session.id not in state.sessions
    sessions = state.sessions
    for old in [s.id for s in sessions.values() if s.expires_ms + SESSION_KEPT_MS <= real_ms]:
        del sessions[old]
    own = [s.id for s in sessions.values() if s.account == session.account]
    for old in own[: max(0, len(own) - SESSIONS_MAX + 1)]:
        del sessions[old]
    state.session_seq += 1
    sessions[session.id] = session


def revoke_session(state: State, command: RevokeSession) -> Session | Refusal:
    session = state.sessions.get(command.session)
    if session is None or session.account != command.account or session.revoked:
        return Refusal("not_found", "no such session")
    session.revoked = True
    return session


# ── Devices ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def start_grant(state: State, command: StartGrant) -> Grant | Refusal:
    """A device requests a key. Removes grants that expired long ago first."""
    for device in [d for d, grant in state.grants.items() if grant.expires_ms + GRANT_KEPT_MS <= command.real_ms]:
        del state.grants[device]
    if sum(1 for grant in state.grants.values() if is_waiting(grant, command.real_ms)) >= GRANTS_MAX:
        return Refusal(
            "rate_limited", "too many devices wait for approval; try again in a minute", fix={"action": "wait"}
        )
    grant = replace(command.grant)
    assert grant.device not in state.grants
    state.grants[grant.device] = grant
    return grant


def is_waiting(grant: Grant, real_ms: int) -> bool:
    return grant.status == "pending" and real_ms < grant.expires_ms


def decide_grant(state: State, command: DecideGrant) -> Grant | Refusal:
    """Approve or deny a waiting grant, once."""
    grant = state.grants.get(command.device)
    if grant is None or not is_waiting(grant, command.real_ms):
        return Refusal("not_found", "this request has ended or was decided already")
    grant.account = command.account
    grant.status = "approved" if command.approved else "denied"
    grant.name, grant.scopes, grant.by = command.name, command.scopes, command.by
    return grant


def redeem_grant(
    state: State, command: RedeemGrant, create_key: Callable[[State, CreateKey], VenueKey | Refusal]
) -> VenueKey | Refusal:
    """The one key of an approved grant; if the account has its maximum of keys, the grant stays approved."""
    grant = state.grants[command.device]
    assert grant.status == "approved"
    assert grant.account == command.key.account
    key = create_key(state, CreateKey(command.key))
    if isinstance(key, VenueKey):
        grant.status = "used"
    return key
