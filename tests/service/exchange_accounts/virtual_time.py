"""Tests of an account at a local exchange in virtual time: waits of minutes cost nothing.

`@in_virtual_time` lets a test run so, with the same fixture `hyperliquid`. Tests with real processes and sockets are in
test_follower.py, test_action_kills.py, test_agent_facts.py and tests/cli/run.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from hyperliquid.api import API

from bot.clock import SystemClock
from bot.testing.hyperliquid import ExchangeOptions, LocalExchange
from tests.integration.virtual import VirtualLoop, virtual_time
from tests.service.exchange_accounts.virtual_exchange import URL, VirtualExchange, connected_by_calls

# The mark of a test that `in_virtual_time` runs.
IS_VIRTUAL: Final = "is_in_virtual_time"
# The clock begins so long after a full hour, at which funding is paid.
BEGINS_AFTER_S: Final = 3_540


class VirtualLocalExchange(LocalExchange):
    """The exchange of the fixture `hyperliquid`, without thread and port."""

    def __init__(self, options: ExchangeOptions, wire: VirtualExchange, loop: VirtualLoop) -> None:
        super().__init__(options)
        self.base_url = URL
        self.loop = loop
        self._wire = wire
        for address, usd in options.accounts.items():
            self.deposit(address, usd)

    def close(self) -> None:
        self._wire.is_away = True

    def control(self, command: str, **body: Any) -> Any:
        return _copied(self._wire.service.command(command, body))

    def info(self, kind: str, **query: Any) -> Any:
        return _copied(self._wire.service.info({"type": kind, **query})[0])

    def post(self, path: str, payload: Any) -> Any:
        """A request of the official SDK, with which a person trades."""
        service = self._wire.service
        return _copied(service.info(payload)[0] if path == "/info" else service.perform(service.read(payload)))


def _copied(answer: Any) -> Any:
    return json.loads(json.dumps(answer))


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """`asyncio.to_thread` for calls that wait for nothing."""
    return function(*arguments)


@contextmanager
def virtual_exchange(options: ExchangeOptions) -> Iterator[VirtualLocalExchange]:
    """An exchange for one test, and the loop in which that test runs."""
    with virtual_time() as (loop, clocks):
        clocks.jumped_ns = BEGINS_AFTER_S * 10**9
        wire = VirtualExchange(random.Random("wire"), {"ip_limit": "off", **options.switches}, options.seed)
        exchange = VirtualLocalExchange(options, wire, loop)
        nonces = itertools.count(SystemClock().now_ms() + 1)
        with connected_by_calls(wire) as patch:
            patch.setattr(asyncio, "to_thread", _at_once)
            patch.setattr(API, "post", lambda _, path, payload=None: exchange.post(path, payload or {}))
            patch.setattr("hyperliquid.exchange.get_timestamp_ms", lambda: next(nonces))
            running = loop.create_task(wire.run())
            yield exchange
            running.cancel()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test run in the loop of its exchange."""

    @functools.wraps(test)
    def run(*, hyperliquid: VirtualLocalExchange, **given: Any) -> None:
        hyperliquid.loop.run_until_complete(test(hyperliquid=hyperliquid, **given))

    setattr(run, IS_VIRTUAL, True)
    return run
