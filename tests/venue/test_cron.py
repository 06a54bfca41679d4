"""Cron: the minutes of five fields, compared with a simple implementation and with dates computed by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from cronsim import CronSim, CronSimError

from bot.venue import cron

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
        return f"{a}/{rng.randint(1, 9)}"
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
            at = found or 0
        compared += 1
    assert compared > worlds // 2


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2025-05-01 00:00", "2025-05-01 00:00"),
        ("* * * * *", "2025-05-01 00:00:01", "2025-05-01 00:01"),
        ("*/15 9-17 * * mon-fri", "2025-05-02 17:46", "2025-05-05 09:00"),
        ("0 0 13 * fri", "2025-05-01 12:00", "2025-05-02 00:00"),  # Both day fields are set: one match is enough.
        ("0 0 13 * */7", "2025-05-01 12:00", "2025-07-13 00:00"),  # One of them is a star: both must match.
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
        "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *",
        "a * * * *", "-1 * * * *", "1, * * * *", "* * * JANUARY *", "* * L * *", "* * * * 5#2", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "+1 * * * *",
        "² * * * *", "1-2-3 * * * *", "*/ * * * *", "1//2 * * * *", "**  * * * *", "@daily",
    ],
)  # fmt: skip
def test_an_invalid_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(cron.BadCron):
        cron.parse(text)


def test_the_calendar_is_that_of_the_standard_library() -> None:
    for day in range(0, 60_000, 13):
        made = EPOCH + timedelta(days=day)
        assert cron.civil(day) == (made.year, made.month, made.day)
