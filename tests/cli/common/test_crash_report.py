"""What is said of an error that no command expects."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.common import crash_report


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(crash_report, "_place", [])


def told(error: OSError) -> int:
    try:
        raise error
    except OSError as raised:
        return crash_report.tell(raised)


def denied(path: str) -> OSError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


@pytest.mark.parametrize(
    "arguments", [["status", "--state-dir"], ["kill", "--state-dir"], ["replay"], ["report"], ["strategies", "--dir"]]
)
def test_a_path_that_cannot_be_looked_at_is_named(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / ("x" * 1_000)
    assert call([*arguments, str(there)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {there}")
    assert said.endswith(": File name too long\n")
    assert not (tmp_path / "state").exists(), "there is no story to tell"


def test_what_is_not_open_to_this_user_has_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(denied("/var/lib/bot-live")) == 1
    assert capsys.readouterr().err == (
        f"error: /var/lib/bot-live: Permission denied (as user {os.geteuid()}): run this as the user that it belongs to, or with sudo\n"
    )


@pytest.mark.parametrize("arguments", [["check", "x.yaml"], ["init", "new"], ["mcp"]])
def test_a_working_directory_that_is_gone_is_said_to_be_so(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert call(arguments) == 1
    assert capsys.readouterr().err == "error: the folder that this runs in is no longer there: cd to one that is\n"
    assert not (tmp_path / "state").exists()


def test_in_a_run_it_is_a_mistake_of_ours_with_its_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crash_report.goes_to(tmp_path / "crash.log")
    told(denied("/run/user/1000"))
    assert "a mistake of Bracketbot's own: PermissionError" in capsys.readouterr().err
    assert "/run/user/1000" in (tmp_path / "crash.log").read_text()


def test_another_error_keeps_its_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/x"))
    assert f"The whole story is in {tmp_path}/state/bot/crash.log" in capsys.readouterr().err
