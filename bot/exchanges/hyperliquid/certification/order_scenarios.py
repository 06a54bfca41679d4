"""Scenarios of limit orders: refusals, ids, partial fills, margin."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bot.exchanges.hyperliquid.certification.scenario import Observed, Scenario, agrees
from bot.exchanges.hyperliquid.certification.session import (
    FAR,
    ORDER_USD,
    ContractSession,
    Unsettled,
    contract_markets,
    error_of,
)
from bot.exchanges.hyperliquid.certification.wire_orders import ContractMarket, Json, text
from bot.exchanges.hyperliquid.json_rows import JsonRow
from bot.money import format_e8

# A partial fill needs a best offer that is worth at most so much.
THIN_USD: Final = Decimal(60)
THIN_MARKETS: Final = 60
PARTIAL_TRIES: Final = 3
# More than this is not put into resting orders.
RESERVED_USD: Final = Decimal(5_000)
DEX_USD: Final = Decimal(13)


async def _refusal(session: ContractSession, order: Json) -> str:
    """The text of an order that should be refused; empty if it was taken."""
    statuses = await session.place(order)
    return error_of(statuses[0]) or ""


async def refusals(session: ContractSession) -> Observed:
    market, mid = session.market, await session.mid()

    async def buy(px: Decimal, tif: Any = "Gtc", usd: Decimal = ORDER_USD, **given: Any) -> str:
        px = market.px(px)
        order = market.limit(is_buy=True, size=market.size_of(usd, px), px=px, tif=tif, name=session.name(), **given)
        return await _refusal(session, order)

    off_tick = await session.far_buy()
    px = market.px(mid * FAR)
    off_tick["p"] = text(px + market.tick(px) / 10)
    low, high = await buy(mid * Decimal("0.19")), await buy(mid * Decimal("0.22"))
    return {
        "tick": agrees("divisible by tick size" in await _refusal(session, off_tick)),
        "minimum": agrees("minimum value" in await buy(mid * FAR, usd=Decimal(5))),
        "price_band": agrees("reference price" in low and not high),
        "post_only": agrees("would have immediately matched" in await buy(mid * Decimal("1.02"), "Alo")),
        "no_match": agrees("could not immediately match" in await buy(mid * FAR, "Ioc")),
        "reduce_alone": agrees("would increase position" in await buy(mid * FAR, reduces=True)),
    }


async def cancels(session: ContractSession) -> Observed:
    oid = await session.place_resting(await session.far_buy())
    action = {"type": "cancel", "cancels": [{"a": session.market.asset, "o": oid}]}
    first, second = await session.act(action), await session.act(action)
    if first.statuses != ("success",):
        raise Unsettled(f"a cancel was answered {first.statuses or first.refusal}")
    good, bad = await session.far_buy(), await session.far_buy()
    bad["s"] = "0"
    statuses = await session.place(good, bad)
    each = len(statuses) == 2 and "resting" in statuses[0] and "error" in statuses[1]
    again = error_of(second.statuses[0]) if second.statuses else None
    return {"cancel_once": agrees("already canceled, or filled" in (again or "")), "batch_status": agrees(each)}


async def client_ids(session: ContractSession) -> Observed:
    name = session.name()
    order = {**await session.far_buy(), "c": name}
    oid = await session.place_resting(order)
    second = (await session.place(order))[0]
    if "resting" in second:
        return {"cloid_open": "accepted"}
    await session.place_resting({**order, "c": session.name()})
    cancel = await session.act({"type": "cancel", "cancels": [{"a": session.market.asset, "o": oid}]})
    if cancel.statuses != ("success",):
        raise Unsettled(f"a cancel was answered {cancel.statuses or cancel.refusal}")
    newest = await session.place_resting(order)
    known = await session.account.order(name)
    is_newest = known is not None and known.order_id == str(newest)
    return {"cloid_open": "refused", "cloid_again": agrees(is_newest)}


# ── Partial fills ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ThinOffer:
    """A best offer that is small enough to be taken as a whole."""

    market: ContractMarket
    px: Decimal
    size: Decimal


async def thin_offer(session: ContractSession) -> ThinOffer:
    """The first small best offer: of the session's market, or of another one."""
    others = [market for market in await contract_markets(session) if market != session.market]
    for market in (session.market, *others[:THIN_MARKETS]):
        book = JsonRow(await session.info({"type": "l2Book", "coin": market.name}), "l2Book")
        asks = book.items("levels")[1]
        if not asks:
            continue
        level = JsonRow(asks[0], "l2Book.levels")
        px, size = level.positive("px"), level.positive("sz")
        if px * size <= THIN_USD:
            return ThinOffer(market, px, size)
    raise Unsettled(f"no market had a best offer of at most {THIN_USD} USD, which a partial fill needs")


async def _in_part(session: ContractSession, tif: Any, *, with_children: bool = False) -> tuple[Json, list[Json]]:
    """Take a whole offer and 16 USD more at its price. The status of the order, and its children."""
    for _ in range(PARTIAL_TRIES):
        offer = await thin_offer(session)
        with session.trading(offer.market) as market:
            size = offer.size + market.size_of(ORDER_USD, offer.px)
            order = market.limit(is_buy=True, size=size, px=offer.px, tif=tif, name=session.name())
            children = _children(session, size, offer.px) if with_children else []
            status = (await session.place(order, *children, grouping="normalTpsl" if children else "na"))[0]
            held = await session.held()
        if 0 < held < size and isinstance(status, dict) and "error" not in status:
            return {**status, "name": order["c"]}, children
        if (left := await session.clean()) is not None:
            raise Unsettled(f"what a try left could not be cleaned up: {left}")
    raise Unsettled("no order filled in part: others were faster")


def _children(session: ContractSession, size: Decimal, px: Decimal) -> list[Json]:
    """A stop and a target far from this price, so that neither fires."""
    market = session.market
    stop, target = px * Decimal("0.7"), px * Decimal("1.5")
    return [
        market.trigger("sl", is_buy=False, size=size, at=stop, bound=stop * Decimal("0.9"), name=session.name()),
        market.trigger("tp", is_buy=False, size=size, at=target, bound=target * Decimal("0.9"), name=session.name()),
    ]


async def partial_gtc(session: ContractSession) -> Observed:
    status, _ = await _in_part(session, "Gtc")
    if await session.status(status["name"]) != "open":
        raise Unsettled("the rest of the order does not rest")
    return {"partial_gtc": "resting" if "resting" in status else "filled"}


async def partial_ioc(session: ContractSession) -> Observed:
    status, _ = await _in_part(session, "Ioc")
    final = await session.status(status["name"])
    if final not in ("filled", "canceled"):
        raise Unsettled(f"the order's status is {final}")
    return {"partial_ioc": final}


async def partial_bracket(session: ContractSession) -> Observed:
    _, children = await _in_part(session, "Ioc", with_children=True)
    states = {await session.status(child["c"]) for child in children}
    values = {"canceled": "canceled", "open": "placed"}
    if len(states) != 1 or not states <= set(values):
        raise Unsettled(f"the children are {' and '.join(sorted(states))}")
    return {"partial_ioc_children": values[states.pop()]}


# ── Margin, and a dex of its own ────────────────────────────────────────────────────────────────────────────────────


async def open_margin(session: ContractSession) -> Observed:
    market = session.market
    data = JsonRow(await session.read("activeAssetData", coin=market.name), "activeAssetData")
    chosen = data.row("leverage")
    before = {"isCross": chosen.text("type") == "cross", "leverage": chosen.whole("value")}
    leverage: Json = {"type": "updateLeverage", "asset": market.asset}
    if (reply := await session.act({**leverage, "isCross": True, "leverage": 1})).refusal is not None:
        raise Unsettled(f"a leverage of 1 was refused: {reply.refusal}")
    try:
        standing = await session.account.standing()
        usd = Decimal(format_e8(standing.value)) * Decimal("0.6")
        if usd > RESERVED_USD:
            raise Unsettled(f"the account holds so much that it would need an order for more than {RESERVED_USD} USD")
        px = market.px(await session.mid() * FAR)
        orders = [
            market.limit(is_buy=True, size=market.size_of(usd, px), px=px, tif="Alo", name=session.name())
            for _ in range(2)
        ]
        await session.place_resting(orders[0])
        refusal = await _refusal(session, orders[1])
    finally:
        await session.act({**leverage, **before})
    if refusal and "Insufficient margin" not in refusal:
        raise Unsettled(f"the second order was refused: {refusal}")
    return {"open_margin": "larger_side" if refusal else "none"}


async def hip3_ids(session: ContractSession) -> Observed:
    for dex in await session.account.dex_names():
        if (await session.account.standing(dex)).withdrawable < int(DEX_USD) * 10**8:
            continue
        with session.trading((await contract_markets(session, dex))[0]):
            order = await session.far_buy()
            oid = await session.place_resting(order)
            if await session.status(oid) == "unknownOid":
                raise Unsettled("the exchange does not know an order that it has acknowledged")
            is_known = await session.status(order["c"]) != "unknownOid"
        return {"hip3_cloid": "works" if is_known else "unknown"}
    raise Unsettled(f"the account has less than {DEX_USD} USD in each dex of its own")


SCENARIOS: Final = (
    Scenario(
        "refusals",
        ("tick", "minimum", "price_band", "post_only", "no_match", "reduce_alone"),
        "Orders that must be refused, each for one reason, and one that rests",
        refusals,
        seconds=15,
        actions=9,
    ),
    Scenario("cancels", ("cancel_once", "batch_status"), "A cancel twice; a batch of a good and a bad order", cancels),
    Scenario(
        "client_ids", ("cloid_open", "cloid_again"), "Two open orders with one cloid; the cloid again later", client_ids
    ),
    Scenario("partial_gtc", ("partial_gtc",), "A Gtc order for more than the best offer", partial_gtc, 40, 20, 240),
    Scenario("partial_ioc", ("partial_ioc",), "An Ioc order for more than the best offer", partial_ioc, 40, 20, 240),
    Scenario(
        "partial_bracket",
        ("partial_ioc_children",),
        "An Ioc order with stop and target for more than the best offer",
        partial_bracket,
        40,
        30,
        240,
    ),
    Scenario(
        "open_margin",
        ("open_margin",),
        "Leverage 1; two orders at half the price, each for 60 % of the account's value; the leverage as before",
        open_margin,
        actions=8,
    ),
    Scenario("hip3_ids", ("hip3_cloid",), "A far order in a dex of its own, looked up by both ids", hip3_ids),
)
