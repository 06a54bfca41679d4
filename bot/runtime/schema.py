"""The journal's tables, as migrations with names. Strict tables; amounts are text, so that no float ever touches one.

A migration is never edited once released: the next one follows it. journal.py alone writes to these tables.
"""

from __future__ import annotations

from typing import Final

from sqlite_utils import Database, Migrations

migrations = Migrations("journal")


def _one_of(column: str, *values: str) -> str:
    return " OR ".join(f"{column} = '{value}'" for value in values)


# What is not final: the condition of an index, and in its very words of who looks there.
LIVE: Final = _one_of("state", "opened", "planned", "sending", "quarantined")


def _intents(name: str) -> str:
    """Each value of a CHECK by itself: for a list of more than two SQLite makes a table in memory at every write, with room for 20 pages."""
    return f"""CREATE TABLE {name} (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, strategy TEXT NOT NULL, market TEXT NOT NULL,
        action TEXT NOT NULL CHECK ({_one_of("action", "open", "close", "cancel")}),
        path TEXT NOT NULL CHECK ({_one_of("path", "plan", "direct")}),
        cause TEXT NOT NULL, ordinal INTEGER NOT NULL, leg TEXT NOT NULL, epoch INTEGER NOT NULL,
        body BLOB NOT NULL, body_sha256 TEXT NOT NULL, not_after_ms INTEGER NOT NULL, opened_ms INTEGER NOT NULL,
        notional_usd TEXT NOT NULL,
        state TEXT NOT NULL CHECK ({LIVE} OR {_one_of("state", "accepted", "rejected", "expired", "void")}),
        attempts INTEGER NOT NULL DEFAULT 0, confirm_token TEXT, token_expires_ms INTEGER,
        trade_id TEXT, code TEXT, message TEXT, moved_ms INTEGER NOT NULL) STRICT"""


def _attempts(name: str, intents: str) -> str:
    return f"""CREATE TABLE {name} (
        intent_id TEXT NOT NULL REFERENCES {intents} (id), n INTEGER NOT NULL, sent_ms INTEGER NOT NULL,
        outcome TEXT CHECK ({_one_of("outcome", "done", "unknown", "no")}), code TEXT, order_submitted TEXT,
        PRIMARY KEY (intent_id, n)) STRICT"""


def _traces(name: str) -> str:
    return f"""CREATE TABLE {name} (
        seq INTEGER PRIMARY KEY, intent_id TEXT NOT NULL, kind TEXT NOT NULL CHECK ({_one_of("kind", "bar", "wish", "plan")}),
        at_ms INTEGER NOT NULL, payload TEXT NOT NULL, UNIQUE (intent_id, kind)) STRICT"""


_INDEXES = (
    f"CREATE INDEX intents_live ON intents (seq) WHERE {LIVE}",
    "CREATE INDEX intents_of_market ON intents (market, seq)",
)

_TABLES = (
    """CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT""",
    _intents("intents"),
    *_INDEXES,
    _attempts("attempts", "intents"),
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, type TEXT NOT NULL, subtype TEXT NOT NULL,
        ts INTEGER NOT NULL, coin TEXT, idempotency_key TEXT, payload TEXT NOT NULL) STRICT""",
    """CREATE INDEX events_of_coin ON events (coin, seq)""",
    """CREATE TABLE cursor (
        one INTEGER PRIMARY KEY CHECK (one = 1), last_id TEXT NOT NULL, prev_id TEXT, epoch INTEGER NOT NULL) STRICT""",
    """CREATE TABLE progress (
        market TEXT NOT NULL, interval TEXT NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (market, interval)) STRICT""",
    """CREATE TABLE strategy_state (strategy TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT""",
    """CREATE TABLE refusals (
        seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, strategy TEXT NOT NULL, market TEXT NOT NULL, cause TEXT NOT NULL,
        ordinal INTEGER NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL, UNIQUE (strategy, market, cause, ordinal)) STRICT""",
    """CREATE TABLE arms (
        name TEXT PRIMARY KEY, serial INTEGER NOT NULL, guardian_id TEXT, body TEXT NOT NULL) STRICT""",
    # sent_ms is never written: each address has a cursor of its own among the notes (notify.py).
    """CREATE TABLE outbox (
        seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL, created_ms INTEGER NOT NULL,
        sent_ms INTEGER, UNIQUE (event_id, kind)) STRICT""",
)


@migrations()
def m001_tables(db: Database) -> None:
    for statement in _TABLES:
        db.execute(statement)


@migrations()
def m002_traces(db: Database) -> None:
    """Why an intent came to be: the bar that it was decided on, what was wished, the plan that it was confirmed by. For people."""
    db.execute(_traces("traces"))


@migrations()
def m003_books(db: Database) -> None:
    """Which strategy did what (books.py): sums of each, and its share of each open position. Kept apart from the events, which are trimmed."""
    db.execute(
        """CREATE TABLE books (
        strategy TEXT PRIMARY KEY, epoch INTEGER NOT NULL, fills INTEGER NOT NULL, fees_usd TEXT NOT NULL, funding_usd TEXT NOT NULL,
        realized_usd TEXT NOT NULL, margin_lost_usd TEXT NOT NULL, day_ms INTEGER NOT NULL, base_usd TEXT NOT NULL,
        halted_day_ms INTEGER NOT NULL) STRICT"""
    )
    db.execute(
        """CREATE TABLE shares (
        seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, market TEXT NOT NULL, strategy TEXT NOT NULL, side TEXT NOT NULL,
        size TEXT NOT NULL, cost_usd TEXT NOT NULL, UNIQUE (market, strategy)) STRICT"""
    )


@migrations()
def m004_seals(db: Database) -> None:
    """A checksum beside what decides the next step: a changed byte that every constraint would let pass. NULL: written before this."""
    for table in ("intents", "cursor", "progress", "strategy_state", "arms"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN seal INTEGER")


@migrations()
def m005_checks_without_lists(db: Database) -> None:
    """A journal that was begun with lists in its CHECKs is written anew without."""
    if " IN (" not in db["traces"].schema:
        return
    for statement in (
        _intents("new_intents"),
        "ALTER TABLE new_intents ADD COLUMN seal INTEGER",
        "INSERT INTO new_intents SELECT * FROM intents",
        _attempts("new_attempts", "new_intents"),
        "INSERT INTO new_attempts SELECT * FROM attempts",
        _traces("new_traces"),
        "INSERT INTO new_traces SELECT * FROM traces",
        *(
            line
            for table in ("attempts", "traces", "intents")  # What refers to another goes before it.
            for line in (f"DROP TABLE {table}", f"ALTER TABLE new_{table} RENAME TO {table}")
        ),
        *_INDEXES,
    ):
        db.execute(statement)
