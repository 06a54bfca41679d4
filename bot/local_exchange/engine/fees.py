"""Fees: rates by the volume of 14 days, the deployer's scale of a HIP-3 dex, fees of builders. Cut at six decimals."""

from __future__ import annotations

from typing import Final

from bot.clock import DAY_MS
from bot.local_exchange.engine.state import Coin, Exchange, User
from bot.local_exchange.engine.venue_rules import E8, fee_of

# (volume of 14 days in USD, taker rate, maker rate), rates scaled 1e8.
TIERS: Final = (
    (0, 45_000, 15_000),
    (5_000_000, 40_000, 12_000),
    (25_000_000, 35_000, 8_000),
    (100_000_000, 30_000, 4_000),
    (500_000_000, 28_000, 0),
    (2_000_000_000, 26_000, 0),
    (7_000_000_000, 24_000, 0),
)
DAYS: Final = 14
# growth mode: a tenth of fee, volume and budget
GROWTH_DIVISOR: Final = 10


def rates_of(exchange: Exchange, user: User) -> tuple[int, int]:
    """(taker, maker) rates of an address: by its master's volume of the 14 days before today."""
    owner = exchange.users[user.master] if user.master is not None else user
    today = exchange.now_ms // DAY_MS
    volume = sum(sum(sums) for day, sums in owner.day_volume.items() if today - DAYS <= day < today)
    for least, taker, maker in reversed(TIERS):
        if volume >= least * E8:
            return taker, maker
    raise AssertionError(volume)


def fee(exchange: Exchange, user: User, coin: Coin, notional: int, *, maker: bool) -> int:
    """The exchange's fee on a notional, with the scale of the coin's dex."""
    rate = rates_of(exchange, user)[1 if maker else 0]
    dex = next(dex for dex in exchange.dexes if dex.name == coin.dex)
    if coin.dex:
        scale = E8 + dex.fee_scale if dex.fee_scale < E8 else 2 * dex.fee_scale
        rate = rate * scale // E8
        if dex.growth:
            rate //= GROWTH_DIVISOR
    return fee_of(notional, rate)


def builder_fee(notional: int, tenths_bps: int) -> int:
    """The fee of a builder, who is paid in tenths of a basis point."""
    return fee_of(notional, tenths_bps * 1_000)


def count_volume(exchange: Exchange, user: User, coin: Coin, notional: int, *, maker: bool) -> None:
    """Add a fill to the volumes that decide fee rates and the address budget."""
    growth = coin.dex and next(dex for dex in exchange.dexes if dex.name == coin.dex).growth
    counted = notional // GROWTH_DIVISOR if growth else notional
    owner = exchange.users[user.master] if user.master is not None else user
    today = exchange.now_ms // DAY_MS
    sums = owner.day_volume.setdefault(today, [0, 0])
    sums[1 if maker else 0] += counted
    while len(owner.day_volume) > DAYS + 1:
        del owner.day_volume[next(iter(owner.day_volume))]
    user.volume += notional
    user.budget_volume += counted
