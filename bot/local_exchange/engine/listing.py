"""The markets of the local exchange: a main dex and one HIP-3 dex, with the margin tiers of each network."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from bot.clock import HOUR_MS
from bot.local_exchange.engine.book import Book
from bot.local_exchange.engine.prices import STEP_MS
from bot.local_exchange.engine.state import Coin, Dex, Exchange
from bot.local_exchange.engine.venue_rules import E8, MarketSpec, VenueMarket, ladder
from bot.money import parse_e8

# asset number of the first market of the first HIP-3 dex
HIP3_FIRST: Final = 110_000
HIP3_STEP: Final = 10_000

Tiers = tuple[tuple[int, int], ...]


class ListingRow(NamedTuple):
    """One market: size decimals, price, half spread in 1e-8 of the price, USD of the first level, margin mode."""

    coin: str
    sz_decimals: int
    px: str
    half_spread: int
    level_usd: int
    # network -> (lower bound in USD, max leverage)
    tiers: dict[str, Tiers]
    mode: str = "normal"


def _both(*tiers: tuple[int, int]) -> dict[str, Tiers]:
    return {"mainnet": tiers, "testnet": tiers}


MAIN: Final = (
    ListingRow(
        "BTC",
        5,
        "100000",
        500,
        200_000,
        {"mainnet": ((0, 40), (150_000_000, 20)), "testnet": ((0, 40), (10_000, 25), (50_000, 10))},
    ),
    ListingRow(
        "ETH",
        4,
        "3000",
        1_700,
        150_000,
        {"mainnet": ((0, 25), (100_000_000, 15)), "testnet": ((0, 25), (20_000, 10), (50_000, 5))},
    ),
    ListingRow("SOL", 2, "150", 3_300, 60_000, _both((0, 20), (70_000_000, 10))),
    ListingRow(
        "DOGE", 0, "0.2", 10_000, 20_000, {"mainnet": ((0, 10), (20_000_000, 5)), "testnet": ((0, 10), (20_000, 5))}
    ),
    ListingRow("HYPE", 2, "40", 12_000, 30_000, _both((0, 10), (20_000_000, 5))),
    ListingRow("kPEPE", 0, "0.012", 20_000, 10_000, _both((0, 10), (20_000_000, 5))),
)
HIP3: Final = (
    ListingRow("xyz:TSLA", 3, "350", 10_000, 20_000, _both((0, 10)), "strictIsolated"),
    ListingRow("xyz:GOLD", 4, "4000", 5_000, 40_000, _both((0, 20))),
    ListingRow("xyz:XYZ100", 4, "25000", 4_000, 50_000, _both((0, 20)), "noCross"),
)
# ids of margin tables below are tables of one tier with that max leverage
FIRST_TABLE: Final = 50


def list_markets(exchange: Exchange) -> None:
    """List every market at its first price."""
    exchange.dexes.append(Dex("", "", 0, growth=False, coins=tuple(row.coin for row in MAIN)))
    exchange.dexes.append(Dex("xyz", "XYZ", E8, growth=True, coins=tuple(row.coin for row in HIP3)))
    for index, row in enumerate(MAIN):
        _list(exchange, row, index, "")
    for index, row in enumerate(HIP3):
        _list(exchange, row, HIP3_FIRST + index, "xyz")
    exchange.next_hour_ms = exchange.now_ms - exchange.now_ms % HOUR_MS + HOUR_MS
    exchange.next_price_ms = exchange.now_ms - exchange.now_ms % STEP_MS + STEP_MS


def _list(exchange: Exchange, row: ListingRow, asset: int, dex: str) -> None:
    tiers = row.tiers[exchange.network]
    px = parse_e8(row.px)
    lot = 10 ** (8 - row.sz_decimals)
    spec = MarketSpec(
        row.coin,
        book=dex or "main",
        margin_mode="cross" if row.mode == "normal" else "isolated",
        sz_decimals=row.sz_decimals,
        max_leverage=tiers[0][1],
        tiers=tuple((lower * E8, most) for lower, most in tiers),
        half_spread=row.half_spread,
        level_step=2 * row.half_spread,
        level_size=row.level_usd * E8 * E8 // px // lot * lot,
        level_growth=E8 // 5,
    )
    market = VenueMarket(spec, px, px, px)
    exchange.venue.markets[row.coin] = market
    table = tiers[0][1] if len(tiers) == 1 else FIRST_TABLE + 1 + asset % HIP3_FIRST
    coin = Coin(
        row.coin,
        asset,
        dex,
        market,
        Book(last_px=px),
        table,
        row.mode,
        previous_mark=px,
        premium_from_ms=exchange.now_ms,
    )
    coin.book.lay(ladder(market))
    exchange.coins[row.coin] = coin
    exchange.assets[asset] = row.coin


def change_rules(coin: Coin, *, sz_decimals: int | None = None, min_notional: int | None = None) -> None:
    """Change the size step (and with it the price's decimals) or the smallest order of a listed market."""
    spec = coin.market.spec
    spec = replace(
        spec,
        sz_decimals=spec.sz_decimals if sz_decimals is None else sz_decimals,
        min_notional=spec.min_notional if min_notional is None else min_notional,
    )
    coin.market.spec = spec
    coin.market.__post_init__()
    coin.book.lay(ladder(coin.market))
