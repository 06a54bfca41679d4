"""References are resolved only for the author of the config: never in a value that comes from elsewhere.

What they gave is in no message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bot import logs
from bot.checks.config_check import checked_text
from bot.cli.app import call
from bot.cli.assistants.backtest_run import BacktestRefused, options_of
from bot.config import with_params
from bot.errors import ConfigError

SECRET = "ENVSECRETVALUE123"
AGENT = """
account: {base_url: embedded}
dead_man: off
strategies:
  - name: careful
    use: "bot.agents:AgentStrategy"
    markets: [BTC]
    budget_usd: 100
    params:
      model: local
      base_url: http://127.0.0.1:1/v1
      usd_per_million_in: 0
      usd_per_million_out: 0
      PARAMS
"""
VALUES = [
    "${env:SECRETENV}",
    "x${env:SECRETENV}",
    "['(${env:SECRETENV}']",
    "[['${file:key}']]",
    "{a: {b: '${credential:x}'}}",
    "{'${env:SECRETENV}': 1}",
    '"\\x24{env:SECRETENV}"',
    '"\\u0024{env:SECRETENV}"',
    "!!set {'${env:SECRETENV}'}",
    "&a '${env:SECRETENV}'",
    "|\n  ${env:SECRETENV}",
    "${nope}",
]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRETENV", SECRET)


def of_config(value: str) -> object:
    return with_params(AGENT.replace("PARAMS", "instructions: go"), {("careful", "redact"): value})


def of_assistant(value: str) -> object:
    return of_config(options_of({"params": {"careful.redact": value}})[0].partition("careful.redact=")[2])


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("way", [of_config, of_assistant])
def test_a_value_from_elsewhere_takes_no_reference(way: Callable[[str], object], value: str) -> None:
    with pytest.raises((ConfigError, BacktestRefused), match="takes no reference") as refused:
        way(value)
    assert SECRET not in str(refused.value)


def test_the_way_out_that_the_message_names_is_the_config(tmp_path: Path) -> None:
    checked_text(AGENT.replace("PARAMS", 'instructions: "${env:SECRETENV}"'), tmp_path / "bot.yaml")


@pytest.mark.parametrize(
    "params",
    [
        "redact: ['(${env:SECRETENV}']",
        "ask_at: '${env:SECRETENV}'",
        "base_url: 'http://${env:SECRETENV}'",
        "max_tokens: '${env:SECRETENV}'",
        "answer_as: '${env:SECRETENV}'",
        "tools: ['${env:SECRETENV}']",
        "knowledge_cutoff: '${env:SECRETENV}'",
        "instructions_file: '${env:SECRETENV}'",
        "instructions_file: '/${env:SECRETENV}'",
    ],
)
def test_what_a_reference_gave_is_in_no_message(
    params: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = AGENT.replace("PARAMS", params if "instructions" in params else f"instructions: go\n      {params}")
    (tmp_path / "bot.yaml").write_text(text)
    assert call(["check", str(tmp_path / "bot.yaml")]) != 0
    said = capsys.readouterr()
    assert "careful" in said.err + said.out or "params" in said.err
    assert SECRET not in said.out + said.err


def test_a_secret_that_a_config_names_is_hidden_in_every_text(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-of-a-provider-0123")
    key.chmod(0o600)
    checked = AGENT.replace("PARAMS", f'instructions: go\n      api_key: "${{file:{key}}}"')
    from bot.config import read_text

    read_text(checked, tmp_path / "bot.yaml")
    assert logs.redact_text("failed with sk-of-a-provider-0123 in it") == f"failed with {logs.HIDDEN} in it"


OUTSIDE = [
    "/etc/hostname",
    "../secret.txt",
    "a/../../secret.txt",
    "~/secret.txt",
    "link.txt",
    "linked/prompt.txt",
    "/",
    "..",
    "missing.txt",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "prompt.txt").write_text("Trade carefully.")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "linked").symlink_to(folder / "prompts")
    return folder


@pytest.mark.parametrize("name", OUTSIDE)
def test_instructions_are_in_the_folder_of_the_config(name: str, project: Path) -> None:
    with pytest.raises(ConfigError, match="instructions_file"):
        checked_text(AGENT.replace("PARAMS", f"instructions_file: '{name}'"), project / "bot.yaml")


@pytest.mark.parametrize(
    "name", ["prompts/prompt.txt", "./prompts/prompt.txt", "prompts/../prompts/prompt.txt", "WHOLE"]
)
def test_a_file_below_the_config_is_read(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    name = str(project / "prompts" / "prompt.txt") if name == "WHOLE" else name
    settings = checked_text(AGENT.replace("PARAMS", f"instructions_file: '{name}'"), project / "bot.yaml")
    assert settings.strategies[0].params["instructions_file"] == str(project / "prompts" / "prompt.txt")
