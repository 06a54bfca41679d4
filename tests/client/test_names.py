"""Names are looked up beside the loop: one lookup that hangs holds up no other, and no process at its end.

The resolver is ours, in all else real.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bot.client import Client
from bot.client.http import Timeouts
from bot.client.names import run_unheld
from bot.errors import TryLater

Found = list[tuple[Any, ...]]


class Resolver:
    """Answers for `good`, hangs for `slow` until `let_go` is set, knows nobody else."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()

    def __call__(self, host: str, port: int, *_rest: Any, flags: int = 0, **_named: Any) -> Found:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        self.asked.append(host)
        if host == "slow":
            self.let_go.wait(60)
        if host not in ("good", "slow"):
            raise socket.gaierror(socket.EAI_NONAME, "nobody is called so")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.let_go.set()


def test_a_name_lookup_that_hangs_does_not_delay_the_end_of_the_process(resolver: Resolver) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await loop.getaddrinfo("slow", 80)
        ((*_, address),) = await loop.getaddrinfo("good", 81, type=socket.SOCK_STREAM)
        with pytest.raises(socket.gaierror, match="nobody"):
            await loop.getaddrinfo("nobody", 80)
        return f"{address}"

    began = time.monotonic()
    assert run_unheld(main()) == "('127.0.0.1', 81)"
    assert time.monotonic() - began < 30, "it waits for a minute"
    assert resolver.asked == ["slow", "good", "nobody"], "who asks again meanwhile waits for the same answer"


def test_a_late_lookup_answers_the_callers_that_still_wait(resolver: Resolver) -> None:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(loop.getaddrinfo("slow", 80))
        second = asyncio.create_task(loop.getaddrinfo("slow", 80))
        await asyncio.sleep(0)
        first.cancel()
        resolver.let_go.set()
        return await second

    assert run_unheld(main())[0][4] == ("127.0.0.1", 80)
    assert resolver.asked == ["slow"]


def test_a_name_is_looked_up_again_after_the_thread_or_the_lookup_failed(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(threading.Thread):
        def start(self) -> None:
            monkeypatch.undo()
            monkeypatch.setattr(socket, "getaddrinfo", resolver)
            raise RuntimeError("can't start new thread")

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="can't start new thread"):
            await loop.getaddrinfo("good", 80)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await loop.getaddrinfo("good", 80)
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        return await loop.getaddrinfo("good", 80)

    monkeypatch.setattr(threading, "Thread", Full)
    assert run_unheld(main())[0][4] == ("127.0.0.1", 80)


def test_a_client_gives_up_in_its_own_time(resolver: Resolver) -> None:
    async def main() -> None:
        timeouts = Timeouts(connect=0.2)
        async with Client("https://slow", "bbk_test", timeouts=timeouts) as client:
            with pytest.raises(TryLater):
                await client.account()

    began = time.monotonic()
    run_unheld(main())
    assert time.monotonic() - began < 30
