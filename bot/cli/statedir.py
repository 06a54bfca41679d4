"""The state directory as the command line uses it: one run a folder, and the demo's folders of runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bot.clock import SystemClock, datetime_of
from bot.errors import BotError

RUNS_KEPT: Final = 5  # of the demo, the newest; an older one's folder is removed


@contextlib.contextmanager
def one_run(folder: Path) -> Iterator[None]:
    """Hold the folder for this process, before anything in it is touched: a second start must not take the first one's key."""
    with (folder / "run.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read(20).strip()
            raise BotError(
                f"another bot runs on {folder}{f' (pid {pid})' if pid else ''}: stop it, or give this one a state directory of its own"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


class DemoFolder:
    """Runs of the demo: one folder each, and a marker of the run that has not ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marker = folder / "unfinished.json"

    def unfinished(self) -> dict[str, Any] | None:
        """What the last run was, when it was killed; None when it ended by itself."""
        try:
            found = json.loads(self._marker.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and (self.folder / str(found.get("run"))).is_dir() else None

    def begin(self, **what: Any) -> Path:
        """A new run's folder, with the marker set."""
        name = datetime_of(SystemClock().now_ms()).strftime("%Y%m%d-%H%M%S-%f")[:-3]
        run = self.folder / name
        run.mkdir(mode=0o700)
        self._mark({"run": name, **what})
        return run

    def again(self, kept: Mapping[str, Any]) -> Path:
        return self.folder / str(kept["run"])

    def ended(self) -> None:
        self._marker.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Only the newest runs stay."""
        runs = sorted(
            one for one in self.folder.iterdir() if one.is_dir() and re.fullmatch(r"\d{8}-\d{6}-\d{3}", one.name)
        )
        for old in runs[:-RUNS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def _mark(self, what: Mapping[str, Any]) -> None:
        part = self._marker.with_suffix(".part")
        part.write_text(json.dumps(what))
        part.replace(self._marker)
