"""Entries that an assistant proposes: checked as the strategy's own, always held for a person, entered once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bot.runtime.control_plane import proposal_route
from bot.runtime.control_plane.order_commands import decide
from bot.runtime.control_plane.proposal_route import HOUR_MAX, ProposalRoute
from bot.runtime.control_plane.server import ControlRequest, RequestProblem
from bot.runtime.journal import order_trace, queries
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.limits import Approval
from bot.strategy import Bar, Bracket, Intent, Open, View
from tests.faulty_port import FaultyPort
from tests.runtime.builders import begun, kill, make_kernel, minutes

LONG = {
    "strategy": "trend",
    "market": "BTC",
    "side": "long",
    "usd": 100,
    "stop_pct": "5",
    "reason": "it rises",
    "by": "a model",
}


def idle(view: View, bar: Bar) -> Iterable[Intent]:
    return ()


def eager(view: View, bar: Bar) -> Iterable[Intent]:
    yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))


async def propose(kernel: Kernel, key: str = "one", **changed: Any) -> Any:
    async def ask(work: Any) -> Any:
        return await work()

    access: Any = SimpleNamespace(require_kernel=lambda: kernel, mailbox=SimpleNamespace(ask=ask))
    return await ProposalRoute(access).propose(ControlRequest({**LONG, "key": key, **changed}))


def waiting(kernel: Kernel) -> list[str]:
    return [one.intent.trigger for one in kernel.approvals.waiting()]


@pytest.mark.parametrize(
    "approval", [None, Approval(above_usd=Decimal(900)), Approval(policy=lambda _: True, policy_name="mine:check")]
)
async def test_a_proposal_waits_for_a_person_whatever_the_config_lets_through(
    approval: Approval | None, tmp_path: Path
) -> None:
    venue = FaultyPort()
    kernel = await begun(venue, idle, approval=approval, path=tmp_path / "journal.db")
    kernel.risk.strategy_limits["trend"] = replace(kernel.risk.strategy_limits["trend"], path="direct")
    kernel.account.account_state.keys_proven = True
    answer = await propose(kernel)
    assert (answer["state"], answer["proposed_by"], answer["why"]) == ("waiting", "a model", "it rises")
    await minutes(kernel, venue, "100", "100", "100")
    assert (waiting(kernel), venue.positions) == (["proposal:one"], {}), "it outlives the freshness of a bar"
    done = await decide(kernel, answer["id"], approve=True, decider="me", reason=None)
    assert (done["state"], list(venue.positions)) == ("accepted", ["BTC"])
    assert (await propose(kernel))["state"] == "accepted", "the same key enters nothing again"
    assert venue.calls.count("confirm") == 1


async def test_a_kill_before_the_plan_keeps_the_proposal_and_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposal_route, "LOOKS", 1)
    path, venue = tmp_path / "journal.db", FaultyPort()
    first = await begun(venue, idle, path=path)
    monkeypatch.setattr(first.execution, "send_all", _nothing)
    assert (await propose(first))["state"] == "planning"
    kill(first)
    second = make_kernel(venue, idle, path=path)
    await second.recover()
    await second.cycle()
    assert (waiting(second), venue.calls.count("confirm")) == (["proposal:one"], 0)
    notices = [one.payload for one in second.journal.owed(after_seq=0, limit=9) if one.kind == "order.proposal"]
    assert notices and all("it rises" in one for one in notices)
    again = await propose(second)
    assert again["state"] == "waiting"
    second.journal.flush()
    with queries.opened(tmp_path) as db:
        assert order_trace.explain(db, again["id"])[0].text == "a model proposed it for trend: it rises"
    assert (await decide(second, again["id"], approve=False, decider="me", reason="no"))["state"] == "rejected"
    refused = await propose(second)
    assert (refused["state"], refused["code"]) == ("refused", "not_approved")


VALUES = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.floats(),
    some.text(max_size=60),
    some.lists(some.text(max_size=3), max_size=2),
    some.sampled_from(["1e400", "sNaN", "-5", "0.1", "BTC", "long", "trend", "k"]),
)
FIELDS = (*LONG, "stop_px", "target_pct", "target_px", "limit_px", "leverage", "key", "confirm")


@given(some.lists(some.dictionaries(some.sampled_from(FIELDS), VALUES, max_size=4), min_size=1, max_size=10))
@settings(max_examples=20, deadline=None)
def test_whatever_an_assistant_sends_is_answered_and_nothing_is_sent(calls: list[dict[str, Any]]) -> None:
    async def send_all() -> None:
        venue = FaultyPort()
        kernel = await begun(venue, idle)
        for n, changed in enumerate(calls):
            with contextlib.suppress(RequestProblem):
                answer = await propose(kernel, **({"key": f"k{n}"} | changed))
                assert answer["state"] in ("waiting", "refused"), answer
        await kernel.cycle()
        assert (venue.calls.count("confirm") + venue.calls.count("place"), venue.positions) == (0, {})
        assert kernel.risk.used_usd("trend") <= kernel.risk.strategy_limits["trend"].budget_usd

    asyncio.run(send_all())


async def _nothing(*_given: Any, **_more: Any) -> None:
    return


async def test_a_strategy_and_an_assistant_do_not_replace_each_others_entries() -> None:
    kernel = await begun(FaultyPort(), eager, approval=Approval(), interval_ms=3_600_000)
    [own] = waiting(kernel)
    await propose(kernel)
    assert waiting(kernel) == [own, "proposal:one"]
    await propose(kernel, "two")
    await kernel.cycle()
    assert waiting(kernel) == [own, "proposal:two"]


async def test_a_stopped_strategy_or_too_many_proposals_refuse() -> None:
    kernel = await begun(FaultyPort(), idle)
    for n in range(HOUR_MAX):
        assert (await propose(kernel, f"k{n}", usd=20))["state"] == "waiting"
    assert (await propose(kernel, "late"))["code"] == "too_many_proposals"
    kernel = await begun(FaultyPort(), idle)
    kernel.conditions.pauses.pause("trend")
    assert (await propose(kernel))["code"] == "paused"
    kernel = await begun(FaultyPort(), idle)
    kernel.strategy_host.instances[0].quarantined = "a mistake"
    assert (await propose(kernel))["code"] == "quarantined"
