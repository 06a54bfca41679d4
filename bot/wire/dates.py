"""Reads HTTP dates (RFC 9110, 5.6.7) of the headers `Date` and `Retry-After`."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import lru_cache

from bot.clock import ms_of


# Answers of the same second have the same date.
@lru_cache(maxsize=4)
def parse_date(text: str) -> int | None:
    """Unix ms. None if the text is no date, names no time zone, or lies outside the representable range."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return None if moment.tzinfo is None else ms_of(moment)
