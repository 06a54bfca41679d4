"""The journal: what was decided, sent and learned, on disk before the next step is taken. SQLite, one writer connection, one thread.

`synchronous=FULL`: in replayed power cuts NORMAL forgot intents that had been sent (reliability.md §0). Writes are raw
statements on the prepared-statement cache, because this is the order path; sqlite-utils makes the schema and the reads
that nobody waits for. Nothing here decides: a move that INTENT_MOVES does not list is an assertion.

A file that cannot be written (full, read-only, locked, an I/O error) does not end the run: `fault` says so, writes go on in
a copy in memory, and `mend` moves them into the file when it works again. While there is a fault nothing may be opened: what
the memory holds is lost with the process, and only an exit may be. So is what is written to a file that somebody has taken away,
which no write tells: `look` does. A damaged file is a JournalError.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog
from sqlite_utils import Database

from bot.descriptors import reserved
from bot.errors import ConfigError, JournalBlocked, JournalDamaged, JournalError, Refusal
from bot.money import format_decimal
from bot.runtime.journal import halt_flags
from bot.runtime.journal.failover import (
    FileIds,
    copied,
    copied_file,
    file_ids,
    is_damage,
    may_pass,
    remove_log,
    room,
    seal,
    set_aside,
    write_back,
)
from bot.runtime.journal.halt_flags import SafetyFile
from bot.runtime.journal.retention import PAGES_FREE, PAGES_GIVEN, Held, Kept, trim_intents, trim_rest
from bot.runtime.journal.schema import LIVE, migrations
from bot.runtime.model.intents import FINAL, INTENT_MOVES, Intent, State, TradeOf, check_body, moved

if TYPE_CHECKING:
    from bot.runtime.model.shares import AttributionChanges
    from bot.wire import Event

log = structlog.get_logger()

OPEN_BUSY_MS: Final = 5_000  # that another's lock is waited for at a start, when nothing else waits
BUSY_TIMEOUT_MS: Final = 500  # and while it runs: bars and exits wait with it, and the memory is there to go on with
EVENTS_KEPT: Final = 100_000  # as many as the service keeps itself
REFUSALS_KEPT: Final = 10_000
NOTICES_KEPT: Final = 10_000  # a target that was away for longer is told the newest
INTENTS_KEPT: Final = 20_000  # with their attempts and traces; which of the older ones may go: retention.py
LOG_BYTES_MAX: Final = 8 * 1024 * 1024  # of the write-ahead log, once it has been written back
LOG_PAGES_MAX: Final = 2_000  # as much: then a commit writes it back, where no `checkpoint` has come before
LOG_WRITES: Final = 500  # statements after which a `checkpoint` is worth its wait for the disk

NUMBER_DIGITS_MAX: Final = 20  # of a note; Python refuses to read thousands of them
ASIDE: Final = "damaged:"  # and its name: a note that could not be read, kept for people

Outcome = Literal["done", "unknown", "no"]
TraceKind = Literal["bar", "wish", "plan"]


class Cursor(NamedTuple):
    """The last event taken, the one before it (for the overlap check), and the account's epoch."""

    last_id: str
    prev_id: str | None
    epoch: int


def next_cursor(old: Cursor | None, events: Sequence[Event], last_id: str, epoch: int) -> Cursor:
    """Behind these events. The one before the last is known when the last of them is `last_id`: from them, or else from the cursor of before."""
    prev_id = None
    if events and events[-1].id == last_id:
        prev_id = events[-2].id if len(events) > 1 else None if old is None else old.last_id
    return Cursor(last_id, prev_id, epoch)


class Arm(NamedTuple):
    """A guardian that the config asks for. `serial` is part of its key: it grows when an armed one has gone."""

    name: str
    serial: int
    guardian_id: str | None
    body: str


class Notice(NamedTuple):
    """An outgoing notification: `event_id` is what caused it (an event, or a name of our own), `payload` its fields as JSON."""

    event_id: str
    kind: str
    payload: str


class Owed(NamedTuple):
    """A written notification; `seq` is its place in the outbox."""

    seq: int
    kind: str
    payload: str


_INTENT_COLUMNS = (
    "id, strategy, market, action, path, cause, ordinal, leg, epoch, body, not_after_ms, opened_ms, notional_usd, state,"
    " attempts, confirm_token, token_expires_ms, trade_id, code, message"
)
_INSERT = (
    "INSERT INTO intents (id, strategy, market, action, path, cause, ordinal, leg, epoch, body, body_sha256, not_after_ms,"
    " opened_ms, notional_usd, state, moved_ms, seal) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,'opened',?,?) ON CONFLICT (id) DO NOTHING"
)
_SELECT = f"SELECT {_INTENT_COLUMNS}, body_sha256, seal FROM intents "  # noqa: S608 - constants only

# Rows that change what is done next, and the columns that their `seal` covers. Those of intents are checked whenever one is read.
SEALED: Final[Mapping[str, Sequence[str]]] = {
    "cursor": ("last_id", "prev_id", "epoch"),
    "progress": ("market", "interval", "at_ms"),
    "strategy_state": ("strategy", "state"),
    "arms": ("name", "serial", "guardian_id", "body"),
}


class Journal:
    """Use `open_journal`. Every method that writes has committed when it returns, except `bar_done` and `refused`."""

    def __init__(self, db: Database, *, address: str, path: Path | None = None) -> None:
        self.db = db
        self.address = address
        self.path = path  # None: in memory, for good
        self.fault: str | None = None  # why the file is not written just now
        self._ids: FileIds | None = None if path is None else file_ids(path)  # None: nobody could say
        self.beside: SafetyFile | None = None  # where the safety notes are kept once more
        self._raw: Callable[..., sqlite3.Cursor] = db.conn.execute
        self._under_way: list[tuple[str, Sequence[object]]] | None = None  # of the open transaction, to be done again
        self._is_joined = False  # the open transaction is `together`'s: what is written meanwhile is part of it
        self.retold: set[str] = set()  # ids that were another event's before the service went back
        self._is_safety_changed = False  # in the open transaction: the copy beside the file follows its commit
        self._bars: dict[tuple[str, str], int] = {}  # finished, not durable yet
        self._states: dict[str, str] = {}
        self._refusals: list[tuple[Any, ...]] = []
        self._traces: list[tuple[str, str, int, str]] = []
        self.keeps_bodies = True  # a journal that no other run reads needs none: the request itself is at hand
        self.keeps_traces = True  # off in memory: there nobody reads them afterwards
        self._in_log = 0  # statements since the log was last written back

    # -- intents

    def decided(
        self,
        intents: Sequence[Intent],
        *,
        states: Mapping[str, str] | None = None,
        bars: Sequence[tuple[str, str, int]] = (),
    ) -> list[Intent]:
        """Write a whole decision at once: its intents, the strategies' state, and that its bars (market, interval, at_ms) are done.

        Answers the intents that were not written before. All or nothing, so no crash can leave half a decision.
        """
        if not intents:
            self._wait_for_a_write(states or {}, bars)
            return []
        with self._transaction():
            fresh = [intent for intent in intents if self._insert(intent)]
            self._write_states(states or {})
            for one in bars:
                self._write_bar(*one)
        return fresh

    def open(self, intent: Intent) -> bool:
        """Write one intent; False when it is already there."""
        return bool(self.decided([intent]))

    def planned(self, intent: Intent, confirm_token: str, token_expires_ms: int, *, now_ms: int) -> Intent:
        """The dry run's token, durable before it is used. It is single-use, so it is what the intent is settled by."""
        with self._transaction():
            after = moved(intent, "planned", token=confirm_token, token_expires_ms=token_expires_ms)
            return self._write_move(after, now_ms=now_ms, before=intent.state)

    def sending(self, intent: Intent, *, now_ms: int) -> Intent:
        """The attempt that is about to leave. From here on the intent is in doubt until an answer settles it."""
        with self._transaction():
            return self._write_sending(intent, now_ms)

    def sending_all(self, intents: Sequence[Intent], *, now_ms: int) -> list[Intent]:
        """The same of several that leave together, in one transaction: none of them may leave before this returns."""
        with self._transaction():
            return [self._write_sending(intent, now_ms) for intent in intents]

    def attempt_ended(self, intent: Intent, outcome: Outcome, *, code: str, order_submitted: object) -> None:
        """What the attempt came to, when that settles nothing. One that never ends here counts as unknown."""
        with self._transaction():
            self._end_attempt(intent, outcome, code, order_submitted=order_submitted)

    def accept(self, intent: Intent, trade_id: str, *, now_ms: int) -> Intent:
        with self._transaction():
            return self._write_accepted(intent, trade_id, now_ms)

    def accept_all(self, answered: Sequence[tuple[Intent, str]], *, now_ms: int) -> list[Intent]:
        """Several, each with the id of its trade, in one transaction. Until it is written they are in doubt, which sends nothing twice."""
        with self._transaction():
            return [self._write_accepted(intent, trade_id, now_ms) for intent, trade_id in answered]

    def end(self, intent: Intent, state: State, code: str, message: str, *, now_ms: int) -> Intent:
        """rejected, expired, void or quarantined."""
        with self._transaction():
            self._end_attempt(intent, "unknown" if state == "quarantined" else "no", code, order_submitted=None)
            return self._write_move(
                moved(intent, state, code=code, message=message), now_ms=now_ms, before=intent.state
            )

    def is_ambiguous(self, intent: Intent) -> bool:
        """Whether an earlier attempt may have reached the venue: one whose answer was unknown, or never came."""
        row = self._read(
            "SELECT EXISTS (SELECT 1 FROM attempts WHERE intent_id=? AND (outcome IS NULL OR outcome='unknown'))",
            (intent.id,),
        ).fetchone()
        return bool(row[0])

    def is_unsent(self, intent: Intent) -> bool:
        """Whether nothing of it has reached the service: it was not sent yet, or put off each time, as by a connection that was refused."""
        return intent.state in ("opened", "planned") or (intent.state == "sending" and not self.is_ambiguous(intent))

    def live(self) -> list[Intent]:
        """Every intent that is not final, in the order of the decisions."""
        return self._intents(f"WHERE {LIVE} ORDER BY seq")

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

    def last_of(self, strategy: str, market: str, trigger: str, *, epoch: int) -> Intent | None:
        """The newest intent of one cause."""
        found = self._intents(
            "WHERE market=? AND strategy=? AND cause=? AND epoch=? ORDER BY seq DESC LIMIT 1",
            (market, strategy, trigger, epoch),
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
        books: AttributionChanges | None = None,
        now_ms: int = 0,
    ) -> list[Intent]:
        """A page in ONE transaction: its events, the cursor, and all that it changed. Answers the intents it opened.

        `events` are those that `unseen` answered; the primary key makes sure that none is ever counted twice. Where a service has gone
        back, what bore the id before is forgotten.
        """
        with self._transaction():
            for event in events:
                payload = event.model_dump_json()
                if event.id in self.retold:
                    self._forget_event(event)
                self._execute(
                    "INSERT INTO events (id, epoch, type, subtype, ts, coin, idempotency_key, payload) VALUES (?,?,?,?,?,?,?,?)",
                    (event.id, epoch, event.type, event.subtype, event.ts, event.coin, event.idempotency_key, payload),
                )
            self._write_cursor(last_id, events, epoch)
            self._write_states(states or {})
            self._write_notices(notices, now_ms)
            self._write_books(books)
            return [intent for intent in intents if self._insert(intent)]

    def unseen(self, events: Sequence[Event]) -> list[Event]:
        """Those of a page that were not taken before, each once, in their order.

        A service that went back to an earlier state gives ids again: what bears the id of one that we took, of another instant, is new.
        """
        found: dict[str, Event] = {}
        for event in events:
            if event.id in found:
                continue
            row = self._read("SELECT ts FROM events WHERE id=?", (event.id,)).fetchone()
            if row is None or row[0] != event.ts:
                found[event.id] = event
                if row is not None:
                    self.retold.add(event.id)
        return list(found.values())

    def _forget_event(self, event: Event) -> None:
        """What bore this id before the service went back. Its notices stay, under a name of their own: a place in the outbox is given once."""
        self._execute("DELETE FROM events WHERE id=? AND ts<>?", (event.id, event.ts))
        self._execute("UPDATE outbox SET event_id=event_id||':'||seq WHERE event_id=?", (event.id,))
        log.warning("event.retold", event_id=event.id, message="the service went back, and gives this id again")

    @property
    def cursor(self) -> Cursor | None:
        row = self._read("SELECT last_id, prev_id, epoch FROM cursor").fetchone()
        return None if row is None else Cursor(*row)

    def last_taken(self) -> tuple[Cursor | None, int | None]:
        """The cursor, and the instant of the event that it stands on; None where the feed began behind that one."""
        row = self._read(
            "SELECT last_id, prev_id, epoch, (SELECT ts FROM events WHERE id=last_id) FROM cursor"
        ).fetchone()
        return (None, None) if row is None else (Cursor(*row[:3]), row[3])

    def restart_cursor(self, last_id: str, *, epoch: int, now_ms: int) -> list[Intent]:
        """The feed begins anew (first start, a reset, a lost cursor). Intents of an earlier epoch become void; answers them."""
        old = [intent for intent in self.live() if intent.epoch != epoch]
        with self._transaction():
            void = [
                self._write_move(
                    moved(intent, "void", code="account_reset", message="the account was reset"),
                    now_ms=now_ms,
                    before=intent.state,
                )
                for intent in old
            ]
            self._put_cursor(Cursor(last_id, None, epoch))
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

    def opened_ms(self, coin: str, *, epoch: int) -> int:
        """When the position that a coin has now began: by the fill that opened it from nothing; where the newest event left nothing, after
        that one. 0 where the journal has neither."""
        newest = self._read(
            "SELECT ts, type='fill' AND CAST(json_extract(payload, '$.data.positionSize') AS REAL)!=0 FROM events WHERE coin=? AND epoch=?"
            " AND (type IN ('fill', 'settlement') OR (type='liquidation' AND subtype!='partial')) ORDER BY seq DESC LIMIT 1",
            (coin, epoch),
        ).fetchone()
        if newest is not None and not newest[1]:
            return int(newest[0]) + 1
        began = self._read(
            "SELECT ts FROM events WHERE coin=? AND epoch=? AND type='fill' AND subtype='entry'"
            " AND CAST(json_extract(payload, '$.data.size') AS REAL)=abs(CAST(json_extract(payload, '$.data.positionSize') AS REAL))"
            " ORDER BY seq DESC LIMIT 1",
            (coin, epoch),
        ).fetchone()
        return 0 if began is None else int(began[0])

    # -- bars, state, refusals

    def has_seen_own_key(self) -> bool:
        """Whether an event has ever come with a key of ours: then this service shows keys. One that we gave it is no sign."""
        row = self._read(
            "SELECT EXISTS (SELECT 1 FROM (SELECT idempotency_key AS seen, payload FROM events WHERE idempotency_key IS NOT NULL"
            " ORDER BY seq DESC LIMIT 1000) JOIN intents ON intents.id=seen WHERE json_extract(payload, '$.keyFrom') IS NULL)"
        ).fetchone()
        return bool(row[0])

    def bar_done(self, market: str, interval: str, at_ms: int) -> None:
        """Nothing was wanted on this bar. Durable with the next write, or by `flush`: deciding it again gives the same ids."""
        self._wait_for_a_write({}, [(market, interval, at_ms)])

    def trades_told(self, keys: Iterable[str], *, epoch: int) -> dict[str, str]:
        """Key -> trade, of those of these keys that an event has shown."""
        rows = self._read(
            "SELECT idempotency_key, json_extract(payload, '$.data.tradeId') AS trade_id FROM events"
            " WHERE epoch=? AND trade_id IS NOT NULL AND idempotency_key IN (SELECT value FROM json_each(?))",
            (epoch, json.dumps(list(keys))),
        )
        return dict(rows)

    def keys_of_trades(self, trade_ids: Iterable[str], *, epoch: int) -> dict[TradeOf, str]:
        """Of these trades those that are orders of ours, with their intents. After a reset the same id may be another's."""
        rows = self._read(
            "SELECT market, trade_id, action, id FROM intents WHERE epoch=? AND trade_id IN (SELECT value FROM json_each(?))",
            (epoch, json.dumps(list(trade_ids))),
        )
        return {(market, trade_id, action): intent_id for market, trade_id, action, intent_id in rows}

    def name_events(self, intent: Intent) -> list[dict[str, Any]]:
        """Give the accepted intent's key to those events of its trade that were taken before its answer came; answers them."""
        rows = self._read(
            "SELECT id, payload FROM events WHERE coin=? AND epoch=? AND type IN ('fill', 'order') AND idempotency_key IS NULL"
            " AND json_extract(payload, '$.data.tradeId')=? AND json_extract(payload, '$.data.intent')=? ORDER BY seq",
            (intent.market, intent.epoch, intent.trade_id, intent.action),
        )
        if not rows:
            return []
        named = {row[0]: json.loads(row[1]) | {"idempotencyKey": intent.id, "keyFrom": "trade"} for row in rows}
        with self._transaction():
            for event_id, event in named.items():
                payload = json.dumps(event, separators=(",", ":"))
                self._execute(
                    "UPDATE events SET idempotency_key=?, payload=? WHERE id=?", (intent.id, payload, event_id)
                )
        return list(named.values())

    def done_until(self, market: str, interval: str) -> int | None:
        """Close instant of the newest bar that was decided."""
        waiting = self._bars.get((market, interval))
        if waiting is not None:
            return waiting
        row = self._read("SELECT at_ms FROM progress WHERE market=? AND interval=?", (market, interval)).fetchone()
        return None if row is None else int(row[0])

    def flush(self) -> None:
        """Write what waits. The loop calls it at the end of each pass, so nothing waits for longer."""
        if self._bars or self._states or self._refusals or self._traces:
            with self._transaction():
                pass

    def refused(self, refusal: Refusal, *, strategy: str, market: str, trigger: str, ordinal: int, at_ms: int) -> None:
        """Keep the gate's no, for people."""
        self._refusals.append((at_ms, strategy, market, trigger, ordinal, refusal.code, refusal.message))

    def trace(self, intent_id: str, kind: TraceKind, payload: str, *, at_ms: int) -> None:
        """Keep why an intent came to be, as JSON, for people. Durable with the intent's own next write."""
        if self.keeps_traces:
            self._traces.append((intent_id, kind, at_ms, payload))

    def state_of(self, strategy: str) -> dict[str, Any]:
        text = self._states.get(strategy)
        if text is None:
            row = self._read("SELECT state FROM strategy_state WHERE strategy=?", (strategy,)).fetchone()
            text = "{}" if row is None else row[0]
        found: dict[str, Any] = json.loads(text)
        return found

    # -- books of the strategies

    def write_books(self, books: AttributionChanges | None, notices: Iterable[Notice] = (), *, now_ms: int = 0) -> None:
        """What changed in the books otherwise than by an event, with what is to be said of it."""
        with self._transaction():
            self._write_books(books)
            self._write_notices(notices, now_ms)

    def book_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        """As books.BookRow has them."""
        return list(
            self._read(
                "SELECT strategy, fills, fees_usd, funding_usd, realized_usd, margin_lost_usd, day_ms, base_usd, halted_day_ms"
                " FROM books WHERE epoch=? ORDER BY strategy",
                (epoch,),
            )
        )

    def share_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        """As books.Share has them, in the order that they were taken."""
        return list(
            self._read("SELECT market, strategy, side, size, cost_usd FROM shares WHERE epoch=? ORDER BY seq", (epoch,))
        )

    # -- guardians that the config asks for

    def arm_of(self, name: str) -> Arm | None:
        row = self._read("SELECT name, serial, guardian_id, body FROM arms WHERE name=?", (name,)).fetchone()
        return None if row is None else Arm(*row)

    def arms(self) -> list[Arm]:
        """Every guardian that was ever armed by us, by its name."""
        return [Arm(*row) for row in self._read("SELECT name, serial, guardian_id, body FROM arms ORDER BY name")]

    def write_arm(self, arm: Arm) -> None:
        with self._transaction():
            self._execute(
                "INSERT INTO arms (name, serial, guardian_id, body, seal) VALUES (?,?,?,?,?) ON CONFLICT (name) DO UPDATE"
                " SET serial=excluded.serial, guardian_id=excluded.guardian_id, body=excluded.body, seal=excluded.seal",
                (*arm, seal(*arm)),
            )

    # -- outbox, notes, housekeeping

    def notify(self, notices: Iterable[Notice], *, now_ms: int) -> None:
        """Write notifications of our own, which no event of the service caused. The same (event_id, kind) is written once."""
        with self._transaction():
            self._write_notices(notices, now_ms)

    def owed(self, after_seq: int, limit: int) -> list[Owed]:
        """Notifications written after that one, oldest first."""
        rows = self._read("SELECT seq, kind, payload FROM outbox WHERE seq>? ORDER BY seq LIMIT ?", (after_seq, limit))
        return [Owed(*row) for row in rows]

    def newest_notice(self) -> int:
        """The `seq` of the newest notification; 0 while there is none."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM outbox").fetchone()[0])

    def note(self, name: str) -> str | None:
        row = self._read("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def write_note(self, name: str, value: str) -> None:
        with self._transaction():
            self._execute(
                "INSERT INTO meta (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
                (name, value),
            )
            self._is_safety_changed |= halt_flags.is_safety(name)

    def notes_under(self, prefix: str) -> list[str]:
        """The names of the notes that begin so."""
        rows = self._read("SELECT name FROM meta WHERE substr(name, 1, ?)=?", (len(prefix), prefix))
        return [name for (name,) in rows]

    def forget_note(self, name: str) -> None:
        with self._transaction():
            self._execute("DELETE FROM meta WHERE name=?", (name,))

    def set_aside(self, name: str, *, instead: str | None = None) -> str:
        """Keep a damaged note for people under another name, which is answered; `instead` is what stands in its place from now on."""
        aside, text = ASIDE + name, self.note(name) or ""
        with self.together():
            self.write_note(aside, text)
            self.forget_note(name)
            if instead is not None:
                self.write_note(name, instead)
        return aside

    def set_aside_if_damaged(self, name: str, is_sound: Callable[[str], bool], *, instead: str | None = None) -> bool:
        """Whether there is such a note and none of our runs can have written it. It is set aside then, and said."""
        text = self.note(name)
        if text is None or is_sound(text):
            return False
        kept_as = self.set_aside(name, instead=instead)
        log.warning("journal.note_damaged", note=name, kept_as=kept_as, instead=instead)
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Whatever the block writes is one transaction: on disk when it ends, all of it or nothing. One within another is part of it."""
        if self._is_joined:
            yield
            return
        with self._transaction():
            self._is_joined = True
            try:
                yield
            finally:
                self._is_joined = False

    def safety_notes(self) -> dict[str, str]:
        """What a person or a fault has stopped (halt_flags.py)."""
        return {name: value for name, value in self._read("SELECT name, value FROM meta") if halt_flags.is_safety(name)}

    def keeps_safety(self) -> bool:
        """Whether the safety notes outlive the process: in the file, or while that cannot be written in the copy beside it."""
        if self.fault is None:
            return True
        return self.beside is not None and self.beside.read() == {n: v for n, v in self.safety_notes().items() if v}

    def newest_ms(self) -> int:
        """The latest instant that any row of decisions has: no clock that is right can be before it."""
        row = self._read(
            "SELECT max(coalesce((SELECT max(moved_ms) FROM intents), 0), coalesce((SELECT max(at_ms) FROM progress), 0))"
        )
        return int(row.fetchone()[0])

    def trim(self, held: Callable[[], Held] = Held, *, now_ms: int = 0) -> int:
        """Keep the file bounded: what is old and held by nothing goes, and some of the room goes back to the disk. How many intents went.

        `held` is asked only when there are more than are kept; `now_ms` is the service's time.
        """
        kept = Kept(INTENTS_KEPT, EVENTS_KEPT, REFUSALS_KEPT, NOTICES_KEPT)
        spans = self._read(
            "SELECT (SELECT max(seq) - min(seq) FROM intents), (SELECT max(seq) - min(seq) FROM events),"
            " (SELECT count(*) FROM arms WHERE name GLOB 'cover:*')"
        ).fetchone()
        is_over = (spans[0] or 0) >= kept.intents or (spans[1] or 0) >= kept.events or bool(spans[2])
        found = held() if is_over else Held()
        with self._transaction():
            gone = trim_intents(self._read, self._execute, found, kept, now_ms) if is_over else 0
            trim_rest(self._execute, found, kept)
        self._give_back()
        return gone

    def checkpoint(self) -> None:
        """Write the log back into the file, once there is much of it. Not left to a commit: that is what an order waits for.

        A file that fails meanwhile is met by the next write.
        """
        if self.path is None or self.fault is not None or self._in_log < LOG_WRITES:
            return
        self._in_log = 0
        with suppress(sqlite3.Error):
            self._raw("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _give_back(self) -> None:
        """Free pages to the disk, some at a time. A file that fails meanwhile is met by the next write."""
        if self.path is None or self.fault is not None:
            return
        with suppress(sqlite3.Error):
            free = int(self._raw("PRAGMA freelist_count").fetchone()[0])
            if free > PAGES_FREE:
                # As a script: a page is a step, and `execute` takes one.
                self.db.conn.executescript(f"PRAGMA incremental_vacuum({min(free - PAGES_FREE, PAGES_GIVEN)})")

    def check(self) -> None:
        """JournalDamaged, or ValueError, for a row that no constraint would miss: live intents, safety notes, the cursor, states, bars done, guardians armed."""
        self.live()
        for name, value in self.safety_notes().items():
            halt_flags.check(name, value)
        for table, columns in SEALED.items():
            for *values, found in self._read(f"SELECT {', '.join(columns)}, seal FROM {table}"):  # noqa: S608 - constants only
                if found is not None and found != seal(*values):
                    raise JournalDamaged(
                        f"a row of {table} in the journal does not match its checksum: the file is damaged. {_WAY_OUT}"
                    )

    def close(self) -> None:
        self.flush()
        if not self.mend():
            log.error(
                "journal.lost", path=str(self.path), message="what was done since the fault is at the service only"
            )
        self.db.close()

    # -- inside

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE .. COMMIT, with what was waiting; any failure leaves nothing behind. A file that fails is left for the memory."""
        if self._is_joined:
            yield
            return
        self._is_safety_changed = False
        try:
            self._begin()
            try:
                yield
                self._write_waiting()
                self._commit()
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.conn.rollback()
                raise
        except sqlite3.Error as error:
            raise _failed(error, "written") from error
        finally:
            self._in_log += len(self._under_way or ())
            self._under_way = None
        self._bars.clear()
        self._states.clear()
        self._refusals.clear()
        self._traces.clear()
        if self._is_safety_changed and self.beside is not None:
            self.beside.write(self.safety_notes())

    def _begin(self) -> None:
        assert self._under_way is None, "one transaction at a time"
        try:
            self._raw("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._fall_back(error)
            self._raw("BEGIN IMMEDIATE")
        self._under_way = []

    def _execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """One statement of the open transaction, noted so that it can be done again in the memory."""
        try:
            done = self._raw(sql, values)
        except sqlite3.Error as error:
            self._fall_back(error)
            done = self._raw(sql, values)
        if self._under_way is not None:
            self._under_way.append((sql, values))
        return done

    def _commit(self) -> None:
        try:
            self._raw("COMMIT")
        except sqlite3.Error as error:
            self._fall_back(error)
            self._raw("COMMIT")

    def _fall_back(self, error: sqlite3.Error) -> None:
        """Go on in memory, from what is committed and with the open transaction so far; the error itself where that cannot be."""
        if self.path is None or self.fault is not None or not may_pass(error):
            raise error
        with suppress(sqlite3.Error):
            self.db.conn.rollback()
        self._leave_file(str(error))
        if self._under_way is not None:
            self._raw("BEGIN IMMEDIATE")
            for sql, values in self._under_way:
                self._raw(sql, values)

    def _leave_file(self, why: str) -> None:
        """From now on in memory, with all that is committed."""
        try:
            memory = copied(self.db.conn)
        except sqlite3.Error as error:
            raise JournalError(
                f"journal {self.path} can be neither written ({why}) nor read ({error}). {_STANDS}"
            ) from error
        self._is_faulty(why)
        self._use(Database(memory))
        self._raw("PRAGMA foreign_keys=ON")

    def _is_faulty(self, why: str) -> None:
        assert self.path is not None
        self.fault = f"journal {self.path} cannot be written: {why}{room(self.path)}"
        log.error("journal.fault", path=str(self.path), message=self.fault, meanwhile=_MEANWHILE)

    def look(self, *, now_ms: int) -> None:
        """A file that was taken away, or another under its name, is a fault: what is written to it would end with the process. What stands in its
        place is kept."""
        if self.path is None:
            return
        before, now = self._ids, file_ids(self.path)
        if before is None or now is None or (self.fault is None and now.goes_on_from(before)):
            self._ids = now or before
            return
        is_ours = now.file == before.file
        is_new = self.fault is None
        if is_new:
            self._leave_file("its file was taken away while it was in use")
        try:
            # Our log would be read as that of the file that stands there, or will.
            if is_new and not is_ours and now.log == before.log:
                remove_log(self.path)
            if now.file is not None and not is_ours:
                log.warning("journal.set_aside", path=str(self.path), kept_as=str(set_aside(self.path, now_ms)))
        except (OSError, JournalError) as error:
            log.warning("journal.not_set_aside", path=str(self.path), message=str(error))

    @reserved()
    def mend(self) -> bool:
        """Move what was gathered in memory into the file; False while it still fails. JournalError when the file is damaged."""
        if self.fault is None:
            return True
        assert self.path is not None
        assert self._under_way is None
        try:
            write_back(self.db.conn, self.path)
            self._ids = file_ids(self.path)
            db = _connected(self.path, BUSY_TIMEOUT_MS)
            try:
                _configure(db, f"journal {self.path}")
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            if is_damage(error):
                raise JournalDamaged(f"journal {self.path} is damaged: {error}. {_WAY_OUT}") from error
            log.warning("journal.not_mended", path=str(self.path), message=str(error))
            return False
        except (OSError, JournalError) as error:
            log.warning("journal.not_mended", path=str(self.path), message=str(error))
            return False
        self._use(db)
        self.fault, self._ids = None, file_ids(self.path)
        log.warning("journal.mended", path=str(self.path))
        if self.beside is not None:  # On the same disk: what was noted meanwhile may not have come there either.
            self.beside.write(self.safety_notes())
        return True

    def _use(self, db: Database) -> None:
        old, self.db, self._raw = self.db, db, db.conn.execute
        with suppress(sqlite3.Error):
            old.conn.execute("PRAGMA busy_timeout=0")  # Its last checkpoint is not waited for.
            old.close()

    def _read(self, sql: str, values: Sequence[object] = ()) -> _Rows:
        """The rows of a question, all read: what cannot be read is found here and not by who uses them."""
        try:
            try:
                return _Rows(self._raw(sql, values))
            except sqlite3.Error as error:
                self._fall_back(error)
                return _Rows(self._raw(sql, values))
        except sqlite3.Error as error:
            raise _failed(error, "read") from error

    def _intents(self, where: str, values: Sequence[object] = ()) -> list[Intent]:
        return [_intent_of(row) for row in self._read(_SELECT + where, values)]

    def _write_notices(self, notices: Iterable[Notice], now_ms: int) -> None:
        for notice in notices:
            self._execute(
                "INSERT INTO outbox (event_id, kind, payload, created_ms) VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
                (*notice, now_ms),
            )

    def _write_books(self, books: AttributionChanges | None) -> None:
        if books is None:
            return
        if books.wiped:
            self._execute("DELETE FROM books")
            self._execute("DELETE FROM shares")
        for row in books.rows:
            fees, funding, realized, lost, base = map(
                format_decimal, (row.fees_usd, row.funding_usd, row.realized_usd, row.margin_lost_usd, row.base_usd)
            )
            self._execute(
                "INSERT OR REPLACE INTO books (strategy, epoch, fills, fees_usd, funding_usd, realized_usd, margin_lost_usd, day_ms,"
                " base_usd, halted_day_ms) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (row.strategy, books.epoch, row.fills, fees, funding, realized, lost, row.day_ms, base, row.halted_day_ms),
            )  # fmt: skip
        for market in books.markets:
            self._execute("DELETE FROM shares WHERE market=?", (market,))
        for one in books.shares:
            self._execute(
                "INSERT INTO shares (epoch, market, strategy, side, size, cost_usd) VALUES (?,?,?,?,?,?)",
                (books.epoch, one.market, one.strategy, one.side, format_decimal(one.size), format_decimal(one.cost_usd)),
            )  # fmt: skip

    def _insert(self, i: Intent) -> bool:
        assert i.state == "opened", i.state
        values = (
            i.id, i.strategy, i.market, i.action, i.path, i.trigger, i.ordinal, i.leg, i.epoch, i.body, i.sha256, i.not_after_ms,
            i.opened_ms, format_decimal(i.notional_usd), i.opened_ms, _seal_of(i),
        )  # fmt: skip
        return self._execute(_INSERT, values).rowcount == 1

    def _write_sending(self, intent: Intent, now_ms: int) -> Intent:
        n = intent.attempts + 1
        self._execute("INSERT INTO attempts (intent_id, n, sent_ms) VALUES (?,?,?)", (intent.id, n, now_ms))
        after = moved(intent, "sending", attempts=n)
        if intent.state == "sending":
            values = (n, now_ms, _seal_of(after), intent.id)
            self._execute("UPDATE intents SET attempts=?, moved_ms=?, seal=? WHERE id=?", values)
            return after
        return self._write_move(after, now_ms=now_ms, before=intent.state)

    def _write_accepted(self, intent: Intent, trade_id: str, now_ms: int) -> Intent:
        self._end_attempt(intent, "done", None, order_submitted=True)
        return self._write_move(moved(intent, "accepted", trade_id=trade_id), now_ms=now_ms, before=intent.state)

    def _write_move(self, after: Intent, *, now_ms: int, before: State) -> Intent:
        to = after.state
        assert to in INTENT_MOVES[before], f"{after.id}: {before} -> {to}"
        done = self._execute(
            "UPDATE intents SET state=?, attempts=?, confirm_token=?, token_expires_ms=?, trade_id=?, code=?, message=?, moved_ms=?,"
            " seal=? WHERE id=? AND state=?",
            (
                to, after.attempts, after.confirm_token if to not in FINAL else None, after.token_expires_ms, after.trade_id,
                after.code, after.message, now_ms, _seal_of(after), after.id, before,
            ),
        )  # fmt: skip
        assert done.rowcount == 1, f"{after.id} is not {before} in the journal"
        return after

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
        self._put_cursor(next_cursor(old, events, last_id, epoch))

    def _put_cursor(self, cursor: Cursor) -> None:
        self._execute(
            "INSERT INTO cursor (one, last_id, prev_id, epoch, seal) VALUES (1,?,?,?,?) ON CONFLICT (one) DO UPDATE"
            " SET last_id=excluded.last_id, prev_id=excluded.prev_id, epoch=excluded.epoch, seal=excluded.seal",
            (*cursor, seal(*cursor)),
        )

    def _wait_for_a_write(self, states: Mapping[str, str], bars: Iterable[tuple[str, str, int]]) -> None:
        self._states.update(states)
        for market, interval, at_ms in bars:
            self._bars[market, interval] = at_ms

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
        for trace in self._traces:
            self._execute(
                "INSERT INTO traces (intent_id, kind, at_ms, payload) VALUES (?,?,?,?) ON CONFLICT DO NOTHING", trace
            )

    def _write_bar(self, market: str, interval: str, at_ms: int) -> None:
        self._execute(
            "INSERT INTO progress (market, interval, at_ms, seal) VALUES (?,?,?,?) ON CONFLICT (market, interval) DO UPDATE"
            " SET at_ms=excluded.at_ms, seal=excluded.seal WHERE excluded.at_ms > at_ms",
            (market, interval, at_ms, seal(market, interval, at_ms)),
        )

    def _write_states(self, states: Mapping[str, str]) -> None:
        for strategy, state in states.items():
            if states is not self._states:
                self._states.pop(strategy, None)  # What waited is older.
            self._execute(
                "INSERT INTO strategy_state (strategy, state, seal) VALUES (?,?,?)"
                " ON CONFLICT (strategy) DO UPDATE SET state=excluded.state, seal=excluded.seal",
                (strategy, state, seal(strategy, state)),
            )


_WAY_OUT = (
    "Move the file away and start again: positions and orders are read from the service, and a decision made twice has the same"
    " key, so nothing is ordered twice."
)


_STANDS = "Nothing more is sent; guardians and stops stand at the service."
_MEANWHILE = "nothing is opened; exits, stops and guardians go on, and it is written as soon as it can be"


class _Rows(list[tuple[Any, ...]]):
    """Rows that have been read."""

    def fetchone(self) -> Any:
        return self[0] if self else None


def open_or_rebuild(path: Path, *, address: str, now_ms: int, was_used: bool = False) -> tuple[Journal, str | None]:
    """The journal of one account. A damaged file is set aside under a name and a new one begun; then also what was wrong.

    An empty journal is no loss of orders: the account is read from the service, and a decision made twice has the same key. What was
    paused, halted or in quarantine stays so; where that cannot be known, everything is paused. A file that cannot be written is gone on
    without (`fault`): the account is looked after, and nothing is opened.
    `was_used`: there has been one here before, so that none is a loss too.
    """
    is_lost = was_used and (not path.exists() or path.stat().st_size == 0)
    why: str | None = None
    try:
        if is_lost:
            set_aside(path, now_ms)  # A log without its file would be read as the new one's.
        journal = _opened(path, address)
        if is_lost:
            log.error("journal.rebuilt", path=str(path), message="it was not there")
            why = (
                f"journal {path} was not there, though it had been: what this bot knew is read from the service again."
            )
    except JournalDamaged as error:
        aside = set_aside(path, now_ms)
        log.error("journal.rebuilt", path=str(path), kept_as=str(aside), message=str(error))
        journal = _opened(path, address)
        why = f"{str(error).removesuffix(_WAY_OUT).strip()} It is kept as {aside}."
    stays = _keep_stopped(journal, is_new=why is not None)
    return journal, why if why is None else f"{why} {stays}"


def _opened(path: Path, address: str) -> Journal:
    try:
        return open_journal(path, address=address)
    except JournalBlocked as error:
        return _in_memory(path, address, error)


def _in_memory(path: Path, address: str, why: JournalBlocked) -> Journal:
    """What the file holds, to go on with until it can be written. JournalError when it cannot be read either."""
    shown = f"journal {path}"
    is_there = path.exists() and path.stat().st_size > 0
    try:
        db = Database(copied_file(path, OPEN_BUSY_MS)) if is_there else Database(memory=True)
    except sqlite3.Error as error:
        kind = JournalDamaged if is_damage(error) else JournalError
        raise kind(
            f"{shown} can be neither written ({why.__cause__}) nor read ({error}){room(path)}. {_STANDS}"
        ) from error
    try:
        if is_there:
            _refuse_newer(db, shown)
            _check(db, shown)
            if _migrations_applied(db) != _migrations_known():
                raise JournalError(f"{shown} is of another version and cannot be written{room(path)}. {_STANDS}")
        else:
            db.conn.execute("PRAGMA auto_vacuum=INCREMENTAL")  # Written back whole, the file can shrink as any other.
            migrations.apply(db)
        db.conn.commit()
        db.conn.execute("PRAGMA foreign_keys=ON")
        journal = Journal(db, address=address, path=path)
        journal._is_faulty(str(why.__cause__ or "the disk took nothing"))  # noqa: SLF001 - of its own module
        _check_owner(journal, shown)
        journal.check()
    except (sqlite3.Error, ValueError, ArithmeticError) as error:
        db.close()
        raise JournalDamaged(f"{shown} cannot be used: {error}. {_WAY_OUT}") from error
    except BaseException:
        db.close()
        raise
    return journal


def _keep_stopped(journal: Journal, *, is_new: bool) -> str:
    """Take over the safety notes that are kept beside the file. Answers, for people, what became of them in a new one."""
    assert journal.path is not None
    beside = SafetyFile(journal.path, address=journal.address)
    kept, known = beside.read(), journal.safety_notes()
    if kept is None and is_new:
        kept = {halt_flags.PAUSES: json.dumps([halt_flags.ALL])}
        stays = "What was paused is not known, so every strategy is: bot resume lets them go on."
    else:
        stays = "What was paused, in quarantine or halted for the day stays so."
    for name, value in halt_flags.merged(known, kept or {}).items():
        if known.get(name) != value:
            log.warning("safety.kept", note=name, value=value)
            journal.write_note(name, value)
    journal.beside = beside
    if beside.read() != {name: value for name, value in journal.safety_notes().items() if value}:
        beside.write(journal.safety_notes())
    return stays


def _connected(path: Path | None, busy_ms: int) -> Database:
    return Database(sqlite3.connect(":memory:" if path is None else str(path), timeout=busy_ms / 1000))


def open_journal(path: Path | None, *, address: str) -> Journal:
    """Open or make the journal of one account; None: in memory. JournalDamaged for a file that cannot be trusted, with the way out;
    JournalBlocked for one that cannot be used just now; ConfigError for one of a newer version."""
    shown = "the journal in memory" if path is None else f"journal {path}"
    try:
        db = _connected(path, OPEN_BUSY_MS)
    except sqlite3.Error as error:
        raise JournalError(f"{shown} cannot be opened: {error}. Its folder must exist and be writable.") from error
    try:
        _refuse_newer(db, shown)
        _check(db, shown)
        _configure(db, shown)
        migrations.apply(db)
        if _format_of(db) != (ours := len(_migrations_known())):
            db.conn.execute(f"PRAGMA user_version={ours}")
        db.conn.commit()
        journal = Journal(db, address=address, path=path)
        journal.keeps_traces = path is not None
        _check_owner(journal, shown)
        journal.check()
        if journal.fault is not None:
            raise JournalBlocked(f"{journal.fault}. {_STANDS}")
        db.conn.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    except (sqlite3.Error, ValueError, ArithmeticError) as error:
        db.close()
        if isinstance(error, sqlite3.Error) and may_pass(error):
            raise JournalBlocked(
                f"{shown} cannot be used: {error}{'' if path is None else room(path)}. {_STANDS}"
            ) from error
        raise JournalDamaged(f"{shown} cannot be used: {error}. {_WAY_OUT}") from error
    except BaseException:
        db.close()
        raise
    return journal


def _check(db: Database, shown: str) -> None:
    try:
        found = [row[0] for row in db.conn.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        if may_pass(error):
            raise JournalBlocked(f"{shown} cannot be used: {error}. {_STANDS}") from error
        raise JournalDamaged(f"{shown} is damaged: {error}. {_WAY_OUT}") from error
    if found != ["ok"]:
        raise JournalDamaged(f"{shown} is damaged: {'; '.join(found)}. {_WAY_OUT}")


def _configure(db: Database, shown: str) -> None:
    execute = db.conn.execute
    if not execute("PRAGMA page_count").fetchone()[0]:
        execute("PRAGMA auto_vacuum=INCREMENTAL")  # Can be said of a file that has nothing in it yet, and by VACUUM.
    mode = execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode not in ("wal", "memory"):
        raise JournalError(
            f"{shown} cannot be written ahead (mode {mode}): its folder must be writable and on a local disk."
        )
    execute("PRAGMA synchronous=FULL")
    execute("PRAGMA foreign_keys=ON")
    execute(f"PRAGMA journal_size_limit={LOG_BYTES_MAX}")
    execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES_MAX}")


def _refuse_newer(db: Database, shown: str) -> None:
    """ConfigError for a journal of a newer version, before anything of it is changed: to start this one again would not help.

    Its format is read first: it stands in the file's header, also where this SQLite cannot read the schema.
    """
    ours = _migrations_known()
    newer = ""
    try:
        number = _format_of(db)
        if number > len(ours):
            newer = f"format {number}, this one reads {len(ours)}"
        elif unknown := _migrations_applied(db) - ours:
            newer = ", ".join(sorted(unknown))
    except sqlite3.Error as error:
        if may_pass(error):
            raise
        return  # It is damaged: `_check` says how.
    if newer:
        raise ConfigError(f"{shown} was written by a newer version of Bracketbot ({newer}): run that version")


def _format_of(db: Database) -> int:
    """How many migrations the file has been through; 0 for one that is new, or from before this was noted."""
    return int(db.conn.execute("PRAGMA user_version").fetchone()[0])


def _migrations_applied(db: Database) -> set[str]:
    if "_sqlite_migrations" not in db.table_names():
        return set()
    found = db.conn.execute("SELECT name FROM _sqlite_migrations WHERE migration_set='journal'")
    return {row[0] for row in found}


def _migrations_known() -> set[str]:
    with Database(memory=True) as empty:
        return {one.name for one in migrations.pending(empty)}


def is_number(text: str, most: int) -> bool:
    """Whether a note is a whole number from 0 to `most`."""
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX and int(text) <= most


def _check_owner(journal: Journal, shown: str) -> None:
    owner = journal.note("address")
    if owner is None:
        journal.write_note("address", journal.address)
    elif owner != journal.address:
        raise JournalError(
            f"{shown} belongs to account {owner}, and this is account {journal.address}. Give each account its own state_dir."
        )


def _failed(error: sqlite3.Error, what: str) -> JournalError:
    if is_damage(error):
        return JournalDamaged(f"the journal is damaged: {error}. {_WAY_OUT}")
    return JournalError(f"the journal cannot be {what}: {error}. {_STANDS}")


def _intent_of(row: tuple[Any, ...]) -> Intent:
    *values, sha256, sealed = row
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
    if sealed is not None and sealed != _seal_of(intent):
        raise JournalDamaged(
            f"the journal's intent {intent.id} does not match its checksum: the file is damaged. {_WAY_OUT}"
        )
    return check_body(intent, sha256)


def _seal_of(i: Intent) -> int:
    token = None if i.state in FINAL else i.confirm_token
    return seal(
        i.id, i.strategy, i.market, i.action, i.path, i.trigger, i.ordinal, i.leg, i.epoch, i.not_after_ms, i.opened_ms,
        format_decimal(i.notional_usd), i.state, i.attempts, token, i.token_expires_ms, i.trade_id,
    )  # fmt: skip
