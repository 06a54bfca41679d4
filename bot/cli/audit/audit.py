"""`bot audit`: compare the books of a service with those of the exchange, and with their own sums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bot.cli.common.shared_options import json_option
from bot.errors import ConfigError, Exit

if TYPE_CHECKING:
    from bot.service.exchange_accounts.audit.comparison import BookDifference
    from bot.service.exchange_accounts.audit.exchange_books import ToldBooks
    from bot.venue.model.state import State, VenueAccount

EPILOG: Final = """\b
Examples:
  bot audit --db watched.db
  bot audit --db ~/.local/state/bot/bot/sandbox.db --json

\b
Exit 0: no difference. Otherwise 1 a difference, 4 the database cannot be used, 5 no answer of the exchange.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--db", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Database of the service; only read."
)
@json_option("Print one JSON object.")
def audit(db: Path, as_json: bool) -> int:
    """Compare the books of each account of a service with their own sums, and with the exchange that it follows.

    The service may run meanwhile. Nothing is changed, there or here.
    """
    import json
    from dataclasses import asdict

    state = stored(db)
    told = {name: _audited(db, account) for name, account in state.accounts.items()}
    if as_json:
        rows = {name: [asdict(difference) for difference in differences] for name, differences in told.items()}
        click.echo(json.dumps({"db": str(db), "accounts": rows}))
    else:
        for name, account in state.accounts.items():
            for line in _lines(account, told[name]):
                click.echo(line)
    return Exit.ERROR if any(told.values()) else Exit.DONE


def stored(db: Path) -> State:
    """The state of a database that a service may use meanwhile."""
    from bot.service.state_machine.database_check import stored_state

    if not db.is_file():
        raise ConfigError(f"{db}: there is no such file; name the database of a service, such as sandbox.db")
    return stored_state(db)


def _audited(db: Path, account: VenueAccount) -> list[BookDifference]:
    from bot.money import format_e8
    from bot.service.exchange_accounts.audit.books import own_differences
    from bot.service.exchange_accounts.audit.comparison import BookDifference

    own = [
        BookDifference(check, name, format_e8(here), format_e8(there))
        for check, name, here, there in own_differences(account)
    ]
    return own if account.exchange is None else [*own, *against_exchange(db, account)[1]]


def against_exchange(db: Path, account: VenueAccount) -> tuple[ToldBooks, list[BookDifference]]:
    """What the exchange has told of this account, and the differences that every one of the readings shows."""
    import asyncio

    from bot.exchanges.hyperliquid.account import HyperliquidAccount
    from bot.exchanges.hyperliquid.live.exchange import url_of
    from bot.exchanges.hyperliquid.transport import Transport
    from bot.service.exchange_accounts.audit.audit_schedule import compared, lasting

    exchange = account.exchange
    assert exchange is not None

    async def read() -> tuple[ToldBooks, list[BookDifference]]:
        async with Transport(url_of(exchange.network)) as transport:
            source = HyperliquidAccount(transport, account.address)

            async def compare() -> tuple[ToldBooks, list[BookDifference]]:
                reading = await source.reading(exchange.adopted_ms)
                state = stored(db)
                return compared(state, state.accounts[account.id], reading, (exchange.adopted_ms, 0))

            return await lasting(compare)

    return asyncio.run(read())


def _lines(account: VenueAccount, told: list[BookDifference]) -> list[str]:
    exchange = account.exchange
    with_ = "its own sums" if exchange is None else f"its own sums and {exchange.exchange}:{exchange.network}"
    if not told:
        return [f"ok    {account.id} {account.address}: no difference with {with_}"]
    head = f"DIFF  {account.id} {account.address}: {len(told)} with {with_}"
    return [head, *(f"      {row.check:<8} {row.name}: here {row.here}; there {row.there}" for row in told)]
