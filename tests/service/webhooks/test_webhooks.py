"""Webhooks: registered, signed, delivered on the published schedule in real time, disabled; never a secret shown
twice, never a wrong address called.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook as Library

from bot.client.webhooks import verify
from bot.clock import ManualClock, SystemClock
from bot.service.bodies import strict_json
from bot.service.host import HostOptions, build
from bot.service.state_machine.command_log import CommandLog
from bot.service.webhooks import dispatcher as dispatcher_module
from bot.service.webhooks import outbox
from bot.service.webhooks.http_delivery import HttpDelivery
from bot.wire import signing
from bot.wire.vocabulary import EVENT_SUBTYPES
from tests.certificates import certificate
from tests.service.conftest import CONTROL_TOKEN, START_MS, Box, Caller
from tests.service.webhooks.receiver import HANG, OK, RESET, receiving, status

SECRET = "a plain secret, not base64!!"
SCHEDULE_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
REAL_MS = 1_800_000_000_000


@asynccontextmanager
async def opened(clock: Any = None, **options: Any) -> AsyncIterator[Box]:
    """A service whose webhooks use the given clock."""
    defaults: dict[str, Any] = {"clock": "manual", "start_ms": START_MS, "hold_prices": True, "markets": ("BTC",)}
    service = build(HostOptions(**(defaults | options)), control_token=CONTROL_TOKEN, real_clock=clock)
    await service.start()
    try:
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Box(service, http)
    finally:
        await service.stop()


async def order(caller: Caller, usd: int = 50) -> Any:
    return await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": usd})


async def hooked(box: Box, url: str, **body: Any) -> tuple[Caller, dict[str, Any]]:
    caller = await box.caller()
    await box.price("BTC", "100000")
    return caller, await caller.post("/v1/webhooks", {"url": url, "secret": SECRET, **body})


async def the_hook(caller: Caller) -> Any:
    (hook,) = (await caller.get("/v1/webhooks"))["webhooks"]
    return hook


async def at_rest(box: Box) -> None:
    """Wait until the dispatcher has looked for due deliveries and none is in flight."""
    dispatcher = box.service.dispatcher
    dispatcher.wake()
    await until(lambda: not dispatcher._wakeup.is_set() and not dispatcher._tasks)


async def until(check: Callable[[], Any], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := check()):
            await asyncio.sleep(0.005)
        return found


# ── Registering ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_secret_is_shown_once_and_a_replay_of_its_creation_has_none(box: Box, caller: Caller) -> None:
    body = {"url": "http://127.0.0.1:9/x", "types": ["fill", "order.canceled", "fill"]}
    made = await caller.post("/v1/webhooks", body, key="w1")
    assert made["secret"].startswith("whsec_")
    assert len(signing.key_of(made["secret"])) == 32
    assert {name: made[name] for name in made if name not in ("id", "secret")} == {
        "url": body["url"],
        "types": ["fill", "order.canceled"],
        "status": "active",
        "createdAt": START_MS,
        "lastDeliveryAt": None,
        "lastStatus": None,
        "failures": 0,
        "disabledReason": None,
    }
    again = await caller.send("POST", "/v1/webhooks", body, key="w1")
    assert again.json() == made | {"secret": None}
    assert again.headers["Idempotency-Replayed"] == "true"
    listed = (await caller.get("/v1/webhooks"))["webhooks"]
    assert listed == [{name: value for name, value in made.items() if name != "secret"}]
    assert await caller.delete(f"/v1/webhooks/{made['id']}") == {"id": made["id"], "revoked": True}
    assert (await caller.send("DELETE", f"/v1/webhooks/{made['id']}")).status_code == 404
    assert await caller.get("/v1/webhooks") == {"webhooks": []}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "url"),
        ({"url": "http://127.0.0.1/", "secret": "7 chars"}, "secret"),
        ({"url": "http://127.0.0.1/", "secret": "x" * 129}, "secret"),
        ({"url": "http://127.0.0.1/", "secret": "whsec_not base64!"}, "secret"),
        ({"url": "http://127.0.0.1/", "secret": "whsec_AAAA"}, "secret"),
        ({"url": "http://127.0.0.1/", "types": ["fill"] * 21}, "types"),
        ({"url": "http://127.0.0.1/", "types": [""]}, "types"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://user@127.0.0.1/"}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "x" * 2049}, "url"),
    ],
)
async def test_a_bad_registration_names_its_field(caller: Caller, body: Any, field: str) -> None:
    answer = await caller.send("POST", "/v1/webhooks", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["fields"][0]["field"].startswith(field)


async def test_an_unknown_event_type_is_accepted_with_a_warning_and_matches_nothing(box: Box, caller: Caller) -> None:
    body = {"url": "http://127.0.0.1:9/", "types": ["dividend", "fill", "x" * 64]}
    made = await caller.post("/v1/webhooks", body)
    assert (made["types"], [one["code"] for one in made["warnings"]]) == (body["types"], ["unknown_type"] * 2)
    assert made["warnings"][0]["message"].startswith("there is no event type dividend; the types are fill, order, ")
    assert "warnings" not in (await caller.get("/v1/webhooks"))["webhooks"][0]
    (endpoint,) = box.service.outbox.endpoints.values()
    assert [kind for kind in EVENT_SUBTYPES if endpoint.wants(kind, EVENT_SUBTYPES[kind][0])] == ["fill"]


KEY = b"0123456789abcdef01234567"
ENCODED = base64.b64encode(KEY).decode()
FORMS = {
    "marked": (f"whsec_{ENCODED}", KEY),
    "marked, without its padding": (f"whsec_{base64.b64encode(KEY[:-1]).decode().rstrip('=')}", KEY[:-1]),
    "base64": (ENCODED, KEY),
    "as some services show it": (f"v1,whsec_{ENCODED}", KEY),
    "text that is base64 by chance": ("supersecret12345", base64.b64decode("supersecret12345")),
    "text": ("a secret of eight or more", b"a secret of eight or more"),
    "text with letters of the world": ("größer als acht", "größer als acht".encode()),
    "base64 of too short a key": ("hunter22", b"hunter22"),
    "base64 for addresses": ("ab-_ab-_ab-_ab-_", b"ab-_ab-_ab-_ab-_"),
}


@pytest.mark.parametrize(("secret", "key"), FORMS.values(), ids=FORMS.keys())
async def test_every_secret_can_be_verified_by_a_library_of_the_standard(
    box: Box, caller: Caller, secret: str, key: bytes
) -> None:
    """With the secret of the answer always, and with the text that was given if a library can read it."""
    made = await caller.post("/v1/webhooks", {"url": "http://127.0.0.1:9/x", "secret": secret})
    assert made["secret"] == signing.secret_of(key)
    assert [one["code"] for one in made.get("warnings", ())] == (
        [] if made["secret"] == secret else ["secret_converted"]
    )
    now = datetime.now(UTC)
    headers = {
        signing.ID_HEADER: "evt_1",
        signing.TIMESTAMP_HEADER: str(int(now.timestamp())),
        signing.SIGNATURE_HEADER: signing.signature(signing.key_of(secret), "evt_1", str(int(now.timestamp())), b"{}"),
    }
    Library(made["secret"]).verify("{}", headers)
    if secret in (ENCODED, "supersecret12345"):
        Library(secret).verify("{}", headers)
    assert verify(b"{}", headers, secret), "our own check takes both forms"
    assert verify(b"{}", headers, made["secret"])


async def test_an_account_has_at_most_twenty_webhooks_and_other_accounts_see_none(box: Box, caller: Caller) -> None:
    ids = [(await caller.post("/v1/webhooks", {"url": "http://127.0.0.1:9/"}))["id"] for _ in range(20)]
    refused = await caller.send("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "limit_exceeded")
    other = await box.caller()
    assert await other.get("/v1/webhooks") == {"webhooks": []}
    assert (await other.send("DELETE", f"/v1/webhooks/{ids[0]}")).status_code == 404
    await caller.delete(f"/v1/webhooks/{ids[0]}")
    assert (await caller.send("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/"})).status_code == 200


async def test_a_service_beyond_loopback_never_calls_a_private_address() -> None:
    async with opened(host="0.0.0.0") as box:
        caller = await box.caller()
        for url in (
            "http://example.com/",
            "https://127.0.0.1/",
            "https://10.0.0.1/",
            "https://localhost/",
            "https://example.com:444/",
        ):
            answer = await caller.send("POST", "/v1/webhooks", {"url": url})
            assert (url, answer.status_code) == (url, 400)
    with pytest.raises(Exception, match="only a service on loopback"):
        build(HostOptions(host="0.0.0.0", webhooks_private=True))


# ── Delivering ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delivery_is_the_event_signed_as_the_standard_says() -> None:
    async with receiving() as receiver, opened() as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        (got,) = await receiver.until(1)
        (event,) = (await caller.get("/v1/events?types=fill"))["events"]
        assert got.line == "POST /hook?a=1 HTTP/1.1"
        assert json.loads(got.body) == event
        assert got.id == event["id"]
        assert got.headers["content-type"] == "application/json"
        assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert Library(SECRET.encode()).verify(got.body, got.headers) == event
        shown = await until(lambda: box.service.outbox.health(hook["id"]).last_status)
        assert shown == 200
        seen = await the_hook(caller)
        assert (seen["lastStatus"], seen["failures"], seen["status"]) == (200, 0, "active")
        # the service's clock, like every instant of a body; it stands still here
        assert seen["lastDeliveryAt"] == START_MS


def test_the_signature_equals_that_of_the_reference_library() -> None:
    for key in (b"k" * 32, SECRET.encode(), "ключ и ещё".encode(), b"\x00\xff" * 12):
        at = datetime(2026, 11, 20, 12, tzinfo=UTC)
        ours = signing.signature(key, "evt_1", str(int(at.timestamp())), b'{"a":1}')
        assert ours == Library(key).sign("evt_1", at, '{"a":1}')


async def test_only_the_asked_types_are_sent_and_only_of_the_own_account() -> None:
    async with receiving() as receiver, opened() as box:
        caller, _ = await hooked(box, receiver.url, types=["order.canceled", "account"])
        other = await box.caller()
        await order(other)
        await order(caller)
        resting = {"market": "BTC", "side": "long", "usdAmount": 50, "type": "limit", "limitPx": "90000"}
        oid = (await caller.post("/v1/orders", resting))["trade"]["venueOid"]
        await caller.delete(f"/v1/orders/{oid}")
        await receiver.until(1)
        await at_rest(box)
        assert [(json.loads(got.body)["type"], json.loads(got.body)["subtype"]) for got in receiver.got] == [
            ("order", "canceled")
        ]


async def test_the_schedule_is_ten_attempts_in_75_hours_with_one_id_and_then_the_endpoint_is_disabled() -> None:
    clock = ManualClock(REAL_MS)
    async with receiving(answer=lambda number, got: status(500)) as receiver, opened(clock) as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        at = [REAL_MS]
        dispatcher = box.service.dispatcher
        for number in range(1, 10):
            await receiver.until(number)
            due = await until(dispatcher.next_due_ms)
            clock.set(due - 1)
            await at_rest(box)
            assert len(receiver.got) == number, "too early"
            clock.set(due)
            dispatcher.wake()
            at.append(due)
            await receiver.until(number + 1)
        for gap, planned in zip((b - a for a, b in pairwise(at)), SCHEDULE_S, strict=True):
            assert abs(gap - planned * 1000) <= planned * 100 + 1
        # each gap has its own random tenth
        assert abs((at[-1] - at[0]) / 3_600_000 - 75.585) <= 7.5585 + 0.001
        assert len({got.id for got in receiver.got}) == 1
        assert len({got.body for got in receiver.got}) == 1
        assert [int(got.headers["webhook-timestamp"]) for got in receiver.got] == [one // 1000 for one in at]
        await until(lambda: hook["id"] not in box.service.outbox.endpoints)
        seen = await the_hook(caller)
        assert (seen["status"], seen["disabledReason"], seen["failures"], seen["lastStatus"]) == (
            "disabled",
            "failing",
            10,
            500,
        )
        await order(caller)
        await at_rest(box)
        assert len(receiver.got) == 10


@pytest.mark.parametrize(
    ("answer", "last_status"),
    [
        (status(500), 500),
        (status(302, "Location: http://127.0.0.1:1/"), 302),
        (status(404), 404),
        (RESET, None),
        (b"nonsense\r\n\r\n", None),
        (status(200, body=b"x" * 70_000), 200),
    ],
)
async def test_any_answer_but_a_2xx_with_a_short_body_is_a_failure_and_is_retried(
    answer: bytes, last_status: int | None
) -> None:
    clock = ManualClock(REAL_MS)
    script = [answer, OK]
    async with receiving(answer=lambda number, got: script[min(number, 2) - 1]) as receiver, opened(clock) as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        await receiver.until(1)
        due = await until(box.service.dispatcher.next_due_ms)
        seen = await the_hook(caller)
        assert (seen["failures"], seen["lastStatus"], seen["status"]) == (1, last_status, "active")
        clock.set(due)
        box.service.dispatcher.wake()
        first, second = await receiver.until(2)
        assert (first.id, first.body) == (second.id, second.body)
        await until(lambda: box.service.outbox.health(hook["id"]).failures == 0)
        assert (await the_hook(caller))["lastStatus"] == 200


async def test_a_hanging_or_slow_receiver_is_cut_off_at_the_total_deadline() -> None:
    async with receiving(answer=lambda number, got: HANG) as receiver:
        poster = HttpDelivery(private=True, clock=SystemClock(), total_seconds=0.2)
        outcome = await poster.post(receiver.url, {}, b"{}")
        assert (outcome.status, outcome.problem) == (None, "timeout")
        await poster.aclose()


@pytest.mark.parametrize("code", [429, 503, 500])
async def test_a_retry_never_comes_before_retry_after(code: int) -> None:
    clock = ManualClock(REAL_MS)
    answer = status(code, "Retry-After: 600")
    async with receiving(answer=lambda number, got: answer) as receiver, opened(clock) as box:
        caller, _ = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        await receiver.until(1)
        due = await until(box.service.dispatcher.next_due_ms)
        assert due == REAL_MS + 600_000
        # The retry-after applies to the whole endpoint.
        await order(caller)
        await at_rest(box)
        assert len(receiver.got) == 1


async def test_a_retry_after_date_is_read_too() -> None:
    clock = ManualClock(REAL_MS)
    date = datetime.fromtimestamp((REAL_MS + 120_000) / 1000, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    async with receiving(answer=lambda number, got: status(503, f"Retry-After: {date}")) as receiver:
        poster = HttpDelivery(private=True, clock=clock)
        assert (await poster.post(receiver.url, {}, b"{}")).retry_after_ms == 120_000
        await poster.aclose()


@pytest.mark.parametrize(
    "date", ["soon", "Fri, 01 Jan 99999999999 00:00:00 GMT", "Fri, 01 Jan 2027 00:00:00 +99999999999999"]
)
async def test_an_unreadable_retry_after_is_ignored(date: str) -> None:
    answer = status(503, f"Retry-After: {date}")
    async with receiving(answer=lambda number, got: answer) as receiver, opened(ManualClock(REAL_MS)) as box:
        poster = HttpDelivery(private=True, clock=SystemClock())
        outcome = await poster.post(receiver.url, {}, b"{}")
        assert (outcome.status, outcome.retry_after_ms) == (503, 0)
        await poster.aclose()
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        await until(lambda: box.service.outbox.health(hook["id"]).failures == 1)
        assert box.service.machine.fault is None


async def test_no_cookie_of_a_receiver_is_kept() -> None:
    async with receiving(answer=lambda number, got: status(200, f"Set-Cookie: a{number}=1")) as receiver:
        poster = HttpDelivery(private=True, clock=SystemClock())
        for _ in range(3):
            assert (await poster.post(receiver.url, {}, b"{}")).is_done
        assert len(poster._http.cookies.jar) == 0
        await poster.aclose()


async def test_410_disables_at_once_and_drops_the_pending_deliveries() -> None:
    async with receiving(answer=lambda number, got: status(410)) as receiver, opened() as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        await until(lambda: hook["id"] not in box.service.outbox.endpoints)
        seen = await the_hook(caller)
        assert (seen["status"], seen["disabledReason"], seen["lastStatus"]) == ("disabled", "gone", 410)
        await order(caller)
        await at_rest(box)
        assert len(receiver.got) == 1
        assert box.service.dispatcher.next_due_ms() is None


async def test_an_endpoint_gets_one_delivery_at_a_time_and_a_long_queue_causes_no_burst() -> None:
    clock = ManualClock(REAL_MS)
    answers = [status(500)]
    async with receiving(answer=lambda number, got: answers[0]) as receiver, opened(clock) as box:
        caller, _hook = await hooked(box, receiver.url, types=["fill"])
        for _ in range(30):
            await order(caller, 15)
        await receiver.until(dispatcher_module.REST_AFTER)
        await at_rest(box)
        assert len(receiver.got) == dispatcher_module.REST_AFTER, "from then on the endpoint waits"
        assert receiver.open_most == 1
        answers[0] = OK
        while (due := box.service.dispatcher.next_due_ms()) is not None:
            clock.set(max(due, clock.now_ms()))
            await at_rest(box)
        fills = {event["id"] for event in (await caller.get("/v1/events?types=fill&limit=200"))["events"]}
        assert {got.id for got in receiver.got} == fills
        assert len(fills) == 30


async def test_an_endpoint_too_far_behind_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BACKLOG_MAX", 5)
    clock = ManualClock(REAL_MS)
    async with receiving(answer=lambda number, got: status(500)) as receiver, opened(clock) as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        for _ in range(12):
            await order(caller, 15)
        await until(lambda: hook["id"] not in box.service.outbox.endpoints)
        assert (await the_hook(caller))["disabledReason"] == "backlog"


async def test_an_endpoint_too_far_behind_is_disabled_also_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BACKLOG_MAX", 5)
    answer = status(503, "Retry-After: 86400")
    async with receiving(answer=lambda number, got: answer) as receiver, opened(ManualClock(REAL_MS)) as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller, 15)
        await until(lambda: box.service.outbox.health(hook["id"]).failures == 1)
        for _ in range(8):
            await order(caller, 15)
            # The dispatcher has checked and found nothing to do.
            await until(lambda: not box.service.dispatcher._wakeup.is_set())
        await until(lambda: hook["id"] not in box.service.outbox.endpoints, 20)
        assert (await the_hook(caller))["disabledReason"] == "backlog"
        assert len(receiver.got) == 1


async def test_a_reset_keeps_the_webhook_and_its_pending_deliveries() -> None:
    clock = ManualClock(REAL_MS)
    answers = [status(500)]
    async with receiving(answer=lambda number, got: answers[0]) as receiver, opened(clock) as box:
        caller, _ = await hooked(box, receiver.url, types=["fill", "account.reset"])
        await order(caller)
        await receiver.until(1)
        answers[0] = OK
        await caller.post("/v1/sandbox/accounts/reset")
        await receiver.until(2)
        clock.set(await until(box.service.dispatcher.next_due_ms))
        box.service.dispatcher.wake()
        got = await receiver.until(3)
        assert [json.loads(one.body)["type"] for one in got] == ["fill", "account", "fill"]
        assert (await the_hook(caller))["status"] == "active"


async def test_a_restored_fork_does_not_send_the_webhooks_of_its_original_service() -> None:
    long = {"market": "BTC", "side": "long", "usdAmount": 50}
    async with receiving() as receiver, receiving() as forks_own, opened() as box:
        caller, _ = await hooked(box, receiver.url, types=["fill"])
        await box.http.post("/sandbox/v1/snapshot", json={"name": "a"}, headers=box.control)
        fork = (await box.http.post("/sandbox/v1/fork", json={"name": "a"}, headers=box.control)).json()
        async with httpx.AsyncClient(base_url=fork["baseUrl"], timeout=60, headers=caller.headers) as http:
            made = await http.post("/v1/webhooks", json={"url": forks_own.url, "types": ["fill"]})
            assert made.status_code == 200
            for act in ("snapshot", "restore"):
                done = await http.post(f"/sandbox/v1/{act}", json={"name": "b"}, headers=box.control)
                assert done.status_code == 200
            for number in (1, 2):
                assert (await http.post("/v1/orders", json=long)).status_code == 200
                await forks_own.until(number)
        assert receiver.got == []
        await order(caller)
        await receiver.until(1)
        assert len(forks_own.got) == 2


async def test_the_first_delivery_loads_its_modules_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders that come meanwhile do not wait for it."""
    loaded: list[threading.Thread] = []

    def load(name: str) -> Any:
        loaded.append(threading.current_thread())
        return import_module(name)

    monkeypatch.setattr(dispatcher_module, "import_module", load)
    async with receiving() as receiver, opened() as box:
        caller, _ = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        await receiver.until(1)
    assert loaded
    assert threading.current_thread() not in loaded


async def test_a_removed_webhook_gets_nothing_more() -> None:
    clock = ManualClock(REAL_MS)
    async with receiving(answer=lambda number, got: status(500)) as receiver, opened(clock) as box:
        caller, hook = await hooked(box, receiver.url, types=["fill"])
        await order(caller)
        await receiver.until(1)
        await until(box.service.dispatcher.next_due_ms)
        await caller.delete(f"/v1/webhooks/{hook['id']}")
        assert box.service.dispatcher.next_due_ms() is None
        clock.advance(3_600_000)
        await order(caller)
        await at_rest(box)
        assert len(receiver.got) == 1


# ── To the checked address ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_name_is_resolved_for_each_attempt_and_refused_if_it_becomes_private() -> None:
    asked: list[str] = []
    addresses = [["127.0.0.1"], ["127.0.0.1", "169.254.169.254"], []]

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return addresses[len(asked) - 1]

    async with receiving() as receiver:
        poster = HttpDelivery(private=True, clock=SystemClock(), resolve=resolve)
        url = f"http://hooks.example.test:{receiver.port}/"
        first = await poster.post(url, {}, b"{}")
        second = await poster.post(url, {}, b"{}")
        third = await poster.post(url, {}, b"{}")
        await poster.aclose()
        assert (first.status, second.status, third.status) == (200, None, None)
        assert "169.254.169.254" in second.problem
        assert asked == ["hooks.example.test"] * 3
        assert [got.headers["host"] for got in receiver.got] == [f"hooks.example.test:{receiver.port}"]


async def test_tls_is_checked_against_the_name_though_the_connection_goes_to_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificate(tmp_path, "hooks.example.test")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.cert, made.key)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with receiving(tls=server) as receiver:
        trusting = ssl.create_default_context(cafile=str(made.cert))
        poster = HttpDelivery(private=True, clock=SystemClock(), resolve=resolve, tls=trusting)
        good = await poster.post(f"https://hooks.example.test:{receiver.port}/", {}, b"{}")
        evil = await poster.post(f"https://evil.example.test:{receiver.port}/", {}, b"{}")
        await poster.aclose()
    assert good.status == 200
    assert evil.status is None
    assert "CERTIFICATE_VERIFY_FAILED" in evil.problem
    assert len(receiver.got) == 1


# ── Stored ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_file_holds_no_secret_and_a_copy_without_its_key_signs_nothing(tmp_path: Path) -> None:
    clock = ManualClock(REAL_MS)
    async with receiving() as receiver:
        async with opened(clock, db=tmp_path / "s.db") as box:
            caller, hook = await hooked(box, receiver.url, types=["fill"])
            generated = await caller.post("/v1/webhooks", {"url": receiver.url, "types": ["funding"]}, key="g")
            await caller.delete(f"/v1/webhooks/{generated['id']}")
        raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        for secret in (SECRET, generated["secret"], generated["secret"].removeprefix("whsec_")):
            assert secret.encode() not in raw
        assert signing.key_of(generated["secret"]) not in raw
        (tmp_path / "s.db.webhook-key").unlink()
        async with opened(clock, db=tmp_path / "s.db") as box:
            again = Caller(box.http, caller.opened)
            await order(again)
            await until(lambda: hook["id"] not in box.service.outbox.endpoints)
            assert (await the_hook(again))["disabledReason"] == "secret_lost"
    assert receiver.got == []


async def test_a_stored_request_fingerprint_does_not_allow_guessing_its_secret(tmp_path: Path) -> None:
    body = {"url": "http://127.0.0.1:9/x", "secret": "hunter22"}
    async with opened(db=tmp_path / "s.db") as box:
        caller = await box.caller()
        made = await caller.post("/v1/webhooks", body, key="w")
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert made["id"].encode() in raw
    assert strict_json.fingerprint("POST", "/v1/webhooks", body).encode() not in raw
    async with opened(db=tmp_path / "s.db") as box:
        again = Caller(box.http, caller.opened)
        assert await again.post("/v1/webhooks", body, key="w") == made | {"secret": None}
        other = await again.send("POST", "/v1/webhooks", body | {"secret": "hunter23"}, key="w")
        assert (other.status_code, other.json()["error"]["details"]["reason"]) == (422, "fingerprint")


async def test_pending_deliveries_and_their_attempts_continue_after_a_stop(tmp_path: Path) -> None:
    clock = ManualClock(REAL_MS)
    answers = [status(500)]
    async with receiving(answer=lambda number, got: answers[0]) as receiver:
        async with opened(clock, db=tmp_path / "s.db") as box:
            caller, _ = await hooked(box, receiver.url, types=["fill"])
            await order(caller)
            await receiver.until(1)
            due = await until(box.service.dispatcher.next_due_ms)
            before = await the_hook(caller)
        answers[0] = OK
        async with opened(clock, db=tmp_path / "s.db") as box:
            again = Caller(box.http, caller.opened)
            assert await the_hook(again) == before
            assert box.service.dispatcher.next_due_ms() == due
            clock.set(due)
            box.service.dispatcher.wake()
            first, second = await receiver.until(2)
            await until(lambda: not any(one.busy for one in box.service.outbox.endpoints.values()))
            assert (first.id, first.body) == (second.id, second.body)
            assert (
                Library(SECRET.encode()).sign(second.id, datetime.fromtimestamp(due // 1000, UTC), second.body.decode())
                == (second.headers["webhook-signature"])
            )
        async with opened(clock, db=tmp_path / "s.db") as box:
            assert box.service.dispatcher.next_due_ms() is None


async def test_an_endpoints_retry_after_is_honoured_also_after_a_stop(tmp_path: Path) -> None:
    clock = ManualClock(REAL_MS)
    answers = [status(503, "Retry-After: 600")]
    async with receiving(answer=lambda number, got: answers[0]) as receiver:
        async with opened(clock, db=tmp_path / "s.db") as box:
            caller, hook = await hooked(box, receiver.url, types=["fill"])
            await order(caller)
            await until(lambda: box.service.outbox.health(hook["id"]).failures == 1)
            await order(caller)
            assert box.service.dispatcher.next_due_ms() == REAL_MS + 600_000
        answers[0] = OK
        async with opened(clock, db=tmp_path / "s.db") as box:
            assert box.service.dispatcher.next_due_ms() == REAL_MS + 600_000
            clock.set(REAL_MS + 600_000)
            box.service.dispatcher.wake()
            await receiver.until(3)
            await until(lambda: box.service.dispatcher.next_due_ms() is None)
            await until(lambda: not box.service.outbox.endpoints[hook["id"]].busy)
        # A waiting time that a success has ended is over at any time of the clock.
        async with opened(ManualClock(REAL_MS), db=tmp_path / "s.db") as box:
            await order(Caller(box.http, caller.opened))
            await receiver.until(4)


async def test_a_delivery_its_event_and_its_answer_are_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []
    commit = CommandLog._commit

    def record(log: CommandLog, batch: Any) -> Any:
        written.append([statement for statement, _ in batch])
        return commit(log, batch)

    monkeypatch.setattr(CommandLog, "_commit", record)
    async with receiving() as receiver, opened(db=tmp_path / "s.db") as box:
        caller, _ = await hooked(box, receiver.url, types=["fill"])
        written.clear()
        for number in range(5):
            body = {"market": "BTC", "side": "long", "usdAmount": 20}
            await caller.post("/v1/orders", body, key=f"k{number}")
        await receiver.until(5)
    found = [batch for batch in written if any("INTO deliveries" in statement for statement in batch)]
    assert sum("INTO deliveries" in statement for batch in found for statement in batch) == 5
    for batch in found:
        counts = [sum(f"INTO {table} " in one for one in batch) for table in ("commands", "deliveries", "replies")]
        assert counts[0] >= counts[1] == counts[2]
