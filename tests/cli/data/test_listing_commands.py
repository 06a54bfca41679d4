"""`bot markets import|sessions|check|show|list`: what an exchange says becomes an exact entry, and the rest of the file
stays as written. A market that cannot be listed is named with the reason. A file is whole or untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.checks.listing_file import LISTINGS_MAX, listings_of
from bot.cli.app import call
from bot.service.market_data.instruments import use_listings
from tests.calendars import python_with_calendars


def market(symbol: str, tick: float | None, step: float | None, **over: Any) -> dict[str, Any]:
    """A market as ccxt's load_markets gives it (its unified market structure)."""
    base, _, rest = symbol.partition("/")
    quote, _, settle = rest.partition(":")
    swap = bool(settle)
    return {
        "id": symbol.replace("/", ""),
        "symbol": symbol,
        "base": base,
        "quote": quote,
        "settle": settle or None,
        "type": "swap" if swap else "spot",
        "spot": not swap,
        "swap": swap,
        "contract": swap,
        "linear": settle == quote if swap else None,
        "inverse": settle != quote if swap else None,
        "active": True,
        "taker": 0.0005,
        "maker": 0.0002,
        "contractSize": 1.0 if swap else None,
        "precision": {"price": tick, "amount": step},
        "limits": {"cost": {"min": 5.0}, "leverage": {"min": 1, "max": 75 if swap else None}},
        "info": {"anything": ["of", "the", "exchange"]},
    } | over


SAVED = [
    market("SHIB/USDT:USDT", 1e-08, 1.0),
    market("SHIB/USDT", 1e-08, 1.0),
    market("BTC/USDT:USDT", 0.1, 0.001),
    market("XAUT/USDT", 0.1, 1e-05),
    market("TINY/USDT:USDT", 1e-10, 1.0),
    market("OLD/USDT:USDT", 0.01, None),
    market("COIN2/USD:COIN2", 0.5, 1.0),
    market("GONE/USDT:USDT", 0.5, 1.0, active=False),
    market("PEPE/EUR", 1e-08, 1.0),
    market("TEN/USDT:USDT", 0.001, 3.0, contractSize=0.01),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved.json").write_text(json.dumps({row["symbol"]: row for row in SAVED}))
    yield tmp_path
    use_listings({})


def test_a_saved_answer_becomes_exact_entries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["markets", "import", "saved.json"]) == 0
    said = capsys.readouterr()
    listings = listings_of(folder / "markets.yaml")
    assert list(listings) == ["SHIB", "XAUT", "TEN"]
    shib, gold, ten = listings.values()
    assert (shib.spec.tick, shib.spec.lot, shib.spec.max_leverage, shib.spec.min_notional) == (1, 10**8, 50, 5 * 10**8)
    assert (shib.spec.taker_rate, shib.spec.maker_rate, shib.spec.funding_rate) == (50_000, 20_000, 12_500_000)
    # Spot: no leverage and no funding.
    assert (gold.spec.tick, gold.spec.lot, gold.spec.max_leverage, gold.spec.funding_rate) == (10**7, 1_000, 1, 0)
    # A contract is 0.01 of the coin.
    assert ten.spec.lot == 3_000_000
    assert "3 markets added: SHIB, XAUT, TEN" in said.out
    assert "has a tick that is no multiple of 0.00000001: TINY/USDT:USDT" in said.err
    assert "has no size step in the answer: OLD/USDT:USDT" in said.err
    assert "which the service lists already: BTC" in said.err
    assert call(["markets", "import", "saved.json", "--file", "again.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["added"]) == ("again.yaml", ["SHIB", "XAUT", "TEN"])
    assert [*map(str.strip, said.err.splitlines())] == [*map(str.strip, told["leftOut"])]
    assert (folder / "again.yaml").read_text() == (folder / "markets.yaml").read_text()


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        (["TINY/USDT:USDT"], "TINY/USDT:USDT has a tick that is no multiple of 0.00000001"),
        (["OLD"], "OLD/USDT:USDT has no size step in the answer"),
        (["C2=COIN2/USD:COIN2"], "COIN2/USD:COIN2 is paid in its own coin"),
        (["BTC"], "BTC is a shipped market; list it under another name: BTC.X=BTC/USDT:USDT"),
        (["SHIBB"], "has no perpetual and no spot market of SHIBB"),
        (["A=SHIB/USDC"], "has no market 'SHIB/USDC'"),
        (["PEPE.EUR"], "has no perpetual and no spot market of PEPE.EUR"),
    ],
)
def test_a_market_that_cannot_be_listed_is_named(
    symbols: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["markets", "import", "saved.json", "XAUT", *symbols]) != 0
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said, said
    assert not (folder / "markets.yaml").exists()


def test_the_way_out_of_a_shipped_name_works(folder: Path) -> None:
    assert call(["markets", "import", "saved.json", "BTC.X=BTC/USDT:USDT", "GOLD=XAUT/USDT", "SHIB/USDT"]) == 0
    assert list(listings_of(folder / "markets.yaml")) == ["BTC.X", "GOLD", "SHIB"]
    # Another currency is listed with the name of its rate.
    assert call(["markets", "import", "saved.json", "PEPE.E=PEPE/EUR"]) == 0
    pepe = listings_of(folder / "markets.yaml")["PEPE.E"]
    assert (pepe.currency, pepe.rate) == ("EUR", "EURUSD")


def test_what_a_person_wrote_stays_as_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = (
        '# my markets\nmarkets:\n  OIL: {tick: 1e-2, lot: 0.10, name: "Oil"}   # of one barrel\n\n'
        "  SHIB:\n    tick: 0.00000001\n    lot: 1000\n"
    )
    (folder / "markets.yaml").write_text(mine)
    assert call(["markets", "import", "saved.json", "XAUT"]) == 0
    text = (folder / "markets.yaml").read_text()
    assert text.startswith(mine) and "XAUT:" in text[len(mine) :]
    assert call(["markets", "import", "saved.json", "SHIB", "TEN"]) == 4
    assert "the file lists SHIB already; --replace replaces it" in capsys.readouterr().err
    assert (folder / "markets.yaml").read_text() == text
    assert call(["markets", "import", "saved.json", "SHIB", "--replace"]) == 0
    assert listings_of(folder / "markets.yaml")["SHIB"].spec.lot == 10**8


def test_whole_numbers_of_precision_have_two_readings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "old.json").write_text(json.dumps([market("SHIB/USDT:USDT", 8, 0), market("ONE/USDT:USDT", 2, 1)]))
    assert call(["markets", "import", "old.json", "SHIB"]) == 4
    assert "--precision decimals or --precision ticks" in capsys.readouterr().err
    assert call(["markets", "import", "old.json", "SHIB", "ONE", "--precision", "decimals"]) == 0
    listings = listings_of(folder / "markets.yaml")
    assert (listings["SHIB"].spec.tick, listings["SHIB"].spec.lot) == (1, 10**8)
    assert (listings["ONE"].spec.tick, listings["ONE"].spec.lot) == (10**6, 10**7)
    assert call(["markets", "import", "old.json", "ONE", "--precision", "ticks", "--replace"]) == 0
    assert listings_of(folder / "markets.yaml")["ONE"].spec.tick == 2 * 10**8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "is no JSON"),
        ("[]", "holds no markets of ccxt"),
        ('{"a": 1}', "holds no markets of ccxt"),
        ('[{"symbol": "A/USDT", "precision": {"price": 0.1}}]', "market 1 (A/USDT): KeyError"),
    ],
)
def test_another_file_is_refused(
    text: str | None, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (folder / "x.json").write_text(text)
    assert call(["markets", "import", "x.json"]) == 4
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert not (folder / "markets.yaml").exists()


def test_an_exchange_with_more_markets_than_a_file_holds_asks_for_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [market(f"M{n}/USDT:USDT", 0.5, 1.0) for n in range(LISTINGS_MAX + 1)]
    (folder / "many.json").write_text(json.dumps(rows))
    assert call(["markets", "import", "many.json"]) == 4
    assert f"at most {LISTINGS_MAX} markets, and this would make {LISTINGS_MAX + 1}" in capsys.readouterr().err
    assert call(["markets", "import", "many.json", "M7"]) == 0


def test_sessions_are_stored_once_and_then_no_library_is_needed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_with_calendars()
    text = "markets:\n  SIE.DE: {tick: 0.02, lot: 1, calendar: XETR}  # Siemens\n"
    (folder / "markets.yaml").write_text(text)
    monkeypatch.delenv("BOT_MARKETS_PYTHON", raising=False)
    assert call(["markets", "sessions"]) == 4
    assert "need the package exchange_calendars" in capsys.readouterr().err
    assert (folder / "markets.yaml").read_text() == text
    monkeypatch.setenv("BOT_MARKETS_PYTHON", python)
    capsys.readouterr()
    assert call(["markets", "sessions", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["calendars"]
    assert (told["calendar"], told["from"][:4]) == ("XETR", "2000")
    assert (folder / "markets.yaml").read_text().startswith(text)
    assert len((folder / "markets.yaml").read_text()) < 2_000
    monkeypatch.setenv("BOT_MARKETS_PYTHON", "/nowhere")
    assert call(["markets", "check"]) == 0
    capsys.readouterr()
    assert call(["markets", "show", "sie.de", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["calendar"], shown["tick"], shown["listed by"]) == ("XETR", "0.02", "markets.yaml")
    assert shown["sessions"].startswith("stored 2000-01-01 to ")
    # One word is still a search, now also among the markets of the file.
    assert call(["markets", "siemens"]) != 0
    capsys.readouterr()
    assert call(["markets", "sie", "--json"]) == 0
    assert [row["coin"] for row in json.loads(capsys.readouterr().out)["markets"]] == ["SIE.DE"]


def test_a_typo_of_a_listed_market_is_answered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "markets.yaml").write_text("markets: {XAUUSD: {tick: 0.01, lot: 0.01}}\n")
    assert call(["markets", "show", "XAUSD"]) == 4
    assert "did you mean XAUUSD" in capsys.readouterr().err
