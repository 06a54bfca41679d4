"""The files of a run's folder and the columns of trades.csv. Used by run_writer.py and run_reader.py."""

from __future__ import annotations

from typing import Final

FORMAT: Final = 1
NAMES: Final = ("manifest.json", "events.jsonl", "trades.csv", "equity.npy", "summary.json", "chart.json")
COLUMNS: Final = (
    "trade",
    "strategy",
    "market",
    "side",
    "size",
    "entry_ms",
    "entry_px",
    "entry_kind",
    "exit_ms",
    "exit_px",
    "exit_kind",
    "realized_usd",
    "fees_usd",
    "funding_usd",
    "pnl_usd",
    "r_multiple",
    "stop_px",
    "target_px",
    "fills",
    "slippage_usd",
)
# columns of trades.csv after COLUMNS; runs of older versions lack them
EXTREMES: Final = ("low_px", "high_px")
# kinds of exits
BY_GUARDIAN: Final = frozenset({"guardian", "kill"})
