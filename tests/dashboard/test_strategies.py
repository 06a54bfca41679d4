"""The strategies page: budget used, states, decisions with their signals, refusals."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from bot.dashboard.pages import strategies
from bot.dashboard.values.signal_words import short_signal, signal_words
from bot.strategy import Bracket, Cancel, Close, MaxHold, Open, TrailingStop
from tests.dashboard.builders import NOW_MS, book, order, position, snapshot, strategy


def test_the_budget_used_counts_positions_shares_and_resting_entries() -> None:
    entry = order(kind="limit", action="open", limit_px="90", trigger_px=None, size="2", filled="0.5")
    shared = position(market="ETH", size="4", notional_usd="400", shares={"trend": "1", "other": "3"}, strategy="other")
    shown = snapshot(positions=[position(), shared, position(market="SOL", strategy="other")], orders=[entry, order()])
    assert strategies.budgets_used(shown)["trend"] == Decimal(50) + Decimal(100) + Decimal(135)
    assert "none" not in strategies.budgets_used(shown)


@pytest.mark.parametrize(("state", "tone"), [("RUNNING", "good"), ("PAUSED", "warn"), ("QUARANTINED", "bad")])
def test_a_row_has_state_budget_and_profit(state: str, tone: str) -> None:
    shown = snapshot(positions=[position()])
    assert shown.status is not None
    shown.status["strategies"] = [strategy(state=state, why="because", book=book(day_usd="-1", net_usd="12.5"))]
    (row,) = strategies.rows(shown)
    assert (row.tone, row.why, row.used, row.budget, row.used_part) == (tone, "because", "50.00", "2,000.00", 0.025)
    assert (row.today, row.today_direction, row.total, row.total_direction) == ("−1.00", "down", "+12.50", "up")


def test_a_decision_shows_its_signal_without_the_members_that_it_leaves_open() -> None:
    text = (
        "Open(market='BTC', side='long', usd=200.0, size=None, leverage=None, bracket=Bracket(stop_pct=0.1,"
        " stop_px=None, target_r=1.5), guardians=(), limit_px=None)"
    )
    assert (
        short_signal(text) == "Open(market='BTC', side='long', usd=200.0, bracket=Bracket(stop_pct=0.1, target_r=1.5))"
    )
    assert short_signal("Cancel(order=None, market='BTC')") == "Cancel(market='BTC')"


def test_decisions_are_newest_first_with_outcome_and_reason() -> None:
    def intent(n: int, state: str, message: str | None = None) -> dict[str, object]:
        return {
            "id": f"I{n}",
            "opened_ms": NOW_MS + n,
            "action": "open",
            "market": "BTC",
            "state": state,
            "message": message,
            "code": None,
        }

    found = strategies.decisions(
        [intent(1, "accepted"), intent(2, "rejected", "no margin")], {"I1": "Close(market='BTC')"}
    )
    assert [(one.id, one.signal, one.outcome, one.tone, one.reason) for one in found] == [
        ("I2", "open", "rejected", "bad", "no margin"),
        ("I1", "Close BTC", "accepted", "good", ""),
    ]


def test_params_are_those_of_the_strategy() -> None:
    assert strategies.params([strategy(params={"usd": 200.0, "shorts": True})], "trend") == [
        ("usd", "200.0"),
        ("shorts", "yes"),
    ]
    assert strategies.params([strategy()], "other") == []


IN_FULL = (
    "Open long BTC, 1,234.50 USD: stop 2 %, 50 % at 1R, 25 % at 2.5R, stop to the entry at 1R,"
    " trailing stop 1 R from 2 R on, at most 1 h 30 min"
)
SIGNALS = (
    (Open("BTC", "long", usd=200.0, bracket=Bracket(stop_pct=5)), "Open long BTC, 200.00 USD: stop 5 %"),
    (
        Open("ETH", "short", size=0.5, leverage=3, limit_px=2500, bracket=Bracket(stop_px=2600, target_r=1.5)),
        "Open short ETH, size 0.5, limit 2,500.00, leverage 3×: stop 2,600.00, target 1.5 R",
    ),
    (
        Open(
            "BTC",
            "long",
            usd=Decimal("1234.5"),
            bracket=Bracket(stop_pct=2, targets=[(0.5, "1R"), (0.25, "2.5R")], break_even_at="1R"),
            guardians=(TrailingStop(trail_r=1, activate_at_r=2), MaxHold(5400)),
        ),
        IN_FULL,
    ),
    (
        Open("it's", "long", usd=10, guardians=(TrailingStop(trail_pct=0.5),)),
        "Open long it's, 10.00 USD: trailing stop 0.5 %",
    ),
    (Close("BTC"), "Close BTC"),
    (Close("BTC", fraction=0.25), "Close 25 % of BTC"),
    (Close("BTC", usd=100), "Close 100.00 USD of BTC"),
    (Close("BTC", size=2), "Close 2 of BTC"),
    (Cancel(oid="17"), "Cancel order 17"),
    (Cancel(market="BTC"), "Cancel the entries in BTC"),
)


@pytest.mark.parametrize(("signal", "words"), SIGNALS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_decision_is_said_in_words(signal: Any, words: str) -> None:
    assert signal_words(str(signal)) == words


@pytest.mark.parametrize(
    "text", ["", "open", "__import__('os').system('x')", "Open(market=open('x'))", "Open(", "Close()", "f" * 9_000]
)
def test_a_text_that_is_no_signal_stays_as_it_is(text: str) -> None:
    assert signal_words(text) == text
