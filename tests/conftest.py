"""What every test may ask for: the shared data, and how large a randomized suite is to be. Builders and fakes live elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# An example takes as long as the machine lets it: a busy one is not a fault of the code under test.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")

# Of every suite that names no number of its own.
WORLDS_DEFAULT = 20
KILLS_DEFAULT = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bracketbot")
    group.addoption("--worlds", type=int, default=None, metavar="N", help="random worlds of each simulated suite")
    group.addoption("--kills", type=int, default=None, metavar="N", help="kill -9 in each crash suite")
    group.addoption(
        "--seed", type=int, default=0, metavar="N", help="seed of the first random world; the next ones follow"
    )


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
    """The command line's number, else the one on the test's mark `soak(worlds=..., kills=...)`, else the common default."""
    given: int | None = request.config.getoption(f"--{name}")
    if given is None:
        mark = request.node.get_closest_marker("soak")
        given = mark.kwargs.get(name, default) if mark is not None else default
    request.node.user_properties.append((name, given))
    return given


@pytest.fixture
def worlds(request: pytest.FixtureRequest) -> int:
    """How many random worlds this test runs: `for seed in range(base_seed, base_seed + worlds)`."""
    return _number(request, "worlds", WORLDS_DEFAULT)


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How many times this test kills the process."""
    return _number(request, "kills", KILLS_DEFAULT)


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The rate of each randomized suite, when their size was asked for."""
    if config.getoption("--worlds") is None and config.getoption("--kills") is None:
        return
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    lines = list(_rates(reports))
    if lines:
        terminalreporter.section("rates")
        for line in lines:
            terminalreporter.write_line(line)
