"""Many rows in one statement: the same rows, each before and after the same other statements as one by one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from bot.service.state_machine.command_log import _COMMAND, _REPLY, CommandLog, LogRow, Statement, _gathered


def made(tmp_path: Path, name: str) -> sqlite3.Connection:
    """A database with the log's own tables."""
    log = CommandLog(tmp_path / name)
    log.open()
    log.close()
    return sqlite3.connect(tmp_path / name, isolation_level=None)


def test_a_batch_stores_the_same_rows_as_single_statements(tmp_path: Path, base_seed: int) -> None:
    chance = Random(base_seed)
    batch: list[Statement] = []
    for seq in range(1, 400):
        batch.append((_COMMAND, LogRow(seq, seq * 10, f"[{seq}]", bytes([seq % 251]))))
        if chance.random() < 0.4:
            # The answer of a key may be written anew.
            key = f"k{seq - chance.choice((0, 0, 3))}"
            batch.append((_REPLY, ("a", key, 0, "f", f"req_{seq}", 200, b"{}", seq)))
        if chance.random() < 0.03:
            batch.append(("DELETE FROM commands WHERE seq <= ?", (seq - chance.randrange(20),)))
            batch.append(("DELETE FROM replies WHERE real_ms < ?", (seq - chance.randrange(20),)))
    gathered = _gathered(batch)
    assert len(gathered) < len(batch) / 5
    found: list[Any] = []
    for number, statements in enumerate((batch, gathered)):
        db = made(tmp_path, f"{number}.db")
        for statement, values in statements:
            db.execute(statement, values)
        found.append([db.execute(f"SELECT * FROM {table}").fetchall() for table in ("commands", "replies")])
        db.close()
    assert found[0] == found[1]
    assert found[0][0][-1][0] == 399
