"""The demo's folder where a daemon's is asked for: its run that goes on, else its last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.cli.common.daemon_client import find
from bot.cli.common.demo_folders import DemoFolder
from bot.cli.run.embedded_service import Embedded
from bot.cli.start.demo import Demo


def test_the_demos_own_folder_means_its_newest_run_and_any_other_folder_itself(tmp_path: Path) -> None:
    assert find(None, tmp_path).folder == tmp_path
    demo = DemoFolder(tmp_path)
    old = tmp_path / "20260101-000000-000"
    old.mkdir()
    run = demo.begin(clock="60x", data=[])
    assert find(None, tmp_path).folder == run
    demo.ended()
    assert find(None, tmp_path).folder == run, "the last one, for its logs"
    assert find(None, old).folder == old


def test_the_demo_keeps_its_last_five_runs_whatever_the_clock_says(tmp_path: Path) -> None:
    demo = DemoFolder(tmp_path)
    old = [tmp_path / f"2025010{n}-000000-000" for n in range(1, 8)]
    ahead = [tmp_path / f"2199010{n}-000000-000" for n in range(1, 6)]
    for one in old:
        one.mkdir()
    run = demo.begin(clock="60x", data=[])
    demo.tidy(run)
    assert sorted(one for one in tmp_path.iterdir() if one.is_dir()) == [*old[3:], run]
    for one in ahead:
        one.mkdir()
    demo.tidy(run)
    assert sorted(one for one in tmp_path.iterdir() if one.is_dir()) == [run, *ahead[1:]]


def test_what_was_killed_is_continued_unless_a_fresh_run_is_wanted_whose_service_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Path] = []
    monkeypatch.setattr(Embedded, "stop", lambda service: stopped.append(service.folder))
    demo = Demo(tmp_path, (), None, has_dashboard=False, as_json=True)
    killed = tmp_path / "20250101-000000-000"
    killed.mkdir()
    demo.runs._mark({"run": killed.name, "clock": "60x", "data": []})
    again = demo._begin(fresh=False)
    assert (again.folder, again.continued, stopped) == (killed, True, [])
    fresh = demo._begin(fresh=True)
    assert (fresh.continued, stopped) == (False, [killed])
    assert fresh.folder != killed
    assert find(None, tmp_path).folder == fresh.folder
