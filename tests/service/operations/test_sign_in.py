"""Sign-in by phone: codes, tries, caps, sessions, nicknames, invites."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.clock import SystemClock
from bot.service.host import HostOptions, build
from bot.service.operations import sign_in
from bot.service.operations.sign_in import SESSION_TTL_MS
from bot.venue.storage import codec
from tests.service.builders import ENTRY, PHONE, ask, assert_refused, owner, verify
from tests.service.conftest import START_MS, Box, Caller, OpenBox


def other(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06d}"


async def test_a_phone_opens_an_account_once_and_finds_it_again(box: Box) -> None:
    first = await owner(box, nickname="  Ada  Lovelace ")
    said = first.opened
    assert re.fullmatch(r"bbs_test_[0-9]{8}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", said["accessToken"])
    assert (said["tokenType"], said["newUser"], said["environment"]) == ("Bearer", True, "sandbox")
    assert said["nickname"] == "Ada  Lovelace"
    assert said["credit"] == {"grantedUsd": "10000", "remainingUsd": "10000", "expiresAt": None, "policy": "sandbox"}
    assert said["expiresAt"] == START_MS + SESSION_TTL_MS
    assert said["apis"]["rest"]["baseUrl"]
    again = await owner(box, "0044 7911 123456", nickname="Other")
    assert again.opened["accountId"] == said["accountId"]
    assert (again.opened["newUser"], again.opened["nickname"]) == (False, "Ada  Lovelace")
    assert again.opened["accessToken"] != said["accessToken"]
    account = await again.get("/v1/account")
    assert (account["balanceUsd"], account["address"]) == ("10000", said["address"])
    assert account["limits"]["key"] is None
    assert (await again.get("/v1/limits"))["key"] is None
    assert (await again.post("/v1/orders", ENTRY))["orderSubmitted"] is True
    assert (await again.post("/v1/sandbox/accounts/reset"))["epoch"] == 1
    assert (await owner(box)).opened["accountId"] == said["accountId"]


async def test_known_and_unknown_numbers_get_the_same_answer_to_a_code_request(box: Box) -> None:
    await owner(box)
    known, unknown = await ask(box), await ask(box, "+447911123457")
    assert set(known) == set(unknown)
    assert {k: v for k, v in known.items() if k not in ("sandboxCode", "phoneNumber")} == {
        k: v for k, v in unknown.items() if k not in ("sandboxCode", "phoneNumber")
    }
    assert known == {
        "sent": True,
        "phoneNumber": PHONE,
        "country": known["country"],
        "expiresAt": START_MS + 600_000,
        "retryAfterSeconds": 0,
        "sandboxCode": known["sandboxCode"],
    }
    wrong_known = (await verify(box, other(known["sandboxCode"]))).json()["error"]
    wrong_unknown = (await verify(box, other(unknown["sandboxCode"]), "+447911123457")).json()["error"]
    wrong_known.pop("requestId")
    wrong_unknown.pop("requestId")
    assert wrong_known == wrong_unknown


async def test_a_code_has_five_tries_and_one_use(box: Box) -> None:
    code = (await ask(box))["sandboxCode"]
    for left in (4, 3, 2, 1):
        error = assert_refused(await verify(box, other(code)), 401, "unauthorized")
        assert error["details"]["attemptsLeft"] == left
    # The fifth is right.
    assert (await verify(box, code)).status_code == 200
    assert_refused(await verify(box, code), 401, "unauthorized")
    code = (await ask(box))["sandboxCode"]
    for left in (4, 3, 2, 1, 0):
        answer = await verify(box, other(code))
        assert assert_refused(answer, 401, "unauthorized")["details"]["attemptsLeft"] == left
        assert "www-authenticate" in answer.headers
    assert_refused(await verify(box, code), 401, "unauthorized")


async def test_a_newer_code_voids_the_older_one(box: Box) -> None:
    first, second = (await ask(box))["sandboxCode"], (await ask(box))["sandboxCode"]
    if first != second:
        assert_refused(await verify(box, first), 401, "unauthorized")
    assert (await verify(box, second)).status_code == 200


async def test_a_code_is_valid_for_ten_minutes_of_real_time(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SystemClock().now_ms()
    monkeypatch.setattr(sign_in.SystemClock, "now_ms", lambda self: real)
    code = (await ask(box))["sandboxCode"]
    # The service's clock does not affect a code.
    await box.advance(86_400_000)
    monkeypatch.setattr(sign_in.SystemClock, "now_ms", lambda self: real + 600_000)
    error = assert_refused(await verify(box, code), 401, "unauthorized")
    assert error["details"]["attemptsLeft"] == 0
    monkeypatch.setattr(sign_in.SystemClock, "now_ms", lambda self: real + 599_999)
    assert (await verify(box, code)).status_code == 200


async def test_a_session_ends_by_its_delete_or_after_thirty_real_days(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SystemClock().now_ms()
    monkeypatch.setattr(sign_in.SystemClock, "now_ms", lambda self: real)
    first, second = await owner(box), await owner(box)
    assert await first.delete("/v1/auth/session") == {"revoked": True}
    assert_refused(await first.send("GET", "/v1/account"), 401, "unauthorized")
    await box.advance(40 * 86_400_000)
    assert (await second.send("GET", "/v1/account")).status_code == 200
    monkeypatch.setattr(sign_in.SystemClock, "now_ms", lambda self: real + SESSION_TTL_MS)
    assert_refused(await second.send("GET", "/v1/account"), 401, "session_expired")
    error = assert_refused(await caller.send("DELETE", "/v1/auth/session"), 403, "forbidden")
    assert error["fix"]["path"] == f"/v1/keys/{caller.opened['keyId']}"
    assert_refused(await box.http.delete("/v1/auth/session"), 401, "unauthorized")


async def test_a_token_that_was_tampered_with_is_unknown(box: Box) -> None:
    token = (await owner(box)).opened["accessToken"]
    for wrong in (token[:-1], token + "x", token.replace("bbs_test_1", "bbs_test_2"), "bbs_", "bbs_test_00000000"):
        answer = await box.http.get("/v1/account", headers={"Authorization": f"Bearer {wrong}"})
        assert_refused(answer, 401, "unauthorized")


@pytest.mark.parametrize("nickname", ["a\u0000b", "\u202eevil", "a\nb", "   ", "x ", "a" * 33, "a", 7, None])
async def test_a_nickname_is_two_to_thirty_two_printable_characters(box: Box, nickname: Any) -> None:
    code = (await ask(box))["sandboxCode"]
    error = assert_refused(await verify(box, code, nickname=nickname), 400, "invalid_input")
    assert error["details"]["fields"][0]["field"] == "nickname"
    # No try was used up.
    assert (await verify(box, code)).status_code == 200


async def test_a_missing_nickname_is_generated(box: Box) -> None:
    assert re.fullmatch(r"[a-z]+-[a-z]+-[0-9]{4}", (await owner(box)).opened["nickname"])
    assert (await owner(box, "+447911123457", nickname="Ωμέγα 漢")).opened["nickname"] == "Ωμέγα 漢"


async def test_new_numbers_need_an_invite_if_invites_are_on(open_box: OpenBox) -> None:
    box = await open_box(invite_codes=("letmein-42",))
    code = (await ask(box))["sandboxCode"]
    for given in ({}, {"inviteCode": "letmein-43"}):
        error = assert_refused(await verify(box, code, **given), 403, "forbidden")
        assert error["fix"]["field"] == "inviteCode"
    # A wrong code says nothing about invites: it does not tell whether the number is known.
    assert_refused(await verify(box, other(code)), 401, "unauthorized")
    assert (await verify(box, code, inviteCode="letmein-42")).status_code == 200
    assert not (await owner(box)).opened["newUser"]


async def test_codes_are_capped_by_number_and_by_address_in_real_time(
    open_box: OpenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await open_box(clock="real", start_ms=None)
    said = await ask(box)
    assert said["retryAfterSeconds"] == 30
    answer = await box.http.post("/v1/auth/otp", json={"phoneNumber": PHONE})
    assert_refused(answer, 429, "rate_limited")
    assert 0 < int(answer.headers["retry-after"]) <= 30
    for n in range(29):
        await ask(box, f"+4479111{n:05d}")
    answer = await box.http.post("/v1/auth/otp", json={"phoneNumber": "+447922200000"})
    assert_refused(answer, 429, "rate_limited")
    for _ in range(30):
        assert (await verify(box, "000000", "+447922299999")).status_code == 401
    assert_refused(await verify(box, said["sandboxCode"]), 429, "rate_limited")
    free = await open_box(clock="real", start_ms=None, rate_limits=False)
    for _ in range(8):
        await ask(free)


async def test_numbers_codes_and_sessions_survive_a_restart(tmp_path: Path, open_box: OpenBox) -> None:
    options = HostOptions(
        db=tmp_path / "s.db", clock="manual", start_ms=START_MS, hold_prices=True, markets=("BTC",), port=8700
    )
    service = build(options)
    await service.start()
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        box = Box(service, http)
        signed, pending = await owner(box), (await ask(box, "+447911123457"))["sandboxCode"]
        await verify(box, other(pending), "+447911123457")
        device = (await http.post("/v1/oauth/device")).json()
    before = codec.digest(service.machine.state)
    await service.machine.settle()
    service.machine.snapshot = lambda: None  # type: ignore[method-assign]  # The rows alone must be enough.
    await service.stop()
    service = build(options)
    assert codec.digest(service.machine.state) == before
    await service.start()
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        box = Box(service, http)
        back = Caller(http, signed.opened)
        back.opened["apiKey"] = signed.opened["accessToken"]
        assert (await back.get("/v1/account"))["accountId"] == signed.opened["accountId"]
        error = assert_refused(await verify(box, other(pending), "+447911123457"), 401, "unauthorized")
        assert error["details"]["attemptsLeft"] == 3
        assert (await verify(box, pending, "+447911123457")).status_code == 200
        waiting = await http.post("/v1/oauth/device/token", json={"deviceCode": device["deviceCode"]})
        assert assert_refused(waiting, 403, "forbidden")["details"]["oauthError"] == "authorization_pending"
    await service.stop()


async def test_countries_are_listed_by_code_name_and_calling_code(box: Box) -> None:
    listed = (await box.http.get("/v1/auth/countries")).json()["countries"]
    assert {"code": "GB", "name": "United Kingdom", "callingCode": "44"} in listed
    assert all(set(entry) == {"code", "name", "callingCode"} for entry in listed)
