"""The same key and request give the same answer, byte for byte, and one order; anything else under that key is a
named conflict.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bot.service.state_machine import command_log
from tests.service.builders import ENTRY, assert_refused
from tests.service.conftest import START_MS, Box, Caller, OpenBox


async def test_a_repeated_request_gets_the_first_answer_byte_for_byte(caller: Caller) -> None:
    first = await caller.send("POST", "/v1/orders", ENTRY, key="k")
    assert "idempotency-replayed" not in first.headers
    reordered = dict(reversed(ENTRY.items())) | {"usdAmount": 1000.0}
    for body, key in ((ENTRY, "k"), (reordered, '"k"')):
        again = await caller.send("POST", "/v1/orders", body, key=key)
        assert again.content == first.content
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["x-request-id"] == first.headers["x-request-id"]
    trades = (await caller.get("/v1/trades"))["trades"]
    assert [t["idempotencyKey"] for t in trades] == ["k"]


async def test_sixty_four_copies_at_once_make_one_order(caller: Caller) -> None:
    answers = await asyncio.gather(*(caller.send("POST", "/v1/orders", ENTRY, key="k") for _ in range(64)))
    assert {a.content for a in answers} == {answers[0].content}
    assert len((await caller.get("/v1/trades"))["trades"]) == 1


async def test_another_request_under_the_key_is_a_conflict_and_has_no_effect(caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY, key="k")
    other = await caller.send("POST", "/v1/orders", ENTRY | {"usdAmount": 1001}, key="k")
    error = assert_refused(other, 422, "idempotency_conflict")
    assert (error["details"]["reason"], error["retryable"]) == ("fingerprint", False)
    elsewhere = await caller.send("POST", "/v1/positions/BTC/close", {}, key="k")
    assert elsewhere.json()["error"]["details"]["reason"] == "fingerprint"
    assert len((await caller.get("/v1/trades"))["trades"]) == 1


async def test_a_final_refusal_is_stored_and_a_temporary_one_is_not(box: Box, caller: Caller) -> None:
    small = ENTRY | {"usdAmount": 1}
    first = await caller.send("POST", "/v1/orders", small, key="small")
    assert_refused(first, 422, "below_min_notional")
    again = await caller.send("POST", "/v1/orders", small, key="small")
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    deep = {"market": "BTC", "side": "long", "usdAmount": 5000, "maxSlippageBps": 0}
    refused = await caller.send("POST", "/v1/orders", deep, key="deep")
    error = assert_refused(refused, 409, "insufficient_depth")
    assert error["retryable"] is True
    assert "idempotency-replayed" not in (await caller.send("POST", "/v1/orders", deep, key="deep")).headers


async def test_refusals_of_the_gateway_are_not_stored(caller: Caller) -> None:
    assert (await caller.send("POST", "/v1/orders", ENTRY | {"usdAmount": -1}, key="k")).status_code == 400
    assert (await caller.send("POST", "/v1/orders", ENTRY, key="k")).status_code == 200


async def test_keys_are_scoped_to_the_account(box: Box, caller: Caller) -> None:
    other = await box.caller()
    mine = await caller.post("/v1/orders", ENTRY, key="k")
    theirs = await other.post("/v1/orders", ENTRY | {"usdAmount": 500}, key="k")
    assert mine["trade"]["size"] != theirs["trade"]["size"]


async def test_a_dry_run_ignores_the_key_and_its_confirm_carries_it(caller: Caller) -> None:
    plans = [await caller.post("/v1/orders", ENTRY | {"dryRun": True}, key="k") for _ in range(2)]
    assert plans[0]["confirmToken"] != plans[1]["confirmToken"]
    made = await caller.post("/v1/orders/confirm", {"confirmToken": plans[0]["confirmToken"]}, key="k")
    assert made["trade"]["idempotencyKey"] == "k"
    again = await caller.send("POST", "/v1/orders/confirm", {"confirmToken": plans[0]["confirmToken"]}, key="k")
    assert again.json() == made


async def test_a_late_request_is_refused_and_stays_refused(box: Box, caller: Caller) -> None:
    late = await caller.send("POST", "/v1/orders", ENTRY, key="k", X_Expires_After=str(START_MS - 1))
    error = assert_refused(late, 409, "idempotency_conflict")
    assert (error["details"]["reason"], error["orderSubmitted"]) == ("expired", False)
    again = await caller.send("POST", "/v1/orders", ENTRY, key="k")
    assert again.content == late.content
    intime = await caller.send("POST", "/v1/orders", ENTRY, key="k2", X_Expires_After=str(START_MS))
    assert intime.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60}),
        ("/v1/keys", {"name": "late"}),
        ("/v1/webhooks", {"url": "http://127.0.0.1:9/"}),
        ("/v1/account/kill", {}),
    ],
)
async def test_a_late_creation_is_refused_and_a_late_repeat_gets_the_first_answer(
    box: Box, caller: Caller, path: str, body: dict[str, Any]
) -> None:
    before = (await caller.get("/v1/account"))["lastEventId"]
    late = await caller.send("POST", path, body, key="late", X_Expires_After=str(START_MS - 1))
    assert assert_refused(late, 409, "idempotency_conflict")["details"]["reason"] == "expired"
    again = await caller.send("POST", path, body, key="late")
    assert (again.content, again.headers["idempotency-replayed"]) == (late.content, "true")
    assert (await caller.get("/v1/account"))["lastEventId"] == before
    assert (await caller.get("/v1/webhooks"))["webhooks"] == []

    made = await caller.send("POST", path, body, key="k", X_Expires_After=str(START_MS))
    await box.advance(1_000)
    told = await caller.send("POST", path, body, key="k", X_Expires_After=str(START_MS))
    assert (made.status_code, told.status_code, told.headers["idempotency-replayed"]) == (200, 200, "true")
    assert {**told.json(), "apiKey": None, "secret": None} == {**made.json(), "apiKey": None, "secret": None}


async def test_a_reset_fences_earlier_keys(caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY, key="k")
    await caller.post("/v1/sandbox/accounts/reset")
    error = assert_refused(await caller.send("POST", "/v1/orders", ENTRY, key="k"), 409, "idempotency_conflict")
    assert error["details"]["reason"] == "account_reset"
    await caller.post("/v1/orders", ENTRY, key="new")


async def test_a_guardian_is_armed_once_per_idempotency_key(caller: Caller) -> None:
    body = {"type": "dead_man_switch", "heartbeatSeconds": 60}
    first = await caller.post("/v1/guardians", body, key="k")
    assert await caller.post("/v1/guardians", body, key="k") == first
    assert len((await caller.get("/v1/guardians"))["guardians"]) == 1


async def test_replies_survive_a_restart(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db")
    await box.price("BTC", "100000")
    caller = await box.caller()
    first = await caller.send("POST", "/v1/orders", ENTRY, key="k")
    assert first.status_code == 200
    small = await caller.send("POST", "/v1/orders", ENTRY | {"usdAmount": 1}, key="small")
    await box.service.stop()
    box = await open_box(db=tmp_path / "s.db")
    caller = Caller(box.http, caller.opened)
    for key, body, kept in (("k", ENTRY, first), ("small", ENTRY | {"usdAmount": 1}, small)):
        again = await caller.send("POST", "/v1/orders", body, key=key)
        assert (again.status_code, again.content) == (kept.status_code, kept.content)


async def test_answers_are_forgotten_after_a_week_in_memory_too_and_their_keys_make_no_second_order(
    open_box: OpenBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await open_box(db=tmp_path / "s.db")
    await box.price("BTC", "100000")
    caller = await box.caller()
    assert (await caller.send("POST", "/v1/orders", ENTRY, key="old")).status_code == 200
    monkeypatch.setattr(command_log, "REPLIES_KEPT_MS", -1_000)
    machine = box.service.machine
    machine.log._days = {day - 8: keys for day, keys in machine.log._days.items()}
    machine.snapshot()
    assert machine.log._days == {}
    assert (await caller.send("POST", "/v1/orders", ENTRY, key="new")).status_code == 200
    await machine.settle()
    assert machine.log.select("SELECT key FROM replies") == [("new",)]
    assert machine.log.reply(caller.opened["accountId"], "new") is not None
    again = await caller.send("POST", "/v1/orders", ENTRY, key="old")
    assert again.json()["error"]["code"] == "idempotency_conflict"
    assert len((await caller.get("/v1/trades"))["trades"]) == 2


def test_the_fingerprint_ignores_spelling() -> None:
    from bot.service.bodies.strict_json import fingerprint, parse

    def mark(text: str) -> Any:
        return fingerprint("POST", "/v1/orders", parse(text.encode()))

    assert mark('{"a":1,"b":[1.50,"x"]}') == mark(' {"b" : [1.5, "x"], "a": 1.0}')
    assert mark('{"a":1}') != mark('{"a":"1"}')
    assert mark('{"a":1}') != mark('{"a":true}')
    assert mark('{"a":[1,2]}') != mark('{"a":[2,1]}')
