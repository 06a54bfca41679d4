"""Each difference of a day has exactly one cause of the closed list, and it is the right one."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any, get_args

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.proof.causes import PROOF_CAUSES, REFUSAL_CAUSES, ProofCause
from tests.backtest.builders import minutes, write
from tests.backtest.lived_day import BARS, HISTORY, STRATEGIES, lived
from tests.backtest.proof.altered import ALTERED, Altered, decided_otherwise, proved

# Params of an agent, which change what the model is told.
AGENT_PARAMS = """        usd_per_million_in: float = Field(0.0)
        instructions: str = Field("calm")
"""


def config_of(folder: Path, state: Path, change: Altered | None = None, **params: Any) -> Path:
    """A config on this state directory, with its own copy of the strategy."""
    source = (STRATEGIES / "replaying.py").read_text()
    source = source.replace("        stop_pct: float", f"{AGENT_PARAMS}        stop_pct: float")
    source = source.replace(
        "size=self.params.size", "size=self.params.size * (1 + (self.params.instructions == 'bold'))"
    )
    text = (
        f"account: {{base_url: embedded}}\nname: mine\ndead_man: off\nstrategies_dir: {folder / 'strategies'}\n"
        f"state_dir: {state}\nstrategies:\n  - {{name: one, use: replaying, markets: [BTC], budget_usd: 1000, params:"
        f" {json.dumps({'usd_per_million_in': 1.0, **params, **(change.params if change else {})})}}}\n"
    )
    if change is not None and change.line is not None:
        assert change.line[0] in source
        source = source.replace(*change.line)
    if change is not None and change.config:
        old, new = change.config.split("->")
        assert old in text
        text = text.replace(old, new)
    (folder / "strategies").mkdir(parents=True, exist_ok=True)
    (folder / "strategies" / "replaying.py").write_text(source)
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Candles]:
    """A folder with the state directory of a lived day, and the candles of its service."""
    folder = tmp_path_factory.mktemp("day")
    candles = minutes(HISTORY + BARS + 30, vol=0.001)
    asyncio.run(lived(config_of(folder, folder / "state"), write(candles, folder / "BTC_1m.csv")))
    return folder, candles


def lived_again(day: tuple[Path, Candles], tmp_path: Path, change: Altered) -> Path:
    """A copy of the day with the change; returns its candles."""
    shutil.copytree(day[0] / "state", tmp_path / "state")
    config_of(tmp_path, tmp_path / "state", change)
    data = day[0] / "BTC_1m.csv"
    with sqlite3.connect(tmp_path / "state" / "journal.db") as db:
        if change.candles is not None:
            data = write(change.candles(day[1], db), tmp_path / "BTC_1m.csv")
        if change.live is not None:
            change.live(db)
    db.close()
    return data


def test_a_day_that_is_as_tested_has_no_difference(day: tuple[Path, Candles], tmp_path: Path, capsys: Any) -> None:
    code, found = proved(tmp_path, lived_again(day, tmp_path, Altered("nothing", "")), capsys)
    assert (code, found["causes"], found["equalShare"]) == (0, {}, 1.0)
    assert found["counts"]["decisions"] > 15
    assert found["counts"]["fundings"] > 0
    assert found["counts"]["bars"] > BARS - 2


@pytest.mark.parametrize("change", ALTERED, ids=lambda change: change.name)
def test_each_altered_day_has_the_one_right_cause(
    change: Altered, day: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = proved(tmp_path, lived_again(day, tmp_path, change), capsys)
    told = [(one["cause"], one["what"], one["why"], one["recorded"], one["replayed"]) for one in found["differences"]]
    assert set(found["causes"]) == {change.cause}, told[:6]
    assert code == 0


def test_a_decision_without_a_reason_is_unknown_and_the_exit_code_says_so(
    day: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = lived_again(day, tmp_path, Altered("chance", "unknown", decided_otherwise))
    code, found = proved(tmp_path, data, capsys)
    assert (code, found["causes"].get("unknown")) == (1, 1)


def test_the_table_covers_fifty_days_and_every_cause_but_unknown() -> None:
    assert len({change.name for change in ALTERED}) == len(ALTERED) >= 50
    assert {change.cause for change in ALTERED} == set(PROOF_CAUSES) - {"unknown"}
    assert tuple(PROOF_CAUSES) == get_args(ProofCause)
    assert set(REFUSAL_CAUSES.values()) <= set(PROOF_CAUSES)


@pytest.mark.parametrize(
    "names",
    [
        ("a fill had twice the fee", "bot pause"),
        ("a close was filled lower", "another client traded"),
        ("no funding was paid", "the daemon never got a bar"),
        ("a target was filled at another price", "a person refused an entry", "every stop had another fee"),
    ],
)
def test_a_day_with_several_changes_has_the_cause_of_each(
    names: tuple[str, ...], day: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [change for change in ALTERED if change.name in names]
    assert len(changes) == len(names)

    def all_of_them(db: sqlite3.Connection) -> None:
        for change in changes:
            assert change.live is not None
            change.live(db)

    code, answer = proved(tmp_path, lived_again(day, tmp_path, Altered("several", "", all_of_them)), capsys)
    assert (code, set(answer["causes"])) == (0, {change.cause for change in changes})
