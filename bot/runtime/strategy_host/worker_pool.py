"""The worker thread of each strategy, by the strategy's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from bot.runtime.strategy_host.call_record import CallRecord
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.runtime.strategy_host.worker import Worker

T = TypeVar("T")


class WorkerPool:
    """Runs each strategy's calls in a thread of its own.

    `calls` records them for the next start; None if its file cannot be written.
    """

    def __init__(self, calls: CallRecord | None, names: Iterable[str]) -> None:
        self._calls = calls
        self._workers: dict[str, Worker] = {}
        self._policies: dict[str, Worker] = {}
        for name in names:
            self.renew(name)

    async def call(self, instance: StrategyInstance, call: Callable[[], T]) -> T:
        return await self._workers[instance.name].call(call, instance.version)

    async def call_policy(self, strategy: str, call: Callable[[], object]) -> object:
        """Call the strategy's policy in a thread of its own.

        One that has hung is not called again until the strategy is built anew.
        """
        worker = self._policies.get(strategy)
        if worker is None:
            worker = self._policies[strategy] = Worker(f"policy of {strategy}")
        return await worker.call(call)

    def renew(self, name: str) -> None:
        """Give the strategy a new thread for its next call. An old thread that hangs is abandoned."""
        for old in (self._workers.pop(name, None), self._policies.pop(name, None)):
            if old is not None:
                old.close()
        self._workers[name] = Worker(name, None if self._calls is None else self._calls.row())

    def keep_only(self, names: Iterable[str]) -> None:
        """Close the threads of all other strategies."""
        kept = set(names)
        for name in [name for name in self._workers if name not in kept]:
            self._workers.pop(name).close()

    def close(self) -> None:
        for worker in (*self._workers.values(), *self._policies.values()):
            worker.close()
        if self._calls is not None:
            self._calls.close()
