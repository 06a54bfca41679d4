"""A config's name and the folder of its daemon's state, for commands that need no more of a config than these."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bot.errors import ConfigError

# a config is written by hand, and is small
FILE_BYTES_MAX: Final = 1_000_000


def name_of(path: Path) -> str:
    """A daemon's name when its config gives none: `configs/Paper (old).yaml` -> `paper-old`."""
    return re.sub(r"[^a-z0-9]+", "-", path.name.split(".")[0].lower()).strip("-")[:40] or "bot"


def default_state_dir(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """systemd's $STATE_DIRECTORY, else a folder of the config's name under the user's state folder."""
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    state = environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else home() / ".local" / "state") / "bot" / name


def home() -> Path:
    """This user's home folder. ConfigError for a user without one, such as a bare user id in a container."""
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError(
            "this user has no home folder: set HOME, or name the folder (state_dir, --state-dir)"
        ) from None
