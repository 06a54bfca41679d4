"""Random worlds: after each command every invariant of the venue holds, and a replay of the log gives the same
events.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bot.venue.accounting import drawdown_floors, funding, ledger
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.orders import exits
from bot.venue.prices import index
from bot.venue.protection import protection
from bot.venue.storage import codec
from bot.venue.triggers import liquidation, matching
from tests.venue import world

# The number of tests that share the worlds, for parallel runs.
CHUNKS = 20
WORLDS = 1_000 // CHUNKS
# One in this many worlds is also digested around each refusal and replayed from its text.
WHOLE_EVERY = 50


def judge(seed: int, *, whole: bool) -> None:
    log, error = world.write(seed)
    try:
        world.check(log, whole=whole)
    except Exception as found:
        short, symptom = world.shrink(log, whole=whole)
        shown = f"seed {seed}: {symptom}\n{found}\n{len(short)} of {len(log)} commands:\n{world.told(short)}"
        raise AssertionError(shown) from found
    assert error is None, (seed, error)


@pytest.mark.soak(worlds=WORLDS, full=100_000 // CHUNKS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_invariant_holds_after_every_command_of_a_random_world(chunk: int, worlds: int, base_seed: int) -> None:
    first = base_seed + chunk * worlds
    for seed in range(first, first + worlds):
        judge(seed, whole=seed % WHOLE_EVERY == 0)


@pytest.mark.soak(worlds=2, full=100)
def test_every_invariant_holds_in_a_long_world(worlds: int, base_seed: int) -> None:
    for seed in range(base_seed, base_seed + worlds):
        log, error = world.write(1_000_000_000 + seed, commands=1_000)
        world.check(log)
        assert error is None, (seed, error)


@pytest.mark.soak(worlds=120, full=10_000)
def test_skipping_the_bars_of_the_quiet_band_changes_no_event(worlds: int, base_seed: int) -> None:
    skipped = 0
    for seed in range(base_seed, base_seed + worlds):
        log, _ = world.write(seed)
        events, bars = world.replay_skipping_calm(log)
        assert events == world.replay(log)[1], seed
        skipped += bars
    assert skipped > worlds


@pytest.mark.soak(worlds=80, full=10_000)
def test_the_size_of_time_steps_changes_no_event(worlds: int, base_seed: int) -> None:
    """Deadlines and funding run at their own instants for any time step."""
    for seed in range(base_seed, base_seed + worlds):
        log, _ = world.write(seed)
        assert world.replay(world.pulsed(log))[1] == world.replay(log)[1], seed


@pytest.mark.parametrize(
    ("module", "name", "wrong", "first"),
    [
        (ledger, "fee_of", lambda notional, rate: notional * rate // E8, 0),
        (funding, "toward_zero", lambda numerator, denominator: numerator // denominator, 10),
        (protection, "working_exits", lambda account, market: [], 566),
        (protection, "lacks_stop", lambda *_, **__: False, 2131),
        (matching, "cost_of_opening", lambda fills, reduce, rest, leverage: (0, 0), 1069),
        (ledger, "rewatch", lambda state, account, position=None: None, 6),
        (drawdown_floors, "level_of", lambda market, position, slack: None, 13),
        (drawdown_floors, "rewatch", lambda state, account, value: None, 1),
        (exits, "close_position", lambda state, account, market, guardian, ref_px, reason: None, 2),
        (index, "schedule_day", lambda state: None, 1),
        (ledger, "level_of_slack", lambda market, position, slack: None, 96),
        (liquidation, "_cancel_resting", lambda state, account, position: None, 207),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_rule_is_detected_and_its_scenario_shrunk(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, wrong: object, first: int
) -> None:
    """Shows that the invariants detect broken rules.

    `first`: the seed at which the search begins, which detected the rule at the last search.
    """
    monkeypatch.setattr(module, name, wrong)
    for seed in range(first, first + 4_000):
        log, _ = world.write(seed)
        if world.symptom(log) is not None:
            short, symptom = world.shrink(log, tries=100)
            assert world.symptom(short) == symptom
            assert len(short) < 20
            return
    pytest.fail("no world noticed")


def test_the_hash_seed_of_python_changes_no_byte(repository: Path) -> None:
    program = (
        "from tests.venue import world; from bot.venue.storage import codec\n"
        "for seed in range(40):\n"
        "    state, events = world.replay(world.write(seed)[0])\n"
        "    print(seed, codec.digest(state), codec.digest(events))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=repository,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(told) == 1


def test_the_worlds_reach_every_kind_of_event_and_command() -> None:
    """A simulation that never liquidates proves nothing about liquidation."""
    events, commands = set(), set()
    for seed in range(400):
        log, _ = world.write(seed)
        commands |= {type(command).__name__ for _, command in log}
        for event in world.replay(log)[1]:
            events.add(f"{codec.stored_name(type(event))}.{getattr(event, 'subtype', '')}")
    assert {
        "Fill.entry",
        "Fill.exit",
        "OrderChanged.open",
        "OrderChanged.armed",
        "OrderChanged.changed",
        "OrderChanged.canceled",
        "Triggered.stop_loss",
        "Triggered.take_profit",
        "GuardianMoved.armed",
        "GuardianMoved.activated",
        "GuardianMoved.fired",
        "GuardianMoved.released",
        "GuardianMoved.disarmed",
        "FundingPaid.",
        "Liquidated.partial",
        "Liquidated.full",
        "Liquidated.backstop",
        "Settled.settled",
        "AccountChanged.reset",
        "AccountChanged.leverage",
    } <= events
    # These belong to live markets: see tests/service/live_prices/fault_world.py
    live = {"QuotePoint", "SetQuotes", "SetBook"}
    # Reports of an exchange: see tests/venue/test_exchange_accounts.py
    reported = {
        "AdoptExchangeAccount",
        "BookExecution",
        "BookFunding",
        "BookTransfer",
        "BookTakeover",
        "SeeReportedOrder",
        "EndReportedOrder",
        "SeeMargins",
        "SeeLink",
    }
    # tests/venue/test_exchange_audit.py
    audited = {"SeeAudit", "CorrectBooks", "SetExposureCap"}
    # An exchange is asked to act: see tests/venue/test_exchange_actions.py
    asked = {"SeeAgent", "SeeAction", "SettleActions"}
    assert {kind.__name__ for kind in c.Command.__args__} - live - reported - audited - asked == commands
