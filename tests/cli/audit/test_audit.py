"""`bot audit` on the database of a service that has followed an account at a local exchange."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bot.errors import Exit
from bot.service.host import HostOptions, build
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model.commands import OpenAccount
from bot.venue.model.numbers import E8
from tests.service.exchange_accounts.followers import (
    ADDRESS,
    FUNDED,
    Hand,
    account_of,
    is_in_step,
    options_of,
    running,
    size_of,
    until,
)


def audited(db: Path, *more: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    command = [sys.executable, "-m", "bot", "audit", "--db", str(db), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@FUNDED
async def test_no_difference_while_it_runs_and_a_fill_that_is_missing_is_named(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    hand, db = await asyncio.to_thread(Hand, hyperliquid), tmp_path / "a.db"
    async with running(options_of(hyperliquid, db)) as service:
        await until(lambda: is_in_step(service))
        for size in (0.02, -0.05, 0.01):
            await asyncio.to_thread(hand.trade, size)
        hyperliquid.deposit(ADDRESS, "7")
        await asyncio.to_thread(hand.rest, 0.01, 80_000)
        account = account_of(service)
        await until(lambda: size_of(service) == -2 * E8 // 100 and len(account.orders) == 1)
        await until(lambda: account.exchange is not None and account.exchange.transferred == 7 * E8)
        code, text = await asyncio.to_thread(audited, db)
        assert (code, text.split(":")[0]) == (Exit.DONE, f"ok    {account.id} {ADDRESS}"), text
    await asyncio.to_thread(hand.trade, 0.003)
    code, text = await asyncio.to_thread(audited, db, "--json")
    (rows,) = json.loads(text)["accounts"].values()
    assert code == Exit.ERROR
    assert {"cash", "size", "fill"} <= {row["check"] for row in rows}
    (fill,) = [row for row in rows if row["check"] == "fill"]
    assert fill["here"] == "missing" and fill["there"].startswith("bought 0.003 at ")


def test_a_sandbox_account_is_compared_with_its_own_sums(tmp_path: Path) -> None:
    db = tmp_path / "a.db"

    async def open_one() -> None:
        service = build(HostOptions(db=db, clock="manual", markets=("BTC",)))
        await service.start()
        service.machine.run(OpenAccount("acc_00000001", "0x" + "1" * 40, "me", 100 * E8))
        await service.machine.settle()
        await service.stop()

    asyncio.run(open_one())
    code, text = audited(db)
    assert (code, text) == (Exit.DONE, f"ok    acc_00000001 0x{'1' * 40}: no difference with its own sums\n")


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "there is no such file; name the database of a service"), (b"no database at all", "is ")],
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes | None, text: str) -> None:
    db = tmp_path / "a.db"
    if content is not None:
        db.write_bytes(content)
    code, told = audited(db)
    assert code == Exit.CONFIG and told.startswith(f"error: {db}: {text}"), told


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    db = tmp_path / "other.db"
    with sqlite3.connect(db) as other:
        other.execute("CREATE TABLE t (a)")
    code, told = audited(db)
    assert code == Exit.CONFIG and told.startswith(f"error: {db}: "), told
