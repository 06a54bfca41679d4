"""The balance can be rebuilt from the service's reports of each exit: from the events, from the trades, and from the
sums of the wallet.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.service.builders import order
from tests.service.conftest import Box, Caller, OpenBox

START_USD = Decimal(5_000)


def amount(of: dict[str, Any], name: str) -> Decimal:
    return Decimal(of.get(name) or 0)


def gained(of: dict[str, Any]) -> Decimal:
    """The account's gain according to one event or trade."""
    borne = amount(of, "realizedPnlUsd") - amount(of, "marginLostUsd") + amount(of, "absorbedUsd")
    return borne - amount(of, "feeUsd")


async def rebuilt(caller: Caller) -> tuple[Decimal, Decimal]:
    """The account's gain, by its events and by its trades."""
    events = (await caller.get("/v1/events?limit=200"))["events"]
    funding = sum((amount(e["data"], "amountUsd") for e in events if e["type"] == "funding"), Decimal(0))
    # A liquidation event through the book is the sum of its fills; only a backstop has no fills.
    told = [e for e in events if e["type"] in ("fill", "settlement") or e["subtype"] == "backstop"]
    trades = (await caller.get("/v1/trades?limit=200"))["trades"]
    return sum((gained(e["data"]) for e in told), funding), sum((gained(t) for t in trades), funding)


async def judge(caller: Caller) -> Decimal:
    """Checks that all views agree to the last unit. Answers the account's gain."""
    snapshot = await caller.get("/v1/account")
    gain = Decimal(snapshot["accountValueUsd"]) - START_USD
    realized = gain - Decimal(snapshot["unrealizedPnlUsd"])
    assert await rebuilt(caller) == (realized, realized)
    pnl = await caller.get(f"/v1/wallets/{caller.opened['address']}/pnl")
    assert (Decimal(pnl["netPnlUsd"]), Decimal(pnl["ranges"]["all"])) == (gain, gain)
    parts = [amount(pnl, name) for name in ("realizedPnlUsd", "unrealizedPnlUsd", "fundingUsd", "absorbedUsd")]
    assert sum(parts) - amount(pnl, "feesUsd") - amount(pnl, "marginLostUsd") == gain
    today = Decimal((await caller.get("/v1/portfolio"))["realizedPnlTodayUsd"])
    assert today == realized + amount(pnl, "feesUsd") - amount(pnl, "fundingUsd")
    return gain


async def test_an_isolated_position_whose_price_halves_costs_its_margin_in_every_view(open_box: OpenBox) -> None:
    box = await open_box(markets=("AAPL",))
    await box.price("AAPL", "200")
    caller = await box.caller(startingBalanceUsd=5_000)
    await caller.post("/v1/orders", order(2_000, "AAPL", leverage=10))
    await box.price("AAPL", "100")
    gain = await judge(caller)
    assert -201 < gain < -199
    (taken,) = (await caller.get("/v1/events?types=liquidation"))["events"]
    assert (taken["subtype"], taken["data"]["marginLostUsd"]) == ("backstop", "0")
    assert Decimal(taken["data"]["absorbedUsd"]) > 800
    (trade, _) = (await caller.get("/v1/trades"))["trades"]
    assert trade["absorbedUsd"] == taken["data"]["absorbedUsd"]


@pytest.mark.parametrize("px", ["95500", "95100", "94000", "90000"])
async def test_a_liquidated_cross_account_loses_its_balance_and_no_more(box: Box, px: str) -> None:
    caller = await box.caller(startingBalanceUsd=5_000)
    await box.price("ETH", "2500")
    await caller.post("/v1/orders", order(90_000, leverage=20))
    await caller.post("/v1/orders", order(5_000, "ETH", leverage=20))
    await box.price("BTC", px)
    await judge(caller)
    snapshot = await caller.get("/v1/account")
    assert Decimal(snapshot["balanceUsd"]) >= 0


async def test_after_gaps_closes_and_liquidations_the_accounting_still_agrees(open_box: OpenBox) -> None:
    box = await open_box(markets=("AAPL", "BTC"))
    await box.price("AAPL", "200")
    caller = await box.caller(startingBalanceUsd=5_000)
    for px in ("199", "150", "220", "90", "400"):
        await caller.post("/v1/orders", order(1_000, "AAPL", leverage=10))
        await caller.post("/v1/orders", order(1_000, "BTC", "short", leverage=20))
        await box.price("AAPL", px)
        await box.price("BTC", {"150": "130000", "90": "60000"}.get(px, "100000"))
        await judge(caller)
        for coin in ("AAPL", "BTC"):
            await caller.send("POST", f"/v1/positions/{coin}/close", {})
        await box.advance(3_600_000)
        await judge(caller)
