"""Makes a process private: its files and its memory are for its owner only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from typing import Final

PR_GET_DUMPABLE: Final = 3
PR_SET_DUMPABLE: Final = 4


def harden() -> None:
    """Make the process private: files for the owner only, no core file, no debugger, because its memory contains a
    key.
    """
    os.umask(0o077)
    # A service manager may have set a limit that cannot be changed.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
