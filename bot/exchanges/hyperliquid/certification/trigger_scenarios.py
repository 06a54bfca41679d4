"""Scenarios of triggers: they wait until the mark price moves by some ten thousandths."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from bot.clock import MINUTE_MS, SECOND_MS
from bot.exchanges.hyperliquid.certification.scenario import Observed, Scenario
from bot.exchanges.hyperliquid.certification.session import ORDER_USD, ContractSession, Unsettled, error_of
from bot.exchanges.hyperliquid.certification.wire_orders import Json, TriggerKind
from bot.exchanges.hyperliquid.json_rows import JsonRow, rows_of

# How far the triggers are from the mark price, and how long they wait for it. The mark price moves every 3 s.
NEAR: Final = Decimal("0.0002")
STEP_MS: Final = 3 * SECOND_MS
PATIENCE_MS: Final = 3 * MINUTE_MS
BOUND_TRIES: Final = 3
WIDE: Final = Decimal("0.05")


async def _mark(session: ContractSession) -> Decimal:
    answer = await session.read("activeAssetData", coin=session.market.name)
    return JsonRow(answer, "activeAssetData").positive("markPx")


async def trigger_passed(session: ContractSession) -> Observed:
    market, mark = session.market, await _mark(session)
    at = mark * Decimal("1.02")
    order = market.trigger(
        "sl",
        is_buy=False,
        size=market.size_of(ORDER_USD, mark),
        at=at,
        bound=at * Decimal("0.9"),
        reduces=False,
        name=session.name(),
    )
    status = (await session.place(order))[0]
    if "Invalid TP/SL price" in (error_of(status) or ""):
        return {"trigger_passed": "refused"}
    if error_of(status) is None and await session.held() < 0:
        return {"trigger_passed": "fires"}
    raise Unsettled(f"a stop whose price has been passed was answered {status}")


async def _place_near(session: ContractSession, kinds: tuple[TriggerKind, ...], *, is_tight: bool) -> list[Json]:
    """Orders above and below the mark price, of each kind on each side. `is_tight`: bounded by the trigger price."""
    market, mark = session.market, await _mark(session)
    size, near = market.size_of(ORDER_USD, mark), max(mark * NEAR, market.tick(mark))
    orders = []
    for rises in (True, False):
        at = market.px(mark + near if rises else mark - near)
        for kind in kinds:
            is_buy = rises == (kind == "sl")
            bound = at if is_tight else at * (1 + WIDE if is_buy else 1 - WIDE)
            orders.append(
                market.trigger(kind, is_buy=is_buy, size=size, at=at, bound=bound, reduces=False, name=session.name())
            )
    for order in orders:
        await session.place_resting(order)
    return orders


async def _until_fired(session: ContractSession, orders: list[Json]) -> list[Json]:
    """The orders that have fired, when the first has."""
    for _ in range(PATIENCE_MS // STEP_MS):
        await session.access.wait(STEP_MS)
        open_names = {row["cloid"] for row in await session.open_rows()}
        fired = [order for order in orders if order["c"] not in open_names]
        if fired:
            return fired
    raise Unsettled(f"the mark price did not move by {NEAR:%} within {PATIENCE_MS // MINUTE_MS} minutes")


async def _fills_of(session: ContractSession, begun_ms: int, names: set[str]) -> list[JsonRow]:
    rows = rows_of(await session.read("userFillsByTime", startTime=begun_ms), "userFillsByTime")
    return [row for row in rows if row.has("cloid") and row.text("cloid") in names]


async def trigger_order(session: ContractSession) -> Observed:
    begun_ms = (await session.account.standing()).at_ms
    oids: dict[str, int] = {}
    orders = await _place_near(session, ("sl", "tp"), is_tight=False)
    for row in await session.open_rows():
        oids[row["cloid"]] = row["oid"]
    fired = await _until_fired(session, orders)
    names = {order["c"]: order["t"]["trigger"]["tpsl"] for order in fired}
    fills = await _fills_of(session, begun_ms, set(names))
    if not fills:
        raise Unsettled("no fill names an order that has fired")
    seen = {"trigger_oid": "same" if fills[0].whole("oid") == oids.get(fills[0].text("cloid")) else "new"}
    first = [row for row in fills if not row.amount("startPosition")]
    is_pair = len(names) == 2 and {row.text("cloid") for row in fills} == set(names)
    if fills[0].text("cloid") not in oids or not is_pair or len({row.instant("time") for row in fills}) != 1:
        return seen if fills[0].text("cloid") in oids else {}
    if len({row.text("cloid") for row in first}) == 1:
        return {**seen, "trigger_order": "stop_first" if names[first[0].text("cloid")] == "sl" else "target_first"}
    return seen


async def trigger_bound(session: ContractSession) -> Observed:
    for _ in range(BOUND_TRIES):
        begun_ms = (await session.account.standing()).at_ms
        fired = (await _until_fired(session, await _place_near(session, ("sl",), is_tight=True)))[0]
        fills = await _fills_of(session, begun_ms, {fired["c"]})
        bound = Decimal(fired["p"])
        if any(row.decimal("px") > bound if fired["b"] else row.decimal("px") < bound for row in fills):
            return {"trigger_bound": "ten_percent"}
        state = await session.status(fired["c"])
        if not fills and state.endswith(("anceled", "Rejected")):
            return {"trigger_bound": "tighter"}
        if (left := await session.clean()) is not None:
            raise Unsettled(f"what a try left could not be cleaned up: {left}")
    raise Unsettled("each order filled within its price, which both answers allow")


SCENARIOS: Final = (
    Scenario("trigger_passed", ("trigger_passed",), "A stop beyond the mark price", trigger_passed, 10, 3, 32),
    Scenario(
        "trigger_order",
        ("trigger_oid", "trigger_order"),
        "Stops and targets 0.02 % above and below the mark price, until some fire",
        trigger_order,
        120,
        10,
        64,
    ),
    Scenario(
        "trigger_bound",
        ("trigger_bound",),
        "Stops 0.02 % above and below the mark price, with that price as their bound, until one fires",
        trigger_bound,
        120,
        20,
        96,
    ),
)
