"""A service that shows no keys: the daemon knows its own trades by the trade id in the answer to the order, and by
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.backtest.engine.memory_journal import MemoryJournal
from bot.cli.start.doctor_checks.service_checks import check_idempotency
from bot.runtime.account.fold import with_our_keys
from bot.runtime.alerts.messages import of_event
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.shares import FOREIGN
from bot.runtime.reconciliation import order_events
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.strategy import Bar, Bracket, Cancel, Intent, Open, View
from bot.wire import OrderResult
from tests.fakes import Crash
from tests.faulty_port import ADDRESS, Fault, FaultyPort, refused
from tests.runtime.builders import (
    AWAY,
    DEAD_MAN_60,
    always,
    begun,
    intent,
    kill,
    later,
    make_kernel,
    minutes,
    refusals,
    replied,
)

STOP = Bracket(stop_pct=5, target_pct=5)
# executed, and none of the pass's three tries has an answer
LOST = [("lose_reply", 1), ("drop", 2)]


class Keyless(FaultyPort):
    """Keeps keys to itself, and takes a fee of half a percent. A token that was used tells of its trade."""

    def __init__(self, keys: str = "hidden") -> None:
        super().__init__(keys=keys, fee_rate="0.005")


class KeysOnTrades(Keyless):
    """As the interface has it: the trade shows its key, and nothing is said of events."""

    def __init__(self) -> None:
        super().__init__("on trades")


def policy(name: str) -> KernelSettings:
    return KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions=name)


def by_hand(venue: FaultyPort, coin: str = "BTC", side: str = "long", size: int = 1) -> None:
    venue.by_hand(coin, side, size, key="another's")


def bought_once(*signals: Intent) -> Any:
    """These on its first bar, and a close at 101."""
    waiting = list(signals)

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        found, waiting[:] = list(waiting), []
        return found or ([] if bar.close != 101 else always(view, bar))

    return script


def booked(kernel: Kernel, name: str) -> tuple[int, Decimal, Decimal]:
    book = kernel.account.attribution.of(name)
    return book.fills, book.fees_usd, book.realized_usd


def ours(kernel: Kernel) -> dict[str, str | None]:
    return {market: position.owner for market, position in kernel.account.account_state.positions.items()}


def proves_nothing(kernel: Kernel) -> bool:
    return not (
        kernel.account.account_state.keys_proven
        or kernel.account.account_state.events_named
        or kernel.journal.events.has_seen_own_key()
    )


@pytest.mark.parametrize("foreign", ["ignore", "flatten", "adopt"])
async def test_an_entry_is_ours_and_is_closed_by_its_strategy(foreign: str) -> None:
    venue = Keyless()
    kernel = await begun(venue, settings=policy(foreign))
    assert ours(kernel) == {"BTC": "trend"}
    await minutes(kernel, venue, "100", "100")
    assert set(venue.positions) == {"BTC"}, "nobody takes it for another's"
    await minutes(kernel, venue, "101")
    assert (venue.positions, refusals(kernel), kernel.health.degraded) == ({}, [], {})
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((2, Decimal("2.01"), 2), (0, 0, 0))
    assert kernel.journal.state.of_strategy("trend")["fills"] == 2, "the strategy was told of both"
    assert proves_nothing(kernel)


async def test_orders_that_leave_side_by_side_are_ours() -> None:
    venue = Keyless()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always, markets=("BTC", "ETH"), settings=policy("flatten"))
    kernel.intents.in_flight.abreast = 4
    await kernel.recover()
    await kernel.cycle()
    await replied(kernel)
    assert ours(kernel) == {"BTC": "trend", "ETH": "trend"}
    venue.minute(BTC="101", ETH="101")
    await kernel.cycle()
    await replied(kernel)
    assert (venue.positions, refusals(kernel), kernel.health.degraded) == ({}, [], {})
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((4, Decimal("4.02"), 4), (0, 0, 0))


@pytest.mark.parametrize(("close", "gain", "fees"), [("94", -10, "1.95"), ("106", 10, "2.05")])
async def test_what_its_stop_or_target_does_is_booked_to_its_strategy(close: str, gain: int, fees: str) -> None:
    """The exit is a trade of its own, which no answer has told of: it takes from whoever holds the position."""
    venue = Keyless()
    kernel = await begun(venue, bought_once(Open("BTC", "long", usd=200, bracket=STOP)))
    await minutes(kernel, venue, close)
    assert (venue.positions, ours(kernel)) == ({}, {})
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((2, Decimal(fees), gain), (0, 0, 0))
    assert kernel.health.degraded == {}


async def test_a_restart_knows_its_position_again_and_still_has_no_proof(tmp_path: Path) -> None:
    venue = Keyless()
    path = tmp_path / "journal.db"
    kill(await begun(venue, path=path))
    kernel = make_kernel(venue, always, path=path, settings=policy("flatten"))
    asked = venue.calls.count("trades")
    await kernel.recover()
    assert (ours(kernel), venue.calls.count("trades")) == ({"BTC": "trend"}, asked), "by the journal alone"
    assert set(venue.positions) == {"BTC"}
    assert proves_nothing(kernel)
    await minutes(kernel, venue, "101")
    assert (venue.positions, refusals(kernel)) == ({}, [])
    (entry,) = [e for e in of_journal(kernel) if e["subtype"] == "entry"]
    assert (kernel.journal.intents.find(entry["idempotencyKey"]) is not None, entry["keyFrom"]) == (True, "trade")


def of_journal(kernel: Kernel) -> list[dict[str, Any]]:
    newest = (kernel.journal.events.last_event("BTC", "fill", name, epoch=0) for name in ("entry", "exit"))
    return [one for one in newest if one is not None]


async def test_a_notice_names_the_strategy() -> None:
    venue = Keyless()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always)
    kernel.events.notices_of = lambda event, _parts: of_event(event, kernel.account.order_owners.owner_of)
    await kernel.recover()
    await kernel.cycle()
    (said,) = [row["payload"] for row in kernel.journal.db["outbox"].rows if row["kind"] == "fill.entry"]
    assert '"strategy": "trend"' in said


async def test_an_entry_that_rests_is_ours_takes_of_the_budget_and_can_be_cancelled(tmp_path: Path) -> None:
    rests = Open("BTC", "long", usd=300, limit_px=90, bracket=STOP)
    venue = Keyless()
    path = tmp_path / "journal.db"

    def is_ours(kernel: Kernel) -> bool:
        (order,) = kernel.account.account_state.entries("BTC")
        return (kernel.account.order_owners.owner_of(order.key or ""), kernel.risk.used_usd("trend")) == (
            "trend",
            Decimal("299.997"),
        )

    kernel = await begun(venue, bought_once(rests), path=path)
    assert is_ours(kernel)
    kill(kernel)
    again = make_kernel(venue, lambda _view, bar: [Cancel(market="BTC")] if bar.close == 102 else [], path=path)
    await again.recover()
    assert is_ours(again)
    assert proves_nothing(again)
    await minutes(again, venue, "102", "102")
    assert (venue.working, again.account.account_state.orders) == ({}, {})


async def test_an_entry_that_rested_over_a_restart_is_ours_when_it_fills(tmp_path: Path) -> None:
    venue = Keyless()
    path = tmp_path / "journal.db"
    kill(await begun(venue, bought_once(Open("BTC", "long", usd=300, limit_px=90, bracket=STOP)), path=path))
    kernel = make_kernel(venue, path=path, settings=policy("flatten"))
    await kernel.recover()
    await minutes(kernel, venue, "90")
    assert (ours(kernel), set(venue.positions)) == ({"BTC": "trend"}, {"BTC"})
    assert booked(kernel, "trend") == (1, Decimal("1.499985"), 0)


# -- the event comes before the answer


@pytest.mark.parametrize("foreign", ["ignore", "flatten"])
@pytest.mark.parametrize("killed", [False, True])
async def test_an_entry_whose_answer_comes_later_is_ours_from_then_on(
    foreign: str, killed: bool, tmp_path: Path
) -> None:
    """Until then it is nobody's, which the doubt says: nothing is opened there, and it is not closed for another's."""
    venue = Keyless()
    venue.minute(BTC="100")
    path = tmp_path / "journal.db"
    script = bought_once(Open("BTC", "long", usd=200, bracket=STOP))
    kernel = make_kernel(venue, script, path=path, settings=policy(foreign))
    await kernel.recover()
    venue.faults = [Fault("confirm", *one) for one in LOST]
    await kernel.cycle()
    assert (ours(kernel), kernel.intents.in_doubt("BTC")) == ({"BTC": None}, True)
    assert (set(venue.positions), booked(kernel, FOREIGN)) == ({"BTC"}, (1, 1, 0))
    if killed:
        kill(kernel)
        kernel = make_kernel(venue, script, path=path, settings=policy(foreign))
        await kernel.recover()
    else:
        later(kernel, 60_000)
        await kernel.cycle()
    assert (ours(kernel), kernel.intents.in_doubt("BTC"), kernel.health.degraded) == ({"BTC": "trend"}, False, {})
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((1, 1, 0), (0, 0, 0)), "also its fee"
    assert kernel.account.attribution.of("trend").shares[0].entry_px == 100
    assert proves_nothing(kernel)
    kill(kernel)
    again = make_kernel(venue, always, path=path, settings=policy("flatten"))
    asked = venue.calls.count("trades")
    await again.recover()
    assert (ours(again), venue.calls.count("trades")) == ({"BTC": "trend"}, asked)
    await minutes(again, venue, "101")
    await minutes(again, venue, "100")
    assert refusals(again) == []
    assert len(venue.fills) == 3, "its close went, and the next entry"


async def test_a_late_answer_names_the_order_that_rests() -> None:
    venue = Keyless()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, bought_once(Open("BTC", "long", usd=300, limit_px=90, bracket=STOP)))
    await kernel.recover()
    venue.faults = [Fault("confirm", *one) for one in LOST]
    await kernel.cycle()
    assert [order.key for order in kernel.account.account_state.entries("BTC")] == [None]
    later(kernel, 60_000)
    await kernel.cycle()
    assert [
        kernel.account.order_owners.owner_of(order.key or "") for order in kernel.account.account_state.entries("BTC")
    ] == ["trend"]


async def test_a_kill_between_the_answer_and_the_naming_leaves_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the next run asks again, and books the order to its strategy."""
    venue, path = Keyless(), tmp_path / "journal.db"
    kernel = await begun(venue, path=path, faults=[Fault("confirm", *one) for one in LOST])

    def killed(_attribution: Any, _events: Any, _owner: str) -> None:
        raise Crash

    monkeypatch.setattr(order_events, "name_foreign_entries", killed)
    later(kernel, 60_000)
    kernel.budget.begin()
    with pytest.raises(Crash):
        await kernel.execution.settle()
    (doubt,) = kernel.journal.intents.live()
    assert doubt.state == "sending"
    kill(kernel)
    monkeypatch.undo()
    again = make_kernel(venue, always, path=path, settings=policy("flatten"))
    await again.recover()
    assert (again.journal.intents.live(), ours(again), set(venue.positions)) == ([], {"BTC": "trend"}, {"BTC"})
    assert (booked(again, "trend"), booked(again, FOREIGN)) == ((1, 1, 0), (0, 0, 0))


async def test_an_order_whose_events_have_no_name_has_its_owner_by_its_trade(tmp_path: Path) -> None:
    """The trades of the service have the id too."""
    venue, path = Keyless(), tmp_path / "journal.db"
    kernel = await begun(venue, path=path, faults=[Fault("confirm", *one) for one in LOST])
    (doubt,) = kernel.journal.intents.live()
    kernel.journal.intents.accept(doubt, venue.trade_rows[0].id, now_ms=venue.clock.now_ms())
    assert ours(kernel) == {"BTC": None}
    kill(kernel)
    again = make_kernel(venue, always, path=path, settings=policy("flatten"))
    await again.recover()
    assert (ours(again), set(venue.positions)) == ({"BTC": "trend"}, {"BTC"})


async def test_an_order_of_the_run_before_is_named_when_its_trade_is_found_after_its_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the answer to its one attempt: the next run is told of the fill, and later finds the trade by
    its key.
    """
    path = tmp_path / "journal.db"

    class Dies(KeysOnTrades):
        async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
            await super().confirm(token, key=key, expires_at_ms=expires_at_ms)
            raise Crash

    venue = Dies()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always, path=path)
    await kernel.recover()
    with pytest.raises(Crash):
        await kernel.cycle()
    (doubt,) = kernel.journal.intents.live()
    kill(kernel)
    again = make_kernel(venue, always, path=path)
    # It has no time for it at first.
    monkeypatch.setattr(again.execution.sender, "is_due", lambda _intent: False)
    await again.recover()
    assert again.intents.in_doubt("BTC")
    monkeypatch.undo()
    assert (await again.execution.sender.search.find(doubt)).trade_id is not None
    await again.cycle()
    found = again.journal.intents.find(doubt.id)
    assert found is not None
    assert (found.state, ours(again)) == ("accepted", {"BTC": "trend"})
    assert (booked(again, "trend"), booked(again, FOREIGN)) == ((1, 1, 0), (0, 0, 0))


async def test_an_exit_that_left_while_the_journal_could_not_be_written_is_looked_for_before_it_is_called_unsent(
    tmp_path: Path,
) -> None:
    """On the disk it was never sent: its memory was lost with the run."""
    venue, path = KeysOnTrades(), tmp_path / "journal.db"
    kernel = await begun(venue, path=path)
    await minutes(kernel, venue, "100")
    now_ms = venue.clock.now_ms()
    body = b'{"fraction":1,"source":"agent"}'
    exit_ = intent(
        1,
        trigger=f"bar:BTC:{now_ms}",
        action="close",
        path="direct",
        leg="close",
        body=body,
        opened_ms=now_ms,
        not_after_ms=now_ms + 1,
    )
    kernel.journal.decided([exit_])
    kill(kernel)
    venue.closed_by_hand("BTC", exit_.id)
    venue.minute(BTC="100")
    again = make_kernel(venue, lambda _view, _bar: [], path=path)
    await again.recover()
    found = again.journal.intents.find(exit_.id)
    assert found is not None
    assert (found.state, found.trade_id) == ("accepted", venue.trade_rows[-1].id)


async def test_trades_that_are_refused_once_are_asked_for_again() -> None:
    """Past its fence, and the events tell nothing: the trade's key is all there is."""
    venue = KeysOnTrades()
    kernel = await begun(
        venue, faults=[Fault("confirm", "lose_reply"), Fault("confirm", AWAY, 10**9), Fault("trades", AWAY, 10**9)]
    )
    (doubt,) = kernel.journal.intents.live()
    later(kernel, 60_000)
    await minutes(kernel, venue, "100")
    venue.faults = [Fault("confirm", refused("plan_stale"), 10**9), Fault("trades", refused("invalid_input"), 1)]
    for _ in range(2):
        later(kernel, 60_000)
        await minutes(kernel, venue, "100")
    found = kernel.journal.intents.find(doubt.id)
    assert found is not None
    assert (found.state, ours(kernel)) == ("accepted", {"BTC": "trend"})


# -- what is not ours


@pytest.mark.parametrize(("foreign", "left"), [("ignore", {"BTC"}), ("flatten", set())])
async def test_what_another_hand_opens_stays_foreign(foreign: str, left: set[str]) -> None:
    venue = Keyless()
    kernel = await begun(venue, settings=policy(foreign))
    await minutes(kernel, venue, "101")
    assert venue.positions == {}
    by_hand(venue)
    await kernel.cycle()
    await minutes(kernel, venue, "101")
    assert set(venue.positions) == left
    assert set(ours(kernel).values()) <= {None}
    assert booked(kernel, FOREIGN)[0] >= 1
    assert booked(kernel, "trend")[0] == 2


async def test_what_another_hand_adds_to_our_position_is_booked_as_anothers() -> None:
    venue = Keyless()
    kernel = await begun(venue, bought_once(Open("BTC", "long", usd=200, bracket=STOP)))
    by_hand(venue, size=3)
    await kernel.cycle()
    assert ours(kernel) == {"BTC": "trend"}
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((1, 1, 0), (1, Decimal("1.5"), 0))
    sizes = {share.strategy: share.size for share in kernel.account.attribution.shares["BTC"].values()}
    assert sizes == {"trend": Decimal(2), FOREIGN: Decimal(3)}


async def test_after_a_lost_journal_nobody_can_know(tmp_path: Path) -> None:
    venue = Keyless()
    kill(await begun(venue, path=tmp_path / "lost.db"))
    kernel = make_kernel(venue, always, path=tmp_path / "new.db")
    await kernel.recover()
    assert ours(kernel) == {"BTC": None}
    await minutes(kernel, venue, "101", "101")
    assert (set(venue.positions), refusals(kernel)[-1]) == ({"BTC"}, "foreign_position")


@pytest.mark.parametrize("kept", ["file", "session"])
def test_trades_are_known_by_market_action_and_epoch(kept: str) -> None:
    """An account that was reset may count its trades from the beginning; a cancel keeps the id of an order in its
    place.
    """
    journal = open_journal(None, address=ADDRESS) if kept == "file" else MemoryJournal(address=ADDRESS)
    one = intent(1)
    assert journal.open(one)
    assert journal.intents.keys_of_trades(["trd_1"], epoch=one.epoch) == {}
    journal.intents.accept(journal.intents.sending(one, now_ms=0), "trd_1", now_ms=0)
    assert journal.intents.keys_of_trades(["trd_1", "trd_2"], epoch=one.epoch) == {
        (one.market, "trd_1", "open"): one.id
    }
    assert journal.intents.keys_of_trades(["trd_2"], epoch=one.epoch) == {}
    assert journal.intents.keys_of_trades(["trd_1"], epoch=one.epoch + 1) == {}


# -- services that show keys


async def test_where_events_show_keys_no_trade_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    venue = FaultyPort()
    kernel = await begun(venue)
    assert kernel.account.account_state.events_named
    assert kernel.account.account_state.keys_proven
    monkeypatch.setattr(kernel.account.account_state, "keys_of", None)
    by_hand(venue, "ETH")
    await minutes(kernel, venue, "101", "100")
    assert len(venue.fills) == 3
    assert "foreign_writer" in kernel.health.degraded, "who shows no key where keys are shown is another"


async def proven_by_a_trade(script: Any, **more: Any) -> tuple[KeysOnTrades, Kernel]:
    """An order was in doubt, was looked for and found: keys are proven, and events still say nothing."""
    venue = KeysOnTrades()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, script, **more)
    await kernel.recover()
    venue.faults = [Fault("confirm", *one) for one in LOST]
    await kernel.cycle()
    (doubt,) = kernel.intents.live.values()
    await kernel.execution.sender.search.find(doubt)
    assert (kernel.account.account_state.keys_proven, kernel.account.account_state.events_named) == (True, False)
    later(kernel, 60_000)
    return venue, kernel


async def test_keys_on_trades_alone_make_no_other_hand_of_our_events() -> None:
    venue, kernel = await proven_by_a_trade(always)
    await minutes(kernel, venue, "100", "101")
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((2, Decimal("2.01"), 2), (0, 0, 0))
    venue.faults = [Fault("confirm", *one) for one in LOST]
    await minutes(kernel, venue, "100")
    assert (ours(kernel), kernel.intents.in_doubt("BTC"), kernel.health.degraded) == ({"BTC": "trend"}, True, {}), (
        "known by its trade's key"
    )
    later(kernel, 60_000)
    await minutes(kernel, venue, "100")
    assert (kernel.intents.in_doubt("BTC"), kernel.health.degraded, ours(kernel)) == (False, {}, {"BTC": "trend"})
    assert (booked(kernel, "trend"), booked(kernel, FOREIGN)) == ((3, Decimal("3.01"), 2), (0, 0, 0))


async def test_an_order_of_ours_that_shows_no_key_is_left_where_it_rests() -> None:
    rests = Open("BTC", "long", usd=300, limit_px=90, bracket=STOP)
    venue, kernel = await proven_by_a_trade(bought_once(rests), settings=policy("flatten"))
    for _ in range(2):
        await minutes(kernel, venue, "100")
        await kernel.reconciliation.reconcile()
    assert [order.kind for order in venue.working.values()] == ["limit"]


@pytest.mark.parametrize(("made", "flagged"), [(KeysOnTrades, True), (Keyless, False)])
async def test_another_agent_is_known_by_the_key_of_its_trade_where_events_show_none(
    made: type[Keyless], flagged: bool
) -> None:
    venue = made()
    kernel = await begun(venue)
    by_hand(venue, "ETH")
    await kernel.cycle()
    assert ("foreign_writer" in kernel.health.degraded) is flagged
    await minutes(kernel, venue, "101", "100")
    assert (len(venue.fills) == 3) is flagged, "no entry after the close, or entries go on elsewhere"


async def test_the_doctor_says_what_the_ids_of_trades_are_good_for() -> None:
    venue = Keyless()
    await begun(venue)
    client: Any = venue
    settings: Any = SimpleNamespace(orders=SimpleNamespace(path="plan"))
    (finding,) = [finding async for finding in check_idempotency(client, settings)]
    assert (finding.check, finding.level) == ("idempotency", "ok")
    assert "a plan's single-use token settles orders in doubt" in finding.message


async def test_an_event_that_shows_a_key_of_ours_is_taken_as_it_is() -> None:
    venue = FaultyPort()
    kernel = await begun(venue)
    shown = next(e for e in venue.event_rows if e.type == "fill")
    bare = shown.model_copy(update={"id": "bare", "idempotency_key": None})
    others = {"ETH": {"coin": "ETH"}, "close": {"data": bare.data.model_copy(update={"intent": "close"})}}
    foreign = [bare.model_copy(update={"id": name, **more}) for name, more in others.items()]
    *same, given = with_our_keys(kernel.account.account_state, [shown, *foreign, bare])
    assert same == [shown, *foreign], "nor is one of another market, or an exit under the id of an entry"
    assert given.idempotency_key == shown.idempotency_key
    assert '"keyFrom":"trade"' in given.model_dump_json()
