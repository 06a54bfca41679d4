"""Soak: memory of the service and of the daemon over a long run of many trades, and its slope in MB a minute after a warm-up.

Every strategy opens on one bar and closes on the next, on the service's clock at 600x. Ends with 1 when the slope of one of the two is above
--most.

python -m tests.bench.soak [--minutes 30] [--warm 20] [--strategies 4] [--most 0.5]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.bench import many

SPEED = 600  # ten bars of a minute a second
SAMPLE_S = 5.0
WARM = 20  # minutes: the tokens of a week and 100,000 events are kept, and fill up in 17 of them


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--minutes", type=float, default=30)
    given.add_argument(
        "--warm", type=float, default=WARM, help="minutes that do not count: what is kept up to a bound fills up first"
    )
    given.add_argument("--strategies", type=int, default=4)
    given.add_argument("--most", type=float, default=0.5, help="MB a minute that are still called flat")
    asked = given.parse_args()
    with tempfile.TemporaryDirectory(prefix="bot-", dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        service, base_url = many.start_service(folder, limits=True, speed=SPEED)
        try:
            many.make_project(folder, base_url, asked.strategies, path="plan", speed=SPEED)
            with (folder / "log").open("ab") as log:
                daemon = subprocess.Popen(
                    [sys.executable, "-m", "bot", "run", str(folder / "many.yaml")], stdout=log, stderr=log
                )
            try:
                many.wait_passes(folder, daemon)
                slopes = _watch(
                    {"service": service.pid, "daemon": daemon.pid}, base_url, folder, asked.minutes, asked.warm
                )
            finally:
                daemon.send_signal(signal.SIGTERM)
                daemon.wait(many.WAIT_S)
        finally:
            service.terminate()
            service.wait(many.WAIT_S)
    if max(slopes.values()) > asked.most:
        raise SystemExit(f"not flat: more than {asked.most} MB a minute")


def _watch(pids: dict[str, int], base_url: str, folder: Path, minutes: float, warm: float) -> dict[str, float]:
    """Sample both processes to the end; a line a minute. Answers the slopes in MB a minute."""
    began = time.monotonic()
    samples: dict[str, list[tuple[float, float]]] = {who: [] for who in pids}
    shown = 0
    while (at := (time.monotonic() - began) / 60) < minutes:
        for who, pid in pids.items():
            samples[who].append((at, many.pss_mb(pid)))
        if at >= shown:
            said = ", ".join(f"{who} {of[-1][1]:6.1f} MB" for who, of in samples.items())
            print(f"minute {shown:3d}: {said}, {_trades(base_url, folder)} trades", flush=True)
            shown += 1
        time.sleep(SAMPLE_S)
    slopes = {}
    for who, of in samples.items():
        counted = [one for one in of if one[0] >= warm]
        slopes[who] = statistics.linear_regression(*zip(*counted, strict=True)).slope
        print(
            f"{who}: {slopes[who]:+.3f} MB a minute over the {len(counted)} samples after minute {warm:g}, {of[-1][1]:.1f} MB at the end"
        )
    return slopes


def _trades(base_url: str, folder: Path) -> int:
    """How many there have been: the number of the newest one."""
    key = (folder / "api-key").read_text()
    answer = httpx.get(f"{base_url}/v1/trades?limit=1", headers={"Authorization": f"Bearer {key}"}, trust_env=False)
    trades = answer.raise_for_status().json()["trades"]
    return int(trades[0]["seq"]) if trades else 0


if __name__ == "__main__":
    main()
