"""The gate: each rule says its own no, exits pass where entries do not, and what passes is the request that was
meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from bot.errors import Refusal
from bot.runtime.account.account_state import AccountState
from bot.runtime.model.intents import CancelOrders, Intent
from bot.runtime.model.limits import ApprovedOrder, RiskRequest, StrategyLimits
from bot.runtime.model.order_rules import OrderRules
from bot.runtime.risk.risk_engine import RiskEngine, VenueTerms
from bot.strategy import Bracket, Cancel, Close, MaxHold, Open, TrailingStop
from bot.wire import CloseRequest, OrderRequest
from tests.runtime.builders import held_position, resting_order, share_of

STOP = Bracket(stop_pct=2, target_r=2)
NOW = 1_000_000


def risk(
    *,
    live: list[Intent] | None = None,
    stopped: Refusal | None = None,
    doubt: Callable[[str], bool] = lambda _m: False,
    **more: Any,
) -> RiskEngine:
    limits = replace(StrategyLimits("trend", frozenset({"BTC", "ETH"}), 60_000, Decimal(1_000), 3), **more)
    account_state = AccountState(lambda key: "trend" if key == "KEY" else None)
    attribution = SimpleNamespace(share=lambda _market, _strategy: None, shares_of=lambda _strategy: ())
    intents = SimpleNamespace(
        live={one.id: one for one in live or []}, is_doubtful=lambda coin, _besides=None: doubt(coin)
    )
    conditions = SimpleNamespace(entries_stopped=lambda _now: stopped, strategy_stopped=lambda _strategy, _now: None)
    terms = VenueTerms({"BTC": OrderRules(3, Decimal("0.001"))})
    return RiskEngine(account_state, {"trend": limits}, intents, conditions, attribution, terms)


def judge(
    it: RiskEngine, signal: Any, *, at_ms: int = NOW, price: str | None = "100", closing: frozenset[str] = frozenset()
) -> ApprovedOrder | Refusal:
    return it.judge("trend", RiskRequest(signal, at_ms, NOW, None if price is None else Decimal(price), closing))


def code(answer: ApprovedOrder | Refusal) -> str:
    return answer.code if isinstance(answer, Refusal) else "permitted"


LONG = Open("BTC", "long", usd=500, bracket=STOP)


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        (Open("BTC", "long", usd=1_000_001, bracket=STOP), "usd_amount must be > 0, <= 1000000"),
        (Open("BTC", "long", usd=0.004, bracket=STOP), "usd_amount must be > 0, <= 1000000"),
        (Open("BTC", "long", usd=50, bracket=Bracket(stop_px=1e-30)), "px must be > 0"),
        (Open("BTC", "long", usd=50, bracket=Bracket(stop_px=1e60)), "a number in it has too many digits"),
    ],
)
def test_an_order_that_no_request_can_carry_is_refused_with_what_of_it_cannot_be(signal: Open, said: str) -> None:
    no = judge(risk(budget_usd=Decimal(10_000_000)), signal)
    assert isinstance(no, Refusal)
    assert (no.code, no.message.rpartition(": ")[2]) == ("invalid_input", said)


@pytest.mark.parametrize(
    ("signal", "more", "expected"),
    [
        (LONG, {}, "permitted"),
        (Open("SOL", "long", usd=500, bracket=STOP), {}, "market_not_yours"),
        (Open("BTC", "long", usd=500), {}, "no_protection"),
        (Open("BTC", "long", usd=500, bracket=Bracket(target_pct=2)), {}, "no_protection"),
        (Open("BTC", "long", usd=500), {"require_protection": False}, "permitted"),
        (Open("BTC", "long", usd=500, guardians=(TrailingStop(trail_pct=1),)), {}, "permitted"),
        (Open("BTC", "long", usd=500, guardians=(MaxHold(60),)), {}, "no_protection"),
        (Open("BTC", "long", usd=500, bracket=STOP, guardians=(MaxHold(60),)), {}, "permitted"),
        (Open("BTC", "long", usd=500, guardians=(MaxHold(60), TrailingStop(trail_pct=1))), {}, "permitted"),
        (Open("BTC", "long", usd=500, leverage=3, bracket=STOP), {}, "permitted"),
        (Open("BTC", "long", usd=500, leverage=4, bracket=STOP), {}, "over_leverage"),
        (Open("BTC", "long", usd=1_000, bracket=STOP), {}, "permitted"),
        (Open("BTC", "long", usd=1_000.01, bracket=STOP), {}, "over_budget"),
        (Open("BTC", "long", size=10.01, bracket=STOP), {}, "over_budget"),
        (Open("BTC", "long", size=10.5, limit_px=90, bracket=STOP), {}, "permitted"),
        (Open("BTC", "long", size=0.0001, bracket=STOP), {}, "below_min_notional"),
        (Close("BTC"), {}, "no_position"),
        (Cancel(market="BTC"), {}, "nothing_to_cancel"),
        (Cancel(oid="9"), {}, "not_found"),
    ],
)
def test_each_rule_says_its_own_no(signal: Any, more: dict[str, Any], expected: str) -> None:
    assert code(judge(risk(**more), signal)) == expected


def test_a_bar_older_than_two_intervals_is_history() -> None:
    assert code(judge(risk(), LONG, at_ms=NOW - 120_000)) == "permitted"
    assert code(judge(risk(), LONG, at_ms=NOW - 120_001)) == "stale_bar"
    clockless = risk()
    clockless.judges_freshness = False
    assert code(judge(clockless, LONG, at_ms=0)) == "permitted"


def test_what_stops_entries_does_not_stop_exits() -> None:
    it = risk(stopped=Refusal("paused", "by a person"), doubt=lambda market: market == "BTC")
    it.account_state.positions["BTC"] = held_position()
    assert code(judge(it, LONG)) == "paused"
    assert code(judge(it, Close("BTC"))) == "permitted"


def test_a_market_in_doubt_takes_no_entry_and_the_next_market_does() -> None:
    it = risk(doubt=lambda market: market == "BTC")
    assert code(judge(it, LONG)) == "market_in_doubt"
    assert code(judge(it, Open("ETH", "long", usd=500, bracket=STOP))) == "permitted"


def test_the_budget_counts_positions_resting_entries_and_live_intents() -> None:
    intent = Intent(
        id="K2",
        strategy="trend",
        market="ETH",
        action="open",
        path="plan",
        trigger="t",
        ordinal=0,
        leg="order",
        epoch=0,
        body=b"",
        not_after_ms=0,
        opened_ms=0,
        notional_usd=Decimal(100),
    )
    it = risk(live=[intent])
    it.account_state.positions["ETH"] = held_position("ETH")
    it.account_state.orders["1"] = resting_order()
    assert it.used_usd("trend") == 500 + 180 + 100
    assert code(judge(it, Open("BTC", "long", usd=220, bracket=STOP))) == "permitted"
    answer = judge(it, Open("BTC", "long", usd=221, bracket=STOP))
    assert isinstance(answer, Refusal)
    assert answer.fix == {"field": "usd", "value": "220"}
    assert code(judge(it, Open("BTC", "long", usd=700, bracket=STOP), closing=frozenset({"ETH"}))) == "permitted"
    # It waits for the next open.
    it.account_state.orders["2"] = resting_order("2", "market", limit_px=None)
    it.account_state.marks["BTC"] = 50.0
    assert it.used_usd("trend") == 500 + 180 + 100 + 100


@pytest.mark.parametrize(
    ("side", "used"),
    [("long", 5 * Decimal("0.2") + 2 * Decimal("0.3")), ("short", 5 * Decimal("0.8") + 2 * Decimal("0.7"))],
)
@pytest.mark.parametrize("nets", [False, True])
def test_a_no_takes_of_the_budget_what_it_has_cost(side: str, used: Decimal, nets: bool) -> None:
    it = risk(markets=frozenset({"event:X"}), nets=nets)
    held = held_position("event:X", side=side, entry_px="0.2")
    it.account_state.positions["event:X"] = held
    it.attribution.shares_of = lambda name: [share_of("event:X", name, side=side, size="5", cost_usd="1")]
    it.account_state.orders["1"] = resting_order(market="event:X", side=side, limit_px="0.3")
    assert it.used_usd("trend") == used


def test_a_foreign_position_is_not_added_to() -> None:
    it = risk()
    it.account_state.positions["BTC"] = held_position(owner=None)
    assert code(judge(it, LONG)) == "foreign_position"


def test_a_part_of_a_close_is_an_absolute_size_rounded_down() -> None:
    it = risk()
    it.account_state.positions["BTC"] = held_position()
    for signal, size in (
        (Close("BTC", fraction=0.3333333), "1.666"),
        (Close("BTC", usd=50), "0.5"),
        (Close("BTC", size=0.5555), "0.555"),
    ):
        answer = judge(it, signal)
        assert isinstance(answer, ApprovedOrder)
        assert isinstance(answer.request, CloseRequest)
        assert (answer.request.size, answer.request.fraction) == (size, None)
    for signal in (Close("BTC"), Close("BTC", fraction=1), Close("BTC", size=7)):
        answer = judge(it, signal)
        assert isinstance(answer, ApprovedOrder)
        assert isinstance(answer.request, CloseRequest)
        assert (answer.request.size, answer.request.fraction) == (None, 1)
    assert code(judge(it, Close("BTC", fraction=0.0001))) == "below_min_notional"
    assert code(judge(it, Close("BTC", usd=50), price=None)) == "no_price"


def test_a_strategy_cancels_entries_and_keeps_its_stop() -> None:
    it = risk()
    it.account_state.positions["BTC"] = held_position()
    it.account_state.orders = {
        "1": resting_order("1"),
        "2": resting_order("2", "stop_loss", "close"),
        "3": resting_order("3", "take_profit", "close"),
    }
    everything = judge(it, Cancel(market="BTC"))
    assert isinstance(everything, ApprovedOrder)
    assert everything.request == CancelOrders(("1",))
    assert code(judge(it, Cancel(oid="2"))) == "no_protection"
    assert code(judge(it, Cancel(oid="3"))) == "permitted"


@pytest.mark.parametrize(
    ("market", "decimals", "side", "limit", "stop", "target", "sent"),
    [
        (
            "BTC",
            5,
            "long",
            104_209.61803398875,
            103_000.00000000001,
            107_578.01491784633,
            ("104209", "103000", "107578"),
        ),
        ("BTC", 5, "short", 104_209.61803398875, 105_000.5, 99_999.99, ("104210", "105000", "100000")),
        ("ETH", 4, "long", 2_620.87, 2_599.123, 2_700.0, ("2620.8", "2599.2", "2700")),
        ("ETH", 4, "long", 0.1 * 3, 0.1 + 0.1 + 0.05, 1.1 * 1.1, ("0.3", "0.25", "1.21")),
        ("KPEPE", 0, "short", 0.0123456, 0.0129999, 0.0111111, ("0.012346", "0.012999", "0.011112")),
        ("NEW", None, "long", 1 / 3, 0.30000000000000004, Decimal("0.123456789"), ("0.33333333", "0.3", "0.12345679")),
        ("event:YES", 0, "long", 0.61839, 0.5, 0.87654321, ("0.618", "0.5", "0.876")),
    ],
)
def test_a_price_goes_to_the_grid_of_its_market_and_no_entry_is_worse_than_wanted(
    market: str, decimals: int | None, side: Any, limit: float, stop: float, target: float, sent: tuple[str, str, str]
) -> None:
    it = risk(markets=frozenset({market}))
    it.order_rules = {} if decimals is None else {market: OrderRules(decimals, Decimal(1).scaleb(-decimals))}
    answer = judge(
        it, Open(market, side, usd=500, limit_px=limit, bracket=Bracket(stop_px=stop, target_px=target)), price="100"
    )
    assert isinstance(answer, ApprovedOrder), answer
    assert isinstance(answer.request, OrderRequest)
    bracket = answer.request.bracket
    assert bracket is not None
    assert bracket.stop_loss is not None
    assert bracket.take_profit is not None
    assert (answer.request.limit_px, bracket.stop_loss.px, bracket.take_profit.px) == sent


def test_a_target_below_the_minimum_of_its_market_is_refused() -> None:
    two = Bracket(stop_pct=1, targets=[(0.5, "1R"), (0.5, "2R")])
    it = risk()
    for least, answer in (("10", "permitted"), ("100", "below_min_notional")):
        it.order_rules = {"BTC": OrderRules(3, Decimal("0.001"), least_usd=Decimal(least))}
        assert code(judge(it, Open("BTC", "long", usd=150, bracket=two))) == answer


def test_what_passes_is_the_request_that_was_meant() -> None:
    signal = Open(
        "BTC",
        "short",
        usd=123.456,
        leverage=2,
        bracket=Bracket(stop_px=101.5, target_r=2),
        guardians=(TrailingStop(trail_r=1, activate_at_r=1.5), MaxHold(3_600)),
        max_slippage_bps=30,
    )
    answer = judge(risk(), signal)
    assert isinstance(answer, ApprovedOrder)
    request = answer.request
    assert isinstance(request, OrderRequest)
    assert (request.usd_amount, request.side, request.leverage, request.require_protection) == (
        Decimal("123.45"),
        "short",
        2,
        True,
    )
    assert request.bracket is not None
    assert request.bracket.stop_loss is not None
    assert request.bracket.stop_loss.px == "101.5"
    assert request.guardians[0].activate_at_r == Decimal("1.5")
    assert (request.guardians[1].type, request.guardians[1].seconds) == ("max_hold", 3_600)
    assert request == OrderRequest.from_wire(__import__("json").loads(request.body(), parse_float=Decimal))
