"""A position of another hand is adopted only with a stop under it.

Whatever happens, no order of ours closes it for want of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bot.runtime.kernel.kernel import Kernel
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.shutdown import wind_down
from bot.strategy import Bar, Bracket, Intent, Open, View
from bot.wire import BracketRequest, CloseRequest, GuardianRequest, LegRequest
from tests.fakes import Crash, Tap
from tests.faulty_port import Fault, FaultyPort, refused
from tests.runtime.builders import DEAD_MAN_60, kill, make_kernel, minutes, refusals, trailing

STOP = BracketRequest(stop_loss=LegRequest(pct=Decimal(2)))
SIDES = ("long", "short")


def policy(pct: float | None = None, positions: str = "adopt") -> KernelSettings:
    distance = None if pct is None else Decimal(str(pct))
    return KernelSettings(guardians=(DEAD_MAN_60,), foreign_positions=positions, adopted_stop_pct=distance)


def adds(view: View, bar: Bar) -> Iterable[Intent]:
    """Wants more of whatever is there, and as much where nothing is."""
    held = view.position(bar.market)
    yield Open(bar.market, "long" if held is None else held.side, usd=20, bracket=Bracket(stop_pct=5))


async def by_hand(venue: FaultyPort, side: str, bracket: BracketRequest | None = None) -> None:
    venue.by_hand("BTC", side, 3, key=f"a person {len(venue.trade_rows)}", bracket=bracket)


def changed_stop(venue: FaultyPort, **fields: Any) -> None:
    (oid,) = (o.oid for o in venue.working.values() if o.kind == "stop_loss")
    venue.said.setdefault(oid, {}).update(fields)


async def covered(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, STOP)


async def bare(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side)


async def part_covered(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, STOP)
    changed_stop(venue, size=Decimal(1))


async def wrong_side(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, STOP)
    changed_stop(venue, side="short" if side == "long" else "long")


async def wrong_side_of_no_size(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, STOP)
    changed_stop(venue, side="short" if side == "long" else "long", size=Decimal(0))


async def stop_of_no_size(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, STOP)
    changed_stop(venue, size=Decimal(0))


async def trailed(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side)
    await venue.arm(GuardianRequest(type="trailing_stop", market="BTC", trail_pct=Decimal(7)), key="a person's trail")


async def trail_that_waits(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side)
    await trailed(venue, side)
    armed = next(one.id for one in venue.guards.values() if one.type == "trailing_stop")
    venue.said[armed] = {"active": False, "activate_at_r": 1.0}


async def bare_and_stops_are_refused(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side)
    arm = venue.arm

    async def refuses(request: GuardianRequest, *, key: str) -> Any:
        if request.type == "trailing_stop":
            raise refused("invalid_input", "no stop here")
        return await arm(request, key=key)

    venue.arm = refuses  # type: ignore[method-assign]


def near_liquidation(venue: FaultyPort, side: str) -> None:
    """Its margin is thin: the liquidation price is 1 % away."""
    venue.said["BTC"] = {"liquidation_px": Decimal(99 if side == "long" else 101)}


async def bare_near_liquidation(venue: FaultyPort, side: str) -> None:
    await bare(venue, side)
    near_liquidation(venue, side)


async def stop_beyond_liquidation(venue: FaultyPort, side: str) -> None:
    await covered(venue, side)
    near_liquidation(venue, side)


async def stop_before_liquidation(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, BracketRequest(stop_loss=LegRequest(pct=Decimal("0.5"))))
    near_liquidation(venue, side)


async def trail_beyond_liquidation(venue: FaultyPort, side: str) -> None:
    await trailed(venue, side)
    near_liquidation(venue, side)


async def stops_of_which_one_lies_beyond(venue: FaultyPort, side: str) -> None:
    """One stop for a third before the liquidation price, one for the rest beyond it."""
    await stop_before_liquidation(venue, side)
    changed_stop(venue, size=Decimal(1))
    (stop,) = (o for o in venue.working.values() if o.kind == "stop_loss")
    beyond = Decimal(95 if side == "long" else 105)
    venue.also = [stop.model_copy(update={"oid": "7", "size": Decimal(2), "trigger_px": beyond})]


async def target_alone(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, BracketRequest(take_profit=LegRequest(pct=Decimal(9))))


async def stop_in_another_market(venue: FaultyPort, side: str) -> None:
    await by_hand(venue, side, STOP)
    changed_stop(venue, coin="ETH")


class Case(NamedTuple):
    by_hand: Callable[[FaultyPort, str], Any]
    # adopted_stop_pct
    pct: float | None
    is_adopted: bool
    # the distance of the stop that the daemon adds
    armed_pct: float | None = None


CASES = (
    Case(covered, None, True),
    Case(covered, 5, True),
    Case(stop_of_no_size, None, True),
    Case(trailed, None, True),
    Case(bare, None, False),
    Case(bare, 5, True, 5.0),
    Case(part_covered, None, False),
    Case(part_covered, 5, True, 5.0),
    Case(wrong_side, None, False),
    Case(wrong_side, 5, True, 5.0),
    Case(wrong_side_of_no_size, None, False),
    Case(trail_that_waits, None, False),
    Case(trail_that_waits, 5, True, 5.0),
    Case(bare_and_stops_are_refused, 5, False),
    Case(target_alone, None, False),
    Case(target_alone, 5, True, 5.0),
    Case(stop_in_another_market, None, False),
    Case(stop_in_another_market, 5, True, 5.0),
    Case(stop_before_liquidation, None, True),
    Case(stop_beyond_liquidation, None, False),
    Case(stop_beyond_liquidation, 5, False),
    Case(stop_beyond_liquidation, 0.5, True, 0.5),
    Case(bare_near_liquidation, 5, False),
    Case(bare_near_liquidation, 0.5, True, 0.5),
    Case(trail_beyond_liquidation, None, False),
    Case(trail_beyond_liquidation, 0.5, True, 0.5),
    Case(stops_of_which_one_lies_beyond, None, False),
    Case(stops_of_which_one_lies_beyond, 0.5, True, 0.5),
)


def judge(kernel: Kernel, venue: FaultyPort, case: Case) -> None:
    assert "BTC" in venue.positions
    assert [fill for fill in venue.fills if fill[3] == "close"] == [], "the owner's position is never sold"
    assert kernel.account.account_state.positions["BTC"].owner == ("trend" if case.is_adopted else None)
    assert [pct for _, pct in trailing(venue) if pct == case.armed_pct] == [case.armed_pct] * (
        case.armed_pct is not None
    )
    if case.is_adopted:
        assert kernel.account.account_state.is_protected("BTC"), "no position of ours is without its stop"


def declined(kernel: Kernel) -> list[str]:
    kernel.journal.flush()
    return [
        row["payload"] for row in kernel.journal.db.query("SELECT payload FROM outbox WHERE kind='adoption.declined'")
    ]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("when", ["before the start", "while it runs"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.by_hand.__name__}-{case.pct}")
async def test_a_position_is_adopted_with_a_stop_or_declined_and_never_sold(
    case: Case, side: str, when: str, is_restarted: bool, tmp_path: Path
) -> None:
    venue, path = FaultyPort(), tmp_path / "journal.db"
    venue.minute(BTC="100")
    if when == "before the start":
        await case.by_hand(venue, side)
    kernel = make_kernel(venue, path=path, settings=policy(case.pct))
    await kernel.recover()
    await kernel.cycle()
    if when == "while it runs":
        await case.by_hand(venue, side)
    await minutes(kernel, venue, "100", "100")
    await kernel.reconciliation.reconcile()
    judge(kernel, venue, case)
    assert len(declined(kernel)) == (not case.is_adopted), "told once"
    if is_restarted:
        kill(kernel)
        kernel = make_kernel(venue, path=path, settings=policy(case.pct))
        await kernel.recover()
        await minutes(kernel, venue, "100", "100")
        judge(kernel, venue, case)


async def test_nothing_is_opened_beside_a_position_that_was_declined() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await bare(venue, "long")
    kernel = make_kernel(venue, adds, settings=policy())
    await kernel.recover()
    await minutes(kernel, venue, "100", "100")
    assert len(venue.fills) == 1
    assert set(refusals(kernel)) == {"foreign_position"}
    (told,) = declined(kernel)
    assert "has no working stop: the config gives no distance for one" in told
    assert "set safety.adopted_stop_pct" in told


async def test_each_way_out_that_the_notice_names_works(tmp_path: Path) -> None:
    async def daemon(name: str) -> tuple[FaultyPort, Kernel]:
        venue = FaultyPort()
        venue.minute(BTC="100")
        await bare(venue, "long")
        kernel = make_kernel(venue, path=tmp_path / name, settings=policy())
        await kernel.recover()
        await kernel.cycle()
        assert kernel.account.account_state.positions["BTC"].owner is None
        return venue, kernel

    venue, kernel = await daemon("stopped by hand")
    await venue.arm(GuardianRequest(type="trailing_stop", market="BTC", trail_pct=Decimal(3)), key="by hand")
    await kernel.cycle()
    await kernel.cycle()
    assert kernel.account.account_state.positions["BTC"].owner == "trend"

    venue, kernel = await daemon("distance by a reload")
    kernel.take_settings(policy(4))
    kernel.reconciliation.compare_strategies_anew()
    await kernel.cycle()
    assert (kernel.account.account_state.positions["BTC"].owner, trailing(venue)) == ("trend", [("BTC", 4.0)])


async def test_a_stop_beyond_the_liquidation_price_is_told_once_and_counts_once_it_is_moved_before_it() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await stop_beyond_liquidation(venue, "long")
    kernel = make_kernel(venue, settings=policy())
    await kernel.recover()
    for _ in range(3):
        await kernel.reconciliation.reconcile()
    (told,) = declined(kernel)
    assert "has no working stop: its stop lies beyond the liquidation price 99, which the price reaches first" in told
    changed_stop(venue, trigger_px=Decimal("99.5"))
    await kernel.reconciliation.reconcile()
    assert (kernel.account.account_state.positions["BTC"].owner, len(declined(kernel))) == ("trend", 1)


async def test_a_declined_position_that_shrinks_to_its_stop_is_adopted() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await part_covered(venue, "long")
    kernel = make_kernel(venue, settings=policy())
    await kernel.recover()
    await kernel.cycle()
    assert kernel.account.account_state.positions["BTC"].owner is None
    await venue.close("BTC", CloseRequest(size="2"), key="by hand")
    changed_stop(venue, size=Decimal(1))
    await kernel.cycle()
    await kernel.reconciliation.reconcile()
    assert (venue.positions["BTC"].size, kernel.account.account_state.positions["BTC"].owner) == (1, "trend")


async def test_an_adopted_position_that_outgrows_its_stop_is_covered_at_the_distance_of_that_stop() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await covered(venue, "long")
    kernel = make_kernel(venue, settings=policy())
    await kernel.recover()
    await kernel.cycle()
    await bare(venue, "long")
    changed_stop(venue, size=Decimal(3))
    await kernel.reconciliation.reconcile()
    await kernel.cycle()
    assert (venue.positions["BTC"].size, kernel.account.account_state.positions["BTC"].owner) == (6, "trend")
    assert trailing(venue) == [("BTC", 2.0)]


async def test_an_adopted_position_whose_new_stop_would_lie_beyond_the_liquidation_price_is_given_back() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await covered(venue, "long")
    kernel = make_kernel(venue, settings=policy())
    await kernel.recover()
    await kernel.cycle()
    assert kernel.account.account_state.positions["BTC"].owner == "trend"
    near_liquidation(venue, "long")
    for oid in [o.oid for o in venue.working.values() if o.kind == "stop_loss"]:
        await venue.cancel(oid)
    await minutes(kernel, venue, "100", "100")
    assert (kernel.account.account_state.positions["BTC"].owner, trailing(venue)) == (None, [])
    (told,) = declined(kernel)
    assert "one at 2.0000 % would lie beyond the liquidation price 99" in told


async def test_an_adoption_outlives_a_lost_and_a_restored_journal_with_one_stop(tmp_path: Path) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await bare(venue, "short")
    for name in ("first.db", "another.db", "first.db"):
        kernel = make_kernel(venue, path=tmp_path / name, settings=policy(5))
        await kernel.recover()
        await minutes(kernel, venue, "100")
        position = kernel.account.account_state.positions["BTC"]
        assert (position.owner, position.is_adopted, trailing(venue)) == ("trend", True, [("BTC", 5.0)])
        kill(kernel)


async def test_the_position_of_the_other_side_that_replaces_an_adopted_one_is_judged_anew() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await covered(venue, "long")
    kernel = make_kernel(venue, settings=policy())
    await kernel.recover()
    await kernel.cycle()
    assert kernel.account.account_state.positions["BTC"].owner == "trend"
    await venue.close("BTC", CloseRequest(fraction=Decimal(1)), key="by hand")
    await bare(venue, "short")
    await minutes(kernel, venue, "100", "100")
    await kernel.reconciliation.reconcile()
    assert (venue.positions["BTC"].side, kernel.account.account_state.positions["BTC"].owner) == ("short", None)
    assert len(declined(kernel)) == 1


@pytest.mark.parametrize(
    ("begins", "pct", "owner", "armed"),
    [
        # at the distance of the stop that is gone
        (covered, None, "trend", [("BTC", 2.0)]),
        (covered, 5, "trend", [("BTC", 2.0)]),
        # nobody knows a distance
        (trailed, None, None, []),
        (trailed, 5, "trend", [("BTC", 5.0)]),
        (bare, 5, "trend", [("BTC", 5.0)]),
    ],
)
async def test_an_adopted_position_that_loses_its_stop_gets_one_or_is_given_back(
    begins: Callable[[FaultyPort, str], Any], pct: float | None, owner: str | None, armed: list[tuple[str, float]]
) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await begins(venue, "long")
    kernel = make_kernel(venue, settings=policy(pct))
    await kernel.recover()
    await kernel.cycle()
    assert kernel.account.account_state.positions["BTC"].owner == "trend"
    for oid in [o.oid for o in venue.working.values() if o.kind == "stop_loss"]:
        await venue.cancel(oid)
    for guardian in [g.id for g in venue.guards.values() if g.type == "trailing_stop"]:
        await venue.disarm(guardian)
    await minutes(kernel, venue, "100", "100")
    assert "BTC" in venue.positions
    assert (kernel.account.account_state.positions["BTC"].owner, trailing(venue)) == (owner, armed)
    assert len(declined(kernel)) == (owner is None)
    shares = kernel.account.attribution.shares["BTC"]
    assert set(shares) == {owner or "@foreign"}


async def test_a_position_that_our_strategy_has_added_to_is_ours_and_is_closed_like_any_other() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await covered(venue, "long")
    kernel = make_kernel(venue, adds, settings=policy())
    await kernel.recover()
    await kernel.cycle()
    assert len(venue.fills) == 2
    venue.faults = [Fault("arm", refused("invalid_input"), 10**9)]
    for oid in [o.oid for o in venue.working.values() if o.kind == "stop_loss"]:
        await venue.cancel(oid)
    await kernel.cycle()
    assert venue.positions == {}


@pytest.mark.parametrize("settings", [policy(), policy(5)], ids=["no distance", "5 %"])
async def test_a_kill_at_any_moment_of_an_adoption_sells_nothing_and_arms_one_stop(
    settings: KernelSettings, tmp_path: Path
) -> None:
    points = 1
    at = 0
    while at < points:
        at += 1
        venue, tap, path = FaultyPort(), Tap(at), tmp_path / f"{at}.db"
        venue.minute(BTC="100")
        await bare(venue, "long")
        for _ in range(2):
            kernel = make_kernel(venue, path=path, tap=tap, settings=settings)
            try:
                await kernel.recover()
                await minutes(kernel, venue, "100")
            except Crash:
                kill(kernel)
                continue
            break
        points = max(points, tap.seen if at == 1 else points)
        armed = 0 if settings.adopted_stop_pct is None else 1
        assert [fill[3] for fill in venue.fills] == ["open"], tap.names[at - 1]
        assert len(trailing(venue)) == armed, tap.names[at - 1]
        assert kernel.account.account_state.positions["BTC"].owner == ("trend" if armed else None)
        kill(kernel)
    assert points > 20


@pytest.mark.parametrize("case", [Case(bare, None, False), Case(bare, 5, True)], ids=["declined", "adopted"])
async def test_at_the_end_flatten_closes_what_was_adopted_and_leaves_what_was_declined(case: Case) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await bare(venue, "long")
    kernel = make_kernel(venue, settings=policy(case.pct))
    await kernel.recover()
    await kernel.cycle()
    left = await wind_down(kernel, "flatten")
    assert ("BTC" not in venue.positions) is case.is_adopted
    assert (left.complete, left.unprotected) == (True, ())


async def test_a_strategy_without_protection_adopts_as_before() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    await bare(venue, "short")
    kernel = make_kernel(venue, settings=policy(), require_protection=False)
    await kernel.recover()
    await kernel.cycle()
    assert (kernel.account.account_state.positions["BTC"].owner, trailing(venue)) == ("trend", [])
