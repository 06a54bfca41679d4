"""Where a guardian acts: the decision table of docs/decisions.md, row by row, for guardians that every kind of key
arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.service.builders import assert_refused, make, order
from tests.service.conftest import Box, Caller, OpenBox

DECISIONS = Path(__file__).resolve().parents[3] / "docs" / "decisions.md"
EVENT = "event:RATE-CUT"
MARKETS = ("BTC", "ETH", EVENT)
KILL = "POST /v1/account/kill"
TRADE, CLOSE, OUTCOMES = "trade", "trade:close_only", "outcomes"


@dataclass(frozen=True)
class Row:
    """One decision. `closes` and `blocks` as the table says them."""

    type: str
    action: str
    closes: str
    blocks: str
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of key: its requested scopes and markets, its word in the table's last column, and the markets where it
    may trade.
    """

    scopes: tuple[str, ...]
    coins: tuple[str, ...] | None
    word: str
    reach: tuple[str, ...]


KEYS = {
    "everywhere": Kind((TRADE, OUTCOMES), None, TRADE, MARKETS),
    "no event markets": Kind((TRADE,), None, TRADE, ("BTC", "ETH")),
    "ETH": Kind((TRADE, OUTCOMES), ("ETH",), TRADE, ("ETH",)),
    "ETH and the event": Kind((TRADE, OUTCOMES), ("ETH", EVENT), TRADE, ("ETH", EVENT)),
    "close only": Kind((CLOSE,), None, CLOSE, ("BTC", "ETH")),
    "close only, event markets too": Kind((CLOSE, OUTCOMES), None, CLOSE, MARKETS),
    "outcomes": Kind((OUTCOMES,), None, OUTCOMES, (EVENT,)),
}


def rows() -> list[Row]:
    """The table, as the page has it."""
    lines = DECISIONS.read_text().split("| Guardian |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    found = []
    for line in lines:
        kind, action, closes, blocks, scopes = (cell.strip() for cell in line.strip("|").split("|"))
        found.append(Row(kind.strip("`"), action, closes, blocks, tuple(scopes.split(", "))))
    return found


ROWS = rows()
OF_ACCOUNT = [row for row in ROWS if row.closes not in ("its market", "its order")]


def test_the_table_has_every_type_with_every_action() -> None:
    actions = {"cancel_orders", "block_opens", "flatten"}
    expected = {
        (kind, action)
        for kind in ("schedule", "dead_man_switch", "account_drawdown", "kill_switch")
        for action in actions
    }
    expected |= {("trailing_stop", "close"), ("max_hold", "close"), ("schedule", "orderTemplate")}
    expected |= {(KILL, "cancel_orders"), (KILL, "flatten")}
    assert {(row.type, row.action) for row in ROWS} == expected
    assert len(ROWS) == len(expected)


def request(row: Row) -> tuple[str, dict[str, Any]]:
    """The request that arms this row's guardian."""
    if row.type == KILL:
        return "/v1/account/kill", {"flatten": row.action == "flatten"}
    body: dict[str, Any] = {"type": row.type, "action": row.action}
    if row.type == "schedule":
        body["cron"] = "* * * * *"
    elif row.type == "dead_man_switch":
        body = {"type": row.type, "heartbeatSeconds": 60, "onMiss": row.action}
    elif row.type == "account_drawdown":
        body["maxLossPctFromDayStart"] = 1
    return "/v1/guardians", body


async def filled_account(box: Box) -> Caller:
    """A position and a resting entry in every market."""
    caller = await box.caller()
    for market, limit_px in (("BTC", "50000"), ("ETH", "1000"), (EVENT, "0.05")):
        await caller.post("/v1/orders", order(1_000, market))
        await caller.post(
            "/v1/orders", {"market": market, "side": "long", "type": "limit", "limitPx": limit_px, "usdAmount": 100}
        )
    return caller


async def opened_box(open_box: OpenBox) -> Box:
    box: Box = await open_box(markets=MARKETS)
    await prices(box, "100000")
    return box


async def prices(box: Box, btc: str) -> None:
    await box.price("BTC", btc)
    await box.price("ETH", "2500")
    await box.price(EVENT, "0.5")


async def refusing(caller: Caller) -> set[str]:
    """Markets where a guardian refuses the owner's openings."""
    found = set()
    for market in MARKETS:
        answer = await caller.send("POST", "/v1/orders", order(20, market) | {"dryRun": True})
        if answer.status_code != 200:
            assert "guardianId" in assert_refused(answer, 422, "limit_exceeded")["details"]
            found.add(market)
    return found


@pytest.mark.parametrize("row", OF_ACCOUNT, ids=[f"{row.type} {row.action}" for row in OF_ACCOUNT])
async def test_a_guardian_acts_where_its_key_may_trade_and_blocks_as_the_table_says(
    open_box: OpenBox, row: Row
) -> None:
    box = await opened_box(open_box)
    path, body = request(row)
    for name, kind in KEYS.items():
        caller = await filled_account(box)
        coins = {} if kind.coins is None else {"allowedCoins": list(kind.coins)}
        keyed = await make(caller, scopes=list(kind.scopes), **coins)
        answer = await keyed.send("POST", path, body)
        if kind.word not in row.scopes:
            assert_refused(answer, 403, "forbidden")
            assert (await caller.get("/v1/guardians"))["guardians"] == [], name
            continue
        assert answer.status_code == 200, (name, answer.text)
        if row.type == "account_drawdown":
            await prices(box, "80000")
        await box.advance(60_000)
        snapshot = await caller.get("/v1/account")
        reach = set(kind.reach) if row.closes == "the key's markets" else set()
        gone = reach if row.action == "flatten" else set()
        assert {p["coin"] for p in snapshot["positions"]} == set(MARKETS) - gone, name
        assert {o["coin"] for o in snapshot["orders"]} == set(MARKETS) - reach, name
        blocked = {"nothing": set(), "the key's markets": set(kind.reach), "the whole account": set(MARKETS)}[
            row.blocks
        ]
        assert await refusing(caller) == blocked, name
        await prices(box, "100000")


@pytest.mark.parametrize("kind", KEYS.values(), ids=list(KEYS))
async def test_a_guardian_of_one_market_is_armed_where_its_key_may_trade(open_box: OpenBox, kind: Kind) -> None:
    box = await opened_box(open_box)
    caller = await filled_account(box)
    coins = {} if kind.coins is None else {"allowedCoins": list(kind.coins)}
    keyed = await make(caller, scopes=list(kind.scopes), **coins)
    for row in (row for row in ROWS if row.closes == "its market"):
        assert kind.word in row.scopes
        for market in MARKETS:
            size = {"trailPct": 5} if row.type == "trailing_stop" else {"seconds": 3_600}
            answer = await keyed.send("POST", "/v1/guardians", {"type": row.type, "market": market, **size})
            assert (answer.status_code == 200) == (market in kind.reach), (row.type, market, answer.text)


async def test_a_new_switch_lifts_a_block_only_if_it_covers_the_blocked_markets(open_box: OpenBox) -> None:
    box = await opened_box(open_box)
    caller = await filled_account(box)
    both = await make(caller, scopes=[TRADE], allowedCoins=["BTC", "ETH"])
    part = await make(caller, scopes=[TRADE], allowedCoins=["ETH"])
    switch = {"type": "dead_man_switch", "heartbeatSeconds": 60, "onMiss": "block_opens"}
    await both.post("/v1/guardians", switch)
    await box.advance(60_000)
    assert await refusing(caller) == {"BTC", "ETH"}
    await part.post("/v1/guardians", switch | {"heartbeatSeconds": 86_400})
    assert await refusing(caller) == {"BTC", "ETH"}
    await both.post("/v1/guardians", switch | {"heartbeatSeconds": 86_400})
    assert await refusing(caller) == set()


async def test_an_entry_that_rests_in_another_market_fills_through_a_block_of_one_keys_markets(
    open_box: OpenBox,
) -> None:
    box = await opened_box(open_box)
    caller = await filled_account(box)
    part = await make(caller, scopes=[TRADE], allowedCoins=["ETH"])
    await part.post("/v1/guardians", {"type": "schedule", "cron": "* * * * *", "action": "block_opens"})
    await box.advance(60_000)
    await box.price("BTC", "49000")
    await box.price("ETH", "900")
    assert {o["coin"] for o in (await caller.get("/v1/orders"))["orders"]} == {"ETH", EVENT}


async def test_a_schedule_of_a_key_that_has_expired_closes_nothing_more(open_box: OpenBox) -> None:
    box = await opened_box(open_box)
    caller = await filled_account(box)
    now = (await caller.get("/v1/account"))["serverTime"]
    short = await make(caller, scopes=[TRADE], expiresAt=now + 30_000)
    await short.post("/v1/guardians", {"type": "schedule", "cron": "* * * * *", "action": "flatten"})
    await box.advance(120_000)
    assert len((await caller.get("/v1/account"))["positions"]) == 3
    fired = (await caller.get("/v1/events?types=guardian.fired"))["events"]
    assert {(e["data"]["reason"], e["data"]["code"]) for e in fired} == {("skipped", "session_expired")}


async def test_a_second_kill_acts_where_its_own_key_may_trade(open_box: OpenBox) -> None:
    box = await opened_box(open_box)
    caller = await filled_account(box)
    for coin, left in (("ETH", {"BTC", EVENT}), ("BTC", {EVENT})):
        part = await make(caller, scopes=[TRADE], allowedCoins=[coin])
        killed = await part.post("/v1/account/kill", {"flatten": True})
        assert {p["coin"] for p in killed["positions"]} == left
    assert len((await caller.get("/v1/guardians"))["guardians"]) == 1
