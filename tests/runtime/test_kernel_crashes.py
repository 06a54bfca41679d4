"""The loop is killed before and after every call to the venue and to the journal, and comes back: the fills are
those of the run without a kill.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from bot.strategy import Bar, Bracket, Cancel, Close, Intent, Open, TrailingStop, View
from tests.conftest import is_soaked
from tests.fakes import Crash, Tap
from tests.faulty_port import Fault, FaultyPort
from tests.runtime.builders import kill, make_kernel

CLOSES = (
    "100",
    "101",
    "102",
    "103",
    "101",
    "104",
    "99",
    "100",
    "101",
    "103",
    "105",
    "106",
    "104",
    "101",
    "98",
    "97",
    "99",
    "102",
)
MARKETS = ("BTC", "ETH")


def script(view: View, bar: Bar) -> Iterable[Intent]:
    """Entries with stops and targets, partial closes, a reversal, a resting limit that is cancelled, a trailing
    stop.
    """
    n = (bar.at_ms // 60_000) % 6
    position = view.position(bar.market)
    if bar.market == "ETH":
        if n == 1 and position is None:
            yield Open("ETH", "long", size=1.5, guardians=(TrailingStop(trail_pct=3),))
        elif n == 4:
            if position is not None:
                yield Close("ETH", fraction=0.5)
            yield Open("ETH", "long", usd=50, limit_px=50, bracket=Bracket(stop_pct=5))
        elif n == 5 and any(order.limit_px for order in view.orders("ETH")):
            yield Cancel(market="ETH")
        return
    if position is None:
        yield Open("BTC", "long", usd=400, bracket=Bracket(stop_pct=2, target_r=1.5))
    elif n == 3:
        yield Close("BTC")
        yield Open("BTC", "short", usd=300, bracket=Bracket(stop_pct=3))


def scripted_close(n: int) -> dict[str, str]:
    return {"BTC": CLOSES[n], "ETH": str(100 + n % 4)}


@pytest.fixture(autouse=True)
def _no_lines() -> Iterator[None]:
    """Thousands of lives would print a million lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has such a disk: what is tested is the order of writes, not the disk."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm, prefix="bot-crash-") as name:
        yield Path(name)


class Bars(NamedTuple):
    """What was so after a bar: how many fills, and the strategy's durable state."""

    fills: int
    state: dict[str, int]


async def run(
    path: Path, tap: Tap, venue: FaultyPort | None = None, *, more: int = len(CLOSES)
) -> tuple[FaultyPort, list[Bars], list[str]]:
    """The script, over as many lives as it takes, until `more` bars after the first crash; what was so after each
    bar, and the intents.
    """
    venue = venue or FaultyPort(MARKETS)
    kernel = None
    after: list[Bars] = []
    last = len(CLOSES)
    for n in range(len(CLOSES)):
        venue.clock.advance(60_000)
        for coin, close in scripted_close(n).items():
            venue.close_bar(coin, close)
        done = False
        while not done:
            try:
                if kernel is None:
                    kernel = make_kernel(venue, script, path=path, tap=tap, markets=MARKETS)
                    await kernel.recover()
                await kernel.cycle()
                done = True
            except Crash:
                assert kernel is not None
                kill(kernel)
                kernel = None
                last = min(last, n + more)
        assert kernel is not None
        assert not unprotected(venue), f"naked after bar {n}"
        after.append(Bars(len(venue.fills), kernel.journal.state.of_strategy("trend")))
        if n == last:
            break
    assert kernel is not None
    states = [row["state"] for row in kernel.journal.db["intents"].rows]
    counts = [row["n"] for row in kernel.journal.db.query("SELECT count(*) AS n FROM events GROUP BY id")]
    assert set(counts) == {1}
    kill(kernel)
    return venue, after, states


def unprotected(venue: FaultyPort) -> list[str]:
    return [
        coin
        for coin in venue.positions
        if not any(o.coin == coin and o.kind == "stop_loss" for o in venue.working.values())
        and not any(g.coin == coin for g in venue.guards.values())
    ]


# The daemon lives this long after the crash; what a crash breaks shows at once or in the next decision
BARS_AFTER = 3


# besides the first ones of each kind; `make soak` takes every point
STEP = 3
FIRST = 3


def crash_points(names: list[str], step: int) -> list[int]:
    """The first ones of each kind, and each `step`-th one."""
    met: Counter[str] = Counter()
    chosen = []
    for at, name in enumerate(names, 1):
        met[name] += 1
        if met[name] <= FIRST or at % step == 0:
            chosen.append(at)
    return chosen


@pytest.mark.soak
async def test_every_crash_point_ends_in_the_fills_of_the_uncrashed_run(
    folder: Path, request: pytest.FixtureRequest
) -> None:
    quiet = Tap()
    venue, bars, states = await run(folder / "quiet.db", quiet)
    assert len(venue.fills) >= 10
    assert set(states) == {"accepted"}
    assert quiet.seen > 500, f"{quiet.seen} crash points"
    for at in crash_points(quiet.names, 1 if is_soaked(request.config) else STEP):
        tap = Tap(at=at)
        crashed, crashed_bars, _ = await run(folder / f"{at}.db", tap, more=BARS_AFTER)
        where = f"crash {at}, {tap.names[at - 1]}"
        assert crashed.fills == venue.fills[: bars[len(crashed_bars) - 1].fills], where
        assert crashed_bars == bars[: len(crashed_bars)], where
        assert len([g for g in crashed.guards.values() if g.type == "dead_man_switch"]) == 1, where
        for leftover in folder.glob(f"{at}.db*"):
            leftover.unlink()


async def test_a_second_crash_during_recovery_changes_nothing(folder: Path) -> None:
    quiet = Tap()
    venue, bars, _ = await run(folder / "quiet.db", quiet)
    for first in range(40, quiet.seen, 80):
        for later in (1, 3, 6, 10, 15, 20):

            class Twice(Tap):
                def point(self, name: str) -> None:
                    self.seen += 1
                    if self.seen in (first, first + later):  # noqa: B023
                        raise Crash(name)

            crashed, crashed_bars, _ = await run(folder / f"{first}-{later}.db", Twice(), more=BARS_AFTER)
            assert crashed.fills == venue.fills[: bars[len(crashed_bars) - 1].fills], (first, later)


@pytest.mark.parametrize("op", ["confirm", "close", "plan", "cancel"])
async def test_a_lost_reply_of_an_order_operation_changes_no_fill(folder: Path, op: str) -> None:
    """The venue has acted, and its answer never comes."""
    quiet, _, _ = await run(folder / "quiet.db", Tap())
    venue = FaultyPort(MARKETS)
    venue.faults = [Fault(op, "lose_reply", count=0)]
    found = 0

    class Losing(Tap):
        def point(self, name: str) -> None:
            nonlocal found
            if name == f"before {op}":
                found += 1
                venue.faults[0].count = 1 if found == 1 or (op == "confirm" and found == 4) else 0

    lost, _, _ = await run(folder / "lost.db", Losing(), venue)
    assert found > 0
    assert sorted(fill[1:] for fill in lost.fills) == sorted(fill[1:] for fill in quiet.fills)
