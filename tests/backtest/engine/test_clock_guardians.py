"""MaxHold, schedules and the dead-man switch in a backtest: in a gap they fill at the next open, inside a candle
near the real price of the instant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.candles import Candles, load
from bot.backtest.data.resampling import resample
from bot.backtest.engine.options import PATHS, Outage
from bot.backtest.results.assumptions import assumptions_of
from bot.clock import HOUR_MS, ms_of
from bot.strategy import Bar, Bracket, Close, Intent, MaxHold, Open, View
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, Ran, Script, busy, minutes, ran, settings
from tests.backtest.engine.builders import FLAT, candles

WIDE = Bracket(stop_pct=50)
LOWER = (90_000.0, 90_500.0, 89_500.0, 90_200.0)
# minutes 5 to 8 are missing, and the market falls by 10 % meanwhile
HOLE_MS = START_MS + 5 * MINUTE_MS
OPENS_MS = START_MS + 9 * MINUTE_MS
SCHEDULE = [{"type": "schedule", "cron": "7 0 * * *", "action": "flatten"}]
DEAD_MAN = {"heartbeat_seconds": 60, "on_miss": "flatten"}


def holed() -> Candles:
    whole = candles(*[FLAT] * 9, *[LOWER] * 6)
    return whole.pick([row for row in range(15) if row not in (5, 6, 7, 8)])


def opens_once(seconds: int | None = None) -> Script:
    guardians = () if seconds is None else (MaxHold(seconds=seconds),)

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if view.state.setdefault("first", bar.at_ms) == bar.at_ms:
            yield Open(bar.market, "long", usd=1_000, bracket=WIDE, guardians=guardians)

    return script


def found(one: Ran, kind: str, subtype: str | None = None) -> list[dict[str, Any]]:
    events = [event for line in one.lines if (event := json.loads(line))["type"] == kind]
    return [
        event for event in events if subtype is None or event.get("subtype", event["data"].get("subtype")) == subtype
    ]


@pytest.mark.parametrize(
    ("guardian", "fires_ms", "seconds", "options"),
    [
        ("max_hold", START_MS + 6 * MINUTE_MS, 300, {}),
        # the instant at which the last candle has ended
        ("max_hold", HOLE_MS, 240, {}),
        ("schedule", START_MS + 7 * MINUTE_MS, None, {"guardians": SCHEDULE}),
        ("dead_man_switch", None, None, {"dead_man": DEAD_MAN}),
    ],
)
@pytest.mark.parametrize("skip", [True, False])
def test_a_guardian_in_a_gap_of_candles_closes_at_the_next_open(
    guardian: str, fires_ms: int | None, seconds: int | None, options: dict[str, Any], skip: bool
):
    outages = (Outage(START_MS + 5 * MINUTE_MS, 8 * MINUTE_MS),) if guardian == "dead_man_switch" else ()
    made = settings(**options)
    one = ran([holed()], made=made, script=opens_once(seconds), rules=FREE, outages=outages, skip=skip)
    (fired,) = found(one, "guardian", "fired")
    assert fired["data"]["guardianType"] == guardian
    assert HOLE_MS <= fired["ts"] < OPENS_MS
    assert fires_ms in (None, fired["ts"])
    entry, leave = found(one, "fill")
    assert (entry["data"]["px"], leave["data"]["px"], leave["ts"]) == ("100000", "90000", OPENS_MS)
    assert fired["data"]["tradeIds"] == [leave["data"]["tradeId"]]
    stops = [event for event in found(one, "order") if event["data"].get("kind") == "stop_loss"]
    assert stops[-1]["ts"] == OPENS_MS, "the stop stands until the position is gone"
    assert one.result.trade_ledger.slippage == 0


@pytest.mark.parametrize("hours", [5, 24])
def test_shares_held_for_a_while_over_a_weekend_are_closed_at_mondays_open(shared: Path, hours: int):
    """From Friday 20:00 UTC on, when its last candle ends, there is no price; on Saturday at 15:00 neither."""
    data = load([shared / "data/stocks/lean_SPY_1h.csv.gz"], market="SPY")
    start_ms, end_ms = (ms_of(datetime(2021, 3, day, hour, tzinfo=UTC)) for day, hour in ((19, 15), (23, 0)))
    made = settings(["SPY"], interval="1h")
    one = ran(data, made=made, script=opens_once(hours * 3_600), rules=FREE, start_ms=start_ms, end_ms=end_ms)
    (fired,) = found(one, "guardian", "fired")
    _, leave = found(one, "fill")
    assert fired["ts"] == start_ms + HOUR_MS * hours
    assert (leave["data"]["px"], leave["ts"]) == ("390.01", ms_of(datetime(2021, 3, 22, 13, tzinfo=UTC)))


def test_a_strategys_close_and_a_guardians_exit_in_one_gap_close_once():
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        yield from opens_once(300)(view, bar)
        if bar.at_ms == HOLE_MS:
            yield Close(bar.market)

    one = ran([holed()], script=script, rules=FREE)
    assert [event["ts"] for event in found(one, "fill")] == [START_MS + MINUTE_MS, OPENS_MS]
    assert not one.test.exchange.account.positions


def test_a_drawdown_closes_a_market_without_a_price_at_its_next_open():
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open(bar.market, "long", usd=1_000, bracket=WIDE)

    falls = candles(*[FLAT] * 6, (100_000.0, 100_000.0, 80_000.0, 80_000.0), *[(80_000.0,) * 4] * 6, market="ETH")
    loss = [{"type": "account_drawdown", "max_loss_pct_from_day_start": 1, "action": "flatten"}]
    one = ran([holed(), falls], made=settings(("BTC", "ETH"), guardians=loss), script=script, rules=FREE)
    (fired,) = found(one, "guardian", "fired")
    exits = {e["coin"]: (e["ts"], e["data"]["px"]) for e in found(one, "fill", "exit")}
    assert HOLE_MS < fired["ts"] == exits["ETH"][0] < OPENS_MS
    assert exits["BTC"] == (OPENS_MS, "90000")


def test_inside_an_hour_max_hold_closes_half_as_far_from_the_minutes_as_the_paths_last_point(shared: Path):
    """Mean distance in bps from the minute's price, over a month of hours: 21 for the last of the hour's four
    prices, 11 on its straight line.
    """
    (fine,) = load([shared / "data/crypto/binance_BTCUSDT_1m_202505.csv.gz"], market="BTC")
    px_at = dict(zip(fine.at_ms, fine.open, strict=True))
    hours = resample(fine, "1h", known_ms=fine.end_ms)

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            held = 60 * (60 + bar.at_ms // HOUR_MS * 7 % 60)
            yield Open(bar.market, "long", usd=1_000, bracket=WIDE, guardians=(MaxHold(seconds=held),))

    one = ran([hours], made=settings(interval="1h"), script=script, rules=FREE)
    far = [abs(float(e["data"]["px"]) / px_at[e["ts"]] - 1) * 10_000 for e in found(one, "fill", "exit")]
    assert len(far) > 200
    assert sum(far) / len(far) < 12
    assert one.result.trade_ledger.slippage < len(far) * 2 * 10**6, "of 1,000 USD each, a rounding to the grid"


@pytest.mark.parametrize("guardian", ["schedule", "dead_man_switch"])
def test_a_clock_guardians_close_inside_a_candle_slips_only_by_the_spread(guardian: str):
    steep = (100_000.0, 106_000.0, 99_000.0, 104_000.0)
    data = Candles("BTC", "1h", *candles(FLAT, FLAT, steep, FLAT).columns)
    for row in range(4):
        data.at_ms[row] = START_MS + row * HOUR_MS
    options: dict[str, Any] = {"guardians": [{"type": "schedule", "cron": "30 2 * * *", "action": "flatten"}]}
    outages: tuple[Outage, ...] = ()
    if guardian == "dead_man_switch":
        options, outages = (
            {"dead_man": {"heartbeat_seconds": 1_800, "on_miss": "flatten"}},
            (Outage(START_MS + 2 * HOUR_MS, HOUR_MS),),
        )
    one = ran([data], made=settings(interval="1h", **options), script=opens_once(), rules=FREE, outages=outages)
    (fired,) = found(one, "guardian", "fired")
    _, leave = found(one, "fill")
    assert leave["ts"] == fired["ts"]
    assert float(leave["data"]["px"]) == pytest.approx(
        100_000 + 4_000 * (fired["ts"] - START_MS - 2 * HOUR_MS) / HOUR_MS, abs=1
    )
    # a rounding to the grid
    assert abs(one.result.trade_ledger.slippage) < 2 * 10**6


def holding(view: View, bar: Bar) -> Iterable[Intent]:
    """Like `busy`, with exits by the clock inside candles, between them and in gaps."""
    n = bar.at_ms // MINUTE_MS
    for intent in busy(view, bar):
        if isinstance(intent, Open) and intent.limit_px is None:
            intent = Open(
                intent.market, intent.side, usd=intent.usd, bracket=WIDE, guardians=(MaxHold(seconds=60 + n % 7 * 50),)
            )
        yield intent


@pytest.mark.soak(worlds=3, full=100)
def test_clock_guardians_over_bars_skipped_and_bars_fed_give_the_same_events(worlds: int, base_seed: int):
    for world in range(base_seed, base_seed + worlds):
        data = [
            minutes(900, seed=world, hole=0.2),
            minutes(900, seed=world, market="ETH", px=2_500, hole=0.05),
            minutes(180, seed=world, market="SOL", px=170, interval="5m", decimals=3, hole=0.1),
        ][: 1 + world % 3]
        body: dict[str, Any] = {
            "dead_man": {"heartbeat_seconds": 300, "on_miss": "flatten"},
            "guardians": [{"type": "schedule", "cron": "*/47 * * * *", "action": "cancel_orders"}],
        }
        made = settings([one.market for one in data][:2], **body)
        if len(data) == 3:
            plain = made.model_dump()
            five = plain["strategies"][0] | {"name": "five", "markets": ("SOL",), "interval": "5m"}
            made = type(made).model_validate(plain | {"strategies": [*plain["strategies"], five]})
        outages = (Outage(START_MS + 333_333 + 300 * MINUTE_MS, 60 * MINUTE_MS),)
        skipped, fed = (
            ran(data, made=made, script=holding, path=PATHS[world % 4], outages=outages, skip=skip)
            for skip in (True, False)
        )
        assert skipped.lines == fed.lines
        assert {"max_hold", "dead_man_switch"} <= {e["data"]["guardianType"] for e in found(fed, "guardian", "fired")}


def test_the_assumptions_name_the_price_of_clock_guardians():
    one = ran([holed()], script=opens_once())
    said = assumptions_of(one.test.session.timeline, one.test.options, one.test.exchange, funded=[])
    assert any(
        line.startswith("MaxHold,") and line.endswith("straight line from its open to its close") for line in said
    )
    assert "where candles are missing there is no price: what a guardian closes there fills at the next open" in said
