"""An operator's orders: close the position of a market, cancel a resting entry. Called between two passes of the
kernel.

A close is an intent in the journal before it is sent, as every order is. Asking twice while it is on its way sends
nothing new. A stop or a target cannot be canceled, so that no position loses its stop.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.errors import BotError, Declined, OutcomeUnknown, Refused, TryLater
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.control_plane.commands import CommandTimeout
from bot.runtime.execution.open_intents import SLOW_MS
from bot.runtime.model.intents import Intent
from bot.runtime.reconciliation import protection

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel

# The cause of the close, in its key and for `bot explain`.
CAUSE: Final = "operator"


class ClosedPart(NamedTuple):
    """What became of an operator's close. `left`: size of the position that was meant, after it.

    `is_done` is False while the close is on its way or in doubt.
    """

    is_done: bool
    left: Decimal


async def close_position(
    kernel: Kernel,
    market: str,
    *,
    side: str | None = None,
    opened_ms: int | None = None,
    fraction: Decimal = Decimal(1),
    size: Decimal | None = None,
) -> ClosedPart:
    """Close the position of a market, or a fraction of it (above 0, at most 1), reduce-only.

    `side`, `opened_ms` and `size` say which position is meant, so that a fraction that is asked for twice is closed
    once. BotError if there is no position, if it is another one, or if a fraction is asked for while another close is
    on its way; Declined if the service refuses the close. The strategy may open again: pause it first.
    """
    positions = kernel.account.account_state.positions
    position = positions.get(market)
    if position is None:
        raise BotError(f"there is no position in {market}; there are {', '.join(positions) or 'none'}")
    if side not in (None, position.side) or opened_ms not in (None, position.opened_ms):
        raise BotError(
            f"the position in {market} is another one now: {position.side} {format_decimal(position.size)}; nothing was"
            " closed"
        )
    if size not in (None, position.size):
        raise BotError(
            f"the position in {market} has another size now: {format_decimal(position.size)}; nothing was closed"
        )
    if fraction != 1 and kernel.intents.has_close(market):
        raise BotError(f"a close in {market} is on its way or in doubt; bot positions shows what became of it")
    log.warning("position.closed_by_operator", market=market, fraction=format_decimal(fraction))
    kernel.budget.begin()
    intent = protection.closing(kernel.run, kernel.account, position, CAUSE, fraction)
    if isinstance(intent, Intent):
        await kernel.execution.open_and_send([intent])
    await _settled(kernel)
    refused: str | None = intent if isinstance(intent, str) else None
    # The answer may have come with the settling.
    sent = kernel.journal.intents.find(intent.id) if isinstance(intent, Intent) else None
    if sent is not None and sent.state in ("rejected", "quarantined"):
        refused = sent.message or sent.code
    if refused is not None:
        raise Declined(f"the {market} position was not closed: {refused}")
    after = positions.get(market)
    left = after.size if after is not None and after.opened_ms == position.opened_ms else Decimal(0)
    return ClosedPart(left < position.size if fraction != 1 else not left, left)


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
    await _settled(kernel)
    known = kernel.journal.intents.find(intent.id) or intent
    return {
        "id": intent.id,
        "strategy": intent.strategy,
        "market": intent.market,
        "answer": "approved" if approve else "refused",
        "state": known.state,
        "message": known.message or "",
    }


async def _settled(kernel: Kernel) -> None:
    """Send what may be sent, wait a moment for the replies, and read the events."""
    await kernel.execution.settle()
    await kernel.execution.settle_in_flight(SLOW_MS)
    await kernel.events.drain()
    kernel.journal.flush()
