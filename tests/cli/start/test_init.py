"""`bot init` and `bot new-strategy`: what they write passes check and its own tests, and nothing is overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import check_jsonschema
import pytest
from click.testing import CliRunner

import bot
from bot.cli.app import call
from bot.cli.common.daemon_client import Place
from bot.cli.start.templates import TEMPLATES, write_template
from bot.extras import install_package
from tests.environments import CORE, PYTEST, folders_of


def test_a_project_is_checked_and_its_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "My Bot"
    assert call(["init", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "bot run bot.yaml" in said
    made = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
    assert made == {
        "bot.yaml",
        "bot.schema.json",
        "bot-my-bot.service",
        ".gitignore",
        "strategies/trend.py",
        "tests/test_trend.py",
    }
    assert all(f"made {folder / name}\n" in said for name in made)
    assert call(["new-strategy", "meanRevert", "--dir", str(folder / "strategies")]) == 0
    assert call(["check", str(folder / "bot.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["name"] == "my-bot"
    assert {one.name for one in (folder / "tests").iterdir()} == {"test_trend.py", "test_mean_revert.py"}


def test_the_test_of_every_template_passes_with_what_init_says_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The core dependencies and pytest, and nothing else of this environment."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert call(["init", str(tmp_path / "project"), "--json"]) == 0
    commands = json.loads(capsys.readouterr().out)["next"]
    monkeypatch.undo()
    assert [one for one in commands if "install" in one and "systemd" not in one] == [install_package("pytest")]
    for name in TEMPLATES:
        if name != "trend":
            write_template(name, tmp_path / "project")
    assert (
        call(
            [
                "new-strategy",
                "odds-of-mine",
                "--template",
                "event-market",
                "--dir",
                str(tmp_path / "project" / "strategies"),
            ]
        )
        == 0
    )
    site = tmp_path / "site-packages"
    site.mkdir()
    for path in (*folders_of([*CORE, *PYTEST]), Path(bot.__file__).parent):
        if not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    assert not (site / "numpy").exists()
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path / "project",
        env={"PYTHONPATH": str(site), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [
        line for one in (tmp_path / "project" / "tests").glob("test_*.py") for line in one.read_text().splitlines()
    ]
    assert f"{sum(line.startswith('def test_') for line in tests)} passed" in done.stdout


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_config_of_every_template_is_valid_for_bot_and_for_an_editor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tmp_path / "it"
    more = ["--interval", "5m", "--budget-usd", "750.5"]
    assert call(["init", str(folder), "--template", name, *more, "--json"]) == 0
    text = (folder / "bot.yaml").read_text()
    assert call(["check", str(folder / "bot.yaml")]) == 0, capsys.readouterr().err
    assert "5m bars, at most 750.5 USD, 1x" in capsys.readouterr().out
    schema = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert schema is not None
    assert editor_says(folder / schema[1], folder / "bot.yaml") == (0, "ok -- validation done\n")
    (folder / "wrong.yaml").write_text(text.replace("budget_usd: 750.5", "budget: 750.5"))
    code, said = editor_says(folder / schema[1], folder / "wrong.yaml")
    assert code == 1
    assert "'budget'" in said


def editor_says(schema: Path, config: Path) -> tuple[int, str]:
    """What a checker of JSON Schema, as in an editor, answers for a file: exit code and text."""
    done = CliRunner().invoke(check_jsonschema.main, ["--schemafile", str(schema), str(config)])
    return done.exit_code, done.output


def test_on_a_terminal_init_asks_and_takes_the_answers(tmp_path: Path) -> None:
    """Real questions on a real terminal; a wrong answer is asked for again."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "bot", "init", str(tmp_path / "it"), "--interval", "15m"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        os.write(master, b"pears\npairs\nBTC ETHH\nSOL ETH\n\n")
        said = b""
        # The terminal ends with the process.
        with contextlib.suppress(OSError):
            while part := os.read(master, 4096):
                said += part
    os.close(master)
    assert process.returncode == 0, said
    for words in (
        "trade the ratio of two markets",
        "'pears' is not one of",
        "did you mean ETH?",
        "Budget in USD [500]",
    ):
        assert words in said.decode()
    assert "Interval" not in said.decode()
    text = (tmp_path / "it" / "bot.yaml").read_text()
    assert "markets: [SOL, ETH]" in text
    assert "interval: 15m" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--template", "pairs", "--market", "BTC"], "the template pairs trades two markets, not 1"),
        (["--market", "event:RATE-CUT"], "the template trend trades no event markets"),
        (["--template", "event-market", "--market", "BTC"], "trades event markets only, like event:RATE-CUT"),
        (["--market", "BTX"], "no market BTX; did you mean BTC?"),
        (["--budget-usd", "0"], "must be above 0"),
        (["--interval", "7m"], "'7m' is not one of"),
        (["--template", "scalper"], "'scalper' is not one of"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert call(["init", str(tmp_path / "it"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "it").exists()


def test_the_unit_of_a_project_is_the_one_that_bot_systemd_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["init", str(tmp_path / "it"), "--json"]) == 0
    (name,) = [one for one in json.loads(capsys.readouterr().out)["files"] if one.endswith(".service")]
    assert call(["systemd", str(tmp_path / "it" / "bot.yaml"), "--user"]) == 0
    unit = (tmp_path / "it" / name).read_text()
    assert unit.endswith(capsys.readouterr().out)
    assert unit.startswith("# The unit that this command installs:\n#   bot systemd bot.yaml --user --install\n")


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
    for taken in ("bot-it.service", "strategies/trend.py", "tests/test_trend.py", "bot.schema.json"):
        file = tmp_path / taken.replace("/", "-") / "it" / taken
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        home = tmp_path / taken.replace("/", "-") / "it"
        assert call(["init", str(home)]) == 2
        assert [one for one in home.rglob("*") if one.is_file()] == [file]
        assert file.read_text() == "mine"
    assert call(["new-strategy", "a", "--dir", str(tmp_path / "strategies")]) == 0
    assert call(["new-strategy", "a", "--dir", str(tmp_path / "strategies")]) == 2


@pytest.mark.parametrize("name", ["../evil", "1st", "class", "a.b", "", "x" * 41, "naïve"])
def test_an_invalid_strategy_name_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["new-strategy", name, "--dir", str(tmp_path / "strategies")]) == 2
    assert "is not a valid strategy name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["open", "Bracket", "params", "strategy", "trailing-stop", "iterable"])
def test_the_name_of_a_class_that_a_strategy_imports_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["new-strategy", name, "--dir", str(tmp_path / "strategies")]) == 2
    assert "which is the name of a class that it imports; choose another name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_strategy_that_raises_fails_the_test_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        '"""Bad."""\nfrom bot import Strategy\n\n\nclass Bad(Strategy):\n    def on_bar(self, view, bar):\n       '
        ' raise RuntimeError("a mistake")\n'
    )
    from bot.testing.sandbox import Options, Sandbox

    with (
        Sandbox(Options(markets=["BTC"])) as sandbox,
        sandbox.run("bad:Bad", strategies_dir=tmp_path) as daemon,
        pytest.raises(AssertionError, match="a mistake"),
    ):
        daemon.minutes(2)
