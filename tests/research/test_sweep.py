"""`bot sweep`: the same table wherever the trials ran; deaths, stops and mistakes lose nothing and are told."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.number_text import on_page
from bot.research import runners
from bot.research.study import one_sweep
from bot.research.trials import Task, TrialOutcome
from tests.backtest.builders import config, minutes, write
from tests.conftest import REPOSITORY
from tests.documents import PAGES, blocks
from tests.html_tables import tables_of, uneven_tables

pytest.importorskip("optuna")

SPACE = """\
params:
  one.fast_bars: {from: 2, to: 10, step: 4}
  one.slow_bars: [20, 30]
objectives: [Return [%], "Max. Drawdown [%]"]
constraints: {"# Trades": {min: 3}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, candles and a space; the working directory."""
    monkeypatch.chdir(tmp_path)
    write(minutes(400), tmp_path / "BTC_1m.csv")
    (tmp_path / "space.yaml").write_text(SPACE.replace("[Return [%],", '["Return [%]",'))
    config(tmp_path, use="bench:Cross")
    return tmp_path


def sweep(*more: str, space: str = "space.yaml", code: int = 0) -> None:
    given = () if space == "" else ("--space", space)
    assert call(["sweep", "mine.yaml", "--data", "BTC_1m.csv", *given, *more]) == code


def table(study: str = "mine", storage: str = "sqlite:///sweeps.db") -> bytes:
    path = Path(f"{study}.csv")
    assert call(["sweep", "show", study, "--storage", storage, "--csv", str(path)]) == 0
    return path.read_bytes()


def test_a_sweep_tries_protections_as_a_backtest_with_param_does(place: Path) -> None:
    Path("rules.yaml").write_text("params: {one.protections.max_entries: [1, 3]}\n")
    sweep(space="rules.yaml")
    rows = list(csv.DictReader(table().decode().splitlines()))
    trades = {row["one.protections.max_entries"]: int(float(row["# Trades"])) for row in rows}
    assert trades["1"] == 1
    assert 1 < trades["3"] <= 3
    for count in trades:
        words = ["--param", f"one.protections.max_entries={count}", "--out", f"runs-{count}"]
        assert call(["backtest", "mine.yaml", "--data", "BTC_1m.csv", *words]) == 0
        (summary,) = Path(f"runs-{count}").glob("*/summary.json")
        found = json.loads(summary.read_text())
        assert found["figures"]["# Trades"] == trades[count]
        assert found["refusals"]["max_entries"] > 0


def test_one_worker_two_workers_and_a_resumed_sweep_give_the_same_table(place: Path) -> None:
    sweep("--study", "one")
    sweep("--study", "two", "--workers", "2")
    rows = table("one").decode().splitlines()
    assert len(rows) == 1 + 6
    assert rows[0].startswith("trial,state,one.fast_bars,one.slow_bars,feasible,Return [%],Max. Drawdown [%],# Trades,")
    assert {row.split(",")[1] for row in rows[1:]} == {"complete"}
    assert table("two") == table("one")
    sweep("--study", "one")
    assert table("two") == table("one"), "nothing is run twice"


def test_a_trial_is_the_backtest_with_these_params(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep("--json")
    best = json.loads(capsys.readouterr().out)["best"][0]
    params = [f"--param={name}={value}" for name, value in best["params"].items()]
    assert call(["backtest", "mine.yaml", "--data", "BTC_1m.csv", *params, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert best["objectives"] == [figures["Return [%]"], figures["Max. Drawdown [%]"]]


def test_show_prints_and_draws_what_the_trials_say(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep()
    assert call(["sweep", "show", "mine", "--out", "page.html"]) == 0
    said, page = capsys.readouterr().out, Path("page.html").read_text()
    for word in ("the best of 6 trials", "Pareto front: trials", "Importance: one.", "across, one."):
        assert word in said
    for word in ("Best trials", "Pareto front", "Importance of the params", "<svg", 'class="heat"', "What was run"):
        assert word in page
    assert "http" not in page.replace("http-equiv", "")
    assert call(["sweep", "show", "mine", "--out", "again.html"]) == 0
    assert Path("again.html").read_text() == page


def test_the_map_stands_under_its_heads_on_the_page_and_on_a_narrow_terminal(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep()
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    assert call(["sweep", "show", "mine", "--out", "page.html"]) == 0
    said, page = capsys.readouterr().out, Path("page.html").read_text()
    assert uneven_tables(page) == []
    (heat,) = [rows for rows in tables_of(page) if "\\" in rows[0][0]]
    down, across = heat[0][0].split(" \\ ")
    trials = list(csv.DictReader(table().decode().splitlines()))
    for row in heat[1:]:
        for head, cell in zip(heat[0][1:], row[1:], strict=True):
            of_cell = [one for one in trials if one[across] == head and one[down] == row[0]]
            assert [on_page(f"{float(one['Return [%]']):+.2f}") for one in of_cell] == [cell]
    assert "…" not in said
    assert max(len(line) for line in said.partition("Importance")[0].splitlines()) <= 80


@pytest.mark.parametrize("holdout", [(), ("--holdout=2h",)], ids=["all", "holdout"])
def test_the_page_names_the_backtest_of_the_best_trial_and_links_to_its_report(
    holdout: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("--balance", "5000", "--json", *holdout)
    best = json.loads(capsys.readouterr().out)["best"][0]
    assert call(["sweep", "show", "mine", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    command = unescape(page.partition('<pre tabindex="0">')[2].partition("</pre>")[0])
    assert "Open its backtest" not in page, "it has not run yet"
    assert call([*shlex.split(command)[1:], "--out", "runs"]) == 0
    (run,) = Path("runs").iterdir()
    figures = json.loads((run / "summary.json").read_text())["figures"]
    assert best["objectives"] == [figures["Return [%]"], figures["Max. Drawdown [%]"]]
    assert call(["report", str(run)]) == 0
    assert call(["sweep", "show", "mine", "--out", "page.html"]) == 0
    link = Path("page.html").read_text().partition('<a href="')[2].partition('"')[0]
    assert Path(link) == run / "report.html"


def test_the_page_marks_the_best_cell_and_the_best_plateau_and_draws_the_best_among_all(place: Path) -> None:
    # twelve days
    write(minutes(17_280), place / "BTC_1m.csv")
    sweep("--workers", "2")
    assert call(["sweep", "show", "mine", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    trials = list(csv.DictReader(table().decode().splitlines()))
    value = {(int(one["one.fast_bars"]), int(one["one.slow_bars"])): float(one["Return [%]"]) for one in trials}
    feasible = {(int(one["one.fast_bars"]), int(one["one.slow_bars"])) for one in trials if one["feasible"] == "yes"}

    def around(fast: int, slow: int) -> float:
        near = [value[spot] for spot in ((fast - 4, slow), (fast + 4, slow), (fast, 50 - slow)) if spot in value]
        return sum(near) / len(near)

    best, plateau = max(feasible, key=value.__getitem__), max(feasible, key=lambda spot: around(*spot))
    for spot, kind in ((best, "best"), (plateau, "plateau")):
        if (spot, kind) == (best, "plateau"):
            continue
        (cell,) = re.findall(rf'<td class="[^"]*\b{kind}\b[^"]*">([^<]*)</td>', page)
        assert cell == on_page(f"{value[spot]:+.2f}")
    end = next(one["Equity Final [$]"] for one in trials if float(one["Return [%]"]) == value[best])
    assert f"Equity of the best trial from 10,000.00 to {float(end):,.2f}" in page
    assert page.count('class="gauge"') >= 2
    assert 'id="t-dark"' in page


class Killing:
    """Kills its own process in the first run of one trial."""

    def __init__(self, marker: Path, number: int, *, always: bool = False) -> None:
        self.marker, self.number, self.always = marker, number, always

    def __call__(self, bundle: object, task: Task) -> TrialOutcome:
        if task.number == self.number and (self.always or not self.marker.exists()):
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return EVALUATE(bundle, task)


EVALUATE = runners.evaluate


def test_a_killed_worker_is_replaced_and_its_trial_run_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep("--study", "quiet")
    monkeypatch.setattr(runners, "evaluate", Killing(place / "killed", 3))
    sweep("--study", "killed", "--workers", "2")
    assert (place / "killed").exists()
    assert table("killed") == table("quiet")


def test_a_trial_that_kills_each_worker_fails_and_the_others_are_complete(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "evaluate", Killing(place / "killed", 2, always=True))
    sweep("--workers", "2")
    rows = table().decode().splitlines()
    assert "failed" in rows[3] and "its process died 3 times" in rows[3]
    assert sum(",complete," in row for row in rows) == 5


def test_a_sweep_killed_with_9_goes_on_and_ctrl_c_keeps_what_has_ended(place: Path) -> None:
    words = [sys.executable, "-m", "bot", "sweep", "mine.yaml", "--data", "BTC_1m.csv", "--space", "long.yaml"]
    (place / "long.yaml").write_text("params: {one.fast_bars: {from: 2, to: 28, step: 1}}")
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        process = subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        before = stored(place)
        while stored(place) < before + 3:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == code, said
    assert b"the same command goes on" in said
    assert stored(place) < 27, "it was to be stopped in the middle"
    sweep(space="long.yaml")
    sweep("--study", "whole", space="long.yaml")
    assert table() == table("whole")


def test_what_shows_trades_and_results_is_for_its_owner_only(place: Path) -> None:
    sweep("--study", "one")
    assert call(["sweep", "show", "one", "--csv", "one.csv", "--out", "one.html"]) == 0
    assert call(["backtest", "mine.yaml", "--data", "BTC_1m.csv", "--out", "runs"]) == 0
    (run,) = Path("runs").iterdir()
    assert call(["report", str(run), "--out", "run.html"]) == 0
    private = [run, *map(Path, ("sweeps.db", "sweeps.db.one.lock", "one.csv", "one.html", "run.html"))]
    assert [path.name for path in private if path.stat().st_mode & 0o077] == []


def stored(place: Path) -> int:
    import sqlite3

    try:
        with sqlite3.connect(f"file:{place / 'sweeps.db'}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_method_gives_the_same_table_with_one_worker_and_with_two(place: Path, method: str) -> None:
    (place / "wide.yaml").write_text("params: {one.fast_bars: {from: 2, to: 6}, one.slow_bars: {from: 20, to: 24}}")
    for name, workers in (("one", "1"), ("two", "2")):
        sweep("--study", name, "--method", method, "--trials", "17", "--workers", workers, space="wide.yaml")
    assert table("one") == table("two")
    assert len(table("one").splitlines()) == 18


@pytest.mark.parametrize("method", ["random", "tpe", "nsgaii"])
def test_no_cell_is_tried_twice_and_a_sweep_ends_with_the_last_one(
    place: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for trials, count in (("4", 4), ("5", 5), ("40", 6), ("50", 6)):
        sweep("--method", method, "--trials", trials, "--seed", "3")
        cells = [tuple(row.split(",")[2:4]) for row in table().decode().splitlines()[1:]]
        assert len(cells) == len(set(cells)) == count
    assert "the space has 6 cells: each is tried once" in capsys.readouterr().err


def test_trials_that_a_killed_sampler_left_running_are_run_again(place: Path) -> None:
    import optuna

    (place / "wide.yaml").write_text("params: {one.fast_bars: {from: 2, to: 9}, one.slow_bars: {from: 20, to: 90}}")
    sweep("--method", "tpe", "--trials", "4", space="wide.yaml")
    study = optuna.load_study(study_name="mine", storage="sqlite:///sweeps.db")
    left = study.ask(study.trials[0].distributions)
    sweep("--method", "tpe", "--trials", "6", space="wide.yaml")
    study = optuna.load_study(study_name="mine", storage="sqlite:///sweeps.db")
    assert [trial for trial in study.trials if trial.state.name == "RUNNING"] == []
    assert left.params in [
        trial.params for trial in study.trials if trial.user_attrs.get("outcome", {"cell": 0})["cell"] in (4, 5)
    ]
    assert len(table().splitlines()) == 7


def test_a_pruned_sweep_ends_bad_trials_early_and_finds_the_same_best(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "wide.yaml").write_text("params: {one.fast_bars: {from: 2, to: 13, step: 1}, one.slow_bars: [20, 30]}")
    sweep("--study", "whole", "--json", space="wide.yaml")
    sweep("--study", "pruned", "--prune", "--workers", "2", "--json", space="wide.yaml")
    whole, pruned = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert 0 < pruned["trials"]["pruned"] < 24
    complete = {one["trial"]: one["objectives"] for one in whole["best"]}
    assert all(one["objectives"] == complete.get(one["trial"], one["objectives"]) for one in pruned["best"])


def test_what_a_strategy_refuses_or_fails_at_is_a_row_with_its_reason(place: Path) -> None:
    config(place, use="ranged:Ranged")
    (place / "space.yaml").write_text("params: {one.every: [4, 5], one.usd: [100, 666, 2000]}")
    sweep()
    rows = table().decode().splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == ["complete", "failed", "complete", "complete", "failed", "refused"]
    assert "it fails" in rows[1]
    assert "not so much every 5 bars" in rows[5]


def test_a_study_of_something_else_is_refused_with_what_differs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep()
    before = table()
    for more, said in (
        (("--balance", "500"), "options"),
        (("--seed", "2"), "options"),
        (("--prune",), "pruned: false then, true now"),
        (("--method", "random"), 'method: "grid" then, "random" now'),
    ):
        sweep(*more, code=1)
        refused = capsys.readouterr().err
        assert "the study 'mine' was made with something else" in refused
        assert said in refused
    assert table() == before


def test_a_second_sweep_of_a_study_that_runs_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with one_sweep("sqlite:///sweeps.db", "mine"):
        sweep(code=1)
        assert "another process runs the study 'mine' now" in capsys.readouterr().err
        sweep("--study", "other")
    sweep()
    assert table() == table("other")


def test_other_data_another_config_and_another_strategy_are_told_apart(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep()
    write(minutes(400, seed=2), place / "BTC_1m.csv")
    config(place, use="bench:Muted")
    sweep(code=1)
    said = capsys.readouterr().err
    assert "config:" in said
    assert "data:" in said


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--on", "tcp://127.0.0.1:1"), 1, "no scheduler answers there"),
        (("--on", "nonsense://x"), 1, "no scheduler answers there"),
        (("--storage", "nosuch://x"), 1, "--storage nosuch://x: cannot be opened"),
    ],
)
def test_a_place_that_cannot_be_used_is_named_and_nothing_is_written(
    place: Path,
    more: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners, "CONNECT_S", 1)
    sweep(*more, code=code)
    assert said in capsys.readouterr().err
    assert not (place / "sweeps.db").exists()


def test_a_study_that_is_not_there_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep()
    assert call(["sweep", "show", "min"]) == 2
    assert "has no study 'min'; did you mean mine?" in capsys.readouterr().err


def test_without_a_space_the_ranges_of_the_params_are_tried(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(place, use="ranged:Ranged")
    sweep("--json", space="")
    assert json.loads(capsys.readouterr().out)["trials"] == {"complete": 3}


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space, commands, *_ = blocks("text", PAGES["research"])
    monkeypatch.chdir(tmp_path)
    ran = []
    for program, *words in (shlex.split(line, comments=True) for line in commands.splitlines()):
        if program == "cd":
            monkeypatch.chdir(words[0])
            Path("space.yaml").write_text(space)
        else:
            assert (program, call(words)) == ("bot", 0), capsys.readouterr().err
            ran.append(words[0])
    assert ran == ["init", "data", "sweep", "sweep"]
    assert "the best of 12 trials" in capsys.readouterr().out
    assert len(Path("sweep.csv").read_text().splitlines()) == 13


# ── A cluster ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def cluster(place: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A real scheduler and real workers, as the guide starts them."""
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    file = place / "scheduler.json"
    file.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    quiet = {"env": environment, "cwd": place, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words = [*dask, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    processes = [subprocess.Popen(words, **quiet)]
    try:
        until(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        address = json.loads(file.read_text())["address"]
        for _ in range(workers):
            one = [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                address,
                "--nthreads",
                "1",
                "--no-nanny",
                "--no-dashboard",
            ]
            processes.append(subprocess.Popen(one, **quiet))
        from distributed import Client

        with Client(address, set_as_default=False) as client:
            if workers:
                client.wait_for_workers(workers, timeout=60)
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_cluster_of_which_a_worker_is_killed_gives_the_table_of_one_process(place: Path) -> None:
    pytest.importorskip("distributed")
    (place / "space.yaml").write_text("params: {one.fast_bars: {from: 2, to: 19, step: 1}}")
    sweep("--study", "local")
    with cluster(place, 2) as (address, workers):
        words = ["sweep", "mine.yaml", "--data", "BTC_1m.csv", "--space", "space.yaml", "--on", address]
        command = [sys.executable, "-m", "bot", *words]
        process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        before = stored(place)
        until(lambda: stored(place) >= before + 4 or process.poll() is not None)
        workers[0].kill()
        assert process.poll() is None, process.communicate()
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert table() == table("local")


def test_a_scheduler_without_a_worker_and_a_worker_of_another_version_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    with cluster(place, 0) as (address, _):
        sweep("--on", address, code=1)
    assert "the scheduler has no worker" in capsys.readouterr().err
    monkeypatch.setattr("bot.research.trials.code_sha256", lambda: "0" * 64)
    with cluster(place, 1) as (address, _):
        sweep("--on", address, code=1)
    assert "has another version" in capsys.readouterr().err
    assert not (place / "sweeps.db").exists()


@pytest.mark.parametrize(
    ("objectives", "windows", "warned"),
    [
        ('["Sharpe Ratio", "Return [%]"]', (), ["Sharpe Ratio is a figure of a year, and the range has 6 h 40 min"]),
        (
            '["Calmar Ratio"]',
            ("--walk-forward", "train=2h,test=1h"),
            ["Calmar Ratio is a figure of a year, and the shortest window has 1 h"],
        ),
        ('["Return [%]"]', (), []),
    ],
)
def test_a_figure_of_a_year_as_objective_of_a_few_days_is_warned_of(
    place: Path, capsys: pytest.CaptureFixture[str], objectives: str, windows: tuple[str, ...], warned: list[str]
) -> None:
    Path("short.yaml").write_text(f"params:\n  one.fast_bars: [2, 4]\nobjectives: {objectives}\n")
    call(["sweep", "mine.yaml", "--data", "BTC_1m.csv", "--space", "short.yaml", *windows])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    assert [line.removeprefix("warning: the objective ").split(":")[0] for line in lines] == warned
