"""The device flow: pending, too fast, approved once, denied, expired; and the approval page without a browser."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from bot.clock import SystemClock
from bot.service.http import routes_approval
from bot.service.operations import device as device_module
from bot.service.operations.device import USER_LENGTH, USER_LETTERS
from bot.service.security import attempt_limits
from tests.service.builders import assert_refused, make, owner
from tests.service.conftest import Box, Caller

ORIGIN = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}


async def start(box: Box) -> Any:
    answer = await box.http.post("/v1/oauth/device", headers={"User-Agent": "toaster/1.0 <b>"})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A real clock that the test moves, in seconds."""
    seconds = [0]
    real = SystemClock().now_ms()
    monkeypatch.setattr(device_module.SystemClock, "now_ms", lambda self: real + seconds[0] * 1000)
    for module in (device_module, attempt_limits):
        monkeypatch.setattr(module, "monotonic_ns", lambda: (1_000 + seconds[0]) * 1_000_000_000)
    return seconds


async def poll(box: Box, started: Any) -> httpx.Response:
    return await box.http.post("/v1/oauth/device/token", json={"deviceCode": started["deviceCode"]})


class Page:
    """A person's browser, as plain HTTP: it keeps the cookie and sends back the form's token."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.csrf = ""
        self.last: httpx.Response

    async def open(self, query: str = "") -> httpx.Response:
        return self._keep(await self.box.http.get(f"/device{query}"))

    async def press(self, step: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        form = {"csrf": self.csrf, "step": step, **fields}
        return self._keep(
            await self.box.http.post("/device", data=form, headers=ORIGIN if headers is None else headers)
        )

    def _keep(self, answer: httpx.Response) -> httpx.Response:
        found = re.search(r'name="csrf" value="([^"]+)"', answer.text)
        self.csrf = found[1] if found else self.csrf
        self.last = answer
        return answer

    async def sign_in(self, started: Any, caller: Caller) -> httpx.Response:
        await self.open()
        assert (await self.press("code", userCode=started["userCode"])).status_code == 200
        return await self.press("key", apiKey=caller.opened["apiKey"])


def test_a_user_code_has_at_least_34_bits() -> None:
    assert USER_LENGTH * math.log2(len(set(USER_LETTERS))) >= 34


async def test_a_device_waits_and_takes_its_key_once(box: Box, caller: Caller, patient: list[int]) -> None:
    started = await start(box)
    assert re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", started["userCode"])
    assert (started["expiresIn"], started["interval"]) == (600, 5)
    assert started["verificationUriComplete"] == f"{started['verificationUri']}?userCode={started['userCode']}"
    error = assert_refused(await poll(box, started), 403, "forbidden")
    assert error["retryable"] is True
    assert error["details"] == {"oauthError": "authorization_pending", "interval": 5}
    patient[0] += 4
    answer = await poll(box, started)
    error = assert_refused(answer, 429, "rate_limited")
    assert (error["details"], answer.headers["retry-after"]) == ({"oauthError": "slow_down", "interval": 10}, "10")
    patient[0] += 10
    assert assert_refused(await poll(box, started), 403, "forbidden")["details"]["interval"] == 10
    page = Page(box)
    shown = await page.sign_in(started, caller)
    assert "toaster/1.0 &lt;b&gt;" in shown.text
    assert started["userCode"] in shown.text
    assert caller.opened["address"] in shown.text
    done = await page.press("approve", name="kitchen <i>", scope=["read", "trade"])
    assert "Approved" in done.text
    assert "kitchen &lt;i&gt;" in done.text
    patient[0] += 10
    token = (await poll(box, started)).json()
    assert token["scopes"] == ["read", "trade"]
    assert (token["tokenType"], token["accountId"], token["expiresAt"]) == ("Bearer", caller.opened["accountId"], None)
    machine = Caller(box.http, {"apiKey": token["accessToken"]})
    assert (await machine.get("/v1/account"))["address"] == token["address"]
    assert_refused(await machine.send("GET", "/v1/keys"), 403, "forbidden")
    listed = (await caller.get("/v1/keys"))["keys"][-1]
    assert (listed["id"], listed["name"], listed["source"]) == (token["keyId"], "kitchen <i>", "device")
    patient[0] += 10
    again = assert_refused(await poll(box, started), 401, "unauthorized")
    assert again["details"]["oauthError"] == "invalid_grant"
    assert len((await caller.get("/v1/keys"))["keys"]) == 2


async def test_a_denied_device_gets_a_refusal(box: Box, caller: Caller, patient: list[int]) -> None:
    started, page = await start(box), Page(box)
    await page.sign_in(started, caller)
    assert "Denied" in (await page.press("deny", name="x", scope="read")).text
    error = assert_refused(await poll(box, started), 403, "forbidden")
    assert (error["retryable"], error["details"]["oauthError"]) == (False, "access_denied")
    assert (await page.press("approve", name="x", scope="read")).status_code == 403
    assert len((await caller.get("/v1/keys"))["keys"]) == 1


async def test_a_device_code_is_valid_for_ten_minutes(box: Box, caller: Caller, patient: list[int]) -> None:
    started, page = await start(box), Page(box)
    await page.sign_in(started, caller)
    patient[0] += 600
    assert assert_refused(await poll(box, started), 401, "session_expired")["details"]["oauthError"] == "expired_token"
    late = await page.press("approve", name="x", scope="read")
    assert "Approved" not in late.text
    for code in ("unknown-code", "x" * 8, "y" * 200):
        answer = await box.http.post("/v1/oauth/device/token", json={"deviceCode": code})
        assert_refused(answer, 401, "unauthorized")
    short = await box.http.post("/v1/oauth/device/token", json={"deviceCode": "x" * 7})
    assert_refused(short, 400, "invalid_input")


async def test_a_page_whose_request_was_decided_elsewhere_accepts_the_next_code(box: Box, caller: Caller) -> None:
    first, second, page, other = await start(box), await start(box), Page(box), Page(box)
    await page.sign_in(first, caller)
    mine, box.http.cookies = box.http.cookies, httpx.Cookies()
    await other.sign_in(first, caller)
    assert "Denied" in (await other.press("deny", name="x", scope="read")).text
    box.http.cookies = mine
    late = await page.press("approve", name="x", scope="read")
    assert (late.status_code, "already decided it" in late.text) == (400, True)
    assert (await page.press("code", userCode=second["userCode"])).status_code == 200
    assert "sign in first" in (await page.press("approve", name="x", scope="read")).text
    await page.press("key", apiKey=caller.opened["apiKey"])
    assert "Approved" in (await page.press("approve", name="x", scope="read")).text


async def test_a_sixth_code_within_a_minute_is_refused(box: Box, caller: Caller, patient: list[int]) -> None:
    started, page = await start(box), Page(box)
    await page.open()
    for _ in range(5):
        assert (await page.press("code", userCode="BBBB-BBBB")).status_code == 400
    assert (await page.press("code", userCode=started["userCode"])).status_code == 429
    patient[0] += 60
    lower = started["userCode"].replace("-", " ").lower()
    assert (await page.press("code", userCode=lower)).status_code == 200


async def test_the_page_requires_its_own_form_origin_and_cookie(box: Box, caller: Caller) -> None:
    started, page = await start(box), Page(box)
    shown = await page.open(f"?userCode={started['userCode']}")
    assert f'value="{started["userCode"]}"' in shown.text
    policy = shown.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "form-action 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert shown.headers["x-frame-options"] == "DENY"
    assert shown.headers["cache-control"] == "no-store"
    cookie = shown.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/device"))
    assert "<script" not in shown.text
    assert "http" not in re.sub(r"https?://127\.0\.0\.1[^\"]*", "", shown.text.replace("http-equiv", ""))
    for headers in (
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:9"},
    ):
        assert (await page.press("code", headers, userCode=started["userCode"])).status_code == 403, headers
    good, page.csrf = page.csrf, "wrong"
    assert (await page.press("code", userCode=started["userCode"])).status_code == 403
    page.csrf = good
    json = await box.http.post("/device", json={"csrf": good, "step": "code"}, headers=ORIGIN)
    assert json.status_code == 403
    large = await box.http.post("/device", data={"csrf": good, "userCode": "x" * 9000}, headers=ORIGIN)
    assert large.status_code == 403
    before = box.http.cookies["bb_device"]
    await page.press("code", userCode=started["userCode"])
    await page.press("key", apiKey=caller.opened["apiKey"])
    # Signing in renames the visit.
    assert box.http.cookies["bb_device"] != before
    box.http.cookies.clear()
    assert (await page.press("approve", name="x", scope="read")).status_code == 403
    box.http.cookies.set("bb_device", before, path="/device")
    assert (await page.press("approve", name="x", scope="read")).status_code == 403
    assert len((await caller.get("/v1/keys"))["keys"]) == 1


async def test_a_visit_dropped_for_newer_ones_while_its_form_arrives_still_signs_in(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_approval, "VISITS_MAX", 1)
    started, page = await start(box), Page(box)
    await page.open()
    await page.press("code", userCode=started["userCode"])

    async def slowly() -> AsyncIterator[bytes]:
        yield urlencode({"csrf": page.csrf, "step": "key"}).encode() + b"&"
        cookies = dict(box.http.cookies)
        await box.http.get("/device")
        box.http.cookies.update(cookies)
        yield urlencode({"apiKey": caller.opened["apiKey"]}).encode()

    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await box.http.post("/device", content=slowly(), headers=ORIGIN | kind)
    assert (answer.status_code, started["userCode"] in answer.text) == (200, True), answer.text


async def test_only_an_owner_decides_and_only_with_the_offered_scopes(
    box: Box, caller: Caller, patient: list[int]
) -> None:
    reader, started, page = await make(caller, scopes=["read"]), await start(box), Page(box)
    assert "only the owner" in (await page.sign_in(started, reader)).text
    assert "sign in first" in (await page.press("approve", name="x", scope="read")).text
    await page.press("key", apiKey="bbk_test_nonsense")
    assert "is unknown" in page.last.text
    await page.press("key", apiKey=caller.opened["apiKey"])
    for scope in ([], ["admin"], ["read", "admin"]):
        assert (await page.press("approve", name="x", scope=scope)).status_code == 400
    assert_refused(await poll(box, started), 403, "forbidden")
    # The key that signed in is revoked before it decides.
    await caller.delete(f"/v1/keys/{caller.opened['keyId']}")
    assert "revoked" in (await page.press("approve", name="x", scope="read")).text
    patient[0] += 5
    assert_refused(await poll(box, started), 403, "forbidden")


async def test_a_person_signs_in_by_phone_on_the_page(box: Box, patient: list[int]) -> None:
    signed, started, page = await owner(box), await start(box), Page(box)
    await page.open()
    await page.press("code", userCode=started["userCode"])
    assert (await page.press("phone", phoneNumber="07911123456", country="")).status_code == 400
    await page.press("phone", phoneNumber="07911123456", country="United Kingdom")
    code = re.search(r'id="sandboxCode">([0-9]{6})<', page.last.text)
    assert code is not None
    wrong = await page.press("otp", otp=f"{(int(code[1]) + 1) % 1_000_000:06d}")
    assert "code is wrong" in wrong.text
    await page.press("otp", otp=code[1])
    assert signed.opened["address"] in page.last.text
    await page.press("approve", name="", scope=["trade:close_only"])
    token = (await poll(box, started)).json()
    assert (token["accountId"], token["scopes"]) == (signed.opened["accountId"], ["trade:close_only"])
