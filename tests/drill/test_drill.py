"""Drills: the shipped strategies survive, the same seed is the same world, and a daemon with a planted mistake
fails.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import structlog

from bot.cli.app import call
from bot.config import Settings
from bot.drill.drill import junit, lived, outcomes, summary
from bot.drill.faults import KINDS
from bot.drill.judgment import Event, unguarded_entries
from bot.drill.outcome import WorldOutcome
from bot.drill.world import DrillSetup, World
from bot.runtime.kernel.assembly import place_strategies
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Intent, Strategy, View
from tests.backtest.builders import write
from tests.drill.builders import CANDLES, CONFIG, busy_ground, ground_of
from tests.integration.seeded_bugs import BUGS

BARS = 60


@pytest.fixture(autouse=True)
def _no_lines() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def ground() -> DrillSetup:
    return ground_of(bars=BARS)


@pytest.mark.soak(worlds=6, full=1_000)
def test_no_world_loses_or_doubles_an_order_of_the_shipped_strategies(ground: DrillSetup, worlds: int) -> None:
    found = [lived(ground, seed) for seed in range(worlds)]
    assert [(one.seed, one.findings) for one in found if not one.has_passed] == []
    assert sum(one.orders for one in found) > 5 * worlds


def test_the_same_seed_is_the_same_world_in_any_process(ground: DrillSetup) -> None:
    here = [lived(ground, seed) for seed in (3, 4)]
    there = sorted(outcomes(ground, (3, 4), workers=2), key=lambda one: one.seed)
    assert there == here
    assert here[0] != here[1]


def test_every_kind_of_fault_is_drawn(ground: DrillSetup, tmp_path: Path) -> None:
    kinds = {fault.kind for seed in range(40) for fault in World(ground, seed, tmp_path).faults}
    assert kinds == set(KINDS)


# The first seed whose world catches the mistake, where a strategy orders on most bars.
@pytest.mark.parametrize(
    ("bug", "path", "seed", "kind"),
    [
        ("a_new_key_for_each_retry", "plan", 14, "lost"),
        ("another_body_on_a_retry", "direct", 7, "doubled"),
        ("a_timeout_is_a_failure", "plan", 5, "lost"),
        ("not_found_is_a_failure", "plan", 14, "lost"),
        ("absence_is_proof_before_the_fence", "plan", 14, "lost"),
        ("giving_up_after_two_tries", "plan", 14, "lost"),
        ("a_restart_forgets_what_is_open", "plan", 13, "unsettled"),
        ("nothing_is_written_before_the_answer", "plan", 2, "unsettled"),
        ("a_lost_stop_is_not_replaced", "plan", 24, "unprotected"),
    ],
)
def test_a_planted_mistake_of_the_daemon_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: str, path: str, seed: int, kind: str
) -> None:
    assert lived_well(path, seed).findings == ()
    BUGS[bug].patch(monkeypatch)
    assert kind in {finding.kind for finding in lived(busy_ground(path=path), seed).findings}


@cache
def lived_well(path: str, seed: int) -> WorldOutcome:
    """A world without a mistake, which several mistakes are compared with."""
    return lived(busy_ground(path=path), seed)


def switch(subtype: str) -> Event:
    return {"type": "guardian", "subtype": subtype, "data": {"guardianType": "dead_man_switch", "guardianId": "grd_1"}}


def entry(key: str, request: str = "req_1", kind: str = "market") -> Event:
    return {"type": "fill", "subtype": "entry", "idempotencyKey": key, "requestId": request, "data": {"kind": kind}}


@pytest.mark.parametrize(
    ("events", "unguarded"),
    [
        ([switch("armed"), entry("OURS")], 0),
        ([entry("OURS")], 1),
        ([switch("armed"), switch("fired"), entry("OURS")], 1),
        ([switch("armed"), switch("disarmed"), entry("OURS"), entry("OURS")], 2),
        # Somebody else's order, an order that rested, and a request that arrived late say nothing of the daemon.
        ([entry("THEIRS"), entry("OURS", kind="limit"), entry("OURS", "req_late")], 0),
    ],
)
def test_an_entry_that_fills_without_a_dead_man_switch_is_found(events: list[Event], unguarded: int) -> None:
    assert len(unguarded_entries(events, {"OURS"}, late={"req_late"})) == unguarded


class Fails(Strategy):
    """Raises on the tenth bar of a world."""

    bars = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        self.bars += 1
        if self.bars == 10:
            raise ValueError("ten")
        return ()


def test_a_strategy_that_raises_fails_its_world(ground: DrillSetup) -> None:
    def placed(settings: Settings) -> list[StrategySpec]:
        return [
            one._replace(strategy=Fails(name=one.strategy.name, markets=one.strategy.markets))
            for one in place_strategies(settings)
        ]

    found = lived(replace(ground, place=placed), 1)
    assert {finding.kind for finding in found.findings} == {"strategy"}
    assert "ValueError: ten" in found.findings[0].text
    assert summary([found]).failed == 1
    (suite,) = ET.fromstring(junit("mine", [found]))
    (case,) = suite
    failure = case.find("failure")
    assert failure is not None
    assert (suite.get("failures"), case.get("name"), failure.get("type")) == ("1", "seed 1", "strategy")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drill.yaml").write_text(CONFIG)
    (tmp_path / "candles").mkdir()
    for candles in CANDLES:
        write(candles, tmp_path / "candles" / f"{candles.market}_1m.csv")
    return tmp_path


def test_the_command_prints_the_table_writes_junit_and_replays_one_seed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["drill", "drill.yaml", "--data", "candles", "--bars", "60"]
    assert call([*words, "--worlds", "3", "--workers", "2", "--junit", "drill.xml"]) == 0
    assert re.search(r"^all +3 +0 +0 +0 ", capsys.readouterr().out, re.MULTILINE)
    assert {case.get("name") for case in ET.parse("drill.xml").iter("testcase")} == {"seed 1", "seed 2", "seed 3"}
    assert call([*words, "--worlds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["worlds"], found["lost"], found["doubled"]) == (3, 0, 0)
    assert call([*words, "--worlds", "1", "--seed", "2", "--steps"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 2\n")
    for fault in found["outcomes"][1]["faults"]:
        assert f"fault: {fault['text']}" in said


def test_what_cannot_be_drilled_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["drill", "drill.yaml", "--data", "candles"]
    assert call([*words, "--bars", "2000"]) == 4
    assert "the candles are too short: a world takes 2,000 min" in capsys.readouterr().err
    assert call([*words, "--steps", "--json"]) == 2
    (place / "candles" / "ETH_1m.csv").unlink()
    assert call(words) == 4
    assert "ETH" in capsys.readouterr().err
