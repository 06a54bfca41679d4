"""Runs the daemon for the command line: stops it on signals, restarts a dead embedded service, and reports how the
run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from bot.cli.run.dashboard_process import Served, dashboard_process
from bot.cli.run.embedded_service import Embedded, RunningService
from bot.errors import Exit
from bot.logs import log
from bot.runtime import daemon
from bot.runtime.liveness.instance_lock import HeldDirectory
from bot.runtime.liveness.memory import collect_at_rest
from bot.runtime.run_request import RunRequest
from bot.runtime.shutdown import DaemonEnd


async def play(
    request: RunRequest,
    *,
    embedded: Embedded | None = None,
    held: HeldDirectory | None = None,
    on_dashboard: Callable[[Served | str], None] = lambda _served: None,
) -> DaemonEnd:
    """Run the daemon until `request.stop` is set, and restart its embedded service if it dies.

    While the service is down, the daemon is DEGRADED.

    The dashboard of the config starts when the daemon is ready; `on_dashboard` gets it, or why there is none.
    """
    settings, stop = request.settings, request.stop
    keeper = None if embedded is None else asyncio.create_task(embedded.keep_alive(_restarted), name="service-keeper")
    if keeper is not None:
        keeper.add_done_callback(lambda task: None if task.cancelled() else stop.set())
    try:
        async with dashboard_process(
            settings.dashboard, settings.state_dir, on_dashboard, stop.is_set
        ) as start_dashboard:

            def ready() -> None:
                request.on_ready()
                start_dashboard()

            def trouble() -> str | None:
                return None if embedded is None else embedded.trouble

            watched = replace(request, on_ready=ready, trouble=trouble, at_rest=collect_at_rest)
            return await daemon.run(watched, held=held)
    finally:
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper


def _restarted(running: RunningService) -> None:
    log.warning("service.restarted", pid=running.pid, base_url=running.base_url)


@contextlib.contextmanager
def stopped_by_signals(
    stop: asyncio.Event, say: Callable[[str], None], hangup: asyncio.Event | None = None
) -> Iterator[None]:
    """SIGINT, SIGTERM and a closed terminal set `stop`; a second signal ends the process at once. The journal is safe
    in both cases.

    SIGHUP sets `hangup`, which asks for a reload, unless it was sent because the terminal was closed.
    """
    loop = asyncio.get_running_loop()

    had_terminal = sys.stdin is not None and os.isatty(0)

    def ask(number: int) -> None:
        if number == signal.SIGHUP and hangup is not None and os.isatty(0) == had_terminal:
            hangup.set()
            return
        if stop.is_set():
            os._exit(int(Exit.ERROR))
        stop.set()
        # Standard error may be closed.
        with contextlib.suppress(OSError):
            say(f"Stopping ({signal.Signals(number).name}); a second signal ends the process at once.")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, ask, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def stop_after(seconds: float | None, stop: asyncio.Event) -> None:
    """Set `stop` after this time. None: never."""
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)


def left_lines(end: DaemonEnd) -> list[str]:
    """What stays at the service, and why, as lines for a person."""
    left = end.left
    if not left.known and not left.positions:
        return [
            f"{left.unknown_because[:1].upper()}{left.unknown_because[1:]}, so it is not known what stays there.",
            *(f"  why        {line}" for line in left.why),
        ]
    lines = ["Left at the service:"]
    for label, things in (("position", left.positions), ("order", left.orders), ("guardian", left.guardians)):
        nothing = "none" if left.known else "not known"
        lines += [f"  {label:<10} {thing}" for thing in things] or [f"  {label + 's':<10} {nothing}"]
    return lines + [f"  {'why' if n == 0 else '':<10} {line}" for n, line in enumerate(left.why)]


def left_data(end: DaemonEnd) -> dict[str, Any]:
    """What stays at the service, and why, as data for JSON."""
    left = end.left
    return {
        "known": left.known,
        "positions": list(left.positions),
        "orders": list(left.orders),
        "guardians": list(left.guardians),
        "why": list(left.why),
        "unprotected": list(left.unprotected),
    }


def judge_end(end: DaemonEnd) -> None:
    """Print the error of a run that did not end as requested."""
    if end.exit_code is not Exit.DONE and end.message:
        click.echo(f"error: {end.message}", err=True)
