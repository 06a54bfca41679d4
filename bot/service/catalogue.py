"""The markets that an embedded service lists, with the figures of each class. Data only; the venue gives them meaning.

Sizes, leverage and tiers are those of the venue that this sandbox models; spread and depth are fitted to recorded books
(10k, 100k and 1M USD move BTC by about 0.05, 0.2 and 0.5 bps; a thin altcoin by ten times as much).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bot.venue.numbers import E8
from bot.venue.state import MarketSpec

_MILLION: Final = 1_000_000 * E8

BPS_RATE: Final = E8 // 10_000  # one basis point as a fraction scaled 1e8


@dataclass(frozen=True, slots=True)
class Listing:
    """A market and how its simulated price behaves. `daily_vol` is the standard deviation of a day's log return."""

    spec: MarketSpec
    px: int
    daily_vol: float
    day_usd: int  # typical turnover of a day, whole USD


def _spec(
    coin: str,
    name: str,
    *,
    sz_decimals: int,
    max_leverage: int,
    tiers: tuple[tuple[int, int], ...] = (),
    half_spread_bps: float,
    depth_usd: int,
    step_bps: float,
    px: int,
) -> MarketSpec:
    """A perp of the main book. `depth_usd` is what the first level holds at the price it is listed at."""
    lot = 10 ** (8 - sz_decimals)
    level_size = max(lot, depth_usd * E8 * E8 // px // lot * lot)
    return MarketSpec(
        coin=coin,
        name=name,
        sz_decimals=sz_decimals,
        max_leverage=max_leverage,
        tiers=tiers,
        half_spread=round(half_spread_bps * BPS_RATE),
        level_step=round(step_bps * BPS_RATE),
        level_size=level_size,
        level_growth=E8 // 4,
    )


def _stock(spec: MarketSpec, *, asset_class: str = "stocks") -> MarketSpec:
    """A perp on an outside price: isolated, twice the fee, half the funding, a wider default bound."""
    return replace(
        spec,
        asset_class=asset_class,
        book="stocks",
        margin_mode="isolated",
        taker_rate=90_000,
        maker_rate=30_000,
        slippage_bps=200,
        funding_rate=625,
    )


def _px(whole: str) -> int:
    units, _, cents = whole.partition(".")
    return int(units) * E8 + int(f"{cents:0<8}" if cents else 0)


def _crypto(
    coin: str,
    name: str,
    px: str,
    sz: int,
    lev: int,
    tiers: tuple[tuple[int, int], ...],
    h: float,
    q: int,
    d: float,
    vol: float,
    day: int,
) -> Listing:
    price = _px(px)
    spec = _spec(
        coin, name, sz_decimals=sz, max_leverage=lev, tiers=tiers, half_spread_bps=h, depth_usd=q, step_bps=d, px=price
    )
    return Listing(spec, price, vol, day)


def _share(coin: str, name: str, px: str, sz: int, lev: int, vol: float, *, asset_class: str = "stocks") -> Listing:
    price = _px(px)
    spec = _spec(
        coin, name, sz_decimals=sz, max_leverage=lev, half_spread_bps=1.5, depth_usd=20_000, step_bps=1.5, px=price
    )
    return Listing(_stock(spec, asset_class=asset_class), price, vol, 40_000_000)


CATALOGUE: Final[dict[str, Listing]] = {
    listing.spec.coin: listing
    for listing in (
        _crypto(
            "BTC",
            "Bitcoin",
            "103457",
            5,
            40,
            ((0, 40), (150 * _MILLION, 20)),
            0.05,
            100_000,
            0.05,
            0.025,
            3_000_000_000,
        ),
        _crypto(
            "ETH", "Ethereum", "2500.5", 4, 25, ((0, 25), (100 * _MILLION, 15)), 0.1, 60_000, 0.08, 0.032, 1_500_000_000
        ),
        _crypto("SOL", "Solana", "172.5", 2, 20, ((0, 20), (70 * _MILLION, 10)), 0.5, 40_000, 0.3, 0.04, 500_000_000),
        _crypto(
            "DOGE", "Dogecoin", "0.2245", 0, 10, ((0, 10), (20 * _MILLION, 5)), 1.0, 20_000, 0.8, 0.048, 120_000_000
        ),
        _crypto(
            "HYPE", "Hyperliquid", "26.4", 2, 10, ((0, 10), (20 * _MILLION, 5)), 1.0, 20_000, 0.7, 0.055, 300_000_000
        ),
        _share("AAPL", "Apple", "211.25", 3, 10, 0.016),
        _share("TSLA", "Tesla", "342.8", 3, 20, 0.032),
        _share("SPY", "S&P 500 ETF", "594.2", 3, 50, 0.009),
        _share("TLT", "20+ Year Treasury Bond ETF", "86.55", 2, 20, 0.008, asset_class="bonds"),
    )
}


def select(coins: tuple[str, ...] | None) -> list[Listing]:
    """The listings asked for, in the catalogue's order; all of them when nothing is asked. KeyError names an unknown coin."""
    if not coins:
        return list(CATALOGUE.values())
    wanted = {coin.upper() for coin in coins}
    for coin in wanted:
        if coin not in CATALOGUE:
            raise KeyError(coin)
    return [listing for coin, listing in CATALOGUE.items() if coin in wanted]


def listing_at(listing: Listing, px: int) -> Listing:
    """The same market at another price: the depth in USD stays what it was."""
    lot = 10 ** (8 - listing.spec.sz_decimals)
    size = max(lot, listing.spec.level_size * listing.px // px // lot * lot) if listing.spec.level_size else 0
    return replace(listing, spec=replace(listing.spec, level_size=size), px=px)
