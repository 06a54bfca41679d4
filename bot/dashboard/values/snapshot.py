"""What the pages know of the daemon at one instant: its last answer, or what its journal says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Data = dict[str, Any]
# an account that was read longer ago is shown as old
OLD_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DaemonSnapshot:
    """What the daemon last answered. `trouble` is why it does not answer now; then `status` is its last answer, or
    None.

    `is_of_journal`: the daemon has not answered this dashboard at all, so everything is from its journal, last written
    at `at_ms`.
    """

    # the machine's clock
    at_ms: int
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
    def age_s(self) -> float:
        """How long before its answer the daemon had read the account."""
        return float((self.status or {}).get("old_s") or 0.0)

    @property
    def is_old(self) -> bool:
        """True for an account that was read earlier: by a daemon that is cut off, or before it stopped to answer."""
        return bool(self.trouble) or self.is_of_journal or self.age_s > OLD_S

    @property
    def speed(self) -> float:
        service = (self.status or {}).get("service") or {}
        return float(service.get("speed", 1) or 0)

    @property
    def service_ms(self) -> int | None:
        """The service's clock when the daemon answered."""
        service = (self.status or {}).get("service") or {}
        now_ms: int | None = service.get("now_ms")
        return now_ms
