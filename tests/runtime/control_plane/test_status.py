"""The state of a run in one word: which one holds when several do, and that it says why."""

from __future__ import annotations

from bot.runtime.alerts.health import ENDING
from bot.runtime.control_plane.status import WORDS, state_of
from bot.runtime.model.positions import MirrorGuardian
from tests.fakes import FakeVenue
from tests.runtime.builders import room


async def test_the_state_in_a_word_and_why() -> None:
    loop = room(FakeVenue())
    assert state_of(loop, away="the service does not answer") == ("STARTING", "the service does not answer")
    said = [state_of(loop)]
    await loop.recover()
    assert state_of(loop, away="no answer") == ("STARTING", "no answer"), "its last steps failed, and are tried again"
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


async def test_a_guardian_that_keeps_entries_out_at_the_service_is_degraded_and_named() -> None:
    loop = room(FakeVenue())
    await loop.recover()
    loop.mirror.guardians["grd_9"] = MirrorGuardian("grd_9", "kill_switch", None, latched=True, blocks_opens=True)
    assert state_of(loop) == ("DEGRADED", "the service refuses entries: kill_switch grd_9 stands")


async def test_whatever_keeps_entries_out_of_every_market_is_degraded_and_named() -> None:
    venue = FakeVenue()
    loop = room(venue)
    await loop.recover()
    loop.mirror.guardians.clear()
    state = state_of(loop)
    assert state.word == "DEGRADED"
    assert "guardian dead_man of the config does not stand" in state.why
