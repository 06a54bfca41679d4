"""The packages of `bot` import one another in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path


def imports_of(source: str, modules: frozenset[str]) -> set[str]:
    """The modules that a source text imports anywhere: at the top, inside functions and for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                submodule = f"{node.module}.{name.name}"
                found.add(submodule if submodule in modules else node.module)
    return found & modules


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports."""
    paths: dict[str, Path] = {}
    for path in (root / package).rglob("*.py"):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        paths[name.removesuffix(".__init__")] = path
    modules = frozenset(paths)
    return {name: imports_of(path.read_text(), modules) - {name} for name, path in paths.items()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Every module that `start` imports, directly or through others."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def cycles(graph: Mapping[str, set[str]]) -> Iterator[frozenset[str]]:
    """Each group of modules that import one another."""
    below = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in below[name] if name in below[other]) for name in graph}
    yield from (group for group in groups if group)


def test_no_module_of_bot_imports_itself_through_others(repository: Path) -> None:
    assert list(cycles(import_graph(repository, "bot"))) == []


def test_a_cycle_is_found_also_under_type_checking_and_inside_a_function(tmp_path: Path) -> None:
    (tmp_path / "bot").mkdir()
    texts = {
        "__init__": "",
        "first": "def work():\n    from bot.second import thing\n",
        "second": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bot import third\n",
        "third": "import bot.first\n",
        "apart": "from bot import first\n",
    }
    for name, text in texts.items():
        (tmp_path / "bot" / f"{name}.py").write_text(text)
    assert set(cycles(import_graph(tmp_path, "bot"))) == {frozenset({"bot.first", "bot.second", "bot.third"})}
