"""The page of all daemons of a machine: what is known, old and not known of each, the sums, and controls that reach one
daemon by its own control socket.
"""

from __future__ import annotations

import re
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bot.cli.operate.fleet import Member
from bot.dashboard.pages import fleet
from bot.errors import Exit
from tests.dashboard.builders import NOW_MS, Browser, Daemon, book, position, status, strategy
from tests.html_tables import tables_of


def member(folder: Path, name: str, answer: dict[str, Any] | None, **more: Any) -> Member:
    place: Any = daemon(folder / name, answer or {})
    return Member(place, name, answer, **more)


def daemon(folder: Path, answer: dict[str, Any]) -> Daemon:
    lists = {"/positions": {"positions": [position()]}, "/orders": {"orders": []}, "/strategies": {"strategies": []}}
    return Daemon(folder, lists | {"/status": answer})


def told(value: float, day: str, **more: Any) -> dict[str, Any]:
    account = {"value_usd": value, "free_usd": value, "balance_usd": str(value)}
    return status(account=account, strategies=[strategy(book=book(day_usd=day))], unprotected=[], **more)


@pytest.fixture
def members(tmp_path: Path) -> list[Member]:
    bare = {"unprotected": ["BTC"], "alarms": [{"alarm": "stale_prices"}]}
    return [
        member(tmp_path, "live", told(1000.5, "12.25", positions=1, address="0xlive")),
        member(tmp_path, "old", told(200, "-2", old_s=30.0)),
        member(tmp_path, "bare", told(10, "0", positions=2) | bare),
        member(tmp_path, "silent", None, problem="it does not answer", code=Exit.TIMEOUT),
        member(tmp_path, "dead", None, problem="it is not running", code=Exit.NOT_RUNNING),
    ]


def test_each_daemon_is_known_old_or_not_known_and_nothing_unknown_is_zero(members: list[Member]) -> None:
    shown = {row.name: row for row in fleet.rows(members, NOW_MS)}
    assert {name: (row.state, row.value.shown, row.today.shown, row.today.tone) for name, row in shown.items()} == {
        "live": ("RUNNING", "1,000.50", "+12.25", "up"),
        "old": ("RUNNING", "200.00", "−2.00", "flat"),
        "bare": ("RUNNING", "10.00", "0.00", "flat"),
        "silent": ("NO ANSWER", "not known", "not known", "flat"),
        "dead": ("NOT RUNNING", "not known", "not known", "flat"),
    }
    assert [(row.positions, row.bare, row.alerts) for row in shown.values()] == [
        ("1", "", "none"),
        ("0", "", "none"),
        ("2", "BTC", "stale prices"),
        ("not known", "", "not known"),
        ("not known", "", "not known"),
    ]
    assert (shown["old"].age, shown["silent"].dead_man.text) == ("30 s ago", "not known")


def test_the_sums_are_those_of_the_accounts_that_are_known(members: list[Member]) -> None:
    value, today, running = fleet.sums(fleet.rows(members, NOW_MS))
    assert (value.value, today.value) == (Decimal("1210.5"), Decimal("10.25"))
    assert (value.note, value.state) == ("of 3 of 5 daemons", "old")
    assert (running.value, running.note) == (3, "of 5 on this machine")
    nobody = fleet.sums(fleet.rows(members[3:], NOW_MS))
    assert [figure.shown for figure in nobody] == ["not known", "not known", "0"]


async def test_a_control_reaches_the_one_daemon_that_the_person_has_named(
    members: list[Member], tmp_path: Path
) -> None:
    live: Any = members[0].place
    live.answers["/pause"] = {"state": "PAUSED", "strategies": [{"name": "trend", "state": "PAUSED"}]}
    live.answers["/kill"] = {"result": {"guardian": {"id": "grd_1"}, "canceledOids": [], "trades": [], "positions": []}}
    here = daemon(tmp_path / "here", told(1, "0"))
    browser = await Browser(here, control=True, fleet=lambda: members).signed_in()
    page = (await browser.get("/fleet")).text
    (rows,) = [rows for rows in tables_of(page) if rows[0][0] == "Daemon"]
    assert [row[0].split()[0].partition(str(tmp_path))[0] for row in rows[1:]] == [each.name for each in members]
    links = [unescape(link) for link in re.findall(r'href="(/control/[^"]+)"', page)]
    assert len(links) == 9, "three for each daemon that answers"
    for action, word in (("pause", "live"), ("kill", "live")):
        link = next(link for link in links if link.startswith(f"/control/{action}?"))
        asked = (await browser.get(link)).text
        assert f"by the daemon live in {live.folder}" in unescape(asked)
        stamp, key = (asked.partition(f'name="{name}" value="')[2].partition('"')[0] for name in ("of", "key"))
        form = {"token": browser.token, "folder": str(live.folder), "of": stamp, "key": key, "name": ""}
        live.changes.clear()
        wrong = await browser.post(f"/control/{action}", **form, confirm=action)
        assert wrong.status_code == 400
        assert "Nothing was sent: type live to confirm" in wrong.text
        assert live.changes == []
        done = await browser.post(f"/control/{action}", **form, confirm=word)
        assert done.status_code == 200, done.text
        assert [path for path, _ in live.changes] == [f"/{action}"]
    others: list[Any] = [here, *(each.place for each in members[1:])]
    assert [other.changes for other in others] == [[]] * 5
    assert (await browser.get("/control/pause?folder=/etc")).status_code == 404
    stale = await browser.post(
        "/control/pause", token=browser.token, folder=str(live.folder), of="0" * 16, confirm="live"
    )
    assert stale.status_code == 409


async def test_a_dashboard_that_only_reads_or_sees_one_daemon_has_no_controls_of_others(
    members: list[Member], tmp_path: Path
) -> None:
    here = daemon(tmp_path / "here", told(1, "0"))
    reads = await Browser(here, fleet=lambda: members).signed_in()
    assert "/control/" not in (await reads.get("/fleet")).text
    folder = members[0].place.folder
    assert (await reads.get(f"/control/pause?folder={folder}")).status_code == 403
    alone = await Browser(here, control=True).signed_in()
    assert (await alone.get("/fleet")).status_code == 404
    assert 'href="/fleet"' not in (await alone.get("/")).text
    assert (await alone.get(f"/control/pause?folder={folder}")).status_code == 404
