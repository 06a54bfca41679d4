"""The page "Test your Hyperliquid bot offline": its examples run, and its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bot.local_exchange.faults import KINDS
from bot.local_exchange.server.control import COMMANDS
from bot.local_exchange.server.service import OWN
from bot.local_exchange.switches import SWITCHES
from bot.testing.hyperliquid import LocalExchange
from tests.documents import DOCS, ROOT

PAGE = (DOCS / "test-your-hyperliquid-bot.md").read_text()
MARKETS = ROOT / ".venv" / "markets" / "bin" / "python"
EXAMPLES = dict(re.findall(r"^```py (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ["sdk", "ccxt", "http"])
@pytest.mark.hyperliquid(clock="real")
def test_an_example_of_the_page_runs(name: str, hyperliquid: LocalExchange, tmp_path: Path) -> None:
    python = MARKETS if name == "ccxt" else Path(sys.executable)
    if not python.exists():
        pytest.skip("ccxt is not installed: run `make .venv/markets.stamp`")
    assert len(EXAMPLES[name].strip().splitlines()) <= 25
    file = tmp_path / "example.py"
    file.write_text(EXAMPLES[name].replace("http://localhost:3001", hyperliquid.base_url))
    done = subprocess.run([str(python), str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert "BTC" in last, done.stdout


def test_the_table_of_switches_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", section("What is assumed"), re.MULTILINE)
    listed = [(name, tuple(re.findall(r"`(\w+)`", values)), question) for name, values, question in rows]
    assert listed == [(switch.name, switch.values, switch.question) for switch in SWITCHES]


def test_the_table_of_faults_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|$", section("Faults"), re.MULTILINE)
    assert {point: tuple(re.findall(r"`(\w+)`", kinds)) for point, kinds in rows} == KINDS


def test_the_routes_of_control_are_those_of_the_code() -> None:
    routes = set(re.findall(r"`/control/(\w+)`", section("Control")))
    assert routes == (set(COMMANDS) | set(OWN)) - set(KINDS["exchange"])


def test_the_members_of_the_fixture_are_those_of_the_class() -> None:
    rows = re.findall(r"^\| `(.+?)` \|", section("In pytest").split("| Member")[1], re.MULTILINE)
    named = {re.split(r"\W", member)[0] for row in rows for member in row.split("`, `")}
    public = {name for name in vars(LocalExchange) if not name.startswith("_")} - {"close", "control"}
    assert named == public | {"base_url"}


MY_BOT = """
import eth_account
from hyperliquid.exchange import Exchange

class Bot:
    def __init__(self, url):
        self.exchange = Exchange(eth_account.Account.from_key("0x" + "01" * 32), url)

    def buy(self, coin, size):
        try:
            self.exchange.order(coin, True, float(size), 110_000, {"limit": {"tif": "Ioc"}})
        except OSError:  # requests raises a subclass: the answer is lost
            pass
        stop = {"trigger": {"triggerPx": 95_000, "isMarket": True, "tpsl": "sl"}}
        self.exchange.order(coin, False, float(size), 86_000, stop, reduce_only=True)
"""


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_bot.py").write_text(MY_BOT)
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
