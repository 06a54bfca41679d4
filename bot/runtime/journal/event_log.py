"""The journal's events of the service, and the cursor: how far the event feed was taken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.logs import log
from bot.runtime.journal.database import JournalDatabase
from bot.runtime.journal.failover import seal
from bot.runtime.journal.round_trip_log import take_back
from bot.runtime.model.intents import Intent

if TYPE_CHECKING:
    from bot.wire import Event

# the newest events, in which the guardian of a fill that is read next is looked for
CAUSES_READ: Final = 1_000


class Cursor(NamedTuple):
    """The last event taken, the one before it (for the overlap check), and the account's epoch."""

    last_id: str
    prev_id: str | None
    epoch: int


def next_cursor(old: Cursor | None, events: Sequence[Event], last_id: str, epoch: int) -> Cursor:
    """The cursor after these events. Its `prev_id` is the id of the event before `last_id`, or of the old cursor."""
    prev_id = None
    if events and events[-1].id == last_id:
        prev_id = events[-2].id if len(events) > 1 else None if old is None else old.last_id
    return Cursor(last_id, prev_id, epoch)


class EventLog:
    """Events by id, each once. `write` and `put_cursor` belong to an open transaction."""

    def __init__(self, database: JournalDatabase) -> None:
        self._database = database
        # ids that another event had before the service was restored
        self.reused_ids: set[str] = set()
        # how often written events were changed, for readers that have folded them
        self.changes = 0

    def write(self, events: Sequence[Event], last_id: str, *, epoch: int) -> None:
        """Write a page of events and the cursor after it. The primary key refuses an event that was counted before."""
        for event in events:
            payload = event.model_dump_json()
            if event.id in self.reused_ids:
                self._forget_old_event(event)
            self._database.execute(
                "INSERT INTO events (id, epoch, type, subtype, ts, coin, idempotency_key, payload) VALUES"
                " (?,?,?,?,?,?,?,?)",
                (event.id, epoch, event.type, event.subtype, event.ts, event.coin, event.idempotency_key, payload),
            )
        self.move_cursor(last_id, events, epoch)

    def move_cursor(self, last_id: str, events: Sequence[Event], epoch: int) -> None:
        old = self.cursor
        if old is None or old.last_id != last_id:
            self.put_cursor(next_cursor(old, events, last_id, epoch))

    def put_cursor(self, cursor: Cursor) -> None:
        self._database.execute(
            "INSERT INTO cursor (one, last_id, prev_id, epoch, seal) VALUES (1,?,?,?,?) ON CONFLICT (one) DO UPDATE"
            " SET last_id=excluded.last_id, prev_id=excluded.prev_id, epoch=excluded.epoch, seal=excluded.seal",
            (*cursor, seal(*cursor)),
        )

    def trigger_of(self, event_id: str, ts: int) -> str:
        """The trigger of what a strategy wants on an event.

        A restored service may give an id twice, so the second one carries its time.
        """
        return f"event:{event_id}:{ts}" if event_id in self.reused_ids else f"event:{event_id}"

    def unseen(self, events: Sequence[Event]) -> list[Event]:
        """The events of a page that were not taken before, each once, in their order.

        A restored service gives ids again, so an event with a known id and another instant is new.
        """
        fresh: dict[str, Event] = {}
        for event in events:
            if event.id in fresh:
                continue
            row = self._database.read("SELECT ts FROM events WHERE id=?", (event.id,)).fetchone()
            if row is None or row[0] != event.ts:
                fresh[event.id] = event
                if row is not None:
                    self.reused_ids.add(event.id)
        return list(fresh.values())

    def _forget_old_event(self, event: Event) -> None:
        """Remove the event that had this id before the service was restored.

        Its notices get another name, because the outbox accepts an event's id once.
        """
        for (seq,) in self._database.read("SELECT seq FROM events WHERE id=? AND ts<>?", (event.id, event.ts)):
            self._changes_from(seq)
        self._database.execute("DELETE FROM events WHERE id=? AND ts<>?", (event.id, event.ts))
        self._database.execute("UPDATE outbox SET event_id=event_id||':'||seq WHERE event_id=?", (event.id,))
        log.warning("event.id_reused", event_id=event.id, message="the service was restored and gives this id again")

    def _changes_from(self, seq: int) -> None:
        self.changes += 1
        take_back(self._database, seq)

    @property
    def cursor(self) -> Cursor | None:
        row = self._database.read("SELECT last_id, prev_id, epoch FROM cursor").fetchone()
        return None if row is None else Cursor(*row)

    def last_taken(self) -> tuple[Cursor | None, int | None]:
        """The cursor and the instant of its event;

        None if that event is not in the journal, because the feed began after it.
        """
        row = self._database.read(
            "SELECT last_id, prev_id, epoch, (SELECT ts FROM events WHERE id=last_id) FROM cursor"
        ).fetchone()
        return (None, None) if row is None else (Cursor(*row[:3]), row[3])

    def last_event(
        self, coin: str, type_: str, subtype: str, *, epoch: int, kind: str | None = None
    ) -> dict[str, Any] | None:
        """The newest event of a type for a coin, as the service sent it; `kind` narrows it to one kind of order."""
        row = self._database.read(
            "SELECT payload FROM events WHERE coin=? AND type=? AND subtype=? AND epoch=?"
            " AND (? IS NULL OR json_extract(payload, '$.data.kind')=?) ORDER BY seq DESC LIMIT 1",
            (coin, type_, subtype, epoch, kind, kind),
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def guardian_trades(self) -> list[tuple[str, str]]:
        """Trade id and type of guardian, for the trades that guardians have caused among the newest events."""
        rows = self._database.read(
            "SELECT trade.value, json_extract(payload, '$.data.guardianType') FROM events,"
            " json_each(payload, '$.data.tradeIds') AS trade WHERE seq > (SELECT max(seq) FROM events) - ?"
            " AND events.type='guardian' AND subtype='fired' ORDER BY seq",
            (CAUSES_READ,),
        )
        return [(str(trade), str(kind)) for trade, kind in rows]

    def entry_keys(self, coin: str, *, epoch: int, since_ms: int) -> list[str]:
        """Idempotency keys of the fills that opened or grew a position since that instant, oldest first."""
        rows = self._database.read(
            "SELECT idempotency_key FROM events WHERE coin=? AND type='fill' AND subtype='entry' AND epoch=? AND ts>=?"
            " AND idempotency_key IS NOT NULL ORDER BY seq",
            (coin, epoch, since_ms),
        )
        return [row[0] for row in rows]

    def entry_fills(self, key: str, *, epoch: int) -> list[tuple[Decimal, Decimal, int]]:
        """Size, price and instant of each fill with which an order opened or grew a position, oldest first."""
        rows = self._database.read(
            "SELECT json_extract(payload, '$.data.size'), json_extract(payload, '$.data.px'), ts FROM events WHERE"
            " coin=(SELECT market FROM intents WHERE id=?) AND type='fill' AND subtype='entry' AND epoch=? AND"
            " idempotency_key=? ORDER BY seq",
            (key, epoch, key),
        )
        return [(Decimal(size), Decimal(px), ts) for size, px, ts in rows]

    def opened_ms(self, coin: str, *, epoch: int) -> int:
        """When the coin's present position began: at the fill that opened it from zero.

        If the newest event left no position: just after that event. If the journal has neither: 0.
        """
        newest = self._database.read(
            "SELECT ts, type='fill' AND CAST(json_extract(payload, '$.data.positionSize') AS REAL)!=0 FROM events WHERE"
            " coin=? AND epoch=? AND (type IN ('fill', 'settlement') OR (type='liquidation' AND subtype!='partial'))"
            " ORDER BY seq DESC LIMIT 1",
            (coin, epoch),
        ).fetchone()
        if newest is not None and not newest[1]:
            return int(newest[0]) + 1
        began = self._database.read(
            "SELECT ts FROM events WHERE coin=? AND epoch=? AND type='fill' AND subtype='entry' AND"
            " CAST(json_extract(payload, '$.data.size') AS REAL)=abs(CAST(json_extract(payload, '$.data.positionSize')"
            " AS REAL)) ORDER BY seq DESC LIMIT 1",
            (coin, epoch),
        ).fetchone()
        return 0 if began is None else int(began[0])

    def has_seen_own_key(self) -> bool:
        """True if an event came with one of our keys, so this service returns keys.

        Keys that `attach_key` added do not count.
        """
        row = self._database.read(
            "SELECT EXISTS (SELECT 1 FROM (SELECT idempotency_key AS seen, payload FROM events WHERE idempotency_key IS"
            " NOT NULL ORDER BY seq DESC LIMIT 1000) JOIN intents ON intents.id=seen WHERE json_extract(payload,"
            " '$.keyFrom') IS NULL)"
        ).fetchone()
        return bool(row[0])

    def trades_by_key(self, keys: Iterable[str], *, epoch: int) -> dict[str, str]:
        """Key -> trade id, for those of these keys that an event has shown."""
        rows = self._database.read(
            "SELECT idempotency_key, json_extract(payload, '$.data.tradeId') AS trade_id FROM events"
            " WHERE epoch=? AND trade_id IS NOT NULL AND idempotency_key IN (SELECT value FROM json_each(?))",
            (epoch, json.dumps(list(keys))),
        )
        return dict(rows)

    def attach_key(self, intent: Intent) -> list[dict[str, Any]]:
        """Give an accepted intent's key to the events of its trade that came before its answer; returns them."""
        rows = self._database.read(
            "SELECT id, payload, seq FROM events WHERE coin=? AND epoch=? AND type IN ('fill', 'order')"
            " AND idempotency_key IS NULL AND json_extract(payload, '$.data.tradeId')=?"
            " AND json_extract(payload, '$.data.intent')=? ORDER BY seq",
            (intent.market, intent.epoch, intent.trade_id, intent.action),
        )
        if not rows:
            return []
        named = {row[0]: json.loads(row[1]) | {"idempotencyKey": intent.id, "keyFrom": "trade"} for row in rows}
        with self._database.transaction():
            self._changes_from(rows[0][2])
            for event_id, event in named.items():
                payload = json.dumps(event, separators=(",", ":"))
                self._database.execute(
                    "UPDATE events SET idempotency_key=?, payload=? WHERE id=?", (intent.id, payload, event_id)
                )
        return list(named.values())
