"""Every recorded answer of the exchange has the shape of ours, apart from what has changed since it was recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.local_exchange.exchanges import ANN, BTC, START_MS, Venue, limit, trigger

HOUR_MS: Final = 3_600_000
# a part whose shape has changed
ANY = object()

# Keys that today's answers have and the recordings lack, and the reverse.
NEW: Final = frozenset(
    [
        "origSz",
        "cloid",
        "reduceOnly",
        "tid",
        "feeToken",
        "twapId",
        "cumFunding",
        "maxLeverage",
        "crossMaintenanceMarginUsed",
        "time",
        "nRequestsSurplus",
        "marginTables",
        "collateralToken",
        "marginTableId",
        "growthMode",
        "onlyIsolated",
        "marginMode",
        "isDelisted",
        "rawUsd",
        "liquidation",
    ]
)
OLD: Final = frozenset({"maxTradeSzs", "isDelisted", "onlyIsolated"})

QUERIES: Final[dict[str, dict[str, Any]]] = {
    "candleSnapshot": {"req": {"coin": "BTC", "interval": "1h", "startTime": 0, "endTime": START_MS + 10 * HOUR_MS}},
    "fundingHistory": {"coin": "BTC", "startTime": 0},
    "l2Book": {"coin": "BTC"},
    "userFillsByTime": {"startTime": 0},
    "userFunding": {"startTime": 0},
    "userNonFundingLedgerUpdates": {"startTime": 0},
}
# Answers that stay empty here: staking, TWAP and vaults do not exist.
EMPTY: Final = {"delegatorHistory", "userTwapSliceFills", "userVaultEquities"}


@pytest.fixture
def recorded(shared: Path) -> Path:
    folder = shared / "data" / "hyperliquid" / "recorded"
    if not folder.is_dir():
        pytest.skip("the recorded answers are not here")
    return folder


@pytest.fixture(scope="module")
def venue() -> Venue:
    """An account with some of everything."""
    venue = Venue()
    nonce = venue.nonce()
    venue.act(
        ANN,
        {
            "type": "approveAgent",
            "hyperliquidChain": "Testnet",
            "signatureChainId": "0x66eee",
            "agentAddress": "0x" + "c1" * 20,
            "agentName": "ok",
            "nonce": nonce,
        },
        nonce=nonce,
    )
    venue.place(ANN, limit(BTC, "B", "0.05", "110000", "Ioc"), limit(BTC, "B", "0.01", "90000", cloid="0x" + "1" * 32))
    venue.place(ANN, limit(BTC, "B", "0.05", "99000"), trigger(BTC, "A", "0.05", "90000", "sl"), grouping="normalTpsl")
    venue.place(ANN, limit(BTC, "B", "0.01", "95000", "Ioc"))
    venue.control("advance", ms=2 * HOUR_MS)
    venue.price("BTC", "100500")
    return venue


def kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "decimal" if re.fullmatch(r"-?\d+(\.\d+)?", value) else "text"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def differences(path: str, theirs: Any, ours: Any) -> list[str]:
    """Where ours has not the shape of theirs: keys and kinds of values, of the first entries of lists."""
    if theirs is None or ours is None:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if all(isinstance(value, str) for value in theirs.values()) and len(theirs) > 20:
            return differences(f"{path}.*", next(iter(theirs.values())), next(iter(ours.values())))
        wrong = [f"{path}: {key} is missing" for key in theirs.keys() - ours.keys() - OLD]
        wrong += [f"{path}: {key} is not recorded" for key in ours.keys() - theirs.keys() - NEW]
        for key in theirs.keys() & ours.keys():
            wrong += differences(f"{path}.{key}", theirs[key], ours[key])
        return wrong
    if isinstance(theirs, list) and isinstance(ours, list):
        if theirs and ours and isinstance(theirs[0], str | list | int | float) and len(theirs) == len(ours) <= 8:
            return [
                one
                for at, pair in enumerate(zip(theirs, ours, strict=True))
                for one in differences(f"{path}[{at}]", *pair)
            ]
        return differences(f"{path}[]", theirs[0], ours[0]) if theirs and ours else []
    return [] if kind_of(theirs) == kind_of(ours) else [f"{path}: {kind_of(ours)} in place of {kind_of(theirs)}"]


def test_every_recorded_answer_has_the_shape_of_ours(recorded: Path, venue: Venue) -> None:
    files = sorted(recorded.glob("*.json"))
    assert len(files) == 20
    for file in files:
        content = json.loads(file.read_text())
        kind = content["type"]
        ours = venue.info(kind, **{"user": ANN, **QUERIES.get(kind, {})})
        assert kind in EMPTY or ours, kind
        if kind in ("userRole", "userNonFundingLedgerUpdates"):
            # a vault's role, and transfers of kinds that do not exist here: their own tests
            continue
        for recording in content["recordings"]:
            assert differences(kind, recording["response"], ours) == [], kind


def test_a_difference_of_shape_is_found() -> None:
    assert differences("x", {"a": "1.0", "b": [{"c": 1}]}, {"a": "1.0", "b": [{"c": 2}]}) == []
    assert differences("x", {"a": "1.0"}, {"a": 1.0}) == ["x.a: number in place of decimal"]
    assert differences("x", {"a": [{"c": 1}]}, {"a": [{"d": 1}]}) == ["x.a[]: c is missing", "x.a[]: d is not recorded"]


def test_the_official_sample_of_an_isolated_position_is_computed_to_the_last_digit() -> None:
    """ETH long 0.0335 at 2986.3, isolated 20x, on a market of at most 50x."""
    from bot.local_exchange.engine.venue_rules import MarketSpec, VenueMarket, VenuePosition
    from bot.local_exchange.wire import rows

    venue = Venue(usd="13000")
    exchange = venue.exchange
    spec = MarketSpec("ETH", margin_mode="isolated", sz_decimals=4, max_leverage=50)
    mark = 298_590_000_000
    market = exchange.venue.markets["ETH"] = exchange.coins["ETH"].market = VenueMarket(spec, mark, mark, mark)
    account = exchange.venue.accounts[f"{ANN}/"]
    size, entry = 3_350_000, 10_004_105_000
    margin = entry - 9_505_982_400
    account.positions["ETH"] = position = VenuePosition(
        account.id, "ETH", 1, size, entry, 20, isolated=True, opened_ms=0, margin=margin
    )
    market.holders[account.id] = None
    account.balance -= margin
    exchange.raw[account.id].usd -= entry
    exchange.raw[account.id].sizes["ETH"] = size
    row = rows.position_row(exchange, exchange.users[ANN], account, position)["position"]
    assert row["leverage"] == {"type": "isolated", "value": 20, "rawUsd": "-95.059824"}
    assert (row["positionValue"], row["unrealizedPnl"]) == ("100.02765", "-0.0134")
    assert (row["marginUsed"], row["entryPx"]) == ("4.967826", "2986.3")
    assert row["returnOnEquity"] == "-0.0026789"
    # The sample shows 2866.26936529. Its rawUsd is rounded to 1e-6 USD, which moves the level by up to that over
    # 0.0335 x 0.99.
    assert abs(float(row["liquidationPx"]) - 2866.26936529) < 1e-6 / (0.0335 * 0.99)
