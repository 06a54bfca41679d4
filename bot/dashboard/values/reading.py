"""How well a part of a page is known: known, old (with its age) or not known (with the reason).

Rule: no page says "no", "none", "flat" or 0 for what it does not know. A part whose source did not answer carries
`UNKNOWN`, and the templates get their empty sentences through the macro `nothing`, which says them only for what is
known or old.
"""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from bot.dashboard.values import formatting
from bot.number_text import ago

T = TypeVar("T")
State = Literal["known", "old", "unknown"]


class Known(NamedTuple):
    """`text` says why a part is not known, or from when it is."""

    state: State = "known"
    text: str = ""
    # when an old part was read, on the machine's clock
    at_ms: int | None = None


NOW: Final = Known()


class Reading(NamedTuple, Generic[T]):
    """A value of a source, and how well it is known. None only if it is not known, or if there is none."""

    value: T
    known: Known = NOW


def unknown(why: str) -> Known:
    return Known("unknown", why[:1].upper() + why[1:])


def old(at_ms: int | None, now_ms: int, source: str = "") -> Known:
    """A part that was read at an instant of the machine's clock. `source` names where."""
    if at_ms is None:
        return unknown("it is not known when this was read")
    return Known("old", f"{source or 'Read'} {ago(now_ms - at_ms)}, at {formatting.instant(at_ms)} UTC.", at_ms)


def worst(*parts: Known) -> Known:
    """The least known of several parts."""
    order: dict[Any, int] = {"known": 0, "old": 1, "unknown": 2}
    return max(parts, key=lambda part: order[part.state])
