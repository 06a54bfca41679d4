"""Runs the tests in worker processes that are forked after the collection, so that the test modules are imported once.

`-n N` starts N workers, `-n auto` one more than there are cores; without `-n` pytest runs the tests itself. A worker
that dies fails the test that it ran, and another one is forked in its place. The process that collected runs no test.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pickle
import re
import resource
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

import pytest
from _pytest.capture import FDCaptureBase

REPOSITORY = Path(__file__).resolve().parent.parent
FORK = multiprocessing.get_context("fork")

# Many tests wait for a process most of their time.
WORKERS_BEYOND_CORES = 1
# More workers than this need more memory than a usual machine has.
WORKERS_MAX = 8
# How long nothing may be printed before a line names what runs.
SILENCE_SECONDS = 30
# How long a worker may take to end its session fixtures, and how long after a request to end.
TEARDOWN_SECONDS = 120
STOP_SECONDS = 10
# A second process helps to compile when more test modules than this have no compiled form.
UNCOMPILED_MIN = 60

# The longest files come first, so that no worker is left alone with one at the end. One lane holds files that compute,
# one those that run many processes, one those that mostly wait: side by side they fill the cores, and two of a kind do
# not starve each other.
LANES = (
    (
        "service/http/test_openapi_contract.py",
        "test_house.py",
        "research/test_sweep.py",
        "service/exchange_accounts/test_worlds.py",
        "service/market_data/test_session_calendars.py",
        "integration/test_worlds.py",
        "runtime/test_kernel_crashes.py",
        "venue/test_simulation.py",
        "runtime/liveness/test_heartbeat_worlds.py",
    ),
    (
        "e2e/test_bounded.py",
        "e2e/test_kill_lockstep.py",
        "e2e/test_kill_service.py",
        "e2e/test_kill_free.py",
        "e2e/test_demo.py",
        "service/state_machine/test_kills.py",
        "test_readme.py",
        "service/state_machine/test_guardian_fires_once.py",
        "cli/run/test_processes.py",
        "integration/test_kill_points.py",
    ),
    (
        "dashboard/test_filled.py",
        "service/exchange_accounts/test_follower.py",
        "service/exchange_accounts/test_action_kills.py",
        "cli/run/test_trading_account.py",
        "runtime/liveness/test_heartbeat_process.py",
        "service/webhooks/test_webhook_process.py",
        "service/http/test_event_stream.py",
        "service/http/test_approval_page.py",
        "testing/test_plugin.py",
        "service/docs/test_documents.py",
        "dashboard/test_browser.py",
        "runtime/test_daemon.py",
        "service/test_process.py",
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bracketbot")
    # The public method refuses a lowercase letter; `-n` is the name that people know from pytest-xdist.
    add = group._addoption
    add("-n", "--workers", default="0", metavar="N", help="worker processes; auto: one more than there are cores")
    group.addoption("--measure", metavar="FILE", help="write the seconds of each test to FILE (tests/bench/suite.py)")


def worker_count(asked: str) -> int:
    """The number of workers that `-n` asks for; a usage error names the two forms."""
    if asked == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores + WORKERS_BEYOND_CORES, WORKERS_MAX)
    if not asked.isdecimal():
        raise pytest.UsageError(f"-n takes a number or auto, not {asked!r}")
    return int(asked)


# ── Collection ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """In a fresh clone a second process imports the test modules from the last on, so that each finds half of them
    compiled.
    """
    helper = None
    if worker_count(session.config.getoption("workers")) > 1 and not session.config.getoption("file_or_dir"):
        paths = sorted((REPOSITORY / "tests").rglob("test_*.py"), reverse=True)
        compiled = {file.name.partition(".")[0] for file in (REPOSITORY / "tests").rglob("__pycache__/test_*.pyc")}
        if sum(path.stem not in compiled for path in paths) > UNCOMPILED_MIN:
            helper = FORK.Process(target=_import_all, args=(paths,), daemon=True)
            helper.start()
    try:
        return (yield)
    finally:
        if helper is not None:
            helper.kill()
            helper.join()


def _import_all(paths: Sequence[Path]) -> None:
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        for path in paths:
            # The collection reports an error of a module.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))


def lanes_of(items: Sequence[pytest.Item], workers: int) -> list[deque[int]]:
    """For each worker the numbers of its tests: a lane of long files first, then an equal part of the rest, whole
    files together.
    """
    lane_of = {
        REPOSITORY / "tests" / name: (n, place) for n, lane in enumerate(LANES) for place, name in enumerate(lane)
    }
    lanes: list[list[int]] = [[] for _ in range(workers)]
    long = [number for number, item in enumerate(items) if item.path in lane_of]
    for number in sorted(long, key=lambda number: lane_of[items[number].path][1]):
        lanes[lane_of[items[number].path][0] % workers].append(number)
    rest = [number for number, item in enumerate(items) if item.path not in lane_of]
    for n, lane in enumerate(lanes):
        taken = max(0, (len(rest) + sum(map(len, lanes[n:]))) // (workers - n) - len(lane))
        while 0 < taken < len(rest) and items[rest[taken]].path == items[rest[taken - 1]].path:
            taken += 1
        lane += rest[:taken]
        del rest[:taken]
    return [deque(lane) for lane in lanes]


def _words(expression: str) -> list[str]:
    """The words of which at least one stands in the name of each test that `-k` chooses; none if it also chooses
    without.
    """
    words = [word.lower() for word in re.findall(r"[^\s()]+", expression)]
    return [] if "not" in words else [word for word in words if word not in ("and", "or")]


class NamesByFile:
    """Leaves out the files in which `-k` chooses nothing: none of its words is in their text, nor was in a name of
    their tests.
    """

    CACHE = "bracketbot/names"

    def __init__(self, config: pytest.Config) -> None:
        self._words = _words(config.option.keyword)
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._names: dict[str, str] = self._cache.get(self.CACHE, {}) if self._cache is not None else {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not self._words or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
            return None
        place = str(collection_path.relative_to(REPOSITORY))
        if place not in self._names:
            return None
        known = f"{place} {self._names[place]} {collection_path.read_text(encoding='utf-8')}".lower()
        return None if any(word in known for word in self._words) else True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the names for the next time, before `-k` takes any out."""
        names: dict[str, set[str]] = {}
        for item in items:
            if item.path.is_relative_to(REPOSITORY):
                names.setdefault(str(item.path.relative_to(REPOSITORY)), set()).add(item.name)
        changed = {place: " ".join(sorted(known)) for place, known in names.items()}
        if self._cache is not None and not changed.items() <= self._names.items():
            self._cache.set(self.CACHE, self._names | changed)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NamesByFile(config))


# ── The process that collected ──────────────────────────────────────────────────────────────────────────────────────


class Worker:
    """One worker: its lane, the test that it runs, and the next one, which it has been told of."""

    def __init__(self, lane: deque[int]) -> None:
        self.lane = lane
        self.given: deque[int] = deque()
        self.is_told_all = False
        self.began = time.monotonic()

    def fork(self, session: pytest.Session) -> None:
        self.connection, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_run_worker, args=(session, theirs, self.connection, sys.stdin))
        self.process.start()
        theirs.close()
        self.is_told_all = False
        for number in self.given:
            self.connection.send(number)


class Runner:
    """Deals the tests out to the workers and passes their reports on, until all have run."""

    def __init__(self, session: pytest.Session, workers: int) -> None:
        self._session = session
        self._hook = session.config.hook
        self._workers = [Worker(lane) for lane in lanes_of(session.items, workers)]
        self._printed = time.monotonic()
        # Of each test that has ended: wall seconds, and processor seconds with those of the processes that it waited
        # for.
        self.seconds: dict[str, tuple[float, float]] = {}

    def run(self) -> None:
        """Run all tests. Raises what pytest's own loop raises after a failure with `-x` and after an interrupt."""
        gc.freeze()
        try:
            for worker in self._workers:
                worker.fork(self._session)
                self._deal(worker)
                self._deal(worker)
            while running := {worker.connection: worker for worker in self._workers if not worker.connection.closed}:
                for connection in wait(list(running), timeout=SILENCE_SECONDS):
                    assert isinstance(connection, Connection)
                    self._receive(running[connection])
                self._print_what_runs()
        finally:
            for worker in self._workers:
                if hasattr(worker, "process") and worker.process.is_alive():
                    worker.process.terminate()
            for worker in self._workers:
                if hasattr(worker, "process"):
                    worker.process.join(STOP_SECONDS)
                    worker.process.kill()

    def _deal(self, worker: Worker) -> None:
        """Tell a worker its next test, or that there is none; an idle worker takes the last file of the longest
        lane.
        """
        if not worker.lane:
            longest = max(self._workers, key=lambda other: len(other.lane)).lane
            while longest and (not worker.lane or self._path(longest[-1]) == self._path(worker.lane[0])):
                worker.lane.appendleft(longest.pop())
        if worker.lane:
            worker.given.append(worker.lane.popleft())
            self._send(worker, worker.given[-1])
        elif not worker.is_told_all:
            worker.is_told_all = True
            self._send(worker, None)

    def _send(self, worker: Worker, number: int | None) -> None:
        # A worker that has died is found at its connection's end.
        with contextlib.suppress(BrokenPipeError):
            worker.connection.send(number)

    def _receive(self, worker: Worker) -> None:
        name, data = "gone", None
        # A worker that ended has closed its connection.
        with contextlib.suppress(EOFError, ConnectionResetError):
            name, data = worker.connection.recv()
        if name == "gone":
            self._bury(worker)
        elif name == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
            self._log(report)
        elif name == "warning":
            self._hook.pytest_warning_recorded.call_historic(kwargs=data)
        elif name == "ended":
            item = self._session.items[worker.given.popleft()]
            self.seconds[item.nodeid] = data
            worker.began = time.monotonic()
            self._deal(worker)

    def _log(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self._printed = time.monotonic()
        self._hook.pytest_runtest_logreport(report=report)
        if report.failed:
            self._write_line(f"\nfailed: {report.nodeid}")
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _bury(self, worker: Worker) -> None:
        """A worker has ended.

        If tests are left to it, the one that it ran has failed and a new worker runs the others.
        """
        worker.connection.close()
        worker.process.join(TEARDOWN_SECONDS)
        code = worker.process.exitcode
        if not worker.given and code == 0:
            return
        number = worker.given.popleft() if worker.given else None
        item = self._session.items[-1 if number is None else number]
        reason = (
            f"the worker process ended with {code} in {'the teardown after ' if number is None else ''}{item.nodeid}"
        )
        longrepr = f"{reason}; a traceback of its threads may stand above"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", longrepr, "call")
        if number is not None:
            worker.fork(self._session)
            worker.began = time.monotonic()
            self._deal(worker)
        self._log(report)

    def _path(self, number: int) -> Path:
        return self._session.items[number].path

    def _write_line(self, line: str) -> None:
        terminal = self._session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(line)

    def _print_what_runs(self) -> None:
        """A line that names the test that has run longest, when nothing was printed for a while."""
        now = time.monotonic()
        running = [worker for worker in self._workers if worker.given]
        if now - self._printed < SILENCE_SECONDS or not running:
            return
        self._printed = now
        oldest = min(running, key=lambda worker: worker.began)
        left = sum(len(worker.lane) + len(worker.given) for worker in self._workers)
        name = self._session.items[oldest.given[0]].nodeid
        self._write_line(f"\n{left} tests left; runs longest, {now - oldest.began:.0f} s: {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers, if `-n` asks for some."""
    workers = min(worker_count(session.config.getoption("workers")), len(session.items))
    if workers < 1 or session.config.option.collectonly or session.testsfailed:
        return None
    runner = Runner(session, workers)
    runner.run()
    if measured := session.config.getoption("measure"):
        Path(measured).write_text(json.dumps(runner.seconds), encoding="utf-8")
    return True


# ── In a worker ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Reports:
    """Sends the reports of a worker's tests to the process that prints them."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        try:
            pickle.dumps(warning_message)
        except Exception as error:  # noqa: BLE001  the classes of other packages raise what they like
            text = UserWarning(f"{warning_message.message} (not sent whole: {error})")
            warning_message = warnings.WarningMessage(
                text, UserWarning, warning_message.filename, warning_message.lineno
            )
        said = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("warning", said))


def processor_seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _take_own_files(capture: Any) -> None:
    """Give the captures of standard output and error files of this worker's own, in place of those that all workers
    share.

    The streams stay the same objects and stay open: a module that was imported in the collection may hold one, as mcp
    does.
    """
    capture.suspend_global_capture()
    capturing = capture._global_capturing
    for one in (capturing.out, capturing.err):
        if isinstance(one, FDCaptureBase):
            with tempfile.TemporaryFile(buffering=0) as own:
                os.dup2(own.fileno(), one.tmpfile.fileno(), inheritable=False)


def _run_worker(session: pytest.Session, connection: Connection, other_end: Connection, stdin: TextIO | None) -> None:
    """Run the tests whose numbers come, with captures of its own. A test begins when the one after it is known."""
    other_end.close()
    manager = session.config.pluginmanager
    capture = manager.get_plugin("capturemanager")
    assert capture is not None
    if capture.is_globally_capturing():
        # multiprocessing has put a file in its place, which a test may close.
        sys.stdin = stdin
    _take_own_files(capture)
    manager.unregister(name="terminalreporter")
    manager.register(Reports(session.config, connection))
    number = connection.recv()
    while number is not None:
        item = session.items[number]
        number = connection.recv()
        following = None if number is None else session.items[number]
        began, used = time.monotonic(), processor_seconds()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        session.shouldfail = session.shouldstop = False
        connection.send(("ended", (time.monotonic() - began, processor_seconds() - used)))
    sys.stdout.flush()
