"""A machine whose clock is wrong, or jumps, before a service in real time that tells no more of its clock than the
Date of its answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from typing import Any

import httpx
import pytest

import bot.clock
from bot.strategy import Bar, Close, Intent, View
from tests.integration.builders import BotAndOwner, Box, Script, make_bot, nothing, once_long, wire_to
from tests.integration.virtual import Clocks
from tests.integration.wire import Fate
from tests.runtime.builders import later

# more than an exit of a minute's bar is wanted for
OFF_S = 300


class Hosted(httpx.AsyncBaseTransport):
    """In front of a sandbox: its clock is nobody's business."""

    def __init__(self, inner: httpx.AsyncBaseTransport, box: Box) -> None:
        self.inner = inner
        self.box = box

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.inner.handle_async_request(request)
        del answer.headers["X-Sandbox-Clock"]
        answer.headers["Date"] = formatdate(self.box.service.machine.clock.now_ms() // 1_000, usegmt=True)
        return answer


class Hours(BotAndOwner):
    """The machine's clocks go as the service's does, but for what they were set wrong by."""

    script: Script
    clocks: Clocks

    async def minute(self, factor: float = 1.0) -> None:
        self.clocks.loop_s += 60
        await super().minute(factor)

    def set_wrong(self, seconds: int) -> None:
        self.clocks.jumped_ns += seconds * 10**9


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(bot.clock, "time", made)
    return made


def calm(_request: httpx.Request) -> str | None:
    return None


async def hosted(box: Box, clocks: Clocks, fate: Fate = calm) -> Hours:
    """A bot that has made its first pass; `script` is what it wants from then on."""
    hand, wire = await box.hand(), wire_to(box, fate)

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        return one.script(view, bar)

    one = Hours(box, hand, make_bot(hand, Hosted(wire, box), None, script=script), wire)
    one.script, one.clocks = nothing, clocks
    return one


def out(view: View, bar: Bar) -> Iterable[Intent]:
    if view.position(bar.market) is not None:
        yield Close(bar.market)


def states(one: Hours) -> list[tuple[str, str, Any]]:
    return [(row["action"], row["state"], row["code"]) for row in one.rows()]


@pytest.mark.parametrize("off_s", [-OFF_S, OFF_S])
async def test_exits_go_where_the_machines_clock_is_minutes_off(box: Box, clocks: Clocks, off_s: int) -> None:
    one = await hosted(box, clocks)
    await one.minute()
    one.script = once_long
    await one.minute()
    assert await one.held() is not None
    one.set_wrong(off_s)
    one.script = out
    await one.minute()
    assert states(one) == [("open", "accepted", None), ("close", "accepted", None)]
    assert await one.held() is None


async def test_a_clock_that_jumps_is_no_proof_that_an_order_on_its_way_will_never_come(
    box: Box, clocks: Clocks
) -> None:
    is_slow = False

    def fate(request: httpx.Request) -> str | None:
        return "late" if is_slow and request.url.path == "/v1/orders/confirm" else None

    one = await hosted(box, clocks, fate)
    # requests: until the test lets it arrive
    one.wire.late_by = 1_000_000
    await one.minute()
    one.script, is_slow = once_long, True
    await one.minute()
    assert states(one) == [("open", "sending", None)]
    one.set_wrong(3_600)
    one.script = nothing
    later(one.bot.kernel, 30_000)
    await one.bot.cycle()
    assert states(one) == [("open", "sending", None)], "its plan is still good at the service"
    is_slow = False
    await one.wire.arrivals(everything=True)
    later(one.bot.kernel, 30_000)
    await one.bot.cycle()
    assert states(one) == [("open", "accepted", None)]
    assert len(await one.hand.trades()) == 1
