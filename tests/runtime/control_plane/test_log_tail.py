"""The tail of the log: bounded in memory and on disk, and harmless if the disk fails."""

from __future__ import annotations

import json
import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bot.runtime.control_plane.log_tail import Tail, last_lines, older


def test_memory_keeps_the_newest_lines_and_a_follower_misses_none_of_them(tmp_path: Path) -> None:
    tail = Tail(None, lines_max=5)
    for n in range(8):
        tail({"event": "n", "n": n, "timestamp": "dropped"})
    assert [one.event for one in tail.newest(2)] == [{"event": "n", "n": 6}, {"event": "n", "n": 7}]
    assert [one.seq for one in tail.after(5, 2)] == [6, 7]
    assert [one.seq for one in tail.after(0, 99)] == [4, 5, 6, 7, 8], "what has gone is left out"
    assert tail.after(8, 9) == []
    assert tail.newest(0) == []


def test_the_time_of_a_line_is_when_it_was_logged(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "daemon.log")
    tail({"event": "bar.closed", "at_ms": 60_000, "seq": "mine"})
    tail.close()
    (line,), (kept,) = tail.newest(1), last_lines(tmp_path / "daemon.log", 1)
    assert line.event == {"event": "bar.closed", "of_ms": 60_000, "of_seq": "mine"}
    assert kept == {"at_ms": line.at_ms, **line.event}
    assert line.at_ms > 60_000


def test_the_file_is_for_its_owner_and_bounded_and_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    tail = Tail(path, bytes_max=2_000)
    for n in range(200):
        tail({"event": "n", "n": n})
    tail.close()
    assert path.stat().st_size + older(path).stat().st_size < 2 * 2_100
    assert path.stat().st_mode & 0o077 == 0
    assert [one["n"] for one in last_lines(path, 30)] == list(range(170, 200)), "across both files"
    with path.open("a") as file:
        file.write("not ours\n" + json.dumps([1]) + "\n")
    assert last_lines(path, 1)[0]["n"] == 199
    assert last_lines(tmp_path / "none", 5) == []


def test_threads_that_log_at_once_lose_no_line_and_write_into_no_other_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "daemon.log", lines_max=2_000, bytes_max=200)
    with ThreadPoolExecutor(4) as threads:
        told = [threads.submit(tail, {"event": "n", "n": n}) for n in range(2_000)]
        seen = [threads.submit(tail.newest, 9) for _ in range(50)]
    assert [one.exception() for one in [*told, *seen]] == [None] * 2_050
    assert [one.seq for one in tail.newest(2_000)] == list(range(1, 2_001))
    tail.close()
    assert all(one["event"] == "n" for one in last_lines(tmp_path / "daemon.log", 99))


def test_a_log_file_that_cannot_be_written_is_reported_once_and_stops_nothing(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "no such folder" / "daemon.log")
    for n in range(3):
        tail({"event": "n", "n": n})
    assert [one.event["event"] for one in tail.newest(9)] == ["n", "log.unwritten", "n", "n"]


def test_one_line_cannot_fill_the_memory() -> None:
    tail = Tail(None)
    tail({"event": "long", "text": "x" * 1_000_000, "list": ["y" * 1_000_000], "n": 3, "short": [1]})
    (line,) = tail.newest(1)
    assert len(str(line.event)) < 10_000
    assert line.event["text"].endswith("(1000000 characters)")
    assert (line.event["n"], line.event["short"]) == (3, [1])


def test_one_line_cannot_fill_the_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "daemon.log")
    tail({"event": "long", "text": "x" * 1_000_000})
    tail.close()
    assert last_lines(tmp_path / "daemon.log", 1)[0]["event"] == "long"
    assert (tmp_path / "daemon.log").stat().st_size < 5_000


@pytest.mark.parametrize("is_quiet", [False, True])
@pytest.mark.parametrize("moved", ["renamed", "removed", "replaced"])
def test_a_moved_file_is_made_anew_with_the_newest_lines(moved: str, *, is_quiet: bool, tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    tail = Tail(path)
    for n in range(3):
        tail({"event": "n", "n": n})
    if moved == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "daemon.log.20260101")
    if moved == "replaced":
        path.write_text("")
    if is_quiet:
        tail.follow()
        tail.follow()
    else:
        tail({"event": "n", "n": 3})
    tail.close()
    assert [one["n"] for one in last_lines(path, 9)] == list(range(3 if is_quiet else 4))
    assert path.stat().st_mode & 0o077 == 0 or moved == "replaced"


def test_a_truncated_file_is_written_on_and_a_file_that_nobody_opened_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    tail = Tail(path)
    tail.follow()
    assert not path.exists()
    tail({"event": "n", "n": 0})
    os.truncate(path, 0)
    tail.follow()
    tail({"event": "n", "n": 1})
    tail.close()
    assert [one["n"] for one in last_lines(path, 9)] == [1]


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_removed_folder_that_comes_back_gets_the_newest_lines(*, is_quiet: bool, tmp_path: Path) -> None:
    path = tmp_path / "state" / "daemon.log"
    path.parent.mkdir()
    tail = Tail(path)
    tail({"event": "n", "n": 0})
    shutil.rmtree(path.parent)
    tail({"event": "n", "n": 1})
    path.parent.mkdir()
    tail._retry_ms = 0
    if is_quiet:
        tail.follow()
        tail.follow()
    else:
        tail({"event": "n", "n": 2})
    tail.close()
    wanted: list[int | None] = [0, 1, None] if is_quiet else [0, 1, None, 2]
    assert [one.get("n") for one in last_lines(path, 9)] == wanted, (
        "the note that it could not be written is a line, too"
    )


def test_a_file_that_a_rotation_truncates_is_not_rotated_by_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    tail = Tail(path, bytes_max=1_000)
    for n in range(50):
        tail({"event": "n", "n": n})
        os.truncate(path, 0)
    tail.close()
    assert [one.name for one in tmp_path.iterdir()] == ["daemon.log"]


def test_a_line_that_the_disk_took_in_part_spoils_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    tail = Tail(path)
    tail({"event": "n", "n": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))
    try:
        tail({"event": "n", "n": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tail._retry_ms = 0
    tail({"event": "n", "n": 2})
    tail.close()
    assert [one.event["event"] for one in tail.newest(9)] == ["n", "n", "log.unwritten", "n"]
    assert path.read_text().splitlines()[1] == '{"at_'
    assert [one["n"] for one in last_lines(path, 9)] == [0, 2]
