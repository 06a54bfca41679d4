"""Event markets: shares of Yes and No, paid in full, from one book; settled at their instant without remaining
orders or positions.
"""

from __future__ import annotations

from typing import Any

import pytest

from bot.errors import Refusal
from bot.model.events import FundingPaid, Liquidated, OrderChanged, Settled
from bot.money import format_e8
from bot.venue.accounting import ledger
from bot.venue.model import commands as c
from bot.venue.model.state import MarketSpec
from bot.venue.orders.suggestion import SizeQuestion, Suggestion, suggest
from bot.venue.prices.book import book
from bot.venue.storage import codec
from tests.builders import HOUR_MS, T0, VenueDriver, code_of, e8, market, order, trail

COIN = "event:RAIN"


def shares(**over: Any) -> MarketSpec:
    plain: dict[str, Any] = {
        "asset_class": "prediction",
        "book": "events",
        "margin_mode": "full",
        "sz_decimals": 0,
        "max_leverage": 1,
        "sig_figs": None,
        "px_decimals": 3,
        "taker_rate": 7_000_000,
        "slippage_bps": 500,
        "expires_ms": T0 + HOUR_MS,
    }
    return market(COIN, **{**plain, **over})


def venue_at(px: str = "0.4", **over: Any) -> VenueDriver:
    return VenueDriver((shares(**over), px))


def settled(venue: VenueDriver, px: str | None = None) -> list[Any]:
    """The events of the end; a given outcome is set before it."""
    if px is not None:
        venue.do(c.SetMarket(COIN, outcome_px=e8(px)))
    venue.now_ms = T0 + HOUR_MS
    return list(venue.do(c.Pulse()).events)


@pytest.mark.parametrize(
    ("side", "cost", "outcome", "realized"),
    [
        (1, "40", "1", "60"),
        (1, "40", "0", "-40"),
        (-1, "60", "1", "-60"),
        (-1, "60", "0", "40"),
        (1, "40", "0.5", "10"),
        (-1, "60", "0.5", "-10"),
    ],
)
def test_a_share_is_paid_at_once_and_pays_its_outcome(side: int, cost: str, outcome: str, realized: str) -> None:
    """The figures of venue.md 2.14: 100 shares at 0.40, fee 100 * 0.07 * 0.24 = 1.68."""
    venue = venue_at()
    venue.place(order(COIN, side, size="100"))
    held = venue.position(COIN)
    assert (held.margin, venue.account.fees) == (e8(cost), e8("1.68"))
    assert venue.account.balance == e8("10000") - e8(cost) - e8("1.68")
    assert ledger.account_value(venue.state, venue.account) == e8("10000") - e8("1.68")
    assert ledger.liquidation_px(venue.state, held) is None
    last = settled(venue, outcome)[-1]
    assert isinstance(last, Settled)
    assert (last.outcome_px, last.realized, last.fee) == (e8(outcome), e8(realized), 0)
    assert last.payout == e8(cost) + e8(realized)
    assert venue.account.balance == e8("10000") - e8("1.68") + e8(realized)
    assert not venue.account.positions


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("px", ["0.03", "0.97"])
def test_a_flatten_closes_a_share_at_any_price_across_a_wide_spread(side: int, px: str) -> None:
    venue = venue_at(px, half_spread=500_000, level_step=300_000, level_size=e8("600"), level_growth=25_000_000)
    venue.place(order(COIN, side, size="500"))
    venue.do(c.Kill("a", flatten=True))
    assert not venue.account.positions


def test_a_stop_of_a_cheap_share_fills_across_a_wide_spread() -> None:
    venue = venue_at("0.03", half_spread=500_000, level_step=300_000, level_size=e8("600"), level_growth=25_000_000)
    venue.place(order(COIN, -1, size="500", stop="0.04"))
    venue.move(COIN, "0.041")
    assert not venue.account.positions


def test_the_largest_order_in_usd_that_turns_shares_passes_across_several_levels() -> None:
    venue = venue_at("0.4", half_spread=500_000, level_step=300_000, level_size=e8("600"), level_growth=25_000_000)
    venue.place(order(COIN, 1, size="500"))
    venue.do(c.ChangeSettings("a", e8("921"), None))
    refused = venue.place(order(COIN, -1, usd="4000")).answer
    assert isinstance(refused, Refusal) and refused.details == {"cap": "maxTradeUsd"} and refused.fix is not None
    placed = venue.place(order(COIN, -1, usd=refused.fix["value"])).answer
    assert not isinstance(placed, Refusal)
    assert e8("900") < venue.position(COIN).margin <= e8("921")


@pytest.mark.parametrize("side", [1, -1])
def test_a_plan_across_several_levels_is_worth_what_they_cost_to_the_last_digit(side: int) -> None:
    venue = venue_at("0.6", half_spread=500_000, level_step=300_000, level_size=e8("600"), level_growth=25_000_000)
    plan = venue.do(c.StorePlan("a", order(COIN, side, size="6309"), "t", 60_000)).answer
    venue.do(c.ConfirmPlan("a", "t"))
    assert plan.notional == plan.margin == venue.position(COIN).margin
    out = venue.do(c.StorePlan("a", order(COIN, -side, size="1301"), "u", 60_000)).answer
    closed = venue.do(c.ConfirmPlan("a", "u")).answer.trade
    assert out.notional == (closed.filled_notional if side > 0 else closed.filled - closed.filled_notional)


def test_a_yes_and_a_no_are_worth_exactly_one_at_all_times() -> None:
    venue = venue_at()
    venue.do(c.OpenAccount("b", "0x" + "1" * 40, None, e8("10000")))
    venue.place(order(COIN, 1, size="100"))
    venue.do(c.PlaceOrder("b", order(COIN, -1, size="100")))
    yes, no = venue.state.accounts["a"], venue.state.accounts["b"]
    for px in ("0.001", "0.37", "0.999"):
        venue.do(c.PricePoint(COIN, e8(px)))
        value = sum(a.positions[COIN].margin + a.positions[COIN].pnl(e8(px)) for a in (yes, no))
        assert value == e8("100")
    settled(venue, "0.3")
    assert yes.balance + no.balance == e8("20000") - 2 * e8("1.68")


def test_leverage_of_an_event_market_is_one() -> None:
    refused = venue_at().place(order(COIN, 1, size="100", leverage=2)).answer
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.fix) == ("leverage_too_high", {"field": "leverage", "value": 1})


def test_usd_amount_is_the_money_spent_on_either_side() -> None:
    venue = venue_at()
    venue.place(order(COIN, -1, usd="60"))
    assert (venue.position(COIN).size, venue.position(COIN).margin) == (e8("100"), e8("60"))
    refused = venue.place(order(COIN, -1, usd="6000000")).answer
    assert isinstance(refused, Refusal)
    assert refused.code == "insufficient_funds"


@pytest.mark.parametrize("size", ["1.5", "100.0001"])
def test_event_shares_are_whole_numbers(size: str) -> None:
    refused = venue_at().place(order(COIN, 1, size=size)).answer
    assert isinstance(refused, Refusal)
    assert refused.code == "invalid_input"


@pytest.mark.parametrize(("px", "fix"), [("1", "0.999"), ("1.5", "0.999"), ("0.0005", "0.001"), ("0.4005", "0.4")])
def test_a_limit_lies_on_the_grid_between_zero_and_one(px: str, fix: str) -> None:
    refused = venue_at().place(order(COIN, 1, size="100", limit_px=px)).answer
    assert isinstance(refused, Refusal)
    assert refused.code == "invalid_input"
    assert refused.fix is not None
    assert refused.fix["value"] == fix


def test_brackets_in_percent_are_clamped_between_zero_and_one() -> None:
    venue = venue_at("0.9")
    venue.place(order(COIN, 1, size="100", stop="10%", take="50%"))
    triggers = sorted(o.trigger_px or 0 for o in venue.account.orders.values())
    assert triggers == [e8("0.81"), e8("0.999")]


def test_a_stop_sells_the_shares_and_a_flip_buys_the_other_side() -> None:
    venue = venue_at("0.5", taker_rate=0)
    venue.place(order(COIN, 1, size="100", stop="20%"))
    venue.do(c.PricePoint(COIN, e8("0.4")))
    assert not venue.account.positions
    assert venue.account.balance == e8("9990")
    venue.place(order(COIN, 1, size="100"))
    venue.place(order(COIN, -1, size="150"))
    held = venue.position(COIN)
    assert (held.side, held.size, held.margin) == (-1, e8("50"), e8("30"))
    assert venue.account.balance == e8("9960")


def test_neither_funding_nor_liquidation_reaches_a_paid_share() -> None:
    venue = venue_at(expires_ms=T0 + 30 * HOUR_MS)
    venue.place(order(COIN, 1, usd="9000"))
    venue.now_ms += 5 * HOUR_MS
    events = list(venue.do(c.Pulse()).events) + list(venue.do(c.PricePoint(COIN, e8("0.001"))).events)
    assert not [e for e in events if isinstance(e, FundingPaid | Liquidated)]
    assert COIN in venue.account.positions


def test_a_loss_never_exceeds_the_cost_with_any_other_position() -> None:
    venue = VenueDriver((shares(taker_rate=0), "0.4"), (market("BTC"), "100"), cash="1000")
    venue.place(order("BTC", 1, usd="1000", leverage=5))
    venue.place(order(COIN, 1, usd="500"))
    watch = venue.position("BTC").liquidation_level
    assert watch is not None
    settled(venue, "0")
    assert venue.account.balance == e8("500")
    venue.do(c.PricePoint("BTC", watch - 1))
    # The cost of the shares no longer secured it.
    assert "BTC" not in venue.account.positions


def test_settlement_cancels_resting_orders_and_closes_the_market() -> None:
    venue = venue_at()
    venue.place(order(COIN, 1, size="100", stop="10%", take="20%", guardians=(trail("5%"),)))
    venue.place(order(COIN, 1, size="100", limit_px="0.2"))
    events = settled(venue)
    assert {e.reason for e in events if isinstance(e, OrderChanged)} == {"settled"}
    assert [type(e) for e in events].count(Settled) == 1
    account, listed = venue.account, venue.state.markets[COIN]
    assert not account.orders
    assert not account.guardians
    assert account.reserved == 0
    # 0.4 is nearer to No.
    assert (listed.status, listed.outcome_px, book(listed)) == ("settled", 0, ([], []))
    assert account.trades[-1].kind == "settlement"
    for refused in (venue.place(order(COIN, 1, size="100")).answer, venue.do(c.ClosePosition("a", COIN)).answer):
        assert isinstance(refused, Refusal)
        assert refused.code in ("market_closed", "not_found")
    assert venue.state.markets[COIN].status == "settled"


def test_settlement_falls_due_at_its_instant_and_once() -> None:
    venue = venue_at()
    venue.place(order(COIN, 1, size="100"))
    venue.now_ms = T0 + HOUR_MS - 1
    assert not venue.do(c.Pulse()).events
    venue.now_ms += 10 * HOUR_MS
    events = venue.do(c.Pulse()).events
    assert [(type(e), e.ts) for e in events] == [(Settled, T0 + HOUR_MS)]
    assert not venue.do(c.Pulse()).events


def test_a_settled_venue_survives_its_snapshot() -> None:
    venue = VenueDriver((shares(), "0.4"), way="stored")
    venue.place(order(COIN, 1, size="100"))
    settled(venue, "1")
    assert codec.digest(codec.loads(codec.dumps(venue.state))) == codec.digest(venue.state)
    assert format_e8(venue.account.balance) == "10058.32"


def test_the_book_of_an_event_stays_within_its_price_limits() -> None:
    for px in ("0.001", "0.5", "0.999"):
        venue = venue_at(px, half_spread=500_000, level_step=2_000_000, level_size=e8("1000"))
        bids, asks = book(venue.state.markets[COIN])
        assert all(e8("0.001") <= level <= e8("0.999") for level, _ in (*bids, *asks))
        assert bids
        assert asks


@pytest.mark.parametrize("limit_px", [None, "0.45"], ids=["market", "resting limit"])
def test_the_refusal_of_an_unaffordable_flip_names_an_affordable_one(limit_px: str | None):
    venue = venue_at("0.4", taker_rate=0)
    venue.place(order(COIN, usd="5000"))
    flip = order(COIN, side=-1, usd="30000", **({} if limit_px is None else {"limit_px": limit_px}))
    refused = venue.place(flip).answer
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.fix["field"]) == ("insufficient_funds", "usdAmount")
    flip.usd = e8(refused.fix["value"])
    assert not isinstance(venue.place(flip).answer, Refusal)


def test_a_trailing_stop_stays_within_the_price_limits():
    venue = venue_at("0.9", taker_rate=0)
    venue.place(order(COIN, side=-1, usd="100", guardians=(trail("50%"),), require_protection=True))
    (guardian,) = venue.account.guardians.values()
    assert format_e8(guardian.stop_px) == "0.999"
    venue.move(COIN, "0.8")
    assert format_e8(guardian.stop_px) == "0.999"
    venue.move(COIN, "0.6")
    assert format_e8(guardian.stop_px) == "0.9"
    venue.move(COIN, "0.95")
    assert venue.account.positions == {}


def test_a_no_whose_trail_lies_beyond_one_is_closed_at_the_price_limit():
    venue = venue_at("0.9", taker_rate=0)
    venue.place(order(COIN, side=-1, usd="100", guardians=(trail("50%"),)))
    venue.move(COIN, "0.999")
    assert venue.account.positions == {}


@pytest.mark.parametrize(
    "asked", [{}, {"size": "11"}, {"size": "150"}, {"size": "200"}, {"notional": "12"}, {"notional": "60"}], ids=str
)
@pytest.mark.parametrize(("px", "held", "side"), [("0.05", 1, -1), ("0.95", -1, 1)], ids=["a yes", "a no"])
def test_a_suggestion_against_held_shares_can_be_sent(px: str, held: int, side: int, asked: dict[str, str]) -> None:
    venue = venue_at(px, taker_rate=0)
    venue.place(order(COIN, held, size="1000"))
    amounts = {name: e8(amount) for name, amount in asked.items()}
    got = suggest(venue.state, venue.account, None, SizeQuestion(coin=COIN, side=side, **amounts))
    assert isinstance(got, Suggestion) and got.feasible
    assert got.size is not None and got.min_size <= got.size
    assert code_of(venue.place(order(COIN, side, size=got.size))) == ""
    if asked == {"notional": "12"}:
        assert got.notional == e8("12")


@pytest.mark.parametrize(("side", "limit_px", "path"), [(1, "0.001", "0.002 0.001"), (-1, "0.999", "0.998 0.999")])
def test_a_limit_at_the_price_limit_fills_at_a_touch(side: int, limit_px: str, path: str) -> None:
    near, last = path.split()
    venue = venue_at(near)
    venue.place(order(COIN, side, size="20000", limit_px=limit_px))
    venue.bar(COIN, near, near, near, near)
    assert not venue.account.positions
    venue.bar(COIN, *((near, near, last, last) if side > 0 else (near, last, near, last)))
    assert venue.position(COIN).entry_px() == e8(limit_px)
