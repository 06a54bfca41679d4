"""The two shipped strategies: they load by name, trade often enough for a demo, never without a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.runtime.strategy_host.loader import build, discover, load
from bot.strategy import Close, Open
from tests.strategy.toy import Toy, walk

NAMES = ["trend", "reversion"]


@pytest.fixture
def folder(repository: Path) -> Path:
    return repository / "strategies"


def run(folder: Path, use: str, *, seed: int, bars: int = 600, sigma: float = 0.0007) -> Toy:
    return Toy(build(load(use, folder), name=use, markets=["BTC"], params={})).run(
        walk(seed=seed, bars=bars, sigma=sigma)
    )


@pytest.mark.parametrize("use", NAMES)
@pytest.mark.parametrize("sigma", [0.0005, 0.001])
def test_an_example_trades_several_times_an_hour(folder: Path, use: str, sigma: float) -> None:
    opened = [len(run(folder, use, seed=seed, sigma=sigma).opened_at) for seed in range(5)]
    assert min(opened) / 10 >= 1.5
    assert sum(opened) / 50 >= 2.5
    assert max(opened) / 10 < 12


@pytest.mark.parametrize("use", NAMES)
def test_an_example_never_opens_without_a_stop_or_twice_at_once(folder: Path, use: str) -> None:
    toy = run(folder, use, seed=3)
    for intent in toy.intents:
        assert isinstance(intent, Open | Close)
        if isinstance(intent, Open):
            assert intent.bracket is not None
            assert intent.bracket.has_stop
    assert len(toy.opened_at) - len(toy.exits) in (0, 1)


@pytest.mark.parametrize("use", NAMES)
def test_an_example_ends_positions_in_more_than_one_way(folder: Path, use: str) -> None:
    exits = {why for seed in range(5) for why in run(folder, use, seed=seed).exits}
    assert exits >= {"close", "stop"}


def test_trend_takes_its_target_as_a_multiple_of_its_risk(folder: Path) -> None:
    toy = run(folder, "trend", seed=1)
    assert "target" in toy.exits
    opens = [one for one in toy.intents if isinstance(one, Open)]
    assert all(one.bracket is not None and one.bracket.target_r == 1.5 for one in opens)
    assert {one.side for one in opens} == {"long", "short"}


def test_reversion_rides_an_inline_trailing_stop_and_rests_after_a_loss(folder: Path) -> None:
    toy = run(folder, "reversion", seed=1)
    opens = [one for one in toy.intents if isinstance(one, Open)]
    assert all(one.guardians[0].trail_r == 0.5 for one in opens)
    assert "rest.BTC" in toy.source.state


@pytest.mark.parametrize("use", NAMES)
def test_an_example_survives_a_market_that_does_not_move(folder: Path, use: str) -> None:
    assert run(folder, use, seed=1, bars=100, sigma=0.0).intents == []


@pytest.mark.parametrize("use", NAMES)
def test_an_example_fits_a_page(folder: Path, use: str) -> None:
    assert len((folder / f"{use}.py").read_text().splitlines()) < 80


def test_the_examples_are_listed_with_their_first_line_and_their_params(folder: Path) -> None:
    found = {one.use: one for one in discover(folder) if one.origin == "file"}
    assert set(found) >= set(NAMES)
    assert all(one.error is None and one.summary for one in found.values())
    assert found["trend"].params["fast_bars"]["minimum"] == 2
