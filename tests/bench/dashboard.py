"""Dashboard with 20 markets: first paint in Chromium, processor time of the dashboard while a page is open, and the
daemon's time from bar to request.

python -m tests.bench.dashboard [SECONDS]

One strategy opens or closes in each of 20 markets at each bar; a bar closes every 3 seconds. The time from the close of
a bar to the request is on the service's clock, in real milliseconds, without an open page and then with one, in the
same daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.dashboard.browsing import Visitor

SECONDS = 45.0
SPEED = 20
MARKETS = [
    "BTC",
    "ETH",
    "SOL",
    "XRP",
    "DOGE",
    "HYPE",
    "BNB",
    "AVAX",
    "LINK",
    "SUI",
    "LTC",
    "ADA",
    "ARB",
    "OP",
    "AAVE",
    "ATOM",
    "INJ",
    "DYDX",
    "APE",
    "MINA",
]
STRATEGY = '''\
from bot import Bracket, Close, Open, Strategy


class InAndOut(Strategy):
    """A request in each market at each bar; half of the markets have a position."""

    def on_bar(self, view, bar):
        if view.position(bar.market):
            yield Close(bar.market)
        elif not view.orders(bar.market):
            yield Open(bar.market, "long", usd=50, bracket=Bracket(stop_pct=20))
'''
CONFIG = """\
account: {base_url: embedded}
dead_man: {heartbeat_seconds: 3600}
embedded: {clock: %dx, markets: [%s]}
state_dir: state
strategies:
  - {name: mine, use: "mine:InAndOut", markets: [%s], interval: 1m, budget_usd: 50000, max_leverage: 3}
log: {format: json}
"""


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory(prefix="bot-") as place:
        folder = Path(place)
        (folder / "strategies").mkdir()
        (folder / "strategies" / "mine.py").write_text(STRATEGY)
        coins = ", ".join(MARKETS)
        (folder / "mine.yaml").write_text(CONFIG % (SPEED, coins, coins))
        command = [sys.executable, "-m", "bot"]
        with (
            (folder / "err").open("wb") as err,
            running([*command, "run", str(folder / "mine.yaml")], stdout=err, stderr=err) as daemon,
        ):
            while requests(folder) < len(MARKETS):
                assert daemon.poll() is None, (folder / "err").read_text()
                time.sleep(0.1)
            time.sleep(2)
            closed = measured(folder, seconds, daemon.pid)
            dashboard = [*command, "dashboard", str(folder / "mine.yaml"), "--port", "0", "--json"]
            with running(dashboard, stdout=subprocess.PIPE) as process, sync_playwright() as driver:
                assert process.stdout is not None
                link = json.loads(process.stdout.readline())["link"]
                browser = driver.chromium.launch(
                    executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
                )
                visitor = Visitor(browser, link)
                for path in ("/", "/market/BTC"):
                    painted = [paint_ms(visitor, path) for _ in range(5)]
                    print(
                        f"first paint of {path:<12}: {sorted(painted)[2]:5.0f} ms, the slowest of 5"
                        f" {max(painted):5.0f} ms"
                    )
                for path in ("/", "/market/BTC"):
                    visitor.open(path)
                    before_s, began = processor_s(process.pid), time.monotonic()
                    opened = measured(folder, seconds, daemon.pid)
                    part = (processor_s(process.pid) - before_s) / (time.monotonic() - began)
                    print(f"dashboard with {path:<12}: {part * 100:5.1f} % of a core, {len(MARKETS)} markets")
                    print(f"bar to request, ms       : {opened}")
                browser.close()
            print(f"       without a dashboard: {closed}")


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    # the options of Popen
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def paint_ms(visitor: Visitor, path: str) -> float:
    page = visitor.open(path)
    found: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return found


def processor_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rows(folder: Path, sql: str) -> list[tuple[int, ...]]:
    path = folder / "state" / "journal.db"
    if not path.exists():
        return []
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
    ):
        return db.execute(sql).fetchall()
    return []


def requests(folder: Path) -> int:
    return len(rows(folder, "SELECT 1 FROM attempts"))


def measured(folder: Path, seconds: float, pid: int) -> str:
    """The delays of the next seconds, and the daemon's processor time."""
    before_s, began = processor_s(pid), time.monotonic()
    found = figures(delays(folder, seconds))
    return (
        f"{found}; the daemon needs {(processor_s(pid) - before_s) / (time.monotonic() - began) * 100:.1f} % of a core"
    )


def delays(folder: Path, seconds: float) -> list[float]:
    """Real milliseconds from the close of a bar to the first request of each intent of the next seconds."""
    (first,) = rows(folder, "SELECT max(seq) FROM intents")
    time.sleep(seconds)
    sql = (
        "SELECT a.sent_ms - CAST(substr(i.cause, -13) AS INTEGER) FROM intents i JOIN attempts a ON a.intent_id=i.id"
        f" AND a.n=1 WHERE i.seq > {first[0]} AND i.cause LIKE 'bar:%'"
    )
    return sorted(one[0] / SPEED for one in rows(folder, sql))


def figures(found: list[float]) -> str:
    at = [found[min(len(found) - 1, int(len(found) * part))] for part in (0.5, 0.99)]
    return f"median {at[0]:6.0f}, p99 {at[1]:6.0f}  ({len(found)} requests)"


if __name__ == "__main__":
    main()
