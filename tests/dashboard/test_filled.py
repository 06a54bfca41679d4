"""Every page, filled, on a desk and on a phone: nothing is wider than the screen or its card, no table has a head over
the wrong column, axe finds no serious fault in light and dark, and no page says a line on the console.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import Visitor
from tests.dashboard.filled import PATHS, served
from tests.screen_fit import OUTSIDE, faults_in_both_colours, misfits


def test_a_filled_page_fits_its_screen_and_is_for_everybody(browser: Any, tmp_path: Path) -> None:
    pictures = os.environ.get("PICTURES")
    wrong: list[str] = []
    with served(tmp_path) as link:
        visitor = Visitor(browser, link)
        page = visitor.page
        for path in PATHS:
            answer = page.goto(visitor.base + path)
            policy = answer.headers["content-security-policy"]
            wrong += [f"{path}: {word} in {policy}" for word in ("unsafe", "*") if word in policy]
            name = path.strip("/").replace("/", "-")[:20] or "overview"
            wrong += misfits(page, path, picture=pictures and f"{pictures}/{name}")
            wrong += faults_in_both_colours(page, path)
            # A page that is not there answers 404, which the browser itself notes.
            wrong += [f"{path} said {line}" for line in visitor.said if answer.ok or "404" not in line]
            visitor.said.clear()
        visitor.context.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", ["approvals", "runs"])
def test_the_walk_finds_a_table_that_is_too_wide(browser: Any, page: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    one = context.new_page()
    one.set_content(f"<main><section class=card><p style='width:{800}px'>{page}</p></section></main>")
    assert one.evaluate(OUTSIDE, "") != []
    context.close()


def test_the_walk_finds_a_text_that_is_too_faint_in_dark_alone(browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    colours = "color-scheme: light dark; background: light-dark(#fff, #000); color: light-dark(#000, #333)"
    page.set_content(f"<html lang=en><title>t</title><main style='{colours}'><h1>Faint</h1></main></html>")
    assert [fault.partition(":")[0] for fault in faults_in_both_colours(page, "page")] == ["page in dark"]
    context.close()


def test_the_first_update_of_an_open_page_replaces_nothing_that_is_the_same(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as link:
        visitor = Visitor(browser, link)
        visitor.context.add_init_script(
            "window.replaced = []; document.addEventListener('DOMContentLoaded', () => {"
            " new MutationObserver((changes) => window.replaced.push(...changes.map((change) => change.target.id)))"
            ".observe(document.getElementById('content'), { childList: true, subtree: true }); });"
        )
        for path in ("/", "/trades", "/events"):
            page = visitor.open(path)
            assert page.evaluate("window.replaced") == [], path
        visitor.context.close()
