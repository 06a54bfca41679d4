"""The holdout of a sweep: no trial sees it, each look is counted, and other inputs are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.clock import HOUR_MS, iso
from tests.backtest.builders import START_MS, config, minutes, write

pytest.importorskip("optuna")

CUT_MS = START_MS + 4 * HOUR_MS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(minutes(360), tmp_path / "BTC_1m.csv")
    config(tmp_path, use="bench:Cross")
    (tmp_path / "space.yaml").write_text("params: {one.fast_bars: [2, 4, 6], one.slow_bars: [20]}")
    return tmp_path


def sweep(*more: str, code: int = 0) -> None:
    words = ["sweep", "mine.yaml", "--data", "BTC_1m.csv", "--space", "space.yaml", *more]
    assert call(words) == code


def shown(study: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    capsys.readouterr()
    assert call(["sweep", "show", study, "--csv", f"{study}.csv", "--json"]) == 0
    found: dict[str, list[str]] = json.loads(capsys.readouterr().out)
    return found


def test_no_trial_sees_the_holdout(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep("--holdout", "2h", "--study", "one")
    lines = (place / "BTC_1m.csv").read_text().splitlines()
    other = [line if int(line.split(",")[0]) < CUT_MS else f"{line.split(',')[0]},9,9,9,9,9" for line in lines[1:]]
    (place / "BTC_1m.csv").write_text("\n".join([lines[0], *other]) + "\n")
    sweep("--holdout", "2h", "--study", "two", "--accept-jumps")
    sweep("--to", iso(CUT_MS), "--study", "three", "--accept-jumps")
    for study in ("one", "two", "three"):
        shown(study, capsys)
    tables = [(place / f"{study}.csv").read_bytes() for study in ("one", "two", "three")]
    assert tables[0] == tables[1] == tables[2]


def test_a_look_is_a_backtest_of_the_best_trial_there_and_later_looks_are_counted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("--holdout", "2h", "--method", "random", "--trials", "1")
    assert "locked, no trial of this study has seen it" in shown("mine", capsys)["holdout"][0]
    assert call(["sweep", "holdout", "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    params = [f"--param={name}={value}" for name, value in found["params"].items()]
    assert call(["backtest", "mine.yaml", "--data=BTC_1m.csv", *params, "--from", iso(CUT_MS), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert (found["inHoldout"], found["trades"], found["looks"]) == (figures["Return [%]"], figures["# Trades"], 1)

    assert call(["sweep", "holdout", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found, "the same trial is not run again"
    # More trials have another best one.
    sweep("--holdout", "2h", "--method", "random", "--trials", "12")
    assert call(["sweep", "holdout", "mine"]) == 0
    assert "look 2 on" in capsys.readouterr().out
    assert len(shown("mine", capsys)["holdout"]) == 2
    assert call(["sweep", "show", "mine", "--out", "page.html"]) == 0
    assert "look 2 on" in Path("page.html").read_text()


def test_trials_and_looks_of_other_studies_at_the_same_data_are_said(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("--holdout", "2h", "--study", "first")
    assert call(["sweep", "holdout", "first"]) == 0
    sweep("--holdout", "1h", "--study", "second")
    said = shown("second", capsys)["holdout"]
    assert said[1:] == ["Other studies took 1 look at data of this holdout; they count as looks of this study."]
    sweep("--study", "whole")
    assert "Trials of whole ran on data of this holdout" in shown("second", capsys)["holdout"][1]
    assert "Trials of second, whole ran" in shown("first", capsys)["holdout"][1]


@pytest.mark.parametrize(
    ("length", "said"),
    [("2x", "write a length in h, d or w"), ("6h", "the range has 0.25 days; take a shorter holdout")],
)
def test_a_length_that_cannot_be_is_refused(
    place: Path, length: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("--holdout", length, code=4)
    assert said in capsys.readouterr().err
    assert not (place / "sweeps.db").exists()


def test_a_look_without_a_holdout_or_at_other_data_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep("--study", "none")
    assert call(["sweep", "holdout", "none"]) == 1
    assert "the study 'none' has no holdout; make one with" in capsys.readouterr().err
    assert call(["sweep", "holdout", "nix"]) == 2
    sweep("--holdout", "2h")
    sweep("--holdout", "1h", code=1)
    assert "holdout: [" in capsys.readouterr().err
    write(minutes(360, seed=2), place / "BTC_1m.csv")
    assert call(["sweep", "holdout", "mine"]) == 1
    assert "was made with something else (data:" in capsys.readouterr().err
    assert "locked" in shown("mine", capsys)["holdout"][0]
