"""`bot markets show|check|import|sessions`: a listing file, checked and extended. A file is replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bot.cli.common.shared_options import json_option

if TYPE_CHECKING:
    from bot.market_data.source import Instrument
    from bot.service.market_data.instruments import Listing

FILE = click.argument("file", required=False, default="markets.yaml", type=click.Path(path_type=Path))
INTO = click.option(
    "--file",
    default="markets.yaml",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The listing file; made if it is not there.",
)


@click.command()
@click.argument("market")
@json_option("All figures as one JSON object.")
def show(market: str, *, as_json: bool) -> int:
    """Show the rules of MARKET: grid, fees, leverage, margin and sessions."""
    from bot.backtest.data.candles import market_name
    from bot.checks.listing_file import use_listings_here
    from bot.cli.data.output import print_json
    from bot.service.market_data.instruments import CATALOGUE

    use_listings_here()
    coin = market_name(market)
    figures = _figures(coin, CATALOGUE[coin])
    if as_json:
        print_json(figures)
        return 0
    for name, value in figures.items():
        if value is not None:
            click.echo(f"{name:13} {value}")
    return 0


def _figures(coin: str, listing: Listing) -> dict[str, Any]:
    from bot.money import format_e8
    from bot.service.market_data.instruments import SHIPPED
    from bot.service.market_data.session_calendars import StoredCalendar, hours_name
    from bot.service.market_data.trading_hours import calendar
    from bot.venue.model.numbers import digits_of, tick_table

    spec = listing.spec
    ticks = tick_table(spec.sz_decimals, sig_figs=spec.sig_figs, px_decimals=spec.px_decimals, tick=spec.tick)
    sessions = None if spec.hours is None else calendar(spec.hours)
    tiers = ", ".join(f"from {format_e8(lower)} USD {leverage}x" for lower, leverage in spec.tiers)
    return {
        "market": coin,
        "name": spec.name,
        "listed by": "the service" if coin in SHIPPED else "markets.yaml",
        "class": spec.asset_class,
        "currency": listing.currency,
        "tick": format_e8(ticks[digits_of(listing.px)]),
        "lot": format_e8(spec.lot),
        "minimum": f"{format_e8(spec.min_notional)} USD",
        "leverage": f"{spec.max_leverage}x",
        "tiers": tiers or None,
        "margin": spec.margin_mode,
        "taker": format_e8(spec.taker_rate),
        "maker": format_e8(spec.maker_rate),
        "calendar": hours_name(spec.hours),
        "sessions": f"stored {sessions.first} to {sessions.last}" if isinstance(sessions, StoredCalendar) else None,
    }


@click.command()
@FILE
@json_option("The markets as one JSON object.")
def check(file: Path, *, as_json: bool) -> int:
    """Check a listing file (default: markets.yaml): every problem with its line."""
    from bot.checks.listing_file import listings_of
    from bot.cli.data.output import print_json
    from bot.words import many

    listings = listings_of(file)
    if as_json:
        print_json({"file": str(file), "markets": [_figures(coin, listing) for coin, listing in listings.items()]})
        return 0
    click.echo(f"{file}: {many(len(listings), 'market')}: {', '.join(listings)}")
    return 0


@click.command()
@FILE
@json_option("The calendars as one JSON object.")
def sessions(file: Path, *, as_json: bool) -> int:
    """Store the sessions of each exchange that a listing file names, from 2000 to the end of next year.

    Asks exchange_calendars (extra `calendars`); the service, the daemon and backtests then need it no more.
    """
    from bot.checks.exchange_sessions import ask_sessions
    from bot.checks.listing_file import is_exchange, read_listing_file
    from bot.cli.data.listing_text import ListingText
    from bot.cli.data.output import print_json
    from bot.clock import SystemClock
    from bot.config.source import text_of

    content = read_listing_file(file)
    named = {market.calendar for market in content.markets.values() if is_exchange(market.calendar)}
    text, now_ms = ListingText.of(text_of(file)), SystemClock().now_ms()
    stored = ask_sessions(sorted(named), now_ms) if named else {}
    for name, calendar in stored.items():
        text.put("calendars", name, {key: str(value) for key, value in calendar._asdict().items()})
    if stored:
        text.write(file)
    if as_json:
        spans = [{"calendar": name, "from": str(kept.first), "to": str(kept.last)} for name, kept in stored.items()]
        print_json({"file": str(file), "calendars": spans})
        return 0
    for name, calendar in stored.items():
        click.echo(f"{name}: sessions from {calendar.first} to {calendar.last}")
    if not stored:
        click.echo(f"{file}: no market has the calendar of an exchange, so there is nothing to store")
    return 0


@click.command("import")
@click.argument("source")
@click.argument("symbols", nargs=-1, metavar="[[NAME=]SYMBOL]...")
@INTO
@click.option("--replace", "replacing", is_flag=True, help="Replace markets that the file lists otherwise.")
@click.option(
    "--precision",
    type=click.Choice(["ticks", "decimals"]),
    default=None,
    help="What the precision of a saved file counts, where both are possible.",
)
@json_option("What was added and what was left out as one JSON object.")
def import_(
    source: str, symbols: tuple[str, ...], file: Path, *, replacing: bool, precision: str | None, as_json: bool
) -> int:
    """Add markets of SOURCE to a listing file: ccxt:EXCHANGE, or a JSON file that holds what ccxt's load_markets gives.

    SYMBOLS: SHIB, SHIB/USDT:USDT, or NAME=SYMBOL. Without any: all markets in dollars that are not listed yet.
    """
    from bot.cli.data.exchange_listings import chosen_markets, saved_instruments
    from bot.cli.data.listing_text import ListingText
    from bot.cli.data.output import print_json
    from bot.client.names import run_unheld
    from bot.config.source import text_of
    from bot.words import many

    if source.lower().endswith(".json"):
        instruments: Sequence[Instrument] = saved_instruments(Path(source), precision)
    else:
        instruments = run_unheld(_asked(source))
    text = ListingText.of(text_of(file) if file.exists() else None)
    markets, left_out = chosen_markets(source, instruments, symbols)
    added = text.add(markets, replacing=replacing, is_asked=bool(symbols))
    if added:
        text.write(file)
    if as_json:
        print_json({"file": str(file), "added": list(added), "leftOut": list(left_out)})
        return 0
    for line in left_out:
        click.echo(line, err=True)
    click.echo(f"{file}: {many(len(added), 'market')} added{': ' + ', '.join(added) if added else ''}")
    return 0


async def _asked(source: str) -> Sequence[Instrument]:
    from bot.market_data.registry import open_source
    from bot.market_data.source import NotOffered

    async with open_source(source) as opened:
        instruments = await opened.instruments(lambda line: click.echo(line, err=True))
    if not instruments:
        raise NotOffered(f"{source} has no list of markets with their rules; write them into markets.yaml")
    return instruments


COMMANDS: Mapping[str, click.Command] = {"show": show, "check": check, "sessions": sessions, "import": import_}
