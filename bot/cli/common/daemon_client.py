"""Finds the daemon that a command means, by its state directory, and sends requests to its control socket.

Of a config only the name and the state directory are read. Its secrets are not resolved, because the operator may not
be able to read them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final, TypeVar

import click

from bot.cli.common.shared_options import STATE_DIR
from bot.errors import BotError, ConfigError, Declined, Exit, JournalError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CONNECT_S: Final = 2.0
# added to the daemon's own time limit for a request
LONGER_S: Final = 10.0
# time for an answer from memory; a strategy in C code may delay the daemon for seconds
MEMORY_S: Final = 8.0
# the longest list has thousands of rows of less than 2 kB
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
# after this wait the command prints what it waits for
NOTICE_S: Final = 3.0
# where systemd keeps the folders of system units
SYSTEM_STATE: Final = Path("/var/lib")
# the config of a project made by `bot init`
PROJECT: Final = "bot.yaml"
# folders searched for daemons; more than anybody runs
FOLDERS_MAX: Final = 200


class NotRunning(BotError):
    """No daemon runs on the state directory."""

    exit_code = Exit.NOT_RUNNING


class Silent(BotError):
    """A daemon holds the state directory but gave no final answer in time."""

    exit_code = Exit.TIMEOUT


class Hung(Silent):
    """The daemon accepted the request but sent no answer."""


class Denied(BotError):
    """The daemon refused the request as invalid."""

    exit_code = Exit.USAGE


class DaemonRefused(BotError):
    """The daemon could not carry out the request; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon's state directory, and its config if the command was given one or found one."""

    folder: Path
    config: Path | None = None

    @property
    def flag(self) -> str:
        """The option that makes another command mean the same daemon."""
        name, path = ("--state-dir", self.folder) if self.config is None else ("--config", self.config)
        return f"{name} {quote(str(path))}"

    def is_running(self) -> bool:
        """True if a daemon holds the lock of the folder. Raises Closed if this user may not look into the folder."""
        from bot.runtime.journal.queries import is_there
        from bot.runtime.liveness.instance_lock import LOCK, is_held

        return is_there(self.folder / LOCK) and is_held(self.folder)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        within_s: float | None = None,
    ) -> Any:
        """Send a request and return the daemon's answer. `within_s` replaces the route's own time limit.

        NotRunning, Silent, or an error with the daemon's message: Denied, DaemonRefused, Declined, ConfigError,
        JournalError.
        """
        return _ask(self, method, path, body, query, within_s)


def of_journal(place: Place, path: str, query: Mapping[str, Any], of_file: Callable[[], T]) -> Any | T:
    """The running daemon's answer, because it may hold events that are not on disk yet.

    If it is dead or silent: what its journal has.
    """
    try:
        return place.ask("GET", path, query=query)
    except NotRunning:
        click.echo(f"the daemon of {place.folder} is not running; what follows is from its journal", err=True)
    except Silent as error:
        click.echo(f"{error}; what follows is from its journal on disk", err=True)
    return of_file()


def where(command: F) -> F:
    """Add the options --config and --state-dir, which say which daemon a command means."""
    for option in (
        STATE_DIR,
        click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            default=None,
            metavar="CONFIG",
            help="The daemon's config file.",
        ),
    ):
        command = option(command)
    return command


def find(config: Path | None, state_dir: Path | None, *, dead_too: bool = False) -> Place:
    """The daemon that a command means: the given one; else that of ./bot.yaml; else the only running one; else the only
    one that ever ran.

    With several candidates it raises: UsageError if they run, or if the command also works on a dead daemon
    (`dead_too`); else NotRunning.
    """
    if config is not None and state_dir is not None:
        raise click.UsageError("give --config or --state-dir, not both")
    if state_dir is not None:
        from bot.cli.common.demo_folders import DemoFolder
        from bot.runtime.journal.queries import Closed

        try:
            is_folder = state_dir.is_dir()
        except PermissionError:
            raise Closed(state_dir) from None
        if not is_folder:
            raise click.UsageError(f"there is no folder {state_dir}")

        return Place(DemoFolder(state_dir.absolute()).newest() or state_dir.absolute())
    if config is not None:
        return _of_config(config)
    if Path(PROJECT).is_file():
        return _of_config(Path(PROJECT))
    known = known_folders()
    from bot.runtime.liveness.instance_lock import is_held

    running = [folder for folder in known if is_held(folder)]
    candidates = running or known
    if len(candidates) == 1:
        return Place(candidates[0])
    if not candidates:
        closed = [str(folder) for folder in sorted(SYSTEM_STATE.glob(unit_state("*"))) if is_closed(folder)]
        unseen = f"; only root can see whether a daemon runs in {', '.join(closed)} (sudo)" if closed else ""
        raise NotRunning(
            f"no daemon has run here yet: start one (bot run CONFIG), or name it with --config or --state-dir{unseen}"
        )
    state = "several daemons run" if running else "no daemon runs now, and several have run"
    message = f"{state}: {', '.join(map(str, candidates))}; choose one with --state-dir or --config"
    if running or dead_too:
        raise click.UsageError(message)
    raise NotRunning(message)


def is_closed(folder: Path) -> bool:
    """True if this user may not look into the folder. Only its owner can enter a state directory."""
    from bot.runtime.journal.queries import Closed, is_there
    from bot.runtime.liveness.instance_lock import LOCK

    try:
        is_there(folder / LOCK)
    except Closed:
        return True
    return False


def _of_config(config: Path) -> Place:
    """The daemon of a config.

    If the config has become invalid, or names another folder since, the running daemon is still found.
    """
    from bot.runtime.liveness.instance_lock import is_held

    try:
        place = Place(folder_of(config), config)
    except ConfigError:
        running = _started_with(config)
        if running is None:
            raise
        return running
    with contextlib.suppress(OSError):
        if is_held(place.folder):
            return place
    return _started_with(config) or place


def _started_with(config: Path) -> Place | None:
    """The running daemon that reports this file as its config; None if there is none."""
    from bot.runtime.liveness.instance_lock import is_held

    for folder in known_folders():
        candidate = Place(folder, config)
        with contextlib.suppress(BotError, OSError):
            if is_held(folder) and candidate.ask("GET", "/status").get("config") == str(config.absolute()):
                return candidate
    return None


def folder_of(config: Path) -> Path:
    """The state directory of a config. If the config has no `state_dir`: the user's or the system unit's folder of that
    name.

    A folder with a running daemon is chosen first, then one that this user may not enter, because a daemon may run in
    it, then one with a journal.
    """
    from bot.config.state_folder import default_state_dir
    from bot.runtime.journal.queries import FILE
    from bot.runtime.liveness.instance_lock import is_held

    name, given = outline(config)
    if given is not None:
        return given
    places = [default_state_dir(name), SYSTEM_STATE / unit_state(name)]
    for good in (is_held, is_closed, lambda folder: (folder / FILE).exists()):
        for place in places:
            with contextlib.suppress(OSError):
                if good(place):
                    return place
    return places[0]


def unit_state(name: str) -> str:
    """The name of a unit's state directory, for StateDirectory=."""
    return f"bot-{name}"


def outline(config: Path) -> tuple[str, Path | None]:
    """A config's name and its `state_dir`."""
    from bot.config.references import NO_HOME
    from bot.config.state_folder import name_of

    data = plain_data(config)
    name, given = data.get("name"), data.get("state_dir")
    if not isinstance(name, str):
        name = name_of(config)
    if not isinstance(given, str) or not given:
        return name, None
    try:
        return name, Path(os.path.normpath(config.absolute().parent / Path(given).expanduser()))
    except RuntimeError:
        raise ConfigError(f"{config}: state_dir: {NO_HOME}") from None


def plain_data(config: Path) -> Mapping[str, Any]:
    """A config's data, with secrets left as references.

    The values are not checked. ConfigError if the file is not readable YAML.
    """
    from bot.config.document import Document
    from bot.config.references import Referred
    from bot.config.state_folder import FILE_BYTES_MAX

    try:
        text = config.read_text(encoding="utf-8-sig")[:FILE_BYTES_MAX]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    document = Document(str(config), text)
    document.read(lambda text, key: _plain(text, key, Referred))
    if document.data is None:
        raise ConfigError("\n".join(str(document.shown(problem)) for problem in document.problems))
    data: Mapping[str, Any] = document.data
    return data


def _plain(text: str, key: str, kind: Callable[[str], str]) -> str:
    """Replace references to the environment. A secret stays a reference."""
    import re

    from bot.logs import is_secret_name

    if is_secret_name(key):
        return kind(text)
    return kind(re.sub(r"\$\{env:([^{}]*)\}", lambda match: os.environ.get(match.group(1), match.group(0)), text))


def known_folders() -> list[Path]:
    """The state directories in the usual places (this user's, system units') with a daemon or a journal, and any
    other with a running daemon.
    """
    from bot.config.state_folder import default_state_dir
    from bot.runtime.control_plane.control_address import SOCKET
    from bot.runtime.journal.queries import FILE
    from bot.runtime.liveness.instance_lock import folders_held

    folders: list[Path] = []
    user = default_state_dir(
        "bot", {name: value for name, value in os.environ.items() if name != "STATE_DIRECTORY"}
    ).parent
    for place, pattern in ((user, "*/lock"), (user, "demo/*/lock"), (SYSTEM_STATE, "bot-*/lock")):
        with contextlib.suppress(OSError):
            folders += [
                lock.parent
                for lock in sorted(place.glob(pattern))[:FOLDERS_MAX]
                # A first start has no journal yet.
                if (lock.parent / FILE).exists() or (lock.parent / SOCKET).exists()
            ]
    return folders + [folder for folder in folders_held() if folder not in folders]


# -- the socket


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, answer_s: float) -> None:
        super().__init__("localhost", timeout=CONNECT_S)
        self._path = path
        self._answer_s = answer_s

    def connect(self) -> None:
        from bot.operating_system import socket_name

        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_S)
        with socket_name(self._path) as name:
            self.sock.connect(name)
        self.sock.settimeout(self._answer_s)


@contextlib.contextmanager
def _notice_while_waiting(line: str) -> Iterator[None]:
    """Print `line` on standard error if the block takes longer than NOTICE_S."""
    timer = threading.Timer(NOTICE_S, lambda: click.echo(line, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _parsed(body: bytes) -> Any:
    """The JSON of an answer. ValueError for one that is too long: the rest of it is never read."""
    if len(body) > ANSWER_BYTES_MAX:
        raise ValueError(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
    return json.loads(body)


def _ask(
    place: Place,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    query: Mapping[str, Any] | None,
    within_s: float | None,
) -> Any:
    from urllib.parse import urlencode

    from bot.operating_system import is_stopped
    from bot.runtime.control_plane.control_address import FROM_MEMORY, SOCKET, answer_s
    from bot.runtime.journal.queries import Closed
    from bot.runtime.liveness.instance_lock import holder_pid

    target = path + (
        f"?{urlencode({name: value for name, value in query.items() if value is not None})}" if query else ""
    )
    if within_s is not None:
        wait_s = within_s
    else:
        wait_s = MEMORY_S if path in FROM_MEMORY else answer_s(path) + LONGER_S
    connection = _Connection(place.folder / SOCKET, wait_s)
    may_be_done = "" if method == "GET" else "; it may still carry out the command"
    try:
        with _notice_while_waiting(
            f"the daemon of {place.folder} has not answered yet; waiting for up to {wait_s:,.0f} s{may_be_done}"
        ):
            connection.request(method, target, body=None if body is None else json.dumps(dict(body)))
            answer = connection.getresponse()
            data = _parsed(answer.read(ANSWER_BYTES_MAX + 1))
    except PermissionError:
        raise Closed(place.folder) from None
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        if place.is_running():
            raise Silent(
                f"a daemon (pid {holder_pid(place.folder)}) holds {place.folder}, but its control socket does not"
                " exist: it is starting or ending, or the socket was removed and the daemon will restore it. Try again"
            ) from None
        raise NotRunning(f"the daemon of {place.folder} is not running") from None
    except (TimeoutError, OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        if not place.is_running():
            raise NotRunning(f"the daemon of {place.folder} ended before it answered") from None
        pid = holder_pid(place.folder)
        if is_stopped(pid):
            raise Hung(
                f"the daemon (pid {pid}) is stopped by a signal (SIGSTOP); kill -CONT {pid} resumes it{may_be_done}"
            ) from None
        raise Hung(
            f"the daemon (pid {pid}) did not answer ({type(error).__name__}){may_be_done}; its log: bot logs"
            f" {place.flag}"
        ) from None
    finally:
        connection.close()
    if answer.status == 200:
        return data
    failure = data.get("error", {}) if isinstance(data, dict) else {}
    message = str(failure.get("message") or f"HTTP {answer.status}")
    if failure.get("code") == "ConfigError":
        raise ConfigError(message)
    if answer.status == 504 or failure.get("code") in ("starting", "busy"):
        raise Silent(message)
    if failure.get("exit_code") == Exit.REFUSED:
        raise Declined(message)
    if failure.get("exit_code") == Exit.UNSAFE:
        raise JournalError(message)
    raise Denied(message) if answer.status in (400, 403, 404, 405) else DaemonRefused(message)
