"""The service's time: followed, carried on at its speed, never back between headers; and the waits of a retry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from bot.client import Backoff, ServiceClock, persist
from bot.clock import ManualClock
from bot.errors import OutcomeUnknown, Refused, TryLater

S = 1_000_000_000


class Elapsed:
    """Monotonic time that the test moves."""

    def __init__(self) -> None:
        self.ns = 10 * S

    def __call__(self) -> int:
        return self.ns


def made() -> tuple[ServiceClock, Elapsed, ManualClock]:
    elapsed, real = Elapsed(), ManualClock(1_748_736_000_000)
    return ServiceClock(real, elapsed, elapsed), elapsed, real


def see(
    clock: ServiceClock,
    elapsed: Elapsed,
    text: str | None,
    *,
    sent_ns: int | None = None,
    is_service: bool = True,
    date: str | None = None,
    age: str | None = None,
    may_be_kept: bool = True,
) -> None:
    clock.observe(
        sandbox=text,
        date=date,
        is_service=is_service,
        sent_ns=elapsed.ns if sent_ns is None else sent_ns,
        received_ns=elapsed.ns,
        age=age,
        may_be_kept=may_be_kept,
    )


def test_without_a_clock_header_the_machines_time_counts():
    clock, elapsed, real = made()
    see(clock, elapsed, None)
    real.advance(5)
    assert clock.now_ms() == real.now_ms()
    assert clock.speed == 1
    assert not clock.is_sandbox


def test_an_accelerated_clock_continues_at_its_speed():
    clock, elapsed, _ = made()
    see(clock, elapsed, "1000000; speed=60")
    elapsed.ns += S // 2
    assert clock.now_ms() == 1_030_000
    assert clock.speed == 60


def test_a_manual_clock_stands_still_between_headers():
    clock, elapsed, _ = made()
    see(clock, elapsed, "1000000; speed=0")
    elapsed.ns += 100 * S
    assert clock.now_ms() == 1_000_000
    see(clock, elapsed, "1060000; speed=0")
    assert clock.now_ms() == 1_060_000


def test_a_header_that_is_slightly_behind_stops_the_clock_until_it_catches_up():
    clock, elapsed, _ = made()
    see(clock, elapsed, "1000000; speed=60")
    elapsed.ns += S
    assert clock.now_ms() == 1_060_000
    see(clock, elapsed, "1050000; speed=60")
    assert clock.now_ms() == 1_060_000
    elapsed.ns += S // 6
    assert clock.now_ms() == 1_060_000
    elapsed.ns += S
    assert clock.now_ms() > 1_060_000
    assert clock.rewinds == 0


@pytest.mark.parametrize("speed", ["60", "0"])
def test_a_service_whose_time_went_back_is_followed(speed):
    clock, elapsed, _ = made()
    see(clock, elapsed, f"10000000; speed={speed}")
    assert clock.now_ms() == 10_000_000
    elapsed.ns += S
    see(clock, elapsed, f"1000000; speed={speed}")
    assert clock.now_ms() == 1_000_000
    assert clock.rewinds == 1


def test_answers_that_overtake_each_other_do_not_set_the_clock_back():
    clock, elapsed, _ = made()
    sent = elapsed.ns
    elapsed.ns += S
    see(clock, elapsed, "2000000; speed=0")
    elapsed.ns += S
    see(clock, elapsed, "1000000; speed=0", sent_ns=sent)
    assert clock.now_ms() == 2_000_000
    assert clock.rewinds == 0


def test_a_proxys_answer_is_ignored_and_a_service_on_real_time_ends_the_sandbox_clock():
    clock, elapsed, real = made()
    see(clock, elapsed, "1000000; speed=0")
    see(clock, elapsed, None, is_service=False)
    see(clock, elapsed, "nonsense; speed=1")
    assert clock.now_ms() == 1_000_000
    see(clock, elapsed, None)
    assert clock.now_ms() == real.now_ms()
    assert clock.speed == 1


def test_the_skew_is_measured_by_the_date():
    clock, elapsed, _ = made()
    see(clock, elapsed, None, date="Sun, 01 Jun 2025 00:00:05 GMT")
    assert clock.skew_ms == 5_000
    for no_instant in (
        "not a date",
        "Sun, 01 Jun 99999999999 00:00:00 GMT",
        "Sun, 01 Jun 2025 00:00:00 +99999999999999",
    ):
        see(clock, elapsed, None, date=no_instant)
        assert clock.skew_ms == 5_000


@pytest.mark.parametrize(
    ("date", "ahead_ms"),
    [
        ("00:00:00", 0),
        ("23:59:58", 0),
        ("23:59:57", 0),
        ("23:59:56", -1_000),
        ("23:00:00", -3_597_000),
        ("00:05:00", 300_000),
    ],
)
def test_a_machine_with_a_wrong_clock_follows_the_date_of_the_answers(date: str, ahead_ms: int):
    clock, elapsed, real = made()
    day = "Sun, 01 Jun" if date.startswith("00") else "Sat, 31 May"
    see(clock, elapsed, None, date=f"{day} 2025 {date} GMT")
    assert clock.now_ms() - real.now_ms() == ahead_ms


@pytest.mark.parametrize("hour_ms", [3_600_000, -3_600_000])
def test_a_jump_of_the_machines_clock_moves_the_services_time_by_at_most_the_precision_of_a_date(hour_ms: int):
    clock, elapsed, real = made()
    see(clock, elapsed, None, date="Sun, 01 Jun 2025 00:00:00 GMT")
    before_ms = clock.now_ms()
    elapsed.ns += 10 * S
    jumped = ManualClock(real.now_ms() + 10_000 + hour_ms)
    clock._real = jumped
    assert 10_000 <= clock.now_ms() - before_ms <= 13_000


def told(seconds: int) -> str:
    """A Date so many seconds after the test's beginning."""
    return format_datetime(datetime(2025, 6, 1, tzinfo=UTC) + timedelta(seconds=seconds), usegmt=True)


def passes(elapsed: Elapsed, real: ManualClock, seconds: int) -> None:
    elapsed.ns += seconds * S
    real.advance(seconds * 1_000)


@pytest.mark.parametrize("age", ["1", "3600", " 20 ", "soon"])
def test_the_date_of_an_answer_with_an_age_is_ignored(age: str):
    clock, elapsed, real = made()
    see(clock, elapsed, None, date=told(0))
    see(clock, elapsed, None, date=told(0), age="0")
    for _ in range(10):
        passes(elapsed, real, 30)
        see(clock, elapsed, None, date=told(0), age=age)
    assert (clock.now_ms(), clock.skew_ms, clock.stale) == (real.now_ms(), 0, 10)
    see(clock, elapsed, "1000000; speed=60", age=age)
    assert not clock.is_sandbox


def test_a_date_that_stands_still_does_not_stop_the_clock():
    """A cache that says nothing of itself, and asks the service every 45 seconds."""
    clock, elapsed, real = made()
    for second in range(300):
        see(clock, elapsed, None, date=told(second // 45 * 45))
        assert abs(clock.now_ms() - real.now_ms()) <= 5_000
        assert abs(clock.skew_ms or 0) <= 5_000
        passes(elapsed, real, 1)
    assert clock.stale > 200


def test_dates_are_not_stale_if_the_machines_clock_runs_fast():
    """By 50 parts in a million: 8 s in two days."""
    clock, elapsed, real = made()
    for minute in range(2 * 1_440):
        see(clock, elapsed, None, date=told(minute * 60 - minute * 60 // 20_000))
        passes(elapsed, real, 60)
    assert clock.stale == 0
    assert (clock.skew_ms or 0) < -7_000


def test_a_date_that_went_back_counts_after_a_minute_or_in_an_answer_that_no_cache_gives():
    for kept, seconds in ((True, 60), (False, 0)):
        clock, elapsed, real = made()
        for _ in range(5):
            see(clock, elapsed, None, date=told(0))
        for second in range(seconds):
            see(clock, elapsed, None, date=told(second - 20))
            assert clock.now_ms() == real.now_ms()
            passes(elapsed, real, 1)
        see(clock, elapsed, None, date=told(seconds - 20), may_be_kept=kept)
        assert clock.skew_ms == -20_000
        assert clock.now_ms() == real.now_ms() - 17_000


def test_the_date_of_a_slow_answer_is_not_stale():
    clock, elapsed, real = made()
    see(clock, elapsed, None, date=told(0))
    passes(elapsed, real, 12)
    see(clock, elapsed, None, date=told(1), sent_ns=elapsed.ns - 11 * S)
    assert clock.stale == 0


def test_reset_forgets_the_date_too():
    clock, elapsed, real = made()
    see(clock, elapsed, None, date="Sun, 01 Jun 2025 01:00:00 GMT")
    clock.reset()
    assert clock.now_ms() == real.now_ms()


def test_reset_forgets():
    clock, elapsed, real = made()
    see(clock, elapsed, "1000000; speed=0")
    clock.reset()
    assert clock.now_ms() == real.now_ms()


def test_the_wait_doubles_from_half_a_second_to_ten():
    waits = [Backoff().wait_ms(attempt, 0.5) for attempt in range(1, 9)]
    assert waits == [500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000]
    assert Backoff().wait_ms(10_000, 0.5) == 10_000


@pytest.mark.parametrize("attempt", [1, 3, 40])
def test_the_jitter_is_a_fifth_either_way(attempt):
    middle = Backoff().wait_ms(attempt, 0.5)
    assert Backoff().wait_ms(attempt, 0.0) == middle * 0.8
    assert middle * 1.19 < Backoff().wait_ms(attempt, 0.999) <= middle * 1.2


def test_a_wait_is_never_shorter_than_retry_after_and_never_longer_than_its_bound():
    assert Backoff().wait_ms(1, 0.5, after_ms=30_000) == 30_000
    assert Backoff().wait_ms(5, 0.5, after_ms=10) == 8000
    assert Backoff().wait_ms(1, 0.5, after_ms=10**12) == 3_600_000


class Calls:
    """Fails in the given ways, then answers; sleeping moves the time."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.made = 0
        self.slept: list[float] = []
        self.elapsed = Elapsed()

    async def __call__(self) -> str:
        self.made += 1
        if self.faults:
            raise self.faults.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed.ns += int(seconds * S)

    async def run(self, *, budget_ms: int = 60_000, attempts_max: int = 20) -> str:
        return await persist(
            self,
            sleep=self.sleep,
            chance=lambda: 0.5,
            budget_ms=budget_ms,
            attempts_max=attempts_max,
            elapsed_ns=self.elapsed,
        )


async def test_a_call_is_repeated_until_it_answers():
    calls = Calls(
        TryLater("rate_limited", "m", after_ms=3000),
        OutcomeUnknown("internal_error", "m"),
        TryLater("connect_error", "m", after_ms=0),
    )
    assert await calls.run() == "done"
    assert calls.slept == [3.0, 1.0, 2.0]


async def test_a_refusal_is_not_repeated():
    calls = Calls(Refused("not_found", "m"))
    with pytest.raises(Refused):
        await calls.run()
    assert calls.made == 1


async def test_a_retry_ends_with_its_budget():
    calls = Calls(*(OutcomeUnknown("internal_error", "m") for _ in range(100)))
    with pytest.raises(OutcomeUnknown):
        await calls.run(budget_ms=10_000)
    assert sum(calls.slept) <= 10
    assert calls.made == 5


async def test_a_retry_ends_with_its_count():
    calls = Calls(*(TryLater("rate_limited", "m", after_ms=0) for _ in range(100)))
    with pytest.raises(TryLater):
        await calls.run(budget_ms=10**9, attempts_max=3)
    assert calls.made == 3


async def test_a_wait_longer_than_the_remaining_budget_does_not_start():
    calls = Calls(TryLater("service_unavailable", "m", after_ms=30_000))
    with pytest.raises(TryLater):
        await calls.run(budget_ms=20_000)
    assert calls.slept == []
