"""Notifications to the service manager over $NOTIFY_SOCKET: READY, STATUS, WATCHDOG, STOPPING. Without the socket
nothing is sent.

Completed passes feed the watchdog, never a timer. A long start asks for more time as long as the process runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from bot.clock import monotonic_ns

# characters of the line in `systemctl status`
STATUS_MAX: Final = 400
# longest wait for a busy manager; the event loop waits with it
SEND_S: Final = 0.25
# extra time per request
EXTEND_S: Final = 30
EXTEND_EVERY_S: Final = 10.0
# shortest time between two watchdog messages; longer would cut into the time of a long pass
FEED_NS: Final = 1_000_000_000


def notify(message: str) -> bool:
    """Send one state to $NOTIFY_SOCKET ("READY=1", "STATUS=...", "STOPPING=1"); False if nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SEND_S)
        try:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall(message.encode())
        except OSError:
            return False
    return True


def status(text: str) -> bool:
    """Send one status line for people."""
    return notify(f"STATUS={' '.join(text.split())[:STATUS_MAX]}")


def is_managed(environ: Mapping[str, str] = os.environ) -> bool:
    """True if this process is the main process of a unit. Then the manager must stop it, or it would start it again."""
    return environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()) or bool(environ.get("NOTIFY_SOCKET"))


def watchdog_us(environ: Mapping[str, str] = os.environ) -> int | None:
    """The watchdog interval in microseconds; None if this process has no watchdog. The manager names the process, so
    that a child with the same environment is not meant.
    """
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()) else None


class Watchdog:
    """Feeds the manager's watchdog after completed passes: once a second at most, or every quarter of a shorter
    interval.
    """

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns, environ: Mapping[str, str] = os.environ) -> None:
        us = watchdog_us(environ)
        self._every_ns = None if us is None else min(us * 1_000 // 4, FEED_NS)
        self._now_ns = now_ns
        self._fed_ns: int | None = None

    def pass_done(self) -> None:
        if self._every_ns is None:
            return
        now_ns = self._now_ns()
        if self._fed_ns is None or now_ns - self._fed_ns >= self._every_ns:
            self._fed_ns = now_ns
            notify("WATCHDOG=1")


async def ask_for_time(what: Callable[[], str], every_s: float = EXTEND_EVERY_S) -> None:
    """Ask for more start time until cancelled, because a start that waits for its service does not hang."""
    while notify(f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}"):
        status(what())
        await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def asking_for_time(what: Callable[[], str]) -> AsyncIterator[None]:
    """`ask_for_time` while the block runs."""
    asking = asyncio.create_task(ask_for_time(what), name="asking for time")
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
