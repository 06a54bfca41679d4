"""The watch over the machine's clocks: a suspend, a jump, a skew, and a clock that went back over a boot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.liveness.clock_watch import ClockWatch, expire_held, note_wall
from bot.runtime.pass_runner import PassRunner
from bot.runtime.passes import pass_scheduler
from bot.runtime.passes.bar_feed import BarFeed, BarSeries, ClosedBar
from bot.strategy import Bar, Bracket, Intent, Open, View
from tests.faulty_port import ADDRESS, START_MS, FaultyPort
from tests.runtime.builders import in_state, intent, make_kernel

HOUR_MS, YEAR_MS = 3_600_000, 365 * 86_400_000


class Clocks:
    def __init__(self) -> None:
        self.boot = self.mono = self.wall = 1_000_000
        self.skew: int | None = None

    def keeper(self) -> ClockWatch:
        return ClockWatch(
            skew_ms=lambda: self.skew,
            boot_ns=lambda: self.boot * 1_000_000,
            mono_ns=lambda: self.mono * 1_000_000,
            wall_ms=lambda: self.wall,
        )

    def run(self, ms: int, *, asleep: int = 0, wall: int = 0) -> None:
        self.mono += ms
        self.boot += ms + asleep
        self.wall += ms + asleep + wall


@pytest.mark.parametrize(
    ("asleep", "wall", "lapses"),
    [
        (0, 0, 0),
        (900, 0, 0),
        (1_001, 0, 1),
        (8 * HOUR_MS, 0, 1),
        (0, 1_900, 0),
        (0, -1_900, 0),
        (0, HOUR_MS, 1),
        (0, -HOUR_MS, 1),
        (0, YEAR_MS, 1),
        (0, -YEAR_MS, 1),
        (HOUR_MS, -HOUR_MS, 1),
    ],
)
def test_a_suspend_or_a_clock_jump_is_a_lapse_and_a_small_change_is_not(asleep: int, wall: int, lapses: int) -> None:
    clocks = Clocks()
    times = clocks.keeper()
    clocks.run(2_000, asleep=asleep, wall=wall)
    no = times.lease()
    assert times.lapses == lapses
    assert (no is not None) == bool(lapses)
    assert no is None or no.code == "clock_lapsed"
    clocks.run(10 * HOUR_MS)
    assert times.look() == lapses, "one jump is one lapse"


def test_a_lapse_during_a_resync_causes_another_resync() -> None:
    clocks = Clocks()
    times = clocks.keeper()
    clocks.run(10, asleep=5_000)
    lapses = times.look()
    clocks.run(10, asleep=5_000)
    times.look()
    times.acknowledge(lapses)
    assert times.lapsed
    times.acknowledge(times.look())
    assert times.lease() is None


@pytest.mark.parametrize(
    ("skew", "level"),
    [
        (None, None),
        (2_000, None),
        (2_500, "warning"),
        (-2_500, "warning"),
        (30_000, "warning"),
        (31_000, "error"),
        (-31_000, "error"),
    ],
)
def test_a_wrong_clock_causes_a_warning_and_a_very_wrong_one_blocks_scheduled_entries(
    skew: int | None, level: str | None
) -> None:
    clocks = Clocks()
    clocks.skew = skew
    times = clocks.keeper()
    with capture_logs() as lines:
        times.look()
    assert [line["log_level"] for line in lines] == [level] * (level is not None)
    stops = level == "error"
    no = times.schedule()
    assert (no is not None) is stops
    assert no is None or ("behind" if (skew or 0) > 0 else "ahead of") in no.message
    assert times.lease() is None


def test_cached_answers_cause_one_warning() -> None:
    stale = 0
    times = ClockWatch(stale=lambda: stale)
    with capture_logs() as lines:
        times.look()
        stale = 1
        times.look()
        stale = 2
        times.look()
    assert [(line["event"], line["log_level"]) for line in lines] == [("clock.stale_answers", "warning")]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return open_journal(tmp_path / "journal.db", address=ADDRESS)


def states(journal: Journal) -> dict[str, str]:
    return {row["id"]: row["state"] for row in journal.db["intents"].rows}


def test_unsent_entries_expire_after_a_boot_with_a_clock_that_went_back(journal: Journal) -> None:
    assert expire_held(journal, wall_ms=START_MS, boot_id="a") == 0
    journal.open(intent(1, opened_ms=START_MS))
    journal.open(intent(2, opened_ms=START_MS, action="close", path="direct", body=b"{}"))
    in_state(journal, "sending", 3)
    put_off = in_state(journal, "sending", 4)
    journal.intents.attempt_ended(put_off, "no", code="connect_error", order_submitted=False)
    assert expire_held(journal, wall_ms=START_MS - HOUR_MS, boot_id="a") == 0, "in the same boot its boot time decides"
    assert expire_held(journal, wall_ms=START_MS + 1, boot_id="b") == 0, "the clock went on"
    assert expire_held(journal, wall_ms=START_MS - HOUR_MS, boot_id="c") == 2
    assert states(journal) == {"KEY1": "expired", "KEY2": "opened", "KEY3": "sending", "KEY4": "expired"}


def test_a_boot_without_an_id_counts_as_another_boot(journal: Journal) -> None:
    assert expire_held(journal, wall_ms=START_MS, boot_id="") == 0
    journal.open(intent(1, opened_ms=START_MS))
    assert expire_held(journal, wall_ms=START_MS + 1, boot_id="") == 0
    assert expire_held(journal, wall_ms=START_MS - HOUR_MS, boot_id="") == 1


def test_the_highest_wall_clock_is_remembered_without_any_intent(journal: Journal) -> None:
    expire_held(journal, wall_ms=START_MS, boot_id="a")
    note_wall(journal, START_MS + 2 * HOUR_MS)
    note_wall(journal, START_MS + 2 * HOUR_MS + 5)
    assert journal.state.note("wall_high_ms") == str(START_MS + 2 * HOUR_MS)
    journal.open(intent(1, opened_ms=0))
    assert expire_held(journal, wall_ms=START_MS + HOUR_MS, boot_id="b") == 1


@pytest.mark.parametrize("damage", ["", "soon", "-5", "9" * 5_000, "9999999999999"])
def test_a_damaged_highest_wall_clock_expires_unsent_entries_at_one_boot(journal: Journal, damage: str) -> None:
    expire_held(journal, wall_ms=START_MS, boot_id="a")
    journal.state.write_note("wall_high_ms", damage)
    journal.open(intent(1, opened_ms=START_MS))
    assert expire_held(journal, wall_ms=START_MS + 1, boot_id="b") == 1, "its age is unknown"
    journal.open(intent(2, opened_ms=START_MS + 1))
    assert expire_held(journal, wall_ms=START_MS + 2, boot_id="c") == 0
    note_wall(journal, START_MS + 2 * HOUR_MS)
    assert journal.state.note("wall_high_ms") == str(START_MS + 2 * HOUR_MS)


def test_a_damaged_highest_wall_clock_does_not_end_a_pass(journal: Journal) -> None:
    journal.state.write_note("wall_high_ms", "soon")
    with capture_logs() as lines:
        note_wall(journal, START_MS)
    assert journal.state.note("wall_high_ms") == str(START_MS)
    assert journal.state.note("damaged:wall_high_ms") == "soon"
    assert [(line["event"], line["note"]) for line in lines] == [("journal.note_damaged", "wall_high_ms")]


async def test_nothing_is_opened_between_a_lapse_and_the_resync(tmp_path: Path) -> None:
    def always(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))

    clocks = Clocks()
    times = clocks.keeper()
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always)
    kernel.conditions.lease = times.lease
    await kernel.recover()
    clocks.run(2_000, asleep=HOUR_MS)
    await kernel.cycle()
    assert venue.fills == []
    lapses = times.look()
    await kernel.recover()
    times.acknowledge(lapses)
    venue.minute(BTC="100")
    await kernel.cycle()
    assert len(venue.fills) == 1


async def test_strategies_get_bars_after_the_clock_went_back() -> None:
    venue = FaultyPort(speed=1)
    venue.minute(BTC="100")
    kernel = make_kernel(venue)
    await kernel.recover()
    await kernel.cycle()
    series = BarSeries("BTC", "1m")
    assert kernel.bars.feed.due(venue.clock.now_ms()) == []
    behind_ms = venue.clock.now_ms() - HOUR_MS
    assert kernel.bars.feed.due(behind_ms) == [series]
    venue.minute(BTC="101")
    found: list[ClosedBar] = await kernel.bars.feed.poll(venue, kernel.journal.state.done_until, behind_ms)
    assert [one.bar.close for one in found] == [101]


async def test_a_wall_clock_that_is_set_back_delays_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler uses this clock and would otherwise make the next pass in an hour."""
    back = timedelta(0)

    class Wall(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - back

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Wall)
    monkeypatch.setattr("apscheduler.triggers.interval.datetime", Wall)
    monkeypatch.setattr(pass_scheduler, "PASS_S", 0.1)
    monkeypatch.setattr(pass_scheduler, "LATE_S", 0.1)
    one = pass_scheduler.PassScheduler()
    one.start()
    report = one.every(0.1, "report")
    for n in range(5):
        if n == 2:
            back = timedelta(hours=1)
            report.clear()
        async with asyncio.timeout(5):
            await one.wait(next_look_ms=None, now_ms=0, speed=1)
    assert report.is_set(), "repeated calls continue too"
    one.stop()


@pytest.mark.parametrize(
    ("look_ms", "speed", "is_rung", "rests"),
    [
        (None, 1.0, False, True),
        (60_000, 1.0, False, True),
        (600, 1.0, False, True),
        (400, 1.0, False, False),
        (-5, 1.0, False, False),
        # in real time a tenth of a second
        (60_000, 600.0, False, False),
        # moved by hand, at unknown times
        (60_000, 0.0, False, False),
        # There are events, so the next pass is at once.
        (60_000, 1.0, True, False),
    ],
)
async def test_at_rest_is_called_if_nothing_is_due_for_a_while(
    look_ms: int | None, speed: float, is_rung: bool, rests: bool
) -> None:
    rested: list[bool] = []

    def rest() -> None:
        rested.append(True)
        one.wake()

    one = pass_scheduler.PassScheduler(rest)
    one.start()
    if is_rung:
        one.wake()
    async with asyncio.timeout(5):
        await one.wait(next_look_ms=look_ms, now_ms=0, speed=speed)
    assert rested == [True] * rests
    one.stop()


class Waits:
    """Replaces the pass scheduler and records the time of the next pass."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.looks: list[int | None] = []

    async def wait(self, *, next_look_ms: int | None, now_ms: int, speed: float) -> None:
        self.looks.append(next_look_ms)
        self.stop.set()


@pytest.mark.parametrize(
    ("began", "ended", "look"),
    [
        (10_000, 10_050, 60_000),
        # The bar closed during the pass, perhaps after the pass had requested it.
        (59_990, 60_040, 60_000),
        # The pass requested the bar, but it was not there yet.
        (60_005, 60_020, 60_100),
        (60_105, 60_120, 60_500),
        # The regular passes request it.
        (60_505, 60_520, 120_000),
        # A market without new bars is not requested all the time.
        (125_000, 125_010, 180_000),
    ],
)
async def test_a_bar_that_closes_during_a_pass_or_comes_late_is_asked_for_at_once(
    began: int, ended: int, look: int
) -> None:
    venue, series = FaultyPort(), BarSeries("BTC", "1m")
    venue.minute(BTC="100")
    feed = BarFeed({series: 1})
    await feed.warm_up(venue, lambda _market, _interval: None, venue.clock.now_ms())
    start_ms = venue.clock.now_ms()
    venue.clock.speed = 1
    venue.clock.set(start_ms + began)
    stop = asyncio.Event()
    waits = Waits(stop)

    async def passed(*_: Any) -> None:
        venue.clock.set(start_ms + ended)

    run: Any = SimpleNamespace(
        _request=SimpleNamespace(stop=stop),
        _scheduler=waits,
        one_pass=passed,
        _kernel=SimpleNamespace(is_late=False, bars=SimpleNamespace(feed=feed), port=venue),
    )
    run._next_look_ms = partial(PassRunner._next_look_ms, run)
    await PassRunner.run(run)
    assert waits.looks == [start_ms + look]
