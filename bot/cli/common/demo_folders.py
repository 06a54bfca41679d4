"""The demo's folders: one for each run, and a marker file that names the unfinished run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bot.clock import SystemClock, datetime_of
from bot.files import write_private

# the folders of older runs are removed
RUNS_KEPT: Final = 5


class DemoFolder:
    """The folder that holds one folder for each run of the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marker = folder / "unfinished.json"

    def unfinished(self) -> dict[str, Any] | None:
        """The marker of the last run if that run was killed; None if it ended by itself."""
        try:
            marker = json.loads(self._marker.read_text())
        except (OSError, ValueError):
            return None
        return marker if isinstance(marker, dict) and (self.folder / str(marker.get("run"))).is_dir() else None

    def newest(self) -> Path | None:
        """The folder of the unfinished run, else of the last one; None if this folder is not a demo's."""
        kept = self.unfinished()
        return self.again(kept) if kept is not None else max(self._runs(), default=None)

    def begin(self, **what: Any) -> Path:
        """Create the folder of a new run and mark the run as unfinished."""
        name = datetime_of(SystemClock().now_ms()).strftime("%Y%m%d-%H%M%S-%f")[:-3]
        run = self.folder / name
        run.mkdir(mode=0o700)
        self._mark({"run": name, **what})
        return run

    def again(self, kept: Mapping[str, Any]) -> Path:
        return self.folder / str(kept["run"])

    def ended(self) -> None:
        self._marker.unlink(missing_ok=True)

    def tidy(self, run: Path) -> None:
        """Keep this run and the newest others. Its name may sort before theirs, if the clock was set back."""
        for old in sorted(folder for folder in self._runs() if folder != run)[: 1 - RUNS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def _runs(self) -> list[Path]:
        return [
            folder
            for folder in self.folder.iterdir()
            if re.fullmatch(r"\d{8}-\d{6}-\d{3}", folder.name) and folder.is_dir()
        ]

    def _mark(self, what: Mapping[str, Any]) -> None:
        write_private(self._marker, json.dumps(what).encode())
