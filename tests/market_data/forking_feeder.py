"""Feeder processes that start in no time: one process imports ccxt and forks for each start. Imports the standard
library and ccxt.

`serve` writes an executable that a test gives as BOT_MARKETS_PYTHON. The executable hands its arguments, its
environment and its standard streams to the forking process and waits for the end of the fork, which ends when its
standard input closes, as every feeder does.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MESSAGE_MAX = 65_536

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()], [0, 1, 2])
    sys.exit(int(server.recv(16) or b"1"))
"""


@contextmanager
def forking_feeder(python: str, folder: Path) -> Iterator[str]:
    """The path of an executable that starts feeders by forking from one process of `python`."""
    address, client = folder / "feeder.sock", folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    client.chmod(0o755)
    process = subprocess.Popen([python, "-P", __file__, str(address)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    with process:
        assert process.stdout.readline() == b"ready\n"
        yield str(client)
        process.kill()


def _forked(connection: socket.socket) -> None:
    """In the child: fork the feeder, wait for it, and answer its exit code."""
    line, fds, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 3)
    arguments, environment, folder = json.loads(line)
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        connection.send(str(max(0, os.waitstatus_to_exitcode(status))).encode())
        os._exit(0)
    connection.close()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # -P, the feeder's file, its arguments
    _, path, *sys.argv[1:] = arguments
    sys.argv[0] = path
    runpy.run_path(path, run_name="__main__")


def _serve(address: str) -> None:
    # Children are not waited for here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen(16)
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    server.close()
                    _forked(connection)
                    return


if __name__ == "__main__":
    import ccxt.async_support
    import ccxt.pro  # noqa: F401  what takes long is done once, before any fork

    _serve(sys.argv[1])
