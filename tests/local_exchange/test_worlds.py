"""Seeded worlds of the engine: money, orders and books stay whole whatever accounts and prices do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import structlog

from tests.local_exchange.exchanges import Venue
from tests.local_exchange.worlds import USERS, World

STEPS = 120


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


@pytest.mark.soak(worlds=25, full=1_000)
def test_every_world_keeps_its_money_its_sizes_and_its_books(worlds: int, base_seed: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(base_seed, base_seed + worlds):
        world = World(seed)
        try:
            world.run(STEPS)
        except Exception as error:
            raise AssertionError(f"world {seed}: {error!r}") from error
        happened += world.counts
    for kind in ("fill", "funding", "liquidation", "triggered", "siblingFilledCanceled", "reduceOnlyCanceled"):
        assert happened[kind], kind
    if worlds >= 25:
        for kind in ("Auto-Deleveraging", "liquidatedCanceled", "selfTradeCanceled", "Long > Short"):
            assert happened[kind], kind


def test_the_same_seed_and_script_give_the_same_bytes_also_after_a_restart(tmp_path: Path) -> None:
    for seed in (3, 4):
        first = World(seed)
        first.run(STEPS)
        second = World(seed, tmp_path / f"{seed}.db")
        second.run(STEPS)
        assert first.digest() == second.digest()
        options = second.venue.service.options
        second.venue.service.close()
        third = Venue(seed=options.seed, network=options.network, switches=options.switches, users=USERS, db=options.db)
        for user in USERS:
            for kind in ("userFills", "historicalOrders", "frontendOpenOrders", "clearinghouseState"):
                assert third.info(kind, user=user) == second.venue.info(kind, user=user), kind
        third.service.close()
