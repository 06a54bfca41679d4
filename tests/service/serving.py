"""A service as a separate process, for the tests that kill it.

As a module it takes its options as JSON in the first argument.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Served:
    """A running process and where it listens."""

    process: subprocess.Popen[bytes]
    base_url: str
    port: int

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def stop(self, timeout: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


def start(env: dict[str, str] | None = None, **options: Any) -> Served:
    """Starts a service; returns when it is ready. RuntimeError with its output if it fails to start."""
    reader, writer = os.pipe()
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.serving", json.dumps(plain | {"ready_fd": writer})],
        cwd=REPOSITORY,
        pass_fds=(writer,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | (env or {}),
    )
    os.close(writer)
    with os.fdopen(reader) as ready:
        line = ready.readline()
    if not line:
        assert process.stderr is not None
        words = process.stderr.read().decode()
        code = process.wait(60)
        process.stderr.close()
        raise RuntimeError(f"{code}: {words}")
    said = json.loads(line)
    return Served(process, said["baseUrl"], said["port"])


def end(served: Served) -> None:
    """Ends the process in any state."""
    with suppress(ProcessLookupError):
        served.process.kill()
    served.process.wait(60)
    if served.process.stderr is not None:
        served.process.stderr.close()


if __name__ == "__main__":
    from bot import logs
    from bot.service.host import HostOptions, serve

    given = json.loads(sys.argv[1])
    for name in ("db", "control_socket", "ready_file"):
        if given.get(name) not in (None, ":memory:"):
            given[name] = Path(given[name])
    given["data"] = tuple((coin, Path(path)) for coin, path in given.get("data", ()))
    given["markets"] = tuple(given.get("markets", ()))
    logs.configure(pretty=False)
    sys.exit(serve(HostOptions(**given)))
