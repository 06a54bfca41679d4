"""Random worlds in virtual time over the real service: nothing doubled, lost, stuck or naked, no dead-man late or
early. And the tests of this test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.runtime.execution.outcome import SETTLE_MS
from bot.service.host import COLLECTOR
from tests.conftest import REPOSITORY, is_soaked
from tests.documents import PAGES
from tests.integration.seeded_bugs import BUGS, caught, first_seed
from tests.integration.simulated import (
    CRASHES,
    DISK_CODES,
    FAULTS,
    RETRY_MAX_S,
    TROUBLES,
    World,
    lived,
    run_named,
    service,
    template,
)
from tests.integration.virtual import Clocks, virtual_time

# a seed of many lives, faults and beats
TWICE = 4
# In full size so many tests share the worlds, for as many cores as there are.
CHUNKS = 20


@pytest.fixture(autouse=True, scope="module")
def _rare_collections() -> Iterator[None]:
    """As the service's own host does: what is loaded is not looked through again, what comes is looked through
    rarely.
    """
    before = gc.get_threshold()
    service()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _ready(folder: Path) -> None:
    template(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chunk" in metafunc.fixturenames:
        metafunc.parametrize("chunk", range(CHUNKS if metafunc.config.getoption("--full") else 1))


@pytest.mark.soak(worlds=75, full=100_000 // CHUNKS)
def test_nothing_is_doubled_lost_stuck_or_naked(
    folder: Path, chunk: int, worlds: int, base_seed: int, request: pytest.FixtureRequest
) -> None:
    met: Counter[str] = Counter()
    troubles: Counter[str] = Counter()
    disk: Counter[int] = Counter()
    trades = lives = fired = damaged = beats = abreast = 0
    began, virtual_s = time.process_time(), 0.0
    first = base_seed + chunk * worlds
    for world in lived(range(first, first + worlds), folder):
        met.update(world.wire.met)
        troubles[world.trouble] += 1
        disk.update(world.disk_faults)
        trades += len(world.trades)
        lives += world.lives
        fired += world.fired
        damaged += world.damaged
        abreast += world.wire.abreast > 1
        beats += len(world.beats)
        virtual_s += world.now()
    took_s = time.process_time() - began
    request.node.user_properties.append(
        ("rate", f"{worlds / took_s:.1f} worlds/s of one core, {virtual_s / took_s:,.0f}x real time")
    )
    if worlds >= 300:
        assert set(met) == {*FAULTS, *CRASHES, "refuse", "blackhole"}, met
        assert set(troubles) == set(TROUBLES)
        assert set(disk) == set(DISK_CODES)
        assert trades > 2 * worlds
        assert lives > 2 * worlds
        assert beats > 5 * worlds
        assert fired > worlds // 20
        assert damaged > worlds // 50
        assert abreast > worlds // 20, "orders leave side by side, as in production"


def test_the_docs_state_the_numbers_of_these_worlds_and_of_their_bugs() -> None:
    (mark,) = (one for one in test_nothing_is_doubled_lost_stuck_or_naked.pytestmark if one.name == "soak")
    page = PAGES["contributing"]
    assert f"Each `make test` runs the daemon in {mark.kwargs['worlds']} random worlds" in page
    assert f"{mark.kwargs['full'] * CHUNKS:,} worlds" in page
    assert f"\n{len(BUGS)} seeded bugs show" in page


# ── Tests of the test ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught_at_its_seed(name: str, folder: Path) -> None:
    seed = BUGS[name].seed
    assert caught(name, seed, folder) is not None, (
        f"world {seed} does not notice it (any more): `python -m tests.integration.seeded_bugs` finds the first one"
        " that does"
    )
    # ... and has nothing against the code as it is.
    run_named(seed, folder)


def test_each_seeded_bug_has_a_world_that_catches_it(folder: Path, request: pytest.FixtureRequest) -> None:
    """`make soak` looks for the first seeds anew, and says them."""
    assert len(BUGS) >= 15
    if not is_soaked(request.config):
        return
    first = {name: first_seed(name, folder) for name in BUGS}
    request.node.user_properties.append(("first seeds", str(first)))
    assert None not in first.values(), first


def test_a_world_is_a_function_of_its_seed(folder: Path) -> None:
    """Twice here, and once in a process with other hashes: the same requests at the same instants with the same
    outcomes.
    """
    first, second = run_named(TWICE, folder), run_named(TWICE, folder)
    assert len(first.trace) > 100
    assert first.digest == second.digest
    code = (
        "import sys; from pathlib import Path; from tests.integration.simulated import run_named;"
        " print(run_named(int(sys.argv[1]), Path(sys.argv[2])).digest)"
    )
    other = folder / "other"
    other.mkdir()
    said = subprocess.run(
        [sys.executable, "-c", code, str(TWICE), str(other)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": str(REPOSITORY)},
    )
    assert said.stdout.strip().splitlines()[-1] == first.digest


@pytest.mark.parametrize(
    ("beats", "silent_until", "wrong"),
    [
        ([], 105.0, None),
        ([], 107.0, "its bound was 106.0"),
        ([30.0], 107.0, "its bound was 106.0"),
        ([74.0, 84.0, 95.0], 156.0, None),
        ([74.0, 84.0, 95.0], 157.0, "its bound was 156.5"),
        ([107.0, 117.0, 128.0], 156.0, "its bound was 106.0"),
        ([74.0, 84.0, 95.0, 105.0], 156.0, r"beat at \[74.0, 84.0, 95.0, 105.0\]"),
    ],
)
def test_a_dead_man_is_late_when_it_outlasts_the_beats_that_were_allowed(
    beats: list[float], silent_until: float, wrong: str | None, folder: Path
) -> None:
    """The last pass was complete at 15 s; the next life began at `beats[0]` and completed its first at
    `silent_until`.
    """
    clocks = Clocks()
    world = World(0, folder, clocks)
    clocks.loop_s = silent_until + 1
    world.down_since = None
    world.births = [0.0, *beats[:1]]
    world.proofs = [15.0, silent_until]
    world.beats = [2.0, 12.0, *beats]
    world.carried = [(at, at + 0.5) for at in world.beats]
    world.switch = [(1.0, "armed", "grd_1")]
    with contextlib.nullcontext() if wrong is None else pytest.raises(AssertionError, match=wrong):
        world._judge_switch()


@pytest.mark.parametrize("kind", ["outages", "sleeps", "blocked"])
def test_an_excuse_that_falls_into_an_outage_a_sleep_or_a_time_without_a_daemon_goes_on_for_two_passes_after_it(
    kind: str, folder: Path
) -> None:
    world = World(0, folder, Clocks())
    until_ms = world.start_ms + round(36 * 1000 * world.speed)
    getattr(world, kind).append((30.0, 305.0))
    assert world._real(world._mended_ms(until_ms)) == 305 + 2 * world.pass_s + 2
    setattr(world, kind, [(10.0, 35.0), (37.0, 305.0)])
    assert world._mended_ms(until_ms) == until_ms


def test_an_entry_in_doubt_may_wait_for_its_fence_when_the_service_refuses_it(folder: Path) -> None:
    """Its first request may still arrive, and be taken, until the fence.

    One that the service takes has no reason to wait.
    """
    clocks = Clocks()
    world = World(0, folder, clocks)
    doubt = SimpleNamespace(id="k", market="BTC", action="open", state="sending", not_after_ms=world.start_ms + 1000)
    journal = SimpleNamespace(intents=SimpleNamespace(is_unsent=lambda intent: intent.state == "opened"))
    search = SimpleNamespace(may_arrive_late=lambda _intent: False)
    kernel = SimpleNamespace(
        intents=SimpleNamespace(live={"k": doubt}),
        execution=SimpleNamespace(sender=SimpleNamespace(search=search)),
        journal=journal,
    )
    one: Any = SimpleNamespace(kernel=kernel)
    world.one = one
    assert not world._is_held()
    world.wire.refused.add("k")
    assert world._is_held()
    behind = SimpleNamespace(id="l", market="BTC", action="open", state="opened", not_after_ms=doubt.not_after_ms)
    kernel.intents.live["l"] = behind
    assert world._is_held(), "an entry that waits behind it"
    behind.market = "ETH"
    assert not world._is_held(), "nothing is in doubt there"
    del kernel.intents.live["l"]
    told_s = world._real(doubt.not_after_ms + SETTLE_MS) + RETRY_MAX_S + 2 * world.pass_s
    clocks.loop_s = told_s - 0.1
    assert world._is_held(), "the first try after the fence, and a pass"
    clocks.loop_s = told_s
    assert not world._is_held()


def test_a_world_ends_whose_daemon_dies_in_the_last_calm(folder: Path) -> None:
    """Its end was dealt to a request before the calm began and met by one of the last two passes, which another run
    has to make then.
    """
    run_named(98_309, folder)


def test_what_is_due_at_one_instant_comes_in_the_order_in_which_it_was_set() -> None:
    """Whatever else is waited for, and on every version of Python: a heap alone would change it."""
    came: list[int] = []
    with virtual_time() as (kernel, _clocks):
        for n in range(5):
            kernel.call_at(1.0, came.append, n)
        kernel.run_until_complete(asyncio.sleep(2))
    assert came == [0, 1, 2, 3, 4]


def test_different_seeds_are_different_worlds(folder: Path) -> None:
    assert len({World(seed, folder, Clocks()).start_ms for seed in range(50)}) > 5
    assert len({run_named(seed, folder).digest for seed in (8, 9)}) == 2
