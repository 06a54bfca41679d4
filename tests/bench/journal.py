"""Journal: intents a second at synchronous=FULL, each through its whole life (opened, planned, sending, accepted: four
commits).

python -m tests.bench.journal
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bot.runtime.journal.opening import open_journal
from bot.runtime.model.intents import Intent

INTENTS = 2_000


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        journal = open_journal(Path(folder) / "journal.db", address="0x" + "0" * 40)
        first = Intent(
            id="",
            strategy="bench",
            market="BTC",
            action="open",
            path="plan",
            trigger="",
            ordinal=0,
            leg="order",
            epoch=0,
            body=b'{"market":"BTC","side":"long","usdAmount":100}',
            not_after_ms=1 << 50,
            opened_ms=1,
        )
        started = time.perf_counter()
        for n in range(INTENTS):
            intent = replace(first, id=f"K{n:031d}", trigger=f"bar:BTC:{n}")
            assert journal.open(intent)
            intent = journal.intents.planned(intent, f"token-{n}", 1 << 50, now_ms=n)
            intent = journal.intents.sending(intent, now_ms=n)
            journal.intents.accept(intent, f"trd_{n}", now_ms=n)
        took = time.perf_counter() - started
        journal.close()

        bare = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        bare.execute("PRAGMA journal_mode=WAL")
        bare.execute("PRAGMA synchronous=FULL")
        bare.execute("CREATE TABLE t (id TEXT PRIMARY KEY, body BLOB) STRICT")
        started = time.perf_counter()
        for n in range(INTENTS * 4):
            bare.execute("INSERT INTO t VALUES (?, ?)", (f"K{n}", first.body))
        floor = time.perf_counter() - started
        bare.close()
    print(f"journal: {INTENTS / took:8.0f} intents/s at FULL ({took / INTENTS * 1e6:.0f} us each, four commits)")
    print(f"floor:   {INTENTS / floor:8.0f} times four bare commits/s; ratio {took / floor:.2f}")


if __name__ == "__main__":
    main()
