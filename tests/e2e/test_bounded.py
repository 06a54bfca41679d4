"""Left alone: a daemon on recorded candles at 600x, whose service goes away and comes back. Its memory, files, journal and log stay bounded.

A minute in every run of the suite, twenty in `make soak`; the figures are printed, and shown by `pytest -s`.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import linear_regression, mean
from typing import NamedTuple

import pytest

from bot.runtime.journal import LOG_BYTES_MAX
from bot.runtime.tail import FILE, FILE_BYTES_MAX
from tests.e2e.forking import Zygote
from tests.e2e.processes import Daemon, Sandbox, until

SPEED = 600
HEARTBEAT_S = 18_000  # 30 s of real time at 600x
SETTLED_S = 20.0  # by then what is filled once is full: the tail of the log, caches, the first connections
SAMPLE_S = 2.0
AWAY = 3  # times that the service is stopped and started again
SOCKETS_MAX = 30  # the client's 16 connections, the stream, the control socket and its askers
# Between the means of the first and the last third. Bounded things still fill for minutes: 10,000 keys of trades, columns of bars, SQLite's
# cache, the tail of the log. A leak of a kilobyte a bar is 8 MB in twenty minutes.
GROWTH_MB = 6.0
ROW_BYTES_MAX = 8_000  # of journal a bar decided: its intents, traces and events
FIRST_BARS = 1_100

CONFIG = """\
account: {base_url: "%(base_url)s", api_key: "${file:api-key}"}
dead_man: {heartbeat_seconds: %(heartbeat)d, on_miss: flatten}
state_dir: state
strategies_dir: %(strategies)s
strategies:
  - {name: churn, use: "churn:Churn", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}
"""


class Sample(NamedTuple):
    at_s: float
    pss_mb: float
    files: int
    sockets: int


@pytest.fixture
def pair(place: Path, repository: Path, shared: Path, zygote: Zygote, seconds: int) -> Iterator[tuple[Sandbox, Daemon]]:
    source = shared / "data" / "crypto" / "binance_BTCUSDT_1m_202505.csv.gz"
    candles = place / "btc.csv"
    with gzip.open(source, "rt") as rows:
        candles.write_text(
            "".join(row for row, _ in zip(rows, range(FIRST_BARS + (seconds + 60) * SPEED // 60), strict=False))
        )
    sandbox = Sandbox(place, clock=f"{SPEED}x", zygote=zygote, markets=("--data", f"BTC={candles}"))
    sandbox.start()
    sandbox.open_account()
    daemon = Daemon(
        place,
        sandbox,
        heartbeat_seconds=HEARTBEAT_S,
        strategies=repository / "strategies",
        zygote=zygote,
        config=CONFIG,
    )
    yield sandbox, daemon
    daemon.kill()
    sandbox.kill()


@pytest.mark.soak(seconds=60)
def test_a_daemon_that_is_left_alone_stays_as_large_as_it_was(pair: tuple[Sandbox, Daemon], seconds: int) -> None:
    sandbox, daemon = pair
    daemon.start()
    daemon.wait_ready()
    began = time.monotonic()
    away_at = [seconds * n / (AWAY + 1) for n in range(1, AWAY + 1)]
    samples: list[Sample] = []
    while (at_s := time.monotonic() - began) < seconds:
        if away_at and at_s >= away_at[0]:
            away_at.pop(0)
            sandbox.kill()
            sandbox.start()
            cycles = daemon.cycles()
            until("the daemon goes on", lambda cycles=cycles: daemon.cycles() > cycles + 2)
        samples.append(sampled(daemon.pid, at_s))
        time.sleep(SAMPLE_S)
    until("every intent is settled", lambda: not daemon.unsettled())
    log = daemon.state / FILE
    bars, intents = daemon.bars(), len(daemon.intents())
    journal, ahead, told = (
        path.stat().st_size for path in (daemon.state / "journal.db", daemon.state / "journal.db-wal", log)
    )
    assert daemon.stop() == 0, daemon.log()[-3000:]

    settled = [one for one in samples if one.at_s >= min(SETTLED_S, seconds / 3)]
    slope = linear_regression([one.at_s / 60 for one in settled], [one.pss_mb for one in settled]).slope
    third = max(1, len(settled) // 3)
    growth = mean(one.pss_mb for one in settled[-third:]) - mean(one.pss_mb for one in settled[:third])
    print(
        f"\n{seconds} s at {SPEED}x, {bars} bars, {intents} intents, the service away {AWAY} times: memory {settled[0].pss_mb:.1f} to"
        f" {settled[-1].pss_mb:.1f} MB PSS, slope {slope:+.2f} MB a minute; files {settled[-1].files}, sockets"
        f" {max(one.sockets for one in settled)} at most; journal {journal / 1e6:.2f} MB, its log {ahead / 1e6:.2f} MB,"
        f" daemon.log {told / 1e6:.2f} MB"
    )
    assert bars > seconds * 2, "it was to have something to do"
    assert intents > seconds / 4
    assert growth < GROWTH_MB
    assert {one.files for one in settled} == {settled[0].files}, "each file once, however often the service went away"
    assert max(one.sockets for one in settled) <= SOCKETS_MAX
    assert journal < 500_000 + bars * ROW_BYTES_MAX
    assert ahead <= LOG_BYTES_MAX
    assert told <= FILE_BYTES_MAX


def sampled(pid: int, at_s: float) -> Sample:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    names = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(str(fd.readlink()))
        except FileNotFoundError:
            continue
    sockets = sum(name.startswith("socket:") for name in names)
    return Sample(at_s, pss_kb / 1024, len(names) - sockets, sockets)
