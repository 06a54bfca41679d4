"""Nothing in bot/ is too large to read: attributes and methods of a class, parameters and lines of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# annotated in the class, or assigned on self anywhere in it
ATTRIBUTES_MAX = 20
# properties included
METHODS_MAX = 30
# without self; a call with more has an object that nobody named
PARAMETERS_MAX = 8
# Functions that users call by keyword: each parameter is documented, and a script or a notebook names it.
CALLED_BY_USERS = frozenset(
    {"bot/backtest/python_api.py::run", "bot/notebook.py::sweep", "bot/testing/backtests.py::backtest"}
)
LINES_MAX = 70
RECORD_METHODS_MAX = 10

Function = ast.FunctionDef | ast.AsyncFunctionDef


def methods_of(class_: ast.ClassDef) -> list[Function]:
    return [node for node in class_.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def attributes_of(class_: ast.ClassDef) -> set[str]:
    annotated = {
        node.target.id for node in class_.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    stored = (node for node in ast.walk(class_) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return annotated | {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def is_record(class_: ast.ClassDef) -> bool:
    """A class that holds values, such as a dataclass or a model of the wire: its fields are annotated and it has no
    constructor of its own.

    Its attributes are the columns of a row or the fields of a body, and are not counted.
    """
    names = {method.name for method in methods_of(class_)}
    annotated = any(isinstance(node, ast.AnnAssign) for node in class_.body)
    return annotated and "__init__" not in names and len(names) <= RECORD_METHODS_MAX


def parameters_of(function: Function | ast.Lambda) -> int:
    given = function.args
    named = (*given.posonlyargs, *given.args, *given.kwonlyargs)
    return sum(parameter.arg not in ("self", "cls") for parameter in named)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, source: list[str]) -> int:
    """The lines of a function without its docstring and without lines that hold only a comment."""
    documented = ast.get_docstring(function, clean=False) is not None
    docstring = range(function.body[0].lineno, (function.body[0].end_lineno or 0) + 1) if documented else ()
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return sum(line not in docstring and not source[line - 1].lstrip().startswith("#") for line in lines)


def too_large(tree: ast.Module, source: list[str]) -> Iterator[tuple[str, str]]:
    """(name, how large) of each class or function beyond a bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            attributes, methods = attributes_of(node), methods_of(node)
            if len(attributes) > ATTRIBUTES_MAX and not is_record(node):
                yield node.name, f"{len(attributes)} attributes"
            if len(methods) > METHODS_MAX:
                yield node.name, f"{len(methods)} methods"
        elif isinstance(node, ast.Lambda):
            if parameters_of(node) > PARAMETERS_MAX:
                yield "lambda", f"{parameters_of(node)} parameters"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if parameters_of(node) > PARAMETERS_MAX:
                yield node.name, f"{parameters_of(node)} parameters"
            lines = code_lines(node, source)
            if lines > LINES_MAX:
                yield node.name, f"{lines} lines"


def test_no_class_and_no_function_is_too_large(repository: Path) -> None:
    large = [
        f"{file.relative_to(repository)}::{name}: {size}"
        for file in sorted((repository / "bot").rglob("*.py"))
        for name, size in too_large(ast.parse(file.read_text()), file.read_text().splitlines())
    ]
    wide = [place for place in large if place.endswith(" parameters")]
    users = [place for place in wide if place.rpartition(": ")[0] in CALLED_BY_USERS]
    assert len(users) == len(CALLED_BY_USERS), "remove what is gone, or small enough, from CALLED_BY_USERS"
    assert [place for place in large if place not in users] == [], "split it by what its parts own"


def test_a_class_or_function_beyond_a_bound_is_found() -> None:
    fields = "\n".join(f"    a{n}: int" for n in range(25))
    stored = "\n".join(f"        self.a{n} = 0" for n in range(21))
    methods = "\n".join(f"    def m{n}(self): ..." for n in range(31))
    many = ", ".join(f"p{n}" for n in range(9))
    lines = "\n".join("    pass" for _ in range(70))
    for text, size in (
        (f"class A:\n    def f(self):\n{stored}", "21 attributes"),
        (f"class A:\n{methods}", "31 methods"),
        (f"class A:\n    def __init__(self, {many}): ...", "9 parameters"),
        (f"class A:\n    def __init__(self, {many[4:]}): ...", None),
        (f"class A:\n    @classmethod\n    def make(cls, {many}): ...", "9 parameters"),
        (f"def f({many}): ...", "9 parameters"),
        (f"async def f(p0, /, p1, *, {many[8:]}): ...", "9 parameters"),
        (f"def f():\n    def g(*, {many}): ...", "9 parameters"),
        (f"f = lambda {many}: 0", "9 parameters"),
        (f"def f():\n{lines}", "71 lines"),
        (f"class Record:\n{fields}", None),
        (f"class NoRecord:\n{fields}\n    def __init__(self): ...", "25 attributes"),
    ):
        assert [size_ for _, size_ in too_large(ast.parse(text), text.splitlines())] == ([] if size is None else [size])
