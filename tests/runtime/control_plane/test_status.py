"""The state of the daemon in one word: which state applies when several could, and its reason."""

from __future__ import annotations

from bot.runtime.alerts.health import ENDING
from bot.runtime.control_plane.status import WORDS, state_of
from bot.runtime.model.positions import AccountGuardian
from tests.faulty_port import FaultyPort
from tests.runtime.builders import make_kernel


async def test_the_state_and_its_reason() -> None:
    kernel = make_kernel(FaultyPort())
    assert state_of(kernel, away="the service does not answer") == ("STARTING", "the service does not answer")
    said = [state_of(kernel)]
    await kernel.recover()
    assert state_of(kernel, away="no answer") == ("STARTING", "no answer"), "its last steps failed, and are tried again"
    said.append(state_of(kernel))
    kernel.conditions.pauses.pause(None)
    said.append(state_of(kernel))
    kernel.strategy_host.instances[0].quarantine("trend: ZeroDivisionError")
    said.append(state_of(kernel))
    kernel.health.degrade("scope", "the key may not trade")
    said.append(state_of(kernel))
    said.append(state_of(kernel, is_stopping=True))
    kernel.state.paused = ENDING
    said.append(state_of(kernel))
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


async def test_a_guardian_that_blocks_entries_makes_the_state_degraded_and_is_named() -> None:
    kernel = make_kernel(FaultyPort())
    await kernel.recover()
    kernel.account.account_state.guardians["grd_9"] = AccountGuardian(
        "grd_9", "kill_switch", None, latched=True, blocks_opens=True
    )
    assert state_of(kernel) == ("DEGRADED", "the service refuses entries: kill_switch grd_9 stands")


async def test_whatever_blocks_entries_in_every_market_makes_the_state_degraded_and_is_named() -> None:
    venue = FaultyPort()
    kernel = make_kernel(venue)
    await kernel.recover()
    kernel.account.account_state.guardians.clear()
    state = state_of(kernel)
    assert state.word == "DEGRADED"
    assert "guardian dead_man of the config is not armed" in state.why
