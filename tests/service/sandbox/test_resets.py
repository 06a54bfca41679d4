"""After a reset: usable cursors, and the opening balance of the account."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.builders import ENTRY
from tests.service.conftest import Box, Caller


async def next_page(caller: Caller, cursor: str) -> Any:
    answer = await caller.send("GET", f"/v1/events?since={cursor}")
    assert answer.status_code == 200, (cursor, answer.text)
    return answer.json()


@pytest.mark.parametrize("types", ["", "fill", "account", "guardian.fired"])
async def test_no_cursor_issued_since_the_reset_gets_a_410(caller: Caller, types: str) -> None:
    """For an id of any origin: the opening, the snapshot, the reset, a page without `since`, a filter without
    matches.
    """
    await next_page(caller, caller.opened["lastEventId"])
    filters = f"?types={types}" if types else ""
    for _ in range(3):
        await caller.post("/v1/orders", ENTRY)
        reset = await caller.post("/v1/sandbox/accounts/reset")
        cursors = [reset["lastEventId"], (await caller.get("/v1/account"))["lastEventId"]]
        page = await caller.get(f"/v1/events{filters}")
        cursors.append(page["lastEventId"])
        for cursor in cursors:
            assert (await next_page(caller, cursor))["events"] == []
        made = await caller.post("/v1/orders", ENTRY)
        page = await next_page(caller, cursors[-1])
        assert {e["type"] for e in page["events"]} == {"fill", "order"}
        assert page["lastEventId"] == made["lastEventId"]
        first = (await caller.get("/v1/events?limit=1"))["events"][0]
        assert (first["type"], first["subtype"]) == ("account", "reset")


async def test_a_wiped_cursor_gets_a_410_with_a_usable_fix(caller: Caller) -> None:
    before = (await caller.post("/v1/orders", ENTRY))["lastEventId"]
    await caller.post("/v1/sandbox/accounts/reset")
    gone = await caller.send("GET", f"/v1/events?since={before}")
    assert gone.status_code == 410
    fix = gone.json()["error"]["fix"]
    assert fix["action"] == "resync"
    await next_page(caller, fix["lastEventId"])


async def test_a_reset_restores_the_opening_balance(box: Box) -> None:
    """A balance given to a reset is for that epoch only: the next reset without one restores the opening balance."""
    for asked, opened in ((None, "10000"), (2500, "2500")):
        caller = await box.caller(**({} if asked is None else {"startingBalanceUsd": asked}))
        for balance, given in (({"balanceUsd": 777.5}, "777.5"), ({}, opened), ({"balanceUsd": 0}, "0"), ({}, opened)):
            reset = await caller.post("/v1/sandbox/accounts/reset", balance)
            assert reset["balanceUsd"] == given
            account = await caller.get("/v1/account")
            assert (account["balanceUsd"], account["credit"]["grantedUsd"]) == (given, given)
            nav = await caller.get(f"/v1/wallets/{account['address']}/pnl")
            assert nav["ranges"]["all"] == "0"


async def test_a_reducing_plan_and_its_confirm_agree_on_protection(caller: Caller) -> None:
    for stop in ({}, {"bracket": {"stopLoss": {"pct": 5}}}):
        await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 500} | stop)
        for usd in (100, 300):
            shrink = {"market": "BTC", "side": "short", "usdAmount": usd, "requireProtection": True, "dryRun": True}
            plan = await caller.post("/v1/orders", shrink)
            made = await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
            assert plan["plan"]["protected"] == made["protected"], (stop, usd)
        await caller.post("/v1/positions/BTC/close")


async def test_a_waiting_order_without_a_stop_does_not_make_a_close_unprotected(caller: Caller) -> None:
    """`protected` describes the order of the answer: the position that it leaves, and its waiting part."""
    waits = {"market": "BTC", "side": "long", "size": "0.001", "type": "limit", "limitPx": "50000"}
    assert (await caller.post("/v1/orders", waits))["protected"] is False
    assert (await caller.post("/v1/orders", waits | {"bracket": {"stopLoss": {"pct": 5}}}))["protected"] is True
    await caller.post("/v1/orders", {"market": "BTC", "side": "short", "size": "0.001"})
    cover = {"market": "BTC", "side": "long", "size": "0.001", "dryRun": True}
    plan = await caller.post("/v1/orders", cover)
    made = await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert made["position"] is None
    assert plan["plan"]["protected"] is made["protected"] is True
