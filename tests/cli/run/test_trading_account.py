"""A daemon that trades an account at an exchange by its strategy: bracketed, killed, started again, closed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bot.testing.hyperliquid import LocalExchange
from tests.cli.run.commands import STRATEGY, WAIT_S, answer, moving, rows, size_at
from tests.exchanges.agents import approve, key_file
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED

CONFIG = """\
account: {exchange: hyperliquid, network: "%s", address: "%s", agent_key: "${file:agent}"}
embedded: {markets: [BTC]}
dead_man: {heartbeat_seconds: 60}
state_dir: state
strategies_dir: .
strategies:
  - {name: once, use: "once:Once", markets: [BTC], interval: 1m, budget_usd: 1000}
log: {format: json}
"""


def started(config: Path, name: str) -> subprocess.Popen[bytes]:
    with (config.parent / name).open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "bot", "run", str(config)], stdout=log, stderr=log)


def wait(is_so: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end, log.read_text()[-6_000:]
        time.sleep(0.2)


@FUNDED
def test_a_daemon_opens_a_bracketed_trade_survives_kill_9_and_its_books_equal_the_exchange(
    hyperliquid: LocalExchange, place: Path
) -> None:
    approve(hyperliquid)
    key_file(place)
    (place / "once.py").write_text(STRATEGY)
    config = place / "mine.yaml"
    config.write_text(CONFIG % (hyperliquid.base_url.rpartition(":")[2], ADDRESS))
    with moving(hyperliquid):
        _trade(hyperliquid, place, config)


def _trade(exchange: LocalExchange, place: Path, config: Path) -> None:
    daemon = started(config, "first.log")
    try:
        wait(lambda: size_at(exchange) > 0, place / "first.log")
        wait(lambda: rows(exchange) == ["Stop Market", "Take Profit Market"], place / "first.log")
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(WAIT_S)
    size = size_at(exchange)
    daemon = started(config, "second.log")
    try:
        wait(lambda: '"bar.closed"' in (place / "second.log").read_text(), place / "second.log")
        assert (size_at(exchange), rows(exchange)) == (size, ["Stop Market", "Take Profit Market"])
        code, closed = answer("close", "BTC", "--config", str(config), "--yes")
        assert (code, closed["closed"], size_at(exchange)) == (0, True, 0), closed
        wait(lambda: rows(exchange) == [], place / "second.log")
        code, status = answer("status", "--config", str(config))
        assert (code, status["service"]["exchange_link"]) == (0, "in_step"), status
        code, audited = answer("audit", "--db", str(place / "state" / "sandbox.db"))
        assert code == 0 and not any(audited["accounts"].values()), audited
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(WAIT_S)
