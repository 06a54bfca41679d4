"""Attacks on the dashboard: another origin, DNS rebinding, a missing or stale token, a change without --control.

All are refused, and nothing reaches the daemon.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.dashboard.page_models import PAGES
from bot.dashboard.request_checks import FORM_BYTES_MAX, is_local
from bot.dashboard.values.identity import strategy_stamp
from tests.dashboard.builders import BASE, Browser, Daemon, status, strategy

ANSWERS = {
    "/status": status(),
    "/strategies": {"strategies": []},
    "/pause": {"strategies": [{"name": "trend", "state": "PAUSED"}], "resting": []},
}
STAMP = strategy_stamp("0xabc", strategy())
PATHS = ("/", "/market", "/market/BTC", "/data/value", "/stream/overview", "/control/pause")


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    made = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    yield made
    await made.http.aclose()


async def pause(browser: Browser, headers: dict[str, str] | None = None, **form: str) -> int:
    given = {"token": browser.token, "name": "trend", "confirm": "trend", "of": STAMP} | form
    return (await browser.post("/control/pause", headers, **given)).status_code


async def test_a_change_of_the_dashboards_own_page_reaches_the_daemon(browser: Browser) -> None:
    assert await pause(browser) == 200
    assert browser.daemon.changes == [("/pause", {"by": "the dashboard", "strategy": "trend"})]


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://127.0.0.1:8711", "https://127.0.0.1:8710", "http://localhost:8710", "null", ""],
)
async def test_another_origin_is_refused(browser: Browser, origin: str) -> None:
    assert await pause(browser, {"Origin": origin}) == 403
    for path in PATHS:
        assert (await browser.get(path, Origin=origin)).status_code == 403
    assert browser.daemon.changes == []


async def test_a_change_without_an_origin_is_refused(browser: Browser) -> None:
    assert await pause(browser, {}) == 403
    assert browser.daemon.changes == []


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8710",
        "127.0.0.1.evil.example:8710",
        "localhost.evil.example",
        "0.0.0.0:8710",
        "127.0.0.1:8710@evil.example",
        "127.0.0.1:",
        "",
        "[::1",
    ],
)
async def test_a_foreign_host_is_refused(browser: Browser, host: str) -> None:
    for path in (*PATHS, "/sign-in", "/static/dashboard.css"):
        assert (await browser.get(path, Host=host)).status_code == 403
    assert await pause(browser, {"Host": host, "Origin": f"http://{host}"}) == 403
    assert browser.daemon.changes == []


def test_the_names_of_this_machine_are_accepted_with_the_port_of_a_tunnel() -> None:
    assert all(map(is_local, ("127.0.0.1", "127.0.0.1:9000", "localhost:8710", "LOCALHOST", "[::1]", "[::1]:8710")))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_cannot_load_a_part_of_the_dashboard(browser: Browser, site: str) -> None:
    for path in PATHS:
        assert (await browser.get(path, **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})).status_code == 403
    assert await pause(browser, {"Origin": BASE, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}) == 403


@pytest.mark.parametrize("cookie", ["", "x", "1.a.b", "stale"])
async def test_a_missing_or_stale_cookie_is_refused(browser: Browser, cookie: str) -> None:
    token, name = browser.token, browser.sign_in.cookie_name
    if cookie == "stale":
        browser.now_s += 40 * 86_400
    else:
        browser.http.cookies.set(name, cookie, domain="127.0.0.1")
    for path in PATHS:
        answer = await browser.get(path, **{"Sec-Fetch-Mode": "cors"})
        assert answer.status_code == 401, path
        assert "account" not in answer.text
    assert (await browser.post("/control/pause", token=token, name="trend", confirm="trend")).status_code == 401
    assert browser.daemon.changes == []


async def test_a_browser_that_signs_out_is_out_with_every_copy_of_its_cookie_and_with_its_open_pages(
    browser: Browser,
) -> None:
    name = browser.sign_in.cookie_name
    cookie, token = browser.http.cookies[name], browser.token
    assert '<form method="post" action="/sign-out">' in (await browser.get("/")).text
    assert (await browser.post("/sign-out", token="x")).status_code == 403
    assert (await browser.get("/")).status_code == 200
    updates = browser.dashboard.updates(PAGES["overview"], {}, cookie)
    await anext(updates)
    answer = await browser.post("/sign-out", token=token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert name not in browser.http.cookies
    browser.http.cookies.set(name, cookie, domain="127.0.0.1")
    assert (await browser.get("/", **{"Sec-Fetch-Mode": "cors"})).status_code == 401
    assert [one async for one in updates] == []
    assert (await browser.signed_in()) is browser


async def test_a_person_without_a_cookie_is_led_to_the_sign_in(browser: Browser) -> None:
    browser.http.cookies.clear()
    answer = await browser.get("/market", **{"Sec-Fetch-Mode": "navigate"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "bot dashboard" in (await browser.get("/sign-in")).text


async def test_a_change_without_the_token_of_the_page_is_refused(browser: Browser) -> None:
    other = await Browser(browser.daemon, control=True).signed_in()
    for token in ("", "x", other.token):
        assert await pause(browser, token=token) == 403
    assert browser.daemon.changes == []


async def test_a_change_without_control_is_refused(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS)).signed_in()
    assert await pause(browser) == 403
    assert (await browser.get("/control/pause")).status_code == 403
    assert "/control/" not in (await browser.get("/")).text
    assert browser.daemon.changes == []


@pytest.mark.parametrize("typed", ["", "yes", "trends", "TREND"])
async def test_a_change_without_the_typed_word_is_not_sent(browser: Browser, typed: str) -> None:
    assert await pause(browser, confirm=typed) == 400
    assert browser.daemon.changes == []


async def test_a_body_that_is_no_form_or_too_large_is_refused(browser: Browser) -> None:
    headers = {"Origin": BASE, "Content-Type": "application/json"}
    assert (await browser.http.post("/control/pause", content=b"{}", headers=headers)).status_code == 403
    assert await pause(browser, name="x" * FORM_BYTES_MAX) == 403
    assert browser.daemon.changes == []


async def test_a_code_of_a_link_cannot_be_used_twice(browser: Browser) -> None:
    code = browser.sign_in.code()
    assert (await browser.post("/sign-in", code=code)).status_code == 303
    again = await browser.post("/sign-in", code=code)
    assert again.status_code == 403
    assert "set-cookie" not in again.headers
    assert (
        await browser.post("/sign-in", {"Origin": "http://evil.example"}, code=browser.sign_in.code())
    ).status_code == 403


async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(browser: Browser) -> None:
    answer = await browser.post("/sign-in", code=browser.sign_in.code())
    given = answer.headers["set-cookie"].lower()
    assert all(one in given for one in ("httponly", "samesite=strict", "path=/"))


async def test_every_answer_has_a_policy_without_inline_code(browser: Browser) -> None:
    for path in (*PATHS[:4], "/sign-in", "/static/dashboard.js", "/nothing"):
        answer = await browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<[^>]*\s(style|on\w+)=", answer.text), path
            assert not re.search(r"""(src|href|action)=["']?(https?:)?//""", answer.text), path


async def test_text_of_a_service_or_a_strategy_runs_no_script(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    answers = ANSWERS | {"/status": status(state="DEGRADED", why=evil, name=evil)}
    browser = await Browser(Daemon(tmp_path, answers)).signed_in()
    page = (await browser.get("/")).text
    assert evil not in page
    assert "&lt;script&gt;alert(1)" in page
    assert evil not in (await browser.get(f"/market/{evil}")).text


NEIGHBOURS = (
    "/sign-inx",
    "/sign-in/",
    "/sign-in/x",
    "/SIGN-IN",
    "//sign-in",
    "/sign-in//",
    "/sign%2din",
    "/sign-in%00",
    "/sign-in;x",
    "/sign-in.html",
    "/sign-in%2f",
    "/static",
    "/static/",
    "/static/a/b",
    "/static//dashboard.css",
    "/static/../events",
    "/static/%2e%2e/events",
    "/static/..%2fevents",
    "/static/dashboard.css/",
    "/static/dashboard.css/x",
    "/static/DASHBOARD.CSS",
    "/Static/dashboard.css",
    "/static/nope.css",
    "/static/dashboard%2ecss",
    "//static/dashboard.css",
    "/static/dashboard.css%00",
    "/nothing",
    "/%2e",
    "/favicon.ico",
    "//",
    "/sign-in\\x",
)


@pytest.mark.parametrize("path", NEIGHBOURS)
async def test_no_neighbour_of_an_open_path_shows_anything_without_sign_in(path: str, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, ANSWERS)
    stranger = Browser(daemon, control=True)
    for headers in ({"Accept": "text/html"}, {"Accept": "*/*", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "none"}):
        answer = await stranger.http.get(f"{BASE}{path}", headers=headers)
        assert answer.status_code in (303, 401), path
        assert answer.status_code == 401 or answer.headers["location"] == "/sign-in"
        assert "Controls are on" not in answer.text and "dead" not in answer.text.lower()
    await stranger.http.aclose()
    assert daemon.asked == [], "nothing was asked of the daemon"


async def test_the_open_paths_are_open(tmp_path: Path) -> None:
    stranger = Browser(Daemon(tmp_path, ANSWERS), control=True)
    assert (await stranger.get("/sign-in")).status_code == 200
    assert (await stranger.get("/static/dashboard.css?v=1")).status_code == 200
    await stranger.http.aclose()
