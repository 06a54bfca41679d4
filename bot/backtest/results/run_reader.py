"""Reads the folder of a run, for report, compare and replay. Checks that the folder is complete."""

from __future__ import annotations

import csv
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bot.backtest.results.layout import COLUMNS, EXTREMES, FORMAT, NAMES
from bot.errors import BotError, Exit
from bot.files import OutsideFolder, inside
from bot.words import many

# a file for drawing; the figures do not need it
CHART: Final = "chart.json"
# <i8, <f8, <f8
ROW_BYTES: Final = 24
# The keys that each file must have. A * stands for each item of a list or each value of an object.
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "manifest.json": (
        "code.version",
        "code.sha256",
        "config.name",
        "config.text",
        "strategies.*.name",
        "strategies.*.sha256",
        "data.*.market",
        "data.*.interval",
        "data.*.candles",
        "data.*.sha256",
        "funding",
        "accepted",
        "assumptions",
        "options.from_ms",
        "options.to_ms",
        "options.balance_usd",
        "options.path",
        "options.latency_ms",
        "options.rules",
        "options.outages",
        "options.seed",
    ),
    "summary.json": (
        "figures",
        "costs",
        "strategies.*.# Trades",
        "strategies.*.Win Rate [%]",
        "strategies.*.pnlUsd",
        "strategies.*.feesUsd",
        "strategies.*.fundingUsd",
        "strategies.*.slippageUsd",
        "startUsd",
        "eventDigest",
        "course.bars",
        "course.isPartial",
        "course.fromMs",
        "course.toMs",
    ),
}


class RunNotFound(BotError):
    """The folder contains no run."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class StoredTrade:
    """A row of trades.csv.

    Instants are ms UTC, None while open. Amounts are floats, for drawing and for sums on a page.
    """

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
    # the lowest price while the trade was open; None in runs of older versions
    low_px: float | None = None
    high_px: float | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """`at_ms`, `equity`, `exposure` are the columns of equity.npy."""

    folder: Path
    manifest: dict[str, Any]
    summary: dict[str, Any]
    trades: tuple[StoredTrade, ...]
    at_ms: array[int]
    equity: array[float]
    exposure: array[float]
    chart: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name


def read_run(folder: Path) -> StoredRun:
    """The run in a folder. RunNotFound if the folder has none; BotError names the file and what is wrong with it."""
    if not folder.is_dir():
        raise RunNotFound(f"{folder}: is no folder; give the folder that bot backtest has written")
    missing = [name for name in NAMES if name != CHART and not (folder / name).is_file()]
    if missing:
        newest = newest_run(folder)
        way = "the folder that bot backtest has written" if newest is None else f"one of the runs in it, like {newest}"
        raise RunNotFound(
            f"{folder}: is no run: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; give {way}"
        )
    for name in NAMES:
        try:
            inside(folder, name)
        except OutsideFolder as error:
            raise BotError(f"{folder}: {error}: copy the run as a whole, or run it again") from None
    manifest = _json(folder / "manifest.json")
    if manifest.get("format") != FORMAT:
        raise BotError(
            f"{folder / 'manifest.json'}: format {manifest.get('format')!r} is of another version; this one reads"
            f" {FORMAT}: run it again"
        )
    manifest = _whole(folder / "manifest.json")
    at_ms, equity, exposure = _equity(folder / "equity.npy")
    chart = folder / CHART
    return StoredRun(
        folder.resolve(),
        manifest,
        _whole(folder / "summary.json"),
        _trades(folder / "trades.csv"),
        at_ms,
        equity,
        exposure,
        _json(chart) if chart.is_file() else {},
    )


def levels_of(run: StoredRun, market: str, since_ms: int) -> dict[str, list[tuple[int, int | None, float]]]:
    """Stops (`stop_loss`) and targets (`take_profit`) of a market that were placed at `since_ms` or later: from,
    until (None: the end), level.
    """
    orders: dict[str, tuple[str, int, int | None, float]] = {}
    with (run.folder / "events.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            if '"triggerPx":"' not in line or int(line.partition('"ts":')[2].partition(",")[0]) < since_ms:
                continue
            event = json.loads(line)
            data, at_ms = event["data"], event["ts"]
            if event["coin"] != market:
                continue
            if event["subtype"] == "armed":
                orders[data["oid"]] = data["kind"], at_ms, None, float(data["triggerPx"])
            elif event["subtype"] != "changed" and (order := orders.get(data["oid"])) is not None and order[2] is None:
                orders[data["oid"]] = (*order[:2], at_ms, order[3])
    levels: dict[str, list[tuple[int, int | None, float]]] = {}
    for kind, from_ms, to_ms, px in orders.values():
        levels.setdefault(kind, []).append((from_ms, to_ms, px))
    return levels


def newest_run(folder: Path) -> Path | None:
    """The newest run in a folder, or None."""
    manifests = (entry / "manifest.json" for entry in folder.iterdir())
    runs = [(manifest.stat().st_mtime_ns, manifest.parent) for manifest in manifests if manifest.is_file()]
    return max(runs)[1] if runs else None


def _whole(path: Path) -> dict[str, Any]:
    content = _json(path)
    for name in REQUIRED[path.name]:
        if not _has(content, name.split(".")):
            raise BotError(f"{path}: has no {name}: the file is not complete; run the backtest again")
    return content


def _has(document: Any, keys: Sequence[str]) -> bool:
    if not keys:
        return True
    if keys[0] == "*":
        inner = document.values() if isinstance(document, dict) else document
        return isinstance(document, list | dict) and all(_has(name, keys[1:]) for name in inner)
    return isinstance(document, dict) and keys[0] in document and _has(document[keys[0]], keys[1:])


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BotError(f"{path}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise BotError(f"{path}: is not a JSON object")
    return content


def _equity(path: Path) -> tuple[array[int], array[float], array[float]]:
    raw = path.read_bytes()
    if raw[:8] != b"\x93NUMPY\x01\x00" or b"('equity_usd', '<f8')" not in raw[:256]:
        raise BotError(f"{path}: is not the curve of a run")
    start = 10 + int.from_bytes(raw[8:10], "little")
    body = raw[start:]
    if len(body) % ROW_BYTES:
        raise BotError(f"{path}: is cut off after {many(len(body) // ROW_BYTES, 'row')}")
    columns: tuple[array[Any], ...] = (array("q"), array("d"), array("d"))
    # The type code splits the body into items of eight bytes.
    rows = memoryview(body).cast("q")
    for number, column in enumerate(columns):
        column.frombytes(rows[number::3].tobytes())
        if sys.byteorder == "big":
            column.byteswap()
    at_ms, equity, exposure = columns
    return at_ms, equity, exposure


def _trades(path: Path) -> tuple[StoredTrade, ...]:
    trades = []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) not in (COLUMNS, (*COLUMNS, *EXTREMES)):
            raise BotError(f"{path}:1: the columns are not those of a run: {', '.join((*COLUMNS, *EXTREMES))}")
        for line, row in enumerate(rows, start=2):
            try:
                trades.append(trade_of(row))
            except (TypeError, ValueError, KeyError) as error:
                raise BotError(f"{path}:{line}: is no trade: {error}") from None
    return tuple(trades)


def trade_of(row: Mapping[str, str]) -> StoredTrade:
    """A row of trades.csv by the names of its columns. ValueError or KeyError if it is none."""
    return StoredTrade(
        number=int(row["trade"]),
        strategy=row["strategy"],
        market=row["market"],
        side=row["side"],
        size=float(row["size"]),
        entry_ms=int(row["entry_ms"]),
        entry_px=float(row["entry_px"]),
        entry_kind=row["entry_kind"],
        exit_ms=int(row["exit_ms"]) if row["exit_ms"] else None,
        exit_px=_float(row["exit_px"]),
        exit_kind=row["exit_kind"],
        fees_usd=float(row["fees_usd"]),
        funding_usd=float(row["funding_usd"]),
        pnl_usd=float(row["pnl_usd"]),
        r_multiple=_float(row["r_multiple"]),
        stop_px=_float(row["stop_px"]),
        target_px=_float(row["target_px"]),
        slippage_usd=float(row["slippage_usd"]),
        low_px=_float(row.get("low_px", "")),
        high_px=_float(row.get("high_px", "")),
    )


def _float(text: str) -> float | None:
    return float(text) if text else None
