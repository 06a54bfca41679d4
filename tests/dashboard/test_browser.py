"""The dashboard in Chromium on a running demo: what a person sees and does, on a desk and on a phone."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.operate.daemon_process import made
from tests.dashboard.browsing import WIDTHS, Visitor, bot, demo, running
from tests.screen_fit import serious_faults

PATHS = (
    "/",
    "/market",
    "/strategies",
    "/strategies/trend",
    "/events",
    "/guardians",
    "/approvals",
    "/runs",
    "/proof",
    "/control/kill",
)
ROWS = "document.querySelectorAll('#live-positions tbody tr').length"
LAST = "document.querySelector('figure').dataset.last"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        yield Path(name)


def sees_a_position_and_the_chart_change(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.wait(f"{ROWS} > 0")
    market = page.locator("#live-positions tbody tr th").first.inner_text()
    assert re.fullmatch(r"\d+:\d\d", page.locator(".dead-man .countdown").inner_text())
    visitor.open(f"/market/{market}")
    visitor.wait("document.querySelector('figure').dataset.ready === 'yes'")
    assert page.locator("figure canvas").count() > 0
    visitor.wait(f"{LAST} !== undefined")
    before = page.evaluate(LAST)
    visitor.wait(f"{LAST} !== {json.dumps(before)}")


def pauses_a_strategy(visitor: Visitor, folder: Path) -> None:
    page = visitor.open("/strategies")
    page.locator("#do-pause-trend").click()
    page.get_by_label("Type trend to confirm").fill("trent")
    page.get_by_role("button", name="Pause trend").click()
    assert "Nothing was sent" in page.locator("main").inner_text()
    assert states(folder) == {"trend": "RUNNING", "reversion": "RUNNING"}
    page.get_by_label("Type trend to confirm").fill("trend")
    page.keyboard.press("Enter")
    page.get_by_text("trend: PAUSED").wait_for()
    assert states(folder) == {"trend": "PAUSED", "reversion": "RUNNING"}
    visitor.open("/strategies")
    page.locator("#do-resume-trend").wait_for()


def kills_with_confirmation(visitor: Visitor, folder: Path) -> None:
    page = visitor.open("/", width=390)
    page.locator("#do-kill-").click()
    page.get_by_label("Also close every position").check()
    page.get_by_label("Type kill to confirm").fill("kill")
    page.get_by_role("button", name="Kill the account").click()
    page.get_by_text("The kill switch is active").wait_for()
    visitor.open("/", width=390)
    visitor.wait("document.querySelector('#live-status').innerText.includes('DEGRADED')")
    visitor.wait(f"{ROWS} === 0")
    assert status(folder)["blocked_by"][0]["type"] == "kill_switch"


def works_without_scripts(browser: Any, folder: Path) -> None:
    given = json.loads(bot("dashboard", "--state-dir", str(folder), "--link", "--json").stdout)
    base, code = given["address"], given["link"].partition("#")[2]
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{base}/sign-in")
        page.get_by_label("Code").fill(code)
        page.get_by_role("button", name="Sign in").click()
        for path, text in (("/", "Account value"), ("/events", "Resting orders"), ("/market/BTC", "Order book")):
            page.goto(base + path)
            assert text in page.locator("main").inner_text()
        paths = page.locator("#chart-candles path.fu, #chart-candles path.fd").all()
        assert sum((one.get_attribute("d") or "").count("M") for one in paths) > 50


def status(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(bot("status", "--state-dir", str(folder), "--json").stdout)
    return told


def states(folder: Path) -> dict[str, str]:
    return {one["name"]: one["state"] for one in status(folder)["strategies"]}


def test_a_person_approves_a_proposal_on_the_page(browser: Any) -> None:
    with made("Idle") as ran:
        ran.config.write_text(ran.config.read_text().replace("60x", "1x"))
        ran.start()
        ran.recovered()
        name = ran.propose("one")[:12]
        with running(ran.state, "--control") as (_, told):
            visitor = Visitor(browser, told["link"])
            page = visitor.open("/approvals")
            assert "proposed by a model: it rises" in page.locator("main").inner_text()
            assert serious_faults(page) == []
            page.locator(f"#do-approve-{name.lower()}").click()
            page.get_by_label(f"Type {name} to confirm").fill("yes")
            page.get_by_role("button", name="Approve").click()
            assert "Nothing was sent" in page.locator("main").inner_text()
            assert ran.query("SELECT 1 FROM events WHERE type='fill'") == []
            page.get_by_label(f"Type {name} to confirm").fill(name)
            page.get_by_role("button", name="Approve").click()
            page.get_by_text(f"{name} is approved: the entry in BTC of mine is accepted.").wait_for()
            visitor.open("/approvals")
            page.get_by_text("Nothing waits for a person.").wait_for()
        ran.until("the entry fills", lambda: ran.query("SELECT 1 FROM events WHERE type='fill'"))
        assert ran.query("SELECT decider FROM approvals") == [("the dashboard",)]


def test_a_person_watches_pauses_and_kills_a_demo(browser: Any, folder: Path) -> None:
    with demo(folder) as link:
        visitor = Visitor(browser, link)
        sees_a_position_and_the_chart_change(visitor)
        for path in PATHS:
            for width in WIDTHS:
                page = visitor.open(path, width=width)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{path} scrolls sideways at {width} px"
            assert serious_faults(page) == [], path
        visitor.page.emulate_media(color_scheme="dark")
        for path in PATHS[:2]:
            assert serious_faults(visitor.open(path)) == [], f"{path} in the dark"
        works_without_scripts(browser, folder)
        pauses_a_strategy(visitor, folder)
        kills_with_confirmation(visitor, folder)
        assert [one for one in visitor.said if "400 (Bad Request)" not in one] == [], "that one answers the wrong word"
        assert {url.partition("/")[0] + "//" + url.split("/")[2] for url in visitor.asked} == {visitor.base}
