"""What a person chooses in the browser: the time zone, and notices. Both stay in that browser."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import Visitor
from tests.dashboard.filled import served

FORM = "%d %b %Y %H:%M:%S"
# A browser that notes its notices, with the permission that a click gets.
NOTICES = """(() => {
  window.noticed = [];
  window.Notification = class {
    static permission = "default";
    static async requestPermission() { return this.permission = "%s"; }
    constructor(title, options) { window.noticed.push(options.body); }
  };
})();"""


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as given:
        yield given


def times(page: Any) -> list[tuple[str, str, str]]:
    """The instant, the text and the form of each time of the page. Lists show no seconds."""
    script = "[...document.querySelectorAll('time')].map((time) => [time.dateTime, time.textContent, time.className])"
    forms = {"": FORM, "minute": FORM.removesuffix(":%S")}
    return [(at, text, forms[kind]) for at, text, kind in page.evaluate(script)]


def test_times_are_utc_or_local_and_the_choice_stays(browser: Any, link: str) -> None:
    # Nine hours ahead of UTC the whole year.
    visitor = Visitor(browser, link, timezone_id="Asia/Tokyo")
    for path in ("/trades", "/events", "/"):
        page = visitor.open(path)
        shown = times(page)
        assert len(shown) > 5, path
        for at, text, form in shown:
            assert text == datetime.fromisoformat(at).astimezone(UTC).strftime(form)
    page.locator("#zone").click()
    for path in ("/", "/trades", "/events"):
        page = visitor.open(path) if path != "/" else page
        for at, text, form in times(page):
            assert text == (datetime.fromisoformat(at).astimezone(UTC) + timedelta(hours=9)).strftime(form)
        assert page.locator("#zone").inner_text() == "Local"
        assert "Times are the time of this machine" in page.locator("footer").inner_text()
    page.locator("#zone").click()
    assert page.locator("#zone").get_attribute("aria-pressed") == "false"
    assert all(text == datetime.fromisoformat(at).strftime(form) for at, text, form in times(page))
    assert visitor.said == []
    visitor.context.close()


@pytest.mark.parametrize("answer", ["granted", "denied"])
def test_notices_come_after_a_click_and_only_then(browser: Any, link: str, answer: str) -> None:
    visitor = Visitor(browser, link)
    visitor.context.add_init_script(NOTICES % answer)
    page = visitor.open("/")
    change = "document.querySelector('#live-notice').innerHTML = '<p class=\"banner bad\">{}</p>'"
    assert page.evaluate("Notification.permission") == "default", "nothing is asked without a click"
    page.locator("#notices").click()
    is_on = answer == "granted"
    assert page.locator("#notices").get_attribute("aria-pressed") == str(is_on).lower()
    assert page.evaluate("window.noticed") == (["Notices are on while this page is open."] if is_on else [])
    page.evaluate(change.format("The daemon has died 3 s ago."))
    visitor.wait(f"window.noticed.length === {2 if is_on else 0}")
    if is_on:
        assert page.evaluate("window.noticed")[1] == "The daemon has died 3 s ago."
        updates = page.evaluate("Number(document.documentElement.dataset.updates)")
        page.evaluate(change.format("The daemon has died 4 s ago."))
        visitor.wait(f"Number(document.documentElement.dataset.updates) > {updates + 1}")
        assert page.evaluate("window.noticed.length") == 2, "an age that grows is no news"
        page.locator("#notices").click()
        assert page.locator("#notices").get_attribute("aria-pressed") == "false"
    assert visitor.said == []
    visitor.context.close()
