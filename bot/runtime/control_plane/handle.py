"""What the control plane uses of a running daemon.

The supervisor satisfies it; the control plane does not import the supervisor.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from bot.client import Client
from bot.config import Settings
from bot.runtime.control_plane.alarm_watch import AlarmWatch
from bot.runtime.control_plane.price_watch import PriceWatch
from bot.runtime.journal.journal import Journal
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision
from bot.runtime.liveness.progress_stamp import ProgressWriter
from bot.runtime.strategy_host.worker_pool import WorkerPool


class DaemonHandle(Protocol):
    """A daemon that has a kernel. Its methods are called between two passes of the kernel."""

    kernel: Kernel
    client: Client
    journal: Journal
    settings: Settings
    heartbeats: HeartbeatSupervision
    workers: WorkerPool
    progress: ProgressWriter
    prices: PriceWatch
    alarms: AlarmWatch
    # monotonic time when the newest pass ended
    passed_ns: int | None

    @property
    def stop(self) -> asyncio.Event:
        """Set when the daemon is asked to stop."""

    @property
    def loop_lag_s(self) -> float:
        """How late the newest pass began."""

    @property
    def is_recovered(self) -> bool:
        """True once the daemon has read the whole account."""

    @property
    def away(self) -> str:
        """Why the start waits for the service; empty when it does not."""

    def take_settings(self, settings: Settings) -> None:
        """Run by these settings from now on."""

    async def yield_to_pass(self) -> None:
        """Run one pass if the last one is too long ago."""
