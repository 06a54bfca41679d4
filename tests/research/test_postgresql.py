"""A sweep whose trials are stored in a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.cli.app import call
from tests.backtest.builders import config, minutes, write

pytest.importorskip("optuna")
pytest.importorskip("psycopg")

SPACE = "params: {one.fast_bars: [2, 3], one.slow_bars: [8, 13]}\nobjectives: ['Return [%]']\n"


def programs() -> Path:
    """Where initdb and pg_ctl are. Debian keeps them off the PATH."""
    found = shutil.which("initdb") or max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
    if found is None:
        pytest.skip("PostgreSQL is not installed; .ci/run installs it")
    return Path(found).parent


@pytest.fixture
def storage() -> Iterator[str]:
    """The address of a new, empty database.

    It is reached by a socket in a folder with a short name: a socket's path has at most 107 characters.
    """
    # its server refuses root
    where, user = programs(), "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="bot-pg-"))
    shutil.chown(folder, user or os.geteuid())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *options: str) -> None:
        command = [str(where / program), "-D", str(folder / "data"), *options]
        subprocess.run(command, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60)

    run("initdb", "--username=bot", "--auth=trust", "--no-sync")
    asked = f"-k {folder} -p {port} -c listen_addresses= -c fsync=off"
    run("pg_ctl", "start", "--wait", "--log", str(folder / "log"), "-o", asked)
    try:
        yield f"postgresql+psycopg://bot@/postgres?host={folder}&port={port}"
    finally:
        run("pg_ctl", "stop", "--mode=immediate")
        shutil.rmtree(folder)


# In a process of its own, because connections are pooled until the process ends.
STEPS = """\
import sys
from bot.cli.app import call

asked = ["sweep", "mine.yaml", "--data", "BTC_1m.csv", "--space", "space.yaml"]
for table, *kept in (["sqlite.csv"], ["first.csv", "--storage", sys.argv[1]], ["resumed.csv", "--storage", \
sys.argv[1]]):
    assert call([*asked, *kept]) == 0
    assert call(["sweep", "show", "mine", *kept, "--csv", table]) == 0
assert call(["sweep", "show", "nosuch", "--storage", sys.argv[1]]) == 2
"""


def test_a_sweep_in_postgresql_is_resumed_and_gives_the_table_of_one_in_sqlite(tmp_path: Path, storage: str) -> None:
    config(tmp_path, use="bench:Cross")
    write(minutes(240), tmp_path / "BTC_1m.csv")
    (tmp_path / "space.yaml").write_text(SPACE)
    done = subprocess.run(
        [sys.executable, "-c", STEPS, storage], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "there are mine" in done.stderr
    tables = [(tmp_path / f"{name}.csv").read_bytes() for name in ("sqlite", "first", "resumed")]
    assert tables[0].count(b"complete") == 4
    assert tables[1] == tables[0]
    assert tables[2] == tables[0], "nothing is run twice"


@pytest.mark.parametrize("address", ["bot:planted-word@127.0.0.1/bot", "bot@/bot?password=planted-word"])
def test_a_password_in_the_address_of_a_storage_is_refused_and_not_repeated(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["sweep", "show", "mine", "--storage", f"postgresql+psycopg://{address}"]) == 2
    said = capsys.readouterr()
    assert "~/.pgpass" in said.err
    assert "planted-word" not in said.err + said.out
