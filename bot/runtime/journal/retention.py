"""Trimming: what of the journal's past may go. SQL over its tables; the journal runs it in a transaction, the loop says what is still held.

A key is forgotten only when nothing can ask for it again:

- its intent is final, so that no request of it is on its way;
- its decision cannot be made a second time: it is older than KEYS_MS, and a bar, a timer or an event of that age is refused before a
  key is looked for (gate.FRESH_INTERVALS), besides that the progress and the cursor in this file are past it;
- nothing stands by it: no resting order and no entry of an open position carries it, it is no repair in the market of an open
  position, and a newer entry of its market has been accepted;
- it is not among the newest, which people ask about.

With it go its attempts and traces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bot.runtime.model.intents import RUNTIME
from bot.runtime.model.limits import FRESH_INTERVALS
from bot.wire import INTERVAL_MS

KEYS_MS: Final = FRESH_INTERVALS * max(INTERVAL_MS.values())  # two days of the service's time
ROWS_MAX: Final = 500  # intents that one trim takes away; the next one goes on, so that none holds up a pass
PAGES_FREE: Final = 256  # of 4 kB that stay free for what comes next
PAGES_GIVEN: Final = 2_000  # that one trim gives back to the disk at most

Execute = Callable[[str, Sequence[object]], Any]
Read = Callable[[str, Sequence[object]], Sequence[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Held:
    """What the account holds now: keys of resting orders and of the entries of open positions, and when each position was opened."""

    keys: frozenset[str] = frozenset()
    positions: Mapping[str, int] = field(default_factory=dict)


class Kept(NamedTuple):
    """How many of each, the newest."""

    intents: int
    events: int
    refusals: int
    notices: int


def trim_intents(read: Read, execute: Execute, held: Held, kept: Kept, now_ms: int) -> int:
    """Forget final intents that nothing can ask for; how many went."""
    rows = read(
        "SELECT id FROM intents AS one WHERE seq <= (SELECT max(seq) FROM intents) - ? AND moved_ms < ?"
        " AND state IN ('accepted', 'rejected', 'expired', 'void')"
        " AND id NOT IN (SELECT value FROM json_each(?))"
        " AND NOT (strategy=? AND market IN (SELECT value FROM json_each(?)))"
        " AND (action != 'open' OR state != 'accepted' OR EXISTS (SELECT 1 FROM intents AS newer"
        "      WHERE newer.market=one.market AND newer.seq>one.seq AND newer.action='open' AND newer.state='accepted'))"
        " ORDER BY seq LIMIT ?",
        (kept.intents, now_ms - KEYS_MS, _list(held.keys), RUNTIME, _list(held.positions), ROWS_MAX),
    )
    gone = json.dumps([row[0] for row in rows])
    if rows:
        for table, column in (("attempts", "intent_id"), ("traces", "intent_id"), ("intents", "id")):
            execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (gone,))  # noqa: S608 - constants only
    return len(rows)


def trim_rest(execute: Execute, held: Held, kept: Kept) -> None:
    """The oldest events but those that say whose an open position is; refusals, notifications; and guardians that are no more."""
    execute(
        "DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?"
        " AND (idempotency_key IS NULL OR idempotency_key NOT IN (SELECT value FROM json_each(?)))",
        (kept.events, _list(held.keys)),
    )
    execute("DELETE FROM refusals WHERE seq <= (SELECT max(seq) FROM refusals) - ?", (kept.refusals,))
    execute("DELETE FROM outbox WHERE seq <= (SELECT max(seq) FROM outbox) - ?", (kept.notices,))
    execute(
        "DELETE FROM arms WHERE (name GLOB 'old:*' AND guardian_id IS NULL) OR (name GLOB 'lost:*' AND body='')", ()
    )
    covers = _list(f"cover:{market}:{opened_ms}" for market, opened_ms in held.positions.items())
    execute("DELETE FROM arms WHERE name GLOB 'cover:*' AND name NOT IN (SELECT value FROM json_each(?))", (covers,))


def _list(names: Any) -> str:
    return json.dumps(sorted(names))
