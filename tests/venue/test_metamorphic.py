"""Relations between two runs: prices scaled, prices mirrored, orders split, finer bars."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest

from bot.model.events import FillEvent
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import LegSpec, OrderSpec, Rules
from tests.builders import MINUTE_MS, VenueDriver, market, order

Candle = tuple[int, int, int, int]
# Mirrored prices are C - p: 100 stays where it is.
C = 200 * E8


def candles(seed: int, count: int = 40) -> list[Candle]:
    """A walk around 100 on a grid of 0.01, its opens sometimes gaps."""
    chance, px, bars = Random(seed), 10_000, []
    for _ in range(count):
        op = px + (chance.randint(-60, 60) if chance.random() < 0.3 else 0)
        close = op + chance.randint(-90, 90)
        high, low = max(op, close) + chance.randint(0, 70), min(op, close) - chance.randint(0, 70)
        bars.append(tuple(x * E8 // 100 for x in (op, high, low, close)))
        px = close
    return bars  # type: ignore[return-value]


def mirror(bar: Candle) -> Candle:
    op, high, low, close = bar
    return C - op, C - low, C - high, C - close


def play(
    bars: list[Candle], side: int, *, scale: int = 1, mirrored: bool = False, path: str = "sl_first"
) -> list[tuple[str, int, int]]:
    """Enter at each fifth bar when flat, one coin, stop 0.70 and target 0.90 away;

    (kind, px, realised) of each fill.
    """
    spec = market(sz_decimals=0, sig_figs=None, px_decimals=6)
    venue = VenueDriver((spec, str(100 * scale)), cash="100000000", rules=Rules(paths=path))
    fills: list[tuple[str, int, int]] = []
    for number, bar in enumerate(bars):
        if number % 5 == 0 and not venue.account.positions:
            mark = venue.state.markets["BTC"].mark
            stop, target = (mark - side * x * scale * E8 // 100 for x in (70, -90))
            made = venue.place(OrderSpec("BTC", side, size=E8, stop=LegSpec(px=stop), target=LegSpec(px=target)))
            fills += [("entry", e.px, 0) for e in made.events if isinstance(e, FillEvent)]
        op, high, low, close = (x * scale for x in (mirror(bar) if mirrored else bar))
        at_ms = venue.now_ms
        venue.now_ms += MINUTE_MS
        events = venue.do(c.PassBar("BTC", at_ms, op, high, low, close, 10**14)).events
        fills += [(e.kind, e.px, e.realized) for e in events if isinstance(e, FillEvent)]
    return fills


@pytest.mark.parametrize("seed", range(10))
def test_ten_times_the_price_is_ten_times_the_result(seed: int):
    once, scaled = play(candles(seed), 1), play(candles(seed), 1, scale=10)
    assert len(once) > 4
    assert [(kind, px * 10, realized * 10) for kind, px, realized in once] == scaled


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("path", "mirrored"), [("ohlc", "olhc"), ("olhc", "ohlc"), ("sl_first", "sl_first")])
def test_mirrored_prices_swap_long_and_short(seed: int, path: str, mirrored: str):
    # A tie goes low first in both worlds.
    bars = [b for b in candles(seed) if abs(b[1] - b[0]) != abs(b[0] - b[2])]
    long, short = play(bars, 1, path=path), play(bars, -1, mirrored=True, path=mirrored)
    assert [(kind, C - px, realized) for kind, px, realized in long] == short


def test_a_split_market_order_makes_the_same_position_at_unlimited_depth():
    whole, split = (VenueDriver((market(half_spread=50_000), "97531")) for _ in range(2))
    whole.place(order(size="0.09"))
    for part in ("0.02", "0.03", "0.04"):
        split.place(order(size=part))
    assert whole.position().entry_notional == split.position().entry_notional
    whole.close()
    for part in ("0.05", "0.01", "0.03"):
        split.close(size=int(Decimal(part) * E8))
    assert whole.account.balance == split.account.balance


def test_a_split_order_pays_the_same_fee_up_to_the_truncation():
    whole, split = (VenueDriver((market(taker_rate=45_000), "97531")) for _ in range(2))
    whole.place(order(size="0.09"))
    for part in ("0.02", "0.03", "0.04"):
        split.place(order(size=part))
    # Each fee is cut to 1e-6.
    assert 0 <= whole.account.fees - split.account.fees < 3 * 100


@pytest.mark.parametrize("seed", range(30))
def test_a_coarse_target_under_sl_first_is_a_target_on_the_finer_path(seed: int):
    chance = Random(seed)
    fine: list[Candle] = []
    for bar in candles(seed, 60):
        # No gaps.
        op = fine[-1][3] if fine else bar[0]
        shift = op - bar[0]
        fine.append((op, bar[1] + shift, bar[2] + shift, bar[3] + shift))
    coarse = [
        (part[0][0], max(b[1] for b in part), min(b[2] for b in part), part[-1][3])
        for part in (fine[i : i + 5] for i in range(0, 60, 5))
    ]
    side, far, near = chance.choice((1, -1)), chance.randint(60, 200), chance.randint(60, 200)

    def ends(bars: list[Candle], path: str, length_ms: int) -> str:
        venue = VenueDriver(
            (market(sz_decimals=0, sig_figs=None, px_decimals=6), f"{fine[0][0] / E8:.2f}"), rules=Rules(paths=path)
        )
        start = fine[0][0]
        stop, target = start - side * near * E8 // 100, start + side * far * E8 // 100
        venue.place(OrderSpec("BTC", side, size=E8, stop=LegSpec(px=stop), target=LegSpec(px=target)))
        for bar in bars:
            at_ms = venue.now_ms
            venue.now_ms += length_ms
            for event in venue.do(c.PassBar("BTC", at_ms, *bar, 10**14, length_ms)).events:
                if isinstance(event, FillEvent):
                    return event.kind
        return ""

    if ends(coarse, "sl_first", 5 * MINUTE_MS) == "take_profit":
        assert ends(fine, "adaptive", MINUTE_MS) == "take_profit"
