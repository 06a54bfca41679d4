"""The pages over a real journal: strategies with decisions and refusals, events with their filters, the chain of an
order, guardians.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.runtime.journal import queries
from bot.strategy import Bracket, Open
from tests.dashboard.builders import Browser, Daemon, order, position, status, strategy
from tests.faulty_port import FaultyPort
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

    venue = FaultyPort()
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
    assert page.count("Open long BTC") + page.count("Open short BTC") >= 2
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


async def test_the_parts_of_an_update_are_every_fragment_and_an_update_has_those_that_changed(
    browser: Browser, tmp_path: Path
) -> None:
    from bot.dashboard.app import FRAME, Dashboard
    from bot.dashboard.backtests import Backtests
    from bot.dashboard.open_pages import CHART, Update
    from bot.dashboard.page_models import PAGES, PageSources
    from bot.dashboard.sources import DaemonSource, FleetSource, ServiceSource
    from tests.dashboard.builders import documents

    sources = PageSources(DaemonSource(browser.daemon), ServiceSource(), Backtests(tmp_path), FleetSource(list))
    dashboard = Dashboard(sources, documents(has_charts=False), browser.sign_in, control=False)
    for page in PAGES.values():
        if page.name in ("market", "explain", "compare"):
            continue
        values = await page.values(sources, {"name": "trend"})
        parts = dashboard.rendered(page, values)
        assert set(parts) - {CHART} == {*FRAME, *page.fragments}
        assert dashboard.rendered(page, values) == parts
        values["frame"] = values["frame"].__class__(
            **{name: getattr(values["frame"], name) for name in values["frame"].__slots__} | {"state": "PAUSED"}
        )
        later = dashboard.rendered(page, values)
        assert {name for name in parts if parts[name] != later[name]} == {"status"}
    update = Update(3, 7, {"status": ("a", 1), "notice": ("b", 3), CHART: ("[1]", 2)})
    assert json.loads(update.since(0)) == {"now": 7, "fragments": {"status": "a", "notice": "b"}, "chart": [1]}
    assert json.loads(update.since(2)) == {"now": 7, "fragments": {"notice": "b"}}
    assert json.loads(update.since(3)) == {"now": 7, "fragments": {}}


async def test_fifty_open_pages_share_one_rendering_a_second(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of one address: one reading and at most one rendering for all."""
    from bot.dashboard import open_pages
    from bot.dashboard.app import FRAME
    from bot.dashboard.page_models import PAGES

    monkeypatch.setattr(open_pages, "UPDATE_S", 0.05)
    monkeypatch.setattr("bot.dashboard.sources.DAEMON_S", 0.0)
    page, cookie = PAGES["strategies"], browser.http.cookies[browser.sign_in.cookie_name]
    rendered: list[str] = []
    fragment = browser.dashboard._documents.fragment

    def counted(name: str, shown: dict[str, Any]) -> str:
        rendered.append(name)
        return fragment(name, shown)

    monkeypatch.setattr(browser.dashboard, "_documents", SimpleNamespace(fragment=counted))
    streams = [browser.dashboard.updates(page, {}, cookie) for _ in range(50)]
    names = sorted([*FRAME, *page.fragments])

    async def all_next() -> set[str]:
        return {one["data"] for one in await asyncio.gather(*(anext(stream) for stream in streams))}

    (first,) = await all_next()
    assert sorted(rendered) == sorted(json.loads(first)["fragments"]) == names
    browser.daemon.answers["/status"] = browser.daemon.answers["/status"] | {"state": "PAUSED"}
    (second,) = await all_next()
    assert sorted(rendered) == sorted(names * 2)
    assert "status" in json.loads(second)["fragments"]
    late = browser.dashboard.updates(page, {}, cookie)
    assert set(json.loads((await anext(late))["data"])["fragments"]) == set(names), "a page that is opened now gets all"
    assert sorted(rendered) == sorted(names * 2), "without a rendering of its own"
    for stream in (*streams, late):
        await stream.aclose()  # type: ignore[attr-defined]
    assert browser.dashboard._updates._pages == {}
    assert browser.dashboard._updates.streams == 0


async def test_a_page_whose_values_stay_the_same_is_not_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from bot.dashboard import open_pages

    monkeypatch.setattr(open_pages, "UPDATE_S", 0.01)
    values: dict[str, Any] = {"a": 1}
    rendered: list[int] = []

    async def read() -> dict[str, Any]:
        return dict(values)

    def render(shown: dict[str, Any]) -> dict[str, str]:
        rendered.append(shown["a"])
        return {"part": str(shown["a"])}

    stream = open_pages.PageUpdates(lambda: 5).stream("here", read, render, lambda: True)
    messages = [json.loads((await anext(stream))["data"]) for _ in range(2)]
    values["a"] = 2
    messages.append(json.loads((await anext(stream))["data"]))
    assert [one["fragments"] for one in messages] == [{"part": "1"}, {}, {"part": "2"}]
    assert rendered == [1, 2]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_page_with_thousands_of_rows_shows_the_first_and_says_how_many_more_there_are(tmp_path: Path) -> None:
    """5,000 of everything. The positions without a stop are among those that are shown."""
    count, most = 5_000, 200
    markets = [f"C{n:04}" for n in range(count)]
    proposals = [PROPOSAL | {"id": f"MZXW6YTB{n:04}"} for n in range(count)]
    strategies = [strategy(f"s{n}", markets=markets[n * 20 : n * 20 + 20]) for n in range(300)]
    answers = ANSWERS | {
        "/status": status(positions=count, orders=count, strategies=strategies),
        "/positions": {"positions": [position(market=one, protected=one != markets[-1]) for one in markets]},
        "/orders": {"orders": [order(oid=str(n), market=one) for n, one in enumerate(markets)]},
        "/strategies": {"strategies": strategies},
        "/guardians": {"config": [], "guardians": [GUARDIAN | {"id": f"grd_{n}"} for n in range(count)]},
        "/approvals": {"approvals": proposals},
    }
    one = await Browser(Daemon(tmp_path, answers), control=True).signed_in()
    listed = {
        "/": ("<tr>", "and 4,800 more; <code>bot positions</code> lists all"),
        "/market/C0001": ("<li><a id=", "and 4,800 more; the address <code>/market/NAME</code> shows any of them"),
        "/events": ("<tr>", "and 4,800 more; <code>bot orders</code> lists all"),
        "/guardians": ("<tr>", "and 4,800 more; <code>bot status --json</code> lists all"),
        "/approvals": ("<tr>", "and 4,800 more; <code>bot approvals</code> lists all"),
        "/strategies": ("<tr>", "and 100 more; <code>bot status</code> lists all"),
    }
    for path, (row, more) in listed.items():
        text = (await one.get(path)).text
        assert more in text, path
        assert most < text.count(row) + 1 <= most + 10, path
    overview = (await one.get("/")).text
    assert overview.count("NO STOP") == 1
    assert f"/market/{markets[-1]}" in overview


def test_rows_are_made_when_they_are_shown() -> None:
    from bot.dashboard.values.tables import TableRows

    made: list[int] = []

    def make(item: int) -> int:
        made.append(item)
        return item * 2

    rows = TableRows(range(5_000), make)
    assert (len(rows), rows[:3], rows[-1], made) == (5_000, [0, 2, 4], 9_998, [0, 1, 2, 4_999])
    assert rows == TableRows(range(5_000), lambda item: item * 2)
    assert rows != TableRows(range(4_999), lambda item: item * 2)
    assert rows != TableRows(range(5_000), lambda item: item * 3)
