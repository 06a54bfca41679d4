"""Soak: memory of the service and of the daemon over a long run of many trades; the slope after a warm-up in MB a
minute and bytes a trade.

Every strategy opens on one bar and closes on the next, on the service's clock at 600x. Ends with 1 when a slope is
above --most or --most-a-trade.

What grows without being a leak, at 2,000 trades a minute, as measured inside the service over 80,000 trades:
  - 105 bytes a trade, for ever, because the interface answers every trade and knows every idempotency key: 87 in a
  packed page of trades, 8 in
    the account's set of keys, 8 in the set of stored answers (of the last days only).
  - candles, until each market has 5,000 of each interval. At 600x a minute is ten hours, so the intervals fill up at
  minutes 8 (1m), 42 (5m),
    125 (15m) and 500 (1h). From minute 8 to 42 that is 50 markets x 173 candles a minute x 17 bytes = 0.15 MB a minute,
    or 75 bytes a trade.
Full before --warm ends: 100,000 events (minute 17), the tokens of executed plans (8 days, minute 20). That makes 180
bytes a trade, 0.34 MB a minute. The bounds are 40 % above that: the allocator leaves holes, and one slope over 20
minutes has the steps of snapshots in it. A list that kept one object of every trade would add 200 bytes a trade at
least.

python -m tests.bench.soak [--minutes 30] [--warm 20] [--strategies 4] [--most 0.5] [--most-a-trade 250]
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
from typing import NamedTuple

import httpx

from tests.bench import many
from tests.e2e.processes import own_mb

# ten bars of a minute a second
SPEED = 600
SAMPLE_S = 5.0
# minutes: what is kept up to a bound fills up in them, except for candles
WARM = 20
# for the number of trades, which a sample on a busy machine goes without
ASK_S = 5.0
MB = 1024 * 1024


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--minutes", type=float, default=30)
    given.add_argument(
        "--warm", type=float, default=WARM, help="minutes that do not count: what is kept up to a bound fills up first"
    )
    given.add_argument("--strategies", type=int, default=4)
    given.add_argument("--most", type=float, default=0.5, help="MB a minute that are still called flat")
    given.add_argument("--most-a-trade", type=float, default=250, help="bytes a trade that are still called flat")
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
    if any(slope.mb_a_minute > asked.most or slope.bytes_a_trade > asked.most_a_trade for slope in slopes):
        raise SystemExit(f"not flat: more than {asked.most} MB a minute or {asked.most_a_trade:g} bytes a trade")


class Slope(NamedTuple):
    mb_a_minute: float
    bytes_a_trade: float


def _watch(pids: dict[str, int], base_url: str, folder: Path, minutes: float, warm: float) -> list[Slope]:
    """Sample both processes to the end; a line a minute. Answers their slopes after the warm-up."""
    began = time.monotonic()
    samples: dict[str, list[tuple[float, float]]] = {who: [] for who in pids}
    trades: list[tuple[float, float]] = []
    shown = 0
    while (at := (time.monotonic() - began) / 60) < minutes:
        for who, pid in pids.items():
            samples[who].append((at, own_mb(pid)))
        if at >= shown:
            said = ", ".join(f"{who} {of[-1][1]:6.1f} MB" for who, of in samples.items())
            count = _trades(base_url, folder)
            if count is not None:
                trades.append((at, count))
            print(f"minute {shown:3d}: {said}, {'-' if count is None else count} trades", flush=True)
            shown += 1
        time.sleep(SAMPLE_S)
    trades_a_minute = _slope(trades, warm)
    slopes = []
    for who, of in samples.items():
        mb_a_minute = _slope(of, warm)
        slopes.append(Slope(mb_a_minute, mb_a_minute * MB / trades_a_minute))
        print(
            f"{who}: {mb_a_minute:+.3f} MB a minute, {slopes[-1].bytes_a_trade:+.0f} bytes a trade after minute"
            f" {warm:g}, at {trades_a_minute:,.0f} trades a minute; {of[-1][1]:.1f} MB at the end"
        )
    return slopes


def _slope(samples: list[tuple[float, float]], warm: float) -> float:
    """The slope of the samples (minute, value) after the warm-up."""
    return statistics.linear_regression(*zip(*(one for one in samples if one[0] >= warm), strict=True)).slope


def _trades(base_url: str, folder: Path) -> int | None:
    """How many there have been: the number of the newest one. None if the service does not answer in time."""
    key = (folder / "api-key").read_text()
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(f"{base_url}/v1/trades?limit=1", headers=headers, timeout=ASK_S, trust_env=False)
    except httpx.TimeoutException:
        return None
    trades = answer.raise_for_status().json()["trades"]
    return int(trades[0]["seq"]) if trades else 0


if __name__ == "__main__":
    main()
