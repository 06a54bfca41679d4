"""Series of event markets: when a market is settled the next one is listed. Makes listings and prices; applies nothing.

The next market begins when the last one ends, and lasts as long. Its coin has a number: BTC-UP-DAY, BTC-UP-DAY-2,
BTC-UP-DAY-3. The seed and the coin determine the market and its prices, so a restart makes the same market.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from bot.service.market_data.event_odds import EventOdds
from bot.service.market_data.instruments import Listing
from bot.service.market_data.price_feed import SimulatedSource
from bot.venue.model.numbers import E8
from bot.venue.model.state import HOUR_MS, MarketSpec

_NUMBERED: Final = re.compile(r"(.+)-([0-9]{1,9})")
_TICK: Final = E8 // 1000
# standard deviation of a later market's prior log odds around the first market's
_ODDS_SPREAD: Final = 0.7
_CHANCE_MIN: Final = 0.05


class Next(NamedTuple):
    """A market that is about to be listed."""

    spec: MarketSpec
    px: int
    source: SimulatedSource


class EventSeries:
    """The event markets of a service, and the markets that follow them. `is_held`: prices are only pushed."""

    def __init__(self, listings: dict[str, Listing], *, seed: int, start_ms: int, is_held: bool) -> None:
        self._first = {coin: listing for coin, listing in listings.items() if listing.lasts_hours is not None}
        self._seed = seed
        self._start_ms = start_ms
        self.is_held = is_held

    def next_coin(self, coin: str) -> str | None:
        """The coin of the next market; None if the market belongs to no series."""
        first, number = self._place(coin)
        return None if first is None else f"{first}-{number + 1}"

    def after(self, coin: str, at_ms: int) -> Next:
        """The next market, which begins now."""
        name = self.next_coin(coin)
        assert name is not None
        first, _ = self._place(name)
        assert first is not None
        listing = self._first[first]
        assert listing.lasts_hours is not None
        spec = replace(listing.spec, coin=name, expires_ms=at_ms + listing.lasts_hours * HOUR_MS)
        source = self.source(spec)
        bar = source.bar_at(at_ms - 1)
        return Next(spec, listing.px if bar is None else bar.close, source)

    def source(self, spec: MarketSpec) -> SimulatedSource:
        """The price source of a market of a series."""
        first, number = self._place(spec.coin)
        assert first is not None and spec.expires_ms is not None
        listing = self._first[first]
        assert listing.lasts_hours is not None
        start_ms = self.start_of(spec)
        market = EventOdds(
            coin=spec.coin,
            seed=self._seed,
            prior=listing.px if number == 1 else self._chance(spec.coin, listing.px),
            start_ms=start_ms,
            expires_ms=spec.expires_ms,
            pace=listing.daily_vol,
            day_usd=listing.day_usd,
        )
        return SimulatedSource(market, start_ms)

    def start_of(self, spec: MarketSpec) -> int:
        """When a market of a series was listed. The first ones were listed with the service."""
        first, number = self._place(spec.coin)
        assert first is not None and spec.expires_ms is not None
        return self._start_ms if number == 1 else spec.expires_ms - (self._first[first].lasts_hours or 0) * HOUR_MS

    def _place(self, coin: str) -> tuple[str | None, int]:
        """(first coin of the series, number in the series)."""
        if coin in self._first:
            return coin, 1
        numbered = _NUMBERED.fullmatch(coin)
        if numbered is None or numbered[1] not in self._first:
            return None, 0
        return numbered[1], int(numbered[2])

    def _chance(self, coin: str, px: int) -> int:
        """The prior of the next market. An even prior stays even."""
        if 2 * px == E8:
            return px
        odds = math.log(px / (E8 - px)) + Random(f"{self._seed}:{coin}:prior").gauss(0, _ODDS_SPREAD)
        chance = min(max(1 / (1 + math.exp(-odds)), _CHANCE_MIN), 1 - _CHANCE_MIN)
        return round(chance * 1000) * _TICK
