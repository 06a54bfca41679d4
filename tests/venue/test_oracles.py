"""Outside results, trade for trade: the bracket strategy, freqtrade's candle scenarios, Lean's trailing stop."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.model.events import FillEvent
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import LegSpec, OrderSpec, Rules, VenueGuardian
from bot.venue.protection import guardians
from tests.builders import HOUR_MS, MINUTE_MS, VenueDriver, e8, market, trail

CANDLES = "data/crypto/binance_BTCUSDT_1m_202505.csv.gz"


@dataclass(frozen=True, slots=True)
class Bar:
    ts: int
    open: int
    high: int
    low: int
    close: int


@dataclass(frozen=True, slots=True)
class Case:
    """One bracket strategy: every `every` bars, when flat, with or against the mean of `mean` closes."""

    name: str
    interval_ms: int
    every: int
    mean: int


ONE_MINUTE = Case("1m_N240_L60_sl04_tp08", MINUTE_MS, 240, 60)
ONE_HOUR = Case("1h_N3_L12_sl04_tp04", HOUR_MS, 3, 12)

# side, entry ts, exit ts, entry px, exit px, kind
Exit = tuple[str, int, int, int, int, str]


@pytest.fixture(scope="module")
def minutes(shared: Path) -> list[Bar]:
    with gzip.open(shared / CANDLES, "rt") as lines:
        rows = csv.reader(lines)
        next(rows)
        return [Bar(int(row[0]), *(e8(f"{float(px):.1f}") for px in row[1:5])) for row in rows]


def hours_of(minutes: list[Bar]) -> dict[int, list[Bar]]:
    """The minutes of each whole hour."""
    hours: dict[int, list[Bar]] = {}
    for bar in minutes:
        hours.setdefault(bar.ts // HOUR_MS * HOUR_MS, []).append(bar)
    return {ts: bars for ts, bars in hours.items() if len(bars) == 60}


def whole(ts: int, bars: list[Bar]) -> Bar:
    return Bar(ts, bars[0].open, max(b.high for b in bars), min(b.low for b in bars), bars[-1].close)


def recorded(shared: Path, name: str) -> list[dict[str, str]]:
    with (shared / "oracles/bracket" / name).open() as lines:
        return list(csv.DictReader(lines))


def trades_of(
    case: Case, bars: list[Bar], levels: dict[int, tuple[int, int]], path: str, fine: dict[int, list[Bar]] | None = None
) -> list[Exit]:
    """Run the strategy; stop and target come from the oracle's own row, by the bar in which its entry fills."""
    venue = VenueDriver(
        (market(sig_figs=None, px_decimals=1), "90000"), cash="1000000", rules=Rules(fill_at="next", paths=path)
    )
    closes: list[int] = []
    exits: list[Exit] = []
    entry: FillEvent | None = None
    entry_ts = 0
    for at, bar in enumerate(bars):
        for part in [bar] if fine is None else fine[bar.ts]:
            length = case.interval_ms if fine is None else MINUTE_MS
            venue.now_ms = part.ts + length
            passed = c.PassBar("BTC", part.ts, part.open, part.high, part.low, part.close, 10**16, length)
            for event in venue.do(passed).events:
                if not isinstance(event, FillEvent):
                    continue
                if event.subtype == "entry":
                    entry, entry_ts = event, bar.ts
                else:
                    assert entry is not None
                    kind = {"stop_loss": "sl", "take_profit": "tp"}[event.kind]
                    exits.append((event.side, entry_ts, part.ts, entry.px, event.px, kind))
        closes.append(bar.close)
        if at % case.every == case.every - 1 and at >= case.mean and not venue.account.positions and at + 1 < len(bars):
            side = 1 if closes[-1] * case.mean > sum(closes[-case.mean :]) else -1
            if bars[at + 1].ts not in levels:
                # The oracle's list ends with its last finished trade.
                break
            stop, take = levels[bars[at + 1].ts]
            spec = OrderSpec("BTC", side, size=E8, leverage=10, stop=LegSpec(px=stop), target=LegSpec(px=take))
            assert hasattr(venue.place(spec).answer, "trade")
    return exits


def wanted(rows: list[dict[str, str]]) -> list[Exit]:
    return [
        (
            r["side"],
            int(r["entry_ts"]),
            int(r["exit_ts"]),
            e8(f"{float(r['entry_px']):.1f}"),
            e8(f"{float(r['exit_px']):.1f}"),
            r["exit"],
        )
        for r in rows
    ]


def levels_of(rows: list[dict[str, str]]) -> dict[int, tuple[int, int]]:
    return {int(r["entry_ts"]): (e8(f"{float(r['sl']):.1f}"), e8(f"{float(r['tp']):.1f}")) for r in rows}


@pytest.mark.parametrize("path", ["sl_first", "ohlc", "olhc", "adaptive"])
@pytest.mark.parametrize(("case", "count"), [(ONE_MINUTE, 130), (ONE_HOUR, 189)], ids=["1m", "1h"])
def test_the_bracket_strategy_makes_the_oracles_trades(
    shared: Path, minutes: list[Bar], case: Case, count: int, path: str
):
    bars = minutes if case is ONE_MINUTE else [whole(ts, part) for ts, part in hours_of(minutes).items()]
    rows = recorded(shared, f"ref_{path}_{case.name}.csv")
    got = trades_of(case, bars, levels_of(rows), path)
    assert got == wanted(rows)
    assert len(got) == count


def test_sl_first_equals_backtesting_py(shared: Path, minutes: list[Bar]):
    bars = [whole(ts, part) for ts, part in hours_of(minutes).items()]
    levels = levels_of(recorded(shared, f"ref_sl_first_{ONE_HOUR.name}.csv"))
    got = trades_of(ONE_HOUR, bars, levels, "sl_first")
    at = {bar.ts: number for number, bar in enumerate(bars)}
    theirs = [
        (r["side"], int(r["entry_bar"]), int(r["exit_bar"]), float(r["entry_px"]), float(r["exit_px"]), r["exit"])
        for r in recorded(shared, f"btpy_{ONE_HOUR.name}.csv")
    ]
    assert [(side, at[i], at[o], a / E8, b / E8, kind) for side, i, o, a, b, kind in got] == theirs


def test_the_hourly_strategy_driven_from_minutes_makes_the_true_trades(shared: Path, minutes: list[Bar]):
    hours = hours_of(minutes)
    rows = recorded(shared, f"truth1m_{ONE_HOUR.name}.csv")
    got = trades_of(ONE_HOUR, [whole(ts, part) for ts, part in hours.items()], levels_of(rows), "adaptive", fine=hours)
    assert got == wanted(rows)
    assert sum(b - a if side == "long" else a - b for side, _, _, a, b, _ in got) == e8("3569")


# ── freqtrade ───────────────────────────────────────────────────────────────────────────────────────────────────────

# Facts of freqtrade's tests/optimize/test_backtest_detail.py; what applies here is a fixed stop and target without exit
# signals.
APPLICABLE = ("tc1", "tc2", "tc3", "tc4", "tc5", "tc6", "tc7", "tc13", "tc14", "tc15")


@pytest.mark.parametrize("name", APPLICABLE)
def test_freqtrades_candle_scenario_gives_its_published_result(shared: Path, name: str):
    cases = {
        case["id"]: case for case in json.loads((shared / "oracles/freqtrade/backtest_detail_cases.json").read_text())
    }
    case = cases[name]
    # Levels are exact fractions of the entry: a grid of 1e-6 holds them.
    venue = VenueDriver(
        (market(sz_decimals=0, sig_figs=None, px_decimals=6), "5000"),
        cash="1000000",
        rules=Rules(fill_at="next", paths="sl_first"),
    )
    exits, entry, open_bar, profit = [], 0, 0, 0.0
    for number, row in enumerate(case["data"]):
        prices = tuple(str(px) for px in row[1:5])
        if number and case["data"][number - 1][6] and not venue.account.positions:
            opened = row[1]
            stop, take = opened * (1 + case["stop_loss"]), opened * (1 + case["roi"]["0"])
            venue.place(
                OrderSpec("BTC", 1, size=E8, stop=LegSpec(px=e8(f"{stop:.6f}")), target=LegSpec(px=e8(f"{take:.6f}")))
            )
        for event in venue.bar("BTC", *prices):
            if isinstance(event, FillEvent) and event.subtype == "entry":
                entry, open_bar = event.px, number
            elif isinstance(event, FillEvent):
                exits.append(({"stop_loss": "STOP_LOSS", "take_profit": "ROI"}[event.kind], open_bar, number))
                profit += event.px / entry - 1
    assert exits == [(t["exit_reason"], t["open_tick"], t["close_tick"]) for t in case["trades"]]
    assert profit == pytest.approx(case["profit_perc"], abs=0.0015)


# ── Lean ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def spy(shared: Path) -> list[dict[str, int]]:
    with gzip.open(shared / "oracles/lean/spy_1m_adj_20131007_11.csv.gz", "rt") as lines:
        return [
            {k: e8(f"{float(v):.6f}") if k not in ("ts", "volume") else 0 for k, v in row.items()}
            for row in csv.DictReader(lines)
        ]


def test_leans_trailing_stops_fill_at_its_published_prices(spy: list[dict[str, int]]):
    """Trail arithmetic bar by bar on bid and ask: the fill is tested against the old stop, then the stop moves. A
    long's trail of 0.50 is trailR 1 of a position whose R is 0.50; a buy trail of 2.00 rides on a short whose R is
    2.00.
    """

    def trailing(side: int, distance: str, extreme: int) -> VenueGuardian:
        return VenueGuardian(1, "a", trail("1r", coin="SPY"), 0, side=side, r_px=e8(distance), extreme=extreme)

    def ratchet(guardian: VenueGuardian, px: int) -> None:
        guardian.extreme = max(guardian.extreme, px) if guardian.side > 0 else min(guardian.extreme, px)

    buy: tuple[int, int] | None = None
    sell: tuple[int, int] | None = None
    guardian = trailing(-1, "2", spy[0]["close"])
    for number, bar in enumerate(spy[1:], 1):
        stop = guardians.trail_stop(guardian)
        if buy is None:
            if bar["ask_high"] >= stop:
                buy, guardian = (number, max(stop, bar["ask_close"])), trailing(1, "0.5", bar["close"])
                continue
            ratchet(guardian, bar["ask_low"])
        elif bar["bid_low"] <= stop:
            sell = (number, min(stop, bar["bid_close"]))
            break
        else:
            ratchet(guardian, bar["bid_high"])
    assert buy == (1170, e8("144.652030"))
    assert sell == (1268, e8("144.904255"))
    assert 100_000 + 100 * (sell[1] - buy[1]) / E8 - 2 == pytest.approx(100_023.22, abs=0.005)


def test_the_venues_own_sell_trail_on_leans_bids_fires_in_the_same_bar(spy: list[dict[str, int]]):
    # Path O-L-H-C is Lean's order: a long's old stop meets the low, then the high moves it. Filled at the stop: Lean's
    # is its worse close.
    start = spy[1170]["close"]
    venue = VenueDriver(
        (market(sz_decimals=0, sig_figs=None, px_decimals=6), f"{start / E8:.6f}"),
        cash="1000000",
        rules=Rules(paths="olhc"),
    )
    stop = LegSpec(px=start - e8("0.5"))
    venue.place(OrderSpec("BTC", 1, size=100 * E8, stop=stop, guardians=(trail("1r"),)))
    fills: list[tuple[int, FillEvent]] = []
    for row, bar in enumerate(spy[1171:1300], 1171):
        prices = (f"{bar[f'bid_{name}'] / E8:.6f}" for name in ("open", "high", "low", "close"))
        fills += [(row, event) for event in venue.bar("BTC", *prices) if isinstance(event, FillEvent)]
    ((row, fill),) = fills
    assert (row, fill.kind) == (1268, "guardian")
    assert spy[1268]["bid_low"] <= fill.px
    assert fill.px >= e8("144.904255")


def test_a_stop_already_passed_when_its_entry_fills_fires_at_the_next_open(spy: list[dict[str, int]]):
    # Lean's StopLossOnOrderEvent: short 100 at the first bid close, a stop already through, filled at the next trade
    # open.
    first, then = spy[0]["bid_close"], spy[1]
    venue = VenueDriver((market(sz_decimals=0, sig_figs=None, px_decimals=6), f"{first / E8:.6f}"), cash="100000")
    venue.place(OrderSpec("BTC", -1, size=100 * E8, stop=LegSpec(px=first + 100)))
    prices = (f"{then[name] / E8:.6f}" for name in ("open", "high", "low", "close"))
    fills = [event for event in venue.bar("BTC", *prices) if isinstance(event, FillEvent)]
    assert [(fill.kind, fill.px) for fill in fills] == [("stop_loss", e8("144.799017"))]
    assert venue.account.balance / E8 - 2 == pytest.approx(99_995.41, abs=0.005)
