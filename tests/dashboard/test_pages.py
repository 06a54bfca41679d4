"""The pages over a real journal: strategies with decisions and refusals, events with their filters, the chain of an
order, guardians.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.runtime.journal import queries
from bot.strategy import Bracket, Open
from tests.dashboard.builders import Browser, Daemon, order, position, status, strategy
from tests.fakes import FakeVenue
from tests.runtime.builders import make_kernel, minutes

GUARDIAN = {
    "id": "grd_1",
    "type": "dead_man_switch",
    "market": None,
    "latched": False,
    "blocks_opens": False,
    "active": True,
}
ANSWERS = {
    "/status": status(positions=1, orders=1),
    "/positions": {"positions": [position()]},
    "/orders": {"orders": [order()]},
    "/strategies": {"strategies": [strategy(params={"usd": 200.0})]},
    "/guardians": {
        "config": [{"name": "dead_man", "type": "dead_man_switch", "id": "grd_1", "stands": True}],
        "guardians": [GUARDIAN],
    },
    "/approvals": {"approvals": []},
}
PROPOSAL = {
    "id": "MZXW6YTBAAAABBBB",
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


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    """On a journal with two trades of `trend` in BTC and one refusal."""
    sides = ["long", "short"]

    def decide(view: object, bar: object) -> list[Open]:
        if not sides:
            return []
        return [
            Open("BTC", sides.pop(), usd=200, bracket=Bracket(stop_pct=5)),
            Open("BTC", "long", usd=1e6, bracket=Bracket(stop_pct=5)),
        ]

    venue = FakeVenue()
    kernel = make_kernel(venue, decide, path=tmp_path / queries.FILE)
    await kernel.recover()
    await minutes(kernel, venue, "100", "120", "120", "60", "60")
    kernel.journal.flush()
    made = await Browser(Daemon(tmp_path, ANSWERS)).signed_in()
    yield made
    await made.http.aclose()
    kernel.journal.close()


def rows(page: str) -> list[str]:
    """The text of the rows of the table of events."""
    table = page.partition('aria-label="Events"')[2].partition("</table>")[0]
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)) for row in table.split("<tr>")[2:]]


async def test_the_page_of_a_strategy_has_its_decisions_refusals_and_params(browser: Browser) -> None:
    page = (await browser.get("/strategies/trend")).text
    assert page.count("Open(market=&#39;BTC&#39;") >= 2
    assert "budget" in page.partition("Newest refusals")[2]
    assert "200.0" in page.partition("Params")[2]
    assert (await browser.get("/strategies/none")).status_code == 404


async def test_events_are_filtered_by_type_market_strategy_and_text(browser: Browser) -> None:
    everything = rows((await browser.get("/events")).text)
    assert len(everything) > 6
    fills = rows((await browser.get("/events?type=fill")).text)
    assert fills
    assert all(" fill " in row for row in fills)
    assert rows((await browser.get("/events?type=fill&market=ETH")).text) == []
    assert 0 < len(rows((await browser.get("/events?type=fill&strategy=trend")).text)) < len(fills), (
        "a stop's fill has no key of ours"
    )
    text = fills[-1].split()[-1]
    found = rows((await browser.get(f"/events?q={text.upper()}")).text)
    assert 0 < len(found) < len(everything)
    assert (await browser.get("/events?type=nothing")).status_code == 404


async def test_older_events_are_on_the_next_page(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = rows((await browser.get("/events")).text)
    monkeypatch.setattr("bot.dashboard.pages.events.PAGE_ROWS", 4)
    path, pages = "/events", list[str]()
    for _ in range(len(everything)):
        page = (await browser.get(path)).text
        pages += rows(page)
        older = re.search(r'href="(/events\?before=[^"]+)">Older', page)
        if older is None:
            break
        path = older[1]
    assert pages == everything


async def test_a_click_on_an_event_shows_its_chain(browser: Browser) -> None:
    page = (await browser.get("/events?type=fill")).text
    links = re.findall(r'href="(/explain/[^"]+)"', page)
    chain = await browser.get(links[-1])
    steps = re.findall(r'<span class="what">(\w+)</span>', chain.text)
    assert steps[:3] == ["bar", "decision", "refused"]
    assert "fill" in steps
    missing = await browser.get("/explain/trd_none")
    assert missing.status_code == 404
    assert "the journal has nothing with the id trd_none" in missing.text


async def test_guardians_and_approvals_are_shown(browser: Browser) -> None:
    page = (await browser.get("/guardians")).text
    assert "dead man switch" in page
    assert "data-until=" in page
    assert "Nothing waits for a person." in (await browser.get("/approvals")).text


async def test_an_entry_that_waits_has_its_figures_and_buttons_only_with_control(tmp_path: Path) -> None:
    answers = ANSWERS | {"/approvals": {"approvals": [PROPOSAL]}}
    for control in (False, True):
        one = await Browser(Daemon(tmp_path, answers), control=control).signed_in()
        page = (await one.get("/approvals")).text
        assert (
            re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).count(
                "MZXW6YTBAAAA trend BTC ↑ long 2 100.00 200.00 95.00 1 min 30 s"
            )
            == 1
        )
        assert ("/control/approve?of=" in page, "/control/refuse?of=" in page) == (control, control)
    proposed = PROPOSAL | {"proposed_by": "a model", "why": "<b>now</b>"}
    one = await Browser(Daemon(tmp_path, ANSWERS | {"/approvals": {"approvals": [proposed]}})).signed_in()
    assert "proposed by a model: &lt;b&gt;now&lt;/b&gt;" in (await one.get("/approvals")).text


async def test_the_first_update_has_every_fragment_and_the_next_what_changed(browser: Browser, tmp_path: Path) -> None:
    from bot.dashboard.app import FRAME, Dashboard
    from bot.dashboard.backtests import Backtests
    from bot.dashboard.page_models import PAGES, Sources
    from bot.dashboard.sources import DaemonSource, ServiceSource
    from tests.dashboard.builders import documents

    sources = Sources(DaemonSource(browser.daemon), ServiceSource(), Backtests(tmp_path))
    dashboard = Dashboard(sources, documents(has_charts=False), browser.sign_in, control=False)
    for page in PAGES.values():
        if page.name in ("market", "explain", "compare"):
            continue
        sent: dict[str, str] = {}
        values = await page.values(sources, {"name": "trend"})
        assert set(dashboard._changed(page, values, sent)["fragments"]) == {*FRAME, *page.fragments}
        assert dashboard._changed(page, values, sent)["fragments"] == {}
        values["frame"] = values["frame"].__class__(
            **{name: getattr(values["frame"], name) for name in values["frame"].__slots__} | {"state": "PAUSED"}
        )
        assert set(dashboard._changed(page, values, sent)["fragments"]) == {"status"}
