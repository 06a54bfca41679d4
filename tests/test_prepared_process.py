"""A command that the prepared process forks does what a cold one does."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.cli.run.embedded_service import Embedded
from bot.exchanges.link import client
from bot.exchanges.link.client import ExchangeLink
from bot.testing.hyperliquid import LocalExchange
from tests.prepared_process import COMMAND, LINK, Popen, _is_prepared, cold_starts, prepared

WAIT_S = 120


def both(*arguments: str, **options: Any) -> list[subprocess.CompletedProcess[str]]:
    """The same command forked and cold."""
    options = {"capture_output": True, "text": True, "timeout": WAIT_S, **options}
    forked = subprocess.run([*COMMAND, *arguments], check=False, **options)
    with cold_starts():
        return [forked, subprocess.run([*COMMAND, *arguments], check=False, **options)]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--version",), 0),
        (("--help",), 0),
        (("run", "--help"), 0),
        (("nothing",), 2),
        (("check", "missing.yaml"), 4),
        (("status", "--state-dir", "missing"), 2),
    ],
)
def test_output_and_exit_code_are_those_of_a_cold_start(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    forked, cold = both(*arguments, cwd=tmp_path)

    assert (forked.returncode, forked.stdout, forked.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert forked.returncode == code


def test_it_is_a_child_with_its_own_folder_environment_session_and_descriptors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    arguments = ["sandbox", "--port", "0", "--db", ":memory:", "--ready-fd", str(writer)]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=os.environ | {"MARK": "here"},
        pass_fds=[writer],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    os.close(writer)
    try:
        assert os.read(reader, 4096), "it writes to the descriptor that was passed"
        assert process.pid != prepared().owner
        assert Path(f"/proc/{process.pid}/cwd").resolve() == tmp_path
        assert os.getsid(process.pid) == process.pid
        assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=WAIT_S)
        os.close(reader)
    assert process.returncode == -signal.SIGKILL


def test_it_reads_standard_input_and_sees_a_terminal(tmp_path: Path) -> None:
    forked, cold = both("init", "it", "--template", "nonsense", input="y\n", cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (cold.returncode, cold.stdout, cold.stderr)

    lines = []
    for is_cold in (False, True):
        master, slave = pty.openpty()
        Popen.cold = is_cold
        try:
            done = subprocess.run(
                [*COMMAND, "--help"], stdin=slave, stdout=slave, stderr=slave, timeout=WAIT_S, check=True
            )
        finally:
            Popen.cold = False
        os.close(slave)
        lines.append(os.read(master, 100_000))
        os.close(master)
        assert done.returncode == 0
    assert lines[0] == lines[1]


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short name, because a socket stands in it."""
    with tempfile.TemporaryDirectory(prefix="bot-") as folder:
        yield Path(folder)


def test_a_service_that_a_command_starts_is_forked_too_and_ends_with_it(home: Path, repository: Path) -> None:
    daemon = subprocess.Popen(
        [*COMMAND, "run", "configs/paper.yaml"],
        cwd=repository,
        env=os.environ | {"HOME": str(home), "XDG_STATE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert daemon.stderr is not None
        said = b""
        while b"daemon.ready" not in said:
            more = daemon.stderr.readline()
            assert more, said
            said += more
        (lock,) = home.rglob("sandbox.lock")
        service = Path(f"/proc/{Embedded(lock.parent).pid}")
        assert b"tests.prepared_process" in (service / "cmdline").read_bytes()
        assert (service / "cwd").resolve() == Path("/")
        assert "Umask:\t0077" in (service / "status").read_text(), "as that of the daemon"
    finally:
        daemon.send_signal(signal.SIGINT)
        daemon.communicate(timeout=WAIT_S)
    assert daemon.returncode == 0
    assert not service.exists()


async def test_a_link_is_forked_too_and_reads_the_exchange(hyperliquid: LocalExchange) -> None:
    assert client.MODULE == LINK
    async with ExchangeLink("hyperliquid", hyperliquid.base_url.rpartition(":")[2]) as link:
        folder = Path(f"/proc/{link.pid}")
        assert b"tests.prepared_process" in (folder / "cmdline").read_bytes()
        assert (await link.health()).weight_most == 1_200
        assert "Umask:\t0077" in (folder / "status").read_text()
    assert not folder.exists()


async def test_asyncio_waits_for_it() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*COMMAND, "--version", stdout=pipe)
    out, _ = await process.communicate()
    assert (process.returncode, out.split()[0]) == (0, b"bot")


@pytest.mark.parametrize(
    "change",
    [
        {"args": [sys.executable, "-c", "pass"]},
        {"args": [sys.executable, "-S", "-m", "bot"]},
        {"args": [sys.executable, "-P", "-m", "bot"]},
        {"args": [sys.executable, "-m", LINK, "3", "1"]},
        {"args": [sys.executable, "-m", "tests.service"]},
        {"args": COMMAND[:2]},
        {"args": "bot", "shell": True},
        {"preexec_fn": os.setsid},
        {"close_fds": False},
        {"uid": 7},
    ],
)
def test_what_is_not_the_plain_start_of_a_prepared_module_starts_as_ever(change: dict[str, Any]) -> None:
    plain = {
        "args": [*COMMAND, "run"],
        "close_fds": True,
        **dict.fromkeys(("preexec_fn", "executable", "shell", "gid", "gids", "uid")),
    }
    assert _is_prepared(plain)
    assert _is_prepared(plain | {"args": (sys.executable, "-m", "tests.service.serving", "{}")})
    assert _is_prepared(plain | {"args": [sys.executable, "-P", "-m", LINK, "3", "1"]})
    assert not _is_prepared(plain | change)


def test_a_variable_that_the_test_run_takes_out_makes_no_start_cold(repository: Path) -> None:
    alike = "p._starts_alike(p.os.environ, p.prepared().environment)"
    code = f"from tests import conftest, prepared_process as p; print({alike})"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_an_environment_that_an_interpreter_reads_at_its_start_is_a_cold_start(tmp_path: Path) -> None:
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / "__init__.py").write_text("")
    (tmp_path / "bot" / "__main__.py").write_text("print('another package')")
    done = subprocess.run(
        COMMAND,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == "another package\n"
