"""Outside results through `bot backtest`, with strategy files as users write them: the bracket strategy, freqtrade's
scenarios, Lean's four.

Lean fills an order on the side of the quote that it takes, a session all orders on one series. So Lean's minutes are
given as the prices that its orders met: the ask's until the last one has bought, the bid's from then on, the trade's
where Lean filled at a trade. Two of its orders are none of the service's: an entry by a trailing stop (the strategy
trails it), and a stop on the wrong side of its entry, which the service refuses (the strategy closes instead: such a
stop is through when it is placed). Lean's fee, half a cent a share and at least a dollar an order, is taken off by
hand: the service's fees are shares of the notional.
"""

from __future__ import annotations

import csv
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.clock import HOUR_MS, MINUTE_MS, ms_of
from tests.backtest.builders import START_MS
from tests.backtest.engine.oracles import CANDLES, ONE_HOUR, ONE_MINUTE, rows_of, wanted

HERE = Path(__file__).resolve().parents[1]
FREE = ("--fee", "0", "--maker-fee", "0", "--spread", "0", "--depth", "0")


def config(
    folder: Path, use: str, params: dict[str, Any], *, interval: str = "1m", market: str = "BTC", protected: bool = True
) -> Path:
    path = folder / "oracle.yaml"
    strategy = {
        "name": "oracle",
        "use": use,
        "markets": [market],
        "interval": interval,
        "budget_usd": 100_000_000,
        "max_leverage": 10,
        "params": params,
    }
    body = {
        "account": {"base_url": "embedded"},
        "dead_man": "off",
        "strategies_dir": str(HERE / "strategies"),
        "strategies": [strategy],
        "safety": {"require_protection": protected},
    }
    path.write_text(json.dumps(body))
    return path


def backtest(folder: Path, made: Path, *options: str) -> tuple[Path, list[dict[str, str]]]:
    """The folder of the run, and its finished trades."""
    assert call(["backtest", str(made), "--out", str(folder / "runs"), *FREE, "--balance", "1000000", *options]) == 0
    (run,) = (folder / "runs").iterdir()
    with (run / "trades.csv").open() as lines:
        return run, [row for row in csv.DictReader(lines) if row["exit_ms"]]


def hours(shared: Path, folder: Path) -> Path:
    """The whole hours of the minutes, as a file."""
    groups: dict[int, list[list[str]]] = {}
    with gzip.open(shared / CANDLES, "rt") as lines:
        rows = csv.reader(lines)
        next(rows)
        for row in rows:
            groups.setdefault(int(row[0]) // HOUR_MS * HOUR_MS, []).append(row)
    path = folder / "BTC_1h.csv"
    with path.open("w") as out:
        out.write("ts,open,high,low,close,volume\n")
        for ts, part in groups.items():
            if len(part) == 60:
                high, low = max(float(row[2]) for row in part), min(float(row[3]) for row in part)
                out.write(f"{ts},{part[0][1]},{high},{low},{part[-1][4]},{sum(float(row[5]) for row in part):.3f}\n")
    return path


def exits(trades: list[dict[str, str]], entry_ms: int, exit_ms: int) -> list[tuple[Any, ...]]:
    kinds = {"stop_loss": "sl", "take_profit": "tp"}
    return [
        (
            row["side"],
            int(row["entry_ms"]) // entry_ms * entry_ms,
            int(row["exit_ms"]) // exit_ms * exit_ms,
            float(row["entry_px"]),
            float(row["exit_px"]),
            kinds[row["exit_kind"]],
        )
        for row in trades
    ]


@pytest.mark.parametrize("path", ["sl_first", "ohlc", "olhc", "adaptive"])
@pytest.mark.parametrize(("case", "count"), [(ONE_MINUTE, 130), (ONE_HOUR, 189)], ids=["1m", "1h"])
def test_a_backtest_of_the_bracket_strategy_makes_the_oracles_trades(
    shared: Path, tmp_path: Path, case: tuple[str, dict[str, Any]], count: int, path: str
):
    name, params = case
    is_minute = case is ONE_MINUTE
    interval, step = ("1m", MINUTE_MS) if is_minute else ("1h", HOUR_MS)
    data = shared / CANDLES if is_minute else hours(shared, tmp_path)
    made = config(tmp_path, "oracles:Bracketed", params, interval=interval)
    _, trades = backtest(tmp_path, made, "--data", f"BTC={data}", "--path", path, "--tick", "BTC=0.1")
    assert exits(trades, step, step) == wanted(rows_of(shared, f"ref_{path}_{name}.csv"))
    assert len(trades) == count


def test_the_hourly_strategy_driven_by_minutes_makes_the_true_trades(shared: Path, tmp_path: Path):
    name, params = ONE_HOUR
    made = config(tmp_path, "oracles:Bracketed", params, interval="1h")
    _, trades = backtest(tmp_path, made, "--data", f"BTC={shared / CANDLES}", "--path", "adaptive", "--tick", "BTC=0.1")
    # The oracle names the minute of an exit, and the hour of an entry.
    assert exits(trades, HOUR_MS, MINUTE_MS) == wanted(rows_of(shared, f"truth1m_{name}.csv"))
    assert sum(float(row["realized_usd"]) for row in trades) == pytest.approx(3569.0, abs=1e-6)


# Facts of freqtrade's tests/optimize/test_backtest_detail.py; what applies here is a fixed stop and target without exit
# signals.
APPLICABLE = ("tc1", "tc2", "tc3", "tc4", "tc5", "tc6", "tc7", "tc13", "tc14", "tc15")


@pytest.mark.parametrize("name", APPLICABLE)
def test_a_backtest_of_freqtrades_candle_scenario_gives_its_published_result(shared: Path, tmp_path: Path, name: str):
    cases = {
        one["id"]: one for one in json.loads((shared / "oracles/freqtrade/backtest_detail_cases.json").read_text())
    }
    case = cases[name]
    data = tmp_path / "BTC_1h.csv"
    lines = ["ts,open,high,low,close,volume"]
    lines += [
        f"{START_MS + n * HOUR_MS},{','.join(str(float(px)) for px in row[1:5])},1000"
        for n, row in enumerate(case["data"])
    ]
    data.write_text("\n".join(lines) + "\n")
    params = {
        "entries": [n for n, row in enumerate(case["data"]) if row[6]],
        "stop_pct": round(-100 * case["stop_loss"], 9),
        "target_pct": round(100 * case["roi"]["0"], 9),
    }
    made = config(tmp_path, "oracles:Ticked", params, interval="1h")
    _, trades = backtest(tmp_path, made, "--data", f"BTC={data}", "--tick", "0.000001", "--lot", "1", "--accept-jumps")
    reasons = {"stop_loss": "STOP_LOSS", "take_profit": "ROI"}
    tick = lambda text: (int(text) - START_MS) // HOUR_MS  # noqa: E731
    assert [(reasons[row["exit_kind"]], tick(row["entry_ms"]), tick(row["exit_ms"])) for row in trades] == [
        (one["exit_reason"], one["open_tick"], one["close_tick"]) for one in case["trades"]
    ]
    profit = sum(float(row["exit_px"]) / float(row["entry_px"]) - 1 for row in trades)
    assert profit == pytest.approx(case["profit_perc"], abs=0.0015)


def test_leans_daily_holding_has_its_published_value(shared: Path, tmp_path: Path):
    # Lean's BasicTemplateDailyAlgorithm: sized on the close of 10-08, filled at the open of 10-09, valued at
    # the close of 10-17; a fee of 0.005 a share.
    data = tmp_path / "SPY_1d.csv"
    with (shared / "oracles/lean/spy_1d_adj_20131007_18.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    stamps = [ms_of(datetime.fromisoformat(row["d"]).replace(tzinfo=UTC)) for row in rows]
    text = ["ts,open,high,low,close,volume"]
    text += [
        f"{ts},{','.join(f'{float(row[n]):.8f}' for n in 'ohlc')},{row['v']}"
        for ts, row in zip(stamps, rows, strict=True)
    ]
    data.write_text("\n".join(text) + "\n")
    made = config(tmp_path, "oracles:AllIn", {"bar": 1}, interval="1d", market="SPY", protected=False)
    options = (
        "--data",
        f"SPY={data}",
        "--tick",
        "0.00000001",
        "--lot",
        "1",
        "--to",
        "2013-10-18",
        "--accept-gaps",
        "--funding",
        f"SPY={_no_funding(tmp_path)}",
    )
    run, trades = backtest(tmp_path, made, *options)
    assert not trades
    summary = json.loads((run / "summary.json").read_text())
    assert 100_000 + summary["endUsd"] - summary["startUsd"] - 697 * 0.005 == pytest.approx(104_486.22, abs=0.005)


def test_leans_first_minute_holding_has_its_published_value(shared: Path, tmp_path: Path):
    # Lean's BasicTemplateAlgorithm: 688 at the ask's close of the first minute, which is the ask's next open; valued at
    # the last trade; fee 3.44.
    rows = lean_minutes(shared)
    data = tmp_path / "SPY_1m.csv"
    text = ["ts,open,high,low,close,volume"]
    text += [
        ",".join([row["ts"], *(row[f"ask_{n}"] for n in ("open", "high", "low", "close")), row["volume"]])
        for row in rows
    ]
    data.write_text("\n".join(text) + "\n")
    made = config(tmp_path, "oracles:AllIn", {"bar": 0}, market="SPY", protected=False)
    run, _ = backtest(
        tmp_path, made, "--data", f"SPY={data}", "--tick", "0.000001", "--lot", "1", "--accept-gaps", "--accept-ohlc"
    )
    with (run / "trades.csv").open() as lines:
        (held,) = csv.DictReader(lines)
    size, px = float(held["size"]), float(held["entry_px"])
    assert (size, px) == (688, 144.781724)
    assert 100_000 - size * px - 3.44 + size * float(rows[-1]["close"]) == pytest.approx(101_691.92, abs=0.005)


def test_leans_stop_already_passed_when_placed_has_its_published_loss(shared: Path, tmp_path: Path):
    # Lean's StopLossOnOrderEventRegressionAlgorithm: short 100 at the bid's close of the first minute; on the fill a
    # stop to buy two dollars below.
    # It is filled at the open of the next minute's trades: the quote at which the short was filled stands between the
    # two, as a minute of its own.
    rows = lean_minutes(shared)
    quote = rows[0]["bid_close"]
    assert quote == rows[1]["bid_open"]
    lines = [candle_of(rows[0], "bid_"), f"{quote},{quote},{quote},{quote},1", *(candle_of(row) for row in rows[1:60])]
    trade = lean_trade(tmp_path, "oracles:StopOnFill", {"size": 100, "below": 2}, lines, protected=False)
    assert (trade["side"], trade["entry_px"], trade["exit_px"], trade["exit_kind"]) == (
        "short",
        quote,
        rows[1]["open"],
        "close",
    )
    assert 100_000 + float(trade["realized_usd"]) - 2 == pytest.approx(99_995.41, abs=0.005)


@pytest.mark.parametrize("path", ["sl_first", "olhc"])
def test_leans_trailing_stops_have_their_published_profit(shared: Path, tmp_path: Path, path: str):
    # Lean's TrailingStopOrderRegressionAlgorithm: buy on a trail of 2.00 under the ask, sell on one of 0.50 over the
    # bid. The first is met by the gap of a morning (row 1170) and filled at the ask's close, which is the ask's next
    # open; the second at its level (row 1268).
    rows = lean_minutes(shared)
    asks, bids = rows[:1171], rows[1172:]
    assert rows[1170]["ask_close"] == rows[1171]["ask_open"]
    turn = ",".join([rows[1171]["ask_open"], *(rows[1171][f"bid_{name}"] for name in ("high", "low", "close")), "1"])
    lines = [*(candle_of(row, "ask_") for row in asks), turn, *(candle_of(row, "bid_") for row in bids)]
    trade = lean_trade(tmp_path, "oracles:Trailed", {"size": 100, "entry": 2, "exit": 0.5}, lines, "--path", path)
    assert (trade["side"], trade["entry_px"], trade["exit_px"], trade["exit_kind"]) == (
        "long",
        "144.65203",
        "144.904255",
        "guardian",
    )
    minute = [(int(trade[name]) - START_MS) // MINUTE_MS for name in ("entry_ms", "exit_ms")]
    assert minute == [1171, 1268]
    assert 100_000 + float(trade["realized_usd"]) - 2 == pytest.approx(100_023.22, abs=0.005)


def lean_minutes(shared: Path) -> list[dict[str, str]]:
    with gzip.open(shared / "oracles/lean/spy_1m_adj_20131007_11.csv.gz", "rt") as lines:
        return list(csv.DictReader(lines))


def candle_of(row: dict[str, str], side: str = "") -> str:
    return ",".join([*(row[side + name] for name in ("open", "high", "low", "close")), row["volume"]])


def lean_trade(
    folder: Path, use: str, params: dict[str, Any], lines: list[str], *options: str, protected: bool = True
) -> dict[str, str]:
    """The one finished trade over these candles, one a minute: an exchange's nights are left out."""
    data = folder / "SPY_1m.csv"
    text = [f"{START_MS + number * MINUTE_MS},{line}" for number, line in enumerate(lines)]
    data.write_text("\n".join(["ts,open,high,low,close,volume", *text]) + "\n")
    made = config(folder, use, params, market="SPY", protected=protected)
    grid = ("--tick", "0.000001", "--lot", "1", "--accept-ohlc", "--accept-gaps", "--accept-hours")
    _, (trade,) = backtest(
        folder, made, "--data", f"SPY={data}", *grid, "--funding", f"SPY={_no_funding(folder)}", *options
    )
    return trade


def _no_funding(folder: Path) -> Path:
    path = folder / "no_funding.csv"
    path.write_text("ts,rate\n1380000000000,0\n")
    return path
