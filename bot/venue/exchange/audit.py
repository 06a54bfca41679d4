"""What a comparison of the books with the exchange has named, and the correction that a person decides."""

from __future__ import annotations

from typing import Final

from bot.model.events import AccountChanged
from bot.venue.accounting import nav
from bot.venue.exchange import fills, money
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import CorrectBooks, SeeAudit, SeeMargins
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import (
    HOUR_MS,
    AuditDifference,
    ExchangeAccount,
    ExchangeAudit,
    ExchangePosition,
    ReportedExecution,
    State,
    VenueAccount,
)

EQUAL: Final = "equal"
DIFFERS: Final = "differs"
CORRECTED: Final = "corrected"
# kind of the fill and of the transfer that correct the books
CORRECTION: Final = "correction"
MARKS_KEPT: Final = 4
# An event is booked at most so much before the exchange's instant of it: its clock may be ahead of ours.
CLOCK_MARGIN_MS: Final = 60_000


def see(state: State, command: SeeAudit) -> None:
    """Store the result. It is an event when it is another one than before."""
    account, exchange = followed(state, command.account)
    before = exchange.audit or ExchangeAudit(0)
    if command.differences:
        exchange.audit = ExchangeAudit(state.now_ms, command.differences, before.equal_ms, before.marks)
    else:
        # A payment of funding stands within some ms of a full hour, on either side of it.
        equal_ms = (command.at_ms - HOUR_MS // 2) // HOUR_MS * HOUR_MS + HOUR_MS // 2
        marks = (*before.marks, (command.at_ms, account.event_seq))[-MARKS_KEPT:]
        exchange.audit = ExchangeAudit(state.now_ms, (), max(before.equal_ms, equal_ms), marks)
    if exchange.audit.differences != before.differences:
        _tell(state, account, DIFFERS if command.differences else EQUAL, _first(command.differences))


def begin(exchange: ExchangeAccount) -> tuple[int, int]:
    """From where the next comparison reads: the exchange's instant, and the number of an event that is older."""
    known = exchange.audit or ExchangeAudit(0)
    begin_ms = max(exchange.adopted_ms, known.equal_ms)
    older = [seq for at_ms, seq in known.marks if at_ms + CLOCK_MARGIN_MS < begin_ms]
    return begin_ms, max(older, default=0)


def correct(state: State, command: CorrectBooks) -> None:
    """Book one fill for each size that differs, at the exchange's entry price or the mark, and the rest of the cash as
    a transfer, all marked as a correction. Reports until `at_ms` are contained in it.
    """
    account, exchange = followed(state, command.account)
    exchange.waiting = [fill for fill in exchange.waiting if fill.at_ms > command.at_ms]
    told = {position.coin: position for position in command.positions}
    for coin in sorted({*account.positions, *told}):
        _correct_size(state, account, coin, told.get(coin), command.at_ms)
    if missing := command.cash - nav.stand_of(account, state).cash:
        money.move(state, account, CORRECTION, missing, command.at_ms)
    money.see_margins(state, SeeMargins(account.id, command.positions))
    exchange.adopted_ms, exchange.audit = command.at_ms, None
    _tell(state, account, CORRECTED, None)
    assert nav.stand_of(account, state).cash == command.cash


def _correct_size(state: State, account: VenueAccount, coin: str, told: ExchangePosition | None, at_ms: int) -> None:
    position = account.positions.get(coin)
    before = 0 if position is None else position.side * position.size
    size = (0 if told is None else told.size) - before
    if not size:
        return
    px = state.markets[coin].mark if told is None else told.entry_px
    buy = 1 if size > 0 else -1
    fill = ReportedExecution(coin, at_ms, 0, "", None, buy, abs(size), px, 0, before, maker=False, kind=CORRECTION)
    fills.take(state, account, fill)


def _tell(state: State, account: VenueAccount, result: str, reason: str | None) -> None:
    emit(
        state,
        account,
        AccountChanged(account.id, next_seq(account), state.now_ms, "audit", state=result, reason=reason),
    )


def _first(differences: tuple[AuditDifference, ...]) -> str | None:
    if not differences:
        return None
    more = "" if len(differences) == 1 else f"; and {len(differences) - 1} more"
    return differences[0].text + more
