"""The workers of a test run: each test runs once, whatever dies, and its report arrives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bot.words import many
from tests.bench import suite
from tests.workers import LANES, _words, worker_count

SUITE = """
import os, signal, sys, warnings
import pytest

@pytest.fixture(scope="module")
def log(request):
    yield os.environ["RAN"]
    if os.path.basename(str(request.path)) == "test_two.py":
        raise ValueError("the fixture ends badly")

@pytest.mark.parametrize("n", range(8))
def test_runs(n, log, tmp_path):
    (tmp_path / "mine").touch(exist_ok=False)
    print("said", n)
    with open(log, "a") as ran:
        ran.write(f"{request_name()} {n} {os.getpid()}\\\\n")
    if request_name() == "test_one" and n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if request_name() == "test_one" and n == 5:
        os._exit(0)
    assert not (request_name() == "test_two" and n == 6)

def test_warns():
    warnings.warn("a warning of the suite")
    sys.stdin.close()
    assert not sys.stdin.isatty()

def test_skips():
    pytest.skip("a reason")

def request_name():
    return __name__.rpartition(".")[2]
"""


def run(folder: Path, *arguments: str, suite: str = SUITE) -> subprocess.CompletedProcess[str]:
    """Run pytest with the workers on a suite of two files."""
    folder.mkdir()
    for name in ("test_one.py", "test_two.py"):
        (folder / name).write_text(suite.replace("\\\\n", "\\n"), encoding="utf-8")
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p tests.workers -p no:xdist -p no:cacheprovider\n", encoding="utf-8"
    )
    environment = {**os.environ, "RAN": str(folder / "ran"), "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_each_test_runs_once_and_a_worker_that_dies_fails_only_its_test(tmp_path: Path) -> None:
    done = run(tmp_path / "suite", "-n", "2")

    ran = [line.split() for line in (tmp_path / "suite" / "ran").read_text(encoding="utf-8").splitlines()]
    assert sorted(line[:2] for line in ran) == [[file, str(n)] for file in ("test_one", "test_two") for n in range(8)]
    # A worker that is idle takes tests of another's file; then each of the two ends the module's fixture, badly.
    errors = len({worker for file, _, worker in ran if file == "test_two"})
    counts = f"3 failed, 15 passed, 2 skipped, 2 warnings, {many(errors, 'error')} in"
    assert counts in done.stdout, done.stdout + done.stderr
    assert "the worker process ended with -9 in test_one.py::test_runs[3]" in done.stdout
    assert "the worker process ended with 0 in test_one.py::test_runs[5]" in done.stdout
    assert "ValueError: the fixture ends badly" in done.stdout
    assert "a warning of the suite" in done.stdout
    assert "said 7" in done.stdout
    assert done.returncode == 1


HOLDS_A_STREAM = """
import subprocess, sys

def started(stream=sys.stderr):
    subprocess.run([sys.executable, "-c", "import sys; print('from the process', file=sys.stderr)"], stderr=stream)

def test_starts_a_process():
    started()
    print("from the test", file=sys.stderr)
    assert False
"""


def test_a_stream_that_a_module_took_at_its_import_is_open_and_captured_in_a_worker(tmp_path: Path) -> None:
    """As the default argument of the MCP client's function is."""
    done = run(tmp_path / "suite", "-n", "1", suite=HOLDS_A_STREAM)

    assert "from the process\nfrom the test" in done.stdout, done.stdout + done.stderr


def test_x_ends_the_run_at_the_first_failure(tmp_path: Path) -> None:
    done = run(tmp_path / "suite", "-n", "1", "-x")

    assert "stopping after 1 failures" in done.stdout
    ran = (tmp_path / "suite" / "ran").read_text(encoding="utf-8")
    assert "test_one 3" in ran
    assert "test_two 7" not in ran


def test_a_number_of_workers_that_is_none_is_refused() -> None:
    assert worker_count("3") == 3
    assert worker_count("auto") >= 2
    with pytest.raises(pytest.UsageError, match="-n takes a number or auto, not 'many'"):
        worker_count("many")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("stop", ["stop"]),
        ("Stop or (limit and close)", ["stop", "limit", "close"]),
        ("stop and not limit", []),
        ("", []),
    ],
)
def test_only_an_expression_that_needs_a_word_leaves_files_out(expression: str, words: list[str]) -> None:
    assert _words(expression) == words


def test_each_long_file_of_a_lane_exists_once(repository: Path) -> None:
    names = [name for lane in LANES for name in lane]
    assert len(names) == len(set(names))
    assert [name for name in names if not (repository / "tests" / name).is_file()] == []


def test_each_of_the_slowest_tests_exists_and_a_slower_one_is_found(repository: Path) -> None:
    bounds = json.loads(suite.BOUNDS.read_text(encoding="utf-8"))
    assert len(bounds) == suite.LISTED
    for name in bounds:
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (repository / file).read_text(encoding="utf-8"), name
    assert suite.violations(dict(bounds), bounds) == []
    slowest, new = next(iter(bounds)), "tests/test_new.py::test_new"
    beyond = dict(bounds) | {slowest: bounds[slowest] + 0.01, new: min(bounds.values()) + 0.01}
    assert [line.rsplit(": ", 1)[0] for line in suite.violations(beyond, bounds)] == [slowest, new]
