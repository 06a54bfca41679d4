"""Numbers as traders read them."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.dashboard.values import formatting


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (formatting.usd, "12345.6", "12,345.60"),
        (formatting.usd, -12, "−12.00"),
        (formatting.usd, None, "–"),
        (formatting.usd, "no number", "–"),
        (formatting.usd, float("nan"), "–"),
        (formatting.signed_usd, 12.3, "+12.30"),
        (formatting.signed_usd, Decimal("-1234.5"), "−1,234.50"),
        (formatting.signed_usd, 0, "0.00"),
        (formatting.signed_usd, "-0.001", "0.00"),
        (formatting.px, 104310, "104,310.00"),
        (formatting.px, 104310.5, "104,310.50"),
        (formatting.px, "0.000123456", "0.000123456"),
        (formatting.px, "2519.5", "2,519.50"),
        (formatting.px, 0, "0"),
        (formatting.size, "1200.00100", "1,200.001"),
        (formatting.pct, "-0.5", "−0.50 %"),
        (formatting.share, "0.123", "12.3 %"),
        (formatting.r, "1.249", "+1.25 R"),
        (formatting.times, "2.0", "2×"),
        (formatting.duration, 93_784, "1 d 2 h"),
        (formatting.duration, 0.4, "0 s"),
        (formatting.duration, None, "–"),
        (formatting.instant, 1_795_132_800_000, "20 Nov 2026 00:00:00"),
    ],
)
def test_a_value_is_shown_as(function: Any, value: Any, text: str) -> None:
    assert function(value) == text


@pytest.mark.parametrize(("value", "word"), [(1, "up"), (-1, "down"), (0, "flat"), (None, "flat")])
def test_a_figure_has_a_direction_beside_its_colour(value: Any, word: str) -> None:
    assert formatting.direction(value) == word


# What has no better or worse: the side of a position, an order, a fill or a book, and a kind of event.
NEUTRAL = ("long", "short", "bought", "sold", "asks", "bids", "buy", "sell", "trigger", "fill", "liquidation", "side")
SHEETS = ("bot/dashboard/static/dashboard.css", "bot/backtest/report/charts.css", "bot/backtest/report/page.css")


@pytest.mark.parametrize("sheet", [*SHEETS, "bot/service/docs/html.py", "bot/research/sweep_page.py"])
def test_no_side_and_no_kind_has_the_colour_of_better_or_worse(sheet: str) -> None:
    """Only the tone of a figure has one, and a level that the price has reached."""
    text = (Path(__file__).parents[2] / sheet).read_text()
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        if re.search(r"var\(--(up|down)\)", body):
            classes = set(re.findall(r"\.([a-z]+)", selectors))
            assert classes.isdisjoint({*NEUTRAL} - ({"liquidation"} if {"level", "lv", "tag"} & classes else set()))
