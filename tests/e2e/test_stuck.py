"""A strategy that never gives the interpreter back: the daemon stands still and is killed; its next life asks that
strategy nothing, and the others go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.runtime.strategy_host import call_record
from tests.e2e.processes import HEAD, Daemon, Sandbox, until

SPEED = 120
# 60 s of real time
HEARTBEAT_S = 7_200
CONFIG = (
    HEAD
    + """\
  - {name: churn, use: "churn:Churn", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}
  - {name: stands, use: "stands:Stands", markets: [ETH], interval: 1m, budget_usd: 2000, max_leverage: 2}
"""
)
STANDS = """\
import ctypes
from pathlib import Path

from bot.strategy import Strategy


class Stands(Strategy):
    def on_bar(self, view, bar):
        if Path("%s").exists():
            ctypes.PyDLL(None).sleep(3600)  # Called with the interpreter held, as a loop inside C code is.
"""


@pytest.fixture
def daemon(place: Path, repository: Path) -> Iterator[Daemon]:
    sandbox = Sandbox(place, clock=f"{SPEED}x", markets=("--markets", "btc,eth"))
    sandbox.start()
    sandbox.open_account()
    made = Daemon(place, sandbox, heartbeat_seconds=HEARTBEAT_S, strategies=repository / "strategies", config=CONFIG)
    (place / "strategies" / "stands.py").write_text(STANDS % (place / "now"))
    yield made
    made.kill()
    sandbox.kill()


def blocking_strategies(daemon: Daemon) -> list[str]:
    """The strategies whose calls blocked the daemon when its last run ended."""
    return [one.strategy for one in call_record.asked(daemon.state)[1] if one.blocked_daemon]


def test_what_held_the_interpreter_until_the_daemon_was_killed_is_in_quarantine_in_the_next_life(
    daemon: Daemon,
) -> None:
    daemon.start()
    daemon.wait_ready()
    (daemon.folder / "now").touch()
    until("the daemon has stood still for long enough to say so", lambda: blocking_strategies(daemon))
    assert blocking_strategies(daemon) == ["stands"]
    daemon.kill()
    bars = daemon.bars()
    daemon.start()
    until("the other strategy goes on", lambda: daemon.bars() >= bars + 3)
    ((why,),) = daemon.ask("SELECT value FROM meta WHERE name = 'quarantine:stands'")
    assert "did not return for" in json.loads(why)[0]
    assert "strategy.quarantined" in daemon.log()
    ((said,),) = daemon.ask("SELECT payload FROM outbox WHERE kind = 'daemon.killed'")
    assert "its last sign of life was at" in json.loads(said)["message"]
    assert (daemon.state / call_record.FILE).stat().st_mode & 0o077 == 0
    assert daemon.stop() == 0, daemon.log()[-3000:]
    assert blocking_strategies(daemon) == [], "nothing is said of a run that ended as asked"
    daemon.start()
    daemon.wait_ready()
    assert "strategy.still_quarantined" in daemon.log()
    assert daemon.log().count('"event":"daemon.killed"') == 1, "the last run ended as asked"


def test_what_held_the_interpreter_in_its_first_warm_up_is_in_quarantine_in_the_next_life(daemon: Daemon) -> None:
    """No switch was armed by then, so that nothing could beat: the witness is there all the same."""
    (daemon.folder / "now").touch()
    daemon.start()
    until("the daemon has stood still for long enough to say so", lambda: blocking_strategies(daemon))
    assert "daemon.ready" not in daemon.log()
    daemon.kill()
    daemon.start()
    until("the other strategy trades", lambda: daemon.bars() >= 3)
    ((why,),) = daemon.ask("SELECT value FROM meta WHERE name = 'quarantine:stands'")
    assert "did not return for" in json.loads(why)[0]
    assert daemon.stop() == 0, daemon.log()[-3000:]
