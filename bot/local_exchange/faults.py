"""Faults between a client and the exchange, at seven points of a request or message.

Each is for one, several or all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

# Point -> kinds of faults there.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "request_in": ("lost", "silence", "status_400", "status_429", "status_500", "html_502"),
    "before_execution": ("late", "copy"),
    "after_execution": ("lost", "silence", "status_500", "html_502"),
    "reply_out": ("late",),
    "socket_message": ("lost", "double", "late", "reorder"),
    "socket": ("close", "silence", "refuse"),
    "exchange": ("post_only", "delist", "rules", "revoke_agent", "empty_budget"),
}
HTML_502: Final = (
    "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"
)


@dataclass(slots=True)
class Fault:
    """`path`: /exchange or /info; `action`: type of the action or info request; `channel`: of a socket message; `user`:
    the signer or subscriber.

    None matches all. `ms`: how late.
    """

    point: str
    kind: str
    count: int = 1
    path: str | None = None
    action: str | None = None
    channel: str | None = None
    user: str | None = None
    ms: int = 1_000
    done: int = 0


@dataclass(slots=True)
class Faults:
    """The faults that wait for their request or message."""

    waiting: list[Fault] = field(default_factory=list)

    def add(self, fault: Fault) -> str | None:
        """Add a fault; what is wrong with it otherwise."""
        kinds = KINDS.get(fault.point)
        if kinds is None:
            return f"point is one of {', '.join(KINDS)}, not {fault.point!r}"
        if fault.kind not in kinds:
            return f"kind at {fault.point} is one of {', '.join(kinds)}, not {fault.kind!r}"
        if fault.count < 1 or fault.ms < 0:
            return "count is at least 1, and ms at least 0"
        self.waiting.append(fault)
        return None

    def take(self, point: str, **where: Any) -> Fault | None:
        """The first waiting fault for this point and place, which is used up by its count."""
        for fault in self.waiting:
            if fault.point == point and all(getattr(fault, name) in (None, value) for name, value in where.items()):
                fault.done += 1
                if fault.done >= fault.count:
                    self.waiting.remove(fault)
                return fault
        return None
