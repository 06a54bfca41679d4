"""Cron: the minutes of five fields, compared with another implementation and with dates computed by hand; and one
reader in every place.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar

import pytest
from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from bot import cron
from bot.agents.params import AgentParams
from bot.config.settings import GuardianSettings as ConfiguredGuardian
from bot.errors import Refusal, StrategyError
from bot.runtime.strategy_host import timers
from bot.strategy import Strategy
from bot.venue.model.state import GuardianSpec
from bot.venue.protection.guardians import normalise
from bot.wire.guardian_requests import GuardianRequest
from tests.builders import T0, VenueDriver, market

SPANS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
NAMES = {3: ["JAN", "feb", "Mar", "APR", "may", "JUN"], 4: ["SUN", "mon", "Tue", "WED", "thu", "FRI", "sat"]}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def shown(at_ms: int | None) -> str:
    assert at_ms is not None
    return (EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M")


def term(rng: Random, at: int) -> str:
    low, high = SPANS[at]
    roll = rng.random()
    if roll < 0.3:
        return "*"
    if roll < 0.4:
        return f"*/{rng.randint(1, high)}"
    if roll < 0.6 and at in NAMES:
        return rng.choice(NAMES[at])
    a, b = sorted((rng.randint(low, high), rng.randint(low, high)))
    if roll < 0.75:
        return f"{a}-{b}"
    if roll < 0.85:
        return f"{a}-{b}/{rng.randint(1, 7)}" if a < b else str(a)
    if roll < 0.9:
        return f"{a}/{rng.randint(1, min(9, high))}"
    return str(a)


def expression(rng: Random) -> str:
    return " ".join(",".join(term(rng, at) for _ in range(rng.choice((1, 1, 1, 2, 3)))) for at in range(5))


@pytest.mark.soak(worlds=300, full=10_000)
def test_the_next_runs_are_those_of_another_cron(worlds: int, base_seed: int) -> None:
    rng = Random(base_seed)
    compared = 0
    for _ in range(worlds):
        text = expression(rng)
        start = EPOCH + timedelta(minutes=rng.randint(0, 60 * 24 * 365 * 80))
        try:
            other = CronSim(text, start)
            expected = [next(other) for _ in range(5)]
        except (CronSimError, StopIteration):
            with pytest.raises(cron.BadCron):
                cron.parse(text)
            continue
        read = cron.parse(text)
        at = int(start.timestamp()) * 1000
        for wanted in expected:
            found = cron.next_run(read, at + 1)
            assert shown(found) == wanted.strftime("%Y-%m-%d %H:%M"), (text, start)
            assert cron.last_run(read, (found or 0) + rng.randint(0, 59_999)) == found, text
            if wanted is not expected[0]:
                assert cron.last_run(read, (found or 0) - 1) == at, text
            at = found or 0
        compared += 1
    assert compared > worlds // 2


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2025-05-01 00:00", "2025-05-01 00:00"),
        ("* * * * *", "2025-05-01 00:00:01", "2025-05-01 00:01"),
        ("*/15 9-17 * * mon-fri", "2025-05-02 17:46", "2025-05-05 09:00"),
        # Both day fields are set: one match is enough.
        ("0 0 13 * fri", "2025-05-01 12:00", "2025-05-02 00:00"),
        # One of them is a star: both must match.
        ("0 0 13 * */7", "2025-05-01 12:00", "2025-07-13 00:00"),
        ("30 4 1,15 * 5", "2025-05-03 00:00", "2025-05-09 04:30"),
        ("0 12 29 2 *", "2025-03-01 00:00", "2028-02-29 12:00"),
        ("0 12 29 2 *", "2096-03-01 00:00", "2104-02-29 12:00"),
        ("59 23 31 12 *", "2025-12-31 23:59", "2025-12-31 23:59"),
        ("0 0 * * 7", "2025-05-01 00:00", "2025-05-04 00:00"),
        ("5/20 * * * *", "2025-05-01 00:26", "2025-05-01 00:45"),
    ],
)
def test_a_run_equals_a_date_computed_by_hand(text: str, after: str, expected: str) -> None:
    assert shown(cron.next_run(cron.parse(text), ms(after))) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "-1 * * * *",
        "1, * * * *",
        "* * * JANUARY *",
        "* * L * *",
        "* * * * 5#2",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "+1 * * * *",
        "² * * * *",
        "1-2-3 * * * *",
        "*/ * * * *",
        "1//2 * * * *",
        "**  * * * *",
        "@daily",
    ],
)
def test_an_invalid_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(cron.BadCron):
        cron.parse(text)


@pytest.mark.parametrize("form", ["*/{}", "1/{}", "1-5/{}", "2,*/{}"])
@pytest.mark.parametrize(
    ("at", "name", "most"),
    [(0, "minute", 60), (1, "hour", 24), (2, "day-of-month", 31), (3, "month", 12), (4, "day-of-week", 7)],
)
def test_a_step_is_at_most_the_number_of_values_of_its_field(form: str, at: int, name: str, most: int) -> None:
    def with_step(step: int) -> str:
        fields = ["*"] * 5
        fields[at] = form.format(step)
        return " ".join(fields)

    for step in (1, most):
        cron.parse(with_step(step))
    for step in (0, most + 1, 9_999):
        with pytest.raises(cron.BadCron, match=f"^{name}: a step is 1 to {most}, not {step}$"):
            cron.parse(with_step(step))


def test_the_calendar_is_that_of_the_standard_library() -> None:
    for day in range(0, 60_000, 13):
        made = EPOCH + timedelta(days=day)
        assert cron.civil(day) == (made.year, made.month, made.day)


# ── One reader in every place ───────────────────────────────────────────────────────────────────────────────────────

FORMS = [
    "* * * * *",
    "0 * * * *",
    "*/7 * * * *",
    "5/20 * * * *",
    "5-5/2 * * * *",
    "0 5-5/3 * * *",
    "0 0 3-3/9 * *",
    "1-9/4 * * * *",
    "0 0 13 * fri",
    "0 0 13 * */7",
    "0 0 */2 * 1",
    "0 0 1 jan-mar *",
    "0 9 * * MON-fri",
    "0 0 * * 0,7",
    "0 0 * * 5-7",
    "0 12 29 2 *",
    "  0  9\t* * 1 ",
    "0 0 L * *",
    "0 0 LW * *",
    "0 0 15W * *",
    "0 0 L-3 * *",
    "0 0 * * 5#2",
    "0 0 * * 5L",
    "0 0 ? * 1",
    "0 0 * * fri#1",
    "H * * * *",
    "@daily",
    "0 0 0 * * *",
    "0 0 * *",
    "",
    "60 * * * *",
    "*/0 * * * *",
    "*/90 * * * *",
    "9-5 * * * *",
    "0 0 31 2 *",
    "0 0 * * sat-sun",
    "0 0 * 13 *",
    "1, * * * *",
    "\u0661 * * * *",
    "0 0 * \u017fep *",
    f"{'1' * 5000} * * * *",
]
# instants that are compared
RUNS = 12


def runs(text: str) -> list[int]:
    """What the reader says, from T0 on."""
    read, at, found = cron.parse(text), T0, []
    for _ in range(RUNS):
        at = cron.next_run(read, at + 1) or 0
        found.append(at)
    return found


def timer_runs(text: str) -> list[int]:
    class Clocked(Strategy):
        timers: ClassVar[dict[str, str | int]] = {"a": text}

        def on_bar(self, view, bar):  # type: ignore[no-untyped-def]
            return ()

    timers.check_timers(Clocked, "clocked.py")
    at, found = T0, []
    for _ in range(RUNS):
        at = timers.next_after(text, at)
        assert timers.newest_until(text, at) == timers.newest_until(text, at + 59_999) == at
        found.append(at)
    return found


def agent_runs(text: str) -> list[int]:
    given = {"model": "m", "base_url": "http://127.0.0.1:1", "usd_per_million_in": 0, "usd_per_million_out": 0}
    asked = AgentParams(**given, instructions="trade", ask_at=text).ask_at
    assert asked is not None
    return timer_runs(asked)


def schedule_runs(text: str) -> list[int]:
    """The instants of a schedule of the venue, armed as the service arms it."""
    spec = normalise(GuardianSpec("schedule", cron=text, action="cancel_orders"))
    assert not isinstance(spec, Refusal), spec.message
    venue = VenueDriver((market(), "100"))
    armed = venue.arm(spec).answer
    assert armed is not None and armed.deadline_ms is not None
    return [armed.deadline_ms]


def wire_runs(text: str) -> list[int]:
    sent = GuardianRequest(type="schedule", cron=text, action="cancel_orders").cron
    assert sent is not None
    return schedule_runs(sent)


def config_runs(text: str) -> list[int]:
    kept = ConfiguredGuardian(type="schedule", cron=text, action="cancel_orders").request().cron
    assert kept is not None
    return schedule_runs(kept)


PLACES = (timer_runs, agent_runs, schedule_runs, wire_runs, config_runs)


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_each_place_accepts_what_can_be_scheduled_and_at_the_same_instants(place: Any, text: str) -> None:
    try:
        expected = runs(text)
    except cron.BadCron:
        with pytest.raises((ValidationError, StrategyError, AssertionError)) as refused:
            place(text)
        assert "Traceback" not in str(refused.value) and len(str(refused.value)) < 1_000
        return
    found = place(text)
    assert found == expected[: len(found)]


def test_the_forms_of_other_crons_are_refused_and_the_common_ones_are_not() -> None:
    def is_read(text: str) -> bool:
        try:
            cron.parse(text)
        except cron.BadCron:
            return False
        return True

    assert [text for text in FORMS if is_read(text)] == FORMS[: FORMS.index("0 0 L * *")]
