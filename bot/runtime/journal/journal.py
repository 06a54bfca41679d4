"""The journal: decisions, requests and events, written to disk before the daemon takes the next step. One file, one
writer, one thread.

`intents`, `events` and `state` hold the methods of their tables; this class holds the outbox and the transactions that
cross the parts. `database.py` writes, and continues in memory while the file cannot be written. This class decides
nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bot.encryption import Cipher
from bot.errors import JournalDamaged, Refusal
from bot.runtime.journal import approval_log, halt_flags
from bot.runtime.journal.bars_seen import Values, trim_seen
from bot.runtime.journal.database import WAY_OUT, JournalDatabase
from bot.runtime.journal.database_library import Database
from bot.runtime.journal.event_log import Cursor, EventLog
from bot.runtime.journal.failover import seal
from bot.runtime.journal.intent_log import IntentLog
from bot.runtime.journal.pending_writes import PendingWrites, write_bar
from bot.runtime.journal.retention import HeldKeys, RowsKept, trim_intents, trim_rest
from bot.runtime.journal.state_store import StateStore
from bot.runtime.model.intents import Intent

if TYPE_CHECKING:
    from bot.runtime.model.shares import AttributionChanges
    from bot.strategy import AskRecord
    from bot.wire import Event

# the number of events that the service keeps
EVENTS_KEPT: Final = 100_000
REFUSALS_KEPT: Final = 10_000
# a target that was down for longer gets the newest
NOTICES_KEPT: Final = 10_000
# intents with their attempts and traces; retention.py says which older ones may go
INTENTS_KEPT: Final = 20_000

# what the cipher of confirm tokens is for
TOKENS: Final = "journal token"
# a key of this process: no later process can read what it encrypts
OF_THIS_PROCESS: Final = Cipher(secrets.token_bytes(32), TOKENS)

TraceKind = Literal["bar", "wish", "plan"]


class Notice(NamedTuple):
    """An outgoing notice.

    `event_id` names its cause (an event, or a name of our own); `payload` is its fields as JSON.
    """

    event_id: str
    kind: str
    payload: str


class Owed(NamedTuple):
    """A notice in the outbox; `seq` is its place."""

    seq: int
    kind: str
    payload: str


# Rows that decide the next step, and the columns that their `seal` (a checksum) covers. An intent's checksum is checked
# at each read.
SEALED: Final[Mapping[str, Sequence[str]]] = {
    "cursor": ("last_id", "prev_id", "epoch"),
    "progress": ("market", "interval", "at_ms"),
    "strategy_state": ("strategy", "state"),
    "arms": ("name", "serial", "guardian_id", "body"),
    "approvals": approval_log.COLUMNS,
}


class Journal:
    """Use `open_journal` (opening.py).

    Every method that writes has committed when it returns, except `refused` and `trace`.
    """

    def __init__(
        self, db: Database, *, address: str, path: Path | None = None, tokens: Cipher = OF_THIS_PROCESS
    ) -> None:
        self.address = address
        self._pending = PendingWrites()
        self.database = JournalDatabase(db, path=path, pending=self._pending)
        self._execute, self._read = self.database.execute, self.database.read
        self.intents = IntentLog(self.database, tokens)
        self.approvals = approval_log.ApprovalLog(self.database)
        self.events = EventLog(self.database)
        self.state = StateStore(self.database, self._pending)
        # False for a journal that no later run reads
        self.keeps_bodies = True
        # False for a journal in memory
        self.keeps_traces = path is not None

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
        """Write a whole decision: its intents, the strategies' states, and that its bars (market, interval, at_ms) are
        done.

        All or nothing, so that a crash cannot leave half a decision. Returns the intents that were not written before.
        """
        if not intents:
            self._pending.add(states or {}, bars)
            return []
        with self.database.transaction():
            new = [intent for intent in intents if self.intents.insert(intent)]
            self._pending.write_states(self._execute, states or {})
            for market, interval, at_ms in bars:
                write_bar(self._execute, market, interval, at_ms)
        return new

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
        """Write a page of events in ONE transaction: the events, the cursor, and all that they changed. Returns the new
        intents.

        `events` are those that `events.unseen` returned.
        """
        with self.database.transaction():
            self.events.write(events, last_id, epoch=epoch)
            self._pending.write_states(self._execute, states or {})
            self._write_notices(notices, now_ms)
            if attribution is not None:
                self.state.put_attribution(attribution)
            return [intent for intent in intents if self.intents.insert(intent)]

    def restart_cursor(self, last_id: str, *, epoch: int, now_ms: int) -> list[Intent]:
        """Begin the feed anew (first start, account reset, lost cursor).

        Returns the intents of earlier epochs, which become void.
        """
        old = [intent for intent in self.intents.live() if intent.epoch != epoch]
        with self.database.transaction():
            void = self.intents.void(old, now_ms=now_ms)
            self.events.put_cursor(Cursor(last_id, None, epoch))
        return void

    # -- refusals and traces, for people

    def refused(self, refusal: Refusal, *, strategy: str, market: str, trigger: str, ordinal: int, at_ms: int) -> None:
        """Keep a refusal of the risk check, for people."""
        row = (at_ms, strategy, market, trigger, ordinal, refusal.code, refusal.message)
        self._pending.refusals.append(row)

    def refusal_counts(self, codes: Iterable[str]) -> dict[tuple[str, str], int]:
        """(strategy, code) -> how many refusals of these codes the journal has. It keeps the newest REFUSALS_KEPT."""
        rows = self._read(
            "SELECT strategy, code, count(*) FROM refusals WHERE code IN (SELECT value FROM json_each(?))"
            " GROUP BY strategy, code ORDER BY strategy, code",
            (json.dumps(list(codes)),),
        )
        return {(strategy, code): count for strategy, code, count in rows}

    def trace(self, intent_id: str, kind: TraceKind, payload: str, *, at_ms: int) -> None:
        """Keep the reason for an intent, as JSON, for people. It is written with the intent's own next write."""
        if self.keeps_traces:
            self._pending.traces.append((intent_id, kind, at_ms, payload))

    def saw(self, market: str, interval: str, close_ms: int, values: Values) -> None:
        """Keep that a bar with these values was decided, for the proof of its day."""
        self._pending.seen.append((market, interval, close_ms, values))

    def keep_ask(self, strategy: str, record: AskRecord) -> None:
        """Keep a question to a model with what came of it.

        It is written with the decision on its reply, or at the end of the pass.
        """
        self._pending.asks.append((strategy, record))

    def flush(self) -> None:
        """Write pending rows. The kernel calls this at the end of each pass, so nothing waits for longer."""
        if not self._pending.is_empty():
            with self.database.transaction():
                pass

    def write_attribution(
        self, attribution: AttributionChanges | None, notices: Iterable[Notice] = (), *, now_ms: int = 0
    ) -> None:
        """Write changes of the attribution that no event caused, with their notices."""
        with self.database.transaction():
            if attribution is not None:
                self.state.put_attribution(attribution)
            self._write_notices(notices, now_ms)

    # -- outbox and retention

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

    def newest_ms(self) -> int:
        """The latest instant of any decision. A correct clock cannot be before it."""
        row = self._read(
            "SELECT max(coalesce((SELECT max(moved_ms) FROM intents), 0), coalesce((SELECT max(at_ms) FROM"
            " progress), 0))"
        )
        return int(row.fetchone()[0])

    def trim(self, held: Callable[[], HeldKeys] = HeldKeys, *, now_ms: int = 0) -> int:
        """Remove old rows that nothing needs, and give some free pages back to the disk. Returns how many intents were
        removed.

        `held` is called only if there are more rows than are kept; `now_ms` is the service's time.
        """
        kept = RowsKept(INTENTS_KEPT, EVENTS_KEPT, REFUSALS_KEPT, NOTICES_KEPT)
        spans = self._read(
            "SELECT (SELECT max(seq) - min(seq) FROM intents), (SELECT max(seq) - min(seq) FROM events),"
            " (SELECT count(*) FROM arms WHERE name GLOB 'cover:*')"
        ).fetchone()
        is_over = (spans[0] or 0) >= kept.intents or (spans[1] or 0) >= kept.events or bool(spans[2])
        keys = held() if is_over else HeldKeys()
        with self.database.transaction():
            gone = trim_intents(self._read, self._execute, keys, kept, now_ms) if is_over else 0
            trim_rest(self._execute, keys, kept, now_ms)
            trim_seen(self._execute, now_ms)
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
        """Move what was written in memory into the file;

        False while that fails. JournalDamaged if the file is damaged.
        """
        was_faulty = self.fault is not None
        is_mended = self.database.mend()
        # The copy is on the same disk, so its writes may have failed too.
        if is_mended and was_faulty:
            self.state.copy_halt_flags()
        return is_mended

    def check(self) -> None:
        """Raise JournalDamaged or ValueError for rows that every constraint accepts and no run has written.

        Checked: live intents, halt flags, the cursor, strategy states, finished bars and armed guardians.
        """
        self.intents.live()
        for name, value in self.state.halt_flags().items():
            halt_flags.check(name, value)
        for table, columns in SEALED.items():
            # Constants only.
            for *values, stored in self._read(f"SELECT {', '.join(columns)}, seal FROM {table}"):  # noqa: S608
                if stored is not None and stored != seal(*values):
                    raise JournalDamaged(
                        f"a row of {table} in the journal does not match its checksum: the file is damaged. {WAY_OUT}"
                    )

    def close(self) -> None:
        self.flush()
        self.mend()
        self.database.close()

    def _write_notices(self, notices: Iterable[Notice], now_ms: int) -> None:
        for notice in notices:
            self._execute(
                "INSERT INTO outbox (event_id, kind, payload, created_ms) VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
                (*notice, now_ms),
            )
