"""The clock of the local exchange: real, manual, or N times real. It never goes back."""

from __future__ import annotations

import re
from typing import Final

from bot.clock import SystemClock, boot_ns

SPEED_MAX: Final = 3_600


def speed_of(text: str) -> float:
    """`real` is 1, `manual` 0, `60x` 60. ValueError for any other text."""
    if text in ("real", "manual"):
        return 1.0 if text == "real" else 0.0
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)x", text, re.ASCII)
    if match is None or not 1 <= float(match[1]) <= SPEED_MAX:
        raise ValueError(f"clock is 'real', 'manual', or '1x' to '{SPEED_MAX}x', not {text!r}")
    return float(match[1])


class ExchangeClock:
    """Speed 0 stands still until it is moved; 1 follows the machine's clock; more runs faster from `start_ms`."""

    def __init__(self, speed: float, start_ms: int | None = None) -> None:
        self.speed = speed
        self._base_ms = SystemClock().now_ms() if start_ms is None else start_ms
        self._base_ns = boot_ns()

    @property
    def is_manual(self) -> bool:
        return self.speed == 0

    def now_ms(self) -> int:
        if self.speed == 0:
            return self._base_ms
        if self.speed == 1:
            self._base_ms = max(self._base_ms, SystemClock().now_ms())
            return self._base_ms
        return self._base_ms + int((boot_ns() - self._base_ns) * self.speed) // 1_000_000

    def advance(self, ms: int) -> None:
        """Move a manual clock."""
        assert self.speed == 0 and ms >= 0
        self._base_ms += ms
