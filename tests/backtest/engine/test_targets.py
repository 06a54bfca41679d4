"""Several targets on one bracket and the stop at the entry, in a backtest.

All figures are computed by hand; fees and spread are zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.engine.options import Outage, SessionOptions
from bot.config import Settings
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.loader import load
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, Ran, minutes, placing, ran, settings, told
from tests.backtest.engine.builders import FLAT, candles
from tests.documents import PAGES, blocks

# At an entry of 100,000 the stop is 99,000 and the targets are 101,000 and 103,000.
TWO = Bracket(stop_pct=1, targets=[(0.5, "1R"), (0.5, "3R")])
SAFE = Bracket(stop_pct=1, targets=[(0.5, "1R"), (0.5, "3R")], break_even_at="1R")


def bar(px: float, high: float, low: float, close: float) -> tuple[float, float, float, float]:
    return px, high, low, close


# meets the first target
FIRST = bar(100_000, 101_200, 100_000, 101_200)
# meets the second target
SECOND = bar(101_200, 103_200, 101_200, 103_200)
# meets the stop
DOWN = bar(101_200, 101_200, 98_000, 98_000)


def entering(bracket: Bracket, *later: Intent, side: Any = "long", size: float = 0.01) -> Any:
    """An entry on the first bar, and one later signal on each bar from the third."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        n = (bar.at_ms - START_MS) // MINUTE_MS
        if n == 1:
            yield Open("BTC", side, size=size, bracket=bracket)
        elif 3 <= n < 3 + len(later):
            yield later[n - 3]

    return script


def often(view: View, bar: Bar) -> Iterable[Intent]:
    """An entry with three targets and a stop at the entry, whenever it is flat."""
    if view.position("BTC") is None:
        bracket = Bracket(stop_pct=0.2, targets=[(0.4, "1R"), (0.3, "2R"), (0.3, "3R")], break_even_at="1R")
        yield Open("BTC", "long" if bar.at_ms // MINUTE_MS % 2 else "short", usd=300, bracket=bracket)


def lived(bracket: Bracket, *bars: tuple[float, float, float, float], script: Any = None, **more: Any) -> Ran:
    return ran([candles(FLAT, FLAT, *bars)], script=script or entering(bracket), rules=FREE, **more)


def events(one: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in one.lines]


def exits(one: Ran) -> list[tuple[str, str, str]]:
    found = [event["data"] for event in events(one) if (event["type"], event["subtype"]) == ("fill", "exit")]
    return [(data["kind"], data["size"], data["px"]) for data in found]


def resting(one: Ran) -> list[tuple[str, str, str]]:
    found = [event["data"] for event in events(one) if (event["type"], event["subtype"]) == ("order", "open")]
    return [(data["kind"], data["size"], data["limitPx"]) for data in found if data["kind"] == "limit"]


def test_each_target_closes_its_part_and_the_last_one_all_that_is_left() -> None:
    one = lived(TWO, FIRST, SECOND, FLAT)
    assert resting(one) == [("limit", "0.005", "101000")]
    assert exits(one) == [("limit", "0.005", "101000"), ("take_profit", "0.005", "103000")]
    assert events(one)[-1]["data"]["positionSize"] == "0"


def test_the_stop_closes_what_the_first_target_has_left() -> None:
    assert exits(lived(TWO, FIRST, DOWN, FLAT)) == [("limit", "0.005", "101000"), ("stop_loss", "0.005", "99000")]


def test_the_stop_of_the_whole_position_leaves_no_target_order() -> None:
    one = lived(TWO, bar(100_000, 100_000, 98_000, 98_000), FLAT)
    assert exits(one) == [("stop_loss", "0.01", "99000")]
    gone = [event["data"]["kind"] for event in events(one) if event["subtype"] == "canceled"]
    assert sorted(gone) == ["limit", "take_profit"]


def test_once_the_price_has_met_the_level_the_rest_is_closed_at_the_entry() -> None:
    back = bar(101_000, 101_000, 99_500, 99_500)
    to_1r = bar(100_000, 101_000, 100_000, 101_000)
    assert exits(lived(SAFE, to_1r, back, FLAT))[-1] == ("guardian", "0.01", "100000"), "the limit needs a tick more"
    beyond = bar(101_000, 101_010, 99_500, 99_500)
    walked, masked = (exits(lived(SAFE, to_1r, beyond, FLAT, path=path)) for path in ("adaptive", "sl_first"))
    assert walked == [("limit", "0.005", "101000"), ("guardian", "0.005", "100010")]
    assert masked == [("guardian", "0.01", "100010")], "the bar still reaches the stop at the entry"


def test_a_short_has_its_targets_below_and_its_stop_at_the_entry_above() -> None:
    down = bar(100_000, 100_000, 98_800, 98_800)
    up = bar(98_800, 100_500, 98_800, 100_500)
    one = lived(SAFE, down, up, FLAT, script=entering(SAFE, side="short"))
    assert exits(one) == [("limit", "0.005", "99000"), ("guardian", "0.005", "99800")]


def test_parts_are_rounded_down_to_the_lot_and_the_last_target_takes_the_rest() -> None:
    thirds = Bracket(stop_pct=1, targets=[(1 / 3, "1R"), (1 / 3, "2R"), (1 / 3, "3R")])
    one = lived(thirds, FIRST, SECOND, FLAT, script=entering(thirds, size=0.00101))
    assert exits(one) == [
        ("limit", "0.00033", "101000"),
        ("limit", "0.00033", "102000"),
        ("take_profit", "0.00035", "103000"),
    ]


def test_fractions_below_one_leave_a_rest_without_a_target() -> None:
    half = Bracket(stop_pct=1, targets=[(0.25, "1R"), (0.25, "2R")])
    one = lived(half, FIRST, SECOND, FLAT)
    assert exits(one)[:2] == [("limit", "0.0025", "101000"), ("limit", "0.0025", "102000")]
    assert [event for event in events(one) if event["data"].get("kind") == "take_profit"] == []


@pytest.mark.parametrize("levels", [("1%", "3%"), (101_000, 103_000)])
def test_a_target_may_be_a_percentage_or_a_price(levels: tuple[Any, Any]) -> None:
    bracket = Bracket(stop_pct=2, targets=[(0.5, levels[0]), (0.5, levels[1])])
    one = lived(bracket, FIRST, SECOND, FLAT, script=entering(bracket))
    assert exits(one) == [("limit", "0.005", "101000"), ("take_profit", "0.005", "103000")]


def test_a_second_entry_brings_its_own_targets_and_its_bracket_replaces_the_first() -> None:
    more = Open("BTC", "long", size=0.004, bracket=TWO)
    at_100_500 = bar(100_000, 100_500, 100_000, 100_500)
    still = bar(100_500, 100_500, 100_500, 100_500)
    one = lived(TWO, at_100_500, still, still, script=entering(TWO, more))
    assert resting(one) == [("limit", "0.005", "101000"), ("limit", "0.002", "101505")]
    armed = [event["data"]["triggerPx"] for event in events(one) if event["subtype"] == "armed"]
    assert armed == ["99000", "103000", "99495", "103515"]


def test_a_close_of_the_strategy_takes_the_target_orders_with_it() -> None:
    one = lived(TWO, FLAT, FLAT, FLAT, script=entering(TWO, Close("BTC")))
    assert exits(one) == [("close", "0.01", "100000")]
    gone = [event["data"]["kind"] for event in events(one) if event["subtype"] == "canceled"]
    assert sorted(gone) == ["limit", "stop_loss", "take_profit"]


def test_the_fast_path_gives_the_same_events() -> None:
    fast, slow = (ran([minutes(3_000)], script=often, skip=skip) for skip in (True, False))
    assert fast.digest == slow.digest
    assert len([kind for kind, _, _ in exits(fast) if kind == "limit"]) > 50


def test_a_restart_on_a_journal_file_and_one_in_memory_give_the_same_events(tmp_path: Path) -> None:
    """The daemon is down for some minutes again and again, also between a fill and its target orders."""
    outages = tuple(Outage(START_MS + n * 10 * MINUTE_MS, 3 * MINUTE_MS) for n in range(1, 50))
    digests = set()
    for path in (tmp_path / "journal.db", None):
        options = SessionOptions(outages=outages)
        test = Backtest(settings(), [minutes(500)], options, journal_path=path, place=placing(often))
        digests.add(test.run().digest)
        placed = [line for line in told(test) if '"kind":"limit"' in line and '"subtype":"open"' in line]
        assert len(placed) > 20
    assert len(digests) == 1


def test_the_strategy_of_the_docs_closes_in_two_parts(tmp_path: Path) -> None:
    (text,) = (block for block in blocks("python", PAGES["strategies"]) if "InTwoParts" in block)
    (tmp_path / "parts.py").write_text(text)
    strategy = load("parts:InTwoParts", tmp_path).strategy(name="s0", markets=("BTC",))

    def place(made: Settings) -> list[StrategySpec]:
        return [StrategySpec(strategy, one.interval, limits_of(made, one)) for one in made.strategies]

    test = Backtest(settings(), [candles(FLAT, FLAT, FIRST, SECOND)], SessionOptions(rules=FREE), place=place)
    test.run()
    fills = [json.loads(line)["data"] for line in told(test) if '"subtype":"exit"' in line]
    assert [(data["kind"], data["px"]) for data in fills] == [("limit", "101000"), ("take_profit", "103000")]


@pytest.mark.parametrize(
    ("signal", "code"),
    [
        (Open("BTC", "long", usd=15, bracket=TWO), "below_min_notional"),
        (Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=1, targets=[(0.5, 99_500)])), "invalid_input"),
        (Open("BTC", "short", usd=100, bracket=Bracket(stop_pct=1, targets=[(0.5, 100_500)])), "invalid_input"),
    ],
)
def test_targets_that_no_order_can_have_are_refused_with_the_entry(signal: Open, code: str) -> None:
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield signal

    one = lived(TWO, FLAT, script=script)
    assert (exits(one), one.result.summary()["refusals"]) == ([], {code: 1})


def test_targets_in_a_market_that_strategies_share_are_refused() -> None:
    one = {
        "name": "s0",
        "use": "scripted",
        "markets": ["BTC"],
        "interval": "1m",
        "budget_usd": 2_000,
        "netting": "allow",
    }
    made = settings(strategies=[one, one | {"name": "s1"}])
    shared = lived(TWO, FLAT, made=made)
    assert (exits(shared), shared.result.summary()["refusals"]) == ([], {"targets_shared": 2})


def test_a_target_order_that_a_stop_made_needless_is_no_lost_order() -> None:
    """The line `not filled` is for entries and exits that the strategy wanted and did not get."""
    done = lived(TWO, bar(100_000, 100_100, 98_900, 98_950), bar(98_950, 99_000, 98_900, 98_950))
    assert done.result.trade_ledger.kinds["stop_loss"] == 1
    assert done.result.summary()["unfilled"] == {}


def test_no_target_fills_in_a_bar_that_reaches_the_stop_afterwards() -> None:
    """The bar goes to 101,500 first, beyond 1R, and then to the stop."""
    after = bar(100_000, 101_500, 98_000, 98_500)
    masked, walked = (
        lived(TWO, bar(100_000, 100_100, 99_950, 100_000), after, path=path) for path in ("sl_first", "ohlc")
    )
    assert [one.exit_kind for one in masked.result.trade_ledger.trips] == ["stop_loss"]
    assert masked.result.trade_ledger.kinds["limit"] == 0
    assert walked.result.trade_ledger.kinds["limit"] == 1
