"""Listing files: markets besides the shipped ones, with their rules, hours and tiers of leverage.

A file is read as a whole: each problem has its line, and nothing of a file with a problem is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, StringConstraints

from bot.config.document import Loc
from bot.config.section import Coin, Section
from bot.config.source import LISTINGS, error_of, read_section, text_of
from bot.errors import ConfigError
from bot.extras import install
from bot.service.market_data.instruments import (
    BPS_RATE,
    CRYPTO_DEPTHS,
    SHIPPED,
    STOCK_DEPTHS,
    BookDepth,
    Listing,
    depth_of,
    use_listings,
)
from bot.service.market_data.session_calendars import WEEKLY, listed_calendar, stored_hours, unpacked
from bot.service.market_data.trading_hours import CALENDARS, calendar
from bot.venue.model.numbers import E8, decimals_of
from bot.venue.model.state import MarketSpec
from bot.wire.base import Flag, Integer, Leverage, Number
from bot.words import did_you_mean

ALWAYS: Final = "24/7"
DOLLARS: Final = "USD"
# the most that one answer of the service can list
LISTINGS_MAX: Final = 250
# Prices of candles are floats, which hold eight decimals exactly up to 90 million.
PRICE_MAX: Final = 10_000_000
# an unknown price while a book's depth in USD becomes a size
ONE_USD: Final = E8
HINT: Final = "bot markets import FILE.json writes one"
_CALENDAR_NAME: Final = r"^[A-Za-z0-9_/]{2,20}$"


class TierListing(Section):
    """From this position value on, a lower leverage."""

    since_usd: Annotated[Decimal, Number(ge=0, le=10_000_000_000)] = Field(description="Position value, USD.")
    until_usd: Annotated[Decimal, Number(gt=0, le=10_000_000_000)] | None = Field(
        default=None, description="Default: up to the next tier."
    )
    leverage: Leverage


class FeesListing(Section):
    """Fees as fractions of the notional: 0.0005 is 0.05 %."""

    taker: Annotated[Decimal, Number(ge=0, le=1)] = Decimal("0.00045")
    maker: Annotated[Decimal, Number(gt=-1, le=1)] = Field(
        default=Decimal("0.00015"), description="Negative: a rebate."
    )


class ListedMarket(Section):
    """One market. Prices, `tick`, `minimum` and `price` are in USD for one unit; `lot` is in units."""

    name: Annotated[str, StringConstraints(max_length=80)] = ""
    tick: Annotated[Decimal, Number(gt=0, le=1_000_000)] = Field(description="Distance of two prices.")
    lot: Annotated[Decimal, Number(gt=0, le=1_000_000)] = Field(
        description="Step of sizes; of a future its multiplier."
    )
    minimum: Annotated[Decimal, Number(gt=0, le=1_000_000)] = Field(
        default=Decimal(10), description="Smallest order, USD."
    )
    leverage: Leverage = Field(default=10, description="Highest leverage.")
    tiers: tuple[TierListing, ...] = Field(default=(), max_length=20, description="None: one leverage for every size.")
    fees: FeesListing = FeesListing()
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3,5}$")] = Field(
        default=DOLLARS, description="Currency of the prices of candle files."
    )
    rate: Coin | None = Field(default=None, description="Series that converts another currency, such as EURUSD.")
    calendar: str = Field(
        default=ALWAYS, description="24/7, an exchange such as XETR, or `weekly Mon-Fri 09:00-17:30 Europe/Berlin`."
    )
    kind: Literal["crypto", "stocks", "bonds"] = Field(default="crypto", description="Class in the interface.")
    margin: Literal["cross", "isolated"] = "cross"
    funding: Flag = Field(default=True, description="false: positions pay no funding.")
    strict_hours: Flag = Field(default=False, description="true: nothing is opened while the calendar is closed.")
    price: Annotated[Decimal, Number(gt=0, le=PRICE_MAX)] | None = Field(
        default=None, description="Where simulated prices begin. None: only recorded or live prices."
    )
    volatility: Annotated[Decimal, Number(gt=0, le=1)] = Field(
        default=Decimal("0.03"), description="Standard deviation of a simulated day."
    )
    turnover_usd: Annotated[int, Integer(1, 1_000_000_000_000)] = Field(
        default=10_000_000, description="Of a day; spread and depth of the order book follow from it."
    )


class CalendarListing(Section):
    """Sessions of an exchange, as `bot markets sessions` writes them."""

    zone: str
    begins: Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] = Field(
        description="Local time at which a trading day begins: midnight, or the evening before."
    )
    first: date
    last: date
    sessions: str = Field(max_length=200_000)


class ListingFile(Section):
    """A whole listing file."""

    markets: dict[Coin, ListedMarket] = Field(min_length=1, max_length=LISTINGS_MAX)
    calendars: dict[Annotated[str, StringConstraints(pattern=_CALENDAR_NAME)], CalendarListing] = Field(
        default_factory=dict
    )


class ListingFault(NamedTuple):
    """A problem at a path of the file."""

    loc: Loc
    text: str


def read_listing_file(path: Path, text: str | None = None) -> ListingFile:
    """The content of a listing file, or of a text as if it stood in it. The calendars that it names may be absent."""
    return _read(path, text, with_sessions=False)


def listings_of(path: Path, text: str | None = None) -> dict[str, Listing]:
    """The markets of a listing file, or of a text as if it stood in it. ConfigError has every problem with its line."""
    content = _read(path, text, with_sessions=True)
    return {coin: _listing(coin, market, content) for coin, market in content.markets.items()}


def _read(path: Path, text: str | None, *, with_sessions: bool) -> ListingFile:
    content, document = read_section(text_of(path) if text is None else text, path, ListingFile, HINT)
    for fault in _faults(content, path, with_sessions=with_sessions):
        document.problems.append(document.problem(fault.loc, fault.text))
    if document.problems:
        raise error_of(document)
    return content


def use_listings_beside(config: Path) -> None:
    """Let this process know the markets of a config whose options are read before it."""
    beside = config.parent / LISTINGS
    try:
        text = config.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        # Whoever reads the config says so.
        return
    if (named := re.search(r"^listings:[ \t]*['\"]?([^'\"#\n]+)", text, re.MULTILINE)) is not None:
        beside = config.parent / Path(named[1].strip()).expanduser()
    use_listing_file(beside if beside.is_file() else None)


def use_listing_file(path: Path | None) -> None:
    """Let this process know the markets of a file, and no others besides the shipped ones."""
    use_listings({} if path is None else listings_of(path))


def use_listings_here() -> None:
    """Let this process know the markets of `markets.yaml` in the working folder, if it is there."""
    here = Path(LISTINGS)
    use_listing_file(here if here.is_file() else None)


# ── Rules between keys ──────────────────────────────────────────────────────────────────────────────────────────────


def _faults(content: ListingFile, path: Path, *, with_sessions: bool) -> Iterator[ListingFault]:
    for name, stored in content.calendars.items():
        yield from _faults_of_calendar(name, stored)
    for coin, market in content.markets.items():
        at: Loc = ("markets", coin)
        if coin in SHIPPED:
            yield ListingFault(at, f"{coin} is a shipped market; give this one another name, such as {coin}.X")
        elif coin.startswith("event:"):
            yield ListingFault(at, "an event market cannot be listed; a listing is a market with a price in USD")
        for key in ("tick", "lot", "minimum", "price"):
            value = getattr(market, key)
            if value is not None and value * E8 != int(value * E8):
                text = "must be a multiple of 0.00000001; list the market in larger units, such as thousands"
                yield ListingFault((*at, key), text)
        for key, fee in (("taker", market.fees.taker), ("maker", market.fees.maker)):
            if fee * E8 != int(fee * E8) or fee >= 1:
                yield ListingFault((*at, "fees", key), "must be a fraction below 1 with at most 8 decimals")
        yield from _faults_of_tiers(at, market)
        if market.currency != DOLLARS and market.rate is None:
            text = f"prices in {market.currency} must be converted, because accounts are in USD; add"
            text += f" `rate: {market.currency}{DOLLARS}`, the series with which `bot data import --rate` converts them"
            yield ListingFault((*at, "currency"), text)
        if market.currency == DOLLARS and market.rate is not None:
            yield ListingFault((*at, "rate"), "prices in USD need no rate; remove this key, or name another currency")
        if is_exchange(market.calendar) and not with_sessions:
            continue
        if (why_not := _fault_of_hours(market.calendar, content, path)) is not None:
            yield ListingFault((*at, "calendar"), why_not)


def _faults_of_tiers(at: Loc, market: ListedMarket) -> Iterator[ListingFault]:
    before: TierListing | None = None
    for index, tier in enumerate(market.tiers):
        place = (*at, "tiers", index)
        if before is None:
            if tier.since_usd != 0:
                yield ListingFault((*place, "since_usd"), "the first tier must begin at 0")
            if tier.leverage != market.leverage:
                yield ListingFault(
                    (*place, "leverage"), f"the first tier must have the market's leverage, {market.leverage}"
                )
        else:
            end = before.until_usd
            if tier.since_usd <= before.since_usd or (end is not None and tier.since_usd < end):
                least = end if end is not None and end > before.since_usd else before.since_usd
                yield ListingFault(
                    (*place, "since_usd"), f"overlaps with the tier before; it must begin at {least:f} or above"
                )
            elif end is not None and tier.since_usd > end:
                yield ListingFault((*place, "since_usd"), f"the tier before ends at {end:f}; this one must begin there")
            if tier.leverage >= before.leverage:
                yield ListingFault((*place, "leverage"), f"must be below that of the tier before, {before.leverage}")
        if tier.until_usd is not None and tier.until_usd <= tier.since_usd:
            yield ListingFault((*place, "until_usd"), f"must be above since_usd, {tier.since_usd:f}")
        before = tier


def _faults_of_calendar(name: str, stored: CalendarListing) -> Iterator[ListingFault]:
    at: Loc = ("calendars", name)
    try:
        ZoneInfo(stored.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield ListingFault(
            (*at, "zone"), f"no time zone {stored.zone!r}; write the calendar again: bot markets sessions FILE"
        )
    try:
        unpacked(stored.sessions)
    except ConfigError as error:
        yield ListingFault((*at, "sessions"), str(error))
    if stored.first > stored.last:
        yield ListingFault((*at, "last"), f"must not lie before first, {stored.first}")


def _fault_of_hours(text: str, content: ListingFile, path: Path) -> str | None:
    """Why a market cannot have this calendar; None if it can."""
    if text == ALWAYS or text in CALENDARS or text in content.calendars:
        return None
    if text.startswith(WEEKLY):
        try:
            listed_calendar(text)
        except ConfigError as error:
            return str(error)
        return None
    # Asking the library takes a second, so only a file with a problem asks.
    from bot.checks.exchange_sessions import names

    known = names()
    if known is None and re.fullmatch(_CALENDAR_NAME, text):
        return (
            f"the sessions of {text} are not in this file; run `bot markets sessions {path}`, which needs"
            f" exchange_calendars: {install('calendars')}"
        )
    if known is not None and text in known:
        return f"the sessions of {text} are not in this file; run `bot markets sessions {path}`"
    hint = did_you_mean(text, [ALWAYS, *CALENDARS, *(known or ())])
    return f"no calendar {text!r}{hint or '; there are 24/7, equity, index, a weekly pattern, and exchanges like XETR'}"


def is_exchange(text: str) -> bool:
    """True if this calendar's sessions are those of an exchange, which a file stores."""
    return text != ALWAYS and text not in CALENDARS and not text.startswith(WEEKLY)


# ── To the service ──────────────────────────────────────────────────────────────────────────────────────────────────


def hours_of_listing(market: ListedMarket, content: ListingFile) -> str | None:
    """The hours as the venue's rules hold them; None: always open."""
    if market.calendar == ALWAYS:
        return None
    if market.calendar not in content.calendars:
        return market.calendar
    stored = content.calendars[market.calendar]
    return stored_hours(market.calendar, stored.zone, stored.begins, stored.first, stored.last, stored.sessions)


def _listing(coin: str, market: ListedMarket, content: ListingFile) -> Listing:
    is_crypto = market.kind == "crypto"
    depth: BookDepth = depth_of(CRYPTO_DEPTHS if is_crypto else STOCK_DEPTHS, market.turnover_usd)
    px = ONE_USD if market.price is None else int(market.price * E8)
    lot = int(market.lot * E8)
    decimals = decimals_of(lot)
    hours = hours_of_listing(market, content)
    spec = MarketSpec(
        coin=coin,
        name=market.name or coin,
        asset_class=market.kind,
        book="main" if is_crypto else "stocks",
        margin_mode=market.margin,
        sz_decimals=decimals,
        max_leverage=market.leverage,
        tiers=tuple((int(tier.since_usd * E8), tier.leverage) for tier in market.tiers),
        sig_figs=None,
        tick=int(market.tick * E8),
        size_step=None if lot == 10 ** (8 - decimals) else lot,
        min_notional=int(market.minimum * E8),
        taker_rate=int(market.fees.taker * E8),
        maker_rate=int(market.fees.maker * E8),
        half_spread=round(depth.half_bps * BPS_RATE),
        level_step=round(depth.step_bps * BPS_RATE),
        level_size=max(lot, depth.first_usd * E8 * E8 // px // lot * lot),
        level_growth=E8 // 4,
        slippage_bps=100 if is_crypto else 200,
        hours=hours,
        strict_hours=market.strict_hours,
    )
    if not is_crypto:
        spec = replace(spec, funding_rate=6_250_000, funding_factor=E8 // 2)
    if not market.funding:
        spec = replace(spec, funding_rate=0, funding_factor=0)
    if hours is not None:
        calendar(hours)
    return Listing(
        spec,
        px,
        float(market.volatility),
        market.turnover_usd,
        is_priced=market.price is not None,
        currency=market.currency,
        rate=market.rate,
    )
