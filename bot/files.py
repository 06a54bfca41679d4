"""Checks of files that config, daemon and service share. Opens no file."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import Final

# Faults of a disk that is full, read-only or failing. A change of the config does not help; a later start may succeed.
DISK_FAULTS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def is_file(path: Path) -> bool:
    """True if the file exists. OSError if that cannot be seen, such as in a folder that this user may not enter."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
