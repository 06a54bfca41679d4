"""An option that several commands have with one meaning is declared once, in `bot/cli/common/shared_options.py`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

# the names that have a function in `shared_options`, because only their help differs
WITH_FUNCTION = ("--json", "--yes")
# how the declaration of a plain flag goes on after its name
RESTS = ("'as_json', is_flag", "is_flag")
SHARED = "bot/cli/common/shared_options.py"


def repeated(sources: Mapping[str, str]) -> list[str]:
    """The places of options that another place declares alike, and of those that have a function."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option":
                places[ast.unparse(node)].append(f"{file}:{node.lineno}")
    alike = [place for same in places.values() if len(same) > 1 for place in same]
    own = [
        place
        for declaration, same in places.items()
        if declaration.startswith(tuple(f"click.option('{name}', {rest}" for name in WITH_FUNCTION for rest in RESTS))
        for place in same
        if not place.startswith(SHARED)
    ]
    return sorted({*alike, *own})


def test_no_option_is_declared_in_two_places(repository: Path) -> None:
    files = sorted((repository / "bot" / "cli").rglob("*.py"))
    sources = {str(file.relative_to(repository)): file.read_text() for file in files}
    assert repeated(sources) == [], f"declare the option in {SHARED}"


def test_repeated_options_are_found() -> None:
    sources = {
        "a.py": "click.option('--seed', default=1)\nclick.option('--json', 'as_json', is_flag=True, help='A.')\n",
        "b.py": "click.option(\n    '--seed', default=1\n)\nclick.option('--seed', default=2)\n",
        SHARED: "click.option('--yes', is_flag=True, help='Do not ask.')\n",
    }
    assert repeated(sources) == ["a.py:1", "a.py:2", "b.py:1"]
