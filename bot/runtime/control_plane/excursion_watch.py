"""Records each closed trade in the journal, and its lowest and highest price from the service's candles.

It works beside the passes, so that no order waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from bot.errors import ApiError, Refused
from bot.logs import log
from bot.runtime.journal.excursion_log import ClosedTrip, TradeExtremes, own_prices
from bot.runtime.model.excursions import PriceBar, extremes, prices_between
from bot.wire import CANDLES_MAX, INTERVAL_MS

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal
    from bot.runtime.journal.round_trips import Trip
    from bot.runtime.passes.ports import VenuePort

# time between two looks
LOOK_S: Final = 5.0
# the running candle, and one that may close while the request is on its way
SPARE: Final = 2


class ExcursionWatch:
    """Looks for closed trades every few seconds."""

    def __init__(self, port: VenuePort, journal: Journal) -> None:
        self._port = port
        self._extremes = TradeExtremes(journal)

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look until cancelled."""
        self._extremes.begin()
        while True:
            # The passes go on between the batches of a long journal.
            await sleep(0 if await self.look() else LOOK_S)

    async def look(self) -> bool:
        """Record the trades that have closed; True if there may be more. A service that is away is asked again by the
        next look.
        """
        is_behind = self._extremes.trips.fold()
        for closed in self._extremes.unrecorded():
            try:
                await self._record(closed)
            except ApiError:
                # The passes report a service that is away or has lost this key.
                return False
        return is_behind

    async def _record(self, closed: ClosedTrip) -> None:
        trip = closed.trip
        answer = None if trip is None else await self._candles(trip)
        if trip is None or answer is None:
            log.info("trade.extremes_unknown", event_id=closed.event_id)
            self._extremes.done(closed)
            return
        bars, step_ms = answer
        assert trip.opened_ms is not None and trip.closed_ms is not None
        seen = prices_between(bars, step_ms, trip.opened_ms, trip.closed_ms)
        self._extremes.write(closed, *extremes([*own_prices(trip), *seen]), step_ms)

    async def _candles(self, trip: Trip) -> tuple[list[PriceBar], int] | None:
        """The shortest candles that reach back to the entry, and their length; None if the service has none."""
        if trip.opened_ms is None:
            return None
        for interval, step_ms in INTERVAL_MS.items():
            count = max(0, self._port.clock.now_ms() - trip.opened_ms) // step_ms + SPARE
            if count > CANDLES_MAX:
                continue
            try:
                answer = await self._port.candles(trip.market, interval, count)
            except Refused:
                continue
            bars = [PriceBar(bar.ts, float(bar.low), float(bar.high)) for bar in answer.candles]
            # Candles that begin after the entry would hide a part of the trade.
            if bars and bars[0].ts <= trip.opened_ms + step_ms:
                return bars, step_ms
        return None
