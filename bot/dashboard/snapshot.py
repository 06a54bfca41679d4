"""What the pages know of the daemon at one instant: its last answer, or what its journal says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the daemon last answered. `trouble` is why it does not answer now; then `status` is its last answer, or None.

    `is_of_journal`: the daemon has not answered this dashboard at all, so everything is from its journal, last written at `at_ms`.
    """

    at_ms: int  # the machine's clock
    trouble: str = ""
    is_running: bool = True
    status: Data | None = None
    positions: tuple[Data, ...] = ()
    orders: tuple[Data, ...] = ()
    strategies: tuple[Data, ...] = ()
    guardians: Data | None = None
    is_of_journal: bool = False

    @property
    def knows_account(self) -> bool:
        """True if the daemon, or its journal, has said which positions and orders there are."""
        return self.is_of_journal or "account" in (self.status or {})

    @property
    def speed(self) -> float:
        service = (self.status or {}).get("service") or {}
        return float(service.get("speed", 1) or 0)

    @property
    def service_ms(self) -> int | None:
        """The service's clock when the daemon answered."""
        service = (self.status or {}).get("service") or {}
        found: int | None = service.get("now_ms")
        return found
