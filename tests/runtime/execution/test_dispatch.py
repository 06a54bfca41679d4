"""Several orders in flight: exits first, one entry per market, each on disk before it is sent, no pass waits for a
reply, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bot.errors import AccessLost, OutcomeUnknown
from bot.runtime.alerts.health import ORDERS
from bot.runtime.control_plane.status import state_of
from bot.runtime.execution.dispatch import ABREAST, entries_max, next_batch, one_by_one, side_by_side
from bot.runtime.execution.open_intents import SLOW_MS, UNSETTLED_MS
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Hooks, Kernel
from bot.runtime.model.intents import Intent
from bot.runtime.passes.bar_feed import ClosedBar
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.shutdown import wind_down
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Bracket, Close, Open, View
from bot.strategy import Intent as Signal
from tests.fakes import FakePacer
from tests.faulty_port import ADDRESS, FaultyPort
from tests.runtime.builders import DEAD_MAN_60, Scripted, intent, limits, replied

MARKETS = ("BTC", "ETH", "SOL")


def wanted(*words: str) -> list[Intent]:
    """`a BTC open`: strategy, market, action."""
    made = []
    for n, text in enumerate(words):
        strategy, market, action = text.split()
        made.append(intent(n, strategy=strategy, market=market, action=action))
    return made


def batches(*words: str) -> list[list[str]]:
    waiting, found = wanted(*words), []
    while waiting:
        batch = next_batch(waiting)
        assert batch
        found.append([f"{one.strategy} {one.market} {one.action}" for one in batch])
        waiting = [one for one in waiting if one not in batch]
    return found


def test_sent_one_at_a_time_intents_keep_the_dispatch_order() -> None:
    made = wanted("a ETH open", "a BTC close", "a BTC open", "a ETH close", "b SOL cancel")
    assert one_by_one(made) == [made[n] for n in (1, 4, 0, 2, 3)]


def test_exits_are_sent_before_entries_and_entries_one_per_market() -> None:
    assert batches("a BTC open", "b BTC open", "c ETH open", "d ETH close", "e BTC cancel") == [
        ["d ETH close", "e BTC cancel"],
        ["a BTC open", "c ETH open"],
        ["b BTC open"],
    ]


def test_the_order_of_a_strategys_intents_in_a_market_is_kept() -> None:
    assert batches("a BTC close", "a BTC open", "b ETH open", "b ETH close") == [
        ["a BTC close"],
        ["a BTC open", "b ETH open"],
        ["b ETH close"],
    ]
    close, entry = wanted("a BTC close", "a BTC open")
    assert next_batch([entry], in_flight=[close]) == [], "it waits for the reply to its close"
    assert next_batch([entry], in_flight=[close], slow=[close.id]) == [], "for any length of time"


def test_an_intent_in_flight_delays_its_market_and_an_exit_delays_entries_until_slow() -> None:
    slow, *entries = wanted("a BTC open", "b BTC open", "c ETH open", "d SOL close")
    close = entries.pop()
    assert [one.market for one in next_batch(entries, in_flight=[slow])] == ["ETH"]
    assert next_batch([*entries, close], in_flight=[slow]) == [close]
    assert next_batch(entries, in_flight=[close]) == []
    assert next_batch(entries, in_flight=[close], slow=[close.id]) == entries, "other markets continue"
    exit_there = wanted("e BTC close")
    assert [one.market for one in next_batch(entries, in_flight=exit_there, slow=[exit_there[0].id])] == ["ETH"]


def test_intents_in_flight_are_bounded_and_slots_are_kept_for_exits() -> None:
    exits = wanted(*(f"s{n} BTC close" for n in range(ABREAST + 3)))
    entries = wanted(*(f"s M{n} open" for n in range(ABREAST + 3)))
    assert next_batch(exits) == exits[:ABREAST]
    assert next_batch(exits[ABREAST:], in_flight=exits[:ABREAST]) == []
    assert next_batch(entries) == entries[: entries_max(ABREAST)]
    hung = entries[: entries_max(ABREAST)]
    assert next_batch(entries[len(hung) :], in_flight=hung) == []
    assert next_batch(exits, in_flight=hung) == exits[: ABREAST - len(hung)], "also when no entry gets a reply"


def test_bars_of_one_instant_are_decided_together_and_each_strategy_gets_one() -> None:
    def due(*pairs: tuple[int, str]) -> list[ClosedBar]:
        return [ClosedBar(at, coin, "1m", Bar(coin, at, 1, 1, 1, 1, 1)) for at, coin in pairs]

    names = {"BTC": frozenset("ab"), "ETH": frozenset("c"), "SOL": frozenset("cd")}
    assert side_by_side(due((1, "BTC"), (1, "ETH"), (1, "SOL")), names) == 2, "strategy c gets both ETH and SOL"
    assert side_by_side(due((1, "BTC"), (2, "ETH")), names) == 1
    assert side_by_side(due((1, "BTC"), (1, "BTC")), names) == 1, "two intervals of one market"
    assert side_by_side(due((1, "BTC")), names) == 1


# -- the loop that sends them


class Busy(FaultyPort):
    """Records how many orders are in flight at once, and the journal's state of each when it arrives."""

    path: Path
    most = 0
    under_way = 0
    lost: set[str] = set()  # noqa: RUF012 - of one test
    refuses_key = False

    async def place(self, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            # Long enough for the pass to start the others.
            for _ in range(20):
                await asyncio.sleep(0)
            reader = open_journal(self.path, address=ADDRESS)
            (row,) = reader.db.conn.execute("SELECT state, attempts FROM intents WHERE id=?", (key,)).fetchall()
            reader.db.close()
            assert row[0] == "sending", "on disk before a byte is sent"
            if self.refuses_key:
                raise AccessLost("unauthorized", "revoked")
            done = await super().place(request, key=key, expires_at_ms=expires_at_ms)
            if request.market in self.lost:
                self.lost = self.lost - {request.market}
                raise OutcomeUnknown("timeout", "the answer was lost")
            return done
        finally:
            self.under_way -= 1


def three(path: Path, script: Any, kind: type[Busy] = Busy) -> tuple[Kernel, Busy]:
    venue = kind(MARKETS)
    venue.path = path
    strategies = [Scripted(script, name=f"s-{coin.lower()}", markets=(coin,)) for coin in MARKETS]
    specs = [StrategySpec(one, "1m", limits(one.name, one.markets, path="direct")) for one in strategies]
    journal: Any = open_journal(path, address=ADDRESS)
    kernel = Kernel(
        port=venue,
        journal=journal,
        specs=specs,
        pacer=FakePacer(),
        settings=KernelSettings(guardians=(DEAD_MAN_60,)),
        abreast=ABREAST,
    )
    return kernel, venue


def once(view: View, bar: Bar) -> Iterable[Signal]:
    if not view.position(bar.market):
        yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=5))


def in_turn(view: View, bar: Bar) -> Iterable[Signal]:
    yield (
        Close(bar.market)
        if view.position(bar.market)
        else Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=5))
    )


async def minute(kernel: Kernel, venue: Busy) -> None:
    venue.minute(BTC="100", ETH="100", SOL="100")
    await kernel.cycle()
    await replied(kernel)


async def test_orders_of_several_markets_are_in_flight_together_and_each_is_sent_once(tmp_path: Path) -> None:
    kernel, venue = three(tmp_path / "journal.db", in_turn)
    await kernel.recover()
    kernel.account.account_state.keys_proven = True
    for _ in range(4):
        await minute(kernel, venue)
    assert venue.most == len(MARKETS)
    rows = kernel.journal.db.conn.execute(
        "SELECT state, attempts, count(*) FROM intents GROUP BY state, attempts"
    ).fetchall()
    assert rows == [("accepted", 1, 12)]
    assert venue.positions == {}
    assert not kernel.intents.live or all(one.state == "accepted" for one in kernel.intents.live.values())


async def test_a_lost_reply_is_settled_with_the_same_key_and_delays_no_other_order(tmp_path: Path) -> None:
    kernel, venue = three(tmp_path / "journal.db", once)
    await kernel.recover()
    kernel.account.account_state.keys_proven = True
    venue.lost = {"ETH"}
    await minute(kernel, venue)
    await minute(kernel, venue)
    rows = kernel.journal.db.conn.execute("SELECT market, state FROM intents ORDER BY market").fetchall()
    assert rows == [(coin, "accepted") for coin in MARKETS]
    assert {coin: one.size for coin, one in venue.positions.items()} == dict.fromkeys(MARKETS, 1), "nothing twice"


def turns(view: View, bar: Bar) -> Iterable[Signal]:
    """Reverses the held position; without one, makes the first entry."""
    if view.position(bar.market):
        yield Close(bar.market)
        yield Open(bar.market, "short", usd=100, bracket=Bracket(stop_pct=5))
    else:
        yield from once(view, bar)


async def test_a_reset_between_a_close_and_its_entry_ends_the_waiting_entry(tmp_path: Path) -> None:
    kernel, venue = three(tmp_path / "journal.db", turns)
    await kernel.recover()
    kernel.account.account_state.keys_proven = True
    await minute(kernel, venue)
    events = venue.events

    async def wiped(*given: Any, **named: Any) -> Any:
        if len(venue.positions) < len(MARKETS) and not venue.epoch:
            venue.reset()
        return await events(*given, **named)

    venue.events = wiped  # type: ignore[method-assign]  # of this one venue, for this one test
    await minute(kernel, venue)
    rows = kernel.journal.db.conn.execute("SELECT market, state FROM intents WHERE ordinal=1").fetchall()
    assert [row[1] for row in rows] == ["void"] * len(MARKETS), "decided for an account before its reset"
    assert venue.epoch == 1


class Slow(Busy):
    """Replies to no order in the `slow` markets before `free` is set.

    `arrived` lists the orders in their order; with `forgets` they wait before they act.
    """

    free: asyncio.Event
    arrived: list[str]
    forgets = False
    slow: tuple[str, ...] = ("BTC",)

    async def place(self, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.arrived.append(f"open {request.market}")
        if request.market not in self.slow:
            return await super().place(request, key=key, expires_at_ms=expires_at_ms)
        if self.forgets:
            await self.free.wait()
        done = await super().place(request, key=key, expires_at_ms=expires_at_ms)
        await self.free.wait()
        return done

    async def close(self, market: str, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.arrived.append(f"close {market}")
        done = await super().close(market, request, key=key, expires_at_ms=expires_at_ms)
        if market in self.slow:
            await self.free.wait()
        return done


async def slowly(path: Path, script: Any, *, forgets: bool = False) -> tuple[Kernel, Slow]:
    kernel, venue = three(path, script, Slow)
    assert isinstance(venue, Slow)
    venue.free, venue.arrived, venue.forgets = asyncio.Event(), [], forgets
    await kernel.recover()
    kernel.account.account_state.keys_proven = True
    return kernel, venue


async def tick(kernel: Kernel, venue: FaultyPort, passes: int = 6) -> None:
    """One minute, and the passes that its replies cause."""
    venue.minute(BTC="100", ETH="100", SOL="100")
    for _ in range(passes):
        await kernel.cycle()
        for _ in range(100):
            await asyncio.sleep(0)


def slow_by_now(kernel: Kernel) -> None:
    assert isinstance(kernel.budget.pacer, FakePacer)
    kernel.budget.pacer.now_ms += SLOW_MS


def states(kernel: Kernel) -> list[Any]:
    return kernel.journal.db.conn.execute("SELECT market, action, state FROM intents ORDER BY market, seq").fetchall()


async def test_a_pass_waits_for_no_reply_and_the_other_markets_continue(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", in_turn, forgets=True)
    for _ in range(4):
        await tick(kernel, venue)
        slow_by_now(kernel)
    assert venue.arrived.count("open BTC") == 1, "nothing else is sent in this market meanwhile"
    for coin in ("ETH", "SOL"):
        assert (venue.arrived.count(f"open {coin}"), venue.arrived.count(f"close {coin}")) == (2, 2)
    venue.free.set()
    await tick(kernel, venue)
    assert states(kernel)[0] == ("BTC", "open", "expired"), "it reached the service when it was no longer wanted"
    await tick(kernel, venue)
    assert venue.arrived.count("open BTC") == 2, "the market continues"


async def test_an_exit_without_a_reply_delays_no_entry_in_another_market(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", in_turn)
    venue.free.set()
    await tick(kernel, venue)
    venue.free.clear()
    for _ in range(3):
        await tick(kernel, venue)
        slow_by_now(kernel)
    assert venue.arrived.count("open ETH") == venue.arrived.count("open SOL") == 2
    venue.free.set()


async def test_the_next_intent_of_a_market_waits_for_the_reply_and_uses_its_result(tmp_path: Path) -> None:
    """A reversal: the entry is sent once, after the reply to the close, and the next bar sees the new position."""
    kernel, venue = await slowly(tmp_path / "journal.db", turns)
    venue.free.set()
    await tick(kernel, venue)
    await tick(kernel, venue)
    assert [one for one in venue.arrived if one.endswith("BTC")] == ["open BTC", "close BTC", "open BTC"]
    assert venue.positions["BTC"].side == "short"


async def test_an_order_whose_event_arrived_needs_no_reply(tmp_path: Path) -> None:
    """The reply is late: the market continues, and when the reply arrives nothing is done twice."""
    kernel, venue = await slowly(tmp_path / "journal.db", in_turn)
    await tick(kernel, venue)
    assert states(kernel)[0] == ("BTC", "open", "accepted")
    assert len(kernel.intents.in_flight) == 1
    await tick(kernel, venue)
    assert venue.arrived.count("close BTC") == 1
    venue.free.set()
    await tick(kernel, venue)
    assert not kernel.intents.in_flight
    rows = kernel.journal.db.conn.execute("SELECT attempts, count(*) FROM intents GROUP BY attempts").fetchall()
    assert [row[0] for row in rows] == [1], "each was sent once"


async def test_orders_that_their_events_accept_wait_for_the_disk_once(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", once)
    venue.slow = MARKETS
    moments: list[str] = []

    def written(statement: str) -> None:
        if statement == "COMMIT" or "'accepted'" in statement:
            moments.append("commit" if statement == "COMMIT" else "accepted")

    venue.minute(BTC="100", ETH="100", SOL="100")
    await kernel.cycle()
    kernel.journal.db.conn.set_trace_callback(written)
    await tick(kernel, venue)
    kernel.journal.db.conn.set_trace_callback(None)
    assert [row[2] for row in states(kernel)] == ["accepted"] * len(MARKETS)
    first = moments.index("accepted")
    assert "commit" not in moments[first : first + len(MARKETS)]
    venue.free.set()
    await tick(kernel, venue)
    assert not kernel.intents.in_flight


async def test_a_reply_of_an_account_that_was_reset_meanwhile_changes_nothing(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", once, forgets=True)
    await tick(kernel, venue)
    venue.reset()
    await tick(kernel, venue, passes=1)
    assert ("BTC", "open", "void") in states(kernel)
    venue.free.set()
    await tick(kernel, venue)
    assert not kernel.intents.in_flight


async def test_orders_without_an_outcome_degrade_the_run_until_they_have_one(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", once, forgets=True)
    await tick(kernel, venue)
    assert state_of(kernel).word == "RUNNING"
    assert isinstance(kernel.budget.pacer, FakePacer)
    kernel.budget.pacer.now_ms += UNSETTLED_MS
    await tick(kernel, venue)
    assert state_of(kernel) == ("DEGRADED", "the service does not say what became of an order in BTC (no reply yet)")
    assert kernel.health.markets_of(ORDERS) == ["BTC"]
    assert kernel.health.no_entry("ETH") is None, "other markets open"
    venue.free.set()
    await tick(kernel, venue)
    assert (state_of(kernel).word, kernel.health.markets_of(ORDERS)) == ("RUNNING", [])


async def test_after_a_cut_run_known_outcomes_are_stored_and_the_rest_is_sent_with_the_same_key(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", once, forgets=True)
    kernel.intents.in_flight.abreast = 2
    await tick(kernel, venue)
    await kernel.cancel_in_flight()
    assert [row[2] for row in states(kernel)] == ["sending", "accepted", "accepted"]
    assert (venue.under_way, len(kernel.intents.in_flight)) == (0, 0)
    venue.free.set()
    kernel.intents.reload(kernel.account.account_state)
    await tick(kernel, venue)
    assert [row[2] for row in states(kernel)] == ["accepted"] * 3
    assert {coin: one.size for coin, one in venue.positions.items()} == dict.fromkeys(MARKETS, 1), "nothing twice"


async def test_the_end_of_a_run_waits_for_replies_but_not_forever(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", once, forgets=True)
    venue.minute(BTC="100", ETH="100", SOL="100")
    await kernel.cycle()
    async with asyncio.timeout(10):
        left = await wind_down(kernel, "leave")
    assert [row[2] for row in states(kernel)] == ["sending", "accepted", "accepted"]
    assert any("an entry in BTC is in doubt" in one for one in left.why)
    await kernel.cancel_in_flight()


async def test_an_exit_without_a_free_slot_is_sent_at_the_next_reply(tmp_path: Path) -> None:
    kernel, venue = await slowly(tmp_path / "journal.db", in_turn)
    venue.free.set()
    await tick(kernel, venue)
    kernel.intents.in_flight.abreast, venue.arrived = 2, []
    venue.minute(BTC="100", ETH="100", SOL="100")
    await kernel.cycle()
    assert [row[2] for row in states(kernel) if row[1] == "close"] == ["sending", "sending", "opened"], "the bound"
    await replied(kernel)
    assert venue.arrived == ["close BTC", "close ETH", "close SOL"]
    assert venue.positions == {}


async def test_an_answer_that_ends_the_run_leaves_the_other_outcomes_stored(tmp_path: Path) -> None:
    kernel, venue = three(tmp_path / "journal.db", once)
    await kernel.recover()
    kernel.account.account_state.keys_proven = True
    venue.refuses_key = True
    with pytest.raises(AccessLost):
        await minute(kernel, venue)
    await kernel.cancel_in_flight()
    assert {one.state for one in kernel.journal.intents.live()} == {"sending"}
    again = open_journal(tmp_path / "journal.db", address=ADDRESS)
    assert len(again.intents.live()) == len(MARKETS), "the next start continues with the same keys"
    again.db.close()


async def test_at_the_end_every_close_is_sent_before_a_strategy_gets_the_first_event() -> None:
    venue, is_ending = FaultyPort(), False
    venue.minute(BTC="100", ETH="100")

    async def run(_seat: Any, call: Any) -> Any:
        if is_ending:
            # The hook is slow, and the end of a run does not wait for it.
            await asyncio.Event().wait()
        return call()

    def enters(view: View, bar: Bar) -> Iterable[Signal]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))

    one = Scripted(enters, markets=("BTC", "ETH"))
    kernel = Kernel(
        port=venue,
        journal=open_journal(None, address=ADDRESS),
        specs=[StrategySpec(one, "1m", limits(one.name, one.markets))],
        pacer=FakePacer(),
        settings=KernelSettings(guardians=(DEAD_MAN_60,)),
        hooks=Hooks(run=run),
        abreast=ABREAST,
    )
    await kernel.recover()
    await kernel.cycle()
    await replied(kernel)
    assert set(venue.positions) == {"BTC", "ETH"}
    is_ending = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await wind_down(kernel, "flatten")
    assert not venue.positions
