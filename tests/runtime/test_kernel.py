"""The loop from bar to fill over a FaultyPort: what it sends, what it learns, and what it does when the answer is
lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.engine.bar_runs import BarRuns
from bot.errors import AccessLost, ApiError
from bot.runtime.execution.dispatch import ABREAST
from bot.runtime.execution.order_sender import EXIT_AGAIN_MS
from bot.runtime.journal.opening import open_journal
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.pass_budget import PASS_MS
from bot.runtime.passes.ports import Calm
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.strategy import Bar, Cancel, Close, Fill, GuardianNote, Intent, Open, Strategy, Trigger, View
from bot.wire import BracketRequest, GuardianRequest, LegRequest, TradeResource, TradesPage
from tests.fakes import FakePacer
from tests.faulty_port import ADDRESS, START_MS, Fault, FaultyPort, refused
from tests.runtime.builders import (
    DEAD_MAN_60,
    STOP,
    Script,
    Scripted,
    SlowCancels,
    begun,
    first_bar,
    kill,
    later,
    make_kernel,
    minutes,
    once,
)

# after which a start is ready within ten seconds: so many questions, and so much work of its own
TRADES = 1_000
QUESTIONS_MAX = 40
WORK_S_MAX = 5.0


async def test_a_bar_becomes_a_protected_position() -> None:
    venue, kernel = await first_bar(once)
    assert [fill[1:] for fill in venue.fills] == [("BTC", "long", "open", "5", "100")]
    position = kernel.account.account_state.positions["BTC"]
    assert (position.owner, position.size) == ("trend", 5)
    assert kernel.account.account_state.is_protected("BTC")
    assert kernel.journal.intents.live() == []
    assert kernel.intents.live == {}


class Told(Scripted):
    """Keeps what it is told, and closes when somebody disarms a guardian of its market."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.told: list[Fill | Trigger | GuardianNote] = []

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        self.told.append(fill)
        return ()

    def on_trigger(self, view: View, trigger: Trigger) -> Iterable[Intent]:
        self.told.append(trigger)
        return ()

    def on_guardian(self, view: View, note: GuardianNote) -> Iterable[Intent]:
        self.told.append(note)
        if (note.market, note.happened) == ("BTC", "disarmed"):
            yield Close("BTC")


async def test_a_strategy_is_told_of_its_fills_and_its_stops() -> None:
    one = Told(once)
    venue = FaultyPort()
    kernel = await begun(venue, strategies=[one])
    opened_ms = venue.clock.now_ms()
    await minutes(kernel, venue, "97")
    closed_ms = venue.clock.now_ms()
    opened, touched, closed = (it for it in one.told if not isinstance(it, GuardianNote))
    assert isinstance(opened, Fill)
    assert isinstance(closed, Fill)
    assert opened == Fill("BTC", opened_ms, "long", "open", "market", 5.0, 100.0, 0.0, None, 5.0, opened.oid)
    assert touched == Trigger("BTC", closed_ms, "stop_loss", "long", 5.0, 98.0, touched.oid)
    assert closed == Fill("BTC", closed_ms, "long", "close", "stop_loss", 5.0, 98.0, 0.0, -10.0, 0.0, closed.oid)


async def test_a_strategy_is_told_of_the_accounts_guardians_and_its_own_and_may_act_on_it() -> None:
    one = Told(once)
    venue = FaultyPort()
    kernel = await begun(venue, strategies=[one])
    venue.by_hand("ETH", "long", 1, key="a person's")
    trail = {
        market: GuardianRequest(type="trailing_stop", market=market, trail_pct=Decimal(3)) for market in ("BTC", "ETH")
    }
    for market, request in trail.items():
        await venue.arm(request, key=market)
    await kernel.cycle()
    (own,) = (guardian for guardian in venue.guards.values() if guardian.coin == "BTC")
    await venue.disarm(own.id)
    await kernel.cycle()
    notes = [it for it in one.told if isinstance(it, GuardianNote)]
    assert [(it.market, it.happened, it.guardian_type, it.reason) for it in notes] == [
        (None, "armed", "dead_man_switch", None),
        ("BTC", "armed", "trailing_stop", None),
        ("BTC", "disarmed", "trailing_stop", "user"),
    ]
    assert notes[-1].guardian_id == own.id
    assert set(venue.positions) == {"ETH"}


async def test_the_dead_man_stands_before_the_first_order() -> None:
    venue, _ = await first_bar(once)
    assert venue.calls.index("arm") < venue.calls.index("confirm")
    assert [g.type for g in venue.guards.values()] == ["dead_man_switch"]


async def test_a_stop_that_is_hit_leaves_the_account_flat() -> None:
    venue, kernel = await first_bar(once)
    await minutes(kernel, venue, "97")
    assert kernel.account.account_state.positions == {}
    assert kernel.account.account_state.orders == {}
    assert kernel.intents.live == {}


@pytest.mark.parametrize("op", ["plan", "confirm"])
@pytest.mark.parametrize("kind", ["drop", "lose_reply"])
async def test_a_lost_answer_makes_one_order(op: str, kind: str) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [Fault(op, kind, count=3)]
    await kernel.cycle()
    for _ in range(4):
        later(kernel, 20_000)
        await kernel.cycle()
    assert len(venue.fills) == 1
    assert kernel.journal.intents.live() == []


async def test_in_doubt_blocks_new_entries_in_that_market_only() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")

    def both(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=200, bracket=STOP)

    kernel = make_kernel(venue, both, markets=("BTC", "ETH"))
    await kernel.recover()
    venue.faults = [Fault("confirm", "drop", count=3)]
    await kernel.cycle()
    assert [fill[1] for fill in venue.fills] == ["ETH"]
    venue.faults = [Fault("confirm", "drop", count=100)]
    await minutes(kernel, venue, "101")
    refusals = kernel.journal.db["refusals"].rows
    assert {(row["market"], row["code"]) for row in refusals} == {("BTC", "market_in_doubt")}
    venue.faults = []
    # Its token runs out, the trades do not have it: the next bar may open.
    for _ in range(3):
        later(kernel, 60_000)
        await minutes(kernel, venue, "101")
    assert sorted(fill[1] for fill in venue.fills) == ["BTC", "ETH"]


async def test_an_intent_that_never_arrived_expires_only_after_its_token_and_a_search() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [Fault("confirm", "drop", count=1_000)]
    await kernel.cycle()
    (intent,) = kernel.journal.intents.live()
    assert intent.state == "sending"
    # However often it is tried: neither age nor count ends it.
    for _ in range(30):
        later(kernel, 20_000)
        await kernel.cycle()
    assert kernel.journal.intents.live()[0].state == "sending"
    venue.clock.advance(60_000 + 5_001)
    later(kernel, 20_000)
    venue.faults.append(Fault("trades", "drop", count=1))
    await kernel.cycle()
    assert kernel.journal.intents.live()[0].state == "sending", "the search failed, so absence is not proven"
    later(kernel, 20_000)
    await kernel.cycle()
    found = kernel.journal.intents.find(intent.id)
    assert found is not None
    assert (found.state, found.trade_id) == ("expired", None)


@pytest.mark.parametrize(
    ("statuses", "end"),
    [(("pending", "pending", "void"), ("expired", None)), (("pending", "open"), ("accepted", "trd_9"))],
)
async def test_an_order_that_its_exchange_has_not_decided_stays_in_doubt_after_its_fence(
    monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...], end: tuple[str, str | None]
) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [Fault("confirm", "drop", count=1_000)]
    await kernel.cycle()
    (intent,) = kernel.journal.intents.live()
    left = list(statuses)

    async def trades(**query: Any) -> TradesPage:
        row = {"id": "trd_9", "kind": "market", "symbol": "BTC", "side": "long", "intent": "open", "reduceOnly": False}
        told = {"size": "1", "status": left.pop(0), "idempotencyKey": intent.id, "ts": venue.clock.now_ms()}
        return TradesPage(trades=[TradeResource.model_validate(row | told)], next_before=None)

    monkeypatch.setattr(venue, "trades", trades)
    venue.clock.advance(60_000 + 5_001)
    while len(left) > 1:
        later(kernel, 20_000)
        await kernel.cycle()
        assert [waiting.state for waiting in kernel.journal.intents.live()] == ["sending"]
    later(kernel, 20_000)
    await kernel.cycle()
    ended = kernel.journal.intents.find(intent.id)
    assert ended is not None
    assert (ended.state, ended.trade_id) == end


async def test_an_order_that_the_events_show_is_accepted_though_no_answer_came() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [Fault("confirm", "lose_reply", count=1), Fault("confirm", "drop", count=100)]
    await kernel.cycle()
    later(kernel, 20_000)
    await kernel.cycle()
    assert kernel.journal.intents.live() == []
    assert len(venue.fills) == 1


async def test_a_refusal_ends_the_intent_and_the_loop_goes_on() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    venue.refuse = lambda _request: refused("insufficient_funds")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    await kernel.cycle()
    row = next(iter(kernel.journal.db["intents"].rows))
    assert (row["state"], row["code"]) == ("rejected", "insufficient_funds")
    await minutes(kernel, venue, "101")
    assert venue.fills == []


async def test_lost_access_ends_the_run_and_keeps_the_intent() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [Fault("confirm", ApiError.of("unauthorized", "revoked", status=401))]
    with pytest.raises(AccessLost):
        await kernel.cycle()
    assert [intent.state for intent in kernel.journal.intents.live()] == ["sending"]


async def test_a_veto_withdraws_the_entry() -> None:
    class Careful(Scripted):
        def confirm(self, plan: object) -> bool:
            return False

    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, strategies=[Careful(once)])
    await kernel.recover()
    await kernel.cycle()
    assert venue.fills == []
    assert next(iter(kernel.journal.db["intents"].rows))["code"] == "vetoed"


async def test_a_strategy_that_raises_is_quarantined_and_the_other_goes_on() -> None:
    def broken(view: View, bar: Bar) -> Iterable[Intent]:
        yield Open(bar.market, "long", usd=100, bracket=STOP)
        raise ZeroDivisionError

    venue = FaultyPort()
    venue.minute(BTC="100")
    venue.minute(BTC="100")
    kernel = make_kernel(
        venue, strategies=[Scripted(broken, name="broken"), Scripted(once, name="good", markets=("ETH",))]
    )
    await kernel.recover()
    await kernel.cycle()
    assert [instance.quarantined is not None for instance in kernel.strategy_host.instances] == [True, False]
    assert [fill[1] for fill in venue.fills] == ["ETH"]


async def test_what_a_strategy_raises_in_half_a_letter_ends_its_part_alone() -> None:
    """As the name of a file has it that is no UTF-8."""

    def raises(view: View, bar: Bar) -> Iterable[Intent]:
        raise ValueError("no file \udcff.csv")

    _, kernel = await first_bar(raises)
    assert r"ValueError: no file \udcff.csv" in (kernel.strategy_host.instances[0].quarantined or "")


async def test_a_reversal_closes_then_opens_within_the_budget() -> None:
    def flip(view: View, bar: Bar) -> Iterable[Intent]:
        position = view.position(bar.market)
        if position is not None and position.side == "long":
            yield Close(bar.market)
            yield Open(bar.market, "short", usd=900, bracket=STOP)
        elif position is None:
            yield Open(bar.market, "long", usd=900, bracket=STOP)

    venue, kernel = await first_bar(flip)
    await minutes(kernel, venue, "101")
    assert [fill[2:4] for fill in venue.fills] == [("long", "open"), ("long", "close"), ("short", "open")]
    assert kernel.account.account_state.positions["BTC"].side == "short"


async def test_a_fraction_is_closed_as_an_absolute_size() -> None:
    def half(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=500, bracket=STOP)
        elif not view.state.get("half"):
            view.state["half"] = True
            yield Close(bar.market, fraction=0.5)

    venue, kernel = await first_bar(half)
    venue.faults = [Fault("close", "lose_reply", count=2)]
    await minutes(kernel, venue, "101")
    assert kernel.account.account_state.positions["BTC"].size == Decimal("2.5")
    (row,) = kernel.journal.db["intents"].rows_where("action='close'")
    assert b'"size":"2.5"' in row["body"]


async def test_a_limit_entry_rests_is_cancelled_and_gives_its_budget_back() -> None:
    def rest(view: View, bar: Bar) -> Iterable[Intent]:
        if view.orders(bar.market):
            yield Cancel(market=bar.market)
        elif not view.state.get("rested"):
            view.state["rested"] = True
            yield Open(bar.market, "long", usd=800, limit_px=90, bracket=STOP)

    venue, kernel = await first_bar(rest)
    assert kernel.risk.used_usd("trend") == pytest.approx(800, abs=1)
    await minutes(kernel, venue, "100")
    assert venue.working == {}
    assert kernel.risk.used_usd("trend") == 0


def many_rest(view: View, bar: Bar) -> Iterable[Intent]:
    if view.orders("BTC"):
        yield Cancel(market="BTC")
    elif not view.state.get("rested"):
        view.state["rested"] = True
        yield from (Open("BTC", "long", usd=20, limit_px=50 + n, bracket=STOP) for n in range(40))


async def test_many_cancels_are_shared_out_over_passes_and_each_is_asked_for_once() -> None:
    """A pass without an end would stop the beats: positions would be closed because entries are canceled."""
    venue = SlowCancels()
    kernel = await begun(venue, many_rest, pacer=venue.pacer)
    assert len(venue.working) == 40
    venue.minute(BTC="100")
    for _ in range(5):
        assert venue.working
        began_ms = venue.pacer.now_ms
        await kernel.cycle()
        assert venue.pacer.now_ms - began_ms <= PASS_MS
        assert kernel.is_late is bool(venue.working), "the rest does not wait for the time between two passes"
    assert (venue.working, len(venue.asked)) == ({}, 40)
    assert kernel.journal.intents.live() == []


async def test_many_cancels_in_flight_are_asked_for_once_each() -> None:
    venue = SlowCancels()
    kernel = await begun(venue, many_rest, pacer=venue.pacer)
    kernel.intents.in_flight.abreast = ABREAST
    await minutes(kernel, venue, "100")
    assert (venue.working, len(venue.asked)) == ({}, 40)
    assert kernel.journal.intents.live() == []


async def test_a_cancel_that_meets_a_full_rate_limit_goes_on_behind_what_it_has_done() -> None:
    """If all were requested again from the first one, each would use up requests that the rest needs."""
    venue = SlowCancels()
    kernel = await begun(venue, many_rest, pacer=venue.pacer)
    venue.minute(BTC="100")
    for _ in range(10):
        venue.free_requests = 4
        later(kernel, EXIT_AGAIN_MS)
        await kernel.cycle()
    assert (venue.working, len(venue.asked)) == ({}, 40)


async def test_bars_missed_while_down_are_history_and_only_the_newest_is_decided(tmp_path: object) -> None:
    path = tmp_path / "journal.db"
    venue = FaultyPort()
    venue.minute()
    first = make_kernel(venue, path=path)
    await first.recover()
    await first.cycle()
    first.journal.close()
    for _ in range(5):
        venue.minute()
    asked: list[tuple[int, bool]] = []

    def note(view: View, bar: Bar) -> Iterable[Intent]:
        asked.append((bar.at_ms, view.now_ms == bar.at_ms))
        yield Open(bar.market, "long", usd=100, bracket=STOP)

    second = make_kernel(venue, note, path=path)
    await second.recover()
    await second.cycle()
    assert [at_ms for at_ms, _ in asked] == [START_MS + n * 60_000 for n in range(1, 7)]
    assert len(venue.fills) == 1
    assert venue.fills[0][0] == START_MS + 6 * 60_000


async def test_the_service_being_away_stops_entries_and_not_the_loop() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [
        Fault("events", ApiError.of("service_unavailable", "away", retryable=True, order_submitted=False), count=50)
    ]
    await kernel.cycle()
    assert venue.fills == []
    assert kernel.state.behind
    venue.faults = []
    venue.minute(BTC="100")
    await kernel.cycle()
    assert not kernel.state.behind


async def test_each_pass_is_told() -> None:
    told: list[int | None] = []
    venue = FaultyPort()
    venue.minute()
    kernel = make_kernel(venue)
    kernel.hooks.passed = told.append
    await kernel.recover()
    await kernel.cycle()
    await kernel.cycle()
    assert told == [START_MS + 60_000, START_MS + 60_000]


async def test_retries_inside_a_pass_end_and_do_not_wait_long() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    pacer = FakePacer()
    kernel = make_kernel(venue, once, pacer=pacer, settings=KernelSettings(guardians=(DEAD_MAN_60,)))
    await kernel.recover()
    venue.faults = [Fault("confirm", "drop", count=100)]
    await kernel.cycle()
    assert sum(pacer.slept) <= 2_000
    assert venue.calls.count("confirm") <= 3


async def test_a_calm_stretch_is_decided_as_bar_by_bar_would_be() -> None:
    """BarRuns and step agree: the same bars, the same states, the same signal on the same bar."""
    bars = [Bar("BTC", START_MS + n * 60_000, 100.0, 101.0, 99.0, 100.0 + n, 1.0) for n in range(1, 8)]

    def third(view: View, bar: Bar) -> Iterable[Intent]:
        if view.closes("BTC", 3)[-1] == 105:
            yield Open("BTC", "long", usd=100, bracket=STOP)
            yield Close("BTC")

    kernel = make_kernel(FaultyPort(), third)
    series = BarSeries("BTC", "1m")
    left = iter(bars)
    bar, decision = BarRuns(kernel).decide(series, left, Calm(90, 110, START_MS + 9 * 60_000))
    seen = 0
    while bar is not None and decision is not None and not decision.signals:
        seen += 1
        bar, decision = BarRuns(kernel).decide(series, left, Calm(90, 110, START_MS + 9 * 60_000))
    assert bar == bars[4]
    assert decision is not None
    assert [type(decided.signal) for decided in decision.signals] == [Open, Close]
    assert decision.states == {"trend": '{"bars": 5}'}
    assert BarRuns(kernel).decide(series, left, Calm(99.5, 110, START_MS + 9 * 60_000)) == (bars[5], None)
    assert BarRuns(kernel).decide(series, left, Calm(90, 110, START_MS + 7 * 60_000)) == (bars[6], None)
    assert BarRuns(kernel).decide(series, left, Calm(90, 110, START_MS)) == (None, None)


async def test_a_calm_stretch_without_signals_is_done_at_its_end() -> None:
    class Quiet(Strategy):
        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            return ()

    kernel = make_kernel(FaultyPort(), strategies=[Quiet(name="quiet", markets=["BTC"])])
    bars = [Bar("BTC", START_MS + n * 60_000, 100.0, 101.0, 99.0, 100.0, 1.0) for n in range(1, 8)]
    assert BarRuns(kernel).decide(BarSeries("BTC", "1m"), iter(bars), Calm(90, 110, START_MS + 9 * 60_000)) == (
        None,
        None,
    )
    assert kernel.journal.state.done_until("BTC", "1m") == bars[-1].at_ms
    assert len(kernel.bars.feed.histories[BarSeries("BTC", "1m")]) == 7


@pytest.mark.parametrize("damage", ["", "soon", "-1", "9" * 5_000, "9999999999999"])
async def test_a_damaged_note_of_the_journals_beginning_is_taken_for_the_most_careful(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "journal.db"
    venue = FaultyPort()
    kill(await begun(venue, path=path))
    first_ms = venue.clock.now_ms()
    venue.minute()
    journal = open_journal(path, address=ADDRESS)
    journal.state.write_note("begun_ms", damage)
    journal.state.write_note("begun_cut", damage)
    journal.close()
    at_ms = venue.clock.now_ms()
    for _ in range(2):
        kernel = make_kernel(venue, path=path)
        await kernel.recover()
        search = kernel.execution.sender.search
        assert (search.begun_ms, search.lost_requests_may_arrive) == (at_ms, True)
        assert at_ms > first_ms
        assert kernel.journal.state.note("damaged:begun_ms") == kernel.journal.state.note("damaged:begun_cut") == damage
        kill(kernel)
        venue.minute()


async def test_the_beginning_of_a_journal_may_lie_a_little_ahead_of_a_clock_that_went_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = FaultyPort()
    venue.clock.advance(120_000)
    kernel = make_kernel(venue, path=path)
    await kernel.recover()
    begun_ms = kernel.execution.sender.search.begun_ms
    kill(kernel)
    venue.clock.go_back(60_000)
    again = make_kernel(venue, path=path)
    await again.recover()
    assert again.execution.sender.search.begun_ms == begun_ms


async def test_an_exit_is_tried_again_soon_though_the_service_says_an_hour() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    scripts = [once, lambda _view, bar: [Close(bar.market)]]
    kernel = make_kernel(venue, lambda view, bar: scripts.pop(0)(view, bar) if scripts else ())
    await kernel.recover()
    await kernel.cycle()
    venue.faults = [
        Fault("close", ApiError.of("rate_limited", "later", order_submitted=False, retryable=True, after_ms=3_600_000))
    ]
    await minutes(kernel, venue, "101")
    assert "BTC" in venue.positions
    later(kernel, 10_000)
    await kernel.cycle()
    assert venue.positions == {}


@pytest.mark.parametrize("keeps", [True, False], ids=["its journal is there", "its journal is lost"])
async def test_a_start_after_a_thousand_trades_is_ready_after_a_few_questions(keeps: bool, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = FaultyPort()
    kill(await begun(venue, once, path=path))
    bracket = BracketRequest(stop_loss=LegRequest(pct=Decimal(2)))
    for n in range(TRADES // 2):
        venue.by_hand("ETH", "long", 1, key=f"opened-{n}", bracket=bracket)
        venue.closed_by_hand("ETH", f"closed-{n}")
    if not keeps:
        for file in tmp_path.glob("journal.db*"):
            file.unlink()
    venue.calls.clear()
    kernel = make_kernel(venue, once, path=path)
    began = time.process_time()
    await kernel.recover()
    assert time.process_time() - began < WORK_S_MAX
    assert len(venue.calls) <= QUESTIONS_MAX, venue.calls
    assert (kernel.state.ready, kernel.state.behind) == (True, False)
    assert kernel.journal.events.cursor is not None
    assert kernel.journal.events.cursor.last_id == venue.event_rows[-1].id
    assert [(one.market, one.owner) for one in kernel.account.account_state.positions.values()] == [("BTC", "trend")]
    assert set(kernel.account.account_state.orders) == set(venue.working)
