"""Pages through the candles of an exchange whose page limit is unknown: learns the limit, and proves by an overlap of
one candle that no candle was skipped.

Exchanges differ in what they answer to "1,000 candles from T":
- the first ones at or after T, at most their page limit;
- only those inside a window of 1,000 intervals, so an empty answer does not mean the end;
- the newest of that window, if 1,000 is above their page limit, which skips the oldest silently.
Each request therefore begins with the last known candle. An answer that does not contain it has skipped candles, and
the request is repeated with a smaller limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from bot.clock import DAY_MS, iso
from bot.market_data.source import NoAnswer, Page, Row

# no exchange is known to need more; ccxt lowers it where it knows the limit
LIMIT_ASKED: Final = 1_000
LIMIT_MIN: Final = 10
# the Date header has whole seconds, and exchanges count late trades for a moment
CLOSE_MARGIN_MS: Final = 5_000
# The repeats of one page whose overlap differs.
REPEATS_MAX: Final = 3


class PageAnswer(NamedTuple):
    """The rows of one request, in the exchange's order, and the earlier one of the exchange's clock and ours."""

    rows: list[Row]
    now_ms: int


# interval, since_ms, limit
Fetch = Callable[[str, int, int], Awaitable[PageAnswer]]


@dataclass(slots=True)
class Pager:
    """The pages of one market and interval.

    `has_days`: the source has daily candles, which say where the next candles are.
    """

    fetch: Fetch
    interval: str
    step_ms: int
    until_ms: int
    has_days: bool
    limit: int = LIMIT_ASKED

    async def pages(self, since_ms: int) -> AsyncIterator[Page]:
        """The closed candles from `since_ms` on."""
        at_ms, end_ms, last = since_ms, self.until_ms, None
        while at_ms < end_ms:
            answer = await (self._head(at_ms) if last is None else self._after(last))
            end_ms = self._last_closed(answer.now_ms)
            end_ms = min([end_ms, *(row.at_ms for row in answer.rows if not self._is_closed(row, answer.now_ms))])
            rows = [row for row in answer.rows if row.at_ms < end_ms]
            if rows:
                last = rows[-1]
                at_ms = last.at_ms + self.step_ms
            elif answer.rows:
                at_ms = end_ms
            else:
                last, at_ms = None, await self._next_start(at_ms, end_ms)
            yield Page(rows, min(at_ms, end_ms))

    async def _after(self, last: Row) -> PageAnswer:
        """The rows after `last`, by an answer that begins with `last`."""
        differing = 0
        while True:
            rows, now_ms = await self._ordered(last.at_ms, self.limit)
            first = rows[0] if rows else None
            if first == last:
                return PageAnswer(rows[1:], now_ms)
            if first is not None and first.at_ms == last.at_ms:
                differing += 1
                if differing == REPEATS_MAX:
                    raise NoAnswer(
                        f"the exchange gives the candle of {iso(last.at_ms)} with other values than before:"
                        f" {first[1:]}, {last[1:]} before"
                    )
            elif self.limit > LIMIT_MIN:
                self.limit = max(LIMIT_MIN, min(self.limit // 2, len(rows) or self.limit))
            else:
                raise NoAnswer(f"the exchange skips candles after {iso(last.at_ms)}, also with {LIMIT_MIN} a page")

    async def _head(self, at_ms: int) -> PageAnswer:
        """The rows from `at_ms` on, where no candle before is known.

        A later first candle is believed only if smaller pages show none before it.
        """
        while True:
            rows, now_ms = await self._ordered(at_ms, self.limit)
            if not rows or rows[0].at_ms <= at_ms:
                return PageAnswer(rows, now_ms)
            first_ms, small = rows[0].at_ms, max(LIMIT_MIN, min(self.limit // 2, len(rows) // 2))
            for since_ms in (at_ms, max(at_ms, first_ms - small * self.step_ms)):
                checked, _ = await self._ordered(since_ms, small)
                if checked and checked[0].at_ms < first_ms:
                    break
            else:
                return PageAnswer(rows, now_ms)
            if self.limit <= LIMIT_MIN:
                raise NoAnswer(f"the exchange skips candles after {iso(at_ms)}, also with {LIMIT_MIN} a page")
            self.limit = max(LIMIT_MIN, min(self.limit // 2, len(rows)))

    async def _ordered(self, since_ms: int, limit: int) -> PageAnswer:
        """One request.

        The rows are sorted, each instant once, none before `since_ms`. Two different rows of one instant are asked for
        again.
        """
        for _ in range(REPEATS_MAX):
            rows, now_ms = await self.fetch(self.interval, since_ms, limit)
            fresh = sorted({row for row in rows if row.at_ms >= since_ms})
            if all(a.at_ms != b.at_ms for a, b in pairwise(fresh)):
                return PageAnswer(fresh, now_ms)
        raise NoAnswer(f"the exchange gives two different candles of one instant after {iso(since_ms)}")

    async def _next_start(self, at_ms: int, end_ms: int) -> int:
        """Where to go on when one page has no candle from `at_ms` on: at the next day that has a candle, else one
        page later.
        """
        at_day = at_ms
        if self.has_days and self.step_ms < DAY_MS:
            days = Pager(self.fetch, "1d", DAY_MS, end_ms, has_days=False)
            # the last day, whose daily candle may be unfinished
            at_day = end_ms - end_ms % DAY_MS
            async for page in days.pages(at_ms - at_ms % DAY_MS):
                if page.rows:
                    at_day = page.rows[0].at_ms
                    break
        return at_day if at_day > at_ms else at_ms + self.limit * self.step_ms

    def _is_closed(self, row: Row, now_ms: int) -> bool:
        """Whether a candle has ended, by its own time: the days of some exchanges do not begin at 00:00 UTC."""
        return row.at_ms + self.step_ms <= now_ms - CLOSE_MARGIN_MS

    def _last_closed(self, now_ms: int) -> int:
        """The end of the span, or the open of the first candle that is not closed yet."""
        ready_ms = now_ms - CLOSE_MARGIN_MS
        return min(self.until_ms, ready_ms - ready_ms % self.step_ms)
