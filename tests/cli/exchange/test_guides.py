"""Each command of the guides from nothing to a protected trade runs against a local exchange."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.testing.hyperliquid import LocalExchange
from tests.cli.run.commands import STRATEGY, WAIT_S, moving, rows, size_at
from tests.documents import PAGES, section
from tests.exchanges.agents import approve, key_file
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED

BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = 7


class Shell:
    """The commands of the guide, for this exchange and a free port."""

    def __init__(self, exchange: LocalExchange, folder: Path, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self._folder, self._network = folder, exchange.base_url.rpartition(":")[2]
        self._environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._environment.pop("BOT_CONTROL_TOKEN", None)
        self._port = port
        self.process: subprocess.Popen[str] | None = None

    def run(self, block: str) -> str:
        text = block.replace("http://localhost:8700", self.base_url)
        text = text.replace("hyperliquid:testnet", f"hyperliquid:{self._network}")
        said = []
        for line in filter(None, text.splitlines()):
            if line.endswith(" &"):
                self._start(line.removesuffix(" &"))
                continue
            place = f"--network {self._network}" if " connect " in line else f"--url http://127.0.0.1:{self._network}"
            line = line.replace("--network testnet", place)
            done = subprocess.run(
                ["bash", "-ec", line],
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            *_, answer = line.split(" -o ")
            told = self._folder / answer
            assert done.returncode == 0, (done.stderr, told.read_text() if told.is_file() else done.stdout, line)
            said.append(done.stdout)
        return "".join(said)

    def begin(self, line: str) -> None:
        """A command that goes on."""
        with (self._folder / "process.log").open("w") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", line], cwd=self._folder, env=self._environment, stdout=log, stderr=log, text=True
            )

    def wait(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < end, (self._folder / "process.log").read_text()[-4_000:]
            time.sleep(0.2)

    def _start(self, line: str) -> None:
        """The service, until it can send. `exec` makes the process of the shell its own."""
        self.begin(line.replace(" bot sandbox ", f" exec bot sandbox --port {self._port} "))
        self.wait(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            told = httpx.get(f"{self.base_url}/v1/system/status", timeout=10, trust_env=False).json()["exchange"]
        except httpx.TransportError:
            return False
        return bool(told["link"] == "in_step" and told["agent"] and told["clockDifferenceMs"] is not None)

    def json(self, name: str) -> Any:
        return json.loads((self._folder / name).read_text())

    def ask(self, header: str, method: str, path: str, **body: Any) -> httpx.Response:
        name, _, value = (self._folder / "secrets" / header).read_text().strip().partition(": ")
        given = {"json": body} if body else {}
        return httpx.request(method, self.base_url + path, headers={name: value}, timeout=60, trust_env=False, **given)


@pytest.fixture
def shell(hyperliquid: LocalExchange, place: Path, unused_tcp_port: int) -> Iterator[Shell]:
    shell = Shell(hyperliquid, place, unused_tcp_port)
    yield shell
    if shell.process is not None:
        shell.process.terminate()
        shell.process.wait(WAIT_S)


@FUNDED
def test_the_guide_leads_from_nothing_to_a_protected_trade_and_a_kill(
    hyperliquid: LocalExchange, place: Path, shell: Shell
) -> None:
    approve(hyperliquid)
    blocks = BLOCK.findall(PAGES["guides/agent-key"])
    assert len(blocks) == STEPS
    check, start, owner, key, trade, dead_man, kill = blocks
    (place / "secrets").mkdir(mode=0o700)
    key_file(place / "secrets")
    assert "fail" not in shell.run(check)
    for block in (start, owner, key, trade):
        shell.run(block)
    assert size_at(hyperliquid) > 0 and shell.json("trade.json")["protected"] is True
    rows = hyperliquid.info("frontendOpenOrders", user=ADDRESS)
    assert [row["orderType"] for row in rows] == ["Stop Market"]
    order = {"market": "BTC", "side": "long", "bracket": {"stopLoss": {"pct": 2}}}
    for header, usd, cap in (("key-header", 25, "maxExposureUsd"), ("owner-header", 45, "exchangeCapUsd")):
        refused = shell.ask(header, "POST", "/v1/orders", usdAmount=usd, **order).json()["error"]
        assert refused["details"]["cap"] == cap, refused
    assert shell.ask("key-header", "POST", "/v1/keys", name="more").status_code == 403
    shell.run(dead_man)
    kinds = {row["type"]: row["id"] for row in shell.ask("owner-header", "GET", "/v1/guardians").json()["guardians"]}
    assert set(kinds) == {"dead_man_switch"}
    shell.run(kill.splitlines()[0])
    assert size_at(hyperliquid) == 0 and hyperliquid.info("frontendOpenOrders", user=ADDRESS) == []
    guardians = shell.ask("owner-header", "GET", "/v1/guardians").json()["guardians"]
    killed = next(row["id"] for row in guardians if row["type"] == "kill_switch")
    assert shell.ask("key-header", "DELETE", f"/v1/guardians/{killed}").status_code == 403
    shell.run(kill.splitlines()[1])
    assert shell.ask("key-header", "GET", "/v1/account").status_code == 401


CONFIG = """\
account: {base_url: embedded}
embedded: {markets: [BTC]}
dead_man: {heartbeat_seconds: 60}
state_dir: state
strategies_dir: .
strategies:
  - {name: once, use: "once:Once", markets: [BTC], interval: 1m, budget_usd: 1000}
"""


@FUNDED
def test_a_config_is_connected_and_its_daemon_holds_a_protected_position(
    hyperliquid: LocalExchange, place: Path, shell: Shell
) -> None:
    approve(hyperliquid)
    (place / "bot.yaml").write_text(CONFIG)
    (place / "once.py").write_text(STRATEGY)
    (place / "secrets").mkdir(mode=0o700)
    key_file(place / "secrets")
    (connect,) = BLOCK.findall(section("guides/exchange-account", "Connect a config, from zero").partition("### ")[0])
    begin, look = BLOCK.findall(section("guides/exchange-account", "To a protected trade"))
    assert "connected: " in shell.run(connect.strip() + " --yes")
    check, run = begin.splitlines()
    shell.run(check)
    status, exchange_status, close, stop = look.splitlines()
    with moving(hyperliquid):
        shell.begin(f"exec {run}")
        shell.wait(lambda: rows(hyperliquid) == ["Stop Market", "Take Profit Market"] and size_at(hyperliquid) > 0)
        assert "BTC" in shell.run(status) and "NO STOP" not in shell.run(exchange_status)
        shell.run(close)
        assert size_at(hyperliquid) == 0
        shell.run(stop)
    assert shell.process is not None
    assert shell.process.wait(WAIT_S) == 0
