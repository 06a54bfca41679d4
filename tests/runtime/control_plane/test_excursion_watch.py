"""The lowest and the highest price of each closed trade, recorded by the daemon from the service's candles."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.errors import ApiError, OutcomeUnknown, Refused
from bot.runtime.control_plane.excursion_watch import ExcursionWatch
from bot.runtime.journal import queries
from bot.runtime.journal.round_trips import TYPES_WITH_STOPS, Trip, trips, with_extremes
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.excursions import PriceBar, extremes, prices_between
from bot.strategy import Bracket, Close, Open
from tests.faulty_port import Fault, FaultyPort
from tests.runtime.builders import make_kernel, minutes

CLOSES = ("100", "101", "97", "104", "102", "99", "103")


def decide(view: Any, bar: Any) -> Iterable[Any]:
    """Long from the first bar to the fifth."""
    if view.position("BTC") is None:
        return [Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=10))] if bar.close == 100 else []
    return [Close("BTC")] if bar.close == 102 else []


async def traded(folder: Path) -> tuple[Kernel, FaultyPort, ExcursionWatch]:
    venue = FaultyPort()
    kernel = make_kernel(venue, decide, path=folder / queries.FILE)
    await kernel.recover()
    watch = ExcursionWatch(venue, kernel.journal)
    watch._extremes.begin()
    await minutes(kernel, venue, *CLOSES)
    return kernel, venue, watch


def closed(folder: Path) -> list[Trip]:
    with queries.opened(folder) as db:
        every = with_extremes(trips(queries.all_events(db, TYPES_WITH_STOPS)), queries.trade_extremes(db))
        return [trip for trip in every if trip.closed_ms is not None]


async def test_a_closed_trade_gets_the_extremes_of_the_candles_between_its_fills(tmp_path: Path) -> None:
    kernel, venue, watch = await traded(tmp_path)
    assert [trip.low_px for trip in closed(tmp_path)] == [None], "not known, and not 0"
    await watch.look()
    (trip,) = closed(tmp_path)
    assert trip.opened_ms is not None and trip.closed_ms is not None
    row = trip.row(lambda _keys: [])
    between = [
        bar
        for bar in venue.candle_rows["BTC"]
        if trip.opened_ms <= bar.ts and bar.ts + 60_000 <= trip.closed_ms and bar.closed
    ]
    assert len(between) >= 3
    prices = [Decimal(row["entry_px"]), Decimal(row["exit_px"])]
    prices += [Decimal(str(px)) for bar in between for px in (bar.low, bar.high)]
    assert (trip.low_px, trip.high_px) == (min(prices), max(prices))
    risk = Decimal(row["entry_px"]) - Decimal(row["first_stop_px"])
    assert row["mae_r"] == f"{(min(prices) - prices[0]) / risk:.4f}"
    assert row["mfe_r"] == f"{(max(prices) - prices[0]) / risk:.4f}"
    assert trip.excursion is not None and trip.excursion.adverse_pct > 0
    calls = len(venue.calls)
    await watch.look()
    assert len(venue.calls) == calls, "each trade is asked for once"
    kernel.journal.close()


async def test_a_restart_goes_on_after_the_last_recorded_trade(tmp_path: Path) -> None:
    kernel, venue, _ = await traded(tmp_path)
    again = ExcursionWatch(venue, kernel.journal)
    again._extremes.begin()
    await again.look()
    assert closed(tmp_path)[0].low_px is not None, "the trade closed while nobody looked"
    kernel.journal.close()


async def test_trades_from_before_the_journal_recorded_extremes_stay_unknown(tmp_path: Path) -> None:
    kernel, venue, _ = await traded(tmp_path)
    kernel.journal.state.forget_note("extremes_seq")
    watch = ExcursionWatch(venue, kernel.journal)
    watch._extremes.begin()
    await watch.look()
    (trip,) = closed(tmp_path)
    row = trip.row(lambda _keys: [])
    assert (trip.excursion, row["low_px"], row["mae_r"], row["mfe_r"]) == (None, None, None, None)
    assert row["first_stop_px"] is not None, "the first stop is in its order"
    kernel.journal.close()


@pytest.mark.parametrize(
    ("fault", "is_known"),
    [(OutcomeUnknown("unknown", "no answer"), True), (Refused("not_found", "no candles"), False)],
    ids=["away for one look", "has no candles"],
)
async def test_a_service_that_is_away_is_asked_again_and_one_without_candles_is_not(
    fault: ApiError, is_known: bool, tmp_path: Path
) -> None:
    kernel, venue, watch = await traded(tmp_path)
    venue.faults.append(Fault("candles", fault, count=1 if is_known else 99))
    venue.faults.append(Fault("longer candles", fault, count=0 if is_known else 99))
    await watch.look()
    assert closed(tmp_path)[0].low_px is None
    venue.faults.clear()
    await watch.look()
    assert (closed(tmp_path)[0].low_px is not None) == is_known
    kernel.journal.close()


def test_only_bars_that_lie_whole_between_entry_and_exit_count() -> None:
    bars = [PriceBar(0, 1, 99), PriceBar(60, 10, 20), PriceBar(120, 8, 15), PriceBar(180, 2, 98)]
    assert list(prices_between(bars, 60, 30, 200)) == [10, 20, 8, 15]
    assert extremes([12, *prices_between(bars, 60, 30, 200)]) == (8, 20)
    assert list(prices_between(bars, 60, 70, 100)) == []
