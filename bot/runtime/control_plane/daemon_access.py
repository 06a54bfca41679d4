"""The daemon as the routes of the control socket see it: starting at first, then with a kernel, then with a
recovered account.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bot.clock import SystemClock, monotonic_ns
from bot.config import Settings
from bot.runtime.control_plane.commands import Commands
from bot.runtime.control_plane.handle import DaemonHandle
from bot.runtime.control_plane.log_tail import Tail
from bot.runtime.control_plane.mailbox import Mailbox
from bot.runtime.control_plane.server import Data, RequestProblem
from bot.runtime.control_plane.status import DaemonState
from bot.words import many

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel


class RoutedDaemon(DaemonHandle, Protocol):
    """A daemon that also takes commands."""

    commands: Commands


class DaemonAccess:
    """`daemon` is None until there is a kernel; until then the daemon is STARTING."""

    def __init__(
        self, settings: Settings, *, base_url: str, stop: asyncio.Event, tail: Tail | None, config: Path | None
    ) -> None:
        self.settings = settings
        self.base_url = base_url
        self.stop = stop
        self.tail = tail
        self.config = config
        self.daemon: RoutedDaemon | None = None
        self.mailbox = Mailbox()
        # why the start waits for the service
        self.away = ""
        # asks the service manager for time
        self.starting: asyncio.Task[None] | None = None
        self._clock = SystemClock()
        self.started_ms = self._clock.now_ms()

    def attach(self, daemon: RoutedDaemon, wake: Callable[[], None]) -> None:
        """Take the daemon whose kernel was just made. `wake` makes the kernel's next pass come at once."""
        self.daemon = daemon
        self.mailbox.attach(wake)

    def take_settings(self, settings: Settings) -> None:
        """The daemon runs by these settings from now on."""
        self.settings = settings

    def set_starting(self, asking: asyncio.Task[None]) -> None:
        """This task asks the service manager for time until the start is over."""
        self.starting = asking

    def set_away(self, why: str) -> None:
        """Note why the start waits for the service, for `bot status`; "" once it does not."""
        self.away = why

    async def started(self) -> None:
        """The start is over, whatever its result: stop asking the service manager for time."""
        if self.starting is not None:
            self.starting.cancel()
            await asyncio.gather(self.starting, return_exceptions=True)
            self.starting = None

    def base(self) -> Data:
        """The part of every answer: when, from which process, and how old the knowledge of the account is."""
        daemon = self.recovered()
        return {
            "at_ms": self._clock.now_ms(),
            "pid": os.getpid(),
            "epoch": None if daemon is None else daemon.kernel.account.account_state.epoch,
            "old_s": None if daemon is None else _age_s(daemon),
        }

    def state(self) -> DaemonState:
        """As status.py defines it. Without a kernel: STARTING, or STOPPING after a stop."""
        if self.daemon is not None:
            return self.daemon.commands.state
        return DaemonState("STOPPING", "asked to stop") if self.stop.is_set() else DaemonState("STARTING", self.away)

    def summary(self) -> str:
        """The state in one line, for `systemctl status`."""
        state, why = self.state()
        if self.daemon is None or state == "STARTING":
            return f"STARTING: {why or 'asking the service for the account'}"
        account_state = self.daemon.kernel.account.account_state
        unprotected = [p.market for p in self.daemon.kernel.account.seen_unprotected()]
        parts = [
            many(len(self.settings.strategies), "strategy", "strategies"),
            many(len(account_state.positions), "position"),
            many(len(account_state.orders), "order"),
        ]
        parts += [f"WITHOUT A STOP: {', '.join(unprotected)}"] if unprotected else []
        parts += [why] if why else []
        return f"{state}: {', '.join(parts)}"

    def recovered(self) -> RoutedDaemon | None:
        """The daemon once it has read the whole account; None before."""
        return None if self.daemon is None or not self.daemon.is_recovered else self.daemon

    def require_daemon(self) -> RoutedDaemon:
        """The daemon; Problem before it has a kernel."""
        if self.daemon is None:
            raise RequestProblem(
                503, "starting", "the daemon is starting: it waits for the service's first answer; ask again"
            )
        return self.daemon

    def require_kernel(self) -> Kernel:
        """The kernel; Problem before it has recovered, because what it knows of the account may be out of date."""
        kernel = self.require_daemon().kernel
        if not kernel.state.ready:
            raise RequestProblem(503, "starting", "the daemon is still recovering; ask again")
        return kernel


def _age_s(daemon: RoutedDaemon) -> float:
    """Age of what is known of the account: since the events were read to their end, and since a pass has ended."""
    passed_s = 0.0 if daemon.passed_ns is None else (monotonic_ns() - daemon.passed_ns) / 1e9
    return round(max(daemon.kernel.state.lag_s(daemon.kernel.budget.pacer.mono_ms()), passed_s), 1)
