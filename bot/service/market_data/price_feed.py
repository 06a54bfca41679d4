"""One feed of price points in time order, from simulated, recorded and pushed prices. Applies nothing; machine.py does.

Each candle is four points in the adaptive order: the open at its start, the extremes after one and two thirds, the
close in its last millisecond. The feed's position is (instant, market): everything up to it has been taken, and a
restart continues from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from bot.service.market_data.candles import CandleStore, merge, start_of
from bot.service.market_data.event_odds import EventOdds
from bot.service.market_data.live_candles import LiveCandles
from bot.service.market_data.simulator import GridCandle, SimulatedMarket, path_of
from bot.service.market_data.trading_hours import DAY_MS
from bot.wire.vocabulary import INTERVAL_MS

# candles of each interval before a simulated market's start
HISTORY_BARS: Final = 1_000
# candles of a recorded file, if it has twice as many
RECORDED_HISTORY_BARS: Final = 200
MINUTE_MS: Final = INTERVAL_MS["1m"]
FOREVER_MS: Final = 1 << 62
INTERVALS: Final = tuple(INTERVAL_MS.items())
NAMES: Final = {ms: name for name, ms in INTERVAL_MS.items()}


class FeedPoint(NamedTuple):
    """One price of a market. `volume`: of the whole bar. `part`: the volume since the previous point."""

    at_ms: int
    coin: str
    px: int
    step: int
    bar_ms: int
    volume: int | None
    part: int


class MarketSource(Protocol):
    """The price source of one market."""

    base_ms: int
    lot: int
    # the trading hours of a market whose prices rest at weekends
    sessions: str | None

    def bar_at(self, at_ms: int) -> GridCandle | None:
        """The base candle that is open at `at_ms`, or None in a gap of the data."""
        ...

    def next_bar(self, after_ms: int) -> GridCandle | None:
        """The first base candle that opens after `after_ms`; None at the end of the data."""
        ...

    def closed(self, interval: str, until_ms: int, limit: int) -> list[GridCandle]:
        """The last `limit` candles that had closed by `until_ms`, oldest first."""
        ...


class SimulatedSource:
    """A simulated market. It ends only if it is an event market."""

    base_ms = MINUTE_MS
    sessions: str | None = None

    def __init__(self, market: SimulatedMarket | EventOdds, start_ms: int) -> None:
        self._market = market
        self._start_ms = start_ms
        self._end_ms = market.expires_ms if isinstance(market, EventOdds) else FOREVER_MS
        self.lot = market.lot

    def bar_at(self, at_ms: int) -> GridCandle | None:
        return self._market.minute(at_ms - at_ms % MINUTE_MS) if at_ms < self._end_ms else None

    def next_bar(self, after_ms: int) -> GridCandle | None:
        ts = after_ms - after_ms % MINUTE_MS + MINUTE_MS
        return self._market.minute(ts) if ts < self._end_ms else None

    def forget(self) -> None:
        self._market.forget()

    def closed(self, interval: str, until_ms: int, limit: int) -> list[GridCandle]:
        step = INTERVAL_MS[interval]
        end = until_ms - until_ms % step
        first = max(end - limit * step, self._start_ms - self._start_ms % step - HISTORY_BARS * step)
        return self._market.candles(interval, first, end)


class RecordedSource:
    """Candles of a file in the file's interval. Coarser candles are merged from them."""

    def __init__(self, candles: list[GridCandle], base_ms: int, lot: int = 1, sessions: str | None = None) -> None:
        self.base_ms = base_ms
        self.sessions = sessions
        self.lot = lot
        self.candles = candles
        self._opens = [candle.ts for candle in candles]

    @property
    def history(self) -> int:
        """The number of candles before trading starts."""
        return min(RECORDED_HISTORY_BARS, len(self.candles) // 2)

    def bar_at(self, at_ms: int) -> GridCandle | None:
        index = bisect_right(self._opens, at_ms) - 1
        if index < 0 or self._opens[index] + self.base_ms <= at_ms:
            return None
        return self.candles[index]

    def next_bar(self, after_ms: int) -> GridCandle | None:
        index = bisect_right(self._opens, after_ms)
        return self.candles[index] if index < len(self.candles) else None

    def closed(self, interval: str, until_ms: int, limit: int) -> list[GridCandle]:
        step = INTERVAL_MS[interval]
        if step < self.base_ms:
            return []
        end = until_ms - until_ms % step
        # Of trading days the first may begin before the grid of UTC does: one more is read, and left out.
        spare = int(self.sessions is not None and step == DAY_MS)
        first = bisect_left(self._opens, end - (limit + spare) * step)
        last = bisect_right(self._opens, until_ms - self.base_ms)
        bars: list[GridCandle] = []
        for start, group in groupby(self.candles[first:last], lambda candle: self._start(candle, step)):
            bar = merge(group, start)
            if bar is not None and start + step <= until_ms:
                bars.append(bar)
        return bars[spare if first else 0 :]

    def _start(self, candle: GridCandle, step: int) -> int:
        """The start of the bar that a candle belongs to: the bar in which it ends, so that no bar closes before its
        candles do.
        """
        if self.sessions is not None and step == DAY_MS:
            return start_of(candle.ts, step, self.base_ms, self.sessions)
        last_ms = candle.ts + self.base_ms - 1
        return last_ms - last_ms % step


def points_of(
    coin: str, candle: GridCandle, base_ms: int, lot: int = 1
) -> tuple[FeedPoint, FeedPoint, FeedPoint, FeedPoint]:
    """The four points of a candle, with its volume distributed evenly in lots."""
    third = base_ms // 3
    quarter = candle.volume // 4 // lot * lot
    times = (0, third, 2 * third, base_ms - 1)
    parts = (quarter, quarter, quarter, candle.volume - 3 * quarter)
    ts, volume = candle.ts, candle.volume
    a, b, c, d = (
        FeedPoint(ts + times[step], coin, px, step, ts, volume, parts[step]) for step, px in enumerate(path_of(candle))
    )
    return a, b, c, d


@dataclass(slots=True)
class _MarketFeed:
    """The position of one market in its source."""

    coin: str
    source: MarketSource
    # future points of the present candle, the next one last
    pending: list[FeedPoint]
    # made at the first request, so that the start is fast
    store: CandleStore | None = None
    # every point up to here has been taken
    passed_ms: int = 0
    pushed: bool = False

    def advance(self, after_ms: int) -> None:
        """Prepare the next point."""
        if not self.pending and not self.pushed and (bar := self.source.next_bar(after_ms)) is not None:
            self.pending = list(reversed(points_of(self.coin, bar, self.source.base_ms, self.source.lot)))


class PriceFeed:
    """The points of all markets, by time, then by market order.

    `options`: where the prices come from, as saved in the database.
    """

    def __init__(self, sources: dict[str, MarketSource], options: str = "") -> None:
        self.options = options
        self._order = {coin: index for index, coin in enumerate(sources)}
        self._markets = {coin: _MarketFeed(coin, source, []) for coin, source in sources.items()}
        self._heap: list[tuple[int, int, str]] = []

    def start(self, at_ms: int, upto: str | None = None, *, inclusive: bool = True) -> None:
        """Move to the position after every point at or before `at_ms`. With `upto`, of that instant only the markets up
        to `upto`.

        `inclusive=False`: the points of that instant are still to come.
        """
        limit = len(self._order) if upto is None else self._order[upto]
        for coin, market_feed in self._markets.items():
            self._place(market_feed, at_ms if inclusive and self._order[coin] <= limit else at_ms - 1)
        self._stack()

    def add(self, coin: str, source: MarketSource, at_ms: int) -> None:
        """Add a market whose points begin at this instant, after the points of all other markets."""
        self._order[coin] = len(self._order)
        market_feed = self._markets[coin] = _MarketFeed(coin, source, [])
        self._place(market_feed, at_ms - 1)
        self._stack()

    def _place(self, market_feed: _MarketFeed, passed_ms: int) -> None:
        source = market_feed.source
        market_feed.store, market_feed.passed_ms = None, passed_ms
        bar = source.bar_at(passed_ms)
        ahead = (
            []
            if bar is None
            else [p for p in points_of(market_feed.coin, bar, source.base_ms, source.lot) if p.at_ms > passed_ms]
        )
        market_feed.pending = ahead[::-1]
        market_feed.advance(passed_ms)

    def _stack(self) -> None:
        self._heap = [
            (market_feed.pending[-1].at_ms, self._order[coin], coin)
            for coin, market_feed in self._markets.items()
            if market_feed.pending
        ]
        heapify(self._heap)

    def _fill(self, market_feed: _MarketFeed) -> CandleStore:
        """Load the history of all intervals after the last point taken, running bars included."""
        source, passed_ms = market_feed.source, market_feed.passed_ms
        if isinstance(source, LiveCandles):
            market_feed.store = source
            return source
        bar, seen = self._seen(market_feed)
        running = None
        if bar is not None and seen:
            pxs = [p.px for p in seen]
            running = GridCandle(bar.ts, pxs[0], max(pxs), min(pxs), pxs[-1], sum(p.part for p in seen))
        store = CandleStore(source.base_ms, lambda name, limit: source.closed(name, passed_ms, limit), source.sessions)
        finer, now = "", None
        for name, step in INTERVALS:
            if step < source.base_ms:
                continue
            if step == source.base_ms:
                now = running
            else:
                start = start_of(passed_ms, step, source.base_ms, source.sessions)
                # Candles of four hours may hold the end of a day.
                if source.sessions is not None and step == DAY_MS:
                    finer, now = NAMES[source.base_ms], running
                parts = [c for c in source.closed(finer, passed_ms, step // INTERVAL_MS[finer]) if c.ts >= start]
                if now is not None and now.ts >= start:
                    parts.append(now)
                now = merge(parts, start)
            store.load(name, (), now)
            finer = name
        market_feed.store = store
        return store

    def _seen(self, market_feed: _MarketFeed) -> tuple[GridCandle | None, list[FeedPoint]]:
        """The present base candle and its points that have been taken."""
        source, passed_ms = market_feed.source, market_feed.passed_ms
        bar = source.bar_at(passed_ms)
        if bar is None:
            return None, []
        return bar, [p for p in points_of(market_feed.coin, bar, source.base_ms, source.lot) if p.at_ms <= passed_ms]

    # ── Taking points ───────────────────────────────────────────────────────────────────────────────────────────────

    def next_ms(self) -> int | None:
        """The time of the next point, or None."""
        return self._heap[0][0] if self._heap else None

    def opens(self, at_ms: int) -> tuple[tuple[str, int], ...]:
        """The markets whose next point is the open of a bar at this instant, each with its price."""
        nexts = [market_feed.pending[-1] for market_feed in self._markets.values() if market_feed.pending]
        return tuple((point.coin, point.px) for point in nexts if point.at_ms == at_ms and point.step == 0)

    def pop(self) -> FeedPoint:
        """Take the next point and add it to the candles."""
        _, order, coin = self._heap[0]
        market_feed = self._markets[coin]
        point = market_feed.pending.pop()
        market_feed.passed_ms = point.at_ms
        if market_feed.store is not None:
            market_feed.store.point(point.at_ms, point.px, point.part)
        if not market_feed.pending:
            market_feed.advance(point.at_ms)
        if market_feed.pending:
            heapreplace(self._heap, (market_feed.pending[-1].at_ms, order, coin))
        else:
            heappop(self._heap)
        return point

    def length_ms(self, coin: str) -> int:
        """How long the candles are that give a market's prices now; pushed and live prices count as a minute."""
        market_feed = self._markets.get(coin)
        return MINUTE_MS if market_feed is None or market_feed.pushed else market_feed.source.base_ms

    def close_after(self, coin: str, at_ms: int) -> int | None:
        """The close of the candle that has begun before this instant and has not ended. None for candles of a minute,
        which begin and end with it.
        """
        if self.length_ms(coin) == MINUTE_MS:
            return None
        bar = self._markets[coin].source.bar_at(at_ms)
        return None if bar is None or bar.ts == at_ms else bar.close

    def has_ended(self, coin: str) -> bool:
        """True if a recorded market has no points left."""
        market_feed = self._markets[coin]
        return not market_feed.pending and not market_feed.pushed and not isinstance(market_feed.source, LiveCandles)

    def live(self) -> dict[str, LiveCandles]:
        """The markets whose prices come from a live source, with their candles."""
        sources = {coin: market_feed.source for coin, market_feed in self._markets.items()}
        return {coin: source for coin, source in sources.items() if isinstance(source, LiveCandles)}

    def hold(self, coin: str) -> None:
        """Stop the market's own prices; from now on its prices are pushed."""
        market_feed = self._markets[coin]
        if not market_feed.pushed:
            market_feed.pushed = True
            market_feed.pending = []
            self._stack()

    def push(self, coin: str, at_ms: int, px: int, volume: int) -> None:
        """Add a price from outside."""
        self.hold(coin)
        self.store(coin).point(at_ms, px, volume)

    def store(self, coin: str) -> CandleStore:
        """The candles of a market."""
        market_feed = self._markets[coin]
        return market_feed.store if market_feed.store is not None else self._fill(market_feed)

    def warm(self) -> bool:
        """Make the history of one more market; False if all markets have theirs."""
        market_feed = next((market_feed for market_feed in self._markets.values() if market_feed.store is None), None)
        if market_feed is not None:
            self._fill(market_feed)
        return market_feed is not None

    def forget(self, coin: str) -> None:
        """Drop the candles of a market that has ended. A later request makes them again."""
        market_feed = self._markets[coin]
        if not market_feed.pushed and isinstance(market_feed.source, SimulatedSource):
            market_feed.store = None
            market_feed.source.forget()

    def last_px(self, coin: str) -> int | None:
        """The latest price of a market."""
        market_feed = self._markets[coin]
        if market_feed.store is None:
            _, seen = self._seen(market_feed)
            if seen:
                return seen[-1].px
        return self.store(coin).last_px

    def rewind(self, coin: str, at_ms: int) -> None:
        """Restore the candles of one market at `at_ms`, before its first pushed price."""
        market_feed = self._markets[coin]
        market_feed.passed_ms = at_ms
        self._fill(market_feed)
