"""Tables of pages: one function builds head and rows, and refuses rows of another width."""

from __future__ import annotations

import pytest

from bot.backtest.report.tables import heat_map, table
from bot.figures import Column
from tests.html_tables import tables_of, uneven_tables


def test_a_heat_map_has_each_value_under_its_own_head() -> None:
    page = heat_map("slow \\ fast", ["20", "40"], [("100", [1.0, -2.0]), ("200", [None, 3.0])], "map")
    assert tables_of(page) == [[["slow \\ fast", "20", "40"], ["100", "+1.00", "−2.00"], ["200", "", "+3.00"]]]


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        table((Column("a"), Column("b")), [("1", "2", "3")])
    with pytest.raises(AssertionError, match="2 heads over rows of"):
        heat_map("", ["20"], [("100", [1.0, 2.0])], "map")


def test_an_uneven_table_is_found() -> None:
    page = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td></tr></table>"
    assert uneven_tables(page) == ["['a', 'b']: rows of [1, 2] cells"]
    assert uneven_tables("<table><tr><th>a</th><th>b</th></tr><tr><td colspan=2>1</td></tr></table>") == []
