"""Candles in another currency, converted into USD by a series of its rate. No rate is used before it was known."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from bot.backtest.data.candles import Candles
from bot.clock import DAY_MS, iso
from bot.errors import ConfigError
from bot.service.market_data.file_names import check_converted
from bot.service.market_data.instruments import added_listings

# A rate of before a long weekend is used; an older one means that the series has a hole.
RATE_AGE_MAX_MS: Final = 7 * DAY_MS
# units of the venue
DECIMALS: Final = 8


def currency_of(market: str) -> str | None:
    """The currency of a market's candle files that are not in USD; None if they are."""
    listing = added_listings().get(market)
    return None if listing is None or listing.currency == "USD" else listing.currency


def check_in_usd(candles: Candles) -> None:
    """ConfigError for candles of a market in another currency that were not converted when they were imported."""
    listing = added_listings().get(candles.market)
    if listing is not None:
        for part in candles.parts:
            check_converted(part.path, listing)


def in_usd(candles: Candles, rates: Mapping[str, Candles]) -> Candles:
    """The candles in USD. `rates`: the series by their names, such as EURUSD. ConfigError if a rate is not known.

    An open is converted with the rate that was known at that instant, a close with that of the candle's end. High and
    low are those of the candle's open rate, and reach at least to open and close. A rate is known when its own candle
    has closed.
    """
    currency = currency_of(candles.market)
    if currency is None:
        return candles
    listing = added_listings()[candles.market]
    series = rates.get(listing.rate or "")
    if series is None:
        raise ConfigError(
            f"{candles.market} is priced in {currency}, and accounts are in USD; give the series that converts it:"
            f" --rate {listing.rate}=FILE"
        )
    known_ms = [at + series.step_ms for at in series.at_ms]
    opens, highs, lows, closes = (array("d") for _ in range(4))
    columns: Any = zip(candles.at_ms, candles.open, candles.high, candles.low, candles.close, strict=True)
    for at, o, h, low, c in columns:
        first = _rate(series, known_ms, at, candles.market)
        last = _rate(series, known_ms, at + candles.step_ms, candles.market)
        opened, closed = round(o * first, DECIMALS), round(c * last, DECIMALS)
        opens.append(opened)
        closes.append(closed)
        highs.append(max(round(h * first, DECIMALS), opened, closed))
        lows.append(min(round(low * first, DECIMALS), opened, closed))
    return Candles(
        candles.market,
        candles.interval,
        candles.at_ms,
        opens,
        highs,
        lows,
        closes,
        candles.volume,
        candles.parts,
        is_moved=candles.is_moved,
    )


def _rate(series: Candles, known_ms: list[int], at_ms: int, market: str) -> float:
    """The last rate that was known at an instant."""
    index = bisect_right(known_ms, at_ms) - 1
    if index < 0:
        raise ConfigError(
            f"{market}: no rate of {series.market} is known at {iso(at_ms)[:16]}; the series begins at"
            f" {iso(series.at_ms[0])[:16]}, and a rate is known when its candle has closed: give earlier rates, or"
            " later candles"
        )
    if at_ms - known_ms[index] > RATE_AGE_MAX_MS:
        raise ConfigError(
            f"{market}: the last rate of {series.market} before {iso(at_ms)[:16]} is of {iso(known_ms[index])[:16]};"
            f" rates may be at most {RATE_AGE_MAX_MS // DAY_MS} days old: give the missing ones"
        )
    return float(series.close[index])
