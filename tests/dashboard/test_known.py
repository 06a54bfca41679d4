"""Unknown is not empty: every page in every state of its sources says what it knows, what is old, and what is not
known.
"""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bot.cli.common.daemon_client import NotRunning, Silent
from bot.dashboard.controls import ACTIONS
from bot.dashboard.page_models import PARTS
from bot.dashboard.values.reading import NOW, Reading, old, unknown
from bot.runtime.journal import queries
from bot.wire.wallets import WalletResult
from tests.dashboard.builders import NOW_MS, Browser, Daemon, order, position, status
from tests.faulty_port import ADDRESS, FaultyPort
from tests.runtime.builders import always, make_kernel, minutes

PAGES = ("/", "/market/BTC", "/strategies", "/strategies/trend", "/events", "/guardians", "/approvals", "/runs")
# Sentences that say that there is nothing. None of them may stand on a page that does not know it.
EMPTY = (
    "No open position",
    "No position in",
    "no open position",
    "No resting order",
    "has no guardian",
    "No dead-man switch",
    "no dead-man switch",
    "Nothing waits",
    "No event fits",
    "No decision",
    "Nothing was refused",
    "No fill",
    "no candle",
    "no order book",
    "has no strategy",
    "has no params",
    "without a config file",
    "There are not two points",
    "flat",
    "Dead-man off",
)
ANSWERS: dict[str, Any] = {
    "/status": status(positions=1, orders=1),
    "/positions": {"positions": [position()]},
    "/orders": {"orders": [order()]},
    "/strategies": {"strategies": []},
}
DEAD: dict[str, Any] = dict.fromkeys(
    ("/status", "/positions", "/orders", "/strategies", "/guardians", "/approvals"),
    NotRunning("the daemon of X is not running"),
)
SILENT = dict.fromkeys(DEAD, Silent("a daemon (pid 7) holds X and does not answer"))


def main_text(page: str) -> str:
    """The text of a page without its head and menu."""
    shown = page.partition('<div class="status"')[2]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shown)))


def claims(text: str) -> list[str]:
    """The sentences of a page that say that there is nothing, but for those that say it of an earlier instant."""
    shown = re.sub(r"Then it was: [^.]*\.", "", text)
    return [one for one in EMPTY if one in shown]


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """A state directory whose journal has an open position with its stop. Its daemon is gone."""
    venue = FaultyPort()
    kernel = make_kernel(venue, always, path=tmp_path / queries.FILE)
    await kernel.recover()
    await minutes(kernel, venue, "100", "100")
    kernel.journal.flush()
    kernel.journal.close()
    return tmp_path


def without_journal(folder: Path) -> None:
    for path in folder.glob(f"{queries.FILE}*"):
        path.unlink()


def with_a_damaged_journal(folder: Path) -> None:
    without_journal(folder)
    (folder / queries.FILE).write_bytes(b"no database" * 1000)


@pytest.mark.parametrize("answers", [DEAD, SILENT], ids=["dead", "silent"])
@pytest.mark.parametrize("spoil", [without_journal, with_a_damaged_journal])
async def test_a_page_that_knows_nothing_says_of_nothing_that_it_is_not_there(
    folder: Path, answers: dict[str, Any], spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    browser = await Browser(Daemon(folder, answers)).signed_in()
    for path in PAGES:
        text = main_text((await browser.get(path)).text)
        assert claims(text) == [], path
        if path != "/runs":
            assert "Not known." in text, path
    assert "no market is known" in (await browser.get("/market")).text.lower()


async def test_a_page_that_is_opened_after_the_daemons_death_shows_what_the_journal_has(folder: Path) -> None:
    browser = await Browser(Daemon(folder, DEAD)).signed_in()
    texts = {path: main_text((await browser.get(path)).text) for path in PAGES}
    for path, text in texts.items():
        assert "NOT RUNNING" in text
        assert claims(text) == [], path
    assert re.search(r"OLD\. The daemon's journal was written last .* ago, at", texts["/"])
    assert re.search(r"BTC ↑ long 2 100\.00 not known not known .* 95\.00", texts["/"])
    assert re.search(r"stop ↑ long .* 95\.00", texts["/events"])
    assert "dead man switch" in texts["/guardians"]
    assert "was armed" in texts["/guardians"]
    assert "Not known. The daemon of X is not running" in texts["/approvals"]
    assert "OLD." in texts["/strategies"]


async def test_positions_are_those_that_the_service_shows_while_the_daemon_is_dead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = await Browser(Daemon(folder, DEAD)).signed_in()

    def answering(*held: dict[str, Any]) -> None:
        wallet = WalletResult.model_validate(
            {
                "address": ADDRESS,
                "registered": True,
                "environment": "sandbox",
                "account_value_usd": "9990",
                "unrealized_pnl_usd": "-4",
                "positions": held,
                "updated_at": NOW_MS,
            }
        )

        async def answer(_address: object) -> Reading[WalletResult]:
            return Reading(wallet)

        monkeypatch.setattr(browser.sources.service, "wallet", answer)

    held = {
        "coin": "BTC",
        "side": "long",
        "size": "1.5",
        "leverage": 2,
        "book": "main",
        "entry_px": "100",
        "mark_px": "98",
    }
    answering(held | {"unrealized_pnl_usd": "-3", "liquidation_px": "50", "margin_used_usd": "75"})
    text = main_text((await browser.get("/")).text)
    assert "Account value, USD 9,990.00" in text
    assert "Today not known" in text
    assert re.search(r"BTC ↑ long 1\.5 100\.00 98\.00 ▼ −3\.00 .* 95\.00", text)
    assert (
        "Size, entry, mark and profit are read from the service now. Stops and strategies: The daemon's journal" in text
    )
    answering()
    text = main_text((await browser.get("/")).text)
    assert "Then it was: No open position." not in text
    assert "No open position at the service now." in text


@pytest.mark.parametrize("answers", [ANSWERS | {"/status": status(old_s=90.0)}, DEAD], ids=["service", "both"])
async def test_a_page_while_the_service_is_away_says_what_is_old_and_not_known(
    folder: Path, answers: dict[str, Any]
) -> None:
    """The daemon is alive and has read the account 90 s ago; or both are away and there is the journal."""
    browser = await Browser(Daemon(folder, answers)).signed_in()
    for path in ("/", "/market/BTC", "/strategies", "/guardians"):
        text = main_text((await browser.get(path)).text)
        assert claims(text) == [], path
        assert "OLD." in text, path
    text = main_text((await browser.get("/market/BTC")).text)
    assert text.count("Not known.") >= 2, "candles and book are of the service"


@pytest.mark.parametrize("spoil", [None, without_journal], ids=["journal", "nothing"])
@pytest.mark.parametrize("action", sorted(ACTIONS))
async def test_a_control_says_of_nothing_that_it_is_not_there_while_the_daemon_does_not_answer(
    folder: Path, action: str, spoil: Callable[[Path], None] | None
) -> None:
    if spoil is not None:
        spoil(folder)
    browser = await Browser(Daemon(folder, DEAD), control=True).signed_in()
    page = await browser.get(f"/control/{action}?name=nothing")
    text = main_text(page.text)
    assert "There is no" not in text
    assert action == "kill" or ("is not known:" in text and page.status_code == 404)


@pytest.mark.parametrize("action", ["close", "cancel", "approve", "refuse", "pause", "resume"])
async def test_a_control_whose_object_has_gone_says_so(folder: Path, action: str) -> None:
    browser = await Browser(Daemon(folder, ANSWERS), control=True).signed_in()
    page = await browser.get(f"/control/{action}?name=gone")
    assert page.status_code == 404
    assert "There is no" in main_text(page.text)
    answer = await browser.post(
        f"/control/{action}", token=browser.token, name="gone", confirm="gone", of="0" * 16, key="k"
    )
    assert answer.status_code == 409
    assert browser.daemon.changes == []


async def test_a_page_that_was_open_when_the_daemon_died_marks_its_last_figures(folder: Path) -> None:
    browser = await Browser(Daemon(folder, ANSWERS)).signed_in()
    assert "OLD." not in main_text((await browser.get("/")).text)
    browser.daemon.answers |= DEAD
    browser.sources.daemon._kept = type(browser.sources.daemon._kept)()
    for path in ("/", "/strategies", "/events", "/guardians"):
        text = main_text((await browser.get(path)).text)
        assert "OLD." in text, path
        assert claims(text) == [], path
    assert "104.00" in main_text((await browser.get("/")).text)


async def test_a_page_of_a_running_daemon_says_what_is_not_there(folder: Path) -> None:
    without_journal(folder)
    answers = ANSWERS | {"/status": status()}
    browser = await Browser(Daemon(folder, answers)).signed_in()
    for path, sentence in (
        ("/", "No open position."),
        ("/events", "No resting order."),
        ("/guardians", "The account has no guardian."),
        ("/approvals", "Nothing waits for a person."),
    ):
        assert sentence in main_text((await browser.get(path)).text)
    assert "No event fits" not in main_text((await browser.get("/events")).text), "there is no journal"


async def test_a_daemon_that_has_not_read_its_account_knows_nothing_of_it(folder: Path) -> None:
    without_journal(folder)
    starting = {
        "state": "STARTING",
        "why": None,
        "name": "demo",
        "base_url": "http://127.0.0.1:9",
        "pid": 7,
        "at_ms": NOW_MS,
    }
    browser = await Browser(Daemon(folder, DEAD | {"/status": starting})).signed_in()
    for path in PAGES:
        text = main_text((await browser.get(path)).text)
        assert claims(text) == [], path


def test_an_age_and_a_reason_are_sentences() -> None:
    assert old(NOW_MS - 90_000, NOW_MS).text == "Read 1 min 30 s ago, at 19 Nov 2026 23:58:30 UTC."
    ahead = old(NOW_MS + 90_000, NOW_MS).text
    assert ahead == "Read 1 min 30 s ahead of this machine's clock, at 20 Nov 2026 00:01:30 UTC."
    assert unknown("the journal is missing.").text == "The journal is missing."
    assert old(None, NOW_MS).state == "unknown"
    assert NOW.state == "known"
    assert len(set(PARTS)) == len(PARTS)
