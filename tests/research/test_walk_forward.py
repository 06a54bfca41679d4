"""Walk-forward: its windows, that a test window is not seen, that it goes on after a stop, and that noise has no
edge.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.backtest.sweep_tables import border_text
from bot.cli.common.param_types import Instant
from bot.clock import DAY_MS, HOUR_MS
from bot.errors import ConfigError
from bot.research.walk_forward import Fold, Windows, folds_of, read_windows
from tests.backtest.builders import START_MS, config, minutes, write

pytest.importorskip("optuna")

WALK = ["sweep", "mine.yaml", "--data=BTC_1h.csv", "--space=space.yaml", "--walk-forward=train=2d,test=1d"]


def test_windows_are_read() -> None:
    assert read_windows("train=90d,test=30d") == Windows(90 * DAY_MS, 30 * DAY_MS)
    assert read_windows("test=12h, train=2w,embargo=1h,anchored") == Windows(14 * DAY_MS, 12 * HOUR_MS, HOUR_MS, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train=90d", "train and test are needed"),
        ("train=90,test=30d", "'train=90' is no window"),
        ("train=0d,test=30d", "'train=0d' is no window"),
        ("train=90d,test=30d,test=20d", "'test=20d' is no window"),
        ("train=90d,test=30d,rolling", "'rolling' is no window"),
    ],
)
def test_a_text_that_is_no_window_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_windows(text)


def test_folds_follow_one_another_and_no_test_window_lies_in_its_train_window() -> None:
    folds = folds_of(Windows(3, 2, 1), 100, 110)
    assert folds == [Fold((100, 103), (104, 106)), Fold((102, 105), (106, 108)), Fold((104, 107), (108, 110))]
    anchored = folds_of(Windows(3, 2, 1, True), 100, 110)
    assert [one.train for one in anchored] == [(100, 103), (100, 105), (100, 107)]
    assert [one.test for one in anchored] == [one.test for one in folds]
    with pytest.raises(ConfigError, match="take shorter windows or more data"):
        folds_of(Windows(9, 2), 100, 110)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(minutes(24 * 4, interval="1h"), tmp_path / "BTC_1h.csv")
    text = config(tmp_path, use="bench:Cross").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("interval: 1m", "interval: 1h"))
    (tmp_path / "space.yaml").write_text("params: {one.fast_bars: [2, 3], one.slow_bars: [5, 8]}")
    return tmp_path


def walk(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    capsys.readouterr()
    assert call([*WALK, *more, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_each_fold_is_the_best_of_its_train_window_run_on_its_test_window(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = walk(capsys, "--workers", "2")
    folds = found["folds"]
    assert isinstance(folds, list)
    assert len(folds) == 2
    for fold in folds:
        trained = []
        for cell in ((2, 5), (2, 8), (3, 5), (3, 8)):
            params = [f"--param=one.fast_bars={cell[0]}", f"--param=one.slow_bars={cell[1]}"]
            spans = {name: ["--from", fold[name][0], "--to", fold[name][1]] for name in ("train", "test")}
            results = {}
            for name, span in spans.items():
                assert call(["backtest", "mine.yaml", "--data", "BTC_1h.csv", *params, *span, "--json"]) == 0
                results[name] = json.loads(capsys.readouterr().out)["figures"]["Return [%]"]
            trained.append(
                (results["train"], results["test"], dict(zip(("one.fast_bars", "one.slow_bars"), cell, strict=True)))
            )
        best = max(trained, key=lambda one: one[0])
        assert (fold["trained"], fold["tested"], fold["params"]) == best
    assert walk(capsys) == found, "stored trials are not run again, and workers change nothing"


def test_prices_of_the_test_window_do_not_change_what_was_chosen(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = walk(capsys, "--study", "one")["folds"]
    rows = (place / "BTC_1h.csv").read_text().splitlines()
    other = [
        row if int(row.split(",")[0]) < START_MS + 2 * DAY_MS else f"{row.split(',')[0]},90000,90500,89500,90000,1"
        for row in rows[1:]
    ]
    (place / "BTC_1h.csv").write_text("\n".join([rows[0], *other]) + "\n")
    after = walk(capsys, "--study", "two", "--accept-jumps")["folds"]
    assert isinstance(before, list)
    assert isinstance(after, list)
    assert (after[0]["params"], after[0]["trained"]) == (before[0]["params"], before[0]["trained"])
    assert after[0]["tested"] != before[0]["tested"]


def test_the_table_and_the_verdict_are_printed_and_pruning_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(WALK) == 0
    said = capsys.readouterr().out
    assert "Walk-forward" in said
    assert "Too few days for a verdict" in said
    assert call([*WALK, "--prune"]) == 2
    assert "--prune does not go with --walk-forward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("instant", "text"), [("2025-06-01T00:00:00.000Z", "2025-06-01"), ("2025-06-01T15:33:00.000Z", "2025-06-01T15:33")]
)
def test_a_border_is_printed_so_that_from_and_to_give_the_same_window(instant: str, text: str) -> None:
    """A range begins with its first candle, which may be at 15:33; a date alone would be another window."""
    assert border_text(instant) == text
    assert Instant().convert(text, None, None) == Instant().convert(instant, None, None)
