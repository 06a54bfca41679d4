"""What config, daemon and service ask of files alike. Nothing is opened here."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import Final

# Of a disk that is full, read-only or failing: nothing that a config could mend, and a later start may find it mended.
DISK_FAULTS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def is_file(path: Path) -> bool:
    """Whether there is such a file. OSError where that cannot be seen: a folder that this user may not enter says nothing of what is in it."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
