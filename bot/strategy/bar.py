"""One closed bar. A NamedTuple, because one is made for every bar of every market."""

from __future__ import annotations

from typing import NamedTuple


class Bar(NamedTuple):
    """A bar that has closed, in floats: enough for indicators and comparisons, and never used for money.

    `at_ms` is the instant of the CLOSE (unix ms on the service's clock), i.e. when the bar became visible.
    """

    market: str
    at_ms: int
    open: float
    high: float
    low: float
    close: float
    volume: float
