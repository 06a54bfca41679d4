"""Waves: which of the orders that wait may leave now, beside those that are under way. Pure; the loop sends them, and asks again when some are back.

Exits go before every entry, but behind what their own strategy wanted before them in that market; no entry leaves before it is
known what became of the exits that left. Of entries each market has one under way: the next one leaves when it is known what
became of the one before it. So an answer that takes long holds up its own market, and no other's entries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from bot.runtime.feed import Closed
from bot.runtime.intents import Intent

ABREAST: Final = 50  # questions and orders on their way at once; the client has 64 connections, for a kill too
# Exits that are written down together as about to leave, and leave as there is room: one wait for the disk.
AHEAD: Final = 96

Place = tuple[str, str]  # strategy and market


def place_of(intent: Intent) -> Place:
    return intent.strategy, intent.market


def next_wave(
    waiting: Sequence[Intent], at_most: int = ABREAST, under_way: Collection[Intent] = (), sent: Collection[Place] = ()
) -> list[Intent]:
    """What leaves next, in its order: exits while there are any that may go, up to AHEAD, else the first entry of each market, `at_most` of them.

    `sent`: the places of what has left since the events were last looked at. What was wanted after it, there, waits for them (a reversal).
    """
    first = set(sent)
    exits: list[Intent] = []
    entries: list[Intent] = []
    for one in waiting:
        place = place_of(one)
        if place in first:
            continue
        first.add(place)
        (entries if one.action == "open" else exits).append(one)
    if exits:
        return exits[:AHEAD]
    if any(one.action != "open" for one in under_way):
        return []
    busy = {one.market for one in under_way}
    of_market: dict[str, Intent] = {}
    for one in entries:
        if one.market not in busy:
            of_market.setdefault(one.market, one)
    return list(of_market.values())[:at_most]


def one_by_one(intents: Sequence[Intent]) -> Sequence[Intent]:
    """The order in which they leave one after another: wave by wave."""
    if len(intents) < 2:
        return intents
    waiting, found = intents, list[Intent]()
    while waiting:
        found += next_wave(waiting)
        gone = {one.id for one in found}
        waiting = [one for one in intents if one.id not in gone]
    return found


def builds_on(waiting: Sequence[Intent], sent: Collection[Place]) -> bool:
    """Whether something that waits was wanted after something that has left, by the same strategy in the same market: a reversal."""
    return bool(sent) and any(place_of(one) in sent for one in waiting)


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
