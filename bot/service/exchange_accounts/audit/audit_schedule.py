"""The task of the service that compares the books of its account with the exchange, once an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bot.clock import HOUR_MS, SECOND_MS
from bot.exchanges.protocol import AccountReading, NoExchangeAnswer, UnknownForm
from bot.logs import log
from bot.service.exchange_accounts.audit.books import books_of
from bot.service.exchange_accounts.audit.comparison import BookDifference, differences
from bot.service.exchange_accounts.audit.exchange_books import ToldBooks, told_books
from bot.service.exchange_accounts.follower import ExchangeFollower
from bot.service.state_machine.machine import Machine
from bot.venue.accounting import exchange_limits
from bot.venue.exchange import audit
from bot.venue.model.commands import SeeAudit
from bot.venue.model.state import AuditDifference, State, VenueAccount

# A report may be on its way when both sides are read, so a difference must show in so many readings. Leverage and
# margin are reported every 5 s.
READINGS: Final = 3
WAIT_SECONDS: Final = 4.0
EVERY_MS: Final = HOUR_MS
# A start reads much already, so the first audit waits. One that could not be made is tried again soon.
FIRST_SECONDS: Final = 300.0
AGAIN_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
# differences of one audit that are stored
STORED_MAX: Final = 100

Sleep = Callable[[float], Awaitable[None]]
Compare = Callable[[], Awaitable[tuple[ToldBooks, list[BookDifference]]]]


async def lasting(compare: Compare, sleep: Sleep = asyncio.sleep) -> tuple[ToldBooks, list[BookDifference]]:
    """The first reading, and the differences that every one of the readings shows."""
    first, rows = await compare()
    for _ in range(READINGS - 1):
        if not rows:
            break
        await sleep(WAIT_SECONDS)
        _, now = await compare()
        rows = [row for row in now if row in rows]
    return first, rows


def compared(
    state: State, account: VenueAccount, reading: AccountReading, begin: tuple[int, int]
) -> tuple[ToldBooks, list[BookDifference]]:
    """What the exchange has told, and what the books have otherwise. `begin`: as `audit.begin` has it."""
    told = told_books(reading)
    return told, differences(books_of(state, account, *begin), told.books)


class BookAuditor:
    """Audits one account. A difference blocks entries in its market until it is gone or a person corrects the books."""

    def __init__(self, machine: Machine, follower: ExchangeFollower, sleep: Sleep = asyncio.sleep) -> None:
        # why the last audit has not ended
        self.trouble: str | None = None
        self._machine = machine
        self._follower = follower
        self._sleep = sleep

    async def run(self) -> None:
        """Audit until cancelled."""
        await self._sleep(FIRST_SECONDS)
        while True:
            while not self._is_in_step():
                self.trouble = "the link does not know everything now"
                await self._sleep(LOOK_SECONDS)
            await self._sleep(EVERY_MS / SECOND_MS if await self.audit() else AGAIN_SECONDS)

    async def audit(self) -> bool:
        """Audit once and store the result. False if the exchange gave no answer."""
        account = self._follower.account
        assert account is not None
        try:
            told, rows = await lasting(self._compare, self._sleep)
        except (NoExchangeAnswer, UnknownForm) as error:
            self.trouble = str(error)
            log.warning("exchange.audit_failed", message=self.trouble)
            return False
        self.trouble = None
        # Sizes and fills of markets explain a difference of the cash.
        rows.sort(key=lambda row: not row.market)
        if rows:
            log.error("exchange.audit_differs", differences=[_text(row) for row in rows[:STORED_MAX]])
        self._machine.catch_up()
        stored = tuple(AuditDifference(row.check, row.market, _text(row)) for row in rows[:STORED_MAX])
        self._machine.run(SeeAudit(account.id, told.at_ms, stored))
        await self._machine.settle()
        return True

    async def _compare(self) -> tuple[ToldBooks, list[BookDifference]]:
        account, link = self._follower.account, self._follower.link
        if account is None or account.exchange is None or link is None or not self._is_in_step():
            raise NoExchangeAnswer("the link does not know everything now")
        begin = audit.begin(account.exchange)
        reading = await link.read(account.address, begin[0])
        return compared(self._machine.state, account, reading, begin)

    def _is_in_step(self) -> bool:
        account = self._follower.account
        return account is not None and account.exchange is not None and account.exchange.link == "in_step"

    def body(self) -> dict[str, Any]:
        """The last audit, for GET /v1/system/status."""
        account = self._follower.account
        known = None if account is None else account.exchange
        newest = None if known is None else known.audit
        coins = () if known is None else exchange_limits.blocked(known)
        every = tuple(self._machine.state.markets)
        return {
            "auditedAt": None if newest is None else newest.at_ms,
            "auditDifferences": None if newest is None else [row.text for row in newest.differences],
            "auditTrouble": self.trouble,
            "blockedMarkets": list(every if coins == (exchange_limits.EVERY,) else coins),
        }


def _text(row: BookDifference) -> str:
    return f"{row.check} {row.name}: here {row.here}; there {row.there}"
