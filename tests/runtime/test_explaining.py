"""What `bot explain` tells of a position begins with that position: a reset before it is the end of another one."""

from __future__ import annotations

from bot.runtime import reading
from bot.runtime.explaining import explain
from bot.runtime.roundtrips import TYPES, trips
from tests.fakes import FakeVenue
from tests.runtime.rooms import always, later, minutes, room
from tests.runtime.test_reconcile import stop_of


async def test_what_stood_before_a_reset_is_no_part_of_what_came_after_it() -> None:
    venue = FakeVenue()
    venue.minute(BTC="100")
    loop = room(venue, always)
    await loop.recover()
    await loop.cycle()
    (first,) = (row["id"] for row in loop.journal.db["intents"].rows)
    before = venue.trade_rows[-1].id
    venue.reset()
    later(loop, 60_000)
    await minutes(loop, venue, "100", "100")
    assert "BTC" in venue.positions
    after = venue.trade_rows[-1].id
    assert "reset" not in [row["subtype"] for row in loop.journal.db["events"].rows], "its event is never taken"
    with reading.in_rows(loop.journal.db.conn) as db:
        told = {
            name: {str(step.data.get("tradeId") or step.data.get("trade_id")) for step in explain(db, name)} - {"None"}
            for name in (first, before, stop_of(venue))
        }
        found = [(one.entry_trade_id, one.status) for one in trips(reading.all_events(db, TYPES))]
    assert told == {first: {before}, before: {before}, stop_of(venue): {after}}
    assert found == [(before, "reset"), (after, "open")]
