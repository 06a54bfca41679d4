"""What the daemon remembers: everything that a run can reach from its loop, counted while bars go by.

A run of a year holds what one of a day does.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from collections.abc import Collection, Iterable
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Final

import pytest

from bot.clock import MINUTE_MS
from bot.runtime.account import account_state, ownership, trade_log
from bot.runtime.decisions import bar_queue
from bot.runtime.kernel import upkeep
from bot.runtime.passes import bar_feed
from bot.runtime.risk.order_builder import REQUESTS_KEPT
from bot.strategy import Bar, Bracket, Close, Intent, Open, Strategy, View
from tests.fakes import FakePacer
from tests.faulty_port import FaultyPort
from tests.runtime.builders import make_kernel, minutes

KEPT = 20
CONTAINERS: Final = (dict, list, set, deque)
# bars, more than anything here needs to go round once
WINDOW = 60


class Churn(Strategy):
    """Opens with a stop and a target, closes two bars later; keeps nothing of its own."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market):
            return [Close(bar.market)]
        # Requests differ, so that what is kept of them goes round too.
        usd = 50 + bar.at_ms // 60_000 % (REQUESTS_KEPT // 2)
        return [Open(bar.market, "long", usd=usd, bracket=Bracket(stop_pct=2, target_r=2))]


def held(root: object, *, but: Collection[object]) -> Counter[str]:
    """How many things each kind of container holds, of all that can be reached; by the class that has it and the
    attribute.
    """
    found: Counter[str] = Counter()
    seen = {id(one) for one in but}
    todo: list[tuple[object, str]] = [(root, "")]
    while todo:
        one, name = todo.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | sqlite3.Connection):
            continue
        seen.add(id(one))
        if isinstance(one, CONTAINERS):
            found[name] += len(one)
            parts = [*one.keys(), *one.values()] if isinstance(one, dict) else [*one]
            todo += [(part, name) for part in parts]
        elif isinstance(one, tuple | frozenset):
            todo += [(part, name) for part in one]
        elif isinstance(one, MethodType):
            todo.append((one.__self__, name))
        elif isinstance(one, FunctionType):
            todo += [(cell.cell_contents, name) for cell in one.__closure__ or ()]
        elif type(one).__module__.startswith(("bot.", "tests.")):
            names = {
                *getattr(one, "__dict__", ()),
                *(n for c in type(one).__mro__ for n in getattr(c, "__slots__", ())),
            }
            todo += [(getattr(one, n), f"{type(one).__name__}.{n}") for n in names if hasattr(one, n)]
    return found


async def test_a_run_that_goes_on_holds_no_more_than_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_state, "KEYS_KEPT", KEPT)
    monkeypatch.setattr(ownership, "OWNERS_KEPT", KEPT)
    monkeypatch.setattr(trade_log, "ENTRIES_MS", KEPT * MINUTE_MS)
    for module in (bar_feed, bar_queue):
        monkeypatch.setattr(module, "HISTORY_BARS", KEPT)
    venue, pacer = FaultyPort(), FakePacer()
    run = make_kernel(
        venue,
        strategies=[Churn(name="churn", markets=["BTC", "ETH"])],
        markets=["BTC", "ETH"],
        path=tmp_path / "journal.db",
        pacer=pacer,
    )
    await run.recover()
    most: list[Counter[str]] = []
    for _ in range(3):
        window: Counter[str] = Counter()
        for n in range(WINDOW):
            pacer.now_ms += upkeep.TRIM_MS // 4
            await minutes(run, venue, ("100", "101.5", "99", "103", "96", "100.5")[n % 6])
            if n % 5 == 0:
                window |= held(run, but=[venue])
        most.append(window)
    assert len(venue.trade_rows) > WINDOW, "it was to have something to forget"
    _, before, after = most
    assert {name: (before[name], n) for name, n in after.items() if n > before[name]} == {}
    assert len(run.account.account_state.trades_by_key) == KEPT
    assert KEPT <= len(run.account.order_owners.by_key) <= KEPT + 12, "what came since the last trim"
