"""How a file writes its numbers: the decimal sign, signs between thousands, 45.2K, prices in units of 1e-9."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from bot.backtest.data import column_files
from bot.backtest.data.table_layout import ColumnMap, TwoReadings
from bot.errors import ConfigError

# What stands between thousands beside the sign that is not the decimal one: blanks and the apostrophe of Switzerland.
_BLANKS: Final = " '\u2019\u00a0\u2009\u202f"
# A number in groups of three by the decimal sign.
_GROUPED: Final = {
    sign: re.compile(
        rf"[+-]?[1-9][0-9]{{0,2}}(?:([{re.escape(other)}{_BLANKS}])[0-9]{{3}})(?:\1[0-9]{{3}})*(?:{re.escape(sign)}[0-9]*)?"
    )
    for sign, other in ((".", ","), (",", "."))
}
# One sign with three digits behind it: a decimal sign, or one between thousands.
_EITHER: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
# A number without a sign between its thousands.
_LARGE: Final = re.compile(r"\s*[0-9]{4,}\s*", re.ASCII)
_SHORT: Final = re.compile(r"([+-]?[0-9]+(?:[.,][0-9]+)?) ?([KMBkmb])")
_POWERS: Final = {"k": "e3", "m": "e6", "b": "e9"}
_UNITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
# Databento's price that is none, the largest number of 64 bits.
_UNDEFINED: Final = str(column_files.INT64_MAX)


class NumberStyle:
    """The numbers of one file. Its decimal sign is decided once, by `--decimal` or by the first cells that tell it."""

    def __init__(self, path: Path, mapped: ColumnMap) -> None:
        self._path = path
        self._decimal = None if mapped.decimal == "auto" else mapped.decimal
        # True: prices are whole numbers of 1e-9; None: not known yet, as Databento writes them so or with a point
        self._is_fixed: bool | None = None if mapped.may_be_fixed else False

    def look(self, columns: Sequence[Sequence[str]], rows: Sequence[int], *, is_by_semicolons: bool = False) -> None:
        """Decide the decimal sign from the numbers of some rows. TwoReadings if they can be read with both: by a comma,
        or in a table by semicolons, as they are written where the comma is the decimal point, by a point.
        """
        if self._decimal is not None:
            return
        places = [
            (row, cell.strip())
            for cells in columns
            for row, cell in zip(rows, cells, strict=True)
            if "," in cell or "." in cell
        ]
        marked = [place for place in places if "," in place[1]]
        told = set(filter(None, (_sign_of(cell) for _, cell in marked or places)))
        if marked and not told:
            told = set(filter(None, (_sign_of(cell) for _, cell in places)))
        if not marked and is_by_semicolons and any(map(_LARGE.fullmatch, chain.from_iterable(columns))):
            told.add(".")
        either = next((place for place in marked or places if _EITHER.fullmatch(place[1])), None)
        if told:
            self._decimal = "," if told == {","} else "."
        elif either is not None and (marked or is_by_semicolons):
            row, cell = either
            whole = cell.replace(",", "").replace(".", "")
            raise TwoReadings(
                f"{self._path}: row {row}: {cell!r} may be {whole} or {cell.replace(',', '.')}: no cell tells whether"
                f" the {'comma' if marked else 'point'} is the decimal point; say which with --decimal . or"
                " --decimal ,",
                {"--decimal .": {"decimal": "."}, "--decimal ,": {"decimal": ","}},
            )

    def values(self, texts: Sequence[str], rows: Sequence[int], name: str, *, is_plain: bool = False) -> array[float]:
        """A column of numbers. The error for another notation says which option to use."""
        if self._decimal != "," and self._is_fixed is False:
            try:
                return column_files.floats(column_files.Block([list(texts)], rows, is_plain), 0, self._path, name)
            except ConfigError:
                pass
        return array("d", self._each(texts, rows, name))

    def _each(self, texts: Sequence[str], rows: Sequence[int], name: str) -> Iterator[float]:
        for text, row in zip(texts, rows, strict=True):
            cell = text.strip()
            if self._is_fixed is not False and name != "volume":
                yield float(self._fixed(cell, row, name))
                continue
            number, short = self._in_point(cell), _SHORT.fullmatch(cell) if name == "volume" else None
            if short is not None and (number := self._in_point(short[1])) is not None:
                number += _POWERS[short[2].lower()]
            if number is None:
                raise ConfigError(
                    f"{self._path}: row {row}: {name} {cell[:40]!r} is not a number{self._way(cell, name)}"
                )
            yield float(number)

    def _in_point(self, cell: str) -> str | None:
        """A number as Python reads it; None if it is none in this style."""
        sign = self._decimal or "."
        if _GROUPED[sign].fullmatch(cell):
            cell = re.sub(rf"[{'.' if sign == ',' else ','}{_BLANKS}]", "", cell)
        elif sign == "," and "." in cell:
            return None
        cell = cell.replace(sign, ".")
        return cell if column_files.is_number(cell) else None

    def _fixed(self, cell: str, row: int, name: str) -> str:
        """A price that may be a whole number of 1e-9."""
        is_unit = _UNITS.fullmatch(cell) is not None
        if cell == _UNDEFINED:
            raise ConfigError(f"{self._path}: row {row}: {name} is {cell}, which means no price; cut the row out")
        if self._is_fixed is None:
            self._is_fixed = is_unit
        if is_unit != self._is_fixed or not column_files.is_number(cell):
            kind = "a whole number of 1e-9" if self._is_fixed else "a price with a point"
            raise ConfigError(f"{self._path}: row {row}: {name} {cell[:40]!r} is not {kind} as the rows before it")
        return f"{cell}e-9" if is_unit else cell

    def _way(self, text: str, name: str) -> str:
        if _SHORT.fullmatch(text):
            rest = ", or leave it out: --columns volume=none" if name == "volume" else " with all of its digits"
            return f"; write it in full, like 45200 for 45.2K{rest}"
        if not text or text.lower() in ("null", "none", "n/a", "na", "-", "--"):
            return "; cut the rows out that have no price"
        if re.fullmatch(r"[$€£¥] ?[0-9.,]+", text):
            return f"; take the sign {text[0]} out"
        if self._decimal != "," and re.fullmatch(r"[+-]?[0-9.]+,[0-9]*", text):
            return "; when the comma is its decimal point, say --decimal ,"
        if self._decimal == "," and re.fullmatch(r"[+-]?[0-9]+\.[0-9]*", text):
            return "; when the point is its decimal point, say --decimal ."
        if re.fullmatch(r"[+-]?[0-9.,'\s]+", text):
            return f"; take the signs between thousands out{'' if self._decimal != ',' else ', or say --decimal .'}"
        return ""


def _sign_of(cell: str) -> str | None:
    """The decimal sign that a number shows; None if it does not."""
    if _EITHER.fullmatch(cell):
        return None
    for sign, other in ((".", ","), (",", ".")):
        if _GROUPED[sign].fullmatch(cell) and other in cell:
            return sign
        if other not in cell and re.fullmatch(rf"[+-]?[0-9]*{re.escape(sign)}[0-9]*", cell):
            return sign
    return None
