"""The first start on a live source: which markets of the catalogue the source has, with their ticks, sizes, leverage
and present prices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from functools import partial
from typing import Final

from bot.errors import ConfigError
from bot.logs import log
from bot.market_data.quote_filter import QuoteFilter
from bot.market_data.registry import open_source
from bot.market_data.source import Instrument, LiveSource, NoAnswer, NotOffered, Quote
from bot.market_data.symbols import MappedCoin, mapped
from bot.service.market_data.instruments import CATALOGUE, Listing, LiveListing, listing_at
from bot.service.state_machine.bootstrap import LiveOptions
from bot.venue.model.numbers import E8, decimals_of
from bot.venue.model.state import MarketSpec

# markets without a quote until then are not listed
FIRST_QUOTES_SECONDS: Final = 30.0


OpenSource = Callable[[], LiveSource]


def open_live(name: str) -> LiveSource:
    """The source of this name. NotOffered if it has no live prices."""
    source = open_source(name)
    if not isinstance(source, LiveSource):
        raise NotOffered(f"source {name} has history only, no live prices; ccxt:EXCHANGE has them")
    return source


def live_sources(given: Sequence[str], markets: tuple[str, ...]) -> tuple[LiveOptions, ...]:
    """The sources for SOURCE, or for one or more SOURCE:COIN,COIN=SYMBOL. A SOURCE without coins has the coins and
    symbols of `markets`.

    ConfigError if a source or a coin is given twice, or if one of several sources names no coin.
    """
    split = [_split(text) for text in given]
    if len(split) == 1 and not split[0][1]:
        return (live_options(split[0][0], markets),)
    if named := next((market for market in markets if "=" in market), None):
        raise ConfigError(
            f"--markets {named}: name the symbol in --prices SOURCE:{named}, because --prices names markets"
        )
    owners: dict[str, str] = {}
    for name, mine in split:
        if not mine:
            raise ConfigError(f"--prices {name}: each of several sources names its markets, for example {name}:BTC,ETH")
        if name in owners.values():
            raise ConfigError(f"--prices {name} is given twice; name all its markets in one: {name}:BTC,ETH")
        for coin in (market.partition("=")[0] for market in mine):
            if coin in owners:
                raise ConfigError(f"--prices {name}: {coin} has the prices of {owners[coin]} already; name it once")
            owners[coin] = name
    return tuple(live_options(name, mine) for name, mine in split)


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """SOURCE:ARGUMENT and its markets, from SOURCE:ARGUMENT or SOURCE:ARGUMENT:COIN,COIN=SYMBOL."""
    source, _, rest = text.partition(":")
    argument, _, listed = rest.partition(":")
    names = []
    for market in filter(None, map(str.strip, listed.split(","))):
        coin, given, symbol = market.partition("=")
        names.append(coin.upper() + given + symbol)
    return f"{source}:{argument}", tuple(names)


def live_options(name: str, markets: tuple[str, ...], opened: OpenSource | None = None) -> LiveOptions:
    """The source of this name for COIN or COIN=SYMBOL; none: every crypto market of the catalogue that the source has.

    A stock, bond or event keeps its simulated prices unless a symbol is named for it.
    """
    symbols = {coin: symbol for coin, given, symbol in (text.partition("=") for text in markets) if given}

    def ask() -> dict[str, LiveListing]:
        # The caller's thread may run an event loop already.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _listed(name, markets, opened or partial(open_live, name))).result()

    return LiveOptions(name, symbols, ask)


async def _listed(name: str, markets: tuple[str, ...], opened: OpenSource) -> dict[str, LiveListing]:
    async with opened() as source:
        coins = _mapped(markets, await source.instruments(_say), name)
        quoted = await _first_prices(source, [mapped_coin.symbol for mapped_coin in coins])
    listings = {}
    for coin in coins:
        if coin.symbol in quoted:
            listings[coin.coin] = LiveListing(coin.symbol, _listing(coin, quoted[coin.symbol]))
        elif markets:
            raise NoAnswer(f"{name} gives no price of {coin.symbol}; choose another market for {coin.coin}")
    if not listings:
        raise NoAnswer(f"{name} gives no price of any market of this service")
    return listings


def _mapped(markets: Sequence[str], instruments: list[Instrument], source: str) -> list[MappedCoin]:
    coins = []
    for text in markets or [coin for coin, listing in CATALOGUE.items() if listing.spec.asset_class == "crypto"]:
        coin, given, _ = text.partition("=")
        if coin not in CATALOGUE:
            raise ConfigError(f"no market {coin!r}; the markets are {', '.join(CATALOGUE)}")
        if (currency := CATALOGUE[coin].currency) != "USD":
            raise ConfigError(
                f"{coin} is priced in {currency}, and accounts are in USD; live prices are not converted: leave it out"
            )
        if CATALOGUE[coin].spec.asset_class != "crypto" and not given:
            continue
        try:
            coins.append(mapped(text, instruments, source))
        except NotOffered:
            if markets:
                raise
    return coins


async def _first_prices(source: LiveSource, symbols: list[str]) -> dict[str, int]:
    """The present price of each market that has one, scaled 1e8."""
    filters = {symbol: QuoteFilter() for symbol in symbols}
    prices: dict[str, int] = {}

    async def read() -> None:
        async for updates in source.quotes(symbols):
            for quote in (update for update in updates if isinstance(update, Quote) and update.symbol in filters):
                if (px := filters[quote.symbol].price(quote)) is not None:
                    prices[quote.symbol] = px
            if len(prices) == len(filters):
                return

    try:
        await asyncio.wait_for(read(), FIRST_QUOTES_SECONDS)
    except TimeoutError:
        log.warning("prices.not_quoted", symbols=sorted(set(symbols) - set(prices)))
    return prices


def _listing(mapped: MappedCoin, px: int) -> Listing:
    """The catalogue's market at the source's price, with the source's fees, grids, minimum and leverage."""
    listing = listing_at(CATALOGUE[mapped.coin], px)
    # Openings are refused while the source is silent.
    spec = replace(listing.spec, strict_hours=True, hours=None)
    if mapped.instrument is not None:
        spec = _with_rules(spec, mapped.instrument)
    lot = spec.lot
    return replace(listing, spec=replace(spec, level_size=max(lot, spec.level_size // lot * lot)))


def _with_rules(spec: MarketSpec, instrument: Instrument) -> MarketSpec:
    """The rules of the source where it says them."""
    if tick := _units(instrument.tick):
        spec = replace(spec, sig_figs=None, tick=tick)
    if step := _units(instrument.size_step):
        decimals = decimals_of(step)
        spec = replace(spec, sz_decimals=decimals, size_step=None if step == 10 ** (8 - decimals) else step)
    if least := _units(instrument.min_notional):
        spec = replace(spec, min_notional=least)
    if instrument.max_leverage is not None:
        most = max(1, min(spec.max_leverage, int(Decimal(instrument.max_leverage))))
        spec = replace(spec, max_leverage=most, tiers=tuple((lower, min(most, tier)) for lower, tier in spec.tiers))
    return spec


def _units(text: str | None) -> int:
    """A tick, step or amount in units of 1e-8, rounded up to one that the venue can hold. 0: the source does not
    say.
    """
    return 0 if text is None else int((Decimal(text) * E8).to_integral_value(ROUND_CEILING))


def _say(line: str) -> None:
    log.info("prices.source", message=line)
