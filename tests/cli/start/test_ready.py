"""`bot ready`: the remedy of each line is run and raises it, test notices reach a real server, and `bot run` asks
before it trades real money.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.candles import Candles
from bot.checks import readiness_lines
from bot.checks.config_check import checked_config
from bot.checks.evidence import FILE, read_evidence
from bot.cli.app import call
from bot.cli.run.readiness_check import ask_before_run
from bot.clock import DAY_MS, iso
from bot.runtime.journal.opening import open_journal
from bot.testing.sandbox import Sandbox
from tests.backtest.builders import MINUTE_MS, START_MS, minutes, write
from tests.backtest.lived_day import HISTORY, config, lived

STRATEGIES = Path(__file__).resolve().parents[2] / "backtest" / "strategies"
CONFIG = """\
name: mine
state_dir: state
account: {base_url: embedded}
dead_man: {heartbeat_seconds: 300, on_miss: flatten}
strategies_dir: %s
strategies:
  - {name: one, use: "bench:Cross", markets: [BTC], interval: %s, budget_usd: 1000, daily_loss_usd: 500}
"""
LIVE = """\
name: live
state_dir: state
account: {base_url: "%s", api_key: "${env:LIVE_KEY}"}
strategies_dir: %s
strategies:
  - {name: one, use: "bench:Cross", markets: [BTC], budget_usd: 1000}
"""
SPACE = "params: {one.fast_bars: [3, 5]}\nobjectives: ['Sharpe Ratio']\n"


def project(folder: Path, candles: Candles, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config and its candles in the working directory."""
    monkeypatch.chdir(folder)
    (folder / "data").mkdir()
    write(candles, folder / "data" / f"BTC_{candles.interval}.csv")
    path = folder / "bot.yaml"
    path.write_text(CONFIG % (STRATEGIES, candles.interval))
    return path


def ready(capsys: pytest.CaptureFixture[str], *more: str, file: str = "bot.yaml") -> dict[str, dict[str, Any]]:
    """The lines by name."""
    capsys.readouterr()
    assert call(["ready", file, "--json", *more]) in (0, 1)
    return {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}


def follow(remedy: str, *more: str) -> None:
    """Run the command of a remedy."""
    words = shlex.split(remedy.rpartition("then ")[2])
    assert words[0] == "bot"
    assert call([*words[1:], *more]) in (0, 1)


def test_the_remedies_of_backtests_and_sweeps_raise_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    # Every value has some points: what is tested is that the command brings the evidence.
    for name, bounds in (("DAYS", (1, 999)), ("TRADES", (1, 9999)), ("CHANCE", (0, 2)), ("WORST", (9, 0))):
        monkeypatch.setattr(readiness_lines, name, bounds)
    path = project(tmp_path, minutes(24 * 125, interval="1h"), monkeypatch)
    before = ready(capsys)
    follow(before["tested period"]["remedy"])
    after = ready(capsys)
    for name in ("tested period", "trades", "worst day"):
        assert before[name]["remedy"] == before["tested period"]["remedy"]
        assert (before[name]["state"], before[name]["points"]) == ("not known", 0)
        assert (after[name]["state"], after[name]["points"] > 0) == ("known", True), after[name]
    assert after["cost share"]["state"] == "known"
    assert re.search(r"125 days \(.*/runs/mine-", after["tested period"]["evidence"])
    assert "of the daily loss limit of 500.00 USD" in after["worst day"]["evidence"]

    assert before["deflated Sharpe"]["remedy"].startswith("write the params to try in space.yaml, then bot sweep ")
    (tmp_path / "space.yaml").write_text(SPACE)
    follow(before["walk-forward"]["remedy"], "--study", "walk")
    follow(before["deflated Sharpe"]["remedy"])
    after = ready(capsys)
    assert (after["walk-forward"]["state"], after["walk-forward"]["points"] > 0) == ("known", True)
    # The default of the param is no trial of the study.
    assert after["deflated Sharpe"]["state"] == "old"
    show = re.fullmatch(
        r"write the params of its best trial \((bot sweep show mine)\) in bot.yaml", after["deflated Sharpe"]["remedy"]
    )
    assert show is not None
    capsys.readouterr()
    assert call([*shlex.split(show[1])[1:], "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"][0]["params"]["one.fast_bars"]
    path.write_text(path.read_text().replace("budget_usd", f"params: {{fast_bars: {best}}}, budget_usd"))
    after = ready(capsys)
    assert (after["deflated Sharpe"]["state"], after["deflated Sharpe"]["points"] > 0) == ("known", True)
    assert after["walk-forward"]["state"] == "known", "its params are those that the windows chose"
    assert after["trades"]["state"] == "old"


def test_the_remedies_of_drills_raise_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(readiness_lines, "WORLDS", (1, 4))
    monkeypatch.setattr(readiness_lines, "SILENCED", (1, 99))
    path = project(tmp_path, minutes(400), monkeypatch)
    path.write_text(path.read_text().replace("dead_man: {heartbeat_seconds: 300, on_miss: flatten}", "dead_man: off"))
    off = ready(capsys)["dead-man"]
    assert (off["state"], off["points"]) == ("known", 0)
    section = re.match(r"write (dead_man: .*) in bot.yaml, then ", off["remedy"])
    assert section is not None
    path.write_text(path.read_text().replace("dead_man: off", section[1]))
    drill = ready(capsys)["drill"]
    assert drill["remedy"] == off["remedy"].rpartition("then ")[2]
    follow(drill["remedy"])
    after = ready(capsys)
    assert (after["drill"]["state"], after["drill"]["points"]) == ("known", 12), after["drill"]
    assert (after["dead-man"]["state"], after["dead-man"]["points"]) == ("known", 3), after["dead-man"]


async def test_the_remedy_of_unproved_days_names_the_day_and_proves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(readiness_lines, "PROVED", (1, 2))
    # The daemon lives from 80 minutes before midnight to 80 minutes after it.
    begins_ms = START_MS + DAY_MS - (HISTORY + 80) * MINUTE_MS
    data = write(minutes(400, start_ms=begins_ms), tmp_path / "BTC_1m.csv")
    path = config(tmp_path)
    await lived(path, data)
    before = await asyncio.to_thread(ready, capsys, file=str(path))
    remedy, day = before["proved days"]["remedy"], iso(START_MS)[:10]
    assert remedy == f"bot proof --state-dir {tmp_path / 'state'} --day {day}"
    # The service of that day does not run any more.
    await asyncio.to_thread(follow, remedy, "--data", f"BTC={data}")
    after = (await asyncio.to_thread(ready, capsys, file=str(path)))["proved days"]
    assert (after["state"], after["points"]) == ("known", 7), after


def test_the_remedy_of_a_missing_backup_writes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, minutes(10), monkeypatch)
    (tmp_path / "state").mkdir(mode=0o700)
    open_journal(tmp_path / "state" / "journal.db", address="0x" + "ab" * 20).close()
    line = ready(capsys)["backup"]
    assert line["state"] == "not known"
    follow(line["remedy"])
    assert ready(capsys)["backup"]["points"] == 4


# ── Test notices ────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def receiver(answers: list[int]) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server that takes notices, and what it was sent. It gives these codes one after the other."""
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"json://127.0.0.1:{server.server_port}/hunter2", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_test_notice_is_sent_and_what_came_of_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("apprise")
    path = project(tmp_path, minutes(10), monkeypatch)
    before = ready(capsys)["alerts"]
    assert (before["state"], before["points"]) == ("known", 0)
    assert before["remedy"].startswith("write a section notify in bot.yaml, then ")
    assert call(["ready", "bot.yaml", "--test-notice"]) == 4
    assert "has no section notify" in capsys.readouterr().err
    path.write_text(path.read_text() + 'notify: {urls: ["${env:FIRST}"]}\n')
    with receiver([500, 200]) as (url, received):
        monkeypatch.setenv("FIRST", url)
        remedy = ready(capsys)["alerts"]["remedy"]
        follow(remedy)
        refused = ready(capsys)["alerts"]
        assert (refused["state"], refused["points"]) == ("known", 0)
        assert "${env:FIRST} did not accept the test notice" in refused["evidence"]
        follow(remedy)
        line = ready(capsys)["alerts"]
        assert (line["state"], line["points"]) == ("known", 6), line
        assert b"Test notice of mine" in received[-1]
        # Another address behind the same reference was never tested.
        monkeypatch.setenv("FIRST", f"{url}/other")
        assert ready(capsys)["alerts"]["state"] == "not known"
    kept = (tmp_path / "state" / FILE).read_text()
    assert "hunter2" not in kept
    assert "127.0.0.1" not in kept
    monkeypatch.delenv("FIRST")
    assert ready(capsys)["alerts"]["state"] == "not known"
    assert call(["ready", "bot.yaml", "--test-notice"]) == 4
    assert "${env:FIRST} cannot be read here" in capsys.readouterr().err


# ── The command ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_text_has_the_grade_each_line_and_what_would_raise_it_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, minutes(10), monkeypatch)
    assert call(["ready", "bot.yaml"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine: grade F, 6 of 100 points"
    assert "  not known   0/8  tested period   no backtest of this config is recorded" in lines
    assert lines[-2] == "At most D without a point for: drill, proved days, dead-man"
    assert lines[-1].startswith("What would raise it most is proved days: bot run bot.yaml for days")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no.yaml"], 4, "no.yaml: no such file"),
        (["bot.yaml", "--paper", "no.yaml"], 2, "'no.yaml' does not exist"),
        (["bot.yaml", "--paper", "data"], 2, "there is no journal in"),
        (["bot.yaml", "--paper", "bot.yaml"], 2, "no daemon has run there"),
    ],
)
def test_bad_input_is_one_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    project(tmp_path, minutes(10), monkeypatch)
    assert call(["ready", *words]) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "state" / FILE).exists()


def test_a_damaged_file_of_evidence_is_named_and_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, minutes(10), monkeypatch)
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / FILE).write_text("{")
    line = ready(capsys)["drill"]
    assert line["state"] == "not known"
    assert f"{FILE} cannot be read" in line["evidence"]


def test_a_result_that_cannot_be_kept_is_reported_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, minutes(100), monkeypatch)
    (tmp_path / "state").write_text("")
    assert call(["backtest", "bot.yaml", "--data", "data"]) == 0
    said = capsys.readouterr()
    assert "not kept as evidence for bot ready: state_dir" in said.err
    assert "Results: runs/mine-" in said.out


# ── Before `bot run` ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of a service that does not answer, so that its money is not known to be play money."""
    monkeypatch.setenv("LIVE_KEY", "bbk_live")
    path = tmp_path / "live.yaml"
    path.write_text(LIVE % ("http://127.0.0.1:9", STRATEGIES))
    return path


def test_a_run_for_real_money_below_c_names_the_flag_if_nobody_can_be_asked(
    live: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["run", str(live)]) == 2
    said = capsys.readouterr().err
    assert "live: grade F, 0 of 100 points" in said
    (again,) = re.findall(r"start with (bot run .*)$", said, re.MULTILINE)
    assert shlex.split(again) == ["bot", "run", str(live), "--yes"]
    # That flag looks at nothing: a restart waits for no service.
    ask_before_run(checked_config(live).settings, live, yes=True)
    assert capsys.readouterr().err == ""


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_asked_once_for_a_version(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(answer: str) -> str:
        said = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        monkeypatch.setattr(sys, "stderr", said)
        try:
            ask_before_run(checked_config(live).settings, live, yes=False)
        except Exception as error:  # noqa: BLE001  whatever keeps the daemon from starting
            return f"{type(error).__name__}: {error}"
        return said.getvalue()

    assert "has the grade F, and C is the least for real money: raise it" in asked("n\n")
    assert "Trade all the same?" in asked("y\n")
    assert [piece.facts for piece in read_evidence(live.parent / "state") if piece.kind == "answer"] == [{"grade": "F"}]
    again = asked("")
    assert "grade F" in again
    assert "Trade all the same?" not in again
    live.write_text(live.read_text().replace("budget_usd: 1000", "budget_usd: 2000"))
    assert asked("n\n").startswith("UsageError"), "another version is asked about again"


def test_a_service_that_says_that_it_is_a_sandbox_is_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Sandbox() as sandbox:
        monkeypatch.setenv("LIVE_KEY", sandbox.api_key)
        path = tmp_path / "live.yaml"
        path.write_text(LIVE % (sandbox.base_url, STRATEGIES))
        ask_before_run(checked_config(path).settings, path, yes=False)
        assert capsys.readouterr().err == ""
        lines = ready(capsys, file=str(path))
        # The run reports a refused key, with an exit code of its own.
        monkeypatch.setenv("LIVE_KEY", "bbk_other")
        ask_before_run(checked_config(path).settings, path, yes=False)
        assert capsys.readouterr().err == ""
        refused = ready(capsys, file=str(path))["key"]
        assert (refused["state"], "the API key is unknown" in refused["evidence"]) == ("not known", True)
    assert (lines["key"]["state"], lines["key"]["points"]) == ("known", 4)
    assert "scopes read, trade" in lines["key"]["evidence"]
    assert lines["clock"]["state"] == "known"
