"""The approval page in a real browser: a person approves a device, and the strict policy lets the page work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.serving import Served, end, start


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    service = start(db=tmp_path / "s.db", port=0, markets=["BTC"])
    yield service
    end(service)


class Looked:
    """A page, with all errors of its browser and all its requests to other sites."""

    def __init__(self, browser: Any, base_url: str) -> None:
        self.page = browser.new_page(viewport={"width": 760, "height": 900})
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "request",
            lambda asked: None if asked.url.startswith((base_url, "data:")) else self.elsewhere.append(asked.url),
        )

    def shot(self, name: str) -> None:
        """A screenshot, if a folder for it is set."""
        folder = os.environ.get("BOT_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def test_an_owner_signs_in_by_phone_and_approves_with_chosen_scopes(served: Served, browser: Any) -> None:
    with httpx.Client(base_url=served.base_url, timeout=60) as http:
        started = http.post("/v1/oauth/device", headers={"User-Agent": "night-bot/2.0"}).json()
        looked = Looked(browser, served.base_url)
        page = looked.page
        page.goto(started["verificationUriComplete"])
        assert page.input_value("#userCode") == started["userCode"]
        # The style is applied.
        assert page.evaluate("getComputedStyle(document.querySelector('main')).borderRadius") == "14px"
        looked.shot("1-code")
        page.click("button[value=code]")
        looked.shot("2-sign-in")
        page.fill("#phoneNumber", "+44 7911 123456")
        page.click("button[value=phone]")
        looked.shot("3-otp")
        page.fill("#otp", page.inner_text("#sandboxCode"))
        page.click("button[value=otp]")
        assert "night-bot/2.0" in page.inner_text("dl")
        assert "127.0.0.1" in page.inner_text("dl")
        assert started["userCode"] in page.inner_text("dl")
        assert page.is_checked("input[value=read]")
        page.check("input[value='trade:close_only']")
        page.fill("#name", "night bot")
        looked.shot("4-decide")
        page.click("button[value=approve]")
        assert page.inner_text("h1") == "Approved"
        looked.shot("5-approved")
        token = http.post("/v1/oauth/device/token", json={"deviceCode": started["deviceCode"]}).json()
        assert token["scopes"] == ["read", "trade:close_only"]
        account = http.get("/v1/account", headers={"Authorization": f"Bearer {token['accessToken']}"})
        assert account.json()["accountId"] == token["accountId"]
        assert (looked.complaints, looked.elsewhere) == ([], [])


def test_an_owner_pastes_a_key_and_denies(served: Served, browser: Any) -> None:
    with httpx.Client(base_url=served.base_url, timeout=60) as http:
        key = http.post("/v1/sandbox/accounts", json={"name": "<img src=x onerror=alert(1)>"}).json()["apiKey"]
        started = http.post("/v1/oauth/device", headers={"User-Agent": "<script>alert(1)</script>"}).json()
        looked = Looked(browser, served.base_url)
        page = looked.page
        page.goto(started["verificationUri"])
        page.fill("#userCode", started["userCode"].lower())
        page.click("button[value=code]")
        page.fill("#apiKey", key)
        page.click("button[value=key]")
        assert "<script>alert(1)</script>" in page.inner_text("dl")
        assert "<img src=x onerror=alert(1)>" in page.inner_text("dl")
        # The typed name has no effect on the decision.
        page.press("#name", "Enter")
        assert page.inner_text("h1") == "A device asks for a key"
        pending = http.post("/v1/oauth/device/token", json={"deviceCode": started["deviceCode"]})
        assert pending.json()["error"]["details"]["oauthError"] == "authorization_pending"
        page.click("button[value=deny]")
        assert page.inner_text("h1") == "Denied"
        answer = http.post("/v1/oauth/device/token", json={"deviceCode": started["deviceCode"]})
        assert (answer.status_code, answer.json()["error"]["details"]["oauthError"]) == (403, "access_denied")
        assert (looked.complaints, looked.elsewhere) == ([], [])


def test_a_form_of_another_site_changes_nothing(served: Served, browser: Any) -> None:
    with httpx.Client(base_url=served.base_url, timeout=60) as http:
        started = http.post("/v1/oauth/device").json()
        page = browser.new_page()
        page.goto(started["verificationUri"])
        csrf = page.input_value("input[name=csrf]")
        evil = f"{served.base_url}/device"
        form = (
            f"<form id=f method=post action='{evil}'><input name=csrf value='{csrf}'><input name=step value=code><input"
            f" name=userCode value='{started['userCode']}'></form>"
        )
        page.goto(f"data:text/html,{form}")
        with page.expect_navigation():
            page.evaluate("document.getElementById('f').submit()")
        assert page.inner_text("h1") == "Start again"
