"""What a Telegram chat may write: one table, which the answer to /help and the help of `bot telegram` are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class ChatCommand(NamedTuple):
    """One command. `forms` are what a person writes and what it does; without one, /help leaves the command out.

    `route` is its request to the daemon's control socket. None: the command needs no daemon.
    """

    name: str
    forms: tuple[tuple[str, str], ...]
    route: tuple[str, str] | None = None


_ROWS: Final = (
    ChatCommand("start", ()),
    ChatCommand("help", ()),
    ChatCommand("status", (("/status", "state of the daemon, account and profit"),), ("GET", "/status")),
    ChatCommand("positions", (("/positions", "open positions with their stops"),), ("GET", "/positions")),
    ChatCommand("pause", (("/pause [STRATEGY]", "no new entries; exits and stops go on"),), ("POST", "/pause")),
    ChatCommand("resume", (("/resume [STRATEGY]", "entries again"),), ("POST", "/resume")),
    ChatCommand("approvals", (("/approvals", "entries that wait for you"),), ("GET", "/approvals")),
    ChatCommand("approve", (("/approve ID", "the daemon sends the entry"),), ("POST", "/approve")),
    ChatCommand("refuse", (("/refuse ID [REASON]", "the entry ends"),), ("POST", "/refuse")),
    ChatCommand(
        "kill",
        (("/kill", "cancel entries and block new ones"), ("/kill flatten", "also close every position")),
        ("POST", "/kill"),
    ),
    ChatCommand("confirm", ()),
)
COMMANDS: Final[Mapping[str, ChatCommand]] = {command.name: command for command in _ROWS}
NAMES: Final = " ".join(f"/{command.name}" for command in _ROWS if command.forms)
HELP: Final = "\n".join(f"{form} - {text}" for command in _ROWS for form, text in command.forms) + (
    "\n/kill also works while the daemon does not run. A message that is older than 2 minutes, edited or forwarded does"
    "\nnothing."
)
