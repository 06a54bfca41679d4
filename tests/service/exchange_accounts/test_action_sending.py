"""One action through a link to a local exchange: placed once or not at all, whatever is lost or killed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bot.clock import SystemClock
from bot.exchanges.actions import ActionAnswer, ExchangeAction, OrderAnswer, Rank
from bot.exchanges.link import client
from bot.exchanges.protocol import OrderUpdate
from bot.service.exchange_accounts.action_sending import perform, seen_of_answer, seen_of_order
from bot.testing.hyperliquid import LocalExchange
from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange.action_lifecycle import TrackedAction
from tests.exchanges.agents import AGENT, FUNDED, MASTER, approve, client_order_id, entry, key_file
from tests.service.exchange_accounts.followers import kill_link
from tests.service.exchange_accounts.virtual_time import in_virtual_time

CLOCK = SystemClock()
EXPIRY_MS = 8_000


class Sender:
    """The service's part: the link that lives now, and one action."""

    def __init__(self, hyperliquid: LocalExchange, folder: Path, px: str = "90000") -> None:
        self._port, self._key = hyperliquid.base_url.rpartition(":")[2], key_file(folder)
        self._links = AsyncExitStack()
        self._px = px

    async def __aenter__(self) -> Sender:
        await self.open()
        # Only now: a link takes time to start, and an entry that is 6 s old is not sent.
        now_ms = CLOCK.now_ms()
        self.action = entry(now_ms, self._px, now_ms + EXPIRY_MS)
        self.tracked = TrackedAction(now_ms, True, now_ms, now_ms + EXPIRY_MS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._links.aclose()

    async def open(self) -> None:
        """Start a link, which takes the place of the one before it."""
        link = client.ExchangeLink("hyperliquid", self._port, agent_key_file=self._key)
        self.link = await self._links.enter_async_context(link)
        # The first action would wait for the reads that it needs.
        await self.link.act(ExchangeAction(CLOCK.now_ms() - 60_000, "void", AGENT, Rank.STOP))

    async def settle(self) -> TrackedAction:
        """Do what is due until the end of the action may be told."""
        tracked = self.tracked
        async with asyncio.timeout(60):
            while not life.may_be_told(tracked):
                now_ms = CLOCK.now_ms()
                step = life.step(tracked, now_ms, now_ms)
                if step is None:
                    at_ms = life.next_step_ms(tracked, now_ms, now_ms)
                    assert at_ms is not None
                    await asyncio.sleep((at_ms - now_ms) / 1_000)
                elif step == "give_up":
                    tracked = life.given_up(tracked)
                else:
                    begun = {"send": life.sent, "void": life.voided, "look": life.looked}[step]
                    tracked = begun(tracked, now_ms)
                    heard = await perform(self.link, MASTER.address, self.action, step)
                    heard_ms = now_ms if step == "look" else CLOCK.now_ms()
                    tracked = tracked if heard is None else life.seen(tracked, heard.what, heard_ms, heard_ms)
        return tracked


def open_ids(hyperliquid: LocalExchange) -> list[str]:
    return [order["cloid"] for order in hyperliquid.info("frontendOpenOrders", user=MASTER.address.lower())]


@FUNDED
@in_virtual_time
@pytest.mark.parametrize(
    "fault",
    [
        {"point": "request_in", "kind": "lost"},
        {"point": "request_in", "kind": "html_502"},
        {"point": "after_execution", "kind": "lost"},
        {"point": "after_execution", "kind": "status_500"},
        {"point": "before_execution", "kind": "copy"},
        {"point": "reply_out", "kind": "late", "ms": 4_000},
    ],
    ids=lambda fault: f"{fault['point']}-{fault['kind']}",
)
async def test_an_action_whose_copy_or_answer_is_lost_is_placed_once(
    hyperliquid: LocalExchange, tmp_path: Path, fault: dict[str, Any]
) -> None:
    approve(hyperliquid)
    async with Sender(hyperliquid, tmp_path) as sender:
        hyperliquid.fault(**fault, path="/exchange")
        assert (await sender.settle()).status == "placed"
    assert open_ids(hyperliquid) == [client_order_id(sender.tracked.nonce)]


@FUNDED
@in_virtual_time
async def test_an_action_that_never_arrives_is_voided_and_told_after_its_expiry(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    approve(hyperliquid)
    async with Sender(hyperliquid, tmp_path) as sender:
        hyperliquid.fault("request_in", "lost", action="order", count=99)
        ended = await sender.settle()
        assert ended.status == "void" and ended.voids >= 1
        assert CLOCK.now_ms() > ended.expires_ms + life.PATIENCE_MS
        assert (await sender.link.act(sender.action)).outcome == "not_sent", "expired"
    assert open_ids(hyperliquid) == []


@FUNDED
@in_virtual_time
async def test_a_refused_action_is_told_at_once(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    approve(hyperliquid)
    async with Sender(hyperliquid, tmp_path, px="1") as sender:
        ended = await sender.settle()
        assert (ended.status, ended.copies) == ("refused", 1)
        assert CLOCK.now_ms() < ended.expires_ms


@FUNDED
@in_virtual_time
async def test_a_link_that_is_killed_with_an_action_on_its_way_places_it_once(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    approve(hyperliquid)
    async with Sender(hyperliquid, tmp_path) as sender:
        hyperliquid.fault("reply_out", "late", path="/exchange", ms=5_000)
        settling = asyncio.create_task(sender.settle())
        while open_ids(hyperliquid) == []:
            await asyncio.sleep(0.02)
        kill_link(sender.link)
        await sender.open()
        assert (await settling).status == "placed"
    assert open_ids(hyperliquid) == [client_order_id(sender.tracked.nonce)]


@FUNDED
@in_virtual_time
@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_service_that_starts_again_with_an_open_action_places_it_once(
    hyperliquid: LocalExchange, tmp_path: Path, is_sent: bool
) -> None:
    approve(hyperliquid)
    async with Sender(hyperliquid, tmp_path) as sender:
        if is_sent:
            await sender.link.act(sender.action)
        sender.tracked = life.after_restart(sender.tracked)
        assert (await sender.settle()).status == "placed"
    assert open_ids(hyperliquid) == [client_order_id(sender.tracked.nonce)]


def test_what_an_answer_and_a_lookup_say_of_each_kind_of_action() -> None:
    place = entry(1)
    cancel, void = (ExchangeAction(1, kind, AGENT, Rank.STOP) for kind in ("cancel", "void"))
    refused, resting = OrderAnswer("refused"), OrderAnswer("resting", "5")
    said = [
        seen_of_answer(place, ActionAnswer(1, "done", (refused, refused))),
        seen_of_answer(place, ActionAnswer(1, "done", (resting, refused))),
        seen_of_answer(place, ActionAnswer(1, "refused")),
        seen_of_answer(place, ActionAnswer(1, "nonce_too_low")),
        seen_of_answer(place, ActionAnswer(1, "not_sent")),
        seen_of_answer(place, ActionAnswer(1, "malformed")),
        seen_of_answer(void, ActionAnswer(1, "done")),
        seen_of_answer(void, ActionAnswer(1, "duplicate")),
        seen_of_answer(void, ActionAnswer(1, "refused")),
    ]
    expected = "refused placed refused nonce_used not_sent malformed void_done nonce_used"
    assert said == [*expected.split(), None]
    canceled, opened, unplaced = (OrderUpdate("5", None, "BTC", 1, state) for state in ("canceled", "open", "refused"))
    looked_up = [seen_of_order(place, update) for update in (None, canceled, opened, unplaced)]
    assert looked_up == ["unknown", "placed", "placed", "known_refused"]
    assert [seen_of_order(cancel, update) for update in (None, canceled, opened)] == ["unknown", "placed", "unknown"]
