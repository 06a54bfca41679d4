"""The services that the suite calls: one whose prices a test pushes, one with simulated prices; each a process,
shared by the tests of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.contract.target import Caller, Target, start

# 2025-06-15 15:07:00 UTC: inside its 5 and 15 minutes, hour, four hours and day.
START_MS = 1_750_000_020_000


@pytest.fixture(scope="session")
def _pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = start(
        tmp_path_factory.mktemp("pushed"),
        clock="manual",
        start_ms=START_MS,
        hold_prices=True,
        markets=["BTC", "ETH", "SOL"],
    )
    yield made
    made.kill()


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Every market, simulated prices, a clock that the test moves."""
    made = start(tmp_path_factory.mktemp("simulated"), clock="manual", start_ms=START_MS, seed=7)
    yield made
    made.kill()


@pytest.fixture
def site(_pushed: Target) -> Target:
    """Manual clock and pushed prices: BTC 100,000, ETH 2,500, SOL 150."""
    for coin, px in (("BTC", "100000"), ("ETH", "2500"), ("SOL", "150")):
        _pushed.price(coin, px)
    return _pushed


@pytest.fixture
def caller(site: Target) -> Caller:
    """An account with 10,000 USD."""
    return site.caller(name="contract")


@pytest.fixture
def start_own(tmp_path: Any) -> Iterator[Callable[..., Target]]:
    """Services of the test's own, ended with it."""
    running: list[Target] = []

    def make(**options: Any) -> Target:
        running.append(start(tmp_path, **options))
        return running[-1]

    yield make
    for one in running:
        with suppress(ProcessLookupError):
            one.kill()
