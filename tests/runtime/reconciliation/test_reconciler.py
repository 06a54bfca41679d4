"""Each drift has its repair: a lost stop, a gone guardian, a foreign hand, a reset, a gap in the feed."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.errors import ApiError, OutcomeUnknown
from bot.runtime.execution.dispatch import ABREAST
from bot.runtime.journal import queries
from bot.runtime.journal.order_trace import explain
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.positions import Drift, DriftKind
from bot.runtime.passes.pass_budget import PASS_MS
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import WantedGuardian
from bot.runtime.reconciliation.protection import COVER_MS
from bot.runtime.reconciliation.reconciler import REPAIRS
from bot.runtime.reconciliation.schedule import REFUSED_MS
from bot.runtime.shutdown import wind_down
from bot.service.market_data.instruments import CATALOGUE
from bot.strategy import Bar, Bracket, Close, Fill, Intent, Open, Strategy, TrailingStop, View
from bot.wire import (
    BracketRequest,
    CancelResult,
    CloseRequest,
    EventsPage,
    Guardian,
    GuardianRequest,
    LegRequest,
    OrderRequest,
    OrderResult,
    Position,
)
from tests.faulty_port import Fault, FaultyPort, refused, unknown
from tests.runtime.builders import (
    DEAD_MAN_60,
    SlowCancels,
    first_bar,
    kill,
    later,
    make_kernel,
    minutes,
    once,
    opened,
    replied,
    stop_of,
    trailing,
)

STOP = BracketRequest(stop_loss=LegRequest(pct=Decimal(2)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def begun_again(venue: FaultyPort, path: Path, **more: Any) -> Kernel:
    """A loop over the journal that another has left."""
    kernel = make_kernel(venue, once, path=path, **more)
    await kernel.recover()
    return kernel


def kinds(drifts: Iterable[Drift] | None) -> list[str]:
    assert drifts is not None, "nothing was compared"
    return [drift.kind for drift in drifts]


def test_every_drift_has_a_repair() -> None:
    assert set(REPAIRS) == set(DriftKind.__args__)  # type: ignore[attr-defined]


async def test_nothing_is_found_where_nothing_is_wrong() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    assert await kernel.reconciliation.reconcile() == []


async def test_a_lost_stop_becomes_a_trailing_stop_at_its_distance_in_the_same_pass() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    await venue.cancel(stop_of(venue))
    await kernel.cycle()
    assert trailing(venue) == [("BTC", 2.0)]
    assert kernel.account.account_state.is_protected("BTC")
    await kernel.cycle()
    assert len(trailing(venue)) == 1


async def test_a_stop_that_vanished_without_an_event_is_found_by_the_snapshot() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.lose(stop_of(venue))
    assert kinds(await kernel.reconciliation.reconcile()) == ["order_gone", "naked_position"]
    assert trailing(venue) == [("BTC", 2.0)]


async def test_a_trailing_stop_that_is_refused_or_never_stands_closes_the_position() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.faults = [Fault("arm", refused("invalid_input"))]
    await venue.cancel(stop_of(venue))
    await kernel.cycle()
    assert venue.positions == {}
    assert [row["strategy"] for row in kernel.journal.db["intents"].rows] == ["trend", "@runtime"]


async def test_a_position_with_an_inline_trailing_stop_is_not_naked() -> None:
    def trail(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=500, guardians=(TrailingStop(trail_pct=1.5),))

    venue, kernel = await first_bar(trail)
    assert trailing(venue) == [("BTC", 1.5)]
    assert await kernel.reconciliation.reconcile() == []


async def test_a_trailing_stop_that_waits_for_its_activation_is_no_stop() -> None:
    def trail(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            wait = TrailingStop(trail_r=1, activate_at_r=2)
            yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=2), guardians=(wait,))

    venue, kernel = await first_bar(trail)
    armed = next(one for one in venue.guards.values() if one.type == "trailing_stop")
    venue.said[armed.id] = {"active": False}
    await venue.cancel(stop_of(venue))
    assert kinds(await kernel.reconciliation.reconcile()) == ["naked_position"]
    assert trailing(venue) == [("BTC", None), ("BTC", 2.0)]
    assert await kernel.reconciliation.reconcile() == []


@pytest.mark.parametrize(
    "answer", [refused("invalid_input"), ApiError.of("rate_limited", "not now", order_submitted=False, retryable=True)]
)
async def test_a_list_of_guardians_that_is_not_given_keeps_no_other_position_without_a_stop(answer: ApiError) -> None:
    """Of BTC only the list tells whether its trailing stop sleeps, and not to be told is no reason to close it.

    ETH has no stop.
    """

    def both(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            wait = (TrailingStop(trail_r=1, activate_at_r=2),) if bar.market == "BTC" else ()
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2), guardians=wait)

    venue = FaultyPort()
    venue.minute(BTC="100", ETH="100")
    kernel = make_kernel(venue, both, markets=("BTC", "ETH"))
    await kernel.recover()
    await kernel.cycle()
    armed = next(one for one in venue.guards.values() if one.type == "trailing_stop")
    venue.said[armed.id] = {"active": False}
    for stop in [order.oid for order in venue.working.values() if order.kind == "stop_loss"]:
        await venue.cancel(stop)
    no = Fault("guardians", answer, count=99)
    venue.faults = [no]
    for _ in range(4):
        later(kernel, 6_000)
        await kernel.cycle()
    assert set(venue.positions) == {"BTC"}
    assert no.count < 99
    no.count = 0
    later(kernel, 6_000)
    await kernel.cycle()
    assert trailing(venue) == [("BTC", None), ("BTC", 2.0)]


async def both_opened(venue: FaultyPort) -> Kernel:
    """A loop that holds a protected position in BTC and one in ETH."""

    def both(view: View, bar: Bar) -> Iterable[Intent]:
        if not view.state.get(bar.market):
            view.state[bar.market] = True
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2))

    venue.minute(BTC="100", ETH="100")
    kernel = make_kernel(venue, both, markets=("BTC", "ETH"))
    await kernel.recover()
    await kernel.cycle()
    assert set(venue.positions) == {"BTC", "ETH"}
    return kernel


async def lose_stop(venue: FaultyPort, coin: str) -> None:
    await venue.cancel(next(o.oid for o in venue.working.values() if o.kind == "stop_loss" and o.coin == coin))


LATER = ApiError.of("rate_limited", "not now", order_submitted=False, retryable=True)


@pytest.mark.parametrize("answer", [LATER, unknown(), refused("invalid_input")])
async def test_a_list_that_one_position_waits_for_keeps_another_from_no_repair(answer: ApiError) -> None:
    """ETH has waited as long as it may, so that it is closed, which asks for no list;

    BTC has only just lost its stop.
    """
    venue = FaultyPort()
    kernel = await both_opened(venue)
    venue.faults = [no := Fault("guardians", answer, count=99)]
    await lose_stop(venue, "ETH")
    await kernel.cycle()
    later(kernel, COVER_MS)
    await lose_stop(venue, "BTC")
    await kernel.cycle()
    assert set(venue.positions) == {"BTC"}
    no.count = 0
    await kernel.cycle()
    assert trailing(venue) == [("BTC", 2.0)], "the next pass asks again"


@pytest.mark.parametrize("op", ["guardians", "arm"])
async def test_a_question_of_a_repair_that_is_lost_once_ends_no_other_of_that_pass(op: str) -> None:
    venue = FaultyPort()
    kernel = await both_opened(venue)
    guardian = next(one for one in venue.guards.values() if one.type == "dead_man_switch")
    await venue.disarm(guardian.id)
    await lose_stop(venue, "BTC")
    await lose_stop(venue, "ETH")
    venue.faults = [Fault(op, LATER)]
    await kernel.events.drain()
    await kernel.reconciliation.repair()
    assert trailing(venue) == [("ETH", 2.0)]
    assert kernel.guardians.fallen() == [], "the dead-man stands again in the same pass"
    await kernel.cycle()
    assert trailing(venue) == [("ETH", 2.0), ("BTC", 2.0)]


async def test_a_list_that_takes_the_time_of_a_pass_is_asked_for_once_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    venue = FaultyPort()
    kernel = await both_opened(venue)
    await venue.disarm(next(one.id for one in venue.guards.values() if one.type == "dead_man_switch"))
    await lose_stop(venue, "BTC")
    await lose_stop(venue, "ETH")
    asked = []

    async def hangs() -> list[Guardian]:
        asked.append(kernel.budget.pacer.mono_ms())
        later(kernel, PASS_MS)
        raise unknown()

    monkeypatch.setattr(venue, "guardians", hangs)
    await kernel.cycle()
    assert len(asked) == 1


async def test_the_repair_of_a_naked_position_survives_a_restart(path: Path) -> None:
    venue = FaultyPort()
    kernel = await opened(venue, path=path)
    kernel.journal.db.close()
    await venue.cancel(stop_of(venue))
    await begun_again(venue, path)
    assert trailing(venue) == [("BTC", 2.0)]


async def test_a_guardian_that_has_gone_is_armed_anew_and_nothing_opens_before() -> None:
    venue = FaultyPort()
    drawdown = WantedGuardian(
        "drawdown", GuardianRequest(type="account_drawdown", max_loss_pct_from_day_start=Decimal(5), action="flatten")
    )
    kernel = await opened(venue, settings=KernelSettings(guardians=(DEAD_MAN_60, drawdown)))
    assert {g.type for g in venue.guards.values()} == {"dead_man_switch", "account_drawdown"}
    first = next(g.id for g in venue.guards.values() if g.type == "dead_man_switch")
    venue.lose(*venue.guards)
    assert kinds(await kernel.reconciliation.reconcile()) == ["guardian_gone"] * 4
    now = {g.type: g.id for g in venue.guards.values()}
    assert set(now) == {"dead_man_switch", "account_drawdown"}
    assert now["dead_man_switch"] != first
    assert kernel.conditions.entries_stopped(kernel.now_ms()) is None


@pytest.mark.parametrize("seconds", [60, 300])
async def test_a_journal_that_is_begun_anew_arms_at_once_whatever_keys_the_account_has_seen(seconds: int) -> None:
    venue = FaultyPort()
    kernel = make_kernel(venue)
    await kernel.recover()
    # So many guardians come and go, and their keys are spent.
    for _ in range(5):
        venue.lose(*venue.guards)
        await kernel.reconciliation.reconcile()
    venue.lose(*venue.guards)
    wanted = WantedGuardian(DEAD_MAN_60.name, DEAD_MAN_60.request.model_copy(update={"heartbeat_seconds": seconds}))
    other = make_kernel(venue, settings=KernelSettings(guardians=(wanted,)))
    await other.recover()
    assert [(g.type, g.heartbeat_seconds) for g in venue.guards.values()] == [("dead_man_switch", seconds)]
    assert other.conditions.entries_stopped(other.now_ms()) is None


async def test_no_key_of_a_dead_man_meets_one_of_a_journal_that_was_lost(tmp_path: Path) -> None:
    """Before a journal drew its serials by chance, it went through the keys of the lost one: twenty at a time,
    without a dead-man meanwhile.
    """
    venue = FaultyPort()
    venue.minute()
    draw = drawn()
    for life in range(25):
        venue.lose(*venue.guards)
        kernel = make_kernel(venue, path=tmp_path / f"{life}.db", new_serial=draw)
        before = venue.calls.count("arm")
        await kernel.recover()
        kill(kernel)
        assert (len(venue.guards), venue.calls.count("arm") - before) == (1, 1)


async def test_no_key_of_a_dead_man_meets_one_of_after_the_backup_that_is_restored(tmp_path: Path) -> None:
    venue = FaultyPort()
    venue.minute()
    draw = drawn()
    kill(await recovered(venue, tmp_path / "j.db", draw))
    shutil.copyfile(tmp_path / "j.db", tmp_path / "backup.db")
    for _ in range(25):
        venue.lose(*venue.guards)
        kill(await recovered(venue, tmp_path / "j.db", draw))
    (newest,) = venue.guards
    before = venue.calls.count("arm")
    kernel = await recovered(venue, tmp_path / "backup.db", draw)
    assert venue.calls.count("arm") - before == 1
    assert list(venue.guards) == [kernel.guardians.ids["dead_man"]]
    assert newest not in venue.guards, "the one of the life that the backup does not know has gone"


def drawn() -> Callable[[int], int]:
    """Serials as the daemon draws them, by a chance that is the same each time."""
    chance = random.Random(11)
    return lambda _before: chance.getrandbits(62)


async def recovered(venue: FaultyPort, path: Path, draw: Callable[[int], int]) -> Kernel:
    kernel = make_kernel(venue, path=path, new_serial=draw)
    await kernel.recover()
    return kernel


async def test_a_dead_man_that_an_earlier_life_left_goes_when_ours_stands() -> None:
    """Two would both be beaten for, and nobody would disarm the other at the end."""
    venue = FaultyPort()
    venue.minute()
    await make_kernel(venue).recover()
    (left,) = venue.guards
    kernel = make_kernel(venue, new_serial=lambda _before: 77)
    await kernel.recover()
    assert list(venue.guards) == [kernel.guardians.ids["dead_man"]]
    assert left not in venue.guards


async def test_a_dead_man_that_another_hand_arms_while_we_run_is_left_alone() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    (ours,) = venue.guards
    another = await venue.arm(DEAD_MAN_60.request, key="another daemon")
    await kernel.reconciliation.reconcile()
    await venue.disarm(ours)
    await kernel.reconciliation.reconcile()
    assert another.id in venue.guards
    assert kernel.guardians.ids["dead_man"] not in (ours, another.id), "a dead-man of another daemon goes with that one"
    assert len(venue.guards) == 2


async def test_a_dead_man_that_fired_stops_entries_until_it_stands_again() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    guardian = next(iter(venue.guards.values()))
    await venue.disarm(guardian.id)
    await kernel.events.drain()
    no = kernel.conditions.entries_stopped(kernel.now_ms())
    assert no is not None
    assert no.code == "dead_man_gone"
    await kernel.reconciliation.reconcile()
    await kernel.events.drain()
    assert kernel.conditions.entries_stopped(kernel.now_ms()) is None


@pytest.mark.parametrize("kind", ["drop", "lose_reply"])
async def test_an_arm_whose_answer_is_lost_leaves_one_dead_man(kind: str) -> None:
    venue = FaultyPort()
    venue.minute()
    kernel = make_kernel(venue)
    venue.faults = [Fault("arm", kind)]
    with pytest.raises(ApiError):
        await kernel.recover()
    await kernel.recover()
    assert [g.type for g in venue.guards.values()] == ["dead_man_switch"]


@pytest.mark.parametrize("comes", ["before it is listed", "before it is armed", "after it is armed"])
@pytest.mark.parametrize("again", [False, True])
async def test_an_arm_that_comes_after_a_reset_leaves_one_dead_man_that_is_known(
    comes: str, again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venue = FaultyPort()
    venue.minute()
    kernel = make_kernel(venue, path=tmp_path / "j.db")
    venue.faults = [Fault("arm", "late")]
    with pytest.raises(ApiError):
        await kernel.recover()
    (arrive,) = venue.late
    arm = venue.arm

    async def after_the_late_one(*given: Any, **named: Any) -> Any:
        with suppress(ApiError):
            arrive()
        return await arm(*given, **named)

    venue.reset()
    if again:
        kill(kernel)
        kernel = make_kernel(venue, path=tmp_path / "j.db")
    if comes == "before it is listed":
        arrive()
    elif comes == "before it is armed":
        monkeypatch.setattr(venue, "arm", after_the_late_one)
    await kernel.recover()
    venue.minute()
    await kernel.cycle()
    await kernel.reconciliation.reconcile()
    assert len(venue.guards) == 1
    assert set(venue.guards) == set(kernel.guardians.ids.values())
    assert kernel.conditions.entries_stopped(kernel.now_ms()) is None
    await kernel.guardians.change((), epoch=kernel.account.account_state.epoch)
    await kernel.guardians.retire()
    assert venue.guards == {}, "nothing stands that nobody knows of"


@pytest.mark.parametrize(
    "before", [(), ("armed", "gone"), ("armed", "reset"), ("armed", "reset", "armed", "gone"), ("armed", "not wanted")]
)
async def test_an_arm_of_a_lost_journal_that_comes_late_leaves_one_dead_man(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    venue = FaultyPort()
    venue.minute()
    for what in before:
        if what == "reset":
            venue.reset()
        elif what == "gone":
            venue.lose(*venue.guards)
        else:
            guardians = (DEAD_MAN_60,) if what == "armed" else ()
            kernel = make_kernel(venue, path=tmp_path / "j.db", settings=KernelSettings(guardians=guardians))
            await kernel.recover()
            kill(kernel)
    assert venue.guards == {}
    venue.faults = [Fault("arm", "late")]
    kernel = make_kernel(venue, path=tmp_path / "j.db")
    with pytest.raises(ApiError):
        await kernel.recover()
    kill(kernel)
    (arrive,) = venue.late
    begun_anew = make_kernel(venue)
    await begun_anew.recover()
    arrive()
    await begun_anew.reconciliation.reconcile()
    assert len(venue.guards) == 1
    assert set(venue.guards) == set(begun_anew.guardians.ids.values())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_arms_that_come_after_a_reset_leave_the_one_that_is_known(
    order: tuple[int, int], tmp_path: Path
) -> None:
    venue = FaultyPort()
    venue.minute()
    for n in range(2):
        kernel = make_kernel(venue, path=tmp_path / "j.db")
        venue.faults = [Fault("arm", "late")]
        with pytest.raises(ApiError):
            await kernel.recover()
        kill(kernel)
        if n == 0:
            venue.reset()
    for n in order:
        venue.late[n]()
    kernel = make_kernel(venue, path=tmp_path / "j.db")
    await kernel.recover()
    await kernel.reconciliation.reconcile()
    assert len(venue.guards) == 1
    assert set(venue.guards) == set(kernel.guardians.ids.values())


def ordering(market: str, usd: float = 15.5) -> WantedGuardian:
    """The service itself is to order every night."""
    template = {"market": market, "side": "long", "usdAmount": usd, "bracket": {"stopLoss": {"pct": 1}}}
    request = GuardianRequest(type="schedule", cron="0 0 * * *", order_template=template)
    return WantedGuardian(f"config-{market}-schedule", request)


def ordered(venue: FaultyPort) -> list[tuple[str, float]]:
    templates = [g.order_template for g in venue.guards.values() if g.order_template is not None]
    return [(one["market"], one["usdAmount"]) for one in templates]


async def test_two_schedules_of_the_same_instants_are_two_when_they_order_something_else() -> None:
    venue = FaultyPort()
    settings = KernelSettings(guardians=(DEAD_MAN_60, ordering("BTC"), ordering("ETH")))
    kernel = await opened(venue, settings=settings)
    await kernel.reconciliation.reconcile()
    assert ordered(venue) == [("BTC", 15.5), ("ETH", 15.5)]


async def test_a_schedule_whose_order_has_changed_is_armed_anew_and_the_old_one_goes() -> None:
    venue = FaultyPort()
    kernel = await opened(venue, settings=KernelSettings(guardians=(DEAD_MAN_60, ordering("BTC"))))
    await kernel.guardians.change((DEAD_MAN_60, ordering("BTC", 20)), epoch=0)
    await kernel.guardians.retire()
    assert ordered(venue) == [("BTC", 20)]
    await kernel.reconciliation.reconcile()
    assert ordered(venue) == [("BTC", 20)]


class Rewrites(FaultyPort):
    """Lists the order of a schedule in words of its own."""

    async def guardians(self) -> list[Guardian]:
        listed = await super().guardians()
        return [
            one if one.order_template is None else one.model_copy(update={"order_template": {"coin": "BTC"}})
            for one in listed
        ]


async def test_a_schedule_that_the_service_writes_otherwise_is_armed_once(path: Path) -> None:
    venue = Rewrites()
    settings = KernelSettings(guardians=(DEAD_MAN_60, ordering("BTC")))
    kernel = await opened(venue, settings=settings, path=path)
    kill(kernel)
    kernel = await begun_again(venue, path, settings=settings)
    await minutes(kernel, venue, "100")
    await kernel.reconciliation.reconcile()
    assert ordered(venue) == [("BTC", 15.5)]


@pytest.mark.parametrize(
    ("policy", "left", "owner"), [("ignore", True, None), ("adopt", True, "trend"), ("flatten", False, None)]
)
async def test_a_foreign_position_is_treated_as_the_config_says(policy: str, left: bool, owner: str | None) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await venue.place(OrderRequest(market="BTC", side="short", usd_amount=Decimal(300), bracket=STOP), key="a person")
    kernel = make_kernel(
        venue, settings=KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions=policy), markets=("BTC", "ETH")
    )
    await kernel.recover()
    await kernel.cycle()
    assert ("BTC" in venue.positions) is left
    if left:
        assert kernel.account.account_state.positions["BTC"].owner == owner


async def test_repairs_that_take_longer_than_a_pass_are_shared_out_over_passes() -> None:
    """The entries that another hand has resting, and then our positions whose stops it has taken away."""
    coins = [coin for coin, listed in CATALOGUE.items() if listed.spec.asset_class == "crypto" and coin != "ETH"][:12]
    venue = SlowCancels((*coins, "ETH"))

    def each(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=20, bracket=Bracket(stop_pct=2))

    settings = KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions="flatten")
    kernel = make_kernel(venue, each, settings=settings, markets=coins, pacer=venue.pacer)
    venue.minute()
    await kernel.recover()
    await kernel.cycle()
    assert set(venue.positions) == set(coins)
    theirs = []
    for n in range(12):
        order = OrderRequest(market="ETH", side="long", usd_amount=Decimal(20), type="limit", limit_px=str(50 + n))
        theirs.append((await venue.place(order, key=f"a person's {n}")).trade.venue_oid)

    async def passes_until(is_done: Callable[[], bool], *, wait_ms: int) -> int:
        for made in range(1, 7):
            later(kernel, wait_ms)
            began_ms = venue.pacer.now_ms
            await kernel.cycle()
            assert venue.pacer.now_ms - began_ms <= PASS_MS
            if is_done():
                return made
        raise AssertionError("it is not done")

    kernel.reconciliation.compare_strategies_anew()
    assert await passes_until(lambda: all(oid not in venue.working for oid in theirs), wait_ms=REFUSED_MS) == 2

    arms = venue.arm

    async def slowly(request: GuardianRequest, *, key: str) -> Guardian:
        venue.pacer.now_ms += 500
        return await arms(request, key=key)

    stops = [one.oid for one in venue.working.values() if one.kind == "stop_loss"]
    for oid in stops:
        await FaultyPort.cancel(venue, oid)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(venue, "arm", slowly)
        assert await passes_until(lambda: len(trailing(venue)) == len(coins), wait_ms=0) == 2
    assert set(venue.positions) == set(coins)


class Plain(FaultyPort):
    """Its positions are as the interface has them: nothing of when they began, and of their stops."""

    def _position(self, coin: str) -> Position:
        return super()._position(coin).model_copy(update={"opened_at": None, "stop_px": None})


restarted = pytest.mark.parametrize("is_restarted", [False, True])


@restarted
async def test_another_hands_position_is_not_ours_because_we_held_one_there_before(
    is_restarted: bool, path: Path
) -> None:
    venue = Plain()
    kernel = await opened(venue, path=path)
    await minutes(kernel, venue, "90")
    assert venue.positions == {}, "its stop was touched"
    if is_restarted:
        kill(kernel)
    await venue.place(OrderRequest(market="BTC", side="long", usd_amount=Decimal(300)), key="a person")
    if is_restarted:
        kernel = await begun_again(venue, path)
    await minutes(kernel, venue, "90", "90")
    assert kernel.account.account_state.positions["BTC"].owner is None
    assert "BTC" in venue.positions, "it has no stop, and foreign_positions is ignore"
    assert trailing(venue) == []


@restarted
async def test_when_a_position_began_is_known_where_the_service_does_not_tell(is_restarted: bool, path: Path) -> None:
    venue = Plain()
    kernel = await opened(venue, path=path)
    at_ms = venue.clock.now_ms()
    await minutes(kernel, venue, "100")
    if is_restarted:
        kill(kernel)
        kernel = await begun_again(venue, path)
    await kernel.reconciliation.reconcile()
    position = kernel.account.account_state.positions["BTC"]
    assert (position.owner, position.opened_ms) == ("trend", at_ms)


@pytest.mark.parametrize("question", ["account", "trades"])
async def test_a_question_that_is_lost_puts_off_what_is_found_by_ten_seconds_and_not_to_the_next_comparison(
    question: str,
) -> None:
    venue = FaultyPort()
    settings = KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions="flatten")
    kernel = await opened(venue, settings=settings, markets=("BTC", "ETH"))
    await venue.place(OrderRequest(market="ETH", side="long", usd_amount=Decimal(300)), key="a person")
    venue.faults = [Fault(question, "drop")]
    await kernel.cycle()
    later(kernel, REFUSED_MS)
    await kernel.cycle()
    assert "ETH" not in venue.positions


async def test_a_bare_position_of_another_hand_keeps_no_switch_that_would_close_it() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await venue.place(OrderRequest(market="BTC", side="short", usd_amount=Decimal(300)), key="a person")
    kernel = make_kernel(venue)
    await kernel.recover()
    await kernel.cycle()
    left = await wind_down(kernel, "leave")
    assert left.why[0].startswith("positions stay open, BTC WITHOUT A STOP")
    assert (left.unprotected, venue.guards) == ((), {})


async def test_a_repair_that_is_not_answered_keeps_no_other_from_its_own() -> None:
    venue = FaultyPort()
    settings = KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions="flatten")
    kernel = await opened(venue, settings=settings, markets=("BTC", "ETH"))
    limit = OrderRequest(market="ETH", side="long", usd_amount=Decimal(300), type="limit", limit_px="90")
    for key in ("a person", "a person again"):
        await venue.place(limit, key=key)
    first, other = [o.oid for o in venue.working.values() if o.kind == "limit"]
    venue.faults = [Fault("cancel", "drop")]
    with pytest.raises(OutcomeUnknown):
        await kernel.reconciliation.reconcile()
    assert first in venue.working
    assert other not in venue.working
    await kernel.reconciliation.reconcile()
    assert first not in venue.working


class Falters(FaultyPort):
    """Tells nothing of what happens twice after a close."""

    silent = 0

    async def close(
        self, market: str, request: CloseRequest, *, key: str, expires_at_ms: int | None = None
    ) -> OrderResult:
        self.silent = 2
        return await super().close(market, request, key=key, expires_at_ms=expires_at_ms)

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage:
        if self.silent:
            self.silent -= 1
            raise unknown()
        return await super().events(since, limit=limit, types=types)


@pytest.mark.parametrize(("made", "op"), [(FaultyPort, "cancel"), (FaultyPort, "disarm"), (Falters, "none")])
async def test_an_end_that_is_not_answered_once_asks_again(made: type[FaultyPort], op: str) -> None:
    venue = made()

    def rests_too(view: View, bar: Bar) -> Iterable[Intent]:
        yield from once(view, bar)
        if bar.market == "ETH" and not view.orders("ETH"):
            yield Open("ETH", "long", usd=100, limit_px=90, bracket=Bracket(stop_pct=2))

    venue.minute(BTC="100")
    kernel = make_kernel(venue, rests_too, markets=("BTC", "ETH"))
    await kernel.recover()
    await kernel.cycle()
    assert [order.market for order in kernel.account.account_state.orders.values() if order.could_open] == ["ETH"]
    venue.faults = [Fault(op, "drop")]
    left = await wind_down(kernel, "flatten")
    assert (left.complete, venue.positions, venue.working, venue.guards) == (True, {}, {}, {})
    assert venue.calls.count("close") == 1


class Waits(FaultyPort):
    """Answers no cancel before the last of so many is on its way."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.left = many
        self.all_there = asyncio.Event()

    async def cancel(self, oid: str) -> CancelResult:
        self.left -= 1
        if not self.left:
            self.all_there.set()
        await self.all_there.wait()
        return await super().cancel(oid)


async def test_the_resting_entries_of_an_end_are_canceled_side_by_side_and_its_closes_follow() -> None:
    """One after another they would take the time that the end has, and nothing would be closed."""
    many = 30
    venue = Waits(many)

    def rests_too(view: View, bar: Bar) -> Iterable[Intent]:
        yield from once(view, bar)
        if bar.market == "ETH" and not view.orders("ETH"):
            yield from (Open("ETH", "long", usd=11, limit_px=50 + n, bracket=Bracket(stop_pct=2)) for n in range(many))

    venue.minute(BTC="100")
    kernel = make_kernel(venue, rests_too, markets=("BTC", "ETH"))
    await kernel.recover()
    await kernel.cycle()
    assert set(venue.positions) == {"BTC"}
    assert sum(order.coin == "ETH" for order in venue.working.values()) == many
    kernel.intents.in_flight.abreast = ABREAST
    async with asyncio.timeout(10):
        left = await wind_down(kernel, "flatten")
    assert (left.complete, venue.positions, venue.working, venue.guards) == (True, {}, {}, {})


@pytest.mark.parametrize("says_gone", [True, False])
async def test_a_reset_arms_before_it_trades(says_gone: bool) -> None:
    venue = FaultyPort()

    def always(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=2))

    venue.says_gone = says_gone
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always)
    await kernel.recover()
    await kernel.cycle()
    venue.reset()
    venue.calls.clear()
    await minutes(kernel, venue, "101")
    cursor = kernel.journal.events.cursor
    assert cursor is not None
    assert cursor.epoch == 1
    assert [g.type for g in venue.guards.values()] == ["dead_man_switch"]
    assert venue.calls.index("arm") < venue.calls.index("confirm")
    assert [row["epoch"] for row in kernel.journal.db["intents"].rows] == [0, 1]
    assert kernel.account.account_state.positions["BTC"].owner == "trend"


async def test_what_another_hand_opens_right_after_a_reset_is_not_ours_because_we_held_the_same_before() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    assert kernel.account.account_state.positions["BTC"].owner == "trend"
    venue.reset()
    await venue.place(OrderRequest(market="BTC", side="long", usd_amount=Decimal(300)), key="a person")
    await minutes(kernel, venue, "100")
    position = kernel.account.account_state.positions["BTC"]
    assert (position.owner, position.first_stop_px) == (None, None)
    assert trailing(venue) == [], "foreign_positions: ignore"
    assert "BTC" in venue.positions


async def test_a_reset_while_an_order_is_in_doubt_orders_nothing_twice() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once)
    await kernel.recover()
    venue.faults = [Fault("confirm", "lose_reply", count=3)]
    await kernel.cycle()
    venue.reset()
    later(kernel, 60_000)
    await minutes(kernel, venue, "101")
    states = [row["state"] for row in kernel.journal.db["intents"].rows]
    assert states == ["void"] or states == ["accepted"], states
    assert venue.fills == []


@pytest.mark.parametrize("abreast", [1, 4])
async def test_a_reset_between_two_orders_of_one_decision_ends_the_second_and_not_the_run(abreast: int) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")

    def turned(view: View, bar: Bar) -> Iterable[Intent]:
        yield Close(bar.market)
        yield Open(bar.market, "short", usd=500, bracket=Bracket(stop_pct=2))

    scripts = [once, turned]
    kernel = make_kernel(venue, lambda view, bar: scripts.pop(0)(view, bar) if scripts else ())
    kernel.intents.in_flight.abreast = abreast
    await kernel.recover()
    await kernel.cycle()
    await replied(kernel)
    close = venue.close

    async def wiped(*given: Any, **named: Any) -> Any:
        answer = await close(*given, **named)
        venue.reset()
        return answer

    venue.close = wiped  # type: ignore[method-assign]
    await minutes(kernel, venue, "101")
    assert [row["state"] for row in kernel.journal.db["intents"].rows] == ["accepted", "accepted", "void"]
    assert venue.fills == [], "what was decided about the account of before is not ordered on the new one"
    assert kernel.intents.live == {}


async def test_a_gap_in_the_feed_is_noticed_by_its_overlap() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    cursor = kernel.journal.events.cursor
    assert cursor is not None
    assert cursor.prev_id is not None
    venue.unseen.add(cursor.last_id)
    venue.minute()
    venue.other_event()
    assert kinds(await kernel.reconciliation.reconcile()) == ["cursor_lost"]
    after = kernel.journal.events.cursor
    assert after is not None
    assert after.last_id == venue.event_rows[-2].id or after.last_id == venue.event_rows[-1].id


@pytest.mark.parametrize("is_seen", [True, False], ids=["noticed at once", "gone on since"])
async def test_what_a_service_that_went_back_tells_under_ids_of_before_is_taken(is_seen: bool) -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    before = venue.saved()
    await minutes(kernel, venue, "97")
    undone = kernel.journal.events.cursor
    assert undone is not None
    assert "BTC" not in kernel.account.account_state.positions, "its stop has fired"
    venue.restore(before)
    if is_seen:
        await kernel.cycle()
        assert "BTC" in kernel.account.account_state.positions, "and has not, by what the service says now"
    venue.minute(BTC="97")
    while venue.event_rows[-1].id < undone.last_id:
        venue.other_event()
    if is_seen:
        await kernel.cycle()
        told = next(row for row in kernel.journal.db["events"].rows if row["id"] == undone.last_id)
        assert told["ts"] == venue.event_rows[-1].ts
    else:
        assert kinds(await kernel.reconciliation.reconcile()) == ["cursor_lost"]
    assert "BTC" not in kernel.account.account_state.positions
    assert kernel.account.attribution.shares == {}


class Reenters(Strategy):
    """In once, and again whenever it is out."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if not view.state.get("begun"):
            view.state["begun"] = True
            yield Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=2))

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        if fill.action != "open":
            yield Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=2))


async def test_what_is_wanted_on_an_event_that_bears_the_id_of_another_is_ordered() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, strategies=[Reenters(name="trend", markets=["BTC"])])
    await kernel.recover()
    await kernel.cycle()
    before = venue.saved()
    await minutes(kernel, venue, "97")
    assert len(list(kernel.journal.db["intents"].rows)) == 2
    venue.restore(before)
    await kernel.cycle()
    await minutes(kernel, venue, "97")
    first, *again = [row for row in kernel.journal.db["intents"].rows if row["cause"].startswith("event:")]
    assert [row["state"] for row in again] == ["accepted"]
    assert again[0]["cause"].startswith(f"{first['cause']}:")
    assert "BTC" in venue.positions
    with queries.in_rows(kernel.journal.db.conn) as db:
        told = explain(db, again[0]["id"])[0]
    assert told.at_ms == again[0]["opened_ms"]


class Leaves(Strategy):
    """Waits below for an entry, and goes out again at once."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if not view.orders("BTC") and view.position("BTC") is None:
            yield Open("BTC", "long", usd=200, limit_px=98, bracket=Bracket(stop_pct=20))

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        if fill.action == "open":
            yield Close("BTC")


async def test_what_is_wanted_on_such_an_event_is_ordered_also_where_the_next_run_tells_it(tmp_path: Path) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")

    def started() -> Kernel:
        return make_kernel(venue, strategies=[Leaves(name="trend", markets=["BTC"])], path=tmp_path / "journal.db")

    kernel = started()
    await kernel.recover()
    await kernel.cycle()
    before = venue.saved()
    await minutes(kernel, venue, "97")
    venue.restore(before)
    await kernel.cycle()
    # As while it is built anew.
    kernel.strategy_host.set_instances(kernel.strategy_host.instances, unready=["trend"])
    await minutes(kernel, venue, "97")
    assert "BTC" in venue.positions
    kill(kernel)
    kernel = started()
    await kernel.recover()
    first, *again = [row for row in kernel.journal.db["intents"].rows if row["cause"].startswith("event:")]
    assert [(row["state"], row["cause"][: len(first["cause"])]) for row in again] == [("accepted", first["cause"])]
    assert "BTC" not in venue.positions


async def test_a_fill_that_no_event_told_is_believed_from_the_snapshot() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.said[stop_of(venue)] = {"size": Decimal(5)}
    with venue.untold():
        venue.by_hand("BTC", "long", 1)
    assert kinds(await kernel.reconciliation.reconcile()) == ["missing_fill", "naked_position"]
    assert trailing(venue) == [("BTC", 2.0)], "its stop is for five"
    assert kernel.account.account_state.positions["BTC"].size == 6
    assert kernel.account.account_state.positions["BTC"].owner == "trend"


async def test_a_repair_that_is_refused_is_tried_again_later_and_not_in_every_pass() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.faults = [Fault("arm", refused("invalid_input"), 9), Fault("close", refused("market_closed"), 1)]
    await venue.cancel(stop_of(venue))
    for _ in range(5):
        await kernel.cycle()
    assert venue.calls.count("close") == 1
    assert "BTC" in venue.positions
    await minutes(kernel, venue, "101")
    assert venue.positions == {}
