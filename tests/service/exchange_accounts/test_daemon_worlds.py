"""A daemon that trades an account at an exchange in seeded worlds: no order is lost, doubled or told too early, no
position is without its stop, and the books are the exchange's. Seeded bugs of the daemon and the service are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bot.runtime.execution import order_search
from bot.venue.model.record import emit_order
from bot.venue.orders import orders
from tests.service.exchange_accounts.daemon_worlds import DaemonWorld
from tests.service.exchange_accounts.worlds import World, run_world

# worlds in which a seeded bug must show
WORLDS_MAX = 20


@pytest.mark.soak(worlds=8, full=500)
def test_daemon_worlds(worlds: int, base_seed: int) -> None:
    broken = []
    for seed in range(base_seed + 1, base_seed + worlds + 1):
        try:
            run_world(seed, kind=DaemonWorld)
        except AssertionError as error:
            broken.append(f"{seed}: {error}"[:2_000])
        if len(broken) >= 3:
            break
    assert not broken, "\n".join(broken)


def close_told_as_an_order(patch: pytest.MonkeyPatch) -> None:
    """The service tells a close as an open order when it is sent, before the exchange has decided it."""
    send = orders._send

    def sent(state: Any, account: Any, order: Any) -> Any:
        emit_order(state, account, order, "open")
        return send(state, account, order)

    patch.setattr(orders, "_send", sent)


def pending_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    """The daemon takes an order that the exchange has not decided for one that does not exist."""
    result = order_search.SearchResult

    def certain(trade_id: str | None, is_proof: bool, is_undecided: bool = False) -> Any:
        return result(trade_id, is_proof or is_undecided)

    patch.setattr(order_search, "SearchResult", certain)


@pytest.mark.parametrize("bug", [close_told_as_an_order, pending_taken_for_absent], ids=lambda bug: bug.__name__)
def test_a_seeded_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def alter(world: World) -> None:
        world.trouble = "all"

    bug(monkeypatch)
    for seed in range(1, WORLDS_MAX + 1):
        try:
            run_world(seed, alter, DaemonWorld)
        except AssertionError:
            return
    pytest.fail(f"not found in {WORLDS_MAX} worlds")
