"""`bot markets`: the markets of a source of real prices, or of the embedded service, with their rules and fees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.param_types import Group
from bot.cli.common.shared_options import json_option
from bot.cli.common.text_table import screen_width, table_lines
from bot.cli.data.listing_commands import COMMANDS
from bot.words import meant_markets

if TYPE_CHECKING:
    from bot.market_data.source import Instrument

EPILOG = """\b
Examples:
  bot markets
  bot markets bond
  bot markets ccxt:kraken btc
  bot markets ccxt:hyperliquid --json
  bot markets import ccxt:binance SHIB
  bot markets import saved_load_markets.json SHIB/USDT:USDT
  bot markets sessions
  bot markets check
  bot markets show SHIB

\b
Needs the extra `markets` for ccxt, and `calendars` for sessions of exchanges.
"""

SHOWN: Final = {
    "coin": "market",
    "name": "name",
    "symbol": "symbol",
    "kind": "kind",
    "tick": "tick",
    "size_step": "size step",
    "min_notional": "min notional",
    "max_leverage": "leverage",
    "taker": "taker",
    "maker": "maker",
    "active": "",
}
FEES: Final = ("taker", "maker")


@dataclass(frozen=True, slots=True)
class MarketRow:
    """One market.

    `coin`: its name in a config; None: the embedded service does not list it. `name`: what a person calls it.
    """

    coin: str | None
    name: str | None
    instrument: Instrument

    def data(self) -> dict[str, Any]:
        """The figures for JSON. Numbers are texts; fees are fractions."""
        return {"coin": self.coin, "name": self.name, **asdict(self.instrument)}


class _MarketsGroup(Group):
    """`bot markets bond` is `bot markets list bond`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else ["list", *args])


@click.group(cls=_MarketsGroup, epilog=EPILOG)
def markets() -> None:
    """List markets, those of an exchange or of the embedded service; check and extend a listing file."""


for name, command in COMMANDS.items():
    markets.add_command(command, name)


@markets.command("list")
@click.argument("source", required=False)
@click.argument("search", required=False)
@json_option("All figures as one JSON object.")
def list_(source: str | None, search: str | None, *, as_json: bool) -> int:
    """List the markets of SOURCE (ccxt:EXCHANGE) whose names contain SEARCH.

    Without a source: those of the embedded service, and of markets.yaml in this folder.
    """
    from bot.checks.listing_file import use_listings_here
    from bot.cli.data.output import print_json
    from bot.client.names import run_unheld
    from bot.market_data.source import NotOffered

    use_listings_here()

    if source is not None and search is None and (":" not in source or source.lower().startswith("event:")):
        # One word is a search.
        source, search = None, source
    rows = _catalogue() if source is None else run_unheld(_listed(source))
    whose = "the embedded service" if source is None else source
    shown = [row for row in rows if search is None or _has(row, search.lower())]
    if not shown:
        raise NotOffered(
            f"{whose} has no market like {search!r}; {_way_out(rows, str(search), is_ours=source is None)}"
        )
    if as_json:
        print_json({"source": source, "markets": [row.data() for row in shown]})
        return 0
    for line in _table(shown):
        click.echo(line)
    return 0


async def _listed(source: str) -> list[MarketRow]:
    """The markets of a source: first those that the embedded service can list, in its order."""
    from bot.market_data.registry import open_source
    from bot.market_data.source import NotOffered
    from bot.market_data.symbols import mapped
    from bot.service.market_data.instruments import CATALOGUE

    async with open_source(source) as opened:
        instruments = await opened.instruments(lambda line: click.echo(line, err=True))
    if not instruments:
        raise NotOffered(f"{source} has no list of markets; the name of each market is its own symbol there")
    coins: dict[str, str] = {}
    for coin, listing in CATALOGUE.items():
        if listing.spec.asset_class == "crypto":
            try:
                coins.setdefault(mapped(coin, instruments, source).symbol, coin)
            except NotOffered:
                # The source has no such market.
                continue
    order = {symbol: place for place, symbol in enumerate(coins)}
    instruments.sort(key=lambda instrument: (order.get(instrument.symbol, len(order)), instrument.symbol))
    return [MarketRow(coins.get(instrument.symbol), None, instrument) for instrument in instruments]


def _catalogue() -> list[MarketRow]:
    """The markets of the embedded service. The tick is the one at the market's first simulated price."""
    from bot.market_data.source import Instrument
    from bot.money import format_e8
    from bot.service.market_data.instruments import CATALOGUE
    from bot.venue.model.numbers import digits_of, tick_table

    rows = []
    for coin, listing in CATALOGUE.items():
        spec = listing.spec
        ticks = tick_table(spec.sz_decimals, sig_figs=spec.sig_figs, px_decimals=spec.px_decimals, tick=spec.tick)
        instrument = Instrument(
            "",
            coin,
            "USD",
            "event" if spec.asset_class == "prediction" else "swap",
            linear=True,
            taker=format_e8(spec.taker_rate),
            maker=format_e8(spec.maker_rate),
            tick=format_e8(ticks[digits_of(listing.px)]),
            size_step=format_e8(spec.lot),
            min_notional=format_e8(spec.min_notional),
            max_leverage=str(spec.max_leverage),
        )
        rows.append(MarketRow(coin, spec.name, instrument))
    return rows


def _has(row: MarketRow, search: str) -> bool:
    return any(
        search in text.lower()
        for text in (row.coin, row.name, row.instrument.symbol, row.instrument.base)
        if text is not None
    )


def _way_out(rows: Sequence[MarketRow], search: str, *, is_ours: bool) -> str:
    near = meant_markets(
        search, {text for row in rows for text in (row.coin, row.instrument.base) if text is not None}, 3
    )
    hint = f"did you mean {' or '.join(near)}?" if near else "without a search all are listed"
    return f"{hint} (the markets of an exchange: bot markets ccxt:EXCHANGE)" if is_ours else hint


def _table(rows: Sequence[MarketRow]) -> Iterable[str]:
    """The rows as aligned columns. A column that is empty in every row is left out."""
    cells = [_cells(row) for row in rows]
    kept = [n for n in range(len(SHOWN)) if any(row[n] for row in cells)]
    heads = tuple(SHOWN.values())
    return table_lines([heads[n] for n in kept], [[row[n] for n in kept] for row in cells], width=screen_width())


def _cells(row: MarketRow) -> list[str]:
    figures = row.data()
    return [_cell(column, figures[column], is_event=row.instrument.kind == "event") for column in SHOWN]


def _cell(column: str, value: Any, *, is_event: bool) -> str:
    if column == "active":
        return "" if value else "not active"
    if value is None or column in ("coin", "name", "symbol", "kind"):
        return value or ""
    number = f"{Decimal(value) * (100 if column in FEES else 1):f}"
    number = number.rstrip("0").rstrip(".") if "." in number else number
    # The price p of an event decides how much of a share the fee is.
    if column in FEES:
        return f"{number} % p(1-p)" if is_event else f"{number} %"
    return f"{number}x" if column == "max_leverage" else number
