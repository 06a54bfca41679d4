"""The equity of a backtest at every close, computed afterwards from the ledger's steps and the candles, and the
figures from it. No numpy.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.results.statistics import FinishedTrade, exposure, statistics
from bot.backtest.results.trade_ledger import LedgerStep, RoundTrip
from bot.runtime.model.positions import is_no
from bot.venue.model.numbers import E8

# below this size, a price's digits beyond the venue's eight decimals are worth nothing
FEW: Final = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """Equity and position notional in USD at each instant of `at_ms`: the closes of the candles and the end.

    `last` has the last price of open positions.
    """

    at_ms: array[int]
    equity: array[float]
    exposure: array[float]
    last: Mapping[str, float]

    def npy(self) -> bytearray:
        """The rows as a .npy file (format 1.0): a structured array of at_ms (int64), equity_usd and exposure_usd
        (float64).
        """
        head = (
            "{'descr': [('at_ms', '<i8'), ('equity_usd', '<f8'), ('exposure_usd', '<f8')], 'fortran_order': False,"
            " 'shape': (%d,), }"
        )
        text = (head % len(self.at_ms)).encode()
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        content = bytearray(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
        start = len(content)
        content += bytes(24 * len(self.at_ms))
        # Columns are laid into the rows eight bytes at a time, each with a stride of three.
        view = memoryview(content)[start:].cast("q")
        columns: tuple[array[Any], ...] = (self.at_ms, self.equity, self.exposure)
        for at, column in enumerate(columns):
            view[at::3] = memoryview(column).cast("B").cast("q")
        return content


def curve_of(
    readers: Sequence[CandleReader], steps: Sequence[LedgerStep], *, start_cash: int, end_ms: int = 0
) -> Curve:
    """Equity = cash + (size * close - cost) of each market, at every close of the run, and at `end_ms` if that is
    later.
    """
    grid = _grid(readers)
    if grid and end_ms > grid[-1]:
        grid.append(end_ms)
    equity = array("d", bytes(8 * len(grid)))
    _fill(equity, grid, ((step.ts, step.cash / E8) for step in steps), start_cash / E8)
    exposure = array("d", bytes(8 * len(grid)))
    rows: dict[str, array[int]] = {reader.coin: array("q") for reader in readers}
    for row, step in enumerate(steps):
        rows[step.coin].append(row)
    last: dict[str, float] = {}
    for reader in readers:
        if not rows[reader.coin]:
            continue
        mine = steps if len(readers) == 1 else map(steps.__getitem__, rows[reader.coin])
        at = grid if len(grid) == reader.at - reader.first else _closes(reader)
        closes = reader.close[reader.first : reader.at]
        known = closes if len(at) == len(grid) else _spread(closes, at, grid)
        px = _hold(reader.coin, known, at, grid, mine, equity, exposure)
        if px is not None:
            last[reader.coin] = px
    return Curve(grid, equity, exposure, last)


def _grid(readers: Sequence[CandleReader]) -> array[int]:
    columns = [_closes(reader) for reader in readers]
    if all(column == columns[0] for column in columns[1:]):
        return columns[0]
    return array("q", sorted(set().union(*columns)))


def _closes(reader: CandleReader) -> array[int]:
    return array("q", [ts + reader.step_ms for ts in reader.ts[reader.first : reader.at]])


def _fill(out: array[float], grid: array[int], steps: Iterable[tuple[int, float]], value: float) -> None:
    done = 0
    for ts, after in steps:
        row = bisect_right(grid, ts, done)
        if row > done:
            out[done:row] = array("d", [value]) * (row - done)
            done = row
        value = after
    out[done:] = array("d", [value]) * (len(grid) - done)


def _hold(
    coin: str,
    closes: Sequence[float],
    at: array[int],
    grid: array[int],
    steps: Iterable[LedgerStep],
    equity: array[float],
    exposure: array[float],
) -> float | None:
    """Add unrealized profit and notional of one market at each instant, valued at the newest close or at a newer fill.
    `at` are the market's closes. Returns the last price if a position is open at the end, else None.
    """
    done, size, cost = 0, 0.0, 0.0
    is_event = is_no(coin, "short")
    # the price of a fill, and the row up to which no close is newer
    paid, until = 0.0, 0
    for step in chain(steps, [LedgerStep(1 << 62, 0, "", 0, 0)]):
        row = bisect_right(grid, step.ts, done)
        if row > done:
            if size:
                much, old = abs(size), max(0, min(until, row) - done)
                known = closes[done:row] if not old else array("d", [paid]) * old + array("d", closes[done + old : row])
                if much > FEW:
                    # rounded as the venue does
                    known = array("d", [round(px * E8) / E8 for px in known])
                equity[done:row] = array(
                    "d", [cash + (size * px - cost) for cash, px in zip(equity[done:row], known, strict=True)]
                )
                if is_event and size < 0:
                    known = array("d", [1 - px for px in known])
                exposure[done:row] = array(
                    "d", [held + much * px for held, px in zip(exposure[done:row], known, strict=True)]
                )
            done = row
        if not step.coin:
            break
        was_size, was_cost, size, cost = size, cost, step.size / E8, step.cost / E8
        if abs(size) > abs(was_size) or size * was_size < 0:
            own = bisect_right(at, step.ts)
            until = len(grid) if own == len(at) else bisect_left(grid, at[own])
            paid = (cost - was_cost) / (size - was_size) if size * was_size > 0 else cost / size
    if not size or not grid:
        return None
    return paid if until == len(grid) else closes[-1]


def _spread(values: Sequence[float], at: array[int], grid: array[int]) -> array[float]:
    """The last value known at each instant of the grid."""
    out = array("d", bytes(8 * len(grid)))
    done, value = 0, 0.0
    for row, instant in enumerate(at):
        start = bisect_right(grid, instant - 1, done)
        if start > done:
            out[done:start] = array("d", [value]) * (start - done)
            done = start
        value = values[row]
    out[done:] = array("d", [value]) * (len(grid) - done)
    return out


# ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def figures_of(
    curve: Curve,
    trips: Sequence[RoundTrip],
    *,
    start_usd: float,
    start_ms: int,
    prices: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """The statistics by their usual names.

    `prices` has the first and last price of each market. The formulas are in statistics.py.
    """
    end_ms = curve.at_ms[-1] if curve.at_ms else start_ms
    # The exposure follows from entries and exits, because a trade within one bar shows at no close.
    exposed = exposure(((trip.entry_ms, trip.exit_ms or end_ms) for trip in trips), start_ms, end_ms)
    trades = [
        FinishedTrade(
            trip.entry_ms,
            trip.exit_ms,
            trip.realized / E8,
            trip.fees / E8,
            trip.funding / E8,
            None if trip.risk is None else trip.risk / E8,
        )
        for trip in trips
        if trip.exit_ms
    ]
    return statistics(
        curve.at_ms, curve.equity, trades, start_ms=start_ms, start_usd=start_usd, prices=prices, exposed=exposed
    )
