"""An object is changed by its own module: others give it what it needs when they make it, or call a method that says
what happens.

Records are values that pass through several hands, so others may set their fields. `RECORDS` names them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

FOLDERS = ("bot/runtime", "bot/backtest")
# The name of a variable or an attribute that holds a record -> the class of the record.
RECORDS: Mapping[str, str] = {
    "_stats": "RunStats",
    "event_buffer": "EventBuffer",
    "known": "SendState",
    "market": "VenueMarket",
    "meter": "Meter",
    "paths": "Paths",
    "record": "OutageRecord",
    "run": "DaemonRun",
    "state": "RunState",
    "stats": "RunStats",
    "trip": "RoundTrip",
    # `self._states.of(intent.id)`
    "an expression": "SendState",
}
# Module -> the objects that it may change, and why.
MAY_CHANGE: Mapping[str, tuple[frozenset[str], str]] = {
    "bot/backtest/engine/bar_runs.py": (frozenset({"source"}), "calls on_bar as StrategyInstance.call does, faster"),
    "bot/backtest/engine/memory_journal.py": (frozenset({"events", "intents"}), "both classes are its own"),
    "bot/backtest/engine/outside_reads.py": (frozenset({"_Watch"}), "a class of this module that has no instance"),
    "bot/backtest/engine/simulated_exchange.py": (frozenset({"reader"}), "moves the reader with the venue's clock"),
    "bot/backtest/python_inputs.py": (frozenset({"module"}), "makes the module of a strategy in a notebook"),
    "bot/runtime/account/attribution_fold.py": (frozenset({"attribution"}), "the fold of Attribution"),
    "bot/runtime/account/fold.py": (frozenset({"state"}), "the fold of AccountState"),
    "bot/runtime/decisions/event_consumer.py": (
        frozenset({"account", "_account", "account_state"}),
        "notes what holds before a page and before an event; a method would be one more call for each order",
    ),
    "bot/runtime/execution/order_sender.py": (frozenset({"state"}), "the state of a request, a SendState"),
    "bot/runtime/execution/entry_wait.py": (frozenset({"state"}), "the state of a request, a SendState"),
    "bot/runtime/journal/queries.py": (frozenset({"connection"}), "a connection of sqlite3 has no other way"),
    "bot/runtime/strategy_host/instance.py": (frozenset({"source"}), "the class of the source is its own"),
    "bot/runtime/strategy_host/loader.py": (frozenset({"module"}), "makes the module of a strategy's file"),
}


def receiver_of(target: ast.Attribute) -> str:
    """The name before the attribute; empty for an object of the method's own class and for what has no name."""
    value = target.value
    if isinstance(value, ast.Name):
        return "" if value.id in ("self", "cls") else value.id
    return value.attr if isinstance(value, ast.Attribute) else "an expression"


def own_attributes(tree: ast.Module) -> set[str]:
    """The attributes of the classes of a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not receiver_of(node):
            names.add(node.attr)
    return names


def set_from_outside(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, receiver, attribute) of each attribute of another module's object that this module sets."""
    ours = own_attributes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            receiver, is_part = receiver_of(node), isinstance(node.value, ast.Attribute)
            if receiver and (is_part or node.attr not in ours):
                yield node.lineno, receiver, node.attr


def fields_of_records(sources: Mapping[Path, str]) -> dict[str, set[str]]:
    """Class -> its fields, for each class that has no constructor of its own."""
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and "__init__" not in {getattr(part, "name", "") for part in node.body}:
                annotated = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
                fields[node.name] |= {target.id for target in annotated if isinstance(target, ast.Name)}
    return fields


def sources_of(repository: Path, *folders: str) -> dict[Path, str]:
    files = (file for folder in folders for file in sorted((repository / folder).rglob("*.py")))
    return {file.relative_to(repository): file.read_text() for file in files}


def test_no_module_changes_an_object_of_another_module(repository: Path) -> None:
    records = fields_of_records(sources_of(repository, "bot"))
    strangers, used = [], set()
    for file, source in sources_of(repository, *FOLDERS).items():
        for line, receiver, attribute in set_from_outside(ast.parse(source)):
            if receiver in MAY_CHANGE.get(str(file), (frozenset(), ""))[0]:
                used.add((str(file), receiver))
            elif attribute in records[RECORDS.get(receiver, "")]:
                used.add(("", receiver))
            else:
                strangers.append(f"{file}:{line}: {receiver}.{attribute}")
    assert strangers == [], "give it to the constructor, or add a method that says what happens"
    listed = {(file, name) for file, (names, _) in MAY_CHANGE.items() for name in names}
    assert used == listed | {("", name) for name in RECORDS}, "the tables list what is no longer set"


@pytest.mark.parametrize(
    ("source", "places"),
    [
        ("def start(kernel):\n    kernel.risk.grids = {}", [(2, "risk", "grids")]),
        ("search.begun_ms, rest = 1, 2", [(1, "search", "begun_ms")]),
        ("for port.now_ms in range(3): ...", [(1, "port", "now_ms")]),
        ("states.of(key).tries += 1", [(1, "an expression", "tries")]),
        ("del session.grids", [(1, "session", "grids")]),
        ("with opened as session.file: ...", [(1, "session", "file")]),
        # Its own attribute of the same name does not make the part of another object its own.
        ("class Session:\n    def start(self):\n        self.grids = kernel.risk.grids = {}", [(3, "risk", "grids")]),
        ("class Session:\n    grids = None\n    def start(self):\n        self.grids = {}", []),
        ("class Row:\n    size: int\ndef grow(row):\n    row.size = 2", []),
        ("class Rows:\n    @classmethod\n    def make(cls):\n        cls.count = 1", []),
        ("print(kernel.risk.grids)", []),
    ],
)
def test_what_a_module_sets_of_others_is_found(source: str, places: list[tuple[int, str, str]]) -> None:
    assert list(set_from_outside(ast.parse(source))) == places
