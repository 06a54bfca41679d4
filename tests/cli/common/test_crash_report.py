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
    monkeypatch.setattr(crash_report, "_report_file", [])


def told(error: OSError) -> int:
    try:
        raise error
    except OSError as raised:
        return crash_report.print_error(raised)


def denied(path: str) -> OSError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


@pytest.mark.parametrize(
    "arguments", [["status", "--state-dir"], ["kill", "--state-dir"], ["replay"], ["report"], ["strategies", "--dir"]]
)
def test_an_error_of_the_file_system_names_its_path(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / ("x" * 1_000)
    assert call([*arguments, str(there)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {there}")
    assert said.endswith(": File name too long\n")
    assert not (tmp_path / "state").exists(), "no traceback is written"


def test_a_file_that_this_user_may_not_read_is_an_error_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert told(denied("/var/lib/bot-live")) == 1
    assert (
        capsys.readouterr().err
        == f"error: /var/lib/bot-live: Permission denied (as user {os.geteuid()}): run this as the owner of that file,"
        " or with sudo\n"
    )


@pytest.mark.parametrize("arguments", [["check", "x.yaml"], ["init", "new"], ["mcp"]])
def test_a_removed_working_directory_is_an_error_that_says_what_to_do(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert call(arguments) == 1
    assert capsys.readouterr().err == "error: the current folder no longer exists: cd to another one\n"
    assert not (tmp_path / "state").exists()


def test_in_a_running_daemon_a_file_error_is_a_bug_with_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash_report.write_to(tmp_path / "crash.log")
    told(denied("/run/user/1000"))
    assert "a bug in Bracketbot: PermissionError" in capsys.readouterr().err
    assert "/run/user/1000" in (tmp_path / "crash.log").read_text()


def test_the_traceback_of_another_error_is_written_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/x"))
    assert f"The traceback is in {tmp_path}/state/bot/crash.log" in capsys.readouterr().err
