"""Every page, filled, on a desk and on a phone: nothing is wider than the screen or its card, and no table has a head over the wrong column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import WIDTHS, Visitor
from tests.dashboard.filled import PATHS, served
from tests.html_tables import uneven_tables

# Elements that stand out of the screen or of their card. What is for screen readers alone, or closed, has no place on the screen.
OUTSIDE = """() => {
  const wide = document.documentElement.clientWidth;
  const found = [];
  for (const one of document.querySelectorAll("main *, header *, footer *")) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || one.closest(".hidden, svg, thead") || getComputedStyle(one).visibility === "hidden") continue;
    const card = one.closest(".card, .figure-card");
    const edge = Math.min(wide, card ? card.getBoundingClientRect().right : wide);
    if (box.right > edge + 1 || box.left < -1) found.push(`${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 40)}: ${Math.round(box.right)} > ${Math.round(edge)}`);
  }
  return found.slice(0, 5);
}"""


def test_a_filled_page_fits_its_screen(browser: Any, tmp_path: Path) -> None:
    pictures = os.environ.get("PICTURES")
    wrong: list[str] = []
    with served(tmp_path) as link:
        visitor = Visitor(browser, link)
        page = visitor.page
        for path in PATHS:
            page.goto(visitor.base + path)
            page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            for width, height in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": height})
                if pictures:
                    name = path.strip("/").replace("/", "-")[:20] or "overview"
                    page.screenshot(path=f"{pictures}/{name}-{width}.png", full_page=True)
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    wrong.append(f"{path} is {wide} px wide at {width}")
                wrong += [f"{path} at {width}: {one}" for one in page.evaluate(OUTSIDE)]
            wrong += [f"{path}: {one}" for one in uneven_tables(page.content())]
        visitor.context.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", ["approvals", "runs"])
def test_the_walk_finds_a_table_that_is_too_wide(browser: Any, page: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    one = context.new_page()
    one.set_content(f"<main><section class=card><p style='width:{800}px'>{page}</p></section></main>")
    assert one.evaluate(OUTSIDE) != []
    context.close()
