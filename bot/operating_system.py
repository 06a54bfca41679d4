"""What operating systems do not have in common: each call that only Linux has, and what is done without it.

Only this module makes such calls (tests/test_operating_system.py). Without one, the program does the same by other
means, or answers None: not known here. A call counts as absent if Python lacks its name or the kernel refuses it.

| Linux | Elsewhere |
|---|---|
| prctl(PR_SET_DUMPABLE) | no core file, and the memory is as private as the system keeps it |
| prctl(PR_SET_PDEATHSIG), pidfd_open | a thread looks each second whether the parent lives |
| SO_PEERCRED | None: the folder's permissions alone say who may connect |
| posix_fallocate | zeros are written |
| mallopt | the C library keeps freed memory as it likes |
| /proc/self/fd as a short name of a folder | a link in the folder for temporary files |
| /proc: boot id, holders of a lock, a stopped process, the name of a descriptor | None |
| CLOCK_BOOTTIME | on macOS its clock that goes on in sleep; else the monotonic clock |
| fsync writes through to the disk | on macOS F_FULLFSYNC does |

macOS is untried: the tests take the calls away on Linux.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

IS_LINUX: Final = sys.platform == "linux"
# The bytes of a Unix socket's name; BSD and macOS have four less.
SOCKET_NAME_MAX: Final = 107 if IS_LINUX else 103
# from <sys/prctl.h>
PR_SET_PDEATHSIG: Final = 1
PR_GET_DUMPABLE: Final = 3
PR_SET_DUMPABLE: Final = 4
# from <malloc.h>
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
# between two looks at the parent, where the system reports no end of a process
LOOK_S: Final = 1.0
ZEROS: Final = bytes(64 * 1024)
# how a kernel or a file system says that it lacks a call
UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM})
_CREDENTIALS: Final = struct.Struct("3i")
_PROC: Final = Path("/proc")


def _libc_call(name: str, *values: int) -> int | None:
    """What a function of the C library returns; None if the library lacks it."""
    import ctypes

    try:
        returned: int = getattr(ctypes.CDLL(None), name)(*values)
    except (OSError, AttributeError, TypeError):
        return None
    return returned


# -- Processes


def harden() -> None:
    """Make the process private: files for the owner only, no core file, no debugger, because its memory contains a
    key.
    """
    os.umask(0o077)
    # A service manager may have set a limit that cannot be changed.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hide_memory()


def hide_memory() -> None:
    """No core file and no debugger of the same user, where the system can forbid them."""
    if IS_LINUX:
        _libc_call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit_work(cpu_s: int, memory_bytes: int) -> None:
    """End this process after so much work; the limit on memory holds only where the system has one."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    with contextlib.suppress(AttributeError, OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def die_with_parent(parent: int) -> None:
    """End this process with its parent, also while it runs C code, if the system can do that."""
    if not IS_LINUX or _libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        watch_parent(parent)
    # It ended before that.
    elif os.getppid() != parent:
        raise SystemExit(0)


def watch_parent(parent: int) -> None:
    """End this process when its parent has ended, also by kill -9: a thread waits for that."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="parent").start()


def _end_with(parent: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(parent)
        # Otherwise the number may be another process's by now.
        if os.getppid() == parent:
            select.select([descriptor], [], [])
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def is_stopped(pid: int | None) -> bool | None:
    """True if a signal or a debugger has stopped the process. None if that is not known here."""
    try:
        state = (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return None
    return state in ("T", "t")


def lock_holders(path: Path) -> list[int] | None:
    """The processes that have locked the file exclusively, of those that this user may inspect. None if that is not
    known here.
    """
    pids = []
    with contextlib.suppress(OSError):
        wanted = path.stat()
        processes = [folder for folder in _PROC.iterdir() if folder.name.isdigit()]
        if not processes:
            return None
        for process in processes:
            with contextlib.suppress(OSError):
                if any(_locks(process, file, wanted) for file in (process / "fd").iterdir()):
                    pids.append(int(process.name))
        return sorted(pids)
    return None


def _locks(process: Path, file: Path, wanted: os.stat_result) -> bool:
    # Closed meanwhile.
    with contextlib.suppress(OSError):
        if os.path.samestat(file.stat(), wanted):
            lines = (process / "fdinfo" / file.name).read_text().splitlines()
            return any(line.startswith("lock:") and " FLOCK " in line and " WRITE " in line for line in lines)
    return False


def listing_of_files(pid: int) -> str:
    """The command that lists the open files of a process."""
    return f"ls -l /proc/{pid}/fd" if _PROC.joinpath("self").exists() else f"lsof -p {pid}"


# -- Memory and clocks


def map_large_blocks(bytes_min: int, *, trims: bool = False) -> None:
    """Let malloc take blocks of this size or more straight from the system and return them at once; `trims`: the end of
    its heap, too. See mallopt(3).
    """
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD) if trims else (M_MMAP_THRESHOLD,):
        _libc_call("mallopt", option, bytes_min)


def sleeping_clock() -> int | None:
    """The number of a clock that no one sets and that goes on while the machine sleeps; None if there is none here."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None and sys.platform == "darwin":
        clock = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    return clock


def kernel_boot_id() -> str | None:
    """The kernel's id of this boot of the machine. None if it is not known here."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


# -- Files and sockets


def sync_descriptor(descriptor: int) -> None:
    """Wait until the file is on disk. OSError if the disk fails."""
    if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        # A file system may lack it.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def reserve_bytes(descriptor: int, size: int) -> None:
    """Let the file have `size` bytes on disk now; its content stays. OSError if the disk is full."""
    with contextlib.suppress(AttributeError):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        else:
            return
    at = os.fstat(descriptor).st_size
    while at < size:
        at += os.pwrite(descriptor, ZEROS[: size - at], at)


def path_of(descriptor: int) -> Path | None:
    """The path of an open file. None if it is not known here."""
    try:
        return (_PROC / "self" / "fd" / str(descriptor)).readlink()
    except OSError:
        return None


def peer_uid(connection: Any) -> int | None:
    """The user id of the process at the other end of a Unix socket. None if it is not known here."""
    try:
        option = socket.SO_PEERCRED
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except (AttributeError, OSError):
        return None
    return int(uid)


@contextlib.contextmanager
def socket_name(path: Path) -> Iterator[str]:
    """A name for the socket that is short enough for an address, however deep its folder is."""
    if len(os.fsencode(path)) <= SOCKET_NAME_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if path_of(folder) is not None:
            yield f"/proc/self/fd/{folder}/{path.name}"
            return
        with tempfile.TemporaryDirectory(prefix="bot-") as place:
            link = Path(place, "d")
            link.symlink_to(path.parent.absolute())
            yield f"{link}/{path.name}"
    finally:
        os.close(folder)
