"""The durable command log: SQLite, one writer thread, one transaction per batch. It holds every acknowledged command;
replay rebuilds the state.

A row is a command with its instant and the chained hash of all events so far. It also holds the answers stored for
idempotency, pushed prices, the clock, and snapshots that shorten replay. It knows no rules: text in, text out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from bot.clock import SystemClock
from bot.errors import BotError, ConfigError, Exit
from bot.files import DISK_FAULTS
from bot.logs import log
from bot.service.state_machine.rules_version import WAY_OUT
from bot.service.state_machine.snapshots import KeptAccount
from bot.venue.model import text_set

SCHEMA_VERSION: Final = 2
# "BBKT": marks the file as a database of this service
APPLICATION_ID: Final = 0x42424B54
DAY_MS: Final = 86_400_000
REPLIES_KEPT_MS: Final = 7 * DAY_MS
# The replies of a service without a file: about 2 kB each.
REPLIES_IN_MEMORY: Final = 10_000
# free pages of 4 kB that stay in the file: the next commands use them again
PAGES_FREE: Final = 4_096
# and at most this part of the file, a quarter
FREE_SHARE: Final = 4
# pages returned at a time while nothing is queued, which takes a few milliseconds
PAGES_GIVEN: Final = 64

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE clock (one INTEGER PRIMARY KEY CHECK (one = 1), alive_ms INTEGER NOT NULL, ceiling_ms INTEGER NOT NULL, \
offset_ms INTEGER NOT NULL) STRICT;
CREATE TABLE commands (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, command TEXT NOT NULL, \
chain BLOB NOT NULL) STRICT;
CREATE TABLE pushes (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, coin TEXT NOT NULL, px INTEGER NOT NULL, \
volume INTEGER NOT NULL) STRICT;
CREATE TABLE replies (
    account TEXT NOT NULL, key TEXT NOT NULL, epoch INTEGER NOT NULL, fingerprint TEXT NOT NULL, \
request_id TEXT NOT NULL,
    status INTEGER NOT NULL, body BLOB NOT NULL, real_ms INTEGER NOT NULL, PRIMARY KEY (account, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, state BLOB NOT NULL, chain BLOB NOT NULL, \
events INTEGER NOT NULL) STRICT;
CREATE TABLE accounts (account TEXT PRIMARY KEY, number INTEGER NOT NULL, body TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE pages (
    account TEXT NOT NULL, kind TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, packed BLOB NOT NULL, \
PRIMARY KEY (account, kind, first)
) STRICT;
CREATE TABLE deliveries (
    seq INTEGER PRIMARY KEY, webhook TEXT NOT NULL, event TEXT NOT NULL, body BLOB NOT NULL, attempts INTEGER NOT NULL,
    first_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE endpoints (
    webhook TEXT PRIMARY KEY, last_ms INTEGER, last_status INTEGER, failures INTEGER NOT NULL, good_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE rests (webhook TEXT PRIMARY KEY, until_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE kept (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE kept_replies (
    name TEXT NOT NULL, account TEXT NOT NULL, key TEXT NOT NULL, epoch INTEGER NOT NULL, fingerprint TEXT NOT NULL,
    request_id TEXT NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL, real_ms INTEGER NOT NULL, \
PRIMARY KEY (name, account, key)
) STRICT, WITHOUT ROWID;
"""

# Errors that a later start may not have: a full, read-only or failing disk, or another process.
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
    }
)
# the primary code in an extended result code
_PRIMARY: Final = 0xFF

Statement = tuple[str, tuple[Any, ...]]

_COMMAND: Final = "INSERT INTO commands (seq, at_ms, command, chain) VALUES (?, ?, ?, ?)"
_REPLY: Final = (
    "INSERT OR REPLACE INTO replies (account, key, epoch, fingerprint, request_id, status, body, real_ms) VALUES"
    " (?, ?, ?, ?, ?, ?, ?, ?)"
)
# statements that may take several rows
_ROWS: Final = {_COMMAND: "(?, ?, ?, ?)", _REPLY: "(?, ?, ?, ?, ?, ?, ?, ?)"}
ROWS_AT_ONCE: Final = 64
_FORGET: Final = "DELETE FROM replies WHERE real_ms < ?"
_PUSH: Final = "INSERT INTO pushes (seq, at_ms, coin, px, volume) VALUES (?, ?, ?, ?, ?)"
_CLOCK: Final = "INSERT OR REPLACE INTO clock (one, alive_ms, ceiling_ms, offset_ms) VALUES (1, ?, ?, ?)"
_META: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
_ACCOUNT: Final = "INSERT OR REPLACE INTO accounts (account, number, body) VALUES (?, ?, ?)"
_PAGE: Final = "INSERT OR REPLACE INTO pages (account, kind, first, count, packed) VALUES (?, ?, ?, ?, ?)"
_SNAPSHOT: Final = "INSERT OR REPLACE INTO snapshots (seq, at_ms, state, chain, events) VALUES (?, ?, ?, ?, ?)"


# Errors that keep a batch from the disk: the disk itself, or a value that SQLite cannot hold.
_NOT_WRITTEN: Final = (sqlite3.Error, OSError, OverflowError, ValueError, MemoryError)


class DatabaseAway(BotError):
    """The file cannot be used at the moment: a full or read-only disk, or a lock.

    A later start may succeed, so a service manager may retry.
    """

    exit_code = Exit.UNSAFE


class LogRow(NamedTuple):
    seq: int
    at_ms: int
    command: str
    chain: bytes


class Push(NamedTuple):
    seq: int
    at_ms: int
    coin: str
    px: int
    volume: int


class StoredReply(NamedTuple):
    """An answer stored for its idempotency key. `status` 0: the exchange has not decided the request yet."""

    epoch: int
    fingerprint: str
    request_id: str
    status: int
    body: bytes


class Snapshot(NamedTuple):
    """`state` is the state without its accounts, which have rows of their own.

    After a restore it is the whole state.
    """

    seq: int
    at_ms: int
    state: str
    chain: bytes
    events: int


class SavedClock(NamedTuple):
    """`alive_ms`: everything until then is processed.

    `ceiling_ms`: no caller saw a later time. `offset_ms`: from the system clock, 0 if real.
    """

    alive_ms: int
    ceiling_ms: int
    offset_ms: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a file held when it was opened."""

    meta: dict[str, str]
    clock: SavedClock | None
    snapshot: Snapshot | None
    rows: list[LogRow]
    pushes: list[Push]
    accounts: list[str]
    pages: list[tuple[str, str, int, int, bytes]]


def _damaged(path: Path) -> ConfigError:
    return ConfigError(f"{path}: is damaged; restore a copy, or start with a new file")


def _end_process(error: BaseException) -> None:
    """The default after a failed commit: end the process, because no further answer may be sent."""
    log.critical("log.commit_failed", error=str(error))
    os._exit(Exit.UNSAFE)


def _named(account: str, key: str) -> str:
    return f"{account} {key}"


def _gathered(batch: list[Statement]) -> list[Statement]:
    """The same batch, with the rows of one table in one statement. Each statement waits for the interpreter lock, so a
    few large statements take much less time than many small ones. The order between commands and replies does not
    matter.
    """
    gathered: list[Statement] = []
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for statement, values in batch:
        if statement in _ROWS:
            rows.setdefault(statement, []).append(values)
            continue
        gathered += _in_one(rows)
        rows = {}
        gathered.append((statement, values))
    gathered += _in_one(rows)
    return gathered


def _in_one(rows: dict[str, list[tuple[Any, ...]]]) -> list[Statement]:
    joined: list[Statement] = []
    for statement, values in rows.items():
        head, place = statement, f", {_ROWS[statement]}"
        at, size = 0, ROWS_AT_ONCE
        while at < len(values):
            while size > len(values) - at:
                # Powers of two: few statements, so that each is prepared once.
                size //= 2
            joined.append((head + place * (size - 1), tuple([item for row in values[at : at + size] for item in row])))
            at += size
    return joined


def _fault(path: Path, error: OSError) -> BotError:
    kind = DatabaseAway if error.errno in DISK_FAULTS else ConfigError
    return kind(f"{path}: {error.strerror or error}")


def _page_counts(db: sqlite3.Connection) -> tuple[int, int]:
    """(free pages, used pages) of the file."""
    free = int(db.execute("PRAGMA freelist_count").fetchone()[0])
    return free, int(db.execute("PRAGMA page_count").fetchone()[0]) - free


def check_file(db: sqlite3.Connection, path: Path) -> None:
    """Refuse another program's file before changing a byte of it."""
    ours = db.execute("PRAGMA application_id").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if ours != APPLICATION_ID and tables:
        raise ConfigError(f"{path}: is another program's database; choose another file")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if tables and version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: was written by another version of the service (format {version}, this one reads"
            f" {SCHEMA_VERSION}). {WAY_OUT}"
        )
    if tables and db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise _damaged(path)


def _has_schema(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'commands'").fetchone() is not None


def _create(db: sqlite3.Connection) -> None:
    script = (
        f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION};"
        " COMMIT;"
    )
    db.executescript(script)


def read_all(db: sqlite3.Connection) -> Recovered:
    meta = dict(db.execute("SELECT name, value FROM meta"))
    clock = db.execute("SELECT alive_ms, ceiling_ms, offset_ms FROM clock").fetchone()
    last = db.execute("SELECT seq, at_ms, state, chain, events FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
    snapshot = None if last is None else Snapshot(last[0], last[1], zlib.decompress(last[2]).decode(), last[3], last[4])
    after = 0 if snapshot is None else snapshot.seq
    rows = db.execute("SELECT seq, at_ms, command, chain FROM commands WHERE seq > ? ORDER BY seq", (after,))
    pushes = db.execute("SELECT seq, at_ms, coin, px, volume FROM pushes ORDER BY seq")
    return Recovered(
        meta,
        None if clock is None else SavedClock(*clock),
        snapshot,
        [LogRow(*row) for row in rows],
        [Push(*push) for push in pushes],
        [body for (body,) in db.execute("SELECT body FROM accounts ORDER BY number")],
        db.execute("SELECT account, kind, first, count, packed FROM pages ORDER BY account, kind, first").fetchall(),
    )


class CommandLog:
    """A log in a file, or in memory if `path` is None.

    Call every method on the event loop's thread; the writer has its own thread.
    """

    def __init__(self, path: Path | None, on_failure: Callable[[BaseException], None] = _end_process) -> None:
        self.path = path
        # batches written, for tests
        self.commits = 0
        self._on_failure = on_failure
        # commands that are not committed yet; all of them in memory mode
        self._replies: dict[tuple[str, str], StoredReply] = {}
        # Keys on disk, by the day of their answers; a day is forgotten as a whole. Almost every key is new, and looking
        # in the file for each would cost more than the order.
        self._days: dict[int, text_set.TextSet] = {}
        # The pushes of a service in memory.
        self.pushed: list[Push] = []
        # queued in this iteration of the event loop, not yet given to the writer
        self._staged: list[Statement] = []
        # the writer's queue, one item per iteration of the event loop; None: stop
        self._inbox: SimpleQueue[list[Statement] | None] = SimpleQueue()
        self._queued = 0
        self._done = 0
        # counted by the writer, so it may be ahead of `_done`
        self._written = 0
        self._broken = False
        # set by the writer: a snapshot deleted rows, and free pages may be left
        self._is_loose = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: sqlite3.Connection | None = None
        self._lock_fd: int | None = None

    # ── Opening ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> Recovered:
        """Open or create the file and read what is needed to continue.

        Raises ConfigError for another program's file, another version or damage; DatabaseAway for a full or failing
        disk; a plain BotError if another service uses the file.
        """
        if self.path is None:
            return Recovered({}, None, None, [], [], [], [])
        self._take_lock(self.path)
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        try:
            writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            try:
                if fresh:
                    self.path.chmod(0o600)
                else:
                    check_file(writer, self.path)
                # SQLite accepts it only for an empty file.
                if fresh:
                    writer.execute("PRAGMA auto_vacuum=INCREMENTAL")
                writer.execute("PRAGMA journal_mode=WAL")
                writer.execute("PRAGMA synchronous=FULL")
                # On macOS only this waits for the disk itself; elsewhere it does nothing.
                writer.execute("PRAGMA fullfsync=ON")
                if fresh or not _has_schema(writer):
                    _create(writer)
                recovered = read_all(writer)
            except BaseException:
                writer.close()
                raise
        # A damaged snapshot, which SQLite does not check.
        except (zlib.error, UnicodeDecodeError):
            self._drop_lock()
            raise _damaged(self.path) from None
        except sqlite3.Error as error:
            self._drop_lock()
            code = getattr(error, "sqlite_errorcode", None)
            if isinstance(code, int) and code & _PRIMARY in _PASSING:
                raise DatabaseAway(
                    f"{self.path}: cannot be used as the service's database at the moment: {error}"
                ) from None
            raise ConfigError(f"{self.path}: cannot be used as the service's database: {error}") from None
        except OSError as error:
            self._drop_lock()
            raise _fault(self.path, error) from None
        except ConfigError:
            self._drop_lock()
            raise
        self._reader = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, isolation_level=None)
        self._days = {}
        for account, key, real_ms in self._reader.execute("SELECT account, key, real_ms FROM replies"):
            self._know((account, key), real_ms)
        self._writer = writer
        return recovered

    def _take_lock(self, path: Path) -> None:
        lock = path.with_name(path.name + ".lock")
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _fault(path, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise BotError(
                f"{path}: another service uses this file; stop that service, or choose another file"
            ) from None
        self._lock_fd = fd

    def _drop_lock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def start(self) -> None:
        """Start the writer. Call it on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._hand_over()
        if self.path is not None:
            self._thread = threading.Thread(target=self._write_forever, name="command-log", daemon=True)
            self._thread.start()

    # ── Queueing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, row: LogRow, also: Sequence[Statement] = ()) -> None:
        """Queue a command, and in the same transaction the statements that follow from its events."""
        self._put(_COMMAND, row)
        self.put_all(also)

    def put_all(self, statements: Sequence[Statement]) -> None:
        """Queue statements for one transaction, in this order."""
        for statement, values in statements:
            self._put(statement, values)

    def keep_reply(self, account: str, key: str, reply: StoredReply, real_ms: int) -> None:
        """Store an answer in the same transaction as its command."""
        self._replies[account, key] = reply
        if self.path is None and len(self._replies) > REPLIES_IN_MEMORY:
            del self._replies[next(iter(self._replies))]
        self._know((account, key), real_ms)
        self._put(_REPLY, (account, key, *reply, real_ms))

    def push(self, push: Push) -> None:
        if self.path is None:
            self.pushed.append(push)
        self._put(_PUSH, push)

    def save_clock(self, clock: SavedClock) -> None:
        self._put(_CLOCK, clock)

    def save_meta(self, name: str, value: str) -> None:
        self._put(_META, (name, value))

    def save_snapshot(self, snapshot: Snapshot, real_ms: int, accounts: Sequence[KeptAccount] = ()) -> None:
        """Queue a snapshot and its accounts in one transaction, and delete the rows that it replaces."""
        if self.path is None:
            return
        for saved in accounts:
            self._put(_ACCOUNT, (saved.account, saved.number, saved.body))
            for kind, before in saved.gone:
                self._put(
                    "DELETE FROM pages WHERE account = ? AND kind = ? AND first + count <= ?",
                    (saved.account, kind, before),
                )
            for kind, page in saved.pages:
                self._put(_PAGE, (saved.account, kind, page.first, page.count, page.packed))
        packed = zlib.compress(snapshot.state.encode(), 1)
        self._put("DELETE FROM snapshots", ())
        self._put(_SNAPSHOT, (snapshot.seq, snapshot.at_ms, packed, snapshot.chain, snapshot.events))
        self._put("DELETE FROM commands WHERE seq <= ?", (snapshot.seq,))
        self._put(_FORGET, (real_ms - REPLIES_KEPT_MS,))
        for day in [day for day in self._days if (day + 1) * DAY_MS <= real_ms - REPLIES_KEPT_MS]:
            del self._days[day]

    def _put(self, statement: str, values: tuple[Any, ...]) -> None:
        if self.path is None:
            return
        self._queued += 1
        if not self._staged and self._loop is not None:
            self._loop.call_soon(self._hand_over)
        self._staged.append((statement, values))

    def _hand_over(self) -> None:
        """Give the writer everything that was queued in this iteration of the event loop, so that a command, its
        answer and its deliveries are one transaction.
        """
        if self._staged:
            staged, self._staged = self._staged, []
            self._inbox.put(staged)

    # ── Reading and waiting ─────────────────────────────────────────────────────────────────────────────────────────

    def reply(self, account: str, key: str) -> StoredReply | None:
        """The stored answer of a key, or None."""
        stored = self._replies.get((account, key))
        if stored is not None or self._reader is None or not self._is_known(_named(account, key)):
            return stored
        columns = "epoch, fingerprint, request_id, status, body"
        row = self._reader.execute(
            f"SELECT {columns} FROM replies WHERE account = ? AND key = ?",  # noqa: S608  no outside text
            (account, key),
        ).fetchone()
        return None if row is None else StoredReply(*row)

    def _is_known(self, named: str) -> bool:
        return any(named in day for day in self._days.values())

    def select(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows on disk; an empty list in memory mode."""
        return [] if self._reader is None else self._reader.execute(query, values).fetchall()

    def replies_in_memory(self) -> dict[tuple[str, str], StoredReply]:
        """The stored answers of memory mode."""
        return dict(self._replies)

    def replace_replies(self, replies: dict[tuple[str, str], StoredReply]) -> None:
        """Replace the answers in memory: all answers in memory mode, otherwise those that are not on disk yet."""
        self._replies = dict(replies)
        self.know(replies)

    def know(self, pairs: Iterable[tuple[Any, ...]]) -> None:
        """Note the (account, key) pairs whose answers a restored snapshot brings."""
        real_ms = SystemClock().now_ms()
        for pair in pairs:
            self._know(pair, real_ms)

    def _know(self, pair: tuple[Any, ...], real_ms: int) -> None:
        if self.path is not None:
            self._days.setdefault(real_ms // DAY_MS, text_set.TextSet()).add(_named(*pair))

    def flush(self) -> None:
        """Block the event loop until everything queued is on disk.

        For changes that must be complete before the next request.
        """
        self._hand_over()
        if self._thread is not None:
            with self._wake:
                self._wake.wait_for(lambda: self._broken or self._written >= self._queued)

    async def settle(self) -> None:
        """Wait until everything queued so far is on disk, which includes all that an answer may show."""
        ticket = self._queued
        if self._done >= ticket:
            return
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((ticket, waiter))
        await waiter

    # ── The writer's thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _write_forever(self) -> None:
        assert self._loop is not None
        while True:
            batch, is_last = self._next_batch()
            if not batch:
                return
            try:
                self._commit(batch)
            except _NOT_WRITTEN as error:
                with self._wake:
                    self._broken = True
                    self._wake.notify_all()
                self._on_failure(error)
                return
            with self._wake:
                self._written += len(batch)
                self._wake.notify_all()
            # The loop is closed, so nobody waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._committed, batch)
            if is_last:
                return
            while self._is_loose and self._inbox.empty():
                self._is_loose = self._give_back()

    def _next_batch(self) -> tuple[list[Statement], bool]:
        """Wait for statements and take all that are there. The second value is True for the last batch."""
        turn = self._inbox.get()
        batch: list[Statement] = []
        while turn is not None:
            batch += turn
            try:
                turn = self._inbox.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[Statement]) -> None:
        """Write a batch in one transaction."""
        execute = self._writer.execute
        gathered = _gathered(batch)
        # A single statement is a transaction by itself.
        is_alone = len(gathered) == 1
        if not is_alone:
            execute("BEGIN IMMEDIATE")
        for statement, values in gathered:
            execute(statement, values)
            if statement is _FORGET:
                self._is_loose = True
        if not is_alone:
            execute("COMMIT")
        self.commits += 1

    def _give_back(self) -> bool:
        """Return some free pages to the disk; True if there are more. A failing file is reported by the next commit."""
        with contextlib.suppress(sqlite3.Error):
            free, used = _page_counts(self._writer)
            if free > PAGES_FREE and free * (FREE_SHARE - 1) > used:
                # A script frees every page; `execute` would free only the first.
                self._writer.executescript(f"PRAGMA incremental_vacuum({min(free - PAGES_FREE, PAGES_GIVEN)})")
                return _page_counts(self._writer)[0] < free
        return False

    def _committed(self, batch: list[Statement]) -> None:
        self._done += len(batch)
        for statement, values in batch:
            # A newer answer of the same key may wait for the next batch.
            if statement is _REPLY and self._replies.get((values[0], values[1])) == values[2:-1]:
                del self._replies[values[0], values[1]]
        # batches in the order of their tickets
        waiting = self._waiters
        while waiting and waiting[0][0] <= self._done:
            _, waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Write everything queued, then stop."""
        self._hand_over()
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
            self._thread = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._writer.close()
        self._drop_lock()
