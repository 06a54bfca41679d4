"""A service and a daemon as real processes, ended whatever happens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Daemon, Sandbox

Pair = tuple[Sandbox, Daemon]
MakePair = Callable[..., Pair]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name: a Unix socket's path has room for about a hundred bytes."""
    folder = Path(tempfile.mkdtemp(prefix="bot-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pair(place: Path, repository: Path) -> Iterator[MakePair]:
    """Makes a service with an account, and a daemon that is to trade on it.

    `like` begins with the database of a service that was stopped.
    """
    made: list[Pair] = []

    def make(name: str, *, clock: str, heartbeat_seconds: int, like: Sandbox | None = None) -> Pair:
        folder = place / name
        folder.mkdir()
        sandbox = Sandbox(folder, clock=clock)
        if like is not None:
            shutil.copy(like.folder / "sandbox.db", folder / "sandbox.db")
            sandbox.api_key = like.api_key
        sandbox.start()
        if like is None:
            sandbox.open_account()
        daemon = Daemon(folder, sandbox, heartbeat_seconds=heartbeat_seconds, strategies=repository / "strategies")
        made.append((sandbox, daemon))
        return sandbox, daemon

    yield make
    for sandbox, daemon in made:
        daemon.kill()
        sandbox.kill()
