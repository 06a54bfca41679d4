"""The minutes of one market from the socket, so that no request is needed while the socket lives. Pure."""

from __future__ import annotations

from typing import Any, Final

from bot.clock import MINUTE_MS, SECOND_MS
from bot.exchanges.hyperliquid.json_rows import JsonRow as Fields
from bot.market_data.source import Row

# The exchange may count a trade to a minute so long after its end.
CLOSE_MARGIN_MS: Final = 2 * SECOND_MS
# A day and what a gap needs besides.
KEPT: Final = 2_000


def candle_row(fields: Fields) -> Row:
    """A candle of the exchange."""
    first, high, low, last = (float(fields.positive(name)) for name in ("o", "h", "l", "c"))
    return Row(fields.instant("t"), first, high, low, last, float(fields.decimal("v")))


class MinuteCandles:
    """Candles of one market. The minutes from `whole_from_ms` on are whole; None: there is no socket."""

    def __init__(self) -> None:
        self.whole_from_ms: int | None = None
        # Trades that a candle counts, and the candle.
        self._rows: dict[int, tuple[int, Row]] = {}

    def begin(self, exchange_ms: int) -> None:
        """The socket tells every change, from this instant or an earlier one on."""
        if self.whole_from_ms is None:
            self.whole_from_ms = -(-exchange_ms // MINUTE_MS) * MINUTE_MS

    def end(self) -> None:
        """The socket is gone; candles of this and later minutes may lack trades."""
        self.whole_from_ms = None
        self._rows.clear()

    def take(self, data: Any) -> None:
        """Take a candle of the socket. An older state of a minute, which counts fewer trades, changes nothing."""
        fields = Fields(data, "candle")
        row, trades = candle_row(fields), fields.whole("n")
        if trades >= self._rows.get(row.at_ms, (0, row))[0]:
            self._rows[row.at_ms] = (trades, row)
        if len(self._rows) > KEPT:
            del self._rows[min(self._rows)]

    def rows(self, since_ms: int, until_ms: int) -> list[Row]:
        """The candles of these minutes."""
        return sorted(row for at_ms, (_, row) in self._rows.items() if since_ms <= at_ms < until_ms)


def closed_until(exchange_ms: int) -> int:
    """The end of the last minute that is surely over."""
    return (exchange_ms - CLOSE_MARGIN_MS) // MINUTE_MS * MINUTE_MS
