"""Exact products and quotients of amounts scaled 1e8: the venue's formulas (bot.venue.model.numbers), for the compiled
kernel in signed 64 bits.

Numba's whole numbers overflow without an error, so its products are split into halves that fit. Python's own whole
numbers have no bounds: without numba each formula is the plain one. Both answer TOO_LARGE for the same arguments, and a
test compares them at the bounds. Amounts are zero or above.
"""

from __future__ import annotations

from typing import Final

from bot.research.screen.jit import IS_COMPILED, jit

E8: Final = 100_000_000
E6: Final = 1_000_000
E12: Final = 1_000_000_000_000
# fees are cut to 1e-6 USD
MICRO: Final = 100
BPS: Final = 10_000
# 900 million, scaled: of a price, a size or an amount in USD
AMOUNT_MAX: Final = 90_000_000_000_000_000
# 4 % an hour, scaled 1e12: the venue's cap
RATE_MAX: Final = 40_000_000_000
# The largest product or quotient, scaled 1e8.
RESULT_MAX: Final = 9e16
TOO_LARGE: Final = -1
# instead of TOO_LARGE where an amount may be negative
NO_AMOUNT: Final = AMOUNT_MAX + 1


def plain_times(a: int, b: int) -> int:
    """a * b // 1e8."""
    if a > AMOUNT_MAX or b > AMOUNT_MAX or float(a) * float(b) > RESULT_MAX * E8:
        return TOO_LARGE
    return a * b // E8


def split_times(a: int, b: int) -> int:
    """As `plain_times`, in 64 bits."""
    if a > AMOUNT_MAX or b > AMOUNT_MAX or float(a) * float(b) > RESULT_MAX * E8:
        return TOO_LARGE
    high, low = a // E8, a % E8
    return high * b + low * (b // E8) + low * (b % E8) // E8


def plain_over(a: int, b: int) -> int:
    """a * 1e8 // b, with b above 0."""
    if a > AMOUNT_MAX or b > AMOUNT_MAX or float(a) * E8 > RESULT_MAX * float(b):
        return TOO_LARGE
    return a * E8 // b


def split_over(a: int, b: int) -> int:
    """As `plain_over`, in 64 bits: four steps of two digits."""
    if a > AMOUNT_MAX or b > AMOUNT_MAX or float(a) * E8 > RESULT_MAX * float(b):
        return TOO_LARGE
    quotient, rest = a // b, a % b
    for _ in range(4):
        rest *= 100
        quotient = quotient * 100 + rest // b
        rest %= b
    return quotient


times = jit(split_times) if IS_COMPILED else plain_times
over = jit(split_over) if IS_COMPILED else plain_over


@jit
def times_up(a: int, b: int) -> int:
    """a * b / 1e8, rounded up."""
    product = times(a, b)
    if product == TOO_LARGE:
        return TOO_LARGE
    return product + (1 if (a % E8) * (b % E8) % E8 else 0)


@jit
def fee_of(notional: int, rate: int) -> int:
    """The fee on a notional, cut to 1e-6 USD. `rate` is a fraction scaled 1e8, 0 or above."""
    fee = times(notional, rate)
    return fee - fee % MICRO if fee != TOO_LARGE else TOO_LARGE


def plain_funding(size: int, px: int, rate: int) -> int:
    """What a long pays at this hourly rate (scaled 1e12): size * px * rate // 1e20, rounded toward zero.

    Negative if it receives. NO_AMOUNT: too large.
    """
    size_of_rate = abs(rate)
    if plain_times(size, px) == TOO_LARGE or size_of_rate > RATE_MAX:
        return NO_AMOUNT
    amount = size * px * size_of_rate // (E8 * E12)
    return amount if rate >= 0 else -amount


def split_funding(size: int, px: int, rate: int) -> int:
    """As `plain_funding`, in 64 bits."""
    notional = times(size, px)
    size_of_rate = rate if rate >= 0 else -rate
    if notional == TOO_LARGE or size_of_rate > RATE_MAX:
        return NO_AMOUNT
    rest = (size % E8) * (px % E8) % E8
    rest = rest * size_of_rate // E8
    trillions, billions = notional // E12, notional % E12
    millions, units = billions // E6, billions % E6
    inner = (units * size_of_rate + rest) // E6
    amount = trillions * size_of_rate + (millions * size_of_rate + inner) // E6
    return amount if rate >= 0 else -amount


funding_of = jit(split_funding) if IS_COMPILED else plain_funding


@jit
def share_of(px: int, bps: int) -> int:
    """px * bps // 10,000."""
    return px // BPS * bps + px % BPS * bps // BPS
