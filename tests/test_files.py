"""A file that is replaced is the old one or the whole new one, whatever happens in between."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from bot.files import replacing, write_private

KILLED = """
import os, signal, sys
from pathlib import Path
from bot.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half of the new")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_written_file_is_whole_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    with replacing(path, mode=0o644) as file:
        file.write(b"newer")
        assert path.read_bytes() == b"new"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"newer", 0o644)
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["key"]
    with pytest.raises(FileNotFoundError):
        write_private(tmp_path / "no folder" / "key", b"")


def test_a_killed_writer_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -9
    assert path.read_bytes() == b"old"


# Modules that rename a file themselves, and why `replacing` is not for them.
RENAMES = {
    "backtest/data/store.py": "the files of one pull are all written before the first takes its place",
    "checks/evidence.py": "sets a damaged file aside; nothing is written",
    "cli/docs/builder.py": "a site is a folder",
    "cli/operate/backup.py": "a backup is a folder",
    "cli/operate/restore.py": "moves old state aside; nothing is written",
    "cli/run/embedded_service.py": "rotates a log; nothing is written",
    "files.py": "this is where it is done",
    "runtime/control_plane/log_tail.py": "rotates a log; nothing is written",
    "runtime/journal/backup.py": "SQLite writes the file",
    "runtime/journal/failover.py": "SQLite writes the file; a damaged one is moved aside",
    "runtime/journal/halt_flags.py": "on a full disk it overwrites the old file instead",
}


def renames(source: str) -> bool:
    """True if the source renames files: os.replace, os.rename, shutil.move, or a method of a path with one argument."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        if owner in ("os", "shutil") and name in ("replace", "rename", "renames", "move"):
            return True
        is_mapping = any(isinstance(argument, ast.Dict) for argument in node.args)
        if name in ("replace", "rename") and len(node.args) == 1 and not node.keywords and not is_mapping:
            return True
    return False


def test_a_file_that_must_be_whole_is_written_by_replacing(repository: Path) -> None:
    """A hand-written write, sync and rename forgets the sync of the folder: use `replacing`, or give a reason here."""
    package = repository / "bot"
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if renames(path.read_text())}
    assert found == set(RENAMES)


@pytest.mark.parametrize(
    "line", ["os.replace(a, b)", "os.rename(a, b)", "shutil.move(a, b)", "part.replace(path)", "path.rename(name)"]
)
def test_a_rename_is_found_and_a_replaced_text_is_none(line: str) -> None:
    assert renames(line)
    assert not renames('text.replace("a", "b"); now.replace(tzinfo=UTC); frame.rename({"a": "b"})')
