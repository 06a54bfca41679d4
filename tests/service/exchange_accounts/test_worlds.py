"""An account at an exchange in seeded worlds: nothing lost, nothing doubled, nobody told another thing, books equal to
the exchange's to the last unit. Seeded bugs are found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bot.service.exchange_accounts.action_dispatcher import ActionDispatcher
from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange import action_reports
from bot.venue.orders import exchange_actions, exchange_levels, protection_orders
from tests.service.exchange_accounts.worlds import World, run_world

# So many tests share the worlds, for as many cores as there are.
CHUNKS = 10
# Worlds that showed a fault of the service or its link, which is mended.
BROKEN_ONCE = (1313, 1653)


@pytest.mark.soak(worlds=30, full=10_000 // CHUNKS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_worlds(chunk: int, worlds: int, base_seed: int) -> None:
    broken = []
    first = base_seed + 1 + chunk * worlds
    for seed in range(first, first + worlds):
        try:
            run_world(seed)
        except AssertionError as error:
            broken.append(f"{seed}: {error}"[:2_000])
        if len(broken) >= 3:
            break
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_a_world_that_was_broken_once(seed: int) -> None:
    run_world(seed)


def new_nonce_on_a_retry(patch: pytest.MonkeyPatch) -> None:
    """Each copy has a nonce of its own."""
    wire = ActionDispatcher._wire

    def renumbered(self: ActionDispatcher, account: Any, action: Any) -> Any:
        copies = self._tracked[action.nonce].copies
        return replace(wire(self, account, action), action_nonce=action.nonce + copies)

    patch.setattr(ActionDispatcher, "_wire", renumbered)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """What is given up is taken for void, without a void."""
    patch.setattr(life, "given_up", lambda action: replace(action, status="void", is_final=True))


def told_too_early(patch: pytest.MonkeyPatch) -> None:
    """An action that is given up is over, before it is known whether it was performed."""
    is_over: Callable[..., bool] = action_reports._is_over
    patch.setattr(action_reports, "_is_over", lambda *given: is_over(*given) or given[1].status == "voiding")


def fills_by_the_answer_alone(patch: pytest.MonkeyPatch) -> None:
    """An answer that says "filled" ends the action, whether its fills are booked or not."""
    is_over: Callable[..., bool] = action_reports._is_over
    patch.setattr(action_reports, "_is_over", lambda *given: is_over(*given) or given[1].owed is not None)


def old_stop_canceled_first(patch: pytest.MonkeyPatch) -> None:
    """A stop is canceled before the one that takes its place stands."""
    cover = protection_orders._cover

    def covered(state: Any, account: Any, watched: Any, position: Any, level: Any) -> Any:
        if protection_orders.covering(account, position.coin, level.kind) is None:
            there = exchange_levels.placed(account, position.coin, level.kind)
            exchange_actions.cancel_protection(state, account, [order for order in there if order.status == "there"])
        yield from cover(state, account, watched, position, level)

    patch.setattr(protection_orders, "_cover", covered)


LATE = (("before_execution", "late"), ("request_in", "lost"))
# Each bug, and the faults of the worlds in which it shows soon; none: those of the world itself.
BUGS = {
    new_nonce_on_a_retry: (),
    no_fence: LATE,
    told_too_early: LATE,
    fills_by_the_answer_alone: (),
    old_stop_canceled_first: LATE,
}
# worlds in which a bug must show
WORLDS_MAX = 60


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_seeded_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def alter(world: World) -> None:
        if faults := BUGS[bug]:
            world.trouble, world.kinds, world.rate = "wire", list(faults), 0.4

    bug(monkeypatch)
    for seed in range(1, WORLDS_MAX + 1):
        try:
            run_world(seed, alter)
        except AssertionError:
            return
    pytest.fail(f"not found in {WORLDS_MAX} worlds")
