"""The journal: what was decided, sent and learned, on disk before the next step is taken. SQLite, one writer connection, one thread.

`synchronous=FULL`: in replayed power cuts NORMAL forgot intents that had been sent (reliability.md §0). Writes are raw
statements on the prepared-statement cache, because this is the order path; sqlite-utils makes the schema and the reads
that nobody waits for. Nothing here decides: a move that INTENT_MOVES does not list is an assertion, a write that fails
is a JournalError and the run ends.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlite_utils import Database

from bot.errors import JournalError, Refusal
from bot.money import format_decimal
from bot.runtime.intents import FINAL, INTENT_MOVES, Intent, State, check_body
from bot.runtime.schema import migrations

if TYPE_CHECKING:
    from bot.wire import Event

BUSY_TIMEOUT_MS: Final = 5_000
EVENTS_KEPT: Final = 100_000  # as many as the service keeps itself
REFUSALS_KEPT: Final = 10_000
PENDING_MS: Final = 1_000  # how long a finished bar may wait for a write that it can share

Outcome = Literal["done", "unknown", "no"]


class Cursor(NamedTuple):
    """The last event taken, the one before it (for the overlap check), and the account's epoch."""

    last_id: str
    prev_id: str | None
    epoch: int


class Arm(NamedTuple):
    """A guardian that the config asks for. `serial` is part of its key: it grows when an armed one has gone."""

    name: str
    serial: int
    guardian_id: str | None
    body: str


class Notice(NamedTuple):
    """An outgoing notification, written with the event that caused it."""

    event_id: str
    kind: str
    payload: str


_INTENT_COLUMNS = (
    "id, strategy, market, action, path, cause, ordinal, leg, epoch, body, not_after_ms, opened_ms, notional_usd, state,"
    " attempts, confirm_token, token_expires_ms, trade_id, code, message"
)
_INSERT = (
    "INSERT INTO intents (id, strategy, market, action, path, cause, ordinal, leg, epoch, body, body_sha256, not_after_ms,"
    " opened_ms, notional_usd, state, moved_ms) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,'opened',?) ON CONFLICT (id) DO NOTHING"
)
_SELECT = f"SELECT {_INTENT_COLUMNS}, body_sha256 FROM intents "  # noqa: S608 - constants only


class Journal:
    """Use `open_journal`. Every method that writes has committed when it returns, except `bar_done` and `refused`."""

    def __init__(self, db: Database, *, address: str) -> None:
        self.db = db
        self.address = address
        self._execute: Callable[..., sqlite3.Cursor] = db.conn.execute
        self._bars: dict[tuple[str, str], int] = {}  # finished, not durable yet
        self._states: dict[str, str] = {}
        self._refusals: list[tuple[Any, ...]] = []
        self._pending_since_ms: int | None = None

    # -- intents

    def decided(
        self,
        intents: Sequence[Intent],
        *,
        states: Mapping[str, str] | None = None,
        bar: tuple[str, str, int] | None = None,
    ) -> list[Intent]:
        """Write a whole decision at once: its intents, the strategies' state, and that its bar (market, interval, at_ms) is done.

        Answers the intents that were not written before. All or nothing, so no crash can leave half a decision.
        """
        if not intents:
            self._wait_for_a_write(states or {}, bar)
            return []
        with self._transaction():
            fresh = [intent for intent in intents if self._insert(intent)]
            self._write_states(states or {})
            if bar is not None:
                self._write_bar(*bar)
        return fresh

    def open(self, intent: Intent) -> bool:
        """Write one intent; False when it is already there."""
        return bool(self.decided([intent]))

    def planned(self, intent: Intent, confirm_token: str, token_expires_ms: int, *, now_ms: int) -> Intent:
        """The dry run's token, durable before it is used. It is single-use, so it is what the intent is settled by."""
        moved = replace(intent, confirm_token=confirm_token, token_expires_ms=token_expires_ms)
        return self._move(moved, "planned", now_ms=now_ms, before=intent.state)

    def sending(self, intent: Intent, *, now_ms: int) -> Intent:
        """The attempt that is about to leave. From here on the intent is in doubt until an answer settles it."""
        n = intent.attempts + 1
        with self._transaction():
            self._execute("INSERT INTO attempts (intent_id, n, sent_ms) VALUES (?,?,?)", (intent.id, n, now_ms))
            if intent.state == "sending":
                self._execute("UPDATE intents SET attempts=?, moved_ms=? WHERE id=?", (n, now_ms, intent.id))
                return replace(intent, attempts=n)
            return self._write_move(replace(intent, attempts=n), "sending", now_ms=now_ms, before=intent.state)

    def attempt_ended(self, intent: Intent, outcome: Outcome, *, code: str, order_submitted: object) -> None:
        """What the attempt came to, when that settles nothing. One that never ends here counts as unknown."""
        with self._transaction():
            self._end_attempt(intent, outcome, code, order_submitted=order_submitted)

    def accept(self, intent: Intent, trade_id: str, *, now_ms: int) -> Intent:
        with self._transaction():
            self._end_attempt(intent, "done", None, order_submitted=True)
            return self._write_move(replace(intent, trade_id=trade_id), "accepted", now_ms=now_ms, before=intent.state)

    def end(self, intent: Intent, state: State, code: str, message: str, *, now_ms: int) -> Intent:
        """rejected, expired, void or quarantined."""
        with self._transaction():
            self._end_attempt(intent, "unknown" if state == "quarantined" else "no", code, order_submitted=None)
            return self._write_move(
                replace(intent, code=code, message=message), state, now_ms=now_ms, before=intent.state
            )

    def is_ambiguous(self, intent: Intent) -> bool:
        """Whether an earlier attempt may have reached the venue: one whose answer was unknown, or never came."""
        row = self._read(
            "SELECT EXISTS (SELECT 1 FROM attempts WHERE intent_id=? AND (outcome IS NULL OR outcome='unknown'))",
            (intent.id,),
        ).fetchone()
        return bool(row[0])

    def live(self) -> list[Intent]:
        """Every intent that is not final, in the order of the decisions."""
        return self._intents("WHERE state IN ('opened', 'planned', 'sending', 'quarantined') ORDER BY seq")

    def find(self, intent_id: str) -> Intent | None:
        found = self._intents("WHERE id=?", (intent_id,))
        return found[0] if found else None

    def last_open(self, market: str, epoch: int) -> Intent | None:
        """The newest accepted entry of a market."""
        found = self._intents(
            "WHERE market=? AND epoch=? AND action='open' AND state='accepted' ORDER BY seq DESC LIMIT 1",
            (market, epoch),
        )
        return found[0] if found else None

    # -- events

    def take(
        self,
        events: Sequence[Event],
        last_id: str,
        *,
        epoch: int,
        states: Mapping[str, str] | None = None,
        intents: Sequence[Intent] = (),
        notices: Iterable[Notice] = (),
        now_ms: int = 0,
    ) -> list[Intent]:
        """A page in ONE transaction: its events, the cursor, and all that it changed. Answers the intents it opened.

        `events` are those that `unseen` answered; the primary key makes sure that none is ever counted twice.
        """
        with self._transaction():
            for event in events:
                payload = event.model_dump_json()
                self._execute(
                    "INSERT INTO events (id, epoch, type, subtype, ts, coin, idempotency_key, payload) VALUES (?,?,?,?,?,?,?,?)",
                    (event.id, epoch, event.type, event.subtype, event.ts, event.coin, event.idempotency_key, payload),
                )
            self._write_cursor(last_id, events, epoch)
            self._write_states(states or {})
            for notice in notices:
                self._execute(
                    "INSERT INTO outbox (event_id, kind, payload, created_ms) VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
                    (*notice, now_ms),
                )
            return [intent for intent in intents if self._insert(intent)]

    def unseen(self, events: Sequence[Event]) -> list[Event]:
        """Those of a page that were not taken before, each once, in their order."""
        found: dict[str, Event] = {}
        for event in events:
            if event.id not in found and self._read("SELECT 1 FROM events WHERE id=?", (event.id,)).fetchone() is None:
                found[event.id] = event
        return list(found.values())

    @property
    def cursor(self) -> Cursor | None:
        row = self._read("SELECT last_id, prev_id, epoch FROM cursor").fetchone()
        return None if row is None else Cursor(*row)

    def restart_cursor(self, last_id: str, *, epoch: int, now_ms: int) -> list[Intent]:
        """The feed begins anew (first start, a reset, a lost cursor). Intents of an earlier epoch become void; answers them."""
        old = [intent for intent in self.live() if intent.epoch != epoch]
        with self._transaction():
            void = [
                self._write_move(
                    replace(intent, code="account_reset", message="the account was reset"),
                    "void",
                    now_ms=now_ms,
                    before=intent.state,
                )
                for intent in old
            ]
            self._execute(
                "INSERT INTO cursor (one, last_id, prev_id, epoch) VALUES (1,?,NULL,?)"
                " ON CONFLICT (one) DO UPDATE SET last_id=excluded.last_id, prev_id=NULL, epoch=excluded.epoch",
                (last_id, epoch),
            )
        return void

    def last_event(
        self, coin: str, type_: str, subtype: str, *, epoch: int, kind: str | None = None
    ) -> dict[str, Any] | None:
        """The newest event of that sort for a coin, as it came; `kind` narrows it to one kind of order."""
        row = self._read(
            "SELECT payload FROM events WHERE coin=? AND type=? AND subtype=? AND epoch=?"
            " AND (? IS NULL OR json_extract(payload, '$.data.kind')=?) ORDER BY seq DESC LIMIT 1",
            (coin, type_, subtype, epoch, kind, kind),
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def entry_keys(self, coin: str, *, epoch: int, since_ms: int) -> list[str]:
        """Idempotency keys of the fills that opened or grew a position since that instant, oldest first."""
        rows = self._read(
            "SELECT idempotency_key FROM events WHERE coin=? AND type='fill' AND subtype='entry' AND epoch=? AND ts>=?"
            " AND idempotency_key IS NOT NULL ORDER BY seq",
            (coin, epoch, since_ms),
        )
        return [row[0] for row in rows]

    # -- bars, state, refusals

    def has_seen_own_key(self) -> bool:
        """Whether an event has ever carried a key of ours: then this service keeps keys."""
        row = self._read(
            "SELECT EXISTS (SELECT 1 FROM (SELECT idempotency_key AS seen FROM events WHERE idempotency_key IS NOT NULL"
            " ORDER BY seq DESC LIMIT 1000) JOIN intents ON intents.id=seen)"
        ).fetchone()
        return bool(row[0])

    def bar_done(self, market: str, interval: str, at_ms: int) -> None:
        """Nothing was wanted on this bar. Durable with the next write, or by `flush`: deciding it again gives the same ids."""
        self._wait_for_a_write({}, (market, interval, at_ms))

    def done_until(self, market: str, interval: str) -> int | None:
        """Close instant of the newest bar that was decided."""
        waiting = self._bars.get((market, interval))
        if waiting is not None:
            return waiting
        row = self._read("SELECT at_ms FROM progress WHERE market=? AND interval=?", (market, interval)).fetchone()
        return None if row is None else int(row[0])

    def flush(self) -> None:
        """Write what waits. The loop calls it at the end of each pass, so nothing waits longer than PENDING_MS."""
        if self._bars or self._states or self._refusals:
            with self._transaction():
                pass

    def refused(self, refusal: Refusal, *, strategy: str, market: str, trigger: str, ordinal: int, at_ms: int) -> None:
        """Keep the gate's no, for people."""
        self._refusals.append((at_ms, strategy, market, trigger, ordinal, refusal.code, refusal.message))

    def state_of(self, strategy: str) -> dict[str, Any]:
        text = self._states.get(strategy)
        if text is None:
            row = self._read("SELECT state FROM strategy_state WHERE strategy=?", (strategy,)).fetchone()
            text = "{}" if row is None else row[0]
        found: dict[str, Any] = json.loads(text)
        return found

    # -- guardians that the config asks for

    def arm_of(self, name: str) -> Arm | None:
        row = self._read("SELECT name, serial, guardian_id, body FROM arms WHERE name=?", (name,)).fetchone()
        return None if row is None else Arm(*row)

    def write_arm(self, arm: Arm) -> None:
        with self._transaction():
            self._execute(
                "INSERT INTO arms (name, serial, guardian_id, body) VALUES (?,?,?,?) ON CONFLICT (name) DO UPDATE"
                " SET serial=excluded.serial, guardian_id=excluded.guardian_id, body=excluded.body",
                arm,
            )

    # -- outbox, notes, housekeeping

    def unsent(self, limit: int = 100) -> list[dict[str, Any]]:
        """Notifications that have not left yet, oldest first."""
        return list(self.db["outbox"].rows_where("sent_ms IS NULL", order_by="seq", limit=limit))

    def sent(self, seq: int, *, now_ms: int) -> None:
        with self._transaction():
            self._execute("UPDATE outbox SET sent_ms=? WHERE seq=?", (now_ms, seq))

    def note(self, name: str) -> str | None:
        row = self._read("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def write_note(self, name: str, value: str) -> None:
        with self._transaction():
            self._execute(
                "INSERT INTO meta (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
                (name, value),
            )

    def trim(self) -> None:
        """Keep the file bounded: the oldest events and refusals go."""
        with self._transaction():
            self._execute("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?", (EVENTS_KEPT,))
            self._execute("DELETE FROM refusals WHERE seq <= (SELECT max(seq) FROM refusals) - ?", (REFUSALS_KEPT,))

    def close(self) -> None:
        self.flush()
        self.db.close()

    # -- inside

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE .. COMMIT, with what was waiting; any failure leaves nothing behind."""
        try:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._write_waiting()
                self._execute("COMMIT")
            except BaseException:
                self.db.conn.rollback()
                raise
        except sqlite3.Error as error:
            raise _write_failed(error) from error
        self._bars.clear()
        self._states.clear()
        self._refusals.clear()

    def _read(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        try:
            return self._execute(sql, values)
        except sqlite3.Error as error:
            raise JournalError(f"the journal cannot be read: {error}. {_WAY_OUT}") from error

    def _intents(self, where: str, values: Sequence[object] = ()) -> list[Intent]:
        return [_intent_of(row) for row in self._read(_SELECT + where, values)]

    def _insert(self, i: Intent) -> bool:
        assert i.state == "opened", i.state
        values = (
            i.id, i.strategy, i.market, i.action, i.path, i.trigger, i.ordinal, i.leg, i.epoch, i.body, i.sha256, i.not_after_ms,
            i.opened_ms, format_decimal(i.notional_usd), i.opened_ms,
        )  # fmt: skip
        return self._execute(_INSERT, values).rowcount == 1

    def _move(self, moved: Intent, to: State, *, now_ms: int, before: State) -> Intent:
        with self._transaction():
            return self._write_move(moved, to, now_ms=now_ms, before=before)

    def _write_move(self, moved: Intent, to: State, *, now_ms: int, before: State) -> Intent:
        assert to in INTENT_MOVES[before], f"{moved.id}: {before} -> {to}"
        done = self._execute(
            "UPDATE intents SET state=?, attempts=?, confirm_token=?, token_expires_ms=?, trade_id=?, code=?, message=?, moved_ms=?"
            " WHERE id=? AND state=?",
            (
                to, moved.attempts, moved.confirm_token if to not in FINAL else None, moved.token_expires_ms, moved.trade_id,
                moved.code, moved.message, now_ms, moved.id, before,
            ),
        )  # fmt: skip
        assert done.rowcount == 1, f"{moved.id} is not {before} in the journal"
        return replace(moved, state=to)

    def _end_attempt(self, intent: Intent, outcome: Outcome, code: str | None, *, order_submitted: object) -> None:
        said = None if order_submitted is None else str(order_submitted).lower()
        self._execute(
            "UPDATE attempts SET outcome=?, code=?, order_submitted=? WHERE intent_id=? AND n=? AND outcome IS NULL",
            (outcome, code, said, intent.id, intent.attempts),
        )

    def _write_cursor(self, last_id: str, events: Sequence[Event], epoch: int) -> None:
        old = self.cursor
        if old is not None and old.last_id == last_id:
            return
        prev_id = events[-2].id if len(events) > 1 and events[-1].id == last_id else None
        if prev_id is None and old is not None and len(events) == 1 and events[0].id == last_id:
            prev_id = old.last_id
        self._execute(
            "INSERT INTO cursor (one, last_id, prev_id, epoch) VALUES (1,?,?,?) ON CONFLICT (one) DO UPDATE"
            " SET last_id=excluded.last_id, prev_id=excluded.prev_id, epoch=excluded.epoch",
            (last_id, prev_id, epoch),
        )

    def _wait_for_a_write(self, states: Mapping[str, str], bar: tuple[str, str, int] | None) -> None:
        self._states.update(states)
        if bar is not None:
            self._bars[bar[0], bar[1]] = bar[2]

    def _write_waiting(self) -> None:
        for (market, interval), at_ms in self._bars.items():
            self._write_bar(market, interval, at_ms)
        self._write_states(self._states)
        for row in self._refusals:
            self._execute(
                "INSERT INTO refusals (at_ms, strategy, market, cause, ordinal, code, message) VALUES (?,?,?,?,?,?,?)"
                " ON CONFLICT DO NOTHING",
                row,
            )

    def _write_bar(self, market: str, interval: str, at_ms: int) -> None:
        self._execute(
            "INSERT INTO progress (market, interval, at_ms) VALUES (?,?,?)"
            " ON CONFLICT (market, interval) DO UPDATE SET at_ms=max(at_ms, excluded.at_ms)",
            (market, interval, at_ms),
        )

    def _write_states(self, states: Mapping[str, str]) -> None:
        for strategy, state in states.items():
            if states is not self._states:
                self._states.pop(strategy, None)  # What waited is older.
            self._execute(
                "INSERT INTO strategy_state (strategy, state) VALUES (?,?) ON CONFLICT (strategy) DO UPDATE SET state=excluded.state",
                (strategy, state),
            )


_WAY_OUT = (
    "Move the file away and start again: positions and orders are read from the service, and a decision made twice has the same"
    " key, so nothing is ordered twice."
)


def open_journal(path: Path | None, *, address: str) -> Journal:
    """Open or make the journal of one account; None: in memory. JournalError for a file that cannot be trusted, with the way out."""
    shown = "the journal in memory" if path is None else f"journal {path}"
    try:
        conn = sqlite3.connect(":memory:" if path is None else str(path), timeout=BUSY_TIMEOUT_MS / 1000)
    except sqlite3.Error as error:
        raise JournalError(f"{shown} cannot be opened: {error}. Its folder must exist and be writable.") from error
    db = Database(conn)
    try:
        _check(db, shown)
        _configure(db, shown)
        known = {row[0] for row in _migrations_applied(db)}
        ours = {migration.name for migration in migrations.pending(Database(memory=True))}
        if known - ours:
            raise JournalError(
                f"{shown} was written by a newer version ({', '.join(sorted(known - ours))}): run that one."
            )
        migrations.apply(db)
        db.conn.commit()
        journal = Journal(db, address=address)
        _check_owner(journal, shown)
    except sqlite3.Error as error:
        db.close()
        raise JournalError(f"{shown} cannot be used: {error}. {_WAY_OUT}") from error
    except BaseException:
        db.close()
        raise
    return journal


def _check(db: Database, shown: str) -> None:
    try:
        found = [row[0] for row in db.conn.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        raise JournalError(f"{shown} is damaged: {error}. {_WAY_OUT}") from error
    if found != ["ok"]:
        raise JournalError(f"{shown} is damaged: {'; '.join(found)}. {_WAY_OUT}")


def _configure(db: Database, shown: str) -> None:
    execute = db.conn.execute
    execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    mode = execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode not in ("wal", "memory"):
        raise JournalError(
            f"{shown} cannot be written ahead (mode {mode}): its folder must be writable and on a local disk."
        )
    execute("PRAGMA synchronous=FULL")
    execute("PRAGMA foreign_keys=ON")


def _migrations_applied(db: Database) -> list[tuple[str]]:
    if "_sqlite_migrations" not in db.table_names():
        return []
    found: list[tuple[str]] = db.conn.execute(
        "SELECT name FROM _sqlite_migrations WHERE migration_set='journal'"
    ).fetchall()
    return found


def _check_owner(journal: Journal, shown: str) -> None:
    owner = journal.note("address")
    if owner is None:
        journal.write_note("address", journal.address)
    elif owner != journal.address:
        raise JournalError(
            f"{shown} belongs to account {owner}, and this is account {journal.address}. Give each account its own state_dir."
        )


def _write_failed(error: sqlite3.Error) -> JournalError:
    return JournalError(
        f"the journal cannot be written: {error}. Nothing more is sent; guardians and stops stand at the service."
    )


def _intent_of(row: tuple[Any, ...]) -> Intent:
    *values, sha256 = row
    values[12] = Decimal(values[12])
    (
        id_,
        strategy,
        market,
        action,
        path,
        cause,
        ordinal,
        leg,
        epoch,
        body,
        not_after_ms,
        opened_ms,
        notional,
        *rest,
    ) = values
    state, attempts, token, token_expires_ms, trade_id, code, message = rest
    intent = Intent(
        id=id_, strategy=strategy, market=market, action=action, path=path, trigger=cause, ordinal=ordinal, leg=leg, epoch=epoch,
        body=body, not_after_ms=not_after_ms, opened_ms=opened_ms, notional_usd=notional, state=state, attempts=attempts,
        confirm_token=token, token_expires_ms=token_expires_ms, trade_id=trade_id, code=code, message=message,
    )  # fmt: skip
    return check_body(intent, sha256)
