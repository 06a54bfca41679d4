"""`bot dashboard` as a process: its link, its files, its end, and what it says when it cannot run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.run.dashboard_process import end_left_dashboard
from bot.dashboard import server
from bot.extras import install
from tests.dashboard.browsing import enter, running

WAIT_S = 30


def test_a_dashboard_opens_by_its_link_gives_another_one_and_ends_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as (process, told):
        with contextlib.closing(enter(told["link"])) as client:
            page = client.get("/")
        assert page.status_code == 200
        assert "NOT RUNNING" in page.text, "no daemon runs in this folder"
        assert call(["dashboard", "--state-dir", str(tmp_path), "--json"]) == 0
        second = json.loads(capsys.readouterr().out)
        assert second["address"] == told["address"]
        assert second["link"] != told["link"]
        enter(second["link"]).close()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "")
    code = told["link"].partition("#")[2]
    assert code not in err, "no log has the code of a link"
    assert call(["dashboard", "--state-dir", str(tmp_path), "--link"]) == 1
    assert "no dashboard runs" in capsys.readouterr().err
    for name in (server.KEY_FILE, server.RECORD):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_dashboard_ends_when_its_state_directory_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    with running(folder) as (process, _):
        shutil.rmtree(folder)
        assert process.wait(WAIT_S) == 0


def test_only_the_dashboard_of_a_run_may_be_replaced_by_the_next_run(tmp_path: Path) -> None:
    assert server.left_by_run(tmp_path) is None
    with running(tmp_path):
        assert server.left_by_run(tmp_path) is None, "a person has started it"
    with running(tmp_path, "--of-run") as (process, _):
        assert server.left_by_run(tmp_path) == process.pid
        assert end_left_dashboard(tmp_path)
        assert process.wait(WAIT_S) == 0
    assert server.left_by_run(tmp_path) is None


def test_a_port_in_use_is_an_error_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert call(["dashboard", "--state-dir", str(tmp_path), "--port", str(port)]) == 4
    assert f"port {port} on 127.0.0.1 cannot be used" in capsys.readouterr().err


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert call(["dashboard", "--state-dir", str(tmp_path), "--port", "0"]) == 4
    assert install("ui") in capsys.readouterr().err


def test_a_key_that_was_cut_is_made_anew(tmp_path: Path) -> None:
    key = server.key_of(tmp_path)
    assert server.key_of(tmp_path) == key
    (tmp_path / server.KEY_FILE).write_bytes(key[:5])
    assert len(server.key_of(tmp_path)) == len(key)
    assert server.key_of(tmp_path) != key


def test_a_record_of_a_dashboard_that_was_killed_names_none(tmp_path: Path) -> None:
    (tmp_path / server.RECORD).write_text(json.dumps({"port": 1, "run_id": "x", "pid": os.getpid()}))
    assert server.running_in(tmp_path) is None
