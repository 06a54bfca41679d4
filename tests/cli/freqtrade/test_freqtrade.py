"""`bot convert freqtrade`: the new strategy trades as freqtrade does, and what cannot be carried over is named."""

from __future__ import annotations

import ast
import csv
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from random import Random

import polars as pl
import pytest
from ruamel.yaml import YAML

from bot.backtest import run
from bot.backtest.engine.options import MarketRules, SessionOptions
from bot.cli.app import call
from bot.cli.freqtrade.strategy_reader import converted
from bot.errors import ConfigError
from bot.testing import backtest, bars, walk
from tests.cli.freqtrade.candles import START_MS, STEP_MS, candles

HERE = Path(__file__).parent
STRATEGIES = sorted((HERE / "strategies").glob("*.py"))
# freqtrade's own backtest of these files over the same candles, without fees; `exit_reason` is its word
RECORDED = HERE / "freqtrade-2026.9.csv"
FREE = MarketRules(
    taker=Decimal(0),
    maker=Decimal(0),
    spread_bps=Decimal(0),
    depth_usd=Decimal(0),
    tick=Decimal("0.01"),
    lot=Decimal("0.00000001"),
)
# The other order of prices in a bar: freqtrade moves a trailing stop by the high of a bar before it looks at the low.
PATHS = {"channel_trail": "ohlc"}
# Later targets: freqtrade meets them within a bar, the new strategy at its close. So many exits come later, and so many
# entries differ because a position was still open.
DIFFERENT = {"rsi_bands": (14, 2)}
EMPTY = """\
from freqtrade.strategy import IStrategy, IntParameter
import talib.abstract as ta
import pandas_ta as pta
class Own(IStrategy):
    timeframe = "1h"
    stoploss = -0.1
{}
"""
ENTRY = "    def populate_entry_trend(self, df, metadata):\n"
SIGNAL = '        df.loc[df["close"] > df["x"], "enter_long"] = 1\n        return df\n'


def trades_of_freqtrade(strategy: str) -> list[dict[str, str]]:
    with RECORDED.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["strategy"].lower() == strategy.replace("_", "")]


@pytest.fixture(scope="session")
def frame() -> pl.DataFrame:
    return pl.DataFrame(candles(), schema=["time", "open", "high", "low", "close", "volume"], orient="row")


@pytest.mark.parametrize("file", STRATEGIES, ids=lambda file: file.stem)
def test_a_converted_strategy_trades_as_in_freqtrade(file: Path, frame: pl.DataFrame, tmp_path: Path) -> None:
    assert call(["convert", "freqtrade", str(file), "-o", str(tmp_path)]) == 0
    config = tmp_path / f"{file.stem.replace('_', '-')}.yaml"
    assert call(["check", str(config)]) == 0
    assert call(["strategies", "--dir", str(tmp_path / "strategies")]) == 0
    (line,) = (text for text in (tmp_path / "strategies" / file.name).read_text().splitlines() if "warmup = " in text)
    warmup = int(line.rpartition(" ")[2])
    # freqtrade leaves out so many candles, and trades from the next close on
    start_ms = START_MS + (warmup + 1) * STEP_MS
    options = SessionOptions(rules={"": FREE}, path=PATHS.get(file.stem, "sl_first"), start_ms=start_ms)
    result = run(config, {"BTC": frame}, options=options, out=tmp_path / "runs")
    closed = result.trades.filter(pl.col("exit_at").is_not_null()).to_dicts()
    ours = {int(trade["entry_at"].timestamp() * 1000): trade for trade in closed}
    theirs = {int(trade["entry_ms"]): trade for trade in trades_of_freqtrade(file.stem)}
    assert len(theirs) >= 10
    later, other_entries = 0, len(ours.keys() ^ theirs.keys())
    for at_ms in ours.keys() & theirs.keys():
        mine, other = ours[at_ms], theirs[at_ms]
        assert mine["side"] == other["side"]
        assert mine["entry_px"] == pytest.approx(float(other["entry_px"]), abs=0.011)
        bar_ms = int(mine["exit_at"].timestamp() * 1000) // STEP_MS * STEP_MS
        if bar_ms == int(other["exit_ms"]):
            assert mine["exit_px"] == pytest.approx(float(other["exit_px"]), abs=0.021)
        else:
            assert other["exit_reason"] == "roi"
            assert bar_ms > int(other["exit_ms"])
            later += 1
    assert (later, other_entries) == DIFFERENT.get(file.stem, (0, 0))


# what the class says -> the line that is named, and the words
LEFT_OUT = (
    ("    def custom_stoploss(self): pass\n", 7, "custom_stoploss is not called"),
    ("    def leverage(self): return 3\n", 7, "leverage is not called"),
    ("    def informative_pairs(self): return []\n", 7, "informative_pairs is not called"),
    ('    @informative("4h")\n    def populate_indicators_4h(self, df, m): return df\n', 8, "populate_indicators_4h"),
    ("    position_adjustment_enable = True\n", 7, "position_adjustment_enable is left out"),
    ("    timeframe = '7m'\n", 7, "timeframe 7m"),
    ("    stoploss = compute()\n", 7, "stoploss is computed"),
    ('    protections = [{"method": "CooldownPeriod", "unlock_at": "10:00"}]\n', 7, "CooldownPeriod is left out"),
    ("    minimal_roi = {'soon': 1}\n", 7, "minimal_roi is left out"),
    ("    startup_candle_count = 'x'\n", 7, "startup_candle_count is computed or of another kind"),
    ("    protections = [3]\n", 7, "the protection 3 is left out"),
    (ENTRY + '        df["x"] = df["close"].rolling(2000).mean()\n' + SIGNAL, 8, "up to 1,000"),
    ('    protections = [{"method": "Other"}]\n', 7, "Other is left out"),
    ("    trailing_stop = True\n    trailing_stop_positive_offset = 9\n", 7, "the trailing stop is left out"),
    (
        ENTRY + '        df["x"] = pta.ema(df["close"])\n' + SIGNAL,
        8,
        "enter_long is left out: `pta.ema` has no counterpart",
    ),
    (ENTRY + '        df["x"] = ta.TEMA(df)\n' + SIGNAL, 8, "`ta.TEMA(df)` has no counterpart"),
    (ENTRY + '        df["x"] = df["close"].shift(-1)\n' + SIGNAL, 8, "bars that have not closed yet"),
    (ENTRY + '        df["x"] = df["close"].mean()\n' + SIGNAL, 8, "reads the whole column"),
    (ENTRY + '        df["x"] = df["close"].cumsum()\n' + SIGNAL, 8, "has no counterpart"),
    (ENTRY + '        df["x"] = df["date"].dt.hour\n' + SIGNAL, 8, "has no counterpart"),
    (ENTRY + '        df["x"] = self.dp.get_pair_dataframe("ETH/USDT", "1h")["close"]\n' + SIGNAL, 8, "no counterpart"),
    (ENTRY + '        df["x"] = ta.RSI(df["close"] * 2)\n' + SIGNAL, 8, "reads a computed column"),
    (ENTRY + '        df["close"] = df["open"]\n' + SIGNAL, 8, "replaces the column close"),
    (ENTRY + '        df["x"] = self.unknown\n' + SIGNAL, 8, "`self.unknown` has no counterpart"),
    (ENTRY + '        for x in ["a"]:\n            with open("f"): pass\n', 9, "has no counterpart"),
    ("", 4, "no rule for an entry is left"),
)


@pytest.mark.parametrize(("text", "line", "said"), LEFT_OUT, ids=[said for _, _, said in LEFT_OUT])
def test_what_cannot_be_carried_over_is_named_by_its_line_and_marks_the_file(
    text: str, line: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    file.write_text(EMPTY.format(text))
    assert call(["convert", "freqtrade", str(file), "-o", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["whole"]
    named = [finding for finding in answer["findings"] if finding["is_lost"] and said in finding["text"]]
    assert [finding["line"] for finding in named] == [line]
    assert call(["check", str(tmp_path / "own.yaml")]) == 0
    written = (tmp_path / "strategies" / "own.py").read_text()
    assert "NOT THE WHOLE STRATEGY" in written
    assert f"line {line}: {named[0]['text']}" in written


def test_a_rule_without_one_of_its_conditions_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    rules = (
        '        conditions = [df["close"] > df["open"]]\n        conditions.append(ta.TEMA(df) > df["close"])\n'
        '        df.loc[reduce(lambda x, y: x & y, conditions), "enter_long"] = 1\n'
        '        df.loc[df["close"] > df["high"].shift(1), "enter_long"] = 1\n'
    )
    file = tmp_path / "own.py"
    file.write_text(EMPTY.format(ENTRY + rules))
    assert call(["convert", "freqtrade", str(file), "-o", str(tmp_path)]) == 1
    written = (tmp_path / "strategies" / "own.py").read_text()
    assert written.count('"enter_long"] = 1') == 1
    assert "conditions" not in written.split("class Own")[1]


def test_old_columns_and_shorts_are_carried_over(tmp_path: Path) -> None:
    rules = (
        "    can_short = True\n    def populate_buy_trend(self, df, m):\n"
        '        df.loc[df["close"] > df["open"], "buy"] = 1\n'
        '        df.loc[df["close"] < df["open"], "enter_short"] = 1\n'
        "    def populate_sell_trend(self, df, m):\n"
        '        df.loc[df["close"] < df["open"], "sell"] = 1\n'
        '        df.loc[df["close"] > df["open"], "exit_short"] = 1\n'
    )
    file = tmp_path / "own.py"
    file.write_text(EMPTY.format(rules))
    assert call(["convert", "freqtrade", str(file), "-o", str(tmp_path)]) == 0
    run = backtest("own:Own", bars(walk(100, 60, seed=1)), strategies_dir=tmp_path / "strategies")
    assert {trade.side for trade in run.trades} == {"long", "short"}


# a file, and what is said of it
BAD = (
    ("class Own: pass\n", "needs one class that extends IStrategy, and has none"),
    ("class A(IStrategy): pass\nclass B(A): pass\n", "A in line 1, B in line 2"),
    ("class Own(IStrategy:\n", "is no Python"),
    ("x = '\0'\n", "is no Python"),
    ("#" * 1_000_001, "is larger than 1,000,000 bytes"),
)


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said for _, said in BAD])
def test_a_file_that_is_no_strategy_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    file.write_text(text)
    assert call(["convert", "freqtrade", str(file), "-o", str(tmp_path)]) == 4
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_file_is_refused_and_no_file_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["convert", "freqtrade", str(tmp_path / "none.py"), "-o", str(tmp_path)]) == 4
    assert "cannot be read" in capsys.readouterr().err
    assert call(["convert", "freqtrade", str(STRATEGIES[0]), "-o", str(tmp_path)]) == 0
    assert call(["convert", "freqtrade", str(STRATEGIES[0]), "-o", str(tmp_path)]) == 2
    assert "nothing was written" in capsys.readouterr().err


def test_the_file_is_never_executed(tmp_path: Path) -> None:
    file, trace = tmp_path / "own.py", tmp_path / "trace"
    code = f'open({str(trace)!r}, "w")\n'
    file.write_text(code + EMPTY.format(f"    x = {code}    def populate_indicators(self, df, m):\n        {code}"))
    call(["convert", "freqtrade", str(file), "-o", str(tmp_path)])
    assert (tmp_path / "strategies" / "own.py").exists()
    assert not trace.exists()


VALUES = ("x", "", None, [], {}, (), -1, 0, 1.5, 10**400, float("inf"), True, b"x", ..., "a\\d'\"\n", "2", 1j)


class Damage(ast.NodeTransformer):
    """Replaces values of a strategy by others, and leaves out arguments and statements."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.JoinedStr):
            return node
        super().generic_visit(node)
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            if self.chance.random() < 0.02:
                others = (
                    ast.Name("dataframe"),
                    ast.Attribute(ast.Name("self"), "other"),
                    ast.Call(ast.Name("f"), [], []),
                )
                return self.chance.choice((*map(ast.Constant, VALUES), *others, ast.List([]), ast.Dict([], [])))
            if isinstance(node, ast.Call) and node.args and self.chance.random() < 0.05:
                node.args.pop()
        return ast.Pass() if isinstance(node, ast.stmt) and self.chance.random() < 0.01 else node


def test_a_damaged_strategy_is_refused_or_written_as_python(tmp_path: Path) -> None:
    texts = [file.read_text() for file in STRATEGIES]
    outcomes = Counter[str]()
    for seed in range(150):
        file = tmp_path / "own.py"
        damaged = ast.unparse(ast.fix_missing_locations(Damage(seed).visit(ast.parse(texts[seed % len(texts)]))))
        file.write_text(damaged)
        try:
            strategy = converted(file)
        except ConfigError:
            outcomes["refused"] += 1
            continue
        compile(strategy.strategy(), "own.py", "exec")
        assert YAML(typ="safe").load(strategy.config())["strategies"][0]["interval"]
        outcomes["whole" if not any(finding.is_lost for finding in strategy.findings) else "marked"] += 1
    assert min(outcomes["whole"], outcomes["marked"]) > 20


def test_on_bar_may_follow_the_signals_of_the_same_class(tmp_path: Path) -> None:
    text = (
        "import numpy as np\nfrom bot import Strategy\nfrom bot.strategy.signals import Signals\n"
        "class Both(Strategy):\n    def signals(self, bars):\n"
        "        return Signals(long=np.ones(len(bars), dtype=bool), usd=100, stop_pct=5)\n"
        "    def on_bar(self, view, bar):\n        return self.follow_signals(view, bar)\n"
    )
    (tmp_path / "both.py").write_text(text)
    run = backtest("both:Both", bars(walk(100, 10, seed=1)), strategies_dir=tmp_path)
    assert len(run.trades) == 1
