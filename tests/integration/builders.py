"""The production loop, client and journal against the real service in process. wire.py makes the faults,
account_checks.py the checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import httpx

from bot.client import Client
from bot.errors import OutcomeUnknown, TryLater
from bot.runtime.journal.opening import open_journal, open_or_rebuild
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import DEAD_MAN, WantedGuardian
from bot.runtime.strategy_host.host import StrategySpec
from bot.service.host import HostOptions, Service, build
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, Open, Strategy, TrailingStop, View
from bot.wire import GuardianRequest
from tests.fakes import Crash, FakePacer, Tap, Tapped
from tests.integration import account_checks
from tests.integration.wire import Fate, FaultyWire
from tests.runtime.builders import WRITES

MINUTE_MS = 60_000
START_MS = 1_795_132_800_000
CONTROL = {"Authorization": "Bearer bbc_test"}
DEAD_MAN_600 = WantedGuardian(
    DEAD_MAN, GuardianRequest(type="dead_man_switch", heartbeat_seconds=600, on_miss="flatten")
)
MARKETS = ("BTC", "ETH")
START_PX = {"BTC": 100_000.0, "ETH": 4_000.0}

Script = Callable[[View, Bar], Iterable[Intent]]


def busy(view: View, bar: Bar) -> Iterable[Intent]:
    """Something on most bars: brackets, trailing stops, resting entries, parts, reversals.

    A function of the bar alone.
    """
    n = bar.at_ms // MINUTE_MS
    held = view.position(bar.market)
    if bar.market == "ETH":
        if held is None and n % 3 == 0:
            yield Open("ETH", "long" if n % 2 else "short", size=0.1, guardians=(TrailingStop(trail_pct=1),))
        elif held is None and n % 3 == 1 and not view.orders("ETH"):
            yield Open("ETH", "long", usd=100, limit_px=round(bar.close * 0.999, 1), bracket=Bracket(stop_pct=1))
        elif held is None and view.orders("ETH"):
            yield Cancel(market="ETH")
        elif held is not None and n % 4 == 0:
            yield Close("ETH", fraction=0.5)
        return
    if held is None:
        yield Open("BTC", "long", usd=300, bracket=Bracket(stop_pct=0.4, target_r=1.5))
    elif n % 4 == 0:
        yield Close("BTC")
        yield Open("BTC", "short" if held.side == "long" else "long", usd=200, bracket=Bracket(stop_pct=0.5))
    elif n % 4 == 2:
        yield Close("BTC")


class Scripted(Strategy):
    """Wants what its script says, and counts in the durable state."""

    def __init__(self, script: Script, *, name: str = "busy", markets: Sequence[str] = MARKETS) -> None:
        super().__init__(name=name, markets=markets)
        self.script = script

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        view.state["bars"] = view.state.get("bars", 0) + 1
        return self.script(view, bar)


@dataclass
class Box:
    """A real service in process whose clock and prices the test moves."""

    service: Service
    http: httpx.AsyncClient

    @staticmethod
    async def open() -> Box:
        options = HostOptions(clock="manual", start_ms=START_MS, hold_prices=True, markets=MARKETS)
        service = build(options, control_token="bbc_test")
        await service.start()
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        return Box(service, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"))

    async def close(self) -> None:
        await self.http.aclose()
        await self.service.stop()

    async def control(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.http.post(f"/sandbox/v1/{path}", json=body, headers=CONTROL)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def price(self, coin: str, px: float) -> None:
        await self.control(f"markets/{coin}/price", {"px": f"{px:.1f}"})

    async def advance(self, ms: int) -> None:
        await self.control("clock/advance", {"ms": ms})

    async def minute(self, **closes: float) -> None:
        """One bar: the price after its half, and the rest of it."""
        await self.advance(MINUTE_MS // 2)
        for coin, px in closes.items():
            await self.price(coin, px)
        await self.advance(MINUTE_MS // 2)

    async def hand(self) -> Hand:
        """A new account's owner, whose requests meet no fault: the judge, and the other hand on the account."""
        answer = await self.http.post("/v1/sandbox/accounts", json={"name": "world"})
        assert answer.status_code == 200, answer.text
        return Hand(self, answer.json())


@dataclass
class Hand:
    box: Box
    account: dict[str, Any]
    done: int = 0

    @property
    def key(self) -> str:
        return str(self.account["apiKey"])

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.try_to(method, path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def try_to(self, method: str, path: str, body: Any = None) -> httpx.Response:
        self.done += 1
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": f"hand-{self.done}"}
        return await self.box.http.request(method, path, json=body, headers=headers)

    async def order(
        self, market: str, side: str, usd: float, *, stop_pct: float | None = None, limit_px: float | None = None
    ) -> httpx.Response:
        body: dict[str, Any] = {"market": market, "side": side, "usdAmount": usd}
        if stop_pct is not None:
            body["bracket"] = {"stopLoss": {"pct": stop_pct}}
        if limit_px is not None:
            body |= {"type": "limit", "limitPx": f"{limit_px:.1f}"}
        return await self.try_to("POST", "/v1/orders", body)

    async def cancel_stops(self, coin: str) -> int:
        """Cancel every stop of a market by hand; how many there were."""
        orders = (await self.ask("GET", f"/v1/orders?coin={coin}"))["orders"]
        stops = [order["oid"] for order in orders if order["kind"] == "stop_loss"]
        for oid in stops:
            await self.ask("DELETE", f"/v1/orders/{oid}")
        return len(stops)

    async def disarm(self, kind: str) -> int:
        guardians = [one for one in (await self.ask("GET", "/v1/guardians"))["guardians"] if one["type"] == kind]
        for one in guardians:
            await self.ask("DELETE", f"/v1/guardians/{one['id']}")
        return len(guardians)

    async def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        since = ""
        while page := (await self.ask("GET", f"/v1/events?limit=200{since}"))["events"]:
            found += page
            since = f"&since={page[-1]['id']}"
        return found

    async def trades(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        before = ""
        while True:
            page = await self.ask("GET", f"/v1/trades?limit=200{before}")
            found += page["trades"]
            if page["nextBefore"] is None:
                return found
            before = f"&before={page['nextBefore']}"


def calm(_request: httpx.Request) -> str | None:
    return None


@dataclass
class Bot:
    """One life of the daemon's inside: what daemon.py composes, without its processes."""

    kernel: Kernel
    client: Client
    beaten_ms: int = 0
    dead: bool = field(default=False)

    async def cycle(self) -> bool:
        """Recover when that is to be done, beat, pass. False when the service could not be asked."""
        try:
            if not self.kernel.state.ready:
                await self.kernel.recover()
            now_ms = self.client.clock.now_ms()
            if now_ms != self.beaten_ms:
                await self.client.heartbeat()
                self.beaten_ms = now_ms
        except (TryLater, OutcomeUnknown):
            if not self.kernel.state.ready:
                return False
        try:
            await self.kernel.cycle()
        except (TryLater, OutcomeUnknown):
            return False
        return True

    async def kill(self) -> None:
        """The process is gone: nothing is flushed."""
        journal: Any = getattr(self.kernel.journal, "_inner", self.kernel.journal)
        journal.db.close()
        await self.client.aclose()
        self.dead = True


def wire_to(box: Box, fate: Fate = calm) -> FaultyWire:
    return FaultyWire(httpx.ASGITransport(box.service.app, raise_app_exceptions=False), fate)


def make_bot(
    hand: Hand,
    wire: httpx.AsyncBaseTransport,
    path: Path | None,
    *,
    script: Script = busy,
    tap: Tap | None = None,
    pacer: FakePacer | None = None,
    settings: KernelSettings | None = None,
    key: str | None = None,
    strategies: Sequence[Strategy] | None = None,
    path_of_orders: str = "plan",
    **more: Any,
) -> Bot:
    """A bot on the hand's account, not recovered yet."""
    client = Client("http://127.0.0.1", key or hand.key, transport=wire)
    address = hand.account["address"]
    journal: Any = (
        open_journal(None, address=address)
        if path is None
        else open_or_rebuild(path, address=address, now_ms=START_MS)[0]
    )
    if tap is not None:
        journal = Tapped(journal, tap, only=WRITES)
    specs = [
        StrategySpec(
            one,
            "1m",
            StrategyLimits(
                one.name,
                frozenset(one.markets),
                interval_ms=MINUTE_MS,
                budget_usd=Decimal(5_000),
                max_leverage=3,
                path=path_of_orders,
            ),
        )
        for one in (strategies or [Scripted(script)])
    ]
    kernel = Kernel(
        port=client,
        journal=journal,
        specs=specs,
        pacer=pacer or FakePacer(),
        settings=settings or KernelSettings(guardians=(DEAD_MAN_600,)),
        **more,
    )
    return Bot(kernel, client)


class Points:
    """Counts requests and statements, each before and after, and ends the process at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.seen = 0

    def point(self, name: str) -> None:
        self.seen += 1
        if self.seen == self.at:
            raise Crash(name)

    def tap(self, bot: Bot) -> None:
        journal = bot.kernel.journal
        inner = journal.database._raw

        def raw(sql: str, *values: Any) -> Any:
            if sql.lstrip().startswith("SELECT"):
                return inner(sql, *values)
            self.point(f"before {sql[:30]}")
            done = inner(sql, *values)
            self.point(f"after {sql[:30]}")
            return done

        journal.database._raw = raw


async def story(
    box: Box, path: Path, points: Points, script: Script, prices: Sequence[float | None], orders: str
) -> list[dict[str, Any]]:
    """The trades, newest first, of a run over as many lives as it takes.

    Each of `prices` ends a minute; None: a last pass without a new bar.
    """
    hand = await box.hand()
    wire = wire_to(box)
    inner = wire.deliver

    async def deliver(request: httpx.Request) -> httpx.Response:
        points.point(f"before {request.url.path}")
        answer = await inner(request)
        points.point(f"after {request.url.path}")
        return answer

    wire.deliver = deliver
    bot: Bot | None = None
    for px in prices:
        for _ in range(4):
            try:
                if bot is None:
                    bot = make_bot(hand, wire, path, script=script, path_of_orders=orders)
                    points.tap(bot)
                await bot.cycle()
            except Crash:
                if bot is not None:
                    await bot.kill()
                bot = None
        if px is not None:
            await box.minute(BTC=px)
    assert bot is not None
    trades = await hand.trades()
    account_checks.intents_and_trades(list(bot.kernel.journal.db["intents"].rows), trades)
    account_checks.account_state_is_right(bot.kernel.account.account_state, await hand.ask("GET", "/v1/account"))
    assert not bot.kernel.intents.with_targets
    await bot.kill()
    await hand.ask("POST", "/v1/sandbox/accounts/reset", {})
    return trades


async def crash_anywhere(
    folder: Path, run: Callable[[Path, Points], Awaitable[list[Any]]], kills: int, seed: int
) -> tuple[list[Any], int]:
    """The orders of a run without a crash, which runs with a crash at `kills` of its points also end in; and the
    number of points.
    """
    quiet = Points()
    expected = await run(folder / "quiet.db", quiet)
    points = list(range(1, quiet.seen + 1))
    Random(seed).shuffle(points)
    for at in points[:kills]:
        assert await run(folder / f"{at}.db", Points(at)) == expected, f"point {at}"
        for leftover in folder.glob(f"{at}.db*"):
            leftover.unlink()
    return expected, len(points)


def once_long(view: View, bar: Bar) -> Iterable[Intent]:
    """One BTC position with a stop, whenever it is flat."""
    if bar.market == "BTC" and view.position("BTC") is None:
        yield Open("BTC", "long", usd=500, bracket=Bracket(stop_pct=2))


def nothing(_view: View, _bar: Bar) -> Iterable[Intent]:
    return ()


class BotAndOwner:
    """A bot on an account of its own, and the account's owner beside it."""

    def __init__(self, box: Box, hand: Hand, bot: Bot, wire: Any) -> None:
        self.box, self.hand, self.bot, self.wire = box, hand, bot, wire
        self.px = dict(START_PX)

    async def minute(self, factor: float = 1.0) -> None:
        self.px["BTC"] *= factor
        await self.box.minute(**self.px)
        assert await self.bot.cycle()

    def wants(self, script: Script) -> None:
        """From now on the strategy wants what this script says."""
        strategy = self.bot.kernel.strategy_host.instances[0].strategy
        assert isinstance(strategy, Scripted)
        strategy.script = script

    async def held(self, coin: str = "BTC") -> dict[str, Any] | None:
        account = await self.hand.ask("GET", "/v1/account")
        return next((one for one in account["positions"] if one["coin"] == coin), None)

    async def guardians(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in (await self.hand.ask("GET", "/v1/guardians"))["guardians"] if one["type"] == kind]

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.bot.kernel.journal.db["intents"].rows]

    def refusals(self) -> list[str]:
        self.bot.kernel.journal.flush()
        return [row["code"] for row in self.bot.kernel.journal.db["refusals"].rows]


async def bot_and_owner(
    box: Box,
    script: Any = once_long,
    *,
    foreign: str = "ignore",
    adopted_stop_pct: int | None = None,
    fate: Any = None,
    path: Path | None = None,
    **more: Any,
) -> BotAndOwner:
    """A bot that has recovered and made its first pass."""
    hand = await box.hand()
    wire = wire_to(box) if fate is None else wire_to(box, fate)
    pct = None if adopted_stop_pct is None else Decimal(adopted_stop_pct)
    settings = KernelSettings(guardians=(DEAD_MAN_600,), foreign_positions=foreign, adopted_stop_pct=pct)
    made = BotAndOwner(box, hand, make_bot(hand, wire, path, script=script, settings=settings, **more), wire)
    await made.minute()
    return made
