"""A figure and a column have one form, one judgement and one place each, on every page."""

from __future__ import annotations

from typing import Any

import pytest

from bot.figures import FORMS, JUDGED, LEFT, Column, Figure


@pytest.mark.parametrize(
    ("form", "value", "text", "tone"),
    [
        ("gain", "-3.456", "-3.46", "down"),
        ("gain", 0, "0.00", "flat"),
        ("change", 98.553, "+98.55 %", "up"),
        ("r", 2.961, "+2.96 R", "up"),
        ("cost", "12.3", "-12.30", "flat"),
        ("fall", -26.891, "-26.89 %", "flat"),
        ("percent", 23.051, "23.05 %", "flat"),
        ("share", 47.81, "47.8 %", "flat"),
        ("ratio", 0.789, "0.79", "flat"),
        ("count", 12345, "12,345", "flat"),
        ("px", "130007", "130,007.00", "flat"),
        ("size", "0.0272900", "0.02729", "flat"),
        ("hours", 208, "8 d 16 h", "flat"),
        ("seconds", 90, "1 min 30 s", "flat"),
        ("usd", "9854.811", "9,854.81", "flat"),
    ],
)
def test_a_figure_and_a_column_show_a_value_alike(form: str, value: Any, text: str, tone: str) -> None:
    figure, column = Figure("a", value, form, "higher"), Column("a", form, "higher")
    on_page = text.replace("-", "−")
    assert (figure.text, figure.shown, figure.tone) == (text, on_page, tone)
    assert (column.text(value), column.shown(value), column.tone(value)) == (text, on_page, tone)
    assert column.kind == "right"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_a_dash_for_what_does_not_exist_and_words_for_what_is_not_known(form: str) -> None:
    missing = Figure("a", None, form, "higher")
    assert (missing.text, missing.shown, missing.tone) == ("-", "–", "flat")
    unknown = Figure("a", 5, form, "higher", state="unknown")
    assert (unknown.text, unknown.shown, unknown.tone) == ("not known", "not known", "flat")
    assert Figure("a", 5, form, "higher", state="old").tone == "flat", "an old figure has no colour"
    assert ("right" in Column("a", form).kind.split()) == (form not in LEFT)


@pytest.mark.parametrize(
    ("figure", "before", "after", "change", "tone"),
    [
        (Figure("a", form="usd", better="higher"), 1, 3, "+2.00", "up"),
        (Figure("a", form="fall", better="higher"), -1, -3, "-2.00 %", "down"),
        (Figure("a", form="cost", better="lower"), "10", "12.5", "-2.50", "down"),
        (Figure("a", form="hours", better="lower"), 90.0, 190.5, "+4 d 4 h", "down"),
        (Figure("a", form="count"), 3, 2, "-1", "flat"),
        (Figure("a", form="share", better="higher"), 50, 50, "0.0 %", "flat"),
        (Figure("a", form="ratio", better="higher"), None, 2, "-", "flat"),
    ],
)
def test_a_change_is_judged_by_better_and_not_by_its_sign(
    figure: Figure, before: Any, after: Any, change: str, tone: str
) -> None:
    assert figure.change(before, after) == (change, tone)


def test_a_text_of_others_keeps_its_signs() -> None:
    assert Column("Market", "words").shown("event:no-deal -1") == "event:no-deal -1"
    assert Column("a", "r").title == "a"
    assert Column("Fees", "cost", unit="USD", phone="drop").title == "Fees, USD"
    assert Column("Fees", "cost", unit="USD", phone="drop").kind == "right drop"
    assert set(FORMS) > JUDGED
