"""Killed while time runs on: a service at 600x, kills at random moments.

No two runs are alike, so they are held to invariants.
"""

from __future__ import annotations

from random import Random
from time import sleep

import pytest

from tests.e2e import invariants
from tests.e2e.conftest import MakePair
from tests.e2e.processes import until

# 30 s of real time at 600x
HEARTBEAT_S = 18_000
# at most, between a daemon's first pass and its end
ALIVE_S = 0.8


@pytest.mark.soak(kills=6, full=100)
def test_a_daemon_killed_at_random_loses_nothing_and_doubles_nothing(
    pair: MakePair, kills: int, base_seed: int
) -> None:
    chance = Random(base_seed)
    sandbox, daemon = pair("free", clock="600x", heartbeat_seconds=HEARTBEAT_S)
    for n in range(kills):
        daemon.start()
        if n % 5 != 4:
            daemon.wait_ready()
        # Every fifth dies in its recovery, most of which is over in a second.
        sleep(chance.uniform(0, ALIVE_S))
        daemon.kill()
    daemon.start()
    daemon.wait_ready()
    sleep(ALIVE_S)
    until("something is traded", daemon.has_traded)
    daemon.stop_settled()
    invariants.check(sandbox, daemon)
