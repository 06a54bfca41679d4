"""Changes from the browser: the request that each sends to the daemon, and the answer in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bot.cli.operate.daemon_client import NotRunning
from bot.dashboard.controls import ACTIONS
from bot.errors import BotError, Declined
from tests.dashboard.builders import Browser, Daemon, status

KILLED = {
    "result": {
        "guardian": {"id": "grd_9"},
        "canceledOids": ["7"],
        "trades": [{"symbol": "BTC", "side": "long", "size": "1"}],
        "positions": [],
    }
}
ANSWERS: dict[str, Any] = {
    "/status": status(), "/strategies": {"strategies": []}, "/pause": {"strategies": [{"name": "trend", "state": "PAUSED"}], "resting": ["7"]},
    "/resume": {"strategies": [], "looked_at": ["open BTC of trend"]}, "/close": {"market": "BTC", "closed": True}, "/cancel": {"oid": "7"},
    "/kill": KILLED,
    "/approve": {"id": "MZXW6YTBAAAA", "market": "BTC", "strategy": "trend", "answer": "approved", "state": "accepted", "message": ""},
}  # fmt: skip


async def sent(browser: Browser, action: str, name: str = "", **form: str) -> str:
    asked = await browser.get(f"/control/{action}" + (f"?name={name}" if name else ""))
    assert asked.status_code == 200, asked.text
    word = asked.text.partition("Type <code>")[2].partition("</code>")[0]
    answer = await browser.post(f"/control/{action}", token=browser.token, name=name, confirm=word, **form)
    return answer.text


@pytest.mark.parametrize(
    ("action", "name", "form", "path", "body", "text"),
    [
        (
            "pause",
            "trend",
            {},
            "/pause",
            {"by": "the dashboard", "strategy": "trend"},
            "Resting entries can still fill: 7.",
        ),
        ("pause", "", {}, "/pause", {"by": "the dashboard"}, "trend: PAUSED."),
        ("resume", "", {}, "/resume", {"by": "the dashboard"}, "Reviewed: open BTC of trend."),
        ("close", "BTC", {}, "/close", {"market": "BTC"}, "The BTC position is closed."),
        ("cancel", "7", {}, "/cancel", {"oid": "7"}, "The order 7 is canceled."),
        (
            "approve",
            "MZXW6YTB",
            {},
            "/approve",
            {"id": "MZXW6YTB", "by": "the dashboard"},
            "MZXW6YTBAAAA is approved: the entry in BTC of trend is accepted.",
        ),
        (
            "kill",
            "",
            {"key": "k1"},
            "/kill",
            {"flatten": False, "key": "k1", "by": "the dashboard"},
            "The kill switch is active (grd_9)",
        ),
        (
            "kill",
            "",
            {"key": "k1", "flatten": "yes"},
            "/kill",
            {"flatten": True, "key": "k1", "by": "the dashboard"},
            "Closed: BTC long 1.",
        ),
    ],
)
async def test_a_change_sends_its_request(
    tmp_path: Path, action: str, name: str, form: dict[str, str], path: str, body: Any, text: str
) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    assert text in await sent(browser, action, name, **form)
    assert browser.daemon.changes == [(path, body)]


async def test_the_daemons_refusal_is_shown(tmp_path: Path) -> None:
    answers = ANSWERS | {
        "/close": Declined("the BTC position was not closed: closed until Monday"),
        "/pause": BotError("no strategy x"),
    }
    browser = await Browser(Daemon(tmp_path, answers), control=True).signed_in()
    for action, name, text in (("close", "BTC", "closed until Monday"), ("pause", "x", "no strategy x")):
        page = await sent(browser, action, name)
        assert "Not done." in page
        assert text in page


async def test_a_kill_that_the_daemon_does_not_do_names_the_ways_without_it(tmp_path: Path) -> None:
    answers = ANSWERS | {"/kill": NotRunning("the daemon is not running")}
    browser = await Browser(Daemon(tmp_path, answers), control=True).signed_in()
    page = await sent(browser, "kill")
    assert "the daemon is not running" in page
    assert "call the service without the daemon" in page


async def test_a_repeated_kill_has_the_key_of_the_first(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    page = (await browser.get("/control/kill")).text
    key = page.partition('name="key" value="')[2].partition('"')[0]
    assert len(key) > 20
    for _ in range(2):
        await browser.post("/control/kill", token=browser.token, key=key, confirm="kill")
    assert browser.daemon.changes == [("/kill", {"flatten": False, "key": key, "by": "the dashboard"})] * 2


async def test_a_control_that_does_not_exist_or_has_no_subject_is_not_found(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    for path in ("/control/close", "/control/cancel", "/control/stop"):
        assert (await browser.get(path)).status_code == 404
    assert (await browser.post("/control/stop", token=browser.token, confirm="stop")).status_code == 404
    assert (await browser.post("/control/close", token=browser.token, confirm="")).status_code == 400
    assert browser.daemon.changes == []


def test_each_control_says_what_it_does() -> None:
    assert set(ACTIONS) == {"pause", "resume", "close", "cancel", "approve", "refuse", "kill"}
    assert all(len(one.what) > 40 for one in ACTIONS.values())
