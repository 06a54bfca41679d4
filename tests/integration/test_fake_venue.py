"""FakeVenue answers as the real service does: the same commands to both, and every field that the fake claims to
support must be equal.

The real side is the production client and the service in process, on a market without fees, spread or limited depth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from bot.client import Client
from bot.errors import ApiError
from bot.venue.model.commands import SetMarket
from bot.wire import (
    BracketRequest,
    CloseRequest,
    Event,
    Guardian,
    GuardianRequest,
    LegRequest,
    Order,
    OrderRequest,
    Position,
    TradeResource,
)
from tests.fakes import FakeVenue
from tests.integration.builders import Box

MARKETS = ("BTC", "ETH")
# A random order has this side: the fake turns no position around, and the daemon asks for none
SIDES = {"BTC": "long", "ETH": "short"}
START_PX = 100
STEPS = 60
COSTLESS = {"taker_rate": 0, "maker_rate": 0, "half_spread": 0, "level_size": 0, "level_step": 0, "level_growth": 0}

# What FakeVenue claims to support. A field that is not named here (fees, margin, funding, deadlines) is the real
# venue's alone.
ORDER = (
    "oid",
    "trade_id",
    "coin",
    "side",
    "intent",
    "kind",
    "reduce_only",
    "size",
    "filled_size",
    "limit_px",
    "trigger_px",
    "status",
    "idempotency_key",
)
POSITION = ("coin", "side", "size", "entry_px", "mark_px", "unrealized_pnl_usd", "stop_px")
TRADE = (
    "id",
    "kind",
    "symbol",
    "side",
    "intent",
    "reduce_only",
    "size",
    "status",
    "venue_oid",
    "idempotency_key",
    "source",
)
GUARDIAN = ("id", "type", "scope", "status", "coin", "heartbeat_seconds", "on_miss", "trail_pct")
DATA = {
    "fill": (
        "trade_id",
        "oid",
        "kind",
        "side",
        "intent",
        "reduce_only",
        "size",
        "px",
        "fee_usd",
        "realized_pnl_usd",
        "remaining_size",
        "position_size",
        "entry_px",
        "balance_usd",
    ),
    "order": ("oid", "trade_id", "kind", "side", "intent", "size", "filled_size", "limit_px", "trigger_px", "reason"),
    "trigger": ("oid", "trade_id", "side", "size", "trigger_px"),
    "guardian": ("guardian_id", "guardian_type", "scope", "reason"),
}
IDS = frozenset(("id", "oid", "trade_id", "venue_oid", "guardian_id"))


def fields_of(one: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def order_of(one: Order) -> Any:
    return fields_of(one, ORDER)


def position_of(one: Position) -> Any:
    return fields_of(one, POSITION)


def trade_of(one: TradeResource) -> Any:
    return fields_of(one, TRADE)


def guardian_of(one: Guardian) -> Any:
    return fields_of(one, GUARDIAN)


def event_of(one: Event) -> Any:
    data = DATA.get(one.type)
    return {
        "type": one.type,
        "subtype": one.subtype,
        "coin": one.coin,
        "key": one.idempotency_key,
        "data": None if data is None else fields_of(one.data, data),
    }


@dataclass
class Side:
    """One of the two venues behind the port. Ids are replaced by the order in which this side named them first."""

    port: Any
    minute: Callable[[dict[str, str]], Awaitable[None]]
    reset: Callable[[], Awaitable[Any]]
    cursor: str | None = None
    names: dict[str, str] = field(default_factory=dict)

    def named(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self.named(one, name) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.named(one, key) for one in value]
        if key in IDS and value is not None:
            return self.names.setdefault(str(value), f"#{len(self.names)}")
        return value

    async def answer(self, command: Callable[[Side], Awaitable[Any]]) -> Any:
        try:
            return self.named(await command(self))
        except ApiError as error:
            reason = (error.details or {}).get("reason")
            return type(error).__name__, error.code, error.order_submitted, reason

    async def state(self) -> Any:
        """Everything that can be read, and the events since the last look."""
        page = await self.port.events(self.cursor)
        self.cursor = page.last_event_id
        account = await self.port.account()
        assert account.last_event_id == self.cursor
        return self.named(
            {
                "events": [event_of(one) for one in page.events if one.type in DATA],
                "balance": account.balance_usd,
                "value": account.account_value_usd,
                "positions": [position_of(one) for one in account.positions],
                "orders": sorted((order_of(one) for one in account.orders), key=repr_of),
                "guardians": [guardian_of(one) for one in account.guardians],
                "open orders": sorted((order_of(one) for one in await self.port.orders()), key=repr_of),
                "armed": [guardian_of(one) for one in await self.port.guardians()],
                "trades": [trade_of(one) for one in (await self.port.trades()).trades],
            }
        )


def repr_of(order: dict[str, Any]) -> str:
    return f"{order['coin']} {order['kind']} {order['limit_px']} {order['trigger_px']}"


@pytest.fixture
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    box = await Box.open()
    for coin in MARKETS:
        await box.price(coin, START_PX)
        market = box.service.machine.state.markets[coin]
        market.spec = replace(market.spec, sz_decimals=4, limit_touch=True, **COSTLESS)
        # what is derived from the spec
        market.__post_init__()
        market.level_sizes = ()
        box.service.machine.run(SetMarket(coin, funding_rate=0))
    hand = await box.hand()
    client = Client("http://127.0.0.1", hand.key, transport=box.http._transport)
    fake = FakeVenue(MARKETS)

    async def real_minute(prices: dict[str, str]) -> None:
        await box.advance(60_000)
        for coin, px in prices.items():
            await box.control(f"markets/{coin}/price", {"px": px})

    async def fake_minute(prices: dict[str, str]) -> None:
        fake.minute(**prices)

    async def fake_reset() -> None:
        fake.reset()

    async def real_reset() -> None:
        await hand.ask("POST", "/v1/sandbox/accounts/reset", {})

    yield Side(fake, fake_minute, fake_reset), Side(client, real_minute, real_reset)
    await client.aclose()
    await box.close()


Command = Callable[[Side], Awaitable[Any]]


def an_order(
    market: str = "BTC",
    side: str = "long",
    *,
    usd: int = 200,
    stop: int | None = 5,
    target: int | None = None,
    **more: Any,
) -> OrderRequest:
    bracket = None
    if stop is not None:
        bracket = BracketRequest(
            stop_loss=LegRequest(pct=Decimal(stop)),
            take_profit=None if target is None else LegRequest(r=Decimal(target)),
        )
    return OrderRequest(market=market, side=side, usd_amount=Decimal(usd), bracket=bracket, source="agent", **more)


def placed(key: str, request: OrderRequest, *, expires_in_ms: int | None = None) -> Command:
    async def do(side: Side) -> Any:
        expires_at_ms = None if expires_in_ms is None else side.port.clock.now_ms() + expires_in_ms
        result = await side.port.place(request, key=key, expires_at_ms=expires_at_ms)
        return {
            "trade": trade_of(result.trade),
            "position": None if result.position is None else position_of(result.position),
        }

    return do


def planned(key: str, request: OrderRequest, *, twice: str | None = None) -> Command:
    """Plan and confirm; `twice` confirms the used token again under that key."""

    async def do(side: Side) -> Any:
        plan = await side.port.plan(request.model_copy(update={"dry_run": True}), key=key)
        result = await side.port.confirm(plan.confirm_token, key=key)
        if twice is not None:
            result = await side.port.confirm(plan.confirm_token, key=twice)
        return {"size": plan.plan.size, "notional": plan.plan.notional_usd, "trade": trade_of(result.trade)}

    return do


def closed(key: str, market: str = "BTC", size: str | None = None) -> Command:
    async def do(side: Side) -> Any:
        request = CloseRequest(size=size, source="agent") if size is not None else CloseRequest(source="agent")
        result = await side.port.close(market, request, key=key)
        return {
            "trade": trade_of(result.trade),
            "position": None if result.position is None else position_of(result.position),
        }

    return do


def canceled(kind: str, market: str = "BTC") -> Command:
    async def do(side: Side) -> Any:
        orders = await side.port.orders(market)
        oid = next((one.oid for one in orders if one.kind == kind), "999999")
        result = await side.port.cancel(oid)
        return {"oid": result.oid, "coin": result.coin}

    return do


def canceled_coin(market: str = "BTC") -> Command:
    async def do(side: Side) -> Any:
        result = await side.port.cancel_coin(market)
        return result.coin, len(result.canceled_oids)

    return do


def armed(key: str, **given: Any) -> Command:
    async def do(side: Side) -> Any:
        return guardian_of(await side.port.arm(GuardianRequest(**given), key=key))

    return do


async def reset(side: Side) -> Any:
    """The old cursor names an event that is gone; then the events begin anew."""
    await side.reset()
    cursor, side.cursor = side.cursor, None
    await side.port.events(cursor)


def events_since(cursor: str) -> Command:
    async def do(side: Side) -> Any:
        return len((await side.port.events(cursor)).events)

    return do


def disarmed(kind: str) -> Command:
    async def do(side: Side) -> Any:
        found = [one.id for one in await side.port.guardians() if one.type == kind]
        for guardian_id in found:
            await side.port.disarm(guardian_id)
        return len(found)

    return do


def minute(**prices: str) -> Command:
    async def do(side: Side) -> Any:
        await side.minute(prices)

    return do


def differences(fake: Any, real: Any, where: str) -> list[str]:
    """Each place where the two differ, with the fake's value and the real one."""
    if isinstance(fake, dict) and isinstance(real, dict) and fake.keys() == real.keys():
        return [one for name in fake for one in differences(fake[name], real[name], f"{where}.{name}")]
    if isinstance(fake, list) and isinstance(real, list) and len(fake) == len(real):
        return [one for n in range(len(fake)) for one in differences(fake[n], real[n], f"{where}[{n}]")]
    return [] if fake == real else [f"{where}: {fake!r} is not {real!r}"]


async def compare(sides: tuple[Side, Side], *commands: Command) -> list[Any]:
    """The answers of both sides, which are equal, command by command."""
    answers = []
    assert await sides[0].state() == await sides[1].state()
    for n, command in enumerate(commands):
        fake, real = [await side.answer(command) for side in sides]
        assert differences(fake, real, f"answer {n}") == []
        fake_state, real_state = [await side.state() for side in sides]
        assert differences(fake_state, real_state, f"state {n}") == []
        answers.append(real)
    return answers


TRAIL = {"type": "trailing_stop", "market": "BTC", "trail_pct": Decimal(50)}
DEAD_MAN = {"type": "dead_man_switch", "heartbeat_seconds": 86_400, "on_miss": "flatten"}

SCRIPTS: dict[str, tuple[Command, ...]] = {
    "a market order and its close": (placed("a", an_order()), minute(BTC="103"), closed("b")),
    "a plan and its confirmation": (planned("a", an_order(target=2)), minute(BTC="102"), closed("b", size="0.5")),
    "a short that is stopped": (placed("a", an_order(side="short")), minute(BTC="103"), minute(BTC="105")),
    "a long that reaches its target": (placed("a", an_order(target=1)), minute(BTC="105")),
    "a position that grows": (placed("a", an_order()), minute(BTC="102"), placed("b", an_order(stop=4)), closed("c")),
    "a limit order that fills": (placed("a", an_order(type="limit", limit_px="98")), minute(BTC="98")),
    "a limit order that is canceled": (placed("a", an_order(type="limit", limit_px="98")), canceled("limit")),
    "every order of a market is canceled": (placed("a", an_order(target=2)), canceled_coin()),
    "guardians": (
        armed("d", **DEAD_MAN),
        placed("a", an_order()),
        armed("t", **TRAIL),
        disarmed("dead_man_switch"),
        closed("b"),
    ),
    "a key that is used again for the same order": (
        placed("a", an_order()),
        minute(BTC="101"),
        placed("a", an_order()),
    ),
    "a key that is used again for another order": (placed("a", an_order()), placed("a", an_order(usd=300))),
    "a token that is used again under another key": (planned("a", an_order(), twice="b"),),
    "a token that is used again under its key": (planned("a", an_order(), twice="a"),),
    "an order that comes too late": (
        placed("a", an_order(), expires_in_ms=-1),
        placed("a", an_order(), expires_in_ms=60_000),
    ),
    "a reset": (placed("a", an_order()), reset, placed("a", an_order()), placed("b", an_order())),
    "an order in time": (placed("a", an_order(), expires_in_ms=0),),
    "a cursor that the venue has not given": (events_since("evt_000000999999"),),
    "a close without a position": (closed("a"),),
    "a cancel without an order": (canceled("limit"),),
    "a guardian without a position": (armed("t", **TRAIL),),
}


@pytest.mark.parametrize("script", SCRIPTS)
async def test_the_fake_answers_a_script_as_the_service_does(sides: tuple[Side, Side], script: str) -> None:
    await compare(sides, *SCRIPTS[script])


async def test_the_fake_refuses_an_expired_plan_as_the_service_does(sides: tuple[Side, Side]) -> None:
    tokens = [(await side.port.plan(an_order(dry_run=True), key="a")).confirm_token for side in sides]

    def confirm(side: Side) -> Awaitable[Any]:
        return side.port.confirm(tokens[sides.index(side)], key="a")

    for _ in range(2):
        await compare(sides, minute())
    [answer] = await compare(sides, confirm)
    assert answer[1] == "plan_stale"


async def move(sides: tuple[Side, Side], market: str, px: int) -> None:
    """The price moves to `px` and stops at each level on its way: the fake fills an order at its level, the service
    at the price that it sees.
    """
    fake, end = sides[0].port, Decimal(px)
    while fake.px[market] != end:
        last = fake.px[market]
        levels = [one.trigger_px or one.limit_px for one in fake.working.values() if one.coin == market]
        ahead = [level for level in levels if min(last, end) < level < max(last, end)]
        nearest = min([*ahead, end], key=lambda level: abs(level - last))
        await compare(sides, minute(**{market: str(nearest)}))


def random_commands(fake: FakeVenue, kind: int, chance: Random, market: str, key: str) -> list[Command]:
    side = SIDES[market]
    # The two sides fill a stop and a limit order of one price in another order. So no other entry comes beside a
    # resting limit order.
    levels = {one.trigger_px or one.limit_px for one in fake.working.values() if one.coin == market}
    if kind < 3 and any(one.kind == "limit" for one in fake.working.values() if one.coin == market):
        return []
    if kind == 0:
        return [placed(key, an_order(market, side, usd=chance.randrange(20, 300), stop=chance.choice((2, 5))))]
    if kind == 1:
        return [planned(key, an_order(market, side, target=chance.choice((None, 1, 2))))]
    if kind == 2:
        # so that it rests: the fake fills no limit order at once
        away = chance.randrange(3, 6)
        limit = fake.px[market] - away if side == "long" else fake.px[market] + away
        if limit in levels:
            return []
        return [placed(key, an_order(market, side, type="limit", limit_px=str(limit)))]
    if kind == 3:
        return [closed(key, market, chance.choice((None, "0.2")))]
    return [canceled(chance.choice(("limit", "stop_loss", "take_profit")), market)]


@pytest.mark.soak(worlds=3, full=200)
async def test_the_fake_answers_random_commands_as_the_service_does(
    sides: tuple[Side, Side], worlds: int, base_seed: int
) -> None:
    for seed in range(base_seed, base_seed + worlds):
        chance = Random(seed)
        for market in MARKETS:
            await move(sides, market, 100)
        await compare(sides, reset)
        for n in range(STEPS):
            market, key = chance.choice(MARKETS), f"{seed}-{n}"
            kind = chance.randrange(7)
            if kind < 5:
                await compare(sides, *random_commands(sides[0].port, kind, chance, market, key))
            else:
                await move(sides, market, chance.randrange(94, 107) if kind == 5 else chance.randrange(98, 103))
