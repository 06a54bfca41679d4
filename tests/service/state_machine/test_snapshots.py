"""Snapshots in pieces: for any commands between two pieces, the stored state is that of the snapshot's start."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.service.bodies.read_access import peek_all
from bot.service.state_machine import snapshot_schedule
from bot.service.state_machine.snapshot_schedule import SNAPSHOT_EVERY
from bot.service.state_machine.snapshots import SnapshotWriter, tracked
from bot.venue.model.state import VenueAccount
from bot.venue.storage import codec
from tests.service.conftest import Box, Caller, OpenBox

ENTRY: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 50, "bracket": {"stopLoss": {"pct": 2}}}


async def busy(open_box: OpenBox, db: Path, accounts: int) -> tuple[Box, list[Caller]]:
    box: Box = await open_box(db=db)
    await box.price("BTC", "100000")
    callers = [await box.caller() for _ in range(accounts)]
    for caller in callers:
        await caller.post("/v1/orders", ENTRY)
    return box, callers


def accounts_of(box: Box) -> dict[str, VenueAccount]:
    return dict(tracked(box.service.machine.state))


def plain(account: VenueAccount) -> str:
    return codec.digest(codec.opened(account))


async def test_a_snapshot_in_pieces_keeps_the_instant_at_which_it_was_begun(open_box: OpenBox, tmp_path: Path) -> None:
    box, callers = await busy(open_box, tmp_path / "s.db", 8)
    machine = box.service.machine
    accounts = tracked(machine.state)
    then = {account.id: plain(account) for account in peek_all(machine.state)}
    saving = SnapshotWriter(machine.state, accounts)
    chance = Random(1)
    steps = 0
    # One account at a time.
    while not saving.go_on(0):
        steps += 1
        if steps == 3:
            # Every stop fires.
            await box.price("BTC", "97000")
            await box.price("BTC", "100000")
        await chance.choice(callers).post("/v1/orders", ENTRY)
    assert {kept.account: plain(_read(kept.body, kept.pages)) for kept in saving.written} == then
    assert {account.id: plain(account) for account in peek_all(machine.state)} != then
    # All of them have changed since.
    machine.snapshot()
    await machine.settle()


def _read(body: str, pages: list[tuple[str, Any]]) -> VenueAccount:
    account: VenueAccount = codec.loads(body)
    account.pages = [page for kind, page in pages if kind == "event"]
    account.trade_pages = [page for kind, page in pages if kind == "trade"]
    return account


async def test_only_accounts_that_moved_are_written_again(open_box: OpenBox, tmp_path: Path) -> None:
    box, callers = await busy(open_box, tmp_path / "s.db", 5)
    machine = box.service.machine
    machine.snapshot()
    assert tracked(machine.state).asked == set()
    for caller in callers:
        # Reads change nothing.
        await caller.get("/v1/events")
    await callers[3].post("/v1/orders", ENTRY)
    assert tracked(machine.state).asked == {callers[3].opened["accountId"]}


async def test_a_file_is_valid_at_every_moment_of_a_snapshot_in_pieces(open_box: OpenBox, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    box, callers = await busy(open_box, db, 6)
    machine = box.service.machine
    for round_ in range(3):
        # As after SNAPSHOT_EVERY commands.
        machine.snapshots.due_seq = machine.seq
        number = 0
        while machine.snapshot_if_due():
            await callers[number % 6].post("/v1/orders", ENTRY)
            number += 1
        await callers[round_].post("/v1/orders", ENTRY | {"usdAmount": 20})
        await machine.settle()
        copy = tmp_path / f"copy{round_}.db"
        with sqlite3.connect(db) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        again = await open_box(db=copy)
        assert await again.digest() == await box.digest()
        for name, account in accounts_of(box).items():
            assert plain(accounts_of(again)[name]) == plain(account)
    assert SNAPSHOT_EVERY >= 1_000


async def test_the_log_stays_short_however_often_the_service_is_killed(
    open_box: OpenBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_schedule, "SNAPSHOT_EVERY", 20)
    box: Box = await open_box(db=tmp_path / "0.db")
    lengths = []
    for life in range(1, 8):
        before = box.service.machine.seq
        # Far fewer than a snapshot is due after.
        for px in range(5):
            await box.price("BTC", str(100_000 + px))
        while box.service.machine.snapshot_if_due():
            pass
        await box.service.machine.settle()
        assert 5 <= box.service.machine.seq - before < 20
        # The state after a kill.
        left = tmp_path / f"{life}.db"
        with sqlite3.connect(tmp_path / f"{life - 1}.db") as source, sqlite3.connect(left) as target:
            source.backup(target)
            lengths.append(target.execute("SELECT count(*) FROM commands").fetchone()[0])
        again = await open_box(db=left)
        assert await again.digest() == await box.digest()
        box = again
    assert max(lengths) < 40
    assert min(lengths[1:]) < lengths[0]


async def test_events_and_trades_read_the_same_from_pages_of_a_file(open_box: OpenBox, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    box, (caller,) = await busy(open_box, db, 1)
    for number in range(50):
        await caller.post("/v1/orders", {"market": "BTC", "side": "short" if number % 2 else "long", "size": "0.002"})
    paths = (
        "/v1/events?limit=7",
        "/v1/events?since=evt_000000000030&limit=90",
        "/v1/trades?limit=9",
        "/v1/trades?before=20&limit=30",
    )
    before = [await caller.get(path) for path in paths]
    machine = box.service.machine
    machine.snapshot()
    assert [await caller.get(path) for path in paths] == before
    for _ in range(2):
        await box.service.stop()
        box = await open_box(db=db)
        caller = Caller(box.http, caller.opened)
        assert [await caller.get(path) for path in paths] == before
        await caller.post("/v1/orders", {"market": "BTC", "side": "long", "size": "0.002"})
        before = [await caller.get(path) for path in paths]
    newest = (await caller.get("/v1/trades?limit=200"))["trades"]
    assert [trade["seq"] for trade in newest] == list(range(len(newest), 0, -1))
