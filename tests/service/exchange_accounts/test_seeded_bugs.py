"""Seeded bugs in how actions are sent are found by what the client was told and what the exchange has done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bot.service.exchange_accounts.action_dispatcher import ActionDispatcher
from bot.testing.hyperliquid import LocalExchange
from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange import action_reports
from tests.service.exchange_accounts.followers import FUNDED, until
from tests.service.exchange_accounts.traders import Trader, actions_of, trading


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


LOST_ANSWER = (
    {"point": "after_execution", "kind": "lost", "action": "order"},
    {"point": "socket_message", "kind": "late", "channel": "userFills", "ms": 4_000},
)
LATE_COPIES = (
    {"point": "before_execution", "kind": "late", "action": "order", "ms": 9_000, "count": 4},
    {"point": "request_in", "kind": "lost", "action": "noop", "count": 99},
)
LATE_FILLS = ({"point": "socket_message", "kind": "late", "channel": "userFills", "ms": 2_000},)
BUGS = {
    "a new nonce on a retry": (new_nonce_on_a_retry, LOST_ANSWER),
    "no fence": (no_fence, LATE_COPIES),
    "an end that is told too early": (told_too_early, LATE_COPIES),
    "fills by the answer alone": (fills_by_the_answer_alone, LATE_FILLS),
}


async def differences(trader: Trader) -> list[str]:
    """Close a part, and compare what is told with what the exchange has done when no copy can act any more."""
    answer = await trader.close(fraction=0.25)
    while answer.status_code in (409, 503):
        if trader.service.machine.fault is not None:
            return [f"the service has stopped: {trader.service.machine.fault!r}"]
        answer = await trader.close(fraction=0.25)
    told = answer.json()["trade"]["filledSize"] if answer.status_code == 200 else "0"
    expires_ms = max(action.expires_ms for action in actions_of(trader.service))
    await until(lambda: trader.service.machine.clock.now_ms() > expires_ms + life.PATIENCE_MS)
    filled = sum(float(fill["sz"]) for fill in trader.placed())
    return [] if float(told) == filled else [f"told {told}, and the exchange has filled {filled}"]


# Each bug, and once each of the faults that show it, without one.
CASES = [(name, True) for name in BUGS] + [
    ("a new nonce on a retry", False),
    ("no fence", False),
    ("fills by the answer alone", False),
]


@FUNDED
@pytest.mark.parametrize(("name", "is_seeded"), CASES)
async def test_a_seeded_bug_is_found(
    hyperliquid: LocalExchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_seeded: bool
) -> None:
    seed, faults = BUGS[name]
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.04)
        if is_seeded:
            seed(monkeypatch)
        for fault in faults:
            hyperliquid.fault(**fault)
        shown = await differences(trader)
        assert bool(shown) == is_seeded, shown
