"""What the service knows of an account at an exchange, and what it therefore refuses."""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.model.events import AccountChanged
from bot.venue.exchange import order_reports
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import SeeLink
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import GuardianSpec, State, VenueAccount
from bot.venue.orders import exchange_entries

IN_STEP: Final = "in_step"
WATCHED_ONLY: Final = "watched_only"


def see(state: State, command: SeeLink) -> None:
    """Note a change of the link. In step, everything until now is known."""
    account, exchange = followed(state, command.account)
    if (exchange.link, exchange.link_reason) == (command.state, command.reason):
        return
    if exchange.link != command.state:
        exchange.link_since_ms = state.now_ms
    exchange.link, exchange.link_reason = command.state, command.reason
    changed = AccountChanged(
        account.id, next_seq(account), state.now_ms, "link", state=command.state, reason=command.reason
    )
    emit(state, account, changed)
    if command.state == IN_STEP:
        order_reports.drop_filled(state, account)


def refuse_watched(account: VenueAccount) -> Refusal | None:
    """The refusal of everything that would send something to the exchange, for want of an agent's key."""
    exchange = account.exchange
    assert exchange is not None
    if exchange.signer is not None:
        return None
    name = f"{exchange.exchange}:{exchange.network}"
    text = (
        f"this account is watched only: it follows {account.address} at {name} without an agent's key, so nothing is"
        " sent there; place, close and cancel on the exchange's own page, or give `agent_key`"
    )
    return Refusal("service_unavailable", text, details={"reason": WATCHED_ONLY})


def refuse_sending(account: VenueAccount) -> Refusal | None:
    """The refusal of a close or a cancel that cannot reach the exchange. A kill is taken also while it is away."""
    exchange = account.exchange
    assert exchange is not None
    if (refused := refuse_watched(account)) is not None or exchange.link != "away":
        return refused
    text = f"the exchange cannot be reached now: {exchange.link_reason}; nothing was sent, try again"
    return Refusal("service_unavailable", text, fix={"action": "wait", "seconds": 5}, details={"reason": "away"})


def refuse_guardian(account: VenueAccount, spec: GuardianSpec) -> Refusal | None:
    return refuse_watched(account) or exchange_entries.refuse_guardian(spec)
