"""The service of `base_url: embedded`: a process with its files in the state directory. This module starts, finds and
stops it, and gets keys.

The service runs as long as the lock on `sandbox.lock` is held: its process inherits the lock, and the operating system
frees it when the process ends. The process has its own session, so it survives a kill of the daemon, with all stops in
place. No secret is passed or stored: only the owner of the folder can use the service's Unix socket, and each start
gets a new key there.
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

from pydantic import SecretStr

from bot import __version__
from bot.client import ControlClient
from bot.clock import monotonic_ns
from bot.config import Settings
from bot.descriptors import reserved
from bot.errors import BotError, Exit
from bot.http_limits import NETWORK
from bot.logs import log
from bot.runtime.liveness.instance_lock import close_in_children, is_free, private_dir, runtime_dir, take

# enough to replay a long log from a cold disk
READY_S: Final = 30.0
# the first start on an exchange asks it for its markets and their prices
READY_LIVE_S: Final = 120.0
STOP_S: Final = 5.0
# time between two checks of another process
LOOK_S: Final = 0.05
# time between two checks that the service still runs; doubled after each failed start
LOOK_AGAIN_S: Final = 0.2
# the longest wait between two starts: without the service no position can be closed
AGAIN_S_MAX: Final = 30.0
# failed starts after which the wait no longer grows
TRIES_COUNTED: Final = 10
# a larger log is renamed at the next start
LOG_BYTES_MAX: Final = 8 * 1024 * 1024
# The bytes of a Unix socket's path, a limit of Linux.
SOCKET_BYTES_MAX: Final = 107
# with less on its disk the service cannot start
FREE_BYTES_MIN: Final = 64 * 1024
# rate limits count real time, so a clock that is faster than this would exceed them
UNLIMITED_FROM_SPEED: Final = 60.0

_ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "PYTHONHOME",
    "TZ",
    "BOT_DEBUG",
    "COVERAGE_PROCESS_START",
    "BOT_MARKETS_URL",
    *NETWORK,
)
# the interpreter that has ccxt
MARKETS_PYTHON: Final = "BOT_MARKETS_PYTHON"


class ServiceFailed(BotError):
    """The embedded service did not start; the message is its error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        known = {int(exit_code) for exit_code in Exit}
        # Differs by instance here.
        self.exit_code = Exit(code) if code in known and code else Exit.ERROR  # type: ignore[misc]


class RunningService(NamedTuple):
    """A service that answers requests. `is_new`: this call has started it."""

    base_url: str
    pid: int
    is_new: bool


class EmbeddedKey(NamedTuple):
    api_key: SecretStr
    account_id: str
    address: str


@dataclass(slots=True)
class Embedded:
    """One embedded service: its folder and its options."""

    folder: Path
    clock: str = "real"
    speed: float = 1.0
    seed: int | None = None
    markets: tuple[str, ...] = ()
    data: tuple[tuple[str, Path], ...] = ()
    # sources of live prices, as --prices takes them
    prices: tuple[str, ...] = ()
    port: int = 0
    # the account at an exchange that the service follows, as --exchange-account takes it
    followed: str | None = None
    # the file with the key of its agent, which the exchange link alone reads
    agent_key_file: Path | None = None
    # the most exposure that entries of this account may lead to, as --exposure-cap takes it
    exposure_cap: str | None = None
    # the word with which a person has allowed entries on the main network, as --real-money takes it
    real_money: str | None = None
    # why the service does not run, while `keep_alive` cannot start it
    trouble: str | None = None
    _is_given_up: bool = field(default=False, repr=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def ready_s(self) -> float:
        """How long a start may take."""
        return READY_LIVE_S if self.prices or self.followed else READY_S

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
        """Raise ServiceFailed if the folder's path is too long for a Unix socket."""
        if len(os.fsencode(self.socket)) > SOCKET_BYTES_MAX:
            raise ServiceFailed(
                f"the path of state_dir {self.folder} is too long for the service's socket; choose a shorter one",
                int(Exit.CONFIG),
            )

    def ensure(self) -> RunningService:
        """Find the service, start it, or restart it if it runs with other options. Blocks until it answers."""
        private_dir(self.folder)
        self.check_name()
        if not self.is_alive():
            with self._locked() as lock:
                if lock is not None:
                    return self._start(lock)
        running = self._running_service()
        if self._stored_options() == self._wanted_options():
            return running
        self.stop()
        with self._locked() as lock:
            if lock is None:
                raise ServiceFailed(
                    f"the service of {self.folder} (pid {running.pid}) runs with other options and cannot be stopped",
                    int(Exit.ERROR),
                )
            return self._start(lock)

    @property
    def pid(self) -> int | None:
        """The process id, from the ready file; of a process that is still starting, only if this object started it."""
        ready, child = self._ready_data(), self._child
        if ready is None:
            return None if child is None else child.pid
        return int(ready["pid"])

    @property
    def base_url(self) -> str | None:
        """The service's address, from the ready file; None until it is ready."""
        ready = self._ready_data()
        return None if ready is None else str(ready["baseUrl"])

    def is_alive(self) -> bool:
        path = self.folder / "sandbox.lock"
        # An existing lock can be tested on a read-only disk, too.
        mode = "rb" if path.exists() else "a"
        with reserved(), path.open(mode) as lock:
            if not is_free(lock):
                return True
            # Left by a process that has ended.
            with contextlib.suppress(OSError):
                (self.folder / "sandbox.ready").unlink(missing_ok=True)
        if self._child is not None:
            # The service's lock is free, so the service has ended: collect its exit status.
            self._child.wait()
            self._child = None
        return False

    def stop(self) -> None:
        """Stop the service: SIGTERM, then SIGKILL. Everything that it acknowledged is on disk."""
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

    async def mint(self, account_id: str | None = None) -> EmbeddedKey:
        """Get a new API key for the daemon's account; the key before it becomes invalid."""
        async with ControlClient(self.socket) as control:
            minted = await control.mint_key(account_id)
        return EmbeddedKey(SecretStr(minted.api_key), minted.account_id, minted.address)

    async def keep_alive(self, on_restart: Callable[[RunningService], object]) -> None:
        """Restart the service on the same port whenever it dies. Runs until it is cancelled.

        A start that fails (full disk, port in use) is retried with growing waits; until it succeeds, `trouble` says
        why.
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
                # The thread stops waiting. A started process goes on, and the next run finds it.
                self._is_given_up = True
                raise
            except (BotError, OSError) as error:
                failed = min(failed + 1, TRIES_COUNTED)
                self.trouble = f"the embedded service died and cannot be started again: {error}"
                log.error("service.not_restarted", message=str(error), log=str(self.log))
            else:
                failed, self.trouble = 0, None
                on_restart(running)

    # -- start and state

    def _start(self, lock: IO[str]) -> RunningService:
        ready = self.folder / "sandbox.ready"
        ready.unlink(missing_ok=True)
        (self.folder / "sandbox.options").write_text(json.dumps(self._wanted_options()))
        reader, writer = os.pipe()
        # Only the newest part of the log is needed.
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_BYTES_MAX:
                self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        with self.log.open("ab") as log:
            log_start = log.tell()
            try:
                self._child = subprocess.Popen(
                    [*_python(), "sandbox", *self._arguments(), "--ready-fd", str(writer), "--ready-file", str(ready)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=child_environment(),
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(writer, lock.fileno()),
                )
            finally:
                os.close(writer)
        try:
            line = self._line(reader, self.ready_s)
        finally:
            os.close(reader)
        if line is None and self._is_given_up:
            raise ServiceFailed(f"the start of the service was cancelled; its log is {self.log}", int(Exit.ERROR))
        if line is None:
            self._child.kill()
            self._child.wait()
            raise ServiceFailed(
                f"the service was not ready after {self.ready_s:g} s; its log is {self.log}", int(Exit.TIMEOUT)
            )
        if not line:
            code = self._child.wait()
            raise ServiceFailed(
                self._error_in_log(log_start)
                or f"the service ended with code {code}{self._disk_hint()}; its log is {self.log}",
                code,
            )
        ready_data = json.loads(line)
        self.port = int(ready_data["port"])
        if (note := self._note()) is not None:
            # A full disk: `bot services --state-dir` still finds it.
            with contextlib.suppress(OSError):
                note.write_text(json.dumps({"folder": str(self.folder)}))
        return RunningService(ready_data["baseUrl"], int(ready_data["pid"]), is_new=True)

    def _note(self) -> Path | None:
        """The file by which `noted_folders` finds this service; None if this user has no private folder for it."""
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
            "--log-file",
            str(self.log),
        ]
        # An account at an exchange has no simulated prices.
        if self.seed is not None and self.followed is None:
            given += ["--seed", str(self.seed)]
        if self.markets:
            given += ["--markets", ",".join(self.markets)]
        for source in self.prices:
            given += ["--prices", source]
        if self.followed is not None:
            given += ["--exchange-account", self.followed]
        if self.agent_key_file is not None:
            given += ["--agent-key-file", str(self.agent_key_file)]
        if self.exposure_cap is not None:
            given += ["--exposure-cap", self.exposure_cap]
        if self.real_money is not None:
            given += ["--real-money", self.real_money]
        for coin, path in self.data:
            given += ["--data", f"{coin}={path.resolve()}"]
        if self.speed > UNLIMITED_FROM_SPEED:
            given.append("--no-rate-limits")
        return given

    def _wanted_options(self) -> dict[str, Any]:
        """The options that a running service must have, or it is restarted. Any port will do."""
        return {
            "version": __version__,
            "clock": self.clock,
            "seed": self.seed,
            "markets": list(self.markets),
            "data": [[coin, str(path.resolve())] for coin, path in self.data],
            **(
                {"listings": digests} if (digests := [_digest(name) for name in self.markets if _is_file(name)]) else {}
            ),
            "prices": list(self.prices),
            **({} if self.followed is None else {"followed": self.followed}),
            **({} if self.agent_key_file is None else {"agentKeyFile": str(self.agent_key_file)}),
            **({} if self.exposure_cap is None else {"exposureCap": self.exposure_cap}),
            **({} if self.real_money is None else {"realMoney": self.real_money}),
        }

    def _stored_options(self) -> Any:
        try:
            return json.loads((self.folder / "sandbox.options").read_text())
        except (OSError, ValueError):
            return None

    def _ready_data(self) -> dict[str, Any] | None:
        try:
            data = json.loads((self.folder / "sandbox.ready").read_text())
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def _running_service(self) -> RunningService:
        """The service that holds the lock. If it is still starting, wait until it is ready."""
        end_ns = monotonic_ns() + int(self.ready_s * 1e9)
        while monotonic_ns() < end_ns:
            ready = self._ready_data()
            if ready is not None:
                self.port = int(ready["port"])
                return RunningService(ready["baseUrl"], int(ready["pid"]), is_new=False)
            if not self.is_alive():
                return self.ensure()
            _pause()
        raise ServiceFailed(
            f"a service runs on {self.folder} but did not report its address within {self.ready_s:g} s; its log is"
            f" {self.log}",
            int(Exit.TIMEOUT),
        )

    def _error_in_log(self, log_start: int) -> str:
        """The service's error message: the log from its first `error:` line on, without JSON lines.

        "" if there is none.
        """
        with self.log.open("rb") as log:
            log.seek(log_start)
            text = log.read(64_000).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if not line.startswith("{")]
        first = next((n for n, line in enumerate(lines) if line.startswith("error: ")), None)
        message = "" if first is None else "\n".join(lines[first:]).removeprefix("error: ").strip()
        return message.replace("another port with --port", "another port: embedded.port in the config")

    def _disk_hint(self) -> str:
        """A hint that the disk is full, because then the service could not write its error to the log.

        "" if it is not.
        """
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self.folder).free
            if free < FREE_BYTES_MIN:
                return (
                    f": the disk of {self.folder} is full ({free:,} bytes are free); free some space, then start again"
                )
        return ""

    def _line(self, fd: int, patience_s: float) -> bytes | None:
        """One line from a pipe; b"" if the other end closed it;

        None after `patience_s`, or if the start was cancelled.
        """
        line, end_ns = b"", monotonic_ns() + int(patience_s * 1e9)
        while not line.endswith(b"\n"):
            if not select.select([fd], [], [], LOOK_S)[0]:
                if self._is_given_up or monotonic_ns() > end_ns:
                    return None
                continue
            part = os.read(fd, 4096)
            if not part:
                return b""
            line += part
        return line

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[str] | None]:
        """The lock file, locked; None if a service holds the lock."""
        with (self.folder / "sandbox.lock").open("a") as lock:
            close_in_children(lock)
            yield lock if take(lock) else None


def noted_folders() -> list[Path]:
    """The folders in which this user has started an embedded service since the boot. The service may have ended."""
    notes, folders = runtime_dir(), []
    for path in [] if notes is None else sorted(notes.glob("service-*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            folders.append(Path(json.loads(path.read_text())["folder"]))
    return folders


def _python() -> list[str]:
    return [sys.executable, "-m", "bot"]


def service_prices(settings: Settings) -> tuple[str, ...]:
    """The sources of live prices that a config names, as --prices takes them."""
    account = settings.account
    prices = account.prices
    if prices is None and account.exchange is not None:
        # The account is valued at the prices of its own exchange.
        return (f"{account.exchange}:{account.network}",)
    if not isinstance(prices, tuple):
        return () if prices is None else (f"{prices.source}:{prices.place}",)
    return tuple(
        f"{source.source}:{source.place}:" + ",".join(f"{coin}={symbol}" for coin, symbol in source.markets.items())
        for source in prices
    )


def service_markets(settings: Settings) -> tuple[str, ...]:
    """The markets that a config lists: `MARKET=SYMBOL` if its one price source gives a symbol, else `MARKET`."""
    prices = settings.account.prices
    named = {} if prices is None or isinstance(prices, tuple) else prices.markets
    return (
        *(f"{coin}={symbol}" for coin, symbol in named.items()),
        *(coin for coin in settings.embedded.markets if coin not in named),
        *(() if settings.listings is None else (str(settings.listings),)),
    )


def _is_file(market: str) -> bool:
    """True for a listing file among the markets."""
    return market.lower().endswith((".yaml", ".yml")) and Path(market).is_file()


def _digest(listing_file: str) -> str:
    """A service with an older listing file is restarted."""
    return hashlib.sha256(Path(listing_file).read_bytes()).hexdigest()


def child_environment() -> dict[str, str]:
    """The variables that a child process needs. The daemon's secrets are not among them."""
    # The service must run the same package as the daemon.
    code = str(Path(__file__).resolve().parents[3])
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # The service runs in another folder. A name without a folder stays a name.
    if MARKETS_PYTHON in os.environ:
        given = os.environ[MARKETS_PYTHON]
        # Keeps links of venvs.
        kept[MARKETS_PYTHON] = os.path.abspath(given) if os.sep in given else given  # noqa: PTH100
    return kept | {"PYTHONPATH": code, "PYTHONSAFEPATH": "1"}


def _pause() -> None:
    select.select([], [], [], LOOK_S)
