"""README and docs: commands run, the strategy loads, numbers and tables match the code."""

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
from bot.cli.common import demo_folders
from bot.cli.operate import systemd_unit
from bot.cli.run import embedded_service
from bot.cli.run.embedded_service import Embedded
from bot.cli.sandbox.sandbox import EPILOG
from bot.client import limiter
from bot.config import json_schema
from bot.errors import Exit
from bot.runtime.alerts import notifier
from bot.runtime.control_plane import log_tail, metrics
from bot.runtime.execution import order_sender
from bot.runtime.journal import journal, retention
from bot.runtime.liveness import clock_watch, heartbeat_rule, run_files
from bot.runtime.model import order_rules, run_state
from bot.runtime.strategy_host import loader, worker
from bot.service.docs.html_docs import START
from bot.testing.sandbox import Sandbox
from tests.documents import EVERYTHING, README, ROOT, blocks, section

COMMAND_LINES = [
    line.removeprefix("$ ").strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]
BOT_LINES = sorted({line for line in COMMAND_LINES if line.startswith("bot ")})
WAIT_S = 120
# what runs until it is told to stop has shown by then that it runs
SERVES = ('"event":"daemon.ready"', '"event":"service.ready"')


def keeps_running(line: str) -> bool:
    return line.startswith(("bot run", "bot sandbox")) or (line.startswith("bot demo") and "--for" not in line)


def shortened(line: str) -> str:
    """The command with a short demo and a free port."""
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
def test_a_command_of_the_docs_runs(line: str, home: Path) -> None:
    # `bot --version` and the demo in test_demo.py start in interpreters of their own.
    environ = {name: value for name, value in os.environ.items() if name not in ("XDG_STATE_HOME", "STATE_DIRECTORY")}
    with subprocess.Popen(
        [sys.executable, "-m", *shlex.split(shortened(line))],
        cwd=ROOT,
        env=environ | {"HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = ""
        if keeps_running(line):
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


def test_every_command_is_in_the_docs() -> None:
    for name in COMMANDS:
        assert re.search(rf"\bbot {name}\b", EVERYTHING), name


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 160


def test_the_make_commands_of_the_docs_are_known_to_make() -> None:
    for line in COMMAND_LINES:
        if line.startswith("make "):
            subprocess.run([*shlex.split(line), "-n"], cwd=ROOT, check=True, capture_output=True)


def test_the_exit_codes_of_the_docs_are_the_ones_of_the_code() -> None:
    table = section("files-and-exit-codes", "Exit codes")
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in Exit]
    assert [int(code) for code in re.findall(r"\b\d+\b", CODES.split("Exit codes: ")[1])] == [
        int(code) for code in Exit
    ]


WORDS = {1: "a", 2: "two", 3: "three", 5: "five", 6: "six", 10: "ten"}
# A sentence of the docs and the constant that it states. The tests of the constant's module test its effect.
NUMBERS = (
    ("takes longer than {} seconds", worker.LIMIT_S),
    ("must be zero or worth at least {} USD", order_rules.LEAST_USD),
    ("tries to start the service at least every {} seconds", embedded_service.AGAIN_S_MAX),
    ("are restored within {} seconds", run_files.KEPT_LOOK_S),
    ("Repeated failed starts share {} heartbeats", heartbeat_rule.BOOT_BEATS_MAX),
    ("it cannot read the events for {} seconds", run_state.EXITS_WAIT_MS / 1_000),
    ("the dead-man switch waits for less than {} s of real time", heartbeat_rule.D_SECONDS_MIN),
    ("DEGRADED (`clock`) if it is {} s off", clock_watch.SKEW_STOP_MS / 1_000),
    ("a warning if the clock is {} s off", clock_watch.SKEW_WARN_MS / 1_000),
    ("Exits are tried again after {} s", order_sender.EXIT_AGAIN_MS / 1_000),
    ("Exits are tried again after {} s", limiter.RequestKind.EXIT.value[2] / 1_000),
    ("reads after {} minute", limiter.RequestKind.READ.value[2] / 60_000),
    ("If the loop hangs for {} s, the daemon is killed", systemd_unit.WATCHDOG_S),
    ("gets the newest {} notices", journal.NOTICES_KEPT),
    ("Equal notices within {} minutes are sent once and counted", notifier.DEDUP_MS / 60_000),
    ("after {} seconds without a pass", metrics.STUCK_S),
    ("keeps the newest {} intents", journal.INTENTS_KEPT),
    ("drops none in its first {} days", retention.KEYS_MS / 86_400_000),
    ("and {} events", journal.EVENTS_KEPT),
    ("`daemon.log` has at most {} MB", log_tail.FILE_BYTES_MAX / 2**20),
    ("a folder for each of its last {} runs", demo_folders.RUNS_KEPT),
    ("on data that is cut off at {} instants", backtest.CUTS),
    ("files that lack more than {} payments in a row", funding_rates.ROWS_MISSING_MAX),
    ("lose more than {} % when they are rounded", quality.DIGITS_LOST * 100),
)


@pytest.mark.parametrize(("sentence", "number"), NUMBERS)
def test_a_number_of_the_docs_is_the_one_of_the_code(sentence: str, number: float) -> None:
    spellings = {f"{number:,.10g}", WORDS.get(number)} - {None}
    assert any(sentence.format(one) in " ".join(EVERYTHING.split()) for one in spellings), f"{sentence}: {number}"


def test_the_strategy_of_the_readme_loads_and_its_params_are_checked(tmp_path: Path) -> None:
    (text,) = blocks("python", README.read_text())
    (tmp_path / "breakout.py").write_text(text)
    loaded = loader.load("breakout:Breakout", tmp_path)
    assert loader.check_params(loaded.strategy, {"bars": 30}) == []
    assert loader.check_params(loaded.strategy, {"bars": 1})


def test_the_table_of_the_strategy_page_has_all_that_there_is() -> None:
    rows = re.search(r"\| Part \| What it offers \|\n(.*?)\n\n", EVERYTHING, re.DOTALL)
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
    signals = {field.name for signal in (bot.Open, bot.Close, bot.Bracket) for field in dataclasses.fields(signal)}
    indicators = {name for name in bot.__all__ if getattr(bot, name).__module__ == "bot.strategy.indicators"}
    assert len(indicators) == 6
    assert seen | signals | indicators | {"TrailingStop", "MaxHold", "Cancel", "oid"} <= words


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_piece_of_config_in_the_docs_passes_the_check(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for needed in ("apprise", "prometheus_client"):
        pytest.importorskip(needed)
    monkeypatch.setenv("BOT_NOTIFY_URL", "json://localhost")
    monkeypatch.setenv("BOT_TELEGRAM_TOKEN", "1:a")
    own = 'strategies: [{name: a, use: "trend:Trend", markets: [BTC], budget_usd: 500}]\n' * (
        "strategies:" not in block
    )
    account = "account: {base_url: embedded}\n" * ("account:" not in block)
    config = tmp_path / "docs.yaml"
    config.write_text(f"{account}{own}{block}")
    for name in re.findall(r"\$\{file:([^}]+)\}", block):
        secret = tmp_path / name
        secret.parent.mkdir(exist_ok=True)
        secret.write_text("json://localhost")
        secret.chmod(0o600)
    (tmp_path / "strategies").symlink_to(ROOT / "strategies")
    assert call(["check", str(config)]) == 0, capsys.readouterr().err


# A heading of the config reference and the definition of the schema that its table lists; the top level has no name.
TABLES = {
    "Top level": "",
    "account": "AccountSettings",
    "account prices": "LivePricesSettings",
    "dead_man": "DeadManSettings",
    "guardians": "GuardianSettings",
    "safety": "Safety",
    "protections": "ProtectionSettings",
    "protections cooldown": "Cooldown",
    "protections stop_guard": "StopGuard",
    "protections max_entries": "MaxEntries",
    "protections max_open_positions": "MaxOpenPositions",
    "protections low_profit_market": "LowProfitMarket",
    "protections max_drawdown": "MaxDrawdown",
    "orders": "OrdersSettings",
    "strategies": "StrategySettings",
    "embedded": "EmbeddedSettings",
    "embedded data": "Recording",
    "log": "LogSettings",
    "notify": "Notify",
    "metrics": "Metrics",
    "telegram": "Telegram",
    "dashboard": "DashboardSettings",
    "proof": "ProofSettings",
}


def test_every_table_of_the_schema_is_in_the_config_reference() -> None:
    assert set(TABLES.values()) - {""} == set(json_schema()["$defs"])


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_of_the_config_reference_has_the_keys_and_defaults_of_the_schema(heading: str) -> None:
    schema = json_schema()
    table = schema["$defs"][TABLES[heading]] if TABLES[heading] else schema
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section("configuration", heading), re.MULTILINE))
    assert list(rows) == list(table["properties"])
    for name, key in table["properties"].items():
        assert "description" in key or "$ref" in str(key), name
        shown, default = rows[name], key.get("default")
        if name in table.get("required", ()):
            assert shown == "required", name
        elif isinstance(default, str | int | float):
            assert shown in (f"`{default}`", f"`{str(default).lower()}`", "the file's name"), name
        elif shown == "none":
            assert default is None, name


def test_the_numbers_of_the_config_reference_are_bounds_of_the_schema() -> None:
    for heading, title in TABLES.items():
        keys = (json_schema()["$defs"][title] if title else json_schema())["properties"]
        for name, low, high in re.findall(
            r"^\| `(\w+)` .*?\b(\d+) to (\d+)\b", section("configuration", heading), re.MULTILINE
        ):
            bounds = {keys[name].get(bound) for bound in ("minimum", "maximum", "minItems", "maxItems")}
            assert {int(low), int(high)} <= bounds, name


def test_the_files_that_the_docs_name_are_in_the_tree() -> None:
    for name in re.findall(r"`((?:configs|strategies|bot|tests|docs)/[\w./-]*)`", EVERYTHING):
        assert (ROOT / name).exists(), name


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
        dict(after).get("-X", "GET"),
        sandbox.base_url + httpx.URL(url).path,
        headers=headers,
        content=dict(after).get("-d"),
    )
    assert answer.is_success, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_the_commands_of_curl_work_as_they_are_written(sandbox: Sandbox) -> None:
    lines = re.findall(r"^ *(curl .* https?://127.*|curl http.*)$", EVERYTHING + EPILOG, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        curl(line, sandbox)
    account, order, confirm = START.format(base="http://127.0.0.1").split("\n\n")
    key = curl(account, sandbox)["apiKey"]
    planned = curl(order, sandbox, apiKey=key)
    assert curl(confirm, sandbox, apiKey=key, confirmToken=planned["confirmToken"])["protected"]
