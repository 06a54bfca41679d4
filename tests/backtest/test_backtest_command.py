"""`bot backtest` from the command line: its folder, the same bytes twice, partial results, the proof, and its errors
for bad input.
"""

from __future__ import annotations

import errno
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.backtest.engine import progress
from bot.backtest.results import layout as folders
from bot.cli.app import call
from bot.clock import iso
from bot.errors import JournalBlocked
from bot.logs import HIDDEN
from tests.backtest.builders import MINUTE_MS, START_MS, STRATEGIES, config, minutes, write
from tests.backtest.builders import backtested as run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(minutes(600), tmp_path / "BTC_1m.csv")


def look_each(bars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are checked after a number of bars, however long the bars take."""
    monkeypatch.setattr(progress, "FIRST_REPORT", bars)
    monkeypatch.setattr(progress, "CHUNK", bars)
    monkeypatch.setattr(progress, "monotonic_ns", lambda: 0)


def test_the_same_manifest_gives_the_same_bytes(tmp_path: Path, data: Path):
    made = config(tmp_path)
    outage = f"{iso(START_MS + 200 * MINUTE_MS)[:19]}+20m"
    one, two = (run(tmp_path, made, data, "--outage", outage, "--fee", "0.02%", "--spread", "3bps") for _ in range(2))
    assert sorted(path.name for path in one.iterdir()) == sorted(folders.NAMES)
    for name in folders.NAMES:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    other = run(tmp_path, made, data, "--fee", "0.03%")
    assert (other / "manifest.json").read_bytes() != (one / "manifest.json").read_bytes()
    more = run(tmp_path, made, data, "--fee", "0.03%", "--band", "--prove-causal")
    assert (more / "summary.json").read_bytes() != (other / "summary.json").read_bytes()
    assert json.loads((more / "manifest.json").read_text())["besides"] == ["band", "prove_causal"]
    assert (other / "events.jsonl").read_bytes() != (one / "events.jsonl").read_bytes()


def test_the_manifest_names_code_config_data_and_every_assumption(tmp_path: Path, data: Path):
    made = config(tmp_path)
    folder = run(tmp_path, made, data, "--spread", "2bps")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["config"]["text"] == made.read_text()
    assert (
        len(manifest["code"]["sha256"])
        == len(manifest["strategies"][0]["sha256"])
        == len(manifest["data"][0]["sha256"])
        == 64
    )
    assert manifest["data"][0]["candles"] == 600
    said = "\n".join(manifest["assumptions"])
    for word in (
        "path sl_first",
        "next bar's open",
        "spread 2 bps",
        "taker 0.045 %",
        "baseline",
        "latency 0 ms",
        "prices come from 1m candles",
        "365 days",
    ):
        assert word in said
    assert str(tmp_path) not in (folder / "manifest.json").read_text().replace(str(STRATEGIES), "")


def test_a_param_of_the_command_line_is_run_and_recorded_as_if_the_config_had_it(tmp_path: Path, data: Path):
    made = config(tmp_path, use="bench:Cross", slow_bars=40)
    before = made.read_text()
    given = run(tmp_path, made, data, "--param", "one.fast_bars=5", "--param", "one.usd=2000.5")
    text = json.loads((given / "manifest.json").read_text())["config"]["text"]
    assert (given / "events.jsonl").read_bytes() != (run(tmp_path, made, data) / "events.jsonl").read_bytes()
    assert made.read_text() == before
    made.write_text(text)
    written = run(tmp_path, made, data)
    assert (written / "manifest.json").read_bytes() == (given / "manifest.json").read_bytes()
    assert (written / "events.jsonl").read_bytes() == (given / "events.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("param", "words"),
    [
        ("one.fast_bars", "'one.fast_bars' is not STRATEGY.PARAM=VALUE"),
        ("two.fast_bars=5", "no strategy 'two'; there are one"),
        ("one.fast_barz=5", "fast_barz"),
        ("one.fast_bars=0", "greater than or equal to 1"),
        ("one.fast_bars=[", "the value is no YAML"),
    ],
)
def test_a_param_that_cannot_be_set_is_refused(
    tmp_path: Path, data: Path, param: str, words: str, capsys: pytest.CaptureFixture[str]
):
    made = config(tmp_path, use="bench:Cross")
    assert call(["backtest", str(made), "--data", str(data), "--out", str(tmp_path / "runs"), "--param", param]) != 0
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_tick_that_is_coarse_for_the_prices_is_reported(tmp_path: Path, data: Path):
    (tmp_path / "low").mkdir()
    low = write(minutes(60, px=1.23456, decimals=6), tmp_path / "low" / "BTC_1m.csv")
    made = config(tmp_path)
    words = "BTC: the listing's tick is 0.1 at a price of 1."
    said = [json.loads((run(tmp_path, made, one) / "manifest.json").read_text())["assumptions"] for one in (data, low)]
    assert [any(line.startswith(words) for line in lines) for lines in said] == [False, True]
    fine = run(tmp_path, made, low, "--tick", "BTC=0.00001")
    assert words not in (fine / "manifest.json").read_text()


def test_a_market_whose_candles_end_a_day_before_the_others_is_named(tmp_path: Path):
    (tmp_path / "data").mkdir()
    for market, hours in (("BTC", 60), ("ETH", 36), ("SOL", 37)):
        write(minutes(hours, market=market, px=100.0, interval="1h"), tmp_path / "data" / f"{market}_1h.csv")
    made = config(tmp_path, markets="BTC, ETH, SOL")
    made.write_text(made.read_text().replace("interval: 1m", "interval: 1h"))
    said = json.loads((run(tmp_path, made, tmp_path / "data") / "manifest.json").read_text())["assumptions"]
    assert [line for line in said if "stands still" in line] == [
        "ETH: there are candles only from 2025-06-01T00:00 to 2025-06-02T12:00; outside of that its price stands still"
    ]


def test_a_backtest_before_all_data_begins_with_the_data_and_reports_it(tmp_path: Path, data: Path):
    """The figures cover the time of the candles, because years without candles would dilute annual figures."""
    made = config(tmp_path)
    whole, early = (run(tmp_path, made, data, *more, "--outages", "1") for more in ((), ("--from", "2020-01-01")))
    mine, its = (json.loads((one / "summary.json").read_text()) for one in (whole, early))
    assert its["course"] == mine["course"]
    assert (its["eventDigest"], its["figures"]) == (mine["eventDigest"], mine["figures"])
    assumed, told = (json.loads((one / "manifest.json").read_text())["assumptions"] for one in (whole, early))
    assert [line for line in told if line not in assumed] == [
        "the session begins at 2025-06-01T00:00, with the first candle there is, and not at 2020-01-01T00:00"
    ]


@pytest.mark.parametrize(("start", "told"), [("03:00", []), ("03:07", ["ETH"])])
def test_a_backtest_that_begins_inside_a_candle_reports_how_its_first_orders_fill(
    tmp_path: Path, start: str, told: list[str]
):
    """Not at an open: with candles of a day at the low or the high of the day."""
    (tmp_path / "data").mkdir()
    for market, count, interval in (("BTC", 600, "1m"), ("ETH", 10, "1h")):
        write(
            minutes(count, market=market, px=2_500.0, interval=interval), tmp_path / "data" / f"{market}_{interval}.csv"
        )
    made = config(tmp_path, markets="BTC, ETH")
    made.write_text(made.read_text().replace("interval: 1m", "interval: 1h"))
    one = run(tmp_path, made, tmp_path / "data", "--from", f"2025-06-01T{start}")
    said = json.loads((one / "manifest.json").read_text())["assumptions"]
    assert [line.partition(":")[0] for line in said if "inside a candle: until" in line] == told


def test_the_curve_can_be_read_by_numpy_and_ends_where_the_summary_does(tmp_path: Path, data: Path):
    numpy = pytest.importorskip("numpy")
    folder = run(tmp_path, config(tmp_path), data)
    curve = numpy.load(folder / "equity.npy")
    summary = json.loads((folder / "summary.json").read_text())
    assert len(curve) == 600
    assert curve["at_ms"][0] == START_MS + MINUTE_MS
    assert curve["equity_usd"][-1] == pytest.approx(summary["endUsd"], abs=1e-6)
    assert summary["figures"]["Return [%]"] == pytest.approx(100 * (summary["endUsd"] / 10_000 - 1), abs=1e-6)


def test_a_band_shows_the_range_over_path_policies_and_the_orders_that_depend_on_it(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
):
    wild = write(minutes(900, vol=0.02), tmp_path / "wild_BTC_1m.csv")
    out = tmp_path / "runs"
    made = config(tmp_path, "oracles:Ticked", entries=list(range(0, 900, 3)), stop_pct=1, target_pct=1)
    options = ("--out", str(out), "--band", "--json", "--accept-jumps", "--balance", "1000000")
    assert call(["backtest", str(made), "--data", f"BTC={wild}", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said["band"]["paths"]) == ["ohlc", "olhc", "adaptive"]
    assert said["band"]["paths"]["adaptive"]["differing"]["here"] > 0
    assert said["band"]["endUsd"][0] < said["band"]["endUsd"][1]
    first, *_ = orders = said["band"]["orders"]
    assert len(orders) == said["band"]["orderCount"] > 20
    assert set(first) == {"trade", "strategy", "market", "side", "entryMs", "fills"}
    assert len(set(first["fills"].values())) > 1 < len(first["fills"])
    assert said["eventDigest"]
    differing = (
        "band: the path adaptive ends at ",
        f"band: the fills of {len(orders)} trades depend on the path; all other differences follow from them",
        f"band: trade {first['trade']}, BTC long of {iso(first['entryMs'])[:19]}: ",
        f"band: and {len(orders) - 20} more: summary.json names {len(orders)}",
    )
    options = tuple(one for one in options if one != "--json")
    for given, expected in ((wild, differing), (data, ("band: the paths ohlc, olhc, adaptive give the same trades",))):
        assert call(["backtest", str(made), "--data", f"BTC={given}", *options]) == 0
        said = capsys.readouterr().out
        assert [words for words in expected if words not in said] == []


def test_an_honest_strategy_is_proven_causal_and_one_that_looks_ahead_is_not(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
):
    out = ("--out", str(tmp_path / "runs"), "--prove-causal")
    assert call(["backtest", str(config(tmp_path)), "--data", str(data), *out]) == 0
    assert "causal: equal decisions on data cut at 5 instants" in capsys.readouterr().out
    assert call(["backtest", str(config(tmp_path, "causal:Cheat")), "--data", str(data), *out]) == 1
    said = capsys.readouterr()
    assert "NOT CAUSAL" in said.out
    assert "error: not causal: event" in said.err


def test_an_honest_strategy_is_causal_on_coarse_candles_and_on_candles_with_a_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = minutes(2_000)
    hours = write(minutes(300, interval="15m"), tmp_path / "BTC_15m.csv")
    nightly = write(whole.pick([*range(500), *range(1_400, 2_000)]), tmp_path / "BTC_1m.csv")
    coarse = config(tmp_path).read_text().replace("interval: 1m", "interval: 15m")
    for data, text in ((hours, coarse), (nightly, config(tmp_path).read_text())):
        (tmp_path / "mine.yaml").write_text(text)
        asked = ["--data", str(data), "--out", str(tmp_path / "runs"), "--prove-causal", "--accept-gaps"]
        for seed in ("1", "2", "3"):
            assert call(["backtest", str(tmp_path / "mine.yaml"), *asked, "--seed", seed]) == 0, (data.name, seed)
            assert "causal: equal decisions on data cut at 5 instants" in capsys.readouterr().out


def test_a_warm_up_in_the_range_and_a_market_that_begins_later_are_proven_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = ["--out", str(tmp_path / "runs"), "--prove-causal"]
    # The first cut leaves fewer bars than the 30 of the warm-up.
    short = write(minutes(120), tmp_path / "BTC_1m.csv")
    assert call(["backtest", str(config(tmp_path, "bench:Cross")), "--data", str(short), *out]) == 0
    late = write(minutes(600, market="ETH", px=2_500.0).slice(START_MS + 300 * MINUTE_MS), tmp_path / "ETH_1m.csv")
    both = ["--data", str(write(minutes(600), short)), "--data", str(late), "--from", iso(START_MS)[:19]]
    assert call(["backtest", str(config(tmp_path, markets="BTC, ETH")), *both, *out]) == 0
    assert capsys.readouterr().out.count("causal: equal decisions on data cut at 5 instants") == 2


def test_without_a_proof_a_strategy_is_not_called_causal(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from contextlib import contextmanager

    from bot.cli.backtest import backtest as session

    out = ["--out", str(tmp_path / "runs"), "--prove-causal", "--band"]
    short = ["--from", iso(START_MS + 599 * MINUTE_MS)[:19]]
    assert call(["backtest", str(config(tmp_path)), "--data", str(data), *out, *short]) == 1
    assert "was not proven: the range is too short for a cut" in capsys.readouterr().err

    looks = 0

    # The backtest itself checks six times; then Ctrl-C is pressed.
    def is_pressed() -> bool:
        nonlocal looks
        looks += 1
        return looks > 6

    @contextmanager
    def pressed():
        yield is_pressed

    monkeypatch.setattr(session, "_stopping", pressed)
    look_each(100, monkeypatch)
    before = set((tmp_path / "runs").iterdir())
    assert call(["backtest", str(config(tmp_path)), "--data", str(data), *out]) == 130
    said = capsys.readouterr()
    assert "PARTIAL" not in said.out
    assert "not proven causal: equal decisions so far on data cut at " in said.out
    assert "error: the band of the path policies is missing: the backtest was stopped\n" in said.err
    assert "error: whether the strategies are causal was not proven: it was stopped\n" in said.err
    (folder,) = set((tmp_path / "runs").iterdir()) - before
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["course"]["bars"], summary["band"], summary["proof"]["isWhole"]) == (600, None, False)


def test_an_outage_that_begins_before_the_last_candle_ends_with_it(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
):
    """The switch would act in two minutes, after the last price and the end of the curve."""
    made = config(tmp_path, "oracles:Ticked", entries=[590], stop_pct=20, target_pct=20)
    late = [
        "--outage",
        f"{iso(START_MS + 599 * MINUTE_MS)[:19]}+1h",
        "--to",
        iso(START_MS + 700 * MINUTE_MS)[:19],
        "--balance",
        "1000000",
    ]
    folder = run(tmp_path, made, data, *late)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["course"]["toMs"] == START_MS + 600 * MINUTE_MS
    assert (summary["guardians"], len(summary["outages"]), len(summary["left"])) == ([], 1, 1)


def test_a_stopped_run_keeps_its_results_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from contextlib import contextmanager

    from bot.cli.backtest import backtest as session

    @contextmanager
    def pressed():
        yield lambda: True

    monkeypatch.setattr(session, "_stopping", pressed)
    look_each(100, monkeypatch)
    data = write(minutes(600), tmp_path / "BTC_1m.csv")
    folder = run(tmp_path, config(tmp_path), data, code=130)
    assert "PARTIAL: stopped after 100 of 600 bars" in capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["course"] | {"isPartial": True, "bars": 100} == summary["course"]
    assert (folder / "equity.npy").stat().st_size < 100 * 24 + 200
    # The replay continues to the end; the part that the run did not reach is not a difference.
    capsys.readouterr()
    assert call(["replay", str(folder), "--data", str(data)]) == 0
    said = capsys.readouterr().out
    assert (
        f"note: the run was stopped at {iso(START_MS + 100 * MINUTE_MS)}: later decisions and fills are not compared"
        in said
    )


def test_a_full_disk_is_reported_with_the_folder(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bot.backtest.results.run_writer.write", full)
    assert call(["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs")]) == 1
    (folder,) = (tmp_path / "runs").iterdir()
    said = capsys.readouterr()
    assert said.err == f"error: {folder}: cannot be written: No space left on device; choose another place with --out\n"
    assert "  Return     " in said.out, "the figures are told at least"
    assert "Results: " not in said.out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_disk_that_fills_up_ends_the_backtest_and_the_results_so_far_are_printed(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
):
    """`/dev/full` accepts no bytes; events are written when there are more than a limit."""
    from bot.backtest import backtest, inputs

    class Full(inputs._Lines):
        def __init__(self, _path: Path, **_more: bool) -> None:
            super().__init__(Path("/dev/full"))
            self._file.reconfigure(line_buffering=True)

    monkeypatch.setattr(inputs, "_Lines", Full)
    monkeypatch.setattr(backtest, "EVENTS_HELD", 40)
    monkeypatch.setattr(backtest, "EVENTS_SHOWN", 20)
    look_each(20, monkeypatch)
    words = ["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs")]
    assert call([*words, *(["--json"] if as_json else [])]) == 1
    (folder,) = (tmp_path / "runs").iterdir()
    said = capsys.readouterr()
    assert said.err == f"error: {folder}: cannot be written: No space left on device; choose another place with --out\n"
    assert list(folder.iterdir()) == [], "half a run is none"
    if as_json:
        told = json.loads(said.out)
        assert (told["folder"], told["course"]["isPartial"]) == (None, True)
        assert 0 < told["course"]["bars"] < 600
    else:
        assert "PARTIAL: stopped after " in said.out


def test_a_journal_that_cannot_be_written_is_reported_for_the_backtest_and_not_for_a_daemon(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from bot.backtest import backtest

    def full(_path: Path, **_named: str) -> None:
        raise JournalBlocked("guardians and stops stand at the service") from sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(backtest, "open_journal", full)
    folder = run(tmp_path, config(tmp_path), data, "--journal", code=1)
    said = f"error: {folder}: the journal cannot be written: disk is full; choose another place with --out\n"
    assert capsys.readouterr().err == said


TELLS = """\
from bot import Strategy


class Mine(Strategy):
    warmup = 20

    def on_start(self, view):
        view.log("tells.started")

    def on_bar(self, view, bar):
        if bar.at_ms % 3_600_000 == 0:
            view.log("hour.seen", close=bar.close, api_key="secret", at={1})
        return ()
"""


def test_a_strategys_log_lines_are_in_the_folder_with_their_instants(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made = strategy(tmp_path, "")
    (tmp_path / "strategies" / "mine.py").write_text(TELLS)
    begin = ("--from", "2025-06-01T01:00")
    folder = run(tmp_path, made, data, *begin)
    assert f"The strategies' log: {folder / 'log.jsonl'}\n" in capsys.readouterr().out
    said = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    hours = [START_MS + hour * 60 * MINUTE_MS for hour in range(1, 11)]
    assert [(one["atMs"] - START_MS) // MINUTE_MS for one in said] == [60, *range(60, 601, 60)], (
        "nothing of the past before it"
    )
    assert {one["strategy"] for one in said} == {"one"}
    assert said[0]["event"] == "tells.started"
    assert said[1]["fields"] == {"close": said[1]["fields"]["close"], "api_key": HIDDEN, "at": [1]}
    assert [one["atMs"] for one in said[1:]] == hours
    monkeypatch.setattr("bot.backtest.backtest.LOG_LINES_MAX", 3)
    short = run(tmp_path, made, data, *begin)
    cut = [json.loads(line) for line in (short / "log.jsonl").read_text().splitlines()]
    assert cut[:3] == said[:3]
    assert [one["event"] for one in cut[3:]] == ["log.full"]
    assert not (run(tmp_path, config(tmp_path), data) / "log.jsonl").exists()


PRESSES = """\
import os
import signal
import threading

from bot import Params, Strategy


class Presses(Strategy):
    class Params(Params):
        times: int = 1
        number: int = signal.SIGINT

    seen = 0

    def on_bar(self, view, bar):
        self.seen += 1
        threading.Event().wait(0.002 if self.seen == 1 else 0)
        if self.seen == 150:
            for _ in range(self.params.times):
                os.kill(os.getpid(), self.params.number)
        return ()
"""


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that ends this process as Ctrl-C does."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, before)


def presses(folder: Path, number: int, *, times: int = 1) -> Path:
    """A config whose strategy presses."""
    (folder / "strategies").mkdir(exist_ok=True)
    (folder / "strategies" / "mine.py").write_text(PRESSES)
    made = config(folder, "mine:Presses", number=int(number), times=times)
    made.write_text(made.read_text().replace(str(STRATEGIES), "strategies"))
    return made


def test_in_a_backtest_a_call_has_no_time_limit_and_ctrl_c_keeps_the_results_so_far(
    number: signal.Signals,
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """So do SIGTERM and a closed terminal. A second one, in a call that does not end, keeps nothing."""
    from bot.runtime.strategy_host import worker

    monkeypatch.setattr(worker, "LIMIT_S", 0.001)
    monkeypatch.setattr(worker, "QUICK_S", 0.0001)
    look_each(100, monkeypatch)
    kept = run(tmp_path, presses(tmp_path, number), data, code=130)
    assert signal.getsignal(number) is signal.default_int_handler
    said = capsys.readouterr()
    assert ("PARTIAL: stopped after 200 of 600 bars" in said.out, "QUARANTINED" in said.out) == (True, False)
    assert said.err == "stopping; the results so far are kept (Ctrl-C again ends at once)\n"
    assert call(["report", str(kept), "--json"]) == 0
    made = presses(tmp_path, number, times=2)
    assert call(["backtest", str(made), "--data", str(data), "--out", str(tmp_path / "runs")]) == 130
    assert capsys.readouterr().err.endswith("stopped before it was done\n")
    (left,) = set((tmp_path / "runs").iterdir()) - {kept}
    assert [one.name for one in left.iterdir()] == ["events.jsonl"]


def test_a_backtest_under_nohup_continues_after_its_terminal_closes(tmp_path: Path, data: Path, number: signal.Signals):
    """nohup has the hangup ignored."""
    signal.signal(number, signal.SIG_IGN)
    folder = run(tmp_path, presses(tmp_path, number), data)
    assert json.loads((folder / "summary.json").read_text())["course"]["bars"] == 600
    assert signal.getsignal(number) is signal.SIG_IGN


def strategy(folder: Path, body: str) -> Path:
    """A config with its own strategy beside it."""
    (folder / "strategies").mkdir()
    (folder / "strategies" / "mine.py").write_text(
        f"from bot import *\n\n\nclass Mine(Strategy):\n    def on_bar(self, view, bar):\n        {body}\n"
    )
    made = config(folder, "mine:Mine")
    made.write_text(made.read_text().replace(str(STRATEGIES), "strategies"))
    return made


def test_a_strategys_prints_are_not_in_the_json(tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]):
    made = strategy(tmp_path, 'print("a close", bar.close)')
    out = str(tmp_path / "runs")
    assert call(["backtest", str(made), "--data", str(data), "--out", out, "--json"]) == 0
    told, said = capfd.readouterr()
    folder = json.loads(told)["folder"]
    assert said.count("a close") == 600
    assert call(["replay", folder, "--config", str(made), "--data", str(data), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["differences"] == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return Close(bar.market)", "write yield in place of return, or return a list"),
        (
            "close = Close(bar.market); return close; yield",
            "which is lost, because on_bar also has a yield: write yield",
        ),
    ],
)
def test_a_signal_that_is_returned_gives_an_error_with_the_right_form(body: str, says: str, tmp_path: Path, data: Path):
    made = strategy(tmp_path, body)
    summary = json.loads((run(tmp_path, made, data, code=1) / "summary.json").read_text())
    assert summary["quarantined"]["one"].startswith("one: StrategyError: on_bar returned Close(market='BTC'")
    assert says in summary["quarantined"]["one"]


NOTHING = {
    "no stop": (
        "yield Open('BTC', 'long', usd=100)",
        "Nothing was traded: 600 orders in 600 bars; refused by the risk check: no_protection 600, first at",
    ),
    "another market": (
        "yield Open('ETH', 'long', usd=100, bracket=Bracket(stop_pct=2))",
        "market_not_yours 600, first at",
    ),
    "too much": (
        "yield Open('BTC', 'long', usd=90_000, bracket=Bracket(stop_pct=2))",
        "refused by the service: insufficient_funds 600, first at",
    ),
    "never filled": (
        (
            "view.position('BTC') or view.orders('BTC') or (yield Open('BTC', 'long', usd=100, limit_px=1_000,"
            " bracket=Bracket(stop_pct=2)))"
        ),
        "Nothing was traded: 1 order in 600 bars; not filled: session_ended 1, first at",
    ),
    "no decision": ("return ()", "Nothing was traded: 0 decisions in 600 bars: no strategy asked for an order"),
    "a changed state is no decision": ("view.state['n'] = bar.close", "Nothing was traded: 0 decisions in 600 bars"),
}


@pytest.mark.parametrize("journal", [(), ("--journal",)])
@pytest.mark.parametrize("case", NOTHING)
def test_a_run_that_traded_nothing_ends_with_the_reason(
    case: str, journal: tuple[str, ...], tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
):
    body, says = NOTHING[case]
    folder = run(tmp_path, strategy(tmp_path, body), data, *journal)
    assert says in capfd.readouterr().out.strip().splitlines()[-1]
    assert call(["report", str(folder)]) == 0
    assert says in capfd.readouterr().out
    assert says in (folder / "report.html").read_text()


@pytest.mark.parametrize(("told", "ms"), [("300ms", 300), ("1.005s", 1_005), ("0s", 0), ("0", 0), ("0.5s", 500)])
def test_latency_may_be_given_in_milliseconds_or_as_zero(tmp_path: Path, data: Path, told: str, ms: int):
    manifest = json.loads((run(tmp_path, config(tmp_path), data, "--latency", told) / "manifest.json").read_text())
    assert manifest["options"]["latency_ms"] == ms


RAISES = """\
from bot import Close, Strategy


class Raises(Strategy):
    def on_bar(self, view, bar):
        yield from self.decide(view, bar)

    def decide(self, view, bar):
        if bar.at_ms % 3_600_000 == 0:
            DOES
        yield Close(bar.market, size=0.001)
"""


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("int('no number')", "ValueError: invalid literal for int() with base 10: 'no number'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_strategy_that_raises_is_quarantined_with_the_line_of_its_own_file(
    tmp_path: Path, data: Path, does: str, said: str, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "mine.py").write_text(RAISES.replace("DOES", does))
    made = config(tmp_path, "mine:Raises")
    made.write_text(made.read_text().replace(str(STRATEGIES), "strategies"))
    folder = run(tmp_path, made, data, code=1)
    why = f"one: {said} (mine.py:10 in decide, from mine.py:6 in on_bar)"
    assert json.loads((folder / "summary.json").read_text())["quarantined"] == {"one": why}
    told = capsys.readouterr()
    assert f"QUARANTINED one: {why}" in told.out
    assert f"\nerror: {why}: quarantined, and not called again\n" in f"\n{told.err}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--from", "2025-06-02", "--to", "2025-06-01"), "the range is empty"),
        (("--from", "2031-01-01"), "the range is empty: there is no whole candle of BTC"),
        (("--balance", "0"), "balance 0: must be above 0"),
        (("--fee", "500%"), "fee 5.00: must be a fraction"),
        (("--fee", "-0.05%"), "'-0.05%' is not a rate"),
        (("--maker-fee", "-100%"), "maker fee -1.00: must be a fraction above -1"),
        (("--fee", "BTC=0.05"), "'0.05' has no unit; write 0.05% or 0.05bps"),
        (("--spread", "2"), "'2' has no unit; write 2% or 2bps"),
        (("--tick", "0.000000001"), "tick 0.000000001: must be above 0 and at most 1,000,000, with at most 8 decimals"),
        (("--lot", "0"), "lot 0: must be above 0"),
        (
            ("--outage", "2025-06-01T01:00+1h", "--outage", "2025-06-01T01:30+1h"),
            "outages must have a length and must not overlap",
        ),
        (("--latency", "0.4ms"), "'0.4ms': write whole milliseconds"),
        (("--fee", "NOPE=1%"), "market 'NOPE' is not listed"),
        (("--maker-fee", "ETH=1%"), "--maker-fee ETH: no strategy trades it; they trade BTC"),
        (("--spread", "N.O_PE=1%"), "market 'N.O_PE' is not listed"),
        (("--fee", ""), "'' is not a value; write VALUE, CLASS=VALUE or MARKET=VALUE"),
        (("--tick", "perp:BTC="), "'perp:BTC=' is not a number"),
        (("--accept-everything",), "No such option"),
    ],
)
def test_bad_options_give_one_sentence(
    tmp_path: Path, data: Path, more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
):
    assert call(["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs"), *more]) != 0
    out = capsys.readouterr()
    assert said in out.err
    assert "Traceback" not in out.err
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir()), "no empty folder is left"


def test_a_file_that_is_given_twice_is_read_once_and_reported(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
):
    folder = run(tmp_path, config(tmp_path), data, "--data", f"BTC={data.parent / '.' / data.name}")
    assert f"{data}: given twice for BTC: it is read once" in capsys.readouterr().err
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["data"][0]["candles"] == 600
    assert not any("twice" in one for one in manifest["assumptions"])


def test_data_with_gaps_are_refused_with_the_report_until_they_are_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = minutes(600)
    data = write(whole.pick([*range(200), *range(260, 600)]), tmp_path / "BTC_1m.csv")
    arguments = ["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs")]
    assert call(arguments) == 1
    said = capsys.readouterr().err
    assert "FAULT gap" in said
    assert "--accept-gaps" in said
    assert call([*arguments, "--accept-gaps"]) == 0
    assert "60 candles are missing inside the range" in capsys.readouterr().out


def test_accepted_faults_of_the_data_are_listed_as_assumptions(tmp_path: Path):
    candles = minutes(120)
    rows = [*range(60), 59, *range(60, 120)]
    twice = candles.pick(rows)
    twice.volume[60] += 1
    folder = run(tmp_path, config(tmp_path), write(twice, tmp_path / "BTC_1m.csv"), "--accept-duplicates")
    told = json.loads((folder / "manifest.json").read_text())["assumptions"]
    assert told[-1] == "BTC: 1 row of an instant that another row gives otherwise: the last row of an instant counts"


def test_a_market_without_candles_and_a_warm_up_that_is_too_long_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = write(minutes(25), tmp_path / "BTC_1m.csv")
    arguments = ["--data", str(data), "--out", str(tmp_path / "runs")]
    assert call(["backtest", str(config(tmp_path, markets="BTC, ETH")), *arguments]) != 0
    assert "ETH" in capsys.readouterr().err
    assert call(["backtest", str(config(tmp_path, "bench:Cross")), *arguments]) != 0
    assert "the warm-up is longer than the data: a strategy needs 30 1m bars of BTC" in capsys.readouterr().err
    folder = run(tmp_path, config(tmp_path, "bench:Cross"), write(minutes(60), data), "--from", "2025-06-01T00:10")
    told = json.loads((folder / "manifest.json").read_text())["assumptions"]
    assert "BTC: 10 of the 30 1m bars of warm-up lie before the range, the others in it" in told


def test_the_caps_of_a_key_refuse_the_same_orders_in_a_backtest_as_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = write(minutes(2 * 1_440), tmp_path / "BTC_1m.csv")
    made = config(tmp_path, "oracles:Ticked", entries=list(range(0, 2_880, 30)), stop_pct=0.1, target_pct=0.1)
    plain = ("--lot", "1", "--fee", "0", "--spread", "0", "--depth", "0", "--balance", "1000000")
    free = run(tmp_path, made, data, *plain)
    capped = run(
        tmp_path, made, data, *plain, "--cap", "max-daily-notional-usd=1_000_000", "--cap", "maxTradeUsd=150000"
    )
    assert "refused by the service: key_limit_exceeded" in capsys.readouterr().out
    trades = [json.loads((one / "summary.json").read_text())["figures"]["# Trades"] for one in (free, capped)]
    refused = json.loads((capped / "summary.json").read_text())["rejections"]
    # One of them costs about 100,000 USD: nine fit into a day's million, or ten when the price is below that; so on
    # both days.
    assert 18 <= trades[1] <= 20 < trades[0]
    assert refused["key_limit_exceeded"] >= trades[0] - 20
    opened = [json.loads(line) for line in (capped / "events.jsonl").read_text().splitlines()]
    for day in (START_MS, START_MS + 1_440 * MINUTE_MS):
        sizes = [
            float(one["data"]["size"]) * float(one["data"]["px"])
            for one in opened
            if one["type"] == "fill" and one["subtype"] == "entry" and day <= one["ts"] < day + 1_440 * MINUTE_MS
        ]
        assert 900_000 < sum(sizes) <= 1_000_000
    manifest = json.loads((capped / "manifest.json").read_text())
    assert manifest["options"]["caps"] == {"maxDailyNotionalUsd": "1000000", "maxTradeUsd": "150000"}
    assert (
        "the session's key: maxDailyNotionalUsd 1000000; the service refuses an order that opens more"
        in manifest["assumptions"]
    )
    assert call(["replay", str(capped), "--data", str(data)]) == 0
    none = json.loads((run(tmp_path, made, data, *plain, "--cap", "allowedCoins=ETH") / "summary.json").read_text())
    assert (none["figures"]["# Trades"], none["rejections"]) == (0, {"key_limit_exceeded": 96})


@pytest.mark.parametrize(
    ("cap", "says"),
    [
        ("maxTrade=5", "did you mean maxTradeUsd?"),
        ("maxLeverage=99", "maxLeverage must be 1..50"),
        ("maxExposureUsd=0", "maxExposureUsd must be > 0"),
        ("maxOpenPositions=1.5", "must be a whole number"),
        ("allowedCoins=BTX", "market 'BTX' is not listed"),
        ("expiresAt=1", "is not a cap"),
    ],
)
def test_an_unknown_cap_is_refused(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], cap: str, says: str):
    assert (
        call(["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs"), "--cap", cap])
        != 0
    )
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


BARE = """\
import sys
sys.modules["numpy"] = sys.modules["polars"] = sys.modules["plotly"] = None
from bot.cli.app import call
sys.exit(call(sys.argv[1:]))
"""


def test_without_the_extras_the_same_manifest_gives_the_same_bytes(tmp_path: Path, data: Path):
    made = config(tmp_path, "bench:Cross", usd=500)
    whole = run(tmp_path, made, data)
    asked = ["backtest", str(made), "--data", str(data), "--out", str(tmp_path / "bare")]
    bare = subprocess.run([sys.executable, "-c", BARE, *asked], capture_output=True, text=True, check=False)
    assert bare.returncode == 0, bare.stderr
    (folder,) = (tmp_path / "bare").iterdir()
    assert len((folder / "trades.csv").read_text().splitlines()) > 5
    for name in folders.NAMES:
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_the_terminal_shows_how_many_more_guardians_fired(tmp_path: Path, data: Path):
    from bot.cli.backtest.summary import GUARDIANS_SHOWN, summary_lines
    from tests.backtest.builders import ran, settings

    schedule = [{"type": "schedule", "cron": "*/20 * * * *", "action": "flatten"}]
    found = ran([minutes(600)], made=settings(guardians=schedule)).result
    fired = len(found.trade_ledger.guardians)
    assert fired > GUARDIANS_SHOWN
    lines = summary_lines(found, [])
    assert sum("fired at" in line for line in lines) == GUARDIANS_SHOWN
    assert f"  and {fired - GUARDIANS_SHOWN} more: summary.json has all of them" in lines
