"""The notebook of first steps: its cells run in their order, it holds no output, and it is small."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.documents import PAGES, README, ROOT, blocks

NOTEBOOK = ROOT / "docs" / "first-steps.ipynb"
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


def test_it_is_a_small_notebook_without_output(cells: list[dict[str, Any]]) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    assert NOTEBOOK.stat().st_size < BYTES_MAX
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_its_strategy_is_that_of_the_readme_and_its_links_lead_to_pages(cells: list[dict[str, Any]]) -> None:
    (strategy,) = blocks("python", README.read_text())
    assert "".join(cells[1]["source"]).strip() == strategy.strip()
    links = re.findall(r"\]\((\S+?)\.md\)", "".join(line for cell in cells for line in cell["source"]))
    assert links and set(links) <= PAGES.keys()
    assert "first-steps.ipynb" in PAGES["tutorial"]
