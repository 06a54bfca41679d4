"""The pure rules of the protections, by instants and amounts that were computed by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS
from bot.money import e16_of_decimal
from bot.runtime.model.protection_rules import (
    COOLDOWN,
    LOW_PROFIT_MARKET,
    MAX_DRAWDOWN,
    STOP_GUARD,
    EndedTrade,
    Length,
    ProtectionRule,
    Waits,
    fall_of,
)

# 2025-06-01 00:00 UTC
DAY = 1_748_736_000_000
HOURS_2 = Length(2 * HOUR_MS, "2h")
BARS_4 = Length(4 * HOUR_MS, "4 bars", HOUR_MS)


def usd(amount: str | int) -> int:
    return e16_of_decimal(Decimal(amount))


def at(text: str) -> int:
    """The instant of "HH:MM" or "HH:MM:SS.mmm" on 2025-06-01."""
    hours, minutes, *seconds = text.split(":")
    return DAY + int(hours) * HOUR_MS + int(minutes) * MINUTE_MS + round(float(seconds[0]) * 1000 if seconds else 0)


def trade(
    closed: str, net: str = "-1", *, market: str = "BTC", strategy: str = "s", is_stop: bool = True
) -> EndedTrade:
    return EndedTrade(strategy, market, at(closed), usd(net), is_stop)


def waits(rule: ProtectionRule, *trades: EndedTrade) -> Waits:
    made = Waits(rule)
    for one in trades:
        made.take(one)
    return made


COOL = ProtectionRule(COOLDOWN, "s", "market", rest=BARS_4)
GUARD = ProtectionRule(STOP_GUARD, "s", "strategy", within=Length(3 * HOUR_MS, "3h"), rest=HOURS_2, count=3)
LOW = ProtectionRule(LOW_PROFIT_MARKET, "s", "market", within=Length(DAY_MS, "1d"), rest=HOURS_2, count=2)
FALL = ProtectionRule(MAX_DRAWDOWN, "s", "strategy", within=Length(DAY_MS, "1d"), rest=HOURS_2, usd=usd(10))

# name: (rule, trades, market asked for, the first minute at which an entry may go; None: it never waits)
TABLE = {
    "a cooldown of 4 bars covers the next 4 closes": (COOL, [trade("10:00")], "BTC", "15:00"),
    "the delay of the fill moves nothing": (COOL, [trade("10:00:00.600")], "BTC", "15:00"),
    "a stop inside a bar": (COOL, [trade("10:59:59.999")], "BTC", "15:00"),
    "the newest exit counts": (COOL, [trade("10:10"), trade("12:00")], "BTC", "17:00"),
    "another market does not wait": (COOL, [trade("10:00")], "ETH", None),
    "it waits with the scope strategy": (replace(COOL, scope="strategy"), [trade("10:00")], "ETH", "15:00"),
    "another strategy's exit": (COOL, [trade("10:00", strategy="t")], "BTC", None),
    "a rule of the account counts every strategy": (
        replace(COOL, strategy=None, rest=HOURS_2),
        [trade("10:00:59.999", strategy="t")],
        "BTC",
        "12:00",
    ),
    "a duration": (replace(COOL, rest=HOURS_2), [trade("10:20:30.500")], "BTC", "12:20"),
    "over midnight": (replace(COOL, rest=HOURS_2), [trade("23:30")], "BTC", "25:30"),
    "only a loss: a win": (replace(COOL, only_losses=True), [trade("10:00", "0.00000001")], "BTC", None),
    "only a loss: nothing won": (replace(COOL, only_losses=True), [trade("10:00", "0")], "BTC", None),
    "only a loss: a loss": (replace(COOL, only_losses=True), [trade("10:00", "-0.00000001")], "BTC", "15:00"),
    "only its markets": (replace(COOL, markets=frozenset({"ETH"})), [trade("10:00")], "BTC", None),
    "two stops are not three": (GUARD, [trade("10:00"), trade("11:00")], "BTC", None),
    "the third stop": (GUARD, [trade("10:00"), trade("11:00"), trade("12:30")], "BTC", "14:30"),
    "a stop at the very end of the window is out": (
        GUARD,
        [trade("10:00"), trade("11:00"), trade("13:00")],
        "BTC",
        None,
    ),
    "a minute before it is in": (GUARD, [trade("10:00"), trade("11:00"), trade("12:59:59.999")], "BTC", "14:59"),
    "an exit that is no stop": (GUARD, [trade("10:00"), trade("11:00"), trade("12:00", is_stop=False)], "BTC", None),
    "stops of all markets": (GUARD, [trade("10:00"), trade("11:00", market="ETH"), trade("12:00")], "SOL", "14:00"),
    "stops of one market": (
        replace(GUARD, scope="market"),
        [trade("10:00"), trade("11:00", market="ETH"), trade("12:00")],
        "BTC",
        None,
    ),
    "a fourth stop begins the wait anew": (
        GUARD,
        [trade("10:00"), trade("11:00"), trade("12:00"), trade("12:40")],
        "BTC",
        "14:40",
    ),
    "only stops that lost": (
        replace(GUARD, only_losses=True),
        [trade("10:00"), trade("11:00", "5"), trade("12:00")],
        "BTC",
        None,
    ),
    "a market that lost": (LOW, [trade("10:00", "-3"), trade("11:00", "2.99")], "BTC", "13:00"),
    "a market that is even": (LOW, [trade("10:00", "-3"), trade("11:00", "3")], "BTC", None),
    "one trade is too few": (LOW, [trade("10:00", "-3")], "BTC", None),
    "a loss that may be": (replace(LOW, usd=usd(-5)), [trade("10:00", "-3"), trade("11:00", "-2")], "BTC", None),
    "a loss beyond it": (replace(LOW, usd=usd(-5)), [trade("10:00", "-3"), trade("11:00", "-2.01")], "BTC", "13:00"),
    "the loss of another market": (LOW, [trade("10:00", "-3"), trade("11:00", "-3", market="ETH")], "BTC", None),
    "a fall of 10 from the start": (FALL, [trade("10:00", "-4"), trade("11:00", "-6")], "BTC", "13:00"),
    "a fall of 10 from the top": (
        FALL,
        [trade("09:00", "20"), trade("10:00", "-4"), trade("11:00", "-6")],
        "BTC",
        "13:00",
    ),
    "a fall of less": (FALL, [trade("09:00", "20"), trade("10:00", "-4"), trade("11:00", "-5.99999999")], "BTC", None),
    "a gain between is not made good": (
        FALL,
        [trade("09:00", "-6"), trade("10:00", "1"), trade("11:00", "-5")],
        "BTC",
        "13:00",
    ),
    "what left the window": (FALL, [trade("01:00", "-6"), trade("25:00", "-6")], "BTC", None),
}


@pytest.mark.parametrize("case", TABLE)
def test_entries_wait_until_the_minute_that_was_computed_by_hand(case: str) -> None:
    rule, trades, market, until = TABLE[case]
    wait = waits(rule, *trades).of("s", market)
    assert wait.until_ms == (0 if until is None else at(until))
    assert bool(wait.why) == (until is not None)


TRADES = st.lists(
    st.builds(
        EndedTrade,
        st.sampled_from("st"),
        st.sampled_from(["BTC", "ETH"]),
        st.integers(0, 3 * DAY_MS // MINUTE_MS).map(lambda n: DAY + n * MINUTE_MS),
        st.integers(-10, 10).map(usd),
        st.booleans(),
    ),
    max_size=30,
).map(lambda trades: sorted(trades, key=lambda one: one.closed_ms))
RULES = st.sampled_from([COOL, GUARD, LOW, FALL, replace(GUARD, strategy=None, scope="account")])


@given(TRADES, RULES, st.integers(0, 5))
def test_a_stricter_rule_never_lets_an_entry_go_earlier(
    trades: list[EndedTrade], rule: ProtectionRule, by: int
) -> None:
    within = None if rule.within is None or rule.name != STOP_GUARD else Length(rule.within.ms + by * HOUR_MS, "w")
    assert rule.rest is not None
    stricter = [
        replace(rule, rest=rule.rest._replace(ms=rule.rest.ms + by * HOUR_MS)),
        *([replace(rule, count=max(1, rule.count - by))] if rule.name == STOP_GUARD else []),
        *([replace(rule, within=within)] if within is not None else []),
        *([replace(rule, usd=rule.usd - usd(by))] if rule.name == MAX_DRAWDOWN and rule.usd > usd(by) else []),
        *([replace(rule, usd=rule.usd + usd(by))] if rule.name == LOW_PROFIT_MARKET else []),
    ]
    for other in stricter:
        for market in ("BTC", "ETH"):
            assert waits(other, *trades).of("s", market).until_ms >= waits(rule, *trades).of("s", market).until_ms


@given(TRADES)
def test_one_more_trade_never_ends_a_wait(trades: list[EndedTrade]) -> None:
    for rule in (COOL, GUARD, LOW, FALL):
        ends = [waits(rule, *trades[:count]).of("s", "BTC").until_ms for count in range(len(trades) + 1)]
        assert ends == sorted(ends)


@given(TRADES)
def test_the_fall_is_that_of_all_pairs_of_instants(trades: list[EndedTrade]) -> None:
    sums = [sum(one.net for one in trades[:count]) for count in range(len(trades) + 1)]
    assert fall_of(trades) == max(before - after for n, before in enumerate(sums) for after in sums[n:])
