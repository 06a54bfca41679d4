"""Waves: which of the orders that wait may be on their way at the same time. Pure; the loop sends a wave, learns what came of it, and asks again.

Exits go before every entry, but behind what their own strategy wanted before them in that market. Of entries each market has
one under way: the next one leaves when it is known what became of the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bot.runtime.feed import Closed
from bot.runtime.intents import Intent

ABREAST: Final = 12  # questions and orders on their way at once; the client has 16 connections, and the stream and a kill want theirs


def next_wave(waiting: Sequence[Intent], at_most: int = ABREAST) -> list[Intent]:
    """What leaves next, in its order: exits while there are any that may go, else the first entry of each market."""
    first: set[tuple[str, str]] = set()
    exits: list[Intent] = []
    entries: list[Intent] = []
    for one in waiting:
        place = (one.strategy, one.market)
        if place in first:
            continue
        first.add(place)
        (entries if one.action == "open" else exits).append(one)
    if exits:
        return exits[:at_most]
    of_market: dict[str, Intent] = {}
    for one in entries:
        of_market.setdefault(one.market, one)
    return list(of_market.values())[:at_most]


def builds_on(waiting: Sequence[Intent], sent: Sequence[Intent]) -> bool:
    """Whether something that waits was wanted after something that was sent, by the same strategy in the same market: a reversal."""
    places = {(one.strategy, one.market) for one in sent}
    return any((one.strategy, one.market) in places for one in waiting)


def side_by_side(due: Sequence[Closed], listeners: dict[str, frozenset[str]]) -> int:
    """How many of the first bars may be decided together: of one instant, of markets of their own, and nobody listens to two of them.

    `listeners` names the strategies of each market.
    """
    busy: set[str] = set()
    markets: set[str] = set()
    for n, closed in enumerate(due):
        names = listeners.get(closed.market, frozenset())
        if closed.at_ms != due[0].at_ms or closed.market in markets or busy & names:
            return n
        markets.add(closed.market)
        busy |= names
    return len(due)
