"""A service with many accounts: 10,000 with five resting triggers each. Prints what a price costs that touches none of
them, and one that fires a thousand; memory; how long a snapshot keeps callers waiting; and a start with a million
events, after a stop and after a kill.

python -m tests.bench.scale [--accounts 10000] [--events 1000000]     figures only; judges none of them
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bot.service.state_machine.machine import Machine

START_MS = 1_750_000_020_000
FIRED = 1_000
PRICES = {"BTC": 100_000, "ETH": 4_000, "SOL": 200}


def _options(db: Path) -> object:
    from bot.service.host import HostOptions

    return HostOptions(
        db=db, clock="manual", start_ms=START_MS, hold_prices=True, markets=("BTC", "ETH", "SOL"), rate_limits=False
    )


def _rss_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def say(what: str, figure: str) -> None:
    print(f"{what:<78} {figure:>18}", flush=True)


async def fill(machine: Machine, accounts: int) -> list[str]:
    """Open accounts with five resting triggers each, at the prices of `_options`. Returns their names."""
    from bot.venue.model import commands as c
    from bot.venue.model import state as s
    from bot.venue.model.numbers import E8

    for coin, at in PRICES.items():
        machine.push_price(coin, at * E8)
    names = [f"acc_{number:08d}" for number in range(1, accounts + 1)]
    for number, name in enumerate(names):
        key = s.VenueKey(
            f"key_{number:08d}",
            name,
            "owner",
            "bbk_test",
            f"{number:064x}",
            ("read", "trade"),
            START_MS,
            "sandbox",
            owner=True,
        )
        machine.run(c.OpenAccount(name, f"0x{number:040x}", None, 10_000 * E8, key))
        near = s.LegSpec(pct=E8 if number < FIRED else 20 * E8)
        for coin, stop in (("BTC", near), ("ETH", s.LegSpec(pct=20 * E8))):
            order = s.OrderSpec(coin, 1, usd=200 * E8, stop=stop, target=s.LegSpec(r=5 * E8), source="api")
            machine.run(c.PlaceOrder(name, order, key.id, f"req_{number:024x}"))
        limit = s.OrderSpec("SOL", 1, usd=100 * E8, type="limit", limit_px=150 * E8, stop=s.LegSpec(pct=5 * E8))
        machine.run(c.PlaceOrder(name, limit, key.id, f"req_{number:024x}"))
        if number % 500 == 0:
            await machine.settle()
    await machine.settle()
    return names


async def build_up(db: Path, accounts: int, events: int) -> None:
    """Fill a service and measure it on the way."""
    from bot.service.host import build, sparing_the_collector
    from bot.service.market_data.price_feed import FeedPoint
    from bot.service.state_machine.snapshots import STEP_NS
    from bot.venue.model import commands as c
    from bot.venue.model import state as s
    from bot.venue.model.numbers import E8

    # As the service does when it is a process of its own.
    with sparing_the_collector():
        service = build(_options(db))  # type: ignore[arg-type]
    await service.start()
    machine = service.machine
    px = {coin: at * E8 for coin, at in PRICES.items()}
    before = _rss_mb()
    names = await fill(machine, accounts)
    say(f"memory of {accounts:,} accounts with 5 triggers each", f"{_rss_mb() - before:,.0f} MB")

    calm = [FeedPoint(START_MS, "BTC", px["BTC"] + (step % 7) * E8, 0, START_MS, None, 0) for step in range(20_000)]
    machine._take(calm[0])
    started = time.perf_counter()
    for one in calm:
        machine._take(one)
    say("a mark change that touches none, service", f"{(time.perf_counter() - started) / len(calm) * 1e6:.2f} us")
    started = time.perf_counter()
    for step in range(2_000):
        machine._apply(c.PricePoint("BTC", px["BTC"] + step % 7 * E8), machine.state.now_ms)
    say(
        "  the same, said to the venue and written to the log",
        f"{(time.perf_counter() - started) / 2_000 * 1e6:.2f} us",
    )
    await machine.settle()

    trips = max(0, events - machine.events) // 6
    for trip in range(trips):
        name = names[trip % accounts]
        order = s.OrderSpec("SOL", 1, usd=100 * E8, stop=s.LegSpec(pct=20 * E8), target=s.LegSpec(r=E8), source="api")
        machine.run(c.PlaceOrder(name, order, None, f"req_{trip:024x}"))
        machine.run(c.ClosePosition(name, "SOL", request_id=f"req_{trip:024x}"))
        if trip % 500 == 0:
            await machine.settle()
            while machine.snapshot_if_due():
                await asyncio.sleep(0)
            gc.freeze()
    await machine.settle()
    say(f"memory with {machine.events:,} events", f"{_rss_mb() - before:,.0f} MB")

    machine.snapshots.due_seq = machine.seq
    pieces: list[float] = []
    more = True
    while more:
        started = time.perf_counter()
        more = machine.snapshot_if_due()
        pieces.append(time.perf_counter() - started)
        await asyncio.sleep(0)
    for name in names:
        # Asked for: all of them are written again.
        machine.state.accounts[name]
    machine.push_price("SOL", px["SOL"])
    machine.snapshots.due_seq = machine.seq
    whole: list[float] = []
    more = True
    while more:
        started = time.perf_counter()
        more = machine.snapshot_if_due()
        whole.append(time.perf_counter() - started)
        await asyncio.sleep(0)
    say(
        f"a snapshot of all accounts: {sum(whole):.2f} s in {len(whole):,} pieces of {STEP_NS / 1e6:.0f} ms; first"
        " piece, longest other",
        f"{whole[0] * 1e3:.0f}, {max(whole[1:], default=0) * 1e3:.0f} ms",
    )
    await machine.settle()

    started = time.perf_counter()
    count = machine.events
    machine.push_price("BTC", px["BTC"] * 985 // 1000)
    took = time.perf_counter() - started
    say(f"a price that fires {FIRED:,} stops ({machine.events - count:,} events)", f"{took * 1e3:.0f} ms")
    for number in range(9_000):
        machine.push_price("SOL", px["SOL"] + number % 5 * E8)
    await machine.settle()
    killed = db.with_name("killed.db")
    with sqlite3.connect(db) as source, sqlite3.connect(killed) as target:
        source.backup(target)
    await service.stop()
    say("the file", f"{db.stat().st_size / 1e6:,.0f} MB")


START = """
import asyncio, sys, time
from pathlib import Path
from tests.bench.scale import _options, _rss_mb
from bot.service.host import build, sparing_the_collector
async def main():
    started = time.perf_counter()
    with sparing_the_collector():
        service = build(_options(Path(sys.argv[1])))
    await service.start()
    print(f"{time.perf_counter() - started:.2f} {service.machine.events} {_rss_mb():.0f} {service.machine.chain.hex()}")
    await service.stop()
asyncio.run(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accounts", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("BENCH_DIR")))
    try:
        asyncio.run(build_up(folder / "s.db", given.accounts, given.events))
        for name, how in (("s.db", "after a stop"), ("killed.db", "after a kill, 9,000 commands to replay")):
            done = subprocess.run(
                [sys.executable, "-c", START, str(folder / name)], capture_output=True, text=True, check=True
            )
            seconds, events, rss, _ = done.stdout.split()
            say(f"start {how}: {int(events):,} events, {rss} MB", f"{seconds} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
