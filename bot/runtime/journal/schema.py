"""The journal's tables, as migrations with names. Strict tables; amounts are text, so that no float ever touches one.

A released migration is never edited; a change is a new migration. Only this package writes to these tables.
"""

from __future__ import annotations

from typing import Final

from bot.runtime.journal.database_library import Database, Migrations

migrations = Migrations("journal")


def _one_of(column: str, *values: str) -> str:
    """One comparison per value: for an IN list of more than two, SQLite allocates a table of 20 pages at every
    write.
    """
    return " OR ".join(f"{column} = '{value}'" for value in values)


# The condition of an index. Queries must use the same text, or SQLite does not use the index.
LIVE: Final = _one_of("state", "opened", "planned", "sending", "quarantined")
_STATES: Final = _one_of(
    "state", "opened", "planned", "sending", "accepted", "rejected", "expired", "void", "quarantined"
)

_TABLES = (
    """CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT""",
    f"""CREATE TABLE intents (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, strategy TEXT NOT NULL, market TEXT NOT NULL,
        action TEXT NOT NULL CHECK ({_one_of("action", "open", "close", "cancel")}), \
path TEXT NOT NULL CHECK ({_one_of("path", "plan", "direct")}),
        cause TEXT NOT NULL, ordinal INTEGER NOT NULL, leg TEXT NOT NULL, epoch INTEGER NOT NULL,
        body BLOB NOT NULL, body_sha256 TEXT NOT NULL, not_after_ms INTEGER NOT NULL, opened_ms INTEGER NOT NULL,
        notional_usd TEXT NOT NULL,
        state TEXT NOT NULL CHECK ({_STATES}),
        attempts INTEGER NOT NULL DEFAULT 0, confirm_token TEXT, token_expires_ms INTEGER,
        trade_id TEXT, code TEXT, message TEXT, moved_ms INTEGER NOT NULL) STRICT""",
    f"CREATE INDEX intents_live ON intents (seq) WHERE {LIVE}",
    """CREATE INDEX intents_of_market ON intents (market, seq)""",
    f"""CREATE TABLE attempts (
        intent_id TEXT NOT NULL REFERENCES intents (id), n INTEGER NOT NULL, sent_ms INTEGER NOT NULL,
        outcome TEXT CHECK ({_one_of("outcome", "done", "unknown", "no")}), code TEXT, order_submitted TEXT,
        PRIMARY KEY (intent_id, n)) STRICT""",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, type TEXT NOT NULL, \
subtype TEXT NOT NULL,
        ts INTEGER NOT NULL, coin TEXT, idempotency_key TEXT, payload TEXT NOT NULL) STRICT""",
    """CREATE INDEX events_of_coin ON events (coin, seq)""",
    """CREATE TABLE cursor (
        one INTEGER PRIMARY KEY CHECK (one = 1), last_id TEXT NOT NULL, prev_id TEXT, epoch INTEGER NOT NULL) STRICT""",
    """CREATE TABLE progress (
        market TEXT NOT NULL, interval TEXT NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (market, interval)) STRICT""",
    """CREATE TABLE strategy_state (strategy TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT""",
    """CREATE TABLE refusals (
        seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, strategy TEXT NOT NULL, market TEXT NOT NULL, \
cause TEXT NOT NULL,
        ordinal INTEGER NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL, UNIQUE (strategy, market, cause, \
ordinal)) STRICT""",
    """CREATE TABLE arms (
        name TEXT PRIMARY KEY, serial INTEGER NOT NULL, guardian_id TEXT, body TEXT NOT NULL) STRICT""",
    # sent_ms is never written: each address has a cursor of its own among the notes (notifier.py).
    """CREATE TABLE outbox (
        seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL, \
created_ms INTEGER NOT NULL,
        sent_ms INTEGER, UNIQUE (event_id, kind)) STRICT""",
)


@migrations()
def m001_tables(db: Database) -> None:
    for statement in _TABLES:
        db.execute(statement)


@migrations()
def m002_traces(db: Database) -> None:
    """The reason for an intent, for people: the bar of its decision, the strategy's signal, the plan that was
    confirmed.
    """
    db.execute(f"""CREATE TABLE traces (
        seq INTEGER PRIMARY KEY, intent_id TEXT NOT NULL, kind TEXT NOT NULL CHECK \
({_one_of("kind", "bar", "wish", "plan")}),
        at_ms INTEGER NOT NULL, payload TEXT NOT NULL, UNIQUE (intent_id, kind)) STRICT""")


@migrations()
def m003_books(db: Database) -> None:
    """Totals of each strategy and its share of each open position (attribution.py).

    They have tables of their own, because old events are removed.
    """
    db.execute("""CREATE TABLE books (
        strategy TEXT PRIMARY KEY, epoch INTEGER NOT NULL, fills INTEGER NOT NULL, fees_usd TEXT NOT NULL, \
funding_usd TEXT NOT NULL,
        realized_usd TEXT NOT NULL, margin_lost_usd TEXT NOT NULL, day_ms INTEGER NOT NULL, base_usd TEXT NOT NULL,
        halted_day_ms INTEGER NOT NULL) STRICT""")
    db.execute("""CREATE TABLE shares (
        seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, market TEXT NOT NULL, strategy TEXT NOT NULL, \
side TEXT NOT NULL,
        size TEXT NOT NULL, cost_usd TEXT NOT NULL, UNIQUE (market, strategy)) STRICT""")


@migrations()
def m004_seals(db: Database) -> None:
    """A checksum for rows that decide the next step.

    It finds a changed byte that every constraint accepts. NULL: written before this migration.
    """
    for table in ("intents", "cursor", "progress", "strategy_state", "arms"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN seal INTEGER")


@migrations()
def m005_targets(db: Database) -> None:
    """The targets of an entry that become limit orders after its fill, as JSON."""
    db.execute("ALTER TABLE intents ADD COLUMN targets TEXT")


@migrations()
def m006_approvals(db: Database) -> None:
    """The answers to plans that needed a person or a policy.

    `px` is the price that was shown. The token stays in `intents` alone.
    """
    db.execute(f"""CREATE TABLE approvals (
        seq INTEGER PRIMARY KEY, intent_id TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL CHECK ({_one_of("state", "pending", "approved", "refused", "superseded")}),
        px TEXT NOT NULL, figures TEXT NOT NULL, asked_ms INTEGER NOT NULL, decided_ms INTEGER, decider TEXT, \
reason TEXT,
        seal INTEGER) STRICT""")
    db.execute("CREATE INDEX approvals_pending ON approvals (seq) WHERE state = 'pending'")


@migrations()
def m007_asks(db: Database) -> None:
    """The questions to language models and what came of them.

    `setup` is JSON: model, instructions, settings, tools and schema of the answer.
    """
    db.execute("""CREATE TABLE asks (
        seq INTEGER PRIMARY KEY, strategy TEXT NOT NULL, cause TEXT NOT NULL, asked_ms INTEGER NOT NULL, \
key TEXT NOT NULL,
        setup TEXT NOT NULL, prompt TEXT NOT NULL, model TEXT NOT NULL, answer TEXT, problem TEXT, \
outcomes TEXT NOT NULL,
        tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, usd TEXT NOT NULL, took_ms INTEGER NOT NULL,
        UNIQUE (strategy, cause)) STRICT""")


@migrations()
def m008_trade_extremes(db: Database) -> None:
    """The lowest and the highest price of each closed trade, by the event that closed it.

    Trades that were closed before this migration have no row: their extremes are not known.
    """
    db.execute("""CREATE TABLE trade_extremes (
        seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL UNIQUE, low_px TEXT NOT NULL, high_px TEXT NOT NULL,
        step_ms INTEGER NOT NULL) STRICT""")


@migrations()
def m009_trades(db: Database) -> None:
    """The trades of each strategy in each market, and its entries of the last days (trade_log.py).

    They have tables of their own, because old events are removed. `closed_ms` NULL: the trade is open.
    """
    db.execute("""CREATE TABLE trades (
        seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, strategy TEXT NOT NULL, market TEXT NOT NULL, \
side TEXT NOT NULL,
        opened_ms INTEGER NOT NULL, closed_ms INTEGER, net_usd TEXT NOT NULL, is_stop INTEGER NOT NULL) STRICT""")
    db.execute("CREATE UNIQUE INDEX trades_open ON trades (strategy, market) WHERE closed_ms IS NULL")
    db.execute("""CREATE TABLE entries (
        seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, key TEXT NOT NULL UNIQUE, strategy TEXT NOT NULL, \
market TEXT NOT NULL,
        at_ms INTEGER NOT NULL) STRICT""")


@migrations()
def m010_proof(db: Database) -> None:
    """What the proof of a day needs besides: the bars that were decided, and instants without a position or an order.

    `seen` has six bytes a bar (`bars_seen.py`). A flat point has the strategies' states and the decided bars as JSON,
    so that a replay can begin there.
    """
    db.execute("""CREATE TABLE bars_seen (
        seq INTEGER PRIMARY KEY, hour_ms INTEGER NOT NULL, market TEXT NOT NULL, interval TEXT NOT NULL,
        seen BLOB NOT NULL, UNIQUE (hour_ms, market, interval)) STRICT""")
    db.execute("""CREATE TABLE flat_points (
        day_ms INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, epoch INTEGER NOT NULL, balance_usd TEXT NOT NULL,
        states TEXT NOT NULL, bars TEXT NOT NULL) STRICT""")


@migrations()
def m011_round_trips(db: Database) -> None:
    """The ended trades as a person counts them (round_trip_log.py), each as JSON with its strategies.

    They have a table of their own, because old events are removed, and because pages list them. `event_id` NULL: the
    account was reset. `is_flat`: no trade was open after this one.
    """
    db.execute("""CREATE TABLE round_trips (
        seq INTEGER PRIMARY KEY, event_id TEXT, ended_seq INTEGER NOT NULL, is_flat INTEGER NOT NULL, owner TEXT,
        trip TEXT NOT NULL) STRICT""")
    db.execute("CREATE INDEX round_trips_ended ON round_trips (ended_seq)")
