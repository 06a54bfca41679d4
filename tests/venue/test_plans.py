"""Plans: a dry run and its one confirm. The first use consumes the token with any result."""

from __future__ import annotations

import pytest

from bot.venue.accounting import ledger
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import DAY_MS, PLAN_KEPT_MS, OrderSpec
from bot.venue.orders import plans
from bot.venue.orders.suggestion import SizeQuestion, suggest
from bot.venue.prices import index
from bot.venue.storage import codec
from tests.builders import VenueDriver, code_of, e8, market, order
from tests.scenario import run

LIFE_MS = 60_000


def planned(token: str = "t", **over) -> VenueDriver:
    venue = VenueDriver((market(), "100"))
    assert code_of(venue.do(c.StorePlan("a", order(size="5", **over), token, LIFE_MS))) == ""
    return venue


def confirmed(venue: VenueDriver, token: str = "t", **over):
    return venue.do(c.ConfirmPlan("a", token, **over)).answer


def test_a_plan_changes_nothing_and_its_confirm_makes_the_order():
    run("""
        mark BTC 100
        plan long BTC 5 stop 2%        || -
        position BTC                   | flat
        confirm                        || open 5 @ 100, armed stop_loss 98
    """)


def test_a_plan_shows_the_effects_of_its_order():
    venue = VenueDriver((market(taker_rate=45_000, half_spread=100_000), "100"))
    plan = venue.do(c.StorePlan("a", order(size="5", leverage=5, stop="98", take="2r"), "t", LIFE_MS)).answer
    assert (plan.size, plan.fill_size, plan.est_px, plan.mid) == (e8("5"), e8("5"), e8("100.1"), e8("100"))
    assert (plan.margin, plan.fee, plan.slippage_bps) == (e8("100.1"), e8("0.225225"), e8("10"))
    assert (plan.bracket.stop.px, plan.bracket.target.px, plan.risk) == (e8("98"), e8("104.3"), e8("10.5"))
    assert plan.protected and plan.leverage == 5 and plan.max_drift_bps == 50
    placed = confirmed(venue).trade
    assert (placed.filled, placed.avg_px(), placed.fee) == (plan.fill_size, plan.est_px, plan.fee)


@pytest.mark.parametrize("held", ["0", "-3", "-20", "5"])
@pytest.mark.parametrize(
    ("mode", "px", "limit_px"), [("cross", "100", "101"), ("isolated", "100", "101"), ("full", "0.4", "0.42")]
)
def test_a_plan_and_a_suggestion_show_the_fee_of_the_fills(held: str, mode: str, px: str, limit_px: str):
    """Over several levels and through a flip: the ledger truncates each fill."""
    # whole shares
    scale = 1 if mode != "full" else 100
    spec = market(
        taker_rate=45_001,
        half_spread=110_000,
        level_step=70_000,
        level_size=e8("1.37") * scale,
        level_growth=0,
        sz_decimals=2,
        margin_mode=mode,
    )
    venue = VenueDriver((spec, px), cash="100000")
    if held != "0":
        assert code_of(venue.place(OrderSpec("BTC", -1 if held < "0" else 1, size=abs(e8(held)) * scale))) == ""
    for size in (e8(text) * scale for text in ("1.11", "2.9", "4.13", "7.77", "11.1")):
        told = suggest(venue.state, venue.account, None, SizeQuestion(coin="BTC", size=size))
        for over in ({}, {"type": "limit", "limit_px": e8(limit_px)}):
            token = f"{size} {over}"
            plan = venue.do(c.StorePlan("a", OrderSpec("BTC", 1, size=size, **over), token, LIFE_MS)).answer
            placed = confirmed(venue, token).trade
            assert placed.fee == plan.fee
            assert over or placed.fee == told.fee


def test_a_token_is_used_once_and_then_names_its_trade():
    venue = planned()
    trade = confirmed(venue).trade
    again = confirmed(venue)
    assert (again.code, again.details["reason"], again.details["tradeId"]) == (
        "idempotency_conflict",
        "used_token",
        trade.id,
    )
    assert venue.position().size == e8("5")


def test_an_unknown_token_and_another_accounts_token_are_not_found():
    venue = planned()
    venue.do(c.OpenAccount("b", "0x" + "1" * 40, None, e8("100")))
    assert confirmed(venue, "x").code == "not_found"
    assert venue.do(c.ConfirmPlan("b", "t")).answer.code == "not_found"
    assert confirmed(venue).trade


def test_a_plan_is_stale_when_the_price_drifts_too_far_either_way():
    for far, near in (("100.51", "100.5"), ("99.49", "99.5")):
        venue = planned()
        venue.jump("BTC", near)
        assert confirmed(venue).trade
        venue = planned()
        venue.jump("BTC", far)
        assert confirmed(venue).code == "plan_stale"


def test_the_callers_drift_bound_is_applied():
    run("""
        mark BTC 100
        plan long drift 10 BTC 5
        jump BTC 100.2
        confirm                        | no plan_stale
        plan long drift 500 BTC 5
        jump BTC 104
        confirm                        | open 5 @ 104
    """)


def test_a_plan_expires_at_its_instant():
    venue = planned()
    venue.wait(LIFE_MS - 1)
    assert confirmed(venue).trade
    venue = planned()
    venue.wait(LIFE_MS)
    assert confirmed(venue).code == "plan_stale"


def test_a_refused_confirm_consumes_the_token():
    venue = planned()
    venue.jump("BTC", "110")
    assert confirmed(venue).code == "plan_stale"
    venue.jump("BTC", "100")
    again = confirmed(venue)
    assert again.code == "plan_stale" and "refused before" in again.message


def test_caps_and_margin_are_checked_again_at_the_confirm():
    venue = planned()
    venue.do(c.ChangeSettings("a", e8("100"), None))
    refused = confirmed(venue)
    assert (refused.code, refused.fix) == ("limit_exceeded", {"action": "replan"}), "the token is used up"
    venue.do(c.ChangeSettings("a", None, None))
    assert confirmed(venue).code == "plan_stale"


def test_a_plan_whose_depth_has_gone_is_stale():
    venue = VenueDriver((market(half_spread=100_000), "100"))
    venue.do(c.StorePlan("a", order(size="5", slippage_bps=10), "t", LIFE_MS))
    venue.do(c.SetMarket("BTC", external="closed"))
    refused = confirmed(venue)
    assert (refused.code, refused.fix) == ("plan_stale", {"action": "replan"}), "waiting would not help"
    assert refused.details == {"availableSize": "0"}


def test_a_late_confirm_consumes_the_token():
    venue = planned()
    venue.wait(1000)
    assert confirmed(venue, expires_ms=venue.now_ms - 1).code == "idempotency_conflict"
    assert confirmed(venue).code == "plan_stale"


def test_the_trade_of_a_confirm_carries_its_idempotency_key():
    venue = planned()
    trade = confirmed(venue, idempotency_key="k", request_id="req_1").trade
    assert (trade.idempotency_key, trade.request_id) == ("k", "req_1")
    fill = venue.account.events[-1]
    assert (fill.idempotency_key, fill.request_id) == ("k", "req_1")


def test_of_too_many_plans_the_oldest_expired_ones_are_dropped(monkeypatch):
    monkeypatch.setattr(plans, "PLANS_KEPT", 20)
    venue = planned("0")
    used, ends_ms = confirmed(venue, "0", idempotency_key="k").trade, venue.state.plans["0"].expires_ms
    for n in range(1, 30):
        venue.do(c.StorePlan("a", order(size="5"), f"{n}", LIFE_MS))
    assert len(venue.state.plans) == 30, "each of them may still be confirmed, or was a moment ago"
    assert confirmed(venue, "0").details["tradeId"] == used.id
    venue.wait(LIFE_MS)
    for n in range(30, 1_000):
        venue.wait(LIFE_MS // 10)
        venue.do(c.StorePlan("a", order(size="5"), f"{n}", LIFE_MS))
        assert len(venue.state.plans) <= 31
    assert len(venue.state.plans) <= 20
    assert "0" not in venue.state.plans and "1" not in venue.state.plans
    assert confirmed(venue, "1").code == "not_found", "it was never executed, and never will be"
    assert confirmed(venue, "985").code == "plan_stale"
    assert confirmed(venue, "999").trade
    venue.state = codec.loads(codec.dumps(venue.state))
    index.rebuild(venue.state)
    # A used token is known for a week, also after many later plans.
    for n in range(1_000, 1_100):
        venue.wait(DAY_MS // 10)
        venue.do(c.StorePlan("a", order(size="0.2"), f"{n}", LIFE_MS))
        assert confirmed(venue, f"{n}").trade
        again = confirmed(venue, "0")
        if venue.now_ms < ends_ms + PLAN_KEPT_MS:
            assert (again.code, again.details) == ("idempotency_conflict", {"reason": "used_token", "tradeId": used.id})
    assert again.code == "not_found"
    assert len(venue.account.spent) <= PLAN_KEPT_MS // DAY_MS + 2
    again = confirmed(venue, "0", idempotency_key="k")
    assert (again.code, again.details["tradeId"]) == ("idempotency_conflict", used.id), "a key of a trade, for ever"


def test_a_plan_that_would_be_refused_makes_no_token():
    venue = VenueDriver((market(), "100"))
    assert code_of(venue.do(c.StorePlan("a", order(size="5", leverage=99), "t", LIFE_MS))) == "leverage_too_high"
    assert confirmed(venue).code == "not_found"


def test_a_plans_risk_covers_only_its_opened_part():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5"))
    plan = venue.do(c.StorePlan("a", order(side=-1, size="8", stop="2%"), "t", LIFE_MS)).answer
    assert plan.risk == e8("6")
    thin = VenueDriver((market(level_size=2 * E8, level_step=100_000), "100"))
    spec = order(size="5", slippage_bps=10, allow_partial=True, stop="99")
    plan = thin.do(c.StorePlan("a", spec, "t", LIFE_MS)).answer
    assert plan.risk == e8("4.2")


@pytest.mark.parametrize("mode", ["isolated", "cross"])
@pytest.mark.parametrize("side", [1, -1], ids=["long", "short"])
@pytest.mark.parametrize("limit", [False, True], ids=["market", "limit"])
def test_a_reducing_plan_shows_the_liquidation_price_of_the_rest(mode: str, side: int, limit: bool):
    venue = VenueDriver((market(margin_mode=mode, half_spread=100_000, taker_rate=90_000), "100"), cash="1200")
    venue.place(order(side=side, size="100", leverage=10))
    venue.jump("BTC", "101")
    crossing = {"limit_px": "100" if side > 0 else "102"} if limit else {}
    plan = venue.do(c.StorePlan("a", order(side=-side, size="40", **crossing), "t", LIFE_MS)).answer
    assert confirmed(venue).trade.filled == e8("40")
    found = ledger.liquidation_px(venue.state, venue.position())
    assert abs(plan.liquidation_px - found) <= 100, (plan.liquidation_px, found)
    whole = venue.do(c.StorePlan("a", order(side=-side, size="60"), "w", LIFE_MS)).answer
    assert whole.liquidation_px is None


def test_a_limit_plan_measures_its_bracket_from_the_limit_price():
    run("""
        mark BTC 100
        plan long BTC 5 limit 98 stop 2% take 2r
        confirm                        || open limit 98
        bar BTC 100 100 97 97.5        || open 5 @ 98, armed stop_loss 96.04, armed take_profit 101.92
    """)
