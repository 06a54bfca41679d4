"""Days that are built of shorter candles, and stores with several intervals of a market."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import chosen, resample
from bot.backtest.data.store import Store
from bot.cli.app import call
from bot.clock import DAY_MS, HOUR_MS
from bot.service.market_data.instruments import CATALOGUE
from bot.service.market_data.price_feed import PriceFeed, RecordedSource
from bot.service.market_data.simulator import GridCandle
from bot.service.market_data.trading_hours import is_trading_day
from bot.wire import INTERVAL_MS
from tests.backtest.builders import START_MS, config, minutes

NEW_YORK = ZoneInfo("America/New_York")
# What a feed has of a trading day, on New York's clock: from a time of the day, or of the evening before, to a time of
# the day.
FEEDS = {
    "regular hours": ("SPY", time(9, 30), time(16), False),
    "pre- and post-market": ("SPY", time(4), time(20), False),
    "around the clock on five days": ("AAPL", time(20), time(20), True),
    "an index around the clock": ("SP500", time(18), time(17), True),
    "an index in regular hours": ("SP500", time(9, 30), time(16), False),
}
WEEKS = {
    "winter": date(2025, 1, 13),
    "summer": date(2025, 7, 7),
    "clocks go forward": date(2025, 3, 3),
    "clocks go back": date(2025, 10, 27),
}


def ms(day: date, clock: time) -> int:
    return int(datetime.combine(day, clock, NEW_YORK).timestamp()) * 1000


def candles_of(feed: str, week: str, interval: str) -> tuple[Candles, dict[date, float], dict[date, int]]:
    """Two weeks of a feed, each candle with a volume of 1; the volume of each trading day, and when its last "
    "candle ends."""
    market, begins, ends, is_evening = FEEDS[feed]
    step, at_ms = INTERVAL_MS[interval], array("q")
    volumes: dict[date, float] = defaultdict(float)
    ends_ms: dict[date, int] = {}
    for n in range(14):
        day = WEEKS[week] + timedelta(days=n)
        if not is_trading_day(day):
            continue
        start, end = ms(day - timedelta(days=is_evening), begins), ms(day, ends)
        for at in range(start - start % step, end, step):
            if not at_ms or at > at_ms[-1]:
                at_ms.append(at)
                volumes[day] += 1
                ends_ms[day] = at + step
    flat, ones = array("d", [100.0] * len(at_ms)), array("d", [1.0] * len(at_ms))
    return Candles(market, interval, at_ms, flat, flat, flat, flat, ones), volumes, ends_ms


def ends_of(made: Candles) -> Iterator[datetime]:
    return (datetime.fromtimestamp((at + DAY_MS) / 1000, UTC) for at in made.at_ms)


@pytest.mark.parametrize("interval", ["5m", "1h", "4h"])
@pytest.mark.parametrize("week", WEEKS)
@pytest.mark.parametrize("feed", FEEDS)
def test_each_trading_day_is_one_bar_with_all_of_its_candles(feed: str, week: str, interval: str) -> None:
    series, volumes, ends_ms = candles_of(feed, week, interval)
    made = resample(series, "1d", known_ms=series.end_ms + 2 * DAY_MS)
    assert list(made.volume) == list(volumes.values())
    closes_at = time(18 if FEEDS[feed][0] == "SP500" else 20)
    for day, end in zip(volumes, ends_of(made), strict=True):
        late_ms = end.timestamp() * 1000 - ms(day, closes_at)
        assert 0 <= late_ms < series.step_ms, "it closes when its trading day ends, or with the candle in which it ends"
        assert end.timestamp() * 1000 >= ends_ms[day], "it is not known before its candles are"


@pytest.mark.parametrize("interval", ["5m", "1h", "4h"])
@pytest.mark.parametrize("week", WEEKS)
@pytest.mark.parametrize("feed", FEEDS)
def test_a_service_on_recorded_prices_has_the_same_days(feed: str, week: str, interval: str) -> None:
    series, _, _ = candles_of(feed, week, interval)
    made = resample(series, "1d")
    candles = [GridCandle(at, 100, 100, 100, 100, 1) for at in series.at_ms]
    kind = CATALOGUE[series.market].spec.hours
    # Before, amid and after the history.
    for begun in (0, len(candles) // 2, len(candles) - 1):
        feed_of = PriceFeed({series.market: RecordedSource(candles, series.step_ms, sessions=kind)})
        feed_of.start(candles[begun].ts - 1)
        store = feed_of.store(series.market)
        while feed_of.next_ms() is not None:
            feed_of.pop()
        bars = [bar for bar, is_closed in store.page("1d", 100, made.end_ms) if is_closed]
        assert [(bar.ts, bar.volume) for bar in bars][-len(made) :] == list(zip(made.at_ms, made.volume, strict=True))


@pytest.mark.parametrize(("market", "step"), [("BTC", "1h"), ("SPY", "1h")])
def test_a_market_that_goes_on_over_the_weekend_has_days_of_utc(market: str, step: str) -> None:
    at_ms = array("q", range(START_MS, START_MS + 14 * DAY_MS, HOUR_MS))
    flat = array("d", [1.0] * len(at_ms))
    made = resample(Candles(market, step, at_ms, flat, flat, flat, flat, flat), "1d")
    assert list(made.at_ms) == list(range(START_MS, START_MS + 14 * DAY_MS, DAY_MS))


def test_a_first_day_that_lacks_its_morning_is_left_out() -> None:
    series, volumes, _ = candles_of("pre- and post-market", "winter", "1h")
    late = series.slice(series.at_ms[0] + HOUR_MS)
    made = resample(late, "1d", known_ms=late.end_ms + DAY_MS)
    assert list(made.volume) == list(volumes.values())[1:]


# ── Several intervals ───────────────────────────────────────────────────────────────────────────────────────────────


def mixed() -> tuple[Candles, Candles]:
    """Sixty days, and the hours of the last five."""
    days = minutes(60, interval="1d")
    return days, minutes(120, interval="1h", start_ms=START_MS + 55 * DAY_MS)


@pytest.mark.parametrize(
    ("start_ms", "longest", "interval", "says"),
    [
        (None, "1d", "1h", "the 1d candles of 2025-06-01T00:00 to 2025-07-31T00:00 are left out"),
        (START_MS + 10 * DAY_MS, "1d", "1d", "the 1h candles of 2025-07-26T00:00 to 2025-07-31T00:00 are left out"),
        (START_MS - 10 * DAY_MS, "1d", "1d", "the 1h candles of 2025-07-26T00:00 to 2025-07-31T00:00 are left out"),
        (START_MS + 56 * DAY_MS, "1d", "1h", "the 1d candles of 2025-06-01T00:00 to 2025-07-31T00:00 are left out"),
        (START_MS + 10 * DAY_MS, "1h", "1h", None),
    ],
)
def test_the_shortest_interval_that_covers_the_start_is_used_and_the_others_are_named(
    start_ms: int | None, longest: str, interval: str, says: str | None
) -> None:
    (taken,), left = chosen(mixed(), start_ms, {"BTC": INTERVAL_MS[longest]})
    assert taken.interval == interval
    assert [says in line for line in left] == ([True] if says else [])


def test_a_store_with_days_and_hours_says_what_it_leaves_out_and_the_way_to_it_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(tmp_path / "st").write_all(mixed())
    yaml = config(tmp_path)
    yaml.write_text(yaml.read_text().replace("interval: 1m", "interval: 1d"))

    def bars(*options: str) -> str:
        out = ("--out", str(tmp_path / "runs"))
        assert call(["backtest", str(yaml), "--data", str(tmp_path / "st"), *out, *options]) == 0
        return capsys.readouterr().out

    (tmp_path / "cross").mkdir()
    slow = config(tmp_path / "cross", use="bench:Cross", slow_bars=30)
    slow.write_text(slow.read_text().replace("interval: 1m", "interval: 1d"))
    assert call(["backtest", str(slow), "--data", str(tmp_path / "st"), "--out", str(tmp_path / "runs")]) == 4
    refused = capsys.readouterr().err
    assert "the warm-up is longer than the data: a strategy needs" in refused
    assert "the 1d candles of 2025-06-01T00:00 to 2025-07-31T00:00 are left out" in refused
    said = bars()
    assert "prices come from 1h candles" in said
    assert "--from 2025-06-01T00:00 uses them" in said
    said = bars("--from", "2025-06-01T00:00")
    run = said.rpartition("Results: ")[2].strip()
    assert call(["replay", run, "--data", str(tmp_path / "st")]) == 0, "it replays on the same interval"
    capsys.readouterr()
    assert "prices come from 1d candles" in said
    assert "2025-06-01T00:00 to 2025-07-31T00:00   60 bars" in said
    assert "--from 2025-07-26T00:00 uses them" in said
    assert "prices come from 1h candles" in bars("--from", "2025-07-26T00:00")
