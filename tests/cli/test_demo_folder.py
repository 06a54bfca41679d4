"""The demo's folder where a daemon's is asked for: its run that goes on, else its last one."""

from __future__ import annotations

from pathlib import Path

from bot.cli.place import find
from bot.cli.statedir import DemoFolder


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
