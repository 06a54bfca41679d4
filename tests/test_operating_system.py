"""The calls that only Linux has: they stand in one module, and the program works where each is absent."""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bot import operating_system
from bot.runtime.control_plane.server import ControlServer
from bot.runtime.liveness.instance_lock import hold_state

WAIT_S = 30
# Names of calls, constants and modules that differ between operating systems.
NOT_PORTABLE = re.compile(
    "CLOCK_BOOTTIME|F_FULLFSYNC|F_OFD_SETLKW?|LOCAL_PEERCRED|PR_[A-Z_]+|RLIMIT_AS|SOCK_(CLOEXEC|NONBLOCK)|SO_PEER[A-Z]+"
    "|copy_file_range|ctypes|epoll|eventfd|fdatasync|inotify|kqueue|mallopt|memfd_create|pidfd_[a-z_]+|pipe2"
    "|posix_fallocate|prctl|process_cpu_count|sched_[a-z]+|sendfile|setns|signalfd|splice|timerfd_[a-z]+|uname|unshare"
)
NOT_PORTABLE_TEXTS = ("/proc/", "/dev/shm", "/sys/", "/proc")
ONLY_HERE = "operating_system.py"


def differences(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each call of one operating system in a module; docstrings are left out."""
    tree = ast.parse(source)
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
            if ast.unparse(node) in ("sys.platform", "platform.system"):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            names = [node.value]
            if node.value.startswith(NOT_PORTABLE_TEXTS):
                yield node.lineno, node.value
        yield from ((node.lineno, name) for name in names if NOT_PORTABLE.fullmatch(name))


def test_one_module_makes_the_calls_that_differ_between_operating_systems(repository: Path) -> None:
    wrong = [
        f"{path.relative_to(repository)}:{line}: {text}: put it behind a function of bot/{ONLY_HERE}"
        for path in sorted((repository / "bot").rglob("*.py"))
        if path != repository / "bot" / ONLY_HERE
        for line, text in differences(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "import ctypes",
        "os.posix_fallocate(1, 0, 2)",
        "getattr(socket, 'SO_PEERCRED', None)",
        "Path(f'/proc/{pid}/stat')",
        "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)",
        "from os import pidfd_open",
        "if sys.platform == 'linux': pass",
    ],
)
def test_a_call_of_one_operating_system_is_seen(source: str) -> None:
    assert list(differences(source))


# -- Without the calls, one by one


@pytest.fixture
def without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "_PROC", tmp_path / "absent")


def test_without_proc_the_answer_is_that_it_is_not_known(without_proc: None, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert operating_system.path_of(file.fileno()) is None
    assert operating_system.lock_holders(tmp_path / "file") is None
    assert operating_system.is_stopped(os.getpid()) is None
    assert operating_system.kernel_boot_id() is None
    assert operating_system.listing_of_files(7) == "lsof -p 7"


def test_a_proc_that_shows_no_process_says_nothing_of_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "_PROC", tmp_path)
    (tmp_path / "file").touch()
    assert operating_system.lock_holders(tmp_path / "file") is None


def test_without_proc_the_lock_error_says_that_the_pid_is_not_known(
    without_proc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bot.errors import BotError
    from bot.runtime.liveness import instance_lock

    monkeypatch.setattr(instance_lock, "_is_alive", lambda _pid: False)
    said = r"pid not known on this system; lsof .*/lock may say it"
    with hold_state(tmp_path), pytest.raises(BotError, match=said), hold_state(tmp_path):
        pass


@pytest.mark.parametrize("proc", [True, False])
def test_a_socket_in_a_deep_folder_is_reached(*, proc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not proc:
        monkeypatch.setattr(operating_system, "_PROC", tmp_path / "absent")
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        with operating_system.socket_name(deep / "s") as name:
            assert len(name) <= operating_system.SOCKET_NAME_MAX
            assert ("/proc/" in name) == proc
            listener.bind(name)
        listener.listen()
        with operating_system.socket_name(deep / "s") as name:
            caller.connect(name)
    assert not Path(name).exists()


@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_space_is_taken_without_posix_fallocate_and_keeps_the_content(
    number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, "refused")

    if number is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    (tmp_path / "file").write_bytes(b"kept")
    with (tmp_path / "file").open("r+b") as file:
        operating_system.reserve_bytes(file.fileno(), 200_000)
    content = (tmp_path / "file").read_bytes()
    assert (len(content), content.rstrip(b"\0")) == (200_000, b"kept")
    assert (tmp_path / "file").stat().st_blocks * 512 >= 200_000 - 4_096, "the disk has it"


def test_a_full_disk_is_an_error_and_no_absent_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (tmp_path / "file").open("w+b") as file, pytest.raises(OSError, match="full"):
        operating_system.reserve_bytes(file.fileno(), 10)


def test_a_full_sync_is_asked_for_where_the_system_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    has_it = SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda _fd, command: asked.append(command))
    monkeypatch.setattr(operating_system, "fcntl", has_it)
    with (tmp_path / "file").open("wb") as file:
        operating_system.sync_descriptor(file.fileno())
    assert asked == [51]


@pytest.mark.parametrize("absent", [False, True])
def test_a_child_ends_with_its_killed_parent(*, absent: bool) -> None:
    """Without prctl and pidfd_open it takes a look more."""
    without = "import os, ctypes; del os.pidfd_open; operating_system._libc_call = lambda *_: None" if absent else ""
    child = (
        f"import os, sys, time; from bot import operating_system\n{without}\n"
        f"operating_system.die_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep({WAIT_S})"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        # The pipe ends with the last process that has it.
        began = time.monotonic()
        assert process.stdout.read() == ""
        assert time.monotonic() - began < WAIT_S / 2


@pytest.mark.parametrize(
    ("mode", "uid", "admitted"),
    [(0o700, None, True), (0o755, None, False), (0o755, "me", True), (0o700, "other", False), (None, None, False)],
)
def test_who_calls_is_taken_from_the_system_else_from_a_private_folder(
    mode: int | None, uid: str | None, admitted: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    server = ControlServer({}, dict, user=os.geteuid(), folder=folder)
    given = {None: None, "me": os.geteuid(), "other": os.geteuid() + 1}[uid]
    assert server._admits(given) is admitted


def test_a_system_that_does_not_say_who_calls_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert operating_system.peer_uid(one) == os.geteuid()
        monkeypatch.delattr(socket, "SO_PEERCRED")
        assert operating_system.peer_uid(one) is None


def test_a_library_without_a_function_is_no_error() -> None:
    assert operating_system._libc_call("no_such_function", 1) is None
    assert operating_system._libc_call("getppid") == os.getppid()
