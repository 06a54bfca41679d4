"""`bot launchd`: the agent as macOS would read it, its installation, and the configs that launchd could not start.

No macOS is here: `plistlib` reads the file, and nothing of launchd is tried.
"""

from __future__ import annotations

import json
import os
import plistlib
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.operate.launchd import agent_of

CONFIG = """\
account: {base_url: "https://trading.example", api_key: "%s"}
strategies:
  - {name: mine, use: "trend:Trend", markets: [BTC], budget_usd: 100}
strategies_dir: %s
%s
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my home"
    folder.mkdir()
    (folder / "key").write_text("bbk_secret")
    (folder / "key").chmod(0o600)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return folder


def write(tmp_path: Path, repository: Path, *, key: str | None = None, more: str = "") -> Path:
    file = tmp_path / "live & more.yaml"
    reference = f"${{file:{tmp_path / 'my home' / 'key'}}}" if key is None else key
    file.write_text(CONFIG % (reference, repository / "strategies", f"name: live\n{more}"))
    return file


def test_an_agent_runs_this_installation_and_is_restarted_only_after_a_failure(
    tmp_path: Path, repository: Path, home: Path
) -> None:
    config = write(tmp_path, repository)
    agent = agent_of(config)
    keys = plistlib.loads(agent.text.encode())
    assert agent.path == home / "Library" / "LaunchAgents" / "bracketbot.live.plist"
    assert keys["Label"] == "bracketbot.live"
    program, *arguments = keys["ProgramArguments"]
    assert os.access(program, os.X_OK)
    assert arguments[-3:] == ["run", str(config), "--yes"]
    assert keys["KeepAlive"] == {"SuccessfulExit": False}
    assert (keys["Umask"], keys["SoftResourceLimits"]["Core"], keys["ProcessType"]) == (0o077, 0, "Interactive")
    assert keys["StandardErrorPath"].startswith(str(home))
    assert "bbk_secret" not in agent.text


@pytest.mark.parametrize(
    ("key", "more", "words"),
    [
        ("${env:BOT_API_KEY}", "", "${env:BOT_API_KEY} is not given by launchd: write ${file:"),
        ("${credential:api-key}", "", "${credential:api-key} is not given by launchd: write ${file:"),
        (None, 'reconcile_seconds: "${env:A_NUMBER}"', "${env:A_NUMBER} is not set by launchd: write the value"),
        (None, "metrics: {port: 9000}", "metrics: needs the package prometheus-client"),
    ],
)
def test_a_config_that_launchd_could_not_start_is_refused_with_what_to_change(
    key: str | None,
    more: str,
    words: str,
    tmp_path: Path,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bot.checks.config_check.find_spec", lambda _: None)
    monkeypatch.setenv("A_NUMBER", "100")
    monkeypatch.setenv("BOT_API_KEY", "bbk_secret")
    assert call(["launchd", str(write(tmp_path, repository, key=key, more=more))]) == 4
    said = capsys.readouterr().err
    assert words in said
    assert "bbk_secret" not in said


def test_the_file_that_a_refusal_names_is_what_the_config_then_reads(
    tmp_path: Path, repository: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["launchd", str(write(tmp_path, repository, key="${credential:api-key}"))]) == 4
    named = capsys.readouterr().err.partition("write ")[2].partition(" instead")[0]
    file = Path(named.removeprefix("${file:").removesuffix("}"))
    file.parent.mkdir(parents=True)
    file.write_text("bbk_secret")
    file.chmod(0o600)
    assert call(["launchd", str(write(tmp_path, repository, key=named))]) == 0
    assert file.is_relative_to(home)


def test_an_agent_is_installed_once_and_a_different_one_is_overwritten_only_with_force(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launchd", str(write(tmp_path, repository)), "--install"]
    assert call(words) == 0
    said = capsys.readouterr().out
    path = agent_of(Path(words[1])).path
    assert f"launchctl bootstrap gui/{os.getuid()} '{path}'" in said
    assert plistlib.loads(path.read_bytes())["RunAtLoad"] is True
    assert call([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(path)
    path.write_text("mine")
    assert call(words) == 2
    assert "--force" in capsys.readouterr().err
    assert call([*words, "--force"]) == 0
    assert path.read_text() != "mine"
