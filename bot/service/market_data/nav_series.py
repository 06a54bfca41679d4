"""Net asset value over time: the records of `venue.nav` priced with candles. Reads only and deterministic."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from bot.service.market_data.candles import CandleStore
from bot.service.market_data.price_feed import PriceFeed
from bot.venue.accounting import ledger, nav
from bot.venue.model.state import DAY_MS, HOUR_MS, State, VenueAccount
from bot.wire.vocabulary import INTERVAL_MS

# range of the interface -> (its length, its step)
RANGES: Final = {
    "1d": (DAY_MS, nav.STEP_MS),
    "7d": (7 * DAY_MS, HOUR_MS),
    "30d": (30 * DAY_MS, 4 * HOUR_MS),
    "all": (nav.DAYS_KEPT * DAY_MS, DAY_MS),
}


class Point(NamedTuple):
    ts: int
    nav: int


def series(state: State, account: VenueAccount, feed: PriceFeed, span: str, now_ms: int) -> list[Point]:
    """One point at each step boundary of the range since the account was opened, and one now.

    A boundary's point is the value at the end of the step before it. The last point is the present value.
    """
    length, step = RANGES[span]
    first = _first_boundary(account, length, step, now_ms)
    at = range(first, now_ms, step)
    points = [Point(ts, nav) for ts, nav in zip(at, _values(account, feed, at, step, now_ms), strict=True)]
    return [*points, Point(now_ms, ledger.account_value(state, account))]


def gains(state: State, account: VenueAccount, feed: PriceFeed, now_ms: int) -> dict[str, int]:
    """The gain within each range: the present value minus the first point, or minus the starting balance of a
    younger account.
    """
    value = ledger.account_value(state, account)
    by_span: dict[str, int] = {}
    for span, (length, step) in RANGES.items():
        if span == "all" or now_ms - length <= begun_ms(account):
            by_span[span] = value - account.start_balance
            continue
        first = _first_boundary(account, length, step, now_ms)
        by_span[span] = value - _values(account, feed, range(first, first + 1, step), step, now_ms)[0]
    return by_span


def begun_ms(account: VenueAccount) -> int:
    return account.begun_ms or account.created_ms


def _first_boundary(account: VenueAccount, length: int, step: int, now_ms: int) -> int:
    begun = begun_ms(account)
    if now_ms - length <= begun:
        # the account's opening is not the end of a step
        return begun - begun % step + step
    return -(-(now_ms - length) // step) * step


def _values(account: VenueAccount, feed: PriceFeed, at: range, step: int, now_ms: int) -> list[int]:
    """The account's value at each boundary."""
    history = account.history
    closes: dict[str, _Closes] = {}
    values: list[int] = []
    for ts in at:
        after = bisect_right(history, ts, key=lambda stand: stand.ts)
        if after == 0:
            values.append(account.start_balance)
            continue
        stand = history[after - 1]
        sizes: list[tuple[int, int]] = []
        for coin, size, mark in stand.held:
            known = closes.get(coin)
            if known is None:
                known = closes[coin] = _Closes(feed.store(coin), step, at.start, now_ms)
            sizes.append((size, known.before(ts, not_before_ms=stand.ts, otherwise=mark)))
        values.append(nav.value(stand.cash, sizes))
    return values


class _Closes:
    """Closes of one market by the time at which they became final, from the last one at or before `since_ms`."""

    def __init__(self, store: CandleStore, step: int, since_ms: int, now_ms: int) -> None:
        self._ends: list[int] = []
        self._closes: list[int] = []
        for interval, length in INTERVAL_MS.items():
            # A market recorded in hours has no 5-minute candles, so its finest interval is used.
            if length < step:
                continue
            page = store.page(interval, (now_ms - since_ms) // length + 3, now_ms)
            if page:
                self._ends = [candle.ts + length for candle, _ in page]
                self._closes = [candle.close for candle, _ in page]
                return

    def before(self, ts: int, *, not_before_ms: int, otherwise: int) -> int:
        """The last close at or before `ts` and after `not_before_ms`; else the price of the record."""
        after = bisect_right(self._ends, ts)
        if after == 0 or self._ends[after - 1] <= not_before_ms:
            return otherwise
        return self._closes[after - 1]
