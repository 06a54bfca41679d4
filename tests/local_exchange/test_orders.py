"""Limit orders: the answers, the refusals, and the statuses that orders end with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local_exchange.exchanges import ANN, BOB, BTC, EVE, GOLD, START_MS, TSLA, Venue, limit

FAR = "Order price cannot be more than 80% away from the reference price"
CLOID = "0x" + "ab" * 16


def test_an_order_rests_fills_or_is_refused_each_in_the_form_of_the_exchange() -> None:
    venue = Venue()
    statuses = venue.place(
        ANN,
        limit(BTC, "B", "0.01", "99000", cloid=CLOID),
        limit(BTC, "B", "0.02", "100100", "Ioc"),
        limit(BTC, "B", "0.01", "99000.5123"),
    )
    assert statuses[0] == {"resting": {"oid": 300_000_000_001, "cloid": CLOID}}
    assert statuses[1] == {"filled": {"totalSz": "0.02", "avgPx": "100001.0", "oid": 300_000_000_002}}
    assert statuses[2] == {"error": "Price must be divisible by tick size. asset=0"}
    assert venue.size(ANN, "BTC") == "0.02"
    assert venue.status(ANN, CLOID) == "open"


REFUSED = (
    (limit(BTC, "B", "0.01", "0"), "Order has invalid price.", None),
    (limit(BTC, "B", "0", "99000"), "Order has zero size.", None),
    (limit(BTC, "B", "0.000001", "99000"), "Order has invalid size.", None),
    (limit(BTC, "B", "0.01", "98765.4"), "Price must be divisible by tick size.", "tick"),
    (limit(BTC, "B", "0.00009", "99000"), "Order must have minimum value of $10.", "minTradeNtl"),
    (
        limit(BTC, "B", "50", "99000"),
        "Order would cause position to exceed margin tier limit at current leverage",
        "perpMaxPosition",
    ),
    (
        limit(BTC, "B", "0.01", "99000", "Ioc"),
        "Order could not immediately match against any resting orders.",
        "iocCancel",
    ),
    (
        limit(BTC, "B", "0.01", "100100", "Alo"),
        "Post only order would have immediately matched, bbo was 99999@100001.",
        "badAloPx",
    ),
    (limit(BTC, "A", "0.01", "101000", reduce=True), "Reduce only order would increase position.", "reduceOnly"),
)


@pytest.mark.parametrize(("order", "text", "reason"), REFUSED, ids=[row[1][:20] for row in REFUSED])
def test_a_refused_order_has_its_text_and_only_a_refusal_of_the_engine_has_an_oid(
    order: Any, text: str, reason: str | None
) -> None:
    venue = Venue()
    venue.act(ANN, {"type": "updateLeverage", "asset": BTC, "isCross": True, "leverage": 40})
    assert venue.place(ANN, order) == [{"error": text if reason is None else f"{text} asset=0"}]
    history = venue.info("historicalOrders", user=ANN)
    assert [row["status"] for row in history] == ([] if reason is None else [f"{reason}Rejected"])
    assert venue.info("openOrders", user=ANN) == []


def test_an_order_without_the_margin_is_refused() -> None:
    venue = Venue(usd="100")
    assert venue.place(ANN, limit(BTC, "B", "0.03", "99000")) == [
        {"error": "Insufficient margin to place order. asset=0"}
    ]
    assert "resting" in venue.place(ANN, limit(BTC, "B", "0.01", "99000"))[0]
    assert "error" in venue.place(ANN, limit(BTC, "B", "0.02", "99000"))[0], "the first order reserves margin"
    assert "resting" in venue.place(ANN, limit(BTC, "A", "0.01", "101000"))[0], "the larger side counts"
    venue.control("switch", name="open_margin", value="none")
    assert "resting" in venue.place(ANN, limit(BTC, "B", "0.02", "99000"))[0]


@pytest.mark.parametrize(("px", "is_far"), [("19900", True), ("20001", False), ("499990", False), ("500100", True)])
def test_a_price_far_from_the_mark_refuses_the_whole_batch(px: str, is_far: bool) -> None:
    venue = Venue()
    side, near = ("B", "99000") if float(px) < 100_000 else ("A", "101000")
    statuses = venue.place(ANN, limit(BTC, side, "0.01", near), limit(BTC, side, "0.01", px))
    if is_far:
        assert statuses == [{"error": FAR}], "one status for both orders"
    else:
        assert [list(status) for status in statuses] == [["resting"], ["resting"]]


def test_an_empty_batch_and_an_unknown_asset_are_refused() -> None:
    venue = Venue()
    assert venue.place(ANN) == [{"error": "Orders are empty."}]
    assert venue.place(ANN, limit(999, "B", "1", "1")) == "Order has invalid asset."
    assert venue.place(ANN, limit(BTC, "B", "0.01", "99000"), builder={"b": EVE, "f": 10}) == [
        {"error": "Builder fee has not been approved"}
    ]


def test_price_time_priority_among_accounts() -> None:
    venue = Venue(users=(ANN, BOB, EVE))
    first = venue.rest(ANN, limit(BTC, "B", "0.01", "100000"))[0]
    better = venue.rest(EVE, limit(BTC, "B", "0.01", "100000.0"))[0]
    later = venue.rest(ANN, limit(BTC, "B", "0.01", "99999.5".removesuffix(".5")))[0]
    assert venue.place(BOB, limit(BTC, "A", "0.015", "99999", "Ioc"))[0]["filled"]["totalSz"] == "0.015"
    assert venue.status(ANN, first) == "filled"
    row = venue.info("openOrders", user=EVE)[0]
    assert (row["oid"], row["sz"], row["origSz"]) == (better, "0.005", "0.01")
    assert venue.info("orderStatus", user=EVE, oid=better)["order"]["order"]["sz"] == "0.01", "stale on purpose"
    assert venue.status(ANN, later) == "open"
    fills = venue.info("userFills", user=BOB)
    assert [fill["px"] for fill in fills] == ["100000.0", "100000.0"]
    assert {fill["crossed"] for fill in fills} == {True}
    assert venue.info("userFills", user=EVE)[0]["crossed"] is False
    assert venue.info("userFills", user=EVE)[0]["tid"] == fills[0]["tid"], "both sides of a trade share the tid"


def test_a_self_trade_cancels_the_resting_order_and_the_incoming_one_goes_on() -> None:
    venue = Venue()
    resting = venue.rest(ANN, limit(BTC, "B", "0.01", "100000"))[0]
    filled = venue.place(ANN, limit(BTC, "A", "0.02", "99990", "Ioc"))[0]["filled"]
    assert filled["totalSz"] == "0.02"
    assert venue.status(ANN, resting) == "selfTradeCanceled"
    assert venue.info("userFills", user=ANN)[0]["px"] == "99999.0"


def test_the_book_shows_accounts_and_others_and_the_price_sweeps_what_it_passes() -> None:
    venue = Venue()
    oid = venue.rest(ANN, limit(BTC, "B", "0.03", "99990"))[0]
    levels = venue.info("l2Book", coin="BTC")["levels"]
    assert next(row for row in levels[0] if row["px"] == "99990.0")["n"] == 2, "the order and a level of the others"
    assert [float(row["px"]) for row in levels[0]] == sorted((float(row["px"]) for row in levels[0]), reverse=True)
    venue.price("BTC", "99990")
    assert venue.status(ANN, oid) == "open", "a touch is no fill"
    venue.price("BTC", "99989", volume="0.01")
    assert venue.info("openOrders", user=ANN)[0]["sz"] == "0.02", "limited by the volume"
    bids, asks = venue.info("l2Book", coin="BTC")["levels"]
    assert float(bids[0]["px"]) < float(asks[0]["px"]), "the book is never crossed"
    venue.price("BTC", "99980")
    assert venue.status(ANN, oid) == "filled"
    assert {fill["px"] for fill in venue.info("userFills", user=ANN)} == {"99990.0"}


def test_a_cancel_answers_for_each_order_and_a_second_cancel_is_refused() -> None:
    venue = Venue()
    oid = venue.rest(ANN, limit(BTC, "B", "0.01", "99000", cloid=CLOID))[0]
    missing = {"error": "Order was never placed, already canceled, or filled. asset=0"}
    assert venue.cancel(BOB, BTC, oid) == missing, "an order of another address"
    by_cloid = {"type": "cancelByCloid", "cancels": [{"asset": BTC, "cloid": CLOID}, {"asset": BTC, "cloid": CLOID}]}
    answer = venue.act(ANN, by_cloid)["response"]
    assert answer == {"type": "cancel", "data": {"statuses": ["success", missing]}}
    assert venue.status(ANN, oid) == "canceled"
    assert venue.cancel(ANN, BTC, oid) == missing


def test_fees_are_cut_at_six_decimals_and_fills_chain_by_start_position() -> None:
    venue = Venue()
    venue.place(ANN, limit(BTC, "B", "0.00777", "100100", "Ioc"))
    venue.place(ANN, limit(BTC, "A", "0.02", "99000", "Ioc"))
    newest, oldest = venue.info("userFills", user=ANN)
    # 100001 x 0.00777 x 0.00045 = 0.34965349...
    assert oldest["fee"] == "0.349653"
    assert (oldest["startPosition"], newest["startPosition"]) == ("0.0", "0.00777")
    assert newest["dir"] == "Long > Short"
    assert newest["closedPnl"] == "-0.01554", "only the part that closes, before the fee"
    assert venue.size(ANN, "BTC") == "-0.01223"


def test_hip3_markets_have_their_own_numbers_money_modes_and_fees() -> None:
    venue = Venue()
    assert venue.place(ANN, limit(GOLD, "B", "0.1", "4100", "Ioc"))[0]["error"].startswith("Insufficient margin")
    send = {
        "type": "sendAsset",
        "hyperliquidChain": "Testnet",
        "signatureChainId": "0x66eee",
        "destination": ANN,
        "sourceDex": "",
        "destinationDex": "xyz",
        "token": "USDC",
        "amount": "5000",
        "fromSubAccount": "",
        "nonce": START_MS + 99,
    }
    assert venue.act(ANN, send, nonce=START_MS + 99)["status"] == "ok"
    assert venue.place(ANN, limit(GOLD, "B", "0.1", "4100", "Ioc"))[0]["filled"]["avgPx"] == "4000.2"
    fill = venue.info("userFills", user=ANN)[0]
    # taker 0.045 % x 2 (scale 1) x 0.1 (growth)
    assert (fill["coin"], fill["fee"]) == ("xyz:GOLD", "0.036001")
    assert venue.info("clearinghouseState", user=ANN)["assetPositions"] == []
    assert venue.info("clearinghouseState", user=ANN, dex="xyz")["marginSummary"]["totalRawUsd"] == "4599.943999"
    cross = {"type": "updateLeverage", "asset": TSLA, "isCross": True, "leverage": 5}
    assert venue.act(ANN, cross) == {"status": "err", "response": "Invalid leverage value"}
    venue.place(ANN, limit(TSLA, "B", "1", "360", "Ioc"))
    row = venue.info("clearinghouseState", user=ANN, dex="xyz")["assetPositions"][1]["position"]
    assert (row["coin"], row["leverage"]["type"]) == ("xyz:TSLA", "isolated")
    remove = {"type": "updateIsolatedMargin", "asset": TSLA, "isBuy": True, "ntli": -1_000_000}
    assert venue.act(ANN, remove)["status"] == "err", "a strictly isolated margin cannot be removed"


def test_only_post_only_orders_are_taken_after_an_upgrade() -> None:
    venue = Venue()
    venue.control("fault", point="exchange", kind="post_only", ms=180_000)
    text = "Only post-only orders allowed immediately after network upgrade"
    assert venue.place(ANN, limit(BTC, "B", "0.01", "100100", "Ioc")) == [{"error": text}]
    assert "resting" in venue.place(ANN, limit(BTC, "B", "0.01", "99000", "Alo"))[0]
    venue.control("advance", ms=180_000)
    assert "filled" in venue.place(ANN, limit(BTC, "B", "0.01", "100100", "Ioc"))[0]


def test_a_delisted_market_cancels_orders_and_settles_positions() -> None:
    venue = Venue()
    venue.place(ANN, limit(BTC, "B", "0.01", "100100", "Ioc"))
    oid = venue.rest(ANN, limit(BTC, "B", "0.01", "99000"))[0]
    venue.control("fault", point="exchange", kind="delist", coin="BTC")
    assert venue.status(ANN, oid) == "delistedCanceled"
    assert venue.size(ANN, "BTC") == "0.0"
    assert venue.info("userFills", user=ANN)[0]["dir"] == "Settlement"
    assert venue.info("meta")["universe"][0]["isDelisted"] is True
    assert "error" in venue.place(ANN, limit(BTC, "B", "0.01", "99000"))[0]


def test_the_others_fill_their_levels_up_every_three_seconds() -> None:
    venue = Venue(usd="1000000", network="mainnet")
    full = venue.info("l2Book", coin="BTC")["levels"][1][0]
    venue.place(ANN, limit(BTC, "B", "1", "101000", "Ioc"))
    assert float(venue.info("l2Book", coin="BTC")["levels"][1][0]["sz"]) < float(full["sz"])
    venue.control("advance", ms=3_000)
    assert venue.info("l2Book", coin="BTC")["levels"][1][0] == full


def test_a_priority_fee_is_for_ioc_orders_or_for_passive_ones() -> None:
    venue = Venue()
    ioc, alo, gtc = (
        limit(BTC, "B", "0.01", px, tif) for px, tif in (("101000", "Ioc"), ("99000", "Alo"), ("99000", "Gtc"))
    )
    assert "filled" in venue.place(ANN, ioc, grouping={"p": 5})[0]
    assert "resting" in venue.place(ANN, alo, grouping={"p": 5})[0]
    for orders in ((gtc,), (ioc, alo), (limit(BTC, "A", "0.01", "101000", "Alo", reduce=True),)):
        assert venue.place(ANN, *orders, grouping={"p": 5}) == [
            {"error": "Priority orders must all be Ioc, or all Alo and not reduce-only."}
        ]
