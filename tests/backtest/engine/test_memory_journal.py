"""The journal in memory and the journal on disk behave alike: the same backtest on both, with outages, has the same
events and state.
"""

from __future__ import annotations

import inspect
import io
import json
import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest import backtest as backtests
from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.engine import memory_journal as journals
from bot.backtest.engine.memory_journal import MemoryEvents, MemoryIntents, MemoryJournal, MemoryState
from bot.backtest.engine.options import MarketRules, Outage, SessionOptions
from bot.backtest.engine.simulated_exchange import ADDRESS
from bot.backtest.results.run_writer import Result
from bot.runtime.journal.event_log import EventLog
from bot.runtime.journal.intent_log import IntentLog, Outcome
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.state_store import StateStore
from bot.runtime.model.intents import RUNTIME, Intent
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Bracket, Close, Open, View
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, Scripted, minutes, placing, ran, settings

ORDER_PATH = (
    "intents",
    "attempts",
    "events",
    "cursor",
    "progress",
    "strategy_state",
    "refusals",
    "traces",
    "books",
    "shares",
)


def ended(folder: Path, *, on_disk: bool, seed: int) -> tuple[Backtest, Result]:
    made = settings(dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"})
    outages = (Outage(START_MS + 150 * MINUTE_MS, 3 * MINUTE_MS), Outage(START_MS + 300 * MINUTE_MS, 20 * MINUTE_MS))
    path = folder / f"journal-{seed}.db" if on_disk else None
    test = Backtest(
        made, [minutes(500, seed=seed)], SessionOptions(outages=outages), journal_path=path, place=placing()
    )
    return test, test.run()


@pytest.mark.soak(worlds=2, full=100)
def test_a_backtest_gives_the_same_events_with_a_journal_file_and_in_memory(
    tmp_path: Path, worlds: int, base_seed: int
):
    for seed in range(base_seed, base_seed + worlds):
        (memory, here), (_, there) = (ended(tmp_path, on_disk=on_disk, seed=seed) for on_disk in (False, True))
        assert here.digest == there.digest
        assert here.failures == there.failures
        mine = memory.journal
        assert isinstance(mine, MemoryJournal)
        file = open_journal(tmp_path / f"journal-{seed}.db", address=ADDRESS)
        try:
            assert mine.events.cursor == file.events.cursor
            assert mine.intents.live() == file.intents.live() == []
            assert (
                mine.state.done_until("BTC", "1m") == file.state.done_until("BTC", "1m") == START_MS + 500 * MINUTE_MS
            )
            assert mine.state.of_strategy("s0") == file.state.of_strategy("s0") != {}
            entries = file.events.entry_keys(
                "BTC", epoch=file.events.cursor.epoch if file.events.cursor else 0, since_ms=0
            )
            assert len(entries) > 3
            for key in entries:
                one, other = mine.intents.find(key), file.intents.find(key)
                assert one is not None
                assert other is not None
                # In memory an order is one record, its outcome, so that its attempt is not counted.
                assert (one.state, one.trade_id, one.strategy, one.market) == (
                    other.state,
                    other.trade_id,
                    other.strategy,
                    other.market,
                )
        finally:
            file.close()


def test_entries_that_never_find_depth_are_counted_with_the_message_of_the_first(tmp_path: Path):
    """A buyer who pays no more than the middle, across a spread."""

    def script(view: View, bar: Bar) -> Iterable[Open]:
        if bar.at_ms % (20 * MINUTE_MS) == 0:
            yield Open("BTC", "long", usd=500, max_slippage_bps=0, bracket=Bracket(stop_pct=1))

    for path in (None, tmp_path / "journal.db"):
        wide = SessionOptions(rules={"": MarketRules(spread_bps=Decimal(100))})
        test = Backtest(settings(), [minutes(60)], wide, journal_path=path, place=placing(script))
        summary = test.run().summary()
        assert (summary["figures"]["# Trades"], summary["rejections"]) == (0, {"insufficient_depth": 2})
        first = summary["firstRejections"]["insufficient_depth"]
        assert (first["strategy"], first["market"]) == ("s0", "BTC")
        assert first["message"].startswith("it was not sent in time (insufficient_depth: ")


def test_a_tick_of_eight_percent_of_the_price_is_named_as_the_reason_of_unfilled_orders():
    """SHIB under the listed name DOGE: no order reaches the next price within its slippage. A finer tick fills."""
    px = [0.00001234] * 30
    at = array("q", [START_MS + n * MINUTE_MS for n in range(30)])
    flat = Candles("DOGE", "1m", at, *(array("d", px) for _ in range(4)), array("d", [1e12] * 30))

    def script(view: View, bar: Bar) -> Iterable[Open]:
        if bar.at_ms == START_MS + 3 * MINUTE_MS:
            yield Open("DOGE", "long", usd=900, bracket=Bracket(stop_pct=50))

    rules = {"": replace(FREE[""])}
    done = ran([flat], script=script, rules=rules).result.summary()
    assert done["rejections"] == {"insufficient_depth": 1}
    assert "the tick of 0.000001 is 8.1 % of the price" in done["firstRejections"]["insufficient_depth"]["message"]
    fine = {"": replace(FREE[""], tick=Decimal("0.00000001"))}
    assert ran([flat], script=script, rules=fine).result.trade_ledger.fills == 1


def test_entries_that_find_no_depth_block_no_other_order():
    """Real time does not move: five retried entries do not delay the sixth of the same call."""
    coins = ["AVAX", "BNB", "BTC", "ETH", "LINK", "SOL"]

    def script(view: View, bar: Bar) -> Iterable[Open]:
        if bar.at_ms == START_MS + 3 * MINUTE_MS and bar.market == coins[-1]:
            for coin in coins:
                yield Open(
                    coin, "long", usd=400, max_slippage_bps=0 if coin != "SOL" else 500, bracket=Bracket(stop_pct=5)
                )

    wide = SessionOptions(rules={"": MarketRules(spread_bps=Decimal(100))})
    made = settings(strategies=[{"name": "s0", "use": "six", "markets": coins, "budget_usd": 5_000}])
    result = Backtest(made, [minutes(20, market=coin, px=2_500) for coin in coins], wide, place=placing(script)).run()
    assert (result.trade_ledger.fills, result.rejections) == (1, {"insufficient_depth": 5})


@pytest.mark.parametrize(("px", "fills", "said"), [(100_000.0, 1, {}), (100_000.5, 0, {"insufficient_depth": 1})])
def test_an_entry_that_finds_no_depth_is_tried_at_each_close_until_its_bar_is_old(
    px: float, fills: int, said: dict[str, int]
):
    """Nothing else is ordered.

    Between two ticks the best ask is above the middle, which is all that the buyer pays; at `px` it may be the middle.
    """

    def script(view: View, bar: Bar) -> Iterable[Open]:
        if bar.at_ms == START_MS + 2 * MINUTE_MS:
            yield Open("BTC", "long", usd=500, max_slippage_bps=0, bracket=Bracket(stop_pct=1))

    closes = [100_000.5, 100_000.5, *[px] * 8]
    column = array("d", closes)
    at = array("q", [START_MS + n * MINUTE_MS for n in range(10)])
    flat = Candles("BTC", "1m", at, column, column, column, column, array("d", [9.0] * 10))
    done = ran([flat], script=script, rules={"": replace(FREE[""], tick=Decimal(1))})
    assert (done.result.trade_ledger.fills, done.result.summary()["rejections"]) == (fills, said)


def test_the_journal_of_a_backtest_writes_no_order_to_its_database():
    """Guards against a new kind of record that only the journal on disk stores: the tables of the backtest's journal
    stay empty.
    """
    test = Backtest(settings(), [minutes(400, seed=3)], SessionOptions(), place=placing())
    rows: dict[str, int] = {}
    close = test.journal.close

    def counted() -> None:
        for table in ORDER_PATH:
            rows[table] = test.journal.db[table].count
        close()

    test.journal.close = counted  # type: ignore[method-assign]
    assert test.run().trade_ledger.fills > 5
    assert rows == dict.fromkeys(rows, 0)


def intent_of(key: str) -> Intent:
    return Intent(
        id=key,
        strategy="s0",
        market="BTC",
        action="close",
        path="direct",
        trigger="bar:1",
        ordinal=0,
        leg="order",
        epoch=0,
        body=b"{}",
        not_after_ms=10**15,
        opened_ms=0,
        notional_usd=Decimal(0),
    )


def opened(journal: Journal) -> Intent:
    one = intent_of("KEY")
    assert journal.open(one)
    return one


@pytest.mark.parametrize(
    "outcomes", [("no",), ("unknown",), ("unknown", "no"), ("no", "unknown", "no"), (None, "no"), ("no", "no")]
)
def test_an_attempt_that_may_have_arrived_is_kept_after_a_later_refusal(outcomes: tuple[Outcome | None, ...]):
    said: list[list[bool]] = []
    for journal in (MemoryJournal(address=ADDRESS), open_journal(None, address=ADDRESS)):
        intent = opened(journal)
        said.append([])
        for outcome in outcomes:
            intent = journal.intents.sending(intent, now_ms=1)
            said[-1].append(journal.intents.is_ambiguous(intent))
            if outcome is not None:
                journal.intents.attempt_ended(intent, outcome, code="internal_error", order_submitted=None)
            said[-1].append(journal.intents.is_ambiguous(intent))
        journal.close()
    assert said[0] == said[1]
    assert said[0][-1] is (set(outcomes) != {"no"})


# -- queries of the repairs, and after an outage


NEVER_ASKED = {
    "attach_key": "every event of a session bears the key of its order",
    "opened_ms": "and every position the instant at which it was opened",
    "of_trigger": "no assistant proposes anything to a session",
    "proposed_since": "no assistant proposes anything to a session",
    "refused_target": "a session watches no alarms",
    "refusal_counts": "nor has it a status or metrics",
    "put_flat_point": "the replay of a session begins with it",
}


def test_the_empty_tables_of_a_backtests_journal_are_never_queried():
    questions = re.compile(rf"FROM ({'|'.join(ORDER_PATH)})\b|self\._intents\(")
    pairs = ((Journal, MemoryJournal), (IntentLog, MemoryIntents), (EventLog, MemoryEvents), (StateStore, MemoryState))
    asking = {
        (in_memory, name)
        for on_disk, in_memory in pairs
        for name, made in vars(on_disk).items()
        if not name.startswith("_") and questions.search(inspect.getsource(getattr(made, "fget", made)))
    }
    assert len(asking) > 10
    assert {name for in_memory, name in asking if name not in vars(in_memory)} == NEVER_ASKED.keys()


def test_both_journals_find_the_newest_repair_of_a_cause():
    found: list[list[Intent | None]] = []
    for journal in (MemoryJournal(address=ADDRESS), open_journal(None, address=ADDRESS)):
        first = replace(intent_of("K1"), strategy=RUNTIME, trigger="naked:1")
        for one in (
            first,
            replace(first, id="K2", ordinal=1),
            replace(first, id="K3", trigger="naked:2"),
            replace(first, id="K4", market="ETH"),
        ):
            assert journal.open(one)
        journal.intents.accept(journal.intents.sending(replace(first, id="K2", ordinal=1), now_ms=1), "trd_1", now_ms=2)
        asked = (("BTC", "naked:1", 0), ("BTC", "naked:1", 1), ("ETH", "naked:1", 0), ("ETH", "naked:2", 0))
        found.append([journal.intents.last_of(RUNTIME, market, cause, epoch=epoch) for market, cause, epoch in asked])
        journal.close()
    assert found[0] == found[1]
    assert [one and (one.id, one.state) for one in found[0]] == [("K2", "accepted"), None, ("K4", "opened"), None]


def in_both(
    folder: Path, place: Callable[[Any], list[StrategySpec]], make: Callable[..., Backtest]
) -> tuple[Backtest, Result, list[Any]]:
    """A backtest in memory with its events, which equal those of the same backtest on a file."""
    ran: list[tuple[Backtest, Result, str]] = []
    for path in (None, folder / "journal.db"):
        test, lines = make(journal_path=path, place=place), io.StringIO(newline="")
        ran.append((test, test.run(events=lines), lines.getvalue()))
    assert ran[0][2] == ran[1][2]
    return ran[0][0], ran[0][1], [json.loads(line) for line in ran[0][2].splitlines()]


def test_in_both_journals_a_partial_close_is_followed_by_another(tmp_path: Path):
    """Bought by a guardian without a stop, in a book too thin to sell all of it at once."""
    bought = {"market": "BTC", "side": "long", "usdAmount": 2_400}
    buys = [
        {"type": "schedule", "cron": "10 0 * * *", "order_template": bought | {"usdAmount": usd}}
        for usd in (2_400, 2_401)
    ]
    made = settings(guardians=buys, safety={"foreign_positions": "flatten"})
    rules = {"BTC": MarketRules(depth_usd=Decimal(60), spread_bps=Decimal(2))}
    options = SessionOptions(rules=rules)

    def make(**how: Any) -> Backtest:
        return Backtest(made, [minutes(40, seed=1)], options, **how)

    _, result, events = in_both(tmp_path, placing(lambda _view, _bar: ()), make)
    closes = {one["idempotencyKey"] for one in events if (one["type"], one["subtype"]) == ("fill", "exit")}
    assert len(closes) > 1
    assert result.left == []


class Again(Scripted):
    """Buys ETH again on the fill of its close. No bar causes this entry, so only the journal knows its strategy."""

    def on_fill(self, view: View, fill: Any) -> Iterable[Open]:
        if fill.market == "ETH" and view.position("ETH") is None and not view.state.get("again"):
            view.state["again"] = 1
            return [Open("ETH", "long", usd=500, bracket=Bracket(stop_pct=20))]
        return ()


def test_a_long_held_position_is_recognised_after_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Longer than thousands of events and intents of another market, of which only the newest are kept; here they
    are hundreds.
    """
    monkeypatch.setattr(journals, "EVENTS_KEPT", 100)
    monkeypatch.setattr(journals, "INTENTS_KEPT", 100)
    monkeypatch.setattr(backtests, "EVENTS_HELD", 300)
    monkeypatch.setattr(backtests, "EVENTS_SHOWN", 100)
    bars = 400

    def script(view: View, bar: Bar) -> Iterable[Open | Close]:
        n, held = (bar.at_ms - START_MS) // MINUTE_MS, view.position(bar.market)
        if bar.market == "BTC":
            yield Close("BTC") if held else Open("BTC", "long", usd=300, bracket=Bracket(stop_pct=5))
        elif n == 3:
            yield Open("ETH", "long", usd=500, bracket=Bracket(stop_pct=20))
        elif held and n in (6, bars - 2):
            yield Close("ETH")

    def place(made: Any) -> list[StrategySpec]:
        placed = placing(script)(made)
        return [
            one._replace(strategy=Again(script, name=one.strategy.name, markets=one.strategy.markets)) for one in placed
        ]

    def make(**how: Any) -> Backtest:
        candles = [minutes(bars, seed=1), minutes(bars, seed=2, market="ETH", px=2_500.0)]
        options = SessionOptions(outages=(Outage(START_MS + (bars - 20) * MINUTE_MS, 2 * MINUTE_MS),))
        return Backtest(settings(("BTC", "ETH")), candles, options, **how)

    test, result, events = in_both(tmp_path, place, make)
    assert len(events) > 1_000
    assert result.left == []
    assert result.failures.refusals == {}
    entries = [one["idempotencyKey"] for one in events if (one["type"], one["subtype"]) == ("fill", "entry")]
    # intents that no position or order depends on are dropped
    assert [test.journal.intents.find(key) is None for key in (entries[0], entries[-1])] == [True, False]
