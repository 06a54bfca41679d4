"""`bot exchange connect`: a config gets an account after every check, and an agent changes only when it is safe."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bot.cli.exchange import connection as connecting
from bot.cli.exchange.connection import REAL_MONEY, connect, with_block
from bot.clock import SystemClock
from bot.config import load
from bot.errors import ConfigError
from bot.service.exchange_accounts.account_options import FollowedAccount
from bot.service.host import HostOptions, build
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import ExchangePosition
from tests.exchanges.agents import AGENT, KEY, approve, key_file
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED

CONFIG = """\
# mine
account: {{base_url: embedded}}

# how it trades
state_dir: state
strategies_dir: {folder}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 500}}
"""


@pytest.fixture
def config(place: Path, repository: Path) -> Path:
    path = place / "mine.yaml"
    path.write_text(CONFIG.format(folder=repository / "strategies"))
    return path


def run(exchange: LocalExchange, config: Path | None, key: Path, *more: str, answer: str = "y\n") -> Result:
    network = exchange.base_url.rpartition(":")[2]
    where = ["--network", network, "--address", ADDRESS, "--agent-key-file", str(key), *more]
    result = CliRunner().invoke(connect, [*([] if config is None else [str(config)]), *where], input=answer)
    assert KEY not in result.output
    return result


@FUNDED
def test_a_checked_account_is_written_after_a_yes(hyperliquid: LocalExchange, config: Path) -> None:
    key, before = key_file(config.parent), config.read_text()
    result = run(hyperliquid, config, key)
    assert "fail  agent" in result.output, "the agent is not approved yet"
    assert "nothing was written" in result.output
    assert config.read_text() == before

    approve(hyperliquid)
    assert "nothing was written" in run(hyperliquid, config, key, answer="n\n").output
    assert config.read_text() == before
    result = run(hyperliquid, config, key)
    assert "+  exchange: hyperliquid" in result.output and "connected: " in result.output, result.output
    text = config.read_text()
    assert text.startswith("# mine\naccount:\n  exchange: hyperliquid\n") and "\n# how it trades\nstate_dir" in text
    assert 'agent_key: "${file:agent}"' in text
    settings = load(config)
    assert (settings.account.address, settings.account.agent_key) == (ADDRESS, key)
    assert settings.account.exposure_cap_usd is None
    assert run(hyperliquid, None, key).output.endswith(f'agent_key: "${{file:{key}}}"\n')
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="readable by other users"):
        CliRunner().invoke(connect, ["--address", ADDRESS, "--agent-key-file", str(key)], catch_exceptions=False)


def test_the_main_network_needs_its_name_and_begins_with_a_cap(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def right(*_: Any) -> bool:
        return True

    monkeypatch.setattr(connecting, "_is_right", right)
    key, before = key_file(config.parent), config.read_text()
    where = [str(config), "--network", "mainnet", "--address", ADDRESS, "--agent-key-file", str(key), "--yes"]
    for typed in ("", "y\n", "testnet\n"):
        result = CliRunner().invoke(connect, where, input=typed)
        assert "nothing was written" in result.output or result.exit_code == 1
        assert config.read_text() == before
    result = CliRunner().invoke(connect, where, input="mainnet\n")
    assert "connected" in result.output, result.output
    account = load(config).account
    assert (account.exposure_cap_usd, account.real_money, account.has_entries) == (100, "mainnet", True)
    assert account.effect.endswith("trades it, to at most 100 USD of exposure")
    config.write_text(config.read_text().replace("exposure_cap_usd: 100", "exposure_cap_usd: 250"))
    assert "connected" in CliRunner().invoke(connect, where, input="mainnet\n").output
    assert load(config).account.exposure_cap_usd == 250, "an edit stays"


def test_the_block_replaces_the_section_alone() -> None:
    block = "account:\n  new: 1\n" + REAL_MONEY
    word = "account:\n  new: 1\n  real_money: mainnet\n"
    for text, after in (
        ("a: 1\n", block + "\na: 1\n"),
        ("account: {x: 1}\nb: 2\n", block + "b: 2\n"),
        ("a: 1\naccount:\n  # note\n  x: 1\n\n  y: 2\n\n# Next.\nb: 2\n", f"a: 1\n{block}\n# Next.\nb: 2\n"),
        ("account:\n  x: 1\n", block),
        ("account: {exposure_cap_usd: 7, x: 1}\n", word + "  exposure_cap_usd: 7\n"),
        # A cap of play money does not rise with the network; one of the main network is an edit.
        ("account: {exposure_cap_usd: 5000}\n", word + "  exposure_cap_usd: 100\n"),
        ("account:\n  real_money: mainnet\n  exposure_cap_usd: 5000\n", word + "  exposure_cap_usd: 5000\n"),
    ):
        assert with_block(text, block) == after


@pytest.mark.parametrize(
    ("network", "given", "has_word", "cap"),
    [
        ("testnet", None, False, None),
        ("testnet", 7, False, 7),
        ("mainnet", None, False, None),
        ("mainnet", None, True, None),
        ("mainnet", 7, False, None),
        ("mainnet", 7, True, 7),
    ],
)
def test_the_main_network_has_a_cap_only_with_its_word(
    network: str, given: int | None, has_word: bool, cap: int | None
) -> None:
    assert FollowedAccount("hyperliquid", network, ADDRESS, None, given, is_real_money=has_word).cap == cap


def database(config: Path, network: str, address: str = ADDRESS, signer: str = "0x" + "9" * 40) -> None:
    """The database of a service whose agent has just been asked for a close that nobody has decided."""
    db = load(config).state_dir / "sandbox.db"
    db.parent.mkdir(parents=True, exist_ok=True)

    async def write() -> None:
        service = build(HostOptions(db=db, markets=("BTC",), hold_prices=True))
        machine = service.machine
        machine.log.start()
        name, now_ms = "acc_00000001", SystemClock().now_ms()
        held = ExchangePosition("BTC", E8 // 100, 100_000 * E8, 5, False, 0, None)
        machine.run(c.AdoptExchangeAccount(name, address, None, "hyperliquid", network, now_ms, 1_000 * E8, (held,)))
        machine.run(c.SeeAgent(name, signer, 0))
        machine.run(c.SeeLink(name, "in_step"))
        machine.run(c.Kill(name, flatten=True))
        await machine.settle()
        machine.log.close()

    asyncio.run(write())


@FUNDED
def test_another_agent_waits_until_no_action_of_the_old_one_can_act(
    hyperliquid: LocalExchange, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(hyperliquid)
    key = key_file(config.parent)
    database(config, hyperliquid.base_url.rpartition(":")[2])
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    result = run(hyperliquid, config, key)
    assert "connected" in result.output, (result.output, result.exception)
    assert len(waits) == 1 and 1 < waits[0] <= 17
    assert f"1 actions of 0x{'9' * 40} are undecided" in result.output


@FUNDED
def test_a_database_of_another_account_is_refused(hyperliquid: LocalExchange, config: Path) -> None:
    approve(hyperliquid)
    key, before = key_file(config.parent), config.read_text()
    database(config, "testnet", "0x" + "7" * 40, AGENT)
    result = run(hyperliquid, config, key)
    assert isinstance(result.exception, ConfigError) and "set another state_dir" in str(result.exception)
    assert config.read_text() == before
