"""A strategy's own thread: its calls run off the loop, one at a time, each with a limit. A call that is too late is given up, the loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

from bot.clock import monotonic_ns
from bot.errors import StrategyError

log = structlog.get_logger()
T = TypeVar("T")

LATE_S: Final = 1.0
LIMIT_S: Final = 5.0


class Worker:
    """One daemon thread a strategy: a plug-in that never returns holds up nobody, not even the end of the process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[
            tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]] | None
        ] = queue.SimpleQueue()
        self._given_up = False
        self._turn = asyncio.Lock()
        threading.Thread(target=self._work, name=f"strategy-{name}", daemon=True).start()

    async def call(self, fn: Callable[[], T]) -> T:
        """The call's result or its exception; StrategyError when it takes longer than LIMIT_S, and from then on."""
        async with self._turn:  # The limit is of the call itself, not of what it waits behind.
            if self._given_up:
                raise StrategyError(f"{self.name}: an earlier call has not returned")
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[T] = loop.create_future()
            started_ns = monotonic_ns()
            self._calls.put((fn, loop, answer))
            try:
                async with asyncio.timeout(LIMIT_S):
                    return await answer
            except TimeoutError:
                self._given_up = True
                raise StrategyError(f"{self.name}: took longer than {LIMIT_S:g} s; its answer is discarded") from None
            finally:
                took_s = (monotonic_ns() - started_ns) / 1e9
                if LATE_S < took_s < LIMIT_S:
                    log.warning("strategy.late", strategy=self.name, seconds=round(took_s, 3))

    def close(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            fn, loop, answer = call
            try:
                result = fn()
            except Exception as error:  # noqa: BLE001 - handed to the caller as it is; it names whose fault it was
                _give(loop, answer, None, error)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in a plug-in ends the plug-in's part, not the daemon
                _give(loop, answer, None, StrategyError(f"{self.name}: {type(error).__name__}: {error}"))
            else:
                _give(loop, answer, result, None)


def _give(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if not answer.done():
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

    with contextlib.suppress(RuntimeError):  # The loop has closed: nobody waits for this answer any more.
        loop.call_soon_threadsafe(settle)
