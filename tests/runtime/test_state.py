"""The state of a run in one word: which one holds when several do, and that it says why."""

from __future__ import annotations

from bot.runtime.state import ENDING, WORDS, state_of
from tests.fakes import FakeVenue
from tests.runtime.rooms import room


async def test_the_state_in_a_word_and_why() -> None:
    loop = room(FakeVenue())
    said = [state_of(loop)]
    await loop.recover()
    said.append(state_of(loop))
    loop.pauses.pause(None)
    said.append(state_of(loop))
    loop.desk.seats[0].quarantine("trend: ZeroDivisionError")
    said.append(state_of(loop))
    loop.health.degrade("scope", "the key may not trade")
    said.append(state_of(loop))
    said.append(state_of(loop, is_stopping=True))
    loop.paused = ENDING
    said.append(state_of(loop))
    assert [one.word for one in said] == [
        "STARTING",
        "RUNNING",
        "PAUSED",
        "DEGRADED",
        "DEGRADED",
        "STOPPING",
        "STOPPING",
    ]
    assert [bool(one.why) for one in said] == [True, False, True, True, True, True, True]
    assert said[3].why == "trend is in quarantine: trend: ZeroDivisionError"
    assert said[4].why == "the key may not trade; trend is in quarantine: trend: ZeroDivisionError"
    assert {one.word for one in said} == set(WORDS)


async def test_whatever_keeps_entries_out_of_every_market_is_degraded_and_named() -> None:
    venue = FakeVenue()
    loop = room(venue)
    await loop.recover()
    loop.mirror.guardians.clear()
    state = state_of(loop)
    assert state.word == "DEGRADED"
    assert "guardian dead_man of the config does not stand" in state.why
