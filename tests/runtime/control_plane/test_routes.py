"""The table of the control socket's routes is the only list: each request of a surface, and each rule of the server,
names a row of it. Each page that lists the commands of a surface lists those of its table.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from bot.cli.assistants import daemon_tools
from bot.cli.operate import telegram, telegram_commands
from bot.dashboard.controls import ACTIONS
from bot.errors import BotError
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


def test_every_command_of_a_chat_sends_the_row_that_its_table_names(tmp_path: Path) -> None:
    pytest.importorskip("telegram")
    from bot.cli.operate.telegram_chats import Chats
    from bot.cli.operate.telegram_messages import Sender

    asked: list[tuple[str, str]] = []

    class Recorder:
        def ask(self, method: str, path: str, body: object = None) -> None:
            asked.append((method, path))
            raise BotError("recorded")

    chats = Chats(cast(Any, Recorder()))
    assert list(chats.commands) == list(telegram_commands.COMMANDS)
    for command in telegram_commands.COMMANDS.values():
        # A kill may go to the service itself: test_kill.py and test_telegram.py test its ways.
        if command.name not in ("kill", "confirm"):
            asked.clear()
            asyncio.run(chats.answer(Sender(1, 2), command.name, ["word"]))
            assert asked == ([] if command.route is None else [command.route]), command.name
    assert {command.route for command in telegram_commands.COMMANDS.values()} - {None} <= ROWS


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """The words of the first column of each row of a table, without its head."""
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    return [word.strip(" `") for cell in rows[2:] for word in cell.split(",")]


def usages(text: str) -> list[str]:
    """What stands in backticks at the head of each line of a list: - `/status`, `/positions`: what they do."""
    heads = [line.partition(":")[0] for line in text.splitlines() if line.startswith("- `/")]
    return [form for head in heads for form in re.findall("`([^`]*)`", head)]


@pytest.mark.parametrize(
    ("page", "heading", "read", "names"),
    [
        (
            "docs/operating.md",
            "Control from Telegram",
            usages,
            [form for command in telegram_commands.COMMANDS.values() for form, _ in command.forms],
        ),
        # The page of a fleet has three of them too.
        (
            "docs/dashboard.md",
            "Controls",
            lambda text: [name for name in first_cells(text) if not name.endswith("on *Fleet*")],
            [action.title for action in ACTIONS.values()],
        ),
        ("docs/guides/assistant.md", "Tools", first_cells, list(daemon_tools.TOOLS)),
    ],
    ids=["telegram", "dashboard", "assistant"],
)
def test_a_page_lists_the_commands_of_its_table(
    page: str, heading: str, read: Any, names: Iterable[str], repository: Path
) -> None:
    assert sorted(set(read(section((repository / page).read_text(), heading)))) == sorted(names)


def test_the_help_of_telegram_names_the_commands_of_its_table() -> None:
    forms = [form for command in telegram_commands.COMMANDS.values() for form, _ in command.forms]
    assert [line.partition(" - ")[0] for line in telegram_commands.HELP.splitlines() if " - " in line] == forms
    assert f"Commands: {telegram_commands.NAMES}." in telegram.EPILOG


@pytest.mark.parametrize(
    "paths", [control_address.WARMING, control_address.FROM_MEMORY], ids=["warming", "from memory"]
)
def test_a_path_that_the_server_treats_apart_is_a_row_of_the_table(paths: frozenset[str]) -> None:
    assert paths <= {path for _method, path in ROWS}
