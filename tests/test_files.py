"""A file that is replaced is the old one or the whole new one, whatever happens in between."""

from __future__ import annotations

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
