"""Requests keep to the weight of a minute, and what protects a position goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from bot.clock import MINUTE_MS, ManualClock, SystemClock
from bot.exchanges.actions import Rank
from bot.exchanges.hyperliquid.requests import Requests
from bot.exchanges.hyperliquid.weights import (
    REFUSED_WAIT_MS,
    RESERVED,
    WEIGHT_A_MINUTE,
    WeightWindow,
    weight_after,
    weight_before,
)
from bot.exchanges.protocol import BudgetUsedUp, NoExchangeAnswer


@pytest.mark.parametrize(
    ("query", "rows", "before", "after"),
    [
        ({"type": "l2Book"}, 2, 2, 2),
        ({"type": "clearinghouseState"}, 9, 2, 2),
        ({"type": "userRole"}, 1, 60, 60),
        ({"type": "meta"}, 500, 20, 20),
        ({"type": "userFillsByTime"}, 2_000, 120, 120),
        ({"type": "userFillsByTime"}, 0, 120, 20),
        ({"type": "userFillsByTime"}, 1, 120, 21),
        ({"type": "candleSnapshot"}, 5_000, 103, 104),
        ({"type": "candleSnapshot"}, 60, 103, 21),
        ({"type": "fundingHistory"}, 500, 45, 45),
    ],
)
def test_a_request_weighs_what_the_documentation_says(
    query: dict[str, Any], rows: int, before: int, after: int
) -> None:
    assert (weight_before(query), weight_after(query, [None] * rows)) == (before, after)


def test_no_minute_weighs_more_than_the_limit_and_a_part_is_kept_for_stops() -> None:
    random, window, now_ms = Random(1), WeightWindow(), 0
    sent: list[tuple[int, Rank, int]] = []
    for _ in range(3_000):
        rank, weight = Rank(random.randrange(len(Rank))), random.choice([2, 20, 60, 120])
        wait_ms = window.wait_ms(rank, weight, now_ms)
        if wait_ms and random.random() < 0.5:
            continue
        now_ms += wait_ms
        assert window.wait_ms(rank, weight, now_ms) == 0
        window.charge(weight, now_ms)
        sent.append((now_ms, rank, weight))
        now_ms += random.randrange(1_500)
    for end_ms, *_ in sent:
        minute = [(rank, weight) for at_ms, rank, weight in sent if end_ms - MINUTE_MS < at_ms <= end_ms]
        assert sum(weight for _, weight in minute) <= WEIGHT_A_MINUTE
        assert sum(weight for rank, weight in minute if rank > Rank.CANCEL) <= WEIGHT_A_MINUTE - RESERVED


def test_after_too_many_requests_reads_wait_and_stops_do_not() -> None:
    window = WeightWindow()
    window.refuse(1_000)
    assert window.wait_ms(Rank.PRICE, 2, 1_000) == REFUSED_WAIT_MS
    assert window.wait_ms(Rank.STOP, 2, 1_000) == window.wait_ms(Rank.CANCEL, 2, 1_000) == 0
    assert window.wait_ms(Rank.PRICE, 2, 1_000 + REFUSED_WAIT_MS) == 0


class Server:
    """Answers each request by its type. `held`: no answer until it is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.faults: list[Exception] = []
        self.held = asyncio.Event()
        self.held.set()

    async def info(self, query: Mapping[str, Any]) -> Any:
        self.asked.append(query["type"])
        await self.held.wait()
        if self.faults:
            raise self.faults.pop(0)
        return {"answer": len(self.asked)}


async def test_a_stop_goes_before_prices_that_have_waited_longer() -> None:
    server, clock = Server(), SystemClock()
    requests = Requests(server, clock, WeightWindow(RESERVED + 20))
    full = requests.window.charge(20, clock.now_ms())
    waiting = [asyncio.create_task(requests.info({"type": kind}, Rank.PRICE)) for kind in ("first", "second")]
    await asyncio.sleep(0)
    stop = asyncio.create_task(requests.info({"type": "stop"}, Rank.STOP))
    await stop
    assert server.asked == ["stop"]
    full.weight = -40
    requests._wake()
    await asyncio.gather(*waiting)
    assert server.asked == ["stop", "first", "second"]


async def test_facts_that_change_rarely_are_asked_once_a_minute_by_all_together() -> None:
    server, clock = Server(), ManualClock(0)
    requests = Requests(server, clock)
    role = {"type": "userRole", "user": "0x1"}
    server.held.clear()
    callers = [asyncio.create_task(requests.info(role, Rank.REPAIR)) for _ in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()
    server.held.set()
    answers = await asyncio.gather(*callers[1:])
    assert answers == [{"answer": 1}] * 4 and server.asked == ["userRole"]
    assert await requests.info({**role, "user": "0x2"}, Rank.REPAIR) == {"answer": 2}
    clock.set(MINUTE_MS + 1)
    assert await requests.info(role, Rank.REPAIR) == {"answer": 3}


async def test_a_failed_answer_is_not_shared() -> None:
    server = Server()
    requests = Requests(server, SystemClock())
    server.faults = [NoExchangeAnswer("first"), NoExchangeAnswer("second"), NoExchangeAnswer("third")]
    with pytest.raises(NoExchangeAnswer, match="third"):
        await requests.info({"type": "meta"}, Rank.REPAIR)
    assert await requests.info({"type": "meta"}, Rank.REPAIR) == {"answer": 4}


async def test_an_entry_is_refused_at_the_door_when_the_limit_or_the_queue_takes_too_long() -> None:
    server, clock = Server(), ManualClock(0)
    requests = Requests(server, clock, WeightWindow(RESERVED + 20))
    assert await requests.turn(Rank.ENTRY, 20, 2_000)
    assert not await requests.turn(Rank.ENTRY, 1, 2_000)
    assert requests.window.used(0) == 20
    assert await requests.turn(Rank.STOP, 1)
    clock.set(MINUTE_MS - 1_000)
    waiting = asyncio.create_task(requests.turn(Rank.ENTRY, 1))
    await asyncio.sleep(0)
    # The limit has room now, but another entry has waited for longer than 2 s.
    clock.set(MINUTE_MS - 1_000 + 2_001)
    assert not requests.window.wait_ms(Rank.ENTRY, 1, clock.now_ms())
    assert not await requests.turn(Rank.ENTRY, 1, 2_000)
    clock.set(2 * MINUTE_MS)
    requests._wake()
    assert await waiting


async def test_an_entry_that_waits_its_turn_is_given_up_after_the_longest_wait() -> None:
    server, clock = Server(), ManualClock(0)
    requests = Requests(server, clock, WeightWindow(RESERVED + 20))
    requests.window.charge(20, -MINUTE_MS + 30)
    assert not await requests.turn(Rank.ENTRY, 20, 40)
    assert requests._queue == [] and requests._since_ms == {}


async def test_a_refused_action_pauses_reads_and_entries_and_no_stops() -> None:
    requests = Requests(Server(), ManualClock(0))
    requests.refused()
    assert requests.window.wait_ms(Rank.REPAIR, 2, 0) == REFUSED_WAIT_MS
    assert not await requests.turn(Rank.ENTRY, 1, 2_000)
    assert await requests.turn(Rank.EXIT, 1)


async def test_a_used_up_limit_makes_reads_wait_before_they_are_sent_again() -> None:
    server, clock = Server(), ManualClock(0)
    requests = Requests(server, clock)
    server.faults = [BudgetUsedUp("429")]
    asked = asyncio.create_task(requests.info({"type": "l2Book"}, Rank.PRICE))
    while not requests.window.wait_ms(Rank.PRICE, 2, 0):
        await asyncio.sleep(0)
    assert requests.window.used(0) == 0
    clock.set(REFUSED_WAIT_MS)
    assert await asked == {"answer": 2}
