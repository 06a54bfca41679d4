"""The markets that an embedded service lists, with the parameters of each class, and those that a listing file adds.

Sizes, leverage and tiers are those of the venue that this sandbox models. Spread and depth follow from a market's
turnover, fitted to recorded books (10k, 100k and 1M USD move BTC by about 0.05, 0.2 and 0.5 bps; a thin altcoin by a
hundred times as much).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

from bot.venue.model.numbers import E8
from bot.venue.model.outcome import PX_MAX, PX_MIN
from bot.venue.model.state import HOUR_MS, MarketSpec

_MILLION: Final = 1_000_000 * E8

# one basis point as a fraction scaled 1e8
BPS_RATE: Final = E8 // 10_000


class BookDepth(NamedTuple):
    """An order book: half the spread, the USD amount of the first level, and the distance between levels."""

    half_bps: float
    first_usd: int
    step_bps: float


@dataclass(frozen=True, slots=True)
class Listing:
    """A market and how its simulated price behaves. `daily_vol`: standard deviation of a day's log return; for an event
    market, how fast its outcome becomes known. `lasts_hours`: how long after the start an event market is settled.
    """

    spec: MarketSpec
    px: int
    daily_vol: float
    # typical turnover of a day, whole USD
    day_usd: int
    lasts_hours: int | None = None
    # False: a listing file gives no price, so nothing can be simulated
    is_priced: bool = True
    # other than USD: candles are converted when they are imported, by the series `rate`
    currency: str = "USD"
    rate: str | None = None


@dataclass(frozen=True, slots=True)
class LiveListing:
    """A market of the catalogue that a live source feeds. `listing` has the source's rules and its present price."""

    symbol: str
    listing: Listing


# (daily turnover in USD, depth): the first row that the turnover reaches (venue.md 2.12).
CRYPTO_DEPTHS: Final = (
    (1_000_000_000, BookDepth(0.1, 60_000, 0.08)),
    (100_000_000, BookDepth(0.8, 25_000, 0.6)),
    (10_000_000, BookDepth(4.5, 8_000, 1.2)),
    (1_000_000, BookDepth(5.0, 4_000, 2.0)),
    (0, BookDepth(14.0, 1_000, 4.0)),
)
STOCK_DEPTHS: Final = (
    (10_000_000, BookDepth(0.7, 25_000, 0.8)),
    (1_000_000, BookDepth(3.5, 8_000, 2.5)),
    (100_000, BookDepth(12.0, 2_500, 5.0)),
    (0, BookDepth(100.0, 600, 20.0)),
)


def depth_of(depths: tuple[tuple[int, BookDepth], ...], day_usd: int) -> BookDepth:
    return next(depth for least, depth in depths if day_usd >= least)


def _px(text: str) -> int:
    units, _, cents = text.partition(".")
    return int(units) * E8 + int(f"{cents:0<8}" if cents else 0)


def _tiers(leverage: int, lower_millions: int) -> tuple[tuple[int, int], ...]:
    """A second tier with half the leverage from this many millions on; none if it is 0."""
    return ((0, leverage), (lower_millions * _MILLION, leverage // 2)) if lower_millions else ()


def _spec(coin: str, name: str, px: int, sz_decimals: int, leverage: int, depth: BookDepth) -> MarketSpec:
    lot = 10 ** (8 - sz_decimals)
    return MarketSpec(
        coin=coin,
        name=name,
        sz_decimals=sz_decimals,
        max_leverage=leverage,
        half_spread=round(depth.half_bps * BPS_RATE),
        level_step=round(depth.step_bps * BPS_RATE),
        level_size=max(lot, depth.first_usd * E8 * E8 // px // lot * lot),
        level_growth=E8 // 4,
    )


# ── Crypto ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# coin, name, price, szDecimals, max leverage, millions above which half of it is allowed, daily volatility, daily
# turnover in millions
_CRYPTO: Final = (
    ("BTC", "Bitcoin", "103457", 5, 40, 150, 0.025, 3_000),
    ("ETH", "Ethereum", "2500.5", 4, 25, 100, 0.032, 1_500),
    ("SOL", "Solana", "172.5", 2, 20, 70, 0.04, 500),
    ("XRP", "XRP", "2.4105", 0, 20, 40, 0.04, 260),
    ("DOGE", "Dogecoin", "0.2245", 0, 10, 20, 0.048, 120),
    ("HYPE", "Hyperliquid", "26.4", 2, 10, 20, 0.055, 300),
    ("BNB", "BNB", "648.2", 3, 10, 3, 0.026, 45),
    ("AVAX", "Avalanche", "23.15", 2, 10, 20, 0.045, 40),
    ("LINK", "Chainlink", "16.05", 1, 10, 20, 0.045, 60),
    ("SUI", "Sui", "3.92", 1, 10, 20, 0.052, 110),
    ("LTC", "Litecoin", "99.4", 2, 10, 3, 0.036, 24),
    ("ADA", "Cardano", "0.7812", 0, 10, 20, 0.045, 30),
    ("ARB", "Arbitrum", "0.4081", 1, 10, 3, 0.055, 12),
    ("OP", "Optimism", "0.7734", 1, 5, 0, 0.055, 8),
    ("KPEPE", "Pepe (1,000)", "0.013245", 0, 10, 3, 0.065, 75),
    ("AAVE", "Aave", "224.6", 2, 10, 3, 0.048, 18),
    ("PAXG", "Pax Gold", "3231.7", 3, 5, 0, 0.009, 6),
    ("ATOM", "Cosmos", "4.881", 2, 5, 0, 0.046, 3),
    ("INJ", "Injective", "12.64", 1, 5, 0, 0.055, 4),
    ("DYDX", "dYdX", "0.6155", 1, 5, 0, 0.055, 2),
    ("APE", "ApeCoin", "0.6402", 1, 5, 0, 0.06, 1),
    ("BLUR", "Blur", "0.11845", 0, 3, 0, 0.065, 0.4),
    ("MINA", "Mina", "0.2512", 0, 3, 0, 0.06, 0.08),
)  # fmt: skip


def _crypto(
    coin: str, name: str, text: str, sz: int, leverage: int, half_from: int, vol: float, day_millions: float
) -> Listing:
    px, day_usd = _px(text), round(day_millions * 1_000_000)
    spec = _spec(coin, name, px, sz, leverage, depth_of(CRYPTO_DEPTHS, day_usd))
    tiers = _tiers(leverage, half_from)
    if coin == "ETH":
        tiers = ((0, 25), (100 * _MILLION, 15))
    return Listing(replace(spec, tiers=tiers), px, vol, day_usd)


# ── Stocks, indices, bonds ──────────────────────────────────────────────────────────────────────────────────────────

# coin, name, price, szDecimals, max leverage, daily volatility, daily turnover in millions, (calendar, class,
# multiple of the base fee)
_SHARES: Final = (
    ("AAPL", "Apple", "211.25", 3, 10, 0.016, 40, ("equity", "stocks", 2)),
    ("TSLA", "Tesla", "342.8", 3, 20, 0.032, 65, ("equity", "stocks", 2)),
    ("NVDA", "NVIDIA", "135.4", 3, 20, 0.028, 80, ("equity", "stocks", 2)),
    ("MSFT", "Microsoft", "454.3", 3, 10, 0.014, 25, ("equity", "stocks", 2)),
    ("GOOGL", "Alphabet", "166.2", 3, 10, 0.018, 22, ("equity", "stocks", 2)),
    ("AMZN", "Amazon", "205.6", 3, 10, 0.019, 20, ("equity", "stocks", 2)),
    ("META", "Meta Platforms", "640.3", 3, 10, 0.02, 18, ("equity", "stocks", 2)),
    ("AMD", "Advanced Micro Devices", "117.2", 3, 10, 0.031, 9, ("equity", "stocks", 2)),
    ("COIN", "Coinbase", "266.5", 3, 10, 0.042, 12, ("equity", "stocks", 2)),
    ("HOOD", "Robinhood", "61.4", 3, 10, 0.042, 6, ("equity", "stocks", 2)),
    ("PLTR", "Palantir", "129.5", 3, 10, 0.038, 8, ("equity", "stocks", 2)),
    ("MSTR", "Strategy", "399.8", 3, 10, 0.048, 14, ("equity", "stocks", 2)),
    ("NFLX", "Netflix", "1191.5", 3, 10, 0.019, 3, ("equity", "stocks", 2)),
    ("GME", "GameStop", "28.35", 2, 5, 0.045, 0.6, ("equity", "stocks", 2)),
    ("RIVN", "Rivian", "15.62", 2, 5, 0.04, 0.06, ("equity", "stocks", 2)),
    ("SPY", "S&P 500 ETF", "594.2", 3, 50, 0.009, 40, ("equity", "stocks", 2)),
    ("SP500", "S&P 500 Index", "5958.4", 3, 50, 0.009, 120, ("index", "stocks", 0.2)),
    ("XYZ100", "US 100 Index", "21427", 4, 30, 0.013, 150, ("index", "stocks", 0.2)),
    ("SMALL2000", "US Small Companies Index", "2113.3", 3, 20, 0.013, 4, ("index", "stocks", 2)),
    ("TLT", "20+ Year Treasury Bond ETF", "86.55", 2, 20, 0.008, 15, ("equity", "bonds", 2)),
    ("IEF", "7-10 Year Treasury Bond ETF", "94.4", 2, 20, 0.0045, 2, ("equity", "bonds", 2)),
    ("SHY", "1-3 Year Treasury Bond ETF", "82.6", 2, 20, 0.0012, 0.5, ("equity", "bonds", 2)),
    ("HYG", "High Yield Corporate Bond ETF", "79.3", 2, 10, 0.0042, 0.8, ("equity", "bonds", 2)),
    ("USBOND", "US 30-Year Bond", "112.5", 2, 10, 0.007, 1.5, ("index", "bonds", 0.2)),
)  # fmt: skip

# opens no position while its outside price is closed
STRICT: Final = frozenset({"HYG"})


def _share(
    coin: str,
    name: str,
    text: str,
    sz: int,
    leverage: int,
    vol: float,
    day_millions: float,
    terms: tuple[str, str, float],
) -> Listing:
    """A perpetual on an outside price: isolated margin, a multiple of the fee, half the funding, wider default
    slippage.
    """
    hours, asset_class, fees = terms
    px, day_usd = _px(text), round(day_millions * 1_000_000)
    spec = replace(
        _spec(coin, name, px, sz, leverage, depth_of(STOCK_DEPTHS, day_usd)),
        asset_class=asset_class,
        book="stocks",
        margin_mode="isolated",
        taker_rate=round(45_000 * fees),
        maker_rate=round(15_000 * fees),
        slippage_bps=200,
        funding_rate=6_250_000,
        funding_factor=E8 // 2,
        hours=hours,
        strict_hours=coin in STRICT,
    )
    return Listing(spec, px, vol, day_usd)


# ── Events ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_DAY: Final = 24
# Fee per share: rate * p * (1 - p), by subject (venue.md 2.14).
_FEES: Final = {"crypto": 7_000_000, "sports": 3_000_000, "finance": 4_000_000, "economics": 5_000_000, "world": 0}

# slug, question, chance of Yes, hours until settlement, how fast the outcome becomes known, daily turnover in
# thousands, subject
_EVENTS: Final = (
    ("BTC-UP-6H", "Is Bitcoin higher in six hours?", "0.5", 6, 1.2, 900, "crypto"),
    ("BTC-UP-DAY", "Is Bitcoin higher in a day?", "0.5", _DAY, 1.2, 1_500, "crypto"),
    ("ETH-3000-WEEK", "Does Ether trade above 3,000 within a week?", "0.18", 7 * _DAY, 1.0, 400, "crypto"),
    ("BTC-150K", "Does Bitcoin reach 150,000 within two months?", "0.12", 61 * _DAY, 0.9, 2_500, "crypto"),
    ("SOL-ETF", "Is a spot Solana ETF approved within three months?", "0.64", 91 * _DAY, 0.7, 300, "crypto"),
    ("HOME-WIN", "Does the home side win tonight's final?", "0.57", 10, 1.3, 1_200, "sports"),
    ("CUP-UNDERDOG", "Does an unseeded side reach the cup final?", "0.21", 18 * _DAY, 1.0, 150, "sports"),
    ("RATE-CUT", "Does the central bank cut at its next meeting?", "0.36", 33 * _DAY, 0.8, 3_000, "economics"),
    ("CPI-ABOVE-3", "Is next month's inflation above 3 percent?", "0.45", 20 * _DAY, 0.9, 250, "economics"),
    ("SP500-RECORD", "Does the S&P 500 close at a record this week?", "0.4", 5 * _DAY, 1.1, 200, "finance"),
    (
        "IPO-BY-AUTUMN",
        "Is the year's largest listing priced within four months?",
        "0.7",
        122 * _DAY,
        0.6,
        90,
        "finance",
    ),
    ("TREATY-SIGNED", "Is the treaty signed within six months?", "0.27", 183 * _DAY, 0.6, 60, "world"),
    ("RAIN-TOMORROW", "Does it rain in the capital tomorrow?", "0.33", 30, 1.4, 40, "economics"),
)


def _event(slug: str, question: str, chance: str, hours: int, pace: float, day_thousands: int, subject: str) -> Listing:
    """Shares of Yes and No at 0.001..0.999, paid in full.

    Spread and steps are fractions of the payout, not of the price.
    """
    lively = day_thousands >= 500
    spec = MarketSpec(
        coin=f"event:{slug}",
        name=question,
        asset_class="prediction",
        book="events",
        margin_mode="full",
        sz_decimals=0,
        max_leverage=1,
        sig_figs=None,
        px_decimals=3,
        taker_rate=_FEES[subject],
        maker_rate=0,
        half_spread=E8 // 1000 * (2 if lively else 5),
        level_step=E8 // 1000 * (1 if lively else 3),
        level_size=(4_000 if lively else 600) * E8,
        level_growth=E8 // 4,
        slippage_bps=500,
        funding_rate=0,
    )
    return Listing(spec, _px(chance), pace, day_thousands * 1_000, hours)


CATALOGUE: Final[dict[str, Listing]] = {
    listing.spec.coin: listing
    for listing in (
        *(_crypto(*row) for row in _CRYPTO),
        *(_share(*row) for row in _SHARES),
        *(_event(*row) for row in _EVENTS),
    )
}


SHIPPED: Final = frozenset(CATALOGUE)


def use_listings(listings: Mapping[str, Listing]) -> None:
    """Let the catalogue of this process hold these markets besides the shipped ones, and no others."""
    for coin in set(CATALOGUE) - SHIPPED - set(listings):
        del CATALOGUE[coin]
    add_listings(listings)


def add_listings(listings: Mapping[str, Listing]) -> None:
    """Let the catalogue of this process hold these markets too."""
    assert not SHIPPED & set(listings)
    CATALOGUE.update(listings)


def added_listings() -> dict[str, Listing]:
    """The markets of the catalogue that are not shipped."""
    return {coin: listing for coin, listing in CATALOGUE.items() if coin not in SHIPPED}


def plain_listing(listing: Listing) -> dict[str, Any]:
    """A listing as JSON values, without defaults."""
    spec = {each.name: getattr(listing.spec, each.name) for each in fields(MarketSpec) if each.name != "coin"}
    usual = MarketSpec("")
    return {
        "spec": {name: value for name, value in spec.items() if value != getattr(usual, name)},
        "px": listing.px,
        "daily_vol": listing.daily_vol,
        "day_usd": listing.day_usd,
        "is_priced": listing.is_priced,
        "currency": listing.currency,
        "rate": listing.rate,
    }


def listing_of_plain(coin: str, plain: Mapping[str, Any]) -> Listing:
    """The reverse of `plain_listing`."""
    spec = MarketSpec(coin, **plain["spec"])
    spec = replace(spec, tiers=tuple((lower, leverage) for lower, leverage in spec.tiers))
    return Listing(
        spec,
        plain["px"],
        plain["daily_vol"],
        plain["day_usd"],
        is_priced=plain["is_priced"],
        currency=plain["currency"],
        rate=plain["rate"],
    )


def select(coins: tuple[str, ...] | None, catalogue: Mapping[str, Listing] = CATALOGUE) -> list[Listing]:
    """The requested listings in the catalogue's order; all listings for None. KeyError names an unknown coin."""
    if not coins:
        return list(catalogue.values())
    wanted = {f"event:{coin[6:].upper()}" if coin[:6].lower() == "event:" else coin.upper() for coin in coins}
    for coin in wanted:
        if coin not in catalogue:
            raise KeyError(coin)
    return [listing for coin, listing in catalogue.items() if coin in wanted]


def starting_at(listing: Listing, start_ms: int) -> Listing:
    """The listing in a service that starts at this time.

    An event market is settled at a full hour, `lasts_hours` later.
    """
    if listing.lasts_hours is None:
        return listing
    expires_ms = start_ms - start_ms % HOUR_MS + listing.lasts_hours * HOUR_MS
    return replace(listing, spec=replace(listing.spec, expires_ms=expires_ms))


def listing_at(listing: Listing, px: int) -> Listing:
    """The same market at another price, with the same depth in USD.

    The depth of an event market is in shares and stays.
    """
    if listing.spec.margin_mode == "full":
        assert PX_MIN <= px <= PX_MAX, px
        return listing
    lot = listing.spec.lot
    size = max(lot, listing.spec.level_size * listing.px // px // lot * lot) if listing.spec.level_size else 0
    return replace(listing, spec=replace(listing.spec, level_size=size), px=px)
