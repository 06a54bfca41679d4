"""The page of the proofs: the trend, and the differences of one day."""

from __future__ import annotations

from pathlib import Path

from tests.dashboard.builders import Browser, Daemon, status
from tests.dashboard.filled import MARKET, proofs


async def test_the_page_shows_the_trend_and_the_differences_of_a_day(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, {"/status": status(), "/strategies": {"strategies": []}})).signed_in()
    assert "No day has a proof yet." in (await browser.get("/proof")).text
    proofs(tmp_path)
    page = (await browser.get("/proof")).text
    assert page.count('href="/proof?day=') == 27
    assert "98.8 %" in page
    assert "−33,333.33" in page, "the outages of all days"
    assert MARKET in page
    assert "Differences of" not in page
    day = (await browser.get("/proof?day=2026-11-27")).text
    assert "foreign activity" in day
    assert "nothing" in day
    assert (await browser.get("/proof?day=2027-01-01")).status_code == 404
    assert (await browser.get("/proof?day=../../x")).status_code == 404
