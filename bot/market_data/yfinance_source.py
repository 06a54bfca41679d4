"""The source yfinance: daily and hourly history of shares, funds and indices from Yahoo. Unofficial: Yahoo documents no
interface, and may change or block it.

`yfinance` gives prices adjusted for splits only, `yfinance:adjusted` for dividends too. Old prices change with each
split or dividend.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self

from bot.clock import DAY_MS, Clock, SystemClock, ms_of
from bot.extras import install
from bot.http_limits import share_certificates
from bot.market_data.source import Action, Instrument, NoAnswer, NotOffered, Page, Rate, Row, Say, SourceError
from bot.wire.vocabulary import INTERVAL_MS

INTERVALS: Final = ("1h", "1d")
# Yahoo keeps hourly candles for 730 days
HOURLY_DAYS_MAX: Final = 729
CLOSE_MARGIN_MS: Final = 60_000

# a symbol's yfinance.Ticker
Ticker = Callable[[str], Any]


class YfinanceSource:
    """Yahoo's history. `ticker` and `clock` are arguments for tests."""

    revises_history = True

    def __init__(self, argument: str = "", *, ticker: Ticker | None = None, clock: Clock | None = None) -> None:
        if argument not in ("", "adjusted"):
            raise NotOffered(f"source yfinance:{argument}: there are yfinance and yfinance:adjusted")
        self.name = f"yfinance:{argument}" if argument else "yfinance"
        self._is_adjusted = argument == "adjusted"
        self._ticker: Any = ticker
        self._clock = clock or SystemClock()

    async def __aenter__(self) -> Self:
        if self._ticker is None:
            try:
                import yfinance
            except ImportError:
                raise SourceError(f"yfinance is not installed: {install('yfinance')}") from None
            share_certificates()
            # By default errors are printed, and the table is empty.
            yfinance.config.debug.hide_exceptions = False
            self._ticker = yfinance.Ticker
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing stays open."""

    async def instruments(self, say: Say) -> list[Instrument]:
        return []

    async def history(self, symbol: str, interval: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[Page]:
        if interval not in INTERVALS:
            raise NotOffered(f"yfinance has no {interval} candles here; it has {', '.join(INTERVALS)}")
        now_ms = self._clock.now_ms()
        start_ms = since_ms
        if interval == "1h" and since_ms < now_ms - HOURLY_DAYS_MAX * DAY_MS:
            start_ms = now_ms - HOURLY_DAYS_MAX * DAY_MS
            say(f"{symbol}: Yahoo keeps hourly candles for {HOURLY_DAYS_MAX} days; older ones are left out")
        # An hour at half past is stored half an hour later, so the one before the span may belong to it.
        asked_ms = start_ms if interval == "1d" else start_ms - INTERVAL_MS[interval]
        frame = await self._frame(
            symbol, interval=interval, start=asked_ms // 1_000, end=until_ms // 1_000, auto_adjust=self._is_adjusted
        )
        rows = [(row, ends) for row, ends in _rows(frame, interval) if since_ms <= row.at_ms < until_ms]
        closed = [row for row, ends_ms in rows if ends_ms + CLOSE_MARGIN_MS <= now_ms]
        until = min(until_ms, now_ms) if len(closed) == len(rows) else rows[len(closed)][0].at_ms
        is_moved = interval != "1d" and any(ms_of(at) % INTERVAL_MS[interval] for at in frame.index)
        yield Page(closed, until, is_moved)

    def funding(self, symbol: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[list[Rate]]:
        raise NotOffered("yfinance has no funding rates")

    async def actions(self, symbol: str) -> list[Action]:
        frame = await self._frame(symbol, period="max", interval="1d", actions=True)
        reported = []
        for name, kind in (("Stock Splits", "split"), ("Dividends", "dividend")):
            column = frame[name].items() if name in frame.columns else ()
            reported += [Action(_day_ms(at), kind, float(value)) for at, value in column if value]
        return sorted(reported)

    async def _frame(self, symbol: str, **wanted: Any) -> Any:
        """Yahoo's table for a symbol, with the errors of yfinance as ours."""
        assert self._ticker is not None, "the source was entered"
        try:
            frame = await asyncio.to_thread(self._ticker(symbol).history, **wanted)
        except Exception as error:  # noqa: BLE001 - yfinance documents no errors
            what = type(error).__name__
            text = " ".join(str(error).split())[:300]
            if "PricesMissing" in what or "TzMissing" in what or "delisted" in text:
                raise NotOffered(
                    f"yfinance has no candles of {symbol!r} in this span ({text}); Yahoo's symbols are listed at"
                    " finance.yahoo.com"
                ) from None
            raise NoAnswer(
                f"yfinance ({what}): {text}\nYahoo is unofficial and limits requests; run the same command again later"
            ) from None
        if not len(frame):
            raise NotOffered(
                f"yfinance has no candles of {symbol!r} in this span; Yahoo's symbols are listed at finance.yahoo.com"
            )
        return frame


def open_source(argument: str) -> YfinanceSource:
    """The source of `yfinance` or `yfinance:adjusted`."""
    return YfinanceSource(argument)


def _rows(frame: Any, interval: str) -> list[tuple[Row, int]]:
    """The rows of a table, oldest first, each with the instant at which it ends for Yahoo and in the store.

    A day opens at 00:00 UTC of its date. An hour moves forward to the full hour (New York opens at half past): moved
    back it would close before it ends.
    """
    step = INTERVAL_MS[interval]
    columns = (frame[name] for name in ("Open", "High", "Low", "Close", "Volume"))
    rows: dict[int, Row] = {}
    ends: dict[int, int] = {}
    for at, *values in zip(frame.index, *columns, strict=True):
        if any(math.isnan(value) for value in values[:4]):
            # Yahoo writes a day without trades as empty prices.
            continue
        at_ms = _day_ms(at) if interval == "1d" else ms_of(at) + -ms_of(at) % step
        o, h, low, c, volume = map(float, values)
        row = Row(at_ms, o, h, low, c, 0.0 if math.isnan(volume) else volume)
        rows[at_ms] = _joined(rows[at_ms], row) if at_ms in rows else row
        ends[at_ms] = max(ends.get(at_ms, 0), ms_of(at) + step, at_ms + step)
    return [(rows[at_ms], ends[at_ms]) for at_ms in sorted(rows)]


def _joined(first: Row, last: Row) -> Row:
    """Two parts of one hour, like Yahoo's last half hour of a session and its closing auction."""
    high, low = max(first.high, last.high), min(first.low, last.low)
    return Row(first.at_ms, first.open, high, low, last.close, first.volume + last.volume)


def _day_ms(at: Any) -> int:
    """00:00 UTC of the date of a timestamp in the exchange's zone."""
    from datetime import UTC, datetime

    return ms_of(datetime(at.year, at.month, at.day, tzinfo=UTC))
