"""What a check of `bot doctor` finds, and what all checks read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place
    from bot.config import Settings

ASK: Final = "run this as the user who runs the daemon, or as root (sudo)"

Level = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check. `fix` says what to do about a warning or a failure."""

    check: str
    level: Level
    message: str
    fix: str | None = None
    code: int = 0

    def __post_init__(self) -> None:
        assert self.level in ("ok", "skip") or self.fix, f"{self.check} has no fix"


@dataclass(slots=True)
class Facts:
    """What the checks read. A value is None until a check has read it, or if it could not be read."""

    place: Place
    settings: Settings | None = None
    references: Sequence[tuple[str, str]] = ()
    # The speed of the service's clock.
    speed: float | None = None


def exists(folder: Path) -> bool:
    """True if the folder exists and this user may see it."""
    with contextlib.suppress(OSError):
        return folder.exists()
    return False
