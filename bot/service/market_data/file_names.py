"""The market that a file's name or an exchange's symbol means. A name that may mean another market, or no price "
"in dollars, is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bot.errors import ConfigError

DOLLARS: Final = ("USDT", "USDC", "BUSD", "FDUSD", "TUSD", "DAI", "USD")
PERPETUAL: Final = "PERP"
# Currencies and coins that prices are quoted in, besides dollars.
OTHER_QUOTES: Final = frozenset(
    [
        "EUR",
        "GBP",
        "JPY",
        "CHF",
        "AUD",
        "CAD",
        "NZD",
        "CNY",
        "CNH",
        "HKD",
        "SGD",
        "KRW",
        "INR",
        "BRL",
        "MXN",
        "TRY",
        "ZAR",
        "SEK",
        "NOK",
        "DKK",
        "PLN",
        "CZK",
        "HUF",
        "ILS",
        "THB",
        "IDR",
        "PHP",
        "VND",
        "TWD",
        "MYR",
        "RUB",
        "UAH",
        "NGN",
        "ARS",
        "COP",
        "CLP",
        "AED",
        "BTC",
        "XBT",
        "ETH",
        "BNB",
    ]
)
# Words of files with figures of a market that are not its prices.
NOT_PRICES: Final = frozenset(
    ["VOLATILITY", "DVOL", "FUNDING", "DOMINANCE", "INTEREST", "OI", "MARKETCAP", "PREMIUM", "BASIS"]
)
SAME: Final = {"XBT": "BTC"}


class NamesNoMarket(ConfigError):
    """A file's name has no known market in it."""


def coin_of(path: Path, known: tuple[str, ...], *, of_prices: bool = True) -> str:
    """The market in a file's name: `binance_BTCUSDT_1m_202505.csv.gz` -> BTC. `known` are the names of markets.

    NamesNoMarket if there is none. ConfigError if the name means two markets, a pair that is not priced in dollars, or
    `of_prices` and no prices.
    """
    words = [word for word in re.split(r"[-_.\s()+]", path.name.upper()) if word]
    found: list[str] = []
    for index, word in enumerate(words):
        coin, quote = _parted(word, known)
        if coin is None:
            continue
        beside = {*words[max(0, index - 1) : index], *words[index + 1 : index + 2]} if quote is None else {quote}
        if other := sorted((beside & OTHER_QUOTES) - {coin}):
            raise ConfigError(
                f"{path}: the name may mean a pair, {coin} and {other[0]}, and {coin} is traded in dollars; "
                f"if its prices are dollars for {coin}, write {coin}={path}"
            )
        found.append(coin)
    events = [event for event in known if event.startswith("event:") and _follow(words, event[6:].upper().split("-"))]
    coins = list(dict.fromkeys([*found, *events]))
    if not coins:
        raise NamesNoMarket(
            f"{path}: the file name does not name a market; write COIN={path} with one of {', '.join(known)}"
        )
    if len(coins) > 1:
        ways = " or ".join(f"{coin}={path}" for coin in coins)
        raise ConfigError(f"{path}: the name may mean {' and '.join(coins)}; write {ways}")
    if of_prices and (odd := sorted(NOT_PRICES.intersection(words))):
        way = f"`bot backtest --funding {coins[0]}={path}` reads rates; " if odd[0] == "FUNDING" else ""
        raise ConfigError(
            f"{path}: the name says {odd[0]} of {coins[0]}, which are no prices of it; {way}if they are, "
            f"write {coins[0]}={path}"
        )
    return coins[0]


def _parted(word: str, known: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The market in a word and what it is quoted in: BTCUSDT -> BTC, USDT. None, None if the word names no market."""
    for coin in sorted(known, key=len, reverse=True):
        rest = word.removeprefix(coin)
        if word == coin:
            return coin, None
        if rest != word and rest in (*DOLLARS, PERPETUAL, *OTHER_QUOTES):
            return coin, rest
    return None, None


def _follow(words: list[str], wanted: list[str]) -> bool:
    """True if the words of an event market stand in a name, one after the other."""
    return any(words[index : index + len(wanted)] == wanted for index in range(len(words)))


def way_of_symbol(text: str, rest: str) -> str | None:
    """What to write in place of an exchange's symbol: BTC/USDT:USDT -> BTC. `rest` stands behind the name. None "
    "if the text is no symbol."""
    parts = [part.strip().upper() for part in re.split(r"[/:]", text) if part.strip()]
    if len(parts) < 2 or parts[1] not in (*DOLLARS, *OTHER_QUOTES):
        return None
    base, quote = SAME.get(parts[0], parts[0]), parts[1]
    if quote in DOLLARS:
        return f"{text!r} is an exchange's symbol; write the market alone: {base}{rest}"
    what = f"{text!r} is an exchange's symbol, priced in {quote}, and markets are priced in dollars"
    return f"{what}; if these prices are, write {base}{rest}"
