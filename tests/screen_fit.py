"""What stands out of the screen or of its card on a page in a browser.

Every page is walked filled, on a desk and on a phone.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.html_tables import uneven_tables

WIDTHS: Final = {1440: 900, 390: 844}
# Elements that stand out of the screen or of their card, and texts that stand out of their chart. What is for screen
# readers alone, or closed, has no place on the screen. What stands in a frame that scrolls by itself is judged by the
# frame; `frames` are those that may scroll.
OUTSIDE: Final = """(frames) => {
  const wide = document.documentElement.clientWidth;
  const found = [];
  for (const one of document.querySelectorAll("main *, header *, footer *, nav *")) {
    const box = one.getBoundingClientRect();
    const hidden = getComputedStyle(one).visibility === "hidden" || one.closest(".hidden, .lang, svg, canvas");
    const is_framed = frames && one.parentElement.closest(frames);
    if (!box.width || !box.height || hidden || is_framed) continue;
    const card = one.closest(".card, .figure-card, .panel, .figure");
    const edge = Math.min(wide, card ? card.getBoundingClientRect().right : wide);
    if (box.right > edge + 1 || box.left < -1) {
      const text = one.textContent.trim().slice(0, 40);
      found.push(`${one.tagName} ${one.className} ${text}: ${Math.round(box.right)} > ${Math.round(edge)}`);
    }
  }
  // A text of a chart that the chart's own edge cuts.
  for (const one of document.querySelectorAll("main .plotbox text")) {
    const box = one.getBoundingClientRect(), chart = one.closest(".plotbox").getBoundingClientRect();
    if (box.width && (box.left < chart.left - 1 || box.right > chart.right + 1)) {
      found.push(`text of a chart, ${one.textContent}: ${Math.round(box.left)} to ${Math.round(box.right)}`);
    }
  }
  return found.slice(0, 5);
}"""


def misfits(page: Any, name: str, *, frames: dict[int, str] | None = None, picture: str | None = None) -> list[str]:
    """What is wrong with the open page at each of WIDTHS.

    `frames`: by width, the selector of frames that may scroll sideways.
    """
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    wrong = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        if picture:
            page.screenshot(path=f"{picture}-{width}.png", full_page=True)
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            wrong.append(f"{name} is {wide} px wide at {width}")
        found = page.evaluate(OUTSIDE, (frames or {}).get(width, ""))
        wrong += [f"{name} at {width}: {one}" for one in found]
    return wrong + [f"{name}: {one}" for one in uneven_tables(page.content())]


# Rules of axe-core whose answer depends on colours.
COLOUR_RULES: Final = ("color-contrast", "link-in-text-block")


def serious_faults(page: Any, rules: tuple[str, ...] = ()) -> list[str]:
    """What axe-core finds to be serious or critical, by all its rules or by some."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else None
    found = axe.run(page, options=options).response["violations"]
    return [
        f"{one['id']}: {node['html']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def faults_in_both_colours(page: Any, name: str) -> list[str]:
    """`serious_faults` of the open page in light, and those of its colours in dark."""
    wrong = []
    for colours, rules in (("light", ()), ("dark", COLOUR_RULES)):
        # A colour on its way to another is no colour of the page.
        page.emulate_media(color_scheme=colours, reduced_motion="reduce")
        wrong += [f"{name} in {colours}: {fault}" for fault in serious_faults(page, rules)[:5]]
    return wrong
