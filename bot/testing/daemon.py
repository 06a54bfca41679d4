"""The daemon's kernel against a test's sandbox, one minute at a time. The test runs the same code as a live run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from pydantic import SecretStr

from bot.client.client import Client
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.assembly import place_strategies
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.startup import RealPacer
from bot.testing.settings import checked_settings

T = TypeVar("T")

MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 100_000
# passes in one minute; a kernel that still has undecided bars after these is stuck
PASSES_MAX: Final = 50
WAIT_S: Final = 60.0


class TradingService(Protocol):
    """What the daemon needs from a test's sandbox: an address, a credential, a client and a clock to advance."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    def async_client(self) -> Client: ...
    def advance(self, ms: int) -> Any: ...


class Daemon:
    """A daemon with one strategy:

    `with sandbox.run("mine:Mine") as daemon: daemon.minutes(5)`. Its journal is in memory; it sends no heartbeats.
    """

    def __init__(self, sandbox: TradingService, entry: Mapping[str, Any], *, strategies_dir: str | Path) -> None:
        """`entry`: the strategy as an item of a config's list."""
        self._sandbox = sandbox
        account = {"base_url": sandbox.base_url, "api_key": SecretStr(sandbox.api_key)}
        data = {"account": account, "strategies": [entry]}
        self.settings = checked_settings(data, strategies_dir=strategies_dir, caller="sandbox.run")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="daemon", daemon=True)
        self._stack = AsyncExitStack()
        self._kernel: Kernel | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._do(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def minutes(self, count: int = 1) -> None:
        """Advance the clock a minute at a time; the strategy decides on each bar that closes."""
        assert 0 <= count <= MINUTES_MAX, count
        for _ in range(count):
            self._sandbox.advance(MINUTE_MS)
            self._do(self._passes())

    async def _start(self) -> None:
        client = await self._stack.enter_async_context(self._sandbox.async_client())
        account = await client.account()
        journal = open_journal(None, address=account.address)
        self._stack.callback(journal.close)
        self._kernel = Kernel(port=client, journal=journal, specs=place_strategies(self.settings), pacer=RealPacer())
        await self._kernel.recover()

    async def _passes(self) -> None:
        assert self._kernel is not None
        for _ in range(PASSES_MAX):
            await self._kernel.cycle()
            if not self._kernel.is_late:
                break
        failed = [
            f"{instance.name}: {instance.quarantined}"
            for instance in self._kernel.strategy_host.instances
            if instance.quarantined is not None
        ]
        if failed:
            raise AssertionError(f"the strategy was quarantined: {'; '.join(failed)}")

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def _end(self) -> None:
        self._do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()
