"""A record that two processes share: whatever is done to its file, neither of them ends, and a reader gets a whole
record or none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.runtime.liveness.shared_record import SharedRecord
from bot.runtime.strategy_host.call_record import CallRecord, asked

LAYOUT, MAGIC = "QQ", b"TEST"


def _replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"x" * 100)
    other.replace(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated to nothing": lambda path: os.truncate(path, 0),
    "truncated to one byte": lambda path: os.truncate(path, 1),
    "one byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "removed": lambda path: path.unlink(),
    "replaced": _replaced,
    "longer": lambda path: os.truncate(path, 100_000),
    "overwritten": lambda path: path.write_bytes(b"\xff" * 28),
    "written anew, empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_ends_neither_writer_nor_reader(damage: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "progress"
    writer = SharedRecord(str(path), LAYOUT, magic=MAGIC, version=1, write=True)
    reader = SharedRecord(str(path), LAYOUT, magic=MAGIC, version=1)
    writer.write(1, 2)
    assert reader.read() == (1, 2)
    damage(path)
    assert reader.read() in (None, (1, 2)), "a whole record or none"
    writer.renew()
    writer.write(3, 4)
    reader.renew()
    assert reader.read() == (3, 4), "the next write mends the file"
    writer.close()
    reader.close()


def test_a_process_that_writes_outlives_a_file_that_is_shortened_all_the_time(tmp_path: Path) -> None:
    """A mapped file would end it by SIGBUS, which no handler of Python sees."""
    path = tmp_path / "progress"
    code = (
        "import sys\nfrom bot.runtime.liveness.shared_record import SharedRecord\n"
        f"record = SharedRecord({str(path)!r}, 'QQ', magic=b'TEST', version=1, write=True)\n"
        "print('ready', flush=True)\n"
        "while not sys.stdin.closed:\n"
        "    record.write(1, 2)\n"
        "    record.renew()\n"
        "    assert record.read() in (None, (1, 2))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for size in range(20_000):
            os.truncate(path, size % 30)
        assert process.poll() is None
        process.kill()


def test_the_record_of_calls_outlives_a_file_that_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    calls = CallRecord(path, fence=7)
    row = calls.row()
    assert row is not None
    row.begin("trend", "1")
    os.truncate(path, 0)
    row.end()
    row.begin("trend", "1")
    assert asked(tmp_path) == (0, []), "what is lost is not guessed"
    calls.close()
    row.end()
    calls.close()
