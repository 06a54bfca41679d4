"""Faults on demand, with a real client over a real connection: the lost part, the effect, and the end after the
given count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bot.client.client import Client
from bot.errors import OutcomeUnknown, TryLater
from bot.wire.order_requests import OrderRequest
from tests.service import serving
from tests.service.builders import ENTRY, assert_refused
from tests.service.conftest import CONTROL_TOKEN, Box

CONTROL = {"Authorization": f"Bearer {CONTROL_TOKEN}"}


@pytest.fixture(scope="module")
def served() -> Iterator[serving.Served]:
    made = serving.start(port=0, clock="manual", markets=["BTC"], env={"BOT_CONTROL_TOKEN": CONTROL_TOKEN})
    yield made
    made.stop()
    serving.end(made)


@pytest.fixture
def http(served: serving.Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.base_url, timeout=60) as made:
        assert made.post("/sandbox/v1/reset", headers=CONTROL).status_code == 200
        made.headers["Authorization"] = f"Bearer {made.post('/v1/sandbox/accounts').json()['apiKey']}"
        yield made


def fault(http: httpx.Client, op: str, kind: str, **more: Any) -> Any:
    answer = http.post("/sandbox/v1/faults", json={"op": op, "kind": kind, **more}, headers=CONTROL)
    assert answer.status_code == 200, answer.text
    return answer.json()["faults"]


def faults(http: httpx.Client) -> Any:
    return http.get("/sandbox/v1/faults", headers=CONTROL).json()["faults"]


def trades(http: httpx.Client) -> int:
    return len(http.get("/v1/trades").json()["trades"])


def test_a_dropped_request_has_no_effect_and_a_lost_reply_has_the_full_effect(http: httpx.Client) -> None:
    fault(http, "post_orders", "drop")
    with pytest.raises(httpx.RemoteProtocolError):
        http.post("/v1/orders", json=ENTRY, headers={"Idempotency-Key": "k"})
    assert trades(http) == 0
    fault(http, "post_orders", "lose_reply")
    with pytest.raises(httpx.RemoteProtocolError):
        http.post("/v1/orders", json=ENTRY, headers={"Idempotency-Key": "k"})
    assert trades(http) == 1
    again = http.post("/v1/orders", json=ENTRY, headers={"Idempotency-Key": "k"})
    assert again.headers["idempotency-replayed"] == "true"
    assert trades(http) == 1
    assert faults(http) == []


def test_a_fault_affects_only_its_operation_and_its_count(http: httpx.Client) -> None:
    made = fault(http, "get_account", "status_429", count=2)
    assert made == [{"id": made[0]["id"], "op": "get_account", "kind": "status_429", "remaining": 2, "ms": None}]
    assert http.get("/v1/limits").status_code == 200
    limited = http.get("/v1/account")
    assert_refused(limited, 429, "rate_limited")
    assert limited.headers["retry-after"] == "1"
    assert faults(http)[0]["remaining"] == 1
    assert http.get("/v1/account").status_code == 429
    assert http.get("/v1/account").status_code == 200
    fault(http, "*", "status_500")
    assert_refused(http.get("/v1/markets"), 500, "internal_error")
    assert http.get("/v1/markets").status_code == 200


def test_faults_affect_only_v1_and_can_be_cleared(http: httpx.Client) -> None:
    fault(http, "*", "drop", count=50)
    assert faults(http)[0]["remaining"] == 50
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/sandbox/v1/digest", headers=CONTROL).status_code == 200
    assert http.delete("/sandbox/v1/faults", headers=CONTROL).json() == {"faults": []}
    assert http.get("/v1/account").status_code == 200


def test_a_delay_fault_delays_the_answer(http: httpx.Client) -> None:
    fault(http, "get_account", "delay", ms=300)
    began = time.monotonic()
    assert http.get("/v1/account").status_code == 200
    assert time.monotonic() - began >= 0.3


def test_an_order_met_by_a_500_was_not_sent(http: httpx.Client) -> None:
    fault(http, "post_orders", "status_500")
    answer = http.post("/v1/orders", json=ENTRY)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert trades(http) == 0


def test_the_feed_repeats_its_last_event_once(http: httpx.Client) -> None:
    fault(http, "*", "duplicate_event")
    newest = http.get("/v1/account").json()["lastEventId"]
    assert http.get(f"/v1/events?since={newest}").json()["events"] == []
    assert len(faults(http)) == 1
    plain = http.post("/v1/orders", json=ENTRY)
    assert plain.status_code == 200
    events = http.get("/v1/events").json()["events"]
    assert events[-1] == events[-2]
    after = http.get("/v1/events").json()["events"]
    assert after == events[:-1]


def test_the_stream_repeats_an_event_too(http: httpx.Client) -> None:
    first = http.get("/v1/events?limit=1").json()["events"]
    http.post("/v1/orders", json=ENTRY)
    fault(http, "get_events_stream", "duplicate_event")
    ids: list[str] = []
    with http.stream("GET", f"/v1/events/stream?since={first[0]['id']}") as answer:
        for line in answer.iter_lines():
            if line.startswith("id:"):
                ids.append(line)
            if len(ids) == 3:
                break
    assert ids[0] == ids[1] != ids[2]


async def test_the_client_distinguishes_the_faults(http: httpx.Client, served: serving.Served) -> None:
    key = http.headers["Authorization"].removeprefix("Bearer ")
    order = OrderRequest.from_wire(ENTRY)
    async with Client(served.base_url, key) as client:
        fault(http, "post_orders", "lose_reply")
        with pytest.raises(OutcomeUnknown):
            await client.place(order, key="one")
        done = await client.place(order, key="one")
        assert done.trade.id
        fault(http, "post_orders", "status_429")
        with pytest.raises(TryLater):
            await client.place(order, key="two")
    assert trades(http) == 1


def test_a_bad_fault_is_refused(http: httpx.Client) -> None:
    for body in (
        {},
        {"op": "*"},
        {"kind": "drop"},
        {"op": "post_nothing", "kind": "drop"},
        {"op": "post_sandbox_v1_reset", "kind": "drop"},
        {"op": "*", "kind": "explode"},
        {"op": "*", "kind": "delay"},
        {"op": "*", "kind": "delay", "ms": 600_001},
        {"op": "*", "kind": "drop", "count": 0},
        {"op": "*", "kind": "drop", "count": 1_000_001},
        {"op": "*", "kind": "drop", "more": 1},
        {"op": "post_orders", "kind": "duplicate_event"},
    ):
        answer = http.post("/sandbox/v1/faults", json=body, headers=CONTROL)
        assert_refused(answer, 400, "invalid_input")
    assert faults(http) == []
    assert http.post("/sandbox/v1/faults", json={"op": "*", "kind": "drop"}).status_code == 401


async def test_at_most_a_hundred_faults_are_set(box: Box) -> None:
    body = {"op": "*", "kind": "drop"}
    for _ in range(100):
        assert (await box.http.post("/sandbox/v1/faults", json=body, headers=box.control)).status_code == 200
    assert_refused(await box.http.post("/sandbox/v1/faults", json=body, headers=box.control), 400, "invalid_input")


def test_a_stream_ends_with_a_resync_when_the_service_is_restored(http: httpx.Client, served: serving.Served) -> None:
    assert http.post("/sandbox/v1/snapshot", json={"name": "a"}, headers=CONTROL).status_code == 200
    with (
        httpx.Client(base_url=served.base_url, headers=http.headers, timeout=60) as reader,
        reader.stream("GET", "/v1/events/stream") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        assert http.post("/sandbox/v1/restore", json={"name": "a"}, headers=CONTROL).status_code == 200
        rest = list(lines)
    assert "event: error" in rest
    assert any('"resync"' in line for line in rest)
