"""The demo's folders: one a run, and a marker of the run that has not ended."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bot.clock import SystemClock, datetime_of

RUNS_KEPT: Final = 5  # of the demo, the newest; an older one's folder is removed


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

    def newest(self) -> Path | None:
        """The run that has not ended, else the last one; None when the folder is not a demo's."""
        kept = self.unfinished()
        return self.again(kept) if kept is not None else max(self._runs(), default=None)

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

    def tidy(self, run: Path) -> None:
        """Only this run and the newest others stay; its name is older than theirs where the clock was set back."""
        for old in sorted(one for one in self._runs() if one != run)[: 1 - RUNS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def _runs(self) -> list[Path]:
        return [one for one in self.folder.iterdir() if re.fullmatch(r"\d{8}-\d{6}-\d{3}", one.name) and one.is_dir()]

    def _mark(self, what: Mapping[str, Any]) -> None:
        part = self._marker.with_suffix(".part")
        part.write_text(json.dumps(what))
        part.replace(self._marker)
