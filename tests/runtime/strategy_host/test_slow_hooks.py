"""Slow hooks: events are delivered in several passes, so that exits, stops and heartbeats do not wait for all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bot.errors import TryLater
from bot.runtime.control_plane import status_documents
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.passes.pass_budget import PASS_MS
from bot.runtime.strategy_host.event_backlog import EventBacklog
from bot.strategy import Bar, Bracket, Intent, Open, View
from bot.wire import BracketRequest, LegRequest
from tests.fakes import FakePacer
from tests.faulty_port import Fault, FaultyPort
from tests.runtime.builders import AWAY, Script, Scripted, begun, grown, kill, make_kernel, trailing

# late, and allowed
HOOK_MS = 2_000


class SlowToFill(Scripted):
    """Takes two seconds for each of its fills, which is allowed."""

    def __init__(self, script: Script, pacer: FakePacer, **more: Any) -> None:
        super().__init__(script, **more)
        self.pacer = pacer
        self.lived: list[str] = []

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        self.pacer.now_ms += HOOK_MS
        self.lived.append(f"{fill.action} {fill.size:g}")
        return super().on_fill(view, fill)


async def test_events_for_slow_hooks_are_delivered_in_several_passes(tmp_path: Path) -> None:
    """A person replaces the stop of a position meanwhile.

    If the page is cut between the two events, the position does not count as unprotected.
    """
    pacer, path = FakePacer(), tmp_path / "journal.db"
    entered = False

    def enters(view: View, bar: Bar) -> Iterable[Intent]:
        if not entered:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))

    slow = SlowToFill(enters, pacer, markets=("BTC", "ETH"))
    venue = FaultyPort(least_usd="0.01")
    kernel = await begun(venue, strategies=[slow], pacer=pacer, path=path)
    while kernel.is_late:
        await kernel.cycle()
    assert (set(venue.positions), len(slow.lived)) == ({"BTC", "ETH"}, 2)
    entered = True
    (stop,) = [one for one in venue.working.values() if one.coin == "BTC" and one.kind == "stop_loss"]
    venue.canceled_by_hand(stop.oid)
    for n in range(1, 13):
        bracket = BracketRequest(stop_loss=LegRequest(pct=Decimal(5))) if n == 6 else None
        venue.by_hand("BTC", "long", f"0.{n:02}", source=None, bracket=bracket)
    events = len(venue.event_rows)
    made = 0
    while made == 0 or kernel.is_late:
        began_ms = pacer.now_ms
        await kernel.cycle()
        assert pacer.now_ms - began_ms <= PASS_MS + HOOK_MS
        assert not kernel.state.is_page_cut or kernel.conditions.entries_stopped(kernel.now_ms()) is not None
        made += 1
    assert made <= 14
    assert slow.lived[2:] == [f"open 0.{n:02}".rstrip("0") for n in range(1, 13)]
    assert (trailing(venue), len(venue.event_rows)) == ([], events), "nothing is repaired on half of a page"
    kill(kernel)
    again = make_kernel(venue, path=path, strategies=[Scripted(enters, markets=("BTC", "ETH"))], pacer=pacer)
    await again.recover()
    assert again.journal.state.of_strategy("trend")["fills"] == 14


class Looks(Scripted):
    """Looks at the account as a monitor may, between a fill and the event of its stop."""

    kernel: Kernel

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        account = self.kernel.account
        self.bare = [[p.market for p in by()] for by in (account.account_state.unprotected, account.seen_unprotected)]
        (held,) = account.account_state.positions.values()
        self.told = account.seen_protected(held), status_documents.position(self.kernel, held)["protected"]
        return super().on_fill(view, fill)


async def test_who_asks_between_a_fill_and_its_stop_sees_the_last_whole_page(tmp_path: Path) -> None:
    looks, venue = Looks(enters_once), FaultyPort(least_usd="0.01")
    venue.minute(BTC="100")
    kernel = make_kernel(venue, path=tmp_path / "journal.db", strategies=[looks])
    looks.kernel = kernel
    await kernel.recover()
    await kernel.cycle()
    assert (looks.bare, looks.told) == ([["BTC"], []], (None, None))
    (held,) = kernel.account.account_state.positions.values()
    assert kernel.account.seen_protected(held) is True
    venue.canceled_by_hand(next(one.oid for one in venue.working.values() if one.kind == "stop_loss"))
    await kernel.events.drain()
    assert [p.market for p in kernel.account.seen_unprotected()] == ["BTC"], "a stop that is gone is told at once"
    assert kernel.account.seen_protected(held) is False


def enters_once(view: View, bar: Bar) -> Iterable[Intent]:
    if not view.state.get("entered"):
        view.state["entered"] = True
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))


async def left_to_tell(path: Path, pacer: FakePacer, fills: int) -> tuple[FaultyPort, Kernel, SlowToFill]:
    """A start after a run that was killed before it delivered some fills; one more fill has come since."""
    venue = FaultyPort(least_usd="0.01")
    kernel = await begun(venue, enters_once, path=path)
    kernel.strategy_host.set_instances(kernel.strategy_host.instances, unready=["trend"])
    for n in range(1, fills + 1):
        grown(venue, "BTC", f"0.{n:02}", 100)()
    await kernel.cycle()
    kill(kernel)
    grown(venue, "BTC", "1", 100)()
    slow = SlowToFill(enters_once, pacer)
    return venue, make_kernel(venue, path=path, strategies=[slow], pacer=pacer), slow


async def test_a_backlog_is_delivered_beside_the_passes_of_a_start(tmp_path: Path) -> None:
    """And before newer events."""
    pacer = FakePacer()
    _, again, slow = await left_to_tell(tmp_path / "journal.db", pacer, 12)
    passed = [0]
    again.hooks.passed = lambda _bar_ms: passed.append(pacer.now_ms)
    await again.recover()
    await again.cycle()
    assert max(after - before for before, after in pairwise(passed)) <= PASS_MS + 2 * HOOK_MS
    assert slow.lived == [f"open 0.{n:02}".rstrip("0") for n in range(1, 13)] + ["open 1"]
    assert list(again.strategy_host.backlogs) == []
    assert list(EventBacklog.of_journal(again.journal, "trend", 0)) == []


async def test_a_repeated_start_delivers_each_event_once(tmp_path: Path) -> None:
    """The service goes away when a part of the backlog has been delivered."""
    venue, again, slow = await left_to_tell(tmp_path / "journal.db", FakePacer(), 3)
    venue.faults = [Fault("guardians", AWAY, 1)]
    with pytest.raises(TryLater):
        await again.recover()
    assert slow.lived == ["open 0.01", "open 0.02"]
    await again.recover()
    await again.cycle()
    assert slow.lived == ["open 0.01", "open 0.02", "open 0.03", "open 1"]
    assert again.journal.state.of_strategy("trend")["fills"] == 1 + len(slow.lived)
