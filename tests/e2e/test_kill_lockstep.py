"""Killed in lockstep: a manual clock that moves one bar after the daemon has finished the last.

Trades and events must equal those of the run that was not killed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import sleep
from typing import Any

import pytest

from tests.e2e import invariants
from tests.e2e.conftest import MakePair
from tests.e2e.processes import MINUTE_MS, START_MS, Daemon, Sandbox

BARS_A_KILL = 2
BARS_MIN = 24
HEARTBEAT_S = 300
# The kill comes this long after the bar's close: a pass begins within 50 ms of it and takes about as long
DELAY_S = 0.12

Blow = Callable[[Sandbox, Daemon], None]


def daemon_dies(_sandbox: Sandbox, daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def service_dies(sandbox: Sandbox, _daemon: Daemon) -> None:
    sandbox.kill()
    sandbox.start()


def played(sandbox: Sandbox, daemon: Daemon, bars: int, blows: dict[int, float], blow: Blow) -> dict[str, Any]:
    """`bars` bars, each begun when the one before is finished;

    `blows` says after which, and how long after its close.
    """
    daemon.start()
    daemon.wait_ready()
    for n in range(1, bars + 1):
        at_ms = sandbox.advance(MINUTE_MS)
        assert at_ms == START_MS + n * MINUTE_MS
        if n in blows:
            sleep(blows[n])
            blow(sandbox, daemon)
            assert sandbox.now() == at_ms
        daemon.wait_done(at_ms)
        if n in blows or n == bars:
            # What was not answered by a dead service, or comes behind the bar, a beat above all, happens at this
            # instant too.
            daemon.wait_passes(2)
    assert daemon.stop() == 0, daemon.log()[-3000:]
    return {"trades": sandbox.trades(), "events": sandbox.events()}


def differences(killed: list[dict[str, Any]], calm: list[dict[str, Any]]) -> list[Any]:
    """Field by field. Which request it was is the one thing that a repeated request changes."""
    found: list[Any] = [
        (one.get("id"), name, one.get(name), other.get(name))
        for one, other in zip(killed, calm, strict=False)
        for name in sorted({*one, *other} - {"requestId"})
        if one.get(name) != other.get(name)
    ]
    return found[:5] + ([(len(killed), len(calm))] if len(killed) != len(calm) else [])


# What counts on over all markets: when a service dies under one market's order, another's may come first within the
# same instant.
COUNTED = ("id", "seq", "oid", "venueOid", "tradeId", "requestId", "balanceUsd", "accountValueUsd")


def by_market(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Each market's rows in their order, field by field, without what counts on over all markets."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in COUNTED}
        if "data" in kept:
            kept["data"] = {name: value for name, value in kept["data"].items() if name not in COUNTED}
        found.setdefault(str(row.get("coin") or row.get("symbol") or ""), []).append(kept)
    return found


@pytest.mark.soak(kills=12, full=100)
@pytest.mark.parametrize("blow", [daemon_dies, service_dies])
def test_a_run_that_is_killed_trades_as_one_that_is_not(pair: MakePair, blow: Blow, kills: int, base_seed: int) -> None:
    bars = max(BARS_MIN, BARS_A_KILL * kills)
    chance = Random(f"{base_seed} {blow.__name__}")
    blows = {n: chance.uniform(0, DELAY_S) for n in chance.sample(range(1, bars + 1), kills)}
    first, calm_daemon = pair("calm", clock="manual", heartbeat_seconds=HEARTBEAT_S)
    first.stop()
    # Both accounts are one and the same database, so that addresses, keys and ids can be compared too.
    second, daemon = pair("killed", clock="manual", heartbeat_seconds=HEARTBEAT_S, like=first)
    first.start()
    calm = played(first, calm_daemon, bars, {}, blow)
    killed = played(second, daemon, bars, blows, blow)
    for what in ("events", "trades"):
        if blow is daemon_dies:
            assert differences(killed[what], calm[what]) == [], (what, base_seed, blows)
        else:
            assert by_market(killed[what]) == by_market(calm[what]), (what, base_seed, blows)
    assert len(killed["trades"]) > bars // 4
    invariants.check(second, daemon)
