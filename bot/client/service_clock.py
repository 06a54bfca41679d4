"""The service's time: the last X-Sandbox-Clock header plus elapsed time, or the machine's clock within bounds of the
service's Date header.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from bot.clock import Clock, SystemClock, boot_ns, monotonic_ns
from bot.wire.dates import parse_date
from bot.wire.headers import parse_sandbox_clock

# Real time. If a header is behind by less, `now_ms` waits; by more, the service's time was set back.
REWIND_MS: Final = 1_000
# dates of answers; their median counts, so that one wrong date does not
DATES_KEPT: Final = 5
# A Date that is further behind the newest one may come from a cache that does not say so.
STALE_MS: Final = 5_000
# the service's clock may lose one second in this many; such a Date is not stale
SLOWNESS: Final = 1_000
# Real time with only stale dates, after which the service's clock was set back.
STALE_FOR_MS: Final = 60_000
# how far the machine's clock may be ahead of the Date of an answer, which has whole seconds and travelled
AHEAD_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class _Anchor:
    now_ms: int
    speed: float
    received_ns: int

    def at(self, real_ns: int) -> int:
        return self.now_ms + int((real_ns - self.received_ns) * self.speed) // 1_000_000


class ServiceClock:
    """The service's time. `now_ms()` never decreases between headers. It is late by the answer's travel time, never
    early.

    `speed` is 1 for real time, 60 for an accelerated sandbox, 0 for a manual clock, which stands still between headers.
    `skew_ms` is how far the service's Date is ahead of this machine: the median of the last answers, in whole seconds.
    `stale` counts answers from a cache, whose time is ignored: they have an Age, or a Date that is STALE_MS behind
    (unless that lasts). `rewinds` counts how often the service's time went back (a restore, a reset, a restart).

    In real time the machine's clock counts while it is between that Date and AHEAD_MS after it. Outside this range the
    Date plus monotonic time counts. The service judges the expiry of orders, so a wrong machine clock must neither
    refuse an exit nor declare an order expired.
    """

    def __init__(
        self,
        real: Clock | None = None,
        elapsed_ns: Callable[[], int] = monotonic_ns,
        since_boot_ns: Callable[[], int] = boot_ns,
    ) -> None:
        self._real: Clock = SystemClock() if real is None else real
        self._elapsed_ns = elapsed_ns
        self._since_boot_ns = since_boot_ns
        self._anchor: _Anchor | None = None
        self._floor_ms = 0
        # Date minus the time since the machine's boot
        self._dates_ms: deque[int] = deque(maxlen=DATES_KEPT)
        # median of these: the instant of the boot, by the service's clock
        self._boot_ms: int | None = None
        # the highest accepted boot instant, and when it was learnt
        self._newest_ms = self._newest_at_ms = 0
        # since when every answer has been stale
        self._stale_since_ms: int | None = None
        self.stale = 0
        self.rewinds = 0

    @property
    def speed(self) -> float:
        return 1.0 if self._anchor is None else self._anchor.speed

    @property
    def skew_ms(self) -> int | None:
        """Milliseconds; None before the first answer with a Date."""
        return None if self._boot_ms is None else self._boot_ms + self._elapsed_ms() - self._real.now_ms()

    @property
    def is_sandbox(self) -> bool:
        """True if the service has its own clock instead of real time."""
        return self._anchor is not None

    def now_ms(self) -> int:
        if self._anchor is None:
            return self._within_bounds(self._real.now_ms())
        self._floor_ms = max(self._floor_ms, self._anchor.at(self._elapsed_ns()))
        return self._floor_ms

    def _within_bounds(self, now_ms: int) -> int:
        if self._boot_ms is None:
            return now_ms
        dated_ms = self._boot_ms + self._elapsed_ms()
        return min(max(now_ms, dated_ms), dated_ms + AHEAD_MS)

    def _elapsed_ms(self) -> int:
        """Milliseconds since the machine's boot."""
        return self._since_boot_ns() // 1_000_000

    def reset(self) -> None:
        """Forget everything, because the service is another one or was started anew."""
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
        """Learn from the headers of one answer. `is_service`: the service itself answered, not a proxy. `may_be_kept`:
        a cache may answer this kind of request.
        """
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
                # Two answers overtook each other; the newer one was read first.
                return
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
        newest_ms = self._newest_ms - (elapsed_ms - self._newest_at_ms) // SLOWNESS
        # If the answer comes from no cache, its Date is later than the request.
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
