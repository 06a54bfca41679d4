"""Finds what a strategy reads outside of its view. A proof of causality covers a closed list (PROVED) and cannot cut
anything else.

Python calls an audit hook for each file that Python code opens, each folder that it lists, each connection, each new
process and each mapped memory. A database counts even in memory, because it can attach a file. The hook does not see
files that native code opens (Arrow, Polars and DuckDB do), and data inside a Python module or an installed package do
not count. No audit event exists for the clock and the environment, so a profile function looks for their functions
among the calls of the strategy's own code.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from inspect import currentframe
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import bot
from bot.backtest.engine import bar_runs
from bot.logs import redact_text
from bot.operating_system import path_of
from bot.runtime.strategy_host import host, instance, loader
from bot.strategy import hook_answers

PROVED: Final = "candles, funding rates, params, the strategy's own code and recorded answers of agents"
# most reads that are kept; a single read makes the proof void
READS_MAX: Final = 20
NAME_MAX: Final = 200
CALLERS: Final = frozenset(
    {
        loader.load.__code__.co_filename,
        host.StrategyHost.decide.__code__.co_filename,
        bar_runs.BarRuns.decide.__code__.co_filename,
        instance.StrategyInstance.call.__code__.co_filename,
        hook_answers.intents_of.__code__.co_filename,
    }
)
_OURS: Final = str(Path(bot.__file__).parent) + os.sep
_STANDARD: Final = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_IMPORTING: Final = ("<frozen importlib.", "<frozen zipimport")
_CODE: Final = (".py", ".pyc", ".so", ".pyd")


# `time.localtime()` and `time.gmtime()` are missing: a profile function does not see whether a call gives them an
# instant.
_CLOCKS: Final[dict[object, str]] = {
    **{
        getattr(time, name): f"time.{name}"
        for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime")
    },
    **{getattr(datetime, name): f"datetime.{name}" for name in ("now", "utcnow", "today")},
    getattr(date, "today"): "date.today",  # noqa: B009 - the strategy's clock is named here, and not read
}


_ENVIRONMENT: Final = frozenset(
    getattr(type(os.environ), name).__code__ for name in ("__getitem__", "__iter__", "__len__", "copy", "__repr__")
)
_MAPPINGS: Final = frozenset({Mapping.get.__code__.co_filename, next(iter(_ENVIRONMENT)).co_filename})


class _Watch:
    """The only audit hook of this process;

    Python cannot remove it. `reads`: the reads so far; None while nothing is watched.
    """

    reads: list[str] | None = None
    is_hooked = False


@contextmanager
def watching() -> Iterator[list[str]]:
    """The outside reads while the block runs, as `reads FILE`, `connects to HOST` or `starts PROGRAM`: each once, in
    order.
    """
    if not _Watch.is_hooked:
        sys.addaudithook(_hook)
        _Watch.is_hooked = True
    before, _Watch.reads = _Watch.reads, []
    try:
        yield _Watch.reads
    finally:
        _Watch.reads = before


@contextmanager
def watching_clock(reads: list[str]) -> Iterator[None]:
    """Add `reads the clock (FUNCTION)` or `reads the environment` to `reads` when a strategy's own code does so.

    The block takes about twice as long.
    """

    def on_call(frame: FrameType, event: str, called: object) -> None:
        if event == "call":
            if frame.f_code in _ENVIRONMENT and len(reads) < READS_MAX:
                environment_read(frame)
            return
        if event == "c_call" and called in _CLOCKS and len(reads) < READS_MAX:
            text = f"reads the clock ({_CLOCKS[called]})"
            file = frame.f_code.co_filename
            is_known = text in reads or file.startswith(_OURS) or _is_standard(file) or _is_installed(file)
            if not is_known and _is_of_strategy(frame):
                reads.append(text)

    def environment_read(frame: FrameType) -> None:
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_filename in _MAPPINGS:
            caller = caller.f_back
        if caller is None or (text := "reads the environment") in reads:
            return
        file = caller.f_code.co_filename
        if not (file.startswith(_OURS) or _is_standard(file) or _is_installed(file)) and _is_of_strategy(caller):
            reads.append(text)

    before, before_in_threads = sys.getprofile(), threading.getprofile()
    sys.setprofile(on_call)
    threading.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    noted = _Watch.reads
    if noted is None or (describe := _EVENTS.get(event)) is None or len(noted) >= READS_MAX:
        return
    try:
        text = describe(*args)
    except Exception:  # noqa: BLE001 - an error of a hook would end the strategy's own call
        text = f"calls {event}"
    frame = currentframe()
    if text is not None and text not in noted and _is_of_strategy(None if frame is None else frame.f_back):
        noted.append(text)


def _is_of_strategy(frame: FrameType | None) -> bool:
    """True if a strategy's code runs in these frames, innermost first. False while Python imports a module for it.

    A loader that the strategy calls by itself (`get_data`) is no import.
    """
    is_foreign = is_ours = False
    # the newest code outside of the import system
    inner = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_IMPORTING):
            # A package may read its own files during its import.
            if frame.f_code.co_name == "_find_and_load" and (not inner or _is_installed(inner) or _is_standard(inner)):
                return False
        else:
            if file.startswith(_OURS):
                if is_foreign and file in CALLERS:
                    return True
                is_foreign, is_ours = False, True
            elif not _is_standard(file):
                is_foreign = True
            inner = file
        frame = frame.f_back
    # A call without a frame of the daemon comes from a thread of the strategy.
    return not is_ours


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and not _is_installed(file))


def _is_installed(file: str) -> bool:
    return any(part in file for part in _INSTALLED)


# ── The text for each audit event of Python ───────────────────────────────────────────────────────────────────────────


def _opened(path: Any, _mode: str | None, flags: int) -> str | None:
    if isinstance(path, int) or flags & os.O_ACCMODE == os.O_WRONLY:
        return None
    name = os.fsdecode(path)
    whole = os.path.abspath(name)  # noqa: PTH100 - a Path would cost more, and links are not followed
    if name.endswith(_CODE) or _is_standard(whole) or _is_installed(whole) or whole.startswith(zoneinfo.TZPATH):
        return None
    return f"reads {_shown(name)}"


def _connected_to_database(database: Any) -> str | None:
    name = os.fsdecode(database)
    return f"reads {_shown(name)}" if name not in ("", ":memory:") else "uses a database, which can attach a file"


def _listed(folder: Any = None, *_: Any) -> str:
    return f"lists {_shown(os.fsdecode('.' if folder is None or isinstance(folder, int) else folder))}"


def _mapped(descriptor: int, *_: Any) -> str | None:
    """A file that is mapped, or memory that another process has shared. Memory of its own has no descriptor."""
    return None if descriptor == -1 else f"reads {_shown(str(path_of(descriptor) or 'a mapped file'))}"


def _asked_for(url: Any, *_: Any) -> str:
    # The rest of the URL may hold a secret.
    return f"connects to {_shown(urlsplit(str(url)).hostname or 'a URL')}"


def _connected(_socket: Any, address: Any) -> str:
    host = address[0] if isinstance(address, tuple) else os.fsdecode(address)
    return f"connects to {_shown(str(host))}"


def _looked_up(host: Any, *_: Any) -> str:
    return f"connects to {_shown(host.decode(errors='replace') if isinstance(host, bytes) else str(host))}"


def _started(program: Any, *_: Any) -> str:
    # The arguments of the program may hold a secret.
    return f"starts {_shown(os.fsdecode(program))}"


def _forked(*_: Any) -> str:
    return "starts a process"


def _shown(name: str) -> str:
    text = redact_text(name)[:NAME_MAX]
    return text if text.isprintable() else ascii(text)


_EVENTS: Final[dict[str, Callable[..., str | None]]] = {
    "open": _opened,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "os.getxattr": lambda path, *_: f"reads {_shown(str(path))}",
    "mmap.__new__": _mapped,
    "builtins.input": lambda *_: "reads standard input",
    "ctypes.dlopen": lambda name, *_: f"calls native code ({_shown(str(name))})",
    "sqlite3.connect": _connected_to_database,
    "urllib.Request": _asked_for,
    "socket.connect": _connected,
    "socket.sendto": _connected,
    "socket.bind": _connected,
    "socket.getaddrinfo": _looked_up,
    "socket.gethostbyname": _looked_up,
    "subprocess.Popen": _started,
    "os.posix_spawn": _started,
    "os.exec": _started,
    "os.spawn": lambda _mode, program, *_: _started(program),
    "os.system": lambda _command: "starts a shell",
    "os.fork": _forked,
    "os.forkpty": _forked,
}
