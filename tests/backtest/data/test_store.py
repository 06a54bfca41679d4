"""The store and the generator: a file is replaced as a whole or not at all, conflicts are refused, and the same
arguments give the same candles.
"""

from __future__ import annotations

import math
import resource
import signal
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bot.backtest.data import column_files
from bot.backtest.data import store as stores
from bot.backtest.data.candles import load
from bot.backtest.data.quality import audit
from bot.backtest.data.resampling import resample
from bot.backtest.data.store import Conflict, Store, merge, write_file
from bot.backtest.data.synthetic import SyntheticOptions, generate
from bot.errors import BotError, ConfigError
from bot.service.market_data.recorded import read_candles
from tests.backtest.builders import research
from tests.backtest.data.builders import MINUTE, START, candles


@pytest.fixture(params=["csv", pytest.param("parquet", marks=research)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "csv":
        monkeypatch.setattr(column_files, "has_research", lambda: False)
    return Store(tmp_path / "data")


def test_written_candles_are_read_and_loaded_unchanged(store: Store) -> None:
    whole = candles(0, 100)
    done = store.write(whole)
    assert (done.rows, done.added, done.same, done.replaced) == (100, 100, 0, 0)
    assert store.read("BTC", "1m") == whole
    (loaded,) = load([store.root])
    assert loaded.digest() == whole.digest()
    (part,) = load([store.root], start_ms=START + 10 * MINUTE, end_ms=START + 20 * MINUTE)
    assert part == candles(10, 20)
    assert [(one.market, one.interval, one.rows, one.first_ms) for one in store.held()] == [("BTC", "1m", 100, START)]


def test_new_candles_are_added_after_before_and_between_stored_ones(store: Store) -> None:
    store.write(candles(40, 50))
    store.write(candles(80, 100))
    store.write(candles(0, 20))
    assert store.write(candles(10, 90)).added == 20 + 30
    assert store.read("BTC", "1m") == candles(0, 100)
    again = store.write(candles(30, 60))
    assert (again.added, again.same) == (0, 30)


def test_other_values_of_an_instant_are_refused_and_nothing_changes(store: Store) -> None:
    store.write(candles(0, 50))
    with pytest.raises(Conflict) as refused:
        store.write(candles(45, 60, shift=1.0))
    assert "5 candles are in the store with other values; nothing was changed" in str(refused.value)
    assert "2025-01-01T00:45:00.000Z" in str(refused.value)
    assert store.read("BTC", "1m") == candles(0, 50)
    done = store.write(candles(45, 60, shift=1.0), replacing=True)
    assert (done.rows, done.added, done.replaced) == (60, 10, 5)
    read = store.read("BTC", "1m")
    assert read is not None
    assert read.close[44] == candles(44, 45).close[0]
    assert read.close[45] == candles(45, 46, shift=1.0).close[0]


def test_put_is_the_whole_file_or_a_conflict(store: Store) -> None:
    store.put(candles(0, 50))
    assert store.put(candles(0, 50)).same == 50
    with pytest.raises(Conflict, match="holds 50 other candles"):
        store.put(candles(50, 60))
    store.put(candles(50, 60), replacing=True)
    assert store.read("BTC", "1m") == candles(50, 60)


def test_the_folder_of_an_event_has_a_portable_name(store: Store) -> None:
    store.write(candles(0, 5, market="event:RATE-CUT"))
    assert (store.root / "event_RATE-CUT").is_dir()
    assert load([store.root])[0].market == "event:RATE-CUT"


def test_the_finest_interval_of_each_market_is_loaded(store: Store) -> None:
    whole = candles(0, 120)
    store.write(resample(whole, "1h"))
    store.write(whole)
    store.write(candles(0, 5, market="ETH"))
    assert [(one.market, one.interval) for one in load([store.root])] == [("BTC", "1m"), ("ETH", "1m")]
    assert [one.market for one in load([store.root], market="ETH")] == ["ETH"]
    with pytest.raises(ConfigError, match="no candles of SOL here"):
        load([store.root], markets=["SOL"])


def test_a_write_that_fails_leaves_the_old_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(candles(0, 10))

    def broken(*_args: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "_write_csv", broken)
    monkeypatch.setattr(stores, "_write_parquet", broken)
    with pytest.raises(BotError, match="cannot be written: No space left"):
        store.write(candles(10, 20))
    assert store.read("BTC", "1m") == candles(0, 10)
    assert [one.name for one in (store.root / "BTC").iterdir() if one.name.endswith(".part")] == []


def test_a_full_disk_is_reported_and_the_old_file_stays(store: Store) -> None:
    store.write(candles(0, 10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        with pytest.raises(
            BotError, match=r"cannot be written: File too large; the old candles are unchanged\. .* --store"
        ):
            store.write(candles(10, 5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.read("BTC", "1m") == candles(0, 10)
    assert len(list((store.root / "BTC").iterdir())) == 1


def test_several_markets_are_written_or_none_of_them(store: Store) -> None:
    store.write(candles(0, 10, market="ETH"))
    with pytest.raises(Conflict, match="nothing was changed.* --replace, or keep them apart with another --store"):
        store.write_all([candles(0, 10), candles(5, 15, market="ETH", shift=1.0)])
    assert [one.market for one in store.held()] == ["ETH"]
    assert list((store.root / "BTC").iterdir()) == []
    done = store.write_all([candles(0, 10), candles(5, 15, market="ETH")])
    assert [(one.rows, one.added) for one in done] == [(10, 10), (15, 5)]


KILLED = """
import os, signal, sys
from pathlib import Path
from bot.backtest.data.store import Store
from tests.backtest.data.builders import candles
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
Store(Path(sys.argv[1])).write(candles(10, 20))
"""


def test_a_writer_that_is_killed_leaves_the_old_file_and_the_next_one_clears_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(candles(0, 10))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "BTC").iterdir())) == 2
    assert store.read("BTC", "1m") == candles(0, 10)
    assert store.write(candles(10, 20)).added == 10
    assert store.read("BTC", "1m") == candles(0, 20)
    assert len(list((tmp_path / "BTC").iterdir())) == 1


@research
def test_a_store_of_csv_becomes_parquet_when_the_extra_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    with monkeypatch.context() as without:
        without.setattr(column_files, "has_research", lambda: False)
        store.write(candles(0, 10))
    store.write(candles(10, 20))
    assert [one.name for one in (tmp_path / "BTC").iterdir()] == ["1m.parquet"]
    assert store.read("BTC", "1m") == candles(0, 20)


def test_the_same_candles_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_file(tmp_path / name, candles(0, 500))
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_merging_counts_new_and_known_candles() -> None:
    merged, same, replaced = merge(candles(0, 10), candles(5, 15))
    assert (merged, same, replaced) == (candles(0, 15), 5, 0)
    merged, same, replaced = merge(candles(0, 10), candles(2, 4, shift=1), replacing=True)
    assert (len(merged), same, replaced) == (10, 0, 2)


# ── The generator ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (SyntheticOptions("BTC", "1m", START, 3), 3 * 1_440),
        (SyntheticOptions("SOL", "1h", START, 4, regimes="crash:1,recovery:2"), 96),
        # New Year's Day is not a trading day
        (SyntheticOptions("AAPL", "1m", START, 3), 2 * 390),
        (SyntheticOptions("AAPL", "15m", START, 3, hours="extended"), 2 * 64),
        (SyntheticOptions("TLT", "1d", START, 31), 20),
        (SyntheticOptions("event:RATE-CUT", "5m", START, 2), 576),
        (SyntheticOptions("MYCOIN", "4h", START, 3, asset_class="crypto"), 18),
        (SyntheticOptions("ETH", "1m", START, 2, gaps=3), None),
    ],
    ids=lambda one: f"{one.market} {one.interval}" if isinstance(one, SyntheticOptions) else "",
)
def test_generated_candles_are_valid_and_reproducible(wanted: SyntheticOptions, count: int | None) -> None:
    made = generate(wanted)
    assert made.digest() == generate(wanted).digest()
    report = audit(made, hours="equity" if wanted.market in ("AAPL", "TLT") else "continuous")
    if wanted.gaps:
        assert [(one.kind, one.count) for one in report.faults] in ([("gap", 3)], [("gap", 2)], [("gap", 1)])
    else:
        assert len(made) == count
        assert report.faults == ()


def test_a_half_day_of_an_exchange_ends_early() -> None:
    # 25 November 2024; on the 29th the exchange closes at 13:00
    at = START - 37 * 1_440 * MINUTE
    a, b = (generate(SyntheticOptions("AAPL", "1m", at, 9, hours=hours)) for hours in ("regular", "extended"))
    assert [len(a), len(b)] == [5 * 390 + 210, 5 * 960 + 780]
    assert audit(a).findings == audit(b).findings == ()


def test_another_seed_is_another_market_and_intervals_of_one_seed_agree() -> None:
    minutes = generate(SyntheticOptions("BTC", "1m", START, 2))
    assert generate(SyntheticOptions("BTC", "1m", START, 2, seed=2)).digest() != minutes.digest()
    assert generate(SyntheticOptions("ETH", "1m", START, 2)).close != minutes.close
    assert generate(SyntheticOptions("BTC", "1h", START, 2)) == resample(minutes, "1h")


def test_regimes_have_their_drift_and_volatility_clusters() -> None:
    def moves(regime: str) -> list[float]:
        return [
            math.log(b / a)
            for a, b in pairwise(generate(SyntheticOptions("BTC", "1m", START, 6, regimes=f"{regime}:6")).close)
        ]

    calm, wild, crash = moves("calm"), moves("wild"), moves("crash")
    assert statistics.pstdev(calm) * 2 < statistics.pstdev(wild)
    assert sum(crash) < -0.1
    sizes = [abs(move) for move in wild]
    assert statistics.correlation(sizes[:-1], sizes[1:]) > 0.1
    kurtosis = statistics.fmean(move**4 for move in wild) / statistics.pvariance(wild) ** 2
    # a normal variate has 3
    assert kurtosis > 4


def test_generated_files_run_in_the_demo(tmp_path: Path) -> None:
    made = generate(SyntheticOptions("KPEPE", "5m", START, 1))
    write_file(tmp_path / "KPEPE.csv.gz", made)
    read = read_candles(tmp_path / "KPEPE.csv.gz", sz_decimals=0)
    assert [one.ts for one in read] == list(made.at_ms)
    assert [one.close / 1e8 for one in read] == list(made.close)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"interval": "2m"}, "--interval '2m'"),
        ({"days": 0}, "--days must be 1 to"),
        ({"gaps": -1}, "--gaps must be 0 to"),
        ({"gaps": 9_000}, "are too many for 1,440 candles"),
        ({"start_ms": START + 1}, "--from must be a date"),
        ({"start_ms": 0}, "--from must be 1973-03-04 or later"),
        ({"start_ms": 101_928_931_200_000}, "--from must be 1973-03-04 or later, and long before the year 5138"),
        ({"asset_class": "bond"}, "BTC is one of crypto"),
        ({"asset_class": "gold"}, "--class 'gold'"),
        ({"hours": "all"}, "--hours 'all'"),
        ({"regimes": "moon:3"}, "out of calm, sideways, bull"),
        ({"regimes": "bull"}, "write mixed, or stretches"),
        ({"market": "NOPE"}, "say what it is like with --class"),
        ({"market": "AAPL"}, "its exchange is closed on all of these days"),
        ({"market": "event:RATE-CUT", "regimes": "bull:3"}, "a martingale"),
    ],
)
def test_impossible_generator_arguments_are_refused(given: dict[str, object], says: str) -> None:
    wanted = {"market": "BTC", "interval": "1m", "start_ms": START, "days": 1} | given
    with pytest.raises(ConfigError) as refused:
        generate(SyntheticOptions(**wanted))  # type: ignore[arg-type]
    assert says in str(refused.value)
