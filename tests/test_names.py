"""Names say the thing: a public class stands in one module, and nothing has a name that fits everything."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

# Each of them fits every value.
EMPTY_NAMES = frozenset({"one", "found", "made"})


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


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything that the module gives a name to: parameters, variables, functions, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def empty_names(source: str, file: str) -> list[str]:
    """The places where the source gives a thing an empty name."""
    names = sorted(bound_names(ast.parse(source)))
    return [f"{file}:{line}: {name}" for line, name in names if name.strip("_").lower() in EMPTY_NAMES]


def test_nothing_has_a_name_that_fits_everything(repository: Path) -> None:
    files = sorted((repository / "bot").rglob("*.py"))
    places = [place for file in files for place in empty_names(file.read_text(), str(file.relative_to(repository)))]
    assert places == [], "name the thing by what it holds: a fill, an order, the parsed number"


@pytest.mark.parametrize(
    "source",
    [
        "for one in orders: ...",
        "one = orders.size",
        "sizes = [one.size for one in orders]",
        "sizes = {one: 1 for one in orders}",
        "if one := orders: ...",
        "one: int",
        "first, (one, *rest) = orders",
        "with opened as one: ...",
        "import size as one",
        "from orders import one",
        "try: ...\nexcept ValueError as one: ...",
        "match orders:\n    case [one, *_]: ...",
        "match orders:\n    case [_, *one]: ...",
        "def one(): ...",
        "async def one(): ...",
        "class one: ...",
        "class Search:\n    one = None",
        "def search(self):\n    self.one = None",
        "def search(one): ...",
        "def search(one, /): ...",
        "def search(*, one=None): ...",
        "def search(*one): ...",
        "def search(**one): ...",
        "search = lambda one: 1",
    ],
)
def test_an_empty_name_is_found_in_each_kind_of_binding(source: str) -> None:
    line = 1 + source[: source.rindex("one")].count("\n") if "for one" not in source else 1
    assert empty_names(source, "a.py") == [f"a.py:{line}: one"]


def test_a_use_of_an_empty_name_that_others_gave_is_allowed() -> None:
    assert empty_names("answer.found(1)\nprint(one, two=made)\nsize(one=1)\n", "a.py") == []
