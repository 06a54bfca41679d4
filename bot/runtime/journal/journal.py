"""The journal: what was decided, sent and learned, on disk before the next step is taken. One file, one writer, one thread.

`intents` and `events` hold the methods of their tables; this class holds the rest and the transactions that cross them.
`database.py` writes, and goes on in memory while the file cannot be written. Nothing here decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog
from sqlite_utils import Database

from bot.errors import JournalDamaged, Refusal
from bot.money import format_decimal
from bot.runtime.journal import halt_flags
from bot.runtime.journal.database import WAY_OUT, JournalDatabase
from bot.runtime.journal.event_log import Cursor, EventLog
from bot.runtime.journal.failover import seal
from bot.runtime.journal.halt_flags import SafetyFile
from bot.runtime.journal.intent_log import IntentLog
from bot.runtime.journal.pending_writes import PendingWrites, write_bar
from bot.runtime.journal.retention import Held, Kept, trim_intents, trim_rest
from bot.runtime.model.intents import Intent

if TYPE_CHECKING:
    from bot.runtime.model.shares import AttributionChanges
    from bot.wire import Event

log = structlog.get_logger()

EVENTS_KEPT: Final = 100_000  # as many as the service keeps
REFUSALS_KEPT: Final = 10_000
NOTICES_KEPT: Final = 10_000  # a target that was down for longer gets the newest
INTENTS_KEPT: Final = 20_000  # with their attempts and traces; retention.py says which older ones may go

NUMBER_DIGITS_MAX: Final = 20  # of a note; Python refuses to read thousands of digits
ASIDE: Final = "damaged:"  # prefix of the name under which an unreadable note is kept for people

TraceKind = Literal["bar", "wish", "plan"]


class Arm(NamedTuple):
    """A guardian that the config asks for. `serial` is part of its key and grows when an armed guardian is gone."""

    name: str
    serial: int
    guardian_id: str | None
    body: str


class Notice(NamedTuple):
    """An outgoing notice. `event_id` names its cause (an event, or a name of our own); `payload` is its fields as JSON."""

    event_id: str
    kind: str
    payload: str


class Owed(NamedTuple):
    """A notice in the outbox; `seq` is its place."""

    seq: int
    kind: str
    payload: str


# Rows that decide the next step, and the columns that their `seal` (a checksum) covers. An intent's checksum is checked at each read.
SEALED: Final[Mapping[str, Sequence[str]]] = {
    "cursor": ("last_id", "prev_id", "epoch"),
    "progress": ("market", "interval", "at_ms"),
    "strategy_state": ("strategy", "state"),
    "arms": ("name", "serial", "guardian_id", "body"),
}


class Journal:
    """Use `open_journal` (opening.py). Every method that writes has committed when it returns, except `bar_done`, `refused` and `trace`."""

    def __init__(self, db: Database, *, address: str, path: Path | None = None) -> None:
        self.address = address
        self._pending = PendingWrites()
        self.database = JournalDatabase(db, path=path, pending=self._pending)
        self._execute, self._read = self.database.execute, self.database.read
        self.intents = IntentLog(self.database)
        self.events = EventLog(self.database)
        self.beside: SafetyFile | None = None  # the second copy of the safety notes
        self.keeps_bodies = True  # off where no later run reads the journal: the request itself is at hand
        self.keeps_traces = True  # off in memory, where nobody reads them later

    @property
    def db(self) -> Database:
        return self.database.db

    @property
    def path(self) -> Path | None:
        """None for a journal that lives in memory only."""
        return self.database.path

    @property
    def fault(self) -> str | None:
        """Why the file cannot be written now; None while it can."""
        return self.database.fault

    # -- transactions over several parts

    def together(self) -> AbstractContextManager[None]:
        """Make all writes of the block one transaction. A nested call joins the outer one."""
        return self.database.together()

    def decided(
        self,
        intents: Sequence[Intent],
        *,
        states: Mapping[str, str] | None = None,
        bars: Sequence[tuple[str, str, int]] = (),
    ) -> list[Intent]:
        """Write a whole decision: its intents, the strategies' states, and that its bars (market, interval, at_ms) are done.

        All or nothing, so that a crash cannot leave half a decision. Returns the intents that were not written before.
        """
        if not intents:
            self._pending.add(states or {}, bars)
            return []
        with self.database.transaction():
            fresh = [intent for intent in intents if self.intents.insert(intent)]
            self._pending.write_states(self._execute, states or {})
            for market, interval, at_ms in bars:
                write_bar(self._execute, market, interval, at_ms)
        return fresh

    def open(self, intent: Intent) -> bool:
        """Write one intent; False if it is there already."""
        return bool(self.decided([intent]))

    def take(
        self,
        events: Sequence[Event],
        last_id: str,
        *,
        epoch: int,
        states: Mapping[str, str] | None = None,
        intents: Sequence[Intent] = (),
        notices: Iterable[Notice] = (),
        attribution: AttributionChanges | None = None,
        now_ms: int = 0,
    ) -> list[Intent]:
        """Write a page of events in ONE transaction: the events, the cursor, and all that they changed. Returns the new intents.

        `events` are those that `events.unseen` returned.
        """
        with self.database.transaction():
            self.events.write(events, last_id, epoch=epoch)
            self._pending.write_states(self._execute, states or {})
            self._write_notices(notices, now_ms)
            self._write_books(attribution)
            return [intent for intent in intents if self.intents.insert(intent)]

    def restart_cursor(self, last_id: str, *, epoch: int, now_ms: int) -> list[Intent]:
        """Begin the feed anew (first start, account reset, lost cursor). Returns the intents of earlier epochs, which become void."""
        old = [intent for intent in self.intents.live() if intent.epoch != epoch]
        with self.database.transaction():
            void = self.intents.void(old, now_ms=now_ms)
            self.events.put_cursor(Cursor(last_id, None, epoch))
        return void

    # -- bars, strategy states, refusals, traces

    def bar_done(self, market: str, interval: str, at_ms: int) -> None:
        """Note a bar that led to no order. It is written with the next transaction or `flush`: deciding it again gives the same keys."""
        self._pending.add({}, [(market, interval, at_ms)])

    def done_until(self, market: str, interval: str) -> int | None:
        """Close instant of the newest bar that was decided."""
        waiting = self._pending.bars.get((market, interval))
        if waiting is not None:
            return waiting
        row = self._read("SELECT at_ms FROM progress WHERE market=? AND interval=?", (market, interval)).fetchone()
        return None if row is None else int(row[0])

    def state_of(self, strategy: str) -> dict[str, Any]:
        text = self._pending.states.get(strategy)
        if text is None:
            row = self._read("SELECT state FROM strategy_state WHERE strategy=?", (strategy,)).fetchone()
            text = "{}" if row is None else row[0]
        found: dict[str, Any] = json.loads(text)
        return found

    def refused(self, refusal: Refusal, *, strategy: str, market: str, trigger: str, ordinal: int, at_ms: int) -> None:
        """Keep a refusal of the risk check, for people."""
        row = (at_ms, strategy, market, trigger, ordinal, refusal.code, refusal.message)
        self._pending.refusals.append(row)

    def trace(self, intent_id: str, kind: TraceKind, payload: str, *, at_ms: int) -> None:
        """Keep the reason for an intent, as JSON, for people. It is written with the intent's own next write."""
        if self.keeps_traces:
            self._pending.traces.append((intent_id, kind, at_ms, payload))

    def flush(self) -> None:
        """Write pending rows. The kernel calls this at the end of each pass, so nothing waits for longer."""
        if not self._pending.is_empty():
            with self.database.transaction():
                pass

    # -- attribution: profit, loss and shares by strategy

    def write_books(
        self, attribution: AttributionChanges | None, notices: Iterable[Notice] = (), *, now_ms: int = 0
    ) -> None:
        """Write changes of the attribution that no event caused, with their notices."""
        with self.database.transaction():
            self._write_books(attribution)
            self._write_notices(notices, now_ms)

    def book_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        """Rows for `attribution.BookRow`."""
        return list(
            self._read(
                "SELECT strategy, fills, fees_usd, funding_usd, realized_usd, margin_lost_usd, day_ms, base_usd, halted_day_ms"
                " FROM books WHERE epoch=? ORDER BY strategy",
                (epoch,),
            )
        )

    def share_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        """Rows for `attribution.Share`, oldest first."""
        return list(
            self._read("SELECT market, strategy, side, size, cost_usd FROM shares WHERE epoch=? ORDER BY seq", (epoch,))
        )

    # -- guardians that the config asks for

    def arm_of(self, name: str) -> Arm | None:
        row = self._read("SELECT name, serial, guardian_id, body FROM arms WHERE name=?", (name,)).fetchone()
        return None if row is None else Arm(*row)

    def arms(self) -> list[Arm]:
        """Every guardian that this bot ever armed, by name."""
        return [Arm(*row) for row in self._read("SELECT name, serial, guardian_id, body FROM arms ORDER BY name")]

    def write_arm(self, arm: Arm) -> None:
        with self.database.transaction():
            self._execute(
                "INSERT INTO arms (name, serial, guardian_id, body, seal) VALUES (?,?,?,?,?) ON CONFLICT (name) DO UPDATE"
                " SET serial=excluded.serial, guardian_id=excluded.guardian_id, body=excluded.body, seal=excluded.seal",
                (*arm, seal(*arm)),
            )

    # -- outbox, notes, housekeeping

    def notify(self, notices: Iterable[Notice], *, now_ms: int) -> None:
        """Write notices that no event of the service caused. The same (event_id, kind) is written once."""
        with self.database.transaction():
            self._write_notices(notices, now_ms)

    def owed(self, after_seq: int, limit: int) -> list[Owed]:
        """Notices written after `after_seq`, oldest first."""
        rows = self._read("SELECT seq, kind, payload FROM outbox WHERE seq>? ORDER BY seq LIMIT ?", (after_seq, limit))
        return [Owed(*row) for row in rows]

    def newest_notice(self) -> int:
        """The `seq` of the newest notice; 0 if there is none."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM outbox").fetchone()[0])

    def note(self, name: str) -> str | None:
        row = self._read("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def write_note(self, name: str, value: str) -> None:
        with self.database.transaction():
            self._execute(
                "INSERT INTO meta (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
                (name, value),
            )
            if halt_flags.is_safety(name):
                self.database.after_commit(self._copy_safety_notes)

    def notes_under(self, prefix: str) -> list[str]:
        """Names of the notes that begin with `prefix`."""
        rows = self._read("SELECT name FROM meta WHERE substr(name, 1, ?)=?", (len(prefix), prefix))
        return [name for (name,) in rows]

    def forget_note(self, name: str) -> None:
        with self.database.transaction():
            self._execute("DELETE FROM meta WHERE name=?", (name,))

    def set_aside(self, name: str, *, instead: str | None = None) -> str:
        """Move a damaged note to another name, for people; returns that name. `instead` is the note's new text."""
        aside, text = ASIDE + name, self.note(name) or ""
        with self.together():
            self.write_note(aside, text)
            self.forget_note(name)
            if instead is not None:
                self.write_note(name, instead)
        return aside

    def set_aside_if_damaged(self, name: str, is_sound: Callable[[str], bool], *, instead: str | None = None) -> bool:
        """Set a note aside and log it if it is not sound; True if that was done."""
        text = self.note(name)
        if text is None or is_sound(text):
            return False
        kept_as = self.set_aside(name, instead=instead)
        log.warning("journal.note_damaged", note=name, kept_as=kept_as, instead=instead)
        return True

    def safety_notes(self) -> dict[str, str]:
        """What a person or a fault has stopped (halt_flags.py), by note."""
        return {name: value for name, value in self._read("SELECT name, value FROM meta") if halt_flags.is_safety(name)}

    def keeps_safety(self) -> bool:
        """True if the safety notes outlive the process: in the file or, while it cannot be written, in the copy beside it."""
        if self.fault is None:
            return True
        return self.beside is not None and self.beside.read() == {n: v for n, v in self.safety_notes().items() if v}

    def newest_ms(self) -> int:
        """The latest instant of any decision. A correct clock cannot be before it."""
        row = self._read(
            "SELECT max(coalesce((SELECT max(moved_ms) FROM intents), 0), coalesce((SELECT max(at_ms) FROM progress), 0))"
        )
        return int(row.fetchone()[0])

    def trim(self, held: Callable[[], Held] = Held, *, now_ms: int = 0) -> int:
        """Remove old rows that nothing needs, and give some free pages back to the disk. Returns how many intents were removed.

        `held` is called only if there are more rows than are kept; `now_ms` is the service's time.
        """
        kept = Kept(INTENTS_KEPT, EVENTS_KEPT, REFUSALS_KEPT, NOTICES_KEPT)
        spans = self._read(
            "SELECT (SELECT max(seq) - min(seq) FROM intents), (SELECT max(seq) - min(seq) FROM events),"
            " (SELECT count(*) FROM arms WHERE name GLOB 'cover:*')"
        ).fetchone()
        is_over = (spans[0] or 0) >= kept.intents or (spans[1] or 0) >= kept.events or bool(spans[2])
        found = held() if is_over else Held()
        with self.database.transaction():
            gone = trim_intents(self._read, self._execute, found, kept, now_ms) if is_over else 0
            trim_rest(self._execute, found, kept)
        self.database.free_pages()
        return gone

    # -- the file

    def checkpoint(self) -> None:
        """Write the log back into the file if it is long. Commits do not do this, because orders wait for commits."""
        self.database.checkpoint()

    def check_file(self, *, now_ms: int) -> None:
        """Treat a removed or replaced file as a fault."""
        self.database.check_file(now_ms=now_ms)

    def mend(self) -> bool:
        """Move what was written in memory into the file; False while that fails. JournalDamaged if the file is damaged."""
        was_faulty = self.fault is not None
        is_mended = self.database.mend()
        if is_mended and was_faulty:  # The copy is on the same disk, so its writes may have failed too.
            self._copy_safety_notes()
        return is_mended

    def check(self) -> None:
        """Raise JournalDamaged or ValueError for rows that every constraint accepts and no run has written.

        Checked: live intents, safety notes, the cursor, strategy states, finished bars and armed guardians.
        """
        self.intents.live()
        for name, value in self.safety_notes().items():
            halt_flags.check(name, value)
        for table, columns in SEALED.items():
            for *values, found in self._read(f"SELECT {', '.join(columns)}, seal FROM {table}"):  # noqa: S608 - constants only
                if found is not None and found != seal(*values):
                    raise JournalDamaged(
                        f"a row of {table} in the journal does not match its checksum: the file is damaged. {WAY_OUT}"
                    )

    def close(self) -> None:
        self.flush()
        self.mend()
        self.database.close()

    def _copy_safety_notes(self) -> None:
        if self.beside is not None:
            self.beside.write(self.safety_notes())

    def _write_notices(self, notices: Iterable[Notice], now_ms: int) -> None:
        for notice in notices:
            self._execute(
                "INSERT INTO outbox (event_id, kind, payload, created_ms) VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
                (*notice, now_ms),
            )

    def _write_books(self, attribution: AttributionChanges | None) -> None:
        if attribution is None:
            return
        if attribution.wiped:
            self._execute("DELETE FROM books")
            self._execute("DELETE FROM shares")
        for row in attribution.rows:
            fees, funding, realized, lost, base = map(
                format_decimal, (row.fees_usd, row.funding_usd, row.realized_usd, row.margin_lost_usd, row.base_usd)
            )
            self._execute(
                "INSERT OR REPLACE INTO books (strategy, epoch, fills, fees_usd, funding_usd, realized_usd, margin_lost_usd, day_ms,"
                " base_usd, halted_day_ms) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (row.strategy, attribution.epoch, row.fills, fees, funding, realized, lost, row.day_ms, base, row.halted_day_ms),
            )  # fmt: skip
        for market in attribution.markets:
            self._execute("DELETE FROM shares WHERE market=?", (market,))
        for one in attribution.shares:
            self._execute(
                "INSERT INTO shares (epoch, market, strategy, side, size, cost_usd) VALUES (?,?,?,?,?,?)",
                (attribution.epoch, one.market, one.strategy, one.side, format_decimal(one.size), format_decimal(one.cost_usd)),
            )  # fmt: skip


def is_number(text: str, most: int) -> bool:
    """True if a note is a whole number from 0 to `most`."""
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX and int(text) <= most
