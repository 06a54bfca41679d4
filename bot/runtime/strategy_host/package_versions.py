"""The packages that a strategy's source imports, besides Python and bot, with their versions. The manifest of a run
lists them.

The imports are read from the source text; nothing is imported. Packages that are imported by packages are not listed.
The digest of bot's own source stands here too.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bot.runtime.strategy_host.loader import Loaded

OURS: Final = {"bot", "__future__", "__main__"}


@cache
def code_sha256() -> str:
    """SHA-256 over every source file of bot, sorted by name, as they were at the first call in this process."""
    sha256 = hashlib.sha256()
    package = Path(__file__).resolve().parents[2]
    for path in sorted(package.rglob("*.py")):
        sha256.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return sha256.hexdigest()


def versions_in(sources: Iterable[Path | None]) -> dict[str, str]:
    """Package -> version, of all packages that these files import, as in `packages_of`."""
    names = {name for source in sources for name in _imported(source)} - OURS - sys.stdlib_module_names
    owners = _distributions(tuple(sys.path)) if names else {}
    return {name: version for top in sorted(names) for name, version in _versions(top, owners.get(top, []))}


def packages_of(loaded: Sequence[Loaded]) -> list[dict[str, str]]:
    """For each source: package name -> version. An editable package, or one that is only on the path, has the SHA-256
    of its source ("sha256:..."). A package that is not installed is "missing". The strategy's own package is included.
    """
    names = [_names(module) for module in loaded]
    owners = _distributions(tuple(sys.path)) if any(names) else {}
    return [
        {name: version for top in sorted(tops) for name, version in _versions(top, owners.get(top, []))}
        for tops in names
    ]


@lru_cache(maxsize=1)
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Imported name -> the distributions that have it, on this path: they are read once, because each of them is a
    file.
    """
    return packages_distributions()


def _names(loaded: Loaded) -> set[str]:
    names = _imported(loaded.path)
    if loaded.origin != "file":
        names.add(loaded.strategy.__module__.partition(".")[0])
    return names - OURS - sys.stdlib_module_names


def _imported(source: Path | None) -> set[str]:
    """The first part of each imported name; empty if the source cannot be parsed."""
    try:
        tree = ast.parse(b"" if source is None else source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _versions(top: str, owners: list[str]) -> list[tuple[str, str]]:
    """The versions behind one imported name. Several distributions may share a namespace."""
    if not owners or any(map(_is_editable, owners)):
        return [(top, _digest(top))]
    return [(name, distribution(name).version) for name in sorted(set(owners))]


def _is_editable(name: str) -> bool:
    try:
        told = distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        return False
    return told is not None and bool(json.loads(told).get("dir_info", {}).get("editable"))


def _digest(top: str) -> str:
    """SHA-256 of every source file of a package or module."""
    try:
        spec = find_spec(top)
    # A module object without a proper spec.
    except ValueError:
        spec = None
    if spec is None:
        return "missing"
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [(path.relative_to(root).as_posix(), path) for root in roots for path in sorted(root.rglob("*.py"))]
    if spec.origin is not None and not files:
        files = [(Path(spec.origin).name, Path(spec.origin))]
    sha256 = hashlib.sha256()
    for name, path in files:
        sha256.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"sha256:{sha256.hexdigest()}"
