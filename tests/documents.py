"""The README and the pages of docs/ as text, for the tests that hold them to the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
EVERYTHING = "\n".join([README.read_text(), *PAGES.values()])


def blocks(language: str, text: str = EVERYTHING) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"```(?:{language})\n(.*?)```", text, re.DOTALL)


def section(page: str, title: str) -> str:
    """The text below a heading of a page, up to the next heading of the same or a higher level."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGES[page], re.MULTILINE)
    assert level is not None, f"docs/{page}.md has no heading {title!r}"
    rest = PAGES[page][level.end() :]
    return re.split(rf"^#{{1,{len(level[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
