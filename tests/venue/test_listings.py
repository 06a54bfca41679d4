"""New rules of a listed market: what concerns no order and no position changes at once; what does is refused with the
reason until the market is empty. The same commands give the same state.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from bot.errors import Refusal
from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model import state as s
from bot.venue.prices.listings import FREE
from bot.venue.storage import codec
from tests.builders import VenueDriver, e8, market, order

COIN = "SHIB"
SPEC = replace(
    market(COIN), tick=1, sig_figs=None, sz_decimals=0, tiers=((0, 10), (100_000 * 10**8, 5)), max_leverage=10
)
# Another value of every rule but the name of the market itself.
OTHER: dict[str, Any] = {
    "name": "Another",
    "asset_class": "stocks",
    "book": "stocks",
    "margin_mode": "isolated",
    "sz_decimals": 1,
    "max_leverage": 8,
    "tiers": ((0, 8),),
    "sig_figs": 4,
    "px_decimals": 3,
    "taker_rate": 50_000,
    "maker_rate": -1_000,
    "half_spread": 7_000,
    "level_step": 2_000,
    "level_size": 9 * 10**8,
    "level_growth": 11,
    "slippage_bps": 300,
    "participation": 5,
    "funding_rate": 1,
    "limit_touch": True,
    "hours": "equity",
    "strict_hours": True,
    "funding_factor": 5,
    "expires_ms": 9_000_000_000_000,
    "bar_length_ms": 60_000,
    "min_notional": 5 * 10**8,
    "tick": 25,
    "size_step": 5 * 10**8,
}


def listed_venue() -> VenueDriver:
    driver = VenueDriver()
    driver.do(c.ChangeListing(SPEC, e8("0.00001234")))
    return driver


def changed(rule: str) -> s.MarketSpec:
    value = {rule: OTHER[rule]}
    if rule in ("sig_figs", "px_decimals"):
        value["tick"] = None
    return replace(SPEC, **value)


def test_the_table_has_every_rule() -> None:
    assert {each.name for each in fields(s.MarketSpec)} - {"coin"} == set(OTHER)
    assert set(OTHER) > FREE


@pytest.mark.parametrize("rule", OTHER)
def test_every_rule_changes_in_an_empty_market(rule: str) -> None:
    driver = listed_venue()
    assert driver.do(c.ChangeListing(changed(rule), 1)) == (None, [])
    listed = driver.state.markets[COIN]
    assert listed.spec == changed(rule) and listed.mark == 1234
    assert listed.lot == changed(rule).lot and listed.tick(1234) == (changed(rule).tick or listed.ticks[4])


@pytest.mark.parametrize("use", ["order", "position"])
@pytest.mark.parametrize("rule", OTHER)
def test_a_rule_that_concerns_an_order_or_a_position_is_refused(rule: str, use: str) -> None:
    driver = listed_venue()
    limit = {"limit_px": "0.00001"} if use == "order" else {}
    assert not isinstance(driver.place(order(COIN, usd="1000", **limit)).answer, Refusal)
    before = codec.dumps(driver.state)
    answer = driver.do(c.ChangeListing(changed(rule), 1)).answer
    if rule in FREE:
        assert answer is None and driver.state.markets[COIN].spec == changed(rule)
        return
    assert (
        isinstance(answer, Refusal)
        and rule in answer.message
        and f"has {'an' if use == 'order' else 'a'} {use}" in (answer.message)
    )
    after = codec.loads(before)
    after.commands += 1
    assert codec.dumps(driver.state) == codec.dumps(after)


def test_the_same_commands_give_the_same_state() -> None:
    def lived() -> bytes:
        driver = listed_venue()
        driver.place(order(COIN, usd="1000"))
        driver.do(c.ChangeListing(replace(SPEC, taker_rate=1, hours="equity"), 1))
        driver.do(c.ChangeListing(replace(SPEC, tick=5), 1))
        return codec.dumps(driver.state)

    assert lived() == lived()
    state = codec.loads(lived())
    assert state.markets[COIN].spec.taker_rate == 1 and state.markets[COIN].ticks[4] == 1
    apply(state, c.Pulse(), state.now_ms)
