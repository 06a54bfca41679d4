"""The clock watch notices that the host was suspended, that the wall clock jumped, or that it differs from the
service's clock.

It only compares and remembers; the daemon calls it and reads the account again after a lapse. No deadline depends on
the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bot.clock import HOUR_MS, SystemClock, boot_ns, monotonic_ns
from bot.errors import Refusal
from bot.logs import log
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.state_store import is_number

# if boot time gained more on monotonic time, the host was suspended
SUSPEND_MS: Final = 1_000
# change of the wall clock against boot time between two checks; NTP slews far slower
JUMP_MS: Final = 2_000
SKEW_WARN_MS: Final = 2_000
SKEW_STOP_MS: Final = 30_000
# notes of the journal
BOOT_ID: Final = "boot_id"
WALL_HIGH: Final = "wall_high_ms"
# in the year 2286
WALL_MAX_MS: Final = 10**13


class ClockWatch:
    """`skew_ms`: lead of the service's clock over ours; None if unknown, or if our clock follows it. `stale` counts
    answers of the service without a usable time, because they came from a cache.
    """

    def __init__(
        self,
        *,
        skew_ms: Callable[[], int | None] = lambda: None,
        boot_ns: Callable[[], int] = boot_ns,
        mono_ns: Callable[[], int] = monotonic_ns,
        wall_ms: Callable[[], int] | None = None,
        stale: Callable[[], int] = lambda: 0,
    ) -> None:
        self._skew_ms = skew_ms
        self._stale = stale
        self._has_logged_stale = False
        self._clocks = (boot_ns, mono_ns, SystemClock().now_ms if wall_ms is None else wall_ms)
        self._seen = self._read()
        self.lapses = 0
        self._acknowledged = 0
        self._level = 0

    def look(self) -> int:
        """Compare the clocks with the last check; returns the number of lapses so far."""
        before, self._seen = self._seen, self._read()
        boot, mono, wall = (now - then for now, then in zip(self._seen, before, strict=True))
        if boot - mono > SUSPEND_MS:
            self.lapses += 1
            log.warning("clock.suspended", seconds=round((boot - mono) / 1000, 1))
        elif abs(wall - boot) > JUMP_MS:
            self.lapses += 1
            log.warning("clock.jumped", seconds=round((wall - boot) / 1000, 1))
        self._log_skew()
        self._log_stale()
        return self.lapses

    @property
    def lapsed(self) -> bool:
        """True if the known account, guardians and events may be out of date.

        They are read again before anything is opened.
        """
        return self.lapses > self._acknowledged

    def acknowledge(self, lapses: int) -> None:
        """Mark lapses as handled.

        `lapses` is what `look` returned before the account was read, so that a later lapse counts.
        """
        self._acknowledged = max(self._acknowledged, lapses)

    def lease(self) -> Refusal | None:
        """Why nothing may be sent after a lapse.

        Compares the clocks first, because the host may have woken up just now.
        """
        self.look()
        if not self.lapsed:
            return None
        return Refusal(
            "clock_lapsed", "the host slept or its clock jumped; the account is read again first", {"action": "wait"}
        )

    def schedule(self) -> Refusal | None:
        """Why no timer may open a position: our clock and the service's differ too much to know what is due."""
        problem = self.skew_problem
        return None if problem is None else Refusal("clock_skewed", problem, {"action": "wait"})

    @property
    def skew_problem(self) -> str | None:
        skew_ms = self._skew_ms()
        if skew_ms is None or abs(skew_ms) <= SKEW_STOP_MS:
            return None
        return f"this machine's clock is {_in_words(skew_ms)} the service's; set it right (NTP)"

    def _log_skew(self) -> None:
        skew_ms = self._skew_ms() or 0
        level = 2 if abs(skew_ms) > SKEW_STOP_MS else 1 if abs(skew_ms) > SKEW_WARN_MS else 0
        if level != self._level:
            self._level = level
            write = (log.info, log.warning, log.error)[level]
            write(
                "clock.skew",
                skew_ms=skew_ms,
                message=None if level == 0 else f"this machine's clock is {_in_words(skew_ms)} the service's",
            )

    def _log_stale(self) -> None:
        """Warn once about cached answers."""
        if self._stale() > 0 and not self._has_logged_stale:
            self._has_logged_stale = True
            log.warning(
                "clock.stale_answers",
                message=(
                    "a proxy on the way to the service answers from a cache, so its answers may be out of date. The"
                    " daemon does not take their Date for the time. Remove the cache between the daemon and its service"
                ),
            )

    def _read(self) -> tuple[float, float, float]:
        boot, mono, wall = self._clocks
        return boot() / 1e6, mono() / 1e6, float(wall())


def _in_words(skew_ms: int) -> str:
    return f"{abs(skew_ms) / 1000:.1f} s {'behind' if skew_ms > 0 else 'ahead of'}"


def expire_held(journal: Journal, *, wall_ms: int, boot_id: str) -> int:
    """Expire unsent entries at a start after a reboot if the wall clock is behind a stored instant; returns how many.

    Their age is unknown then. An entry that may have been sent stays in doubt: the service's fence decides on it. A
    boot without an id counts as a reboot.
    """
    before = journal.state.note(BOOT_ID)
    is_damaged = _is_high_damaged(journal)
    high_ms = max(journal.newest_ms(), int(journal.state.note(WALL_HIGH) or 0))
    if before != boot_id:
        journal.state.write_note(BOOT_ID, boot_id)
    note_wall(journal, wall_ms)
    is_same_boot = before is None or before == boot_id != ""
    if is_same_boot or (wall_ms >= high_ms - JUMP_MS and not is_damaged):
        return 0
    if is_damaged:
        message = "the wall clock may be behind the time stored before this boot; the record is damaged"
    else:
        message = "the wall clock is behind the time stored before this boot"
    log.error("clock.behind", seconds=max(0, round((high_ms - wall_ms) / 1000)), message=message)
    # A clock that was once far ahead has this effect at one start only.
    journal.state.write_note(WALL_HIGH, str(wall_ms))
    held = [
        intent for intent in journal.intents.live() if intent.action == "open" and journal.intents.is_unsent(intent)
    ]
    for intent in held:
        journal.intents.end(
            intent,
            "expired",
            "clock_behind",
            "the clock went back over a reboot, so the age of this order is unknown",
            now_ms=wall_ms,
        )
    return len(held)


def note_wall(journal: Journal, wall_ms: int) -> None:
    """Store the highest wall clock, at most once an hour."""
    _is_high_damaged(journal)
    if wall_ms > int(journal.state.note(WALL_HIGH) or 0) + HOUR_MS:
        journal.state.write_note(WALL_HIGH, str(wall_ms))


def _is_high_damaged(journal: Journal) -> bool:
    return journal.state.set_aside_if_damaged(WALL_HIGH, lambda text: is_number(text, WALL_MAX_MS))
