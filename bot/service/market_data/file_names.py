"""The market that a file's name or an exchange's symbol means. A name that may mean another market, or no price
in dollars, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bot.errors import ConfigError

if TYPE_CHECKING:
    from bot.service.market_data.instruments import Listing

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
# A file with one of these words in its name holds no prices of its market, but another figure.
_NOT_PRICES: Final = re.compile(
    r"VOLATILITY|DVOL|IV|RV|IMPLIED|SKEW|FUNDING|DOMINANCE|INTEREST|OPENINTEREST|OI|METRICS|MARKETCAP|"
    r"CRYPTOCAP|PREMIUM|PREMIUMINDEX|BASIS|LIQUIDATIONS|HASHRATE|BOOKDEPTH|SENTIMENT|SUPPLY|RATIO"
)
SAME: Final = {"XBT": "BTC"}
# The minutes at the end of a name of MetaTrader 4: EURUSD60.
_PERIOD: Final = re.compile(r"(?<=[A-Z]{5})(?:1|5|15|30|60|240|1440)$")
# markets that other coins are priced in
QUOTES: Final = frozenset(["BTC", "ETH", "BNB"])
# Well-known coins that the service does not list, as in XMR_BTC and BTC-XMR.
_OTHER_COINS: Final = re.compile(
    r"1INCH|ALGO|APT|AR|AXS|BAL|BAT|BCH|BSV|CAKE|CHZ|COMP|CRV|DASH|DCR|DGB|DOT|EGLD|ENJ|ENS|EOS|ETC|FET|FIL|"
    r"FLOW|FTM|GALA|GRT|HBAR|ICP|ICX|IMX|IOTA|JUP|KAS|KAVA|KSM|LDO|LSK|MANA|MKR|NANO|NEAR|NEO|OMG|PENDLE|PEPE|"
    r"POL|MATIC|QTUM|REN|RENDER|RUNE|SAND|SC|SEI|SHIB|SNX|STETH|STX|SUSHI|TAO|THETA|TIA|TON|TRX|UNI|VET|WAVES|"
    r"WBTC|WETH|WIF|XEM|XLM|XMR|XTZ|YFI|ZEC|ZEN|ZIL|ZRX"
)
# Endings of Yahoo's symbols of shares that are not priced in dollars, as in AAPL.DE.
_FOREIGN: Final = re.compile(
    r"AS|AT|AX|BA|BE|BK|BO|BR|CN|CO|CR|DE|DU|F|HA|HE|HK|HM|IC|IL|IR|IS|JK|KL|KQ|KS|L|LS|MC|MI|MU|MX|NE|NS|NZ|"
    r"OL|PA|PR|QA|SA|SG|SI|SN|SR|SS|ST|SW|SZ|T|TA|TO|TW|TWO|V|VI|VS|WA"
)


class NamesNoMarket(ConfigError):
    """A file's name has no known market in it."""


def converted_mark(path: Path) -> Path:
    """The file beside candles of a store that says that an import converted them into USD: 1d.usd beside 1d.csv.gz."""
    return path.with_name(f"{path.name.split('.')[0]}.usd")


def check_converted(path: Path, listing: Listing) -> None:
    """ConfigError for candles of a market in another currency that no import has converted."""
    if listing.currency != "USD" and not converted_mark(path).exists():
        coin = listing.spec.coin
        raise ConfigError(
            f"{path}: {coin} is priced in {listing.currency}, and accounts are in USD; import its candles with the"
            f" series of the rate, and use them from the store: bot data import {coin}={path} --rate"
            f" {listing.rate}=FILE"
        )


def coin_of(path: Path, known: tuple[str, ...], *, of_prices: bool = True) -> str:
    """The market in a file's name: `binance_BTCUSDT_1m_202505.csv.gz` -> BTC. `known` are the names of markets.

    NamesNoMarket if there is none. ConfigError if the name means two markets, a pair that is not priced in dollars, or
    `of_prices` and no prices.
    """
    name = path.name.upper()
    # A listed name with a point in it is no share of another exchange.
    dotted = [coin for coin in known if "." in coin]
    if own := [coin for coin in dotted if re.search(rf"(?<![A-Z0-9]){re.escape(coin)}(?![A-Z0-9])", name)]:
        return max(own, key=len)
    words = [word for word in re.split(r"[-_.,\s()+]", name) if word]
    named: list[str] = []
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
        if quote is None and (pair := _priced_in(coin, beside)):
            raise ConfigError(
                f"{path}: the name may mean a pair, {pair} priced in {coin}; if its prices are dollars for {coin}, "
                f"write {coin}={path}"
            )
        if what := _not_dollars(coin, name):
            raise ConfigError(
                f"{path}: the name may mean {what}; if its prices are dollars for {coin}, write {coin}={path}"
            )
        named.append(coin)
    joined = [name for name in known if _follow(words, _words_of(name)) and (name[:6] == "event:" or "." in name)]
    coins = list(dict.fromkeys([*named, *joined]))
    if not coins:
        raise NamesNoMarket(
            f"{path}: the file name does not name a market; write COIN={path} with one of {', '.join(known)}"
        )
    if len(coins) > 1:
        ways = " or ".join(f"{coin}={path}" for coin in coins)
        raise ConfigError(f"{path}: the name may mean {' and '.join(coins)}; write {ways}")
    if of_prices and (odd := sorted(filter(_NOT_PRICES.fullmatch, words))):
        way = f"`bot backtest --funding {coins[0]}={path}` reads rates; " if odd[0] == "FUNDING" else ""
        raise ConfigError(
            f"{path}: the name says {odd[0]} of {coins[0]}, which are no prices of it; {way}if they are, "
            f"write {coins[0]}={path}"
        )
    return coins[0]


def _priced_in(coin: str, beside: Iterable[str]) -> str | None:
    """The coin that a pair prices in `coin`, by the words beside it: XMR in XMR_BTC and in BTC-XMR. None if there is
    none.
    """
    return next(filter(_OTHER_COINS.fullmatch, sorted(beside)), None) if coin in QUOTES else None


def _not_dollars(coin: str, name: str) -> str | None:
    """What a name may mean besides the price of a market in dollars: an option, a share of the market, or a share at
    an exchange that counts in another currency. None if it says nothing of these.
    """
    mark = re.escape(coin)
    if re.search(rf"(?<![A-Z0-9]){mark}[-_][0-9A-Z]+[-_][0-9]+[-_][CP](?![A-Z0-9])", name):
        return f"an option on {coin}"
    ending = re.search(rf"(?<![A-Z0-9]){mark}\.([A-Z]{{1,3}})(?![A-Z])", name)
    if ending is None:
        return None
    if ending[1] == "D":
        return f"the dominance of {coin} ({coin}.D)"
    return (
        f"{coin} at an exchange outside the United States ({coin}.{ending[1]})"
        if _FOREIGN.fullmatch(ending[1])
        else None
    )


def _parted(word: str, known: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The market in a word and what it is quoted in: BTCUSDT -> BTC, USDT. None, None if the word names no market."""
    for other, same in SAME.items():
        if word.startswith(other) and same in known:
            word = same + word.removeprefix(other)
    word = word if word in known else _PERIOD.sub("", word)
    for coin in sorted(known, key=len, reverse=True):
        rest = word.removeprefix(coin)
        if word == coin:
            return coin, None
        if rest != word and rest in (*DOLLARS, PERPETUAL, *OTHER_QUOTES):
            return coin, rest
    return None, None


def _words_of(market: str) -> list[str]:
    """The words of a market's name as a file's name has them: SIE.DE is SIE and DE."""
    return re.split(r"[-_.]", market.removeprefix("event:").upper())


def _follow(words: list[str], wanted: list[str]) -> bool:
    """True if the words of a market stand in a name, one after the other."""
    return any(words[index : index + len(wanted)] == wanted for index in range(len(words)))


def way_of_symbol(text: str, rest: str) -> str | None:
    """What to write in place of an exchange's symbol: BTC/USDT:USDT -> BTC. `rest` stands behind the name.

    None if the text is no symbol.
    """
    parts = [part.strip().upper() for part in re.split(r"[/:]", text) if part.strip()]
    if len(parts) < 2 or parts[1] not in (*DOLLARS, *OTHER_QUOTES):
        return None
    base, quote = SAME.get(parts[0], parts[0]), parts[1]
    if quote in DOLLARS:
        return f"{text!r} is an exchange's symbol; write the market alone: {base}{rest}"
    what = f"{text!r} is an exchange's symbol, priced in {quote}, and markets are priced in dollars"
    return f"{what}; if these prices are, write {base}{rest}"
