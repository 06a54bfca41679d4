"""`bot sandbox`: run the trading service alone, for any client in any language."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bot.cli.common.param_types import Amount, CandleFile, CandlesFile, ClockParam, ExchangeAccountParam, recordings
from bot.cli.common.shared_options import HOST, json_option

if TYPE_CHECKING:
    from decimal import Decimal

    from bot.service.exchange_accounts.account_options import FollowedAccount
    from bot.service.market_data.instruments import Listing

EPILOG = """\b
Examples:
  bot sandbox --port 8700 --db sandbox.db
  bot sandbox --clock manual --control-socket /tmp/bot/control.sock
  bot sandbox --data BTC=candles.csv.gz --clock 600x
  bot sandbox --prices ccxt:hyperliquid --markets BTC,ETH
  bot sandbox --markets markets.yaml --data SHIB=shib.csv.gz
  bot sandbox --prices ccxt:kraken:BTC=BTC/USD --prices ccxt:binance:ETH
  bot sandbox --db watched.db --prices hyperliquid:testnet --exchange-account hyperliquid:testnet:0x1a642f0e3c3af545e\
7acbd38b07251b3990914f1

\b
Then, from anywhere on this machine:
  curl -X POST http://127.0.0.1:8700/v1/sandbox/accounts -H 'Content-Type: application/json' -d '{"name": "me"}'
"""


@click.command(epilog=EPILOG)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8700,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@HOST
@click.option("--db", default=":memory:", show_default=True, metavar="FILE|:memory:", help="Database file.")
@click.option(
    "--clock",
    type=ClockParam(),
    default="real",
    show_default=True,
    metavar="real|manual|60x",
    help="Clock of the service.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=None, metavar="N", help="Seed of the simulated prices (default 1)."
)
@click.option(
    "--data",
    type=CandleFile(),
    multiple=True,
    metavar="[COIN=]FILE",
    help="Recorded candles (ts,open,high,low,close,volume); repeatable.",
)
@click.option(
    "--prices",
    "live",
    multiple=True,
    metavar="ccxt:EXCHANGE[:BTC,ETH=SYMBOL]",
    help=(
        "Live prices of this exchange for crypto markets, or for the named ones (extra `markets`). All others stay"
        " simulated; repeatable."
    ),
)
@click.option(
    "--markets",
    default="",
    metavar="BTC,ETH,FILE.yaml",
    help=(
        "Markets to list (default: all), and a listing file that adds some. With --prices, BTC=BTC/USDC names the"
        " exchange's market."
    ),
)
@click.option(
    "--exchange-account",
    "followed",
    type=ExchangeAccountParam(),
    default=None,
    metavar="hyperliquid:testnet:0x...",
    help="Follow this account at an exchange: its fills, funding and transfers become events.",
)
@click.option(
    "--agent-key-file",
    type=click.Path(path_type=Path),
    default=None,
    metavar="PATH",
    help="The key of the account's agent: orders, closes, cancels and guardians then act at the exchange.",
)
@click.option(
    "--exposure-cap",
    type=Amount(),
    default=None,
    metavar="USD",
    help="Most exposure that entries of the account may lead to. Without it the main network takes no entries.",
)
@click.option(
    "--real-money",
    type=click.Choice(["mainnet"]),
    default=None,
    metavar="mainnet",
    help="Send entries to the main network, up to --exposure-cap. Without this word none are sent there.",
)
@click.option(
    "--control-socket",
    type=click.Path(path_type=Path),
    default=None,
    metavar="PATH",
    help="Serve /sandbox/v1 on this Unix socket.",
)
@click.option("--no-rate-limits", is_flag=True, help="Turn rate limits off.")
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="URL", help="A web page that may call /mcp; repeatable."
)
@click.option(
    "--invite-codes",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Sign-in by phone opens an account only with one of these codes, one a line.",
)
@click.option(
    "--private-webhooks/--no-private-webhooks",
    "webhooks_private",
    default=None,
    help="Deliver webhooks to private addresses (the default on loopback; refused elsewhere).",
)
@json_option("Print the address as one JSON object on standard output.")
@click.option(
    "--start", "start_ms", type=click.IntRange(0), default=None, hidden=True, help="Service time to begin at, unix ms."
)
@click.option(
    "--ready-fd",
    type=click.IntRange(3),
    default=None,
    hidden=True,
    help="Descriptor to write to when requests are served.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    default=None,
    hidden=True,
    help="File to write when requests are served.",
)
@click.option(
    "--log-file",
    type=click.Path(path_type=Path),
    default=None,
    hidden=True,
    help="File that standard output and error go to; made anew if it is moved.",
)
def sandbox(
    *,
    db: str,
    clock: str,
    data: tuple[CandlesFile, ...],
    markets: str,
    followed: tuple[str, str, str] | None,
    no_rate_limits: bool,
    invite_codes: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run the trading service on play money, offline unless --prices is given.

    Ctrl-C stops it; with --db the next start continues.
    """
    import json

    from bot import logs
    from bot.service.host import MEMORY, HostOptions, read_invite_codes, serve

    if given["live"] and (clock != "real" or data or given["start_ms"] is not None):
        raise click.UsageError("--prices needs the real clock and no --data; remove --clock, --data and --start")
    if followed is not None and (data or clock != "real" or given["seed"] is not None or given["start_ms"] is not None):
        text = "the time and the prices of an account at an exchange cannot be set"
        raise click.UsageError(f"{text}; remove --clock, --data, --seed and --start, or --exchange-account")
    logs.configure(file=given.pop("log_file"))
    names = list(filter(None, map(str.strip, markets.split(","))))
    listings = _listings([text for text in names if _is_listing_file(text)])
    # All other options have the names of the fields of HostOptions.
    options = HostOptions(
        db=MEMORY if db == MEMORY else Path(db),
        clock=clock,
        data=recordings(data, otherwise=None),
        markets=tuple(_market(text) for text in names if not _is_listing_file(text)),
        listings=listings,
        rate_limits=not no_rate_limits,
        invite_codes=() if invite_codes is None else read_invite_codes(invite_codes),
        followed=_followed(followed, *(given.pop(name) for name in ("agent_key_file", "exposure_cap", "real_money"))),
        **given,
    )

    def say(base_url: str) -> None:
        if as_json:
            click.echo(json.dumps({"baseUrl": base_url, "db": db, "clock": clock}))
        elif options.ready_fd is None:
            click.echo(f"The service listens on {base_url} (Ctrl-C stops it). Create an account to trade with:")
            click.echo(
                f"  curl -X POST {base_url}/v1/sandbox/accounts -H 'Content-Type: application/json' -d '{{\"name\":"
                ' "me"}\''
            )

    return serve(options, on_ready=say)


def _followed(
    given: tuple[str, str, str] | None,
    agent_key_file: Path | None,
    exposure_cap: Decimal | None,
    real_money: str | None,
) -> FollowedAccount | None:
    if real_money is not None and (given is None or given[1] != real_money):
        raise click.UsageError("--real-money needs an --exchange-account of mainnet; remove it")
    if given is None:
        if exposure_cap is not None:
            raise click.UsageError("--exposure-cap needs --exchange-account; name the account that it limits")
        if agent_key_file is not None:
            raise click.UsageError("--agent-key-file needs --exchange-account; name the account of the agent")
        return None
    # Only a service with such an account loads this.
    from bot.money import e8_of_decimal
    from bot.service.exchange_accounts.account_options import FollowedAccount

    cap = None if exposure_cap is None else e8_of_decimal(exposure_cap)
    if cap is not None and cap <= 0:
        raise click.UsageError(f"--exposure-cap {exposure_cap}: must be above 0")
    return FollowedAccount(*given, agent_key_file, cap, is_real_money=real_money is not None)


def _is_listing_file(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml"))


def _listings(files: list[str]) -> dict[str, Listing]:
    """The markets of the listing file, which this process knows from now on."""
    if not files:
        return {}
    if len(files) > 1:
        raise click.UsageError(f"--markets takes one listing file, not {' and '.join(files)}; join them into one")
    # Only a service with such a file loads this.
    from bot.checks.listing_file import use_listing_file
    from bot.service.market_data.instruments import added_listings

    use_listing_file(Path(files[0]))
    return added_listings()


def _market(text: str) -> str:
    """COIN or COIN=SYMBOL, the coin in capitals."""
    coin, given, symbol = text.partition("=")
    return coin.upper() + given + symbol
