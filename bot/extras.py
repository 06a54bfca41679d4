"""The one place that says how to install an extra of this package, with a command that works where this program runs.

No registry has the package under its name, so a command names where this installation came from: the folder of a clone
and its make targets, a file, a folder or a version-control address. It uses the installer of this environment: pip,
pipx or uv.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
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


@dataclass(frozen=True, slots=True)
class Installation:
    """How this program was installed. `origin`: its direct_url.json (PEP 610), empty if an index had the package;
    `requirements`: what its metadata says of its extras, as `jinja2>=3 ; extra == 'ui'`.
    """

    origin: Mapping[str, Any]
    prefix: Path
    python: str
    has_pip: bool = True
    requirements: Sequence[str] = ()


def install(*extras: str) -> str:
    """The command that adds these extras to this installation."""
    return command(extras, _installation())


def install_package(requirement: str) -> str:
    """The command that adds a package that no extra has."""
    return f"{_installer(_installation())} {quote(requirement)}"


def own_environment(folder: str, extra: str) -> str:
    """The commands that make an environment apart from this one, with the packages of an extra."""
    needs = " ".join(map(quote, _requirements((extra,), _installation())))
    return f"{quote(sys.executable)} -m venv {folder} && {folder}/bin/pip install {needs}"


def command(extras: tuple[str, ...], here: Installation) -> str:
    """`install` of this installation."""
    names = ",".join(extras)
    origin, installer = here.origin, _installer(here)
    if not origin:
        return f"{installer} '{PACKAGE}[{names}]'"
    url = str(origin["url"])
    folder = Path(unquote(urlsplit(url).path))
    if not origin.get("dir_info", {}).get("editable"):
        # The wheel may have been removed since; the packages of the extra can be had all the same.
        if url.startswith("file:") and not folder.exists() and (needs := _requirements(extras, here)):
            return " ".join((installer, *map(quote, needs)))
        kind, commit = (str(origin.get("vcs_info", {}).get(name, "")) for name in ("vcs", "commit_id"))
        address = f"{kind}+{url}@{commit}" if kind else url
        return f"{installer} {quote(f'{PACKAGE}[{names}] @ {address}')}"
    if not _is_clone(folder, here.prefix):
        return f"{installer} -e {quote(f'{folder}[{names}]')}"
    target = TARGETS.get(extras[0], TESTS) if len(extras) == 1 else TESTS
    if target is None:
        uv, interpreter = (quote(str(folder / name)) for name in (".tools/bin/uv", ".venv/bin/python"))
        return f"{uv} pip install --python {interpreter} -e {quote(f'{folder}[{names}]')}"
    return f"make -C {quote(str(folder))} {target}"


def _installer(here: Installation) -> str:
    """What installs packages beside this program: pipx and uv keep environments without a pip of their own."""
    if (here.prefix / "pipx_metadata.json").is_file():
        return f"pipx runpip {quote(here.prefix.name)} install"
    if not here.has_pip:
        return f"uv pip install --python {quote(here.python)}"
    return f"{quote(here.python)} -m pip install"


def _requirements(extras: tuple[str, ...], here: Installation) -> list[str]:
    asked = re.compile(rf"(.+?) *; *extra == ['\"]({'|'.join(map(re.escape, extras))})['\"]")
    return [match[1] for line in here.requirements if (match := asked.fullmatch(line))]


def _is_clone(folder: Path, prefix: Path) -> bool:
    """True if `make` of this folder has made the environment that this program runs in."""
    return prefix == folder / ".venv" and (folder / "Makefile").is_file()


def _installation() -> Installation:
    has_pip, prefix = find_spec("pip") is not None, Path(sys.prefix)
    try:
        package = distribution(PACKAGE)
    # Run from a folder that is not installed.
    except PackageNotFoundError:
        folder = Path(__file__).resolve().parent.parent
        return Installation(
            {"url": folder.as_uri(), "dir_info": {"editable": True}}, prefix, sys.executable, has_pip=has_pip
        )
    text = package.read_text("direct_url.json")
    return Installation(json.loads(text) if text else {}, prefix, sys.executable, has_pip, package.requires or ())
