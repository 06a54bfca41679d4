"""The author of random worlds: reads the state after its own commands and chooses the next command.

All randomness comes from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model import outcome
from bot.venue.model import state as s
from bot.venue.model.numbers import E8, E12
from bot.venue.prices import index
from bot.venue.prices.quiet_band import band_of
from tests.venue.visitors import visit

START_MS = 1_750_000_000_000 // s.HOUR_MS * s.HOUR_MS
MINUTE_MS = 60_000
# commands of one world, without its setup and without sign-ins and webhooks
COMMANDS = 40
VISITS = 0.03
# how often a market gets other rules
CHANGES = 0.01
WALKS = 0.02

Entry = tuple[int, c.Command]
Log = list[Entry]

KINDS = (
    ("BTC", 5, 40, 100_000 * E8, "cross"),
    ("ETH", 4, 25, 2_500 * E8, "cross"),
    ("SOL", 2, 20, 150 * E8, "cross"),
    ("DOGE", 0, 10, 20_000_000, "cross"),
    ("kPEPE", 0, 10, 1_234_500, "cross"),
    ("TLT", 2, 20, 91 * E8, "isolated"),
    ("AAPL", 3, 10, 250 * E8, "isolated"),
    ("XYZ", 1, 3, 31 * E8, "isolated"),
    ("event:RAIN", 0, 1, 41_000_000, "full"),
    ("event:SNOW", 0, 1, 90_000_000, "full"),
)
PATHS = ("adaptive", "ohlc", "olhc", "sl_first", "seeded")
CRONS = ("*/10 * * * *", "*/30 * * * *", "0 * * * *", "30 */2 * * mon-fri", "0 0 1 1 *", "0 0 * * *")
LOW_TIERS = ((0, 40), (3_000 * E8, 25), (10_000 * E8, 10), (40_000 * E8, 5))


# Time from now to the start of a bar.
MINUTES = (0, 0, 0, 0, 0, MINUTE_MS, 90 * MINUTE_MS)


@dataclass(slots=True)
class Author:
    """Writes one world: reads the state after its commands and chooses the next command."""

    rng: random.Random
    state: s.State = field(default_factory=s.State)
    log: Log = field(default_factory=list)
    now_ms: int = START_MS
    tokens: list[tuple[str, str]] = field(default_factory=list)
    made: int = 0
    wild: float = 0.004
    used_keys: list[str] = field(default_factory=list)
    # randomness of sign-ins and webhooks
    doors: random.Random = field(default_factory=lambda: random.Random(0))
    # randomness of maker fees, odd grids and minimums
    terms: random.Random = field(default_factory=lambda: random.Random(0))
    # randomness of rules that change
    rules: random.Random = field(default_factory=lambda: random.Random(0))

    def say(self, command: c.Command, now_ms: int | None = None) -> None:
        if now_ms is not None:
            self.now_ms = now_ms
        self.log.append((self.now_ms, command))
        apply(self.state, command, self.now_ms)

    def number(self) -> int:
        self.made += 1
        return self.made

    def build(self) -> None:
        rng = self.rng
        self.wild = rng.choice((0.001, 0.004, 0.004, 0.02))
        self.say(c.SetRules(s.Rules(fill_at=rng.choice(("now", "now", "next")), paths=rng.choice(PATHS))))
        for kind in rng.sample(KINDS, rng.choice((1, 2, 2, 3))):
            self.say(self.market(*kind))
        for _ in range(rng.choice((1, 1, 2, 3))):
            name = f"acc{self.number()}"
            balance = rng.choice((100, 1_000, 10_000, 10_000, 100_000)) * E8 + rng.randrange(E8)
            self.say(c.OpenAccount(name, f"0x{self.made:040x}", None, balance))

    def market(self, coin: str, sz_decimals: int, leverage: int, px: int, mode: str) -> c.ListMarket:
        rng = self.rng
        if mode == "full":
            return self.event(coin, px)
        half_spread = level_step = level_size = level_growth = 0
        depth = rng.random()
        if depth < 0.6:
            half_spread = rng.choice((0, 500, 10_000, 100_000))
        # Thin: a level holds some hundred or thousand USD.
        if depth < 0.4:
            level_step = rng.choice((1_000, 20_000, 200_000))
            level_size = rng.choice((50, 500, 5_000)) * E8 * E8 // px
            level_growth = rng.choice((0, E8 // 10))
        market = s.MarketSpec(
            coin=coin,
            margin_mode=mode,
            book="main" if mode == "cross" else "stocks",
            sz_decimals=sz_decimals,
            max_leverage=leverage,
            tiers=LOW_TIERS if coin == "BTC" and rng.random() < 0.5 else (),
            half_spread=half_spread,
            level_step=level_step,
            level_size=level_size,
            level_growth=level_growth,
            slippage_bps=rng.choice((100, 200)),
            funding_rate=rng.choice((12_500_000, -90_000_000, 0, 4 * E12 // 100)),
            limit_touch=rng.random() < 0.3,
            taker_rate=rng.choice((45_000, 90_000, 0)),
            maker_rate=self.terms.choice((15_000, 0, -10_001, -2_000_000)),
            **self.grids(sz_decimals, px),
        )
        return c.ListMarket(market, px)

    def grids(self, sz_decimals: int, px: int) -> dict[str, Any]:
        """In a part of the worlds: a tick or a size step that is no power of ten, or another smallest order."""
        terms, found = self.terms, dict[str, Any]()
        if terms.random() < 0.2:
            found |= {"tick": terms.choice((5, 25, 3)) * 10 ** max(0, len(str(px)) - 6), "sig_figs": None}
        if terms.random() < 0.2:
            found["size_step"] = terms.choice((5, 25, 3)) * 10 ** (8 - sz_decimals)
        if terms.random() < 0.2:
            found["min_notional"] = terms.choice((1, 5, 100)) * E8
        return found

    def event(self, coin: str, px: int) -> c.ListMarket:
        """Shares of an event that is settled soon, with the fee of event markets."""
        rng = self.rng
        thin = rng.random() < 0.5
        market = s.MarketSpec(
            coin=coin,
            asset_class="prediction",
            book="events",
            margin_mode="full",
            sz_decimals=0,
            max_leverage=1,
            sig_figs=None,
            px_decimals=3,
            taker_rate=rng.choice((0, 4_000_000, 7_000_000)),
            maker_rate=self.terms.choice((0, -1_000_001)),
            half_spread=rng.choice((0, 200_000, 1_500_000)),
            level_step=200_000 if thin else 0,
            level_size=rng.choice((200, 5_000)) * E8 if thin else 0,
            slippage_bps=rng.choice((100, 500)),
            funding_rate=0,
            limit_touch=rng.random() < 0.3,
            expires_ms=self.now_ms + rng.choice((1, 7, 40, 400)) * MINUTE_MS,
        )
        return c.ListMarket(market, px)

    def change_rules(self) -> None:
        """Another fee or spread of a market, and sometimes another smallest order, which open orders forbid."""
        rules = self.rules
        market = self.state.markets[rules.choice(sorted(self.state.markets))]
        other = {"taker_rate": rules.choice((0, 45_000, 90_000)), "half_spread": rules.choice((0, 500, 10_000))}
        if rules.random() < 0.3:
            other["min_notional"] = rules.choice((1, 5, 100)) * E8
        self.say(c.ChangeListing(replace(market.spec, **other), market.mark))

    # Probabilities with a reason.

    def wait(self) -> None:
        roll = self.rng.random()
        if roll < 0.6:
            self.now_ms += self.rng.randrange(0, 9_000)
        elif roll < 0.63:
            self.now_ms += self.rng.randrange(0, 5 * s.HOUR_MS)
        due = index.next_deadline_ms(self.state)
        if due is not None and due <= self.now_ms:
            self.say(c.RunOverdue() if due < self.now_ms and self.now_ms % 2 else c.Pulse())

    def account(self) -> s.VenueAccount:
        accounts = self.state.accounts
        names = list(accounts)
        return accounts[names[int(self.rng.random() * len(names))]]

    def coin(self, account: s.VenueAccount | None = None) -> str:
        rng = self.rng
        if account is not None and account.positions and rng.random() < 0.5:
            return rng.choice(list(account.positions))
        return rng.choice(list(self.state.markets))

    def moved(self, market: s.VenueMarket, px: int, spread: float) -> int:
        px = max(market.ticks[0] * 10, int(px * (1 + self.rng.gauss(0, spread))), px // 3)
        return outcome.clamp(market.spec, max(market.grid_down(px), market.tick(px)))

    def key(self, account: s.VenueAccount) -> str | None:
        if self.rng.random() < 0.8:
            return None
        keys = [k.id for k in self.state.keys.values() if k.account == account.id and not k.revoked]
        return self.rng.choice(keys) if keys else None

    def leg(self, market: s.VenueMarket, px: int, way: int) -> s.LegSpec:
        rng = self.rng
        off = rng.choice((0.002, 0.005, 0.01, 0.03, 0.1))
        if rng.random() < 0.6:
            return s.LegSpec(pct=int(off * 100 * E8))
        level = max(1, int(px * (1 + way * off)))
        return s.LegSpec(px=level if rng.random() < 0.03 else max(market.grid_down(level), market.tick(level)))

    def order(self, account: s.VenueAccount) -> s.OrderSpec:
        rng = self.rng
        coin = self.coin(account)
        market = self.state.markets[coin]
        side = 1 if rng.random() < 0.5 else -1
        limit = rng.random() < 0.3
        order = s.OrderSpec(coin, side, source="api")
        px = market.mid
        if limit:
            order.type = "limit"
            off = rng.choice((-0.002, 0.0005, 0.002, 0.005, 0.02))
            px = order.limit_px = max(market.tick(px), market.grid_down(int(px * (1 - side * off))))
        leverage = rng.choice((None, None, 1, 2, 5, 10, 20, 40, 60))
        order.leverage = leverage
        order.leverage_mode = "clamp" if rng.random() < 0.6 else "error"
        part = rng.choice((0.01, 0.1, 0.3, 0.6, 0.9, 1.1))
        usd = int(max(15, account.balance / E8 * part * min(leverage or 1, 20)) * E8)
        if rng.random() < 0.5:
            order.usd = usd // 1_000_000 * 1_000_000
        else:
            order.size = max(market.lot, usd * E8 // px // market.lot * market.lot)
            if rng.random() < 0.02:
                order.size += 1
        held = account.positions.get(coin)
        if held is not None and rng.random() < 0.15:
            order.usd, order.size = None, held.size
        if rng.random() < 0.65:
            order.stop = self.leg(market, px, -side)
        if rng.random() < 0.5:
            roll = rng.random()
            order.target = s.LegSpec(r=rng.choice((1, 2, 5)) * E8 // 2) if roll < 0.4 else self.leg(market, px, side)
        if rng.random() < 0.25:
            order.guardians = (self.trail(None),)
            if rng.random() < 0.2:
                order.guardians += (self.dead_man(),)
        if rng.random() < 0.1:
            order.guardians += (
                rng.choice((self.hold(None), self.drawdown(), self.schedule(account), self.dead_man())),
            )
            if rng.random() < 0.03:
                order.guardians += (s.GuardianSpec("kill_switch"),)
        order.require_protection = rng.random() < 0.4
        order.allow_partial = not limit and rng.random() < 0.4
        order.acknowledge_leverage_change = rng.random() < 0.6
        order.reduce_only = rng.random() < 0.06
        if not limit and rng.random() < 0.3:
            order.slippage_bps = rng.choice((0, 10, 100, 1000))
        return order

    def trail(self, coin: str | None) -> s.GuardianSpec:
        rng = self.rng
        spec = s.GuardianSpec("trailing_stop", coin=coin)
        if rng.random() < 0.6:
            spec.trail_pct = rng.choice((10_000_000, 50_000_000, 2 * E8, 10 * E8))
        else:
            spec.trail_r = rng.choice((E8 // 2, E8, 2 * E8))
        if rng.random() < 0.4:
            spec.activate_at_r = rng.choice((E8 // 2, E8))
        return spec

    def dead_man(self) -> s.GuardianSpec:
        return s.GuardianSpec(
            "dead_man_switch",
            heartbeat_seconds=self.rng.choice((60, 90, 600, 59)),
            on_miss=self.rng.choice((None, "cancel_orders", "flatten", "block_opens")),
        )

    def hold(self, coin: str | None) -> s.GuardianSpec:
        return s.GuardianSpec("max_hold", coin=coin, seconds=self.rng.choice((60, 61, 300, 7_200, 59)))

    def drawdown(self) -> s.GuardianSpec:
        pct = self.rng.choice((E8 // 100, E8 // 2, E8, 5 * E8, 30 * E8, 100 * E8))
        return s.GuardianSpec("account_drawdown", max_loss_pct=pct, action=self.action())

    def action(self) -> str | None:
        return self.rng.choice((None, "cancel_orders", "flatten", "block_opens"))

    def schedule(self, account: s.VenueAccount) -> s.GuardianSpec:
        rng = self.rng
        spec = s.GuardianSpec("schedule", cron=rng.choice(CRONS))
        if rng.random() < 0.3:
            spec.action = rng.choice(("cancel_orders", "cancel_orders", "flatten", "block_opens"))
        else:
            spec.order = s.OrderSpec(
                self.coin(account),
                rng.choice((1, -1)),
                usd=rng.choice((5, 20, 300)) * E8,
                leverage=rng.choice((None, 2, 10)),
                leverage_mode="clamp",
                stop=s.LegSpec(pct=rng.choice((E8 // 10, 2 * E8))) if rng.random() < 0.5 else None,
                allow_partial=rng.random() < 0.5,
                reduce_only=rng.random() < 0.1,
                guardians=(self.hold(None),) if rng.random() < 0.1 else (),
            )
        return spec

    # The possible commands.

    def bar(self, *, narrow: bool = False) -> None:
        """The same minute for one market or for all of them, or a later one."""
        rng = self.rng
        state = self.state
        at_ms = -(-self.now_ms // MINUTE_MS) * MINUTE_MS + rng.choice(MINUTES)
        coins = [self.coin()] if rng.random() < 0.6 else list(state.markets)
        for coin in coins:
            market = state.markets[coin]
            if market.spec.margin_mode == "full":
                narrow = False
            spread = 0.0002 if narrow else self.wild
            start = market.mark
            if rng.random() < 0.15:
                start = self.moved(market, start, rng.choice((0.003, 0.02, 0.15)))
            points = [start, *(self.moved(market, start, spread) for _ in range(3))]
            bar = c.PassBar(
                coin,
                at_ms,
                start,
                max(points),
                min(points),
                points[3],
                rng.choice((0, 1, 50, 10_000, 1_000_000)) * E8,
                path=rng.choice((None, None, *PATHS)),
                seed=7,
            )
            self.say(bar, max(self.now_ms, at_ms + MINUTE_MS - 1))

    def walk(self) -> None:
        """A minute of several markets at once, bar by bar or point by point, as a backtest plays it."""
        rng = self.rng
        bar_ms = -(-self.now_ms // MINUTE_MS) * MINUTE_MS
        found = []
        for order, (coin, market) in enumerate(self.state.markets.items()):
            if rng.random() < 0.3:
                continue
            pxs = [market.mark, *(self.moved(market, market.mark, self.wild) for _ in range(3))]
            volume = rng.choice((0, 50, 1_000_000)) * E8
            for step, at_ms in enumerate((bar_ms, bar_ms + 20_000, bar_ms + 40_000, bar_ms + MINUTE_MS - 1)):
                rest = pxs[step + 1 :]
                ahead = (min(rest), max(rest)) if self.state.rules.paths == "sl_first" and rest else None
                found.append((at_ms, order, (at_ms, coin, pxs[step], step, bar_ms, volume, ahead, pxs[3])))
        # As a service sends it, point by point.
        if bar_ms // MINUTE_MS % 3 == 0:
            opens = [point for at_ms, _, point in found if at_ms == bar_ms]
            self.say(c.PayFunding(tuple((point[1], point[2]) for point in opens)), bar_ms)
        if found and rng.random() < 0.5:
            walks = [
                [px for _, place, (_, _, px, *_) in found if place == order]
                for order in {one[1]: None for one in found}
            ]
            self.say(
                c.PassBars(
                    tuple(
                        c.PassBar(point[1], bar_ms, pxs[0], max(pxs), min(pxs), pxs[3], point[5])
                        for pxs, (_, _, point) in zip(walks, found[::4], strict=True)
                    )
                ),
                bar_ms + MINUTE_MS - 1,
            )
            return
        until_ms = bar_ms + MINUTE_MS - 1 + rng.choice((0, 0, 90 * MINUTE_MS))
        found.sort(key=lambda one: one[:2])
        self.say(c.PassPoints(tuple(point for *_, point in found), until_ms), until_ms)

    def quiet_bar(self) -> None:
        self.bar(narrow=True)

    def point(self) -> None:
        rng = self.rng
        due = index.next_deadline_ms(self.state)
        if due is not None and due < self.now_ms:
            self.say(c.Pulse())
        coin = self.coin()
        market = self.state.markets[coin]
        step = rng.choice((0, 0, 1, 2, 3))
        bar_ms = self.now_ms // MINUTE_MS * MINUTE_MS
        if bar_ms == market.bar_ms:
            # A bar that was passed whole is not played again.
            step = 0
        px = self.moved(market, market.mark, rng.choice((self.wild, 0.03)))
        volume = rng.choice((None, None, 10 * E8, 100_000 * E8)) if step == 0 else None
        self.say(c.PricePoint(coin, px, step=step, bar_ms=bar_ms, volume=volume))

    def place(self) -> None:
        account = self.account()
        key = None
        if self.rng.random() < 0.1:
            key = self.rng.choice(self.used_keys) if self.used_keys and self.rng.random() < 0.3 else f"k{self.number()}"
            self.used_keys.append(key)
        expires = self.now_ms + self.rng.choice((-1, 0, 5_000)) if self.rng.random() < 0.03 else None
        self.say(c.PlaceOrder(account.id, self.order(account), self.key(account), None, key, expires))

    def plan(self) -> None:
        account = self.account()
        token = f"t{self.number()}"
        self.tokens.append((account.id, token))
        drift = self.rng.choice((0, 50, 500))
        self.say(c.StorePlan(account.id, self.order(account), token, self.rng.choice((1, 60_000)), drift, None))

    def confirm(self) -> None:
        if not self.tokens:
            return self.plan()
        account, token = self.tokens[-1] if self.rng.random() < 0.8 else self.rng.choice(self.tokens)
        return self.say(c.ConfirmPlan(account, token, self.key(self.state.accounts[account])))

    def close(self) -> None:
        rng = self.rng
        account = self.account()
        coin = self.coin(account)
        held = account.positions.get(coin)
        close = c.ClosePosition(account.id, coin, key=self.key(account))
        roll = rng.random()
        if roll < 0.3:
            close.fraction = rng.choice((E8 // 4, E8 // 2, E8))
        elif roll < 0.45:
            close.usd = rng.choice((5, 20, 500)) * E8
        elif roll < 0.65 and held is not None:
            close.size = max(1, held.size // rng.choice((1, 2, 3)))
            close.size = -(-close.size // (lot := self.state.markets[coin].lot)) * lot
        if rng.random() < 0.2:
            close.slippage_bps = rng.choice((0, 1, 100))
        self.say(close)

    def cancel(self) -> None:
        account = self.account()
        if not account.orders:
            return self.place()
        number = self.rng.choice(list(account.orders))
        return self.say(c.CancelOrder(account.id, s.oid_text(account, number)))

    def cancel_coin(self) -> None:
        account = self.account()
        self.say(c.CancelCoin(account.id, self.coin(account)))

    def arm(self) -> None:
        account = self.account()
        roll = self.rng.random()
        if roll < 0.25:
            spec = self.dead_man()
        elif roll < 0.5:
            spec = self.trail(self.coin(account))
        elif roll < 0.65:
            spec = self.hold(self.coin(account))
        elif roll < 0.82:
            spec = self.drawdown()
        else:
            spec = self.schedule(account)
        spec.bounded = True
        self.say(c.ArmGuardian(account.id, spec, key=self.key(account)))

    def kill(self) -> None:
        account = self.account()
        if self.rng.random() < 0.5:
            self.say(c.Kill(account.id, self.rng.random() < 0.5, key=self.key(account)))
        else:
            spec = s.GuardianSpec("kill_switch", action=self.action(), bounded=True)
            self.say(c.ArmGuardian(account.id, spec, key=self.key(account)))
        # A world with a permanently blocked account tests little more.
        if self.rng.random() < 0.7:
            standing = next(n for n, g in account.guardians.items() if g.spec.type == "kill_switch")
            self.say(c.DisarmGuardian(account.id, s.guardian_id(account, standing)))

    def disarm(self) -> None:
        account = self.account()
        if not account.guardians:
            return self.arm()
        number = self.rng.choice(list(account.guardians))
        return self.say(c.DisarmGuardian(account.id, s.guardian_id(account, number)))

    def beat(self) -> None:
        self.say(c.Heartbeat(self.account().id))

    def pulse(self) -> None:
        self.say(c.Pulse(), self.now_ms + self.rng.choice((0, 61_000, s.HOUR_MS, s.DAY_MS)))

    def settle(self) -> None:
        """Rare commands: settings, keys, resets, halts, downtime, a skipped bar."""
        rng = self.rng
        account = self.account()
        roll = rng.random()
        if roll < 0.08:
            self.kill()
        elif roll < 0.2:
            cap = rng.choice((None, 100 * E8, 5_000 * E8))
            self.say(c.ChangeSettings(account.id, cap, rng.choice((None, 500 * E8, 20_000 * E8))))
        elif roll < 0.5:
            key = s.VenueKey(
                f"key{self.number()}",
                account.id,
                "key",
                "bbk",
                "d",
                rng.choice((("trade",), ("trade", "outcomes"), ("outcomes",))),
                self.now_ms,
                "key",
                max_exposure=rng.choice((None, 2_000 * E8)),
                max_daily_notional=rng.choice((None, 1_000 * E8)),
                max_leverage=rng.choice((None, 2, 10)),
                allowed_coins=rng.choice((None, (self.coin(),))),
                max_open_positions=rng.choice((None, 1)),
            )
            self.say(c.CreateKey(key))
        elif roll < 0.55:
            keys = [k for k in self.state.keys.values() if k.account == account.id]
            if keys:
                self.say(c.RevokeKey(account.id, rng.choice(keys).id, sweeps=True))
        elif roll < 0.65:
            self.say(c.ResetAccount(account.id, rng.choice((None, 500 * E8))))
        elif roll < 0.8:
            coin = self.coin()
            status = rng.choice(("halted", "open", "open", None))
            market = self.state.markets[coin]
            if market.status == "settled":
                return
            if market.status != "open":
                status = "open"
            told = c.SetMarket(coin, status, rng.choice((None, 4 * E12 // 100, -E12 // 100)))
            if market.spec.margin_mode == "full":
                told.funding_rate, told.outcome_px = None, rng.choice((None, 0, E8, E8 // 2, 33_333_333))
            elif rng.random() < 0.4:
                told.external, told.turns_ms = rng.choice(("open", "closed")), self.now_ms + s.HOUR_MS
            self.say(told)
        elif roll < 0.9:
            coin = self.coin()
            market = self.state.markets[coin]
            px = self.moved(market, market.mark, 0.0005)
            band = band_of(self.state, coin)
            if band.lo < px / E8 < band.hi:
                self.say(c.SetMarks(((coin, px),)))
        else:
            away = rng.choice((1_000, 30_000, 500_000))
            self.say(c.ShiftDeadlines(away, 20_000))
            self.now_ms += away

    def write(self, commands: int) -> Log:
        self.build()
        rng = self.rng
        end = len(self.log) + commands
        while len(self.log) < end:
            if self.doors.random() < VISITS:
                before = len(self.log)
                # After downtime, as the service does before its first command to the venue.
                if self.state.now_ms < self.now_ms:
                    self.say(c.Pulse())
                visit(self)
                end += len(self.log) - before
            if self.doors.random() < WALKS:
                self.walk()
            if self.rules.random() < CHANGES:
                self.change_rules()
            self.wait()
            act = rng.choices(ACTS, cum_weights=WEIGHTS)[0]
            act(self)
        return self.log


def _weights(table: Iterable[tuple[Callable[[Author], None], int]]) -> tuple[list[Any], list[int]]:
    acts, weights, total = [], [], 0
    for act, weight in table:
        total += weight
        acts.append(act)
        weights.append(total)
    return acts, weights


ACTS, WEIGHTS = _weights(
    (
        (Author.bar, 24),
        (Author.quiet_bar, 4),
        (Author.point, 14),
        (Author.place, 24),
        (Author.plan, 5),
        (Author.confirm, 7),
        (Author.close, 6),
        (Author.cancel, 3),
        (Author.cancel_coin, 1),
        (Author.arm, 6),
        (Author.disarm, 1),
        (Author.beat, 2),
        (Author.pulse, 2),
        (Author.settle, 4),
    )
)


def write(seed: int, commands: int = COMMANDS) -> tuple[Log, Exception | None]:
    """The world of a seed.

    If a command raises in the venue, it is the last of the log and the error is returned too.
    """
    author = Author(
        random.Random(seed),
        doors=random.Random(~seed),
        terms=random.Random(f"terms {seed}"),
        rules=random.Random(f"rules {seed}"),
    )
    try:
        author.write(commands)
    except Exception as error:  # noqa: BLE001 - `play` meets it again and says where.
        return author.log, error
    return author.log, None
