"""Seeded worlds of an account at an exchange, in virtual time: a service that is killed and started again, its link,
the exchange with its open questions answered by chance, prices, a client that repeats its requests, a person who trades
by hand; then calm, in which everything must come right.

    python -m tests.service.exchange_accounts.worlds SEED [SEED]     worlds one by one; what was broken is printed

A world is a function of its seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import eth_account

from bot import logs
from bot.clock import SystemClock
from bot.local_exchange import switches
from bot.local_exchange.engine import admission
from bot.local_exchange.faults import ExchangeFault
from bot.local_exchange.wire import rows
from bot.local_exchange.wire.requests import Signed
from bot.money import format_e8, parse_e8
from bot.service.exchange_accounts.account_options import FollowedAccount
from bot.service.host import HostOptions, Service, build
from bot.venue.accounting import nav
from bot.venue.model.numbers import E8
from bot.venue.model.state import VenueAccount
from tests.exchanges.agents import AGENT, MASTER
from tests.integration.virtual import Answer, served, virtual_time
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.virtual_exchange import TaskLink, VirtualExchange, VirtualLog, in_one_process

ADDRESS: Final = MASTER.address.lower()
STRANGER: Final = eth_account.Account.from_key("0x" + "07" * 32).address.lower()
PLACE: Final = "3001"
COINS: Final = ("BTC", "ETH")
START_PX: Final = {"BTC": 100_000, "ETH": 3_000}
STEP: Final = {"BTC": 1.0, "ETH": 0.1}
# before calm, and the longest that calm may take to come right: an expiry, a wait of a session and a repair
BUSY_SECONDS: Final = (40.0, 120.0)
SETTLED_SECONDS: Final = 300.0
HOUR_SECONDS: Final = 3_600.0
# An action that is lost once is sent again after 1.5 s; a copy that is late takes longer.
NAKED_SECONDS: Final = 10.0
TROUBLES: Final = ("none", "kills", "kills", "links", "away", "wire", "wire", "wire")
# worlds that lose the exchange for an hour; each costs ten times as much
HOUR_SHARE: Final = 0.02
FAULTS: Final = (
    ("request_in", "lost"),
    ("request_in", "silence"),
    ("request_in", "status_429"),
    ("request_in", "status_500"),
    ("request_in", "html_502"),
    ("before_execution", "late"),
    ("before_execution", "copy"),
    ("after_execution", "lost"),
    ("after_execution", "silence"),
    ("after_execution", "status_500"),
    ("reply_out", "late"),
    ("socket_message", "lost"),
    ("socket_message", "double"),
    ("socket_message", "late"),
    ("socket_message", "reorder"),
    ("socket", "close"),
    ("socket", "silence"),
)


@dataclass
class Wish:
    """A request of the client with its key, and its final answer."""

    name: str
    method: str
    path: str
    body: dict[str, Any]
    key: str | None
    answers: list[Any] = field(default_factory=list)
    final: Answer | None = None

    def error(self) -> dict[str, Any]:
        assert self.final is not None
        return dict(json.loads(self.final.content)["error"])


class World:
    """One seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        chance = self.chance = random.Random(f"exchange world {seed}")
        self.trouble = "hour" if chance.random() < HOUR_SHARE else chance.choice(TROUBLES)
        self.switches = switches.drawn(chance) | {"info_lag": chance.choice(("none", "drawn")), "ip_limit": "off"}
        self.exchange = VirtualExchange(random.Random(f"wire {seed}"), self.switches, seed, chance.choice((0, 0, 70)))
        self.kinds = chance.sample(FAULTS, chance.randint(1, 5))
        self.rate = chance.choice((0.02, 0.1, 0.3))
        self.service: Service | None = None
        self.lives = 0
        self.token = ""
        self.wishes: list[Wish] = []
        self.is_calm = False
        self.notes: Counter[str] = Counter()
        self.agent: Path
        self.tasks: list[asyncio.Task[Any]] = []
        self.hand_nonce = 0
        # stops that were not there although everything was up
        self.bare: list[Any] = []

    # ── The exchange, prices and a person ───────────────────────────────────────────────────────────────────────────

    def begin_exchange(self) -> None:
        exchange = self.exchange.service
        exchange.command("deposit", {"address": ADDRESS, "usd": "100000"})
        refused = admission.approve_agent(exchange.exchange, exchange.exchange.users[ADDRESS], AGENT, "bot")
        assert refused is None, refused
        for coin in COINS:
            exchange.command("price", {"coin": coin, "px": str(START_PX[coin])})

    async def move_prices(self) -> None:
        """A walk, with a jump now and then; the service sees it a little later."""
        px = {coin: float(START_PX[coin]) for coin in COINS}
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 2.0) if not self.is_calm else 5.0)
            for coin in COINS:
                width = 0.02 if self.chance.random() < 0.03 and not self.is_calm else 0.001
                px[coin] *= 1 + self.chance.uniform(-width, width)
                px[coin] = min(max(px[coin], START_PX[coin] * 0.7), START_PX[coin] * 1.4)
                told = round(round(px[coin] / STEP[coin]) * STEP[coin], 1)
                self.exchange.service.command("price", {"coin": coin, "px": f"{told:g}"})
                loop = asyncio.get_running_loop()
                loop.call_later(self.chance.uniform(0.0, 0.5), self._push, coin, parse_e8(f"{told:g}"))

    def _push(self, coin: str, px: int) -> None:
        if self.service is not None and self.service.machine.fault is None:
            self.service.machine.push_price(coin, px)

    def by_hand(self, action: dict[str, Any]) -> dict[str, Any]:
        """What the owner does on the exchange's page."""
        self.hand_nonce = max(self.hand_nonce + 1, SystemClock().now_ms())
        return self.exchange.service.perform(Signed(ADDRESS, action, self.hand_nonce, None, None))

    def hand_order(self, coin: str, size: float, *, rests: bool = False, px: float | None = None) -> None:
        listed = self.exchange.service.exchange.coins[coin]
        mark = listed.market.mark / E8
        limit = px or mark * (1.05 if size > 0 else 0.95)
        limit = round(round(limit / STEP[coin]) * STEP[coin], 1)
        decimals = listed.market.spec.sz_decimals
        order = {
            "a": next(number for number, name in self.exchange.service.exchange.assets.items() if name == coin),
            "b": size > 0,
            "p": f"{limit:g}",
            "s": f"{round(abs(size), decimals):g}",
            "r": False,
            "t": {"limit": {"tif": "Gtc" if rests else "Ioc"}},
        }
        self.by_hand({"type": "order", "orders": [order], "grouping": "na"})
        self.notes["hand"] += 1

    # ── The service ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def start_service(self) -> None:
        followed = FollowedAccount("hyperliquid", PLACE, ADDRESS, self.agent)
        options = HostOptions(
            db=self.folder / "a.db", markets=COINS, hold_prices=True, followed=followed, rate_limits=False
        )
        self.service = build(options, control_token=CONTROL_TOKEN)
        await self.service.start(self.faulted)
        self.lives += 1

    def faulted(self) -> None:
        self.notes["fault"] += 1

    async def kill_service(self) -> None:
        """As kill -9: what is not committed is lost, what was given to the wire arrives."""
        service, self.service = self.service, None
        if service is None:
            return
        self.notes["kill"] += 1
        log = service.machine.log
        assert isinstance(log, VirtualLog)
        log.kill()
        for link in list(TaskLink.alive):
            link.kill()
        tasks = [task for task in asyncio.all_tasks() if (task.get_name() or "").startswith("service-")]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(
        self, method: str, path: str, body: dict[str, Any], *, key: str | None = None, token: str | None = None
    ) -> Answer | None:
        """The answer of the service that lives; None if it dies meanwhile."""
        service = self.service
        if service is None:
            return None
        content = json.dumps(body).encode()
        headers = [(b"authorization", f"Bearer {token or self.token}".encode()), (b"content-type", b"application/json")]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        asking = asyncio.create_task(served(service.app, method, path, headers, content), name="service-request")
        await asyncio.wait([asking])
        if asking.cancelled() or self.service is not service:
            return None
        return asking.result()

    @property
    def account(self) -> VenueAccount | None:
        return None if self.service is None or self.service.follower is None else self.service.follower.account

    def can_send(self) -> bool:
        known = None if self.account is None else self.account.exchange
        return known is not None and known.link == "in_step" and bool(known.signer)

    # ── The client ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def client(self, number: int) -> None:
        """Wishes one after another; each is repeated under its key until its answer is final."""
        chance = random.Random(f"client {self.seed} {number}")
        count = 0
        while not self.is_calm:
            await asyncio.sleep(chance.uniform(1.0, 12.0))
            if self.is_calm or not self.token:
                continue
            count += 1
            wish = self.wished(chance, f"{number}-{count}")
            if wish is not None:
                self.wishes.append(wish)
                await self.pursue(wish, chance)

    def wished(self, chance: random.Random, key: str) -> Wish | None:
        account = self.account
        if account is None:
            return None
        coin = chance.choice(COINS)
        held = account.positions.get(coin)
        draw = chance.random()
        if draw < 0.03:
            return Wish("kill", "POST", "/v1/account/kill", {"flatten": chance.random() < 0.7}, key)
        if draw < 0.3 and account.orders:
            number = chance.choice(list(account.orders))
            return Wish("cancel", "DELETE", f"/v1/orders/{number}", {}, None)
        if draw < 0.38:
            return Wish("cancel_all", "DELETE", "/v1/orders", {"coin": coin}, None)
        if (draw < 0.75 and held is None) or draw < 0.5:
            return self.entry(chance, coin, key)
        if held is None:
            return None
        fraction = chance.choice((0.25, 0.5, 1, 1))
        return Wish("close", "POST", f"/v1/positions/{coin}/close", {"fraction": fraction}, key)

    def entry(self, chance: random.Random, coin: str, key: str) -> Wish:
        """A bracketed order: at the market, or a limit near it; at times without a target."""
        assert self.service is not None
        mid = self.service.machine.state.markets[coin].mid / E8
        side = chance.choice(("long", "short"))
        bracket: dict[str, Any] = {"stopLoss": {"pct": chance.choice((0.3, 1, 3))}}
        if chance.random() < 0.7:
            bracket["takeProfit"] = {"pct": chance.choice((0.4, 2, 6))}
        body = {"market": coin, "side": side, "size": {"BTC": "0.02", "ETH": "0.5"}[coin], "bracket": bracket}
        held = self.account and self.account.positions.get(coin)
        body["leverage"] = held.leverage if held else chance.choice((1, 2, 5))
        if chance.random() < 0.4:
            away = chance.choice((-0.001, 0, 0.001)) * (1 if side == "long" else -1)
            px = round(round(mid * (1 - away) / STEP[coin]) * STEP[coin], 1)
            body |= {"type": "limit", "limitPx": f"{px:g}"}
        return Wish("open", "POST", "/v1/orders", body, key)

    async def pursue(self, wish: Wish, chance: random.Random) -> None:
        while wish.final is None:
            answer = await self.ask(wish.method, wish.path, wish.body, key=wish.key)
            if answer is not None:
                wish.answers.append((round(asyncio.get_running_loop().time(), 3), answer.status_code, answer.content))
                wish.final = answer if self.is_final(answer) else None
            await asyncio.sleep(chance.uniform(0.5, 3.0) if len(wish.answers) < 10 else chance.uniform(5.0, 30.0))

    @staticmethod
    def is_final(answer: Answer) -> bool:
        if answer.status_code < 400:
            return True
        error = json.loads(answer.content)["error"]
        return not error["retryable"] or error.get("orderSubmitted") is False

    async def person(self) -> None:
        chance = random.Random(f"person {self.seed}")
        while not self.is_calm:
            await asyncio.sleep(chance.uniform(1.0, 10.0) * (20 if self.trouble == "hour" else 1))
            coin, draw = chance.choice(COINS), chance.random()
            size = chance.choice((-1, 1)) * {"BTC": 0.02, "ETH": 0.5}[coin] * chance.choice((1, 1, 2))
            mark = self.exchange.service.exchange.coins[coin].market.mark / E8
            if draw < 0.7:
                self.hand_order(coin, size)
            else:
                self.hand_order(coin, size, rests=True, px=mark * (1 - 0.002 * (1 if size > 0 else -1)))

    # ── Troubles ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def troubles(self) -> None:
        """What goes wrong, one after another."""
        chance = random.Random(f"trouble {self.seed}")
        while not self.is_calm:
            await asyncio.sleep(chance.uniform(0.5, 15.0))
            if self.is_calm:
                return
            if self.trouble == "kills":
                await self.kill_service()
                await asyncio.sleep(chance.choice((0.01, 0.5, 5.0, 20.0)))
                await self.start_service()
            elif self.trouble == "links":
                for link in list(TaskLink.alive):
                    self.notes["link"] += 1
                    link.kill()
            elif self.trouble in ("away", "hour"):
                self.exchange.is_away = True
                self.notes["away"] += 1
                await asyncio.sleep(HOUR_SECONDS if self.trouble == "hour" else chance.uniform(1.0, 40.0))
                self.exchange.is_away = False
                if self.trouble == "hour":
                    return

    async def spoil(self) -> None:
        """Faults of requests, messages and sockets."""
        chance = random.Random(f"spoil {self.seed}")
        faults = self.exchange.service.faults
        while not self.is_calm:
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            if self.trouble != "wire" and chance.random() > 0.1:
                continue
            if chance.random() < self.rate and len(faults.waiting) < 3:
                point, kind = chance.choice(self.kinds)
                ms = chance.choice((200, 1_000, 4_000, 20_000))
                path = chance.choice((None, "/exchange")) if point in ("request_in", "reply_out") else None
                wrong = faults.add(ExchangeFault(point, kind, path=path, ms=ms, count=chance.choice((1, 1, 2, 4))))
                assert wrong is None, wrong
        faults.waiting.clear()

    # ── One world ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        """Busy, then calm. AssertionError says what was broken."""
        self.begin_exchange()
        self.watch_cancels()
        loop = asyncio.get_running_loop()
        always = [loop.create_task(part) for part in (self.exchange.run(), self.move_prices(), self.watch_stops())]
        await self.start_service()
        await self.until(self.can_send, 60)
        answer = await self.ask("POST", "/sandbox/v1/keys", {}, token=CONTROL_TOKEN)
        assert answer is not None and answer.status_code == 200, answer
        self.token = json.loads(answer.content)["apiKey"]
        busy = [self.client(1), self.client(2), self.person(), self.troubles(), self.spoil()]
        tasks = [loop.create_task(part) for part in busy]
        try:
            if self.trouble == "hour":
                await self.until(lambda: not self.exchange.is_away and self.notes["away"] > 0, HOUR_SECONDS + 60)
            await asyncio.sleep(self.chance.uniform(*BUSY_SECONDS))
            self.is_calm = True
            self.exchange.is_away = False
            await asyncio.wait(tasks, timeout=SETTLED_SECONDS)
            for task in tasks:
                assert task.done(), f"no final answer: {[wish for wish in self.wishes if wish.final is None]}"
                task.result()
            await self.until(self.is_right, SETTLED_SECONDS, self.troubles_left)
            self.judge()
        finally:
            for task in (*tasks, *always):
                task.cancel()
            await asyncio.gather(*tasks, *always, return_exceptions=True)
            if self.service is not None:
                await self.kill_service()

    async def until(
        self, is_so: Callable[[], bool], seconds: float, show: Callable[[], object] = lambda: "time is over"
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    await asyncio.sleep(0.5)
        assert is_so(), show()

    # ── What must be so ─────────────────────────────────────────────────────────────────────────────────────────────

    def is_right(self) -> bool:
        return not self.troubles_left()

    def troubles_left(self) -> list[str]:
        """What is not right yet."""
        account = self.account
        if account is None or account.exchange is None:
            return ["no account"]
        assert self.service is not None
        if self.service.machine.fault is not None:
            raise AssertionError(f"the service has failed: {self.service.machine.fault!r}")
        known, exchange = account.exchange, self.exchange.service.exchange
        user = exchange.users[ADDRESS]
        told = rows.clearinghouse(exchange, user, "")
        cash = nav.stand_of(account, self.service.machine.state).cash
        theirs = {row["position"]["coin"]: parse_e8(row["position"]["szi"]) for row in told["assetPositions"]}
        ours = {coin: held.side * held.size for coin, held in account.positions.items()}
        raw = parse_e8(told["marginSummary"]["totalRawUsd"])
        texts = [] if known.link == "in_step" else [f"the link is {known.link}: {known.link_reason}"]
        texts += [f"cash {format_e8(cash)} here, {format_e8(raw)} there"] if cash != raw else []
        texts += [f"sizes {ours} here, {theirs} there"] if ours != theirs else []
        open_actions = [action for action in known.actions.values() if not action.over_ms]
        texts += [f"undecided: {open_actions}"] if open_actions else []
        listed = {str(order.oid) for order in user.orders.values() if not (order.trigger and order.cloid)}
        texts += [f"orders {sorted(known.orders)} here, {sorted(listed)} there"] if set(known.orders) != listed else []
        texts += [f"fills wait: {known.waiting}"] if known.waiting else []
        wanted, standing = self.protection(account)
        texts += [f"protection {wanted} here, {standing} there"] if wanted != standing else []
        return texts

    def protection(self, account: VenueAccount) -> tuple[list[Any], list[Any]]:
        """Armed stops and targets of ours here, and live ones at the exchange: market, kind and trigger price."""
        assert account.exchange is not None
        foreign = set(account.exchange.orders.values())
        wanted = [
            (order.coin, order.kind, order.trigger_px)
            for number, order in account.orders.items()
            if order.status == "armed" and number not in foreign
        ]
        kinds = {False: "stop_loss", True: "take_profit"}
        standing = [
            (order.coin, kinds[order.trigger.is_target], order.trigger.px)
            for order in self.exchange.service.exchange.users[ADDRESS].orders.values()
            if order.trigger is not None and order.cloid and order.is_live
        ]
        return sorted(wanted, key=str), sorted(standing, key=str)

    def covered(self) -> set[str]:
        """Markets without a position, or whose whole position has a live stop of ours at the exchange."""
        exchange = self.exchange.service.exchange
        user, told = exchange.users[ADDRESS], rows.clearinghouse(exchange, exchange.users[ADDRESS], "")
        sizes = {row["position"]["coin"]: abs(parse_e8(row["position"]["szi"])) for row in told["assetPositions"]}
        stops = [o for o in user.orders.values() if o.trigger and o.cloid and o.is_live and not o.trigger.is_target]
        return {coin for coin in COINS if coin not in sizes} | {
            order.coin for order in stops if order.whole or order.sz == sizes.get(order.coin)
        }

    def watch_cancels(self) -> None:
        """None of our own cancels may take the last stop of a position that still wants it."""
        perform = self.exchange.service.perform

        def watched(signed: Signed) -> dict[str, Any]:
            before = self.covered()
            answer = perform(signed)
            account = self.account
            if signed.signer == AGENT and signed.action["type"].startswith("cancel") and account is not None:
                levels = [order for order in account.orders.values() if order.kind == "stop_loss" and order.leg]
                wanted = {order.coin for order in levels if order.reason is None} & set(account.positions)
                if lost := (before - self.covered()) & wanted:
                    self.bare.append((round(asyncio.get_running_loop().time(), 2), lost, "our own cancel"))
            return answer

        self.exchange.service.perform = watched

    async def watch_stops(self) -> None:
        """While everything is up, no armed stop may be absent at the exchange for longer than its sending takes."""
        naked: dict[str, float] = {}
        good_since = 0.0
        while True:
            await asyncio.sleep(0.5)
            now, account = asyncio.get_running_loop().time(), self.account
            known = None if account is None else account.exchange
            is_quiet = not self.exchange.service.faults.waiting and not self.exchange.is_away
            is_good = is_quiet and known is not None and known.link == "in_step"
            good_since = (good_since or now) if is_good else 0.0
            if account is None or not is_good or now - good_since < NAKED_SECONDS:
                naked.clear()
                continue
            wanted, _ = self.protection(account)
            bare = {coin for coin, kind, _ in wanted if kind == "stop_loss"} - self.covered()
            naked = {coin: naked.get(coin, now) for coin in bare}
            for coin, since in naked.items():
                if now - since > NAKED_SECONDS:
                    self.bare.append((round(now, 2), coin, account.positions.get(coin)))

    def judge(self) -> None:
        """Each key at most once at the exchange, and nobody was told another thing."""
        fills: dict[str, list[Any]] = {}
        orders: Counter[str] = Counter()
        for row in self.history():
            orders[row["cloid"]] += 1
        for row in self.fills():
            fills.setdefault(row.get("cloid") or "", []).append(row)
        doubled = {cloid: count for cloid, count in orders.items() if count > 1}
        assert not doubled, f"placed more than once: {doubled}"
        assert not self.bare, f"no stop at the exchange: {self.bare[:3]}"
        account = self.account
        assert account is not None and account.exchange is not None
        by_key: dict[str, list[str]] = {}
        for action in account.exchange.actions.values():
            if action.idempotency_key and action.client_order_id:
                by_key.setdefault(action.idempotency_key, []).append(action.client_order_id)
        for wish in self.wishes:
            if wish.name not in ("close", "open") or wish.final is None or wish.key is None:
                continue
            filled = sum(parse_e8(row["sz"]) for name in by_key.get(wish.key, ()) for row in fills.get(name, ()))
            if wish.final.status_code == 200:
                told = parse_e8(json.loads(wish.final.content)["trade"]["filledSize"])
                is_told = told == filled or (wish.name == "open" and told <= filled)
                assert is_told, f"{wish.key}: told {told}, filled {filled}: {wish}"
            else:
                assert filled == 0, f"{wish.key}: refused and filled {filled}: {wish.final.content!r}"
            placed = [name for name in by_key.get(wish.key, ()) if fills.get(name)]
            assert len(placed) <= 1, f"{wish.key}: filled under {placed}"
        self.notes.update(f"{wish.name} {wish.final.status_code}" for wish in self.wishes if wish.final is not None)

    def fills(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.exchange.service.info({"type": "userFills", "user": ADDRESS})[0]
        return answer

    def history(self) -> list[dict[str, Any]]:
        answer = self.exchange.service.info({"type": "historicalOrders", "user": ADDRESS})[0]
        named = [row["order"] for row in answer if row["order"].get("cloid")]
        # A trigger that fires may go on as another order of the same name.
        triggers = {row["cloid"] for row in named if row["isTrigger"]}
        return list({row["oid"]: row for row in named if row["cloid"] not in triggers}.values())


def run_world(seed: int, alter: Callable[[World], None] | None = None, kind: type[World] = World) -> World:
    """One world; AssertionError if something was broken."""
    with tempfile.TemporaryDirectory() as name, virtual_time() as (loop, _):
        folder = Path(name)
        world = kind(seed, folder)
        with in_one_process(world.exchange, folder) as agent:
            world.agent = agent
            if alter is not None:
                alter(world)
            loop.run_until_complete(world.live())
    return world


def main(kind: type[World] = World) -> int:
    first = int(sys.argv[1])
    seeds = range(first, int(sys.argv[2]) if len(sys.argv) > 2 else first + 1)
    failed, notes = 0, Counter[str]()
    for seed in seeds:
        try:
            notes.update(run_world(seed, kind=kind).notes)
        except Exception as error:
            failed += 1
            print(f"{seed}: {type(error).__name__} {error}"[:2_000], flush=True)
            if len(seeds) == 1:
                raise
    print(f"{len(seeds)} worlds, {failed} broken; {dict(notes)}")
    return 1 if failed else 0


if __name__ == "__main__":
    logs.configure(level="critical" if len(sys.argv) > 2 else "info")
    sys.exit(main())
