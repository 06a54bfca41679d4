"""A reserve of file descriptors for the daemon's own work, so that a strategy that leaks files does not stop it.

The control socket, the journal, the heartbeat and a new connection to the service must always get a descriptor. So the
soft limit of the process is lowered, and `reserved` raises it to the original limit while the daemon opens a file or a
connection of its own.
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
# the reserve is at most a quarter of the limit: with `ulimit -n 64` the rest of the process needs the others
SHARE: Final = 4
USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Reserve:
    """The descriptor limit of this process. Use one instance for each process; it is safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # blocks of `used` that are open
        self._users = 0
        # soft limits, with the reserve and without; 0 until `keep`
        self._whole = self._usual = 0

    def keep(self) -> None:
        """Set the reserve aside, also if other code has changed the limit since the last call. Cheap if not."""
        with self._lock:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft in (self._whole if self._users else self._usual, resource.RLIM_INFINITY):
                return
            self._whole, self._usual = soft, soft - min(RESERVED, soft // SHARE)
            if not self._users:
                self._set(self._usual)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While the block runs, the process may use the reserve.

        Keep the block short, because other threads may use it too.
        """
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
        # If other code has changed the limit, `keep` starts again from the new one.
        if soft in (self._usual, self._whole):
            # The hard limit may have been lowered since.
            with contextlib.suppress(ValueError, OSError):
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
        for descriptor in opened:
            os.close(descriptor)
    return len(opened)
