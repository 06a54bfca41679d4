"""What the commands say about the exchange link: whether it knows everything until now, and its figures."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from bot.exchanges.link.client import ExchangeLink
from bot.exchanges.protocol import LinkHealth, LinkState

IN_STEP_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class LinkReading:
    """A link that was opened for this command. `state` None: it has told none within 15 s."""

    state: LinkState | None
    took_s: float
    health: LinkHealth

    def as_json(self) -> dict[str, Any]:
        state = None if self.state is None else asdict(self.state)
        return {"state": state, "tookSeconds": round(self.took_s, 3), "health": asdict(self.health)}

    def lines(self) -> list[str]:
        return [self._state_line(), health_line(self.health)]

    def _state_line(self) -> str:
        if self.state is None:
            return f"link: its state is not known after {self.took_s:.1f} s"
        if self.state.phase == "in_step":
            return f"link: in step after {self.took_s:.1f} s"
        return f"link: {self.state.phase} after {self.took_s:.1f} s: {self.state.reason}"


async def read_link(place: str, address: str) -> LinkReading:
    """Open a link and follow the account until everything is known, for at most 15 s."""
    loop = asyncio.get_running_loop()
    begun_s, state = loop.time(), None
    async with ExchangeLink("hyperliquid", place) as link:
        with suppress(TimeoutError):
            async with asyncio.timeout(IN_STEP_SECONDS):
                async for reports in link.account(address):
                    state = next((report for report in reversed(reports) if isinstance(report, LinkState)), state)
                    if state is not None and state.phase == "in_step":
                        break
        took_s = loop.time() - begun_s
        return LinkReading(state, took_s, await link.health())


def health_line(health: LinkHealth) -> str:
    """Figures of the link in one line."""
    difference = health.clock_difference_ms
    clock = "not known" if difference is None else f"{difference:+,} ms"
    return (
        f"link: {health.connections} open of {health.opened} sockets, {health.messages:,} messages, {health.reads:,}"
        f" reads, weight {health.weight:,} of {health.weight_most:,} in the last minute, clock difference {clock}"
    )
