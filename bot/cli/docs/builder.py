"""Builds the documentation site without a network: docs/ and the generated reference pages, by zensical, with a
Markdown copy of each page and llms.txt.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from bot.cli.docs import reference, service_reference
from bot.cli.docs.paths import SITE, SOURCES
from bot.errors import BotError, ConfigError
from bot.extras import install_package

CONFIG: Final = "zensical.toml"
BUILD_SECONDS: Final = 300


def build(site: Path = SITE, work: Path | None = None) -> None:
    """Write the site into `site`.

    BotError with zensical's own words if it warns about anything. `work`: a folder for the pages; the default is beside
    `site`.
    """
    if not (SOURCES / CONFIG).is_file():
        raise ConfigError(f"{SOURCES} does not exist: the documentation is built in a clone of the project")
    if find_spec("zensical") is None:
        raise ConfigError(
            f"the documentation site needs the package zensical: run `make docs`, or {install_package('zensical')}"
        )
    work = work or site.with_name("site-pages")
    pages = work / "pages"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCES, pages, ignore=shutil.ignore_patterns(CONFIG))
    shutil.copy(SOURCES / CONFIG, work)
    (pages / "reference").mkdir()
    for name, text in generated().items():
        (pages / "reference" / f"{name}.md").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(work / CONFIG)],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        said = click.unstyle(done.stdout + done.stderr).partition("Traceback")[0]
        raise BotError(f"zensical did not build the site:\n{said.rstrip()}")
    for page in sorted(pages.rglob("*.md")):
        shutil.copy(page, work / "site" / page.relative_to(pages))
    (work / "site" / "llms.txt").write_text(llms(work), encoding="utf-8")
    shutil.rmtree(site, ignore_errors=True)
    site.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(work / "site", site)


def generated() -> dict[str, str]:
    """The reference pages by their names."""
    document = service_reference.openapi()
    return {
        "commands": reference.commands_page(),
        "config": reference.config_page(),
        "strategy": reference.strategy_page(),
        "http-api": service_reference.routes_page(document),
        "http-bodies": service_reference.bodies_page(document),
        "events": service_reference.events_page(document),
        "error-codes": service_reference.errors_page(),
        "metrics": reference.metrics_page(),
        "notices": reference.notices_page(),
    }


def navigation(config: Path) -> Iterator[tuple[str, str]]:
    """(section, page) of each page in the menu."""
    entries: list[Any] = tomllib.loads(config.read_text(encoding="utf-8"))["project"]["nav"]
    for entry in entries:
        if isinstance(entry, str):
            yield "Start", entry
        else:
            ((section, names),) = entry.items()
            yield from ((section, name) for name in names)


def llms(work: Path) -> str:
    """The list of all pages for language models: title, address of the Markdown, first sentence."""
    lines = ["# Bracketbot", "", f"> {_summary((work / 'pages' / 'index.md').read_text(encoding='utf-8'))}"]
    last = ""
    for section, name in navigation(work / CONFIG):
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        text = (work / "pages" / name).read_text(encoding="utf-8")
        lines.append(f"- [{text.splitlines()[0].removeprefix('# ')}]({name}): {_summary(text)}")
    return "\n".join([*lines, ""])


def _summary(page: str) -> str:
    """The first sentence of the first paragraph that is prose, without links."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL).split("\n\n")[1:]
    paragraph = next(" ".join(block.split()) for block in prose if re.match(r"\s*[\w`\[]", block))
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", paragraph)
    return plain.split(". ", maxsplit=1)[0].rstrip(".:") + "."
