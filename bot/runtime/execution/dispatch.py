"""Dispatch order: which waiting intents may be sent now, beside those in flight. Pure; the execution engine asks again
at each reply.

Exits go before entries, but after what their own strategy wanted before them in that market. Entries wait for the
replies of exits, because an exit frees margin. An exit whose reply is slow holds up the entries of its own market
alone. Each market has at most one entry in flight, and none beside an exit. So a request without a reply holds up its
own market and no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from bot.runtime.model.intents import Intent
from bot.runtime.passes.bar_feed import ClosedBar

# Orders in flight, and as many requests for bars. The client has 128 connections; the rest is for the requests of a
# pass itself.
ABREAST: Final = 50

# strategy and market
Place = tuple[str, str]


def place_of(intent: Intent) -> Place:
    return intent.strategy, intent.market


def entries_max(at_most: int) -> int:
    """How many entries may be in flight. A fifth of `at_most` is reserved for exits, in case no entry gets a reply."""
    return at_most - at_most // 5


def next_batch(
    waiting: Sequence[Intent], at_most: int = ABREAST, in_flight: Collection[Intent] = (), slow: Collection[str] = ()
) -> list[Intent]:
    """The intents to send next, in order: exits if any may go, else the first entry of each market.

    `at_most` intents may be in flight, those of `in_flight` included. `slow`: ids of intents whose late reply no other
    market waits for.
    """
    taken = {place_of(intent) for intent in in_flight}
    exits: list[Intent] = []
    entries: list[Intent] = []
    for intent in waiting:
        place = place_of(intent)
        if place not in taken:
            taken.add(place)
            (entries if intent.action == "open" else exits).append(intent)
    free = at_most - len(in_flight)
    if exits:
        return exits[: max(0, free)]
    if any(intent.action != "open" and intent.id not in slow for intent in in_flight):
        return []
    busy = {intent.market for intent in in_flight}
    of_market: dict[str, Intent] = {}
    for entry in entries:
        if entry.market not in busy:
            of_market.setdefault(entry.market, entry)
    free = min(free, entries_max(at_most) - sum(intent.action == "open" for intent in in_flight))
    return list(of_market.values())[: max(0, free)]


def one_by_one(intents: Sequence[Intent]) -> Sequence[Intent]:
    """The order in which intents are sent one after another, each after the reply to the one before."""
    if len(intents) < 2:
        return intents
    waiting, ordered = intents, list[Intent]()
    while waiting:
        # no bound: one at a time is in flight
        ordered += next_batch(waiting, at_most=2 * len(waiting))
        gone = {intent.id for intent in ordered}
        waiting = [intent for intent in intents if intent.id not in gone]
    return ordered


def side_by_side(due: Sequence[ClosedBar], listeners: dict[str, frozenset[str]]) -> int:
    """How many of the first bars may be decided together: bars of one instant and of different markets that share no
    strategy.

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
