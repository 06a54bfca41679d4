"""Reading the journal from outside its daemon: rows for people, on a connection of its own that cannot write.

Callers get plain data. journal.py makes the daemon's own reads and every write; order_trace.py and round_trips.py
explain rows to people.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from bot.clock import SystemClock
from bot.errors import BotError, Exit, JournalError
from bot.files import is_file
from bot.wire.vocabulary import EVENT_FILTERS, EVENT_SUBTYPES

FILE: Final = "journal.db"
# the note of the journal that says what the last run was
RUN: Final = "run"
BUSY_TIMEOUT_S: Final = 5.0
PAGE_MAX: Final = 1_000

Row = dict[str, Any]

# Never the confirm token: it is a secret until it is used.
INTENT_COLUMNS: Final = (
    "id, strategy, market, action, path, cause, ordinal, leg, epoch, body, not_after_ms, opened_ms, notional_usd,"
    " state, attempts, token_expires_ms, trade_id, code, message, moved_ms"
)


class Closed(BotError):
    """This user may not enter the state directory, so its content is not known."""

    exit_code = Exit.USAGE

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} belongs to another user: ask as that user, or as root (sudo)")


class NotFound(BotError):
    """There is no journal, or it has nothing of that name."""

    exit_code = Exit.USAGE


class LastState(NamedTuple):
    """The state when the journal was last written. It is old, unless the daemon runs."""

    address: str | None
    epoch: int | None
    last_event_id: str | None
    # the service's clock
    last_event_ms: int | None
    # the machine's clock: when the file was last changed
    written_ms: int
    last_bars: list[Row]
    open_intents: list[Row]
    positions: list[Row]


def is_there(path: Path) -> bool:
    """True if the file exists.

    Closed if this user may not enter the folder: a state directory is for its owner alone.
    """
    try:
        return is_file(path)
    except PermissionError:
        raise Closed(path.parent) from None


@contextlib.contextmanager
def opened(state_dir: Path) -> Iterator[sqlite3.Connection]:
    """Open the journal of a state directory.

    NotFound if there is none, Closed if this user may not enter, JournalError if it cannot be read.
    """
    path = state_dir / FILE
    if not is_there(path):
        raise NotFound(f"{state_dir} has no journal: no daemon has run there yet")
    try:
        connection = _connected(path)
    except sqlite3.Error as error:
        raise JournalError(f"journal {path} cannot be opened: {error}") from error
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    except sqlite3.Error as error:
        raise JournalError(f"journal {path} cannot be read: {error}") from error
    finally:
        connection.close()


def is_damaged(path: Path) -> bool:
    """True if SQLite finds the database damaged; False if the file is missing or cannot be read now."""
    try:
        with contextlib.closing(_connected(path)) as db:
            return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok")
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:
        return True


def _connected(path: Path) -> sqlite3.Connection:
    """Open a file read-only.

    On a full disk the index that readers share cannot be created. If the file has no log beside it, it can be read
    without that index.
    """
    name = f"file:{quote(str(path))}?mode=ro"
    connection = sqlite3.connect(name, uri=True, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if _has_content(path.with_name(f"{path.name}-wal")):
            raise
        return sqlite3.connect(f"{name}&immutable=1", uri=True)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def in_rows(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Let a connection of the daemon return rows as `opened` does.

    Nothing inside may await, or the daemon would read such rows too.
    """
    before, connection.row_factory = connection.row_factory, sqlite3.Row
    try:
        yield connection
    finally:
        connection.row_factory = before


def rows(db: sqlite3.Connection, sql: str, values: Sequence[object] = ()) -> list[Row]:
    return [dict(row) for row in db.execute(sql, tuple(values))]


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """True if the table exists. An older journal lacks newer tables, and this module never changes a journal."""
    return bool(rows(db, "SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,)))


# -- events


def no_such_type(db: sqlite3.Connection, types: Sequence[str]) -> str | None:
    """The error text for the first type that neither the interface nor the journal has; None if all are known."""
    for wanted in types:
        if wanted in EVENT_FILTERS or events(db, types=(wanted,), limit=1):
            continue
        near = get_close_matches(wanted, sorted(EVENT_FILTERS), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        known = "; ".join(f"{kind} ({', '.join(subs)})" for kind, subs in EVENT_SUBTYPES.items())
        return f"{wanted!r} is not a type of event.{hint} Types, each also as type.subtype: {known}"
    return None


def events(
    db: sqlite3.Connection,
    *,
    since_id: str | None = None,
    since_ms: int | None = None,
    back_ms: int | None = None,
    types: Sequence[str] = (),
    limit: int = 100,
) -> list[Row]:
    """Events as they came, oldest first: those after `since_id`, `since_ms` or of the last `back_ms`, from there on;
    else the newest.
    """
    # The service's clock may be ahead of ours.
    if back_ms is not None:
        since_ms = max(SystemClock().now_ms(), newest_event_ms(db) or 0) - back_ms
    where, values = ["1"], list[object]()
    if since_id is not None:
        since_rows = rows(db, "SELECT seq FROM events WHERE id=?", (since_id,))
        if not since_rows:
            raise NotFound(f"the journal has no event {since_id}; `bot events` shows the newest")
        where.append("seq > ?")
        values.append(since_rows[0]["seq"])
    if since_ms is not None:
        where.append("ts >= ?")
        values.append(since_ms)
    if types:
        where.append("(" + " OR ".join("type=? OR type||'.'||subtype=?" for _ in types) + ")")
        values += [value for kind in types for value in (kind, kind)]
    forward = since_id is not None or since_ms is not None
    order = "ASC" if forward else "DESC"
    # Constants only.
    sql = f"SELECT payload FROM events WHERE {' AND '.join(where)} ORDER BY seq {order} LIMIT ?"  # noqa: S608
    payloads = [json.loads(row["payload"]) for row in rows(db, sql, (*values, min(limit, PAGE_MAX)))]
    return payloads if forward else payloads[::-1]


def newest_event_ms(db: sqlite3.Connection) -> int | None:
    newest = rows(db, "SELECT ts FROM events ORDER BY seq DESC LIMIT 1")
    return int(newest[0]["ts"]) if newest else None


def events_like(db: sqlite3.Connection, name: str) -> list[Row]:
    """Events that contain this id in any field, oldest first."""
    sql = "SELECT payload FROM events WHERE payload LIKE '%\"'||?||'\"%' ORDER BY seq LIMIT ?"
    return [json.loads(row["payload"]) for row in rows(db, sql, (name, PAGE_MAX))]


def events_of_coin(db: sqlite3.Connection, coin: str) -> Iterator[Row]:
    """Every event of a coin, oldest first."""
    for row in db.execute("SELECT payload, epoch FROM events WHERE coin=? ORDER BY seq", (coin,)):
        yield json.loads(row["payload"]) | {"epoch": row["epoch"]}


def newest_events_of_coin(db: sqlite3.Connection, coin: str, *, types: Sequence[str], limit: int) -> list[Row]:
    """The newest events of a coin and of these types in the newest epoch, oldest first."""
    marks = ", ".join("?" for _ in types)
    # Constants only.
    sql = (
        f"SELECT payload FROM events WHERE coin=? AND type IN ({marks})"  # noqa: S608
        " AND epoch=(SELECT epoch FROM cursor) ORDER BY seq DESC LIMIT ?"
    )
    return [json.loads(row["payload"]) for row in rows(db, sql, (coin, *types, min(limit, PAGE_MAX)))][::-1]


def search_events(
    db: sqlite3.Connection,
    *,
    types: Sequence[str] = (),
    coin: str | None = None,
    strategy: str | None = None,
    text: str | None = None,
    before_id: str | None = None,
    limit: int = 100,
) -> list[Row]:
    """The newest events that fit, oldest first. `text` may stand in any field. `before_id`: those before this event."""
    where, values = ["1"], list[object]()
    if types:
        where.append("(" + " OR ".join("type=? OR type||'.'||subtype=?" for _ in types) + ")")
        values += [value for kind in types for value in (kind, kind)]
    if coin is not None:
        where.append("coin=?")
        values.append(coin)
    if strategy is not None:
        where.append("idempotency_key IN (SELECT id FROM intents WHERE strategy=?)")
        values.append(strategy)
    if text is not None:
        where.append("instr(lower(payload), lower(?)) > 0")
        values.append(text)
    if before_id is not None:
        where.append("seq < (SELECT seq FROM events WHERE id=?)")
        values.append(before_id)
    # Constants only.
    sql = f"SELECT payload FROM events WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?"  # noqa: S608
    return [json.loads(row["payload"]) for row in rows(db, sql, (*values, min(limit, PAGE_MAX)))][::-1]


def all_events(db: sqlite3.Connection, types: Sequence[str]) -> Iterator[Row]:
    marks = ", ".join("?" for _ in types)
    sql = f"SELECT seq, epoch, payload FROM events WHERE type IN ({marks}) ORDER BY seq"  # noqa: S608 - constants only
    return parsed(db.execute(sql, tuple(types)))


def parsed(selected: Iterable[Sequence[Any]]) -> Iterator[Row]:
    """The events of rows of seq, epoch and payload. Many payloads are read as one list, which is faster."""
    left = iter(selected)
    while batch := list(islice(left, PAGE_MAX)):
        for (seq, epoch, _), event in zip(batch, json.loads(f"[{','.join(row[2] for row in batch)}]"), strict=True):
            event["seq"], event["epoch"] = seq, epoch
            yield event


def trade_extremes(db: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """The lowest and the highest price of closed trades, by the event that closed each; empty in an older journal."""
    if not has_table(db, "trade_extremes"):
        return {}
    return {row["event_id"]: (row["low_px"], row["high_px"]) for row in rows(db, "SELECT * FROM trade_extremes")}


def trades_stamp(db: sqlite3.Connection) -> tuple[Any, ...]:
    """A value that changes whenever the journal tells other trades: by an event, an answer, or recorded extremes."""
    extremes = "(SELECT max(seq) FROM trade_extremes)" if has_table(db, "trade_extremes") else "0"
    others = "(SELECT min(seq) FROM events), (SELECT max(seq) FROM events), (SELECT max(moved_ms) FROM intents)"
    (row,) = rows(db, f"SELECT {others}, {extremes}")
    return tuple(row.values())


def newest_events(db: sqlite3.Connection, *, epoch: int | None, limit: int) -> list[Row]:
    """The newest events of an epoch, oldest first."""
    sql = "SELECT payload FROM events WHERE epoch=? ORDER BY seq DESC LIMIT ?"
    return [json.loads(row["payload"]) for row in rows(db, sql, (epoch, limit))][::-1]


def run_note(db: sqlite3.Connection) -> Row:
    """Name, service and strategies of the last run (`RUN`); empty for a journal of an older version."""
    notes = rows(db, "SELECT value FROM meta WHERE name=?", (RUN,))
    note: Row = json.loads(notes[0]["value"]) if notes else {}
    return note


def books(db: sqlite3.Connection) -> list[Row]:
    """The totals of each strategy, and of what belongs to none."""
    return rows(db, "SELECT strategy, fills, fees_usd, funding_usd, realized_usd, margin_lost_usd FROM books")


# -- intents


def intents(
    db: sqlite3.Connection, *, states: Sequence[str] = (), strategy: str | None = None, limit: int = 100
) -> list[Row]:
    """The newest intents, oldest first."""
    where, values = ["1"], list[object]()
    if states:
        where.append(f"state IN ({', '.join('?' for _ in states)})")
        values += states
    if strategy is not None:
        where.append("strategy=?")
        values.append(strategy)
    # Constants only.
    sql = f"SELECT {INTENT_COLUMNS} FROM intents WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?"  # noqa: S608
    return [_intent(row) for row in rows(db, sql, (*values, min(limit, PAGE_MAX)))][::-1]


def intent_where(db: sqlite3.Connection, column: str, value: str) -> Row | None:
    assert column in ("id", "trade_id")
    # Constants only.
    sql = f"SELECT {INTENT_COLUMNS} FROM intents WHERE {column}=? ORDER BY seq DESC LIMIT 1"  # noqa: S608
    matching = rows(db, sql, (value,))
    return _intent(matching[0]) if matching else None


def intents_by_prefix(db: sqlite3.Connection, start: str) -> list[Row]:
    """At most two intents whose id begins so: two mean that the prefix is ambiguous."""
    sql = f"SELECT {INTENT_COLUMNS} FROM intents WHERE substr(id, 1, ?)=? LIMIT 2"  # noqa: S608 - constants only
    return [_intent(row) for row in rows(db, sql, (len(start), start))]


def owners(db: sqlite3.Connection) -> Callable[[Sequence[str]], list[str]]:
    """`strategies_of` for many trades: the intents are read once."""
    strategies = {row["id"]: row["strategy"] for row in rows(db, "SELECT id, strategy FROM intents")}
    return lambda keys: list(dict.fromkeys(strategies[key] for key in keys if key in strategies))


def strategies_of(db: sqlite3.Connection, keys: Sequence[str]) -> list[str]:
    """The strategies of these keys, each once."""
    answers = (rows(db, "SELECT strategy FROM intents WHERE id=?", (key,)) for key in keys)
    return list(dict.fromkeys(answer[0]["strategy"] for answer in answers if answer))


def attempts(db: sqlite3.Connection, intent_id: str) -> list[Row]:
    return rows(
        db, "SELECT n, sent_ms, outcome, code, order_submitted FROM attempts WHERE intent_id=? ORDER BY n", (intent_id,)
    )


def approval(db: sqlite3.Connection, intent_id: str) -> Row | None:
    """The question about a plan and its answer; None if nobody was asked."""
    if not has_table(db, "approvals"):
        return None
    approvals = rows(
        db, "SELECT state, px, asked_ms, decided_ms, decider, reason FROM approvals WHERE intent_id=?", (intent_id,)
    )
    return approvals[0] if approvals else None


def origin(db: sqlite3.Connection, intent: Row) -> Row:
    """Who proposed the entry and why, for each of its plans. Empty for a strategy's own entry."""
    sql = "SELECT id FROM intents WHERE market=? AND strategy=? AND cause=? AND epoch=? ORDER BY seq LIMIT 1"
    first = rows(db, sql, (intent["market"], intent["strategy"], intent["cause"], intent["epoch"]))
    proposal: Row = traces(db, first[0]["id"]).get("wish", {}).get("proposal", {}) if first else {}
    return proposal


def asks(db: sqlite3.Connection, *, strategy: str, cause: str | None = None, limit: int = 100) -> list[Row]:
    """The newest questions of a strategy to a model, newest first, or the one on this cause."""
    if not has_table(db, "asks"):
        return []
    columns = (
        "strategy, cause, asked_ms, key, setup, prompt, model, answer, problem, outcomes, tokens_in, tokens_out, usd,"
        " took_ms"
    )
    where, values = ("", [strategy]) if cause is None else (" AND cause=?", [strategy, cause])
    sql = f"SELECT {columns} FROM asks WHERE strategy=?{where} ORDER BY seq DESC LIMIT ?"  # noqa: S608 - constants only
    return [row | {"outcomes": _list_in(row["outcomes"])} for row in rows(db, sql, (*values, min(limit, PAGE_MAX)))]


def _list_in(text: str) -> list[Any]:
    """The list in a JSON text; empty if a redaction has broken the text."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return []
    return parsed if isinstance(parsed, list) else []


def traces(db: sqlite3.Connection, intent_id: str) -> dict[str, Row]:
    """The traces of an intent: kind -> payload and `at_ms`."""
    if not has_table(db, "traces"):
        return {}
    kept = rows(db, "SELECT kind, at_ms, payload FROM traces WHERE intent_id=?", (intent_id,))
    return {row["kind"]: {"at_ms": row["at_ms"], **json.loads(row["payload"])} for row in kept}


def refusals(db: sqlite3.Connection, *, strategy: str, cause: str) -> list[Row]:
    sql = (
        "SELECT at_ms, strategy, market, ordinal, code, message FROM refusals WHERE strategy=? AND cause=? ORDER BY"
        " ordinal"
    )
    return rows(db, sql, (strategy, cause))


def newest_refusals(db: sqlite3.Connection, *, strategy: str, limit: int = 100) -> list[Row]:
    """What the risk checks refused, newest first."""
    sql = "SELECT at_ms, strategy, market, code, message FROM refusals WHERE strategy=? ORDER BY seq DESC LIMIT ?"
    return rows(db, sql, (strategy, min(limit, PAGE_MAX)))


def refusal_counts(db: sqlite3.Connection, *, strategy: str, codes: Sequence[str]) -> dict[str, int]:
    """Code -> how many refusals of these codes a strategy has."""
    sql = (
        "SELECT code, count(*) AS number FROM refusals WHERE strategy=? AND code IN (SELECT value FROM json_each(?))"
        " GROUP BY code ORDER BY code"
    )
    return {row["code"]: row["number"] for row in rows(db, sql, (strategy, json.dumps(list(codes))))}


def _intent(row: Row) -> Row:
    row["body"] = json.loads(row["body"])
    return row


# -- the whole


def last_state(state_dir: Path) -> LastState:
    """The state when the journal was last written."""
    files = [file.stat() for file in (state_dir / FILE, state_dir / f"{FILE}-wal") if _has_content(file)]
    with opened(state_dir) as db:
        cursor = rows(db, "SELECT last_id, epoch FROM cursor")
        epoch = cursor[0]["epoch"] if cursor else None
        return LastState(
            address=address_of(db),
            epoch=epoch,
            last_event_id=cursor[0]["last_id"] if cursor else None,
            last_event_ms=newest_event_ms(db),
            written_ms=max(path.st_mtime_ns // 1_000_000 for path in files),
            last_bars=rows(
                db,
                "SELECT market, interval, at_ms FROM progress WHERE market NOT LIKE '@%' ORDER BY market, interval",
                # What begins with @ is a timer.
            ),
            open_intents=intents(db, states=("opened", "planned", "sending", "quarantined")),
            positions=_positions(db, epoch),
        )


def address_of(db: sqlite3.Connection) -> str | None:
    """Address of the journal's account."""
    owner = rows(db, "SELECT value FROM meta WHERE name='address'")
    return owner[0]["value"] if owner else None


def _has_content(file: Path) -> bool:
    """False for an empty file: a reader leaves an empty log, whose time is not that of the daemon's last write."""
    return file.is_file() and file.stat().st_size > 0


def _positions(db: sqlite3.Connection, epoch: int | None) -> list[Row]:
    """Open positions by the last fill of each coin. A liquidation or settlement ends a position."""
    sql = (
        "SELECT coin, max(seq), type, subtype, payload FROM events WHERE epoch=? AND coin IS NOT NULL AND"
        " (type IN ('fill', 'settlement') OR (type='liquidation' AND subtype!='partial')) GROUP BY coin ORDER BY coin"
    )
    positions = []
    for row in rows(db, sql, (epoch,)):
        data = json.loads(row["payload"])
        size = data["data"].get("positionSize", "0")
        if row["type"] == "fill" and size.strip("-0."):
            positions.append(
                {
                    "market": row["coin"],
                    "side": data["data"]["side"],
                    "size": size.lstrip("-"),
                    "entry_px": data["data"].get("entryPx"),
                    "at_ms": data["ts"],
                }
            )
    return positions
