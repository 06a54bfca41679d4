"""A lost journal: what the account holds by our orders is known again by its keys; what another hand did is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from bot.errors import ApiError
from bot.runtime.alerts.messages import render
from bot.runtime.control_plane import status_documents
from bot.runtime.execution.order_sender import KEY_USED_OTHERWISE
from bot.runtime.execution.outcome_writer import WAY_OUT
from bot.runtime.journal import queries
from bot.runtime.journal.order_trace import explain
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.passes.pass_budget import PASS_MS
from bot.runtime.reconciliation import key_recovery
from bot.strategy import Bar, Bracket, Close, Intent, Open, Timer, View
from bot.wire import OrderRequest
from tests.fakes import FakePacer
from tests.faulty_port import Fault, FaultyPort, refused
from tests.runtime.builders import Scripted, kill, make_kernel, minutes

STOP = Bracket(stop_pct=20)


class Wants(Scripted):
    """One thing, once: on its first bar, or at its timer."""

    timers: ClassVar = {"often": 30}

    def __init__(self, wanted: Sequence[Intent] = (), at_timer: Sequence[Intent] = ()) -> None:
        super().__init__(self.act, name="trend")
        self.wanted, self.at_timer = list(wanted), list(at_timer)

    def act(self, view: View, bar: Bar) -> Iterable[Intent]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        wanted, self.at_timer = self.at_timer, []
        return wanted


async def life(venue: FaultyPort, strategy: Wants) -> Kernel:
    """A run with a journal of its own, which ends with it."""
    kernel = make_kernel(venue, strategies=[strategy])
    await kernel.recover()
    await kernel.cycle()
    return kernel


@pytest.fixture
def venue() -> FaultyPort:
    made = FaultyPort()
    made.minute(BTC="100")
    return made


async def test_a_position_of_a_market_order_is_claimed(venue: FaultyPort) -> None:
    await life(venue, Wants([Open("BTC", "long", usd=200, bracket=STOP)]))
    kernel = await life(venue, Wants())
    assert kernel.account.account_state.positions["BTC"].owner == "trend"
    assert kernel.account.attribution.of("trend").shares[0].size == 2


async def test_an_order_of_a_lost_journal_is_known_by_a_later_life_of_the_new_one_too(
    venue: FaultyPort, tmp_path: Path
) -> None:
    """The life that began the journal ended before it decided: the next one decides the same bar, and its plan is
    refused.
    """
    signal = [Open("BTC", "long", usd=200, bracket=STOP)]
    await life(venue, Wants(signal))
    (trade,) = (await venue.trades()).trades
    begun = make_kernel(venue, strategies=[Wants(signal)], path=tmp_path / "j.db")
    await begun.recover()
    kill(begun)
    venue.faults = [Fault("plan", refused("invalid_input"))]
    kernel = make_kernel(venue, strategies=[Wants(signal)], path=tmp_path / "j.db")
    await kernel.recover()
    await kernel.cycle()
    (row,) = kernel.journal.db["intents"].rows
    assert (row["state"], row["trade_id"]) == ("accepted", trade.id)


async def test_a_refused_confirm_is_no_end_where_a_lost_journal_may_have_sent_the_same(venue: FaultyPort) -> None:
    """The refusal is of this request; the order of the lost one stands, or is still on its way."""
    signal = [Open("BTC", "long", usd=200, bracket=STOP)]
    await life(venue, Wants(signal))
    (trade,) = (await venue.trades()).trades
    venue.faults = [Fault("confirm", refused("forbidden"))]
    kernel = await life(venue, Wants(signal))
    await kernel.cycle()
    (row,) = kernel.journal.db["intents"].rows
    assert (row["state"], row["trade_id"]) == ("accepted", trade.id)
    assert len((await venue.trades()).trades) == 1


@pytest.mark.parametrize("code", ["insufficient_funds", "plan_stale"])
async def test_a_key_that_a_lost_journal_has_spent_on_a_refused_confirm_is_told_with_the_way_out(
    venue: FaultyPort, code: str
) -> None:
    """The service keeps its no under the key; the new plan is another request."""
    signal = [Open("BTC", "long", usd=200, bracket=STOP)]

    def no(request: OrderRequest) -> ApiError | None:
        return None if request.dry_run else refused(code)

    venue.refuse = no
    await life(venue, Wants(signal))
    venue.refuse = lambda _request: None
    again = Wants(signal)
    with capture_logs() as lines:
        kernel = await life(venue, again)
    (waits,) = kernel.journal.intents.live()
    why = f"{KEY_USED_OTHERWISE} (this Idempotency-Key was used for another request)"
    assert (waits.state, waits.code, waits.message) == ("quarantined", "idempotency_conflict", why)
    assert "an earlier run whose journal was lost" in why
    (line,) = [line for line in lines if line["event"] == "intent.quarantined"]
    assert (line["message"], line["way_out"]) == (why, WAY_OUT)
    (row,) = [row for row in kernel.journal.db["outbox"].rows if row["kind"] == "intent.quarantined"]
    message = render(row["kind"], row["payload"], bot="b")
    assert (message.level, message.title) == ("error", "[b] BTC: an order needs your decision")
    assert message.text == f"trend: {why} (idempotency_conflict); {WAY_OUT}"
    assert status_documents.intents(kernel)["waiting"][0]["message"] == why
    with queries.in_rows(kernel.journal.db.conn) as db:
        assert explain(db, waits.id)[-1].text == f"quarantined: waits for a person: {why}; {WAY_OUT}"
    kernel.execution.release()
    again.wanted = [*signal]
    await minutes(kernel, venue, "100")
    assert set(venue.positions) == {"BTC"}


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_refused_plan_waits_for_what_a_lost_journal_may_have_on_its_way(
    venue: FaultyPort, arrives: bool
) -> None:
    """Until the fence of the request that may be on its way; nothing is asked for meanwhile, but whether it has
    come.
    """
    signal = [Open("BTC", "long", usd=200, bracket=STOP)]
    venue.faults = [Fault("confirm", "late" if arrives else "drop", count=3)]
    await life(venue, Wants(signal))
    assert venue.positions == {}
    venue.faults = [Fault("plan", refused("invalid_input"))]
    kernel = await life(venue, Wants(signal))
    (row,) = kernel.journal.db["intents"].rows
    assert row["state"] == "opened"
    plans = venue.calls.count("plan")
    for _ in range(4):
        assert isinstance(kernel.budget.pacer, FakePacer)
        kernel.budget.pacer.now_ms += 60_000
        await minutes(kernel, venue, "100")
    (row,) = kernel.journal.db["intents"].rows
    trades = [trade.id for trade in (await venue.trades()).trades]
    assert (row["state"], row["code"]) == (("accepted", None) if arrives else ("rejected", "invalid_input"))
    assert [row["trade_id"]] == (trades if arrives else [None])
    assert venue.calls.count("plan") == plans


async def test_a_plan_that_ran_out_unsent_is_looked_for_where_a_lost_journal_may_have_sent_the_same(
    venue: FaultyPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the end of its plan nor the end of the run says anything of the order of before."""
    signal = [Open("BTC", "long", usd=200, bracket=STOP)]
    await life(venue, Wants(signal))
    (trade,) = (await venue.trades()).trades
    kernel = make_kernel(venue, strategies=[Wants(signal)])
    await kernel.recover()
    # The pass is over when the plan is there.
    monkeypatch.setattr(kernel.budget, "entries_left_ms", lambda: 0)
    await kernel.cycle()
    (row,) = kernel.journal.db["intents"].rows
    assert row["state"] == "planned"
    kernel.execution.give_up_entries()
    monkeypatch.setattr(kernel.budget, "entries_left_ms", lambda: PASS_MS)
    await minutes(kernel, venue, "100", "100")
    (row,) = kernel.journal.db["intents"].rows
    assert (row["state"], row["trade_id"]) == ("accepted", trade.id)


async def test_what_is_refused_on_an_account_that_nothing_stands_on_ends_at_once(venue: FaultyPort) -> None:
    venue.faults = [Fault("plan", refused("invalid_input"))]
    kernel = await life(venue, Wants([Open("BTC", "long", usd=200, bracket=STOP)]))
    (row,) = kernel.journal.db["intents"].rows
    assert (row["state"], row["code"]) == ("rejected", "invalid_input")


async def test_a_bar_that_is_decided_otherwise_after_a_lost_journal_closes_what_it_had_opened(
    venue: FaultyPort,
) -> None:
    """The close is another order than the open of the same bar: it is sent, and never takes the open's trade for its
    own.
    """
    await life(venue, Wants([Open("BTC", "long", usd=200, bracket=STOP)]))
    kernel = await life(venue, Wants([Close("BTC")]))
    assert venue.positions == {}
    (row,) = kernel.journal.db["intents"].rows
    (_, closed) = sorted((await venue.trades()).trades, key=lambda trade: trade.id)
    assert (row["action"], row["state"], row["trade_id"]) == ("close", "accepted", closed.id)


async def test_a_close_of_a_lost_journal_is_no_other_hand(venue: FaultyPort) -> None:
    await life(venue, Wants([Open("BTC", "long", usd=200, bracket=STOP)]))
    await life(venue, Wants([Close("BTC")]))
    kernel = await life(venue, Wants())
    for trade in (await venue.trades()).trades:
        assert trade.idempotency_key is not None
        assert (
            key_recovery.claimed(kernel.run, kernel.account, trade.idempotency_key, "BTC", venue.clock.now_ms())
            == "trend"
        ), trade.intent


async def test_a_position_that_grew_out_of_a_resting_entry_is_claimed(venue: FaultyPort) -> None:
    kernel = await life(venue, Wants([Open("BTC", "long", usd=200, limit_px=95, bracket=STOP)]))
    assert venue.positions == {}
    await minutes(kernel, venue, "94")
    assert venue.positions
    kernel = await life(venue, Wants())
    assert kernel.account.account_state.positions["BTC"].owner == "trend"


async def test_a_position_that_a_timer_opened_is_claimed(venue: FaultyPort) -> None:
    kernel = await life(venue, Wants(at_timer=[Open("BTC", "long", usd=200, bracket=STOP)]))
    venue.clock.advance(30_000)
    await kernel.cycle()
    assert venue.positions
    kernel = await life(venue, Wants())
    assert kernel.account.account_state.positions["BTC"].owner == "trend"


async def test_a_position_of_another_hand_stays_foreign(venue: FaultyPort) -> None:
    order = OrderRequest.from_wire({"market": "BTC", "side": "long", "size": "1", "type": "market"})
    await venue.place(order, key="FOREIGN")
    kernel = await life(venue, Wants())
    assert kernel.account.account_state.positions["BTC"].owner is None


async def test_a_key_that_nobody_spells_is_not_looked_for_without_end(
    venue: FaultyPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = await life(venue, Wants())
    venue.clock.speed = 3_600
    tried: list[str] = []
    monkeypatch.setattr(key_recovery, "intent_key", lambda **given: tried.append(given["trigger"]) or "")
    at_ms = venue.clock.now_ms()
    assert key_recovery.claimed(kernel.run, kernel.account, "WEB-ORDER-1", "BTC", at_ms) is None
    assert tried == [], "no key of ours looks like that"
    assert key_recovery.claimed(kernel.run, kernel.account, "A" * 32, "BTC", at_ms) is None
    assert len(set(tried)) == key_recovery.BARS + key_recovery.INSTANTS
    kernel.budget.end()
    tried.clear()
    assert key_recovery.claimed(kernel.run, kernel.account, "A" * 32, "BTC", at_ms) is None
    assert len(set(tried)) == 2 * key_recovery.LATE
    assert f"bar:BTC:{at_ms // 60_000 * 60_000}" in tried
