"""The lowest and the highest price of a market while a trade was open, from the candles and their path.

Computed after the run. The rule is that of the daemon (`bot.runtime.model.excursions`); here the path within a bar is
known too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.results.trade_ledger import RoundTrip
from bot.runtime.journal.excursion_log import TradeExtremes, own_prices
from bot.runtime.journal.journal import Journal
from bot.runtime.model.excursions import extremes
from bot.venue.model.numbers import E8


def extremes_of(readers: Sequence[CandleReader], trips: Iterable[RoundTrip], path: str) -> Iterator[tuple[int, int]]:
    """The lowest and the highest price of each trade, scaled 1e8.

    These are the prices of its fills, and every price that the venue saw from the entry to the exit, without the one at
    the exit: a stop ends a trade at its level, before the price goes on to the extreme of the bar.
    """
    by_coin = {reader.coin: reader for reader in readers}
    for trip in trips:
        prices = [trip.entry_notional * E8 // trip.bought] if trip.bought else []
        if trip.sold:
            prices.append(trip.exit_notional * E8 // trip.sold)
        reader = by_coin[trip.coin]
        until_ms = trip.exit_ms or (reader.ts[reader.at - 1] + reader.step_ms if reader.at else 0)
        prices += _seen(reader, trip.entry_ms, until_ms, path)
        yield extremes(prices)


def record_extremes(journal: Journal, readers: Sequence[CandleReader], path: str) -> None:
    """Write the extremes of each closed trade into a journal on disk, as a daemon does."""
    by_coin = {reader.coin: reader for reader in readers}
    table = TradeExtremes(journal)
    while table.trips.fold():
        pass
    while closed_trips := table.unrecorded():
        for closed in closed_trips:
            trip = closed.trip
            if trip is None or trip.opened_ms is None or trip.closed_ms is None:
                table.done(closed)
                continue
            reader = by_coin[trip.market]
            seen = (px / E8 for px in _seen(reader, trip.opened_ms, trip.closed_ms, path))
            table.write(closed, *extremes([*own_prices(trip), *seen]), reader.step_ms)


def _seen(reader: CandleReader, from_ms: int, until_ms: int, path: str) -> Iterator[int]:
    """Prices from `from_ms` on and before `until_ms`, among them the lowest and the highest: whole bars by their
    extremes, others by their four points.
    """
    ts, step_ms = reader.ts, reader.step_ms
    first = bisect_left(ts, from_ms)
    last = max(first, bisect_right(ts, until_ms - step_ms))
    if last > first:
        yield round(min(reader.low[first:last]) * E8)
        yield round(max(reader.high[first:last]) * E8)
    for row in (first - 1, last):
        if 0 <= row < len(ts):
            yield from (px for at, px in reader.points_of(row, path) if from_ms <= at < until_ms)
