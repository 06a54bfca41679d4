"""The notebooks of the docs: their cells run in their order, they hold no output, and they are small."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents import PAGES, README, ROOT, blocks

NOTEBOOK = ROOT / "docs" / "first-steps.ipynb"
BACKTEST = ROOT / "docs" / "backtest-in-a-notebook.ipynb"
BYTES_MAX = 16_384


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return found


def test_the_cells_run_in_their_order_and_show_a_trade(
    cells: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "ended by take_profit" in said
    assert re.search(r"^# Trades +[1-9]", said, re.MULTILINE)
    assert said.count(" trades\n") == 4
    assert list(tmp_path.iterdir()) == []


def test_the_cells_of_a_backtest_run_in_their_order_and_show_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(BACKTEST.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "stop_loss" in said
    assert len(set(re.findall(r"fast bars: (.+?) %", said))) == 3, "each value of the param has its own result"
    result = names["result"]
    assert result.trades["exit_at"].count() == result.figures["# Trades"] > 10
    assert result.equity["drawdown_pct"].min() == pytest.approx(result.figures["Max. Drawdown [%]"], abs=1e-6)
    assert (result.folder / "report.html").read_text().startswith("<!doctype html>")
    assert "<iframe" in result.plot()._repr_html_()


@pytest.mark.parametrize("notebook", [NOTEBOOK, BACKTEST], ids=lambda path: path.stem)
def test_it_is_a_small_notebook_without_output(notebook: Path) -> None:
    document = json.loads(notebook.read_text())
    assert (document["nbformat"], document["metadata"]["language_info"]["name"]) == (4, "python")
    assert notebook.stat().st_size < BYTES_MAX
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_its_strategy_is_that_of_the_readme_and_its_links_lead_to_pages(cells: list[dict[str, Any]]) -> None:
    (strategy,) = blocks("python", README.read_text())
    assert "".join(cells[1]["source"]).strip() == strategy.strip()
    links = re.findall(r"\]\((\S+?)\.md\)", "".join(line for cell in cells for line in cell["source"]))
    assert links and set(links) <= PAGES.keys()
    assert "first-steps.ipynb" in PAGES["tutorial"]
