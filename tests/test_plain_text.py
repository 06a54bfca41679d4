"""Text of others: what is taken out where it enters, and what is spelled out where it is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.plain_text import csv_cell, csv_text, one_line, plain_json, visible

UNSAFE = {
    "clear the screen": "\x1b[2J",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\",
    "hidden text": "\x1b[8m",
    "csi in one byte": "\x9b2J",
    "osc in one byte": "\x9d0;owned\x9c",
    "back to the start": "good\revil",
    "backspace": "evil\x08\x08\x08\x08good",
    "override": "\u202e\u2066",
    "no width": "a\u200bb\ufeff",
    "separator": "a\u2028b\u2029",
    "tags": "\U000e0041",
    "csi out of two bytes of a name": "\udcc2\udc9b2J",
    "byte of a name": "\udc9b2J",
    "half a pair": "\ud83d",
    "form feed": "a\x0cb\x0b",
    "delete": "\x7f",
    "nothing": "\x00",
}


@pytest.mark.parametrize("text", UNSAFE.values(), ids=UNSAFE.keys())
def test_no_unsafe_text_passes(text: str) -> None:
    shown, line, body = visible(text), one_line(text), plain_json(json.dumps({"text": text}).encode())
    assert shown.isascii() and "\\u" in shown and shown.isprintable()
    assert line.isprintable() and json.loads(body)["text"].isprintable()
    if text.encode("utf-8", "replace").decode() == text:
        assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text, "JSON keeps its meaning"


@pytest.mark.parametrize(
    "text", ["two\nlines\tand a tab", "CRLF\r\n", "größer, 日本, 🦀, €", "caf\udce9.csv", '{"a": "\\u001b"}']
)
def test_ordinary_output_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_spelling_twice_is_spelling_once(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert one_line(text).isprintable() and len(one_line(text)) == len(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_json_changes_only_letters_that_are_not_printable(value: object) -> None:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)
        body = text.encode("utf-8", "replace")
        assert json.loads(plain_json(body)) == _plain(json.loads(body))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {_plain(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return one_line(value) if isinstance(value, str) else value


def test_bytes_that_are_not_text_come_back_as_they_are() -> None:
    assert plain_json(b"\xff\xfe\\n") == b"\xff\xfe\\n"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-cmd", "'-cmd"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("-12.50", "-12.50"),
        ("+3", "+3"),
        ("-1e-8", "-1e-8"),
        ("-1+1", "'-1+1"),
        ("trend", "trend"),
        (True, "true"),
        (False, "false"),
        (None, None),
        (7, 7),
    ],
)
def test_no_cell_is_a_formula_and_a_number_stays_one(value: object, cell: object) -> None:
    assert csv_cell(value) == cell
    assert csv_text([{"it": value}], ["it"]).splitlines()[0] == "it"
