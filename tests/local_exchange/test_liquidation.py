"""Margin, liquidation, backstop, auto-deleveraging and funding."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from bot.local_exchange.engine.venue_rules import E8
from tests.local_exchange.exchanges import ANN, BOB, BTC, ETH, TSLA, Venue, limit, trigger

HOUR_MS = 3_600_000


def leverage(venue: Venue, user: str, asset: int, value: int, *, cross: bool) -> Any:
    return venue.act(user, {"type": "updateLeverage", "asset": asset, "isCross": cross, "leverage": value})


def account(venue: Venue, user: str = ANN, dex: str = "") -> Any:
    return venue.info("clearinghouseState", user=user, dex=dex)


def position(venue: Venue, user: str = ANN) -> Any:
    return account(venue, user)["assetPositions"][0]["position"]


def opened(venue: Venue, size: str, user: str = ANN, side: str = "B") -> None:
    px = "110000" if side == "B" else "90000"
    assert "filled" in venue.place(user, limit(BTC, side, size, px, "Ioc"))[0]


def test_a_cross_account_below_maintenance_is_closed_through_the_book() -> None:
    venue = Venue(usd="600")
    leverage(venue, ANN, BTC, 20, cross=True)
    opened(venue, "0.09")
    resting = venue.rest(ANN, limit(ETH, "B", "0.01", "2900"))[0]
    same = venue.rest(ANN, limit(BTC, "B", "0.0002", "90000"))[0]
    level = float(position(venue)["liquidationPx"])
    venue.price("BTC", f"{level + 1:.0f}")
    assert venue.size(ANN, "BTC") == "0.09"
    venue.price("BTC", f"{level - 1:.0f}")
    assert venue.size(ANN, "BTC") == "0.0"
    assert venue.status(ANN, same) == "liquidatedCanceled"
    assert venue.status(ANN, resting) == "liquidatedCanceled", "it reserved margin of the cross account"
    fill = venue.info("userFills", user=ANN)[0]
    assert fill["liquidation"] == {"liquidatedUser": ANN, "markPx": f"{level - 1:.0f}.0", "method": "market"}
    assert float(account(venue)["marginSummary"]["accountValue"]) > 0, "what is left stays"
    assert venue.info("userFills", user=ANN)[0]["dir"] == "Close Long"


def test_a_large_position_loses_a_fifth_first_and_everything_in_the_next_thirty_seconds() -> None:
    venue = Venue(usd="3600")
    leverage(venue, ANN, BTC, 10, cross=True)
    opened(venue, "0.3")
    venue.price("BTC", "89500")
    first = float(venue.size(ANN, "BTC"))
    assert first == pytest.approx(0.24, abs=1e-5)
    assert len({fill["oid"] for fill in venue.info("userFills", user=ANN)}) == 2
    venue.price("BTC", "89000")
    assert float(venue.size(ANN, "BTC")) == 0.0


def test_below_two_thirds_the_backstop_takes_positions_and_margin() -> None:
    venue = Venue(usd="600")
    leverage(venue, ANN, BTC, 20, cross=True)
    opened(venue, "0.09")
    level = float(position(venue)["liquidationPx"])
    venue.price("BTC", f"{level - 1000:.0f}")
    fill = venue.info("userFills", user=ANN)[0]
    assert (fill["liquidation"]["method"], fill["fee"], fill["dir"]) == ("backstop", "0.0", "Liquidated Cross Long")
    assert account(venue)["marginSummary"]["accountValue"] == "0.0"
    state = venue.control("state")
    assert float(state["liquidator"]) == -float(state["accounts"][f"{ANN}/"]["sums"]["forfeited"]) > 0


def test_an_isolated_position_loses_its_own_margin_and_nothing_else() -> None:
    venue = Venue(usd="1000")
    leverage(venue, ANN, BTC, 10, cross=False)
    opened(venue, "0.01")
    assert position(venue)["leverage"]["type"] == "isolated"
    free = float(account(venue)["withdrawable"])
    venue.price("BTC", "91000")
    assert venue.size(ANN, "BTC") == "0.0"
    assert float(account(venue)["marginSummary"]["accountValue"]) >= free


def test_an_account_without_value_is_deleveraged_at_the_previous_mark_against_the_best_ranked() -> None:
    eve = "0x" + "e" * 40
    venue = Venue(usd="600", users=(ANN,))
    for user, usd in ((BOB, "900"), (eve, "100000")):
        venue.control("deposit", address=user, usd=usd)
    leverage(venue, ANN, BTC, 20, cross=True)
    opened(venue, "0.09")
    opened(venue, "0.05", BOB, "A")
    opened(venue, "0.09", eve, "A")
    venue.price("BTC", "90000")
    ann, bob, others = (venue.info("userFills", user=user)[0] for user in (ANN, BOB, eve))
    assert [fill["dir"] for fill in (ann, bob, others)] == ["Auto-Deleveraging"] * 3
    assert {fill["px"] for fill in (ann, bob, others)} == {"100000.0"}, "the mark before the update"
    assert (bob["sz"], others["sz"]) == ("0.05", "0.04"), "BOB has more leverage, so he is first"
    assert venue.size(eve, "BTC") == "-0.05"
    assert float(account(venue)["marginSummary"]["accountValue"]) > 0


def test_margin_rules_of_leverage_and_isolated_positions() -> None:
    venue = Venue(usd="1000")
    assert leverage(venue, ANN, BTC, 41, cross=True)["response"] == "Invalid leverage value"
    assert leverage(venue, ANN, BTC, 10, cross=False)["status"] == "ok"
    opened(venue, "0.01")
    assert leverage(venue, ANN, BTC, 10, cross=True)["response"] == "Cannot switch leverage type with open position."
    assert leverage(venue, ANN, BTC, 5, cross=False)["response"].startswith(
        "Isolated position does not have sufficient"
    )
    move = {"type": "updateIsolatedMargin", "asset": BTC, "isBuy": True}
    assert venue.act(ANN, {**move, "ntli": 150_000_000})["status"] == "ok"
    assert leverage(venue, ANN, BTC, 5, cross=False)["status"] == "ok"
    assert position(venue)["marginUsed"] == "249.540996"
    assert venue.act(ANN, {**move, "ntli": -150_000_000})["status"] == "err", (
        "less than the initial margin would be left"
    )
    assert venue.act(ANN, {**move, "ntli": -40_000_000})["status"] == "ok"
    assert venue.act(ANN, {**move, "ntli": 10_000_000_000})["status"] == "err"
    top_up = {"type": "topUpIsolatedOnlyMargin", "asset": BTC, "leverage": "2"}
    assert venue.act(ANN, top_up)["status"] == "ok"
    assert position(venue)["marginUsed"] == "500.0"
    data = venue.info("activeAssetData", user=ANN, coin="ETH")
    assert data["leverage"] == {"type": "cross", "value": 20} and data["maxTradeSzs"][0] != "0.0"


def test_liquidation_prices_are_those_of_the_exchange(shared: Path) -> None:
    """Recorded isolated positions: coin, side, entry, size, margin, leverage, and the exchange's liquidation price."""
    from bot.local_exchange.engine.venue_rules import (
        MarketSpec,
        State,
        VenueAccount,
        VenueMarket,
        VenuePosition,
        liquidation_px,
    )
    from bot.money import parse_e8

    file = shared / "oracles" / "hl_liquidation_cases.csv"
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 29
    for row in rows:
        entry, size = parse_e8(row["entryPx"]), parse_e8(row["size"])
        spec = MarketSpec(row["coin"], margin_mode="isolated", max_leverage=int(row["maxLeverage"]))
        state = State(markets={row["coin"]: VenueMarket(spec, entry, entry, entry)})
        state.accounts["a"] = VenueAccount("a", 1, "a", None, 0, 0)
        held = VenuePosition(
            "a",
            row["coin"],
            1 if row["side"] == "long" else -1,
            size,
            entry * size // E8,
            int(row["leverage"]),
            isolated=True,
            opened_ms=0,
            margin=parse_e8(row["isolatedMargin"]),
        )
        state.accounts["a"].positions[row["coin"]] = held
        ours = (liquidation_px(state, held) or 0) / E8
        assert ours == pytest.approx(float(row["liquidationPx_venue"]), rel=4e-5), row


@pytest.mark.parametrize(("answer", "kind"), [("margin", "isolated"), ("account", "isolated"), ("margin", "cross")])
def test_funding_is_paid_each_hour_on_the_oracle_price(answer: str, kind: str) -> None:
    venue = Venue(switches={"isolated_funding": answer})
    leverage(venue, ANN, BTC, 10, cross=kind == "cross")
    opened(venue, "0.1")
    opened(venue, "0.1", BOB, "A")
    before = account(venue)
    venue.control("advance", ms=HOUR_MS)
    row = venue.info("userFunding", user=ANN, startTime=0)[0]
    assert row["delta"] == {
        "type": "funding",
        "coin": "BTC",
        # 0.1 x 100,000 x 0.0000125
        "usdc": "-0.125",
        "szi": "0.1",
        "fundingRate": "0.0000125",
        "nSamples": None,
    }
    assert row["time"] % HOUR_MS == 0
    assert venue.info("userFunding", user=BOB, startTime=0)[0]["delta"]["usdc"] == "0.125"
    after = account(venue)
    raws = [float(one["marginSummary"]["totalRawUsd"]) for one in (before, after)]
    assert raws[0] - raws[1] == pytest.approx(0.125)
    moved = [float(one["withdrawable"]) for one in (before, after)]
    assert (moved[0] - moved[1] == pytest.approx(0)) is (answer == "margin" and kind == "isolated")
    history = venue.info("fundingHistory", coin="BTC", startTime=0)
    assert history[0]["fundingRate"] == "0.0000125"


def test_the_premium_of_the_hour_raises_the_rate() -> None:
    venue = Venue()
    venue.price("BTC", "101000", oracle="100000", mark="101000")
    opened(venue, "0.1")
    venue.control("advance", ms=HOUR_MS)
    # premium about 0.00995 (impact bid), less 0.0005 by the clamp, over 8 hours
    rate = float(venue.info("fundingHistory", coin="BTC", startTime=0)[0]["fundingRate"])
    assert rate == pytest.approx((0.00995 - 0.0005) / 8, rel=0.02)


def test_volume_lowers_the_fees_of_the_next_day() -> None:
    venue = Venue(usd="100000000", network="mainnet")
    user = venue.exchange.users[ANN]
    user.day_volume[venue.exchange.now_ms // 86_400_000] = [6_000_000 * E8, 0]
    assert venue.info("userFees", user=ANN)["userCrossRate"] == "0.00045"
    venue.control("advance", ms=86_400_000)
    fees = venue.info("userFees", user=ANN)
    assert (fees["userCrossRate"], fees["userAddRate"]) == ("0.0004", "0.00012")
    opened(venue, "0.1")
    assert venue.info("userFills", user=ANN)[0]["fee"] == "4.00004"


def test_a_builder_fee_stands_in_the_fee_of_a_fill() -> None:
    venue = Venue()
    approve = {"type": "approveBuilderFee", "hyperliquidChain": "Testnet", "signatureChainId": "0x66eee"}
    nonce = venue.nonce()
    venue.act(ANN, {**approve, "maxFeeRate": "0.01%", "builder": BOB, "nonce": nonce}, nonce=nonce)
    assert venue.info("maxBuilderFee", user=ANN, builder=BOB) == 10
    venue.place(ANN, limit(BTC, "B", "0.01", "101000", "Ioc"), builder={"b": BOB, "f": 10})
    fill = venue.info("userFills", user=ANN)[0]
    # 0.45000450 and 0.1000010 of 1,000.01, each cut
    assert (fill["builderFee"], fill["fee"]) == ("0.100001", "0.550005")


def test_a_stop_protects_an_isolated_hip3_position() -> None:
    venue = Venue()
    venue.control("deposit", address=ANN, usd="1000", dex="xyz")
    assert "filled" in venue.place(ANN, limit(TSLA, "B", "2", "360", "Ioc"))[0]
    venue.place(ANN, trigger(TSLA, "A", "0", "340", "sl", px="320"), grouping="positionTpsl")
    venue.price("xyz:TSLA", "339")
    assert venue.size(ANN, "xyz:TSLA") == "0.0"
    assert venue.info("userFills", user=ANN)[0]["coin"] == "xyz:TSLA"
