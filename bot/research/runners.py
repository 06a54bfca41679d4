"""Run many trials: in processes of this machine, or on a Dask cluster. A trial whose worker dies is run again; the
outcomes are the same wherever they ran.

Both yield outcomes as they finish. Processes of this machine are forked: they share the candles with this one and copy
nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any, Final, Protocol

from bot.errors import BotError
from bot.extras import install
from bot.operating_system import watch_parent
from bot.research.trials import Bundle, Task, TrialOutcome, code_here, evaluate
from bot.words import many

# Deaths of the worker of one trial. Then the trial has failed.
DEATHS_MAX: Final = 3
# tasks for each worker: one runs, the next is there
AHEAD: Final = 2
CONNECT_S: Final = 10


class Runner(Protocol):
    """Runs tasks. Closing the iterator stops the workers' tasks."""

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[TrialOutcome]: ...

    def close(self) -> None: ...


Evaluate = Callable[[Any, Task], TrialOutcome]
# What runs a task, with its bundle: forked processes have it without a copy.
_run_task: Callable[[Task], TrialOutcome] | None = None


def _ready(parent: int) -> None:
    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent(parent)


def _evaluated(task: Task) -> TrialOutcome:
    assert _run_task is not None
    return _run_task(task)


class Processes:
    """Processes of this machine. `run` runs one task of the bundle: a trial of a sweep, unless another is given."""

    def __init__(self, bundle: Any, workers: int, run: Evaluate | None = None) -> None:
        self._run_task = partial(run or evaluate, bundle)
        self._workers = workers
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        global _run_task  # noqa: PLW0603  read by the forked processes
        _run_task = self._run_task
        return ProcessPoolExecutor(
            self._workers, mp_context=get_context("fork"), initializer=_ready, initargs=(os.getpid(),)
        )

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[TrialOutcome]:
        waiting = iter(tasks)
        deaths: dict[int, int] = {}
        running: dict[Future[TrialOutcome], Task] = {}
        # taken, and not yet submitted
        fresh: list[Task] = []
        # Trials that ran when a worker died. Each runs alone, so that another death names its trial.
        suspects: dict[int, Task] = {}
        while True:
            try:
                room = int(not running) if suspects else self._workers * AHEAD - len(running)
                for task in [*suspects.values()][:room] or islice(waiting, room):
                    fresh.append(task)
                    running[self._pool.submit(_evaluated, task)] = task
                    fresh.clear()
                    suspects.pop(task.number, None)
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    del running[future]
                    yield outcome
            # A worker has died, and all of the pool with it.
            except BrokenProcessPool:
                self.close()
                self._pool = self._started()
                for task in [*fresh, *running.values()]:
                    suspects[task.number] = task
                if len(running) == 1:
                    (task,) = running.values()
                    deaths[task.number] = deaths.get(task.number, 0) + 1
                    if deaths[task.number] == DEATHS_MAX:
                        del suspects[task.number]
                        why = f"its process died {many(DEATHS_MAX, 'time')}: too little memory?"
                        yield TrialOutcome(task.number, "failed", message=why)
                running.clear()
                fresh.clear()

    def close(self) -> None:
        # The pool offers no way to stop a running task.
        processes = list((self._pool._processes or {}).values())  # noqa: SLF001
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


class ThisProcess:
    """One trial after the other in this process, as a notebook wants it: nothing is forked beside its threads."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[TrialOutcome]:
        for task in tasks:
            yield evaluate(self._bundle, task)

    def close(self) -> None:
        pass


class Cluster:
    """The workers of a Dask scheduler. Each gets the bundle once."""

    def __init__(self, bundle: Bundle, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise BotError(f"--on needs the package distributed: {install('cluster')}") from None
        try:
            self._client: Any = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise BotError(
                f"--on {address}: no scheduler answers there ({type(error).__name__}); start one with: dask scheduler"
                " --port 8786"
            ) from None
        try:
            self._bundle = self._sent(bundle, address)
        except BaseException:
            self._client.close()
            raise

    def _sent(self, bundle: Bundle, address: str) -> Any:
        """The bundle on the cluster. BotError if a worker runs another version."""
        if not self._client.scheduler_info()["workers"]:
            raise BotError(
                f"--on {address}: the scheduler has no worker; start one with: dask worker {address} --nthreads 1"
            )
        try:
            versions: dict[str, str] = self._client.run(code_here, bundle)
        except Exception as error:  # noqa: BLE001  whatever a foreign worker raises
            raise BotError(
                f"--on {address}: a worker cannot run the trials ({type(error).__name__}: {error}); install"
                f" bracketbot=={bundle.code.split()[3]} on each worker"
            ) from None
        for worker, code in sorted(versions.items()):
            if code != bundle.code:
                raise BotError(
                    f"--on {address}: the worker {worker} has another version: {code}; here it is {bundle.code}"
                )
        return self._client.scatter(bundle, broadcast=True)

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[TrialOutcome]:
        from distributed import as_completed

        waiting = iter(tasks)
        ahead = AHEAD * max(1, sum(self._client.nthreads().values()))
        futures = as_completed([self._submitted(task) for task in islice(waiting, ahead)], loop=self._client.loop)
        for future in futures:
            try:
                outcome: TrialOutcome = future.result()
            except Exception as error:  # noqa: BLE001  a worker died again and again, or the scheduler is gone
                if self._client.status != "running":
                    raise BotError("the scheduler has ended; the trials so far are kept") from None
                number = int(str(future.key).rpartition("-")[2])
                outcome = TrialOutcome(number, "failed", message=f"{type(error).__name__}: {error}")
            yield outcome
            for task in islice(waiting, 1):
                futures.add(self._submitted(task))

    def _submitted(self, task: Task) -> Any:
        return self._client.submit(evaluate, self._bundle, task, key=f"trial-{id(self)}-{task.number}", pure=False)

    def close(self) -> None:
        # The scheduler may be gone.
        with suppress(Exception):
            self._client.cancel(self._bundle, force=True)
        self._client.close()
