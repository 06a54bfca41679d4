"""The proof of each day: when it is due, the daemon has `bot proof` prove the UTC day before, in a process of its own.

The process lowers its priority and bounds its memory and its processor time. It reads the journal and writes a file
(proof_files.py). It gets no secret. A daemon that stops ends it; the next run begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bot.clock import DAY_MS, MINUTE_MS, iso, utc_day_start_ms
from bot.logs import log, redact_text
from bot.plain_text import one_line
from bot.runtime.alerts.messages import notice
from bot.runtime.journal import proof_files
from bot.runtime.strategy_host import fingerprints

if TYPE_CHECKING:
    from bot.config import Settings
    from bot.runtime.journal.journal import Journal

# Real time between two looks at the clock.
LOOK_S: Final = 5.0
# Real time for one proof. Its processor time has a bound of its own.
WITHIN_S: Final = 1_800.0
# Real time before a proof that failed is tried again, once.
AGAIN_MS: Final = 10 * MINUTE_MS
TRIES_MAX: Final = 2
# The end of a process whose time is over, or whose daemon stops.
END_S: Final = 1.0
# What the process needs of the daemon's environment; the rest may hold secrets.
KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "STATE_DIRECTORY", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
# its exit codes: each difference has a cause, or some are unknown
PROVED: Final = (0, 1)

Command = Callable[[str], Sequence[str]]


class DailyProof:
    """`look` is called between two passes; it starts the process that is due. `failure`: why the newest day has no
    proof.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        journal: Journal,
        *,
        now_ms: Callable[[], int],
        mono_ms: Callable[[], int],
        command: Command,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._now_ms = now_ms
        self._mono_ms = mono_ms
        self._command = command
        self.failure: str | None = None
        # set by the scheduler when it is time to look
        self.due = asyncio.Event()
        self._day = ""
        self._tries = 0
        self._again_ms = 0
        self._task: asyncio.Task[None] | None = None

    def look_when(self, due: asyncio.Event) -> None:
        """`look` does something only when this event is set."""
        self.due = due

    def look(self, *, is_stopping: bool = False) -> None:
        section = self._settings().proof
        if section is None or not self.due.is_set() or is_stopping or self._journal.fault is not None:
            return
        self.due.clear()
        if self._task is not None and not self._task.done():
            return
        day_ms = utc_day_start_ms(self._now_ms() - section.at_ms) - DAY_MS
        day = iso(day_ms)[:10]
        if day != self._day:
            self._day, self._tries, self._again_ms = day, 0, 0
        if self._tries >= TRIES_MAX or self._mono_ms() < self._again_ms:
            return
        if not self._was_lived(day_ms) or self._is_proved(day):
            self._tries = TRIES_MAX
            return
        self._tries += 1
        self._again_ms = self._mono_ms() + AGAIN_MS
        self._task = asyncio.create_task(self._prove(day), name="proof")

    async def close(self) -> None:
        """End the proof that is under way."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _was_lived(self, day_ms: int) -> bool:
        """True if a daemon of this journal was started before the day's end."""
        marks = fingerprints.marks_in(self._journal.state.note(fingerprints.NOTE))
        return bool(marks) and marks[0]["atMs"] < day_ms + DAY_MS

    def _is_proved(self, day: str) -> bool:
        """True if the day has a proof that was made after the day had ended."""
        document = proof_files.read_proof(self._settings().state_dir, day)
        return document is not None and document.get("isWhole") is True

    async def _prove(self, day: str) -> None:
        log.info("proof.started", day=day)
        code, said = await _run(self._command(day))
        document = proof_files.read_proof(self._settings().state_dir, day) if code in PROVED else None
        if document is None:
            self.failure = f"the proof of {day} failed: {said or f'its process ended with code {code}'}"
            log.warning("proof.failed", day=day, message=self.failure)
            return
        self.failure = None
        message = summary_of(document)
        log.info("proof.done", day=day, message=message)
        now_ms = self._now_ms()
        written = notice("proof.done", f"proof:{day}", at_ms=now_ms, message=message)
        self._journal.notify([written], now_ms=now_ms)


def summary_of(document: Mapping[str, Any]) -> str:
    """A proof in one sentence."""
    share, causes = document.get("equalShare"), document.get("causes") or {}
    equal = "nothing was decided" if share is None else f"{share:.2%} of the decisions equal the test"
    words = ", ".join(f"{cause} {count:,}" for cause, count in causes.items())
    return f"{document['day']}: {equal}; {f'differences: {words}' if words else 'no difference'}"


def unknown_in(state_dir: Path) -> str | None:
    """What the newest proof could not explain, as a sentence; None if there is nothing."""
    try:
        # A new proof is renamed into the folder, which changes its time.
        written_ns = (state_dir / proof_files.FOLDER).stat().st_mtime_ns
    except OSError:
        return None
    return _unknown_in(state_dir, written_ns)


@lru_cache(maxsize=1)
def _unknown_in(state_dir: Path, _written_ns: int) -> str | None:
    days = proof_files.days(state_dir)
    document = proof_files.read_proof(state_dir, days[-1]) if days else None
    unknown = 0 if document is None else (document.get("causes") or {}).get("unknown", 0)
    if not unknown:
        return None
    return f"{unknown:,} of the differences of {days[-1]} to the test have no known cause; bot proof --day {days[-1]}"


def command_of(config: Path | None, state_dir: Path) -> Command:
    """The command that proves a day of this daemon."""
    place = ("--config", str(config.absolute())) if config is not None else ("--state-dir", str(state_dir))
    return lambda day: (sys.executable, "-m", "bot", "proof", *place, "--day", day, "--bounded", "--json")


async def _run(command: Sequence[str]) -> tuple[int | None, str]:
    """The exit code of a process and the last line of its errors. None: its time was over."""
    package = str(Path(__file__).resolve().parents[3])
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=kept | {"PYTHONPATH": package, "PYTHONSAFEPATH": "1"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            _, errors = await process.communicate()
    except TimeoutError:
        return None, f"it did not end within {WITHIN_S / 60:g} min"
    finally:
        await _ended(process)
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return process.returncode, redact_text(one_line(lines[-1])).removeprefix("error: ") if lines else ""


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()
