"""Figures and drawings as the pages show them: the forms of `bot.number_text`, with a minus as wide as a plus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bot import number_text
from bot.clock import datetime_of
from bot.figures import NOT_KNOWN, better_or_worse
from bot.number_text import DASH as NONE
from bot.number_text import MINUS, number

__all__ = ["MINUS", "NONE", "NOT_KNOWN", "number"]


def _on_page(form: Callable[..., str]) -> Callable[..., str]:
    def shown(value: Any, **more: Any) -> str:
        return number_text.on_page(form(value, **more))

    return shown


usd = _on_page(number_text.usd)
signed_usd = _on_page(number_text.signed_usd)
cost_usd = _on_page(number_text.cost_usd)
px = _on_page(number_text.px)
size = _on_page(number_text.size)
pct = _on_page(number_text.pct)
share = _on_page(number_text.share)
r = _on_page(number_text.multiple)
times = _on_page(number_text.times)
duration = _on_page(number_text.duration)
clock = _on_page(number_text.clock)


def iso(ms: int) -> str:
    return datetime_of(ms).isoformat(timespec="seconds").replace("+00:00", "Z")


def words(name: str) -> str:
    """A name of the interface as words: `dead man switch`."""
    return name.replace("_", " ")


def direction(value: Any) -> str:
    """up, down or flat: the class and the arrow of a figure that is better the higher it is."""
    return better_or_worse("higher", value)


class PageInstant(str):
    """An instant in UTC. In a template it is an element whose text the browser changes to local time on request."""

    __slots__ = ("at_ms", "kind")
    at_ms: int
    kind: str

    def __html__(self) -> str:
        return f'<time{self.kind} datetime="{iso(self.at_ms)}">{self}</time>'


def instant(at_ms: int | None, *, has_seconds: bool = True) -> str:
    text = number_text.instant(at_ms)
    if at_ms is None:
        return number_text.on_page(text)
    shown = PageInstant(text if has_seconds else text[:-3])
    shown.at_ms, shown.kind = at_ms, "" if has_seconds else ' class="minute"'
    return shown


def minute(at_ms: int | None) -> str:
    """An instant without its seconds, for lists."""
    return instant(at_ms, has_seconds=False)


class Drawing(str):
    """A picture that templates put into the page as it is. Text in it has been escaped."""

    __slots__ = ()

    def __html__(self) -> str:
        return self
