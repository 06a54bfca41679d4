"""Faults between a client and the exchange, at seven points of a request or message.

Each is for one, several or all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Point of a request -> kinds of faults that can happen at it.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "request_in": ("lost", "silence", "status_400", "status_429", "status_500", "html_502"),
    "before_execution": ("late", "copy"),
    "after_execution": ("lost", "silence", "status_500", "html_502"),
    "reply_out": ("late",),
    "socket_message": ("lost", "double", "late", "reorder"),
    "socket": ("close", "silence", "refuse"),
    "exchange": ("post_only", "delist", "rules", "revoke_agent", "empty_budget"),
}
MS_MOST: Final = 600_000
HTML_502: Final = (
    "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"
)


@dataclass(slots=True)
class ExchangeFault:
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
class ExchangeFaults:
    """The faults that wait for their request or message."""

    waiting: list[ExchangeFault] = field(default_factory=list)

    def add(self, fault: ExchangeFault) -> str | None:
        """Add a fault; what is wrong with it otherwise."""
        kinds = KINDS.get(fault.point)
        if kinds is None:
            return f"point is one of {', '.join(KINDS)}, not {fault.point!r}"
        if fault.kind not in kinds:
            return f"kind at {fault.point} is one of {', '.join(kinds)}, not {fault.kind!r}"
        if fault.count < 1 or not 0 <= fault.ms <= MS_MOST:
            return f"count is at least 1, and ms from 0 to {MS_MOST}"
        self.waiting.append(fault)
        return None

    def take(self, point: str, **where: Any) -> ExchangeFault | None:
        """The first waiting fault for this point and place, which is used up by its count."""
        for fault in self.waiting:
            if fault.point == point and all(getattr(fault, name) in (None, value) for name, value in where.items()):
                fault.done += 1
                if fault.done >= fault.count:
                    self.waiting.remove(fault)
                return fault
        return None


def fault_in(body: Mapping[str, Any]) -> str | None:
    """What is wrong with the fields of a fault; None if each has its type."""
    names = ExchangeFault.__dataclass_fields__
    for name, value in body.items():
        if name not in names or name == "done":
            return f"a fault has the fields {', '.join(known for known in names if known != 'done')}, not {name}"
        if name in ("count", "ms"):
            if isinstance(value, bool) or not isinstance(value, int):
                return f"{name} is a whole number, not {value!r}"
        elif value is not None and not isinstance(value, str):
            return f"{name} is text, not {value!r}"
    missing = [name for name in ("point", "kind") if name not in body]
    return f"a fault needs {missing[0]}" if missing else None
