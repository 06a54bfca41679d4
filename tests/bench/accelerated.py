"""Accelerated time for one process: `bot.clock` and the event loop run N times as fast, so that all waits of the
production code shrink alike.

A feeder process and an exchange keep their real speed. What waits for them must get the same real time as before: see
`feeder_in_real_time`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bot.clock
from bot.market_data import feeder_client

QUICK_FEEDER = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("ccxt_feeder", sys.argv[2])
feeder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(feeder)
feeder.POLL_SECONDS = {poll}
sys.argv = sys.argv[2:]
feeder.main()
"""


class AcceleratedTime:
    """Stands in for the module `time` inside bot.clock. It stands still until `begin`."""

    CLOCK_BOOTTIME = 7

    def __init__(self, speed: float, start_ms: int) -> None:
        self._speed = 0.0
        self._speed_then = speed
        self._start_ns = start_ms * 1_000_000
        self._began_ns = time.monotonic_ns()

    def begin(self) -> None:
        """Let the time run."""
        self._began_ns, self._speed = time.monotonic_ns(), self._speed_then

    def monotonic_ns(self) -> int:
        return self._start_ns + int((time.monotonic_ns() - self._began_ns) * self._speed)

    def clock_gettime_ns(self, _clock: int) -> int:
        return self.monotonic_ns()

    def time_ns(self) -> int:
        return self.monotonic_ns()


class _Selector(selectors.EpollSelector):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self.speed = speed

    def select(self, timeout: float | None = None) -> list[Any]:
        return super().select(None if timeout is None else timeout / self.speed)


class AcceleratedLoop(asyncio.SelectorEventLoop):
    def __init__(self, speed: float) -> None:
        self.speed = speed
        super().__init__(_Selector(speed))

    def time(self) -> float:
        return super().time() * self.speed


@contextlib.contextmanager
def accelerated(speed: float, start_ms: int) -> Iterator[tuple[AcceleratedLoop, AcceleratedTime]]:
    """A loop at this speed, and `bot.clock` on it while the block runs."""
    clock = AcceleratedTime(speed, start_ms)
    real, bot.clock.time = bot.clock.time, clock
    loop = AcceleratedLoop(speed)
    asyncio.set_event_loop(loop)
    try:
        yield loop, clock
    finally:
        bot.clock.time = real
        asyncio.set_event_loop(None)
        loop.close()


def feeder_in_real_time(folder: Path, speed: float, poll_seconds: float) -> None:
    """Give the feeder process its real time to start, answer and end, and let it ask for quotes every `poll_seconds`
    of real time.
    """
    feeder_client.START_SECONDS *= speed
    feeder_client.ANSWER_SECONDS *= speed
    feeder_client.END_SECONDS *= speed
    quick = folder / "feeder.py"
    quick.write_text(QUICK_FEEDER.format(poll=poll_seconds))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{markets_python()}" "{quick}" "$@"\n')
    python.chmod(0o755)
    os.environ["BOT_MARKETS_PYTHON"] = str(python)


def markets_python() -> str:
    """The interpreter that has ccxt: BOT_MARKETS_PYTHON, or that of `make test`."""
    return os.environ.get("BOT_MARKETS_PYTHON") or str(Path(sys.prefix) / "markets" / "bin" / "python")
