"""Random worlds of the engine: accounts that do anything, prices that jump, every switch drawn."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from bot.local_exchange import switches
from bot.local_exchange.engine.state import LIQUIDATOR, MAKER
from tests.local_exchange.exchanges import ANN, BOB, EVE, Venue, limit, trigger

USERS = (ANN, BOB, EVE)
COINS = ("BTC", "SOL", "xyz:TSLA", "xyz:GOLD")
TIFS = ("Gtc", "Gtc", "Ioc", "Alo", "FrontendMarket")


class World:
    """One seed: what happens, and what must hold after each step."""

    def __init__(self, seed: int, db: Path | None = None) -> None:
        self.random = Random(f"world:{seed}")
        chosen = switches.drawn(self.random)
        self.venue = Venue(
            usd=self.random.choice(["300", "20000", "3000000"]),
            network=self.random.choice(["testnet", "mainnet"]),
            seed=seed,
            switches=chosen,
            users=USERS,
            db=db,
        )
        for user in USERS:
            self.venue.control("deposit", address=user, usd="5000", dex="xyz")
        self.counts: Counter[str] = Counter()
        self.filled: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.hash = hashlib.sha256()
        self.venue.service.listeners.append(self.hear)
        self.negative: set[str] = set()

    def hear(self, reports: list[Any]) -> None:
        """Follow every report: fills by order, and the reasons of deleveraging."""
        for report in reports:
            self.hash.update(repr(report).encode())
            self.counts[report.kind] += 1
            if report.kind == "order":
                self.sizes[report.row.oid] = max(self.sizes.get(report.row.oid, 0), report.row.orig_sz)
                self.counts[report.row.status] += 1
            elif report.kind == "fill":
                self.filled[report.row.oid] += report.row.sz
                self.counts[report.row.dir] += 1

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()

    # ── What happens ────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        act = self.random.choice(
            [
                *3 * [self.order],
                self.bracket,
                self.position_stop,
                self.stop,
                self.cancel,
                self.modify,
                *2 * [self.price],
                self.trade,
                self.leverage,
                self.margin,
                self.advance,
                self.rare,
            ]
        )
        act()

    def _coin(self) -> tuple[str, int, int]:
        name = self.random.choice(COINS)
        coin = self.venue.exchange.coins[name]
        return name, coin.asset, coin.market.mark

    def _px(self, name: str, mark: int, spread: float) -> str:
        market = self.venue.exchange.coins[name].market
        px = market.grid_down(int(mark * (1 + self.random.uniform(-spread, spread))))
        return _text(max(px, market.tick(px or 1)))

    def _size(self, name: str, mark: int) -> str:
        market = self.venue.exchange.coins[name].market
        usd = self.random.choice([5, 50, 2_000, 30_000, 400_000])
        size = usd * 10**16 // mark // market.lot * market.lot
        return _text(max(size, market.lot))

    def _side(self) -> str:
        return self.random.choice("BA")

    def order(self) -> None:
        name, asset, mark = self._coin()
        reduce = self.random.random() < 0.1
        cloid = f"0x{self.random.randrange(4):032x}" if self.random.random() < 0.2 else None
        px, size = self._px(name, mark, 0.02), self._size(name, mark)
        tif = self.random.choice(TIFS)
        user = self.random.choice(USERS)
        self.venue.place(user, limit(asset, self._side(), size, px, tif, reduce=reduce, cloid=cloid))

    def _triggers(self, name: str, asset: int, mark: int, buys: bool, size: str) -> list[Any]:
        side, sign = ("A", 1) if buys else ("B", -1)
        stop = self._at(name, mark, -sign * self.random.uniform(0.001, 0.05))
        target = self._at(name, mark, sign * self.random.uniform(0.001, 0.05))
        is_market = self.random.random() < 0.7
        orders = [
            trigger(asset, side, size, stop, "sl", px=self._bound(name, stop, side), market=is_market),
            trigger(asset, side, size, target, "tp", px=self._bound(name, target, side), market=is_market),
        ]
        return orders if self.random.random() < 0.7 else orders[:1]

    def _at(self, name: str, mark: int, away: float) -> str:
        return _text(self.venue.exchange.coins[name].market.grid_down(int(mark * (1 + away))))

    def _bound(self, name: str, at: str, side: str) -> str:
        market = self.venue.exchange.coins[name].market
        return _text(market.grid_down(int(float(at) * 1e8 * (1.05 if side == "B" else 0.95))))

    def bracket(self) -> None:
        name, asset, mark = self._coin()
        buys = self.random.random() < 0.5
        size = self._size(name, mark)
        parent = limit(
            asset, "B" if buys else "A", size, self._px(name, mark, 0.01), self.random.choice(["Gtc", "Ioc"])
        )
        children = self._triggers(name, asset, mark, buys, size)
        self.venue.place(self.random.choice(USERS), parent, *children, grouping="normalTpsl")

    def position_stop(self) -> None:
        name, asset, mark = self._coin()
        user = self.random.choice(USERS)
        size = self.random.choice(["0", self._size(name, mark)])
        orders = self._triggers(name, asset, mark, not self.venue.size(user, name).startswith("-"), size)
        self.venue.place(user, *orders, grouping="positionTpsl")

    def stop(self) -> None:
        name, asset, mark = self._coin()
        order = self._triggers(name, asset, mark, self.random.random() < 0.5, self._size(name, mark))[0]
        order["r"] = self.random.random() < 0.5
        self.venue.place(self.random.choice(USERS), order)

    def _open(self, user: str) -> Any:
        orders = list(self.venue.exchange.users[user].orders.values())
        return self.random.choice(orders) if orders else None

    def cancel(self) -> None:
        user = self.random.choice(USERS)
        order = self._open(user)
        if order is not None:
            self.venue.cancel(user, order.asset, order.oid)

    def modify(self) -> None:
        user = self.random.choice(USERS)
        order = self._open(user)
        if order is None:
            return
        mark = self.venue.exchange.coins[order.coin].market.mark
        new = limit(
            order.asset, "B" if order.buy else "A", self._size(order.coin, mark), self._px(order.coin, mark, 0.02)
        )
        action = {"type": "modify", "oid": order.oid, "order": new, "a": self.random.random() < 0.5}
        self.venue.act(user, action)

    def price(self) -> None:
        name, _, mark = self._coin()
        spread = self.random.choice([0.001, 0.01, 0.05, 0.2])
        volume = {"volume": self._size(name, mark)} if self.random.random() < 0.2 else {}
        self.venue.price(name, self._px(name, mark, spread), **volume)

    def trade(self) -> None:
        name, _, mark = self._coin()
        self.venue.control("trade", coin=name, side=self._side(), sz=self._size(name, mark))

    def leverage(self) -> None:
        _, asset, _ = self._coin()
        action = {"type": "updateLeverage", "asset": asset, "isCross": self.random.random() < 0.5}
        self.venue.act(self.random.choice(USERS), {**action, "leverage": self.random.choice([1, 10, 20, 25, 40])})

    def margin(self) -> None:
        _, asset, _ = self._coin()
        usd = self.random.choice([-100_000_000, -5_000_000, 5_000_000, 100_000_000])
        action = {"type": "updateIsolatedMargin", "asset": asset, "isBuy": True, "ntli": usd}
        self.venue.act(self.random.choice(USERS), action)

    def advance(self) -> None:
        self.venue.control("advance", ms=self.random.choice([1, 3_000, 60_000, 3_600_000, 7_200_000]))

    def rare(self) -> None:
        if self.random.random() < 0.1:
            self.venue.control("post_only", ms=3_000)
        elif self.random.random() < 0.5:
            name = self.random.choice(list(switches.BY_NAME)[:-3])
            self.venue.control("switch", name=name, value=self.random.choice(switches.BY_NAME[name].values))

    # ── What must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        exchange = self.venue.exchange
        for name, account in exchange.venue.accounts.items():
            exchange.raw[name].check(account)
            if not account.positions:
                assert account.balance >= 0, name
        for oid, filled in self.filled.items():
            assert filled <= self.sizes.get(oid, filled), oid
        for user in USERS:
            for order in exchange.users[user].orders.values():
                assert 0 < order.sz <= order.orig_sz or order.whole, order
                assert order.status in ("open", "triggered"), order
                in_one_place = order.in_book + (order.oid in exchange.coins[order.coin].triggers) + (not order.is_live)
                assert in_one_place == 1, order
        for coin in exchange.coins.values():
            bid, ask = coin.book.best(buy=True), coin.book.best(buy=False)
            assert bid is None or ask is None or bid < ask, coin.name
            assert not (MAKER in coin.market.holders or LIQUIDATOR in coin.market.holders)

    def digest(self) -> str:
        """Everything that was reported, and the answers that a client gets now."""
        answers = [
            self.venue.info(kind, user=user, startTime=0)
            for user in USERS
            for kind in (
                "userFillsByTime",
                "historicalOrders",
                "frontendOpenOrders",
                "clearinghouseState",
                "userFunding",
            )
        ]
        return self.hash.hexdigest() + hashlib.sha256(json.dumps(answers).encode()).hexdigest()


def _text(scaled: int) -> str:
    whole, rest = divmod(scaled, 10**8)
    return f"{whole}.{rest:08d}".rstrip("0").rstrip(".")
