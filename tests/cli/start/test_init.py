"""`bot init` and `bot new-strategy`: what they write passes check and its own tests, and nothing is overwritten."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.operate.daemon_client import Place
from bot.cli.start.init import OWN_NAMES, STRATEGY


def test_a_project_is_checked_and_its_tests_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "My Bot"
    assert call(["init", str(folder)]) == 0
    assert "bot run bot.yaml" in capsys.readouterr().out
    assert call(["new-strategy", "meanRevert", "--dir", str(folder / "strategies")]) == 0
    assert call(["check", str(folder / "bot.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["name"] == "my-bot"
    assert {one.name for one in (folder / "tests").iterdir()} == {"test_first.py", "test_mean_revert.py"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests" / "test_mean_revert.py")], cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(("there", "given"), [("strategies", "."), ("strategies/old", "..")])
def test_a_strategy_is_made_where_it_is_asked_for_from_inside_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, given: str
) -> None:
    (tmp_path / there).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / there)
    assert call(["new-strategy", "x", "--dir", given]) == 0
    assert (tmp_path / "strategies" / "x.py").is_file()
    assert '"strategies"' in (tmp_path / "tests" / "test_x.py").read_text()


def test_what_is_said_to_come_next_can_be_typed_whatever_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "mein Böt's"
    config = folder / "bot.yaml"
    assert call(["init", str(folder), "--json"]) == 0
    assert shlex.split(json.loads(capsys.readouterr().out)["next"][0]) == ["cd", str(folder)]
    assert call(["check", str(config)]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1]) == ["Next:", "bot", "run", str(config)]
    assert call(["status", "--config", str(config)]) == 3
    assert f"bot run {shlex.quote(str(config))}. " in capsys.readouterr().out
    assert call(["systemd", str(config), "--user"]) == 0
    assert f"bot systemd {shlex.quote(str(config))} --user --install" in capsys.readouterr().err
    assert shlex.split(Place(folder).flag) == ["--state-dir", str(folder)]
    assert shlex.split(Place(folder, config).flag) == ["--config", str(config)]


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bot.yaml").write_text("mine")
    assert call(["init", str(tmp_path)]) == 2
    assert "already exists; nothing was written" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["bot.yaml"]
    assert call(["new-strategy", "a", "--dir", str(tmp_path / "strategies")]) == 0
    assert call(["new-strategy", "a", "--dir", str(tmp_path / "strategies")]) == 2


@pytest.mark.parametrize("name", ["../evil", "1st", "class", "a.b", "", "x" * 41, "naïve"])
def test_an_invalid_strategy_name_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["new-strategy", name, "--dir", str(tmp_path / "strategies")]) == 2
    assert "is not a valid strategy name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["open", "Bracket", "params", "strategy", "field"])
def test_the_name_of_a_class_that_a_strategy_imports_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["new-strategy", name, "--dir", str(tmp_path / "strategies")]) == 2
    assert "which is the name of a class that it imports from bot; choose another name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_own_names_lists_every_class_that_a_new_strategy_imports() -> None:
    imported = re.search(r"^from bot import (.+)$", STRATEGY, re.MULTILINE)
    assert imported is not None
    assert [one for one in imported[1].split(", ") if one[0].isupper()] == list(OWN_NAMES)


def test_a_strategy_that_raises_fails_the_test_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        '"""Bad."""\nfrom bot import Strategy\n\n\nclass Bad(Strategy):\n    def on_bar(self, view, bar):\n        raise RuntimeError("a mistake")\n'
    )
    from bot.testing.sandbox import Options, Sandbox

    with (
        Sandbox(Options(markets=["BTC"])) as sandbox,
        sandbox.run("bad:Bad", strategies_dir=tmp_path) as daemon,
        pytest.raises(AssertionError, match="a mistake"),
    ):
        daemon.minutes(2)
