"""What many live markets cost: `python -m tests.bench.live_markets [--markets 47] [--rate 4] [--seconds 60]`.

An exchange of the tests in a process of its own changes the best bid and ask of each market `--rate` times a second and
sends them by WebSocket in Binance's form. The real feeder runs ccxt; the service runs in this process. It prints the
processor time of both, their memory, the delay from the moment the exchange sends a quote to the moment the venue has
it, and how long after a minute's end the last market has its bar. A price carries the number of its change, so that
each quote is known again. All processes share this machine: the delay contains the exchange's own work. The feeder
hands on the newest quote of a market at most four times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from array import array
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any

from bot import logs
from bot.service.host import HostOptions, build
from bot.service.market_data.instruments import CATALOGUE
from bot.venue.model.numbers import E8
from tests.market_data.exchange import Series, minutes
from tests.market_data.exchange import served as serving
from tests.market_data.websocket_exchange import WebSocketExchange, ladder

# ticks of 0.1 of the first price
BASE = 100_000
# changes until a price comes again
TURN = 1_000
MINUTE_MS = 60_000
WARM_UP_S = 20


def ids(coins: list[str]) -> list[str]:
    return [f"{coin}USDT" for coin in coins]


def exchange(coins: list[str], rate: float, sent: Any, urls: Any, ended: ProcessEvent) -> None:
    """The exchange, as a process. `sent[n * TURN + k]`: when change k of market n was sent, in nanoseconds."""
    made = WebSocketExchange()
    first_ms = made.now_ms // MINUTE_MS * MINUTE_MS - 2 * 1_440 * MINUTE_MS
    rows = minutes(2 * 1_440 + 60, first_ms)
    for name in ids(coins):
        made.futures[name] = Series(rows)
        made.tops[name] = (f"{BASE / 10:.1f}", f"{(BASE + 2) / 10:.1f}")
        made.marks[name] = f"{BASE / 10:.1f}"
        made.books[name] = (ladder(BASE / 10, -1, [10.0] * 20), ladder((BASE + 2) / 10, 1, [10.0] * 20))
    with serving(made) as url:
        urls.put(url)
        change = 0
        while not ended.wait(1 / rate):
            change += 1
            bid = BASE + change % TURN
            now = time.time_ns()
            for n, name in enumerate(ids(coins)):
                made.tops[name] = (f"{bid / 10:.1f}", f"{(bid + 2) / 10:.1f}")
                sent[n * TURN + change % TURN] = now
            if made._loop is not None:
                made.tell()


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """The memory that the process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1_024


def feeder_pid() -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"ccxt_feeder" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise SystemExit("the feeder does not run")


async def measure(coins: list[str], sent: Any, seconds: float) -> None:
    named = ",".join(f"{coin}={coin}/USDT:USDT" for coin in coins)
    service = build(HostOptions(db=":memory:", live=(f"ccxt:binance:{named}",)))
    await service.start()
    assert service.live is not None
    (live,) = service.live.sources
    delays, places = array("d"), {coin: n for n, coin in enumerate(coins)}
    quote = service.machine.live_quote

    def timed(coin: str, mark: int, bid: int, ask: int) -> int:
        change = round(bid * 10 / E8) - BASE
        at = quote(coin, mark, bid, ask)
        if 0 <= change < TURN and (began := sent[places[coin] * TURN + change]):
            delays.append((time.time_ns() - began) / 1e6)
            sent[places[coin] * TURN + change] = 0
        return at

    service.machine.live_quote = timed
    try:
        end = time.monotonic() + 120
        while any(one.closed_reason for one in live.markets) or live.connection.transport != "websocket":
            if time.monotonic() > end:
                raise SystemExit(
                    f"not all markets are open: {[one.coin for one in live.markets if one.closed_reason]},"
                    f" {live.trouble}"
                )
            await asyncio.sleep(0.2)
        await asyncio.sleep(WARM_UP_S)
        del delays[:]
        feeder, own, began = feeder_pid(), os.getpid(), time.monotonic()
        before = processor_s(own), processor_s(feeder)
        started_ms = time.time_ns() // 1_000_000
        # by minute
        late_s: dict[int, float] = {}
        while time.monotonic() - began < seconds:
            await asyncio.sleep(0.1)
            now_ms = time.time_ns() // 1_000_000
            minute_ms = now_ms // MINUTE_MS * MINUTE_MS
            if all(one.candles.until_ms >= minute_ms for one in live.markets):
                late_s.setdefault(minute_ms, (now_ms - minute_ms) / 1_000)
        took = time.monotonic() - began
        used = processor_s(own) - before[0], processor_s(feeder) - before[1]
        ordered = sorted(delays)
        print(f"{len(coins)} markets, {len(delays) / took:,.0f} new quotes a second in the venue, {took:.0f} s")
        print(f"service: {100 * used[0] / took:.1f} % of a core, {memory_mb(own):.0f} MB")
        print(f"feeder:  {100 * used[1] / took:.1f} % of a core, {memory_mb(feeder):.0f} MB")
        print(
            f"delay from the exchange to the venue: p50 {statistics.median(ordered):.0f} ms, p99"
            f" {ordered[int(len(ordered) * 0.99)]:.0f} ms"
        )
        ended_s = [one for minute_ms, one in late_s.items() if minute_ms > started_ms]
        print(f"last bar after its minute: {', '.join(f'{one:.1f} s' for one in ended_s) or 'no minute ended'}")
    finally:
        await service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [coin for coin, one in CATALOGUE.items() if one.spec.asset_class != "prediction"]
    parser.add_argument("--markets", type=int, default=len(known), help=f"at most {len(known)}")
    parser.add_argument("--rate", type=float, default=4.0, help="changes of each market in a second")
    parser.add_argument("--seconds", type=float, default=70.0)
    given = parser.parse_args()
    coins = known[: given.markets]
    logs.configure(pretty=None, level="error")
    context = multiprocessing.get_context("spawn")
    sent = context.Array("q", len(coins) * TURN, lock=False)
    urls, ended = context.Queue(), context.Event()
    process = context.Process(target=exchange, args=(coins, given.rate, sent, urls, ended), daemon=True)
    process.start()
    os.environ["BOT_MARKETS_URL"] = urls.get(timeout=60)
    os.environ.setdefault("BOT_MARKETS_PYTHON", str(Path(sys.prefix) / "markets" / "bin" / "python"))
    try:
        asyncio.run(measure(coins, sent, given.seconds))
    finally:
        ended.set()
        process.join(10)


if __name__ == "__main__":
    main()
