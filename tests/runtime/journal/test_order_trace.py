"""`bot explain` shows a position from its beginning: a reset before it ends another position."""

from __future__ import annotations

from bot.runtime.journal import queries
from bot.runtime.journal.order_trace import explain
from bot.runtime.journal.round_trips import TYPES, trips
from bot.strategy import Bracket, Open
from tests.faulty_port import FaultyPort
from tests.runtime.builders import always, begun, later, make_kernel, minutes, stop_of


async def test_a_chain_after_a_reset_has_no_event_from_before_it() -> None:
    venue = FaultyPort()
    venue.minute(BTC="100")
    kernel = make_kernel(venue, always)
    await kernel.recover()
    await kernel.cycle()
    (first,) = (row["id"] for row in kernel.journal.db["intents"].rows)
    before = venue.trade_rows[-1].id
    venue.reset()
    later(kernel, 60_000)
    await minutes(kernel, venue, "100", "100")
    assert "BTC" in venue.positions
    after = venue.trade_rows[-1].id
    assert "reset" not in [row["subtype"] for row in kernel.journal.db["events"].rows], "its event is never taken"
    with queries.in_rows(kernel.journal.db.conn) as db:
        told = {
            name: {str(step.data.get("tradeId") or step.data.get("trade_id")) for step in explain(db, name)} - {"None"}
            for name in (first, before, stop_of(venue))
        }
        found = [(one.entry_trade_id, one.status) for one in trips(queries.all_events(db, TYPES))]
    assert told == {first: {before}, before: {before}, stop_of(venue): {after}}
    assert found == [(before, "reset"), (after, "open")]


async def test_the_stop_of_an_older_position_is_not_in_the_chain_of_a_resting_entry() -> None:
    """A limit waits below the stop of an open position: the stop fires first; then the limit is filled and stopped
    itself.
    """
    entries = [
        Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=5)),
        Open("BTC", "long", usd=200, limit_px=90, bracket=Bracket(stop_pct=5)),
    ]
    venue = FaultyPort()
    kernel = await begun(venue, lambda _view, _bar: [entries.pop(0)] if entries else ())
    await minutes(kernel, venue, "100", "94", "89", "80", "80")
    assert venue.positions == {}
    with queries.in_rows(kernel.journal.db.conn) as db:
        first, second = (row["id"] for row in kernel.journal.db["intents"].rows)
        fills = [one["data"]["tradeId"] for one in queries.all_events(db, ("fill",))]
        told = [[s.data["tradeId"] for s in explain(db, one) if s.what == "fill"] for one in (first, second, fills[-1])]
    assert told == [fills[:2], fills[2:], fills[2:]]
