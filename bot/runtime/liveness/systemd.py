"""What a service manager is told, over the socket that it names: READY, STATUS, WATCHDOG, STOPPING. Nothing happens where there is none.

The watchdog is fed by completed passes of the loop, never by a timer. A start that takes long asks for more time for as
long as the process itself is awake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from bot.clock import monotonic_ns

STATUS_MAX: Final = 400  # of a line for `systemctl status`
SEND_S: Final = 0.25  # a manager that is busy gets a moment; one that does not read may not hold up the loop
EXTEND_S: Final = 30  # asked for at a time
EXTEND_EVERY_S: Final = 10.0
FEED_NS: Final = (
    1_000_000_000  # between two words to the watchdog: what is kept back is missing where the next pass takes long
)


def notify(message: str) -> bool:
    """Send one state to $NOTIFY_SOCKET ("READY=1", "STATUS=...", "STOPPING=1"); False when nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(SEND_S)
        try:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall(message.encode())
        except OSError:
            return False
    return True


def status(text: str) -> bool:
    """One line for people."""
    return notify(f"STATUS={' '.join(text.split())[:STATUS_MAX]}")


def is_managed(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this very process is a unit's main process: then stopping it is the manager's, which would start it again."""
    return environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()) or bool(environ.get("NOTIFY_SOCKET"))


def watchdog_us(environ: Mapping[str, str] = os.environ) -> int | None:
    """Within how many microseconds the manager wants to hear of this process; None when it does not. The manager names the
    process that it means, so a child that inherited the environment is not meant."""
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()) else None


class Watchdog:
    """Told of each completed pass; tells the manager, at most once a second, or four times in the span that it waits when that is shorter."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns, environ: Mapping[str, str] = os.environ) -> None:
        us = watchdog_us(environ)
        self._every_ns = None if us is None else min(us * 1_000 // 4, FEED_NS)
        self._now_ns = now_ns
        self._told_ns: int | None = None

    def pass_done(self) -> None:
        if self._every_ns is None:
            return
        now_ns = self._now_ns()
        if self._told_ns is None or now_ns - self._told_ns >= self._every_ns:
            self._told_ns = now_ns
            notify("WATCHDOG=1")


async def ask_for_time(what: Callable[[], str], every_s: float = EXTEND_EVERY_S) -> None:
    """Until canceled: a start that waits for its service is no start that hangs."""
    while notify(f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}"):
        status(what())
        await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def asking_for_time(what: Callable[[], str]) -> AsyncIterator[None]:
    """While the block runs."""
    asking = asyncio.create_task(ask_for_time(what), name="asking for time")
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
