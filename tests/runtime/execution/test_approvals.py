"""Entries that wait for a person or a policy: held, answered once, asked again; exits never wait."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.errors import BotError
from bot.runtime.control_plane.commands import CommandTimeout
from bot.runtime.control_plane.order_commands import decide
from bot.runtime.execution.approvals import document
from bot.runtime.journal import order_trace, queries
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.limits import Approval
from bot.runtime.strategy_host.worker_pool import WorkerPool
from bot.strategy import Bar, Bracket, Close, Intent, Open, Proposal, View
from bot.wire import Event, EventsPage
from bot.wire.events import OrderData
from tests.faulty_port import Fault, FaultyPort
from tests.runtime.builders import begun, intent, kill, later, make_kernel, minutes

ALWAYS = Approval()


def once(view: View, bar: Bar) -> Iterable[Intent]:
    """Long 200 USD on the first bar, closed at 101."""
    if view.state.get("bars") == 1:
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))
    if bar.close == 101 and view.position(bar.market) is not None:
        yield Close(bar.market)


async def held(approval: Approval = ALWAYS, **more: Any) -> tuple[FaultyPort, Kernel]:
    venue = FaultyPort()
    return venue, await begun(venue, once, approval=approval, interval_ms=3_600_000, **more)


async def answer(kernel: Kernel, *, approve: bool = True, name: str | None = None, reason: str | None = None) -> Any:
    name = name or kernel.approvals.waiting()[0].intent.id[:8]
    return await decide(kernel, name, approve=approve, decider="me", reason=reason)


def count(venue: FaultyPort, call: str) -> int:
    return venue.calls.count(call)


def notices(kernel: Kernel) -> list[str]:
    return [one.kind for one in kernel.journal.owed(after_seq=0, limit=99)]


async def test_an_entry_waits_for_a_person_and_is_sent_once_after_the_approval() -> None:
    venue, kernel = await held()
    (one,) = kernel.approvals.waiting()
    assert (count(venue, "plan"), count(venue, "confirm"), venue.positions) == (1, 0, {})
    assert notices(kernel) == ["order.approval"]
    shown = document(one, kernel.now_ms())
    assert (shown["market"], shown["side"], shown["id"]) == ("BTC", "long", one.intent.id)
    assert one.intent.confirm_token is not None
    assert one.intent.confirm_token not in str(shown), "a token is never shown"
    await kernel.cycle()
    assert count(venue, "confirm") == 0, "a pass by itself sends nothing"
    done = await answer(kernel)
    assert (done["answer"], done["state"]) == ("approved", "accepted")
    assert "BTC" in venue.positions
    with pytest.raises(BotError, match="was approved by me"):
        await answer(kernel, name=one.intent.id)
    assert count(venue, "confirm") == 1


async def test_a_refused_entry_ends_and_is_not_planned_again() -> None:
    venue, kernel = await held()
    done = await answer(kernel, approve=False, reason="before the news")
    assert (done["state"], done["message"]) == ("rejected", "refused by me: before the news")
    await minutes(kernel, venue, "100")
    assert (count(venue, "plan"), count(venue, "confirm")) == (1, 0)
    assert kernel.approvals.waiting() == []


async def test_a_small_entry_is_sent_at_once_and_a_large_one_waits() -> None:
    for above, positions in ((Decimal(200), ["BTC"]), (Decimal(199), [])):
        venue, _ = await held(Approval(above_usd=above))
        assert list(venue.positions) == positions


async def test_an_exit_never_waits() -> None:
    venue, kernel = await held()
    await answer(kernel)
    await minutes(kernel, venue, "101")
    assert venue.positions == {}


async def test_an_expired_plan_is_made_anew_without_a_second_notice_and_its_old_id_still_answers() -> None:
    venue, kernel = await held()
    (old,) = kernel.approvals.waiting()
    await minutes(kernel, venue, "100.2")
    await kernel.cycle()
    (new,) = kernel.approvals.waiting()
    assert new.intent.id != old.intent.id
    assert (count(venue, "plan"), notices(kernel)) == (2, ["order.approval"])
    assert (await answer(kernel, name=old.intent.id))["id"] == new.intent.id
    assert count(venue, "confirm") == 1


async def test_a_drifted_price_asks_again_and_the_old_id_does_not_answer() -> None:
    venue, kernel = await held()
    (old,) = kernel.approvals.waiting()
    kernel.account.account_state.marks["BTC"] = 100.6
    with pytest.raises(BotError, match=r"drifted more than 0\.5%"):
        await answer(kernel)
    await kernel.cycle()
    (new,) = kernel.approvals.waiting()
    assert notices(kernel) == ["order.approval"] * 2
    with pytest.raises(BotError, match=f"replaced by {new.intent.id[:12]}"):
        await answer(kernel, name=old.intent.id)
    assert count(venue, "confirm") == 0


async def test_an_entry_without_an_answer_ends_when_its_decision_is_old() -> None:
    venue = FaultyPort()
    kernel = await begun(venue, once, approval=ALWAYS)
    await minutes(kernel, venue, "100", "100", "100", "100", "100")
    assert kernel.approvals.waiting() == []
    assert count(venue, "confirm") == 0


@pytest.mark.parametrize("approve", [True, False])
async def test_a_kill_leaves_the_question_or_its_answer_and_nothing_is_sent_twice(
    tmp_path: Path, approve: bool
) -> None:
    path = tmp_path / "journal.db"
    venue, first = await held(path=path)
    (one,) = first.approvals.waiting()
    kill(first)
    second = make_kernel(venue, once, path=path, approval=ALWAYS, interval_ms=3_600_000)
    await second.recover()
    assert [again.intent.id for again in second.approvals.waiting()] == [one.intent.id]
    assert count(venue, "confirm") == 0
    # written, and not sent yet
    second.approvals.decide(one.intent.id, approve=approve, decider="me")
    kill(second)
    third = make_kernel(venue, once, path=path, approval=ALWAYS, interval_ms=3_600_000)
    await third.recover()
    await third.cycle()
    assert count(venue, "confirm") == int(approve)
    assert notices(third).count("order.approval") == 1
    third.journal.flush()
    with queries.opened(tmp_path) as db:
        chain = " / ".join(step.text for step in order_trace.explain(db, one.intent.id))
        assert ("approved by me" in chain) is approve
        assert ("refused by me" in chain) is not approve
        assert "token" not in str([tuple(row) for row in db.execute("SELECT * FROM approvals")])


async def test_a_config_that_asks_no_more_does_not_send_what_waits() -> None:
    venue, kernel = await held()
    kernel.risk.limit(dict(make_kernel(venue, once).risk.strategy_limits))
    await kernel.cycle()
    assert count(venue, "confirm") == 0


# -- two answers never open twice


def flat_opens(view: View, bar: Bar) -> Iterable[Intent]:
    """Long 200 USD on each bar that sees neither a position nor an order."""
    if view.position(bar.market) is None and not view.orders(bar.market):
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))


async def test_a_newer_decision_ends_the_older_one_before_it_has_a_plan_of_its_own() -> None:
    venue = FaultyPort()
    kernel = await begun(venue, flat_opens, approval=ALWAYS, interval_ms=3_600_000)
    (old,) = kernel.approvals.waiting()
    venue.faults += [Fault("plan", "drop", count=9)]
    await minutes(kernel, venue, "100")
    with pytest.raises(BotError, match="a newer decision of the strategy in this market replaced it"):
        await answer(kernel, name=old.intent.id)
    venue.faults.clear()
    later(kernel, 60_000)
    await kernel.cycle()
    (new,) = kernel.approvals.waiting()
    assert new.intent.id != old.intent.id
    await answer(kernel)
    assert (count(venue, "confirm"), venue.positions["BTC"].size) == (1, 2)


async def test_an_entry_ends_when_an_older_one_turns_out_to_be_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    venue = FaultyPort()
    kernel = await begun(venue, flat_opens, approval=ALWAYS, interval_ms=3_600_000)
    known = len(venue.event_rows)

    async def nothing(since: str, **_: Any) -> EventsPage:
        return EventsPage(events=(), last_event_id=since)

    monkeypatch.setattr(venue, "events", nothing)
    await answer(kernel)
    assert len(venue.event_rows) > known, "the entry is filled, and the daemon has not read it"
    await minutes(kernel, venue, "100")
    (newer,) = kernel.approvals.waiting()
    monkeypatch.undo()
    with pytest.raises(BotError, match="the position or the orders in BTC have changed"):
        await answer(kernel, name=newer.intent.id)
    await kernel.cycle()
    assert (kernel.approvals.waiting(), venue.positions["BTC"].size, count(venue, "confirm")) == ([], 2, 1)


@pytest.mark.parametrize("why", ["a newer decision", "the position"])
async def test_an_approved_entry_that_is_held_ends_for_the_same_reasons_as_one_that_waits(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    venue, kernel = await held()
    monkeypatch.setattr(venue, "entry_wait_ms", lambda: 30_000)
    done = await answer(kernel)
    assert done["state"] == "planned", "the rate limit holds it"
    if why == "a newer decision":
        newer = intent(1, trigger="event:evt_9", strategy="trend", opened_ms=kernel.now_ms())
        kernel.approvals.write_decision([newer])
    else:
        stopped = Event.model_construct(id="evt_9", type="fill", subtype="exit", ts=1, coin="BTC", data=None)
        kernel.approvals.end_outdated([stopped])
    monkeypatch.setattr(venue, "entry_wait_ms", lambda: 0)
    later(kernel, 30_000)
    await kernel.cycle()
    assert count(venue, "confirm") == 0
    with pytest.raises(BotError, match=f"does not wait any more: {why}"):
        await answer(kernel, name=done["id"])


async def test_of_two_entries_that_do_not_replace_each_other_the_second_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strategy's own entry and one that an assistant proposed for it."""
    venue = FaultyPort()
    kernel = await begun(venue, flat_opens, approval=ALWAYS, interval_ms=3_600_000)
    monkeypatch.setattr("bot.runtime.execution.approvals._place", lambda one: one.trigger)
    await minutes(kernel, venue, "100")
    first, second = (one.intent.id for one in kernel.approvals.waiting())
    monkeypatch.setattr(venue, "entry_wait_ms", lambda: 60_000)
    assert (await answer(kernel, name=first))["state"] == "planned"
    with pytest.raises(BotError, match=f"{first[:12]} of the same strategy and market is approved and not settled yet"):
        await answer(kernel, name=second)
    monkeypatch.setattr(venue, "entry_wait_ms", lambda: 0)
    assert (await answer(kernel, name=second, approve=False))["state"] == "rejected", "a refusal never waits"
    later(kernel, 60_000)
    await kernel.cycle()
    assert (venue.positions["BTC"].size, count(venue, "confirm")) == (2, 1)


async def test_nothing_is_approved_while_a_fill_may_be_unknown() -> None:
    venue, kernel = await held()
    venue.faults += [Fault("events", "drop")]
    with pytest.raises(CommandTimeout, match="nothing is approved"):
        await answer(kernel)
    assert count(venue, "confirm") == 0
    await answer(kernel)
    assert count(venue, "confirm") == 1


ENTRY = {"oid": "7", "kind": "limit", "side": "long", "intent": "open", "size": "1", "filledSize": "0", "limitPx": "90"}


@pytest.mark.parametrize(
    ("type_", "subtype", "coin", "whose", "ends"),
    [
        # a stop, a guardian, a person
        ("fill", "exit", "BTC", "nobody", True),
        ("fill", "entry", "BTC", "an older decision", True),
        ("fill", "exit", "BTC", "an older decision", True),
        # the close of a reversal
        ("fill", "exit", "BTC", "this decision", False),
        ("fill", "entry", "BTC", "another strategy", False),
        ("fill", "exit", "ETH", "nobody", False),
        ("liquidation", "full", "BTC", "nobody", True),
        ("liquidation", "partial", "BTC", "nobody", True),
        ("settlement", "settled", "BTC", "nobody", True),
        ("order", "open", "BTC", "an older decision", True),
        ("order", "canceled", "BTC", "nobody", True),
        ("order", "canceled", "BTC", "canceled by this decision", False),
        ("order", "armed", "BTC", "a stop", False),
        ("funding", "payment", "BTC", "nobody", False),
        ("guardian", "armed", "BTC", "nobody", False),
        ("account", "settings", None, "nobody", False),
    ],
)
async def test_an_entry_ends_when_what_it_was_decided_on_has_changed(
    type_: str, subtype: str, coin: str | None, whose: str, ends: bool
) -> None:
    _, kernel = await held()
    (one,) = kernel.approvals.waiting()
    mine = one.intent
    made = {
        "this decision": intent(1, trigger=mine.trigger, strategy="trend"),
        "an older decision": intent(1, trigger="bar:BTC:1", strategy="trend"),
        "another strategy": intent(1, trigger="bar:BTC:1", strategy="other"),
    }
    key = None
    if whose in made:
        kernel.journal.decided([made[whose]])
        key = made[whose].id
    if whose == "canceled by this decision":
        cancel = intent(1, trigger=mine.trigger, strategy="trend", action="cancel", body=b'{"oids": ["7"]}')
        kernel.approvals.write_decision([cancel])
    data = {**ENTRY, "intent": "close", "kind": "stop_loss"} if whose == "a stop" else ENTRY
    found = Event.model_construct(
        id="evt_9",
        type=type_,
        subtype=subtype,
        ts=1,
        coin=coin,
        idempotency_key=key,
        data=OrderData.model_validate(data) if type_ == "order" else None,
    )
    kernel.approvals.end_outdated([found])
    await kernel.cycle()
    assert (kernel.approvals.waiting() == []) is ends
    if ends:
        with pytest.raises(BotError, match="the position or the orders in BTC have changed"):
            await answer(kernel, name=mine.id)
    else:
        assert (await answer(kernel))["state"] == "accepted"


async def test_an_entry_that_a_hook_decides_on_a_fill_is_not_ended_by_that_fill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, kernel = await held()
    (one,) = kernel.approvals.waiting()
    triggers = {"evt_1": one.intent.trigger, "evt_2": "event:evt_2"}
    monkeypatch.setattr(kernel.journal.events, "trigger_of", lambda event_id, _ts: triggers[event_id])
    fills = [
        Event.model_construct(id=f"evt_{n}", type="fill", subtype="exit", ts=n, coin="BTC", data=None) for n in (1, 2)
    ]
    for last, ends in ((1, False), (2, True)):
        kernel.approvals.end_outdated(fills[:last])
        assert (kernel.approvals.waiting() == []) is ends


async def test_lost_events_end_every_entry_that_waits(tmp_path: Path) -> None:
    _, kernel = await held(path=tmp_path / "journal.db")
    (one,) = kernel.approvals.waiting()
    await kernel.events.restart()
    await kernel.cycle()
    with pytest.raises(BotError, match="no longer has the events"):
        await answer(kernel, name=one.intent.id)


def agree(proposal: Proposal) -> object:
    assert (proposal.market, proposal.side, proposal.strategy) == ("BTC", "long", "trend")
    return proposal.notional_usd < 300


def unread(_proposal: Proposal) -> object:
    yield True


def broken(_proposal: Proposal) -> object:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("policy", "sent", "code"),
    [
        (agree, True, None),
        (lambda _: "too late", False, "not_approved"),
        (lambda _: 1, False, "not_approved"),
        (broken, False, "policy_failed"),
        (unread, False, "policy_failed"),
    ],
)
async def test_a_policy_agrees_with_true_alone(policy: Any, sent: bool, code: str | None) -> None:
    venue, kernel = await held(Approval(policy=policy, policy_name="mine:check"))
    assert ("BTC" in venue.positions, count(venue, "confirm")) == (sent, int(sent))
    assert kernel.approvals.waiting() == []
    (state, found) = kernel.journal.db.execute("SELECT state, code FROM intents WHERE action='open'").fetchone()
    assert (state, found) == ("accepted" if sent else "rejected", code)
    assert kernel.approvals.counts["policy_failed"] == (code == "policy_failed")


async def test_a_policy_that_takes_too_long_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bot.runtime.strategy_host.worker.LIMIT_S", 0.02)
    end, pool, venue = threading.Event(), WorkerPool(None, ()), FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once, approval=Approval(policy=lambda _: end.wait(9), policy_name="mine:check"))
    monkeypatch.setattr(kernel.approvals, "_run_policy", pool.call_policy)
    await kernel.recover()
    await kernel.cycle()
    end.set()
    pool.close()
    (code, message) = kernel.journal.db.execute("SELECT code, message FROM intents WHERE action='open'").fetchone()
    assert (code, venue.positions) == ("policy_failed", {})
    assert "took longer than" in message


def test_an_answer_cannot_be_changed_in_the_file(tmp_path: Path) -> None:
    """The checksum of a row finds an answer that nobody gave."""
    import asyncio

    from bot.errors import JournalDamaged
    from bot.runtime.journal.opening import open_journal
    from tests.faulty_port import ADDRESS

    async def wait() -> None:
        _, kernel = await held(path=tmp_path / "journal.db")
        kernel.journal.close()

    asyncio.run(wait())
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE approvals SET state='approved'")
    with pytest.raises(JournalDamaged, match="approvals"):
        open_journal(tmp_path / "journal.db", address=ADDRESS).check()
