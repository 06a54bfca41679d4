"""An exchange behind the feeder's interface whose prices and faults are functions of a seed. `ccxt_source` reads it as
it reads the feeder process.

Times of `Truth` are the exchange's; its clock differs from ours by `skew_ms`. A price is scaled 1e8.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, Self

from bot.clock import SystemClock
from bot.market_data.feeder_client import Failure
from bot.market_data.source import NoAnswer, SourceError
from bot.service.market_data.candles import merge
from bot.service.market_data.simulator import GridCandle
from bot.wire.vocabulary import INTERVAL_MS

MINUTE: Final = 60_000
# the price changes this often
SLOT: Final = 5_000
SLOTS: Final = MINUTE // SLOT
# after which the feeder's client gives up
ANSWER_SECONDS: Final = 120

# Each fault: (name, longest duration in seconds, whether it may strike one market alone).
FAULTS: Final = (
    # an open stream that sends nothing
    ("silence", 200, True),
    ("cut", 5, False),
    # every connection is cut after a batch or two
    ("storm", 150, False),
    # the feeder process cannot start
    ("no_start", 100, False),
    ("bad_ticks", 300, True),
    # quotes and candles come twice
    ("doubled", 300, False),
    # older quotes after newer ones, candles in any order
    ("reordered", 300, False),
    # the newest closed candle is not there for up to a minute
    ("late_candles", 300, True),
    # The oldest candles of a large window are skipped.
    ("short_pages", 300, False),
    ("delisted", 300, True),
    ("unreachable", 200, True),
    ("busy", 100, False),
    # an answer that ccxt cannot read
    ("failed", 60, True),
    # half an answer, of which ccxt makes an empty one
    ("empty", 100, True),
    ("country", 60, False),
    # no answer to a request
    ("hang", 250, True),
    # no trade, no quote, no answer
    ("maintenance", 400, False),
)
NAMES: Final = tuple(name for name, _, _ in FAULTS)


class Fault(NamedTuple):
    """A fault from one instant to another, of the exchange's clock. `symbol` None: of all markets."""

    name: str
    from_ms: int
    until_ms: int
    symbol: str | None


@dataclass
class Truth:
    """The prices of one market: a mid for each slot since it was listed, None in maintenance."""

    symbol: str
    tick: int
    listed_ms: int
    path: list[int | None]
    # (instant, mid) of the good quotes that were sent
    shown: list[tuple[int, int]] = field(default_factory=list)
    rows: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def mid(self, at_ms: int) -> int | None:
        """The mid at an instant."""
        slot = (at_ms - self.listed_ms) // SLOT
        return self.path[slot] if 0 <= slot < len(self.path) else None

    def minute(self, ts: int, until_ms: int | None = None) -> GridCandle | None:
        """The candle of the minute from its trades before `until_ms`. None without a trade."""
        slot = (ts - self.listed_ms) // SLOT
        count = SLOTS if until_ms is None else max(0, min(SLOTS, (until_ms - ts) // SLOT))
        pxs = [px for px in self.path[max(0, slot) : max(0, slot + count)] if px is not None]
        if not pxs:
            return None
        return GridCandle(ts, pxs[0], max(pxs), min(pxs), pxs[-1], (len(pxs) * 7 + pxs[0] // self.tick % 97) * 10**5)

    def candle(self, interval: str, ts: int, until_ms: int | None = None) -> GridCandle | None:
        """The candle of any interval. `until_ms`: of an unfinished one."""
        end_ms = ts + INTERVAL_MS[interval]
        first = max(ts, self.listed_ms)
        found = (self.minute(at, until_ms) for at in range(first, min(end_ms, until_ms or end_ms), MINUTE))
        return merge((one for one in found if one is not None), ts)

    def row(self, interval: str, ts: int, now_ms: int) -> list[float] | None:
        """The candle as the exchange answers it now."""
        is_closed = ts + INTERVAL_MS[interval] <= now_ms
        if (interval, ts) in self.rows:
            return self.rows[interval, ts]
        candle = self.candle(interval, ts, None if is_closed else now_ms)
        if candle is None:
            return None
        made = [candle.ts, *map(unscaled, candle[1:])]
        if is_closed:
            self.rows[interval, ts] = made
        return made


@dataclass
class FaultyExchange:
    """What a feeder asks. `faults` are drawn before the prices, because nothing trades in maintenance."""

    rng: random.Random
    truths: dict[str, Truth]
    faults: list[Fault]
    skew_ms: int
    # its quotes have times
    has_times: bool
    # seconds between two quotes
    period: float
    # names of the faults that took effect
    struck: set[str] = field(default_factory=set)

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.skew_ms

    def has(self, name: str, symbol: str | None = None) -> bool:
        """True while this fault lasts for this market."""
        now_ms = self.now_ms()
        for fault in self.faults:
            if fault.name == name and fault.from_ms <= now_ms < fault.until_ms and fault.symbol in (None, symbol):
                self.struck.add(name)
                return True
        return False

    def quote(self, truth: Truth, at_ms: int) -> list[Any] | None:
        """The quote of this instant. It counts as shown."""
        mid = truth.mid(at_ms)
        if mid is None:
            return None
        truth.shown.append((at_ms, mid))
        at = at_ms if self.has_times else None
        return [truth.symbol, at, unscaled(mid - truth.tick), unscaled(mid + truth.tick), unscaled(mid)]

    def bad_quote(self, truth: Truth, at_ms: int) -> list[Any]:
        """A quote without a true price: zero, without prices, crossed, or far away."""
        mid = unscaled(truth.mid(at_ms) or 0)
        cells = self.rng.choice(
            ([0.0, mid], [None, None], [mid * 1.01, mid], [mid * 1.3, mid * 1.31], [mid / 2, mid / 2], [1e300, 1e301])
        )
        return [truth.symbol, at_ms if self.has_times else None, *cells, None]


class FaultyFeeder:
    """One feeder process of a `FaultyExchange`."""

    base_url = None

    def __init__(self, exchange: FaultyExchange) -> None:
        self.exchange = exchange

    async def __aenter__(self) -> Self:
        if self.exchange.has("no_start"):
            raise SourceError("the feeder process cannot be started")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def ask(self, op: str, **wanted: Any) -> dict[str, Any]:
        exchange, symbol = self.exchange, wanted.get("symbol")
        await asyncio.sleep(exchange.rng.choice((0.0, 0.05, 0.5)))
        if exchange.has("hang", symbol):
            await asyncio.sleep(ANSWER_SECONDS)
            raise NoAnswer("the feeder has not answered")
        self.refuse(symbol)
        # a Date header has whole seconds
        now_ms = exchange.now_ms() // 1_000 * 1_000
        if op == "instruments":
            return {
                "now_ms": now_ms,
                "result": [INSTRUMENT | {"symbol": one, "base": one[:3]} for one in exchange.truths],
            }
        assert op == "candles", op
        return {"now_ms": now_ms, "result": self.candles(exchange.truths[wanted["symbol"]], **wanted)}

    def refuse(self, symbol: str | None) -> None:
        """The failures of any request."""
        exchange = self.exchange
        if exchange.has("maintenance") or exchange.has("unreachable", symbol):
            raise Failure("unreachable", "503 Service Unavailable", None)
        if exchange.has("busy"):
            raise Failure("busy", "429 Too Many Requests", exchange.rng.choice((None, 2_000, 20_000)))
        if exchange.has("failed", symbol):
            raise Failure("failed", "[[1746057600000,94172.0,942", None)
        if exchange.has("country"):
            raise Failure("country", "451 restricted location", None)
        if symbol is not None and exchange.has("delisted", symbol):
            raise Failure("unknown_symbol", f"there is no market {symbol!r}", None)

    def candles(self, truth: Truth, *, interval: str, since_ms: int, limit: int, **_: Any) -> list[list[float]]:
        exchange, step = self.exchange, INTERVAL_MS[interval]
        if exchange.has("empty", truth.symbol):
            return []
        now_ms = exchange.now_ms()
        first = max(-(-since_ms // step) * step, truth.listed_ms // step * step)
        end_ms = now_ms
        if exchange.has("late_candles", truth.symbol) and interval == "1m":
            end_ms = now_ms // MINUTE * MINUTE - MINUTE
        rows = [row for ts in range(first, end_ms, step) if (row := truth.row(interval, ts, now_ms)) is not None]
        if exchange.has("short_pages") and limit > 150:
            rows = [row for row in rows if row[0] < since_ms + limit * step][-150:]
        rows = rows[: min(limit, 500)]
        if exchange.has("doubled"):
            rows = [*rows, *rows[-3:]]
        if exchange.has("reordered"):
            exchange.rng.shuffle(rows)
        return rows

    async def stream(self, op: str, *, symbols: list[str], **_: Any) -> AsyncIterator[dict[str, Any]]:
        assert op == "watch", op
        exchange, sent = self.exchange, 0
        older: list[list[Any]] = []
        while True:
            if exchange.has("cut") or exchange.has("maintenance") or (exchange.has("storm") and sent >= 2):
                raise Failure("unreachable", "the connection is closed", None)
            if exchange.has("country"):
                raise Failure("country", "451 restricted location", None)
            now_ms, batch = exchange.now_ms(), []
            for symbol in symbols:
                if exchange.has("silence", symbol) or exchange.has("delisted", symbol):
                    continue
                truth = exchange.truths[symbol]
                if exchange.has("bad_ticks", symbol) and exchange.rng.random() < 0.3:
                    batch.append(exchange.bad_quote(truth, now_ms))
                if (quote := exchange.quote(truth, now_ms)) is not None:
                    batch.append(quote)
            if exchange.has("doubled"):
                batch = [*batch, *batch]
            if exchange.has("reordered") and exchange.has_times:
                batch = [*batch, *older]
            if batch:
                sent += 1
                yield {"quotes": batch}
            older = batch[:4]
            await asyncio.sleep(exchange.period)


INSTRUMENT: Final = {
    "quote": "USDT",
    "kind": "swap",
    "linear": True,
    "active": True,
    "listed_ms": None,
    "taker": None,
    "maker": None,
    "tick": "0.1",
    "size_step": "0.001",
    "min_notional": None,
    "max_leverage": "20",
}


def unscaled(value: int) -> float:
    """The float that an exchange's text of this value becomes."""
    return float(Decimal(value).scaleb(-8))


def draw(seed: int, start_ms: int, calm_ms: int, end_ms: int, symbols: tuple[str, ...]) -> FaultyExchange:
    """The exchange of a seed: no fault before `start_ms` + 90 s and after `calm_ms`. The prices reach to `end_ms`."""
    rng = random.Random(f"prices {seed}")
    skew_ms = rng.choice((0, 0, 0, -900, 1_400, 5_000, -5_000))
    faults = []
    for _ in range(rng.randint(2, 9)):
        name, longest, may_be_one = rng.choice(FAULTS)
        from_ms = rng.randrange(start_ms + 90_000, calm_ms - 10_000)
        until_ms = min(calm_ms, from_ms + rng.randrange(1_000, longest * 1_000))
        faults.append(
            Fault(
                name,
                from_ms + skew_ms,
                until_ms + skew_ms,
                rng.choice(symbols) if may_be_one and rng.random() < 0.5 else None,
            )
        )
    stopped = [fault for fault in faults if fault.name == "maintenance"]
    listed_ms = start_ms // MINUTE * MINUTE - rng.choice((40, 130, 200)) * MINUTE
    truths = {}
    for number, symbol in enumerate(symbols):
        tick, px = (10**7, 940_000) if number == 0 else (10**6, 180_000)
        path = walk(rng, px, tick, listed_ms, end_ms, start_ms)
        for slot in range(len(path)):
            at_ms = listed_ms + slot * SLOT
            if any(one.from_ms - SLOT < at_ms < one.until_ms for one in stopped):
                path[slot] = None
        # minutes without a trade
        for _ in range(rng.randint(0, 3)):
            first = rng.randrange((start_ms - listed_ms) // SLOT + 2 * SLOTS, len(path) - 18 * SLOTS) // SLOTS * SLOTS
            path[first : first + SLOTS] = [None] * SLOTS
        truths[symbol] = Truth(symbol, tick, listed_ms, path)
    return FaultyExchange(rng, truths, faults, skew_ms, rng.random() < 0.7, rng.choice((1.0, 2.0, 4.0)))


def walk(rng: random.Random, px: int, tick: int, listed_ms: int, end_ms: int, start_ms: int) -> list[int | None]:
    """A mid for each slot: a random walk with dips, jumps, and from some slot on a finer tick."""
    count = (end_ms - listed_ms) // SLOT
    fine_from = rng.randrange(count) if rng.random() < 0.2 else count
    first = (start_ms - listed_ms) // SLOT
    moves: dict[int, float] = {}
    # A dip or a peak of a few slots, which a gap may hide.
    for _ in range(rng.randint(2, 8)):
        at, size = rng.randrange(first, count - 60), rng.uniform(0.005, 0.04) * rng.choice((-1, 1))
        moves[at] = moves.get(at, 0.0) + size
        moves[at + rng.randint(1, 6)] = -size
    # The price jumps and stays.
    if rng.random() < 0.3:
        moves[rng.randrange(first, count - 60)] = rng.choice((-0.08, -0.06, 0.07))
    path: list[int | None] = []
    value = float(px)
    for slot in range(count):
        value *= 1 + rng.gauss(0, 0.0003) + moves.get(slot, 0.0)
        path.append(round(value * 10) * (tick // 10) if slot >= fine_from else round(value) * tick)
    return path
