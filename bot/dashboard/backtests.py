"""The folder of backtests: its runs, their reports, the comparison of two, and one backtest that is started from the
browser.

Reports, comparisons and backtests are made by the commands themselves (`bot report`, `bot compare`, `bot backtest`),
each in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bot.clock import SystemClock
from bot.files import OutsideFolder, inside

Data = dict[str, Any]

# newest, in the list
RUNS_MAX: Final = 200
# each a few megabytes
REPORTS_KEPT: Final = 4
# time for a report or a comparison
WITHIN_S: Final = 120.0
# The characters of a field of the form.
TEXT_MAX: Final = 300


class NoRun(Exception):
    """There is no such run, or its report cannot be made; the message says why."""


class Job:
    """A backtest that was started here. `ended` is its exit code."""

    def __init__(self, command: list[str], at_ms: int) -> None:
        self.command = command
        self.at_ms = at_ms
        self.ended: int | None = None
        self.last = "starting"
        self.task: asyncio.Task[None] | None = None


class Backtests:
    """`folder` is where `bot backtest` puts its results; backtests run in the folder above it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: Job | None = None
        self._summaries: dict[Path, tuple[int, Data]] = {}
        self._reports: dict[tuple[str, int], bytes] = {}

    async def summaries(self) -> list[tuple[str, int, Data]]:
        """(name, when it was written in ms, summary) of each run, newest first."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[tuple[str, int, Data]]:
        runs = []
        with suppress(OSError):
            for path in self.folder.glob("*/summary.json"):
                # A run that is a link is left out: OutsideFolder is a ValueError.
                with suppress(OSError, ValueError):
                    inside(self.folder, f"{path.parent.name}/{path.name}")
                    at_ns = path.stat().st_mtime_ns
                    if self._summaries.get(path, (0, {}))[0] != at_ns:
                        self._summaries[path] = (at_ns, json.loads(path.read_text(encoding="utf-8")))
                    runs.append((path.parent.name, at_ns // 1_000_000, self._summaries[path][1]))
        return sorted(runs, key=lambda run: run[1], reverse=True)[:RUNS_MAX]

    def _folder_of(self, name: str) -> Path:
        """The folder of a run that the list has. A name with a path in it is none."""
        for path in self.folder.glob("*/summary.json"):
            if path.parent.name == name:
                with suppress(OutsideFolder):
                    return inside(self.folder, f"{name}/{path.name}").parent
        raise NoRun(f"{self.folder} has no run {name}")

    async def report(self, name: str) -> bytes:
        """The page of `bot report`, made once for each state of the run."""
        folder = self._folder_of(name)
        key = (name, (folder / "summary.json").stat().st_mtime_ns)
        if key not in self._reports:
            with tempfile.TemporaryDirectory(prefix="bot-report-") as place:
                out = Path(place) / "report.html"
                await self._run("report", f"--out={out}", "--", str(folder))
                page = out.read_bytes()
            while len(self._reports) >= REPORTS_KEPT:
                del self._reports[next(iter(self._reports))]
            self._reports[key] = page
        return self._reports[key]

    async def comparison(self, first: str, second: str) -> Data:
        """The answer of `bot compare --json`."""
        answer: Data = json.loads(
            await self._run("compare", "--json", "--", str(self._folder_of(first)), str(self._folder_of(second)))
        )
        return answer

    async def _run(self, *arguments: str) -> bytes:
        process = await _started(arguments, stderr=asyncio.subprocess.PIPE)
        try:
            out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
        except TimeoutError:
            process.kill()
            raise NoRun(f"bot {arguments[0]} has not ended within {WITHIN_S:g} s") from None
        if process.returncode:
            raise NoRun(_last_line(err) or f"bot {arguments[0]} ended with code {process.returncode}")
        return out

    def start(self, config: str, form: Mapping[str, str]) -> str | None:
        """Start a backtest of a config.

        Returns why not, or None. The backtest goes on until it ends, or with the dashboard.
        """
        if self.job is not None and self.job.ended is None:
            return "a backtest runs already; wait for its end"
        data, given = (
            form.get("data", "").strip(),
            {name: form.get(name, "").strip() for name in ("from", "to", "balance")},
        )
        if not data:
            return "name the candles: a file, or a folder such as data"
        if any(len(text) > TEXT_MAX or "\0" in text for text in (data, *given.values())):
            return f"a field has at most {TEXT_MAX} characters"
        options = [f"--{name}={text}" for name, text in given.items() if text]
        command = ["backtest", f"--data={data}", *options, f"--out={self.folder}", "--", config]
        self.job = Job(command, SystemClock().now_ms())
        self.job.task = asyncio.create_task(self._follow(self.job), name="backtest")
        return None

    async def _follow(self, job: Job) -> None:
        process = await _started(job.command, stderr=asyncio.subprocess.STDOUT, cwd=self.folder.parent)
        assert process.stdout is not None
        try:
            job.last = "running"
            tail = b""
            while part := await process.stdout.read(4096):
                tail = (tail + part)[-4096:]
                job.last = _last_line(tail) or job.last
            job.ended = await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def close(self) -> None:
        """End the backtest that runs."""
        if self.job is not None and self.job.task is not None:
            self.job.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.job.task


async def _started(arguments: Sequence[str], **more: Any) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "bot", *arguments)
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=null, stdout=pipe, **more)


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode(errors="replace").replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else ""
