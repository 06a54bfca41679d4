"""The session's journal and the file's are one journal: the same session over both, outages included, ends in the same events and the same beliefs."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from bot.runtime.intents import Intent
from bot.runtime.journal import Journal, Outcome, open_journal
from bot.session.backtest import Backtest
from bot.session.journal import SessionJournal
from bot.session.options import Outage, SessionOptions
from bot.session.result import Result
from bot.session.stage import ADDRESS
from tests.session.rooms import MINUTE_MS, START_MS, minutes, placing, settings


def ended(folder: Path, *, on_disk: bool, seed: int) -> tuple[Backtest, Result]:
    made = settings(dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"})
    outages = (Outage(START_MS + 150 * MINUTE_MS, 3 * MINUTE_MS), Outage(START_MS + 300 * MINUTE_MS, 20 * MINUTE_MS))
    path = folder / f"journal-{seed}.db" if on_disk else None
    test = Backtest(
        made, [minutes(500, seed=seed)], SessionOptions(outages=outages), journal_path=path, place=placing()
    )
    return test, test.run()


@pytest.mark.soak(worlds=2, full=100)
def test_a_session_on_a_journal_file_and_one_in_memory_are_the_same(tmp_path: Path, worlds: int, base_seed: int):
    for seed in range(base_seed, base_seed + worlds):
        (memory, here), (_, there) = (ended(tmp_path, on_disk=on_disk, seed=seed) for on_disk in (False, True))
        assert here.digest == there.digest
        assert here.noes == there.noes
        mine = memory.journal
        assert isinstance(mine, SessionJournal)
        file = open_journal(tmp_path / f"journal-{seed}.db", address=ADDRESS)
        try:
            assert mine.cursor == file.cursor
            assert mine.live() == file.live() == []
            assert mine.done_until("BTC", "1m") == file.done_until("BTC", "1m") == START_MS + 500 * MINUTE_MS
            assert mine.state_of("s0") == file.state_of("s0") != {}
            entries = file.entry_keys("BTC", epoch=file.cursor.epoch if file.cursor else 0, since_ms=0)
            assert len(entries) > 3
            for key in entries:
                one, other = mine.find(key), file.find(key)
                assert one is not None
                assert other is not None
                assert (one.state, one.trade_id, one.attempts, one.strategy, one.market) == (
                    other.state, other.trade_id, other.attempts, other.strategy, other.market,
                )  # fmt: skip
        finally:
            file.close()


def test_the_sessions_journal_writes_nothing_of_an_order_to_its_database():
    """Whatever the journal learns to keep of an order's path, the session's own must keep it too: its tables stay empty."""
    test = Backtest(settings(), [minutes(400, seed=3)], SessionOptions(), place=placing())
    rows: dict[str, int] = {}
    close = test.journal.close

    def counted() -> None:
        for table in (
            "intents",
            "attempts",
            "events",
            "cursor",
            "progress",
            "strategy_state",
            "refusals",
            "traces",
            "books",
            "shares",
        ):
            rows[table] = test.journal.db[table].count
        close()

    test.journal.close = counted  # type: ignore[method-assign]
    assert test.run().book.fills > 5
    assert rows == dict.fromkeys(rows, 0)


def opened(journal: Journal) -> Intent:
    one = Intent(
        id="KEY", strategy="s0", market="BTC", action="close", path="direct", trigger="bar:1", ordinal=0, leg="order",
        epoch=0, body=b"{}", not_after_ms=10**15, opened_ms=0, notional_usd=Decimal(0),
    )  # fmt: skip
    assert journal.open(one)
    return one


@pytest.mark.parametrize(
    "outcomes",
    [
        ("no",),
        ("unknown",),
        ("unknown", "no"),
        ("no", "unknown", "no"),
        (None, "no"),
        ("no", "no"),
    ],
)
def test_an_attempt_that_may_have_arrived_is_not_forgotten_over_a_later_no(outcomes: tuple[Outcome | None, ...]):
    said: list[list[bool]] = []
    for journal in (SessionJournal(address=ADDRESS), open_journal(None, address=ADDRESS)):
        intent = opened(journal)
        said.append([])
        for outcome in outcomes:
            intent = journal.sending(intent, now_ms=1)
            said[-1].append(journal.is_ambiguous(intent))
            if outcome is not None:
                journal.attempt_ended(intent, outcome, code="internal_error", order_submitted=None)
            said[-1].append(journal.is_ambiguous(intent))
        journal.close()
    assert said[0] == said[1]
    assert said[0][-1] is (set(outcomes) != {"no"})
