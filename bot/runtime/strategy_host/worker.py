"""A strategy's own thread: its calls run outside the event loop, one at a time, each with a time limit.

A call that exceeds it is abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

from bot.clock import monotonic_ns
from bot.errors import StrategyError
from bot.logs import log
from bot.runtime.strategy_host.call_record import CallRow

T = TypeVar("T")

# longest time that the event loop blocks for an answer; most calls are faster
QUICK_S: Final = 0.005
LATE_S: Final = 1.0
LIMIT_S: Final = 5.0


class _Call(Generic[T]):
    """One call and its result.

    The lock `ended` is free once the call has ended. To wait longer than QUICK_S, set `waiter` and check `ended` again.
    """

    __slots__ = ("ended", "error", "fn", "result", "version", "waiter")

    def __init__(self, fn: Callable[[], T], version: str) -> None:
        self.fn = fn
        self.version = version
        self.result: T | None = None
        self.error: BaseException | None = None
        self.waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def end(self) -> None:
        self.ended.release()
        if self.waiter is not None:
            loop, waiter = self.waiter
            # The event loop has closed; nobody waits for the answer.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, waiter)

    async def wait(self) -> None:
        if self.ended.acquire(timeout=QUICK_S):
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self.waiter = loop, waiter
        if not self.ended.acquire(blocking=False):
            async with asyncio.timeout(LIMIT_S - QUICK_S):
                await waiter


class Worker:
    """One daemon thread for each strategy.

    A strategy that never returns blocks neither the event loop nor the end of the process.
    """

    def __init__(self, name: str, row: CallRow | None = None) -> None:
        """`row`: records the worker's calls for the next start."""
        self.name = name
        self._row = row
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        # True after a call exceeded its limit
        self.given_up = False
        self._turn = asyncio.Lock()
        threading.Thread(target=self._work, name=f"strategy-{name}", daemon=True).start()

    async def call(self, fn: Callable[[], T], version: str = "") -> T:
        """The result of `fn` or its exception.

        StrategyError if it takes longer than LIMIT_S, and for every later call.
        """
        # The limit does not count the wait for earlier calls.
        async with self._turn:
            if self.given_up:
                raise StrategyError(f"{self.name}: an earlier call has not returned")
            call = _Call(fn, version)
            started_ns = monotonic_ns()
            self._calls.put(call)
            try:
                await call.wait()
            except TimeoutError:
                self.given_up = True
                self._leave_row()
                raise StrategyError(f"{self.name}: took longer than {LIMIT_S:g} s; its answer is discarded") from None
            finally:
                took_s = (monotonic_ns() - started_ns) / 1e9
                if LATE_S < took_s < LIMIT_S:
                    log.warning("strategy.late", strategy=self.name, seconds=round(took_s, 3))
            if call.error is not None:
                raise call.error
            return cast(T, call.result)

    def close(self) -> None:
        self._leave_row()
        self._calls.put(None)

    def _leave_row(self) -> None:
        row, self._row = self._row, None
        if row is not None:
            row.leave()

    def _work(self) -> None:
        row = self._row
        while (call := self._calls.get()) is not None:
            if row is not None:
                row.begin(self.name, call.version)
            try:
                call.result = call.fn()
            except Exception as error:  # noqa: BLE001 - raised again in the caller, which names the strategy
                call.error = error
            except BaseException as error:  # noqa: BLE001 - sys.exit() in a strategy must not end the daemon
                call.error = StrategyError(f"{self.name}: {type(error).__name__}: {error}")
            if row is not None:
                row.end()
            call.end()
            # Do not hold the result until the next call.
            del call


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
