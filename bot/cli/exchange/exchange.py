"""`bot exchange local`: an exchange on this machine that clients of Hyperliquid can use with only their address
changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bot.cli.common.param_types import ClockParam, Group, speed_of
from bot.cli.common.shared_options import HOST, json_option
from bot.cli.exchange.account import check, status
from bot.cli.exchange.certification import certify
from bot.cli.exchange.connection import connect
from bot.cli.exchange.watch import watch

EPILOG = """\b
Examples:
  bot exchange local --port 3001
  bot exchange local --clock manual --prices held --db exchange.db
  bot exchange local --network mainnet --clock 60x --seed 7
  bot exchange local --prices BTC=candles.csv

\b
Then give an address some money, and point your bot at http://localhost:3001:
  curl -X POST http://localhost:3001/control/deposit -d '{"address": "0x...", "usd": "10000"}'
"""
MEMORY = ":memory:"


@click.group(cls=Group, epilog=EPILOG)
def exchange() -> None:
    """Read or certify an account at Hyperliquid, or run an exchange on this machine for tests of trading bots."""


exchange.add_command(connect)
exchange.add_command(check)
exchange.add_command(status)
exchange.add_command(watch)
exchange.add_command(certify)


@exchange.command(epilog=EPILOG)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=3001, show_default=True, help="Port; 0 takes a free one."
)
@HOST
@click.option(
    "--network",
    type=click.Choice(["testnet", "mainnet"]),
    default="testnet",
    show_default=True,
    help="Network that clients sign for. The official SDK signs for testnet at every address but the mainnet's.",
)
@click.option("--clock", type=ClockParam(), default="real", show_default=True, metavar="real|manual|60x", help="Clock.")
@click.option("--db", default=MEMORY, show_default=True, metavar="FILE|:memory:", help="Database file.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of everything drawn.")
@click.option(
    "--prices",
    default="simulated",
    show_default=True,
    metavar="simulated|held|COIN=FILE",
    help="Prices: a random walk, moved only by /control/price, or candles (ts,open,high,low,close).",
)
@click.option(
    "--switch",
    "chosen",
    multiple=True,
    metavar="NAME=VALUE",
    help="Answer to an open question about the exchange; repeatable. `--list-switches` shows them.",
)
@click.option(
    "--block-ms",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
    help="Perform the actions of so many milliseconds together, in the exchange's order; its blocks take about 70.",
)
@click.option("--list-switches", is_flag=True, help="List the switches and end.")
@json_option("Print the address as one JSON object.")
def local(
    *,
    port: int,
    host: str,
    network: str,
    clock: str,
    db: str,
    chosen: tuple[str, ...],
    list_switches: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Run an exchange in Hyperliquid's wire form, offline. Ctrl-C stops it; with --db the next start continues."""
    import json

    from bot import logs
    from bot.local_exchange.extra import need_extra
    from bot.local_exchange.switches import SWITCHES, fault_of

    if list_switches:
        for switch in SWITCHES:
            click.echo(f"{switch.name}: {' | '.join(switch.values)}\n    {switch.question}")
        return 0
    switches = {} if clock != "manual" else {"ip_limit": "off"}
    for text in chosen:
        name, _, value = text.partition("=")
        fault = fault_of(name, value)
        if fault is not None:
            raise click.UsageError(f"--switch {text}: {fault}")
        switches[name] = value
    need_extra()
    from bot.local_exchange.server.host import serve
    from bot.local_exchange.server.service import ExchangeServiceOptions

    logs.configure()
    path = None if db == MEMORY else Path(db)
    # All other options have the names of the fields of ExchangeServiceOptions.
    options = ExchangeServiceOptions(network, speed_of(clock), path, switches=switches, **given)

    def say(address: str) -> None:
        if as_json:
            click.echo(json.dumps({"baseUrl": address, "network": network, "clock": clock, "db": db}))
        else:
            click.echo(
                f"The local exchange listens on {address} as {network} (Ctrl-C stops it). Give an address money:"
            )
            click.echo(f'  curl -X POST {address}/control/deposit -d \'{{"address": "0x...", "usd": "10000"}}\'')

    return serve(options, host, port, say)
