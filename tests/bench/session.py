"""What a session costs: `python -m tests.bench.session [--bars N] [--rounds N] [--short | --command | --slopes | --ten
| --years N]` prints figures and judges none.

A generated year of minutes (numpy, seed 7), through the whole daemon and the whole venue: (a) a strategy that does
nothing, (b) SMA 10/30 cross, long 1,000 USD, stop 1 %, target 2 %, taker fee 0.05 %, closed on the opposite cross; and
(b) without its orders. Then the whole command with its report, by stages; the cost of a trade and the memory of 1,000
to 100,000 of them; and ten markets with three strategies each. In the same process and in alternation: a bare loop that
calls an empty method, the floor, the same strategy and bracket hand-inlined, and other programs as far as they are
installed (peers.py). The machine's speed drifts, so (b) is judged by the median of the ratios to the floor of its own
round. Times are processor time: whoever else is on the machine is not measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from bot import logs
from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import MarketRules, SessionOptions
from bot.checks.config_check import checked_config
from tests.bench import peers

YEAR = 525_600
START_MS = 1_672_531_200_000
STRATEGIES = Path(__file__).resolve().parents[1] / "backtest/strategies"
RULES = {
    "": MarketRules(
        taker=Decimal("0.0005"),
        maker=Decimal("0.0005"),
        spread_bps=Decimal(0),
        depth_usd=Decimal(0),
        tick=Decimal("0.01"),
        lot=Decimal("0.000001"),
    )
}


def year(count: int, *, market: str = "BTC", seed: int = 7) -> Candles:
    """A geometric walk of ten steps a minute, 60 % a year; each open is the close before."""
    try:
        import numpy as np
    except ImportError:
        raise SystemExit("this series is made by numpy: install the research extra") from None
    rng = np.random.default_rng(seed)
    sigma = 0.6 / np.sqrt(YEAR * 10)
    steps = rng.standard_normal((YEAR, 10)) * sigma - 0.5 * sigma * sigma
    px = np.round(np.exp(np.log(30_000.0) + np.cumsum(steps.ravel()).reshape(YEAR, 10)), 2)
    close = px[:, -1].copy()
    opened = np.concatenate(([30_000.0], close[:-1]))
    high, low = np.maximum(px.max(axis=1), opened), np.minimum(px.min(axis=1), opened)
    volume = np.round(rng.lognormal(4.0, 0.5, YEAR), 3)
    columns = (array("d", one[:count].tobytes()) for one in (opened, high, low, close, volume))
    return Candles(market, "1m", array("q", range(START_MS, START_MS + count * 60_000, 60_000)), *columns)


def prepared(name: str, candles: Candles, folder: Path) -> Backtest:
    config = folder / "bench.yaml"
    strategy = {
        "name": "bench",
        "use": f"bench:{name}",
        "markets": ["BTC"],
        "interval": "1m",
        "budget_usd": 5_000,
        "max_leverage": 3,
    }
    body = {
        "account": {"base_url": "embedded"},
        "dead_man": "off",
        "strategies_dir": str(STRATEGIES),
        "strategies": [strategy],
    }
    config.write_text(json.dumps(body))
    return Backtest(
        checked_config(config).settings, [candles], SessionOptions(balance_usd=Decimal(1_000_000), rules=RULES)
    )


def session(name: str, candles: Candles, folder: Path) -> tuple[float, Backtest]:
    """Seconds of the run itself, as the floors are timed: what is made before it is made before it there, too."""
    made = prepared(name, candles, folder)
    gc.collect()
    started = time.process_time()
    made.session.run()
    return time.process_time() - started, made


# ── Floors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Nothing:
    def on_bar(self, bar: tuple[float, ...]) -> None:
        return None


def bare(rows: list[tuple[float, ...]]) -> float:
    on_bar = Nothing().on_bar
    started = time.process_time()
    for row in rows:
        on_bar(row)
    return time.process_time() - started


class Mean:
    __slots__ = ("n", "sum", "window")

    def __init__(self, n: int) -> None:
        self.n, self.sum, self.window = n, 0.0, deque[float]()

    def update(self, x: float) -> float | None:
        window = self.window
        window.append(x)
        self.sum += x
        if len(window) > self.n:
            self.sum -= window.popleft()
        return self.sum / self.n if len(window) == self.n else None


class Order:
    __slots__ = ("kind", "parent", "price", "sibling", "size", "status")

    def __init__(self, kind: str, size: float, price: float = 0.0, parent: Order | None = None) -> None:
        self.kind, self.size, self.price, self.parent = kind, size, price, parent
        self.sibling: Order | None = None
        self.status = "new"


class Inlined:
    """The strategy and its bracket in one object: resting orders in a list, one fill rule each."""

    def __init__(self) -> None:
        self.fast, self.slow = Mean(10), Mean(30)
        self.before = self.trades = 0
        self.size = self.entry = self.pnl = 0.0
        self.open: list[Order] = []

    def fill(self, order: Order, px: float) -> None:
        order.status = "filled"
        self.open.remove(order)
        self.pnl -= 0.0005 * order.size * px
        if order.kind == "entry":
            self.size, self.entry = self.size + order.size, px
        else:
            self.pnl += order.size * (px - self.entry)
            self.size -= order.size
            self.trades += 1
        if order.sibling is not None and order.sibling in self.open:
            self.open.remove(order.sibling)

    def match(self, o: float, high: float, low: float) -> None:
        for order in list(self.open):
            if order not in self.open or (order.parent is not None and order.parent.status != "filled"):
                continue
            if order.kind in ("entry", "exit"):
                self.fill(order, o)
            elif order.kind == "stop":
                if low <= order.price:
                    self.fill(order, min(o, order.price))
            elif high >= order.price:
                self.fill(order, max(o, order.price))

    def on_bar(self, row: tuple[float, ...]) -> None:
        _, o, high, low, close, _ = row
        if self.open:
            self.match(o, high, low)
        fast, slow = self.fast.update(close), self.slow.update(close)
        if slow is None or fast is None:
            return
        before = self.before
        now = self.before = 1 if fast > slow else -1 if fast < slow else before
        if before < 0 < now and not self.size:
            entry = Order("entry", round(1_000 / close, 6))
            stop, target = (
                Order("stop", entry.size, round(close * 0.99, 2), entry),
                Order("target", entry.size, round(close * 1.02, 2), entry),
            )
            stop.sibling, target.sibling = target, stop
            self.open += [entry, stop, target]
        elif now < 0 < before and self.size:
            self.open = [Order("exit", self.size)]


def floor(rows: list[tuple[float, ...]]) -> float:
    on_bar = Inlined().on_bar
    started = time.process_time()
    for row in rows:
        on_bar(row)
    return time.process_time() - started


# ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def trades_of(made: Backtest) -> int:
    return sum(1 for trade in made.exchange.account.trades if trade.intent == "close" and trade.filled)


def paired(candles: Candles, rounds: int, folder: Path, *, with_peers: bool) -> None:
    count = len(candles)
    others, absent = peers.installed() if with_peers else ({}, [])
    print(f"python {sys.version.split()[0]}, {peers.versions()}")
    idle_there: list[float] = []
    theirs: dict[str, list[peers.Ran]] = {name: [] for name in others}
    rows = list(zip(*(column.tolist() for column in candles.columns), strict=True))
    found: dict[str, list[float]] = {"bare": [], "floor": [], "idle": [], "muted": [], "cross": []}
    trades = pnl = 0.0
    for _ in range(rounds):
        gc.collect()
        gc.freeze()
        found["bare"].append(bare(rows))
        found["floor"].append(floor(rows))
        gc.unfreeze()
        found["idle"].append(session("Idle", candles, folder)[0])
        found["muted"].append(session("Muted", candles, folder)[0])
        took, made = session("Cross", candles, folder)
        found["cross"].append(took)
        trades, pnl = trades_of(made), made.exchange.account.balance / 1e8 - 1_000_000
        del made
        for name, run in others.items():
            gc.collect()
            theirs[name].append(run(candles))
        if any(name.startswith("backtesting.py") for name in others):
            gc.collect()
            idle_there.append(peers.idle_backtesting(candles).seconds)
    names = {
        "bare": "a bare loop that calls an empty method",
        "floor": "the floor: strategy and bracket hand-inlined",
        "idle": "(a) a session, a strategy that does nothing",
        "muted": "(b) without its orders: the averages and crosses alone",
        "cross": "(b) a session, SMA 10/30 cross with brackets",
    }
    print(f"{count:,} bars, {rounds} rounds in alternation, medians")
    for key, name in names.items():
        took = statistics.median(found[key])
        print(f"{name:<52} {took:8.3f} s {count / took:14,.0f} bars/s")
    for name, runs in theirs.items():
        took = statistics.median(one.seconds for one in runs)
        print(
            f"{f'(b) in {name}':<52} {took:8.3f} s {count / took:14,.0f} bars/s   {runs[0].trades:,} trades"
            f" {runs[0].pnl:+,.2f} USD"
        )
        over = statistics.median(ours / one.seconds for ours, one in zip(found["cross"], runs, strict=True))
        print(f"{f'(b) over {name}, median of the pairs':<52} {over:8.2f} (target over backtesting.py 1.4)")
    if idle_there:
        times = statistics.median(there / ours for ours, there in zip(found["idle"], idle_there, strict=True))
        print(f"{'(a) backtesting.py over ours, median of the pairs':<52} {times:8.2f} (target 7)")
    for name in absent:
        print(f"{f'(b) in {name}':<52} not installed here (dependency group bench)")
    ratio, muted = (
        statistics.median(one / floor for one, floor in zip(found[key], found["floor"], strict=True))
        for key in ("cross", "muted")
    )
    each = statistics.median(b - m for b, m in zip(found["cross"], found["muted"], strict=True)) / max(trades, 1) * 1e6
    print(
        f"(b) over the floor, median of the pairs: {ratio:.2f} (target 13), without its orders {muted:.2f}   an entry"
        f" with its bracket and its exit {each:.0f} us   trades {trades:,.0f}   balance {pnl:+,.4f} USD"
    )


# Peak memory of a child counts from its parent's: so the command is started by a process that is small.
STARTER = """\
import resource, subprocess, sys, time
started = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)
"""
TRADING = (
    "--balance",
    "1000000",
    "--fee",
    "0.05%",
    "--spread",
    "0",
    "--depth",
    "0",
    "--tick",
    "0.01",
    "--lot",
    "0.000001",
    "--json",
)


class Ran(NamedTuple):
    """A command: seconds on the wall and of the processor, peak memory in MB."""

    seconds: float
    cpu: float
    megabytes: int


def command(*words: str | Path) -> Ran:
    asked = [sys.executable, "-c", STARTER, sys.executable, "-m", "bot", *map(str, words)]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    seconds, cpu, megabytes = done.stdout.split()
    return Ran(float(seconds), float(cpu), int(megabytes))


def written(candles: Candles, path: Path) -> Path:
    rows: Any = zip(*candles.columns, strict=True)
    with path.open("w") as out:
        out.write("ts,open,high,low,close,volume\n")
        out.writelines(f"{a},{b},{c},{d},{e},{f}\n" for a, b, c, d, e, f in rows)
    return path


def backtest(folder: Path, data: Path, *words: str) -> tuple[Ran, Path, dict[str, Any]]:
    """`bot backtest` of what `prepared` or `ten` has written; how it ran, its folder, and its summary."""
    out = Path(tempfile.mkdtemp(dir=folder))
    ran = command("backtest", folder / "bench.yaml", "--data", data, "--out", out, *TRADING, *words)
    (run,) = out.iterdir()
    return ran, run, json.loads((run / "summary.json").read_text())


def shell(folder: Path) -> None:
    """The whole command, from the shell to the written report: seconds and peak memory."""
    candles = year(YEAR)
    data = written(candles, folder / "BTC_1m.csv")
    for name, what in (("Idle", "(a)"), ("Cross", "(b)")):
        took, made = session(name, candles, folder)
        made.journal.close()
        ran, run, _ = backtest(folder, data)
        page = command("report", run)
        words = f"the whole command for {what}, shell to written report"
        print(
            f"{words:<52} {ran.seconds + page.seconds:8.2f} s {max(ran.megabytes, page.megabytes):>10} MB (targets: 4"
            f" s, 250 MB)   processor {ran.cpu + page.cpu:.2f} s: the run itself {took:.2f}, all else of backtest"
            f" {ran.cpu - took:.2f}, report {page.cpu:.2f}"
        )


def slopes(folder: Path, most: int) -> None:
    """What a trade costs in short and long runs: the whole command, less one over the same candles that trades
    nothing.
    """
    for trades in (1_000, 10_000, 30_000, 100_000):
        if trades > most:
            return
        candles = year(trades * 5)
        data = written(candles, folder / "BTC_1m.csv")
        prepared("Idle", candles, folder).journal.close()
        idle, _, _ = backtest(folder, data)
        prepared("Often", candles, folder).journal.close()
        ran, run, summary = backtest(folder, data)
        shutil.rmtree(run)
        done = summary["figures"]["# Trades"]
        each = (ran.cpu - idle.cpu) / done * 1e6
        print(
            f"{done:>9,} trades: {each:9.1f} us each, peak {ran.megabytes:4} MB, without trades {idle.megabytes} MB"
            " (target 250)"
        )


MARKETS = ("BTC", "ETH", "SOL", "XRP", "DOGE", "HYPE", "BNB", "AVAX", "LINK", "SUI")


def ten(folder: Path, bars: int) -> None:
    """Ten markets with three crosses of averages each, netted: the whole command."""
    inside = folder / "ten"
    inside.mkdir()
    for number, market in enumerate(MARKETS):
        written(year(bars, market=market, seed=7 + number), inside / f"{market}_1m.csv")
    strategies = [
        {
            "name": f"{market.lower()}-{fast}",
            "use": "bench:Cross",
            "markets": [market],
            "interval": "1m",
            "budget_usd": 5_000,
            "max_leverage": 3,
            "netting": "allow",
            "params": {"fast_bars": fast, "slow_bars": 3 * fast},
        }
        for market in MARKETS
        for fast in (10, 30, 100)
    ]
    body = {
        "account": {"base_url": "embedded"},
        "dead_man": "off",
        "strategies_dir": str(STRATEGIES),
        "strategies": strategies,
    }
    (folder / "bench.yaml").write_text(json.dumps(body))
    ran, _, summary = backtest(folder, inside)
    shutil.rmtree(inside)
    share = bars / YEAR
    print(
        f"ten markets, thirty strategies, {bars:,} bars each, {summary['figures']['# Trades']:,} trades:"
        f" {ran.seconds:.1f} s (processor {ran.cpu:.1f} s), {ran.megabytes} MB"
        + ("" if share == 1 else f"; a year by this {ran.cpu / share:.0f} s of processor")
        + " (targets of the year: 60 s, 1 GB)"
    )


def years(folder: Path, count: int) -> None:
    """A year of minutes repeated: the whole command of (b), its processor time and peak memory."""
    one = year(YEAR)
    at_ms = array("q", range(START_MS, START_MS + YEAR * count * 60_000, 60_000))
    columns = (one.open, one.high, one.low, one.close, one.volume)
    candles = Candles(one.market, one.interval, at_ms, *(column * count for column in columns))
    data = written(candles, folder / "BTC_1m.csv")
    prepared("Cross", one, folder).journal.close()
    # Where the year begins again, the price jumps.
    ran, _, summary = backtest(folder, data, "--accept-jumps")
    print(
        f"{count} years of minutes, {summary['figures']['# Trades']:,} trades: processor {ran.cpu:.1f} s, "
        f"{ran.megabytes} MB (targets of five: 38 s, 420 MB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bars", type=int, default=YEAR)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="the paired figures alone")
    parser.add_argument("--command", action="store_true", help="the whole command alone")
    parser.add_argument("--slopes", action="store_true", help="the cost of a trade alone")
    parser.add_argument("--trades", type=int, default=100_000, help="the longest of those runs")
    parser.add_argument("--ten", action="store_true", help="ten markets with three strategies each, --bars of them")
    parser.add_argument("--years", type=int, default=0, help="the whole command over so many years of minutes")
    parser.add_argument("--no-peers", action="store_true", help="leave out the other programs that are installed")
    given = parser.parse_args()
    logs.configure(level="error")
    parts: dict[str, Callable[[Path], None]] = {
        "short": lambda folder: paired(year(given.bars), given.rounds, folder, with_peers=not given.no_peers),
        "command": shell,
        "slopes": lambda folder: slopes(folder, given.trades),
        "ten": lambda folder: ten(folder, given.bars),
        "years": lambda folder: years(folder, given.years or 5),
    }
    asked = [name for name in parts if getattr(given, name)]
    for name in asked or parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
