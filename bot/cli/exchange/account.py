"""`bot exchange check` and `bot exchange status`: an account at Hyperliquid, read only.

Neither command can send an order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from bot.cli.common.param_types import Duration
from bot.cli.common.shared_options import json_option, yes_option
from bot.errors import Exit

if TYPE_CHECKING:
    from bot.cli.exchange.status_view import ExchangeReading

CHECK_EPILOG: Final = """\b
Examples:
  bot exchange check --network testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --agent-key-file \
secrets/agent
  bot exchange check --network testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --market BTC --market ETH
  bot exchange check --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --url http://localhost:3001 --json
  bot exchange check --db account.db --accept

\b
Exit 0: no check failed; warnings are allowed. Otherwise 1 a check failed, 4 the key file cannot be used, 5 no answer.
"""
STATUS_EPILOG: Final = """\b
Examples:
  bot exchange status --network testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1
  bot exchange status --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --since 7d --json
  bot exchange status --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --dex xyz
  bot exchange status --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --link
"""
F = TypeVar("F", bound=Callable[..., Any])


class AddressParam(click.ParamType[str]):
    """An address of 40 hexadecimal digits, in lower case."""

    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"0x[0-9a-fA-F]{40}", value, re.ASCII):
            self.fail(f"{value!r} is not an address; write 0x and 40 hexadecimal digits", param, ctx)
        return value.lower()


class Url(click.ParamType[str]):
    """The address of a server: http or https, a host, perhaps a port."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_server(value):
            self.fail(f"{value!r} is not the address of a server; write http://localhost:3001", param, ctx)
        return value.rstrip("/")


def is_server(url: str) -> bool:
    """True for http or https, a host and perhaps a port; no name, path or query."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    return is_right and "@" not in parts.netloc and not (parts.path.strip("/") or parts.query or parts.fragment)


def account_options(command: F) -> F:
    """The options that say which account is read."""
    return account_or_file_options(command, is_required=True)


def account_or_file_options(command: F, *, is_required: bool = False) -> F:
    """The same for a command that may find the address in a database."""
    for option in (
        json_option("Print one JSON object."),
        click.option(
            "--url", type=Url(), default=None, metavar="URL", help="Another server, such as a local exchange."
        ),
        click.option(
            "--address", type=AddressParam(), required=is_required, metavar="0x...", help="Address of the account."
        ),
        click.option(
            "--network",
            type=click.Choice(["testnet", "mainnet"]),
            default="testnet",
            show_default=True,
            help="Network of the account.",
        ),
    ):
        command = option(command)
    return command


def url_of(network: str, url: str | None) -> str:
    from bot.exchanges.hyperliquid.form import URLS

    return url or URLS[network]


@click.command(epilog=CHECK_EPILOG)
@account_or_file_options
@click.option(
    "--agent-key-file",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="File with the agent's key. Only its address is sent.",
)
@click.option("--market", "markets", multiple=True, metavar="NAME", help="A market to be traded; repeatable.")
@click.option(
    "--db",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Database of a stopped service whose books --accept corrects.",
)
@click.option(
    "--accept",
    "does_accept",
    is_flag=True,
    help="Make the books of --db those of the exchange, by one marked correction. Shows what differs and asks first.",
)
@yes_option()
def check(*, network: str, address: str | None, db: Path | None, does_accept: bool, yes: bool, **given: Any) -> int:
    """Check an account at Hyperliquid: network, clock, address, agent, mode, markets. Reads only; changes nothing.

    With --db FILE --accept: correct the books of a service after an audit has named a difference.
    """
    if does_accept or db is not None:
        if db is None or not does_accept or address is not None:
            raise click.UsageError("--accept corrects the books of a database: give --db FILE --accept alone")
        from bot.cli.exchange.accept import accept

        return accept(db, is_sure=yes)
    if address is None:
        raise click.UsageError("--address is missing; or give --db FILE --accept to correct the books of a service")
    return _check(network, address, **given)


def _check(
    network: str, address: str, url: str | None, as_json: bool, agent_key_file: Path | None, markets: tuple[str, ...]
) -> int:
    import asyncio
    import json
    from dataclasses import asdict

    from bot.clock import SystemClock
    from bot.exchanges.hyperliquid.account import HyperliquidAccount
    from bot.exchanges.hyperliquid.agent_key import address_of_key_file
    from bot.exchanges.hyperliquid.checks import AccountCheck, CheckRequest, read_checks
    from bot.exchanges.hyperliquid.transport import Transport

    agent = None if agent_key_file is None else address_of_key_file(agent_key_file)
    request = CheckRequest(network, url_of(network, url), agent, markets)

    async def read() -> list[AccountCheck]:
        async with Transport(request.url) as transport:
            return await read_checks(HyperliquidAccount(transport, address), request, SystemClock())

    checks = asyncio.run(read())
    failed = any(result.level == "fail" for result in checks)
    if as_json:
        place = {"network": network, "url": request.url, "address": address, "agent": agent}
        click.echo(json.dumps({**place, "hasFailed": failed, "checks": [asdict(result) for result in checks]}))
    else:
        for result in checks:
            click.echo(f"{result.level:<5} {result.check:<8} {result.message}")
    return Exit.ERROR if failed else Exit.DONE


@click.command(epilog=STATUS_EPILOG)
@account_options
@click.option("--dex", default="", metavar="NAME", help="A dex of its own, with its own margin. Default: the main one.")
@click.option("--link", "has_link", is_flag=True, help="Also open the link and show its figures (extra `exchange`).")
@click.option("--since", type=Duration(), default="24h", show_default=True, metavar="24h", help="How old fills may be.")
def status(network: str, address: str, url: str | None, as_json: bool, dex: str, has_link: bool, since: float) -> int:
    """Show positions, open orders, stops, fills and the request budget of an account at Hyperliquid, as the exchange
    says it.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from bot.cli.exchange.link_health import LinkReading, read_link
    from bot.cli.exchange.reading_facts import reading_facts
    from bot.cli.exchange.status_view import read_status
    from bot.clock import SystemClock
    from bot.exchanges.hyperliquid.account import HyperliquidAccount
    from bot.exchanges.hyperliquid.transport import Transport

    chosen, clock = url_of(network, url), SystemClock()

    async def read() -> tuple[ExchangeReading, LinkReading | None]:
        async with Transport(chosen) as transport:
            reading = await read_status(HyperliquidAccount(transport, address), dex, int(since * 1000), clock)
        return reading, await read_link(url or network, address) if has_link else None

    reading, link = asyncio.run(read())
    known = reading_facts(reading, link, clock.now_ms())
    if as_json:
        place = {"network": network, "url": chosen, "address": address, "dex": dex}
        rows = {"facts": [asdict(fact) for fact in known], **({} if link is None else {"link": link.as_json()})}
        click.echo(json.dumps({**place, **reading.as_json(), **rows}))
    else:
        click.echo(f"{address} on {network} at {chosen}" + (f", dex {dex}" if dex else ""))
        shown = [f"{fact.level:<7} {fact.name}: {fact.line}" for fact in known]
        for line in [*reading.lines(), *shown, *([] if link is None else link.lines())]:
            click.echo(line)
    return Exit.DONE
