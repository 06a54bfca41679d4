"""The stored round trips are those that a fold of all events gives, wherever the fold stops, restarts or is taken
back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.runtime.journal import queries, round_trip_log
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.round_trip_log import RoundTripLog, every_trip
from bot.runtime.journal.round_trips import TYPES_WITH_STOPS, Owners, Trip, trips
from tests.runtime.builders import event, intent

NOW_MS = 1_795_996_800_000


def world(seed: int, steps: int = 120) -> list[dict[str, Any]]:
    """Entries, exits, reversals, liquidations, settlements, funding, stops, guardians and resets of two markets."""
    chance, held, events = Random(seed), dict.fromkeys(("BTC", "ETH"), 0), list[dict[str, Any]]()

    def add(type_: str, subtype: str, coin: str | None, **data: Any) -> None:
        number = len(events)
        events.append(
            {"id": f"evt_{number:010d}", "type": type_, "subtype": subtype, "ts": NOW_MS + number * 1000, "coin": coin}
            | {"data": data, "idempotencyKey": None}
        )

    def fill(coin: str, size: int, trade: str, kind: str) -> None:
        is_entry = not held[coin] or (held[coin] > 0) == (size > 0)
        side = "long" if (held[coin] or size) > 0 else "short"
        held[coin] += size
        data = {"size": str(abs(size)), "px": str(100 + chance.randrange(20)), "feeUsd": "0.1", "kind": kind}
        pnl = None if is_entry else str(chance.randrange(-9, 9))
        name = "entry" if is_entry else "exit"
        data |= {"positionSize": str(held[coin]), "tradeId": trade, "side": side}
        add("fill", name, coin, **data, realizedPnlUsd=pnl)

    for n in range(steps):
        coin, trade = chance.choice(("BTC", "ETH")), f"trd_{n}"
        choice = chance.randrange(12)
        if choice < 4 or not held[coin]:
            fill(coin, chance.choice((-1, 1, 2)) if not held[coin] else 1 if held[coin] > 0 else -1, trade, "market")
            stop = {"kind": "stop_loss", "triggerPx": "90", "tradeId": trade}
            add("order", "armed", coin, **stop)
        elif choice < 5:
            add("funding", "payment", coin, amountUsd="-0.25")
        elif choice < 8:
            add("trigger", chance.choice(("stop_loss", "take_profit")), coin, tradeId=trade)
            fill(coin, -1 if held[coin] > 0 else 1, trade, "market")
        elif choice < 9:
            add("guardian", "fired", None, tradeIds=[trade], guardianType="max_hold")
            fill(coin, -held[coin], trade, "market")
        elif choice < 10:
            # A reversal: one order, two fills.
            size = -held[coin]
            fill(coin, size, trade, "market")
            fill(coin, size, trade, "market")
        elif choice < 11:
            kind = chance.choice(("liquidation", "settlement"))
            size, held[coin] = abs(held[coin]), 0
            px = {"px": "80", "outcomePx": "1"}
            add(kind, "full", coin, size=str(size), tradeId=trade, realizedPnlUsd="-5", marginLostUsd="1", **px)
        else:
            held.update(BTC=0, ETH=0)
            add("account", "reset", None)
    return events


def put(journal: Journal, events: list[dict[str, Any]]) -> None:
    for sent in events:
        row = (*(sent[name] for name in ("id", "type", "subtype", "ts", "coin")), json.dumps(sent))
        journal.database.execute(
            "INSERT INTO events (epoch, id, type, subtype, ts, coin, payload) VALUES (0,?,?,?,?,?,?)", row
        )


def rows(known: Iterable[Trip], owners: Owners = list) -> list[dict[str, Any]]:
    return [trip.row(owners) for trip in known]


def log_of(journal: Journal) -> RoundTripLog:
    return RoundTripLog(journal.database, journal.state, lambda: journal.events.changes)


def same(folder: Path) -> None:
    """What readers see is a fold of every event."""
    with queries.opened(folder) as db:
        owners = queries.owners(db)
        assert rows(every_trip(db), owners) == rows(trips(queries.all_events(db, TYPES_WITH_STOPS)), owners)


@pytest.mark.parametrize("seed", range(6))
def test_readers_see_the_same_trips_wherever_the_fold_stopped(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trip_log, "EVENTS_MAX", 7)
    journal, chance = open_journal(tmp_path / queries.FILE, address="0xabc"), Random(seed)
    log, events = log_of(journal), world(seed)
    while events:
        size = chance.randrange(1, 20)
        with journal.together():
            put(journal, events[:size])
        del events[:size]
        same(tmp_path)
        for _ in range(chance.randrange(3)):
            log.fold()
        if chance.random() < 0.3:
            # a restart of the daemon
            log = log_of(journal)
        same(tmp_path)
    while log.fold():
        pass
    same(tmp_path)
    stored = journal.database.read("SELECT count(*), count(event_id) FROM round_trips").fetchone()
    assert stored[0] > stored[1] > 5, "trips that closed, and trips that a reset ended"
    ended = log.closed_after(0, 1_000)
    assert len(ended) == stored[1]
    assert [seq for seq, *_ in ended] == sorted({seq for seq, *_ in ended})
    assert log.closed_after(ended[-1][0], 9) == []
    journal.close()


def test_trips_outlive_their_events_and_their_intents(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / queries.FILE, address="0xabc")
    with journal.together():
        put(journal, world(1))
    log = log_of(journal)
    log.fold()
    with queries.opened(tmp_path) as db:
        before = [row for row in rows(every_trip(db)) if row["status"] != "open"]
    with journal.together():
        journal.database.execute("DELETE FROM events WHERE seq <= 100")
    with queries.opened(tmp_path) as db:
        assert [row for row in rows(every_trip(db)) if row["status"] != "open"][: len(before)] == before
    journal.close()


@pytest.mark.parametrize("is_folded", [True, False], ids=["after the fold", "before the fold"])
def test_a_key_that_comes_late_names_the_strategy_of_a_stored_trip(is_folded: bool, tmp_path: Path) -> None:
    journal = open_journal(tmp_path / queries.FILE, address="0xabc")
    log, events = log_of(journal), world(2)
    entry = next(one for one in events[40:] if one["subtype"] == "entry")
    entry["data"]["intent"] = "open"
    with journal.together():
        put(journal, events)
    mine = intent(market=entry["coin"], epoch=0, trade_id=entry["data"]["tradeId"], strategy="trend", action="open")
    journal.open(mine)
    if is_folded:
        log.fold()
    journal.events.attach_key(mine)
    same(tmp_path)
    log.fold()
    same(tmp_path)
    named = journal.database.read("SELECT owner, trip FROM round_trips WHERE owner IS NOT NULL")
    assert [(owner, mine.id in trip) for owner, trip in named] == [("trend", True)]
    journal.close()


def test_an_event_whose_id_is_given_again_is_no_part_of_any_trip(tmp_path: Path) -> None:
    """A restored service gives ids again. The event that had the id is forgotten, in stored trips too."""
    journal = open_journal(tmp_path / queries.FILE, address="0xabc")
    log, events = log_of(journal), world(3)
    with journal.together():
        put(journal, events)
    log.fold()
    number = next(n for n, one in enumerate(events) if n > 60 and one["type"] == "funding")
    page = journal.events.unseen([event(number)])
    journal.take(page, page[0].id, epoch=0)
    same(tmp_path)
    log.fold()
    same(tmp_path)
    journal.close()


def test_trips_stay_when_the_events_to_make_them_again_are_gone(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / queries.FILE, address="0xabc")
    log, events = log_of(journal), world(2)
    entry = next(one for one in events[100:] if one["subtype"] == "entry")
    entry["data"]["intent"] = "open"
    with journal.together():
        put(journal, events)
    log.fold()
    with journal.together():
        journal.database.execute("UPDATE round_trips SET is_flat=0")
        journal.database.execute("DELETE FROM events WHERE seq <= 60")
    stored = journal.database.read("SELECT * FROM round_trips")
    mine = intent(market=entry["coin"], epoch=0, trade_id=entry["data"]["tradeId"], strategy="trend", action="open")
    journal.open(mine)
    journal.events.attach_key(mine)
    log.fold()
    assert journal.database.read("SELECT * FROM round_trips") == stored
    journal.close()
