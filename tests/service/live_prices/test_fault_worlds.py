"""Live prices survive whatever the source does: random worlds of faults, and proof that the worlds find mistakes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bot.market_data import quote_filter
from bot.service.live_prices import live_market
from bot.service.live_prices.live_market import LiveMarket
from bot.service.live_prices.live_prices import LivePrices
from bot.service.market_data.live_candles import LiveCandles
from tests.service.live_prices.fault_world import lived
from tests.service.live_prices.faulty_exchange import NAMES


@pytest.mark.soak(worlds=6, full=3_000)
def test_no_fault_of_the_source_breaks_a_promise(tmp_path: Path, worlds: int, base_seed: int) -> None:
    counts: Counter[str] = Counter()
    struck: set[str] = set()
    for seed in range(base_seed, base_seed + worlds):
        world = lived(seed, tmp_path)
        counts.update(world.counts)
        struck |= world.exchange.struck
    assert counts["missed minutes"], counts
    assert counts["Triggered.stop_loss"], counts
    if worlds >= 100:
        assert struck == set(NAMES)
        assert (
            min(
                counts[what]
                for what in ("fills in gaps", "starts", "market_closed", "GuardianMoved.fired", "FundingPaid.")
            )
            > 10
        )


def any_mid(quote: Any) -> int | str:
    """Takes the mid of a crossed quote."""
    if quote.bid is None or quote.ask is None or not 0 < quote.bid < 1e9:
        return "no_price"
    return (quote_filter.scaled(quote.bid) + quote_filter.scaled(quote.ask)) // 2


def append_all(self: LiveCandles, minutes: Any, until_ms: int) -> Any:
    """Takes what the source sends, known or not."""
    for candle in minutes:
        self._closed["1m"].append(candle)
    self.until_ms = until_ms
    return minutes


BUGS: list[tuple[str, object, str, object, int, str]] = [
    ("crossed quotes are prices", quote_filter, "_price", any_mid, 9, "did not show"),
    ("every jump is believed", quote_filter.QuoteFilter, "_is_confirmed", lambda *_: True, 9, "did not show"),
    ("a market opens with the first quote", LiveMarket, "_has_levels", lambda _: False, 1, "left out"),
    ("a price is never too old", live_market, "AGE_MAX_MS", 10**9, 2, "left out"),
    ("what was lived through is not saved", LivePrices, "_save_closed", lambda _: None, 4, "left out|lived through"),
    ("candles are taken as they come", LiveCandles, "extend", append_all, 0, ""),
]


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "first", "symptom"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS]
)
def test_a_seeded_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrong: object, first: int, symptom: str
) -> None:
    """`first`: the seed at which the search begins, which found the bug at the last search."""
    monkeypatch.setattr(owner, name, wrong)
    for seed in range(first, first + 200):
        try:
            lived(seed, tmp_path)
        except AssertionError as error:
            print(f"found by seed {seed}: {error}")
            if symptom.split("|")[0] in str(error) or symptom.split("|")[-1] in str(error):
                return
    pytest.fail("no world noticed")
