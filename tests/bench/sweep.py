"""Sweeps: how fast one and two workers run the same trials of the SMA bracket strategy, and the memory that a worker
adds to the candles that it shares.

python -m tests.bench.sweep [--bars 525600] [--trials 8]     figures beside their bounds; exit code 1 if one is missed
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bot.backtest.engine.options import SessionOptions
from bot.backtest.inputs import Files, Inputs
from bot.research.runners import Processes
from bot.research.trials import Bundle, Task, bundle_of
from tests.backtest.builders import config, minutes, write

# two workers beside one
SPEEDUP_MIN = 1.8
# that two workers must get: with less, other programs used the machine
CORES_MIN = 1.85
# a worker's own memory, beyond what it shares
MEMORY_MB_MAX = 200


def bundle(folder: Path, bars: int) -> Bundle:
    """A walk of `bars` minutes, and the crossing averages with a bracket."""
    data = write(minutes(bars), folder / "BTC_1m.csv")
    return bundle_of(Inputs(config(folder, use="bench:Cross"), Files([str(data)]), SessionOptions()))


def tasks(count: int) -> list[Task]:
    return [Task(number, {"one.fast_bars": 40 + number, "one.slow_bars": 200 + 10 * number}) for number in range(count)]


def own_mb(pid: int) -> float:
    """The memory that a process does not share with another one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def pids() -> list[int]:
    return [one.pid for one in multiprocessing.active_children() if one.pid is not None]


def cpu_s(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """Wall seconds, processor seconds of the workers, the largest memory of a worker after a trial, and the digests
    of the trials.
    """

    seconds: float
    cpu_s: float
    memory_mb: float
    digests: list[str]


def measured(made: Bundle, workers: int, count: int) -> Measured:
    """Run the trials in warm processes."""
    with closing(Processes(made, workers)) as runner:
        list(runner.outcomes(tasks(workers)))
        before_s, started = sum(map(cpu_s, pids())), time.perf_counter()
        digests, largest = {}, 0.0
        for outcome in runner.outcomes(tasks(count)):
            digests[outcome.number] = outcome.digest
            largest = max(largest, *map(own_mb, pids()))
        seconds = time.perf_counter() - started
        spent_s = sum(map(cpu_s, pids())) - before_s
    return Measured(seconds, spent_s, largest, [digests[number] for number in sorted(digests)])


def say(what: str, figure: str) -> None:
    print(f"{what:<78} {figure:>22}", flush=True)


def workers_compared(bars: int, count: int) -> bool:
    """Two workers beside one, in the same process. On a busy machine the speed is said and not judged."""
    with tempfile.TemporaryDirectory() as folder:
        made = bundle(Path(folder), bars)
        one, two = measured(made, 1, count), measured(made, 2, count)
    assert one.digests == two.digests, "the trials differ"
    say(f"full backtest, one worker, {count} trials of {bars:,} bars", f"{count * bars / one.seconds:,.0f} bars/s")
    say("full backtest, two workers", f"{count * bars / two.seconds:,.0f} bars/s")
    say(f"two workers beside one (at least {SPEEDUP_MIN})", f"{one.seconds / two.seconds:.2f} times")
    say("processor time of the trials, one worker and two", f"{one.cpu_s:.1f} s, {two.cpu_s:.1f} s")
    cores = two.cpu_s / two.seconds
    is_free = cores >= CORES_MIN
    say(
        f"cores that two workers got (at least {CORES_MIN}, else the speed is not judged)",
        f"{cores:.2f}{'' if is_free else ', not judged'}",
    )
    say(
        f"memory of a worker beyond what it shares (at most {MEMORY_MB_MAX} MB)",
        f"{one.memory_mb:.0f} MB, of two {two.memory_mb:.0f} MB",
    )
    is_fast = one.seconds / two.seconds >= SPEEDUP_MIN or not is_free
    return is_fast and max(one.memory_mb, two.memory_mb) <= MEMORY_MB_MAX


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--bars", type=int, default=525_600)
    options.add_argument("--trials", type=int, default=8)
    given = options.parse_args()
    judged = [workers_compared(given.bars, given.trials)]
    # The compiled screen has its figures here, as one more function that says and judges.
    return 0 if all(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
