"""Tables on a terminal fit its width, and nothing of them is cut."""

from __future__ import annotations

import pytest

from bot.cli.common.text_table import screen_width, table_lines, text_width

MAP = (["", *(str(n) for n in range(20, 420, 20))], [[str(n), *["+0.81"] * 20] for n in range(20, 420, 20)])
LONG = (["train", "params", "trades"], [["2025-01-01", ", ".join(f"trend.slow_bars {n}" for n in range(9)), "12"]])
WORD = (["id", "name"], [["1", "x" * 300]])
NAMES = (["name", "why"], [["a" * 200, "b" * 200], ["交易" * 100, "c"], ["מסחר " * 40, "d"]])
EMPTY = (["", "A", ""], [["Trades", "1", ""], ["", "2", ""]])


@pytest.mark.parametrize("table", [MAP, LONG, WORD, NAMES, EMPTY], ids=["map", "long", "word", "names", "empty"])
@pytest.mark.parametrize("width", [40, 80, 200, 1000, None])
def test_no_line_is_wider_than_the_screen_and_every_cell_is_there(
    table: tuple[list[str], list[list[str]]], width: int | None
) -> None:
    heads, rows = table
    lines = table_lines(heads, rows, right=range(1, len(heads)), width=width)
    assert width is None or max(map(text_width, lines)) <= width
    assert "…" not in "\n".join(lines)
    shown = "".join("\n".join(lines).split())
    for cell in [*heads, *(cell for row in rows for cell in row)]:
        for word in cell.split():
            assert word in shown or len(word) >= 200
    assert shown.count("x") >= ("x" * 300 in shown) * 300


def test_each_part_of_a_wide_table_repeats_the_first_column() -> None:
    lines = table_lines(*MAP, right=range(21), width=80)
    parts = "\n".join(lines).split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert [line.split()[0] for line in part.splitlines()[1:]] == [row[0] for row in MAP[1]]
    heads = [head for part in parts for head in part.splitlines()[0].split()]
    assert heads == MAP[0][1:]


def test_columns_stand_below_each_other_whatever_letters_they_have() -> None:
    lines = table_lines(["name", "n"], [["交易", "1"], ["e\u0301te", "2"], ["abcd", "3"]])
    assert {text_width(line[:-1]) for line in lines} == {6}


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_a_table_has_a_line_for_its_head_and_for_each_row(count: int) -> None:
    assert len(table_lines(["a", "b"], [[str(n), ""] for n in range(count)], width=40)) == count + 1


def test_a_row_of_another_width_than_the_heads_is_refused() -> None:
    with pytest.raises(AssertionError, match="2 heads over rows of"):
        table_lines(["a", "b"], [["1", "2"], ["1"]])


def test_the_width_is_that_of_the_terminal_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert screen_width() == 72
    monkeypatch.setenv("COLUMNS", "wide")
    assert screen_width() is None, "the output of a test is no terminal"
