"""Degraded: what keeps entries out and lets exits go, how it is told, and how it ends.

Also what is closed while nothing can be learnt.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot.cli.run.run_daemon import left_lines
from bot.clock import MINUTE_MS, boot_ns
from bot.errors import NO_ERROR_OBJECT, AccessLost, ApiError, Exit, Refusal, Refused, TryLater
from bot.runtime.alerts.health import DaemonHealth, KeyExpiry, key_problem
from bot.runtime.control_plane import status_documents
from bot.runtime.control_plane.command_routes import CommandRoutes
from bot.runtime.control_plane.commands import Commands
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.metrics import STUCK_S, Meter, MetricSources
from bot.runtime.control_plane.reporting import PORT_FILE, Scraped, exposing
from bot.runtime.control_plane.server import ControlRequest, RequestProblem
from bot.runtime.control_plane.status import state_of
from bot.runtime.execution.order_sender import EXIT_AGAIN_MS, KEY_USED_OTHERWISE
from bot.runtime.execution.replan import LEGS, next_leg
from bot.runtime.journal import queries
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.order_trace import explain
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision
from bot.runtime.model.intents import Intent as Written
from bot.runtime.model.run_state import EXITS_WAIT_MS
from bot.runtime.passes import pass_scheduler
from bot.runtime.passes.pass_budget import PASS_MS
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import WantedGuardian
from bot.runtime.reconciliation.protection import COVER_MS, REARM_MS, closing, lost_distance_pct
from bot.runtime.reconciliation.schedule import RECONCILE_MS, REFUSED_MS
from bot.runtime.shutdown import DaemonEnd, wind_down
from bot.runtime.startup import REFUSALS_MAX, RealPacer, until_up
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, Open, TrailingStop, View
from bot.wire import EventsPage, GuardianRequest, OrderRequest, OrderResult, TradeResource
from tests.fakes import FakePacer
from tests.faulty_port import ADDRESS, Fault, FaultyPort, refused
from tests.runtime.builders import (
    AWAY,
    DEAD_MAN_60,
    Scripted,
    always,
    begun,
    first_bar,
    held_position,
    intent,
    kill,
    later,
    make_kernel,
    minutes,
    once,
    opened,
    refusals,
    resting_order,
    stop_of,
    trailing,
)

# within which another writer is known for one
FLAGGED_S = 5.0
DRAWDOWN = WantedGuardian(
    "drawdown", GuardianRequest(type="account_drawdown", max_loss_pct_from_day_start=Decimal(5), action="flatten")
)


def told(kernel: Kernel) -> list[str]:
    return [row["kind"] for row in kernel.journal.db["outbox"].rows]


# -- the service takes not all that the config asks for


async def test_a_guardian_that_the_service_refuses_degrades_the_run_and_does_not_end_it() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    venue.faults = [Fault("arm", refused("invalid_input", "no such action"), 1)]
    kernel = make_kernel(venue, always, settings=KernelSettings(guardians=(DEAD_MAN_60, DRAWDOWN)))
    await kernel.recover()
    await kernel.cycle()
    assert state_of(kernel).word == "DEGRADED"
    assert kernel.health.degraded == {
        "guardian:dead_man": "the service refuses guardian dead_man (invalid_input): no such action"
    }
    assert [g.type for g in venue.guards.values()] == ["account_drawdown"], "the other one stands"
    assert venue.fills == []
    asked = venue.calls.count("arm")
    await kernel.cycle()
    assert venue.calls.count("arm") == asked, "it is not asked for again in every pass"
    later(kernel, REARM_MS)
    await minutes(kernel, venue, "100")
    await minutes(kernel, venue, "100")
    assert state_of(kernel).word == "RUNNING"
    assert len(venue.fills) == 1
    assert told(kernel).count("daemon.degraded") == told(kernel).count("daemon.recovered") == 1


async def test_a_market_that_is_gone_keeps_entries_out_of_it_and_of_no_other() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    gone = refused("not_found", "BTC is not listed")
    kernel = make_kernel(venue, always, markets=("BTC", "ETH"))
    venue.faults = [Fault("candles", gone, 1)]
    await kernel.recover()
    venue.faults = [Fault("candles", gone, 1)]
    await kernel.cycle()
    assert list(kernel.health.degraded) == ["market:BTC"]
    assert [fill[1] for fill in venue.fills] == ["ETH"]
    assert kernel.health.no_entry("BTC") is not None
    assert kernel.health.no_entry("ETH") is None
    venue.faults = []
    later(kernel, 1_000)
    await kernel.cycle()
    await minutes(kernel, venue, "100")
    assert kernel.health.degraded == {}
    assert [fill[1] for fill in venue.fills] == ["ETH", "BTC"]


@pytest.mark.parametrize("question", ["events", "account", "trades", "guardians", "candles"])
async def test_a_question_that_is_refused_keeps_entries_out_and_ends_no_pass(question: str) -> None:
    """A no to one question may pass; only a credential that is refused ends the run."""
    venue = FaultyPort()
    kernel = await opened(venue)
    passed: list[int | None] = []
    kernel.hooks.passed = passed.append
    venue.by_hand("ETH", "long", 1, source="dashboard")
    await venue.cancel(stop_of(venue))
    venue.faults = [Fault(question, refused("invalid_input", "not today"), 99)]
    await minutes(kernel, venue, "100", "100")
    assert len(passed) == 2, "beats go on"
    assert venue.faults[0].count < 99
    assert "BTC" in venue.positions, "not to be told what stands is no reason to close"
    if question != "guardians":
        assert (kernel.conditions.entries_stopped(kernel.now_ms()) or kernel.health.no_entry("BTC")) is not None
    venue.faults = []
    later(kernel, RECONCILE_MS)
    await minutes(kernel, venue, "100")
    assert (kernel.health.degraded, kernel.conditions.entries_stopped(kernel.now_ms())) == ({}, None)
    assert kernel.account.account_state.is_protected("BTC") is (question != "guardians"), (
        "bare for so long, it was closed"
    )


class HalfDeaf(FaultyPort):
    """`is_deaf`: it says which event came after another, and not all that came."""

    is_deaf = False

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage:
        if self.is_deaf and limit > 1:
            raise AWAY
        return await super().events(since, limit=limit, types=types)


async def test_a_comparison_that_was_not_made_is_neither_an_answer_nor_an_end_of_what_waits_for_one() -> None:
    venue = HalfDeaf()
    kernel = await opened(venue)
    venue.faults = [Fault("account", refused("invalid_input", "not today"))]
    later(kernel, RECONCILE_MS)
    await kernel.cycle()
    assert list(kernel.health.degraded) == ["reconcile"]
    venue.is_deaf = True
    later(kernel, REFUSED_MS)
    await kernel.cycle()
    assert list(kernel.health.degraded) == ["reconcile"], "nothing was compared"
    run: Any = SimpleNamespace(kernel=kernel)
    settings: Any = None
    access = DaemonAccess(settings, base_url="embedded", stop=asyncio.Event(), tail=None, config=None)
    access.daemon = run
    asked = asyncio.create_task(CommandRoutes(access).reconcile(ControlRequest({})))
    await asyncio.sleep(0)
    await access.mailbox.do_next()
    with pytest.raises(RequestProblem, match="could not be read to their end") as told_so:
        await asked
    assert told_so.value.status == 503
    venue.is_deaf = False
    later(kernel, REFUSED_MS)
    await kernel.cycle()
    assert kernel.health.degraded == {}, "and not only when the next one is due"


async def test_while_it_cannot_be_known_who_else_trades_in_our_market_nothing_is_opened() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.by_hand("BTC", "long", 1, source="dashboard")
    venue.faults = [Fault("trades", refused("invalid_input", "not today"), 99)]
    await minutes(kernel, venue, "100")
    assert list(kernel.health.degraded) == ["foreign_activity"]
    assert kernel.conditions.entries_stopped(kernel.now_ms()) is not None
    venue.faults = []
    await minutes(kernel, venue, "100")
    assert (kernel.health.degraded, kernel.account.foreign_activity.waiting) == ({}, {}), (
        "a person at the dashboard is no other writer"
    )


@pytest.mark.parametrize("no", [refused("forbidden"), ApiError.of("unauthorized", "revoked")])
async def test_a_credential_that_is_refused_ends_the_pass(no: ApiError) -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    for question in ("events", "account"):
        venue.faults = [Fault(question, no)]
        later(kernel, RECONCILE_MS)
        with pytest.raises(type(no)):
            await kernel.cycle()
    page = ApiError.of("no_error_object", "HTTP 403", status=403, retryable=False, reads=True)
    venue.faults = [Fault("events", page)]
    await kernel.cycle()
    assert kernel.state.behind, "a page of a proxy knows nothing of the credential"


@pytest.mark.parametrize(
    ("scopes", "said"),
    [
        (("read", "trade"), None),
        ((), None),
        (None, None),
        (("read",), "neither open nor close"),
        (("read", "trade:close_only"), "closes and protects"),
    ],
)
def test_a_key_without_trade_is_said_in_a_sentence(scopes: Any, said: str | None) -> None:
    key = None if scopes is None else SimpleNamespace(scopes=scopes)
    found = key_problem(SimpleNamespace(limits=SimpleNamespace(key=key)))
    assert (found is None) == (said is None)
    assert said is None or said in (found or "")


async def test_a_position_that_can_be_neither_covered_nor_closed_degrades_its_market_until_it_can() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.faults = [
        Fault("arm", refused("invalid_input"), 99),
        Fault("close", refused("market_closed", "opens at nine"), 1),
    ]
    await venue.cancel(stop_of(venue))
    await kernel.cycle()
    assert list(kernel.health.degraded) == ["drift:BTC"]
    assert "opens at nine" in kernel.health.degraded["drift:BTC"]
    assert told(kernel) == ["protection.lost", "daemon.degraded"]
    await minutes(kernel, venue, "101")
    await kernel.cycle()
    assert venue.positions == {}
    assert kernel.health.degraded == {}
    assert told(kernel) == ["protection.lost", "daemon.degraded", "daemon.recovered", "protection.restored"]


def test_a_reason_is_told_once_and_one_that_is_only_shown_stops_nothing() -> None:
    journal = open_journal(None, address=ADDRESS)
    health = DaemonHealth(journal=journal, now_ms=lambda: 1)
    for _ in range(3):
        health.degrade("clock", "40 s behind")
    assert journal.db["outbox"].count == 1
    assert health.no_entry("BTC") is None, "the schedule is judged by itself"
    health.degrade("foreign_writer", "somebody")
    no = health.no_entry()
    assert no is not None
    assert no.code == "foreign_writer"
    health.restore("nothing")
    assert journal.db["outbox"].count == 2


# -- protection


async def test_each_loss_of_a_stop_is_counted_and_told_once() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    for _ in range(3):
        if trailing(venue):
            await venue.disarm(next(g.id for g in venue.guards.values() if g.type == "trailing_stop"))
        else:
            await venue.cancel(stop_of(venue))
        await kernel.cycle()
        await kernel.cycle()
        assert kernel.account.account_state.is_protected("BTC")
    assert (kernel.health.counts["protection.lost"], kernel.health.counts["protection.restored"]) == (3, 3)
    assert told(kernel) == ["protection.lost", "protection.restored"] * 3


async def test_a_position_that_grows_beyond_its_stop_is_covered() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.said[stop_of(venue)] = {"size": Decimal(5)}
    venue.by_hand("BTC", "long", 3, key="a person")
    # Its stop is not resized, as far as the daemon can read.
    venue.unseen |= {event.id for event in venue.event_rows if event.subtype == "changed"}
    await kernel.cycle()
    assert kernel.account.account_state.positions["BTC"].size == 8
    assert trailing(venue) == [("BTC", 2.0)]


async def test_a_stop_of_the_other_side_is_no_protection() -> None:
    kernel = make_kernel(FaultyPort())
    await kernel.recover()
    account_state = kernel.account.account_state
    account_state.positions["BTC"] = position = held_position(side="short", size="1")
    account_state.orders["1"] = resting_order("1", "stop_loss", "close", side="long", size="1")
    assert account_state.unprotected() == [position]
    account_state.orders["1"] = resting_order("1", "stop_loss", "close", side="short", size="1")
    assert account_state.unprotected() == []
    account_state.orders["1"] = resting_order("1", "stop_loss", "close", side="short", size="0.5")
    assert account_state.unprotected() == [position], "half of it has fired"


async def test_a_trailing_stop_that_an_entry_came_with_is_replaced_at_its_own_distance() -> None:
    def trail(view: View, bar: Bar) -> Iterable[Intent]:
        if not view.state.get("done"):
            view.state["done"] = True
            yield Open(bar.market, "long", usd=500, guardians=(TrailingStop(trail_pct=1.5),))

    venue, kernel = await first_bar(trail)
    await venue.disarm(next(g.id for g in venue.guards.values() if g.type == "trailing_stop"))
    await kernel.cycle()
    assert trailing(venue) == [("BTC", 1.5)]


async def test_the_distance_is_that_of_the_newest_stop() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    await venue.place(
        OrderRequest.from_wire(
            {"market": "BTC", "side": "long", "usdAmount": 100, "bracket": {"stopLoss": {"px": "95"}}}
        ),
        key="a person",
    )
    await kernel.events.drain()
    assert lost_distance_pct(kernel.run, kernel.account, kernel.account.account_state.positions["BTC"]) == 5


async def test_a_stop_that_is_not_taken_for_long_ends_in_a_close() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.faults = [Fault("arm", AWAY, 99)]
    await venue.cancel(stop_of(venue))
    await kernel.cycle()
    assert "BTC" in venue.positions
    later(kernel, COVER_MS)
    await kernel.cycle()
    assert venue.positions == {}


# -- while the events cannot be read


async def test_a_whole_position_is_closed_while_the_events_cannot_be_read() -> None:
    venue, kernel = await first_bar(always)
    venue.faults = [Fault("events", AWAY, 999)]
    await minutes(kernel, venue, "101")
    assert "BTC" in venue.positions, "the bar waits a moment, for the events may come"
    later(kernel, EXITS_WAIT_MS)
    await kernel.cycle()
    assert venue.positions == {}
    await minutes(kernel, venue, "102")
    later(kernel, EXITS_WAIT_MS)
    await kernel.cycle()
    assert venue.positions == {}, "nothing is opened"
    venue.faults = []
    await kernel.cycle()
    assert kernel.account.account_state.positions == {}
    assert kernel.journal.intents.live() == []


class Slow(FaultyPort):
    """Takes so long, of real time, for each answer on its events, or until nobody waits for it any more."""

    def __init__(self) -> None:
        super().__init__()
        self.pacer = FakePacer()
        self.takes_ms = 0

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> Any:
        self.pacer.now_ms += self.takes_ms
        return await super().events(since, limit=limit, types=types)


@pytest.mark.parametrize(("takes_ms", "faults"), [(PASS_MS + 1_000, 0), (15_000, 999)])
async def test_a_position_is_closed_however_long_the_events_take(takes_ms: int, faults: int) -> None:
    """No pass has time for all of it: to ask, to decide, and to let the exit go. Nothing is opened meanwhile."""
    venue = Slow()
    kernel = await begun(venue, pacer=venue.pacer)
    venue.takes_ms, venue.faults = takes_ms, [Fault("events", AWAY, faults)]
    await minutes(kernel, venue, "101")
    for _ in range(3):
        await kernel.cycle()
    assert venue.positions == {}
    fills = len(venue.fills)
    await minutes(kernel, venue, *["102"] * 4)
    assert len(venue.fills) == fills


async def test_a_lost_stop_is_replaced_however_long_the_events_take() -> None:
    venue = Slow()
    kernel = await begun(venue, pacer=venue.pacer)
    venue.takes_ms = PASS_MS + 1_000
    venue.canceled_by_hand(stop_of(venue))
    for _ in range(2):
        await kernel.cycle()
    assert trailing(venue)


class SlowBars(Slow):
    """Takes as long for its bars. Of a market that stands still they are asked for in every pass."""

    # the events, the bars
    are_slow = (True, True)

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> Any:
        self.pacer.now_ms -= 0 if self.are_slow[0] else self.takes_ms
        return await super().events(since, limit=limit, types=types)

    async def candles(self, coin: str, interval: str, limit: int) -> Any:
        self.pacer.now_ms += self.takes_ms if self.are_slow[1] else 0
        return await super().candles(coin, interval, limit)


@pytest.mark.parametrize("are_slow", [(True, True), (False, True)])
async def test_an_exit_does_not_wait_for_bars_however_long_those_take(are_slow: tuple[bool, bool]) -> None:
    venue = SlowBars()
    kernel = await begun(venue, pacer=venue.pacer)
    venue.faults = [Fault("close", AWAY, 3)]
    await minutes(kernel, venue, "101")
    assert [one.action for one in kernel.intents.live.values()] == ["close"]
    venue.takes_ms, venue.are_slow = PASS_MS + 1_000, are_slow
    venue.clock.advance(MINUTE_MS)
    for _ in range(4):
        later(kernel, EXIT_AGAIN_MS)
        await kernel.cycle()
    assert venue.positions == {}


@pytest.mark.parametrize("are_slow", [(True, True), (False, True)])
async def test_a_lost_stop_does_not_wait_for_bars_however_long_those_take(are_slow: tuple[bool, bool]) -> None:
    venue = SlowBars()
    kernel = await begun(venue, pacer=venue.pacer)
    venue.takes_ms, venue.are_slow = PASS_MS + 1_000, are_slow
    venue.clock.advance(MINUTE_MS)
    venue.canceled_by_hand(stop_of(venue))
    for _ in range(3):
        await kernel.cycle()
    assert trailing(venue)


class SlowArms(Slow):
    """Takes so long to take no guardian."""

    async def arm(self, request: GuardianRequest, *, key: str) -> Any:
        if self.takes_ms:
            self.pacer.now_ms += self.takes_ms
            raise AWAY
        return await super().arm(request, key=key)

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> Any:
        return await FaultyPort.events(self, since, limit=limit, types=types)


async def test_a_bar_is_decided_however_long_a_guardian_takes() -> None:
    venue = SlowArms()
    kernel = await begun(venue, pacer=venue.pacer)
    await venue.disarm(next(iter(venue.guards)))
    venue.takes_ms = PASS_MS + 1_000
    await minutes(kernel, venue, "101")
    for _ in range(2):
        await kernel.cycle()
    assert venue.positions == {}
    venue.takes_ms = 0
    await minutes(kernel, venue, "102")
    assert [one.type for one in venue.guards.values()] == ["dead_man_switch"]


async def test_neither_an_entry_nor_a_part_goes_while_the_events_cannot_be_read() -> None:
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        yield from once(view, bar)
        if bar.close == 101:
            yield Close(bar.market, fraction=0.5)
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=2))

    venue, kernel = await first_bar(script)
    venue.faults = [Fault("events", AWAY, 999)]
    await minutes(kernel, venue, "101")
    later(kernel, EXITS_WAIT_MS)
    await kernel.cycle()
    assert venue.positions["BTC"].size == 5
    assert refusals(kernel) == ["behind", "behind"]


async def test_an_end_that_cannot_read_the_events_leaves_the_dead_man_armed() -> None:
    venue, kernel = await first_bar(once)
    venue.faults = [Fault("events", AWAY, 999)]
    await kernel.stop()
    left = await wind_down(kernel, "leave")
    assert not left.known
    assert left.why[-1] == "the dead-man switch stays: the events of the service could not be read to their end"
    assert [guardian.type for guardian in venue.guards.values()] == ["dead_man_switch"]
    venue.faults = []
    assert (await wind_down(kernel, "leave")).known
    assert venue.guards == {}


# -- another writer


@pytest.mark.parametrize(("source", "flagged"), [("agent", True), ("api", True), ("dashboard", False), (None, False)])
async def test_another_agent_on_the_account_keeps_entries_out_within_a_pass(
    source: str | None, flagged: bool, tmp_path: Path
) -> None:
    venue = FaultyPort(("BTC", "ETH"))
    venue.minute(BTC="100")
    path = tmp_path / "journal.db"
    kernel = make_kernel(venue, always, markets=("BTC",), path=path)
    await kernel.recover()
    await kernel.cycle()
    assert kernel.account.account_state.keys_proven
    venue.by_hand("ETH", "long", 1, key="another daemon", source=source)
    await kernel.cycle()
    assert ("foreign_writer" in kernel.health.degraded) is flagged
    assert pass_scheduler.PASS_S + pass_scheduler.LATE_S < FLAGGED_S, "passes come so often"
    assert told(kernel) == (["account.foreign", "daemon.degraded"] if flagged else [])
    await minutes(kernel, venue, "101", "102")
    assert ("BTC" in venue.positions) is not flagged, "exits went, and entries only if nobody else writes"
    assert kernel.account.foreign_activity.waiting == {}
    kill(kernel)
    again = make_kernel(venue, always, markets=("BTC",), path=path)
    assert ("foreign_writer" in again.health.degraded) is flagged, "until a person has looked"
    again.health.restore("foreign_writer")
    kill(again)
    assert make_kernel(venue, always, markets=("BTC",), path=path).health.degraded == {}


def drawn(seed: int) -> Callable[[int], int]:
    """Serials as the daemon of one machine draws them."""
    chance = random.Random(seed)
    return lambda _before: chance.getrandbits(62)


async def alone(venue: FaultyPort, script: Any = always, **more: Any) -> Kernel:
    """A loop that has run for so long that nothing of an earlier life of its own is under way."""
    kernel = await begun(venue, script, **more)
    await minutes(kernel, venue, "100", "100")
    return kernel


async def test_a_daemon_of_another_machine_is_known_before_it_trades(tmp_path: Path) -> None:
    venue = FaultyPort()
    first = await alone(venue, once, path=tmp_path / "1.db", new_serial=drawn(1))
    assert first.health.degraded == {}
    second = make_kernel(venue, once, path=tmp_path / "2.db", new_serial=drawn(2))
    await second.recover()
    await first.cycle()
    assert "was armed by another daemon or agent" in first.health.degraded["foreign_writer"]
    for _ in range(3):
        await second.cycle()
        await first.cycle()
    assert "was armed by another daemon or agent" in second.health.degraded["foreign_writer"], "both say it"
    assert {one.guardians.ids["dead_man"] for one in (first, second)} == venue.guards.keys(), "each has its own"
    assert told(first).count("account.foreign") == 1


NO_GUARDIANS = KernelSettings()


async def test_an_order_of_another_daemon_with_our_config_is_no_decision_of_a_lost_journal(tmp_path: Path) -> None:
    """Its key is that of a decision of ours, which this journal did not make."""
    venue = FaultyPort()
    first = await alone(venue, lambda _view, _bar: (), path=tmp_path / "1.db", settings=NO_GUARDIANS)
    second = make_kernel(venue, always, path=tmp_path / "2.db", settings=NO_GUARDIANS)
    await second.recover()
    venue.minute(BTC="100")
    await second.cycle()
    await first.cycle()
    assert "was made by another daemon" in first.health.degraded["foreign_writer"]
    assert first.account.account_state.positions["BTC"].owner is None, "its position is another hand's"


async def test_a_decision_of_ours_that_another_daemon_has_ordered_before_us_is_another_daemons(tmp_path: Path) -> None:
    venue = FaultyPort()
    flat = Scripted(
        lambda _view, bar: [Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=5))] if bar.close == 99 else ()
    )
    first = await alone(venue, strategies=[flat], path=tmp_path / "1.db", settings=NO_GUARDIANS)
    second = make_kernel(venue, strategies=[Scripted(flat.script)], path=tmp_path / "2.db", settings=NO_GUARDIANS)
    await second.recover()
    # The newest bar of before.
    await second.cycle()
    await minutes(second, venue, "99")
    await first.cycle()
    assert len(venue.fills) == 1
    assert "was made by another daemon" in first.health.degraded["foreign_writer"]


async def test_the_orders_of_after_a_backup_are_no_other_daemons_when_it_is_restored(tmp_path: Path) -> None:
    venue = FaultyPort()
    kernel = make_kernel(venue, always, path=tmp_path / "j.db", new_serial=drawn(1))
    await kernel.recover()
    kill(kernel)
    shutil.copyfile(tmp_path / "j.db", tmp_path / "backup.db")
    kernel = make_kernel(venue, always, path=tmp_path / "j.db", new_serial=drawn(2))
    await kernel.recover()
    await minutes(kernel, venue, "100", "101", "100")
    assert len(venue.fills) == 3
    kill(kernel)
    restored = make_kernel(venue, always, path=tmp_path / "backup.db", new_serial=drawn(3))
    await restored.recover()
    await minutes(restored, venue, "101", "100")
    assert restored.health.degraded == {}


@pytest.mark.parametrize("is_up", [True, False])
async def test_a_reset_of_the_account_ends_what_another_agent_had_done_on_it(is_up: bool, tmp_path: Path) -> None:
    venue = FaultyPort(("BTC", "ETH"))
    venue.minute(BTC="100")
    path = tmp_path / "journal.db"
    kernel = make_kernel(venue, always, path=path)
    await kernel.recover()
    venue.by_hand("ETH", "long", 1, key="another daemon", source="agent")
    await kernel.cycle()
    assert "foreign_writer" in kernel.health.degraded
    kernel.account.foreign_activity.waiting["trd_1"] = ("ETH", "another key", 0)
    if not is_up:
        kill(kernel)
        kernel = make_kernel(venue, always, path=path)
        assert "foreign_writer" in kernel.health.degraded
    venue.reset()
    await (kernel.cycle() if is_up else kernel.recover())
    assert (kernel.health.degraded, kernel.account.foreign_activity.waiting) == ({}, {})
    assert told(kernel)[-2:] == ["account.reset", "daemon.recovered"]
    await minutes(kernel, venue, "102")
    assert "BTC" in venue.positions
    kill(kernel)
    assert make_kernel(venue, always, path=path).health.degraded == {}


async def test_a_reset_after_which_somebody_has_traded_already_is_for_a_person_to_look_at() -> None:
    venue = FaultyPort(("BTC", "ETH"))
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always)
    await kernel.recover()
    kernel.health.degrade("foreign_writer", "somebody")
    venue.reset()
    venue.by_hand("ETH", "long", 1, key="another daemon", source="agent")
    await kernel.cycle()
    assert kernel.account.account_state.epoch == 1
    assert "foreign_writer" in kernel.health.degraded


async def test_our_own_orders_and_what_the_service_does_are_no_other_writer() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always)
    await kernel.recover()
    await minutes(kernel, venue, "100", "90", "100", "101", "100")
    assert len(venue.fills) >= 4
    assert kernel.health.degraded == {}


# -- legs


def test_a_stale_plan_asks_for_another_leg_and_only_an_entrys_in_time() -> None:
    stale: dict[str, Any] = {"state": "expired", "code": "plan_stale", "not_after_ms": 100}
    leg = next_leg(intent(1, **stale), address=ADDRESS, now_ms=99)
    assert leg is not None
    assert (leg.state, leg.leg, leg.attempts, leg.confirm_token, leg.code) == ("opened", "order-2", 0, None, None)
    assert leg.not_after_ms == 100, "the entry grows no younger by it"
    assert leg.id != "KEY1"
    for change in (
        {"state": "sending"},
        {"state": "accepted"},
        {"state": "quarantined"},
        {"code": "insufficient_funds"},
        {"action": "close"},
        {"not_after_ms": 99},
        {"leg": LEGS[-1]},
        {"leg": "guardian"},
    ):
        assert next_leg(intent(1, **stale | change), address=ADDRESS, now_ms=99) is None, change


async def test_a_clock_that_is_far_off_stops_what_a_bar_wants_and_not_its_exits() -> None:
    venue, kernel = await first_bar(always)
    kernel.conditions.schedule = lambda: Refusal("clock_skewed", "40 s")
    await minutes(kernel, venue, "101", "102")
    assert venue.positions == {}
    assert refusals(kernel) == ["clock_skewed"]


# -- what must not stay so for ever


async def test_a_position_without_a_stop_whose_market_takes_no_close_for_a_day_is_closed_when_it_does() -> None:
    venue, kernel = await first_bar(once)
    venue.faults = [Fault("arm", refused("limit_exceeded"), 10**9)]
    (position,) = kernel.account.account_state.positions.values()
    for _ in range(1_440):
        tried = closing(kernel.run, kernel.account, position, "naked")
        assert isinstance(tried, Written)
        kernel.journal.decided([tried])
        kernel.journal.intents.end(tried, "rejected", "market_closed", "no", now_ms=tried.opened_ms)
        venue.clock.advance(60_000)
    venue.canceled_by_hand(stop_of(venue))
    await kernel.cycle()
    assert not venue.positions


async def test_a_close_that_was_refused_does_not_wait_for_a_time_that_lies_ahead_again() -> None:
    venue, kernel = await first_bar(once)
    venue.faults = [Fault("arm", refused("limit_exceeded"), 10**9), Fault("close", refused("market_closed"))]
    venue.canceled_by_hand(stop_of(venue))
    await kernel.cycle()
    assert venue.positions
    venue.clock.go_back(3_600_000)
    await kernel.cycle()
    assert not venue.positions


async def test_a_close_in_doubt_of_a_time_that_lies_ahead_again_keeps_no_position_bare() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, lambda view, bar: [Close("BTC")] if bar.close == 101 else once(view, bar))
    await kernel.recover()
    await kernel.cycle()
    venue.faults = [Fault("close", AWAY, 10**9)]
    await minutes(kernel, venue, "101")
    venue.clock.go_back(3_600_000)
    venue.canceled_by_hand(stop_of(venue))
    await kernel.cycle()
    assert trailing(venue)


async def test_a_stop_is_lost_while_a_close_is_not_taken_for_long_and_another_stands_in_its_place() -> None:
    """A strategy of long bars wants its close for two days; the position does not wait for it without a stop."""
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, lambda view, bar: [Close("BTC")] if bar.close == 101 else once(view, bar))
    kernel.strategy_host.instances[0].interval = "1d"
    await kernel.recover()
    await kernel.cycle()
    shallow = ApiError.of("insufficient_depth", "no", retryable=True, order_submitted=False)
    venue.faults = [Fault("close", shallow, 10**9)]
    await minutes(kernel, venue, "101")
    venue.canceled_by_hand(stop_of(venue))
    await minutes(kernel, venue, "100")
    assert venue.positions
    assert trailing(venue)


async def test_an_order_that_waits_for_a_person_is_told_and_waits_until_there_was_one() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    other = {"reason": "fingerprint"}
    venue.faults = [
        Fault(
            "confirm",
            ApiError.of(
                "idempotency_conflict", "other body", order_submitted="unknown", retryable=False, details=other
            ),
        )
    ]
    kernel = make_kernel(venue, always)
    await kernel.recover()
    await kernel.cycle()
    (waits,) = kernel.journal.intents.live()
    assert waits.state == "quarantined"
    assert "intent.quarantined" in told(kernel)
    why = f"{KEY_USED_OTHERWISE} (other body)"
    named = {"id": waits.id, "strategy": "trend", "action": "open", "market": "BTC", "message": why}
    assert status_documents.intents(kernel) == {"open": 1, "in_doubt": 1, "quarantined": 1, "waiting": [named]}
    with queries.in_rows(kernel.journal.db.conn) as db:
        answer = explain(db, waits.id[:12])[-1].text
    assert answer == f"quarantined: waits for a person: {why}; look at the account, then bot resume"
    await minutes(kernel, venue, "100")
    assert not venue.positions
    run: Any = SimpleNamespace(kernel=kernel, settings=SimpleNamespace(strategies=()))
    assert await Commands(run, None).resume() == (f"open BTC of trend ({waits.id[:12]}), which no longer waits",)
    await minutes(kernel, venue, "100")
    assert (kernel.journal.intents.live(), set(venue.positions)) == ([], {"BTC"})


class Keyless(FaultyPort):
    """Knows no keys and shows none; a token that was used is only refused."""

    def __init__(self, *, behind_ms: int = 0) -> None:
        super().__init__(keys="hidden")
        self.tells_of_tokens = False
        # its clock is so far behind that of the daemon's machine
        self.behind_ms = behind_ms

    def _shown(self, answer: Any) -> Any:
        shown = super()._shown(answer)
        if isinstance(answer, TradeResource):
            return shown.model_copy(update={"ts": (answer.ts or 0) - self.behind_ms})
        return shown


async def minutes_of_real_time(kernel: Kernel, venue: FaultyPort, *closes: str) -> None:
    for close in closes:
        later(kernel, 60_000)
        await minutes(kernel, venue, close)


@pytest.mark.parametrize(
    ("kind", "count", "behind_ms"), [("lose_reply", 1, 0), ("late", 3, 0), ("lose_reply", 1, 2_000)]
)
async def test_an_order_that_a_service_without_keys_cannot_tell_of_waits_for_a_person_after_its_fence(
    kind: str, count: int, behind_ms: int
) -> None:
    """It was executed and its answer was lost; the trade carries nobody's name, and the token says no more than no. It
    may seem older than the decision, where a clock is a moment ahead of the other.
    """
    venue = Keyless(behind_ms=behind_ms)
    kernel = await begun(venue, faults=[Fault("confirm", kind, count)])
    await minutes_of_real_time(kernel, venue, "100")
    (doubt,) = kernel.journal.intents.live()
    assert doubt.state == "sending", "until its fence a copy may still be on its way"
    await minutes_of_real_time(kernel, venue, "100")
    (asked,) = kernel.journal.intents.live()
    assert (asked.id, asked.state) == (doubt.id, "quarantined")
    assert "can tell whether it became an order" in (asked.message or "")
    assert told(kernel).count("intent.quarantined") == 1
    # By a person, say.
    venue.closed_by_hand("BTC")
    await minutes_of_real_time(kernel, venue, "100", "100")
    assert (set(venue.positions), venue.calls.count("plan")) == (set(), 1), (
        "nothing is opened until a person has looked"
    )
    assert "market_in_doubt" in refusals(kernel)
    run: Any = SimpleNamespace(kernel=kernel, settings=SimpleNamespace(strategies=()))
    await Commands(run, None).resume()
    await minutes_of_real_time(kernel, venue, "100")
    assert [one.id for one in kernel.journal.intents.live()] == []
    assert set(venue.positions) == {"BTC"}


async def test_trades_that_are_known_to_be_other_orders_of_ours_leave_no_doubt_open() -> None:
    """A service without keys: the only trade since is one whose answer came."""
    venue = Keyless()
    venue.minute(BTC="100")
    signals = [[Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=5))], [Open("BTC", "long", usd=50), Close("BTC")]]
    kernel = make_kernel(
        venue,
        lambda _view, _bar: signals.pop(0) if signals else [],
        settings=KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions="adopt"),
    )
    await kernel.recover()
    await kernel.cycle()
    venue.faults = [Fault("confirm", "drop", 1), Fault("confirm", refused("plan_stale"), 9)]
    await minutes_of_real_time(kernel, venue, "101")
    assert [fill[3] for fill in venue.fills] == ["open", "close"]
    (doubt,) = [one for one in kernel.journal.intents.live() if one.state == "sending"]
    await minutes_of_real_time(kernel, venue, "101", "101")
    found = kernel.journal.intents.find(doubt.id)
    assert found is not None
    assert (found.state, kernel.intents.in_doubt("BTC")) == ("expired", False)


@pytest.mark.parametrize(("no", "state"), [(refused("invalid_input"), "quarantined"), (AWAY, "sending")])
async def test_trades_that_are_refused_end_a_doubt_after_its_fence_and_a_service_that_is_away_does_not(
    no: ApiError, state: str
) -> None:
    venue = Keyless()
    kernel = await begun(venue, faults=[Fault("confirm", "lose_reply"), Fault("trades", no, 10**9)])
    await minutes_of_real_time(kernel, venue, "100", "100", "100")
    assert [one.state for one in kernel.journal.intents.live()] == [state]


class Silent(FaultyPort):
    """Executes an entry, loses its answer, and tells nothing of it as long as `faults` stand."""

    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
        self.faults = self.faults or [Fault("confirm", "lose_reply"), *NOTHING_TOLD, Fault("confirm", AWAY, 10**9)]
        return await super().confirm(token, key=key, expires_at_ms=expires_at_ms)


NOTHING_TOLD = (Fault("events", AWAY, 10**9), Fault("trades", refused("invalid_input"), 10**9))


async def test_an_order_that_waits_for_a_person_is_accepted_when_its_event_comes_after_all() -> None:
    venue = Silent()
    kernel = await begun(venue)
    await minutes_of_real_time(kernel, venue, "100", "100", "100")
    (asked,) = kernel.journal.intents.live()
    assert asked.state == "quarantined"
    venue.faults = []
    await minutes_of_real_time(kernel, venue, "100")
    found = kernel.journal.intents.find(asked.id)
    assert found is not None
    assert (found.state, kernel.journal.intents.live(), kernel.intents.in_doubt("BTC")) == ("accepted", [], False)
    assert [one.owner for one in kernel.account.account_state.positions.values()] == ["trend"]
    assert venue.calls.count("plan") == 1


async def test_a_kill_after_the_event_of_an_order_that_waits_for_a_person_leaves_it_to_the_next_start(
    tmp_path: Path,
) -> None:
    venue = Silent()
    kernel = await begun(venue, path=tmp_path / "journal.db")
    await minutes_of_real_time(kernel, venue, "100", "100", "100")
    (asked,) = kernel.journal.intents.live()
    assert asked.state == "quarantined"
    venue.faults = []
    kernel.budget.begin()
    await kernel.events.drain()
    assert [one.state for one in kernel.journal.intents.live()] == ["quarantined"]
    kill(kernel)
    kernel = make_kernel(venue, always, path=tmp_path / "journal.db")
    await kernel.recover()
    assert (kernel.journal.intents.live(), kernel.intents.in_doubt("BTC")) == ([], False)
    assert [one.owner for one in kernel.account.account_state.positions.values()] == ["trend"]


async def test_a_repair_that_waits_for_a_person_leaves_no_position_without_a_stop_for_good() -> None:
    """Nothing tells whether its close became an order; but the position is there, so that another one goes."""
    venue, kernel = await first_bar(once)
    lost = [Fault("close", "drop", 10**9), Fault("trades", refused("invalid_input"), 10**9)]
    venue.faults = [Fault("arm", refused("limit_exceeded"), 10**9), *lost]
    await venue.cancel(next(one.oid for one in kernel.account.account_state.orders.values() if one.kind == "stop_loss"))
    await minutes_of_real_time(kernel, venue, "100", "100", "100", "100")
    assert [one.state for one in kernel.journal.intents.live()][:1] == ["quarantined"]
    assert set(venue.positions) == {"BTC"}
    venue.faults = []
    await minutes_of_real_time(kernel, venue, "100", "100")
    assert not venue.positions


async def test_a_cancel_in_doubt_ends_without_a_look_at_trades() -> None:
    """It makes none, so that a trade without a name says nothing of it."""
    venue = Keyless()
    venue.minute(BTC="100")
    rests = Open("BTC", "long", usd=100, limit_px=90, bracket=Bracket(stop_pct=5))
    signals: list[list[Intent]] = [[rests], [Cancel(market="BTC")]]
    kernel = make_kernel(venue, lambda _view, _bar: signals.pop(0) if signals else [])
    await kernel.recover()
    await kernel.cycle()
    venue.faults = [Fault("cancel", "drop", 3), Fault("cancel", refused("invalid_input"), 9)]
    await minutes_of_real_time(kernel, venue, "100")
    (doubt,) = [one for one in kernel.journal.intents.live() if one.action == "cancel"]
    venue.by_hand("BTC", "long", 1)
    await minutes_of_real_time(kernel, venue, "100", "100", "100")
    found = kernel.journal.intents.find(doubt.id)
    assert found is not None
    assert (found.state, found.code) == ("rejected", "invalid_input")


async def test_a_reset_of_the_account_is_told() -> None:
    """Its event is never taken: the feed begins behind it."""
    for says_gone in (True, False):
        venue = FaultyPort()
        venue.says_gone = says_gone
        kernel = make_kernel(venue)
        await kernel.recover()
        await kernel.cycle()
        venue.reset()
        await kernel.cycle()
        assert told(kernel).count("account.reset") == 1


async def test_a_beat_by_hand_that_is_refused_ends_no_run() -> None:
    venue = FaultyPort()
    beats: list[ApiError | None] = [refused("limit_exceeded"), None, AWAY]

    async def heartbeat() -> None:
        if (error := beats.pop(0)) is not None:
            raise error

    client = SimpleNamespace(clock=venue.clock, heartbeat=heartbeat)
    run: Any = SimpleNamespace(settings=SimpleNamespace(dead_man=60), process=None, _port=client, _beaten_ms=0)
    for _ in range(3):
        await HeartbeatSupervision.beat_by_hand(run)
    assert (run._beaten_ms, beats) == (venue.clock.now_ms(), [AWAY])


async def test_pages_of_a_gateway_at_a_restart_are_no_wrong_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is being replaced at the moment at which the host comes up: nobody would start the run again."""
    monkeypatch.setattr(RealPacer, "delay_ms", lambda _self, _attempt: 0)
    page = ApiError.of(NO_ERROR_OBJECT, "HTTP 404 without an error object", status=404, reads=True)
    for is_known in (True, False):
        pages = [page] * (REFUSALS_MAX + 2)

        async def ask(pages: list[ApiError] = pages) -> str:
            if pages:
                raise pages.pop()
            return "up"

        asking = until_up(ask, asyncio.Event(), is_known=is_known)
        if is_known:
            assert await asking == "up"
        else:
            with pytest.raises(Refused):
                await asking


@pytest.mark.parametrize(
    ("state", "is_recovered", "age_s", "ready", "live"),
    [
        ("RUNNING", True, 1, (200, b"ready\n"), 200),
        ("DEGRADED", True, 1, (200, b"ready, DEGRADED\n"), 200),
        ("PAUSED", True, 1, (200, b"ready, PAUSED\n"), 200),
        ("STARTING", False, None, (503, b"STARTING\n"), 200),
        ("STARTING", True, 1, (503, b"STARTING\n"), 200),
        ("STOPPING", True, 1, (503, b"STOPPING\n"), 200),
        ("DEGRADED", True, STUCK_S + 1, (503, b"DEGRADED\n"), 503),
    ],
)
def test_a_run_is_ready_also_degraded_and_neither_before_it_has_recovered_nor_when_it_stands_still(
    state: str, is_recovered: bool, age_s: float | None, ready: tuple[int, bytes], live: int
) -> None:
    """What closes and protects is not to be taken away because it opens nothing."""
    meter = Meter(ended_ns=None if age_s is None else boot_ns() - int(age_s * 1e9))
    unused: Any = None
    scraped = Scraped(unused, MetricSources(meter, unused, lambda: None, None, lambda: state, lambda: is_recovered))
    status, _, text = scraped.ANSWERS["/readyz"](scraped)
    assert (status, text) == ready
    assert scraped.ANSWERS["/livez"](scraped)[0] == live


async def test_metrics_are_shown_also_where_their_port_cannot_be_noted(tmp_path: Path) -> None:
    """As on a full disk: a start there is to look after the account, and is not to end for a note."""
    pytest.importorskip("prometheus_client")
    (tmp_path / PORT_FILE).mkdir()
    unused: Any = None
    sources = MetricSources(Meter(), unused, lambda: None, None, lambda: "RUNNING", lambda: True)
    with capture_logs() as said:
        async with exposing(0, tmp_path, sources):
            url = next(line["url"] for line in said if line["event"] == "metrics.exposed")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
    assert [line["event"] for line in said] == ["metrics.port_not_noted", "metrics.exposed"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (AccessLost("unauthorized", "the key has expired", status=401), "the service no longer accepts the key"),
        (TryLater("service_unavailable", "away", status=503), "the service did not answer"),
    ],
)
async def test_the_end_of_a_run_says_if_the_key_is_refused_or_the_service_is_silent(error: ApiError, says: str) -> None:
    venue, kernel = await first_bar(once)
    venue.faults = [Fault("events", error, 999)]
    left = await wind_down(kernel, "leave")
    assert not left.known
    assert left.unknown_because.startswith(says)
    silent = replace(left, positions=())
    assert left_lines(DaemonEnd(Exit.DONE, silent))[0].startswith(f"{says[:1].upper()}{says[1:]}")


def test_a_key_that_expires_is_told_once_a_day_from_14_days_before() -> None:
    journal = open_journal(None, address="0x1")
    expiry, end_ms = KeyExpiry(journal), 1_800_000_000_000
    key = SimpleNamespace(expires_at=end_ms)
    told = []
    for hours in range(20 * 24, -25, -6):
        if hours % 24 == 6:
            # A restart tells nothing twice.
            expiry = KeyExpiry(journal)
        expiry.see(SimpleNamespace(limits=SimpleNamespace(key=key)))  # type: ignore[arg-type]
        expiry.look(end_ms - hours * 3_600_000)
        told = [row.kind for row in journal.owed(0, 99)]
    assert told == ["key.expires"] * 15
    expiry.see(SimpleNamespace(limits=SimpleNamespace(key=SimpleNamespace(expires_at=None))))  # type: ignore[arg-type]
    expiry.look(end_ms)
    expiry.see(SimpleNamespace(limits=SimpleNamespace(key=None)))  # type: ignore[arg-type]
    expiry.look(end_ms)
    assert len(journal.owed(0, 99)) == 15
    journal.close()
