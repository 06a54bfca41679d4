"""A journal whose file fails: full, read-only, locked, an I/O error at any statement, or damaged when it is opened.

No row is lost, no damaged row is used.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.errors import ConfigError, JournalDamaged, JournalError
from bot.runtime.control_plane.status import state_of
from bot.runtime.journal import database, failover, halt_flags
from bot.runtime.journal import journal as journal_module
from bot.runtime.journal.halt_flags import ALL, FOREIGN, HALTED, HaltFlagsFile
from bot.runtime.journal.journal import Journal, Notice
from bot.runtime.journal.opening import open_journal, open_or_rebuild
from bot.runtime.journal.state_store import Arm
from bot.runtime.risk.pauses import Pauses, Quarantine, keep_quarantine, quarantine_of
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from tests.faulty_port import ADDRESS, Fault, FaultyPort, refused
from tests.runtime.builders import event, intent, kill, later, make_kernel, minutes, opened, stop_of, trailing

NOW_MS = 1_748_736_000_000


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 5)
    monkeypatch.setattr(failover, "MEND_BUSY_MS", 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def full(journal: Journal) -> Callable[[], None]:
    pages = journal.db.conn.execute("PRAGMA page_count").fetchone()[0]
    journal.db.conn.execute(f"PRAGMA max_page_count={pages}")
    # A new connection has its own bound: the disk has room again.
    return lambda: None


def read_only(journal: Journal) -> Callable[[], None]:
    journal.db.conn.execute("PRAGMA query_only=ON")
    return lambda: None


def locked(journal: Journal) -> Callable[[], None]:
    other = sqlite3.connect(journal.path or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def cure() -> None:
        other.rollback()
        other.close()

    return cure


def failing(journal: Journal, code: int = sqlite3.SQLITE_IOERR, *, at: int = 1) -> None:
    """The `at`-th statement from now fails like a failing disk."""
    inner, left = journal.database._raw, at

    def raw(*args: Any) -> sqlite3.Cursor:
        nonlocal left
        left -= 1
        if left == 0:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error
        return inner(*args)

    journal.database._raw = raw


def broken(journal: Journal) -> Callable[[], None]:
    failing(journal)
    return lambda: None


def in_file(path: Path, table: str = "intents") -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
        return [
            row[0] for row in db.execute(f"SELECT {'id' if table == 'intents' else '*'} FROM {table} ORDER BY rowid")
        ]


@pytest.mark.parametrize("fail", [full, read_only, locked, broken])
def test_a_failing_file_is_replaced_by_memory_and_written_when_it_works_again(
    path: Path, fail: Callable[[Journal], Callable[[], None]]
) -> None:
    journal = open_journal(path, address=ADDRESS)
    journal.open(intent(1, body=b"x" * 3000))
    cure = fail(journal)
    journal.open(intent(2, body=b"x" * 9000))
    assert journal.fault is not None
    journal.intents.accept(journal.intents.sending(journal.intents.live()[0], now_ms=5), "trd_1", now_ms=6)
    assert [one.id for one in journal.intents.live()] == ["KEY2"]
    assert in_file(path) == ["KEY1"]
    if fail is locked:
        assert not journal.mend()
        assert journal.fault is not None
    cure()
    assert journal.mend()
    assert in_file(path) == ["KEY1", "KEY2"]
    journal.open(intent(3))
    journal.db.close()
    again = open_journal(path, address=ADDRESS)
    assert [one.id for one in again.intents.live()] == ["KEY2", "KEY3"]
    found = again.intents.find("KEY1")
    assert found is not None
    assert (found.state, found.trade_id) == ("accepted", "trd_1")


def fill(journal: Journal) -> None:
    """Every kind of write; each is one transaction."""
    journal.restart_cursor("evt_0000000000", epoch=0, now_ms=0)
    journal.decided([intent(1), intent(2)], states={"trend": '{"n": 1}'}, bars=[("BTC", "1m", 60_000)])
    one = journal.intents.planned(journal.intents.live()[0], "token-1", 50, now_ms=2)
    one = journal.intents.sending(one, now_ms=3)
    journal.intents.attempt_ended(one, "unknown", code="internal_error", order_submitted="unknown")
    journal.intents.accept(journal.intents.sending(one, now_ms=4), "trd_1", now_ms=5)
    events = [event(1), event(2)]
    journal.take(
        journal.events.unseen(events),
        "evt_0000000002",
        epoch=0,
        states={"trend": '{"n": 2}'},
        intents=[intent(7)],
        notices=[Notice("evt_0000000001", "fill.entry", "{}")],
    )
    journal.state.write_arm(Arm("dead_man", 1, "grd_1", "{}"))
    journal.state.write_arm(Arm("dead_man", 2, "grd_2", "{}"))
    journal.intents.end(journal.intents.live()[0], "expired", "x", "y", now_ms=9)
    journal.state.bar_done("BTC", "1m", 120_000)
    journal.flush()


def content(journal: Journal) -> dict[str, list[tuple[Any, ...]]]:
    names = [
        row[0] for row in journal.db.conn.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")
    ]
    return {
        name: journal.db.conn.execute(f"SELECT * FROM {name}").fetchall()
        for name in names
        if name != "_sqlite_migrations"
    }


def test_an_error_at_any_statement_loses_no_written_row(tmp_path: Path) -> None:
    """Every statement of every kind of write fails once, including begin and commit."""
    whole = open_journal(tmp_path / "whole.db", address=ADDRESS)
    count = 0
    inner = whole.database._raw

    def counted(*args: Any) -> sqlite3.Cursor:
        nonlocal count
        count += 1
        return inner(*args)

    whole.database._raw = counted
    fill(whole)
    wanted = content(whole)
    assert count > 40
    empty = tmp_path / "empty.db"
    open_journal(empty, address=ADDRESS).close()
    for at in range(1, count + 1):
        path = tmp_path / f"{at}.db"
        shutil.copy(empty, path)
        journal = open_journal(path, address=ADDRESS)
        failing(journal, sqlite3.SQLITE_FULL, at=at)
        fill(journal)
        assert journal.fault is not None
        assert content(journal) == wanted, f"statement {at}"
        assert journal.mend()
        assert content(journal) == wanted, f"statement {at}, written back"
        journal.db.close()


def test_rows_trimmed_in_memory_are_removed_from_the_file_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = rich(path)
    failing(journal)
    monkeypatch.setattr(journal_module, "EVENTS_KEPT", 20)
    journal.trim()
    assert journal.fault is not None
    wanted = content(journal)
    assert len(wanted["events"]) == 20
    assert journal.mend()
    assert content(journal) == wanted


def test_a_programming_error_is_not_treated_as_a_disk_fault(path: Path) -> None:
    journal = open_journal(path, address=ADDRESS)
    failing(journal, sqlite3.SQLITE_CONSTRAINT, at=2)
    with pytest.raises(JournalError, match="cannot be written"):
        journal.open(intent(1))
    assert journal.fault is None


@pytest.mark.parametrize("at", [1, 2, 3])
def test_damage_found_while_the_file_is_in_use_ends_the_run(path: Path, at: int) -> None:
    journal = open_journal(path, address=ADDRESS)
    failing(journal, sqlite3.SQLITE_CORRUPT, at=at)
    with pytest.raises(JournalDamaged, match="damaged"):
        journal.open(intent(1))


def removed(path: Path) -> None:
    for name in path.parent.glob("journal.db*"):
        name.unlink()


def without_its_log(path: Path) -> None:
    path.with_name("journal.db-wal").unlink()


def alone_removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    older = path.with_name("older.db")
    journal = open_journal(older, address=ADDRESS)
    journal.open(intent(9))
    journal.close()
    older.rename(path)


@pytest.mark.parametrize("take", [removed, alone_removed, without_its_log, replaced])
def test_a_removed_file_is_noticed_and_written_again_although_no_write_fails(
    path: Path, take: Callable[[Path], None]
) -> None:
    journal = open_journal(path, address=ADDRESS)
    journal.open(intent(1))
    journal.check_file(now_ms=NOW_MS)
    assert journal.fault is None
    take(path)
    journal.open(intent(2))
    journal.check_file(now_ms=NOW_MS)
    assert "removed or replaced" in (journal.fault or "")
    assert journal.mend()
    assert in_file(path) == ["KEY1", "KEY2"]
    journal.open(intent(3))
    journal.check_file(now_ms=NOW_MS)
    assert journal.fault is None
    journal.db.close()
    assert in_file(path) == ["KEY1", "KEY2", "KEY3"]
    aside = [one for one in path.parent.glob("journal.db.damaged-*") if not one.name.endswith(("-wal", "-shm"))]
    assert [in_file(one) for one in aside] == ([["KEY9"]] if take is replaced else [])


def test_another_file_in_place_of_a_failing_journal_is_set_aside(path: Path) -> None:
    journal = open_journal(path, address=ADDRESS)
    journal.open(intent(1))
    removed(path)
    journal.check_file(now_ms=NOW_MS)
    assert journal.fault is not None
    replaced(path)
    journal.check_file(now_ms=NOW_MS)
    assert journal.mend()
    journal.db.close()
    assert in_file(path) == ["KEY1"]
    assert [in_file(one) for one in path.parent.glob("journal.db.damaged-*")] == [["KEY9"]]


def test_a_file_that_cannot_be_examined_now_does_not_count_as_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(path, address=ADDRESS)
    journal.open(intent(1))

    def no(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as closed:
        closed.setattr(Path, "stat", no)
        journal.check_file(now_ms=NOW_MS)
    assert journal.fault is None
    removed(path)
    journal.check_file(now_ms=NOW_MS)
    assert "removed or replaced" in (journal.fault or "")


async def test_a_pass_writes_the_journal_again_after_somebody_removed_it(path: Path) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, trader, path=path)
    await kernel.recover()
    await kernel.cycle()
    before = kernel.journal.events.cursor
    removed(path)
    later(kernel, 60_000)
    await minutes(kernel, venue, "100")
    assert kernel.health.degraded == {}
    assert kernel.health.counts["daemon.degraded"] == kernel.health.counts["daemon.recovered"] == 1
    again = open_journal(path, address=ADDRESS)
    assert before is not None
    assert again.events.cursor == kernel.journal.events.cursor
    assert [one["state"] for one in again.db["intents"].rows] == ["accepted"]


# -- the loop under a fault


def trader(view: View, bar: Bar) -> Iterable[Intent]:
    """Opens at 100, closes at 101, and opens again at 102."""
    if view.position(bar.market) is None and bar.close in (100, 102):
        yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=2))
    elif bar.close == 101:
        yield Close(bar.market)


@pytest.fixture
def other(path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Another process that locks the file."""
    made: list[sqlite3.Connection] = []

    def lock() -> sqlite3.Connection:
        conn = sqlite3.connect(path, isolation_level=None)
        conn.execute("BEGIN IMMEDIATE")
        made.append(conn)
        return conn

    yield lock
    for one in made:
        one.close()


async def test_during_a_fault_exits_are_sent_and_entries_are_not_and_passes_end(
    path: Path, other: Callable[[], sqlite3.Connection]
) -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, trader, path=path)
    passed: list[int | None] = []
    kernel.hooks.passed = passed.append
    await kernel.recover()
    await kernel.cycle()
    assert "BTC" in venue.positions
    lock = other()
    await minutes(kernel, venue, "101")
    assert venue.positions == {}, "the strategy's exit went"
    assert state_of(kernel).word == "DEGRADED"
    assert "journal" in kernel.health.degraded
    await minutes(kernel, venue, "102")
    assert venue.positions == {}, "and nothing was opened"
    assert "journal_fault" in [row[6] for row in kernel.journal._pending.refusals] + [
        row["code"] for row in kernel.journal.db["refusals"].rows
    ]
    assert len(passed) == 3, "each pass ended, so that the heartbeat goes on"
    lock.rollback()
    later(kernel, 60_000)
    await minutes(kernel, venue, "102", "102")
    assert state_of(kernel).word == "RUNNING"
    assert "BTC" in venue.positions
    assert [row["state"] for row in open_journal(path, address=ADDRESS).db["intents"].rows] == ["accepted"] * 3
    assert kernel.health.counts["daemon.degraded"] == kernel.health.counts["daemon.recovered"] == 1


async def test_an_entry_whose_write_fails_is_not_sent(tmp_path: Path) -> None:
    """Whichever statement of the pass fails, the file shows every sent order as sent."""
    left: list[bool] = []
    for at in range(1, 200):
        path = tmp_path / f"{at}.db"
        venue = FaultyPort()
        venue.minute(BTC="100")
        kernel = make_kernel(venue, trader, path=path)
        await kernel.recover()
        failing(kernel.journal, at=at)
        # The file would be whole again at the end of the pass.
        kernel.upkeep.rewrite_at_ms = 1 << 60
        venue.calls.clear()
        await kernel.cycle()
        if kernel.journal.fault is None:
            assert left[0] is False
            assert left[-1] is True
            # Every statement of the pass has failed once.
            return
        no = kernel.conditions.entries_stopped(kernel.now_ms())
        assert no is not None
        assert no.code == "journal_fault"
        with closing(sqlite3.connect(path)) as db:
            states = [row[0] for row in db.execute("SELECT state FROM intents")]
        left.append("confirm" in venue.calls)
        assert left[-1] <= (states in (["sending"], ["accepted"])), f"statement {at}: {states}"
        kill(kernel)
    raise AssertionError("a pass has fewer statements")


async def test_a_position_that_loses_its_stop_during_a_fault_gets_a_new_one(
    path: Path, other: Callable[[], sqlite3.Connection]
) -> None:
    venue = FaultyPort()
    kernel = await opened(venue, path=path)
    other()
    await venue.cancel(stop_of(venue))
    await kernel.cycle()
    assert kernel.journal.fault is not None
    assert trailing(venue) == [("BTC", 2.0)]
    venue.faults = [Fault("arm", refused("invalid_input"), 9)]
    await venue.disarm(next(g.id for g in venue.guards.values() if g.type == "trailing_stop"))
    await kernel.cycle()
    assert venue.positions == {}, "refused a stop, it was closed"


async def test_an_exit_sent_during_a_fault_is_not_sent_again_after_a_crash(
    path: Path, other: Callable[[], sqlite3.Connection]
) -> None:
    def half(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None and bar.close == 100:
            yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=5))
        elif bar.close == 101:
            yield Close(bar.market, fraction=0.5)

    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, half, path=path)
    await kernel.recover()
    await kernel.cycle()
    lock = other()
    await minutes(kernel, venue, "101")
    assert venue.positions["BTC"].size == Decimal("2.5")
    kill(kernel)
    lock.rollback()
    again = make_kernel(venue, half, path=path)
    await again.recover()
    await again.cycle()
    assert venue.positions["BTC"].size == Decimal("2.5"), "the same bar, decided again, has the same key"
    assert again.account.account_state.positions["BTC"].size == venue.positions["BTC"].size
    assert again.account.account_state.positions["BTC"].owner == "trend"


# -- damaged when it is opened


def rich(path: Path) -> Journal:
    journal = open_journal(path, address=ADDRESS)
    fill(journal)
    for n in range(10, 60):
        one = intent(n, body=b'{"market":"BTC"}' + b" " * (n * 7))
        journal.open(one)
        if n % 3 == 0:
            one = journal.intents.sending(journal.intents.planned(one, f"token-{n}", 50, now_ms=2), now_ms=3)
        if n % 6 == 0:
            journal.intents.accept(one, f"trd_{n}", now_ms=4)
        journal.decided((), states={f"s{n}": f'{{"count": {n}}}'})
        journal.state.bar_done("BTC", f"{n}m", n * 1000)
    for n in range(10, 300):
        journal.take([event(n)], f"evt_{n:010d}", epoch=0)
    journal.flush()
    return journal


def believed(journal: Journal) -> tuple[Any, ...]:
    """The rows that decide the next step."""
    states = {row["strategy"]: row["state"] for row in journal.db["strategy_state"].rows}
    done = [(row["market"], row["interval"], row["at_ms"]) for row in journal.db["progress"].rows]
    return (
        journal.intents.live(),
        journal.events.cursor,
        states,
        sorted(done),
        journal.state.arm_of("dead_man"),
        journal.intents.find("KEY1"),
    )


def damage(chance: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    kind = chance.choice(["flip", "flip", "flip", "flip", "cut", "page", "zero", "text", "empty", "gone", "swap"])
    page = chance.randrange(len(data) // 4096) * 4096
    if kind == "flip":
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[chance.randrange(1, len(data)) :]
    elif kind == "page":
        data[page : page + 4096] = chance.randbytes(4096)
    elif kind == "zero":
        data[page : page + 4096] = bytes(4096)
    elif kind == "text":
        data = bytearray(b"not a database, a note of mine\n" * 200)
    elif kind == "empty":
        data.clear()
    elif kind == "swap":
        last = data[-4096:]
        data[-4096:], data[page : page + 4096] = data[page : page + 4096], last
    path.write_bytes(data)
    if kind == "gone":
        path.unlink()
    return kind


@pytest.mark.soak(worlds=120, full=1_000)
def test_a_damaged_file_is_set_aside_or_reads_as_written(tmp_path: Path, worlds: int, base_seed: int) -> None:
    """The damage is found and the file set aside, or the rows that decide the next step are exactly as written."""
    source = tmp_path / "whole.db"
    journal = rich(source)
    wanted = believed(journal)
    journal.close()
    good = source.read_bytes()
    outcomes = {"rebuilt": 0, "refused": 0, "unharmed": 0}
    for seed in range(base_seed, base_seed + worlds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = folder / "journal.db"
        path.write_bytes(good)
        kind = damage(random.Random(f"damage {seed}"), path)
        try:
            found, said = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS, was_used=True)
        except (
            JournalError,
            ConfigError,
            # Another account's, a newer version's: a word of the file that says so was hit. Nothing is traded.
        ):
            outcomes["refused"] += 1
            shutil.rmtree(folder)
            continue
        try:
            if said is None:
                outcomes["unharmed"] += 1
                assert believed(found) == wanted, f"seed {seed}: {kind} was believed"
            else:
                outcomes["rebuilt"] += 1
                assert found.intents.live() == []
                assert found.events.cursor is None
                if kind not in ("gone", "empty"):
                    assert any(name.name.startswith("journal.db.damaged-2025") for name in folder.iterdir()), "kept"
        except JournalDamaged:
            # Found when it was read: the run ends, and the next start sets it aside.
            pass
        found.db.close()
        shutil.rmtree(folder)
    assert outcomes["rebuilt"] > worlds // 4, outcomes
    assert outcomes["refused"] < worlds // 10 + 1, outcomes


def test_each_damaged_file_gets_its_own_name(path: Path) -> None:
    for n in range(2):
        path.write_bytes(b"nothing of ours %d" % n * 100)
        journal, said = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
        assert said is not None
        assert "journal.db.damaged-20250601T000000" in said
        journal.close()
    kept = sorted(name.name for name in path.parent.glob("*.damaged-*"))
    assert kept == ["journal.db.damaged-20250601T000000", "journal.db.damaged-20250601T000000-1"]


def again(path: Path) -> tuple[Journal, str]:
    """The next start, and its sentence on a rebuilt journal."""
    journal, said = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS, was_used=True)
    return journal, said or ""


def test_pauses_and_quarantines_survive_a_rebuilt_journal(path: Path) -> None:
    failed = Quarantine("it raised", "1", 5)
    journal, said = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
    assert said is None
    Pauses(journal).pause("alpha")
    keep_quarantine(journal, "beta", failed)
    keep_quarantine(journal, "gamma", failed)
    keep_quarantine(journal, "gamma", None)
    journal.state.write_note(HALTED, '{"alpha": [0, 86400000]}')
    journal.state.write_note(FOREIGN, '"a foreign order"')
    journal.close()
    path.write_bytes(b"nothing of ours" * 100)
    journal, said = again(path)
    assert "stay so" in said
    assert Pauses(journal).names == {"alpha"}
    assert (quarantine_of(journal, "beta"), quarantine_of(journal, "gamma")) == (failed, None)
    assert (journal.state.note(HALTED), journal.state.note(FOREIGN)) == (
        '{"alpha": [0, 86400000]}',
        '"a foreign order"',
    )
    Pauses(journal).resume(None)
    journal.close()
    path.unlink()
    journal, said = again(path)
    assert Pauses(journal).names == frozenset(), "a person's word counts"
    journal.close()


def test_every_strategy_is_paused_if_the_pauses_are_unknown(path: Path) -> None:
    open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)[0].close()
    beside = HaltFlagsFile(path, address=ADDRESS).path
    for spoilt in (None, beside.read_text().replace("}", ' "pauses": "[]"}', 1), '{"address": 1}', "[]", "\x00"):
        path.unlink()
        beside.unlink() if spoilt is None else beside.write_text(spoilt)
        journal, said = again(path)
        assert Pauses(journal).names == {ALL}, spoilt
        assert "bot resume" in said
        Pauses(journal).resume(None)
        journal.close()
    beside.unlink()
    journal, said = again(path)
    assert (Pauses(journal).names, said) == (frozenset(), ""), "its journal knows"
    journal.close()
    assert beside.exists()


def test_a_pause_written_during_a_fault_outlives_the_process(path: Path) -> None:
    journal, _ = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
    failing(journal)
    Pauses(journal).pause("alpha")
    assert journal.fault is not None
    journal.db.close()
    journal, said = again(path)
    assert (Pauses(journal).names, said) == ({"alpha"}, "")
    journal.close()


def test_the_copy_of_the_halt_flags_is_updated_when_the_disk_works_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_given: object, **_named: object) -> None:
        raise OSError(30, "read-only")

    journal, _ = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
    Pauses(journal).pause(None)
    failing(journal)
    with monkeypatch.context() as disk:
        disk.setattr(halt_flags, "_write", refuses)
        disk.setattr(Path, "unlink", refuses)
        Pauses(journal).resume(None)
    assert journal.mend()
    journal.close()
    journal, _ = again(path)
    assert Pauses(journal).names == frozenset(), "a person's word counts"
    journal.close()


def test_the_copy_of_the_halt_flags_has_only_committed_flags(path: Path) -> None:
    journal, _ = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
    beside = HaltFlagsFile(path, address=ADDRESS)
    with suppress(KeyError), journal.together():
        journal.state.write_note("pauses", '["alpha"]')
        raise KeyError
    assert (journal.state.note("pauses"), beside.read()) == (None, {})
    with journal.together():
        journal.state.write_note("pauses", '["alpha"]')
        journal.notify([Notice("1", "strategy.paused", "{}")], now_ms=NOW_MS)
        assert beside.read() == {}
    assert beside.read() == {"pauses": '["alpha"]'}
    journal.close()


def test_a_halt_flag_that_no_run_writes_counts_as_damage(path: Path) -> None:
    for name, value in (
        ("pauses", "["),
        ("pauses", "{}"),
        ("pauses", '[["alpha"]]'),
        ("halted", '{"alpha": 5}'),
        ("halted", '{"alpha": ["0", 1]}'),
        ("foreign_writer", "5"),
        ("quarantine:alpha", '["why"]'),
        ("quarantine:alpha", '["why", "1", "soon"]'),
    ):
        journal, _ = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
        journal.state.halt_flags_file = None
        journal.state.write_note(name, value)
        journal.close()
        journal, said = again(path)
        assert "cannot be used" in said, (name, value)
        journal.close()


def test_a_file_that_is_locked_at_the_start_does_not_count_as_damaged(
    path: Path, other: Callable[[], sqlite3.Connection]
) -> None:
    open_journal(path, address=ADDRESS).close()
    other()
    journal, said = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
    assert said is None
    journal.restart_cursor("evt_0000000001", epoch=0, now_ms=0)
    assert journal.fault is not None
    assert list(path.parent.glob("*.damaged-*")) == []


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY])
@pytest.mark.parametrize("before", ["used", "new", "damaged"])
def test_a_start_continues_in_memory_if_the_file_cannot_be_written(
    path: Path, code: int, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before == "used":
        rich(path).close()
    elif before == "damaged":
        path.write_bytes(b"nothing of ours" * 100)

    def fails(_db: object, _shown: str) -> None:
        error = sqlite3.OperationalError("no")
        error.sqlite_errorcode = code
        raise error

    with monkeypatch.context() as full_disk:
        full_disk.setattr(database, "configure", fails)
        journal, said = open_or_rebuild(path, address=ADDRESS, now_ms=NOW_MS)
        assert journal.fault is not None
        assert (said is None) is (before != "damaged")
        assert (journal.intents.find("KEY1") is not None) is (before == "used")
        journal.open(intent(1_000))
        assert journal.mend() is False
    assert journal.mend() is True
    assert "KEY1000" in in_file(path)
    assert ("KEY1" in in_file(path)) is (before == "used")
    assert journal.db.conn.execute("PRAGMA auto_vacuum").fetchone() == (2,), "also this file gives room back"
    journal.close()


FULL_START = """
import resource, signal, sys
from pathlib import Path
from bot.errors import JournalError
from bot.runtime.journal import queries
from bot.runtime.journal.opening import open_or_rebuild
from bot.runtime.model.intents import Intent

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
try:
    with queries.opened(Path(sys.argv[1]).parent) as db:
        print("read", len(queries.intents(db, states=("sending",), limit=1)))
except JournalError:
    print("not read")
journal, _ = open_or_rebuild(Path(sys.argv[1]), address=sys.argv[2], now_ms=0)
assert journal.fault, "the kernel refused nothing"
assert "cannot be written" in journal.fault
print(len(journal.intents.live()), journal.state.note("pauses"))
journal.state.write_note("pauses", "[]")
assert not journal.mend()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert journal.mend(), journal.fault

# The disk is full again, while the file is in use.
resource.setrlimit(resource.RLIMIT_FSIZE, (Path(sys.argv[1]).stat().st_size + 200_000, hard))
for n in range(900, 920):
    journal.open(Intent(id=f"KEY{n}", strategy="t", market="BTC", action="close", path="direct", trigger=f"bar:{n}",
                        ordinal=0, leg="order", epoch=0, body=b"{}" + b" " * 20000, not_after_ms=1, opened_ms=1))
assert journal.fault, "the kernel refused nothing"
assert not journal.mend()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert journal.mend(), journal.fault
journal.close()
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_start_on_a_full_disk_reads_the_journal_and_writes_it_later(path: Path, end: str) -> None:
    """A killed run has left its newest rows in the log beside the file, which needs an index to be read."""
    journal = rich(path)
    journal.state.write_note("pauses", '["alpha"]')
    live = len(journal.intents.live())
    held = path.parent / "held"
    if end == "closed":
        journal.close()
    else:
        held.mkdir()
        for name in path.parent.glob("journal.db*"):
            shutil.copy(name, held)
        journal.close()
        path = held / "journal.db"
        (held / "journal.db-shm").unlink()
    done = subprocess.run(
        [sys.executable, "-c", FULL_START, str(path), ADDRESS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f'{live} ["alpha"]' in done.stdout.splitlines()
    assert ("read 1" if end == "closed" else "not read") in done.stdout.splitlines(), "nothing old is shown as whole"
    with closing(open_journal(path, address=ADDRESS)) as again_:
        assert again_.state.note("pauses") == "[]"
    assert {f"KEY{n}" for n in range(900, 920)} <= set(in_file(path)), "a disk that is full later loses no row either"


def test_a_written_back_file_that_cannot_be_opened_yet_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(path, address=ADDRESS)
    failing(journal)
    journal.state.write_note("a", "1")
    assert journal.fault is not None
    with monkeypatch.context() as broken:
        broken.setattr(database, "configure", _no_wal)
        assert journal.mend() is False
    assert journal.state.note("a") == "1"
    assert journal.mend() is True
    journal.close()
    with closing(open_journal(path, address=ADDRESS)) as again:
        assert again.state.note("a") == "1"


def _no_wal(_db: object, shown: str) -> None:
    raise JournalError(f"{shown} cannot be written ahead")
