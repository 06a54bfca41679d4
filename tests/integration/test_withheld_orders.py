"""What leaves though it should not, and what a start or an end takes for settled that is not: over the real service,
with a wire that fails.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Literal

import httpx
import pytest

from bot.runtime.control_plane import hot_reload
from bot.runtime.journal.halt_flags import ALL
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.shutdown import LeftBehind, OnExit, wind_down
from bot.strategy import Bar, Intent, View
from tests.integration.builders import (
    DEAD_MAN_600,
    BotAndOwner,
    Box,
    Scripted,
    bot_and_owner,
    make_bot,
    nothing,
    once_long,
    wire_to,
)
from tests.runtime.builders import later

Path_ = Literal["plan", "direct"]
# real time after which whatever waits for its next try is due
LATER_MS = 30_000


class PutOff:
    """No connection for orders, for as long as `is_down`; none for events while `is_blind`."""

    def __init__(self) -> None:
        self.is_down = self.is_blind = False

    def __call__(self, request: httpx.Request) -> str | None:
        is_order = request.method == "POST" and request.url.path in ("/v1/orders", "/v1/orders/confirm")
        if is_order and self.is_down and b'"dryRun":true' not in request.content:
            return "refuse"
        return "refuse" if self.is_blind and request.url.path == "/v1/events" else None


async def put_off(box: Box, orders: Path_, path: Path | None = None) -> tuple[BotAndOwner, PutOff]:
    """A bot with an entry that found no connection; there is one again, and the strategy wants nothing more."""
    wire = PutOff()
    one = await bot_and_owner(box, nothing, fate=wire, path=path, path_of_orders=orders)
    one.bot.kernel.account.account_state.keys_proven = True
    wire.is_down = True
    one.wants(once_long)
    await one.minute()
    assert [row["state"] for row in one.rows()] == ["sending"]
    assert one.rows()[0]["path"] == orders
    one.wants(nothing)
    wire.is_down = False
    later(one.bot.kernel, LATER_MS)
    return one, wire


async def paused(one: BotAndOwner) -> None:
    one.bot.kernel.conditions.pauses.pause(None)
    await one.bot.cycle()
    assert one.bot.kernel.conditions.pauses.names == {ALL}


async def failing(one: BotAndOwner) -> None:
    def fails(_view: View, _bar: Bar) -> Iterable[Intent]:
        raise ZeroDivisionError

    one.wants(fails)
    await one.minute()
    assert one.bot.kernel.strategy_host.instances[0].quarantined is not None


async def rebuilt(one: BotAndOwner) -> None:
    hot_reload._drop_unsent(one.bot.kernel, "busy")
    await one.bot.cycle()


async def ending(one: BotAndOwner) -> None:
    await one.bot.kernel.stop()
    await wind_down(one.bot.kernel, "leave")


Stop = Callable[[BotAndOwner], Awaitable[None]]


@pytest.mark.parametrize("orders", ["plan", "direct"])
@pytest.mark.parametrize("stop", [paused, failing, rebuilt, ending])
async def test_an_entry_of_which_nothing_has_left_does_not_leave_any_more(box: Box, orders: Path_, stop: Stop) -> None:
    one = (await put_off(box, orders))[0]
    await stop(one)
    assert await one.held() is None
    for _ in range(3):
        later(one.bot.kernel, LATER_MS)
        await one.minute()
    assert (await one.held(), {row["state"] for row in one.rows()}) == (None, {"expired"})


@pytest.mark.parametrize("orders", ["plan", "direct"])
async def test_an_entry_that_was_put_off_leaves_when_it_may(box: Box, orders: Path_) -> None:
    one, wire = await put_off(box, orders)
    wire.is_blind = True
    await one.bot.cycle()
    assert await one.held() is None, "what has happened meanwhile is not known"
    wire.is_blind = False
    later(one.bot.kernel, LATER_MS)
    await one.bot.cycle()
    assert await one.held() is not None
    assert [row["state"] for row in one.rows()] == ["accepted"]


@pytest.mark.parametrize("orders", ["plan", "direct"])
async def test_an_entry_of_a_strategy_that_has_left_the_config_is_not_sent_by_the_next_run(
    box: Box, orders: Path_, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    one, wire = await put_off(box, orders, path)
    await one.bot.kill()
    other = [Scripted(nothing, name="other")]
    settings = KernelSettings(guardians=(DEAD_MAN_600,))
    one.bot = make_bot(one.hand, wire_to(box, wire), path, strategies=other, settings=settings, path_of_orders=orders)
    await one.minute()
    assert await one.held() is None
    for _ in range(3):
        await one.minute()
    assert (await one.held(), {row["state"] for row in one.rows()}) == (None, {"expired"})


@pytest.mark.parametrize(
    ("on_exit", "is_done", "stays"), [("leave", True, False), ("cancel", False, False), ("flatten", False, True)]
)
async def test_an_end_says_that_an_entry_is_in_doubt_and_flatten_leaves_it_to_the_dead_man(
    box: Box, on_exit: OnExit, is_done: bool, stays: bool
) -> None:
    is_slow = False

    def fate(request: httpx.Request) -> str | None:
        return "late" if is_slow and request.url.path == "/v1/orders/confirm" else None

    one = await bot_and_owner(box, nothing, fate=fate)
    # requests: until the test lets it arrive
    one.wire.late_by = 1_000_000
    one.wants(once_long)
    is_slow = True
    await one.minute()
    assert [row["state"] for row in one.rows()] == ["sending"]
    await one.bot.kernel.stop()
    left: LeftBehind = await wind_down(one.bot.kernel, on_exit)
    assert left.complete is is_done
    assert "an entry in BTC is in doubt and may still fill; the next run settles it" in left.why
    assert bool(await one.guardians("dead_man_switch")) is stays
    await one.wire.arrivals(everything=True)
    assert await one.held() is not None, "as it was said"
    await box.advance(700_000)
    assert (await one.held() is None) is stays


class Unread(httpx.AsyncBaseTransport):
    """Some of the questions for events are not answered, or with a page on which nothing is new yet."""

    def __init__(self, inner: httpx.AsyncBaseTransport, which: Collection[int], *, is_late: bool) -> None:
        self.inner = inner
        self.which = which
        self.is_late = is_late
        self.looks = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/events":
            return await self.inner.handle_async_request(request)
        self.looks += 1
        if self.looks not in self.which:
            return await self.inner.handle_async_request(request)
        if not self.is_late:
            raise httpx.ConnectError("refused", request=request)
        answer = await self.inner.handle_async_request(request)
        page = json.loads(await answer.aread()) | {"events": []}
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return httpx.Response(200, headers=headers, json=page)


@pytest.mark.parametrize(("is_late", "which"), [(False, (2, 3, 5)), (True, (2, 3, 5, 6, 7, 8))])
async def test_a_start_that_cannot_read_the_events_yet_books_what_they_tell_to_whom_it_belongs(
    box: Box, tmp_path: Path, is_late: bool, which: tuple[int, ...]
) -> None:
    """The account is known, the fill of the stop is not: it is no reason to take the position for closed by nobody."""
    path = tmp_path / "journal.db"
    one = await bot_and_owner(box, path=path)
    await one.bot.kill()
    one.px["BTC"] *= 0.9
    await box.minute(**one.px)
    assert await one.held() is None
    wire, settings = Unread(wire_to(box), which, is_late=is_late), KernelSettings(guardians=(DEAD_MAN_600,))
    one.bot = make_bot(one.hand, wire, path, script=nothing, settings=settings)
    await one.bot.cycle()
    assert wire.looks > max(which)
    attribution = one.bot.kernel.account.attribution
    assert attribution.of("busy").realized_usd < 0
    assert attribution.names() == ["busy"]
