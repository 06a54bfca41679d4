"""Words for people: plurals, and the market that a wrong name probably means. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches


def many(count: int, thing: str, things: str | None = None) -> str:
    """`1 candle`, `2,160 candles`. `things`: an irregular plural."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def meant_market(name: str, listed: Collection[str]) -> str | None:
    """The listed market that `name` probably means:

    BTC for BTCUSDT, BTC-USD and BTX. Other venues put the quote currency into the name.
    """
    base = re.sub(r"[-_./]?(PERP|USD[CT]?)$", "", name)
    return base if base in listed else next(iter(get_close_matches(name, listed, n=1)), None)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean trend?` if a known word is near, else "". Upper and lower case count alike."""
    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
