"""The process of a dashboard: its key, its port, its record in the state directory, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvicorn

from bot.clock import SystemClock
from bot.dashboard.app import Dashboard
from bot.dashboard.backtests import Backtests
from bot.dashboard.documents import PageFiles
from bot.dashboard.page_models import PageSources
from bot.dashboard.sign_in import KEY_BYTES, DashboardSignIn
from bot.dashboard.sources import DaemonSource, FleetSource, ServiceSource
from bot.dashboard.values.daemon_control import DaemonControl, FleetMember
from bot.errors import ConfigError
from bot.files import write_private
from bot.runtime.control_plane.acceptor import HOST, loopback_listener

KEY_FILE: Final = "dashboard.key"
# the port of the running dashboard, locked while it runs
RECORD: Final = "dashboard.json"
STOP_S: Final = 1
# time between two looks whether the state directory is still there
GONE_S: Final = 2.0


class RunningDashboard(NamedTuple):
    """A dashboard that runs."""

    port: int
    run_id: str

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"


def link(running: RunningDashboard, key: bytes) -> str:
    """A link that opens the dashboard once. Its code stands behind the `#`, which browsers do not send."""
    return f"{running.address}/sign-in#{_sign_in(running, key).code()}"


def running_in(folder: Path) -> RunningDashboard | None:
    """The dashboard of this state directory; None if none runs."""
    try:
        with (folder / RECORD).open("r+") as file:
            if _locked(file):
                return None
            written = json.load(file)
        return RunningDashboard(int(written["port"]), str(written["run_id"]))
    except (OSError, ValueError, KeyError):
        return None


def key_of(folder: Path) -> bytes:
    """The key of the folder's dashboards; made at the first call, readable by its owner alone."""
    path = folder / KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    key = secrets.token_bytes(KEY_BYTES)
    write_private(path, key)
    return key


def left_by_run(folder: Path) -> int | None:
    """The pid of the dashboard that `bot run` has started here and that still runs; None if there is none."""
    try:
        with (folder / RECORD).open("r+") as file:
            if _locked(file):
                return None
            written = json.load(file)
        return int(written["pid"]) if written.get("of_run") else None
    except (OSError, ValueError, KeyError):
        return None


def serve(
    control_socket: DaemonControl,
    *,
    port: int,
    control: bool,
    runs: Path,
    on_ready: Callable[[RunningDashboard, bytes], None],
    of_run: bool = False,
    fleet: Callable[[], Sequence[FleetMember]] | None = None,
) -> None:
    """Serve the dashboard of a daemon until SIGINT or SIGTERM, or until the state directory is gone. `of_run`: `bot
    run` has started it. `fleet` asks all daemons of this machine.

    ConfigError if the port is in use, another dashboard runs on the folder, or the extra `ui` is missing.
    """
    folder = control_socket.folder
    documents = PageFiles()
    listener = loopback_listener(port, "the dashboard's port")
    with contextlib.closing(listener), _recorded(folder, listener.getsockname()[1], of_run=of_run) as running:
        key = key_of(folder)
        others = None if fleet is None else FleetSource(fleet)
        sources = PageSources(DaemonSource(control_socket), ServiceSource(), Backtests(runs), others)
        dashboard = Dashboard(sources, documents, _sign_in(running, key), control=control)
        asyncio.run(_serve(dashboard, folder, listener, lambda: on_ready(running, key)))


async def _serve(dashboard: Dashboard, folder: Path, listener: socket.socket, on_started: Callable[[], None]) -> None:
    config = uvicorn.Config(
        dashboard.app(),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=STOP_S,
    )
    server = _Server(config, dashboard, on_started)
    _end_when_gone(folder, server)
    await server.serve(sockets=[listener])


def _end_when_gone(folder: Path, server: _Server) -> None:
    """End the dashboard when its state directory is removed: nobody can find it any more."""
    if (folder / RECORD).exists():
        asyncio.get_running_loop().call_later(GONE_S, _end_when_gone, folder, server)
    else:
        server.stop()


class _Server(uvicorn.Server):
    """Ends the open event streams first, because they do not end by themselves."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order, with exit code 0. uvicorn's own way would raise the signal again."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.stopping.set()
        await super().shutdown(sockets)


def _sign_in(running: RunningDashboard, key: bytes) -> DashboardSignIn:
    return DashboardSignIn(key, running.run_id, now_s=lambda: SystemClock().now_ms() // 1000)


@contextlib.contextmanager
def _recorded(folder: Path, port: int, *, of_run: bool = False) -> Iterator[RunningDashboard]:
    """Hold the record of the folder and write the port into it."""
    descriptor = os.open(folder / RECORD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        if not _locked(file):
            raise ConfigError(f"another dashboard runs on {folder}: `bot dashboard --link` prints a link for it")
        running = RunningDashboard(port, secrets.token_hex(8))
        file.truncate(0)
        json.dump({"port": running.port, "run_id": running.run_id, "pid": os.getpid(), "of_run": of_run}, file)
        file.flush()
        yield running
        file.truncate(0)


def _locked(file: Any) -> bool:
    """Lock the open file; False if another process has it locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
