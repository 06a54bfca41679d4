"""Exact arithmetic: every price, size and USD amount is an `int` of 1e-8 units.

Each call names its rounding. Rates (fees, spreads) are fractions scaled by 1e8 too. Nothing here knows orders.
"""

from __future__ import annotations

from typing import Final

from bot import money

E8: Final = money.E8
# Funding rates: an hourly fraction needs more than eight decimals.
E12: Final = money.E12
# Fees have 1e-6 USD: the last two of eight decimals are cut.
MICRO: Final = 100
BPS: Final = 10_000

PX_DECIMALS_MAX: Final = 6
# The digits of a scaled price: at most 64 in a text, eight decimals, and room for a target of 1e12 R.
PX_DIGITS_MAX: Final = 128


def notional_of(px: int, size: int) -> int:
    """USD value of `size` at `px`, cut to 1e-8. Exact if both lie on their market's grid."""
    return px * size // E8


def div_up(numerator: int, denominator: int) -> int:
    """Integer quotient rounded up, for a positive denominator."""
    return -(-numerator // denominator)


def toward_zero(numerator: int, denominator: int) -> int:
    """Integer quotient rounded toward zero, for a positive denominator."""
    return numerator // denominator if numerator >= 0 else -(-numerator // denominator)


def fee_of(notional: int, rate: int) -> int:
    """Fee on a notional, truncated to 1e-6 USD as the venue does: 66653 * 0.001 * 0.00015 -> 0.009997.

    A negative rate is a rebate, truncated alike.
    """
    if rate < 0:
        return -fee_of(notional, -rate)
    fee = notional * rate // E8
    return fee - fee % MICRO


def tick_table(
    sz_decimals: int, *, sig_figs: int | None, px_decimals: int | None, tick: int | None = None
) -> tuple[int, ...]:
    """Tick in 1e-8 units by the number of digits of the scaled price: at most 5 significant figures and 6 - szDecimals
    decimals; integers always.

    With `sig_figs=None` the grid has `px_decimals` decimals at every price. With `tick` it has that tick at every
    price.
    """
    if tick is not None:
        return (tick,) * PX_DIGITS_MAX
    decimals = PX_DECIMALS_MAX - sz_decimals if px_decimals is None else px_decimals
    ticks = []
    for digits in range(PX_DIGITS_MAX):
        power = -decimals
        if sig_figs is not None:
            # power of ten of the price's first digit
            magnitude = digits - 1 - 8
            power = max(power, min(0, magnitude - sig_figs + 1))
        ticks.append(10 ** max(0, 8 + power))
    return tuple(ticks)


def decimals_of(step: int) -> int:
    """Decimals of a scaled step's multiples: 2 for 0.05, 0 for 5."""
    decimals = 8
    while decimals and step % 10 == 0:
        step //= 10
        decimals -= 1
    return decimals


def digits_of(px: int) -> int:
    """Decimal digits of a positive scaled price."""
    return len(str(px))


def round_figures(px: int, figures: int, decimals: int) -> int:
    """`px` rounded to `figures` significant figures, then to `decimals` decimals (half to even).

    Used for the bound of a market order.
    """
    step = 10 ** max(0, digits_of(px) - figures)
    return _nearest(_nearest(px, step), 10 ** max(0, 8 - decimals))


def _nearest(value: int, step: int) -> int:
    low, rest = divmod(value, step)
    if 2 * rest > step or (2 * rest == step and low % 2 == 1):
        low += 1
    return low * step


# a scaled amount as text, for messages
text_of: Final = money.format_e8
