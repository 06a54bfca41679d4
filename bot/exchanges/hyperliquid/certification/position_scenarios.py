"""Scenarios of positions: brackets, stops of a position, reduce-only, minimum, fees, funding."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import Final

from bot.clock import HOUR_MS, SECOND_MS
from bot.exchanges.hyperliquid.certification.scenario import Observed, Scenario, agrees
from bot.exchanges.hyperliquid.certification.session import FAR, ORDER_USD, ContractSession, Unsettled, error_of
from bot.exchanges.hyperliquid.certification.wire_orders import Json, TriggerKind
from bot.exchanges.hyperliquid.json_rows import JsonRow, rows_of
from bot.money import format_e8

WAITING: Final = "waitingForTrigger"
MICRO: Final = Decimal("0.000001")
FUNDING_SETTLES_MS: Final = 10 * SECOND_MS


async def _stop(session: ContractSession, size: Decimal, at: str, kind: TriggerKind = "sl") -> Json:
    """A reduce-only trigger order that sells, so far from the price that it does not fire."""
    px = await session.mid() * Decimal(at)
    return session.market.trigger(kind, is_buy=False, size=size, at=px, bound=px * Decimal("0.9"), name=session.name())


async def _place_stop(session: ContractSession, order: Json) -> None:
    status = (await session.place(order, grouping="positionTpsl"))[0]
    if status != WAITING:
        raise Unsettled(f"a stop of a position was answered {status}")


# ── Brackets ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def resting_bracket(session: ContractSession) -> Observed:
    parent = await session.far_buy()
    size, mid = Decimal(parent["s"]), await session.mid()
    levels: tuple[tuple[TriggerKind, Decimal], ...] = (("sl", Decimal("0.4")), ("tp", Decimal("1.5")))
    orders = [
        session.market.trigger(
            kind, is_buy=False, size=size, at=mid * at, bound=mid * at * Decimal("0.9"), name=session.name()
        )
        for kind, at in levels
    ]
    statuses = await session.place(parent, *orders, grouping="normalTpsl")
    if "resting" not in statuses[0]:
        raise Unsettled(f"an order that should rest was answered {statuses[0]}")
    oid = statuses[0]["resting"]["oid"]
    rows = await session.open_rows()
    children = {child["oid"] for row in rows if row["oid"] == oid for child in row["children"]}
    own = sum(row["oid"] in children for row in rows)
    if len(children) != len(orders) or own not in (0, len(orders)):
        raise Unsettled(f"{len(children)} children are nested in the parent, and {own} have rows of their own")
    await session.act({"type": "cancel", "cancels": [{"a": session.market.asset, "o": oid}]})
    ends = [await session.status(order["c"]) for order in orders]
    return {
        "bracket_answer": agrees(list(statuses[1:]) == ["waitingForFill"] * len(orders)),
        "children_rows": "twice" if own else "once",
        "children_end": agrees(all(end.endswith(("anceled", "Rejected")) for end in ends)),
    }


async def filled_bracket(session: ContractSession) -> Observed:
    market, mid = session.market, await session.mid()
    size = market.size_of(ORDER_USD, mid)
    px = mid * Decimal("1.02")
    parent = market.limit(is_buy=True, size=size, px=px, tif="Ioc", name=session.name())
    orders = [await _stop(session, size, "0.8"), await _stop(session, size, "1.2", "tp")]
    statuses = await session.place(parent, *orders, grouping="normalTpsl")
    if await session.held() != size:
        raise Unsettled(f"a market order was answered {statuses[0]}")
    states = [await session.status(order["c"]) for order in orders]
    return {"bracket_filled": agrees(list(statuses[1:]) == [WAITING] * 2 and states == ["open"] * 2)}


# ── Stops of a position ─────────────────────────────────────────────────────────────────────────────────────────────


async def stop_alone(session: ContractSession) -> Observed:
    order = await _stop(session, Decimal(0), "0.8")
    status = (await session.place(order, grouping="positionTpsl"))[0]
    if status == WAITING:
        state = await session.status(order["c"])
        if state != "open":
            raise Unsettled(f"a stop without a position was taken, and then it is {state}")
        return {"position_stop_alone": "kept"}
    await session.open_long()
    await _place_stop(session, {**order, "c": session.name()})
    return {"position_stop_alone": "refused"}


async def two_stops(session: ContractSession) -> Observed:
    await session.open_long()
    orders = [await _stop(session, Decimal(0), at) for at in ("0.8", "0.85")]
    for order in orders:
        await _place_stop(session, order)
    states = [await session.status(order["c"]) for order in orders]
    if states[1] != "open":
        raise Unsettled(f"the stops are {' and '.join(states)}")
    return {"two_position_stops": "both" if states[0] == "open" else "replaces"}


async def stop_size(session: ContractSession) -> Observed:
    size = await session.open_long()
    order = await _stop(session, Decimal(0), "0.8")
    await _place_stop(session, order)
    rows = [row for row in await session.open_rows() if row["cloid"] == order["c"]]
    if not rows:
        raise Unsettled("the stop is not among the open orders")
    status = await session.take(size, is_buy=False, reduces=True)
    if await session.held():
        raise Unsettled(f"the position could not be closed: {status}")
    end = await session.status(order["c"])
    return {"stop_size": agrees(rows[0]["isPositionTpsl"] is True and end.endswith("anceled"))}


async def modified_stop(session: ContractSession) -> Observed:
    size = await session.open_long()
    order = await _stop(session, size, "0.8")
    await _place_stop(session, order)
    row = next((row for row in await session.open_rows() if row["cloid"] == order["c"]), None)
    if row is None or row["isPositionTpsl"] is not True:
        raise Unsettled("the stop is not shown as a stop of the position")
    moved = {**await _stop(session, size, "0.85"), "c": session.name()}
    reply = await session.act({"type": "batchModify", "modifies": [{"oid": row["oid"], "order": moved}], "a": True})
    later = next((row for row in await session.open_rows() if row["cloid"] == moved["c"]), None)
    if later is None:
        raise Unsettled(f"a modify was answered {reply.refusal or reply.statuses}, and the new order is not open")
    return {"modified_group": "kept" if later["isPositionTpsl"] else "lost"}


# ── Reduce-only, minimum ────────────────────────────────────────────────────────────────────────────────────────────


async def reduce_larger(session: ContractSession) -> Observed:
    size = await session.open_long()
    status = await session.take(2 * size, is_buy=False, reduces=True)
    held = await session.held()
    if "would increase position" in (error_of(status) or "") and held == size:
        return {"reduce_larger": "refuse"}
    if isinstance(status, dict) and "filled" in status and not held:
        return {"reduce_larger": "cap"}
    raise Unsettled(f"a reduce-only order of twice the position was answered {status}, and {held} is held")


async def reduce_sum(session: ContractSession) -> Observed:
    size = await session.open_long()
    px = await session.mid() / FAR
    orders = [
        session.market.limit(is_buy=False, size=size, px=px * at, reduces=True, name=session.name())
        for at in (Decimal(1), Decimal("1.01"))
    ]
    for order in orders:
        await session.place_resting(order)
    states = [await session.status(order["c"]) for order in orders]
    if states[1] != "open" or states[0] not in ("open", "reduceOnlyCanceled"):
        raise Unsettled(f"the orders are {' and '.join(states)}")
    return {"reduce_sum": "both" if states[0] == "open" else "older_canceled"}


async def close_minimum(session: ContractSession) -> Observed:
    size = await session.open_long(Decimal(17))
    part = session.market.size_of(Decimal("11.5"), await session.mid())
    status = await session.take(part, is_buy=False, reduces=True)
    rest = await session.held()
    if rest != size - part or rest * await session.mid() >= Decimal(9):
        raise Unsettled(f"a part of a position was closed with {status}, and {rest} is left")
    status = await session.take(rest, is_buy=False, reduces=True)
    if "minimum value" in (error_of(status) or ""):
        return {"close_minimum": "applies"}
    if isinstance(status, dict) and "filled" in status and not await session.held():
        return {"close_minimum": "exempt_whole"}
    raise Unsettled(f"the close of the rest was answered {status}")


# ── Money ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def money(session: ContractSession) -> Observed:
    begun_ms = (await session.account.standing()).at_ms
    before = (await session.account.standing()).cash
    size = await session.open_long()
    await session.take(size, is_buy=False, reduces=True)
    rate = JsonRow(await session.read("userFees"), "userFees").decimal("userCrossRate")
    answer = await session.read("userFillsByTime", startTime=begun_ms)
    fills = [row for row in rows_of(answer, "userFillsByTime") if row.text("coin") == session.market.name]
    if await session.held() or not fills:
        raise Unsettled(f"the round trip has {len(fills)} fills and {await session.held()} is held")
    cash, fees_agree = Decimal(format_e8(before)), True
    for row in fills:
        notional = row.decimal("px") * row.decimal("sz")
        fee = row.decimal("fee")
        cash += (-notional if row.text("side") == "B" else notional) - fee
        fees_agree &= fee == (notional * rate).quantize(MICRO, ROUND_DOWN)
    now = Decimal(format_e8((await session.account.standing()).cash))
    return {"fee": agrees(fees_agree), "cash": agrees(now == cash)}


async def isolated_funding(session: ContractSession) -> Observed:
    leverage: Json = {"type": "updateLeverage", "asset": session.market.asset}
    if (reply := await session.act({**leverage, "isCross": False, "leverage": 2})).refusal is not None:
        raise Unsettled(f"isolated margin was refused: {reply.refusal}")
    try:
        await session.open_long()
        begun_ms, before = await _raw_usd(session)
        hour_ms = begun_ms - begun_ms % HOUR_MS + HOUR_MS
        await session.access.wait(hour_ms - begun_ms + FUNDING_SETTLES_MS)
        _, after = await _raw_usd(session)
        paid = [entry.amount for entry in await session.account.funding(begun_ms, hour_ms + FUNDING_SETTLES_MS)]
        if (left := await session.clean()) is not None:
            raise Unsettled(f"the position could not be closed: {left}")
    finally:
        await session.act({**leverage, "isCross": True, "leverage": 2})
    change = after - before
    if not sum(paid) or change not in (0, sum(paid)):
        raise Unsettled(
            f"funding was {format_e8(sum(paid))}, and `rawUsd` of the position changed by {format_e8(change)}"
        )
    return {"isolated_funding": "margin" if change else "account"}


async def _raw_usd(session: ContractSession) -> tuple[int, int]:
    """The exchange's instant, and the cash of the isolated position."""
    state = JsonRow(await session.read("clearinghouseState"), "clearinghouseState")
    for row in state.rows("assetPositions"):
        position = row.row("position")
        if position.text("coin") == session.market.name:
            return state.instant("time"), position.row("leverage").amount("rawUsd")
    raise Unsettled("the position is gone")


SCENARIOS: Final = (
    Scenario(
        "resting_bracket",
        ("bracket_answer", "children_rows", "children_end"),
        "A far order with stop and target, and its cancel",
        resting_bracket,
    ),
    Scenario("filled_bracket", ("bracket_filled",), "A market order with stop and target", filled_bracket, 10, 8, 24),
    Scenario(
        "stop_alone",
        ("position_stop_alone",),
        "A stop of a position without one; if it is refused, with one",
        stop_alone,
        15,
        8,
        32,
    ),
    Scenario("two_stops", ("two_position_stops",), "A position and two stops of it", two_stops, 15, 8, 32),
    Scenario("stop_size", ("stop_size",), "A position, a stop of size 0, and a close", stop_size, 15, 6, 32),
    Scenario(
        "modified_stop", ("modified_group",), "A stop of a position, moved by `batchModify`", modified_stop, 15, 8, 24
    ),
    Scenario(
        "reduce_larger", ("reduce_larger",), "A reduce-only order of twice the position", reduce_larger, 10, 5, 64
    ),
    Scenario(
        "reduce_sum",
        ("reduce_sum",),
        "Two far reduce-only orders, each as large as the position",
        reduce_sum,
        15,
        8,
        24,
    ),
    Scenario(
        "close_minimum",
        ("close_minimum",),
        "A close of 11.50 USD of a position of 17 USD, then of the rest",
        close_minimum,
        15,
        8,
        60,
    ),
    Scenario("money", ("fee", "cash"), "A round trip of a market order", money, 15, 5, 32),
    Scenario(
        "isolated_funding",
        ("isolated_funding",),
        "An isolated position over the next full hour",
        isolated_funding,
        3_600,
        6,
        32,
        is_long=True,
    ),
)
