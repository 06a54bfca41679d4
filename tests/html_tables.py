"""Reads the tables of a page, so that tests can compare the width of heads and rows."""

from __future__ import annotations

from html.parser import HTMLParser


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[tuple[str, int]]]] = []
        self._open: list[list[list[tuple[str, int]]]] = []
        self._text: list[str] | None = None
        self._span = 1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._open.append([])
        elif tag == "tr" and self._open:
            self._open[-1].append([])
        elif tag in ("td", "th") and self._open:
            self._text, self._span = [], int(dict(attrs).get("colspan") or 1)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.tables.append(self._open.pop())
        elif tag in ("td", "th") and self._open and self._text is not None:
            self._open[-1][-1].append((" ".join("".join(self._text).split()), self._span))
            self._text = None

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)


def tables_of(page: str) -> list[list[list[str]]]:
    """Each table of the page as rows of texts, the head first. A cell over several columns stands in each of them."""
    reader = _Tables()
    reader.feed(page)
    return [[[text for text, span in row for _ in range(span)] for row in table] for table in reader.tables]


def uneven_tables(page: str) -> list[str]:
    """What is wrong with tables whose rows are not as wide as their head; empty for a good page."""
    found = []
    for rows in tables_of(page):
        widths = {len(row) for row in rows}
        if len(widths) > 1:
            found.append(f"{rows[0]}: rows of {sorted(widths)} cells")
    return found
