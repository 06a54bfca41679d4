"""The date of HTTP (RFC 9110, 5.6.7), as `Date` and `Retry-After` have it."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import lru_cache

from bot.clock import ms_of


@lru_cache(maxsize=4)  # The answers of one second say the same.
def parse_date(text: str) -> int | None:
    """Unix ms; None of what is no date, names no zone, or has a year or an offset that no instant has."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return None if moment.tzinfo is None else ms_of(moment)
