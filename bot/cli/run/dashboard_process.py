"""The dashboard of a config's section `dashboard`, as a child process that ends with the daemon. If it fails, the daemon trades on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from bot.cli.run.embedded_service import child_environment

if TYPE_CHECKING:
    from bot.config import Dashboard

log = structlog.get_logger()

END_S: Final = 2.0  # after its standard input has ended


class Served(NamedTuple):
    """The running dashboard. `link` opens it once; it is for a terminal, never for a log."""

    address: str
    link: str


def served_line(served: Served | str, *, is_terminal: bool) -> str:
    """The line of `bot run` and `bot demo`: the link on a terminal, the address elsewhere, or why there is no dashboard."""
    if isinstance(served, str):
        return f"dashboard   not available: {served}"
    return (
        f"dashboard   {served.link} (opens it once)"
        if is_terminal
        else f"dashboard   {served.address} (bot dashboard --link prints a link)"
    )


@contextlib.asynccontextmanager
async def dashboard_process(
    section: Dashboard | None, folder: Path, say: Callable[[Served | str], None]
) -> AsyncIterator[Callable[[], None]]:
    """Give a function that starts the dashboard of the daemon in `folder`, and end the dashboard with the block.

    `say` gets the running dashboard, or why there is none.
    """
    if section is None:
        yield lambda: None
        return
    started: list[asyncio.Task[None]] = []
    command = [
        *_COMMAND,
        "--state-dir",
        str(folder),
        "--port",
        str(section.port),
        "--runs",
        str(Path("runs").absolute()),  # The child has another working folder.
        *(["--control"] if section.control else []),
    ]

    def start() -> None:
        if not started:
            started.append(asyncio.create_task(_run(command, say), name="dashboard"))

    try:
        yield start
    finally:
        for task in started:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


_COMMAND: Final = (sys.executable, "-m", "bot", "dashboard", "--json", "--ends-with-stdin")


async def _run(command: list[str], say: Callable[[Served | str], None]) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=child_environment(), cwd="/", start_new_session=True
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = await process.stdout.readline()
        if line:
            told = json.loads(line)
            log.info("dashboard.ready", address=told["address"])
            say(Served(told["address"], told["link"]))
        last = ""
        async for text in process.stderr:  # Read to the end, so that the child never waits for a reader.
            last = text.decode(errors="replace").strip() or last
        code = await process.wait()
        message = last.removeprefix("error: ") or f"it ended with code {code}"
        log.warning("dashboard.unavailable", message=message)
        if not line:
            say(message)
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(process.wait(), END_S)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def port_or_free(port: int) -> int:
    """The port, or 0 for a free one if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
