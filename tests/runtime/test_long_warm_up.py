"""A start whose strategies live through a long past: the account is looked after meanwhile, the switch is beaten,
and what happens is told when they are ready.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.clock import MINUTE_MS, next_utc_day_ms
from bot.runtime.control_plane.status import DaemonState, state_of
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.pass_budget import PASS_MS, YIELD_MS
from bot.runtime.shutdown import wind_down
from bot.runtime.strategy_host.event_backlog import NOTE_EVENTS, BacklogEvent, EventBacklog
from bot.runtime.strategy_host.host import run_inline
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from bot.wire import CandlesResult, Event
from tests.fakes import Crash, FakePacer
from tests.faulty_port import ADDRESS, Fault, FaultyPort, refused
from tests.runtime.builders import AWAY, Scripted, begun, grown, kill, make_kernel, minutes

# bars
PAST = 40


class Slow(Scripted):
    """Each bar of its past takes it half a second; at the tenth something happens at the service."""

    def __init__(
        self, pacer: FakePacer, happens: Callable[[], None], *, answer: tuple[Intent, ...] = (), **more: Any
    ) -> None:
        super().__init__(self._on_bar, **more)
        self.pacer, self.happens, self.answer = pacer, happens, answer
        self.lived: list[str] = []

    def _on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        self.lived.append("bar")
        if len(self.lived) <= PAST:
            self.pacer.now_ms += YIELD_MS // 2
        if len(self.lived) == 10:
            self.happens()
        return ()

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        self.lived.append(f"fill at {len(self.lived)}")
        answer, self.answer = self.answer, ()
        return answer


ENTRY = Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=5))


async def held(path: Path, closes: Iterable[int] = range(60, 60 + PAST - 1), entry: Intent = ENTRY) -> FaultyPort:
    """A venue with a past, and a position of 2 BTC at 100 with its stop that a daemon left there when it was killed."""
    venue = FaultyPort(("BTC",), least_usd="0.01")
    for close in closes:
        venue.minute(BTC=str(close))
    kill(await begun(venue, lambda _view, _bar: [entry], path=path))
    assert set(venue.positions) == {"BTC"}
    return venue


def started(
    venue: FaultyPort, path: Path, happens: Callable[[], None] = lambda: None, **more: Any
) -> tuple[Kernel, Slow]:
    slow = Slow(FakePacer(), happens, **more)
    return make_kernel(venue, path=path, strategies=[slow], pacer=slow.pacer), slow


def stop_of(venue: FaultyPort) -> str:
    (oid,) = [order.oid for order in venue.working.values() if order.kind == "stop_loss"]
    return oid


async def test_passes_go_on_while_strategies_live_through_their_past(tmp_path: Path) -> None:
    venue = await held(tmp_path / "journal.db")
    kernel, slow = started(venue, tmp_path / "journal.db")
    passes: list[tuple[int, int | None]] = []
    said: list[DaemonState] = []
    worth: set[float] = set()

    def passed(bar_ms: int | None) -> None:
        passes.append((slow.pacer.now_ms, bar_ms))
        said.append(state_of(kernel))
        worth.add(kernel.account.account_state.equity_usd)

    kernel.hooks.passed = passed
    await kernel.recover()
    assert len(slow.lived) == PAST
    assert passes == [(n * YIELD_MS, None) for n in range(1, PAST // 2 + 1)], "each without a bar"
    assert [one.word for one in said] == ["STARTING"] * (PAST // 2)
    assert said[4].why.endswith(f"managed meanwhile: 10 of {PAST} bars")
    assert (worth, state_of(kernel).word) == ({10_000.0}, "RUNNING"), "by the account's price, not by one of the past"
    await kernel.cycle()
    assert len(passes) == PAST // 2 + 1


async def test_a_position_whose_stop_is_taken_away_meanwhile_is_covered_by_the_next_pass(tmp_path: Path) -> None:
    """And reckoned by the account's price: the bars that are lived through then are far below it."""
    venue = await held(tmp_path / "journal.db")
    stops: list[int] = []
    marks: set[float] = set()

    def taken_away() -> None:
        venue.canceled_by_hand(stop_of(venue))

    kernel, _ = started(venue, tmp_path / "journal.db", taken_away)

    def passed(_bar_ms: int | None) -> None:
        marks.add(kernel.account.account_state.marks["BTC"])
        stops.append(len(venue.working) + sum(one.coin == "BTC" for one in venue.guards.values()))

    kernel.hooks.passed = passed
    await kernel.recover()
    assert (stops, marks) == ([1] * (PAST // 2), {100.0})
    (cover,) = [one for one in venue.guards.values() if one.coin == "BTC"]
    assert (cover.type, cover.trail_pct) == ("trailing_stop", Decimal(5))
    assert (venue.working, venue.calls.count("close")) == ({}, 0)


async def test_what_happens_meanwhile_is_told_once_they_are_ready_and_they_may_act_on_it(tmp_path: Path) -> None:
    venue = await held(tmp_path / "journal.db")

    def stopped() -> None:
        venue.spike("BTC", 95)

    again = Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=5))
    kernel, slow = started(venue, tmp_path / "journal.db", stopped, answer=(again,))
    await kernel.recover()
    assert slow.lived[PAST:] == [f"fill at {PAST}", f"fill at {PAST + 1}"], "the stop's, and of what it wanted on that"
    assert venue.positions["BTC"].size == 1
    await minutes(kernel, venue, "100")
    assert slow.lived[PAST + 2 :] == ["bar"], "nothing is told twice"


async def test_what_a_start_that_is_killed_had_still_to_tell_is_told_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = await held(path)

    def stopped() -> None:
        venue.spike("BTC", 95)

    kernel, slow = started(venue, path, stopped)

    def dies(_bar_ms: int | None) -> None:
        if len(slow.lived) >= 20:
            raise Crash

    kernel.hooks.passed = dies
    with pytest.raises(Crash):
        await kernel.recover()
    kill(kernel)
    journal = open_journal(path, address=ADDRESS)
    assert [one.event.type for one in EventBacklog.of_journal(journal, "trend", 0)] == ["trigger", "fill"]
    journal.close()
    kernel, slow = started(venue, path)
    await kernel.recover()
    assert [one for one in slow.lived if one != "bar"] == ["fill at 0"]


async def test_a_service_that_is_slow_to_show_its_bars_holds_up_no_pass(tmp_path: Path) -> None:
    class Long(FaultyPort):
        async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult:
            pacer.now_ms += 2 * YIELD_MS
            return await super().candles(coin, interval, limit)

    pacer = FakePacer()
    venue = Long(("BTC", "ETH", "SOL"))
    venue.minute()
    kernel = make_kernel(venue, pacer=pacer, markets=venue.coins)
    passes: list[int] = []
    kernel.hooks.passed = lambda _bar_ms: passes.append(pacer.now_ms)
    await kernel.recover()
    assert passes == [2 * YIELD_MS, 4 * YIELD_MS]


async def test_a_service_that_goes_away_meanwhile_ends_no_start(tmp_path: Path) -> None:
    venue = await held(tmp_path / "journal.db")

    def away() -> None:
        venue.faults = [Fault(op, AWAY, 10**9) for op in ("events", "account", "guardians", "orders", "trades")]

    kernel, slow = started(venue, tmp_path / "journal.db", away)
    await kernel.recover()
    assert (slow.lived, kernel.state.behind) == (["bar"] * PAST, True)


async def test_a_market_whose_candles_are_refused_at_a_start_is_lived_through_when_they_come(tmp_path: Path) -> None:
    """Over several passes where that takes long; nothing that an earlier run has decided is decided again."""
    path = tmp_path / "journal.db"
    venue = await held(path)
    kernel, slow = started(venue, path)
    before = kernel.journal.state.of_strategy("trend")
    venue.faults = [Fault("candles", refused("not_found", "a gateway's page"), 2)]
    await kernel.recover()
    await kernel.cycle()
    assert (slow.lived, list(kernel.bars.feed.gone)) == ([], ["BTC"])
    venue.minute(BTC="101")
    passes = 0
    while passes == 0 or kernel.is_late:
        began_ms = slow.pacer.now_ms
        await kernel.cycle()
        assert slow.pacer.now_ms - began_ms <= PASS_MS
        passes += 1
    assert passes > PAST * YIELD_MS // 2 // PASS_MS
    assert slow.lived == ["bar"] * (PAST + 1)
    closes = kernel.bars.feed.histories[BarSeries("BTC", "1m")].closes(99)
    assert closes == [*map(float, range(60, 60 + PAST - 1)), 100, 101]
    assert kernel.journal.state.of_strategy("trend") == {**before, "bars": before["bars"] + 1}


async def test_a_past_that_comes_late_holds_up_no_other_strategy(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = FaultyPort(("BTC", "ETH"))
    for _ in range(PAST):
        venue.minute()
    slow = Slow(FakePacer(), lambda: None)
    decided: list[tuple[int, int]] = []

    def other(view: View, bar: Bar) -> Iterable[Intent]:
        decided.append((bar.at_ms, len(slow.lived)))
        return ()

    both = [slow, Scripted(other, name="other", markets=("ETH",))]
    kernel = make_kernel(venue, path=path, strategies=both, pacer=slow.pacer)
    venue.faults = [Fault("candles", refused("not_found", "a gateway's page"), 1)]
    await kernel.recover()
    assert list(kernel.bars.feed.gone) == ["BTC"]
    await kernel.cycle()
    decided.clear()
    passes = 0
    while passes == 0 or kernel.is_late:
        venue.minute()
        await kernel.cycle()
        passes += 1
        assert venue.clock.now_ms() - decided[-1][0] <= MINUTE_MS, "in its pass, or the one after"
    assert passes > 3
    await kernel.cycle()
    lived = [lived for _, lived in decided]
    assert lived[1] < PAST, "while the other's past was not over"
    assert len(slow.lived) == PAST + passes, "each bar once, and the last ones decided"
    assert slow.lived == ["bar"] * len(slow.lived)


def test_the_first_pass_lets_the_heartbeat_beat_that_was_a_witness() -> None:
    """A switch that this start has armed would fire before a long past is over."""
    said: list[str] = []

    class Beats:
        alive, may_beat = True, False

        def is_stuck(self) -> bool:
            return False

        def stop(self) -> None:
            said.append("stop")

        def start(self) -> None:
            said.append("start")
            self.may_beat = True

    heartbeats: Any = SimpleNamespace(process=Beats())
    heartbeats.let_beat = lambda: HeartbeatSupervision.let_beat(heartbeats)
    for _ in range(3):
        assert not HeartbeatSupervision.check(heartbeats)
    assert said == ["stop", "start"]


async def test_a_strategy_that_closes_on_what_it_is_told_does_so(tmp_path: Path) -> None:
    venue = await held(tmp_path / "journal.db")

    kernel, _ = started(venue, tmp_path / "journal.db", grown(venue, "BTC", "1", 100), answer=(Close("BTC"),))
    await kernel.recover()
    assert venue.positions == {}


async def test_what_happens_while_another_is_told_is_told_in_this_run_too(tmp_path: Path) -> None:
    """The second closes on what it is told; with that the first one's stop is hit."""
    path = tmp_path / "journal.db"
    pacer, told = FakePacer(), list[str]()

    class Hit(FaultyPort):
        async def close(self, market: str, *args: Any, **named: Any) -> Any:
            answer = await super().close(market, *args, **named)
            self.spike("BTC", 95)
            return answer

    class Tells(Slow):
        def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
            told.append(f"{self.name}: {fill.action}")
            return super().on_fill(view, fill)

    venue = Hit(("BTC", "ETH"))
    for _ in range(PAST - 1):
        venue.minute(ETH="100")
    markets = {"one": "BTC", "two": "ETH"}
    opens = [
        Scripted(
            lambda _view, bar: [Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))],
            name=name,
            markets=(market,),
        )
        for name, market in markets.items()
    ]
    kill(await begun(venue, path=path, strategies=opens))
    assert set(venue.positions) == {"BTC", "ETH"}
    one = Tells(pacer, lambda: None, name="one", markets=("BTC",))
    two = Tells(pacer, grown(venue, "ETH", "1", 100), answer=(Close("ETH"),), name="two", markets=("ETH",))
    kernel = make_kernel(venue, path=path, strategies=[one, two], pacer=pacer)
    await kernel.recover()
    assert told == ["two: open", "one: close", "two: close"]
    assert [list(EventBacklog.of_journal(kernel.journal, name, 0)) for name in markets] == [[], []], (
        "nothing is left for the next run"
    )


FAR = Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=50))


async def it_enters_no_more(venue: FaultyPort, path: Path, px: int) -> None:
    """A fill is told to a strategy that has lost its 10 USD of the day: it wants to enter on it."""
    slow = Slow(FakePacer(), grown(venue, "BTC", "0.1", px), answer=(FAR,))
    kernel = make_kernel(venue, path=path, strategies=[slow], pacer=slow.pacer, daily_loss_usd=Decimal(10))
    await kernel.recover()
    assert slow.lived[PAST:] == [f"fill at {PAST}"]
    assert venue.positions["BTC"].size == Decimal("2.1")


async def test_orders_on_a_late_bar_are_checked_at_the_current_price(tmp_path: Path) -> None:
    """The newest bar, which is still to be decided, has brought the loss that ends the day's entries."""
    path = tmp_path / "journal.db"
    venue = await held(path, [100] * (PAST - 1), FAR)
    venue.minute(BTC="90")
    await it_enters_no_more(venue, path, 90)


async def test_the_loss_of_a_day_that_began_while_nobody_looked_is_known_before_anything_is_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    venue = await held(path, [100] * (PAST - 3), FAR)
    now_ms = venue.clock.now_ms()
    venue.clock.advance(next_utc_day_ms(now_ms) - now_ms - MINUTE_MS)
    for close in ("130", "120", "120"):
        venue.minute(BTC=close)
    await it_enters_no_more(venue, path, 120)


async def test_the_price_of_a_market_that_nobody_listens_to_is_not_forgotten_with_the_past(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = FaultyPort(("BTC", "ETH"))
    for _ in range(PAST):
        venue.minute()

    kernel, _ = started(venue, path, grown(venue, "ETH", "1", 80))
    await kernel.recover()
    assert kernel.account.account_state.equity_usd == float((await venue.account()).account_value_usd)


async def test_what_a_reload_keeps_for_those_that_it_builds_is_kept_when_the_account_is_read_again(
    tmp_path: Path,
) -> None:
    """A lapse in the midst of it, and no market has had a bar yet."""
    kernel = make_kernel(FaultyPort(("BTC",)), path=tmp_path / "journal.db")
    await kernel.recover()
    kernel.strategy_host.set_instances(kernel.strategy_host.instances, unready=["new"])
    await kernel.recover()
    assert list(kernel.strategy_host.backlogs) == ["new"]


async def test_what_a_start_that_is_told_to_stop_had_to_tell_stays_before_what_its_end_brings(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = await held(path)

    kernel, slow = started(venue, path, grown(venue, "BTC", "1", 100))

    def is_cut(_bar_ms: int | None) -> None:
        if len(slow.lived) >= 20:
            raise asyncio.CancelledError

    kernel.hooks.passed = is_cut
    with pytest.raises(asyncio.CancelledError):
        await kernel.recover()
    assert (await wind_down(kernel, "flatten")).complete
    assert slow.lived == ["bar"] * 20, "it is in the midst of its past"
    kill(kernel)
    journal = open_journal(path, address=ADDRESS)
    assert [one.event.subtype for one in EventBacklog.of_journal(journal, "trend", 0) if one.event.type == "fill"] == [
        "entry",
        "exit",
    ]
    journal.close()


async def test_a_page_that_a_stop_has_cut_is_told_once(tmp_path: Path) -> None:
    """`one` has counted its exit in its memory when the hook of `two` is cut;

    `new` is being built, and what happens is kept for it.
    """
    path = tmp_path / "journal.db"
    markets = {"one": ("BTC",), "two": ("ETH",)}

    def enters(view: View, bar: Bar) -> Iterable[Intent]:
        if not view.state.get("entered"):
            view.state["entered"] = True
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))

    def fresh() -> list[Scripted]:
        return [Scripted(enters, name=name, markets=one) for name, one in markets.items()]

    async def is_cut(instance: StrategyInstance, call: Callable[[], Any]) -> Any:
        if instance.name == "two":
            raise asyncio.CancelledError
        return call()

    venue = FaultyPort(least_usd="0.01")
    kernel = await begun(venue, path=path, strategies=fresh())
    assert [kernel.journal.state.of_strategy(name)["fills"] for name in markets] == [1, 1]
    kernel.strategy_host.set_instances(kernel.strategy_host.instances, unready=["new"])
    venue.minute(BTC="90", ETH="90")
    kernel.strategy_host.run = is_cut
    with pytest.raises(asyncio.CancelledError):
        await kernel.cycle()
    kernel.strategy_host.run = run_inline
    kernel.strategy_host.stop_delivery()
    assert (await wind_down(kernel, "leave")).known
    assert [kernel.journal.state.of_strategy(name)["fills"] for name in markets] == [1, 1], "this run tells nobody"
    kinds = [one.event.subtype for one in EventBacklog.of_journal(kernel.journal, "new", 0) if one.event.type == "fill"]
    assert kinds == ["exit", "exit"]
    kill(kernel)
    again = make_kernel(venue, path=path, strategies=fresh())
    await again.recover()
    assert [again.journal.state.of_strategy(name)["fills"] for name in markets] == [2, 2]


async def test_an_exit_that_is_wanted_on_what_happened_while_nobody_looked_leaves(tmp_path: Path) -> None:
    """The position is found in the account, which names no owner."""
    venue = await held(tmp_path / "journal.db")
    grown(venue, "BTC", "1", 100)()
    kernel, slow = started(venue, tmp_path / "journal.db", answer=(Close("BTC"),))
    await kernel.recover()
    assert slow.lived[0] == "fill at 0"
    assert venue.positions == {}


def test_what_waits_to_be_told_is_written_a_note_at_a_time_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(None, address=ADDRESS)
    written: list[int] = []
    write_note = journal.state.write_note

    def counted(name: str, value: str) -> None:
        written.append(len(value))
        write_note(name, value)

    def kept() -> list[int]:
        return [one.event.ts for one in EventBacklog.of_journal(journal, "trend", 0)]

    monkeypatch.setattr(journal.state, "write_note", counted)
    data = {"oid": "1", "tradeId": "trd_1", "side": "long", "size": "1", "triggerPx": "90", "markPx": "90"}
    waiting = EventBacklog(journal, "trend")
    for n in range(500):
        event = {"type": "trigger", "subtype": "stop_loss", "coin": "BTC", "id": f"evt_{n:010d}", "ts": n, "data": data}
        waiting.append(BacklogEvent(Event.model_validate(event), {}))
        waiting.write(0)
    assert kept() == list(range(500))
    for n in range(250):
        assert waiting.first.event.ts == n
        waiting.drop_first()
        waiting.write(0)
        assert n % 50 or kept() == list(range(n + 1, 500))
    assert max(written) <= written[0] * (NOTE_EVENTS + 1)
    EventBacklog(journal, "trend").write(0)
    assert kept() == [], "what was kept for another is told to none"


@pytest.mark.parametrize(
    "damage", ["", "[0, [[", "{}", "[0, [[1]], []]", '[0, [["{}", []]], []]', '[0, [["{}", {}]], []]']
)
async def test_a_note_that_cannot_be_read_is_set_aside_and_the_start_goes_on(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.db"
    venue = await held(path)
    journal = open_journal(path, address=ADDRESS)
    journal.state.write_note("untold:trend:0", damage)
    journal.close()
    for _ in range(2):
        kernel, _ = started(venue, path)
        await kernel.recover()
        assert kernel.state.ready
        assert kernel.journal.state.notes_under("untold:") == []
        assert kernel.journal.state.note("damaged:untold:trend:0") == damage
        told = [
            json.loads(row["payload"])
            for row in kernel.journal.db["outbox"].rows
            if row["kind"] == "strategy.backlog_lost"
        ]
        assert [one["strategy"] for one in told] == ["trend"], "once"
        assert "kept as damaged:untold:trend:0" in told[0]["message"]
        kill(kernel)


async def test_a_kept_event_that_this_version_does_not_know_calls_no_hook_and_the_start_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    venue = await held(path)
    journal = open_journal(path, address=ADDRESS)
    texts = {"tradeId": "trd_1", "oid": "1", "kind": "market", "side": "long", "intent": "close", "liquidity": "taker"}
    amounts = dict.fromkeys(("size", "px", "feeUsd", "remainingSize", "positionSize", "balanceUsd"), "1")
    event = {"type": "fill", "subtype": "of_later", "coin": "BTC", "id": "evt_9000000000", "ts": 1}
    event["data"] = texts | amounts | {"reduceOnly": True}
    waiting = EventBacklog(journal, "trend")
    waiting.append(BacklogEvent(Event.model_validate(event), {}))
    waiting.write(0)
    journal.close()
    kernel, slow = started(venue, path)
    await kernel.recover()
    assert kernel.state.ready
    assert not [one for one in slow.lived if one.startswith("fill")]
    assert kernel.journal.state.notes_under("untold:") == []
    assert kernel.journal.state.notes_under("damaged:") == []


@pytest.mark.parametrize("name", ["untold:trend:", "untold:trend:x", "untold:trend:01", "untold:trend:-1"])
async def test_a_note_whose_name_is_damaged_is_set_aside_and_the_start_goes_on(tmp_path: Path, name: str) -> None:
    path = tmp_path / "journal.db"
    venue = await held(path)
    journal = open_journal(path, address=ADDRESS)
    journal.state.write_note(name, "[0, [], []]")
    journal.close()
    kernel, _ = started(venue, path)
    await kernel.recover()
    assert kernel.journal.state.notes_under("untold:") == []
    assert kernel.journal.state.note(f"damaged:{name}") == "[0, [], []]"


def test_of_notes_of_which_one_is_damaged_the_others_are_told() -> None:
    journal = open_journal(None, address=ADDRESS)
    waiting = EventBacklog(journal, "trend")
    data = {"oid": "1", "tradeId": "trd_1", "side": "long", "size": "1", "triggerPx": "90", "markPx": "90"}
    for n in range(3 * NOTE_EVENTS):
        event = {"type": "trigger", "subtype": "stop_loss", "coin": "BTC", "id": f"evt_{n:010d}", "ts": n, "data": data}
        waiting.append(BacklogEvent(Event.model_validate(event), {}))
    waiting.write(0)
    journal.state.write_note("untold:trend:1", "[0, [")
    again = EventBacklog.of_journal(journal, "trend", 0)
    assert [one.event.ts for one in again] == [*range(NOTE_EVENTS), *range(2 * NOTE_EVENTS, 3 * NOTE_EVENTS)]
    assert list(again.damaged) == ["untold:trend:1"]
