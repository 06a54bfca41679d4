"""The service's time as this process knows it: carried on from the last X-Sandbox-Clock header, or the machine's own within bounds. Reads no header by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from bot.clock import Clock, SystemClock, boot_ns, monotonic_ns
from bot.wire.dates import parse_date
from bot.wire.headers import parse_sandbox_clock

REWIND_MS: Final = (
    1_000  # of real time: a header behind us by less makes us wait; by more, the service's time itself went back
)
DATES_KEPT: Final = 5  # their median is believed: one that is wrong must not count
# That a Date may be behind the newest that was believed; one that is more may come out of a cache that does not say so.
STALE_MS: Final = 5_000
DRIFT: Final = (
    1_000  # in so many seconds the service's clock may fall one behind the machine's; no Date is stale for that
)
STALE_FOR_MS: Final = 60_000  # of real time with no other Date: then it is the service's clock that went back
AHEAD_MS: Final = 3_000  # that the machine's clock may be ahead of the answers' Date, which has no fractions of a second and was on its way


@dataclass(frozen=True, slots=True)
class _Anchor:
    now_ms: int
    speed: float
    received_ns: int

    def at(self, real_ns: int) -> int:
        return self.now_ms + int((real_ns - self.received_ns) * self.speed) // 1_000_000


class ServiceClock:
    """`now_ms()` never goes back between headers. It runs late by the reply's way here, never early.

    `speed` is 1 for real time, 60 for an accelerated sandbox, 0 for a manual one, whose time stands still between headers.
    `skew_ms` is how far the service's Date is ahead of this machine: the median of the last answers, to the second. An answer out of a cache
    tells no time: one that says so by its Age, and one whose Date is STALE_MS behind, unless that lasts; `stale` counts them. In real time the machine's
    clock is followed while it is neither behind that Date nor AHEAD_MS ahead of it, carried on by what no adjustment touches: an order's end
    and its fence are the service's, and a clock that is set wrong, or jumps, must neither refuse an exit nor take an order for gone.
    `rewinds` counts how often the service's time went back (a restore, a reset, a restart).
    """

    def __init__(
        self, real: Clock | None = None, elapsed_ns: Callable[[], int] = monotonic_ns, since_boot_ns: Callable[[], int] = boot_ns
    ) -> None:  # fmt: skip
        self._real: Clock = SystemClock() if real is None else real
        self._elapsed_ns = elapsed_ns
        self._since_boot_ns = since_boot_ns
        self._anchor: _Anchor | None = None
        self._floor_ms = 0
        self._dates_ms: deque[int] = deque(maxlen=DATES_KEPT)  # each as of the machine's boot
        self._boot_ms: int | None = None  # when that was, by the service
        self._newest_ms = self._newest_at_ms = 0  # the highest that was believed of it, and how long after it
        self._stale_since_ms: int | None = None  # as long after it: none but stale ones have come since
        self.stale = 0
        self.rewinds = 0

    @property
    def speed(self) -> float:
        return 1.0 if self._anchor is None else self._anchor.speed

    @property
    def skew_ms(self) -> int | None:
        """None before the first answer with a Date."""
        return None if self._boot_ms is None else self._boot_ms + self._elapsed_ms() - self._real.now_ms()

    @property
    def is_sandbox(self) -> bool:
        """Whether the service's time is not the real one."""
        return self._anchor is not None

    def now_ms(self) -> int:
        if self._anchor is None:
            return self._within_bounds(self._real.now_ms())
        self._floor_ms = max(self._floor_ms, self._anchor.at(self._elapsed_ns()))
        return self._floor_ms

    def _within_bounds(self, now_ms: int) -> int:
        if self._boot_ms is None:
            return now_ms
        told_ms = self._boot_ms + self._elapsed_ms()
        return min(max(now_ms, told_ms), told_ms + AHEAD_MS)

    def _elapsed_ms(self) -> int:
        """Since the machine's boot."""
        return self._since_boot_ns() // 1_000_000

    def reset(self) -> None:
        """Forget what was learnt: another service, or the same one begun anew."""
        self._anchor = None
        self._floor_ms = 0
        self._dates_ms.clear()
        self._boot_ms = self._stale_since_ms = None

    def observe(
        self,
        *,
        sandbox: str | None,
        date: str | None,
        is_service: bool,
        sent_ns: int,
        received_ns: int,
        age: str | None = None,
        may_be_kept: bool = True,
    ) -> None:
        """Learn from the headers of one answer. `is_service`: it came from the service itself, not from something in between. `may_be_kept`:
        the request was one that caches answer."""
        if age is not None and age.strip() != "0":
            self.stale += 1
            return
        if is_service:
            self._learn_date(date, took_ms=(received_ns - sent_ns) // 1_000_000, may_be_kept=may_be_kept)
        if sandbox is None:
            if is_service and self._anchor is not None:
                self._anchor = None
                self._floor_ms = 0
            return
        try:
            now_ms, speed = parse_sandbox_clock(sandbox)
        except ValueError:
            return
        old = self._anchor
        known_ms = None if old is None else max(self._floor_ms, old.at(received_ns))
        if old is not None and known_ms is not None and now_ms < known_ms:
            if sent_ns < old.received_ns and now_ms < old.now_ms:
                return  # Two answers crossed on the way; the newer one was here first.
            if old.speed == 0 or known_ms - now_ms > REWIND_MS * max(old.speed, speed, 1.0):
                self._floor_ms = 0
                self.rewinds += 1
            else:
                self._floor_ms = known_ms
        self._anchor = _Anchor(now_ms, speed, received_ns)

    def _learn_date(self, date: str | None, *, took_ms: int, may_be_kept: bool) -> None:
        sent_ms = None if date is None else parse_date(date)
        if sent_ms is None:
            return
        elapsed_ms = self._elapsed_ms()
        boot_ms = sent_ms - elapsed_ms
        newest_ms = self._newest_ms - (elapsed_ms - self._newest_at_ms) // DRIFT
        # If nobody has kept it, it was written since the request left.
        if self._boot_ms is not None and boot_ms + took_ms < newest_ms - STALE_MS:
            if self._stale_since_ms is None:
                self._stale_since_ms = elapsed_ms
            if may_be_kept and elapsed_ms - self._stale_since_ms < STALE_FOR_MS:
                self.stale += 1
                return
            self._dates_ms.clear()
        self._stale_since_ms = None
        self._dates_ms.append(boot_ms)
        self._boot_ms = median_low(self._dates_ms)
        if len(self._dates_ms) == 1 or self._boot_ms >= newest_ms:
            self._newest_ms, self._newest_at_ms = self._boot_ms, elapsed_ms
