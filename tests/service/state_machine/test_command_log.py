"""Acknowledged commands are on disk, and a replay gives exactly the same state: restarts, snapshots, foreign files,
failed commits.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.clock import SystemClock
from bot.errors import BotError, ConfigError, Exit
from bot.model.events import Event
from bot.service.host import HostOptions, build
from bot.service.operations.executor import Context
from bot.service.security.auth import principal_of
from bot.service.state_machine import command_log as log_module
from bot.service.state_machine import machine as machine_module
from bot.service.state_machine.command_log import (
    REPLIES_KEPT_MS,
    SCHEMA_VERSION,
    CommandLog,
    DatabaseAway,
    LogRow,
    Recovered,
    Snapshot,
    StoredReply,
)
from bot.service.state_machine.machine import chain_of
from bot.service.state_machine.replay import EMPTY_CHAIN, ReplayError, replay
from bot.venue.model.commands import ListMarket, Pulse
from bot.venue.storage import codec
from bot.wire.order_requests import OrderRequest
from tests.service.builders import ENTRY, assert_refused
from tests.service.conftest import START_MS, Box, Caller, OpenBox
from tests.venue.exchange_worlds import Follower, adopt, session

OLD_LOG = Path(__file__).with_name("old_log.jsonl")
# after these a unit is not started again
NO_RESTART = (Exit.USAGE, Exit.CONFIG, Exit.REFUSED)


def options(db: Path, **more: Any) -> HostOptions:
    return HostOptions(db=db, clock="manual", start_ms=START_MS, hold_prices=True, markets=("BTC", "ETH"), **more)


async def trade_a_while(box: Box, caller: Caller, seed: int) -> None:
    """A random but repeatable stretch of trading."""
    chance = Random(seed)
    px = 100_000
    for step in range(25):
        px = max(50_000, px + chance.randint(-900, 900))
        await box.price("BTC", str(px))
        await box.advance(chance.choice((0, 1_000, 61_000, 3_600_000)))
        what = chance.randrange(6)
        if what < 3:
            side = chance.choice(("long", "short"))
            order = {
                "market": "BTC",
                "side": side,
                "usdAmount": chance.randint(20, 900),
                "bracket": {"stopLoss": {"pct": 1}},
            }
            await caller.send("POST", "/v1/orders", order, key=f"{seed}-{step}")
        elif what == 3:
            limit = {"market": "BTC", "side": "long", "type": "limit", "limitPx": str(px - 500), "usdAmount": 100}
            await caller.send("POST", "/v1/orders", limit)
        elif what == 4:
            await caller.send("POST", "/v1/positions/BTC/close", {"fraction": chance.choice((0.5, 1))})
        else:
            await caller.send("POST", "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3600})
            await caller.send("POST", "/v1/heartbeat", {})


async def everything(caller: Caller) -> dict[str, Any]:
    paths = ("/v1/account", "/v1/trades?limit=200", "/v1/orders", "/v1/guardians", "/v1/events?limit=200")
    found = {path: await caller.get(path) for path in paths}
    found["candles"] = await caller.get("/v1/markets/BTC/candles?interval=1m&limit=1000")
    return found


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_gives_the_same_state_events_and_answers(
    open_box: OpenBox, tmp_path: Path, worlds: int, base_seed: int, crash: bool
) -> None:
    for seed in range(base_seed, base_seed + max(1, worlds // 5)):
        db = tmp_path / f"{seed}-{crash}.db"
        box = await open_box(db=db)
        caller = await box.caller()
        await trade_a_while(box, caller, seed)
        before = await everything(caller)
        digest, state = await box.digest(), codec.digest(box.service.machine.state)
        if crash:
            await box.service.machine.settle()
            copy = tmp_path / f"{seed}-copy.db"
            with sqlite3.connect(db) as source, sqlite3.connect(copy) as target:
                source.backup(target)
            db = copy
        await box.service.stop()
        again = await open_box(db=db)
        assert await again.digest() == digest
        after = await everything(Caller(again.http, caller.opened))
        assert after == before
        if not crash and not any(a.guardians for a in again.service.machine.state.accounts.values()):
            assert codec.digest(again.service.machine.state) == state


async def test_a_restart_replays_the_rows_after_a_snapshot(open_box: OpenBox, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    box = await open_box(db=db)
    caller = await box.caller()
    await box.price("BTC", "100000")
    await caller.post("/v1/orders", ENTRY)
    box.service.machine.snapshot()
    await caller.post("/v1/positions/BTC/close")
    await box.service.machine.settle()
    copy = tmp_path / "copy.db"
    with sqlite3.connect(db) as source, sqlite3.connect(copy) as target:
        source.backup(target)
        assert target.execute("SELECT count(*) FROM snapshots").fetchone() == (1,)
        assert target.execute("SELECT count(*) FROM commands").fetchone()[0] >= 1
    again = await open_box(db=copy)
    assert await again.digest() == await box.digest()
    await Caller(again.http, caller.opened).post("/v1/orders", ENTRY)


async def test_simulated_prices_are_the_same_with_and_without_a_restart(open_box: OpenBox, tmp_path: Path) -> None:
    whole = await open_box(hold_prices=False)
    await whole.advance(7_200_000)
    db = tmp_path / "s.db"
    for _ in range(4):
        box = await open_box(db=db, hold_prices=False)
        await box.advance(1_800_000)
        await box.service.stop()
    box = await open_box(db=db, hold_prices=False)
    for path in (
        "/v1/markets?view=all",
        "/v1/markets/BTC/book",
        *(f"/v1/markets/BTC/candles?interval={i}&limit=5000" for i in ("1m", "5m", "1h", "1d")),
    ):
        assert (await box.http.get(path)).json() == (await whole.http.get(path)).json(), path


async def test_trading_on_simulated_prices_is_the_same_with_and_without_restarts(
    open_box: OpenBox, tmp_path: Path
) -> None:
    async def run(db: Any, restarts: bool) -> Any:
        box = await open_box(db=db, hold_prices=False)
        caller = await box.caller()
        for step in range(12):
            body = {
                "market": "BTC",
                "side": "long" if step % 3 else "short",
                "usdAmount": 300,
                "bracket": {"stopLoss": {"pct": 0.03}, "takeProfit": {"r": 1}},
            }
            await caller.send("POST", "/v1/orders", body, key=f"k{step}")
            await box.advance(1_190_000)
            if restarts:
                await box.service.stop()
                box = await open_box(db=db, hold_prices=False)
                caller = Caller(box.http, caller.opened)
        events = (await caller.get("/v1/events?limit=200"))["events"]
        return [{k: v for k, v in event.items() if k != "requestId"} for event in events]

    plain = await run(":memory:", False)
    assert await run(tmp_path / "s.db", True) == plain
    assert {e["type"] for e in plain} >= {"fill", "trigger"}


async def test_many_requests_at_once_share_their_commits(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db")
    await box.price("BTC", "100000")
    caller = await box.caller()
    command_log = box.service.machine.log
    before = command_log.commits
    order = OrderRequest.from_wire({"market": "BTC", "side": "long", "usdAmount": 20})
    principal = principal_of(box.service.machine.state.keys[caller.opened["keyId"]])
    # One turn of the loop, as when a hundred requests wait at once.
    for number in range(100):
        answer = box.service.operations.place(principal, order, Context(f"req_{number}"))
        assert answer.status == 200
    await command_log.settle()
    assert command_log.commits - before < 50
    with sqlite3.connect(tmp_path / "s.db") as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("SELECT count(*) FROM commands WHERE command LIKE '%PlaceOrder%'").fetchone() == (100,)


async def test_nothing_in_the_file_is_a_usable_secret(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db")
    caller = await box.caller()
    await box.price("BTC", "100000")
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]}, key="k")
    await box.service.stop()
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with sqlite3.connect(tmp_path / "s.db") as db:
        held += repr(list(db.execute("SELECT * FROM commands"))).encode()
    assert caller.opened["apiKey"].encode() not in held
    assert caller.opened["apiKey"].split("_")[3].encode() not in held
    assert plan["confirmToken"].encode() not in held
    assert (tmp_path / "s.db").stat().st_mode & 0o077 == 0


# ── Foreign and changed files ───────────────────────────────────────────────────────────────────────────────────────


async def closed_file(tmp_path: Path) -> Path:
    db = tmp_path / "s.db"
    service = build(options(db))
    await service.start()
    service.machine.push_price("BTC", 10**13)
    await service.machine.settle()
    # Without a snapshot, as after a crash.
    service.machine.log.close()
    return db


async def test_a_file_whose_replay_gives_other_events_is_refused(tmp_path: Path) -> None:
    db = await closed_file(tmp_path)
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE commands SET chain = x'00' WHERE seq = 3")
    with pytest.raises(ReplayError, match="row 3 does not give the events"):
        build(options(db))
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE commands SET command = replace(command, 'PricePoint', 'FuturePoint')")
    with pytest.raises(ReplayError, match="wrote it and reads it, so it is damaged"):
        build(options(db))
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE meta SET value = 'Bracketbot 0.0.9 (rules 0)' WHERE name = 'program'")
    with pytest.raises(ReplayError, match=r"0\.0\.9 \(rules 0\) wrote it, and this is .*another version"):
        build(options(db))


def test_a_log_that_was_written_before_events_and_commands_had_new_fields_still_replays() -> None:
    """Its guardians and its kill act everywhere and its revocation cancels nothing, as at the time when it was
    written.
    """
    written = [json.loads(line) for line in OLD_LOG.read_text().splitlines()]
    rows = [
        LogRow(seq, row["at_ms"], json.dumps(row["command"]), bytes.fromhex(row["chain"]))
        for seq, row in enumerate(written, 1)
    ]
    replayed = replay(Recovered({}, None, None, rows, [], [], []), "old")
    assert replayed.chain == rows[-1].chain
    first, second, third = replayed.state.accounts.values()
    assert first.absorbed > 0 and not first.positions
    assert len(second.resting) == 0 and not second.positions
    assert third.balance == 0
    rows[-3] = rows[-3]._replace(chain=bytes(32))
    with pytest.raises(ReplayError, match="row 33 does not give the events"):
        replay(Recovered({}, None, None, rows, [], [], []), "old")


@pytest.mark.parametrize("encode", [codec.encode, *codec.ENCODERS_BEFORE], ids=["now", "before", "first"])
def test_a_log_is_replayed_whichever_version_hashed_its_events(encode: Callable[[Event], Any]) -> None:
    follower, chain, rows = Follower(), EMPTY_CHAIN, list[LogRow]()
    for listed in (ListMarket(market.spec, market.mark) for market in follower.state.markets.values()):
        rows.append(LogRow(len(rows) + 1, follower.now_ms, codec.dumps(listed), chain))
    for command in (adopt(10**12), *session(Random("versions"), 20)[0]):
        (applied,) = follower.take(command)
        if applied.events:
            chain = chain_of(chain, applied.events, encode)
        rows.append(LogRow(len(rows) + 1, follower.now_ms, codec.dumps(command), chain))
    replayed = replay(Recovered({}, None, None, rows, [], [], []), "old")
    assert replayed.chain == chain
    assert codec.digest(replayed.state) == codec.digest(follower.state)


async def test_a_file_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    db = await closed_file(tmp_path)
    with sqlite3.connect(db) as raw:
        raw.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    held = db.read_bytes()
    with pytest.raises(ConfigError, match="another version"):
        build(options(db))
    assert db.read_bytes() == held


async def test_a_file_that_is_not_a_database_or_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database" * 100)
    with pytest.raises(ConfigError, match="cannot be used"):
        build(options(text))
    assert text.read_text() == "not a database" * 100
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE t (a)")
    with pytest.raises(ConfigError, match="another program's database"):
        build(options(other))
    with pytest.raises(ConfigError):
        build(options(tmp_path / "no" / "such" / "folder.db"))
    with pytest.raises(ConfigError):
        build(options(tmp_path))


async def test_a_file_in_use_is_refused(open_box: OpenBox, tmp_path: Path) -> None:
    await open_box(db=tmp_path / "s.db")
    with pytest.raises(BotError, match="another service uses this file") as caught:
        build(options(tmp_path / "s.db"))
    assert caught.value.exit_code not in NO_RESTART, "that one may just be ending"


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY_RECOVERY]
)
async def test_a_failing_disk_or_a_lock_is_not_reported_as_a_wrong_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(*_: Any, **__: Any) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = code
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", fails)
        with pytest.raises(
            DatabaseAway, match=r"s.db: cannot be used as the service's database at the moment"
        ) as caught:
            build(options(tmp_path / "s.db"))
    assert caught.value.exit_code not in NO_RESTART
    # The failed start has left no lock.
    build(options(tmp_path / "s.db")).machine.log.close()


async def test_a_full_disk_at_the_lock_is_not_reported_as_a_wrong_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DatabaseAway, match="No space left on device"):
        build(options(tmp_path / "s.db"))


async def test_a_clock_that_is_behind_may_be_set_by_the_next_start(tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    real = HostOptions(db=db, clock="real", hold_prices=True, markets=("BTC",))
    service = build(real)
    await service.start()
    await service.machine.settle()
    service.machine.log.close()
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE clock SET ceiling_ms = ceiling_ms + 3600000, offset_ms = 0")
    # The first service has released the file.
    for _ in range(2):
        with pytest.raises(BotError, match="s behind the latest time in the database") as caught:
            build(real)
        assert caught.value.exit_code not in NO_RESTART


async def test_a_file_keeps_its_seed_and_its_markets(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db", seed=7)
    await box.service.stop()
    with pytest.raises(ConfigError, match="created with seed 7"):
        build(options(tmp_path / "s.db", seed=8))
    with pytest.raises(ConfigError, match="created with markets"):
        build(HostOptions(db=tmp_path / "s.db", clock="manual", markets=("SOL",)))
    again = build(HostOptions(db=tmp_path / "s.db", clock="manual"))
    assert list(again.machine.state.markets) == ["BTC", "ETH"]
    again.machine.log.close()


async def test_an_exception_in_a_command_leaves_nothing_applied_or_stored(
    open_box: OpenBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await open_box(db=tmp_path / "s.db")
    await box.price("BTC", "100000")
    caller, other = await box.caller(), await box.caller()
    before = await box.digest()

    async def breaks() -> None:
        with monkeypatch.context() as broken:
            broken.setattr(machine_module, "apply", lambda state, command, at_ms: 1 // 0)
            assert_refused(await other.send("POST", "/v1/orders", ENTRY), 500, "internal_error")

    answer = await box.post_slowly(caller, "/v1/orders", ENTRY, meanwhile=breaks)
    assert_refused(answer, 503, "service_unavailable")
    with pytest.raises(AssertionError, match="half a command"):
        box.service.machine.run(Pulse())
    await box.service.stop()
    assert await (await open_box(db=tmp_path / "s.db")).digest() == before


@pytest.mark.parametrize(
    "row",
    [
        # The same number again.
        LogRow(1, 0, "{}", b""),
        # Larger than an integer of the file.
        LogRow(2, 2**63, "{}", b""),
        # Half of a surrogate pair, which the file cannot store.
        LogRow(2, 0, "\ud800", b""),
    ],
)
async def test_a_failed_commit_is_reported_once_and_fails_every_waiting_request(tmp_path: Path, row: LogRow) -> None:
    failures: list[BaseException] = []
    command_log = CommandLog(tmp_path / "s.db", failures.append)
    command_log.open()
    command_log.start()
    command_log.append(LogRow(1, 0, "{}", b""))
    await command_log.settle()
    command_log.append(row)
    async with asyncio.timeout(60):
        while not failures:
            await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(command_log.settle(), 0.3)
    assert len(failures) == 1
    command_log.close()


async def test_deleted_rows_give_their_space_back_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PAGES_FREE", 16)
    db, reply = tmp_path / "s.db", StoredReply(0, "f", "req_1", 200, b"x" * 3_000)
    command_log = CommandLog(db)
    command_log.open()
    command_log.start()
    for number in range(1_000):
        command_log.keep_reply("a", f"old {number}", reply, 0)
    command_log.keep_reply("a", "new", reply, REPLIES_KEPT_MS)
    await command_log.settle()
    with closing(sqlite3.connect(db)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        full = db.stat().st_size
        command_log.save_snapshot(Snapshot(1, 0, "{}", b"", 0), REPLIES_KEPT_MS + 1)
        await command_log.settle()
        async with asyncio.timeout(60):
            while raw.execute("PRAGMA freelist_count").fetchone()[0] > 16:
                await asyncio.sleep(0.01)
    command_log.close()
    assert db.stat().st_size * 10 < full
    command_log = CommandLog(db)
    command_log.open()
    assert (command_log.reply("a", "new"), command_log.reply("a", "old 1")) == (reply, None)
    command_log.close()


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    db = await closed_file(tmp_path)
    whole = bytearray(db.read_bytes())
    for at in range(4096, len(whole), 512):
        whole[at : at + 64] = b"\xff" * 64
    db.write_bytes(whole)
    with pytest.raises(BotError):
        build(options(db))


def spoil(db: Path, table: str, column: str) -> None:
    """Flips one bit of packed data, which SQLite's own check does not detect."""
    with closing(sqlite3.connect(db)) as raw, raw:
        ((packed,),) = raw.execute(f"SELECT {column} FROM {table}")
        raw.execute(f"UPDATE {table} SET {column} = ?", (packed[:-1] + bytes([packed[-1] ^ 1]),))


async def test_a_damaged_snapshot_is_reported_as_a_damaged_file(open_box: OpenBox, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    box = await open_box(db=db)
    await box.caller()
    await box.service.stop()
    spoil(db, "snapshots", "state")
    # The file is released in between.
    for _ in range(2):
        with pytest.raises(ConfigError, match="is damaged; restore a copy, or start with a new file"):
            build(options(db))


async def test_a_damaged_named_snapshot_is_refused_with_advice(open_box: OpenBox, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    box = await open_box(db=db)
    assert (await box.http.post("/sandbox/v1/snapshot", json={"name": "a"}, headers=box.control)).status_code == 200
    await box.service.stop()
    spoil(db, "kept", "body")
    box = await open_box(db=db)
    before = await box.digest()
    for act in ("restore", "fork"):
        answer = await box.http.post(f"/sandbox/v1/{act}", json={"name": "a"}, headers=box.control)
        assert "the snapshot 'a' is damaged" in assert_refused(answer, 503, "service_unavailable")["message"]
    assert await box.digest() == before
    for act in ("snapshot", "restore"):
        answer = await box.http.post(f"/sandbox/v1/{act}", json={"name": "a"}, headers=box.control)
        assert answer.status_code == 200


async def test_downtime_does_not_count_against_a_dead_man_switch(open_box: OpenBox, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    box = await open_box(db=db, clock="real", start_ms=None, hold_prices=True)
    caller = await box.caller()
    armed = await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    await box.service.stop()
    hour = 3_600_000
    # As if all of it had happened an hour ago.
    with sqlite3.connect(db) as raw:
        raw.execute(f"UPDATE clock SET alive_ms = alive_ms - {hour}, ceiling_ms = ceiling_ms - {hour}")
    service_file = sqlite3.connect(db)
    service_file.close()
    again = await open_box(db=db, clock="real", start_ms=None, hold_prices=True)
    (guardian,) = (await Caller(again.http, caller.opened).get("/v1/guardians"))["guardians"]
    assert guardian["status"] == "armed"
    now = again.service.machine.clock.now_ms()
    assert now + 25_000 <= guardian["nextDeadline"] <= armed["nextDeadline"] + hour + 120_000


async def test_a_start_killed_during_catch_up_leaves_its_downtime_to_the_next_start(
    open_box: OpenBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = 86_405_000
    wall = [SystemClock().now_ms() - down]
    monkeypatch.setattr(SystemClock, "now_ms", lambda _self: wall[0])
    lives = {"clock": "real", "start_ms": None, "hold_prices": False}
    db, killed = tmp_path / "s.db", tmp_path / "killed.db"
    box = await open_box(db=db, **lives)
    caller = await box.caller()
    order = {"market": "BTC", "side": "long", "usdAmount": 1000, "bracket": {"stopLoss": {"pct": 0.2}}}
    await caller.post("/v1/orders", order)
    armed = await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3600})
    await box.service.stop()
    wall[0] += down - 5_000
    start = build(HostOptions(db=db, **lives, markets=("BTC", "ETH")))
    await start.start()
    with closing(sqlite3.connect(db)) as source, closing(sqlite3.connect(killed)) as target:
        # As after a kill: no price of that day has been applied.
        source.backup(target)
    await start.stop()
    wall[0] += 5_000
    lived = []
    for file in (killed, db):
        again = await open_box(db=file, **lives)
        left = Caller(again.http, caller.opened)
        (guardian,) = (await left.get("/v1/guardians"))["guardians"]
        assert guardian["nextDeadline"] == armed["nextDeadline"] + down
        account = await left.get("/v1/account")
        assert not account["positions"], "the stop was met in the time between"
        lived.append((account["balanceUsd"], await left.get("/v1/events?limit=200")))
    assert lived[0] == lived[1]
