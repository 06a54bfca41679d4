"""Pages of candles: exchanges that page in different ways give the same candles, without a hole and without a
double.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bot.market_data.paging import PageAnswer, Pager
from bot.market_data.source import NoAnswer, Row

MINUTE, DAY = 60_000, 86_400_000
# 2025-05-01
START = 1_746_057_600_000


def row(n: int) -> Row:
    return Row(START + n * MINUTE, 100.0 + n, 101.0 + n, 99.0 + n, 100.5 + n, 1.0 + n % 7)


class Asked:
    """An exchange of rows with a page limit, and a way to page: `first`, `window` or `newest` of the window."""

    def __init__(self, rows: list[Row], way: str, limit: int, now_ms: int) -> None:
        self.rows, self.way, self.limit, self.now_ms = rows, way, limit, now_ms
        self.requests = 0

    async def __call__(self, interval: str, since_ms: int, limit: int) -> PageAnswer:
        self.requests += 1
        step = DAY if interval == "1d" else MINUTE
        rows = self.rows
        if interval == "1d":
            rows = [Row(at, 1, 1, 1, 1, 1) for at in sorted({one.at_ms - one.at_ms % DAY for one in rows})]
        found = [one for one in rows if since_ms <= one.at_ms]
        if self.way == "first":
            return PageAnswer(found[: min(limit, self.limit)], self.now_ms)
        found = [one for one in found if one.at_ms < since_ms + limit * step]
        return PageAnswer(found[: self.limit] if self.way == "window" else found[-self.limit :], self.now_ms)


def pulled(asked: Callable[..., object], *, since: int = START, until: int, has_days: bool = True) -> list[Row]:
    async def run() -> list[Row]:
        pager = Pager(asked, "1m", MINUTE, until, has_days=has_days)
        found: list[Row] = []
        covered = since
        async for page in pager.pages(since):
            assert page.until_ms > covered or page.until_ms == until
            covered = page.until_ms
            found += page.rows
            assert len(found) < 100_000
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("way", ["first", "window", "newest"])
@pytest.mark.parametrize("limit", [7, 100, 300, 720, 1_000, 5_000])
def test_every_way_of_paging_gives_every_candle_once(way: str, limit: int) -> None:
    rows = [row(n) for n in range(4_000) if not 900 <= n < 2_150 and n % 501 != 3]
    now = START + 4_100 * MINUTE
    if limit < 10 and way == "newest":
        with pytest.raises(NoAnswer, match="skips candles"):
            pulled(Asked(rows, way, limit, now), until=now)
        return
    assert pulled(Asked(rows, way, limit, now), until=now) == rows


@pytest.mark.parametrize("way", ["first", "window", "newest"])
def test_the_time_before_the_listing_is_passed_by_days(way: str) -> None:
    rows = [row(n) for n in range(1_000)]
    asked = Asked(rows, way, 300, START + 1_100 * MINUTE)
    assert pulled(asked, since=START - 900 * DAY, until=START + 1_000 * MINUTE) == rows
    assert asked.requests < 60


def test_a_source_without_days_is_asked_page_by_page() -> None:
    rows = [row(n) for n in range(500)]
    asked = Asked(rows, "window", 300, START + 600 * MINUTE)
    assert pulled(asked, since=START - 3 * DAY, until=START + 500 * MINUTE, has_days=False) == rows


@pytest.mark.parametrize("late_ms", [0, 4_999])
def test_the_newest_candle_is_not_taken_before_it_has_closed(late_ms: int) -> None:
    rows = [row(n) for n in range(100)]
    asked = Asked(rows, "first", 1_000, START + 99 * MINUTE + late_ms)
    assert pulled(asked, until=START + 200 * MINUTE) == rows[:98]


def test_rows_in_any_order_and_twice_are_put_in_order() -> None:
    rows = [row(n) for n in range(1_500)]
    sound = Asked(rows, "first", 400, START + 2_000 * MINUTE)

    async def shuffled(interval: str, since_ms: int, limit: int) -> PageAnswer:
        found, now_ms = await sound(interval, since_ms, limit)
        return PageAnswer([*found[1::2], *found[::2], *found[:3]], now_ms)

    assert pulled(shuffled, until=START + 1_500 * MINUTE) == rows


def test_a_candle_that_changes_between_two_pages_ends_the_pull() -> None:
    rows = [row(n) for n in range(1_500)]
    sound, asked = Asked(rows, "first", 400, START + 2_000 * MINUTE), 0

    async def changing(interval: str, since_ms: int, limit: int) -> PageAnswer:
        nonlocal asked
        asked += 1
        found, now_ms = await sound(interval, since_ms, limit)
        return PageAnswer([one._replace(close=one.close + asked) for one in found], now_ms)

    with pytest.raises(NoAnswer, match="with other values than before"):
        pulled(changing, until=START + 1_500 * MINUTE)


def test_nothing_at_all_ends() -> None:
    for way in ("first", "window", "newest"):
        assert pulled(Asked([], way, 300, START + 90 * DAY), until=START + 90 * DAY) == []
