"""The service's clock: real, manual, or N times real. It only tells the time; the machine runs what is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bot.clock import SECOND_MS, SystemClock, boot_ns
from bot.errors import ConfigError

SPEED_MAX: Final = 3600

Mode = Literal["real", "accelerated", "manual"]


def parse_clock(text: str) -> float:
    """`real` is 1, `manual` 0, `60x` 60. ConfigError for any other text."""
    word = text.strip().lower()
    if word in ("real", "1x"):
        return 1.0
    if word in ("manual", "0x", "0"):
        return 0.0
    try:
        speed = float(word.removesuffix("x"))
    except ValueError:
        speed = -1.0
    if not 1 <= speed <= SPEED_MAX:
        raise ConfigError(f"clock {text!r} must be real, manual, or a speed from 1x to {SPEED_MAX}x")
    return speed


@dataclass(slots=True)
class MachineClock:
    """The service's time.

    `speed` 0: stands still until it is moved. 1: real time. More: accelerated. It never goes back.
    """

    speed: float
    _anchor_ms: int
    _anchor_ns: int
    _follows_wall: bool

    @staticmethod
    def start(speed: float, at_ms: int | None = None) -> MachineClock:
        """A clock that shows `at_ms` now; without it, real time."""
        wall = SystemClock().now_ms()
        return MachineClock(speed, wall if at_ms is None else at_ms, boot_ns(), at_ms is None and speed == 1)

    @property
    def mode(self) -> Mode:
        if self.speed == 0:
            return "manual"
        return "real" if self.speed == 1 else "accelerated"

    @property
    def is_real(self) -> bool:
        """True if it follows the system clock."""
        return self._follows_wall

    @property
    def is_known(self) -> bool:
        """True if a caller's clock shows the same time, so that responses need no X-Sandbox-Clock.

        False after the system clock was set back.
        """
        return self._follows_wall and self.now_ms() - SystemClock().now_ms() <= SECOND_MS

    @property
    def is_sandbox(self) -> bool:
        """True if a client sees a sandbox clock in the responses."""
        return not self.is_known

    def now_ms(self) -> int:
        if self.speed == 0:
            return self._anchor_ms
        if self._follows_wall:
            # The system clock may be set back; service time never goes back.
            self._anchor_ms = max(self._anchor_ms, SystemClock().now_ms())
            return self._anchor_ms
        return self._anchor_ms + int((boot_ns() - self._anchor_ns) * self.speed) // 1_000_000

    def set_speed(self, speed: float) -> None:
        """Continue from the present instant at another speed. A changed clock no longer follows the system clock."""
        self._anchor_ms = self.now_ms()
        self._anchor_ns = boot_ns()
        self.speed = speed
        self._follows_wall = False

    def move_to(self, at_ms: int) -> None:
        """Manual clock only: move to `at_ms`, which must not be before now."""
        assert self.speed == 0, "only a manual clock is moved"
        assert at_ms >= self._anchor_ms, f"time goes back: {self._anchor_ms} -> {at_ms}"
        self._anchor_ms = at_ms

    def real_seconds_until(self, at_ms: int) -> float | None:
        """Seconds of real time until the clock shows `at_ms`; None for a manual clock."""
        if self.speed == 0:
            return None
        return max(0.0, (at_ms - self.now_ms()) / 1000 / self.speed)
