"""Words that a number decides. Pure, and for people: data have numbers."""

from __future__ import annotations


def many(count: int, thing: str, things: str | None = None) -> str:
    """`1 candle`, `2,160 candles`; `things` is said where the plural has more than an s."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"
