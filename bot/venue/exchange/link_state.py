"""What the service knows of an account at an exchange."""

from __future__ import annotations

from typing import Final

from bot.model.events import AccountChanged
from bot.venue.exchange import order_reports
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import SeeLink
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import State

IN_STEP: Final = "in_step"


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
