"""Monte Carlo of a backtest: the trades in another order and drawn again, and the strategies on bootstrapped candles."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.bootstrap import bootstrapped
from bot.backtest.data.candles import Candles
from bot.backtest.monte_carlo import fall_of
from bot.cli.app import call
from tests.backtest.builders import MINUTE_MS, START_MS, backtested, config, minutes, write

END_MS = START_MS + 400 * MINUTE_MS


def moves(candles: Candles, row: int) -> tuple[float, ...]:
    """Open, high, low and close over the close before."""
    before = candles.close[row - 1]
    values = (candles.open[row], candles.high[row], candles.low[row], candles.close[row])
    return tuple(one / before for one in values)


def test_bootstrapped_candles_are_blocks_of_the_moves_of_the_recorded_ones() -> None:
    btc, eth = minutes(400, hole=0.02, decimals=8), minutes(400, market="ETH", px=3_000, decimals=8)
    first_ms = START_MS + 100 * MINUTE_MS
    made, other = bootstrapped([btc, eth], first_ms, END_MS, block_ms=20 * MINUTE_MS, seed="1")
    assert list(made.at_ms) == list(btc.at_ms), "gaps stay"
    early = sum(at < first_ms for at in btc.at_ms)
    assert list(made.close[:early]) == list(btc.close[:early]), "candles before the range are history"
    rows = range(early, len(made))
    sources = {volume: row for row, volume in enumerate(btc.volume)}  # A volume is that of its source.
    found = [sources[made.volume[row]] for row in rows]
    for row, source in zip(rows, found, strict=True):
        assert moves(made, row) == pytest.approx(moves(btc, source), rel=1e-6)
    joined = sum(b == a + 1 for a, b in pairwise(found))
    assert 0.85 < joined / len(found) < 0.99, "a block has 20 candles on average"
    eth_sources = {volume: eth.at_ms[row] for row, volume in enumerate(eth.volume)}
    at = {at_ms: row for row, at_ms in enumerate(other.at_ms)}
    same = [
        eth_sources[other.volume[at[made.at_ms[row]]]] == btc.at_ms[one] for row, one in zip(rows, found, strict=True)
    ]
    assert sum(same) > 0.9 * len(same), "markets take the same blocks, apart from gaps"
    again, _ = bootstrapped([btc, eth], first_ms, END_MS, block_ms=20 * MINUTE_MS, seed="1")
    assert list(again.close) == list(made.close)
    assert all(low <= min(o, c) and max(o, c) <= high for _, o, high, low, c, _ in zip(*made.columns, strict=True))


def test_a_drawdown_is_of_the_balance_after_each_trade() -> None:
    assert fall_of([100, -50, -60, 200], 1_000) == pytest.approx(100 * (990 / 1_100 - 1))
    assert fall_of([10, 20], 1_000) == 0
    assert fall_of([-2_000], 1_000) == -100


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(minutes(400), tmp_path / "BTC_1m.csv")
    config(tmp_path, use="bench:Cross", fast_bars=3, slow_bars=8)
    return tmp_path


def monte_carlo(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())["monteCarlo"]
    return found


ASKED = ("--monte-carlo", "200", "--bootstrap", "4", "--bootstrap-block", "20m")


def test_the_terminal_the_summary_and_the_report_tell_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, data = place / "mine.yaml", place / "BTC_1m.csv"
    folder = backtested(place, made, data, *ASKED)
    said = capsys.readouterr().out
    found = monte_carlo(folder)
    summary = json.loads((folder / "summary.json").read_text())
    trades, candles = found["trades"], found["candles"]
    assert trades["trades"] > 5
    low, middle, high = trades["endUsd"]
    assert low < middle < high
    own = summary["figures"]["Equity Final [$]"]
    assert abs(middle - own) < 0.01 * own, "the middle of what was drawn is near the run"
    assert trades["shuffledDrawdownPct"][0] <= trades["shuffledDrawdownPct"][2] <= 0
    assert candles["runs"] == 4
    assert len({*candles["figures"]["Return [%]"]}) == 3, "histories differ"
    for words in (
        "Trades in another order (200 draws, seed 1)",
        "Efron 1979",
        "Bootstrapped candles (4 histories of blocks of 20 min on average",
        "Politis, Romano 1994",
    ):
        assert words in said
    lines = [line.strip() for line in said.splitlines() if "draws, seed" in line or "ootstrapped candles" in line]
    assert call(["report", str(folder)]) == 0
    told = capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert "How sure" in page
    for line in lines:
        assert line in told
        assert line in page
    assert monte_carlo(backtested(place, made, data, *ASKED)) == found
    assert monte_carlo(backtested(place, made, data, *ASKED, "--seed", "2")) != found
    assert json.loads((folder / "manifest.json").read_text())["besides"] == [
        "monte_carlo=200",
        "bootstrap=4",
        "bootstrap_block=1200s",
    ]


def test_a_bootstrap_that_cannot_be_is_refused_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["backtest", "mine.yaml", "--data", "BTC_1m.csv", "--bootstrap", "10"]) == 4
    assert "--bootstrap-block 1 d: the range of 7 h" in (said := capsys.readouterr().err)
    assert "is shorter than two blocks; take shorter blocks or more data" in said
    assert not (place / "runs").exists()


def test_one_trade_has_no_other_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = backtested(
        place, place / "mine.yaml", place / "BTC_1m.csv", "--monte-carlo", "10", "--to", "2025-06-01T00:12"
    )
    assert monte_carlo(folder)["trades"]["trades"] < 2
    assert "at least 2 are needed" in capsys.readouterr().out
