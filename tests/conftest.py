"""What every test may ask for: the shared data, and how large a randomized suite is to be; and how the suite is spread over a machine.

Builders and fakes live elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

REPOSITORY = Path(__file__).resolve().parent.parent
CHROMIUM = Path("/usr/bin/chromium")

# An example takes as long as the machine lets it: a busy one is not a fault of the code under test. New examples are for `make soak`:
# whether a change lands must not depend on which ones came up.
hypothesis.settings.register_profile("landing", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True)
hypothesis.settings.load_profile("landing")

# No test pulls the plug, so no file needs a disk: in memory the suite does not wait for whoever else writes to that disk.
MEMORY = Path("/dev/shm")
MEMORY_MIN_BYTES = 2**31
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_MIN_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Compiled once, not at each of the hundreds of process starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Started in the background of a script, Python leaves Ctrl-C ignored, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The long ones come first, so that no worker is left alone with one at the end. A worker each for what computes, for what runs
# many processes and for what mostly waits: side by side they fill the cores, and two of a kind do not starve each other.
LANES = (
    (
        "service/http/test_openapi_contract.py", "test_house.py", "integration/test_worlds.py", "runtime/test_kernel_crashes.py", "venue/test_simulation.py",
        "runtime/liveness/test_heartbeat_worlds.py",
    ),
    (
        "e2e/test_bounded.py", "e2e/test_kill_lockstep.py", "e2e/test_kill_service.py", "e2e/test_kill_free.py", "e2e/test_demo.py", "service/state_machine/test_kills.py",
        "test_readme.py", "service/state_machine/test_guardian_fires_once.py", "cli/run/test_processes.py", "integration/test_kill_points.py",
    ),
    (
        "runtime/liveness/test_heartbeat_process.py", "service/webhooks/test_webhook_process.py", "service/http/test_event_stream.py", "service/http/test_approval_page.py",
        "testing/test_plugin.py", "service/docs/test_documents.py", "dashboard/test_browser.py", "runtime/test_daemon.py", "service/test_process.py",
    ),
)  # fmt: skip

NEVER = 2**31 - 1
COLLECTIONS_MAX = 500  # of the second generation, before all is collected

# Of every suite that names no number of its own.
WORLDS_DEFAULT = 20
KILLS_DEFAULT = 3
SECONDS_DEFAULT = 60


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A log that the test before has not pointed at a stream that is closed by now."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def _full_collections_between_modules() -> Iterator[None]:
    """The heap of a worker is large, and a full collection of it takes seconds. Amid a test it can outlast the time limit of a request."""
    gc.set_threshold(*gc.get_threshold()[:2], NEVER)
    yield
    if gc.get_count()[2] > COLLECTIONS_MAX:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[Path]:
    """A folder for the locks of accounts that no other worker's daemons are in: a command without flags looks for daemons there."""
    with tempfile.TemporaryDirectory(prefix="bot-run-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bracketbot")
    group.addoption("--full", action="store_true", help="every randomized suite in its full size, as `make soak` does")
    group.addoption("--worlds", type=int, default=None, metavar="N", help="random worlds of each simulated suite")
    group.addoption("--kills", type=int, default=None, metavar="N", help="kill -9 in each crash suite")
    group.addoption("--seconds", type=int, default=None, metavar="N", help="how long the daemon is left alone")
    group.addoption(
        "--seed", type=int, default=0, metavar="N", help="seed of the first random world; the next ones follow"
    )


def pytest_configure(config: pytest.Config) -> None:
    if is_soaked(config):
        hypothesis.settings.load_profile("soak")


def is_soaked(config: pytest.Config) -> bool:
    """Whether larger numbers than those of every day were asked for."""
    return config.getoption("--full") or any(config.getoption(name) is not None for name in ("--worlds", "--kills"))


def pytest_collection(session: pytest.Session) -> None:
    """Each worker imports the tests from another place on, so that in a fresh clone each compiles a part and finds the others' parts compiled."""
    given = getattr(session.config, "workerinput", None)
    if given is None:
        return
    paths = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    first = len(paths) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    for path in paths[first:] + paths[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # told where the file is collected
            importlib.import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for a process most of their time."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker begins with a lane of long tests. xdist deals the list out in blocks of one size, and lets who is done take from the others' ends."""
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    lane_of = {REPOSITORY / "tests" / name: n for n, lane in enumerate(LANES) for name in lane}
    place_of = {REPOSITORY / "tests" / name: n for lane in LANES for n, name in enumerate(lane)}
    blocks: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for item in sorted((one for one in items if one.path in lane_of), key=lambda one: place_of[one.path]):
        blocks[lane_of[item.path] % workers].append(item)
    rest = [item for item in items if item.path not in lane_of]
    left = len(items)
    for n, block in enumerate(blocks):
        size = left // (workers - n)
        left -= size
        taken = max(0, size - len(block))
        block += rest[:taken]
        del rest[:taken]
    items[:] = [item for block in blocks for item in block] + rest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the project."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded candles and oracles: BOT_SHARED, or the folder `shared` beside the project. Skips where there is none."""
    folder = Path(os.environ.get("BOT_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip("the shared data is not here: set BOT_SHARED")
    return folder


def _number(request: pytest.FixtureRequest, name: str, default: int) -> int:
    """The command line's number, else with `--full` the `full` of the mark `soak(worlds=..., full=...)`, else its other number, else the default."""
    given: int | None = request.config.getoption(f"--{name}")
    mark = request.node.get_closest_marker("soak")
    known = {} if mark is None else mark.kwargs
    usual: int = known["full"] if request.config.getoption("--full") else known.get(name, default)
    number = usual if given is None else given
    request.node.user_properties.append((name, number))
    return number


@pytest.fixture
def worlds(request: pytest.FixtureRequest) -> int:
    """How many random worlds this test runs: `for seed in range(base_seed, base_seed + worlds)`."""
    return _number(request, "worlds", WORLDS_DEFAULT)


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How many times this test kills the process."""
    return _number(request, "kills", KILLS_DEFAULT)


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> int:
    """How long a test that lasts lasts, in real seconds."""
    return _number(request, "seconds", SECONDS_DEFAULT)


@pytest.fixture
def base_seed(request: pytest.FixtureRequest) -> int:
    """The seed of the first random world."""
    seed: int = request.config.getoption("--seed")
    return seed


def _rates(reports: list[pytest.TestReport]) -> Iterator[str]:
    for report in sorted(reports, key=lambda report: report.nodeid):
        for name, number in report.user_properties:
            if name in ("worlds", "kills") and isinstance(number, int) and report.duration > 0:
                yield f"{number / report.duration:12,.1f} {name}/s  {number:>8,} in {report.duration:8.1f} s  {report.nodeid}"


def _figures(reports: list[pytest.TestReport]) -> Iterator[str]:
    """What a test wants said whatever was asked for."""
    for report in sorted(reports, key=lambda report: report.nodeid):
        for name, figure in report.user_properties:
            if name in ("rate", "first seeds"):
                yield f"{figure}  {report.nodeid}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The rate of each randomized suite when their size was asked for, and what a test says in any case."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    lines = [*(_rates(reports) if is_soaked(config) else ()), *_figures(reports)]
    if lines:
        terminalreporter.section("rates")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright. No package of Python's brings it, so a machine without it leaves out what is looked at in a browser."""
    if not CHROMIUM.exists():
        pytest.skip(f"chromium is not installed at {CHROMIUM}")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()
