"""Retention: which old rows of the journal may be removed. The journal runs this SQL in a transaction; the kernel names
the keys that are still in use.

A key is removed only if nothing can ask for it again:

- its intent is final, so no request of it is in flight;
- its decision cannot be made again: it is older than KEYS_MS, and a bar, timer or event of that age is refused before
its key is
  looked up (limits.FRESH_INTERVALS); the journal's progress and cursor are past it too;
- nothing uses it: no resting order and no entry of an open position has it, it is no repair and no target order in the
market of an
  open position, and a newer entry of its market has been accepted;
- it is not among the newest, which people ask about.

Its attempts and traces are removed with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bot.clock import DAY_MS
from bot.runtime.model.intents import RUNTIME, TARGET_LEG
from bot.runtime.model.limits import FRESH_INTERVALS
from bot.wire import INTERVAL_MS

# two days of the service's time
KEYS_MS: Final = FRESH_INTERVALS * max(INTERVAL_MS.values())
# A protection has a window of at most 90 days, and a wait of at most 90 days after it.
TRADES_MS: Final = 180 * DAY_MS
# closed trades, newer ones too: 500 a day
TRADES: Final = 90_000
# intents that one trim removes at most, so that none delays a pass; the next trim goes on
ROWS_MAX: Final = 500
# pages of 4 kB that stay free for new rows
PAGES_FREE: Final = 256
# pages that one trim gives back to the disk at most
PAGES_GIVEN: Final = 2_000

Execute = Callable[[str, Sequence[object]], Any]
Read = Callable[[str, Sequence[object]], Sequence[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """Keys of resting orders and of open positions' entries, and when each position was opened."""

    keys: frozenset[str] = frozenset()
    positions: Mapping[str, int] = field(default_factory=dict)


class RowsKept(NamedTuple):
    """How many of the newest rows are kept, by table."""

    intents: int
    events: int
    refusals: int
    notices: int


def trim_intents(read: Read, execute: Execute, held: HeldKeys, kept: RowsKept, now_ms: int) -> int:
    """Remove final intents that nothing can ask for; returns how many."""
    rows = read(
        "SELECT id FROM intents AS one WHERE seq <= (SELECT max(seq) FROM intents) - ? AND moved_ms < ?"
        " AND state IN ('accepted', 'rejected', 'expired', 'void')"
        " AND id NOT IN (SELECT value FROM json_each(?))"
        " AND NOT ((strategy=? OR leg=?) AND market IN (SELECT value FROM json_each(?)))"
        " AND (action != 'open' OR state != 'accepted' OR EXISTS (SELECT 1 FROM intents AS newer"
        "      WHERE newer.market=one.market AND newer.seq>one.seq AND newer.action='open' AND newer.state='accepted'))"
        " ORDER BY seq LIMIT ?",
        (kept.intents, now_ms - KEYS_MS, _list(held.keys), RUNTIME, TARGET_LEG, _list(held.positions), ROWS_MAX),
    )
    gone = json.dumps([row[0] for row in rows])
    if rows:
        for table, column in (
            ("attempts", "intent_id"),
            ("traces", "intent_id"),
            ("approvals", "intent_id"),
            ("intents", "id"),
        ):
            # Constants only.
            execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (gone,))  # noqa: S608
    return len(rows)


def trim_rest(execute: Execute, held: HeldKeys, kept: RowsKept, now_ms: int) -> None:
    """Remove the oldest events (except those that name the owner of an open position), refusals and notices, guardians
    that are gone, and trades and entries that no protection counts any more.
    """
    execute(
        "DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?"
        " AND (idempotency_key IS NULL OR idempotency_key NOT IN (SELECT value FROM json_each(?)))",
        (kept.events, _list(held.keys)),
    )
    execute("DELETE FROM refusals WHERE seq <= (SELECT max(seq) FROM refusals) - ?", (kept.refusals,))
    execute("DELETE FROM outbox WHERE seq <= (SELECT max(seq) FROM outbox) - ?", (kept.notices,))
    execute("DELETE FROM trades WHERE closed_ms < ?", (now_ms - TRADES_MS,))
    execute("DELETE FROM trades WHERE closed_ms IS NOT NULL AND seq <= (SELECT max(seq) FROM trades) - ?", (TRADES,))
    execute("DELETE FROM entries WHERE at_ms < ?", (now_ms - KEYS_MS,))
    execute(
        "DELETE FROM arms WHERE (name GLOB 'old:*' AND guardian_id IS NULL) OR (name GLOB 'lost:*' AND body='')", ()
    )
    covers = _list(f"cover:{market}:{opened_ms}" for market, opened_ms in held.positions.items())
    execute("DELETE FROM arms WHERE name GLOB 'cover:*' AND name NOT IN (SELECT value FROM json_each(?))", (covers,))


def _list(names: Any) -> str:
    return json.dumps(sorted(names))
