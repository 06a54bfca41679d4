"""Runs the commands of docs/backtesting.md line by line in a new folder, as a user would type them."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from bot.cli.app import call
from tests.documents import PAGES, ROOT, blocks


def test_the_commands_of_the_backtesting_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (block,) = blocks("text", PAGES["backtesting"])
    for name in ("configs", "strategies"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    said: dict[str, str] = {}
    for line in block.splitlines():
        runs = sorted(Path("runs").glob("*"), key=lambda run: run.stat().st_mtime_ns) if Path("runs").exists() else []
        names = {"RUN": str(runs[-1]), "OTHER": str(runs[0])} if runs else {}
        words = [names.get(word, word) for word in shlex.split(line, comments=True)]
        assert words[0] == "bot"
        code = call(words[1:])
        out, err = capsys.readouterr()
        assert code == 0, (line, err)
        said[words[1]] = said.get(words[1], "") + out
    assert set(said) == {"data", "backtest", "report", "compare", "replay"}
    assert "causal: equal decisions" in said["backtest"]
    assert "the events differ" in said["compare"]
    assert "equal: every decision and every fill is the same" in said["replay"]
    assert list(Path("runs").glob("*/report.html"))
