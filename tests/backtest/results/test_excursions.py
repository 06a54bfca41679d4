"""The lowest and the highest price of a trade, compared with candles worked out by hand, and its place in
trades.csv.
"""

from __future__ import annotations

import csv
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import SessionOptions
from bot.backtest.results.excursions import extremes_of
from bot.backtest.results.layout import COLUMNS, EXTREMES
from bot.backtest.results.run_reader import _trades
from bot.backtest.results.run_writer import write
from bot.errors import BotError
from bot.runtime.journal import queries
from bot.runtime.journal.queries import FILE
from bot.runtime.journal.round_trips import TYPES_WITH_STOPS, trips, with_extremes
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from bot.venue.model.numbers import E8
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, Ran, busy, minutes, placing, ran, settings

# The venue reaches the extreme nearer to the open first: in the second bar the low, in the third the high.
BARS = [(100, 101, 99, 100), (100, 104, 98, 102), (102, 103, 90, 95), (97, 120, 80, 97), (97, 98, 96, 97)]


def by_hand() -> Candles:
    columns = [array("d", [float(bar[n]) for bar in BARS]) for n in range(4)]
    times = array("q", [START_MS + n * MINUTE_MS for n in range(len(BARS))])
    return Candles("BTC", "1m", times, *columns, array("d", [1_000.0] * len(BARS)))


def extremes(one: Ran) -> list[tuple[float, float]]:
    found = extremes_of(one.result.timeline.readers, one.result.trade_ledger.trips, one.result.path)
    return [(low / E8, high / E8) for low, high in found]


def scripted(**signals: Intent) -> Ran:
    """Each signal after the close of the bar in its name: after_0, after_2."""

    def script(_view: View, bar: Bar) -> Iterable[Intent]:
        signal = signals.get(f"after_{(bar.at_ms - START_MS) // MINUTE_MS - 1}")
        return () if signal is None else (signal,)

    return ran([by_hand()], script=script, rules=FREE)


def test_a_stop_ends_a_trade_at_its_level_and_not_at_the_low_of_the_bar() -> None:
    one = scripted(after_0=Open("BTC", "long", usd=100, bracket=Bracket(stop_px=95)))
    assert [trip.exit_kind for trip in one.result.trade_ledger.trips] == ["stop_loss"]
    assert extremes(one) == [(95.0, 104.0)]


def test_the_bar_that_opens_with_the_exit_is_not_part_of_the_trade() -> None:
    one = scripted(after_0=Open("BTC", "short", usd=100, bracket=Bracket(stop_px=150)), after_2=Close("BTC"))
    assert extremes(one) == [(90.0, 104.0)]


def test_a_trade_that_begins_inside_a_bar_saw_only_the_rest_of_that_bar() -> None:
    limit = Open("BTC", "short", usd=100, limit_px=103.5, bracket=Bracket(stop_px=150))
    assert extremes(scripted(after_0=limit, after_1=Close("BTC"))) == [(102.0, 104.0)], "the low of 98 came before"


def test_a_trade_that_is_open_at_the_end_lasts_until_then() -> None:
    one = scripted(after_0=Open("BTC", "long", usd=100, bracket=Bracket(stop_px=50)))
    assert extremes(one) == [(80.0, 120.0)]


def test_extremes_of_many_trades_hold_their_fills_and_lie_within_their_bars() -> None:
    one = ran([minutes(3_000, seed=4)])
    (reader,) = one.result.timeline.readers
    trips = list(one.result.trade_ledger.trips)
    assert len(trips) > 30
    for trip, (low, high) in zip(trips, extremes(one), strict=True):
        first, last = (bisect_right(reader.ts, at) - 1 for at in (trip.entry_ms, trip.exit_ms or reader.ts[-1]))
        assert low <= trip.entry_notional / trip.bought <= high
        assert not trip.sold or low <= trip.exit_notional / trip.sold <= high
        # a fill pays the spread, beyond the price
        around = 0.001 * high
        assert min(reader.low[first : last + 1]) - around <= low
        assert high <= max(reader.high[first : last + 1]) + around
        # Every bar between the first and the last is whole.
        if last > first + 2:
            assert low <= min(reader.low[first + 1 : last])
            assert high >= max(reader.high[first + 1 : last])
    assert all(before.entry_ms <= after.entry_ms for before, after in pairwise(trips))


def test_trades_csv_has_the_extremes_and_an_older_file_is_read_without_them(tmp_path: Path) -> None:
    one = scripted(after_0=Open("BTC", "long", usd=100, bracket=Bracket(stop_px=95)))
    write(tmp_path, one.result, {})
    path = tmp_path / "trades.csv"
    (trade,) = _trades(path)
    assert (trade.low_px, trade.high_px) == (95.0, 104.0)
    with path.open(newline="") as file:
        rows = [row[: -len(EXTREMES)] for row in csv.reader(file)]
    assert tuple(rows[0]) == COLUMNS
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    (trade,) = _trades(path)
    assert (trade.low_px, trade.high_px) == (None, None)
    path.write_text(path.read_text().replace("slippage_usd", "low_px"))
    with pytest.raises(BotError, match="the columns are not those of a run"):
        _trades(path)


def test_a_journal_has_the_extremes_of_its_trades_as_the_files_of_the_run_have(tmp_path: Path) -> None:
    candles = minutes(2_000, seed=4)
    test = Backtest(settings(["BTC"]), [candles], SessionOptions(), place=placing(busy), journal_path=tmp_path / FILE)
    result = test.run()
    expected = list(extremes_of(result.timeline.readers, result.trade_ledger.trips, result.path))
    by_exit = {(trip.coin, trip.exit_ms): pair for trip, pair in zip(result.trade_ledger.trips, expected, strict=True)}
    with queries.opened(tmp_path) as db:
        events = queries.all_events(db, TYPES_WITH_STOPS)
        closed = [trip for trip in with_extremes(trips(events), queries.trade_extremes(db)) if trip.closed_ms]
    assert len(closed) > 20
    for trip in closed:
        low, high = by_exit[trip.market, trip.closed_ms or 0]
        # An average price is rounded to 1e-8 in one and cut in the other.
        assert trip.low_px == pytest.approx(Decimal(low) / E8, abs=Decimal("2e-8"))
        assert trip.high_px == pytest.approx(Decimal(high) / E8, abs=Decimal("2e-8"))
