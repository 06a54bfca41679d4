"""Sign-ins and webhooks in random worlds: codes, sessions, devices, webhooks.

Chooses the next command and checks its invariants.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from bot.errors import Refusal
from bot.venue.identity import sign_in
from bot.venue.model import commands as c
from bot.venue.model import state as s
from bot.venue.model.numbers import E8
from tests.venue.books import demand

PHONES = ("+441", "+442", "+443")
OTP_MS = 600_000
GRANT_MS = 600_000
TRIES = 5


class Writer(Protocol):
    """The part of the author that this module needs."""

    doors: random.Random
    state: s.State
    now_ms: int

    def say(self, command: c.Command, now_ms: int | None = None) -> None: ...
    def number(self) -> int: ...


def visit(author: Writer) -> None:
    """Some steps of a sign-in; real time equals the venue's time here."""
    for _ in range(author.doors.choice((1, 2, 5))):
        step = author.doors.choices(STEPS, WEIGHTS)[0]
        step(author)


def _somebody(author: Writer) -> str:
    return author.doors.choice(list(author.state.accounts))


def _code(author: Writer) -> None:
    number = author.number()
    otp = s.Otp("salt", f"code{number}", author.now_ms + OTP_MS, TRIES)
    author.say(c.SendOtp(author.doors.choice(PHONES), otp, author.now_ms))


def _sign_in(author: Writer) -> None:
    rng = author.doors
    phone = rng.choice(list(author.state.otps) or PHONES)
    otp = author.state.otps.get(phone)
    right = otp is not None and rng.random() < 0.6
    digest = otp.digest if otp is not None and right else "wrong"
    number = author.number()
    opening = c.OpenAccount(f"acc{number}", f"0x{number:040x}", "phone", rng.choice((500, 10_000)) * E8)
    session = None
    if rng.random() < 0.9:
        session = s.Session(f"ses{number}", "", f"digest{number}", author.now_ms, author.now_ms + 30 * s.DAY_MS)
    real_ms = author.now_ms + (OTP_MS if rng.random() < 0.05 else 0)
    author.say(c.SignIn(phone, digest, real_ms, opening, rng.random() < 0.9, session))


def _leave(author: Writer) -> None:
    sessions = list(author.state.sessions.values())
    if not sessions:
        return _code(author)
    session = author.doors.choice(sessions)
    account = session.account if author.doors.random() < 0.9 else _somebody(author)
    return author.say(c.RevokeSession(account, session.id))


def _device(author: Writer) -> None:
    number = author.number()
    grant = s.Grant(f"dev{number}", f"user{number}", "127.0.0.1", "toaster", author.now_ms + GRANT_MS)
    author.say(c.StartGrant(grant, author.now_ms))


def _decide(author: Writer) -> None:
    rng = author.doors
    grants = list(author.state.grants)
    if not grants:
        return _device(author)
    device = rng.choice(grants) if rng.random() < 0.95 else "dev0"
    approved = rng.random() < 0.7
    return author.say(c.DecideGrant(device, _somebody(author), approved, author.now_ms, "device", ("read",)))


def _redeem(author: Writer) -> None:
    ready = [g for g in author.state.grants.values() if g.status == "approved"]
    if not ready:
        return _device(author)
    grant = author.doors.choice(ready)
    assert grant.account is not None
    number = author.number()
    key = s.VenueKey(
        f"key{number}", grant.account, grant.name, "bbk", f"d{number}", grant.scopes, author.now_ms, "device"
    )
    return author.say(c.RedeemGrant(grant.device, key))


def _hook(author: Writer) -> None:
    types = author.doors.choice((None, ("fill",), ("guardian", "order.open")))
    author.say(c.AddWebhook(_somebody(author), "https://example.com/hook", types, f"sealed{author.number()}"))


def _unhook(author: Writer) -> None:
    hooks = list(author.state.webhooks.values())
    hook = author.doors.choice(hooks) if hooks else None
    account = hook.account if hook is not None and author.doors.random() < 0.9 else _somebody(author)
    author.say(c.RemoveWebhook(account, "whk_none" if hook is None else hook.id))


def _fail(author: Writer) -> None:
    hooks = list(author.state.webhooks)
    author.say(c.DisableWebhook(author.doors.choice(hooks) if hooks else "whk_none", "failing"))


STEPS = (_code, _sign_in, _leave, _device, _decide, _redeem, _hook, _unhook, _fail)
WEIGHTS = (3, 6, 2, 2, 3, 3, 3, 2, 1)


def judge(state: s.State, command: c.Command, answer: Any) -> None:
    """The invariants of credentials and webhooks after a command."""
    for phone, account in state.phones.items():
        demand(account in state.accounts, "a number leads to an account", phone, account)
    for otp in state.otps.values():
        demand(0 < otp.tries_left <= TRIES, "a code that waits has tries left", otp)
    own: dict[str, int] = {}
    for session in state.sessions.values():
        demand(session.account in state.accounts, "a session is somebody's", session)
        own[session.account] = own.get(session.account, 0) + 1
    demand(max(own.values(), default=0) <= sign_in.SESSIONS_MAX, "sessions of an account")
    for grant in state.grants.values():
        demand((grant.status == "pending") == (grant.account is None), "who decided a device's grant", grant)
    hooks: dict[str, int] = {}
    for hook in state.webhooks.values():
        demand(hook.account in state.accounts, "a webhook is somebody's", hook)
        hooks[hook.account] = hooks.get(hook.account, 0) + 1
    demand(max(hooks.values(), default=0) <= s.WEBHOOKS_MAX, "webhooks of an account")
    if isinstance(answer, Refusal):
        return
    if type(command) is c.SignIn:
        demand(command.phone not in state.otps, "a code is used once", command)
        demand(state.phones[command.phone] == answer.account.id, "one number, one account", command)
    elif type(command) is c.RedeemGrant:
        demand(state.grants[command.device].status == "used", "a grant gives one key", command)
        demand(state.keys[command.key.id].account == state.grants[command.device].account, "of its account", command)
    elif type(command) is c.RevokeSession:
        demand(state.sessions[command.session].revoked, "a session that ended", command)
