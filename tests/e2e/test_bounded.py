"""Left alone: a daemon on recorded candles at 600x, whose service goes away and comes back. Its memory, files, journal
and log stay bounded.

The test counts orders, so a busy machine makes it longer and no weaker: 120 in every run of the suite, 6,000 in
`make soak`, whose second half must be flat. The figures are printed, and shown by `pytest -s`. The real clock stays,
because the heartbeat process, which is measured too, exists only beside a clock that runs.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import linear_regression, mean
from typing import NamedTuple

import pytest

from bot.runtime.control_plane.log_tail import FILE, FILE_BYTES_MAX, older
from bot.runtime.journal.database import LOG_BYTES_MAX
from tests.e2e.processes import HEAD, Daemon, Sandbox, own_mb, until

SPEED = 600
# 30 s of real time at 600x
HEARTBEAT_S = 18_000
# by then the first connections are made and SQLite's caches are warm
SETTLED_ORDERS = 60
SAMPLE_ORDERS = 6
# parts of the orders after which the service is killed and started again
AWAY = (0.2, 0.3, 0.4)
# the client's 16 connections, the stream, the control socket and its askers
SOCKETS_MAX = 30
# Of 120 orders, between the means of the first and the last third. What is bounded still fills: 2,000 lines of the log
# are full after 600 bars, 1,000 bars are doubled and cut within 1,200, 2,000 keys of trades are seen within 3,000.
GROWTH_MB = 4.0
# a run of which the second half shows what is left once all that is full
LONG_ORDERS = 3_000
# 300 orders, over that half: a leak of 100 bytes a bar or order is more
SLOPE_ORDERS = 300
SLOPE_MB = 0.05
# Of the service since it was started last. It is for a while as large again as what 10,000 commands have made: then it
# packs its events and trades, on the way to the disk. What stays for good is 0.4 kB a trade.
SERVICE_MB = 40.0
# What one decided bar adds to the journal: its intents, traces and events.
ROW_BYTES_MAX = 8_000
FIRST_BARS = 1_100
# A busy machine lets entries lapse, and takes more bars for its orders.
BARS_AN_ORDER = 5
BARS_MORE = 3_000
# far beyond what so few orders take
PATIENCE_S = 300.0

CONFIG = (
    HEAD
    + """\
  - {name: churn, use: "churn:Churn", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}
"""
)


class Sample(NamedTuple):
    """Memory in MB that is a process's own: what it shares with others depends on them."""

    orders: int
    daemon: float
    heartbeat: float
    service: float
    # without the null device: the daemon opens it some times over, for a moment, to see whether descriptors are left
    files: int
    null_devices: int
    sockets: int


@pytest.fixture
def pair(place: Path, repository: Path, shared: Path, orders: int) -> Iterator[tuple[Sandbox, Daemon]]:
    source = shared / "data" / "crypto" / "binance_BTCUSDT_1m_202505.csv.gz"
    candles = place / "btc.csv"
    with gzip.open(source, "rt") as rows:
        candles.write_text("".join(islice(rows, FIRST_BARS + orders * BARS_AN_ORDER + BARS_MORE)))
    sandbox = Sandbox(place, clock=f"{SPEED}x", markets=("--data", f"BTC={candles}"))
    sandbox.start()
    sandbox.open_account()
    daemon = Daemon(place, sandbox, heartbeat_seconds=HEARTBEAT_S, strategies=repository / "strategies", config=CONFIG)
    yield sandbox, daemon
    daemon.kill()
    sandbox.kill()


@pytest.mark.soak(orders=120, full=6_000)
def test_a_daemon_that_is_left_alone_stays_as_large_as_it_was(pair: tuple[Sandbox, Daemon], orders: int) -> None:
    sandbox, daemon = pair
    daemon.start()
    daemon.wait_ready()
    (heartbeat,) = children(daemon.pid)
    away_at = [orders * part for part in AWAY]
    started_at = 0
    samples: list[Sample] = []
    while (sent := sent_by(daemon)) < orders:
        if away_at and sent >= away_at[0]:
            away_at.pop(0)
            sandbox.kill()
            sandbox.start()
            cycles = daemon.cycles()
            until("the daemon goes on", lambda cycles=cycles: daemon.cycles() > cycles + 2)
            started_at = sent = sent_by(daemon)
        memory = (own_mb(daemon.pid), own_mb(heartbeat), own_mb(sandbox.pid))
        samples.append(Sample(sent, *memory, *descriptors(daemon.pid)))
        next_at = sent + SAMPLE_ORDERS
        until(f"{next_at} orders are sent", lambda next_at=next_at: sent_by(daemon) >= next_at, PATIENCE_S)
    until("every intent is settled", lambda: not daemon.unsettled())
    bars, intents = daemon.bars(), sent_by(daemon)
    log, journal = daemon.state / FILE, daemon.state / "journal.db"
    sizes = {
        path.name: path.stat().st_size
        for path in (journal, journal.with_name("journal.db-wal"), log, older(log))
        if path.exists()
    }
    assert children(daemon.pid) == [heartbeat], "the same one all the time"
    assert daemon.stop() == 0, daemon.log()[-3000:]

    settled = [one for one in samples if one.orders >= min(SETTLED_ORDERS, orders / 3)]
    late = [one for one in samples if one.orders >= orders / 2]
    slopes = {name: slope(late, name) for name in ("daemon", "heartbeat", "service")}
    third = max(1, len(settled) // 3)
    growth = mean(one.daemon for one in settled[-third:]) - mean(one.daemon for one in settled[:third])
    print(
        f"\n{bars} bars at {SPEED}x, {intents} intents, the service away {len(AWAY)} times; slopes of the second half"
        f" in {SLOPE_ORDERS} orders."
        + "".join(
            f"\n{name}: {getattr(samples[0], name):.2f} MB, after half the time {getattr(late[0], name):.2f}, at the"
            f" end {getattr(late[-1], name):.2f}; slope {slopes[name]:+.4f} MB"
            for name in slopes
        )
        + f"\nfiles {samples[-1].files}, sockets {max(one.sockets for one in samples)} at most; "
        + ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items())
    )
    assert growth < GROWTH_MB
    if orders >= LONG_ORDERS:
        assert slopes["daemon"] < SLOPE_MB
        assert slopes["heartbeat"] < SLOPE_MB
    served = [one.service for one in samples if one.orders >= started_at]
    assert max(served) - served[0] < SERVICE_MB
    # The least of each third: a sample may meet a file that is open for a moment only, such as one that is replaced as
    # a whole.
    before, after = (min(one.files for one in part) for part in (settled[:third], settled[-third:]))
    assert after == before, "a file stays open after the service went away"
    nulls_before, nulls_after = (min(one.null_devices for one in part) for part in (settled[:third], settled[-third:]))
    assert nulls_after == nulls_before, "a null device stays open"
    assert max(one.files for one in settled) <= before + 1, "files that are replaced are open one at a time"
    assert max(one.sockets for one in samples) <= SOCKETS_MAX
    assert sizes["journal.db"] < 500_000 + bars * ROW_BYTES_MAX
    assert sizes["journal.db-wal"] <= LOG_BYTES_MAX
    assert all(size <= FILE_BYTES_MAX + 20_000 for name, size in sizes.items() if name.startswith(FILE)), "and a line"


def sent_by(daemon: Daemon) -> int:
    """How many orders and closes the daemon has written to its journal."""
    count: int = daemon.ask("SELECT count(*) FROM intents")[0][0]
    return count


def slope(samples: Sequence[Sample], name: str) -> float:
    """MB in SLOPE_ORDERS orders."""
    return linear_regression(
        [one.orders / SLOPE_ORDERS for one in samples], [getattr(one, name) for one in samples]
    ).slope


def descriptors(pid: int) -> tuple[int, int, int]:
    """How many files, how many null devices and how many sockets."""
    names = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(str(fd.readlink()))
        except FileNotFoundError:
            continue
    nulls, sockets = names.count(os.devnull), sum(name.startswith("socket:") for name in names)
    return len(names) - nulls - sockets, nulls, sockets


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
