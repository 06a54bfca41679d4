"""Suggestions: a feasible order is accepted when it is sent unchanged."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from bot.errors import Refusal
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import OPEN_ORDERS_MAX, OrderSpec
from bot.venue.orders.suggestion import SizeQuestion, Suggestion, suggest
from tests.builders import VenueDriver, code_of, dead_man, e8, market, order


def suggested(venue: VenueDriver, **asked: Any) -> Suggestion:
    answer = suggest(venue.state, venue.account, None, SizeQuestion(coin="BTC", **asked))
    assert isinstance(answer, Suggestion)
    return answer


def test_without_an_amount_the_least_legal_size_is_suggested():
    got = suggested(VenueDriver((market(), "103457")))
    assert (got.size, got.min_size, got.feasible) == (e8("0.0001"), e8("0.0001"), True)


def test_a_suggested_size_is_cut_to_the_free_margin_and_reported():
    got = suggested(VenueDriver((market(), "100"), cash="1000"), size=e8("50"))
    assert got.feasible and got.size == got.max_size <= e8("10") and got.warnings


def test_nothing_is_feasible_while_a_guardian_blocks_openings():
    venue = VenueDriver((market(), "100"))
    venue.arm(dead_man(60, "block_opens"))
    venue.wait(60_000)
    assert not suggested(venue).feasible


def test_an_order_that_a_market_of_strict_hours_refuses_is_not_feasible():
    venue = VenueDriver((market(strict_hours=True, hours="equity", margin_mode="isolated"), "100"))
    venue.place(order(size="5"))
    venue.do(c.SetMarket("BTC", external="closed", turns_ms=venue.now_ms + 1))
    shut = suggested(venue)
    assert not shut.feasible and "external_closed" in [code for code, _ in shut.warnings]
    less = suggested(venue, side=-1, size=e8("9"))
    assert less.feasible and less.size == e8("5")
    assert code_of(venue.place(OrderSpec("BTC", -1, size=less.size))) == ""


def test_nothing_is_feasible_at_the_limit_of_open_orders():
    venue = VenueDriver((market(), "100"), cash="100000")
    for _ in range(OPEN_ORDERS_MAX):
        assert code_of(venue.place(order(size="1", limit_px="90"))) == ""
    assert not suggested(venue).feasible


def test_a_suggested_close_is_of_the_whole_position_and_needs_one():
    venue = VenueDriver((market(), "100"))
    refused = suggest(venue.state, venue.account, None, SizeQuestion(coin="BTC", intent="close"))
    assert isinstance(refused, Refusal) and refused.code == "not_found"
    venue.place(order(size="5"))
    assert suggested(venue, intent="close").size == e8("5")


@pytest.mark.parametrize("seed", range(40))
def test_a_feasible_order_is_accepted(seed: int):
    chance = Random(seed)
    spec = market(
        sz_decimals=chance.randint(0, 5),
        taker_rate=45_000,
        half_spread=chance.choice((0, 20_000)),
        level_size=chance.choice((0, 3 * E8)),
        level_step=10_000,
        margin_mode=chance.choice(("cross", "isolated")),
        slippage_bps=100,
    )
    venue = VenueDriver(
        (spec, chance.choice(("103457", "97.31", "2.3456"))), cash=chance.choice(("50", "1000", "100000"))
    )
    if chance.random() < 0.5:
        venue.do(c.ChangeSettings("a", e8("700"), e8("900")))
    for _ in range(4):
        side = chance.choice((1, -1))
        got = suggested(venue, side=side, leverage=chance.randint(1, 40), notional=chance.randint(5, 50_000) * E8)
        if not got.feasible:
            continue
        assert got.size is not None and got.size % venue.state.markets["BTC"].lot == 0
        made = venue.place(
            OrderSpec("BTC", side, size=got.size, leverage=got.leverage, acknowledge_leverage_change=True)
        )
        assert code_of(made) == "", (got, made.answer)
        venue.close()
