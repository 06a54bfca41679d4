"""Fills in the order of execution, however the exchange tells them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bot.exchanges.hyperliquid import fill_order, form
from bot.exchanges.hyperliquid.fill_order import gaps, in_order
from bot.exchanges.hyperliquid.fill_pages import FillPages
from bot.exchanges.protocol import ExecutionReport, UnknownForm
from tests.exchanges.reports import report
from tests.exchanges.sources import account_of
from tests.local_exchange.exchanges import ANN, Venue
from tests.local_exchange.worlds import USERS, World


def journal_of(venue: Venue, user: str) -> list[ExecutionReport]:
    """The engine's own record of the fills, in the order of execution."""
    from bot.local_exchange.wire import rows

    return form.fills([rows.fill(row) for row in venue.exchange.users[user].fills], user)


@pytest.mark.soak(worlds=12, full=400)
def test_any_order_and_repeat_of_messages_gives_the_journal_of_the_engine(worlds: int) -> None:
    """Also after lost messages, if the missing ones are read again; until then the gap is named."""
    seen = several = 0
    for seed in range(worlds):
        world = World(seed)
        world.run(120)
        random = Random(f"messages:{seed}")
        for user in USERS:
            journal = journal_of(world.venue, user)
            told = [*journal, *random.choices(journal, k=len(journal) // 2)] if journal else []
            random.shuffle(told)
            ordered = in_order(told)
            seen += len(journal)
            instants = [(one.market, one.at_ms) for one in journal]
            several += len(instants) - len(set(instants))
            assert len(ordered) == len(journal)
            assert {one.key for one in ordered} == {one.key for one in journal}
            assert gaps(ordered) == []
            for market in {one.market for one in journal}:
                assert chain(ordered, market) == same_chain(chain(journal, market), chain(ordered, market)), (
                    seed,
                    user,
                )
            lost = [one for one in journal if random.random() < 0.8]
            random.shuffle(lost)
            assert in_order([*in_order(lost), *journal]) == ordered
    assert seen > 100 * worlds // 12 and several > 10


def chain(reports: list[ExecutionReport], market: str) -> list[ExecutionReport]:
    return [one for one in reports if one.market == market]


def same_chain(journal: list[ExecutionReport], ordered: list[ExecutionReport]) -> list[ExecutionReport]:
    """The journal; where several orders of one millisecond chain, the one of them that `ordered` has."""
    found = list(journal)
    index = 0
    while index < len(journal):
        end = index
        while end < len(journal) and journal[end].at_ms == journal[index].at_ms:
            end += 1
        starts = [one.position_before for one in journal[index:end]]
        if len(set(starts)) < len(starts) and {one.key for one in journal[index:end]} == {
            one.key for one in ordered[index:end]
        }:
            found[index:end] = ordered[index:end]
        index = end
    return found


def test_fills_of_one_millisecond_are_put_into_their_chain() -> None:
    chained = [report(0, 5, 9), report(5, -3, 4), report(2, 7, 8), report(9, -9, 1)]
    for seed in range(24):
        shuffled = list(chained)
        Random(seed).shuffle(shuffled)
        assert in_order(shuffled) == chained


def test_a_cycle_within_a_millisecond_is_walked_as_a_whole() -> None:
    """0, 5, 0, 5, 3: a walk that takes the last step first would leave two fills out."""
    reports = [report(0, 5, 1), report(5, -5, 2), report(0, 5, 3), report(5, -2, 0)]
    for seed in range(24):
        shuffled = list(reports)
        Random(seed).shuffle(shuffled)
        ordered = in_order(shuffled)
        assert gaps(ordered) == []
        assert ordered[-1].position_after == 3


def test_a_cycle_starts_where_the_fills_before_it_have_ended() -> None:
    before, cycle = report(0, 5, 7, at_ms=999), [report(3, 2, 1), report(5, -2, 2)]
    assert in_order([*cycle, before]) == [before, cycle[1], cycle[0]]


def test_a_lost_fill_is_a_gap_before_the_next_one() -> None:
    fills = [report(0, 5, 1, 1), report(5, 1, 2, 2), report(6, 1, 3, 3), report(0, 1, 4, 3, "ETH")]
    for lost, expected in ((0, []), (1, [fills[2]]), (2, []), (3, [])):
        assert gaps(in_order(one for n, one in enumerate(fills) if n != lost)) == expected


def test_two_copies_of_a_fill_that_differ_are_refused() -> None:
    one = report(0, 5, 1)
    assert in_order([one, one]) == [one]
    with pytest.raises(UnknownForm, match="told it with two contents"):
        in_order([one, replace(one, fee=1)])


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("page", [3, 7, 50])
def test_pages_of_any_size_and_direction_give_every_fill(page: int, newest_first: bool) -> None:
    world = World(3)
    world.run(120)
    for user in USERS:
        journal = journal_of(world.venue, user)
        rows = fill_rows(world.venue, user)
        most = max([page, *(2 + sum(one["time"] == at for one in rows) for at in {row["time"] for row in rows})])
        pages = FillPages(user, 0, world.venue.exchange.now_ms, page_sizes=(most,))
        while (query := pages.query) is not None:
            found = [row for row in rows if query["startTime"] <= row["time"] <= query["endTime"]]
            pages.take(found[::-1][:most] if newest_first else found[:most])
        assert {one.key for one in pages.fills} == {one.key for one in journal}


def fill_rows(venue: Venue, user: str) -> list[dict[str, object]]:
    from bot.local_exchange.wire import rows

    return [rows.fill(row) for row in venue.exchange.users[user].fills]


async def test_more_fills_in_one_millisecond_than_a_page_has_are_refused() -> None:
    venue = Venue()
    source, _ = account_of(venue)
    row = {"coin": "BTC", "px": "1.0", "sz": "1.0", "side": "B", "time": 5, "oid": 1, "crossed": True, "fee": "0.0"}
    rows = [row | {"tid": n, "startPosition": f"{n}.0", "feeToken": "USDC"} for n in range(4)]
    source.changes["userFillsByTime"] = rows
    pages = FillPages(ANN, 0, 10, page_sizes=(4,))
    with pytest.raises(UnknownForm, match="does not reach beyond 5 ms"):
        pages.take(await source.info(pages.query or {}))


def test_the_breaks_of_a_chain_are_its_gaps() -> None:
    assert list(fill_order._breaks([report(0, 1, 1), report(2, 1, 2)])) == [report(2, 1, 2)]
