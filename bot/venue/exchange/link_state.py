"""What the service knows of an account at an exchange, and what it therefore refuses."""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.model.events import AccountChanged
from bot.venue.exchange import order_reports
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import SeeLink
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import State, VenueAccount

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


def cannot_send(account: VenueAccount) -> Refusal:
    """The refusal of everything that would send something to the exchange."""
    assert account.exchange is not None
    name = f"{account.exchange.exchange}:{account.exchange.network}"
    text = (
        f"this account is watched only: it follows {account.address} at {name}, and this version sends nothing there;"
        " place, close and cancel on the exchange's own page"
    )
    return Refusal("service_unavailable", text, details={"reason": WATCHED_ONLY})
