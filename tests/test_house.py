"""The house keeps its own rules: lint, format, types, import contracts, dependencies, pins, and a tree without
machine paths.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent

# The recipe of `make lint`, line by line: each line is a test, so `make test` runs each tool once.
MAKEFILE = (Path(__file__).resolve().parent.parent / "Makefile").read_text()
LINT = re.findall(r"^\t\$\(BIN\)/(.+)$", MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0], re.MULTILINE)

LINT_S = 900

# A module that costs time or memory; whoever needs it imports it on first use.
HEAVY = ("pydantic", "starlette", "httpx", "apscheduler", "sqlite_utils", "rich", "structlog")


def run(command: list[str], cwd: Path, *, timeout_s: float = 240, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=timeout_s, check=False
    )


# mypy compares the digest of each file with what it has stored, so what it knows of another clone is right for the
# files that are equal. Without it a fresh clone computes for a minute.
MYPY_STATE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bracketbot" / "mypy"


def copy_folder(folder: Path, to: Path) -> None:
    """Put a copy in the place of `to`, as a whole. It only saves time, so what cannot be read or written is left."""
    with contextlib.suppress(OSError, shutil.Error):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=to.parent) as place:
            shutil.copytree(folder, Path(place) / "new")
            if to.exists():
                to.rename(Path(place) / "old")
            (Path(place) / "new").rename(to)


def newest_ns(folder: Path) -> int:
    return max((file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()), default=0)


@contextlib.contextmanager
def shared_state(folder: Path, kept: Path) -> Iterator[None]:
    """A fresh clone begins with what another one has kept, and what was computed anew is kept for the next one."""
    if not folder.exists() and kept.exists():
        copy_folder(kept, folder)
    before = newest_ns(folder)
    yield
    if newest_ns(folder) > max(before, newest_ns(kept)):
        copy_folder(folder, kept)


def test_a_fresh_clone_begins_with_the_state_that_another_has_kept(tmp_path: Path) -> None:
    first, second, kept = (tmp_path / name for name in ("first", "second", "cache/kept"))
    with shared_state(first, kept):
        assert not first.exists()
        first.mkdir()
        (first / "state").write_text("1")
    with shared_state(second, kept):
        assert (second / "state").read_text() == "1"
    with shared_state(second, kept):
        (second / "state").write_text("2")
    assert [(folder / "state").read_text() for folder in (first, second, kept)] == ["1", "2", "2"]
    assert [path.name for path in kept.parent.iterdir()] == ["kept"]


@pytest.mark.parametrize("command", LINT)
def test_make_lint_finds_nothing(command: str, repository: Path) -> None:
    tool, *arguments = shlex.split(command)
    if not (BIN / tool).exists():
        pytest.skip(f"{tool} is not installed beside this Python: run `make test`")
    # With an empty cache mypy computes for a minute. On a busy machine that is longer than a test may take, so it has a
    # limit of its own.
    faulthandler.cancel_dump_traceback_later()
    state = shared_state(repository / ".mypy_cache", MYPY_STATE) if tool == "mypy" else contextlib.nullcontext()
    with state:
        done = run([str(BIN / tool), *arguments], repository, timeout_s=LINT_S, NO_COLOR="1")
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"


def test_make_test_runs_every_line_of_make_lint() -> None:
    """Guards the pattern that reads the recipe: a line that it misses would run in `make lint` alone."""
    recipe = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(recipe) == len(LINT) >= 5


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())


def files(repository: Path) -> Iterator[Path]:
    """What is, or would be, committed."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], repository)
    if listed.returncode == 0:
        yield from (repository / name for name in listed.stdout.split("\0") if name and (repository / name).is_file())
        return
    for folder, names, found in os.walk(repository):
        names[:] = [name for name in names if name == ".ci" or not name.startswith((".", "__pycache__"))]
        yield from (Path(folder) / name for name in found)


def python_files(repository: Path) -> Iterator[Path]:
    return (file for file in files(repository) if file.suffix == ".py")


def test_no_file_names_a_place_of_one_machine(repository: Path) -> None:
    homes = [str(repository.parent), str(Path.home())]
    places = [f"{home}/" for home in homes if len(home) > 1 and home not in ("/tmp", "/root", "/home")]
    places += ["/".join(("..", "shared")), "/".join(("", "root", ""))]
    found = []
    for file in files(repository):
        text = file.read_bytes()
        found += [f"{file.relative_to(repository)}: {place}" for place in places if place.encode() in text]
    assert found == []


# Tables whose columns a reader compares; the formatter would set each value on a line of its own.
TABLES = {
    "bot/service/market_data/instruments.py": 2,
    "bot/service/state_machine/named_snapshots.py": 1,
    "tests/agents/builders.py": 1,
    "tests/strategy/test_indicator_library.py": 1,
}
SKIP = "# fmt: " + "skip"


def test_only_tables_are_kept_from_the_formatter(repository: Path) -> None:
    counts = {str(file.relative_to(repository)): file.read_text().count(SKIP) for file in python_files(repository)}
    assert {name: count for name, count in counts.items() if count} == TABLES


def test_no_line_is_wider_than_the_page(repository: Path) -> None:
    """The linter measures a line without its trailing pragma; here it counts. A long word cannot be broken."""
    wide = [
        f"{file.relative_to(repository)}:{number}"
        for file in python_files(repository)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 120 and " " in line.strip()
    ]
    assert wide == []


def test_no_comment_begins_with_of(repository: Path) -> None:
    """A comment in the genitive sends its reader to the name below and back: say the subject."""
    fragments = [
        f"{file.relative_to(repository)}:{number}"
        for file in python_files(repository)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.lstrip().startswith("# of ")
    ]
    assert fragments == []


def test_only_the_fixture_knows_where_the_shared_data_is(repository: Path) -> None:
    """Everybody else asks for the fixture, so that a machine without the data skips by name."""
    name = "_".join(("BOT", "SHARED"))
    users = {
        str(file.relative_to(repository))
        for file in files(repository)
        if file.suffix == ".py" and name.encode() in file.read_bytes()
    }
    assert users <= {"tests/conftest.py"}


def first_word(text: str) -> tokenize.TokenInfo | None:
    """The first token that is code. A docstring is the text that stands first."""
    passed = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return next((token for token in tokens if token.type not in passed), None)


def is_silent(text: str) -> bool:
    """Whether code begins without a docstring, or with an empty one."""
    first = first_word(text)
    return first is not None and (first.type != tokenize.STRING or not ast.literal_eval(first.string).strip())


def test_every_python_file_says_what_lives_there(repository: Path) -> None:
    texts = {file: file.read_text() for file in files(repository) if file.suffix == ".py"}
    assert [str(file.relative_to(repository)) for file, text in texts.items() if is_silent(text)] == []


@pytest.mark.parametrize(
    ("text", "silent"),
    [
        ("", False),
        ("# a comment\n", False),
        ('# a comment\n\n"""What lives here."""\nx = 1\n', False),
        ("x = 1\n", True),
        ("from __future__ import annotations\n", True),
        ('"""  """\nx = 1\n', True),
        ('x = """later"""\n', True),
    ],
)
def test_a_file_without_a_docstring_is_found(text: str, silent: bool) -> None:
    assert is_silent(text) == silent


def test_no_test_module_is_imported(repository: Path) -> None:
    """What two test modules share lives beside them in builders.py, fakes.py or conftest.py."""
    importing = re.compile(r"\b(?:from|import) tests\.(?:\w+\.)*test_\w+")
    found = [
        f"{file.relative_to(repository)}: {found[0]}"
        for file in files(repository)
        if file.suffix == ".py"
        for found in importing.finditer(file.read_text())
    ]
    assert found == []


def pins(file: Path) -> dict[str, list[str]]:
    """Requirement line -> its hashes."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in file.read_text().splitlines():
        if line.startswith("    --hash="):
            found[name].append(line.strip(" \\").removeprefix("--hash="))
        elif line:
            name = line.strip(" \\")
            found[name] = []
    return found


PINNED = ("requirements.txt", "requirements-dev.txt", "requirements-uv.txt", "requirements-markets.txt")


@pytest.mark.parametrize("name", PINNED)
def test_every_pin_is_exact_and_has_hashes_and_names_no_registry(name: str, repository: Path) -> None:
    for requirement, hashes in pins(repository / name).items():
        assert re.fullmatch(r"[a-z0-9-]+==[a-z0-9.]+( ; .+)?", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), requirement


def versions(file: Path) -> dict[str, str]:
    return {line.split("==")[0]: line.split("==")[1].split(" ")[0] for line in pins(file)}


def test_the_development_pins_contain_the_run_time_pins(repository: Path) -> None:
    run_time, development = (versions(repository / name) for name in PINNED[:2])
    assert run_time.items() <= development.items()


def test_every_dependency_is_pinned(project: dict[str, Any], repository: Path) -> None:
    def names(requirements: list[str]) -> set[str]:
        return {
            re.split(r"[^A-Za-z0-9._-]", one)[0].lower().replace(".", "-").replace("_", "-") for one in requirements
        }

    assert names(project["project"]["dependencies"]) <= versions(repository / "requirements.txt").keys()
    groups = project["dependency-groups"]
    assert names([*groups["dev"], *groups["docs"]]) <= versions(repository / "requirements-dev.txt").keys()
    for extra in ("markets", "calendars"):
        assert names(groups[extra]) <= versions(repository / "requirements-markets.txt").keys()
        assert groups[extra] == project["project"]["optional-dependencies"][extra]


def test_the_version_is_one(project: dict[str, Any]) -> None:
    import bot

    assert project["project"]["version"] == bot.__version__


def test_importing_the_package_loads_nothing_heavy(repository: Path) -> None:
    done = run([sys.executable, "-c", "import bot, sys; print(*sys.modules)"], repository)
    assert done.returncode == 0, done.stderr
    assert [module for module in HEAVY if module in done.stdout.split()] == []


def test_the_package_offers_what_its_strategy_page_offers() -> None:
    import bot
    import bot.strategy

    assert set(bot.__all__) <= set(bot.strategy.__all__)
    for name in bot.__all__:
        assert getattr(bot, name) is getattr(bot.strategy, name)
        assert name in dir(bot)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        bot.Nothing  # noqa: B018


def test_only_the_sender_orders(repository: Path) -> None:
    """What leaves as an order was judged by the gate and written down: nothing else of the daemon asks a port for
    one.
    """
    files = sorted((repository / "bot" / "runtime").rglob("*.py"))
    ordering = [file.name for file in files if re.search(r"\bport\.(plan|place|confirm|close)\(", file.read_text())]
    assert ordering == ["order_sender.py"]


def test_landing_runs_the_tests(repository: Path) -> None:
    ci = repository / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text()


def test_the_makefile_has_the_commands_of_the_readme(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "soak", "bench", "lint"} <= targets
    readme = repository / "README.md"
    if readme.exists():
        # A command, not the word in a sentence.
        told = re.findall(r"(?:^|\$ |`)make ([a-z]+)", readme.read_text(), re.MULTILINE)
        assert {"demo", "test"} <= set(told) <= targets
