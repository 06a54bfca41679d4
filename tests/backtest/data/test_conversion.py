"""Candles in another currency: converted at import by a series of the rate, with no rate before it was known; without
it refused wherever they could be traded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.backtest.data import candle_stream
from bot.backtest.data.candles import load
from bot.checks.listing_file import use_listing_file
from bot.cli.app import call
from bot.errors import ConfigError
from bot.service.host import HostOptions, build
from bot.service.market_data.instruments import added_listings, use_listings
from tests.backtest.builders import STRATEGIES

# Monday 2026-09-07 07:00 UTC, when Frankfurt opens
START_MS = 1_788_764_400_000
HOUR_MS = 3_600_000
LISTINGS = """\
markets:
  SIE.DE: {tick: 0.02, lot: 1, currency: EUR, rate: EURUSD, price: 250}
  EURUSD: {tick: 0.00001, lot: 1000, price: 1.1}
"""
CONFIG = """\
account: {base_url: embedded}
dead_man: off
strategies_dir: %s
strategies:
  - {name: it, use: "causal:Honest", markets: [SIE.DE], interval: 1h, budget_usd: 1000}
"""


def rows(path: Path, first_ms: int, *candles: tuple[float, float, float, float]) -> Path:
    lines = [f"{first_ms + n * HOUR_MS},{o},{h},{low},{c},10" for n, (o, h, low, c) in enumerate(candles)]
    path.write_text("\n".join(["ts,open,high,low,close,volume", *lines]) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "markets.yaml").write_text(LISTINGS)
    (tmp_path / "bot.yaml").write_text(CONFIG % STRATEGIES)
    rows(tmp_path / "sie.csv", START_MS, *((100 + n, 102 + n, 99 + n, 101 + n) for n in range(30)))
    # Of each hour another rate: known an hour after its candle opened.
    rows(tmp_path / "EURUSD.csv", START_MS - 2 * HOUR_MS, *((1 + n / 100,) * 4 for n in range(40)))
    yield tmp_path
    use_listings({})


def test_each_price_has_the_rate_that_was_known_at_its_instant(folder: Path) -> None:
    assert call(["data", "import", "SIE.DE=sie.csv", "--rate", "EURUSD.csv", "--store", "data"]) == 0
    use_listing_file(folder / "markets.yaml")
    (stored,) = load([folder / "data"], markets=["SIE.DE"])
    for n, (o, h, low, c) in enumerate(zip(stored.open, stored.high, stored.low, stored.close, strict=True)):
        # At the open the candle of two hours before is closed, whose close stands in row n + 1; an hour later the next.
        opened, closed = 1 + (n + 1) / 100, 1 + (n + 2) / 100
        assert o == round((100 + n) * opened, 8)
        assert c == round((101 + n) * closed, 8)
        assert h == max(round((102 + n) * opened, 8), c)
        assert low == round((99 + n) * opened, 8)


def test_a_large_file_is_converted_in_portions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(["data", "import", "SIE.DE=sie.csv", "--rate", "EURUSD.csv", "--store", "whole"]) == 0
    monkeypatch.setattr(candle_stream, "PORTION_ROWS", 7)
    assert call(["data", "import", "SIE.DE=sie.csv", "--rate", "EURUSD.csv", "--store", "portions"]) == 0
    use_listing_file(folder / "markets.yaml")
    (whole,), (portions,) = (load([folder / name], markets=["SIE.DE"]) for name in ("whole", "portions"))
    assert whole.digest() == portions.digest() and len(whole) == 30


def test_a_change_of_later_rates_changes_no_earlier_price(folder: Path) -> None:
    assert call(["data", "import", "SIE.DE=sie.csv", "--rate", "EURUSD=EURUSD.csv", "--store", "one"]) == 0
    text = (folder / "EURUSD.csv").read_text().splitlines()
    cut = START_MS + 10 * HOUR_MS
    later = [line if int(line.split(",")[0]) + HOUR_MS <= cut else line.replace("1.", "2.") for line in text[1:]]
    (folder / "other.csv").write_text("\n".join([text[0], *later]) + "\n")
    assert call(["data", "import", "SIE.DE=sie.csv", "--rate", "EURUSD=other.csv", "--store", "two"]) == 0
    use_listing_file(folder / "markets.yaml")
    (first,), (second,) = (load([folder / name], markets=["SIE.DE"]) for name in ("one", "two"))
    assert list(first.close[:10]) == list(second.close[:10]) and list(first.open[:11]) == list(second.open[:11])
    assert first.close[10] != second.close[10]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SIE.DE=sie.csv"], "accounts are in USD; give the series that converts it: --rate EURUSD=FILE"),
        (["SIE.DE=sie.csv", "--rate", "late.csv"], "no rate of EURUSD is known at 2026-09-07T07:00"),
        (["SIE.DE=sie.csv", "--rate", "old.csv"], "rates may be at most 7 days old"),
        (["SIE.DE=sie.csv", "--rate", "GBPUSD=EURUSD.csv"], "--rate GBPUSD: no listing names it; needed is EURUSD"),
        (["EURUSD=EURUSD.csv", "--rate", "EURUSD.csv"], "these are in USD; leave it out"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_stored(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(folder / "late.csv", START_MS, (1.1,) * 4, (1.1,) * 4)
    rows(folder / "old.csv", START_MS - 200 * HOUR_MS, (1.1,) * 4, (1.1,) * 4)
    assert call(["data", "import", *arguments, "--store", "data"]) == 4
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert not (folder / "data").exists()


def test_prices_that_were_not_converted_are_refused_wherever_they_could_be_traded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "SIE.DE is priced in EUR, and accounts are in USD; import its candles"
    assert call(["backtest", "bot.yaml", "--data", "SIE.DE=sie.csv", "--out", "runs"]) == 4
    said = capsys.readouterr().err
    assert words in said
    use_listing_file(folder / "markets.yaml")
    with pytest.raises(ConfigError, match=words):
        build(HostOptions(listings=added_listings(), markets=("SIE.DE",), data=(("SIE.DE", folder / "sie.csv"),)))
    (folder / "live.yaml").write_text(
        (folder / "bot.yaml").read_text() + "embedded: {clock: 60x, data: [{market: SIE.DE, file: sie.csv}]}\n"
    )
    assert call(["check", "live.yaml"]) == 4
    assert words in capsys.readouterr().err
    # The way out that the sentence names.
    assert call(["data", "import", "SIE.DE=sie.csv", "--rate", "EURUSD=EURUSD.csv"]) == 0
    assert call(["backtest", "bot.yaml", "--data", "data", "--out", "runs"]) == 0


def test_simulated_prices_are_in_dollars(folder: Path) -> None:
    assert call(["data", "gen", "SIE.DE", "--from", "2026-09-07", "--days", "3", "--interval", "1h"]) == 0
    assert call(["backtest", "bot.yaml", "--data", "data", "--out", "runs"]) == 0
