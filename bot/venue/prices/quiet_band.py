"""The price band in which a market may move without any effect but a new mark.

Backtests and the service skip bars inside it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.venue.model.numbers import E8
from bot.venue.model.state import State
from bot.venue.prices import index

FOREVER_MS: Final = 1 << 62
INFINITY: Final = float("inf")


class QuietBand(NamedTuple):
    """A bar strictly inside (lo, hi) that closes before `until_ms` changes only the mark.

    If lo > hi, no bar is quiet.
    """

    lo: float
    hi: float
    until_ms: int


NEVER: Final = QuietBand(INFINITY, -INFINITY, 0)


def band_of(state: State, coin: str) -> QuietBand:
    """The band of one market now.

    Prices are floats: each level is the double nearest to its decimal value, like the prices of bars.
    """
    market = state.markets[coin]
    if market.pending or market.working:
        return NEVER
    falling, rising = market.falling, market.rising
    until = index.next_deadline_ms(state)
    return QuietBand(
        falling[-1][0] / E8 if falling else -INFINITY,
        -rising[-1][0] / E8 if rising else INFINITY,
        FOREVER_MS if until is None else until,
    )
