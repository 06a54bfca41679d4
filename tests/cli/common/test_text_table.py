"""Tables on a terminal fit its width, and nothing of them is cut."""

from __future__ import annotations

import pytest

from bot.cli.common.text_table import screen_width, table_lines

MAP = (["", *(str(n) for n in range(20, 420, 20))], [[str(n), *["+0.81"] * 20] for n in range(20, 420, 20)])
LONG = (["train", "params", "trades"], [["2025-01-01", ", ".join(f"trend.slow_bars {n}" for n in range(9)), "12"]])
WORD = (["id", "name"], [["1", "x" * 300]])


@pytest.mark.parametrize("table", [MAP, LONG, WORD], ids=["map", "long", "word"])
@pytest.mark.parametrize("width", [40, 80, 120, 1000, None])
def test_no_line_is_wider_than_the_screen_and_every_cell_is_there(
    table: tuple[list[str], list[list[str]]], width: int | None
) -> None:
    heads, rows = table
    lines = table_lines(heads, rows, right=range(1, len(heads)), width=width)
    assert width is None or max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)
    shown = "".join("\n".join(lines).split())
    for cell in [*heads, *(cell for row in rows for cell in row)]:
        for word in cell.split():
            assert word in shown or word == "x" * 300
    assert shown.count("x") >= ("x" * 300 in shown) * 300


def test_each_part_of_a_wide_table_repeats_the_first_column() -> None:
    lines = table_lines(*MAP, right=range(21), width=80)
    parts = "\n".join(lines).split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert [line.split()[0] for line in part.splitlines()[1:]] == [row[0] for row in MAP[1]]
    heads = [head for part in parts for head in part.splitlines()[0].split()]
    assert heads == MAP[0][1:]


def test_a_row_of_another_width_than_the_heads_is_refused() -> None:
    with pytest.raises(AssertionError, match="2 heads over rows of"):
        table_lines(["a", "b"], [["1", "2"], ["1"]])


def test_the_width_is_that_of_the_terminal_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert screen_width() == 72
    monkeypatch.setenv("COLUMNS", "wide")
    assert screen_width() is None, "the output of a test is no terminal"
