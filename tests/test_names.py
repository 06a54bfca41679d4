"""Names say the thing: a public class stands in one module, and no local variable has a name that fits everything."""

from __future__ import annotations

import ast
import symtable
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

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


def empty_names(source: str, file: str) -> list[str]:
    """The functions that call a variable of theirs by an empty name, each with the name. Parameters do not count."""

    def inside(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols() if table.get_type() == "function" else ():
            if symbol.get_name() in EMPTY_NAMES and symbol.is_local() and not symbol.is_parameter():
                yield f"{file}:{table.get_lineno()}: {table.get_name()}: {symbol.get_name()}"
        for child in table.get_children():
            yield from inside(child)

    return list(inside(symtable.symtable(source, file, "exec")))


def test_no_local_variable_has_a_name_that_fits_everything(repository: Path) -> None:
    files = sorted((repository / "bot").rglob("*.py"))
    places = [place for file in files for place in empty_names(file.read_text(), str(file.relative_to(repository)))]
    assert places == [], "name the variable by what it holds: a fill, an order, the parsed number"


def test_an_empty_name_is_found_in_each_kind_of_binding() -> None:
    source = """
def loop(orders):
    for one in orders:
        found = one.size

def listed(orders):
    return [one.size for one in orders]

def nested(orders):
    def made(): ...
    return made if (one := orders) else None

def parameter(one, found=None, *made):
    return lambda one: (one, found, made)

class Search:
    found = None
    def made(self): ...
"""
    assert empty_names(source, "a.py") == [
        "a.py:2: loop: one",
        "a.py:2: loop: found",
        "a.py:7: listcomp: one",
        "a.py:9: nested: made",
        "a.py:9: nested: one",
    ]
