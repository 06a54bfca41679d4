"""The compiled screen: `python -m tests.bench.screen [--bars N] [--pairs N] [--rounds N]` prints figures beside their
bounds; exit code 1 if one is missed.

The SMA bracket strategy over a generated year of minutes, from params to all figures of the report: the screen
compiled, the screen in plain Python (a child without numba), and the full backtest, whose trades must be equal; beside
them backtesting.py for one pair of params and vectorbt for all pairs, as far as they are installed (`uv sync --group
bench`). In rounds, by processor time; each ratio is the median of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from importlib.util import find_spec

from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import SessionOptions
from bot.logs import quiet_log
from bot.research.screen.jit import IS_COMPILED
from bot.research.screen.screen import screen
from bot.research.trials import Bundle, Task, evaluate
from bot.runtime.kernel.assembly import place_strategies
from tests.bench import peers
from tests.bench.session import RULES, YEAR, year
from tests.research.screen.builders import rows_of, settings_of

# The plain screen is at least this many times faster.
OVER_BACKTESTING_MIN = 8.0
# The compiled screen is at least this many times faster.
OVER_VECTORBT_MIN = 5.0
OPTIONS = SessionOptions(balance_usd=Decimal(peers.BALANCE), rules=RULES)
ONE_PAIR = (peers.FAST, peers.SLOW)
# pairs that vectorbt gets at once: a year of 100 fills the memory of a small machine
CHUNK = 20
FIGURES = (
    "total_return",
    "annualized_return",
    "annualized_volatility",
    "sharpe_ratio",
    "sortino_ratio",
    "calmar_ratio",
    "max_drawdown",
)
TRADE_FIGURES = ("win_rate", "profit_factor", "expectancy")

Pair = tuple[int, int]


def pairs(count: int) -> list[Pair]:
    return [(5 + 5 * (n % 10), 60 + 10 * (n // 10)) for n in range(count)]


class Screen:
    """Trials of a sweep over one bundle. The candles are read before, as the other programs read them."""

    def __init__(self, candles: Candles) -> None:
        self._bundle = Bundle(settings_of("signalled:Cross", {}), (candles,), OPTIONS, {}, {}, "")
        self.run([ONE_PAIR])
        (self._ground,) = self._bundle.grounds.values()

    def run(self, wanted: Sequence[Pair]) -> int:
        """The number of trades."""
        for ground in self._bundle.grounds.values():
            ground.lines.clear()
        found = [evaluate(self._bundle, Task(n, params_of(pair), is_screened=True)) for n, pair in enumerate(wanted)]
        assert all(one.state == "complete" and not one.message for one in found)
        return sum(one.figures["# Trades"] for one in found)

    def rows(self, pair: Pair) -> list[tuple[str, ...]]:
        with quiet_log():
            (spec,) = place_strategies(self._bundle.with_params(params_of(pair)))
        return rows_of(screen(self._ground, spec).trips())

    def full(self, pair: Pair) -> list[tuple[str, ...]]:
        """The same rows by the full backtest."""
        result = self._bundle.run(self._bundle.with_params(params_of(pair)), OPTIONS)
        return rows_of(result.trade_ledger.trips)


def params_of(pair: Pair) -> dict[str, int]:
    return {"one.fast_bars": pair[0], "one.slow_bars": pair[1]}


def vectorbt(candles: Candles) -> Callable[[Sequence[Pair]], int]:
    import numpy as np
    import vectorbt as vbt

    opened, high, low, close = (
        np.frombuffer(one)[:, None] for one in (candles.open, candles.high, candles.low, candles.close)
    )
    # It fills at the price of the signal's own row.
    at_open = np.append(opened[1:], close[-1:], axis=0)

    def run(wanted: Sequence[Pair]) -> int:
        trades = 0
        for start in range(0, len(wanted), CHUNK):
            some = wanted[start : start + CHUNK]
            fast, slow = (vbt.MA.run(close[:, 0], [pair[n] for pair in some]) for n in (0, 1))
            entries = fast.ma_crossed_above(slow.ma.values).values.reshape(len(close), -1)
            exits = fast.ma_crossed_below(slow.ma.values).values.reshape(len(close), -1)
            made = vbt.Portfolio.from_signals(
                close,
                entries,
                exits,
                price=at_open,
                open=opened,
                high=high,
                low=low,
                size=peers.USD / close,
                fees=peers.FEE,
                sl_stop=peers.STOP,
                tp_stop=peers.TARGET,
                init_cash=peers.BALANCE,
                freq="1min",
            )
            trades += int(made.trades.count().sum())
            for figure in FIGURES:
                getattr(made, figure)()
            for figure in TRADE_FIGURES:
                getattr(made.trades, figure)()
        return trades

    return run


def timed(run: Callable[[], int]) -> tuple[float, int]:
    gc.collect()
    started = time.process_time()
    found = run()
    return time.process_time() - started, found


def say(what: str, figure: str) -> None:
    print(f"{what:<86} {figure:>24}", flush=True)


def over(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def plain_beside_backtesting(candles: Candles, rounds: int) -> dict[str, list[float]]:
    """One pair of params, in this process: seconds of each round."""
    made = Screen(candles)
    found: dict[str, list[float]] = {"ours": [], "theirs": [], "trades": []}
    for _ in range(rounds):
        seconds, trades = timed(lambda: made.run([ONE_PAIR]))
        found["ours"].append(seconds)
        if find_spec("backtesting"):
            found["theirs"].append(peers.run_backtesting(candles).seconds)
        found["trades"].append(trades)
    return found


def plain(bars: int, rounds: int) -> bool:
    """The screen without numba, in a child."""
    words = [sys.executable, "-m", "tests.bench.screen", "--plain", "--bars", str(bars), "--rounds", str(rounds)]
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}
    )
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = statistics.median(found["ours"])
    say(
        f"the screen in plain Python, one pair, {found['trades'][0]:,} trades",
        f"{seconds:.3f} s, {bars / seconds:,.0f} bars/s",
    )
    if not found["theirs"]:
        say("beside backtesting.py", "not installed here")
        return True
    ratio = over(found["ours"], found["theirs"])
    say(f"the plain screen over backtesting.py (at least {OVER_BACKTESTING_MIN:g})", f"{ratio:.1f} times")
    return ratio >= OVER_BACKTESTING_MIN


def compiled(candles: Candles, wanted: Sequence[Pair], rounds: int) -> bool:
    """All pairs by the compiled screen on one core, beside vectorbt."""
    made, bars = Screen(candles), len(candles)
    theirs = vectorbt(candles) if find_spec("vectorbt") else None
    if theirs is not None:
        # It compiles.
        theirs(wanted[:1])
    ours_s, theirs_s = [], []
    for _ in range(rounds):
        seconds, trades = timed(lambda: made.run(wanted))
        ours_s.append(seconds)
        if theirs is not None:
            seconds, others = timed(lambda: theirs(wanted))
            theirs_s.append(seconds)
    rows = len(wanted) * bars
    took = statistics.median(ours_s)
    say(
        f"the compiled screen, {len(wanted)} pairs of {bars:,} bars, {trades:,} trades",
        f"{took:.2f} s, {rows / took:,.0f} bars/s",
    )
    if theirs is None:
        say("beside vectorbt", "not installed here")
        return True
    took = statistics.median(theirs_s)
    say(f"vectorbt {peers.version('vectorbt')}, {others:,} trades", f"{took:.2f} s, {rows / took:,.0f} bars/s")
    say(f"the compiled screen over vectorbt (at least {OVER_VECTORBT_MIN:g})", f"{over(ours_s, theirs_s):.1f} times")
    return over(ours_s, theirs_s) >= OVER_VECTORBT_MIN


def full(candles: Candles) -> None:
    """The full backtest of one pair, whose trades are those of the screen."""
    made = Screen(candles)
    started = time.process_time()
    found = made.full(ONE_PAIR)
    seconds = time.process_time() - started
    assert found == made.rows(ONE_PAIR), "the trades differ"
    say(
        f"the full backtest of one pair, {len(found):,} equal trades",
        f"{seconds:.2f} s, {len(candles) / seconds:,.0f} bars/s",
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--bars", type=int, default=YEAR)
    options.add_argument("--pairs", type=int, default=100)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    candles = year(given.bars)
    if given.plain:
        print(json.dumps(plain_beside_backtesting(candles, given.rounds)))
        return 0
    full(candles)
    judged = [plain(given.bars, given.rounds)]
    if IS_COMPILED:
        judged.append(compiled(candles, pairs(given.pairs), given.rounds))
    else:
        say("the compiled screen", "numba is not installed")
    return 0 if all(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
