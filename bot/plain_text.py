"""Text of others in a form that is safe to show: on one line (`one_line`), as JSON of a service (`plain_json`), as
output (`visible`), or as a file for spreadsheets (`csv_text`).

Pure.

Text of others is what a service, a model, an exchange, a chat or a file wrote. Where it enters, `one_line` and
`plain_json` take away each character that is not printable: controls, line breaks, and the marks that turn the
direction of a line. `bot.terminal` puts `visible` in front of everything that is written to a terminal, so that a
text from anywhere else cannot move the cursor or set the clipboard.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, Final

# Controls without tab and line feed; C1 controls; marks of direction and of no width; separators of lines; tags; lone
# surrogates. The bytes of a file name that is not UTF-8 (dca0 to dcff) stay, because such a path must be printed as
# it is.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udc9f\udd00-\udfff\U000e0000-\U000e0fff]|\r(?!\n)"
)
_HELD_BYTES: Final = re.compile("[\udc80-\udcff]+")
# An escaped pair is one letter.
_JSON_MARK: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]|[^\x00-\x7e]"
)
_JSON_BREAKS: Final = frozenset(("\\b", "\\f", "\\n", "\\r", "\\t"))


def one_line(text: str, most: int | None = None) -> str:
    """The text with a blank for each character that is not printable, cut to `most` characters."""
    cut = text[:most]
    return cut if cut.isprintable() else "".join(letter if letter.isprintable() else " " for letter in cut)


def visible(text: str) -> str:
    """The text as it may be written to a terminal: each unsafe character is spelled as in JSON, so that JSON keeps
    its meaning.
    """
    if text.isascii() and text.isprintable():
        return text
    # Bytes that Python holds one by one can make a control character when they are written together.
    return _UNSAFE.sub(_spelled, _HELD_BYTES.sub(_joined, text))


def plain_json(body: bytes) -> bytes:
    """The JSON with a blank for each character of its texts that is not printable.

    Bytes that are not UTF-8 come back as they are.
    """
    if b"\\" not in body and body.isascii() and b"\x7f" not in body:
        return body
    try:
        return _JSON_MARK.sub(_plain_mark, body.decode()).encode()
    except UnicodeDecodeError:
        return body


def _joined(held: re.Match[str]) -> str:
    return held[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _spelled(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    above = code - 0x10000
    return f"\\u{0xD800 + (above >> 10):04x}\\u{0xDC00 + (above & 0x3FF):04x}"


def _plain_mark(mark: re.Match[str]) -> str:
    text = mark[0]
    if text in _JSON_BREAKS:
        return " "
    letter = json.loads(f'"{text}"') if text.startswith("\\u") else text
    return text if letter.isprintable() else " "


# A spreadsheet calculates a cell that begins so.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet calculates. A number stays a number; booleans are spelled as in JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """The rows as CSV under the names of the columns; None is an empty cell."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()
