"""What the proof of a day takes from the loop of the daemon that starts it: calls on the loop's thread, and the delay
of a tick while the proof runs in its own process and while none does.

    python -m tests.bench.proof

The day is one of a real journal, proved by the real `bot proof`. Ends with 1 if the proof fails or takes more calls
from the loop than CALLS_MAX. The delays are only printed, with the load of the machine: they depend on it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bot import logs
from bot.clock import DAY_MS, MINUTE_MS, iso
from bot.runtime.control_plane.proof_schedule import DailyProof, command_of
from bot.runtime.journal import queries
from bot.runtime.journal.opening import open_journal
from tests.backtest.builders import START_MS, minutes, write
from tests.backtest.lived_day import config, lived

# Calls of Python and C functions. A day of any length takes about 1,500; its replay takes millions.
CALLS_MAX = 3_000
TICK_S = 0.002
QUIET_TICKS = 1_500


def started(path: Path, data: Path) -> DailyProof:
    """The daily proof, one look before its process starts."""
    state = path.parent / "state"
    settings = cast(Any, SimpleNamespace(proof=SimpleNamespace(at_ms=20 * MINUTE_MS), state_dir=state))
    with queries.opened(state) as db:
        address = queries.address_of(db)
    journal = open_journal(state / "journal.db", address=address)
    command = command_of(path, state)
    proof = DailyProof(
        lambda: settings,
        journal,
        now_ms=lambda: START_MS + DAY_MS + 30 * MINUTE_MS,
        mono_ms=lambda: 0,
        # The service of the day has ended, so its candles are given.
        command=lambda day: [*command(day), "--data", f"BTC={data}"],
    )
    proof.due.set()
    return proof


async def until_proved(proof: DailyProof) -> None:
    proof.look()
    assert proof._task is not None, "the proof was due"
    await proof._task
    if proof.failure is not None:
        sys.exit(proof.failure)


async def counted(proof: DailyProof) -> int:
    """The calls on this thread from the look to the notice."""
    calls = 0

    def see(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        await until_proved(proof)
    finally:
        sys.setprofile(None)
    return calls


async def delays(is_over: Callable[[int], bool]) -> list[float]:
    """How much later than asked each tick came, in ms."""
    late: list[float] = []
    while not is_over(len(late)):
        asked = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late.append((time.perf_counter() - asked) * 1000)
    return late


async def measured(proof: DailyProof) -> tuple[list[float], list[float]]:
    quiet = await delays(lambda ticks: ticks >= QUIET_TICKS)
    task = asyncio.create_task(until_proved(proof))
    beside = await delays(lambda _: task.done())
    await task
    return quiet, beside


def p99(late: list[float]) -> float:
    return sorted(late)[len(late) * 99 // 100]


def main() -> None:
    logs.configure(pretty=None, level="error")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        place = Path(folder)
        data = write(minutes(400), place / "BTC_1m.csv")
        path = config(place)
        asyncio.run(lived(path, data))
        calls = asyncio.run(counted(started(path, data)))
        proof = place / "state" / "proofs" / f"{iso(START_MS)[:10]}.json"
        size = proof.stat().st_size
        proof.unlink()
        quiet, beside = asyncio.run(measured(started(path, data)))
    print(f"calls on the loop for one proof: {calls:,} (at most {CALLS_MAX:,}); its document: {size:,} bytes")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"tick of {TICK_S * 1000:g} ms late, p99: {p99(quiet):.2f} ms without, {p99(beside):.2f} ms beside a proof")
    print(f"ticks: {len(quiet):,} and {len(beside):,}; load of the machine: {load} on {os.cpu_count()} cores")
    sys.exit(calls > CALLS_MAX)


if __name__ == "__main__":
    main()
