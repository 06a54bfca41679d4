"""Monte Carlo of a backtest: the trades in another order and drawn again, and the strategies on bootstrapped
candles.
"""

from __future__ import annotations

import json
from array import array
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.bootstrap import bootstrapped, observed_ms
from bot.backtest.data.candles import Candles
from bot.backtest.monte_carlo import fall_of
from bot.cli.app import call
from bot.number_text import on_page
from bot.service.market_data.trading_hours import session_at
from bot.wire import INTERVAL_MS
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
    # A volume is that of its source.
    sources = {volume: row for row, volume in enumerate(btc.volume)}
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


SESSIONS = ("equity", "index")


def session_candles(hours: str, interval: str, *, market: str = "AAPL", days: int = 24) -> Candles:
    """Candles in the sessions of an exchange only. Within a session each moves 0.02 %; the first of a session has
    jumped by about 1 %.
    """
    step = INTERVAL_MS[interval]
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in range(5)))
    px, before = 200.0, None
    for number in range(days * 86_400_000 // step):
        at_ms = START_MS + number * step
        if not session_at(hours, at_ms).is_open:
            continue
        after_gap = before is not None and at_ms - before > step
        move = 0.01 if after_gap else 0.0002
        opened, px = px, px * (1 + (move if number % 2 else -move))
        opened = px if after_gap else opened
        for column, value in zip(columns, (at_ms, opened, max(opened, px), min(opened, px), px, number), strict=True):
            column.append(value)
        before = at_ms
    return Candles(market, interval, *columns)


@pytest.mark.parametrize("interval", ["5m", "1h", "4h"])
@pytest.mark.parametrize("hours", SESSIONS)
def test_the_candles_after_a_closed_night_are_drawn_as_often_as_they_are_there(hours: str, interval: str) -> None:
    """Closed hours are no data. No block begins in them, and none is filled with the candle after them."""
    recorded = session_candles(hours, interval)
    # A volume is that of its source.
    rows = {volume: row for row, volume in enumerate(recorded.volume)}
    gaps = [row for row in range(1, len(recorded)) if recorded.at_ms[row] - recorded.at_ms[row - 1] > recorded.step_ms]
    drawn = longest = count = 0
    for seed in range(40):
        (made,) = bootstrapped([recorded], START_MS, recorded.end_ms, block_ms=24 * recorded.step_ms, seed=str(seed))
        found = [rows[volume] for volume in made.volume]
        drawn += sum(row in set(gaps) for row in found[1:])
        count += len(found) - 1
        longest = max(longest, *(len(list(same)) for _, same in groupby(found)))
    assert 0.5 < drawn / count / (len(gaps) / (len(recorded) - 1)) < 2
    assert longest <= 2, "a candle follows itself only where a block ends with the candle that the next one begins with"


def test_a_market_that_is_closed_at_night_keeps_runs_of_its_own_beside_one_that_never_closes() -> None:
    share, coin = session_candles("equity", "1h", days=40), minutes(40 * 24, interval="1h", decimals=8)
    for number in range(0, len(coin), 7):
        # Each volume is that of one candle.
        coin.volume[number] += number
    first = {volume: row for row, volume in enumerate(share.volume)}
    gaps = {row for row in range(1, len(share)) if share.at_ms[row] - share.at_ms[row - 1] > share.step_ms}
    drawn, joined, count = 0, 0, 0
    for seed in range(40):
        made, other = bootstrapped([share, coin], START_MS, coin.end_ms, block_ms=24 * share.step_ms, seed=str(seed))
        assert list(other.at_ms) == list(coin.at_ms)
        found = [first[volume] for volume in made.volume]
        drawn += sum(row in gaps for row in found[1:])
        joined += sum(b == a + 1 for a, b in pairwise(found))
        count += len(found) - 1
    assert drawn / count / (len(gaps) / (len(share) - 1)) < 2
    assert joined / count > 0.8


def test_blocks_longer_than_half_of_the_time_with_candles_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A week and a day of shares last eight days with their weekend, and have candles of six days."""
    recorded = session_candles("equity", "1h", days=9)
    write(recorded, tmp_path / "AAPL_1h.csv")
    made = config(tmp_path, use="bench:Cross", markets="AAPL", fast_bars=3, slow_bars=8)
    made.write_text(made.read_text().replace("interval: 1m", "interval: 1h"))
    first_ms = recorded.at_ms[0]
    hours = [
        span_ms // 3_600_000
        for span_ms in (observed_ms([recorded], first_ms, recorded.end_ms), recorded.end_ms - first_ms)
    ]
    assert hours == [6 * 24, 8 * 24]
    asked = ["backtest", str(made), "--data", str(tmp_path), "--accept-hours", "--bootstrap", "2", "--bootstrap-block"]
    assert call([*asked, "80h"]) == 4
    assert "the range has candles of 6 d, which is shorter than two blocks" in capsys.readouterr().err


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
        assert on_page(line) in page
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
    assert "--bootstrap-block 1 d: the range has candles of 6 h 40 min" in (said := capsys.readouterr().err)
    assert "which is shorter than two blocks; take shorter blocks or more data" in said
    assert not (place / "runs").exists()


def test_one_trade_has_no_other_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = backtested(
        place, place / "mine.yaml", place / "BTC_1m.csv", "--monte-carlo", "10", "--to", "2025-06-01T00:12"
    )
    assert monte_carlo(folder)["trades"]["trades"] < 2
    assert "at least 2 are needed" in capsys.readouterr().out
