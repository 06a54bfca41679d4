"""A world of live prices in virtual time: an exchange that fails, the real source, the real LivePrices and machine,
accounts with brackets, restarts.

What is checked:
- after every command, all invariants of the venue: money, brackets, protection, levels
(`tests.venue.invariants.Watch`);
- every price that reaches the machine is one that the exchange showed, in the exchange's order, each once: the mid of a
good quote, or the four
  prices of a closed candle. A minute of which a part was lived through gives its close alone. While somebody holds a
  position, nothing that traded between two prices more than `GAP_MS` apart is left out;
- no position is left beyond its armed stop;
- a fill lies between the prices that the venue moved through, with the spread of the book (see `check_fill`);
- a closed candle never changes, never comes twice, and no candle comes before one that was read;
- in the end the markets are open, and the candles of all intervals are the exchange's to the last digit.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from bot.clock import SystemClock
from bot.errors import Refusal
from bot.market_data.ccxt_source import CcxtSource
from bot.market_data.source import LiveSource
from bot.model.events import FillEvent
from bot.service.live_prices.listings import live_options
from bot.service.live_prices.live_market import AGE_MAX_MS
from bot.service.live_prices.live_prices import SAVED_AGE_MS, LivePrices
from bot.service.market_data.simulator import GridCandle
from bot.service.state_machine import machine as machine_module
from bot.service.state_machine.bootstrap import PriceOptions, open_machine
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.machine import Machine
from bot.venue.apply import Applied, apply
from bot.venue.model import commands as c
from bot.venue.model.state import GuardianSpec, LegSpec, OrderSpec, State
from bot.venue.prices.book import level_px
from bot.wire.vocabulary import INTERVAL_MS
from tests.integration.virtual import virtual_time
from tests.service.live_prices.faulty_exchange import MINUTE, SLOT, FaultyExchange, FaultyFeeder, Truth, draw
from tests.venue.books import Broken, demand
from tests.venue.invariants import Watch

COINS: Final = {"BTC/USDT:USDT": "BTC", "ETH/USDT:USDT": "ETH"}
SYMBOLS: Final = tuple(COINS)
# with faults
LENGTH_MS: Final = 25 * MINUTE
CALM_MS: Final = 6 * MINUTE
# an open market may miss as much
GAP_MS: Final = AGE_MAX_MS + 2 * SLOT
E8: Final = 10**8


@dataclass
class Seen:
    """What one market has lived through, by the exchange's clock, and the candles that were read."""

    truth: Truth
    lived_ms: int
    # when the newest quote came: one that is sent again says that its price still holds
    heard_ms: int = 0
    # quotes before it are too old to be applied
    next_shown: int = 0
    bars: dict[str, dict[int, GridCandle]] = field(default_factory=dict)


class World:
    """One seed."""

    def __init__(self, seed: int, db: Path) -> None:
        self.seed = seed
        self.db = db
        self.exchange: FaultyExchange
        self.machine: Machine
        self.prices: LivePrices
        self.watch: Watch | None = None
        self.seen: dict[str, Seen] = {}
        self.counts: dict[str, int] = {}
        self.is_durable = False

    # ── Running ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> dict[str, int]:
        """Live the world. Returns counts of what happened. Broken if an invariant does not hold."""
        with pytest.MonkeyPatch.context() as patch, virtual_time() as (loop, clocks):
            clocks.slept_ns = (self.seed * 7_919 % 86_400) * 10**9 + 3_600 * 10**9
            patch.setattr(machine_module, "apply", self.applied)
            loop.run_until_complete(self.live())
        return self.counts

    async def live(self) -> None:
        start_ms = SystemClock().now_ms()
        calm_ms = start_ms + LENGTH_MS
        end_ms = calm_ms + CALM_MS
        self.exchange = draw(self.seed, start_ms, calm_ms, end_ms + 10 * MINUTE, SYMBOLS)
        rng = self.exchange.rng
        self.is_durable = rng.random() < 0.5
        self.seen = {
            COINS[name]: Seen(one, start_ms + self.exchange.skew_ms) for name, one in self.exchange.truths.items()
        }
        self.open()
        task = asyncio.create_task(self.serve())
        try:
            while (now_ms := SystemClock().now_ms()) < end_ms:
                await asyncio.sleep(rng.uniform(2, 20))
                if task.done():
                    task.result()
                if now_ms < calm_ms and self.is_durable and rng.random() < 0.04:
                    await self.end(task, is_killed=rng.random() < 0.5)
                    await asyncio.sleep(rng.choice((1.0, 20.0, 200.0)))
                    self.open()
                    task = asyncio.create_task(self.serve())
                self.act()
                self.read(rng.choice(list(INTERVAL_MS)))
            self.check_end()
        finally:
            if not task.done():
                await self.end(task, is_killed=False)

    def source(self, _name: str = "") -> LiveSource:
        # has what is used
        made: Any = CcxtSource("fake", feeder=FaultyFeeder(self.exchange))
        return made

    def open(self) -> None:
        """Start the service."""
        options = live_options("ccxt:fake", tuple(f"{coin}={name}" for name, coin in COINS.items()), self.source)
        path = self.db if self.is_durable else None
        machine = self.machine = open_machine(
            CommandLog(path), speed=1.0, prices=PriceOptions(markets=tuple(COINS.values()), live=(options,))
        )
        self.watched(machine)
        self.prices = LivePrices(machine, self.source)
        machine.log.start()
        self.prices.begin()
        self.count("starts")

    async def serve(self) -> None:
        """The prices and the clock of a service, until cancelled."""
        await asyncio.gather(self.prices.run(), self.tick())

    async def tick(self) -> None:
        while True:
            self.machine.catch_up()
            self.machine.save_clock()
            await asyncio.sleep(1.0)

    async def end(self, task: asyncio.Task[None], *, is_killed: bool) -> None:
        """Stop the service, or kill it after its last command is on disk."""
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if not is_killed:
            self.machine.catch_up()
            self.machine.snapshot()
            self.machine.save_clock(final=True)
        self.machine.log.close()

    # ── The accounts ────────────────────────────────────────────────────────────────────────────────────────────────

    def act(self) -> None:
        """One act of an account."""
        rng, machine = self.exchange.rng, self.machine
        machine.catch_up()
        name = rng.choice(("a", "b"))
        if name not in machine.state.accounts:
            machine.run(c.OpenAccount(name, f"0x{name}", None, 100_000 * E8))
        coin = rng.choice(list(COINS.values()))
        account = machine.state.accounts[name]
        if coin in account.positions:
            if rng.random() < 0.1:
                answer = machine.run(c.ClosePosition(name, coin))
                self.count("closes" if not isinstance(answer, Refusal) else answer.code)
            return
        if rng.random() < 0.4:
            return
        pct = rng.choice((0.3, 0.5, 1.0, 3.0))
        stop = LegSpec(pct=int(pct * E8))
        target = LegSpec(pct=int(pct * rng.choice((0.5, 2.0)) * E8)) if rng.random() < 0.6 else None
        trail = (GuardianSpec("trailing_stop", coin=coin, trail_pct=2 * E8),) if rng.random() < 0.2 else ()
        size = rng.randrange(1, 20) * (10**6 if coin == "BTC" else 10**8) // 10
        limit_px = None
        if rng.random() < 0.2:
            mark = machine.state.markets[coin].mark
            limit_px = mark * rng.choice((995, 998, 1_000, 1_002)) // 1_000 // 10**7 * 10**7
        order = OrderSpec(
            coin,
            rng.choice((1, -1)),
            size=size,
            leverage=rng.choice((1, 5, 20)),
            type="market" if limit_px is None else "limit",
            limit_px=limit_px,
            require_protection=True,
            stop=stop,
            target=target,
            guardians=trail,
        )
        answer = machine.run(c.PlaceOrder(name, order))
        self.count("orders" if not isinstance(answer, Refusal) else answer.code)

    # ── What every command must keep ────────────────────────────────────────────────────────────────────────────────

    def applied(self, state: State, command: c.Command, now_ms: int) -> Applied:
        """The venue's `apply` with all invariants."""
        if self.watch is None:
            self.watch = Watch(state)
        # After a restart: another object with the same content.
        self.watch.state = state
        before = {coin: market.mid for coin, market in state.markets.items()}
        applied = apply(state, command, now_ms)
        self.watch.judge(command, applied.answer, list(applied.events), was_calm=False)
        for event in applied.events:
            self.count(f"{type(event).__name__}.{getattr(event, 'subtype', '')}")
            if isinstance(event, FillEvent):
                self.check_fill(state, command, event, before[event.coin])
        return applied

    def check_fill(self, state: State, command: c.Command, fill: FillEvent, last: int) -> None:
        """A fill is made at a price of the source. A taker pays the half spread beside it; a maker gets its limit or
        better.

        The price is the market's last one for a client's order, the new one if the price jumps, and one between both on
        the way inside a candle. A target waits for the close of the candle in which a limit opened its position, and
        then fills at its own price.
        """
        market = state.markets[fill.coin]
        buy = (1 if fill.side == "long" else -1) * (1 if fill.subtype == "entry" else -1)
        if isinstance(command, c.QuotePoint) and command.coin == fill.coin:
            mid = (command.bid + command.ask) // 2
            ends = (last, mid) if fill.liquidity == "maker" else (mid, mid)
        elif isinstance(command, c.PricePoint) and command.coin == fill.coin:
            ends = (last, command.px) if command.step or fill.liquidity == "maker" else (command.px, command.px)
            candle = self.seen[fill.coin].truth.minute(command.bar_ms)
            if candle is not None and command.step == 3 and fill.kind == "take_profit":
                ends = (candle.low, candle.high)
        else:
            ends = (last, last)
        low, high = (level_px(market, px, buy, 0) for px in (min(ends), max(ends)))
        if fill.liquidity == "maker":
            low, high = min(low, *ends), max(high, *ends)
        demand(
            low <= fill.px <= high, "a fill at a price that the source never showed", fill, command, ends, (low, high)
        )
        self.count("fills in gaps", int(market.external == "open" and self.in_gap))

    # ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────

    in_gap = False

    def watched(self, machine: Machine) -> None:
        """Check the two ways in which prices reach a machine."""
        live_quote, missed_candle = machine.live_quote, machine.missed_candle

        def checked_quote(coin: str, mark: int, bid: int, ask: int) -> int:
            self.check_quote(coin, mark, bid, ask)
            at = live_quote(coin, mark, bid, ask)
            self.check_stops(coin, mark)
            return at

        def checked_candle(coin: str, candle: GridCandle) -> None:
            self.check_missed(coin, candle)
            self.in_gap = True
            missed_candle(coin, candle)
            self.in_gap = False
            self.check_stops(coin, candle.close)

        machine.live_quote = checked_quote
        machine.missed_candle = checked_candle

    def check_quote(self, coin: str, px: int, bid: int, ask: int) -> None:
        seen = self.seen[coin]
        shown = seen.truth.shown
        slack = 0 if self.exchange.has_times else abs(self.exchange.skew_ms)
        fits = [
            n for n in range(seen.next_shown, len(shown)) if shown[n][1] == px and shown[n][0] + slack >= seen.lived_ms
        ]
        if not fits and shown[-1][1] == px:
            # The newest quote again: there is nothing newer.
            fits = [len(shown) - 1]
        if not fits:
            older = [one for one in shown if one[1] == px]
            raise Broken(
                f"a price that the source did not show now: {coin} {px}, shown {older[-3:]}, lived to {seen.lived_ms}"
            )
        tick = seen.truth.tick
        demand((bid, ask) == (px - tick, px + tick), "the bid and the ask of the source", coin, px, bid, ask)
        waited = any(market.coin == coin and market._waiting for market in self.prices.markets)
        at = fits[0] if waited else fits[-1]
        seen.next_shown = at
        at_ms = shown[at][0]
        self.check_nothing_skipped(coin, at_ms)
        seen.lived_ms, seen.heard_ms = max(seen.lived_ms, at_ms), self.exchange.now_ms()
        self.count("quotes")

    def check_missed(self, coin: str, candle: GridCandle) -> None:
        seen = self.seen[coin]
        true = seen.truth.minute(candle.ts)
        assert true is not None, f"there is no candle {candle.ts}"
        # The service takes the time of the last quote from its own clock.
        slack = abs(self.exchange.skew_ms)
        demand(
            candle.ts + MINUTE + slack > seen.lived_ms,
            "a minute that was lived through already",
            coin,
            candle,
            seen.lived_ms,
        )
        if candle[1:5] == (true.close,) * 4 and candle != true:
            # A kill forgets up to SAVED_AGE_MS of silence.
            demand(
                candle.ts < max(seen.lived_ms, seen.heard_ms) + slack + SAVED_AGE_MS,
                "a minute of which nothing was lived through gives its close alone",
                candle,
            )
        else:
            demand(candle == true, "a candle that the source never showed", candle, true)
            demand(
                candle.ts + slack >= seen.lived_ms or candle.high == candle.low,
                "a minute of which a part was lived through",
                coin,
                candle,
                seen.lived_ms,
            )
        self.check_nothing_skipped(coin, candle.ts)
        seen.lived_ms = max(seen.lived_ms, candle.ts + MINUTE)
        self.count("missed minutes")

    def check_nothing_skipped(self, coin: str, until_ms: int) -> None:
        """While somebody holds a position here, no price of a gap is left out."""
        seen = self.seen[coin]
        if not self.machine.state.markets[coin].holders:
            return
        heard_ms = max(seen.lived_ms, seen.heard_ms)
        first = heard_ms - heard_ms % SLOT + SLOT
        left_out = [at for at in range(first, until_ms - GAP_MS, SLOT) if seen.truth.mid(at) is not None]
        demand(not left_out, "prices of a gap were left out", coin, seen.lived_ms, until_ms, len(left_out))

    def check_stops(self, coin: str, px: int) -> None:
        """No position is beyond its stop."""
        for account in self.machine.state.accounts.values():
            position = account.positions.get(coin)
            if position is not None and position.stop_oid is not None:
                stop = account.orders[position.stop_oid]
                assert stop.trigger_px is not None
                beyond = (px - stop.trigger_px) * position.side <= 0 and stop.status == "armed"
                demand(not beyond, "a position beyond its stop", account.id, position, stop.trigger_px, px)

    # ── Candles ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, interval: str) -> None:
        """Read candles as a client does, and compare the closed ones with those that were read before."""
        now_ms = self.machine.clock.now_ms()
        for market in self.prices.markets:
            page = market.candles.page(interval, 500, now_ms)
            closed = [candle for candle, is_closed in page if is_closed]
            known = self.seen[market.coin].bars.setdefault(interval, {})
            opens = [candle.ts for candle, _ in page]
            demand(opens == sorted(set(opens)), "candles in order, each once", market.coin, interval)
            newest = max(known, default=0)
            for candle in closed:
                if candle.ts in known:
                    demand(known[candle.ts] == candle, "a closed candle changed", interval, candle, known[candle.ts])
                elif candle.ts > min(known, default=0):
                    demand(candle.ts > newest, "a candle came after a later one", market.coin, interval, candle)
            known |= {candle.ts: candle for candle in closed}

    def check_end(self) -> None:
        """All is well again: open markets, and the exchange's candles."""
        now_ms = self.machine.clock.now_ms()
        for market in self.prices.markets:
            truth = self.seen[market.coin].truth
            demand(market.closed_reason is None, "the market is open again", market.coin, market.closed_reason)
            demand(
                market.candles.until_ms > now_ms - 2 * MINUTE - 10_000,
                "the candles are up to now",
                market.coin,
                now_ms - market.candles.until_ms,
            )
            for interval, step in INTERVAL_MS.items():
                self.read(interval)
                bars = self.seen[market.coin].bars[interval]
                until_ms = market.candles.until_ms
                first = truth.listed_ms - truth.listed_ms % step
                found = (truth.candle(interval, ts) for ts in range(first, until_ms - step + 1, step))
                wanted = {candle.ts: candle for candle in found if candle is not None}
                demand(
                    bars == wanted,
                    "the candles are the exchange's",
                    market.coin,
                    interval,
                    sorted(set(bars.items()) ^ set(wanted.items()))[:6],
                )
        self.count("worlds")

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number


def lived(seed: int, folder: Path) -> World:
    """The world of a seed. AssertionError that names the seed and its faults if an invariant does not hold."""
    world = World(seed, folder / f"{seed}.db")
    try:
        world.run()
    except (Broken, AssertionError) as error:
        exchange = world.exchange
        faults = "\n".join(
            f"  {one.name} {one.symbol or ''}"
            f" {(one.from_ms - exchange.skew_ms) % 86_400_000 / 1000:.0f}"
            f"..{(one.until_ms - exchange.skew_ms) % 86_400_000 / 1000:.0f}"
            for one in exchange.faults
        )
        raise AssertionError(f"seed {seed}, skew {exchange.skew_ms} ms: {error}\n{faults}") from error
    return world


__all__ = ["World", "lived"]
