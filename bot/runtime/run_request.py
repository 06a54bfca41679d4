"""What a caller hands to the daemon for one run: config, service, and the events and hooks of the process around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from bot.config import Settings
from bot.runtime.control_plane.log_tail import Tail


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run: its config, its service, and how the process tells it to stop or to reload."""

    settings: Settings
    base_url: str
    api_key: SecretStr
    # an event that ends the run
    stop: asyncio.Event
    # called once the start is complete
    on_ready: Callable[[], None] = _nothing
    # the newest log lines, for `bot logs`
    tail: Tail | None = None
    # the config file, for `bot status`
    config: Path | None = None
    # reads and checks the config again; None: no reload is possible
    reread: Callable[[], Settings] | None = None
    # an event that asks for a reload
    hangup: asyncio.Event | None = None
    # why the service is known to be down, as a sentence; the run is degraded meanwhile
    trouble: Callable[[], str | None] = _nothing
    # called between two passes when nothing is due for a while
    at_rest: Callable[[], None] = _nothing
