"""The trades of the bracket strategy that an outside program made of recorded minutes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

CANDLES = "data/crypto/binance_BTCUSDT_1m_202505.csv.gz"
ONE_MINUTE = ("1m_N240_L60_sl04_tp08", {"every": 240, "mean": 60, "stop": 0.004, "target": 0.008})
ONE_HOUR = ("1h_N3_L12_sl04_tp04", {"every": 3, "mean": 12, "stop": 0.004, "target": 0.004})


def rows_of(shared: Path, name: str) -> list[dict[str, str]]:
    with (shared / "oracles/bracket" / name).open() as lines:
        return list(csv.DictReader(lines))


def wanted(rows: list[dict[str, str]]) -> list[tuple[Any, ...]]:
    return [
        (r["side"], int(r["entry_ts"]), int(r["exit_ts"]), float(r["entry_px"]), float(r["exit_px"]), r["exit"])
        for r in rows
    ]
