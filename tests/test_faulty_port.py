"""The faults of FaultyPort are those that it names: each leaves at the venue, and tells the daemon, what it says."""

from __future__ import annotations

from decimal import Decimal

import pytest

from bot.errors import ApiError
from bot.wire import BracketRequest, LegRequest, OrderRequest
from tests.faulty_port import Fault, FaultyPort, refused

STOP = BracketRequest(stop_loss=LegRequest(pct=Decimal(5)), take_profit=LegRequest(pct=Decimal(5)))
ORDER = OrderRequest(market="BTC", side="long", usd_amount=Decimal(200), bracket=STOP)


@pytest.mark.parametrize(
    ("kind", "submitted", "at_once", "a_minute_later"),
    [
        ("lose_reply", "unknown", 1, 1),
        ("drop", "unknown", 0, 0),
        ("late", "unknown", 0, 1),
        (refused("market_closed"), False, 0, 0),
    ],
)
async def test_a_fault_executes_and_answers_as_it_says(
    kind: str | ApiError, submitted: object, at_once: int, a_minute_later: int
) -> None:
    venue = FaultyPort()
    venue.faults = [Fault("place", kind)]
    with pytest.raises(ApiError) as raised:
        await venue.place(ORDER, key="one")
    assert (raised.value.order_submitted, len(venue.fills)) == (submitted, at_once)
    venue.minute()
    assert len(venue.fills) == a_minute_later
    await venue.place(ORDER, key="one")
    assert len(venue.fills) == 1, "the service executes a key once"


@pytest.mark.parametrize(("close", "px"), [("90", "95"), ("110", "105")])
async def test_a_stop_and_a_target_fill_at_their_own_level(close: str, px: str) -> None:
    venue = FaultyPort()
    await venue.place(ORDER, key="one")
    venue.minute(BTC=close)
    assert [fill[3:] for fill in venue.fills] == [("open", "2", "100"), ("close", "2", px)]
    assert (venue.positions, venue.working) == ({}, {})


async def test_a_refusal_is_kept_under_its_key_as_the_service_keeps_it() -> None:
    venue = FaultyPort()
    venue.refuse = lambda _request: refused("insufficient_funds")
    for _ in range(2):
        with pytest.raises(ApiError, match="insufficient_funds"):
            await venue.place(ORDER, key="one")
        venue.refuse = lambda _request: None
    await venue.place(ORDER, key="two")
    assert len(venue.fills) == 1


async def test_what_is_lost_is_in_no_event_and_no_list() -> None:
    venue = FaultyPort()
    await venue.place(ORDER, key="one")
    before = (await venue.events(None)).last_event_id
    venue.lose(*venue.working)
    page = await venue.events(before)
    account = await venue.account()
    assert (page.events, page.last_event_id, account.last_event_id) == ((), before, before)
    assert (account.orders, [one.coin for one in account.positions]) == ((), ["BTC"])


@pytest.mark.parametrize(
    ("keys", "on_trade", "on_event", "fills"),
    [("shown", "one", "one", 1), ("on trades", "one", None, 2), ("hidden", None, None, 2)],
)
async def test_a_service_shows_keys_where_it_is_said_to(
    keys: str, on_trade: str | None, on_event: str | None, fills: int
) -> None:
    venue = FaultyPort(keys=keys)
    await venue.place(ORDER, key="one")
    (trade,) = (await venue.trades()).trades
    entry = next(event for event in (await venue.events(None)).events if event.type == "fill")
    assert (trade.idempotency_key, entry.idempotency_key) == (on_trade, on_event)
    await venue.place(ORDER, key="one")
    assert len(venue.fills) == fills


async def test_a_service_that_is_restored_goes_on_from_there() -> None:
    venue = FaultyPort()
    before = venue.saved()
    await venue.place(ORDER, key="one")
    venue.minute(BTC="90")
    venue.restore(before)
    assert (venue.positions, venue.fills, venue.px["BTC"]) == ({}, [], 100)
    await venue.place(ORDER, key="one")
    assert len(venue.fills) == 1
