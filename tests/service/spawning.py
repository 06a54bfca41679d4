"""Services as separate processes with a fast start: one process imports everything once and forks for each start. For tests with many kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Spawned:
    """A running service."""

    nursery: Nursery
    pid: int
    base_url: str

    def kill(self) -> None:
        """kill -9; the process has ended when this returns."""
        self.nursery.ask({"end": self.pid, "signal": int(signal.SIGKILL)})

    def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        return int(self.nursery.ask({"end": self.pid, "signal": int(signal.SIGTERM)})["code"])


class Nursery:
    """The process that forks. Its services end with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.spawning"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def start(self, *, env: dict[str, str] | None = None, **options: Any) -> Spawned:
        """Starts a service; returns when it is ready. RuntimeError with its output if it fails to start."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        said = self.ask({"start": plain, "env": env or {}})
        if "words" in said:
            raise RuntimeError(said["words"])
        return Spawned(self, said["pid"], said["baseUrl"])

    def ask(self, line: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


# ── In the process that forks ───────────────────────────────────────────────────────────────────────────────────────


def _serve(options: dict[str, Any], env: dict[str, str], ready: int, words: int) -> int:
    from bot import logs
    from bot.service.host import HostOptions, serve

    os.setsid()
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  a descriptor is what is wanted
        os.dup2(nothing.fileno(), 0)
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.environ.update(env)
    for name in ("db", "control_socket", "ready_file"):
        if options.get(name) not in (None, ":memory:"):
            options[name] = Path(options[name])
    options["markets"] = tuple(options.get("markets", ()))
    logs.configure(pretty=False)
    return serve(HostOptions(**options, ready_fd=ready))


def _fork(options: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as words:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.close(reader)
                code = _serve(options, env, writer, words.fileno())
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader) as ready:
            line = ready.readline()
        if line:
            return {"pid": pid, "baseUrl": json.loads(line)["baseUrl"]}
        _, status = os.waitpid(pid, 0)
        words.seek(0)
        return {"words": f"{os.waitstatus_to_exitcode(status)}: {words.read().decode()}"}


def _main() -> None:
    from bot.service import host  # noqa: F401  what takes long is done once, before any fork

    children: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            said = _fork(asked["start"], asked["env"])
            if "pid" in said:
                children.add(said["pid"])
        else:
            os.kill(asked["end"], asked["signal"])
            _, status = os.waitpid(asked["end"], 0)
            children.discard(asked["end"])
            said = {"code": os.waitstatus_to_exitcode(status)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _main()
