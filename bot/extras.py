"""The one place that says how to install an extra of this package, with a command that works where this program runs.

No registry has the package under its name, so a command names where this installation came from: the folder of a clone
and its make targets, a file, a folder or a version-control address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from typing import Any, Final
from urllib.parse import unquote, urlsplit

PACKAGE: Final = "bracketbot"
# The make target of a clone that installs an extra with pinned versions, where it is not the one of the tests.
TARGETS: Final[Mapping[str, str | None]] = {
    "markets": ".venv/markets.stamp",
    "calendars": ".venv/markets.stamp",
    "yfinance": None,
}
TESTS: Final = ".venv/dev.stamp"


def install(*extras: str) -> str:
    """The command that adds these extras to this installation."""
    return command(extras, _origin(), prefix=Path(sys.prefix), python=sys.executable)


def command(extras: tuple[str, ...], origin: Mapping[str, Any], *, prefix: Path, python: str) -> str:
    """`install` of an installation whose direct_url.json (PEP 610) is `origin`; empty if an index had the package."""
    names = ",".join(extras)
    if not origin:
        return f"{quote(python)} -m pip install '{PACKAGE}[{names}]'"
    url = str(origin["url"])
    if not origin.get("dir_info", {}).get("editable"):
        kind, commit = (str(origin.get("vcs_info", {}).get(name, "")) for name in ("vcs", "commit_id"))
        address = f"{kind}+{url}@{commit}" if kind else url
        return f"{quote(python)} -m pip install {quote(f'{PACKAGE}[{names}] @ {address}')}"
    folder = Path(unquote(urlsplit(url).path))
    if not _is_clone(folder, prefix):
        return f"{quote(python)} -m pip install -e {quote(f'{folder}[{names}]')}"
    target = TARGETS.get(extras[0], TESTS) if len(extras) == 1 else TESTS
    if target is None:
        uv, interpreter = (quote(str(folder / name)) for name in (".tools/bin/uv", ".venv/bin/python"))
        return f"{uv} pip install --python {interpreter} -e {quote(f'{folder}[{names}]')}"
    return f"make -C {quote(str(folder))} {target}"


def _is_clone(folder: Path, prefix: Path) -> bool:
    """True if `make` of this folder has made the environment that this program runs in."""
    return prefix == folder / ".venv" and (folder / "Makefile").is_file()


def _origin() -> Mapping[str, Any]:
    try:
        text = distribution(PACKAGE).read_text("direct_url.json")
    # Run from a folder that is not installed.
    except PackageNotFoundError:
        folder = Path(__file__).resolve().parent.parent
        return {"url": folder.as_uri(), "dir_info": {"editable": True}}
    origin: Mapping[str, Any] = json.loads(text) if text else {}
    return origin
