"""What the channels of markets say, as updates of prices. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from bot.exchanges.hyperliquid.json_rows import JsonRow, rows_of, unknown
from bot.exchanges.hyperliquid.live.candle_record import MinuteCandles
from bot.exchanges.hyperliquid.live.subscriptions import ChannelMessage, Subscription
from bot.market_data.source import Depth, FundingRate, Mark, Quote, Update

# Best prices, the book, mark and funding, minutes.
CHANNELS: Final = ("bbo", "l2Book", "activeAssetCtx", "candle")
# One socket takes all of them: 4 subscriptions each.
MARKETS_MAX: Final = 100
FUNDING_HOURS: Final = 1
SAMPLES: Final = 20


def subscriptions_of(markets: Sequence[str]) -> list[Subscription]:
    """All subscriptions for these markets."""
    more = {"candle": {"interval": "1m"}}
    return [{"type": channel, "coin": market, **more.get(channel, {})} for market in markets for channel in CHANNELS]


class MarketFeed:
    """The newest facts of some markets from one socket."""

    def __init__(self, markets: Sequence[str]) -> None:
        self.candles = {market: MinuteCandles() for market in markets}
        # The exchange's clock less ours, of the newest messages. A late message makes it too small, so the largest
        # counts.
        self._differences: deque[int] = deque(maxlen=SAMPLES)
        self._is_up = False

    @property
    def clock_difference_ms(self) -> int | None:
        return max(self._differences, default=None)

    def exchange_ms(self, now_ms: int) -> int | None:
        """The exchange's clock, not ahead of it; None before the first message that names a time."""
        difference = self.clock_difference_ms
        return None if difference is None else now_ms + difference

    def down(self) -> None:
        """The feed has no socket any more."""
        self._is_up = False
        for candle in self.candles.values():
            candle.end()

    def up(self, now_ms: int) -> None:
        """A socket is connected: from now on no change of the market is missed."""
        self._is_up = True
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        at_ms = self.exchange_ms(now_ms)
        if self._is_up and at_ms is not None:
            for candle in self.candles.values():
                candle.begin(at_ms)

    def take(self, message: ChannelMessage, now_ms: int) -> list[Update]:
        """Take a message of a channel. UnknownForm if it is in no known form."""
        if message.channel == "bbo":
            return self._quote(JsonRow(message.data, "bbo"), now_ms)
        if message.channel == "l2Book":
            return self._depth(JsonRow(message.data, "l2Book"), now_ms)
        if message.channel == "activeAssetCtx":
            return self._context(JsonRow(message.data, "activeAssetCtx"))
        if message.channel == "candle":
            return self._candle(message.data)
        return []

    def _hear_time(self, row: JsonRow, now_ms: int) -> int:
        at_ms = row.instant("time")
        self._differences.append(at_ms - now_ms)
        self._begin(now_ms)
        return at_ms

    def _quote(self, row: JsonRow, now_ms: int) -> list[Update]:
        sides = row.items("bbo")
        if len(sides) != 2:
            raise unknown("bbo.bbo", "two sides", sides)
        bid, ask = (None if side is None else float(JsonRow(side, "bbo.bbo").positive("px")) for side in sides)
        return [Quote(row.text("coin"), self._hear_time(row, now_ms), bid, ask, None)]

    def _depth(self, row: JsonRow, now_ms: int) -> list[Update]:
        sides = row.items("levels")
        if len(sides) != 2:
            raise unknown("l2Book.levels", "two sides", sides)
        self._hear_time(row, now_ms)
        return [Depth(row.text("coin"), *(_levels(side) for side in sides))]

    def _context(self, row: JsonRow) -> list[Update]:
        market, context = row.text("coin"), row.row("ctx")
        rate = float(context.decimal("funding"))
        return [Mark(market, None, float(context.positive("markPx"))), FundingRate(market, rate, FUNDING_HOURS, 0)]

    def _candle(self, data: Any) -> list[Update]:
        if data is None:
            return []
        row = JsonRow(data, "candle")
        kept = self.candles.get(row.text("s"))
        if kept is not None and row.text("i") == "1m":
            kept.take(data)
        return []


def _levels(side: Any) -> list[tuple[float, float]]:
    return [(float(row.positive("px")), float(row.positive("sz"))) for row in rows_of(side, "l2Book.levels")]
