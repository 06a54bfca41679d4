"""What the dashboard needs of a daemon: its control socket, and of each daemon of the machine its last answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class DaemonControl(Protocol):
    """A daemon by its state directory, and its control socket. `bot.cli.common.daemon_client.Place` is one."""

    @property
    def folder(self) -> Path:
        """The state directory."""

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        within_s: float | None = None,
    ) -> Any:
        """The daemon's answer. BotError says why there is none; its exit code tells a dead daemon from a silent one."""


class FleetMember(Protocol):
    """A daemon of this machine and its last answer. `bot.cli.operate.fleet.Member` is one."""

    @property
    def place(self) -> DaemonControl: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> Mapping[str, Any] | None:
        """Its answer to `/status`; None without one."""

    @property
    def problem(self) -> str:
        """Why there is no answer."""

    @property
    def is_running(self) -> bool: ...
    @property
    def alerts(self) -> str: ...
