"""A file that may come from others names only paths inside its own folder, and links in it are not followed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.data.origins import SUFFIX, read_origin
from bot.backtest.data.store import Store
from bot.cli.app import call
from bot.dashboard.backtests import Backtests, NoRun
from bot.errors import BotError
from bot.research.study import one_sweep
from bot.runtime.journal.opening import open_journal
from tests.backtest.builders import config, minutes, write

SECRET = "the first line of somebody's file"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file outside of the folder `here`, which is the current one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "elsewhere"
    path.write_text(SECRET)
    return path


def _linked(path: Path, elsewhere: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere)
    return path


def _candles() -> Candles:
    return minutes(60)


def _backtest(name: str) -> Callable[[Path], object]:
    def act(elsewhere: Path) -> object:
        config(Path(), use="bench:Cross")
        _linked(Path("data") / name, elsewhere)
        return call(["backtest", "mine.yaml", "--data", "data"])

    return act


def _written(elsewhere: Path) -> object:
    (elsewhere.parent / "folder").mkdir()
    _linked(Path("data/BTC"), elsewhere.parent / "folder")
    return Store(Path("data")).write_beside("BTC", "1m.origin.json", "{}")


def _locked(elsewhere: Path) -> object:
    _linked(Path("data/.lock"), elsewhere)
    return Store(Path("data")).write(_candles())


def _swept(elsewhere: Path) -> object:
    _linked(Path("sweeps.db.mine.lock"), elsewhere)
    with one_sweep("sqlite:///sweeps.db", "mine"):
        pass
    return None


LINKS: dict[str, Callable[[Path], object]] = {
    "a file of a store": _backtest("BTC/1m.csv.gz"),
    "a file of a folder of candles": _backtest("BTC_1m.csv"),
    "the origin beside a store's file": lambda path: (
        _linked(Path(f"data/BTC/1m{SUFFIX}"), path) and read_origin(Path("data"), "BTC", "1m")
    ),
    "the folder of a market that is written": _written,
    "the lock of a store": _locked,
    "the lock of a sweep": _swept,
}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_in_a_folder_of_others_is_not_followed(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    try:
        result = LINKS[name](elsewhere)
    except BotError as error:
        said = str(error)
    else:
        assert isinstance(result, int) and result != 0
        said = capsys.readouterr().err
    assert "link" in said and SECRET not in said
    assert elsewhere.read_text() == SECRET
    assert not list(elsewhere.parent.glob("folder/*"))


def test_the_way_out_of_a_linked_file_of_candles_works(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(Path(), use="bench:Cross")
    file = write(minutes(360), elsewhere.parent / "BTC_1m.csv")
    link = _linked(Path("data/BTC_1m.csv"), file)
    assert call(["backtest", "mine.yaml", "--data", "data"]) != 0
    assert "name it alone as MARKET=FILE" in capsys.readouterr().err
    assert call(["backtest", "mine.yaml", "--data", f"BTC={link}"]) == 0


async def test_the_dashboard_leaves_out_a_run_that_is_a_link(elsewhere: Path) -> None:
    run = elsewhere.parent / "run"
    run.mkdir()
    (run / "summary.json").write_text("{}")
    _linked(Path("runs/linked"), run)
    _linked(Path("runs/half/summary.json"), run / "summary.json")
    backtests = Backtests(Path("runs"))
    assert await backtests.summaries() == []
    for name in ("linked", "half"):
        with pytest.raises(NoRun):
            await backtests.report(name)


def test_a_study_names_files_of_its_own_folder_only(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    config(Path(), use="bench:Cross")
    data = write(minutes(360), elsewhere.parent / "BTC_1m.csv")
    Path("space.yaml").write_text("params: {one.fast_bars: [2, 4], one.slow_bars: [20]}")
    words = ["sweep", "mine.yaml", "--data", str(data), "--space", "space.yaml", "--holdout", "2h"]
    assert call(words) == 0
    capsys.readouterr()
    assert call(["sweep", "holdout", "mine"]) == 1
    assert "names a file elsewhere" in (said := capsys.readouterr().err) and "--trust-paths" in said
    assert call(["sweep", "holdout", "mine", "--trust-paths"]) == 0


def test_a_journal_does_not_choose_a_config_that_keeps_another_journal(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = config(elsewhere.parent, use="bench:Cross")
    state = Path("theirs")
    state.mkdir()
    open_journal(state / "journal.db", address="0x1").close()
    mark = {"version": "0", "config": {}, "strategies": {}, "atMs": 1, "epoch": 0, "file": str(own.absolute())}
    with sqlite3.connect(state / "journal.db") as db:
        db.execute("INSERT INTO progress (market, interval, at_ms) VALUES ('BTC', '1m', 5)")
        db.execute("INSERT INTO meta (name, value) VALUES ('runs', ?)", (json.dumps([mark]),))
    db.close()
    capsys.readouterr()
    assert call(["replay", str(state)]) == 2
    assert f"give it with --config {own.absolute()}" in capsys.readouterr().err
