"""The event stream over a real server: the same sequence as pages for any filter and cut; refusals before the start;
ends in time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from bot.client import Client
from bot.client.stream import Parser, StreamMessage
from bot.clock import SystemClock
from bot.errors import AccessLost, Refused
from bot.service.http.event_stream import LOOK_SECONDS, STREAMS_MAX
from bot.wire.vocabulary import EVENT_FILTERS
from tests.service import serving

CONTROL = {"Authorization": "Bearer bbc_of_the_test"}
PATIENCE_S = 60.0
# seconds that a busy machine may add to the promised ones
SLACK_S = 8.0
FILTERS = sorted(EVENT_FILTERS)

Start = Callable[..., serving.Served]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[serving.Served] = []

    def make(**options: Any) -> serving.Served:
        defaults = {"port": 0, "markets": ["BTC"], "rate_limits": False, "clock": "manual", "hold_prices": True}
        made = serving.start(env={"BOT_CONTROL_TOKEN": "bbc_of_the_test"}, **(defaults | options))
        running.append(made)
        return made

    yield make
    for served in running:
        serving.end(served)


class Trader:
    """An account over a real connection, with a method that makes its feed long."""

    def __init__(self, http: httpx.AsyncClient, opened: dict[str, Any]) -> None:
        self.http = http
        self.key: str = opened["apiKey"]
        self.headers = {"Authorization": f"Bearer {self.key}"}

    async def order(self, **more: Any) -> None:
        body = {"market": "BTC", "side": "long", "usdAmount": 20} | more
        answer = await self.http.post("/v1/orders", json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text

    async def history(self, chance: Random, steps: int) -> None:
        for _ in range(steps):
            move = chance.choice(("buy", "sell", "rest", "cancel", "price", "guardian"))
            if move in ("buy", "sell"):
                await self.order(side="long" if move == "buy" else "short")
            elif move == "rest":
                resting = {"market": "BTC", "side": "long", "usdAmount": 20, "type": "limit", "limitPx": "90000"}
                await self.http.post("/v1/orders", json=resting, headers=self.headers)
            elif move == "cancel":
                await self.http.request("DELETE", "/v1/orders", json={"coin": "BTC"}, headers=self.headers)
            elif move == "price":
                px = str(chance.randrange(98_000, 102_000))
                await self.http.post("/sandbox/v1/markets/BTC/price", json={"px": px}, headers=CONTROL)
            else:
                armed = {"type": "dead_man_switch", "scope": "account", "heartbeatSeconds": 3600}
                await self.http.post("/v1/guardians", json=armed, headers=self.headers)

    async def page(self, since: str | None = None, types: str | None = None, limit: int = 200) -> Any:
        query = {"since": since, "types": types, "limit": limit}
        asked = {name: value for name, value in query.items() if value is not None}
        answer = await self.http.get("/v1/events", params=asked, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def pages(self, since: str | None, types: str | None, chance: Random) -> list[Any]:
        found: list[Any] = []
        while True:
            page = await self.page(since, types, limit=chance.randrange(1, 40))
            if not page["events"]:
                return found
            found += page["events"]
            since = page["lastEventId"]

    @asynccontextmanager
    async def stream(
        self, since: str | None = None, types: str | None = None, last: str | None = None
    ) -> AsyncIterator[Any]:
        asked = {name: value for name, value in {"since": since, "types": types}.items() if value is not None}
        headers = self.headers | ({} if last is None else {"Last-Event-ID": last})
        async with self.http.stream("GET", "/v1/events/stream", params=asked, headers=headers) as answer:
            yield answer

    async def take(self, count: int, began: asyncio.Event | None = None, **where: Any) -> list[StreamMessage]:
        """The first messages of a stream, up to the given number; then the stream is closed.

        `began` is set when it is open.
        """
        if count == 0:
            return []
        found: list[StreamMessage] = []
        parser = Parser()
        async with asyncio.timeout(PATIENCE_S), self.stream(**where) as answer:
            assert answer.status_code == 200
            if began is not None:
                began.set()
            async for part in answer.aiter_bytes():
                found += parser.feed(part)
                if len(found) >= count:
                    return found[:count]
        raise AssertionError("the stream ended")


@asynccontextmanager
async def trading(served: serving.Served) -> AsyncIterator[Trader]:
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=served.base_url, timeout=60, limits=limits) as http:
        await http.post("/sandbox/v1/markets/BTC/price", json={"px": "100000"}, headers=CONTROL)
        opened = (await http.post("/v1/sandbox/accounts", json={"startingBalanceUsd": 100_000})).json()
        yield Trader(http, opened)


@pytest.mark.soak(worlds=30, full=5_000)
async def test_pages_filters_and_resumes_give_the_same_sequence(start: Start, worlds: int, base_seed: int) -> None:
    async with trading(start()) as trader:
        await trader.history(Random(base_seed), 150)
        everything = await trader.pages(None, None, Random(0))
        assert len(everything) > 100
        assert [int(event["id"][4:]) for event in everything] == list(range(1, len(everything) + 1))
        for seed in range(base_seed, base_seed + worlds):
            chance = Random(seed)
            types = None if chance.random() < 0.3 else ",".join(chance.sample(FILTERS, chance.randrange(1, 5)))
            since = None if chance.random() < 0.3 else chance.choice(everything)["id"]
            wanted = None if types is None else set(types.split(","))
            expected = [
                event
                for event in everything
                if (since is None or event["id"] > since)
                and (wanted is None or {event["type"], f"{event['type']}.{event['subtype']}"} & wanted)
            ]
            assert await trader.pages(since, types, chance) == expected, seed
            got: list[StreamMessage] = []
            last: str | None = None
            while len(got) < len(expected):
                count = min(chance.randrange(1, 60), len(expected) - len(got))
                # A browser sends its old address again, with the newer header.
                got += await trader.take(count, since=since, types=types, last=last)
                last = got[-1].id
            assert [json.loads(message.data) for message in got] == expected, seed
            assert [(m.id, m.event) for m in got] == [(event["id"], event["type"]) for event in expected]


async def test_a_stream_sends_at_once_and_has_its_headers(start: Start) -> None:
    async with trading(start()) as trader:
        last = (await trader.page())["lastEventId"]
        async with trader.stream(last, "fill") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers.get_list("cache-control") == ["no-store"]
            assert answer.headers["x-api-version"] == "2026-10-19"
            assert answer.headers["x-request-id"].startswith("req_")
            parts = answer.aiter_bytes()
            assert await anext(parts) == b"retry: 2000\n\n"
            took = []
            for _ in range(5):
                began = time.monotonic()
                await trader.order()
                text = (await asyncio.wait_for(anext(parts), PATIENCE_S)).decode()
                took.append(time.monotonic() - began)
            assert min(took) < LOOK_SECONDS / 3, "by the wake-up, not by the regular check"
            lines = text.split("\n")
            assert lines[0].startswith("id: evt_")
            assert lines[1] == "event: fill"
            assert json.loads(lines[2].removeprefix("data: "))["type"] == "fill"


@pytest.mark.parametrize(
    ("query", "header", "status", "field"),
    [
        ({"since": "evt_000000009999"}, None, 410, None),
        ({}, "evt_000000009999", 410, None),
        ({"since": "nonsense"}, None, 400, "since"),
        ({}, "nonsense", 400, "Last-Event-ID"),
        ({"limit": "5"}, None, 400, "limit"),
    ],
)
async def test_a_stream_that_cannot_begin_is_a_plain_error(
    box: Any, caller: Any, query: Any, header: Any, status: int, field: Any
) -> None:
    headers = caller.headers | ({} if header is None else {"Last-Event-ID": header})
    answer = await box.http.get("/v1/events/stream", params=query, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == status
    if status == 410:
        assert error["fix"] == {"action": "resync", "lastEventId": (await caller.get("/v1/account"))["lastEventId"]}
    else:
        assert error["details"]["fields"][0]["field"] == field
    assert (await box.http.get("/v1/events/stream")).status_code == 401


async def test_a_connected_reader_continues_over_a_reset_and_a_later_cursor_is_void(start: Start) -> None:
    async with trading(start()) as trader:
        await trader.order()
        page = await trader.page()
        began = asyncio.Event()
        follower = asyncio.create_task(trader.take(1, began, since=page["lastEventId"]))
        await asyncio.wait_for(began.wait(), PATIENCE_S)
        await trader.http.post("/v1/sandbox/accounts/reset", json={}, headers=trader.headers)
        (message,) = await follower
        newest = (await trader.page())["lastEventId"]
        assert (message.id, json.loads(message.data)["subtype"]) == (newest, "reset")
        (first,) = await trader.take(1)
        assert (first.id, json.loads(first.data)["subtype"]) == (newest, "reset")
        async with trader.stream(page["events"][0]["id"]) as answer:
            assert answer.status_code == 410


async def ended(answer: Any) -> tuple[list[StreamMessage], float]:
    """All messages until the server ends the stream, and the time until then."""
    began = time.monotonic()
    parser = Parser()
    found: list[StreamMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        async for part in answer.aiter_bytes():
            found += parser.feed(part)
    return found, time.monotonic() - began


async def test_a_revoked_key_ends_its_stream_within_two_seconds_with_an_error_that_has_no_id(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "c.sock"
    served = start(control_socket=path, clock="real")
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://embedded", timeout=60) as control,
        trading(served) as trader,
    ):
        minted = (await control.post("/sandbox/v1/keys", json={"accountId": None})).json()
        trader.headers = {"Authorization": f"Bearer {minted['apiKey']}"}
        last = (await trader.page())["lastEventId"]
        async with trader.stream(last) as answer:
            await control.post("/sandbox/v1/keys", json={"accountId": minted["accountId"]})
            messages, seconds = await ended(answer)
        assert seconds < 2 + SLACK_S
        assert messages[-1].event == "error"
        assert messages[-1].id == (messages[-2].id if len(messages) > 1 else "")
        error = json.loads(messages[-1].data)["error"]
        assert (error["code"], error["requestId"]) == ("unauthorized", answer.headers["x-request-id"])


async def test_an_expired_key_ends_its_stream_within_two_seconds(start: Start) -> None:
    async with trading(start(clock="real")) as trader:
        expires = SystemClock().now_ms() + 4_000
        made = await trader.http.post(
            "/v1/keys", json={"scopes": ["read"], "expiresAt": expires}, headers=trader.headers
        )
        assert made.status_code == 200, made.text
        last = (await trader.page())["lastEventId"]
        trader.headers = {"Authorization": f"Bearer {made.json()['apiKey']}"}
        async with trader.stream(last) as answer:
            messages, _ = await ended(answer)
        assert SystemClock().now_ms() - expires < (2 + SLACK_S) * 1_000
        assert json.loads(messages[-1].data)["error"]["code"] == "session_expired"


async def all_of(began: list[asyncio.Event]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for one in began:
            await one.wait()


async def test_at_most_sixty_four_streams_are_open_and_an_ended_one_frees_a_slot(start: Start) -> None:
    async with trading(start()) as trader:
        last = (await trader.page())["lastEventId"]
        began = [asyncio.Event() for _ in range(STREAMS_MAX)]
        tasks = [asyncio.create_task(trader.take(1, one, since=last)) for one in began]
        await all_of(began)
        refused = await trader.http.get("/v1/events/stream", headers=trader.headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == "2"
        tasks[0].cancel()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with trader.stream(last) as answer:
                    if answer.status_code == 200:
                        parts = answer.aiter_bytes()
                        assert await anext(parts) == b"retry: 2000\n\n"
                        break
                await asyncio.sleep(0.02)
        del tasks[0]
        await trader.order()
        found = await asyncio.gather(*tasks)
        assert {messages[0].event for messages in found} == {"fill"}


async def test_a_stop_with_open_streams_takes_less_than_two_seconds(start: Start, tmp_path: Path) -> None:
    served = start(db=tmp_path / "s.db")
    async with trading(served) as trader:
        last = (await trader.page())["lastEventId"]

        async def drain(began: asyncio.Event) -> None:
            async with trader.stream(last) as answer:
                began.set()
                await ended(answer)

        open_ones = [asyncio.Event() for _ in range(20)]
        tasks = [asyncio.create_task(drain(one)) for one in open_ones]
        await all_of(open_ones)
        began = time.monotonic()
        code = await asyncio.to_thread(served.stop)
        assert code == 0
        assert time.monotonic() - began < 2 + SLACK_S
        await asyncio.gather(*tasks)


async def test_a_stream_sends_only_events_that_are_on_disk(start: Start, tmp_path: Path) -> None:
    """Killed while it streams: every streamed event exists after the restart, under the same id."""
    served = start(db=tmp_path / "s.db")
    heard: dict[str, str] = {}
    async with trading(served) as trader:

        async def listen() -> None:
            parser = Parser()
            try:
                async with trader.stream() as answer:
                    async for part in answer.aiter_bytes():
                        heard.update({message.id: message.data for message in parser.feed(part)})
            except httpx.TransportError:
                return

        async def order() -> None:
            try:
                while True:
                    await trader.order()
            except httpx.TransportError:
                return

        tasks = [asyncio.create_task(listen()), *(asyncio.create_task(order()) for _ in range(4))]
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) <= 40:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(served.kill)
        await asyncio.gather(*tasks)
        again = start(db=tmp_path / "s.db")
        async with httpx.AsyncClient(base_url=again.base_url, timeout=60) as http:
            trader.http = http
            kept = {event["id"]: event for event in await trader.pages(None, None, Random(0))}
    assert len(heard) > 20
    assert {key: json.loads(data) for key, data in heard.items()} == {key: kept[key] for key in heard}


async def test_the_clients_stream_continues_over_a_restart_and_ends_with_its_access(
    start: Start, tmp_path: Path
) -> None:
    served = start(db=tmp_path / "s.db")
    async with trading(served) as trader, Client(served.base_url, trader.key) as client:
        last = (await client.events()).last_event_id
        stream = client.stream(last, types=("fill",))
        await trader.order()
        first = await asyncio.wait_for(anext(stream), PATIENCE_S)
        assert (first.type, first.data.kind) == ("fill", "market")
        await asyncio.to_thread(served.kill)
        waiting = asyncio.ensure_future(anext(stream))
        start(db=tmp_path / "s.db", port=served.port)
        await trader.order()
        second = await asyncio.wait_for(waiting, PATIENCE_S)
        assert int(second.id[4:]) == int(first.id[4:]) + 1
        await stream.aclose()
        with pytest.raises(Refused) as lost:
            await anext(client.stream("evt_000000099999"))
        assert lost.value.status == 410
        async with Client(served.base_url, "bbk_test_wrong") as other:
            with pytest.raises(AccessLost):
                await anext(other.stream())
