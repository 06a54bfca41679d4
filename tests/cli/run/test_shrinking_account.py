"""A daemon on an account at an exchange that can only shrink: its dead-man, `bot close` and `bot kill`."""

from __future__ import annotations

import signal
from pathlib import Path

from bot.testing.hyperliquid import LocalExchange
from tests.cli.run.commands import WAIT_S, answer, bot, size_at
from tests.exchanges.agents import approve, key_file
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED, Hand

CONFIG = """\
account: {exchange: hyperliquid, network: "%s", address: "%s", agent_key: "${file:agent}"}
embedded: {markets: [BTC]}
dead_man: {heartbeat_seconds: 60}
state_dir: state
strategies_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 500}
log: {format: json}
"""


@FUNDED
def test_the_daemon_arms_its_dead_man_and_close_and_kill_reach_the_exchange(
    hyperliquid: LocalExchange, place: Path, repository: Path
) -> None:
    hand = Hand(hyperliquid)
    approve(hyperliquid)
    hand.trade(0.04)
    key_file(place)
    config = place / "mine.yaml"
    config.write_text(CONFIG % (hyperliquid.base_url.rpartition(":")[2], ADDRESS, repository / "strategies"))
    daemon = bot("run", str(config))
    assert daemon.stderr is not None
    next(line for line in daemon.stderr if '"bar.closed"' in line)
    code, status = answer("status", "--config", str(config))
    assert [(row["name"], row["stands"]) for row in status["guardians"]] == [("dead_man", True)]
    assert (code, status["service"]["exchange_link"], status["heartbeat"]["armed"]) == (0, "in_step", True)
    code, closed = answer("close", "BTC", "--fraction", "0.25", "--config", str(config), "--yes")
    assert (code, closed["closed"], closed["left"]) == (0, True, "0.03") and size_at(hyperliquid) == 0.03
    code, killed = answer("kill", "--flatten", "--config", str(config), "--yes")
    assert (code, killed["orderSubmitted"], killed["positions"]) == (0, True, []) and size_at(hyperliquid) == 0
    assert [trade["status"] for trade in killed["trades"]] == ["done"]
    daemon.send_signal(signal.SIGTERM)
    out, _ = daemon.communicate(timeout=WAIT_S)
    assert daemon.returncode == 0, out
