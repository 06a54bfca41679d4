"""The past of a series: what had closed by an instant, wherever the bars of it are kept just now."""

from __future__ import annotations

import pytest

from bot.strategy import Bar
from bot.strategy.history import NEAR_BARS, History

MINUTE_MS = 60_000


def taken(count: int) -> History:
    history = History("BTC")
    for number in range(count):
        history.take(Bar("BTC", number * MINUTE_MS, 1.0, 1.0, 1.0, float(number), 1.0))
    return history


@pytest.mark.parametrize("back", [0, 1, NEAR_BARS - 1, NEAR_BARS, NEAR_BARS + 1, 350])
@pytest.mark.parametrize("off_ms", [0, 1, MINUTE_MS - 1])
def test_the_close_at_an_instant_is_that_of_the_newest_bar_by_then(back: int, off_ms: int):
    number = 400 - back
    expected = (number * MINUTE_MS, float(number))
    fresh = taken(401)
    assert fresh.close_at(number * MINUTE_MS + off_ms) == (expected if back or not off_ms else (400 * MINUTE_MS, 400.0))
    settled = taken(401)
    assert settled.closes(1) == [400.0]
    assert settled.close_at(number * MINUTE_MS + off_ms) == fresh.close_at(number * MINUTE_MS + off_ms)


def test_nothing_had_closed_before_the_first_bar():
    assert taken(3).close_at(-1) is None
    assert taken(300).close_at(-1) is None
    assert History("BTC").close_at(0) is None
