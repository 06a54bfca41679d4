"""Stored trades for tests of the report."""

from __future__ import annotations

from typing import Any

from bot.backtest.results.run_reader import StoredTrade

HOUR = 3_600_000
DAY = 24 * HOUR
# 2024-12-30 00:00 UTC, a Monday
MONDAY_MS = 1_735_516_800_000


def trade(number: int = 1, *, hours: tuple[float, float | None] = (0, 1), **over: Any) -> StoredTrade:
    """A long trade of 2 BTC at 100, from and to an hour after MONDAY_MS; None: still open."""
    entry, exit_ = hours
    values: dict[str, Any] = {
        "number": number,
        "strategy": "one",
        "market": "BTC",
        "side": "long",
        "size": 2.0,
        "entry_ms": MONDAY_MS + round(entry * HOUR),
        "entry_px": 100.0,
        "entry_kind": "market",
        "exit_ms": None if exit_ is None else MONDAY_MS + round(exit_ * HOUR),
        "exit_px": 110.0,
        "exit_kind": "close",
        "fees_usd": 0.0,
        "funding_usd": 0.0,
        "pnl_usd": 20.0,
        "r_multiple": None,
        "stop_px": None,
        "target_px": None,
        "slippage_usd": 0.0,
    }
    return StoredTrade(**{**values, **over})
