"""The work of one order, counted instead of timed: a change that makes the order path longer than the ceilings here
fails.

Opcodes depend on the Python version, so they are counted on 3.11 alone. A ceiling is lowered whenever the path gets
shorter. `python -m tests.bench.session --short` times the same round trips beside other programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import bot
from bot import logs
from bot.backtest.engine import progress
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.strategy import Bar, View
from tests.bench.session import prepared, trades_of, year
from tests.faulty_port import FaultyPort
from tests.runtime.builders import always, begun, minutes

# A round trip in a backtest: entry, fill, stop and target armed, exit.
OPCODES_MAX = 23_000
# Calls of Python functions in the same round trip.
CALLS_MAX = 674
# The whole run with orders, by its round trips: it counts the calm bars too.
OPCODES_WHOLE_MAX = 28_700
CALLS_WHOLE_MAX = 772
# Calls of the daemon's own functions for one order of a live kernel with its journal in SQLite, which
# reads the replies of a real service.
LIVE_CALLS_MAX = 322
# files; the second is the generated code of dataclasses and named tuples
PACKAGE = Path(bot.__file__).parent
COUNTED = (str(PACKAGE), "<string>")
# the service and the venue that a live kernel talks to, and the port between them
SERVICE = tuple(str(PACKAGE / name) for name in ("service", "venue", "backtest", "drill"))
BARS = 3_000
ROUND_TRIPS_LIVE = 10


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log as a backtest does: errors alone.

    Report the progress by the number of bars alone, not by the machine's speed.
    """
    logs.configure(level="error")
    monkeypatch.setattr(progress, "SOON_NS", 1 << 62)
    monkeypatch.setattr(progress, "LATE_NS", 1 << 62)


@dataclass
class Work:
    opcodes: int = 0
    calls: int = 0


@contextmanager
def counted(*, opcodes: bool = True, besides: tuple[str, ...] = ()) -> Iterator[Work]:
    """Count what this thread executes of the package and of the constructors that dataclasses made, `besides` these
    folders and all that they call; callbacks of other tests do not count.
    """
    work = Work()

    def on_call(frame: FrameType, _event: str, _arg: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(COUNTED) or (besides and _is_inside(frame, besides)):
            return None
        work.calls += 1
        frame.f_trace_opcodes, frame.f_trace_lines = opcodes, False
        return on_opcode if opcodes else None

    def on_opcode(_frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode":
            work.opcodes += 1
        return on_opcode

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield work
    finally:
        sys.settrace(before)


def _is_inside(frame: FrameType | None, folders: tuple[str, ...]) -> bool:
    """True if the code is of these folders, or was called by code of theirs."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(folders):
            return True
        frame = frame.f_back
    return False


def _backtest(name: str, folder: Path) -> tuple[Work, int]:
    made = prepared(name, year(BARS), folder)
    with counted() as work:
        made.session.run()
    return work, trades_of(made)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="opcodes are counted on Python 3.11")
def test_a_round_trip_in_a_backtest_stays_within_its_budget(tmp_path: Path) -> None:
    """The difference between a strategy and the same strategy without its orders, over the same candles."""
    pytest.importorskip("numpy")
    # What is loaded once is no cost of an order.
    prepared("Cross", year(300), tmp_path).session.run()
    (ordering, trades), (muted, _) = _backtest("Cross", tmp_path), _backtest("Muted", tmp_path)
    assert trades > 40
    opcodes = (ordering.opcodes - muted.opcodes) / trades
    calls = (ordering.calls - muted.calls) / trades
    assert opcodes <= OPCODES_MAX, f"{opcodes:.0f} opcodes a round trip; the ceiling is {OPCODES_MAX}"
    assert calls <= CALLS_MAX, f"{calls:.0f} calls a round trip; the ceiling is {CALLS_MAX}"
    opcodes, calls = ordering.opcodes / trades, ordering.calls / trades
    assert opcodes <= OPCODES_WHOLE_MAX, (
        f"{opcodes:.0f} opcodes of the run a round trip; the ceiling is {OPCODES_WHOLE_MAX}"
    )
    assert calls <= CALLS_WHOLE_MAX, f"{calls:.0f} calls of the run a round trip; the ceiling is {CALLS_WHOLE_MAX}"


async def test_a_live_order_stays_within_its_budget() -> None:
    """The difference between passes with and without orders, of the daemon's code alone."""
    ordering, idle = await _live(always), await _live(lambda _view, _bar: ())
    calls = (ordering - idle) / (2 * ROUND_TRIPS_LIVE)
    assert calls <= LIVE_CALLS_MAX, f"{calls:.0f} calls an order; the ceiling is {LIVE_CALLS_MAX}"


async def _live(script: Callable[[View, Bar], Any]) -> int:
    """The calls of some round trips, one order a pass."""
    venue = FaultyPort()
    kernel = await begun(venue, script, settings=KernelSettings())
    await minutes(kernel, venue, "101", "100")
    with counted(opcodes=False, besides=SERVICE) as work:
        await minutes(kernel, venue, *["101", "100"] * ROUND_TRIPS_LIVE)
    orders = len(venue.fills)
    assert orders in (0, 3 + 2 * ROUND_TRIPS_LIVE)
    return work.calls
