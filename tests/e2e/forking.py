"""`bot ...` as processes that start in no time: one process imports everything once and forks for each start. For tests that kill many.

A forked one differs from a cold one in nothing but when its modules were imported: it has its own descriptors, its own session if
asked for, and runs the command line to the interpreter's own end. It is held like a subprocess.Popen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

MESSAGE_MAX = 65_536
FDS_MAX = 8
HIGH_FD = 500  # above whatever number a caller names


class Forked:
    """One of the zygote's children."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._zygote = zygote
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._fd], [], [], timeout)[0]:
            self.returncode = int(self._zygote.ask({"reap": self.pid})["code"])
            os.close(self._fd)
        return self.returncode


class Zygote:
    """The process that forks. Its children end with it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.forking", str(other.fileno())], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(60)

    def start(self, *arguments: str, fds: Mapping[int, int], own_session: bool = False) -> Forked:
        """`bot ARGUMENTS`; `fds` says which descriptor of ours is which number there."""
        said = self.ask({"start": arguments, "fds": list(fds), "own_session": own_session}, list(fds.values()))
        return Forked(self, said["pid"])

    def ask(self, what: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        socket.send_fds(self._socket, [json.dumps(what).encode()], fds or [])
        answer: dict[str, Any] = json.loads(self._socket.recv(MESSAGE_MAX))
        return answer


# ── In the process that forks ───────────────────────────────────────────────────────────────────────────────────────


def _become(asked: dict[str, Any], received: list[int]) -> None:
    """In the child: the descriptors by the numbers that were asked for, and nothing of the zygote's."""
    if asked["own_session"]:
        os.setsid()
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH_FD) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(held, asked["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = ["bot", *asked["start"]]


def _serve(server: socket.socket) -> bool:
    """Answer until the other side is gone. True in a child, which is to run the command now."""
    children: set[int] = set()
    while True:
        line, received, _, _ = socket.recv_fds(server, MESSAGE_MAX, FDS_MAX)
        if not line:
            break
        asked = json.loads(line)
        if "start" in asked:
            pid = os.fork()
            if pid == 0:
                server.close()
                _become(asked, received)
                return True
            for fd in received:
                os.close(fd)
            children.add(pid)
            said = {"pid": pid}
        else:
            _, status = os.waitpid(asked["reap"], 0)
            children.discard(asked["reap"])
            said = {"code": os.waitstatus_to_exitcode(status)}
        server.send(json.dumps(said).encode())
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return False


if __name__ == "__main__":
    import bot.cli.run.run
    import bot.cli.run.run_daemon
    import bot.cli.sandbox.sandbox
    import bot.runtime.daemon
    import bot.service.host  # noqa: F401  what takes long is done once, before any fork
    from bot.cli import main

    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        main()
