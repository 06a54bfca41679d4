"""The locks of a daemon, the privacy of its process, and its reports to a service manager."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.cli.operate import systemd_unit
from bot.cli.run import run
from bot.cli.run.embedded_service import Embedded, EmbeddedKey, RunningService, ServiceFailed
from bot.client.http import TIMEOUTS
from bot.config import load
from bot.errors import BotError, ConfigError, Exit, JournalError, OutcomeUnknown, TryLater
from bot.operating_system import PR_GET_DUMPABLE
from bot.runtime.control_plane.log_tail import Tail
from bot.runtime.liveness import systemd
from bot.runtime.liveness.instance_lock import hold_account, hold_state, holder_pid, is_held, private_dir, runtime_dir
from bot.runtime.liveness.memory import LOOKS_MAX, collect_at_rest
from bot.runtime.liveness.run_files import kept
from bot.runtime.passes.pass_scheduler import PASS_S

ADDRESS = "0x" + "ab" * 20


# -- locks


def test_a_folder_is_locked_by_one_daemon_and_free_afterwards(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with hold_state(tmp_path):
        assert is_held(tmp_path)
        assert holder_pid(tmp_path) == os.getpid()
        with (
            pytest.raises(BotError, match=rf"another daemon runs on .* \(pid {os.getpid()}\): stop it"),
            hold_state(tmp_path),
        ):
            pass
        assert is_held(tmp_path), "and the second daemon has locked nothing"
    assert not is_held(tmp_path)


async def test_a_removed_lock_file_is_restored_and_locks(tmp_path: Path) -> None:
    with hold_state(tmp_path) as held, hold_account(ADDRESS, tmp_path, tmp_path) as account:
        assert account is not None
        async with kept(held.lock, account, look_s=0.01):
            for path in (tmp_path / "lock", *tmp_path.glob("account-*")):
                path.unlink()
                async with asyncio.timeout(60):
                    while not path.exists() or not path.read_bytes().endswith(b"\n"):
                        await asyncio.sleep(0.01)
            assert is_held(tmp_path)
            assert holder_pid(tmp_path) == os.getpid()
            with pytest.raises(BotError, match="another daemon runs"), hold_state(tmp_path):
                pass
            with pytest.raises(BotError, match="another daemon of yours"), hold_account(ADDRESS, tmp_path, tmp_path):
                pass
    assert not is_held(tmp_path)


async def test_a_lock_file_that_another_process_has_locked_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with hold_state(tmp_path) as first:
        (tmp_path / "lock").unlink()
        with hold_state(tmp_path):
            await first.lock.look()
            assert is_held(tmp_path)
        assert not is_held(tmp_path)
        await first.lock.look()
        assert is_held(tmp_path), "and taken again once it is free"


FULL = """
import resource, signal, sys
from pathlib import Path
from bot.errors import JournalError
from bot.runtime.supervisor import _progress
from bot.runtime.liveness.instance_lock import hold_state, is_held
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
with hold_state(folder):
    assert is_held(folder)
    try:
        _progress(folder / "progress", 1)
    except JournalError as error:
        assert "cannot be written" in str(error)
    else:
        raise AssertionError("a stamp that the disk did not take")
"""


def test_on_a_full_disk_the_lock_works_and_a_stamp_without_space_is_an_error(tmp_path: Path) -> None:
    """If no space is allocated at once, the first write could fail while orders are open."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("number", "kind", "code"), [(errno.EROFS, JournalError, Exit.UNSAFE), (errno.EACCES, ConfigError, Exit.CONFIG)]
)
def test_a_folder_on_a_failing_disk_is_no_config_error(
    number: int, kind: type[BotError], code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager restarts a daemon after a disk failure, but not after a config error."""

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "chmod", fails)
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        private_dir(tmp_path)
    assert caught.value.exit_code is code


def test_testing_a_lock_does_not_prevent_a_start(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bot.runtime.liveness.instance_lock import is_held\nwhile True:"
        " is_held(Path(sys.argv[1]))"
    )
    (tmp_path / "lock").touch()
    looker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        for _ in range(50):
            with hold_state(tmp_path):
                pass
    finally:
        looker.kill()
        looker.wait()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from bot.runtime.liveness.instance_lock import hold_state\nwith"
        " hold_state(Path(sys.argv[1])): print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_held(tmp_path)
        assert holder_pid(tmp_path) == holder.pid
        holder.kill()
        holder.wait()
    with hold_state(tmp_path):
        assert holder_pid(tmp_path) == os.getpid()


FORKS = """
import ctypes, os, signal, socket, sys
from pathlib import Path
from bot.runtime.liveness.instance_lock import close_in_children, hold_account, hold_state
folder = Path(sys.argv[1])
with hold_state(folder), hold_account(sys.argv[2], folder, folder):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen()
    close_in_children(listener)
    up, is_up = os.pipe()
    child = %s
    if child == 0:
        os.write(is_up, b"1")  # What is closed in a child has been closed by now.
        ctypes.PyDLL(None).pause()
    os.read(up, 1)
    print(child, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def killed_after_forking(fork: str, folder: Path) -> Iterator[tuple[int, int]]:
    """The pids of a killed daemon and of its child, which still runs."""
    command = [sys.executable, "-c", FORKS % fork, str(folder), ADDRESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            holder.kill()
            holder.wait()
            os.kill(child, 0)
            yield holder.pid, child
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_locks_of_a_daemon_end_with_it_although_a_forked_child_lives_on(tmp_path: Path) -> None:
    with killed_after_forking("os.fork()", tmp_path):
        assert not is_held(tmp_path)
        with hold_state(tmp_path), hold_account(ADDRESS, tmp_path, tmp_path):
            assert holder_pid(tmp_path) == os.getpid()
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as asker:
            asker.connect(str(tmp_path / "s"))


def test_the_lock_error_names_a_child_that_c_code_forked(tmp_path: Path) -> None:
    with killed_after_forking("ctypes.PyDLL(None).fork()", tmp_path) as (daemon, child):
        left = rf"a process \(pid {child}\) that a daemon \(pid {daemon}\) started and left running still locks"
        with pytest.raises(BotError, match=rf"{left} {tmp_path}: end it"), hold_state(tmp_path):
            pass
        with (
            pytest.raises(BotError, match=rf"{left} account {ADDRESS}: end it"),
            hold_account(ADDRESS, tmp_path, tmp_path),
        ):
            pass
        assert holder_pid(tmp_path) == child


def test_an_account_is_traded_by_one_daemon_of_a_user_on_a_machine(tmp_path: Path) -> None:
    with hold_account(ADDRESS, tmp_path / "one", tmp_path):
        with (
            pytest.raises(BotError, match=rf"(?i)trades account {ADDRESS} \(pid .*{tmp_path / 'one'}"),
            hold_account(ADDRESS.upper().replace("X", "x"), tmp_path / "two", tmp_path),
        ):
            pass
        with hold_account("0x" + "cd" * 20, tmp_path / "two", tmp_path):
            pass
    with hold_account(ADDRESS, tmp_path / "two", tmp_path):
        pass


def test_an_address_with_special_characters_is_hashed(tmp_path: Path) -> None:
    with hold_account("../../etc/passwd\n", tmp_path, tmp_path):
        (file,) = tmp_path.iterdir()
    assert file.name.startswith("account-")
    assert ".." not in file.name


def test_locks_go_to_a_private_folder(tmp_path: Path) -> None:
    assert runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "bot"
    assert (tmp_path / "bot").stat().st_mode & 0o077 == 0
    (tmp_path / "bot").chmod(0o777)
    assert runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) != tmp_path / "bot", "others may write there"
    (tmp_path / "bot").rmdir()
    (tmp_path / "bot").symlink_to(tmp_path)
    assert runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) != tmp_path / "bot", "a link of another user"


def test_a_folder_that_cannot_be_read_is_skipped() -> None:
    """As /run/user of a hardened unit, which ProtectHome= hides."""
    assert runtime_dir({"XDG_RUNTIME_DIR": f"/{'x' * 1_000}"}) is not None


def test_a_state_directory_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = os.umask(0o022)
    try:
        with pytest.raises(ConfigError, match="Set state_dir to a folder that you may write"):
            private_dir(tmp_path / "file" / "state")
        assert private_dir(tmp_path / "state").stat().st_mode & 0o077 == 0
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("inside", "is_taken"),
    [
        (["of-others"], False),
        (["of-others", "lock"], True),
        (["of-others", "journal.db"], True),
        (["sandbox.db"], True),
        (["lost+found"], True),
        ([], True),
    ],
)
def test_a_folder_with_another_purpose_is_refused_and_its_mode_stays(
    tmp_path: Path, inside: list[str], is_taken: bool
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    for name in inside:
        (folder / name).touch()
    folder.chmod(0o1777)
    if is_taken:
        assert private_dir(folder).stat().st_mode & 0o7777 == 0o700
        return
    with pytest.raises(ConfigError, match=r"open to others \(mode 1777\).* Name another folder, or .*chmod 700"):
        private_dir(folder)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    folder.chmod(0o700)
    assert private_dir(folder) == folder


def test_a_nearly_due_full_garbage_collection_runs_while_nothing_is_due() -> None:
    assert gc.get_threshold()[2] > LOOKS_MAX, "otherwise the collector would still run by itself"
    looked: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    gc.disable()
    gc.collect()
    # A full collection of a large heap takes long.
    gc.freeze()
    gc.callbacks.append(note)
    try:
        for _ in range(2 * LOOKS_MAX):
            gc.collect(1)
            collect_at_rest()
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.enable()
    assert looked == 2 * ([1] * LOOKS_MAX + [2])


def test_a_hardened_process_leaves_no_core_file_and_hides_its_memory() -> None:
    code = (
        "import ctypes, json, os, resource; from bot.operating_system import harden; harden(); mask ="
        " os.umask(0);print(json.dumps([resource.getrlimit(resource.RLIMIT_CORE),"
        f" ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0), mask]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[0, 0], 0, 0o077]


# -- the service manager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in the place of the service manager's."""
    name = f"@bot-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:])
        listening.setblocking(False)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def test_nothing_is_sent_without_a_notify_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not systemd.notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody-listens-here")
    assert not systemd.notify("READY=1")


def test_a_status_is_one_line(manager: socket.socket) -> None:
    systemd.status("RUNNING:\n2 strategies\nREADY=1")
    assert heard(manager) == ["STATUS=RUNNING: 2 strategies READY=1"]


def test_the_watchdog_is_fed_by_passes_and_not_more_often_than_once_a_second(manager: socket.socket) -> None:
    now_ns = [0]
    dog = systemd.Watchdog(lambda: now_ns[0], {"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())})
    told = 0
    for _ in range(120):
        dog.pass_done()
        # a pass each half second, for a minute
        now_ns[0] += 500_000_000
        told += len(heard(manager))
    assert told == 60


@pytest.mark.parametrize("every_s", [0.3, 1.1, PASS_S])
def test_a_hanging_answer_ends_before_the_watchdog_fires(manager: socket.socket, every_s: float) -> None:
    """For any pass that reports, and for any number of passes."""
    now_ns, told_ns = [0], 0
    dog = systemd.Watchdog(lambda: now_ns[0], {"WATCHDOG_USEC": str(systemd_unit.WATCHDOG_S * 1_000_000)})
    for _ in range(40):
        dog.pass_done()
        if heard(manager):
            told_ns = now_ns[0]
        ends_ns = now_ns[0] + int((PASS_S + TIMEOUTS.total) * 1e9)
        assert ends_ns - told_ns < systemd_unit.WATCHDOG_S * 1_000_000_000
        now_ns[0] += int(every_s * 1e9)


@pytest.mark.parametrize(
    "environ",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}],
)
def test_the_watchdog_of_another_process_is_not_fed(manager: socket.socket, environ: dict[str, str]) -> None:
    dog = systemd.Watchdog(lambda: 0, environ)
    dog.pass_done()
    assert heard(manager) == []


async def test_a_long_start_asks_for_time_until_it_is_over(manager: socket.socket) -> None:
    asking = asyncio.create_task(systemd.ask_for_time(lambda: "STARTING: asking the service", every_s=0.01))
    seen: list[str] = []
    while seen.count("EXTEND_TIMEOUT_USEC=30000000") < 3:
        await asyncio.sleep(0.005)
        seen += heard(manager)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert "STATUS=STARTING: asking the service" in seen
    assert asking.cancelled(), "it asks no more"


async def test_a_start_that_waits_for_its_embedded_service_asks_for_time(
    tmp_path: Path, repository: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that catches up a long gap first issues no key meanwhile; the daemon asks again while the service
    runs.
    """
    seen: list[str] = []
    asked = 0

    async def mint(_: Embedded) -> EmbeddedKey:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise OutcomeUnknown("read_timeout", "no answer within 60 s")
        async with asyncio.timeout(60):
            while "EXTEND_TIMEOUT_USEC=30000000" not in seen:
                await asyncio.sleep(0.001)
                seen.extend(heard(manager))
        raise TryLater("connect_error", "nobody is there any more")

    monkeypatch.setattr(Embedded, "is_alive", lambda _: asked < 3)
    monkeypatch.setattr(Embedded, "ensure", lambda _: RunningService("http://127.0.0.1:9", 1, is_new=True))
    monkeypatch.setattr(Embedded, "mint", mint)
    config = repository / "configs" / "paper.yaml"
    settings = load(config, {"HOME": str(tmp_path)})
    with (
        hold_state(tmp_path) as held,
        contextlib.closing(Tail(tmp_path / "daemon.log")) as tail,
        pytest.raises(ServiceFailed, match="the service has died; its log is"),
    ):
        await run._run(run._Run(settings, config, held, tail, None), keep_service=False)
    assert asked == 3
    assert len(asyncio.all_tasks()) == 1, "and stops asking"
