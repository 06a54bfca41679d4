"""The README keeps its word: its commands run, its strategy trades, its tables name what is there."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import bot
import bot.strategy
from bot.backtest.data import funding_rates, quality
from bot.cli.app import COMMANDS, call
from bot.cli.app import EPILOG as CODES
from bot.cli.backtest import backtest
from bot.cli.operate import demo_folders, systemd_unit
from bot.cli.run import embedded_service
from bot.cli.run.embedded_service import Embedded
from bot.cli.sandbox.sandbox import EPILOG
from bot.client import limiter
from bot.config import json_schema
from bot.errors import Exit
from bot.runtime import kernel
from bot.runtime.alerts import notifier
from bot.runtime.control_plane import log_tail, metrics
from bot.runtime.execution import order_sender
from bot.runtime.journal import journal, retention
from bot.runtime.liveness import clock_watch, heartbeat_rule, instance_lock
from bot.runtime.risk import risk_engine
from bot.runtime.strategy_host import loader, worker
from bot.service.docs.html_docs import START
from bot.testing.sandbox import Sandbox

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
COMMAND_LINES = [
    line.removeprefix("$ ").strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
BOT_LINES = [line for line in COMMAND_LINES if line.startswith("bot ")]
WAIT_S = 120
SERVES = (
    '"event":"daemon.ready"',
    '"event":"service.ready"',
)  # what runs until it is told to stop has shown by then that it runs


def stays(line: str) -> bool:
    return line.startswith(("bot run", "bot sandbox")) or (line.startswith("bot demo") and "--for" not in line)


def here(line: str) -> str:
    """As it is run here: a short demo, and no port that somebody else may have."""
    return re.sub(r"--for \w+", "--for 2s", line).replace("--port 8700", "--port 0")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of its own, so that a command's files go nowhere else."""
    folder = Path(tempfile.mkdtemp(prefix="bot-"))
    yield folder
    for lock in folder.rglob("sandbox.lock"):
        Embedded(lock.parent).stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("line", BOT_LINES)
def test_a_command_of_the_readme_runs(line: str, home: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("XDG_STATE_HOME", "STATE_DIRECTORY")}
    with subprocess.Popen(
        [sys.executable, "-m", *shlex.split(here(line))], cwd=ROOT, env=environ | {"HOME": str(home)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        said = ""
        if stays(line):
            assert process.stderr is not None
            while not any(words in said for words in SERVES):
                more = process.stderr.readline()
                assert more, said
                said += more
            time.sleep(0.5)
            assert process.poll() is None, process.communicate()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        err = said + err
    assert process.returncode == 0, err
    assert out
    assert "Traceback" not in err


def test_every_command_is_in_the_readme() -> None:
    for name in COMMANDS:
        assert re.search(rf"\bbot {name}\b", README), name


def test_the_make_commands_of_the_readme_are_known_to_make() -> None:
    for line in COMMAND_LINES:
        if line.startswith("make "):
            subprocess.run([*shlex.split(line), "-n"], cwd=ROOT, check=True, capture_output=True)


def test_the_exit_codes_of_the_readme_are_the_ones_there_are() -> None:
    table = README[README.index("### Exit codes") :]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in Exit]
    assert [int(code) for code in re.findall(r"\b\d+\b", CODES.split("Exit codes: ")[1])] == [
        int(code) for code in Exit
    ]


WORDS = {1: "a", 2: "two", 3: "three", 5: "five", 6: "six", 10: "ten"}
# What a sentence promises, and what the code goes by. That the code does go by it is tested where it does.
NUMBERS = (
    ("takes longer than {} seconds is quarantined", worker.LIMIT_S),
    ("worth too little to be closed ({} USD)", risk_engine.LEAST_USD),
    ("starts it again, at least every {} seconds", embedded_service.AGAIN_S_MAX),
    ("put there again within {} seconds", instance_lock.KEPT_LOOK_S),
    ("all those starts together have {} heartbeats", heartbeat_rule.BOOT_BEATS_MAX),
    ("the events cannot be read for {} seconds", kernel.EXITS_WAIT_MS / 1_000),
    ("the dead-man has less than {} s of real time", heartbeat_rule.D_SECONDS_MIN),
    ("its clock is {} s off the service's", clock_watch.SKEW_STOP_MS / 1_000),
    ("(a warning from {} s on)", clock_watch.SKEW_WARN_MS / 1_000),
    ("exits ask again after {} s", order_sender.EXIT_AGAIN_MS / 1_000),
    ("exits ask again after {} s", limiter.Kind.EXIT.value[2] / 1_000),
    ("reads after {} minute", limiter.Kind.READ.value[2] / 60_000),
    ("A loop that hangs for {} s is killed", systemd_unit.WATCHDOG_S),
    ("loses none of the newest {}", journal.NOTICES_KEPT),
    ("What says the same within {} minutes is counted", notifier.DEDUP_MS / 60_000),
    ("when no pass was made for {} seconds", metrics.STUCK_S),
    ("keeps the newest {} intents", journal.INTENTS_KEPT),
    ("none goes in its first {} days", retention.KEYS_MS / 86_400_000),
    ("and {} events", journal.EVENTS_KEPT),
    ("`daemon.log` has at most {} MB", log_tail.FILE_BYTES_MAX / 2**20),
    ("a folder for each of its last {} runs", demo_folders.RUNS_KEPT),
    ("runs again on data cut at {} instants", backtest.CUTS),
    ("lack more than {} payments in a row are refused", funding_rates.ROWS_MISSING_MAX),
    ("lose more than {} % when they are counted", quality.DIGITS_LOST * 100),
)


@pytest.mark.parametrize(("sentence", "number"), NUMBERS)
def test_a_number_of_the_readme_is_the_one_that_the_code_goes_by(sentence: str, number: float) -> None:
    said = {f"{number:,.10g}", WORDS.get(number)} - {None}
    assert any(sentence.format(one) in " ".join(README.split()) for one in said), f"{sentence}: {number}"


def test_the_strategy_of_the_readme_loads_and_its_params_are_judged(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "breakout.py").write_text(text)
    loaded = loader.load("breakout:Breakout", tmp_path)
    assert loader.check_params(loaded.strategy, {"bars": 30}) == []
    assert loader.check_params(loaded.strategy, {"bars": 1})


def test_the_table_of_the_strategy_page_has_all_that_there_is() -> None:
    rows = re.search(r"\| What there is \| \|\n(.*?)\n\n", README, re.DOTALL)
    assert rows is not None
    words = set(re.findall(r"\w+", rows[1]))
    hooks = {
        name: inspect.signature(hook)
        for name, hook in vars(bot.Strategy).items()
        if name.startswith("on_") or name == "confirm"
    }
    for name, signature in hooks.items():
        assert f"`{name}({', '.join(list(signature.parameters)[1:])})`" in rows[1]
    seen = {name for name in vars(bot.View) if not name.startswith("_")}
    wishes = {field.name for wish in (bot.Open, bot.Close, bot.Bracket) for field in dataclasses.fields(wish)}
    indicators = {name for name in bot.__all__ if getattr(bot, name).__module__ == "bot.strategy.indicators"}
    assert len(indicators) == 6
    assert seen | wishes | indicators | {"TrailingStop", "MaxHold", "Cancel", "oid"} <= words


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
def test_what_the_readme_writes_in_a_config_is_taken(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for needed in ("apprise", "prometheus_client"):
        pytest.importorskip(needed)
    monkeypatch.setenv("BOT_NOTIFY_URL", "json://localhost")
    own = 'strategies: [{name: a, use: "trend:Trend", markets: [BTC], budget_usd: 100}]\n' * (
        "strategies:" not in block
    )
    config = tmp_path / "told.yaml"
    config.write_text(f"account: {{base_url: embedded}}\n{own}{block}")
    (tmp_path / "strategies").symlink_to(ROOT / "strategies")
    assert call(["check", str(config)]) == 0, capsys.readouterr().err


def test_every_key_of_a_config_is_described_and_stands_in_the_readme_or_in_a_config_to_copy() -> None:
    schema = json_schema()
    told = README + "".join(file.read_text() for file in (ROOT / "configs").glob("*.yaml"))
    for section in (schema, *schema["$defs"].values()):
        for name, key in section.get("properties", {}).items():
            assert re.search(rf"\b{name}\b", told), name
            assert "description" in key or "$ref" in str(key), f"{section['title']}.{name}"


def test_the_files_of_the_readme_are_in_the_tree() -> None:
    for name in re.findall(r"`((?:configs|strategies|bot)/[\w./-]+\.(?:py|yaml))`", README):
        assert (ROOT / name).is_file(), name


def curl(line: str, sandbox: Sandbox, **known: str) -> dict[str, Any]:
    """What curl would send: a body is a form's unless a header says otherwise."""
    for name, value in known.items():
        line = line.replace(f"<{name}>", value)
    words = shlex.split(line.replace("\\\n", " "))
    after = [(words[n], words[n + 1]) for n in range(len(words) - 1)]
    headers = {"Content-Type": "application/x-www-form-urlencoded"} if "-d" in words else {}
    headers |= dict(value.split(": ", 1) for word, value in after if word == "-H")
    url = next(word for word in words if word.startswith("http"))
    answer = httpx.request(
        dict(after).get("-X", "GET"), sandbox.base_url + httpx.URL(url).path, headers=headers, content=dict(after).get("-d")
    )  # fmt: skip
    assert answer.is_success, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_the_commands_of_curl_work_as_they_are_written(sandbox: Sandbox) -> None:
    lines = re.findall(r"^ *(curl .* https?://127.*|curl http.*)$", README + EPILOG, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        curl(line, sandbox)
    account, order, confirm = START.format(base="http://127.0.0.1").split("\n\n")
    key = curl(account, sandbox)["apiKey"]
    planned = curl(order, sandbox, apiKey=key)
    assert curl(confirm, sandbox, apiKey=key, confirmToken=planned["confirmToken"])["protected"]
