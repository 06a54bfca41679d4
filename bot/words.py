"""Words for people: plurals, and what a wrong name probably means. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

# What people write for a market whose name is not near in letters.
MARKET_NAMES: Final[Mapping[str, str]] = {
    "BITCOIN": "BTC",
    "XBT": "BTC",
    "ETHER": "ETH",
    "ETHEREUM": "ETH",
    "SOLANA": "SOL",
    "RIPPLE": "XRP",
    "DOGECOIN": "DOGE",
    "CARDANO": "ADA",
    "LITECOIN": "LTC",
    "AVALANCHE": "AVAX",
    "CHAINLINK": "LINK",
    "PEPE": "KPEPE",
    "GOLD": "PAXG",
    "XAU": "PAXG",
    "APPLE": "AAPL",
    "TESLA": "TSLA",
    "NVIDIA": "NVDA",
    "MICROSOFT": "MSFT",
    "GOOGLE": "GOOGL",
    "ALPHABET": "GOOGL",
    "AMAZON": "AMZN",
    "FACEBOOK": "META",
    "SPX": "SP500",
    "NASDAQ": "XYZ100",
}


def many(count: int, thing: str, things: str | None = None) -> str:
    """`1 candle`, `2,160 candles`. `things`: an irregular plural."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def meant_markets(name: str, listed: Collection[str], most: int = 1) -> list[str]:
    """The listed markets that `name` probably means, the likeliest first:

    BTC for BTCUSDT, BTC-USD, Bitcoin and BTX. Other venues put the quote currency into the name.
    """
    by_upper = {coin.upper(): coin for coin in listed}
    base = re.sub(r"[-_./]?(PERP|USD[CT]?)$", "", name.upper())
    meant = MARKET_NAMES.get(base, base)
    if meant in by_upper:
        return [by_upper[meant]]
    return [by_upper[near] for near in get_close_matches(name.upper(), by_upper, n=most)]


def meant_market(name: str, listed: Collection[str]) -> str | None:
    """The listed market that `name` probably means, as `meant_markets` has it."""
    return next(iter(meant_markets(name, listed)), None)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean trend?` if a known word is near, else "". Upper and lower case count alike.

    Of dotted names the last part alone is near too: `usd` is `trend.usd`.
    """
    by_lower = {name.lower(): name for name in known}
    ends = [name for lower, name in by_lower.items() if lower.rpartition(".")[2] == word.lower()]
    near = ends or [by_lower[lower] for lower in get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)]
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""
