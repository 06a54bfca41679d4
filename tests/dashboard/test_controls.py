"""Changes from the browser: the request that each sends to the daemon, and the answer in words."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from bot.cli.common.daemon_client import NotRunning
from bot.dashboard.controls import ACTIONS
from bot.dashboard.page_models import PAGES
from bot.dashboard.values.identity import Moved
from bot.errors import BotError, Declined
from tests.dashboard.builders import Browser, Daemon, order, position, status, strategy

KILLED = {
    "result": {
        "guardian": {"id": "grd_9"},
        "canceledOids": ["7"],
        "trades": [{"symbol": "BTC", "side": "long", "size": "1"}],
        "positions": [],
    }
}
PROPOSAL = {
    "id": "MZXW6YTBAAAA",
    "strategy": "trend",
    "market": "BTC",
    "side": "long",
    "leverage": None,
    "size": "2",
    "est_px": "100",
    "notional_usd": "200",
    "stop_px": "95",
    "target_px": None,
    "shown_px": "100",
    "asked_ms": 1,
    "plan_expires_ms": 2,
    "not_after_ms": 3,
    "left_s": 90,
}
ENTRY = order(kind="limit", action="open", limit_px="95", trigger_px=None)
ANSWERS: dict[str, Any] = {
    "/status": status(positions=1, orders=1),
    "/positions": {"positions": [position(opened_ms=5)]},
    "/orders": {"orders": [ENTRY]},
    "/strategies": {"strategies": []},
    "/approvals": {"approvals": [PROPOSAL]},
    "/pause": {"strategies": [{"name": "trend", "state": "PAUSED"}], "resting": ["7"]},
    "/resume": {"strategies": [], "looked_at": ["open BTC of trend"]},
    "/close": {"market": "BTC", "closed": True},
    "/cancel": {"oid": "7"},
    "/kill": KILLED,
    "/refuse": {"id": "MZXW6YTBAAAA", "market": "BTC", "strategy": "trend", "answer": "refused", "state": "rejected"},
    "/approve": {
        "id": "MZXW6YTBAAAA",
        "market": "BTC",
        "strategy": "trend",
        "answer": "approved",
        "state": "accepted",
        "message": "",
    },
}


async def sent(browser: Browser, action: str, name: str = "", **form: str) -> str:
    asked = await browser.get(f"/control/{action}" + (f"?name={name}" if name else ""))
    assert asked.status_code == 200, asked.text
    word = asked.text.partition("Type <code>")[2].partition("</code>")[0]
    stamp = asked.text.partition('name="of" value="')[2].partition('"')[0]
    answer = await browser.post(f"/control/{action}", token=browser.token, name=name, confirm=word, of=stamp, **form)
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
        (
            "close",
            "BTC",
            {},
            "/close",
            {"market": "BTC", "side": "long", "opened_ms": 5},
            "The BTC position is closed.",
        ),
        ("cancel", "7", {}, "/cancel", {"oid": "7"}, "The order 7 is canceled."),
        (
            "approve",
            "MZXW6YTB",
            {},
            "/approve",
            {"id": "MZXW6YTBAAAA", "by": "the dashboard"},
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
        "/pause": BotError("the disk is full"),
    }
    browser = await Browser(Daemon(tmp_path, answers), control=True).signed_in()
    for action, name, text in (("close", "BTC", "closed until Monday"), ("pause", "trend", "the disk is full")):
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
    stamp = await browser.stamp("/control/kill")
    for _ in range(2):
        await browser.post("/control/kill", token=browser.token, key=key, confirm="kill", of=stamp)
    assert browser.daemon.changes == [("/kill", {"flatten": False, "key": key, "by": "the dashboard"})] * 2


async def test_a_control_that_does_not_exist_or_has_no_subject_is_not_found(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    for path in (
        "/control/close",
        "/control/cancel",
        "/control/stop",
        "/control/close?name=NOPE",
        "/control/pause?name=x",
    ):
        assert (await browser.get(path)).status_code == 404
    assert (await browser.post("/control/stop", token=browser.token, confirm="stop")).status_code == 404
    assert (await browser.post("/control/close", token=browser.token, confirm="")).status_code == 409
    assert browser.daemon.changes == []


def test_each_control_says_what_it_does() -> None:
    assert set(ACTIONS) == {"pause", "resume", "close", "cancel", "approve", "refuse", "kill"}
    assert all(len(one.what) > 40 for one in ACTIONS.values())


# What a control acts on, and how that can become another thing between the page and the change.
OTHER_ACCOUNT = {"/status": status(positions=1, orders=1, address="0xdef")}
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("close", "BTC", {"/positions": {"positions": [position(opened_ms=5, side="short")]}}),
    ("close", "BTC", {"/positions": {"positions": [position(opened_ms=6)]}}),
    ("close", "BTC", {"/positions": {"positions": [position(market="ETH")]}}),
    ("close", "BTC", OTHER_ACCOUNT),
    ("cancel", "7", {"/orders": {"orders": [ENTRY | {"market": "ETH"}]}}),
    ("cancel", "7", {"/orders": {"orders": [ENTRY | {"action": "close"}]}}),
    ("cancel", "7", OTHER_ACCOUNT),
    ("approve", "MZXW6YTBAAAA", {"/approvals": {"approvals": [PROPOSAL | {"size": "3"}]}}),
    ("approve", "MZXW6YTBAAAA", {"/approvals": {"approvals": [PROPOSAL | {"shown_px": "101"}]}}),
    ("approve", "MZXW6YTBAAAA", {"/approvals": {"approvals": []}}),
    ("refuse", "MZXW6YTBAAAA", {"/approvals": {"approvals": [PROPOSAL | {"side": "short"}]}}),
    ("pause", "trend", {"/status": status(strategies=[])}),
    ("pause", "trend", OTHER_ACCOUNT),
    ("pause", "", OTHER_ACCOUNT),
    ("resume", "trend", {"/status": status(strategies=[strategy(state="QUARANTINED", why="it raised")])}),
    ("resume", "", {"/status": status(strategies=[strategy(state="QUARANTINED")])}),
    ("kill", "", OTHER_ACCOUNT),
]


@pytest.mark.parametrize(("action", "name", "change"), CHANGES)
async def test_a_control_is_refused_when_what_it_acts_on_has_changed(
    tmp_path: Path, action: str, name: str, change: dict[str, Any]
) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    path = f"/control/{action}?name={name}"
    stamp, word = await browser.stamp(path), name or action
    assert stamp
    browser.daemon.answers |= change
    answer = await browser.post(f"/control/{action}", token=browser.token, name=name, confirm=word, of=stamp)
    assert answer.status_code == 409, answer.text
    assert "Nothing was sent" in answer.text
    assert browser.daemon.changes == []
    assert (await browser.get(f"{path}&of={stamp}")).status_code in (404, 409), "nor does a stale link lead to its form"


async def test_every_control_names_what_it_acts_on(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    for action, name, text in (
        ("close", "BTC", "the position BTC long 0.5 at 100.00"),
        ("cancel", "7", "the entry order 7: BTC long 0.5 at 95.00"),
        ("approve", "MZXW6YTBAAAA", "the entry MZXW6YTBAAAA of trend: BTC long 2 at about 100 (200 USD), stop 95"),
        ("refuse", "MZXW6YTBAAAA", "the entry MZXW6YTBAAAA of trend: BTC long 2"),
        ("pause", "trend", "the strategy trend (RUNNING) on BTC"),
        ("pause", "", "every strategy on the account 0xabc"),
        ("resume", "", "every strategy on the account 0xabc (trend RUNNING)"),
        ("kill", "", "the account 0xabc"),
    ):
        assert text in (await browser.get(f"/control/{action}?name={name}")).text


async def test_every_button_of_every_page_leads_to_a_form_with_the_same_stamp(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    links = set()
    for path in ("/", "/market/BTC", "/strategies", "/strategies/trend", "/events", "/guardians", "/approvals"):
        links |= set(re.findall(r'href="(/control/[^"]+)"', (await browser.get(path)).text))
    assert {link.partition("?")[0].rpartition("/")[2] for link in links} >= set(ACTIONS) - {"resume"} | {"resume"}
    for link in links:
        stamp = re.search(r"[?;]of=(\w+)", link)
        assert stamp is not None, link
        assert await browser.stamp(html.unescape(link)) == stamp[1]


async def test_a_page_is_about_one_account_market_and_interval_for_as_long_as_it_is_open(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), control=True).signed_in()
    page = (await browser.get("/market")).text
    stream = html.unescape(page.partition('data-stream="')[2].partition('"')[0])
    assert "coin=BTC" in stream
    assert "interval=1m" in stream
    assert "account=0xabc" in stream
    query = dict(parse_qsl(stream.partition("?")[2]))
    held = ANSWERS | {"/positions": {"positions": [position(market="AAA")]}}
    moved = await Browser(Daemon(tmp_path, held), control=True).signed_in()
    values = await PAGES["market"].values(moved.sources, query)
    assert (values["coin"], values["interval"], values["position"]) == ("BTC", "1m", None)
    other = await Browser(Daemon(tmp_path, ANSWERS | OTHER_ACCOUNT), control=True).signed_in()
    for name in PAGES:
        if name not in ("explain", "compare"):
            with pytest.raises(Moved, match="This page shows the account 0xabc, and the daemon trades 0xdef now"):
                await PAGES[name].values(other.sources, query | {"name": "trend"})
    for name in ("market", "overview"):
        assert (await browser.get(f"/stream/{name}")).status_code == 404, "the updates of a page name what it is about"


async def test_a_backtest_of_another_config_than_the_page_showed_is_not_started(tmp_path: Path) -> None:
    answers = ANSWERS | {"/status": status(config=str(tmp_path / "b.yaml"))}
    browser = await Browser(Daemon(tmp_path, answers), control=True).signed_in()
    answer = await browser.post("/runs", token=browser.token, data="data", config=str(tmp_path / "a.yaml"))
    assert answer.status_code == 400
    assert "the page showed another config" in answer.text
    assert browser.sources.backtests.job is None
