"""Which daemon a command means: its state directory, found from what was given or from where one runs; and the questions to its control socket.

A config is read here for its name and folder alone: its secrets may be out of an operator's reach, and are not looked up.
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

from bot.errors import BotError, ConfigError, Declined, Exit, JournalError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CONNECT_S: Final = 2.0
LONGER_S: Final = 10.0  # than the daemon takes for what is asked
MEMORY_S: Final = 8.0  # for an answer from memory; a strategy in C code may delay the daemon for seconds
UNTOLD_S: Final = 3.0  # of waiting for an answer, before that is said
SYSTEM_STATE: Final = Path("/var/lib")  # where systemd keeps the folders of system units
PROJECT: Final = "bot.yaml"  # the config of a project that `bot init` has made
TRIES_OF_A_NAME: Final = 200  # folders looked at; nobody has so many daemons


class NotRunning(BotError):
    """There is no daemon to ask."""

    exit_code = Exit.NOT_RUNNING


class Silent(BotError):
    """A daemon holds the folder and does not answer."""

    exit_code = Exit.TIMEOUT


class Hung(Silent):
    """It takes the question and says nothing at all."""


class Denied(BotError):
    """The daemon said no to what was asked."""

    exit_code = Exit.USAGE


class DaemonRefused(BotError):
    """What was asked came to nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon's folder. `config` when the command was given one, or found it."""

    folder: Path
    config: Path | None = None

    @property
    def flag(self) -> str:
        """What to give another command so that it means the same daemon."""
        name, path = ("--state-dir", self.folder) if self.config is None else ("--config", self.config)
        return f"{name} {quote(str(path))}"

    def is_running(self) -> bool:
        """Whether a daemon holds the folder. Closed where this user cannot see that."""
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
        """The answer of the daemon. NotRunning, Silent, or Denied with the daemon's words. `within_s`: not as long as the route may take."""
        return _ask(self, method, path, body, query, within_s)


def of_journal(place: Place, path: str, query: Mapping[str, Any], of_file: Callable[[], T]) -> Any | T:
    """The running daemon's answer, since it may know what its file does not; with the daemon dead or silent, what the file has."""
    try:
        return place.ask("GET", path, query=query)
    except NotRunning:
        click.echo(f"the daemon of {place.folder} is not running; this is its journal as it left it", err=True)
    except Silent as error:
        click.echo(f"{error}; this is what its journal has on disk", err=True)
    return of_file()


def where(command: F) -> F:
    """The two options that say which daemon is meant."""
    for option in (
        click.option(
            "--state-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=None,
            metavar="DIR",
            help="State directory of the daemon.",
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            default=None,
            metavar="CONFIG",
            help="Config of the daemon.",
        ),
    ):
        command = option(command)
    return command


def find(config: Path | None, state_dir: Path | None, *, dead_too: bool = False) -> Place:
    """The daemon that is meant: as given; else that of ./bot.yaml; else the one that runs, if it is one; else the only one there has been.

    Of several dead ones none is guessed: NotRunning, or wrong usage where the command does its work on a dead one too (`dead_too`).
    """
    if config is not None and state_dir is not None:
        raise click.UsageError("give --config or --state-dir, not both")
    if state_dir is not None:
        from bot.cli.operate.demo_folders import DemoFolder
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

    running = [one for one in known if is_held(one)]
    found = running or known
    if len(found) == 1:
        return Place(found[0])
    if not found:
        closed = [str(one) for one in sorted(SYSTEM_STATE.glob(unit_state("*"))) if is_closed(one)]
        unseen = f"; what runs in {', '.join(closed)} is for root to see (sudo)" if closed else ""
        raise NotRunning(
            f"no daemon has run here yet: start one (bot run CONFIG), or say where it is with --config or --state-dir{unseen}"
        )
    told = f"{'these run' if running else 'none runs, and these have been'}: {', '.join(map(str, found))}; say which with --state-dir or --config"
    if running or dead_too:
        raise click.UsageError(told)
    raise NotRunning(told)


def is_closed(folder: Path) -> bool:
    """Whether this user may not look into it: a state directory is for its owner alone."""
    from bot.runtime.journal.queries import Closed, is_there
    from bot.runtime.liveness.instance_lock import LOCK

    try:
        is_there(folder / LOCK)
    except Closed:
        return True
    return False


def _of_config(config: Path) -> Place:
    """The daemon of a config. One that is broken, or says another folder since, does not hide the daemon that was started with it."""
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
    """The daemon that runs and says that this file is its config."""
    from bot.runtime.liveness.instance_lock import is_held

    for folder in known_folders():
        one = Place(folder, config)
        with contextlib.suppress(BotError, OSError):
            if is_held(folder) and one.ask("GET", "/status").get("config") == str(config.absolute()):
                return one
    return None


def folder_of(config: Path) -> Path:
    """The state directory of a config. Without `state_dir` it is where its daemon runs or has run, as a user's or as a system unit.

    One that this user may not enter comes before a journal of another: its daemon may run, and nothing else is claimed in its place.
    """
    from bot.config.settings import default_state_dir
    from bot.runtime.journal.queries import FILE
    from bot.runtime.liveness.instance_lock import is_held

    name, given = outline(config)
    if given is not None:
        return given
    places = [default_state_dir(name), SYSTEM_STATE / unit_state(name)]
    for good in (is_held, is_closed, lambda one: (one / FILE).exists()):
        for one in places:
            with contextlib.suppress(OSError):
                if good(one):
                    return one
    return places[0]


def unit_state(name: str) -> str:
    """The folder of a unit's state, as StateDirectory= takes it."""
    return f"bot-{name}"


def outline(config: Path) -> tuple[str, Path | None]:
    """A config's name and its `state_dir`."""
    from bot.config.references import NO_HOME
    from bot.config.source import name_of

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
    """A config's data with its secrets still references. ConfigError when it is no config at all; what its keys are worth is not judged."""
    from bot.config.document import Document
    from bot.config.references import Referred
    from bot.config.source import FILE_BYTES_MAX

    try:
        text = config.read_text(encoding="utf-8-sig")[:FILE_BYTES_MAX]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    document = Document(str(config), text)
    document.read(lambda text, key: _plain(text, key, Referred))
    if document.data is None:
        raise ConfigError("\n".join(str(document.shown(one)) for one in document.problems))
    data: Mapping[str, Any] = document.data
    return data


def _plain(text: str, key: str, kind: Callable[[str], str]) -> str:
    """What the environment may fill is filled; a secret stays a reference that nobody follows."""
    import re

    from bot.logs import is_secret_name

    if is_secret_name(key):
        return kind(text)
    return kind(re.sub(r"\$\{env:([^{}]*)\}", lambda match: os.environ.get(match.group(1), match.group(0)), text))


def known_folders() -> list[Path]:
    """Folders in which a daemon runs or has run, of this user and of system units as far as they can be seen; of those elsewhere, where one runs."""
    from bot.config.settings import default_state_dir
    from bot.runtime.control_plane.server import SOCKET
    from bot.runtime.journal.queries import FILE
    from bot.runtime.liveness.instance_lock import folders_held

    found: list[Path] = []
    user = default_state_dir(
        "bot", {name: value for name, value in os.environ.items() if name != "STATE_DIRECTORY"}
    ).parent
    for place, pattern in ((user, "*/lock"), (user, "demo/*/lock"), (SYSTEM_STATE, "bot-*/lock")):
        with contextlib.suppress(OSError):
            found += [
                one.parent
                for one in sorted(place.glob(pattern))[:TRIES_OF_A_NAME]
                if (one.parent / FILE).exists() or (one.parent / SOCKET).exists()  # No journal: its first start waits.
            ]
    return found + [one for one in folders_held() if one not in found]


# -- the socket


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, answer_s: float) -> None:
        super().__init__("localhost", timeout=CONNECT_S)
        self._path = path
        self._answer_s = answer_s

    def connect(self) -> None:
        from bot.runtime.control_plane.server import reachable

        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_S)
        with reachable(self._path) as name:
            self.sock.connect(name)
        self.sock.settimeout(self._answer_s)


@contextlib.contextmanager
def _said_while(line: str) -> Iterator[None]:
    """A person who waits for long is told for what."""
    timer = threading.Timer(UNTOLD_S, lambda: click.echo(line, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _ask(
    place: Place, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any] | None, within_s: float | None
) -> Any:  # fmt: skip
    from urllib.parse import urlencode

    from bot.runtime.control_plane.server import FROM_MEMORY, SOCKET, answer_s
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
    goes_on = "" if method == "GET" else "; what was asked may be done when it goes on"
    try:
        with _said_while(
            f"the daemon of {place.folder} has not answered yet; waiting for up to {wait_s:,.0f} s{goes_on}"
        ):
            connection.request(method, target, body=None if body is None else json.dumps(dict(body)))
            answer = connection.getresponse()
            data = json.loads(answer.read())
    except PermissionError:
        raise Closed(place.folder) from None
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        if place.is_running():
            raise Silent(
                f"a daemon (pid {holder_pid(place.folder)}) holds {place.folder} and its control socket is not there: it is just starting or ending, or puts back one that was taken away; ask again"
            ) from None
        raise NotRunning(f"the daemon of {place.folder} is not running") from None
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
        if not place.is_running():
            raise NotRunning(f"the daemon of {place.folder} ended meanwhile") from None
        pid = holder_pid(place.folder)
        if _is_stopped(pid):
            raise Hung(
                f"the daemon (pid {pid}) is stopped (SIGSTOP): kill -CONT {pid} lets it go on{goes_on}"
            ) from None
        raise Hung(
            f"the daemon (pid {pid}) did not answer ({type(error).__name__}){goes_on}; its log: bot logs {place.flag}"
        ) from None
    finally:
        connection.close()
    if answer.status == 200:
        return data
    said = data.get("error", {}) if isinstance(data, dict) else {}
    message = str(said.get("message") or f"HTTP {answer.status}")
    if said.get("code") == "ConfigError":
        raise ConfigError(message)
    if answer.status == 504 or said.get("code") in ("starting", "busy"):
        raise Silent(message)
    if said.get("exit_code") == Exit.REFUSED:
        raise Declined(message)
    if said.get("exit_code") == Exit.UNSAFE:
        raise JournalError(message)
    raise Denied(message) if answer.status in (400, 403, 404, 405) else DaemonRefused(message)


def _is_stopped(pid: int | None) -> bool:
    """Whether a signal or a debugger has stopped the process. Linux alone says it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state in ("T", "t")
