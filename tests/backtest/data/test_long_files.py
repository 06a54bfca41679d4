"""A file with more rows than are held at once passes in portions, with the same candles as if it were read whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.backtest.data import candle_stream, column_files, store
from bot.backtest.data.store import Store
from bot.cli.app import call
from tests.backtest.builders import research

FIRST = datetime(2025, 3, 3, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HEAD = "time,open,high,low,close,volume"
COUNT = 1_000
# several blocks of text are one portion, so portions are of about these rows
PORTION = 300


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def row(n: int, step: timedelta = MINUTE, late: timedelta = timedelta(0)) -> str:
    return f"{ms(FIRST + n * step + late)},{100 + n % 7},{103 + n % 7},{99 + n % 7},{101 + n % 7},{n + 1}"


def minutes(step: timedelta = MINUTE, late: timedelta = timedelta(0)) -> list[str]:
    return [row(n, step, late) for n in range(COUNT)]


# The rows of a file, the options of the import, and whether the file must be read as a whole.
FILES: dict[str, tuple[list[str], tuple[str, ...], bool]] = {
    "in order": (minutes(), (), False),
    "with gaps, some of them between portions": ([row(n) for n in range(2 * COUNT) if n % 100 < 90], (), False),
    "joined": (minutes(timedelta(seconds=20)), ("--interval", "1m"), False),
    "joined, with gaps": (
        [row(n, timedelta(seconds=20)) for n in range(COUNT) if n % 97],
        ("--interval", "1m", "--accept-ohlc"),
        False,
    ),
    "stamped at the close": (minutes(late=MINUTE), ("--stamp", "close"), False),
    "newest first": (minutes()[::-1], (), True),
    "out of order": ([*minutes()[500:], *minutes()[:500]], ("--accept-unsorted",), True),
    "an instant twice": ([*minutes()[:700], row(699), *minutes()[700:]], ("--accept-duplicates",), True),
    "off the grid": (minutes(late=timedelta(seconds=7)), ("--accept-off-grid",), True),
    "high below close": ([line.replace(",103,", ",100,") for line in minutes()], ("--accept-ohlc",), False),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a few hundred rows."""
    monkeypatch.setattr(candle_stream, "PORTION_ROWS", PORTION)
    monkeypatch.setattr(column_files, "BLOCK_CHARS", 1 << 12)


def stored(folder: str, interval: str = "1m") -> str:
    read = Store(Path(folder)).read("BTC", interval)
    assert read is not None
    return read.digest()


def noting_streams(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes for each write whether candles came in portions."""
    notes: list[bool] = []
    write_all = store.Store.write_all

    def noting(self: Store, many: list[object], **options: bool) -> object:
        notes.append(any(isinstance(item, candle_stream.CandleStream) for item in many))
        return write_all(self, many, **options)

    monkeypatch.setattr(store.Store, "write_all", noting)
    return notes


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("has_extra", [pytest.param(True, marks=research), False])
@pytest.mark.parametrize("name", FILES)
def test_a_file_in_portions_gives_the_same_candles_and_hints_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, has_extra: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(column_files, "has_research", lambda: has_extra)
    lines, options, is_whole = FILES[name]
    Path("BTC.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    notes = noting_streams(monkeypatch)
    assert call(["data", "import", "BTC.csv", *options, "--store", "parts"]) == 0
    told = capsys.readouterr().out
    # A large file that must be read whole is tried in portions first.
    assert notes[-1] is not is_whole
    monkeypatch.setattr(candle_stream, "PORTION_ROWS", 10**9)
    assert call(["data", "import", "BTC.csv", *options, "--store", "whole"]) == 0
    whole = capsys.readouterr().out
    assert stored("parts") == stored("whole")
    assert (Path("parts/BTC/1m.moved").exists()) == (Path("whole/BTC/1m.moved").exists())
    for line in (0, 1, -1):
        assert told.splitlines()[line].replace("parts", "whole") == whole.splitlines()[line]
    assert not list(Path("parts/BTC").glob(".*")), "nothing is left of the writing"


@pytest.mark.usefixtures("small")
@research
def test_portions_are_added_to_what_the_store_has_and_other_values_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = minutes()

    def imported(name: str, rows: list[str], *options: str) -> tuple[int, str]:
        Path("BTC.csv").write_text("\n".join([HEAD, *rows]) + "\n")
        code = call(["data", "import", "BTC.csv", "--store", name, *options, "--json"])
        told = capsys.readouterr()
        return code, told.out or told.err

    held = [*lines[:50], *lines[400:500], *lines[980:]]
    assert imported("st", held)[0] == 0
    code, told = imported("st", lines[20:990])
    assert code == 0
    (written,) = json.loads(told)["written"]
    assert (written["rows"], written["added"], written["same"], written["replaced"]) == (1_000, 830, 140, 0)
    assert imported("all", lines)[0] == 0
    assert stored("st") == stored("all")
    changed = [*lines[:600], lines[600].replace(",103,", ",110,").replace(",104,", ",110,"), *lines[601:]]
    changed[600] = ",".join([lines[600].split(",")[0], "100", "110", "99", "101", "5"])
    code, told = imported("st", changed)
    assert code == 1
    assert "1 candle is in the store with other values; nothing was changed" in told
    assert stored("st") == stored("all")
    code, told = imported("st", changed, "--replace")
    assert (code, json.loads(told)["written"][0]["replaced"]) == (0, 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda lines: [*lines[:900], lines[900].replace(",99,", ",x,").replace(",10", ",x1", 1), *lines[901:]],
            "row 902",
        ),
        (lambda lines: [*lines[:900], f"{lines[900].split(',')[0]},1,1,2,1,1", *lines[901:]], "row 902"),
        (lambda lines: [*lines[:600], *(row(n, MINUTE * 60) for n in range(60, 400))], "are 1h apart"),
    ],
)
def test_a_fault_in_a_late_portion_keeps_all_of_the_file_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[list[str]], list[str]],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ETH.csv").write_text("\n".join([HEAD, *minutes()[:20]]) + "\n")
    Path("BTC.csv").write_text("\n".join([HEAD, *change(minutes())]) + "\n")
    assert call(["data", "import", "ETH.csv", "BTC.csv"]) in (1, 4)
    assert says in capsys.readouterr().err
    assert not list(Path().glob("data/*/*"))


@pytest.mark.usefixtures("small")
def test_several_large_files_pass_one_after_another_and_are_shown_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for market in ("BTC", "ETH", "SOL"):
        Path(f"in/{market}.csv").write_text("\n".join([HEAD, *minutes()]) + "\n")
    notes = noting_streams(monkeypatch)
    assert call(["data", "import", "in", "--json"]) == 0
    assert notes == [True]
    told = json.loads(capsys.readouterr().out)
    assert [(file["market"], file["rows"]) for file in told["files"]] == [
        ("BTC", 1_000),
        ("ETH", 1_000),
        ("SOL", 1_000),
    ]
    for market in ("BTC", "ETH", "SOL"):
        read = Store(Path("data")).read(market, "1m")
        assert read is not None
        assert list(read.volume) == [n + 1.0 for n in range(COUNT)]


@research
def test_the_memory_of_an_import_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for rows in (300_000, 1_200_000):
        with (tmp_path / "BTC.csv").open("w") as file:
            file.write(HEAD + "\n")
            file.writelines(row(n, late=timedelta(days=-1_000)) + "\n" for n in range(rows))
        script = (
            "import re, sys; from pathlib import Path; from bot.backtest.data import candle_stream; "
            "from bot.cli.app import call; candle_stream.PORTION_ROWS = 20_000; "
            f"code = call(['data', 'import', 'BTC.csv', '--store', 'st{rows}']); "
            "print(re.search(r'VmHWM:\\s+([0-9]+)', Path('/proc/self/status').read_text())[1]); sys.exit(code)"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
        assert f"{rows:,} candles" in done.stdout
        peaks.append(int(done.stdout.splitlines()[-1]) // 1024)
    # As a whole, the larger file needs 54 MB more than the smaller one.
    assert peaks[1] < peaks[0] + 35, peaks
