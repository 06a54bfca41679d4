"""What `make test` costs: wall seconds, processor seconds as a multiple of a fixed loop, the collection, and the
seconds by file.

    python -m tests.bench.suite            measure, print, and compare the slowest tests with their bounds
    python -m tests.bench.suite --write    measure and write the bounds anew

The loop runs before and after in the same call, so that its multiples are comparable between machines and loads. The
bounds stand in `slowest_tests.json`, which `--write` makes: for each of the 30 slowest tests its processor seconds in
multiples of the loop, times BOUND_RATIO. A test beyond its bound, or one that is not listed and slower than all of
them, ends the command with 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.workers import processor_seconds

BOUNDS: Final = Path(__file__).with_name("slowest_tests.json")
LISTED: Final = 30
# A busy second core makes a test dearer than the loop, by up to a half; what doubles is a change of the test.
BOUND_RATIO: Final = 2.0
LOOP_STEPS: Final = 5_000_000


def loop_seconds() -> float:
    """The processor seconds of the fixed loop: integers, a dict and calls, as most of the tests' time."""
    began = time.process_time()
    seen: dict[int, int] = {}
    for number in range(LOOP_STEPS):
        key = number & 1023
        seen[key] = max(seen.get(key, 0), number ^ key)
    return time.process_time() - began


def violations(multiples: dict[str, float], bounds: dict[str, float]) -> list[str]:
    """Each test that takes more than its bound, and each unlisted one that is slower than the lowest bound."""
    lowest = min(bounds.values())
    return [
        f"{name}: {multiple:.2f} loops, bound {bounds.get(name, lowest):.2f}"
        for name, multiple in sorted(multiples.items(), key=lambda row: -row[1])
        if multiple > bounds.get(name, lowest)
    ]


def bounds_of(multiples: dict[str, float]) -> dict[str, float]:
    """The bounds of the slowest tests, slowest first."""
    slowest = sorted(multiples.items(), key=lambda row: -row[1])[:LISTED]
    return {name: round(multiple * BOUND_RATIO, 2) for name, multiple in slowest}


def _pytest(*arguments: str) -> tuple[float, float, int]:
    """Wall seconds, processor seconds and exit code of one pytest process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began, used = time.monotonic(), processor_seconds()
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], env=environment, check=False)
    return time.monotonic() - began, processor_seconds() - used, done.returncode


def main() -> int:
    """Measure one collection and one whole run, print the table, and compare or write the bounds."""
    before = loop_seconds()
    _, collecting, _ = _pytest("--collect-only", "-qqq")
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "seconds.json"
        wall, used, code = _pytest("-n", "auto", "--measure", str(measured))
        seconds: dict[str, tuple[float, float]] = json.loads(measured.read_text(encoding="utf-8"))
    loop = (before + loop_seconds()) / 2
    by_file: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for name, (test_wall, test_used) in seconds.items():
        row = by_file[name.partition("::")[0]]
        row[0], row[1], row[2] = row[0] + test_wall, row[1] + test_used, row[2] + 1
    print(f"\n{'wall s':>8} {'cpu s':>8} {'loops':>7} {'tests':>6}  file")
    for name, (file_wall, file_used, tests) in sorted(by_file.items(), key=lambda row: -row[1][1])[:60]:
        print(f"{file_wall:8.1f} {file_used:8.1f} {file_used / loop:7.1f} {tests:6.0f}  {name}")
    print(f"\nloop {loop:.2f} s of processor; collection {collecting:.1f} s = {collecting / loop:.0f} loops")
    print(f"whole run: wall {wall:.0f} s, processor {used:.0f} s = {used / loop:.0f} loops; exit code {code}")
    multiples = {name: test_used / loop for name, (_, test_used) in seconds.items()}
    if "--write" in sys.argv[1:]:
        BOUNDS.write_text(json.dumps(bounds_of(multiples), indent=1) + "\n", encoding="utf-8")
        return code
    if not BOUNDS.exists():
        print(f"no bounds to compare with: on a quiet machine --write makes {BOUNDS.name}")
        return code
    slower = violations(multiples, json.loads(BOUNDS.read_text(encoding="utf-8")))
    for line in slower:
        print(line)
    return code or bool(slower)


if __name__ == "__main__":
    sys.exit(main())
