"""Which signal asks a run for what."""

from __future__ import annotations

import asyncio
import os
import signal

from bot.cli.run.run_daemon import stopped_by_signals


async def sent(number: int, *, reloads: bool) -> tuple[bool, bool, list[str]]:
    """Whether the run was asked to stop, and to reload, and what was said."""
    stop, hangup, said = asyncio.Event(), asyncio.Event(), list[str]()
    with stopped_by_signals(stop, said.append, hangup if reloads else None):
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            while not (stop.is_set() or hangup.is_set()):
                await asyncio.sleep(0)
    return stop.is_set(), hangup.is_set(), said


async def test_a_hangup_asks_a_daemon_for_a_reload_and_anything_else_for_its_end() -> None:
    assert await sent(signal.SIGHUP, reloads=True) == (False, True, [])
    assert (await sent(signal.SIGTERM, reloads=True))[:2] == (True, False)


async def test_a_hangup_ends_what_has_no_config_to_read_again() -> None:
    assert (await sent(signal.SIGHUP, reloads=False))[:2] == (True, False)
