"""Caps on openings: the account's settings, the key's caps, the platform's numbers. Exits pass them all."""

from __future__ import annotations

from typing import Any

import pytest

from bot.venue.model import commands as c
from bot.venue.model.state import DAY_MS, KEYS_MAX, Rules, VenueKey, oid_text
from tests.builders import VenueDriver, code_of, e8, hold, market, order, trail
from tests.scenario import run


def with_key(**caps: Any) -> VenueDriver:
    venue = VenueDriver((market(), "100"), (market("ETH"), "100"))
    venue.do(c.CreateKey(key_of(**caps)))
    return venue


def key_of(number: int = 1, **caps: Any) -> VenueKey:
    return VenueKey(f"key_{number}", "a", "k", "bbk_test_1", f"{number}", ("trade",), 0, "key", **caps)


def by_key(venue: VenueDriver, spec) -> Any:
    return venue.place(spec, key="key_1").answer


def test_max_trade_limits_one_opening_and_its_fix_passes():
    venue = VenueDriver((market(), "100"))
    venue.do(c.ChangeSettings("a", e8("500"), None))
    refused = venue.place(order(usd="501")).answer
    assert (refused.code, refused.details["cap"], refused.fix) == (
        "limit_exceeded",
        "maxTradeUsd",
        {"field": "usdAmount", "value": "500"},
    )
    assert code_of(venue.place(order(usd="500"))) == ""


def test_the_daily_cap_counts_openings_until_midnight_utc():
    venue = VenueDriver((market(), "100"))
    venue.do(c.ChangeSettings("a", None, e8("1000")))
    venue.place(order(usd="600"))
    venue.close()
    refused = venue.place(order(usd="401")).answer
    assert (refused.code, refused.fix["value"]) == ("limit_exceeded", "400")
    assert refused.details["resetsAt"] == venue.now_ms // DAY_MS * DAY_MS + DAY_MS
    assert code_of(venue.place(order(usd="400"))) == ""
    venue.wait(DAY_MS - 1)
    assert code_of(venue.place(order(usd="100"))) == "limit_exceeded"
    venue.wait(1)
    assert code_of(venue.place(order(usd="1000"))) == ""


def test_settings_limit_neither_exits_nor_the_closing_part_of_an_order():
    run("""
        mark BTC 100
        long BTC 5
        settings 100 100
        short BTC 5                    | market 5 @ 100
        settings - -
        long BTC 5
        settings 100 -
        short BTC 6                    | market 5 @ 100, open 1 @ 100
    """)


def test_a_key_has_caps_of_its_own():
    venue = with_key(
        max_leverage=3,
        allowed_coins=("BTC",),
        max_exposure=e8("1000"),
        max_daily_notional=e8("1500"),
        max_open_positions=1,
    )
    cap = {}
    for name, spec in {
        "allowedCoins": order("ETH", size="1"),
        "maxLeverage": order(size="1", leverage=4),
        "maxExposureUsd": order(usd="1100"),
        "maxDailyNotionalUsd": order(usd="1600"),
    }.items():
        refused = by_key(venue, spec)
        assert refused.code == "key_limit_exceeded", name
        cap[name] = refused.details["cap"]
    assert cap == {name: name for name in cap}
    assert code_of(venue.place(order("ETH", size="1"))) == "", "another credential is not bound by it"


def test_exposure_counts_positions_at_mark_and_resting_entries():
    venue = with_key(max_exposure=e8("1000"))
    by_key(venue, order(usd="400"))
    by_key(venue, order("ETH", size="4", limit_px="90"))
    assert by_key(venue, order(usd="250")).fix["value"] == "240"
    venue.move("BTC", "110")
    assert by_key(venue, order(usd="220")).fix["value"] == "200"
    assert by_key(venue, order(usd="200")).trade


def test_a_keys_daily_notional_is_its_own_and_starts_anew_each_day():
    venue = with_key(max_daily_notional=e8("1000"))
    venue.place(order(usd="5000"))
    by_key(venue, order("ETH", usd="900"))
    assert by_key(venue, order("ETH", usd="101")).code == "key_limit_exceeded"
    venue.wait(DAY_MS)
    assert by_key(venue, order("ETH", usd="1000")).trade


def test_an_order_that_turns_a_position_is_checked_by_the_resulting_position():
    venue = with_key(max_exposure=e8("1000"))
    by_key(venue, order(usd="900"))
    refused = by_key(venue, order(side=-1, usd="2000"))
    assert (refused.details["cap"], refused.fix) == ("maxExposureUsd", {"field": "usdAmount", "value": "1900"})
    assert by_key(venue, order(side=-1, usd="1900")).trade
    assert (venue.position().side, venue.position().size) == (-1, e8("10"))


def test_a_resting_entry_counts_against_a_daily_cap_until_it_is_canceled():
    venue = VenueDriver((market(), "100"))
    venue.do(c.ChangeSettings("a", None, e8("1000")))
    resting = venue.place(order(usd="900", limit_px="90")).answer
    refused = venue.place(order(usd="200", limit_px="80")).answer
    assert (refused.code, refused.fix) == ("limit_exceeded", {"field": "usdAmount", "value": "100"})
    assert venue.do(c.CancelOrder("a", oid_text(venue.account, resting.trade.oid))).answer.filled == 0
    assert code_of(venue.place(order(usd="1000", limit_px="80"))) == ""


def test_a_keys_daily_notional_counts_the_open_part_of_its_own_orders():
    venue = with_key(max_daily_notional=e8("1000"))
    venue.place(order(usd="5000", limit_px="90"))
    assert by_key(venue, order(usd="600", limit_px="90")).trade
    assert by_key(venue, order(usd="600")).code == "key_limit_exceeded"
    venue.bar("BTC", "90", "90", "80", "80")
    assert venue.state.keys["key_1"].day_notional <= e8("1000")
    assert by_key(venue, order("ETH", usd="400")).trade


def test_open_positions_count_markets_with_a_position_or_a_resting_entry():
    venue = with_key(max_open_positions=1)
    by_key(venue, order(size="1", limit_px="90"))
    assert by_key(venue, order("ETH", size="1")).code == "key_limit_exceeded"
    assert by_key(venue, order(size="1")).trade


def test_a_keys_leverage_cap_clamps_too():
    venue = with_key(max_leverage=3)
    placed = by_key(venue, order(size="1", leverage=20, leverage_mode="clamp"))
    assert placed.leverage_clamped and venue.position().leverage == 3


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("leverage", [3, 4])
def test_an_entry_that_waited_gets_no_more_leverage_than_its_key_allows(leverage: int, in_session: bool):
    venue = with_key(max_leverage=3)
    # The owner's limit is the first to get the next price; it is not counted before.
    if in_session:
        venue.do(c.SetRules(Rules(fill_at="next")))
        venue.place(order(size="2", leverage=leverage, limit_px="101"))
        made = by_key(venue, order(size="1", leverage=2)).trade
    else:
        made = by_key(venue, order(size="1", leverage=2, limit_px="99")).trade
        venue.place(order(size="2", leverage=leverage))
    venue.bar("BTC", "100", "100", "98", "98")
    told = venue.position().size, made.leverage, made.status, made.reason
    if leverage == 3:
        assert told == (e8("3"), 3, "done", None), "what it was filled with"
    else:
        assert told == (e8("2"), 2, "canceled", "position_closed")


def test_allowed_coins_apply_to_exits_and_amount_caps_do_not():
    venue = with_key(allowed_coins=("ETH",), max_exposure=e8("1"))
    venue.place(order(size="5"))
    venue.place(order("ETH", size="5"))
    assert code_of(venue.close("BTC", key="key_1")) == "key_limit_exceeded"
    assert code_of(venue.close("ETH", key="key_1")) == ""


def test_two_hundred_orders_may_be_open_and_not_one_more():
    venue = VenueDriver((market(), "100"))
    for _ in range(200):
        assert code_of(venue.place(order(size="0.2", limit_px="90"))) == ""
    assert code_of(venue.place(order(size="0.2", limit_px="90"))) == "limit_exceeded"
    assert code_of(venue.place(order(size="0.2"))) == "limit_exceeded"
    venue.do(c.CancelCoin("a", "BTC"))
    assert code_of(venue.place(order(size="0.2"))) == ""


def test_limits_that_only_close_are_among_the_two_hundred_and_other_exits_are_not():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="50"))
    for _ in range(200):
        assert code_of(venue.place(order(side=-1, size="1", limit_px="110"))) == ""
    assert code_of(venue.place(order(side=-1, size="1", limit_px="110"))) == "limit_exceeded"
    # They fill at once.
    for takes in ({}, {"limit_px": "90"}):
        assert code_of(venue.place(order(side=-1, size="1", **takes))) == ""
    assert code_of(venue.close()) == ""
    assert venue.account.orders == {}


def test_a_bracket_counts_among_the_two_hundred():
    venue = VenueDriver((market(), "100"))
    for _ in range(199):
        venue.place(order(size="0.2", limit_px="90"))
    assert code_of(venue.place(order(size="0.2", stop="98", take="104"))) == "limit_exceeded"
    assert code_of(venue.place(order(size="0.2", stop="98"))) == ""
    assert len(venue.account.orders) == 200


def test_a_hundred_guardians_may_be_armed_and_not_one_more():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5"))
    for _ in range(100):
        assert code_of(venue.arm(trail("10%", coin="BTC"))) == ""
    assert code_of(venue.arm(trail("10%", coin="BTC"))) == "limit_exceeded"
    assert code_of(venue.place(order(size="1", guardians=(trail("10%"),)))) == "limit_exceeded"
    assert len(venue.account.guardians) == 100


def test_guardians_of_resting_orders_count_among_the_hundred():
    venue = VenueDriver((market(), "100"))
    riding = tuple(hold(6_000) for _ in range(60))
    assert code_of(venue.place(order(size="1", limit_px="90", guardians=riding))) == ""
    assert code_of(venue.place(order(size="1", limit_px="89", guardians=riding))) == "limit_exceeded"
    assert code_of(venue.place(order(size="1", guardians=riding[:40]))) == ""
    assert code_of(venue.arm(trail("50%", coin="BTC"))) == "limit_exceeded"
    venue.do(c.CancelCoin("a", "BTC"))
    assert code_of(venue.arm(trail("50%", coin="BTC"))) == ""
    venue.place(order(size="1", limit_px="90", guardians=riding[:59]))
    venue.bar("BTC", "100", "100", "89", "89")
    assert len(venue.account.guardians) == 100


@pytest.mark.parametrize(
    "caps",
    [("500", None), (None, "500"), ("550", "500"), ("500", "550")],
    ids=["one order", "a day", "both", "both ways"],
)
def test_the_fix_of_a_cap_uses_the_field_of_the_order(caps: tuple[str | None, str | None]):
    venue = VenueDriver((market(half_spread=10_000), "100"))
    venue.do(c.ChangeSettings("a", *(None if cap is None else e8(cap) for cap in caps)))
    sized = order(size="6")
    refused = venue.place(sized).answer
    assert (refused.code, refused.fix) == ("limit_exceeded", {"field": "size", "value": "4.995"})
    sized.size = e8(refused.fix["value"])
    assert code_of(venue.place(sized)) == ""


def test_a_cap_with_less_than_the_least_order_left_suggests_no_order():
    venue = VenueDriver((market(), "100"))
    venue.do(c.ChangeSettings("a", None, e8("100")))
    venue.place(order(usd="95"))
    for spec in (order(usd="50"), order(size="1")):
        refused = venue.place(spec).answer
        assert (refused.fix, "resetsAt" in refused.details) == ({"action": "wait"}, True)
    flip = venue.place(order(side=-1, size="2")).answer
    # A cent of the cap is left: the closing part, and one lot more.
    assert flip.fix == {"field": "size", "value": "1"}
    venue.do(c.ChangeSettings("a", e8("9"), None))
    assert venue.place(order(usd="50")).answer.fix == {"action": "raise_limit", "field": "maxTradeUsd"}


@pytest.mark.parametrize("cap", ["max_trade", "daily_cap", "max_daily_notional", "max_exposure"])
def test_a_refusal_for_too_many_markets_suggests_no_smaller_order(cap: str):
    own = cap in ("max_trade", "daily_cap")
    venue = with_key(max_open_positions=1, **({} if own else {cap: e8("500")}))
    by_key(venue, order("ETH", size="1"))
    if own:
        venue.do(c.ChangeSettings("a", **{"max_trade": None, "daily_cap": None, cap: e8("500")}))
    refused = by_key(venue, order(size="6"))
    assert (refused.code, refused.fix) == ("limit_exceeded" if own else "key_limit_exceeded", {"action": "close_first"})
    venue.close("ETH")
    assert by_key(venue, order(size="6")).fix["field"] == "size"


def test_at_most_fifty_keys_exist_and_a_revocation_frees_one():
    venue = VenueDriver((market(), "100"))
    for number in range(KEYS_MAX):
        assert code_of(venue.do(c.CreateKey(key_of(number)))) == ""
    assert code_of(venue.do(c.CreateKey(key_of(99)))) == "limit_exceeded"
    assert [e.subtype for e in venue.do(c.RevokeKey("a", "key_3")).events] == ["key_revoked"]
    assert code_of(venue.do(c.RevokeKey("a", "key_3"))) == "not_found"
    assert code_of(venue.do(c.CreateKey(key_of(99)))) == ""


@pytest.mark.parametrize("usd", ["10", "9.99"])
def test_the_least_order_is_ten_dollars(usd: str):
    refused = VenueDriver((market(), "100")).place(order(usd=usd)).answer
    assert (getattr(refused, "code", "") == "below_min_notional") is (usd == "9.99")


@pytest.mark.parametrize(
    ("gone", "fills"),
    [("close BTC", "open 1 @ 110"), ("close BTC 3", "limit 2 @ 110, open 1 @ 110"), ("jump BTC 90", "open 1 @ 110")],
    ids=["closed", "closed in part", "stopped"],
)
def test_a_limit_that_turns_a_position_opens_at_most_the_checked_size(gone: str, fills: str):
    run(f"""
        mark BTC 100
        long BTC 5 stop 95
        settings 200 -
        short BTC 6 limit 110          || open limit 110
        {gone}
        bar BTC 100 111 100 111        | {fills}
        position BTC                   | short 1 @ 110 1x
        orders BTC                     | none
        reserved                       | 0
    """)


def test_a_limit_that_turns_a_position_fills_in_parts_within_the_checked_size():
    run("""
        mark BTC 100 part 10%
        long BTC 5
        short BTC 8 limit 110
        reserved                            | 330
        bar BTC 100 111 100 111 volume 40   | limit 4 @ 110
        reserved                            | 330
        bar BTC 111 111 111 111 volume 20   | limit 1 @ 111, open 1 @ 111
        reserved                            | 220
        bar BTC 111 111 111 111 volume 500  | open 2 @ 111
        trade                               | limit open done filled
        reserved                            | 0
    """)


def test_the_closing_part_of_a_turning_limit_uses_no_cap():
    run("""
        mark BTC 100
        long BTC 5
        settings - 1000
        short BTC 6 limit 110
        long BTC 9                     | no limit_exceeded
        long BTC 3.9                   | open 3.9 @ 100
    """)


def test_an_order_of_a_backtest_that_turns_a_position_opens_at_most_the_checked_size():
    venue = run(
        """
        mark BTC 100
        long BTC 5 stop 95
        bar BTC 100 100 100 100        | open 5 @ 100
        settings 200 -
        short BTC 6
        bar BTC 94 94 94 94            | stop_loss 5 @ 94, open 1 @ 94
    """,
        rules=Rules(fill_at="next"),
    )
    turned = venue.account.trades[1]
    assert (turned.size, turned.filled, turned.reason) == (e8("6"), e8("1"), "position_closed")
