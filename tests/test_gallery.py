"""The gallery of strategies: each is short, stands on its page, and gets a verdict that its figures carry."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.common.files import example
from bot.cli.start.templates import TEMPLATES
from tests.bench.gallery import HEADS, Row, measured, table, verdict

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gallery.md"
GOOD = Row("it", 200, 10.0, 9.0, 11.0, 0.2, 3.0, 2.0, None)


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_template_is_short_and_stands_on_the_page(name: str) -> None:
    lines = example(TEMPLATES[name].source).read_text().splitlines()
    assert len(lines) <= 80
    assert f"| `{name}` |" in PAGE.read_text()
    assert (example("templates") / f"test_{TEMPLATES[name].module}.py").is_file()


def test_the_table_of_the_page_has_a_verdict_for_each_strategy_that_trades_candles() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", PAGE.read_text().partition("<!-- table -->")[2], re.MULTILINE)
    assert [name for name, _ in rows] == [name for name in TEMPLATES if name != "event-market"]
    assert all(cells.count("|") == len(HEADS) - 2 for _, cells in rows)


@pytest.mark.parametrize(
    ("row", "deflated", "said"),
    [
        (GOOD, 0.97, "an edge in these candles"),
        (GOOD, 0.94, "by luck is as good"),
        (GOOD, None, "by luck is as good"),
        (replace(GOOD, trades=29), 0.99, "too few trades"),
        (replace(GOOD, lowest=-1.0), 0.99, "its sign depends"),
        (replace(GOOD, returned=-2.0, lowest=-3.0, highest=-1.0), 0.0, "it loses"),
        (replace(GOOD, holdout=-0.1), 0.99, "loses in the holdout"),
        (replace(GOOD, lowest=4.0, highest=12.0), 0.99, "not believable"),
    ],
)
def test_the_verdict_follows_from_the_figures(row: Row, deflated: float | None, said: str) -> None:
    assert said in verdict(row, deflated)


def test_a_random_walk_shows_no_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["data", "gen", "BTC", "--from", "2025-01-01", "--days", "60", "--interval", "1h", "--seed", "7"]) == 0
    row = measured(TEMPLATES["breakout"], tmp_path / "data", tmp_path)
    assert row.trades > 0
    assert row.lowest <= row.returned <= row.highest
    assert "edge in these candles" not in table([row, row])[2]
