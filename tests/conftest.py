"""What every test may ask for: the shared data, and how large a randomized suite is to be; and how the suite is spread
over a machine.

Builders and fakes live elsewhere.
"""

from __future__ import annotations

import gc
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

from tests import prepared_process

pytest_plugins = ["tests.workers"]

REPOSITORY = Path(__file__).resolve().parent.parent
CHROMIUM = Path("/usr/bin/chromium")

# An example takes as long as the machine lets it: a busy one is not a fault of the code under test. New examples are
# for `make soak`: whether a change lands must not depend on which ones came up.
hypothesis.settings.register_profile("landing", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True)
hypothesis.settings.load_profile("landing")

# No test pulls the plug, so no file needs a disk: in memory the suite does not wait for whoever else writes to that
# disk.
MEMORY = Path("/dev/shm")
MEMORY_MIN_BYTES = 2**31
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_MIN_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Compiled once, not at each of the hundreds of process starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The commands of `bot` start from a process that has imported them.
prepared_process.use()

# Started in the background of a script, Python leaves Ctrl-C ignored, and so would every process that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NEVER = 2**31 - 1
# collections of the second generation before all is collected
COLLECTIONS_MAX = 500

# Of every suite that names no number of its own.
WORLDS_DEFAULT = 20
KILLS_DEFAULT = 3
ORDERS_DEFAULT = 300


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A log that the test before has not pointed at a stream that is closed by now."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def _full_collections_between_modules() -> Iterator[None]:
    """The heap of a worker is large, and a full collection of it takes seconds.

    Amid a test it can outlast the time limit of a request.
    """
    gc.set_threshold(*gc.get_threshold()[:2], NEVER)
    yield
    if gc.get_count()[2] > COLLECTIONS_MAX:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[Path]:
    """A folder for the locks of accounts that no other worker's daemons are in: a command without flags looks for
    daemons there.
    """
    with tempfile.TemporaryDirectory(prefix="bot-run-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bracketbot")
    group.addoption("--full", action="store_true", help="every randomized suite in its full size, as `make soak` does")
    group.addoption("--worlds", type=int, default=None, metavar="N", help="random worlds of each simulated suite")
    group.addoption("--kills", type=int, default=None, metavar="N", help="kill -9 in each crash suite")
    group.addoption("--orders", type=int, default=None, metavar="N", help="orders for which the daemon is left alone")
    group.addoption(
        "--seed", type=int, default=0, metavar="N", help="seed of the first random world; the next ones follow"
    )


def pytest_configure(config: pytest.Config) -> None:
    if is_soaked(config):
        hypothesis.settings.load_profile("soak")


def is_soaked(config: pytest.Config) -> bool:
    """Whether larger numbers than those of every day were asked for."""
    return config.getoption("--full") or any(config.getoption(name) is not None for name in ("--worlds", "--kills"))


@pytest.fixture
def cold_starts() -> Iterator[None]:
    """Commands of `bot` that start in interpreters of their own: for tests that read /proc or measure a start."""
    with prepared_process.cold_starts():
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the project."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded candles and oracles:

    BOT_SHARED, or the folder `shared` beside the project. Skips where there is none.
    """
    folder = Path(os.environ.get("BOT_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip("the shared data is not here: set BOT_SHARED")
    return folder


def _number(request: pytest.FixtureRequest, name: str, default: int) -> int:
    """The command line's number, else with `--full` the `full` of the mark `soak(worlds=..., full=...)`, else its
    other number, else the default.
    """
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
def orders(request: pytest.FixtureRequest) -> int:
    """How many orders a test that lasts lets the daemon send."""
    return _number(request, "orders", ORDERS_DEFAULT)


@pytest.fixture
def base_seed(request: pytest.FixtureRequest) -> int:
    """The seed of the first random world."""
    seed: int = request.config.getoption("--seed")
    return seed


def _rates(reports: list[pytest.TestReport]) -> Iterator[str]:
    for report in sorted(reports, key=lambda report: report.nodeid):
        for name, number in report.user_properties:
            if name in ("worlds", "kills") and isinstance(number, int) and report.duration > 0:
                yield (
                    f"{number / report.duration:12,.1f} {name}/s  {number:>8,} in {report.duration:8.1f} s "
                    f" {report.nodeid}"
                )


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
    """Debian's Chromium, driven by Playwright.

    No package of Python's brings it, so a machine without it leaves out what is looked at in a browser.
    """
    if not CHROMIUM.exists():
        pytest.skip(f"chromium is not installed at {CHROMIUM}")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture(autouse=True)
def _shipped_markets_only() -> Iterator[None]:
    """The markets of a listing file belong to the process; the next test knows the shipped ones."""
    yield
    if (instruments := sys.modules.get("bot.service.market_data.instruments")) is not None:
        instruments.use_listings({})
