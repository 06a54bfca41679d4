"""What a page draws of a run: candles with volume, and indicators as the strategy itself saw them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bot.backtest.results import chart_data
from bot.cli.app import call
from tests.backtest.builders import minutes, write

SEEN = """\
from bot import Strategy, atr, ema, rsi, sma


class Seen(Strategy):
    fast = ema(10)
    slow = sma(30)
    range = atr(14)
    strength = rsi(14)
    traded = sma(5, "volume")

    def on_bar(self, view, bar):
        names = ("fast", "slow", "range", "strength", "traded")
        view.log("seen", at_ms=bar.at_ms, **{name: getattr(self, name)[bar.market] for name in names})
"""
CONFIG = """\
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {folder}
strategies: [{{name: one, use: "seen:Seen", markets: [BTC], interval: {interval}, budget_usd: 1000}}]
"""


def charted(tmp_path: Path, interval: str, *options: str) -> tuple[dict[str, object], dict[int, dict[str, float]]]:
    """The chart of BTC, and what the strategy saw at each of its bars."""
    (tmp_path / "seen.py").write_text(SEEN)
    (tmp_path / "c.yaml").write_text(CONFIG.format(folder=tmp_path, interval=interval))
    write(minutes(1_500, seed=2), tmp_path / "btc.csv")
    out = tmp_path / "out"
    assert (
        call(
            ["backtest", str(tmp_path / "c.yaml"), "--data", f"BTC={tmp_path / 'btc.csv'}", "--out", str(out), *options]
        )
        == 0
    )
    (folder,) = out.iterdir()
    logged = [json.loads(line)["fields"] for line in (folder / "log.jsonl").read_text().splitlines()]
    return json.loads((folder / "chart.json").read_text())["BTC"], {one["at_ms"]: one for one in logged}


@pytest.mark.parametrize("interval", ["1m", "5m"])
def test_an_indicator_is_drawn_as_the_strategy_saw_it(tmp_path: Path, interval: str) -> None:
    chart, seen = charted(tmp_path, interval, "--from", "2025-06-01T10:00")
    assert chart["stepMs"] == 60_000
    assert [(one["name"], one["label"], one["onPrice"]) for one in chart["indicators"]] == [
        ("fast", "EMA 10", True),
        ("slow", "SMA 30", True),
        ("range", "ATR 14", False),
        ("strength", "RSI 14", False),
        ("traded", "SMA 5", False),
    ]
    compared = 0
    for one in chart["indicators"]:
        for ts, value in zip(chart["ts"], one["values"], strict=True):
            # The strategy was called at the close of this candle.
            if ts + 60_000 in seen:
                expected = seen[ts + 60_000][one["name"]]
                assert value == (None if expected is None else pytest.approx(expected, rel=1e-7)), one["name"]
                compared += value is not None
    assert compared > 500


def test_thinned_candles_keep_the_extremes_the_volume_and_the_last_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = charted(tmp_path, "1m")
    monkeypatch.setattr(chart_data, "CANDLES_MAX", 100)
    monkeypatch.setattr(chart_data, "CANDLES_MIN", 10)
    (tmp_path / "thin").mkdir()
    thin, _ = charted(tmp_path / "thin", "1m")
    assert (thin["stepMs"], len(thin["ts"])) == (15 * 60_000, 100)
    assert thin["high"] == [max(whole["high"][at : at + 15]) for at in range(0, 1_500, 15)]
    assert thin["low"] == [min(whole["low"][at : at + 15]) for at in range(0, 1_500, 15)]
    assert thin["close"] == whole["close"][14::15]
    assert thin["volume"] == pytest.approx([sum(whole["volume"][at : at + 15]) for at in range(0, 1_500, 15)], rel=1e-6)
    for mine, all_of_it in zip(thin["indicators"], whole["indicators"], strict=True):
        assert mine["values"] == all_of_it["values"][14::15]


@pytest.mark.parametrize("rows", [1, 7, 1_499])
def test_indicators_are_the_same_however_few_candles_are_computed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(chart_data, "CANDLES_MAX", 400)
    (tmp_path / "parts").mkdir()
    whole, _ = charted(tmp_path, "5m", "--from", "2025-06-01T10:00")
    monkeypatch.setattr(chart_data, "CHUNK_ROWS", rows)
    parts, _ = charted(tmp_path / "parts", "5m", "--from", "2025-06-01T10:00")
    assert parts == whole
