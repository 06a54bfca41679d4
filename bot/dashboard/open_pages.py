"""Updates of open pages: a page is rendered once a second for everybody who has it open, and only if its values have
changed.

`PageUpdates` has one `OpenPage` for each address that is open. Its streams wait for the same next rendering, and
send the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from bot.clock import monotonic_ns

# between two renderings of an open page
UPDATE_S: Final = 1.0

Data = dict[str, Any]
Render = Callable[[Data], Mapping[str, str]]
Values = Callable[[], Awaitable[Data | str]]


class Update:
    """One rendering of a page: each part with the number of the update that changed it. `moved`: why the page ends."""

    def __init__(
        self, number: int, now_ms: int, parts: Mapping[str, tuple[str, int]], moved: str | None = None
    ) -> None:
        self.number = number
        self.moved = moved
        self._now_ms = now_ms
        self.parts = parts
        self._since: dict[int, str] = {}

    def since(self, number: int) -> str:
        """The message for a page that was sent update `number` last; 0: nothing yet. Made once for all such pages."""
        message = self._since.get(number)
        if message is None:
            message = self._since[number] = self._message(number)
        return message

    def _message(self, number: int) -> str:
        changed = {name: text for name, (text, at) in self.parts.items() if at > number}
        chart = changed.pop(CHART, None)
        message: Data = {"now": self._now_ms, "fragments": changed}
        if self.moved is not None:
            message["moved"] = self.moved
        text = json.dumps(message, separators=(",", ":"))
        return text if chart is None else f'{text[:-1]},"chart":{chart}}}'


# the name of the chart among the parts; its text is JSON
CHART: Final = "@chart"


class OpenPage:
    """A page at one address, for all who have it open."""

    def __init__(self, values: Values, render: Render, now_ms: Callable[[], int], stopping: asyncio.Event) -> None:
        self.streams = 0
        self._values = values
        self._render = render
        self._now_ms = now_ms
        self._stopping = stopping
        self._shown: Data = {}
        self._last = Update(0, 0, {})
        self._next_ns = 0
        self._work: asyncio.Task[Update] | None = None

    async def after(self, number: int) -> Update:
        """The first update after `number`: the last one, or the next rendering, which all streams wait for."""
        if self._last.number > number:
            return self._last
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._next(), name="page-update")
        return await asyncio.shield(self._work)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _next(self) -> Update:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), max(0.0, (self._next_ns - monotonic_ns()) / 1e9))
        self._next_ns = monotonic_ns() + int(UPDATE_S * 1e9)
        values, number, before = await self._values(), self._last.number + 1, self._last.parts
        if isinstance(values, str):
            self._last = Update(number, self._now_ms(), {}, values)
        elif values == self._shown:
            self._last = Update(number, self._now_ms(), before)
        else:
            parts = {name: (text, number) for name, text in self._render(values).items()}
            same = {name: part for name, part in before.items() if name in parts and parts[name][0] == part[0]}
            self._shown, self._last = values, Update(number, self._now_ms(), parts | same)
        return self._last


class PageUpdates:
    """The pages that are open, by address."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.stopping = asyncio.Event()
        self.streams = 0
        self._now_ms = now_ms
        self._pages: dict[object, OpenPage] = {}

    async def stream(
        self, address: object, values: Values, render: Render, goes_on: Callable[[], bool]
    ) -> AsyncIterator[dict[str, str]]:
        """The messages of one open page, until it has moved, the dashboard stops or `goes_on` is false."""
        page = self._pages.get(address)
        if page is None:
            page = self._pages[address] = OpenPage(values, render, self._now_ms, self.stopping)
        page.streams += 1
        self.streams += 1
        number = 0
        try:
            while not self.stopping.is_set() and goes_on():
                update = await page.after(number)
                if self.stopping.is_set() or not goes_on():
                    return
                yield {"data": update.since(number)}
                if update.moved is not None:
                    return
                number = update.number
        finally:
            self.streams -= 1
            page.streams -= 1
            if not page.streams:
                del self._pages[address]
                await page.close()
