"""The service killed under a daemon that goes on: at random moments at 600x, held to invariants.

In lockstep: test_kill_lockstep.
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
# at most, between a service's start and its end
ALIVE_S = 1.0


@pytest.mark.soak(kills=6, full=100)
def test_a_service_killed_at_random_keeps_what_it_acknowledged(pair: MakePair, kills: int, base_seed: int) -> None:
    chance = Random(base_seed)
    sandbox, daemon = pair("free", clock="600x", heartbeat_seconds=HEARTBEAT_S)
    daemon.start()
    daemon.wait_ready()
    for _ in range(kills):
        sleep(chance.uniform(0.1, ALIVE_S))
        sandbox.kill()
        sandbox.start()
    cycles = daemon.cycles()
    until("the daemon goes on", lambda: daemon.cycles() > cycles + 5)
    until("something is traded", daemon.has_traded)
    until("every intent is settled", lambda: not daemon.unsettled())
    daemon.stop_settled()
    invariants.check(sandbox, daemon)
