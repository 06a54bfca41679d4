"""The service of `base_url: embedded`: a process with its files in the state directory. Starts, finds and stops it, and gets a key from it.

The service lives as long as the lock on `sandbox.lock` is held: its process inherits the lock, and the kernel frees it when the
process ends. The process has a session of its own, so a kill of the daemon leaves it running with all stops in place.
No secret is handed over or stored: its Unix socket is for the owner of the folder alone, and each start asks there for a fresh key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import structlog
from pydantic import SecretStr

from bot import __version__
from bot.client import ControlClient
from bot.clock import monotonic_ns
from bot.descriptors import reserved
from bot.errors import BotError, Exit
from bot.runtime.liveness.instance_lock import close_in_children, is_free, private_dir, runtime_dir, take

log = structlog.get_logger()

READY_S: Final = 30.0  # a long log to replay and a cold disk
STOP_S: Final = 5.0
LOOK_S: Final = 0.05  # between two checks of another process
LOOK_AGAIN_S: Final = 0.2  # between two checks whether the service lives; doubled after each failed start
AGAIN_S_MAX: Final = 30.0  # at most: without the service no position can be closed
TRIES_COUNTED: Final = 10  # after so many the wait is the longest
LOG_BYTES_MAX: Final = 8 * 1024 * 1024  # of the service's log; at the next start it is the older one
SOCKET_BYTES_MAX: Final = 107  # of a Unix socket's name
ROOM_BYTES_MIN: Final = 64 * 1024  # with less on its disk the service cannot begin
UNLIMITED_FROM_SPEED: Final = (
    60.0  # rate limits count real seconds, in which a faster clock asks more than anybody would
)

_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONHOME", "TZ", "BOT_DEBUG", "COVERAGE_PROCESS_START")


class ServiceFailed(BotError):
    """The embedded service did not start; the message is what it said."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        known = {int(one) for one in Exit}
        self.exit_code = Exit(code) if code in known and code else Exit.ERROR  # type: ignore[misc]


class Running(NamedTuple):
    """A service that answers. `is_new`: this call has started it."""

    base_url: str
    pid: int
    is_new: bool


class Minted(NamedTuple):
    api_key: SecretStr
    account_id: str
    address: str


@dataclass(slots=True)
class Embedded:
    """Options of the service, and its folder."""

    folder: Path
    clock: str = "real"
    speed: float = 1.0
    seed: int | None = None
    markets: tuple[str, ...] = ()
    data: tuple[tuple[str, Path], ...] = ()
    port: int = 0
    trouble: str | None = None  # why it is not there, while `keep_alive` cannot start it
    _is_given_up: bool = field(default=False, repr=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.folder / "sandbox.sock"

    @property
    def db(self) -> Path:
        return self.folder / "sandbox.db"

    @property
    def log(self) -> Path:
        return self.folder / "sandbox.log"

    def check_name(self) -> None:
        """ServiceFailed: no socket can be made in a folder of that name."""
        if len(os.fsencode(self.socket)) > SOCKET_BYTES_MAX:
            raise ServiceFailed(
                f"the path of state_dir {self.folder} is too long for the service's socket; choose a shorter one",
                int(Exit.CONFIG),
            )

    def ensure(self) -> Running:
        """The service with these options: found, started, or restarted if it runs with others. Blocks until it answers."""
        private_dir(self.folder)
        self.check_name()
        if not self.is_alive():
            with self._locked() as lock:
                if lock is not None:
                    return self._start(lock)
        found = self._found()
        if self._kept() == self._wanted():
            return found
        self.stop()
        with self._locked() as lock:
            if lock is None:
                raise ServiceFailed(
                    f"the service of {self.folder} (pid {found.pid}) runs with other options and cannot be stopped",
                    int(Exit.ERROR),
                )
            return self._start(lock)

    @property
    def pid(self) -> int | None:
        """Of the process, as it said when it was ready; of one that starts still, if this object has started it."""
        said, child = self._said(), self._child
        if said is None:
            return None if child is None else child.pid
        return int(said["pid"])

    @property
    def base_url(self) -> str | None:
        """Where it listens, as it said when it was ready."""
        said = self._said()
        return None if said is None else str(said["baseUrl"])

    def is_alive(self) -> bool:
        path = self.folder / "sandbox.lock"
        mode = "rb" if path.exists() else "a"  # A disk that has turned read-only does not hide a service that runs.
        with reserved(), path.open(mode) as lock:
            if not is_free(lock):
                return True
            with contextlib.suppress(OSError):  # Of one that is no more; what the next one says is not there yet.
                (self.folder / "sandbox.ready").unlink(missing_ok=True)
        if self._child is not None:
            self._child.wait()  # The kernel has let its lock go; what is left of it is a name.
            self._child = None
        return False

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL. What it has acknowledged is on disk."""
        if not self.is_alive() or (pid := self.pid) is None:
            return
        for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            end_ns = monotonic_ns() + int(patience_s * 1e9)
            while self.is_alive() and monotonic_ns() < end_ns:
                _pause()
            if not self.is_alive():
                if (note := self._note()) is not None:
                    note.unlink(missing_ok=True)
                return

    async def mint(self, account_id: str | None = None) -> Minted:
        """A fresh key of the account that this service keeps for its daemon; the one before it stops working."""
        async with ControlClient(self.socket) as control:
            made = await control.mint_key(account_id)
        return Minted(SecretStr(made.api_key), made.account_id, made.address)

    async def keep_alive(self, on_restart: Callable[[Running], object]) -> None:
        """Start it again, on the same port, whenever it has died. Ends by cancellation alone.

        A start that fails (a full disk, a port that is taken) is tried again, more and more slowly; meanwhile `trouble` says why.
        """
        failed = 0
        while True:
            await asyncio.sleep(min(LOOK_AGAIN_S * 2**failed, AGAIN_S_MAX))
            try:
                if self.is_alive():
                    failed, self.trouble = 0, None
                    continue
                running = await asyncio.to_thread(self.ensure)
            except asyncio.CancelledError:
                self._is_given_up = (
                    True  # The thread waits no longer; what it has started goes on, and the next run finds it.
                )
                raise
            except (BotError, OSError) as error:
                failed = min(failed + 1, TRIES_COUNTED)
                self.trouble = f"the embedded service died and cannot be started again: {error}"
                log.error("service.not_restarted", message=str(error), log=str(self.log))
            else:
                failed, self.trouble = 0, None
                on_restart(running)

    # -- inside

    def _start(self, lock: IO[str]) -> Running:
        ready = self.folder / "sandbox.ready"
        ready.unlink(missing_ok=True)
        (self.folder / "sandbox.options").write_text(json.dumps(self._wanted()))
        reader, writer = os.pipe()
        with contextlib.suppress(OSError):  # It says little; of years of starts the newest are enough.
            if self.log.stat().st_size > LOG_BYTES_MAX:
                self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        with self.log.open("ab") as log:
            told = log.tell()
            try:
                self._child = subprocess.Popen(
                    [*_python(), "sandbox", *self._arguments(), "--ready-fd", str(writer), "--ready-file", str(ready)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd="/", start_new_session=True,
                    pass_fds=(writer, lock.fileno()),
                )  # fmt: skip
            finally:
                os.close(writer)
        try:
            line = self._line(reader, READY_S)
        finally:
            os.close(reader)
        if line is None and self._is_given_up:
            raise ServiceFailed(f"the start of the service was given up; its log is {self.log}", int(Exit.ERROR))
        if line is None:
            self._child.kill()
            self._child.wait()
            raise ServiceFailed(
                f"the service was not ready after {READY_S:g} s; its log is {self.log}", int(Exit.TIMEOUT)
            )
        if not line:
            code = self._child.wait()
            raise ServiceFailed(
                self._reason(told) or f"the service ended with code {code}{self._full()}; its log is {self.log}", code
            )
        said = json.loads(line)
        self.port = int(said["port"])
        if (note := self._note()) is not None:
            with contextlib.suppress(OSError):  # A full disk: `bot services --state-dir` still finds it.
                note.write_text(json.dumps({"folder": str(self.folder)}))
        return Running(said["baseUrl"], int(said["pid"]), is_new=True)

    def _note(self) -> Path | None:
        """The file that tells `noted_folders` of this service; None where this user has no private folder for it."""
        place = runtime_dir()
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()
        return None if place is None else place / f"service-{name}.json"

    def _arguments(self) -> list[str]:
        given = [
            "--port",
            str(self.port),
            "--db",
            str(self.db),
            "--clock",
            self.clock,
            "--control-socket",
            str(self.socket),
        ]
        if self.seed is not None:
            given += ["--seed", str(self.seed)]
        if self.markets:
            given += ["--markets", ",".join(self.markets)]
        for coin, path in self.data:
            given += ["--data", f"{coin}={path.resolve()}"]
        if self.speed > UNLIMITED_FROM_SPEED:
            given.append("--no-rate-limits")
        return given

    def _wanted(self) -> dict[str, Any]:
        """What makes a running service the one that is wanted. The port is where it happens to be."""
        return {
            "version": __version__, "clock": self.clock, "seed": self.seed, "markets": list(self.markets),
            "data": [[coin, str(path.resolve())] for coin, path in self.data],
        }  # fmt: skip

    def _kept(self) -> Any:
        try:
            return json.loads((self.folder / "sandbox.options").read_text())
        except (OSError, ValueError):
            return None

    def _said(self) -> dict[str, Any] | None:
        try:
            said = json.loads((self.folder / "sandbox.ready").read_text())
        except (OSError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    def _found(self) -> Running:
        """The service that holds the lock; it may be starting still."""
        end_ns = monotonic_ns() + int(READY_S * 1e9)
        while monotonic_ns() < end_ns:
            said = self._said()
            if said is not None:
                self.port = int(said["port"])
                return Running(said["baseUrl"], int(said["pid"]), is_new=False)
            if not self.is_alive():
                return self.ensure()
            _pause()
        raise ServiceFailed(
            f"a service holds {self.folder} and does not report its address; its log is {self.log}", int(Exit.TIMEOUT)
        )

    def _reason(self, since: int) -> str:
        """What the service said on its way out: from its first `error:` on, without the log's own lines."""
        with self.log.open("rb") as log:
            log.seek(since)
            text = log.read(64_000).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if not line.startswith("{")]
        first = next((n for n, line in enumerate(lines) if line.startswith("error: ")), None)
        said = "" if first is None else "\n".join(lines[first:]).removeprefix("error: ").strip()
        return said.replace("another port with --port", "another port: embedded.port in the config")

    def _full(self) -> str:
        """Why it said nothing, when that can be seen from here: a log needs room, too."""
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self.folder).free
            if free < ROOM_BYTES_MIN:
                return (
                    f": the disk of {self.folder} is full ({free:,} bytes are free); free some space, then start again"
                )
        return ""

    def _line(self, fd: int, patience_s: float) -> bytes | None:
        """What the other end of a pipe says up to its end; None when it says nothing for so long, or nobody waits for it any more."""
        found, end_ns = b"", monotonic_ns() + int(patience_s * 1e9)
        while not found.endswith(b"\n"):
            if not select.select([fd], [], [], LOOK_S)[0]:
                if self._is_given_up or monotonic_ns() > end_ns:
                    return None
                continue
            part = os.read(fd, 4096)
            if not part:
                return b""
            found += part
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[str] | None]:
        """The lock, or None when a service holds it."""
        with (self.folder / "sandbox.lock").open("a") as lock:
            close_in_children(lock)
            yield lock if take(lock) else None


def noted_folders() -> list[Path]:
    """Folders in which this user has started an embedded service since the boot, wherever they are. It need not run any more."""
    place, found = runtime_dir(), []
    for path in [] if place is None else sorted(place.glob("service-*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(Path(json.loads(path.read_text())["folder"]))
    return found


def _python() -> list[str]:
    return [sys.executable, "-m", "bot"]


def _environment() -> dict[str, str]:
    """Only what the process needs; a secret of the daemon's environment is none of its business."""
    code = str(Path(__file__).resolve().parents[3])  # The very package that runs here.
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return kept | {"PYTHONPATH": code, "PYTHONSAFEPATH": "1"}


def _pause() -> None:
    select.select([], [], [], LOOK_S)
