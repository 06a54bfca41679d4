"""An operator's orders: close the position of a market, cancel a resting entry. Called between two passes of the
kernel.

A close is an intent in the journal before it is sent, as every order is. Asking twice while it is on its way sends
nothing new. A stop or a target cannot be canceled, so that no position loses its stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bot.errors import BotError, Declined, OutcomeUnknown, Refused, TryLater
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.control_plane.commands import CommandTimeout
from bot.runtime.reconciliation import protection

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel

# The cause of the close, in its key and for `bot explain`.
CAUSE: Final = "operator"


async def close_position(kernel: Kernel, market: str, *, side: str | None = None, opened_ms: int | None = None) -> bool:
    """Close the whole position of a market, reduce-only. True if it is closed; False while the close is on its way or
    in doubt.

    `side` and `opened_ms` say which position is meant. BotError if there is no position or it is another one; Declined
    if the service refuses the close. The strategy may open again: pause it first.
    """
    position = kernel.account.account_state.positions.get(market)
    if position is None:
        raise BotError(
            f"there is no position in {market}; there are {', '.join(kernel.account.account_state.positions) or 'none'}"
        )
    if side not in (None, position.side) or opened_ms not in (None, position.opened_ms):
        raise BotError(
            f"the position in {market} is another one now: {position.side} {format_decimal(position.size)}; nothing was"
            " closed"
        )
    log.warning("position.closed_by_operator", market=market)
    kernel.budget.begin()
    refused = await protection.close_all(kernel.context, position, CAUSE)
    await kernel.execution.settle()
    await kernel.events.drain()
    kernel.journal.flush()
    if refused is not None:
        raise Declined(f"the {market} position was not closed: {refused}")
    left = kernel.account.account_state.positions.get(market)
    return left is None or left.opened_ms != position.opened_ms


async def cancel_entry(kernel: Kernel, oid: str) -> None:
    """Cancel an entry that rests.

    BotError if no such entry rests; Declined if the service refuses; CommandTimeout without an answer.
    """
    order = kernel.account.account_state.orders.get(oid)
    if order is None or not order.could_open:
        raise BotError(f"no entry {oid} rests; stops and targets cannot be canceled, and bot orders lists all orders")
    log.warning("entry.canceled_by_operator", oid=oid, market=order.market)
    kernel.budget.begin()
    try:
        await kernel.port.cancel(oid)
    except (TryLater, OutcomeUnknown) as error:
        raise CommandTimeout(f"the service has not answered ({error.code}): {error.message}") from None
    # Most likely it was filled or canceled meanwhile.
    except Refused as error:
        raise Declined(f"the service has not canceled {oid} ({error.code}): {error.message}") from None
    await kernel.events.drain()
    kernel.journal.flush()


async def decide(kernel: Kernel, name: str, *, approve: bool, decider: str, reason: str | None) -> dict[str, str]:
    """Write a person's answer to a proposal, then send or end the entry. BotError if nothing waits under this id."""
    if approve and not await kernel.events.drain():
        raise CommandTimeout(
            "the account's events cannot be read now, so a fill since the decision may be unknown; nothing is approved"
        )
    intent = kernel.approvals.decide(name, approve=approve, decider=decider, reason=reason)
    kernel.budget.begin()
    await kernel.execution.settle()
    await kernel.events.drain()
    kernel.journal.flush()
    known = kernel.journal.intents.find(intent.id) or intent
    return {
        "id": intent.id,
        "strategy": intent.strategy,
        "market": intent.market,
        "answer": "approved" if approve else "refused",
        "state": known.state,
        "message": known.message or "",
    }
