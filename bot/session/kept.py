"""A run's folder, read again: what report, compare and replay begin with. Checks that it is one; judges nothing."""

from __future__ import annotations

import csv
import json
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bot.errors import BotError
from bot.session.book import COLUMNS
from bot.session.result import FORMAT, NAMES

ROW: Final = struct.Struct("<qdd")


@dataclass(frozen=True, slots=True)
class KeptTrade:
    """A row of trades.csv. Instants ms UTC, None while open; amounts are floats here, for drawing and adding up on a page."""

    number: int
    strategy: str
    market: str
    side: str
    size: float
    entry_ms: int
    entry_px: float
    entry_kind: str
    exit_ms: int | None
    exit_px: float | None
    exit_kind: str
    fees_usd: float
    funding_usd: float
    pnl_usd: float
    r_multiple: float | None
    stop_px: float | None
    target_px: float | None
    slippage_usd: float


@dataclass(frozen=True, slots=True)
class KeptRun:
    """`at_ms`, `equity`, `exposure` are the columns of equity.npy."""

    folder: Path
    manifest: dict[str, Any]
    summary: dict[str, Any]
    trades: tuple[KeptTrade, ...]
    at_ms: array[int]
    equity: array[float]
    exposure: array[float]
    chart: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name


def read_run(folder: Path) -> KeptRun:
    """The run in a folder. BotError names the file and what is wrong with it."""
    if not folder.is_dir():
        raise BotError(f"{folder}: is no folder; give the folder that bot backtest has written")
    missing = [name for name in NAMES if not (folder / name).is_file()]
    if missing:
        raise BotError(
            f"{folder}: is no run: {', '.join(missing)} is not there; give the folder that bot backtest has written"
        )
    manifest = _json(folder / "manifest.json")
    if manifest.get("format") != FORMAT:
        raise BotError(
            f"{folder / 'manifest.json'}: format {manifest.get('format')!r} is of another version; this one reads {FORMAT}: run it again"
        )
    at_ms, equity, exposure = _equity(folder / "equity.npy")
    chart = folder / "chart.json"
    return KeptRun(
        folder.resolve(), manifest, _json(folder / "summary.json"), _trades(folder / "trades.csv"), at_ms, equity, exposure,
        _json(chart) if chart.is_file() else {},
    )  # fmt: skip


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BotError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise BotError(f"{path}: holds no JSON object")
    return found


def _equity(path: Path) -> tuple[array[int], array[float], array[float]]:
    raw = path.read_bytes()
    if raw[:8] != b"\x93NUMPY\x01\x00" or b"('equity_usd', '<f8')" not in raw[:256]:
        raise BotError(f"{path}: is not the curve of a run")
    start = 10 + int.from_bytes(raw[8:10], "little")
    body = raw[start:]
    if len(body) % ROW.size:
        raise BotError(f"{path}: is cut off after {len(body) // ROW.size} rows")
    at_ms, equity, exposure = array("q"), array("d"), array("d")
    for at, value, held in ROW.iter_unpack(body):
        at_ms.append(at)
        equity.append(value)
        exposure.append(held)
    return at_ms, equity, exposure


def _trades(path: Path) -> tuple[KeptTrade, ...]:
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames is None or tuple(rows.fieldnames) != COLUMNS:
            raise BotError(f"{path}:1: the columns are not those of a run: {', '.join(COLUMNS)}")
        for line, row in enumerate(rows, start=2):
            try:
                found.append(_trade(row))
            except (TypeError, ValueError, KeyError) as error:
                raise BotError(f"{path}:{line}: is no trade: {error}") from None
    return tuple(found)


def _trade(row: dict[str, str]) -> KeptTrade:
    return KeptTrade(
        number=int(row["trade"]), strategy=row["strategy"], market=row["market"], side=row["side"], size=float(row["size"]),
        entry_ms=int(row["entry_ms"]), entry_px=float(row["entry_px"]), entry_kind=row["entry_kind"],
        exit_ms=int(row["exit_ms"]) if row["exit_ms"] else None, exit_px=_float(row["exit_px"]), exit_kind=row["exit_kind"],
        fees_usd=float(row["fees_usd"]), funding_usd=float(row["funding_usd"]), pnl_usd=float(row["pnl_usd"]),
        r_multiple=_float(row["r_multiple"]), stop_px=_float(row["stop_px"]), target_px=_float(row["target_px"]),
        slippage_usd=float(row["slippage_usd"]),
    )  # fmt: skip


def _float(text: str) -> float | None:
    return float(text) if text else None
