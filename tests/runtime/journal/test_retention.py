"""Retention: which rows the journal removes, which keys stay because something uses them, and that the file shrinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.runtime.journal import database, retention
from bot.runtime.journal import journal as journal_module
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.retention import KEYS_MS, PAGES_FREE, ROWS_MAX, TRADES_MS, HeldKeys
from bot.runtime.journal.state_store import Arm
from bot.runtime.model.shares import AttributionChanges, EntryRow, TradeRow
from bot.strategy import Bracket, Open
from bot.wire import INTERVAL_MS, Event
from tests.faulty_port import ADDRESS, FaultyPort
from tests.runtime.builders import intent, make_kernel, minutes

LATE_MS = KEYS_MS + 1_000
KEPT = 5


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """A journal that keeps the newest five intents, and ten events."""
    monkeypatch.setattr(journal_module, "INTENTS_KEPT", KEPT)
    monkeypatch.setattr(journal_module, "EVENTS_KEPT", 10)
    made = open_journal(tmp_path / "journal.db", address=ADDRESS)
    yield made
    made.db.close()


def lived(journal: Journal, n: int, *, at_ms: int = 0, state: str = "accepted", **more: Any) -> str:
    """A final intent with its attempt and a trace."""
    one = intent(n, **more)
    assert journal.open(one)
    journal.trace(one.id, "wish", "{}", at_ms=at_ms)
    one = journal.intents.sending(one, now_ms=at_ms)
    if state == "accepted":
        journal.intents.accept(one, f"trd_{n}", now_ms=at_ms)
    elif state != "sending":
        journal.intents.end(one, state, "x", "y", now_ms=at_ms)
    return one.id


def known(journal: Journal) -> set[str]:
    return {row[0] for row in journal.db.conn.execute("SELECT id FROM intents")}


def test_old_intents_are_removed_with_attempts_and_traces_and_the_newest_stay(journal: Journal) -> None:
    for n in range(20):
        lived(journal, n)
    assert journal.trim(now_ms=LATE_MS) == 15
    assert known(journal) == {f"KEY{n}" for n in range(15, 20)}
    for table in ("attempts", "traces"):
        assert journal.db.conn.execute(f"SELECT count(DISTINCT intent_id) FROM {table}").fetchone()[0] == KEPT


def test_a_key_whose_decision_could_be_made_again_is_never_removed(journal: Journal) -> None:
    for n in range(20):
        lived(journal, n, at_ms=1_000)
    assert journal.trim(now_ms=1_000 + KEYS_MS) == 0, "two of the longest bars have not passed"
    assert journal.trim(now_ms=1_001 + KEYS_MS) == 15
    assert 2 * max(INTERVAL_MS.values()) <= KEYS_MS


def test_an_intent_that_is_not_final_is_never_removed(journal: Journal) -> None:
    stuck = [lived(journal, 0, state="sending"), lived(journal, 1, state="quarantined")]
    assert journal.open(intent(2))
    for n in range(3, 20):
        lived(journal, n)
    journal.trim(now_ms=LATE_MS)
    assert known(journal) >= {*stuck, "KEY2"}


def test_open_positions_and_resting_orders_keep_their_keys_and_entry_events(journal: Journal) -> None:
    entry = lived(journal, 0)
    resting = lived(journal, 1)
    fills = [fill(n, entry if n == 3 else f"KEY{n}") for n in range(40)]
    journal.take(fills, fills[-1].id, epoch=0)
    for n in range(2, 20):
        lived(journal, n)
    journal.trim(lambda: HeldKeys(frozenset({entry, resting}), {"BTC": 3}), now_ms=LATE_MS)
    assert known(journal) >= {entry, resting}
    assert journal.events.entry_keys("BTC", epoch=0, since_ms=3)[0] == entry
    assert set(journal.events.entry_keys("BTC", epoch=0, since_ms=0)) == {
        entry,
        resting,
        *(f"KEY{n}" for n in range(30, 40)),
    }
    journal.trim(now_ms=LATE_MS)
    assert not known(journal) & {entry, resting}, "once nothing stands by them they go"


def test_the_newest_accepted_entry_of_each_market_stays_and_so_do_the_repairs_of_an_open_position(
    journal: Journal,
) -> None:
    last_eth = lived(journal, 0, market="ETH")
    repair = lived(journal, 1, market="SOL", strategy="@runtime", action="close", state="rejected")
    for n in range(2, 20):
        lived(journal, n)
    journal.trim(lambda: HeldKeys(positions={"SOL": 5}), now_ms=LATE_MS)
    assert known(journal) >= {last_eth, repair}
    journal.trim(now_ms=LATE_MS)
    assert last_eth in known(journal)
    assert repair not in known(journal)


def test_the_target_orders_of_an_open_position_stay_so_that_a_start_makes_none_again(journal: Journal) -> None:
    target = lived(journal, 0, market="SOL", action="close", leg="target")
    for n in range(1, 20):
        lived(journal, n)
    journal.trim(lambda: HeldKeys(positions={"SOL": 5}), now_ms=LATE_MS)
    assert target in known(journal)
    journal.trim(now_ms=LATE_MS)
    assert target not in known(journal)


def test_one_trim_removes_a_bounded_number_and_the_next_continues(journal: Journal) -> None:
    for n in range(ROWS_MAX + 50):
        lived(journal, n, state="rejected")
    assert journal.trim(now_ms=LATE_MS) == ROWS_MAX
    assert journal.trim(now_ms=LATE_MS) == 50 - KEPT
    assert journal.trim(now_ms=LATE_MS) == 0


def test_rows_of_guardians_that_are_gone_are_removed(journal: Journal) -> None:
    names = ("dead_man", "old:grd_1", "old:grd_2", "cover:BTC:5", "cover:BTC:9")
    for name in names:
        journal.state.write_arm(Arm(name, 1, None if name == "old:grd_1" else "grd_7", "{}"))
    # taken back
    journal.state.write_arm(Arm("lost:0:1:cap", 1, None, ""))
    # to be taken back yet
    journal.state.write_arm(Arm("lost:0:2:cap", 2, None, "{}"))
    journal.trim(lambda: HeldKeys(positions={"BTC": 9}), now_ms=0)
    assert {arm.name for arm in journal.state.arms()} == {"dead_man", "old:grd_2", "lost:0:2:cap", "cover:BTC:9"}


def test_the_file_gives_free_pages_back_and_its_log_does_not_grow(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "REFUSALS_KEPT", 10)
    path = tmp_path / "journal.db"
    body = b'{"market":"' + b"B" * 4_000 + b'"}'
    journal.decided([intent(n, body=body) for n in range(1_500)])
    for one in journal.intents.live():
        journal.intents.end(one, "void", "x", "y", now_ms=0)
    most = pages(journal)
    for _ in range(4):
        journal.trim(now_ms=LATE_MS)
    assert pages(journal) < most / 2
    assert journal.db.conn.execute("PRAGMA freelist_count").fetchone()[0] <= PAGES_FREE
    assert path.with_name("journal.db-wal").stat().st_size <= database.LOG_BYTES_MAX
    journal.check()


def test_the_log_is_written_back_at_the_end_of_a_pass_and_not_by_the_commit_that_an_order_waits_for(
    tmp_path: Path, journal: Journal
) -> None:
    file, log = tmp_path / "journal.db", tmp_path / "journal.db-wal"
    journal.flush()
    before = file.read_bytes()
    body = b'{"market":"' + b"B" * 4_000 + b'"}'
    for n in range(16):
        journal.decided([intent(200 * n + m, body=body) for m in range(60)])
    assert log.stat().st_size > 1_100 * 4_096, "more than SQLite itself lets it grow"
    assert file.read_bytes() == before
    journal.checkpoint()
    written = file.read_bytes()
    assert len(written) > len(before) + 600 * 4_000
    grown = log.stat().st_size
    for n in range(3):
        journal.decided([intent(100 + 200 * n + m, body=body) for m in range(60)])
    assert log.stat().st_size == grown, "it begins anew"
    journal.checkpoint()
    assert file.read_bytes() == written, "so little does not pay"


def test_a_log_that_no_pass_checkpoints_is_still_bounded(tmp_path: Path, journal: Journal) -> None:
    body = b'{"market":"' + b"B" * 4_000 + b'"}'
    for n in range(50):
        journal.decided([intent(200 * n + m, body=body) for m in range(100)])
    assert tmp_path.joinpath("journal.db-wal").stat().st_size <= database.LOG_BYTES_MAX + 200 * 4_096


async def test_the_kernel_holds_the_keys_of_its_orders_and_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "INTENTS_KEPT", 0)
    venue = FaultyPort()
    signals = [Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=2))]
    kernel = make_kernel(venue, lambda _view, _bar: [signals.pop()] if signals else (), path=tmp_path / "journal.db")
    await kernel.recover()
    await minutes(kernel, venue, "100", "101")
    (position,) = kernel.account.account_state.positions.values()
    held = kernel.upkeep.held()
    assert held.positions == {"BTC": position.opened_ms}
    assert {kernel.journal.intents.find(key).strategy for key in held.keys} == {"trend"}
    assert kernel.journal.trim(kernel.upkeep.held, now_ms=kernel.now_ms() + LATE_MS) == 0
    assert kernel.account.order_owners.owner_of(next(iter(held.keys))) == "trend"


def pages(journal: Journal) -> int:
    return int(journal.db.conn.execute("PRAGMA page_count").fetchone()[0])


def fill(n: int, key: str) -> Event:
    data = {
        "tradeId": f"trd_{n}",
        "oid": str(n),
        "kind": "market",
        "side": "long",
        "intent": "open",
        "size": "1",
        "px": "1",
        "feeUsd": "0",
        "positionSize": "1",
        "entryPx": "1",
        "remainingSize": "0",
        "balanceUsd": "1",
        "reduceOnly": False,
        "liquidity": "taker",
    }
    return Event(id=f"evt_{n:010d}", type="fill", subtype="entry", ts=n, coin="BTC", idempotency_key=key, data=data)


def test_trades_stay_as_long_as_a_protection_may_count_them_and_entries_two_days(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 2 * TRADES_MS
    ends = [now_ms - TRADES_MS - 1, now_ms - TRADES_MS, now_ms, None]
    trades = [TradeRow("s", "BTC", "long", 0, closed_ms, 10**16, is_stop=False) for closed_ms in ends]
    entries = [EntryRow(f"KEY{age_ms}", "s", "BTC", now_ms - age_ms) for age_ms in (KEYS_MS + 1, KEYS_MS, 0)]
    journal.write_attribution(AttributionChanges(1, trades=tuple(trades), entries=tuple(entries)))
    journal.trim(now_ms=now_ms)
    assert journal.state.trade_rows(1) == trades[1:]
    assert journal.state.entry_rows(1) == entries[1:]
    monkeypatch.setattr(retention, "TRADES", 2)
    journal.trim(now_ms=now_ms)
    assert journal.state.trade_rows(1) == trades[2:], "an open trade stays"
    assert journal.state.trade_rows(2) == [], "of another epoch"
