"""`bot ...` as processes that start without imports: a prepared process has imported everything and forks for each
start.

`use()` puts `Popen` in the place of `subprocess.Popen` in this process. It asks the prepared process for each command
`[sys.executable, "-m", MODULE, ...]` of one of `MODULES`: the commands of `bot`, the links to exchanges, and the
services of tests. It starts all other commands as ever. A started process is a child like any other: it has its own
pid, descriptors, folder, environment and session, and ends at the interpreter's own end. It differs from a cold one
only in when its modules were imported, and in /proc, where its command line and environment are the prepared process's.
A test that looks at these, at memory or at the time of a start asks for the fixture `cold_starts`.

A command that starts a service, a dashboard or a link itself gets a prepared process of its own, forked before it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import json
import os
import pkgutil
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

REPOSITORY = Path(__file__).resolve().parent.parent
LINK: Final = "bot.exchanges.link.process"
KILLED: Final = "tests.service.exchange_accounts.killed_service"
MODULES: Final = ("bot", "tests.service.serving", KILLED)
COMMAND: Final = [sys.executable, "-m", "bot"]
# The first two words of commands that start processes, and an option with which each command starts a link.
STARTING: Final = (["bot", "run"], ["bot", "demo"])
STARTS_LINK: Final = "--exchange-account"

MESSAGE_MAX = 200_000
FDS_MAX = 16
# Above each number that a caller names.
HIGH_FD = 500
PR_SET_CHILD_SUBREAPER = 36

# An interpreter reads these when it starts. Where they differ from the prepared process's, the start is a cold one.
# `_become` does what PYTHONUNBUFFERED asks for.
READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ", "MALLOC_", "GLIBC_", "VIRTUAL_ENV")
# `bot.cli.run.embedded_service.child_environment` sets these, for a service that stands in no folder of code. A link
# that this service starts gets the first.
OF_DAEMON = {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"}

# The arguments of `subprocess.Popen._execute_child`, in Python 3.11 to 3.14.
ARGUMENTS = (
    *(
        "args",
        "executable",
        "preexec_fn",
        "close_fds",
        "pass_fds",
        "cwd",
        "env",
        "startupinfo",
        "creationflags",
        "shell",
    ),
    *("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite", "restore_signals"),
    *("gid", "gids", "uid", "umask", "start_new_session", "process_group"),
)
MUST_BE_UNSET = ("preexec_fn", "executable", "shell", "gid", "gids", "uid")

_popen = subprocess.Popen
_environment = dict(os.environ)


class PreparedProcess:
    """The process that forks, from the side of those who start commands. It ends with this process."""

    def __init__(self, connection: socket.socket) -> None:
        self.owner = os.getpid()
        # What a test has set meanwhile is for its own commands: this process outlives the test.
        self.environment = _environment
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._socket = connection
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def started(cls) -> PreparedProcess:
        """A new one, which imports everything."""
        ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.prepared_process", str(other.fileno())]
        made = cls(ours)
        with other:
            made._process = _popen(
                command, cwd=REPOSITORY, env=_environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL
            )
        atexit.register(made.close)
        return made

    def close(self) -> None:
        """End it, in the process that started it."""
        if self._process is not None and self.owner == os.getpid():
            self._socket.close()
            self._process.wait()

    def start(self, request: dict[str, Any], fds: Mapping[int, int]) -> int:
        """The pid of a new child of this process; `fds` says which descriptor of ours has which number there."""
        message = json.dumps({**request, "fds": list(fds)}).encode()
        with self._lock:
            # The forked process is the child of one that ends at once, and so becomes the child of the next subreaper
            # above it.
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [message], list(fds.values()))
                answer = self._socket.recv(MESSAGE_MAX)
            finally:
                self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError("the prepared process has ended: its traceback stands above")
        return int(json.loads(answer)["pid"])


_prepared: PreparedProcess | None = None


def prepared() -> PreparedProcess:
    """The prepared process of this process, started at the first call."""
    global _prepared  # noqa: PLW0603  one a process
    if _prepared is None or _prepared.owner != os.getpid():
        _prepared = PreparedProcess.started()
    return _prepared


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen` that lets the prepared process start the commands of `bot`."""

    cold = False

    def _execute_child(self, *values: Any) -> None:
        asked = dict(zip(ARGUMENTS, values, strict=True))
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        folder = asked["cwd"] or _working_folder()
        is_alike = folder is not None and not self.cold and _is_prepared(asked)
        if not is_alike or not _starts_alike(environment, prepared().environment):
            super()._execute_child(*values)  # type: ignore[misc]
            return
        streams = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        fds = {number: number if fd == -1 else fd for number, fd in enumerate(streams)}
        words = [os.fspath(argument) for argument in asked["args"]]
        request = {
            "arguments": words[words.index("-m") + 1 :],
            "cwd": os.fspath(folder),
            "environment": environment,
            "own_session": asked["start_new_session"],
            "process_group": asked["process_group"],
            "umask": _umask() if asked["umask"] < 0 else asked["umask"],
            "limits": _limits(),
        }
        self.pid = prepared().start(request, fds | {fd: fd for fd in asked["pass_fds"]})
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[end] for end in ends))  # type: ignore[attr-defined]


def _working_folder() -> str | None:
    """The working folder; None if it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109  a text is what the request takes
    except FileNotFoundError:
        return None


def _umask() -> int:
    """The umask of this process, without setting another one meanwhile."""
    (line,) = re.findall(r"^Umask:\t(\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(line, 8)


def _limits() -> list[tuple[int, tuple[int, int]]]:
    """The limits of this process, which its children inherit."""
    numbers = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})
    return [(number, resource.getrlimit(number)) for number in numbers]


def _is_prepared(asked: dict[str, Any]) -> bool:
    """Whether it is the plain start of one of `MODULES`, or of a link."""
    match asked["args"]:
        case [sys.executable, "-m", module, *_]:
            is_known = module in MODULES
        case [sys.executable, "-P", "-m", module, *_]:
            is_known = module == LINK
        case _:
            return False
    return is_known and asked["close_fds"] and not any(asked[name] for name in MUST_BE_UNSET)


def _starts_alike(environment: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether an interpreter starts in the same way in both environments, but for the folder that it imports from
    first.
    """
    if not all(isinstance(word, str) for row in environment.items() for word in row):
        return False
    names = {name for name in {*environment, *other} if name.startswith(READ_AT_START)}
    names -= {"PYTHONUNBUFFERED", *(name for name, value in OF_DAEMON.items() if environment.get(name) == value)}
    return all(environment.get(name) == other.get(name) for name in names)


@contextlib.contextmanager
def cold_starts() -> Iterator[None]:
    """Meanwhile each command starts in an interpreter of its own."""
    before, Popen.cold = Popen.cold, True
    try:
        yield
    finally:
        Popen.cold = before


def use() -> None:
    """Let this process start the commands of `bot` by the prepared process, which gets the environment of this
    moment.
    """
    global _environment  # noqa: PLW0603  one a process
    _environment = dict(os.environ)
    if sys.platform.startswith("linux"):
        subprocess.Popen = Popen  # type: ignore[misc]


# ── In the prepared process ─────────────────────────────────────────────────────────────────────────────────────────


def _become(request: dict[str, Any], received: list[int]) -> None:
    """In the child: what it was asked to be, and nothing of the prepared process."""
    if request["own_session"]:
        os.setsid()
    elif request["process_group"] != -1:
        os.setpgid(0, request["process_group"])
    os.umask(request["umask"])
    for number, (soft, hard) in request["limits"]:
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH_FD) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(held, request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    is_safe = sys.argv[0] == LINK or "PYTHONSAFEPATH" in os.environ
    sys.path[0] = str(REPOSITORY) if is_safe else request["cwd"]
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
        is_by_line = number == 2 or os.isatty(number)
        stream = io.TextIOWrapper(
            raw, encoding="utf-8", errors=errors, line_buffering=is_by_line, write_through=is_unbuffered
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _fork_seed(received: list[int]) -> bool:
    """Fork a prepared process for what this command starts.

    True in a child of that one, which is to run its command now.
    """
    global _prepared  # noqa: PLW0603  one a process
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for fd in received:
            os.close(fd)
        if not _serve(theirs):
            os._exit(0)
        return True
    theirs.close()
    # A number of a descriptor that the caller passes may be that of this one.
    high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    ours.close()
    _prepared = PreparedProcess(socket.socket(fileno=high))
    subprocess.Popen = Popen  # type: ignore[misc]
    return False


def _is_starting(arguments: list[str]) -> bool:
    return arguments[:2] in STARTING or STARTS_LINK in arguments


def _serve(server: socket.socket) -> bool:
    """Answer until the other side is gone. True in a child, which is to run the command now."""
    while True:
        line, received, _, _ = socket.recv_fds(server, MESSAGE_MAX, FDS_MAX)
        if not line:
            return False
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child:
                os.write(writer, str(child).encode())
                os._exit(0)
            # A command may look whose child it is.
            while os.getppid() == between:
                os.sched_yield()
            server.close()
            os.close(reader)
            os.close(writer)
            request = json.loads(line)
            if _is_starting(request["arguments"]) and _fork_seed(received):
                return True
            _become(request, received)
            return True
        os.close(writer)
        for fd in received:
            os.close(fd)
        pid = int(os.read(reader, 32))
        os.close(reader)
        os.waitpid(between, 0)
        server.send(json.dumps({"pid": pid}).encode())


def _import_everything() -> None:
    """What the commands import, once."""
    import bot.cli
    import bot.exchanges.hyperliquid.live.exchange
    import bot.exchanges.link.process
    import bot.runtime.daemon
    import bot.service.host

    for module in pkgutil.walk_packages(bot.cli.__path__, "bot.cli."):
        __import__(module.name)


if __name__ == "__main__":
    _import_everything()
    gc.freeze()
    # Ctrl-C of a whole test run is for those who started it.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
