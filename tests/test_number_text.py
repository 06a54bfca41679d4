"""Numbers, durations and instants have one form in the terminal, the report, the dashboard and the wallet page."""

from __future__ import annotations

from typing import Any

import pytest

from bot import number_text
from bot.backtest.report import summary
from bot.cli.common import formatting as terminal
from bot.dashboard.values import formatting as page
from bot.number_text import on_page

HOUR = 3_600
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("usd", "12345.6", "12,345.60"),
        ("usd", "-12", "-12.00"),
        ("usd", "-0.001", "0.00"),
        ("usd", None, "-"),
        ("usd", float("nan"), "-"),
        ("signed_usd", "12.3", "+12.30"),
        ("signed_usd", 0, "0.00"),
        ("signed_usd", "-0.004", "0.00"),
        ("cost_usd", "12.3", "-12.30"),
        ("cost_usd", "-0.5", "+0.50"),
        ("cost_usd", "0", "0.00"),
        ("px", "104310.5", "104,310.50"),
        ("px", "3768.1", "3,768.10"),
        ("px", "0.000123456789", "0.000123457"),
        ("px", 0, "0"),
        ("px", "1e30", "1" + ",000" * 10 + ".00"),
        ("size", "1200.00100", "1,200.001"),
        ("pct", "-0.5", "-0.50 %"),
        ("share", "0.4781", "47.8 %"),
        ("multiple", "2.961", "+2.96 R"),
        ("duration", 0, "0 s"),
        ("duration", 8.4, "8 s"),
        ("duration", 90, "1 min 30 s"),
        ("duration", 59.6, "1 min"),
        ("duration", HOUR, "1 h"),
        ("duration", DAY - 1, "23 h 59 min"),
        ("duration", DAY + 5, "1 d"),
        ("duration", 3 * DAY + 4 * HOUR, "3 d 4 h"),
        ("duration", (2 * 365 + 294) * DAY, "2 y 294 d"),
        ("duration", -2 * HOUR, "-2 h"),
        ("duration", None, "-"),
        ("instant", 1_795_132_800_000, "20 Nov 2026 00:00:00"),
    ],
)
def test_a_figure_has_one_form(form: str, value: Any, text: str) -> None:
    assert getattr(number_text, form)(value) == text
    on_pages = {"multiple": "r"}.get(form, form)
    assert getattr(page, on_pages)(value) == on_page(text)


def test_the_terminal_and_the_report_use_these_forms() -> None:
    assert terminal.px("104310.5") == number_text.px("104310.5")
    assert terminal.usd("-3", signed=True) == number_text.signed_usd("-3")
    assert summary.figure_of("Max. Drawdown Duration [h]", 25.0).text == "1 d 1 h"
    assert [summary.figure_of(name, "2.5").text for name in ("feesUsd", "slippageUsd", "fundingUsd")] == [
        "-2.50",
        "-2.50",
        "+2.50",
    ]
