"""Plans: a dry run and its one confirm. The token dies on first use, whatever comes of it."""

from __future__ import annotations

import pytest

from bot.venue import codec, index, ledger, plans
from bot.venue import commands as c
from bot.venue.numbers import E8
from bot.venue.state import DAY_MS, PLAN_KEPT_MS, OrderSpec
from bot.venue.suggestion import suggest
from tests.builders import Desk, code_of, e8, market, order
from tests.scenario import run

LIFE_MS = 60_000


def planned(token: str = "t", **over) -> Desk:
    desk = Desk((market(), "100"))
    assert code_of(desk.do(c.StorePlan("a", order(size="5", **over), token, LIFE_MS))) == ""
    return desk


def confirmed(desk: Desk, token: str = "t", **over):
    return desk.do(c.ConfirmPlan("a", token, **over)).answer


def test_a_plan_changes_nothing_and_its_confirm_makes_the_order():
    run("""
        mark BTC 100
        plan long BTC 5 stop 2%        || -
        position BTC                   | flat
        confirm                        || open 5 @ 100, armed stop_loss 98
    """)


def test_a_plan_tells_what_the_order_would_do():
    desk = Desk((market(taker_rate=45_000, half_spread=100_000), "100"))
    plan = desk.do(c.StorePlan("a", order(size="5", leverage=5, stop="98", take="2r"), "t", LIFE_MS)).answer
    assert (plan.size, plan.fill_size, plan.est_px, plan.mid) == (e8("5"), e8("5"), e8("100.1"), e8("100"))
    assert (plan.margin, plan.fee, plan.slippage_bps) == (e8("100.1"), e8("0.225225"), e8("10"))
    assert (plan.bracket.stop.px, plan.bracket.target.px, plan.risk) == (e8("98"), e8("104.3"), e8("10.5"))
    assert plan.protected and plan.leverage == 5 and plan.max_drift_bps == 50
    placed = confirmed(desk).trade
    assert (placed.filled, placed.avg_px(), placed.fee) == (plan.fill_size, plan.est_px, plan.fee)


@pytest.mark.parametrize("held", ["0", "-3", "-20", "5"])
@pytest.mark.parametrize(
    ("mode", "px", "limit_px"), [("cross", "100", "101"), ("isolated", "100", "101"), ("full", "0.4", "0.42")]
)
def test_a_plan_and_a_suggestion_tell_the_fee_that_the_fills_pay(held: str, mode: str, px: str, limit_px: str):
    """Over several levels, and through the position: the ledger truncates each fill."""
    scale = 1 if mode != "full" else 100  # whole shares
    spec = market(
        taker_rate=45_001, half_spread=110_000, level_step=70_000, level_size=e8("1.37") * scale, level_growth=0, sz_decimals=2, margin_mode=mode,
    )  # fmt: skip
    desk = Desk((spec, px), cash="100000")
    if held != "0":
        assert code_of(desk.place(OrderSpec("BTC", -1 if held < "0" else 1, size=abs(e8(held)) * scale))) == ""
    for size in (e8(text) * scale for text in ("1.11", "2.9", "4.13", "7.77", "11.1")):
        told = suggest(desk.state, desk.account, None, coin="BTC", size=size)
        for over in ({}, {"type": "limit", "limit_px": e8(limit_px)}):
            token = f"{size} {over}"
            plan = desk.do(c.StorePlan("a", OrderSpec("BTC", 1, size=size, **over), token, LIFE_MS)).answer
            placed = confirmed(desk, token).trade
            assert placed.fee == plan.fee
            assert over or placed.fee == told.fee


def test_a_token_is_used_once_and_then_names_its_trade():
    desk = planned()
    trade = confirmed(desk).trade
    again = confirmed(desk)
    assert (again.code, again.details["reason"], again.details["tradeId"]) == (
        "idempotency_conflict",
        "used_token",
        trade.id,
    )
    assert desk.position().size == e8("5")


def test_an_unknown_token_and_another_accounts_token_are_not_found():
    desk = planned()
    desk.do(c.OpenAccount("b", "0x" + "1" * 40, None, e8("100")))
    assert confirmed(desk, "x").code == "not_found"
    assert desk.do(c.ConfirmPlan("b", "t")).answer.code == "not_found"
    assert confirmed(desk).trade


def test_a_plan_is_stale_when_the_price_drifts_too_far_either_way():
    for far, near in (("100.51", "100.5"), ("99.49", "99.5")):
        desk = planned()
        desk.jump("BTC", near)
        assert confirmed(desk).trade
        desk = planned()
        desk.jump("BTC", far)
        assert confirmed(desk).code == "plan_stale"


def test_the_callers_own_drift_bound_is_kept():
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
    desk = planned()
    desk.wait(LIFE_MS - 1)
    assert confirmed(desk).trade
    desk = planned()
    desk.wait(LIFE_MS)
    assert confirmed(desk).code == "plan_stale"


def test_a_refused_confirm_consumes_the_token():
    desk = planned()
    desk.jump("BTC", "110")
    assert confirmed(desk).code == "plan_stale"
    desk.jump("BTC", "100")
    again = confirmed(desk)
    assert again.code == "plan_stale" and "refused before" in again.message


def test_caps_and_margin_are_judged_again_at_the_confirm():
    desk = planned()
    desk.do(c.ChangeSettings("a", e8("100"), None))
    refused = confirmed(desk)
    assert (refused.code, refused.fix) == ("limit_exceeded", {"action": "replan"}), "the token is used up"
    desk.do(c.ChangeSettings("a", None, None))
    assert confirmed(desk).code == "plan_stale"


def test_a_plan_whose_depth_has_gone_is_stale():
    desk = Desk((market(half_spread=100_000), "100"))
    desk.do(c.StorePlan("a", order(size="5", slippage_bps=10), "t", LIFE_MS))
    desk.do(c.SetMarket("BTC", external="closed"))
    refused = confirmed(desk)
    assert (refused.code, refused.fix) == ("plan_stale", {"action": "replan"}), "waiting would not help"
    assert refused.details == {"availableSize": "0"}


def test_a_late_confirm_consumes_the_token():
    desk = planned()
    desk.wait(1000)
    assert confirmed(desk, expires_ms=desk.now_ms - 1).code == "idempotency_conflict"
    assert confirmed(desk).code == "plan_stale"


def test_the_trade_of_a_confirm_carries_its_idempotency_key():
    desk = planned()
    trade = confirmed(desk, idempotency_key="k", request_id="req_1").trade
    assert (trade.idempotency_key, trade.request_id) == ("k", "req_1")
    fill = desk.account.events[-1]
    assert (fill.idempotency_key, fill.request_id) == ("k", "req_1")


def test_of_too_many_plans_the_oldest_that_nobody_can_confirm_are_forgotten(monkeypatch):
    monkeypatch.setattr(plans, "PLANS_KEPT", 20)
    desk = planned("0")
    used, ends_ms = confirmed(desk, "0", idempotency_key="k").trade, desk.state.plans["0"].expires_ms
    for n in range(1, 30):
        desk.do(c.StorePlan("a", order(size="5"), f"{n}", LIFE_MS))
    assert len(desk.state.plans) == 30, "each of them may still be confirmed, or was a moment ago"
    assert confirmed(desk, "0").details["tradeId"] == used.id
    desk.wait(LIFE_MS)
    for n in range(30, 1_000):
        desk.wait(LIFE_MS // 10)
        desk.do(c.StorePlan("a", order(size="5"), f"{n}", LIFE_MS))
        assert len(desk.state.plans) <= 31
    assert len(desk.state.plans) <= 20
    assert "0" not in desk.state.plans and "1" not in desk.state.plans
    assert confirmed(desk, "1").code == "not_found", "it was never executed, and never will be"
    assert confirmed(desk, "985").code == "plan_stale"
    assert confirmed(desk, "999").trade
    desk.state = codec.loads(codec.dumps(desk.state))
    index.rebuild(desk.state)
    for n in range(1_000, 1_100):  # A used one says so for a week, however many plans there were since.
        desk.wait(DAY_MS // 10)
        desk.do(c.StorePlan("a", order(size="0.2"), f"{n}", LIFE_MS))
        assert confirmed(desk, f"{n}").trade
        again = confirmed(desk, "0")
        if desk.now_ms < ends_ms + PLAN_KEPT_MS:
            assert (again.code, again.details) == ("idempotency_conflict", {"reason": "used_token", "tradeId": used.id})
    assert again.code == "not_found"
    assert len(desk.account.spent) <= PLAN_KEPT_MS // DAY_MS + 2
    again = confirmed(desk, "0", idempotency_key="k")
    assert (again.code, again.details["tradeId"]) == ("idempotency_conflict", used.id), "a key of a trade, for ever"


def test_a_plan_that_would_be_refused_makes_no_token():
    desk = Desk((market(), "100"))
    assert code_of(desk.do(c.StorePlan("a", order(size="5", leverage=99), "t", LIFE_MS))) == "leverage_too_high"
    assert confirmed(desk).code == "not_found"


def test_a_plans_risk_is_that_of_what_it_opens():
    desk = Desk((market(), "100"))
    desk.place(order(size="5"))
    plan = desk.do(c.StorePlan("a", order(side=-1, size="8", stop="2%"), "t", LIFE_MS)).answer
    assert plan.risk == e8("6")
    thin = Desk((market(level_size=2 * E8, level_step=100_000), "100"))
    spec = order(size="5", slippage_bps=10, allow_partial=True, stop="99")
    plan = thin.do(c.StorePlan("a", spec, "t", LIFE_MS)).answer
    assert plan.risk == e8("4.2")


@pytest.mark.parametrize("mode", ["isolated", "cross"])
@pytest.mark.parametrize("side", [1, -1], ids=["long", "short"])
@pytest.mark.parametrize("limit", [False, True], ids=["market", "limit"])
def test_a_plan_that_reduces_shows_the_liquidation_price_of_what_it_leaves(mode: str, side: int, limit: bool):
    desk = Desk((market(margin_mode=mode, half_spread=100_000, taker_rate=90_000), "100"), cash="1200")
    desk.place(order(side=side, size="100", leverage=10))
    desk.jump("BTC", "101")
    crossing = {"limit_px": "100" if side > 0 else "102"} if limit else {}
    plan = desk.do(c.StorePlan("a", order(side=-side, size="40", **crossing), "t", LIFE_MS)).answer
    assert confirmed(desk).trade.filled == e8("40")
    found = ledger.liquidation_px(desk.state, desk.position())
    assert abs(plan.liquidation_px - found) <= 100, (plan.liquidation_px, found)
    whole = desk.do(c.StorePlan("a", order(side=-side, size="60"), "w", LIFE_MS)).answer
    assert whole.liquidation_px is None


def test_a_limit_plan_measures_its_bracket_from_the_limit_price():
    run("""
        mark BTC 100
        plan long BTC 5 limit 98 stop 2% take 2r
        confirm                        || open limit 98
        bar BTC 100 100 97 97.5        || open 5 @ 98, armed stop_loss 96.04, armed take_profit 101.92
    """)
