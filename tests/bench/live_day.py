"""A day of recorded minutes as live prices, at 600x, with faults: a real service, the real feeder process and ccxt, and
the local exchange.

    python -m tests.bench.live_day FILE [--speed 600] [--hours 24]

FILE: recorded minutes of BTC (.csv.gz) from 2025-05-05 to 2025-05-08. The service's clock and event loop run at the
speed; the feeder keeps its real speed, so a lost connection costs the time of its start. Afterwards all bars of the
service must be those of the file, no bar may have changed, and each stop that the recorded prices reach inside a gap
must have filled there. Ends with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import structlog

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, SystemClock
from bot.service.host import HostOptions, Service, build
from bot.service.live_prices import live_prices
from bot.service.market_data.price_feed import points_of
from bot.service.market_data.simulator import GridCandle
from bot.venue.model.numbers import text_of
from bot.venue.prices.book import level_px
from tests.bench.accelerated import AcceleratedTime, accelerated, feeder_in_real_time
from tests.market_data.exchange import Exchange, Series, cut, half, recorded, served, silent, status

# 2025-05-07
START_MS = 1_746_576_000_000
NAME = "BTCUSDT"
GAP_MINUTES = 20
# two gaps
BETWEEN_SECONDS = 3_600
# that the prices of a gap go beyond those before it
EDGE = 30 * 10**8
# real time between two quotes
POLL_SECONDS = 0.01
# that the feeder has for its first quote: 3 s of real time at 600x
CONNECT_MS = 30 * MINUTE_MS


class Gap(NamedTuple):
    """An outage of the exchange, and a position whose stop the recorded prices reach in it."""

    from_ms: int
    until_ms: int
    side: int
    stop: int
    # the minute that reaches the stop
    reached_ms: int
    # the price at which the stop must fill, before the spread
    ref: int


@dataclass
class Stopped:
    """A position that was opened before a gap."""

    gap: Gap
    headers: dict[str, str]
    # by the book at the moment of the gap, whose spread is that of the last quote
    wanted: str = "no fill"


def scaled_rows(path: Path) -> dict[int, GridCandle]:
    """The recorded candles, scaled 1e8, by their opening."""
    found = {}
    for at, *texts in recorded(path):
        found[at] = GridCandle(at, *(round(float(text) * 1e8) for text in texts))
    return found


def next_gap(candles: dict[int, GridCandle], now_ms: int) -> Gap | None:
    """A gap that begins in four to eight minutes, with a stop that is reached inside it and not before."""
    for from_ms in range(now_ms - now_ms % MINUTE_MS + 4 * MINUTE_MS, now_ms + 8 * MINUTE_MS, MINUTE_MS):
        before = [candles[from_ms + n * MINUTE_MS] for n in range(-9, 2)]
        inside = [candles[from_ms + n * MINUTE_MS] for n in range(2, GAP_MINUTES - 1)]
        for side in (1, -1):
            edge = min(side * (one.low if side > 0 else one.high) for one in before)
            worst = min(side * (one.low if side > 0 else one.high) for one in inside)
            if edge - worst > EDGE:
                # a quarter of the way back from the worst price
                stop = side * ((edge + 3 * worst) // 4)
                stop -= stop % 10**7
                return Gap(from_ms, from_ms + GAP_MINUTES * MINUTE_MS, side, stop, *reference(inside, side, stop))
    return None


def reference(candles: list[GridCandle], side: int, stop: int) -> tuple[int, int]:
    """In which minute and where the prices of these candles reach the stop: at its level, or at the open of a candle
    beyond it.
    """
    for candle in candles:
        for point in points_of("BTC", candle, MINUTE_MS):
            if (point.px - stop) * side <= 0:
                return candle.ts, point.px if point.step == 0 else stop
    raise AssertionError("the stop is not reached")


def price_at(candles: dict[int, GridCandle], at_ms: int) -> int:
    """The price on the way through the minute: the last of its four points."""
    candle = candles[at_ms - at_ms % MINUTE_MS]
    return [point.px for point in points_of("BTC", candle, MINUTE_MS) if point.at_ms <= at_ms][-1]


class Day:
    """The exchange over the day, an account for each gap, and a reader of the bars."""

    def __init__(self, exchange: Exchange, candles: dict[int, GridCandle], end_ms: int) -> None:
        self.exchange = exchange
        self.candles = candles
        self.end_ms = end_ms
        self.gaps: list[Gap] = []
        self.rng = random.Random(27)
        self.faults: Counter[str] = Counter()
        self.stopped: list[Stopped] = []
        self.bars: dict[int, Any] = {}
        self.changed = 0
        self.missed = 0

    async def replay(self) -> None:
        """Move the exchange's clock and price, and let it fail."""
        exchange = self.exchange
        gap_kinds = (self.maintenance, self.delisted, self.silence)
        done: set[int] = set()
        while True:
            now_ms = exchange.now_ms = SystemClock().now_ms()
            exchange.quotes[NAME] = text_of(price_at(self.candles, now_ms))
            for n, gap in enumerate(self.gaps):
                if gap.from_ms <= now_ms < gap.until_ms:
                    gap_kinds[n % len(gap_kinds)](True)
                elif now_ms >= gap.until_ms and n not in done:
                    done.add(n)
                    gap_kinds[n % len(gap_kinds)](False)
            self.small_fault(now_ms)
            await asyncio.sleep(0.5)

    def maintenance(self, on: bool) -> None:
        self.exchange.status_of_all = (503, "<html>maintenance</html>") if on else None
        self.faults["maintenance"] += not on

    def delisted(self, on: bool) -> None:
        self.exchange.delisted = {NAME} if on else set()
        self.faults["delisted"] += not on

    def silence(self, on: bool) -> None:
        self.exchange.quote_faults = [silent] * 50 if on else []
        self.faults["silence"] += not on

    def small_fault(self, now_ms: int) -> None:
        """Order a fault of the next candles, about one each ten minutes."""
        if self.rng.random() > 1 / 1_200:
            return
        exchange = self.exchange
        name = self.rng.choice(("429", "503", "half", "cut", "doubled", "reordered", "clock"))
        self.faults[name] += 1
        if name in ("doubled", "reordered"):
            exchange.is_doubled, exchange.is_shuffled = name == "doubled", name == "reordered"
        elif name == "clock":
            exchange.clock_off_ms = self.rng.choice((0, 0, 5_000, -5_000))
        else:
            made = {"429": status(429, retry_after="2"), "503": status(503), "half": half, "cut": cut}
            exchange.faults = [made[name]]

    async def trade(self, service: Service, http: httpx.AsyncClient) -> None:
        """From time to time open a position with a stop, and then let the exchange fail while the recorded prices
        reach the stop.
        """
        assert service.live is not None
        market = service.live.sources[0].markets[0]
        while True:
            now_ms = SystemClock().now_ms()
            gap = (
                next_gap(self.candles, now_ms)
                if market.closed_reason is None and now_ms < self.end_ms - HOUR_MS
                else None
            )
            if gap is None:
                await asyncio.sleep(60)
                continue
            account = (await http.post("/v1/sandbox/accounts", json={})).raise_for_status().json()
            headers = {"Authorization": f"Bearer {account['apiKey']}"}
            order = {
                "market": "BTC",
                "side": "long" if gap.side > 0 else "short",
                "size": "0.01",
                "leverage": 1,
                "bracket": {"stopLoss": {"px": text_of(gap.stop)}},
            }
            answer = await http.post("/v1/orders", json=order, headers=headers)
            if answer.status_code != 200 or SystemClock().now_ms() > gap.from_ms - MINUTE_MS:
                assert answer.status_code == 200 or answer.json()["error"]["code"] == "market_closed", answer.text
                continue
            self.gaps.append(gap)
            self.stopped.append(Stopped(gap, headers))
            await asyncio.sleep((gap.until_ms - now_ms) / 1_000 + BETWEEN_SECONDS)

    async def read(self, http: httpx.AsyncClient, limit: int = 200) -> None:
        """Read bars as a daemon does, and notice a change."""
        candles = await http.get("/v1/markets/BTC/candles", params={"interval": "1m", "limit": limit})
        for bar in candles.json()["candles"]:
            if bar["closed"]:
                self.changed += self.bars.setdefault(bar["ts"], bar) != bar

    def wrong_bars(self, start_ms: int, end_ms: int) -> int:
        """Minutes whose bar is missing or differs from the recorded one."""
        names = ("open", "high", "low", "close", "volume")
        wrong = 0
        for ts in range(start_ms, end_ms, MINUTE_MS):
            bar = self.bars.get(ts)
            told = None if bar is None else tuple(round(float(bar[name]) * 1e8) for name in names)
            if told != self.candles[ts][1:]:
                wrong += 1
                print(f"wrong: the bar of {ts} is {told}, recorded {self.candles[ts][1:]}")
        return wrong

    async def wrong_stops(self, http: httpx.AsyncClient) -> int:
        """Stops that did not fill at the price of their gap."""
        wrong = 0
        for one in self.stopped:
            trades = (await http.get("/v1/trades", headers=one.headers)).json()["trades"]
            found = [(trade["kind"], trade["avgPx"]) for trade in trades]
            if ("stop_loss", one.wanted) not in found:
                wrong += 1
                print(f"wrong: {one.gap}: wanted {one.wanted}, found {found}")
        return wrong


async def run(day: Day, clock: AcceleratedTime, end_ms: int) -> bool:
    """Live the day. Returns whether every bar and stop is right."""
    service = build(HostOptions(live=("ccxt:binance",), rate_limits=False))
    clock.begin()
    replaying = asyncio.create_task(day.replay())
    missed = service.machine.missed_candle

    def counted(coin: str, candle: GridCandle) -> None:
        day.missed += 1
        market = service.machine.state.markets[coin]
        for one in day.stopped:
            if one.gap.reached_ms == candle.ts:
                one.wanted = text_of(level_px(market, one.gap.ref, -one.gap.side, 0))
        missed(coin, candle)

    service.machine.missed_candle = counted
    await service.start()
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        trading = asyncio.create_task(day.trade(service, http))
        while (now_ms := SystemClock().now_ms()) < end_ms:
            await asyncio.sleep(20 * 60)
            await day.read(http)
            for task in (replaying, trading):
                if task.done():
                    task.result()
        (live,) = service.live.sources
        assert live is not None
        market = live.markets[0]
        # Until all is well again.
        for _ in range(100):
            await asyncio.sleep(60)
            if market.closed_reason is None and market.candles.until_ms >= end_ms:
                break
        await day.read(http, 5_000)
        wrong = day.wrong_bars(START_MS - DAY_MS, end_ms)
        stops = await day.wrong_stops(http)
        print(
            f"{(now_ms - START_MS) // MINUTE_MS:,} minutes lived, {len(day.bars):,} bars read, {live.sessions}"
            f" connections, {day.missed} minutes of gaps"
        )
        print(f"faults: {', '.join(f'{name} {count}' for name, count in sorted(day.faults.items()))}")
        print(f"bars that differ from the file: {wrong}; bars that changed: {day.changed}")
        print(f"stops in gaps: {len(day.stopped)}, of which {stops} did not fill at the price of the gap")
        trading.cancel()
        replaying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replaying
    await service.stop()
    return bool(day.stopped) and bool(day.missed) and not wrong + day.changed + stops


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("file", type=Path)
    given.add_argument("--speed", type=float, default=600)
    given.add_argument("--hours", type=float, default=24)
    asked = given.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    path = asked.file
    candles = scaled_rows(path)
    end_ms = START_MS + int(asked.hours * HOUR_MS)
    exchange = Exchange(START_MS)
    exchange.futures[NAME] = Series([row for row in recorded(path) if row[0] >= START_MS - 2 * DAY_MS])
    # The feeder connects in real time.
    live_prices.SILENCE_MAX_MS = CONNECT_MS
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, served(exchange) as url:
        os.environ["BOT_MARKETS_URL"] = url
        feeder_in_real_time(Path(folder), asked.speed, POLL_SECONDS)
        with accelerated(asked.speed, START_MS) as (loop, clock):
            exchange.quotes[NAME] = text_of(price_at(candles, START_MS))
            is_right = loop.run_until_complete(run(Day(exchange, candles, end_ms), clock, end_ms))
    print(
        f"{time.monotonic() - began:.0f} s of real time, {time.process_time():.0f} s of CPU in the service and the"
        " exchange"
    )
    if not is_right:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
