"""Figures from outside sources: grid, tiers, liquidation prices, funding, fees. One table for each rule."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bot.errors import Refusal
from bot.venue.accounting import funding, ledger, order_sizes
from bot.venue.model.numbers import E8, E12, fee_of, notional_of, text_of
from bot.venue.model.state import VenueMarket, VenuePosition, tiers_of
from tests.builders import VenueDriver, code_of, e8, market, order

K, M = 1000 * E8, 1_000_000 * E8
TESTNET_BTC = ((0, 40), (10 * K, 25), (50 * K, 10), (100 * K, 5), (300 * K, 3))


# ── Grid ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("decimals", "px", "good"),
    [
        (0, "0.001234", True),
        (0, "0.0012345", False),
        (1, "0.01234", True),
        (1, "0.012345", False),
        (1, "1234.5", True),
        (1, "1234.56", False),
        (5, "123456", True),
        (5, "12345.6", False),
        (5, "103457", True),
        (2, "38.457", True),
        (2, "38.4567", False),
        (1, "1234.50", True),
        (5, "99999", True),
        (5, "9999.9", True),
        (5, "99999.5", False),
        (5, "9999.95", False),
    ],
)
def test_a_price_is_on_the_grid_only_with_five_figures_and_six_decimals_less_the_sizes(decimals, px, good):
    whole = VenueMarket(market(sz_decimals=decimals), E8, E8, E8)
    assert (e8(px) % whole.tick(e8(px)) == 0) is good


def test_prices_are_accepted_and_refused_as_recorded(shared: Path):
    rules = json.loads((shared / "oracles/hl_facts.json").read_text())["price_rules"]
    verdicts = {
        True: [("1234.5", 1), ("0.001234", 0), ("123456", 5)],
        False: [("1234.56", 1), ("0.0012345", 0), ("12345.6", 5)],
    }
    assert [px for px, _ in verdicts[True]] == rules["valid"] and [px for px, _ in verdicts[False]] == rules["invalid"]
    cases = [(px, n, ok) for ok, pairs in verdicts.items() for px, n in pairs]
    cases += [(px, 1, True) for px in rules["szDecimals1_valid"]] + [
        (px, 1, False) for px in rules["szDecimals1_invalid"]
    ]
    for px, decimals, good in cases:
        whole = VenueMarket(market(sz_decimals=decimals), E8, E8, E8)
        assert (e8(px) % whole.tick(e8(px)) == 0) is good, (px, decimals)


@pytest.mark.parametrize(
    ("mid", "bps", "buy", "decimals", "bound"),
    [("103456.7", 500, 1, 5, "108630"), ("2500.55", 50, 1, 4, "2513.1"), ("38.45678", 500, -1, 2, "36.534")],
)
def test_a_market_order_is_bounded_where_the_venues_own_client_bounds_it(mid, bps, buy, decimals, bound):
    whole = VenueMarket(market(sz_decimals=decimals), E8, E8, E8)
    assert text_of(order_sizes.bound_of(whole, e8(mid), buy, bps)) == bound


def test_an_off_grid_limit_is_refused_with_both_neighbours():
    venue = VenueDriver((market(), "103457"))
    refused = venue.place(order(size="0.001", limit_px="103456.5")).answer
    assert refused.code == "invalid_input"
    assert refused.fix == {"field": "limitPx", "value": "103456", "neighbours": ["103456", "103457"]}


def test_an_off_grid_stop_is_refused_with_both_neighbours():
    venue = VenueDriver((market(), "103457"))
    refused = venue.place(order(size="0.001", stop="100000.5")).answer
    assert refused.code == "invalid_input"
    assert refused.fix["neighbours"] == ["100000", "100001"]


def test_zero_is_never_offered_as_a_neighbour():
    venue = VenueDriver((market(sz_decimals=2), "100"))
    assert venue.place(order(size="0.005")).answer.fix == {"field": "size", "value": "0.01", "neighbours": ["0.01"]}
    refused = venue.place(order(size="1", limit_px="0.00005")).answer
    assert refused.fix["neighbours"] == [refused.fix["value"]] == ["0.0001"]


def test_a_size_off_the_lot_is_refused_with_both_neighbours():
    venue = VenueDriver((market(sz_decimals=2), "100"))
    refused = venue.place(order(size="1.005")).answer
    assert refused.code == "invalid_input"
    assert refused.fix["neighbours"] == ["1", "1.01"]


def test_a_usd_amount_becomes_a_size_rounded_down_and_never_costs_more():
    venue = VenueDriver((market(), "103457"))
    venue.place(order(usd="100"))
    assert text_of(venue.position().size) == "0.00096"
    assert venue.position().entry_notional <= e8("100")


@pytest.mark.parametrize(("side", "stop", "take"), [(1, "99.994", "101.982"), (-1, "101.981", "99.993")])
def test_a_stop_in_percent_is_rounded_toward_the_entry_and_so_is_a_target(side, stop, take):
    venue = VenueDriver((market(sz_decimals=3, sig_figs=None, px_decimals=3), "100.9876"))
    pct = {"stop": "0.985%", "take": "0.985%"}
    venue.place(order(side=side, size="1", **pct))
    position = venue.position()
    got_stop = venue.account.orders[position.stop_oid].trigger_px
    got_take = venue.account.orders[position.target_oid].trigger_px
    raw = position.entry_px() * 985 // 100_000
    assert got_stop % 100_000 == 0 and got_take % 100_000 == 0
    assert 0 <= (got_stop - (position.entry_px() - side * raw)) * side < 100_000, (
        "a stop that is nearer, by less than a tick"
    )
    assert 0 <= (position.entry_px() + side * raw - got_take) * side < 100_000, (
        "a target that is nearer, by less than a tick"
    )
    assert text_of(got_stop) == stop and text_of(got_take) == take


def test_the_least_size_is_rounded_up_so_that_it_is_worth_ten_dollars():
    btc = VenueMarket(market(), e8("103457"), e8("103457"), e8("103457"))
    assert text_of(order_sizes.least_size(btc, e8("103457"))) == "0.0001"
    venue = VenueDriver((market(), "103457"))
    refused = venue.place(order(size="0.00009")).answer
    assert (refused.code, refused.fix) == ("below_min_notional", {"field": "size", "value": "0.0001"})
    assert code_of(venue.place(order(size="0.0001"))) == ""


# ── Margin ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("most", "percent"), [(50, "1"), (40, "1.25"), (25, "2"), (20, "2.5"), (10, "5"), (5, "10"), (3, "16.66666667")]
)
def test_maintenance_is_half_the_initial_fraction_at_the_markets_maximum(most, percent):
    whole = VenueMarket(market(max_leverage=most), E8, E8, E8)
    assert ledger.maintenance(whole, 100 * E8) == e8(percent)


def test_testnet_tiers_have_the_published_deductions_and_maintenance():
    tiers = tiers_of(TESTNET_BTC)
    assert [t.deduction // E8 for t in tiers] == [0, 75, 1575, 6575, 26575]
    whole = VenueMarket(market(tiers=TESTNET_BTC), E8, E8, E8)
    figures = {10_000: "125", 30_000: "525", 80_000: "2425", 200_000: "13425"}
    assert {n: text_of(ledger.maintenance(whole, n * E8)) for n in figures} == figures
    assert abs(ledger.maintenance(whole, 400_000 * E8) - e8("40091.66666667")) <= 1


def test_mainnet_btc_of_200_million_needs_3_125_million():
    whole = VenueMarket(market(tiers=((0, 40), (150 * M, 20))), E8, E8, E8)
    assert whole.tiers[1].deduction == 1_875_000 * E8
    assert ledger.maintenance(whole, 200 * M) == 3_125_000 * E8


@pytest.mark.parametrize(
    "tiers",
    [
        TESTNET_BTC,
        ((0, 40), (150 * M, 20)),
        ((0, 25), (100 * M, 15)),
        ((0, 20), (70 * M, 10)),
        ((0, 20), (40 * M, 10)),
        ((0, 10), (20 * M, 5)),
    ],
)
def test_maintenance_does_not_jump_at_a_tiers_boundary(tiers):
    whole = VenueMarket(market(tiers=tiers), E8, E8, E8)
    for lower, _ in tiers[1:]:
        below, at, above = (ledger.maintenance(whole, lower + step) for step in (-1, 0, 1))
        assert 0 <= at - below <= 1 and 0 <= above - at <= 1, (lower, below, at, above)


def test_an_entry_price_is_weighted_by_size_and_closing_leaves_it():
    venue = VenueDriver((market(sig_figs=None, px_decimals=1), "100000"))
    venue.place(order(size="0.01"))
    venue.jump("BTC", "103000")
    venue.place(order(size="0.02"))
    assert text_of(venue.position().entry_px()) == "102000"
    venue.jump("BTC", "104000")
    venue.close(size=e8("0.01"))
    assert text_of(venue.account.realized) == "20"
    assert (text_of(venue.position().size), text_of(venue.position().entry_px())) == ("0.02", "102000")


def test_isolated_margin_at_opening_is_notional_over_leverage_less_the_fee():
    venue = VenueDriver((market(margin_mode="isolated", taker_rate=35_000), "62739"))
    venue.place(order(size="0.00077", leverage=2))
    assert text_of(venue.position().margin) == text_of(e8("24.154515") - e8("0.016908"))


# ── Liquidation price ───────────────────────────────────────────────────────────────────────────────────────────────


def liquidation(side: int, size: str, entry: str, *, most: int = 40, margin: str, tiers=()) -> int | None:
    """Liquidation price of one isolated position, from its margin."""
    px = e8(entry)
    venue = VenueDriver(
        (
            market(margin_mode="isolated", max_leverage=most, tiers=tiers, sig_figs=None, px_decimals=8, sz_decimals=8),
            text_of(px),
        )
    )
    position = VenuePosition(
        "a", "BTC", side, e8(size), notional_of(e8(entry), e8(size)), 1, True, 0, margin=e8(margin)
    )
    venue.account.positions["BTC"] = position
    return ledger.liquidation_px(venue.state, position)


@pytest.mark.parametrize(("size", "margin"), [("0.95272", "5978"), ("0.70698", "30552"), ("0.77009", "24241")])
def test_a_liquidation_price_that_falls_on_the_bound_of_a_tier_is_found(size: str, margin: str):
    """With rounding, one tier gives a price just above the bound and the other one just below."""
    px = liquidation(-1, size, "100000", margin=margin, tiers=((0, 40), (100_000 * E8, 3)))
    assert px is not None
    assert abs(notional_of(px, e8(size)) - 100_000 * E8) <= 1


def test_recorded_isolated_positions_have_the_venues_liquidation_price(shared: Path):
    with (shared / "oracles/hl_liquidation_cases.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 29
    worst = []
    for row in rows:
        side = 1 if row["side"] == "long" else -1
        px = liquidation(side, row["size"], row["entryPx"], most=int(row["maxLeverage"]), margin=row["isolatedMargin"])
        venue = e8(row["liquidationPx_venue"])
        # A price near zero is exact only to one unit of 1e-8.
        worst.append(max(0, abs(px - venue) - 1) / venue)
        assert abs(px - e8(row["liquidationPx_formula"])) <= 1, row
    assert max(worst) < 4e-5
    assert sum(deviation < 1e-7 for deviation in worst) == 28


@pytest.mark.parametrize(
    ("coin", "side", "size", "entry", "margin", "most", "px"),
    [
        ("BTC", 1, "0.00077", "62739", "24.137992", 50, "31708.03843631"),
        ("BTC", -1, "0.00099", "65536", "21.604172", 50, "86493.46174617"),
        ("SOL", 1, "0.6", "173.06", "20.735658", 20, "142.05186667"),
        ("SOL", -1, "0.48", "163.11", "15.650731", 20, "190.94213618"),
        ("DOGE", 1, "437", "0.11586", "25.29769", 20, "0.05945697"),
        ("ETH", 1, "0.0329", "2545.5", "20.909894", 50, "1929.23322895"),
        ("AAPL", 1, "0.5", "250", "25", 10, "210.526316"),
        ("GOOGL", -1, "0.5", "190", "9.5", 10, "199.047619"),
        ("TSLA", 1, "1", "350", "50", 10, "315.789474"),
    ],
)
def test_the_published_isolated_figures_are_reproduced(coin, side, size, entry, margin, most, px):
    assert liquidation(side, size, entry, most=most, margin=margin) / e8(px) == pytest.approx(1, abs=1e-7)


def test_the_official_example_is_reproduced_from_raw_usd():
    # size * entry + rawUsd
    margin = e8("2986.3") * e8("0.0335") // E8 - e8("95.059824")
    px = liquidation(1, "0.0335", "2986.3", most=50, margin=text_of(margin))
    assert px / e8("2866.26936529") == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(
    ("leverage", "long", "short"),
    [
        (1, None, "197530.8642"),
        (2, "50632.9114", "148148.1481"),
        (5, "81012.6582", "118518.5185"),
        (10, "91139.2405", "108641.9753"),
        (20, "96202.5316", "103703.7037"),
        (40, "98734.1772", "101234.5679"),
    ],
)
def test_a_position_without_fees_is_liquidated_at_the_price_of_the_formula(leverage, long, short):
    for side, want in ((1, long), (-1, short)):
        venue = VenueDriver((market(margin_mode="isolated"), "100000"))
        venue.place(order(side=side, size="0.01", leverage=leverage))
        got = ledger.liquidation_px(venue.state, venue.position())
        assert (got is None) if want is None else abs(got - e8(want)) < 10_000


@pytest.mark.parametrize(("side", "want"), [(1, "91184.8101"), (-1, "108597.5309")])
def test_the_opening_fee_brings_the_liquidation_price_nearer(side, want):
    venue = VenueDriver((market(margin_mode="isolated", taker_rate=45_000), "100000"))
    venue.place(order(side=side, size="0.01", leverage=10))
    assert abs(ledger.liquidation_px(venue.state, venue.position()) - e8(want)) < 10_000


def test_leverage_chosen_changes_no_maintenance_and_no_cross_liquidation_price():
    prices = set()
    for leverage in (5, 10, 25):
        venue = VenueDriver((market("ETH", max_leverage=25, sz_decimals=4), "2500"), cash="500.5")
        venue.place(order("ETH", size="1", leverage=leverage))
        prices.add(ledger.liquidation_px(venue.state, venue.position("ETH")))
    assert len(prices) == 1


@pytest.mark.parametrize(("cash", "want"), [("500", "2040.8163"), ("5000", None)])
def test_a_cross_position_is_liquidated_when_the_account_falls_to_maintenance(cash, want):
    venue = VenueDriver((market("ETH", max_leverage=25, sz_decimals=4), "2500"), cash=cash)
    venue.place(order("ETH", size="1", leverage=25))
    got = ledger.liquidation_px(venue.state, venue.position("ETH"))
    assert (got is None) if want is None else abs(got - e8(want)) < 10_000


def test_two_cross_positions_share_one_account_and_at_each_price_equity_equals_all_maintenance():
    venue = VenueDriver((market("ETH", max_leverage=25, sz_decimals=4), "2500"), (market("BTC"), "100000"), cash="500")
    venue.place(order("ETH", size="1", leverage=25))
    venue.place(order("BTC", -1, size="0.01", leverage=40))
    eth = ledger.liquidation_px(venue.state, venue.position("ETH"))
    btc = ledger.liquidation_px(venue.state, venue.position("BTC"))
    assert abs(eth - e8("2053.5714")) < 10_000 and abs(btc - e8("143209.8765")) < 10_000
    for coin, px, need in (("ETH", eth, "53.5714"), ("BTC", btc, "67.9012")):
        market_ = venue.state.markets[coin]
        kept, market_.mark = market_.mark, px
        value = ledger.cross_value(venue.state, venue.account)
        whole = sum(
            ledger.maintenance(m := venue.state.markets[name], m.mark * p.size // E8)
            for name, p in venue.account.positions.items()
        )
        market_.mark = kept
        assert abs(value - whole) <= 2 and abs(whole - e8(need)) < 10_000, coin


# Bounds that put 3,683.979 ETH and 109.488 BTC into the rows' tiers; the deductions are set to the recorded ones.
BINANCE_TIERS = {"ETHUSDT": (5, 135_365), "BTCUSDT": (20, 16_300)}


def test_binance_positions_with_deductions_have_its_calculators_price(shared: Path):
    with (shared / "oracles/binance_liquidation_cases.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 4
    for row in rows:
        leverage, deduction = BINANCE_TIERS[row["pair"]]
        assert 1 / (2 * leverage) == float(row["mm_rate"]) and deduction == float(row["maintenance_deduction"])
        size, entry = e8(row["size"]), e8(row["entry_px"])
        mark = e8(row["mark_px"] or row["entry_px"])
        whole = VenueMarket(market(sz_decimals=3, max_leverage=leverage), mark, mark, mark)
        whole.tiers = (whole.tiers[0]._replace(deduction=deduction * E8),)
        position = VenuePosition("a", "BTC", 1, size, notional_of(entry, size), 1, False, 0)
        value = e8(row["wallet_balance"]) + e8(row["upnl_other"]) + position.pnl(mark)
        slack = value - round(float(row["mm_other"]) * E8) - ledger.maintenance(whole, notional_of(mark, size))
        got = ledger.level_of_slack(whole, position, slack)
        assert abs(got - e8(row["liquidation_px"])) <= E8 // 100, (row, text_of(got))


def test_the_other_positions_figures_of_the_cross_cases_follow_from_the_tier_formula_at_mark():
    for size, entry, mark, leverage, deduction, need, pnl in (
        ("109.488", "32481.98", "31967.27", 20, 16_300, "71200.81144", "-56354.57"),
        ("3683.979", "1456.84", "1335.18", 5, 135_365, "356512.508", "-448192.89"),
    ):
        whole = VenueMarket(market(sz_decimals=3, max_leverage=leverage), E8, E8, E8)
        whole.tiers = (whole.tiers[0]._replace(deduction=deduction * E8),)
        position = VenuePosition("a", "BTC", 1, e8(size), notional_of(e8(entry), e8(size)), 1, False, 0)
        assert abs(ledger.maintenance(whole, notional_of(e8(mark), e8(size))) - e8(need)) < E8 // 100
        assert abs(position.pnl(e8(mark)) - e8(pnl)) < E8 // 100


def test_binances_fifth_level_follows_the_continuity_rule():
    # 250,000 * (1 % - 0.5 %) + 50, the deduction of the level before: 10,000 * (0.5 % - 0 %).
    tiers = tiers_of(((0, 125), (50 * K, 100), (250 * K, 50)))
    assert [t.deduction // E8 for t in tiers] == [0, 50, 1300]


def test_the_tier_is_that_of_the_liquidation_price_not_of_the_mark():
    # 1 @ 60,000 short lies in the 10x tier (maintenance 5 %); it ends above 100,000, in the 5x tier (10 %).
    px = liquidation(-1, "1", "60000", margin="60000", tiers=TESTNET_BTC)
    assert abs(px - (60_000 + 60_000 + 6_575) * E8 * 10 // 11) <= 1
    assert px > 100_000 * E8


# ── Funding and fees ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("premium", "rate"),
    [
        ("0", "0.0000125"),
        ("-0.0004", "0.0000125"),
        ("0.0006", "0.0000125"),
        ("0.001", "0.0000625"),
        ("-0.001", "-0.0000625"),
        ("0.01", "0.0011875"),
        ("0.5", "0.04"),
        ("-0.5", "-0.04"),
    ],
)
def test_the_hourly_rate_follows_the_premium(premium, rate):
    assert funding.rate_of(e8(premium) * (E12 // E8)) == round(float(rate) * E12)


@pytest.mark.parametrize(
    ("side", "size", "px", "rate", "paid"),
    [
        (1, "10", "10000", "0.0011875", "-118.75"),
        (-1, "10", "10000", "0.0011875", "118.75"),
        (1, "0.01", "100500", "0.0000125", "-0.0125625"),
        (1, "10", "10000", "-0.0011875", "118.75"),
    ],
)
def test_a_position_pays_its_size_times_oracle_times_rate(side, size, px, rate, paid):
    venue = VenueDriver(
        (market(funding_rate=round(float(rate) * E12), sig_figs=None, px_decimals=1), px), cash="1000000"
    )
    venue.place(order(side=side, size=size, leverage=10))
    events = venue.wait(3_600_000)
    assert [text_of(e.amount) for e in events] == [paid]
    assert text_of(venue.account.funding) == paid == text_of(venue.position().funding)


def test_a_fee_is_truncated_and_not_rounded(shared: Path):
    sample = json.loads((shared / "oracles/hl_facts.json").read_text())["fee_maker_sample"]
    fee = fee_of(notional_of(e8(str(sample["px"])), e8(str(sample["sz"]))), e8(f"{sample['rate']:.5f}"))
    assert text_of(fee) == sample["fee"] == "0.009997"
    rebate = fee_of(notional_of(e8(str(sample["px"])), e8(str(sample["sz"]))), -e8(f"{sample['rate']:.5f}"))
    assert text_of(rebate) == "-0.009997"


# ── R ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("side", "stop", "r", "target"), [(1, "98", "2r", "104"), (-1, "103", "1.5r", "95.5")])
def test_a_target_in_r_is_r_stop_distances_from_the_entry(side, stop, r, target):
    venue = VenueDriver((market(), "100"))
    venue.place(order(side=side, size="1", stop=stop, take=r))
    assert text_of(venue.account.orders[venue.position().target_oid].trigger_px) == target


def test_r_without_a_stop_is_refused():
    refused = VenueDriver((market(), "100")).place(order(size="1", take="2r")).answer
    assert isinstance(refused, Refusal) and refused.code == "invalid_input"
