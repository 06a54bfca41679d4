"""The page Trades with many closed trades: first paint in Chromium, and the server's time for the first page and for
the next ones of the same journal; and the first paint beside that of a page that lists nothing, in turns.

python -m tests.bench.dashboard_trades [TRADES] [--events]

The daemon has stored the trades in the journal; the first request reads them, later ones read only whether there is
another. With --events, no daemon has stored a trade yet, and the first request folds every event.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import uvicorn
from playwright.sync_api import sync_playwright

from bot.dashboard.app import Dashboard
from bot.dashboard.backtests import Backtests
from bot.dashboard.page_models import PageSources
from bot.dashboard.sign_in import DashboardSignIn
from bot.dashboard.sources import DaemonSource, ServiceSource
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.queries import FILE
from bot.runtime.journal.round_trip_log import RoundTripLog
from tests.dashboard.browsing import Visitor
from tests.dashboard.builders import KEY, NOW_MS, Daemon, documents, status, strategy

TRADES = 10_000
TURNS = 9
CHROMIUM = "/usr/bin/chromium"


def write_journal(folder: Path, trades: int, *, is_stored: bool) -> None:
    """A journal of the trades of three markets, of two strategies, one each ten minutes."""
    chance = Random(7)
    journal = open_journal(folder / FILE, address="0xabc")
    log = RoundTripLog(journal.database, journal.state, lambda: journal.events.changes)
    with journal.database.transaction():
        for n in range(trades):
            market, owner = ("BTC", "ETH", "SOL")[n % 3], ("trend", "reversion")[n % 2]
            at, entry = NOW_MS - (trades - n) * 600_000, 100 + chance.random()
            gain = chance.gauss(0, 1)
            fill = {"side": "long", "size": "1", "feeUsd": "0.05", "kind": "market"}
            opened = fill | {"px": f"{entry:.4f}", "positionSize": "1", "tradeId": f"in{n}"}
            armed = {"kind": "stop_loss", "triggerPx": f"{entry - 1:.4f}", "tradeId": f"in{n}"}
            closed = fill | {"px": f"{entry + gain:.4f}", "positionSize": "0", "tradeId": f"out{n}"}
            closed["realizedPnlUsd"] = f"{gain:.4f}"
            for k, (kind, sub, data, after) in enumerate(
                (("fill", "entry", opened, 0), ("order", "armed", armed, 0), ("fill", "exit", closed, 300_000))
            ):
                event = {"id": f"evt_{3 * n + k:012d}", "type": kind, "subtype": sub, "coin": market, "data": data}
                event |= {"ts": at + after, "idempotencyKey": f"{owner}{n}" if sub == "entry" else None}
                row = (event["id"], 0, kind, sub, event["ts"], market, event["idempotencyKey"], json.dumps(event))
                journal.database.execute(
                    "INSERT INTO events (id, epoch, type, subtype, ts, coin, idempotency_key, payload) VALUES"
                    " (?,?,?,?,?,?,?,?)",
                    row,
                )
    while is_stored and log.fold():
        pass
    journal.close()


def main() -> None:
    counts = [int(argument) for argument in sys.argv[1:] if argument.isdecimal()]
    trades = counts[0] if counts else TRADES
    with tempfile.TemporaryDirectory(prefix="bot-") as place:
        folder = Path(place)
        write_journal(folder, trades, is_stored="--events" not in sys.argv)
        answers = {"/status": status(), "/strategies": {"strategies": [strategy()]}}
        lists = {"/positions": {"positions": []}, "/orders": {"orders": []}}
        daemon = Daemon(folder, answers | lists)
        sources = PageSources(DaemonSource(daemon), ServiceSource(), Backtests(folder / "runs"))
        sign_in = DashboardSignIn(KEY, "run", now_s=lambda: NOW_MS // 1000)
        dashboard = Dashboard(sources, documents(has_charts=False), sign_in, control=False)
        server = uvicorn.Server(uvicorn.Config(dashboard.app(), port=0, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        link = f"http://127.0.0.1:{port}/sign-in#{sign_in.code()}"
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            visitor = Visitor(browser, link)
            shown = [_paint(visitor) for _ in range(3)]
            turns = [(_paint(visitor)[1], _paint(visitor, "/approvals")[1]) for _ in range(TURNS)]
            browser.close()
        dashboard.stopping.set()
        server.should_exit = True
        thread.join(10)
    print(f"{trades:,} closed trades")
    for name, (server_s, paint_s, size) in zip(("first page", "second", "third"), shown, strict=True):
        print(f"{name}: server {server_s:.3f} s, first paint {paint_s:.3f} s, {size / 1000:,.0f} kB")
    full, empty = (median(paints) for paints in zip(*turns, strict=True))
    print(f"first paint, median of {TURNS}: {full:.3f} s; Approvals {empty:.3f} s; ratio {full / empty:.2f}")


def _paint(visitor: Visitor, path: str = "/trades") -> tuple[float, float, int]:
    """The server's time, the first paint, and the bytes of the page."""
    visitor.page.goto(f"{visitor.base}{path}")
    visitor.page.wait_for_selector("main h2")
    visitor.page.wait_for_timeout(500)
    measured: dict[str, Any] = visitor.page.evaluate(
        "(() => { const [page] = performance.getEntriesByType('navigation');"
        " const [paint] = performance.getEntriesByName('first-contentful-paint');"
        " return { server: page.responseStart, paint: paint ? paint.startTime : 0, size: page.encodedBodySize } })()"
    )
    return measured["server"] / 1000, measured["paint"] / 1000, int(measured["size"])


if __name__ == "__main__":
    main()
