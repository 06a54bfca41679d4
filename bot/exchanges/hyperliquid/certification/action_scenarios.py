"""Scenarios of nonces, expiry, signatures, budget and the age of answers."""

from __future__ import annotations

from typing import Final

from bot.clock import SECOND_MS
from bot.exchanges.hyperliquid.certification.scenario import Observed, Scenario, agrees
from bot.exchanges.hyperliquid.certification.session import ActionReply, ContractSession, Unsettled, status_of
from bot.exchanges.hyperliquid.certification.wire_orders import Json

NOOP: Final[Json] = {"type": "noop"}
NONCES_KEPT: Final = 100
LAG_TRIES: Final = 5
EXPIRY_MS: Final = 15 * SECOND_MS
EXPIRED: Final = "Action already expired"
NO_SIGNER: Final = "does not exist"


def _is_duplicate(reply: ActionReply) -> bool:
    return "duplicate nonce" in (reply.refusal or "")


async def _order(session: ContractSession) -> Json:
    return {"type": "order", "orders": [await session.far_buy()], "grouping": "na"}


async def nonces(session: ContractSession) -> Observed:
    order, nonce = await _order(session), session.nonce()
    if (await session.act(NOOP, nonce=nonce)).refusal is not None:
        raise Unsettled("a noop with a new nonce was refused")
    fenced = await session.act(order, nonce=nonce)
    is_open = bool(await session.open_rows())
    later = session.nonce()
    first = await session.act(order, nonce=later)
    again = await session.act(order, nonce=later)
    voided = await session.act(NOOP, nonce=later)
    if first.refusal is not None:
        raise Unsettled(f"an order with a new nonce was refused: {first.refusal}")
    count = len(await session.open_rows())
    return {
        "fence": agrees(_is_duplicate(fenced) and not is_open and _is_duplicate(voided)),
        "nonce_once": agrees(_is_duplicate(again) and count == 1),
    }


async def refused_order(session: ContractSession) -> Observed:
    order, nonce = await _order(session), session.nonce()
    order["orders"][0]["p"] = "1.23456789"
    reply = await session.act(order, nonce=nonce)
    if reply.refusal is None and not all("error" in status for status in reply.statuses):
        raise Unsettled(f"an order off the tick was answered {reply.statuses}")
    return {"refusal_takes_nonce": agrees(_is_duplicate(await session.act(NOOP, nonce=nonce)))}


async def nonce_floor(session: ContractSession) -> Observed:
    below = session.nonce()
    await session.access.wait(SECOND_MS)
    used = session.nonce()
    for nonce in (used, *(session.nonce() for _ in range(NONCES_KEPT))):
        if (reply := await session.act(NOOP, nonce=nonce)).refusal is not None:
            raise Unsettled(f"a noop with a new nonce was refused: {reply.refusal}")
    unseen = (await session.act(NOOP, nonce=below)).refusal or ""
    return {"nonce_floor": agrees("too low" in unseen and _is_duplicate(await session.act(NOOP, nonce=used)))}


async def expiry(session: ContractSession) -> Observed:
    order = await _order(session)
    expired_ms = session.access.now_ms() - 5 * SECOND_MS
    late = await session.act(order, expires_ms=expired_ms, looks_for=EXPIRED)
    in_time = await session.act(await _order(session), expires_ms=session.access.now_ms() + EXPIRY_MS)
    if in_time.refusal is not None:
        raise Unsettled(f"an order was refused: {in_time.refusal}")
    return {"expiry": agrees(EXPIRED in (late.refusal or ""))}


async def signed_form(session: ContractSession) -> Observed:
    action: Json = {"type": "cancel", "cancels": [{"a": session.market.asset, "o": 1}]}
    reordered = {"cancels": [{"o": 1, "a": session.market.asset}], "type": "cancel"}
    reply = await session.act(action, sent=reordered, looks_for=NO_SIGNER)
    if reply.refusal is None:
        return {"signed_form": "canonical"}
    # The same action with its keys in order must be performed, or the refusal has another cause.
    if NO_SIGNER in reply.refusal and (await session.act(action)).refusal is None:
        return {"signed_form": "as_sent"}
    raise Unsettled(f"the exchange refused: {reply.refusal}")


async def budget(session: ContractSession) -> Observed:
    order = await session.far_buy()
    before = await session.account.budget()
    for _ in range(2):
        await session.act(NOOP)
    await session.place_resting(order)
    used = (await session.account.budget()).used - before.used
    if used not in (1, 3):
        raise Unsettled(f"two noops and an order used {used} of the budget")
    return {"budget_counts": "all" if used == 3 else "orders"}


async def info_lag(session: ContractSession) -> Observed:
    for _ in range(LAG_TRIES):
        oid = await session.place_resting(await session.far_buy())
        query = {"type": "orderStatus", "user": session.address, "oid": oid}
        if status_of(await session.read_now(query)) == "unknownOid":
            if await session.status(oid) == "unknownOid":
                raise Unsettled("the exchange does not know an order that it has acknowledged")
            return {"info_lag": "drawn"}
    return {"info_lag": "none"}


SCENARIOS: Final = (
    Scenario(
        "nonces",
        ("fence", "nonce_once"),
        "A noop and then an order under its nonce; an order twice, then a noop under its nonce",
        nonces,
    ),
    Scenario(
        "refused_order", ("refusal_takes_nonce",), "An order off the tick, then a noop under its nonce", refused_order
    ),
    Scenario(
        "nonce_floor",
        ("nonce_floor",),
        "101 noops, then one under a nonce below them",
        nonce_floor,
        seconds=60,
        actions=103,
    ),
    Scenario(
        "expiry",
        ("expiry",),
        "An order that has expired 5 s ago, which costs five of the budget, and one that expires in 15 s",
        expiry,
        actions=7,
    ),
    Scenario(
        "signed_form", ("signed_form",), "A cancel of no order, with its keys in another order than signed", signed_form
    ),
    Scenario("budget", ("budget_counts",), "Two noops and a far order; `userRateLimit` before and after", budget),
    Scenario("info_lag", ("info_lag",), "Up to five far orders, each looked up at once", info_lag, actions=11),
)
