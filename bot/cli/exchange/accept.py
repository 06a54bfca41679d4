"""`bot exchange check --db FILE --accept`: make the books of a stopped service those of its exchange, with one marked
correction.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bot.errors import BotError, ConfigError, Exit

if TYPE_CHECKING:
    from bot.exchanges.protocol import AccountReading
    from bot.venue.model.state import VenueAccount


class NotQuiet(BotError):
    """The account changed while it was read, so no instant is known at which the books would be right."""

    exit_code = Exit.TIMEOUT


def followed_in(db: Path) -> VenueAccount:
    """The account of this database that follows an exchange. ConfigError if there is none."""
    from bot.cli.audit.audit import stored

    accounts = stored(db).accounts.values()
    account = next((account for account in accounts if account.exchange is not None), None)
    if account is None:
        raise ConfigError(f"{db}: no account of this database follows an exchange, so there is nothing to compare")
    return account


def accept(db: Path, *, is_sure: bool) -> int:
    """Show what differs, ask, and correct the books. The service must be stopped."""
    from bot.cli.audit.audit import against_exchange

    account = followed_in(db)
    _, rows = against_exchange(db, account)
    if not rows:
        click.echo("ok    audit    no difference: there is nothing to correct")
        return Exit.DONE
    for row in rows:
        click.echo(f"DIFF  {row.check:<8} {row.name}: here {row.here}; there {row.there}")
    click.echo("The books take over cash and sizes of the exchange, as a fill and a transfer marked `correction`.")
    if not is_sure and not click.confirm("Correct the books?"):
        click.echo("nothing was changed")
        return Exit.ERROR
    asyncio.run(_correct(db, account))
    click.echo("corrected: start the service; its next audit compares what comes from now on")
    return Exit.DONE


async def _correct(db: Path, account: VenueAccount) -> None:
    from bot.service.host import HostOptions, build
    from bot.venue.model.commands import CorrectBooks

    service = build(HostOptions(db=db))
    machine, follower = service.machine, service.follower
    assert follower is not None
    machine.log.start()
    try:
        reading = await _quiet_reading(account)
        at_ms = max(standing.at_ms for standing in reading.standings)
        cash = sum(standing.cash for standing in reading.standings)
        machine.catch_up()
        machine.run(CorrectBooks(account.id, at_ms, cash, follower.positions_in(reading.standings)))
        await machine.settle()
        machine.snapshot()
    finally:
        machine.log.close()


async def _quiet_reading(account: VenueAccount) -> AccountReading:
    """A reading during which nothing happened."""
    from bot.exchanges.hyperliquid.account import HyperliquidAccount
    from bot.exchanges.hyperliquid.live.exchange import url_of
    from bot.exchanges.hyperliquid.transport import Transport

    assert account.exchange is not None
    async with Transport(url_of(account.exchange.network)) as transport:
        source = HyperliquidAccount(transport, account.address)
        first = await source.reading(account.exchange.adopted_ms)
        again = await source.reading(first.at_ms)
    if _money_and_sizes(first) != _money_and_sizes(again) or again.fills or again.funding or again.transfers:
        raise NotQuiet("the account changed while it was read, so nothing was corrected; try again in a quiet moment")
    return first


def _money_and_sizes(reading: AccountReading) -> list[tuple[int, list[tuple[str, int]]]]:
    return [
        (standing.cash, [(position.market, position.signed_size) for position in standing.positions])
        for standing in reading.standings
    ]
