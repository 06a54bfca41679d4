"""The scenario runner itself: its documented example passes, and a wrong expectation names its line."""

from __future__ import annotations

import pytest

from tests.scenario import run


def test_a_gap_through_the_stop_fills_at_the_open():
    run("""
        mark BTC 100
        long BTC 500 usd stop 2% take 4%   | open 5 @ 100
        bar  BTC 95 96 94 95               | stop_loss 5 @ 95
        cash, fees off                     | 9975
    """)


def test_a_wrong_expectation_names_its_line_and_the_actual_event():
    with pytest.raises(AssertionError, match=r"(?s)line 2 .*got: open 5 @ 100"):
        run("""
            mark BTC 100
            long BTC 500 usd               | open 4 @ 100
        """)


def test_an_unexpected_refusal_fails_the_scenario():
    with pytest.raises(AssertionError, match="no below_min_notional"):
        run("""
            mark BTC 100
            long BTC 5 usd
        """)
