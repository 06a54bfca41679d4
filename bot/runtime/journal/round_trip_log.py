"""The ended round trips in the journal, kept by the daemon as it takes events, and how far the events were folded.

A reader takes the stored trips and folds only the events after them, so the time of a page does not grow with the
journal, and trips outlive their events. An event that changes later takes the log back to a flat point before it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, Final

from bot.runtime.journal import queries
from bot.runtime.journal.database import JournalDatabase
from bot.runtime.journal.round_trips import TYPES_WITH_STOPS, Trip, TripFold, with_extremes
from bot.runtime.journal.state_store import StateStore

# the note that has the fold as JSON
NOTE: Final = "round_trips"
# events that are folded together; about 10 ms
EVENTS_MAX: Final = 1_000
# as many as have extremes
ROWS_KEPT: Final = 50_000

_NAMES: Final = tuple(field.name for field in fields(Trip))
_IS_AMOUNT: Final = tuple("Decimal" in str(field.type) for field in fields(Trip))
_MARKS: Final = ", ".join("?" for _ in TYPES_WITH_STOPS)
# Constants only.
_EVENTS: Final = (
    f"SELECT seq, epoch, payload FROM events WHERE seq > ? AND type IN ({_MARKS})"  # noqa: S608
    " ORDER BY seq LIMIT ?"
)


class RoundTripLog:
    """Folds the events of one journal, some at a time. What it writes is committed when it returns."""

    def __init__(self, database: JournalDatabase, state: StateStore, changes: Callable[[], int]) -> None:
        self._database = database
        self._state = state
        self._fold, self._seq = TripFold(), 0
        # How often written events were changed, now and when the fold was loaded.
        self._changes_now = changes
        self._changes: int | None = None

    def fold(self) -> bool:
        """Fold the next EVENTS_MAX events; True if there may be more.

        It writes when a trip has ended and after a whole batch, so that an order or a payment alone costs no write.
        """
        changes = self._changes_now()
        if self._changes != changes:
            self._changes = changes
            self._seq, self._fold = _loaded(self._state.note(NOTE))
        rows = self._database.read(_EVENTS, (self._seq, *TYPES_WITH_STOPS, EVENTS_MAX))
        ended = []
        for event in queries.parsed(rows):
            self._seq = event["seq"]
            ended += [(trip, self._seq, self._fold.is_flat) for trip in self._fold.take(event)]
        is_full = len(rows) == EVENTS_MAX
        if ended or is_full:
            with self._database.together():
                for trip, seq, is_flat in ended:
                    self._database.execute(
                        "INSERT INTO round_trips (event_id, ended_seq, is_flat, owner, trip) VALUES (?,?,?,?,?)",
                        (trip.closed_by, seq, is_flat, trip.strategy(self._strategies), json.dumps(_plain(trip))),
                    )
                newest = "(SELECT max(seq) FROM round_trips)"
                self._database.execute(f"DELETE FROM round_trips WHERE seq <= {newest} - ?", (ROWS_KEPT,))  # noqa: S608
                state = [self._seq, self._fold.open_now, self._fold.filled, self._fold.causes, self._fold.epoch]
                self._state.write_note(NOTE, json.dumps(_plain(state)))
        return is_full

    def closed_after(self, seq: int, limit: int) -> list[tuple[int, str, Trip]]:
        """The oldest trips that a fill, a liquidation or a settlement after `seq` has closed, each with that event."""
        rows = self._database.read(
            "SELECT ended_seq, event_id, owner, trip FROM round_trips WHERE ended_seq > ? AND event_id IS NOT NULL"
            " ORDER BY seq LIMIT ?",
            (seq, limit),
        )
        return [(ended, event_id, _trip(json.loads(text), owner)) for ended, event_id, owner, text in rows]

    def _strategies(self, keys: Sequence[str]) -> list[str]:
        rows = self._database.read(
            "SELECT id, strategy FROM intents WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(keys),)
        )
        known: dict[str, str] = dict(rows)
        return list(dict.fromkeys(known[key] for key in keys if key in known))


def take_back(database: JournalDatabase, seq: int) -> None:
    """Forget the trips since the last flat point before an event that changes now, in the open transaction.

    The next fold makes them again. If events after that point are gone, the stored trips stay as they are.
    """
    (point,) = database.read(
        "SELECT coalesce(max(ended_seq), 0) FROM round_trips WHERE is_flat AND ended_seq < ?", (seq,)
    ).fetchone()
    is_whole, is_empty = database.read(
        "SELECT count(*) = max(seq) - ?, NOT EXISTS (SELECT 1 FROM round_trips) FROM events WHERE seq > ?",
        (point, point),
    ).fetchone()
    if is_whole or is_empty:
        database.execute("DELETE FROM round_trips WHERE ended_seq > ?", (point,))
        database.execute("UPDATE meta SET value=? WHERE name=?", (json.dumps([point, {}, {}, {}, None]), NOTE))


def every_trip(db: sqlite3.Connection) -> Iterator[Trip]:
    """Every trip that the journal knows, in the order of their ends; open ones last. Each has its extremes."""
    return with_extremes(_stored_and_new(db), queries.trade_extremes(db))


def _stored_and_new(db: sqlite3.Connection) -> Iterator[Trip]:
    seq, fold = 0, TripFold()
    if queries.has_table(db, "round_trips"):
        notes = queries.rows(db, "SELECT value FROM meta WHERE name=?", (NOTE,))
        seq, fold = _loaded(notes[0]["value"] if notes else None)
        stored = db.execute("SELECT owner, trip FROM round_trips WHERE ended_seq <= ? ORDER BY seq", (seq,))
        while batch := stored.fetchmany(EVENTS_MAX):
            values = json.loads(f"[{','.join(row[1] for row in batch)}]")
            yield from (_trip(value, row[0]) for row, value in zip(batch, values, strict=True))
    for event in queries.parsed(db.execute(_EVENTS, (seq, *TYPES_WITH_STOPS, -1))):
        yield from fold.take(event)
    yield from fold.open_now.values()


def _plain(value: Any) -> Any:
    """As JSON has it: amounts as exact text, a trip as a list in the order of its fields."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Trip):
        return [_plain(getattr(value, name)) for name in _NAMES]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _trip(values: Sequence[Any], owner: str | None) -> Trip:
    exact: list[Any] = [
        Decimal(value) if is_amount and value is not None else value
        for value, is_amount in zip(values, _IS_AMOUNT, strict=False)
    ]
    exact[_NAMES.index("owner")] = owner
    return Trip(*exact)


def _loaded(note: str | None) -> tuple[int, TripFold]:
    """How far the events were folded, and the fold. A new one if there is none."""
    if note is None:
        return 0, TripFold()
    seq, open_now, filled, causes, epoch = json.loads(note)
    trips = {market: _trip(values, None) for market, values in open_now.items()}
    sizes = {market: {trade_id: Decimal(size) for trade_id, size in exits.items()} for market, exits in filled.items()}
    return seq, TripFold(trips, sizes, causes, epoch)
