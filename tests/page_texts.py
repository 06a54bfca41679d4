"""Reads the texts of a page with their places, so that tests can name what a page shows."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, NamedTuple

VOID: Final = ("meta", "input", "br", "link", "rect", "line", "circle", "path")


class Shown(NamedTuple):
    """A text of a page. `place`: its element, the ones around it, and their classes. `name`: the name of a value."""

    section: str
    place: str
    name: str
    text: str


class _Page(HTMLParser):
    """The texts of a page, and the rows of its tables by the title of their section."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[Shown] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._section = self._name = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("aria-label") and tag == "svg":
            self._take("svg@", given["aria-label"] or "")
        if tag in VOID:
            return
        self._open.append(f"{tag}.{given.get('class') or ''}")
        if tag == "section":
            self._section = ""
        elif tag == "tr":
            self.tables.setdefault(self._section, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._section][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while tag not in VOID and self._open and not self._open.pop().startswith(f"{tag}."):
            pass

    def handle_data(self, data: str) -> None:
        text, place = " ".join(data.split()), " ".join(self._open)
        if not text or re.search(r"\b(script|style|pre)\.", place):
            return
        if "td." in place or "th." in place:
            self.tables[self._section][-1][-1] += text
            return
        if place.endswith("h2."):
            self._section = text
        if place.endswith(("dt.", "li.")):
            self._name = text
        self._take(place, text)

    def _take(self, place: str, text: str) -> None:
        self.texts.append(Shown(self._section, place, self._name, text))


def page_of(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page
