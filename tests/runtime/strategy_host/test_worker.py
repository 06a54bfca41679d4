"""A strategy's own thread: calls that raise, never return, or would end the interpreter. The event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot.errors import StrategyError
from bot.runtime.strategy_host import worker as worker_module
from bot.runtime.strategy_host.worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker("one")
    yield one
    one.close()


async def test_a_call_runs_outside_the_event_loops_thread_and_returns_its_answer(worker: Worker) -> None:
    assert await worker.call(lambda: threading.current_thread().name) == "strategy-one"


@pytest.mark.parametrize("quick_s", [0.0, 1e-5, 1.0])
async def test_calls_run_in_order_on_one_thread_and_no_answer_is_lost(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, quick_s: float
) -> None:
    """An answer may come while the event loop blocks for it, just when it stops to block, or later."""
    monkeypatch.setattr(worker_module, "QUICK_S", quick_s)
    seen: list[int] = []

    def see(n: int) -> int:
        seen.append(n)
        return n

    answers = await asyncio.gather(*(worker.call(partial(see, n)) for n in range(500)))
    assert answers == seen == list(range(500))


async def test_an_exception_is_raised_in_the_caller_unchanged(worker: Worker) -> None:
    def fails() -> None:
        raise StrategyError("one: no")

    with pytest.raises(StrategyError, match="one: no"):
        await worker.call(fails)
    assert await worker.call(lambda: 1) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
async def test_an_exception_that_would_end_the_process_quarantines_the_strategy_only(
    worker: Worker, error: BaseException
) -> None:
    def ends() -> None:
        raise error

    with pytest.raises(StrategyError, match=type(error).__name__):
        await worker.call(ends)
    assert await worker.call(lambda: 1) == 1


async def test_a_call_that_never_returns_is_abandoned_with_its_worker(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LIMIT_S", 0.05)
    let_go = threading.Event()
    try:
        with pytest.raises(StrategyError, match="took longer than"):
            await worker.call(let_go.wait)
        with pytest.raises(StrategyError, match="has not returned"):
            await worker.call(lambda: 1)
    finally:
        let_go.set()


async def test_a_call_that_takes_longer_than_a_second_is_logged_and_its_answer_counts(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker_module.LATE_S == 1
    with capture_logs() as lines:
        assert await worker.call(lambda: 1) == 1
        monkeypatch.setattr(worker_module, "LATE_S", 0.0)
        assert await worker.call(lambda: 2) == 2
    assert [(one["event"], one["strategy"]) for one in lines] == [("strategy.late", "one")]


async def test_the_limit_of_a_call_does_not_count_its_wait_for_earlier_calls(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than the limit, and each alone less, on a clock that the test moves."""
    loop, moved_s = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + moved_s)
    begun, let_go = [[threading.Event() for _ in range(3)] for _ in range(2)]

    def slow(n: int) -> int:
        begun[n].set()
        assert let_go[n].wait(60)
        return n

    calls = [asyncio.create_task(worker.call(lambda n=n: slow(n))) for n in range(3)]
    for n in range(3):
        while not begun[n].is_set() and not calls[n].done():
            await asyncio.sleep(0)
        moved_s += worker_module.LIMIT_S / 2
        # What is due on the moved clock happens.
        for _ in range(3):
            await asyncio.sleep(0)
        let_go[n].set()
    assert await asyncio.gather(*calls) == [0, 1, 2]


async def test_the_event_loop_runs_while_a_call_runs(worker: Worker) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert let_go.wait(60)
        return "done"

    call = asyncio.create_task(worker.call(slow))
    passes = 0
    while not begun.is_set():
        await asyncio.sleep(0)
        passes += 1
    let_go.set()
    assert await call == "done"
    assert passes > 0


async def test_a_cancelled_call_leaves_the_worker_usable(worker: Worker) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        let_go.wait(60)

    call = asyncio.create_task(worker.call(slow))
    while not begun.is_set():
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    let_go.set()
    assert await worker.call(lambda: 1) == 1


def test_an_answer_after_the_event_loop_has_closed_is_ignored() -> None:
    one = Worker("late")
    begun, let_go = threading.Event(), threading.Event()

    def slow() -> Any:
        begun.set()
        return let_go.wait(60)

    async def leave() -> None:
        call = asyncio.create_task(one.call(slow))
        while not begun.is_set():
            await asyncio.sleep(0)
        call.cancel()

    asyncio.run(leave())
    let_go.set()
    assert asyncio.run(_answer(one)) == 2, "and the thread is still there"
    one.close()


async def _answer(one: Worker) -> int:
    return await one.call(lambda: 2)
