"""File descriptors: a reserve that the daemon's own work may use when everything else in the process has used up the rest.

A process has one table of descriptors, and a strategy that leaks files fills it. The control socket, the journal, the heartbeat and a new
connection to the service must still get one. So the soft limit of the process stands below what the process was given, and `reserved`
raises it while the daemon opens something of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from typing import Final

RESERVED: Final = 32
SHARE: Final = (
    4  # the reserve is at most a quarter of the limit: with `ulimit -n 64` the rest of the process needs the others
)
USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Reserve:
    """The limit of this process. There is one in a process; threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0  # blocks of `used` that are open
        self._whole = self._usual = 0  # soft limits, with the reserve and without; 0 until `keep`

    def keep(self) -> None:
        """Set the reserve aside, also when the limit was changed from outside since the last call. Cheap when it was not."""
        with self._lock:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft in (self._whole if self._users else self._usual, resource.RLIM_INFINITY):
                return
            self._whole, self._usual = soft, soft - min(RESERVED, soft // SHARE)
            if not self._users:
                self._set(self._usual)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While the block runs, the process may open as many descriptors as it was given. Keep it short: other threads may, too."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._set(self._whole)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._set(self._usual)

    def _set(self, limit: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft in (self._usual, self._whole):  # Else somebody has changed it, and `keep` begins anew from there.
            with contextlib.suppress(ValueError, OSError):  # Above a hard limit that was lowered since.
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


_reserve = Reserve()
keep_reserve = _reserve.keep
reserved = _reserve.used


def free(at_most: int) -> int:
    """How many descriptors the process can open now without its reserve, counted up to `at_most`."""
    opened: list[int] = []
    try:
        while len(opened) < at_most:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in USED_UP:
            raise
    finally:
        for one in opened:
            os.close(one)
    return len(opened)
