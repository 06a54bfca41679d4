"""The table of the control socket's routes is the only list: each request of a surface, and each rule of the server,
names a row of it.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from bot.cli.assistants import daemon_tools
from bot.dashboard.controls import ACTIONS
from bot.runtime.control_plane import control_address
from bot.runtime.control_plane.routes import routes_of

METHODS = ("GET", "POST")
ROWS = set(routes_of(cast(Any, None)))


def asked_in(source: str) -> set[tuple[str, str]]:
    """Each (method, path) that stands in the arguments of one call of the source: `place.ask("GET", "/status")`."""
    found = set()
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call):
            texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            found |= {(method, path) for method, path in pairwise(texts) if method in METHODS}
    return found


def test_every_request_to_the_daemon_is_a_row_of_the_table(repository: Path) -> None:
    files = [*(repository / "bot/cli").rglob("*.py"), *(repository / "bot/dashboard").rglob("*.py")]
    asked = {one for path in files for one in asked_in(path.read_text()) if not one[1].startswith("/v1")}
    assert len(asked) > 10
    assert asked - ROWS == set()


def test_every_control_of_the_dashboard_and_every_tool_of_an_assistant_is_a_row_of_the_table() -> None:
    assert {("POST", action.path) for action in ACTIONS.values()} <= ROWS
    assert {(tool.method, tool.path) for tool in daemon_tools.TOOLS.values() if tool.path} <= ROWS


@pytest.mark.parametrize(
    "paths", [control_address.WARMING, control_address.FROM_MEMORY], ids=["warming", "from memory"]
)
def test_a_path_that_the_server_treats_apart_is_a_row_of_the_table(paths: frozenset[str]) -> None:
    assert paths <= {path for _method, path in ROWS}
