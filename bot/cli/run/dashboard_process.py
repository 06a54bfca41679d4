"""The dashboard of a config's section `dashboard`, as a process of its own beside the daemon. If it fails, the daemon
trades on.

It is needed most when the daemon has died, so it outlives a crash and an error of the daemon. It ends with an orderly
stop, and the next run of the daemon takes its place. If the dashboard itself dies, the daemon starts it again on the
same port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.cli.run.embedded_service import LOOK_S, child_environment
from bot.clock import monotonic_ns
from bot.errors import Exit
from bot.logs import log

if TYPE_CHECKING:
    from bot.config import DashboardSettings

# time for the dashboard's end after SIGTERM
END_S: Final = 3.0
# wait before the dashboard is started again; each failure in a row doubles the wait
AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 60.0
# what the dashboard has printed beside its address since its last start
LOG: Final = "dashboard.log"


class Served(NamedTuple):
    """The running dashboard. `link` opens it once; it is for a terminal, never for a log."""

    address: str
    link: str


def served_line(served: Served | str, *, is_terminal: bool) -> str:
    """The line of `bot run` and `bot demo`: the link on a terminal, the address elsewhere, or why there is no
    dashboard.
    """
    if isinstance(served, str):
        return f"dashboard   not available: {served}"
    return (
        f"dashboard   {served.link} (opens it once)"
        if is_terminal
        else f"dashboard   {served.address} (bot dashboard --link prints a link)"
    )


class DashboardProcess:
    """The dashboard of a run. `start` once the daemon is ready; `close` at an orderly end, and not after an error."""

    def __init__(self, section: DashboardSettings, folder: Path, say: Callable[[Served | str], None]) -> None:
        self._section = section
        self._folder = folder
        self._say = say
        self._port = section.port
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._keep_alive(), name="dashboard")

    async def leave(self) -> None:
        """Start the dashboard no more. A running one stays."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def close(self) -> None:
        """End the dashboard's process."""
        await self.leave()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep_alive(self) -> None:
        failed = 0
        if not await asyncio.to_thread(end_left_dashboard, self._folder):
            log.warning("dashboard.unavailable", message="the dashboard of an earlier run does not end")
        while True:
            was_ready, code = await self._run(is_first=failed == 0)
            message = self._last_line() or f"it ended with code {code}"
            log.warning("dashboard.unavailable", message=message)
            if not was_ready and failed == 0:
                self._say(message)
            if not was_ready and code == Exit.CONFIG:
                # A port in use or a missing package: another try changes nothing.
                return
            failed = 1 if was_ready else failed + 1
            await asyncio.sleep(min(AGAIN_S * 2 ** (failed - 1), AGAIN_S_MAX))

    async def _run(self, *, is_first: bool) -> tuple[bool, int]:
        """One process, from its start to its end: whether it was ready, and its exit code."""
        with (self._folder / LOG).open("wb") as err:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=err,
                env=child_environment(),
                cwd="/",
                start_new_session=True,
            )
        assert process.stdout is not None
        line = await process.stdout.readline()
        if line:
            told = json.loads(line)
            # Open pages find the dashboard at the same address again.
            self._port = int(told["address"].rpartition(":")[2])
            log.info("dashboard.ready", address=told["address"])
            if is_first:
                self._say(Served(told["address"], told["link"]))
        return bool(line), await process.wait()

    def _command(self) -> list[str]:
        return [
            *_COMMAND,
            "--state-dir",
            str(self._folder),
            "--port",
            str(self._port),
            "--runs",
            # The child has another working folder.
            str(Path("runs").absolute()),
            *(["--control"] if self._section.control else []),
        ]

    def _last_line(self) -> str:
        lines = (self._folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else ""


_COMMAND: Final = (sys.executable, "-m", "bot", "dashboard", "--json", "--of-run")


@contextlib.asynccontextmanager
async def dashboard_process(
    section: DashboardSettings | None,
    folder: Path,
    say: Callable[[Served | str], None],
    is_stopping: Callable[[], bool],
) -> AsyncIterator[Callable[[], None]]:
    """Give a function that starts the dashboard of the daemon in `folder`. `say` gets the running dashboard, or why
    there is none.

    After the block the dashboard is ended if the daemon `is_stopping` in order. After an error it stays, as the service
    does.
    """
    if section is None:
        yield lambda: None
        return
    dashboard = DashboardProcess(section, folder, say)
    try:
        yield dashboard.start
    finally:
        await (dashboard.close() if is_stopping() else dashboard.leave())


def end_left_dashboard(folder: Path) -> bool:
    """End the dashboard that an earlier run of the daemon has left.

    False if it does not end; True if there is none any more.
    """
    from bot.dashboard.server import left_by_run

    end_ns = monotonic_ns() + int(END_S * 1e9)
    asked: int | None = None
    while (pid := left_by_run(folder)) is not None:
        # Once: a second signal at the very end of its process would end it by force.
        if pid != asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            asked = pid
        if monotonic_ns() > end_ns:
            return False
        select.select([], [], [], LOOK_S)
    return True


def port_or_free(port: int) -> int:
    """The port, or 0 for a free one if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
