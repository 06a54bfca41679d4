"""Many records of one kind, stored by column, so that a hundred thousand trades take a few megabytes.

Records are made again when they are read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, overload

T = TypeVar("T")

# stands for None in a column of whole numbers; no amount has this value
NOTHING: Final = -(1 << 63)


class ColumnStore(Sequence[T], Generic[T]):
    """`read` returns a record's values in the order of `kinds` (int or str; an int may be None). `make` builds the
    record from these values.

    A record that still changes is stored as an object until `settle` is called for it.
    """

    __slots__ = ("_columns", "_make", "_moving", "_read")

    def __init__(self, kinds: Sequence[type], *, read: Callable[[T], Sequence[Any]], make: Callable[..., T]) -> None:
        self._columns: list[array[int] | list[Any]] = [array("q") if kind is int else [] for kind in kinds]
        self._read = read
        self._make = make
        self._moving: dict[int, T] = {}

    def append(self, record: T, *, is_moving: bool = False) -> int:
        """Add a record. Returns its number, from 0."""
        at = len(self._columns[0])
        if is_moving:
            self._moving[at] = record
            for column in self._columns:
                column.append(0)
            return at
        for number, value in enumerate(self._read(record)):
            try:
                self._columns[number].append(value)
            except (TypeError, OverflowError):
                self._columns[number].append(0)
                self._write(number, at, value)
        return at

    def settle(self, at: int) -> None:
        """Store the record with this number by column. It must not change any more."""
        for number, value in enumerate(self._read(self._moving.pop(at))):
            try:
                self._columns[number][at] = value
            except (TypeError, OverflowError):
                self._write(number, at, value)

    def _write(self, number: int, at: int, value: int | None) -> None:
        """Store a value that does not fit in 64 bits: None, or a large number, for which the column becomes a list."""
        if value is None:
            self._columns[number][at] = NOTHING
            return
        self._columns[number] = copied = list(self._columns[number])
        copied[at] = value

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return [self[row] for row in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        moving = self._moving.get(at)
        if moving is not None:
            return moving
        return self._element([column[at] for column in self._columns])

    def __iter__(self) -> Iterator[T]:
        moving = self._moving
        for at, values in enumerate(zip(*self._columns, strict=True)):
            yield moving[at] if at in moving else self._element(values)

    def _element(self, values: Sequence[Any]) -> T:
        if NOTHING in values:
            values = [None if value == NOTHING else value for value in values]
        return self._make(*values)
