"""Funding of markets with an outside price, on candles of every length: a price that stands still while the exchange
is closed has no premium.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from bot.backtest.data.candles import Candles
from bot.model.events import FundingPaid
from bot.service.host import HostOptions, build
from bot.service.market_data.instruments import CATALOGUE
from bot.service.market_data.trading_hours import session_at
from bot.strategy import Bar, Bracket, Intent, Open, View
from bot.venue.model.commands import OpenAccount, PassPoints, PlaceOrder, SetMarket
from bot.venue.model.numbers import E8
from bot.venue.model.state import OrderSpec
from bot.wire import INTERVAL_MS
from tests.backtest.builders import FREE, ran, settings, write
from tests.builders import VenueDriver, e8, market

MARKETS = {"equity": "AAPL", "index": "SP500"}
# The first day, how many days, and what turns in them.
SPANS = {
    "weeks in summer": ("2018-06-07", 6),
    "weeks in winter": ("2018-01-25", 6),
    "holiday and half day": ("2018-11-20", 7),
    "half day before a holiday": ("2018-12-21", 6),
    "half day in summer": ("2018-07-02", 5),
    "holiday on a Monday": ("2018-01-11", 6),
    "clocks go back": ("2018-11-01", 6),
    "clocks go forward": ("2018-03-08", 6),
}
STEP_MS = INTERVAL_MS["15m"]


def prices(kind: str, start: datetime, days: int) -> Iterator[tuple[int, int, bool]]:
    """Instant, price in dollars and whether the session is open, every quarter of an hour. The price moves, and jumps
    when the exchange opens, but it stands still while the exchange is closed.
    """
    px, was_open = 200, False
    first = int(start.timestamp() * 1_000)
    for number, at_ms in enumerate(range(first, first + days * INTERVAL_MS["1d"], STEP_MS)):
        is_open = session_at(kind, at_ms).is_open
        if is_open:
            px += 7 if not was_open else (3, -2, -4, 3)[number // 3 % 4]
        was_open = is_open
        yield at_ms, px, is_open


def candles(kind: str, interval: str, span: str, *, is_round_the_clock: bool) -> Candles:
    """A file of a market that is quoted around the clock, or of an exchange that has candles in its sessions only."""
    day, days = SPANS[span]
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    length = INTERVAL_MS[interval]
    columns: tuple[array[float], ...] = tuple(array("d") for _ in range(5))
    stamps = array("q")
    quarters = list(prices(kind, start - timedelta(days=1), days + 1))[-days * 96 - 1 :]
    for (_, before, _), (at_ms, px, is_open) in pairwise(quarters):
        if not is_open and not is_round_the_clock:
            continue
        for ts in range(at_ms, at_ms + STEP_MS, length) if length < STEP_MS else (at_ms - at_ms % length,):
            opened = px if not is_round_the_clock and (not stamps or stamps[-1] + length <= at_ms - STEP_MS) else before
            if stamps and stamps[-1] == ts:
                _, high, low, close, _ = columns
                high[-1], low[-1], close[-1] = max(high[-1], px), min(low[-1], px), px
                continue
            stamps.append(ts)
            for column, value in zip(columns, (opened, max(opened, px), min(opened, px), px, 1), strict=True):
                column.append(value)
    return Candles(MARKETS[kind], interval, stamps, *columns)


def hold(view: View, bar: Bar) -> Iterable[Intent]:
    if view.position(bar.market) is None:
        yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=60))


def paid_on(data: Candles) -> list[FundingPaid]:
    """The funding of a position that is held from the second candle on."""
    made = settings([data.market], interval=data.interval)
    found = ran([data], made=made, script=hold, rules=FREE)
    return [one for one in found.test.exchange.event_buffer.events if isinstance(one, FundingPaid)]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("interval", INTERVAL_MS)
@pytest.mark.parametrize("kind", MARKETS)
@pytest.mark.parametrize("is_round_the_clock", [False, True], ids=["sessions", "all-hours"])
def test_a_flat_premium_pays_the_baseline(span: str, interval: str, kind: str, is_round_the_clock: bool) -> None:
    paid = paid_on(candles(kind, interval, span, is_round_the_clock=is_round_the_clock))
    baseline = CATALOGUE[MARKETS[kind]].spec.funding_rate
    assert len(paid) > 48
    assert [(one.ts, one.rate) for one in paid if one.rate != baseline] == []


@pytest.mark.parametrize("interval", ["1m", "1h", "4h", "1d"])
def test_a_price_that_moves_while_the_exchange_is_closed_has_a_premium(interval: str) -> None:
    """Over a weekend the price stands 10 % above the last price of the session."""
    data = candles("index", interval, "weeks in summer", is_round_the_clock=True)
    friday_ms = int(datetime(2018, 6, 8, 21, tzinfo=UTC).timestamp() * 1_000)
    for row, at_ms in enumerate(data.at_ms):
        if friday_ms <= at_ms and not session_at("index", at_ms + data.step_ms - 1).is_open:
            for column in (data.open, data.high, data.low, data.close):
                column[row] = round(column[row] * 1.1, 2)
    saturday_ms = friday_ms + INTERVAL_MS["1d"]
    rates = {one.rate for one in paid_on(data) if saturday_ms - 1 < one.ts < saturday_ms + INTERVAL_MS["1d"]}
    assert min(rates) > 100 * CATALOGUE["SP500"].spec.funding_rate


def test_the_oracle_stops_at_the_close_of_the_bar_in_which_the_session_ends() -> None:
    """The daily candle of a half day: its low comes before the exchange closes at 22:00 UTC, and its close a moment
    before midnight.
    """
    venue = VenueDriver(
        (market("AAPL", margin_mode="isolated", hours="equity", bar_length_ms=INTERVAL_MS["1d"]), "200")
    )
    day_ms = venue.state.now_ms
    closes_ms = day_ms + 22 * INTERVAL_MS["1h"]
    venue.do(SetMarket("AAPL", external="open", turns_ms=closes_ms))

    def point(at_ms: int, px: str, step: int) -> None:
        venue.now_ms = at_ms
        venue.do(PassPoints(((at_ms, "AAPL", e8(px), step, day_ms, E8, None, e8("203")),), at_ms))

    for hour, px, step in ((0, "200", 0), (8, "210", 1), (16, "190", 2)):
        point(day_ms + hour * INTERVAL_MS["1h"], px, step)
    venue.now_ms = closes_ms
    venue.do(SetMarket("AAPL", external="closed", turns_ms=closes_ms + INTERVAL_MS["1d"]))
    listed = venue.state.markets["AAPL"]
    assert (listed.mark, listed.oracle) == (e8("190"), e8("203"))
    point(day_ms + INTERVAL_MS["1d"] - 1, "203", 3)
    assert listed.oracle == e8("203")


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("interval", ["1h", "4h", "1d"])
@pytest.mark.parametrize("kind", MARKETS)
@pytest.mark.parametrize("is_round_the_clock", [False, True], ids=["sessions", "all-hours"])
def test_a_flat_premium_pays_the_baseline_in_a_sandbox_on_recorded_candles_too(
    span: str, interval: str, kind: str, is_round_the_clock: bool, tmp_path: Path
) -> None:
    data = candles(kind, interval, span, is_round_the_clock=is_round_the_clock)
    coin = data.market
    options = HostOptions(clock="manual", data=((coin, write(data, tmp_path / f"{coin}.csv")),), markets=(coin,))
    machine = build(options, control_token="bbc_hours").machine
    machine.catch_up()
    machine.run(OpenAccount("me", "0x0", None, 10_000 * E8))
    machine.run(PlaceOrder("me", OrderSpec(coin, 1, usd=500 * E8, leverage=1)))
    assert machine.state.accounts["me"].positions
    machine._catch_up_to(data.end_ms - 1)
    paid = [one for one in machine.state.accounts["me"].events if isinstance(one, FundingPaid)]
    assert len(paid) > 20
    baseline = CATALOGUE[coin].spec.funding_rate
    assert [(one.ts, one.rate) for one in paid if one.rate != baseline] == []
