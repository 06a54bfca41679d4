"""Locks of one daemon: its state directory and, on this machine, its account.

The operating system releases a lock when the process ends. Nothing here reads a config or knows a service.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import IO, Any, Final, NamedTuple, Protocol

from bot.clock import monotonic_ns
from bot.errors import BotError, ConfigError, JournalError
from bot.files import DISK_FAULTS
from bot.logs import log
from bot.operating_system import lock_holders

LOCK: Final = "lock"
# every daemon's folder contains one of these, also a copied one
OWN: Final = frozenset({LOCK, "journal.db", "sandbox.db"})
# folders that a new disk contains
UNUSED: Final = frozenset({"lost+found"})
# a start waits this long for processes that only test the lock (`is_free`), which takes microseconds
LOOKERS_S: Final = 5.0
# time between two attempts
LOOK_S: Final = 0.001
HOLDER_BYTES_MAX: Final = 4_096


class Lock:
    """A file that one process has locked exclusively. The lock ends with the process or by `close`."""

    def __init__(self, path: Path, mine: Mapping[str, Any]) -> None:
        """`mine` is written into the file after locking, to tell other processes who has the lock."""
        self.path = path
        self._mine = mine
        self._file: IO[bytes] | None = None
        # True: the log says that another process has the file's name
        self._is_lost_logged = False

    def take(self) -> Mapping[str, Any] | None:
        """Take the lock. Returns None if that worked, else what its holder wrote."""
        file = self.path.open("a+b")
        if not take(file):
            with file:
                return _holder_of(file)
        self._keep(file)
        return None

    async def look(self) -> None:
        """Restore a removed file: a lock on a file without a name keeps nobody out."""
        assert self._file is not None
        # The folder is gone or the disk is full; the next check tries again.
        with contextlib.suppress(OSError):
            if _is_at(self._file, self.path):
                return
            file = self.path.open("a+b")
            if not _taken(file, exclusive=True):
                file.close()
                if not self._is_lost_logged:
                    log.error(
                        "lock.lost",
                        path=str(self.path),
                        message="its file was removed, and another process has locked a new one",
                    )
                self._is_lost_logged = True
                return
            self._keep(file)
            log.warning("lock.restored", path=str(self.path))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, file: IO[bytes]) -> None:
        close_in_children(file)
        self.close()
        self._file, self._is_lost_logged = file, False
        self.path.chmod(0o600)
        # On a full disk the lock works but does not name its holder.
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps(self._mine).encode() + b"\n")


class Closable(Protocol):
    def close(self) -> None: ...


_OWN_FILES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def close_in_children(file: Closable) -> None:
    """Close a lock or listening socket in every forked child, which would otherwise keep it after this process ends.

    Executed children do not inherit them, because Python opens files with close-on-exec.
    """
    _OWN_FILES.add(file)


def _close_own_files() -> None:
    for file in list(_OWN_FILES):
        with contextlib.suppress(OSError):
            file.close()


os.register_at_fork(after_in_child=_close_own_files)


class HeldDirectory(NamedTuple):
    """Proof that this process holds a state directory, for functions that need one."""

    folder: Path
    lock: Lock


def private_dir(path: Path) -> Path:
    """Make the state directory accessible to its owner only.

    ConfigError for an existing folder with another purpose (`/tmp`, a home).
    """
    os.umask(0o077)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077 and _is_for_something_else(path):
            raise ConfigError(
                f"state_dir {path} exists, is open to others (mode {mode:04o}), and its files are not a daemon's. Name"
                f" another folder, or make this one private: chmod 700 {quote(str(path))}"
            )
        path.chmod(0o700)
    except OSError as error:
        # No config error, so that a service manager retries.
        if error.errno in DISK_FAULTS:
            raise JournalError(
                f"state_dir {path} cannot be written: {error.strerror}. Repair the disk; guardians and stops stay at"
                " the service."
            ) from error
        raise ConfigError(
            f"state_dir {path} cannot be used: {error.strerror or error}. Set state_dir to a folder that you may"
            " write (bot demo: --state-dir)."
        ) from error
    return path


def _is_for_something_else(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()} - UNUSED
    return bool(names) and not names & OWN


@contextlib.contextmanager
def hold_state(folder: Path) -> Iterator[HeldDirectory]:
    """Lock the folder before anything in it is changed: a second start must not take the first one's key.

    BotError if another daemon has it.
    """
    with contextlib.closing(Lock(folder / LOCK, {"pid": os.getpid()})) as lock:
        other = lock.take()
        if other is not None:
            if left := _left_behind(lock.path, other):
                raise BotError(f"{left} still locks {folder}: end it, then start again")
            pid = f" (pid {other['pid']})" if "pid" in other else ""
            raise BotError(
                f"another daemon runs on {folder}{pid}: stop it (bot stop --state-dir {quote(str(folder))}),"
                " or give this one a folder of its own (state_dir in the config; --state-dir of bot demo)"
            )
        yield HeldDirectory(folder, lock)


@contextlib.contextmanager
def noted(held: HeldDirectory, places: Path | None = None) -> Iterator[None]:
    """Note the folder for `folders_held` while the block runs. `places`: the folder of such notes; by default
    `runtime_dir`.

    A note locks nothing. The note of a killed daemon names a folder that no process has locked.
    """
    place = runtime_dir() if places is None else places
    if place is None:
        yield
        return
    note = place / f"state-{hashlib.sha256(os.fsencode(held.folder)).hexdigest()}.json"
    # On a full disk only --state-dir finds this daemon.
    with contextlib.suppress(OSError):
        note.write_text(json.dumps({"state_dir": str(held.folder)}), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink()


@contextlib.contextmanager
def hold_account(address: str, folder: Path, places: Path | None = None) -> Iterator[Lock | None]:
    """Lock the account, so that this user runs one daemon per account on this machine. `places`: the folder of such
    locks; by default `runtime_dir`. None if there is no such folder.
    """
    place = runtime_dir() if places is None else places
    if place is None:
        log.warning(
            "account.not_held",
            address=address,
            message="no private folder for locks, so a second daemon on this account would not be noticed",
        )
        yield None
        return
    path = place / f"account-{_file_name(address)}.lock"
    with contextlib.closing(Lock(path, {"pid": os.getpid(), "state_dir": str(folder)})) as lock:
        other = lock.take()
        if other is not None:
            if left := _left_behind(path, other):
                raise BotError(f"{left} still locks account {address}: end it, then start again")
            where = " on ".join(str(other[name]) for name in ("pid", "state_dir") if name in other)
            raise BotError(
                f"another daemon of yours trades account {address}{f' (pid {where})' if where else ''}:"
                " an account has one daemon; stop that one, or use another key"
            )
        yield lock


def is_held(folder: Path) -> bool:
    """True if a daemon has locked the folder now."""
    try:
        with (folder / LOCK).open("rb") as lock:
            return not is_free(lock)
    except OSError:
        return False


def holder_pid(folder: Path) -> int | None:
    """The pid of the process that has locked the folder, or of the last one that had. None if unknown."""
    path = folder / LOCK
    with contextlib.suppress(OSError), path.open("rb") as lock:
        pid = _holder_of(lock).get("pid")
        if not isinstance(pid, int):
            return None
        pids = lock_holders(path)
        return pid if not pids or pid in pids else pids[0]
    return None


def _left_behind(path: Path, written: Mapping[str, Any]) -> str:
    """Which process still has the lock of a daemon that has ended, in words;

    "" while the daemon runs. A child that C code forked can have it.
    """
    pid, pids = written.get("pid"), lock_holders(path)
    if not isinstance(pid, int) or pid in (pids or ()) or (not pids and _is_alive(pid)):
        return ""
    if pids is None:
        who = f"a process (pid not known on this system; lsof {quote(str(path))} may say it)"
    else:
        who = f"a process (pid {', '.join(map(str, pids))})" if pids else "a process of another user"
    return f"{who} that a daemon (pid {pid}) started and left running"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def folders_held(places: Path | None = None) -> list[Path]:
    """The state directories that this user's daemons have locked now, as far as they have noted them."""
    place = runtime_dir() if places is None else places
    folders = []
    for path in [] if place is None else sorted(place.glob("state-*.json")):
        with contextlib.suppress(OSError), path.open("rb") as note:
            folder = _holder_of(note).get("state_dir")
            if isinstance(folder, str) and is_held(Path(folder)):
                folders.append(Path(folder))
    return folders


def runtime_dir(environ: Mapping[str, str] = os.environ) -> Path | None:
    """A private folder of this user that is emptied at a reboot; None if there is none that can be trusted."""
    user = os.geteuid()
    given = environ.get("XDG_RUNTIME_DIR", "")
    places = [Path(given)] if given.startswith("/") else []
    places += [Path(f"/run/user/{user}")]
    # A folder that does not exist, or that a unit's ProtectHome= hides, is skipped.
    for place in places:
        if (folder := _private(place / "bot", user)) is not None:
            return folder
    return _private(Path(tempfile.gettempdir()) / f"bot-{user}", user)


def _private(place: Path, user: int) -> Path | None:
    """The folder, if it belongs to this user or can be made; another user may have made it first."""
    try:
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        status = place.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o022
    return place if is_ours and os.access(place, os.W_OK) else None


def _file_name(address: str) -> str:
    """The address as a file name. It comes from the service, so an address with special characters is hashed."""
    plain = re.fullmatch(r"[A-Za-z0-9]{1,80}", address, re.ASCII)
    return address.lower() if plain else hashlib.sha256(address.encode()).hexdigest()


def take(lock: IO[Any]) -> bool:
    """Lock the file exclusively;

    False if another process has done so. Processes that only test the lock are waited for.
    """
    end_ns = monotonic_ns() + int(LOOKERS_S * 1e9)
    while not _taken(lock, exclusive=True):
        if not is_free(lock):
            return False
        fcntl.flock(lock, fcntl.LOCK_UN)
        if monotonic_ns() > end_ns:
            return False
        time.sleep(LOOK_S)
    return True


def is_free(lock: IO[Any]) -> bool:
    """True if no process has locked the file exclusively.

    Until the file is closed no process can; tests do not block one another.
    """
    return _taken(lock, exclusive=False)


def _taken(lock: IO[Any], *, exclusive: bool) -> bool:
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    """True if the path still names this file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _holder_of(lock: IO[bytes]) -> dict[str, Any]:
    lock.seek(0)
    try:
        written = json.loads(lock.read(HOLDER_BYTES_MAX))
    except ValueError:
        return {}
    return written if isinstance(written, dict) else {}
