"""What a strategy is shown of its position and its margin is what the service has, from the very next bar on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bot.strategy import Bar, Bracket, Cancel, Intent, Open, View
from bot.strategy.view import PositionView
from tests.integration.builders import Box, bot_and_owner

# what half a spread makes of some hundred USD
NEAR_USD = 2.0


async def test_a_strategy_sees_its_position_as_the_service_has_it(box: Box) -> None:
    seen: list[tuple[PositionView | None, float]] = []

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market != "BTC":
            return
        held = view.position("BTC")
        seen.append((held, view.free_margin_usd))
        if held is None:
            yield Open("BTC", "long", usd=900, leverage=3, bracket=Bracket(stop_pct=2, target_r=2))
        elif held.target_px is not None:
            yield Cancel(next(order.oid for order in view.orders("BTC") if order.kind == "take_profit"))

    one = await bot_and_owner(box, script)
    await one.minute()
    account = await one.hand.ask("GET", "/v1/account")
    (theirs,) = account["positions"]
    held, free_usd = seen[-1]
    assert held is not None
    assert (held.side, held.size, held.leverage) == (theirs["side"], float(theirs["size"]), theirs["leverage"])
    assert (held.entry_px, held.stop_px) == (float(theirs["entryPx"]), float(theirs["stopPx"]))
    assert held.target_px == pytest.approx(held.entry_px + 2 * (held.entry_px - theirs_stop(theirs)), rel=1e-5)
    assert held.opened_at_ms == theirs["openedAt"]
    assert held.notional_usd == pytest.approx(held.mark_px * held.size)
    assert held.unrealized_usd == pytest.approx(float(theirs["unrealizedPnlUsd"]), abs=NEAR_USD)
    assert held.risk_usd == pytest.approx((held.entry_px - theirs_stop(theirs)) * held.size)
    assert free_usd == pytest.approx(float(account["freeMarginUsd"]), abs=NEAR_USD)
    assert free_usd == pytest.approx(10_000 - 900 / 3, abs=5)
    assert theirs["takeProfitPx"] is None, "it has been cancelled since"
    await one.minute()
    held, _ = seen[-1]
    assert held is not None
    assert (held.target_px, held.stop_px) == (None, theirs_stop(theirs))


def theirs_stop(position: dict[str, str]) -> float:
    return float(position["stopPx"])


async def test_an_all_in_entry_fills_at_a_running_service_and_little_more_is_refused(box: Box) -> None:
    """Beside a position, its profit and an entry that rests; by the prices that the service judges by."""
    seen: list[float] = []

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market != "ETH":
            return
        if view.position("BTC") is None and not view.orders("BTC"):
            yield Open("BTC", "long", usd=3_000, leverage=3, bracket=Bracket(stop_pct=10))
            yield Open("BTC", "long", usd=1_500, leverage=3, limit_px=95_000, bracket=Bracket(stop_pct=5))
        seen.append(view.all_in_usd("ETH", 5))

    one = await bot_and_owner(box, script)
    await one.minute(1.02)
    account = await one.hand.ask("GET", "/v1/account")
    assert len(account["positions"]) == 1
    assert float(account["freeMarginUsd"]) < 10_000 - 4_500 / 3 + 60
    order = {"market": "ETH", "side": "long", "leverage": 5, "bracket": {"stopLoss": {"pct": 5}}}
    more = await one.hand.try_to("POST", "/v1/orders", order | {"usdAmount": round(seen[-1] * 1.001, 2)})
    assert (more.status_code, more.json()["error"]["code"]) == (422, "insufficient_funds")
    await one.hand.ask("POST", "/v1/orders", order | {"usdAmount": seen[-1]})
