"""A listing file: what is right becomes a market with exact rules; each wrong value is one sentence with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.checks.listing_file import LISTINGS_MAX, listings_of, use_listing_file
from bot.cli.app import call
from bot.errors import ConfigError
from bot.service.market_data.instruments import (
    CATALOGUE,
    SHIPPED,
    added_listings,
    listing_of_plain,
    plain_listing,
    use_listings,
)
from tests.calendars import markets_python

GOOD = """\
markets:
  SHIB: {tick: 0.00000001, lot: 1, price: 0.00001234, minimum: 5, leverage: 20, tiers: [{since_usd: 0, leverage: 20},
    {since_usd: 100000, leverage: 5}], fees: {taker: 0.0005, maker: -0.00005}}
  ES: {tick: 0.25, lot: 50, price: 6800, kind: stocks, margin: isolated, funding: false, strict_hours: true,
    calendar: weekly Sun 18:00-Fri 17:00 America/New_York break 17:00-18:00}
  XAUUSD: {tick: 1e-2, lot: 0.01, price: 9999999.99, calendar: equity}
  SIE.DE: {tick: 0.02, lot: 1, currency: EUR, rate: EURUSD}
"""


@pytest.fixture(autouse=True)
def _shipped_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if (python := markets_python()) is not None:
        monkeypatch.setenv("BOT_MARKETS_PYTHON", python)
    yield
    use_listings({})


def written(folder: Path, text: str) -> Path:
    path = folder / "markets.yaml"
    path.write_text(text)
    return path


def test_a_listing_has_exact_rules(tmp_path: Path) -> None:
    listings = listings_of(written(tmp_path, GOOD))
    shib, es, gold, siemens = (listings[name] for name in ("SHIB", "ES", "XAUUSD", "SIE.DE"))
    assert (shib.spec.tick, shib.spec.lot, shib.px, shib.spec.min_notional) == (1, 10**8, 1234, 5 * 10**8)
    assert shib.spec.tiers == ((0, 20), (100_000 * 10**8, 5))
    assert (shib.spec.taker_rate, shib.spec.maker_rate, shib.spec.hours) == (50_000, -5_000, None)
    assert (es.spec.lot, es.spec.size_step, es.spec.sz_decimals) == (50 * 10**8, 50 * 10**8, 0)
    assert (es.spec.margin_mode, es.spec.funding_rate, es.spec.strict_hours) == ("isolated", 0, True)
    assert (gold.spec.tick, gold.px, gold.spec.hours) == (10**6, 999_999_999_000_000, "equity")
    assert (siemens.is_priced, siemens.currency, siemens.rate) == (False, "EUR", "EURUSD")
    for coin, listing in listings.items():
        assert listing_of_plain(coin, plain_listing(listing)) == listing


def test_a_process_knows_one_listing_file_at_a_time(tmp_path: Path) -> None:
    use_listing_file(written(tmp_path, GOOD))
    assert list(added_listings()) == ["SHIB", "ES", "XAUUSD", "SIE.DE"]
    use_listing_file(written(tmp_path, "markets: {EURUSD: {tick: 0.00001, lot: 1000}}"))
    assert list(added_listings()) == ["EURUSD"]
    use_listing_file(None)
    assert set(CATALOGUE) == SHIPPED


NO_ZONE = """\
markets: {A: {tick: 1, lot: 1}}
calendars: {XX: {zone: Mars, begins: '00:00', first: 2000-01-01, last: 2001-01-01, sessions: x}}
"""

WRONG = {
    "no tick": ("{lot: 1}", "A.tick: is required"),
    "no lot": ("{tick: 1}", "A.lot: is required"),
    "tick of text": ("{tick: small, lot: 1}", "A.tick: must be a number"),
    "tick of 0": ("{tick: 0, lot: 1}", "A.tick: must be > 0, <= 1000000"),
    "tick below the unit": ("{tick: 0.000000001, lot: 1}", "A.tick: must be a multiple of 0.00000001"),
    "lot below the unit": ("{tick: 1, lot: 0.000000015}", "A.lot: must be a multiple of 0.00000001"),
    "lot of a word": ("{tick: 1, lot: yes}", "A.lot: must be a number"),
    "price above the bound": ("{tick: 1, lot: 1, price: 10000001}", "A.price: must be > 0, <= 10000000"),
    "leverage 0": ("{tick: 1, lot: 1, leverage: 0}", "A.leverage: must be 1..50"),
    "leverage 51": ("{tick: 1, lot: 1, leverage: 51}", "A.leverage: must be 1..50"),
    "leverage 2.5": ("{tick: 1, lot: 1, leverage: 2.5}", "A.leverage: must be an integer"),
    "minimum 0": ("{tick: 1, lot: 1, minimum: 0}", "A.minimum: must be > 0"),
    "fee of 1": ("{tick: 1, lot: 1, fees: {taker: 1}}", "A.fees.taker: must be a fraction below 1"),
    "fee in percent": ("{tick: 1, lot: 1, fees: {taker: 5}}", "A.fees.taker: must be >= 0, <= 1"),
    "fees of text": ("{tick: 1, lot: 1, fees: low}", "A.fees: must be a mapping"),
    "unknown key": ("{tick: 1, lot: 1, levarage: 3}", "A.levarage: unknown key; did you mean leverage?"),
    "unknown margin": ("{tick: 1, lot: 1, margin: full}", "A.margin: must be 'cross' or 'isolated'"),
    "first tier above 0": (
        "{tick: 1, lot: 1, tiers: [{since_usd: 5, leverage: 10}]}",
        "A.tiers[0].since_usd: the first tier must begin at 0",
    ),
    "first tier of another leverage": (
        "{tick: 1, lot: 1, tiers: [{since_usd: 0, leverage: 9}]}",
        "A.tiers[0].leverage: the first tier must have the market's leverage, 10",
    ),
    "tiers that overlap": (
        "{tick: 1, lot: 1, tiers: [{since_usd: 0, until_usd: 100, leverage: 10}, {since_usd: 50, leverage: 5}]}",
        "A.tiers[1].since_usd: overlaps with the tier before; it must begin at 100 or above",
    ),
    "tiers with a hole": (
        "{tick: 1, lot: 1, tiers: [{since_usd: 0, until_usd: 100, leverage: 10}, {since_usd: 150, leverage: 5}]}",
        "A.tiers[1].since_usd: the tier before ends at 100",
    ),
    "tiers out of order": (
        "{tick: 1, lot: 1, tiers: [{since_usd: 0, leverage: 10}, {since_usd: 0, leverage: 5}]}",
        "A.tiers[1].since_usd: overlaps",
    ),
    "tiers that rise": (
        "{tick: 1, lot: 1, tiers: [{since_usd: 0, leverage: 10}, {since_usd: 9, leverage: 10}]}",
        "A.tiers[1].leverage: must be below that of the tier before, 10",
    ),
    "calendar with a slip": (
        "{tick: 1, lot: 1, calendar: XETRA}",
        "A.calendar: no calendar 'XETRA'; did you mean XETR?",
    ),
    "calendar that is not stored": (
        "{tick: 1, lot: 1, calendar: XETR}",
        "A.calendar: the sessions of XETR are not in this file; run `bot markets sessions",
    ),
    "week with a slip": ("{tick: 1, lot: 1, calendar: weekly Mon 9-5 UTC}", "A.calendar: must be like"),
    "rate of USD": ("{tick: 1, lot: 1, rate: EURUSD}", "A.rate: prices in USD need no rate"),
    "other currency": ("{tick: 1, lot: 1, currency: GBP}", "A.currency: prices in GBP must be converted"),
}


@pytest.mark.parametrize(("market", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_one_sentence_with_its_line(
    market: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"# a comment\nmarkets:\n  A: {market}\n")
    assert call(["markets", "check", str(path)]) == 4
    said = capsys.readouterr().err
    assert f"{path}:3:" in said and words in said, said
    assert "Traceback" not in said
    assert not added_listings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty; bot markets import"),
        ("- a", "must be a mapping"),
        ("markets: {}", "markets: "),
        ("markets: {BTC: {tick: 1, lot: 1}}", "BTC is a shipped market; give this one another name, such as BTC.X"),
        ("markets: {a b: {tick: 1, lot: 1}}", "must be a market"),
        ("markets: {'event:X': {tick: 1, lot: 1}}", "an event market cannot be listed"),
        ("markets: {A: {tick: 1, lot: 1}, A: {tick: 1, lot: 1}}", "markets.A"),
        (NO_ZONE, "no time zone 'Mars'"),
    ],
)
def test_a_wrong_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        listings_of(written(tmp_path, text))
    assert words in str(refused.value)


def test_a_file_has_at_most_the_markets_that_one_answer_lists(tmp_path: Path) -> None:
    rows = "".join(f"  M{n}: {{tick: 1, lot: 1}}\n" for n in range(LISTINGS_MAX + 1))
    with pytest.raises(ConfigError, match=f"has more than {LISTINGS_MAX}|at most {LISTINGS_MAX}"):
        listings_of(written(tmp_path, "markets:\n" + rows))
