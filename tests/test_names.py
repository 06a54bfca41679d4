"""A public class stands in one module: a name that a reader meets means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path


def public_classes(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}


def names_in_two_modules(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Public class -> the modules that define it, for each that stands in two or more."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for name in public_classes(ast.parse(source)):
            modules[name].append(module)
    return {name: where for name, where in sorted(modules.items()) if len(where) > 1}


def test_each_public_class_name_stands_in_one_module(repository: Path) -> None:
    sources = {
        str(file.relative_to(repository)): file.read_text() for file in sorted((repository / "bot").rglob("*.py"))
    }
    assert names_in_two_modules(sources) == {}, "name the class by what it is there"


def test_a_class_name_in_two_modules_is_found() -> None:
    sources = {
        "a.py": "class Order: ...\nclass _Row: ...\nclass Fill: ...\n",
        "b.py": "class Order: ...\nclass _Row: ...\ndef f():\n    class Fill: ...\n",
    }
    assert names_in_two_modules(sources) == {"Order": ["a.py", "b.py"]}
