"""An account at an exchange is followed by the embedded service; each key that is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bot.cli.run.embedded_service import Embedded, service_prices
from bot.config import Settings, load
from bot.config.settings import AccountSettings
from bot.errors import ConfigError

ADDRESS = "0x" + "A1" * 20
GIVEN: dict[str, Any] = {"exchange": "hyperliquid", "network": "testnet", "address": ADDRESS}


def test_the_embedded_service_follows_it_at_the_prices_of_its_exchange(tmp_path: Any) -> None:
    account = AccountSettings.model_validate(GIVEN)
    assert (account.embedded, account.followed) == (True, f"hyperliquid:testnet:{ADDRESS.lower()}")
    strategy = {"name": "a", "use": "trend:Trend", "markets": ["BTC"], "interval": "1h", "budget_usd": 100}
    settings = Settings.model_validate({"account": GIVEN, "dead_man": "off", "strategies": [strategy]})
    assert service_prices(settings) == ("hyperliquid:testnet",)
    service = Embedded(tmp_path, seed=1, prices=service_prices(settings), followed=settings.account.followed)
    arguments = service._arguments()
    # The service refuses options that would set the time or the prices of an exchange.
    assert not {"--seed", "--data", "--start"} & set(arguments)
    assert arguments[arguments.index("--exchange-account") + 1] == account.followed
    assert service._wanted_options() != Embedded(tmp_path, prices=service_prices(settings))._wanted_options()


def text_of(agent_key: str) -> str:
    """A config with this text as the key of the agent."""
    account = f"{{exchange: hyperliquid, network: testnet, address: '{ADDRESS}', agent_key: {agent_key}}}"
    strategy = "{name: a, use: 'trend:Trend', markets: [BTC], interval: 1h, budget_usd: 100}"
    return f"account: {account}\nstrategies: [{strategy}]\n"


def test_the_path_of_the_agents_key_is_handed_on_and_the_key_is_not_read(tmp_path: Path) -> None:
    key = tmp_path / "secrets" / "agent"
    key.parent.mkdir()
    key.write_text("ab" * 32)
    key.chmod(0o600)
    config = tmp_path / "bot.yaml"
    config.write_text(text_of("'${file:secrets/agent}'"))
    # Without the right to read it, its status can still be read.
    key.chmod(0o000)
    settings = load(config)
    assert settings.account.agent_key == key and settings.dead_man is not None
    assert "ab" * 32 not in repr(settings)
    service = Embedded(tmp_path, followed=settings.account.followed, agent_key_file=settings.account.agent_key)
    arguments = service._arguments()
    assert arguments[arguments.index("--agent-key-file") + 1] == str(key)
    assert service._wanted_options() != Embedded(tmp_path, followed=settings.account.followed)._wanted_options()
    key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"secrets/agent is readable by other users \(mode 0640\): chmod 600 it"):
        load(config)
    key.unlink()
    with pytest.raises(ConfigError, match="the file secrets/agent cannot be read: No such file or directory"):
        load(config)
    for value, text in (
        ("'${env:AGENT}'", r"must be \$\{file:PATH\} \(readable by you alone\): the key is read by another process"),
        ("'0x1234'", r"a secret must not be in the file; write \$\{file:PATH\}"),
    ):
        config.write_text(text_of(value))
        with pytest.raises(ConfigError, match=text):
            load(config)


def test_another_account_has_none() -> None:
    assert AccountSettings(base_url="embedded").followed is None


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"exchange": "binance"}, "exchange", "Input should be 'hyperliquid'"),
        ({"network": None}, "network", "is required with `exchange`"),
        ({"address": None}, "address", "is required with `exchange`"),
        ({"network": "moon"}, "network", "match pattern"),
        ({"address": "0x12"}, "address", "match pattern"),
        ({"exchange": None, "base_url": "embedded"}, "network", "belongs to `exchange`; name one or remove this key"),
        ({"base_url": "https://example.com"}, "exchange", "needs `base_url: embedded`"),
        ({"exchange": None}, "base_url", "Field required"),
        ({"agent_key": "0x12"}, "agent_key", "a secret must not be in the file; write ${file:PATH}"),
        (
            {"exchange": None, "network": None, "address": None, "base_url": "embedded", "agent_key": Path("key")},
            "agent_key",
            "belongs to `exchange`",
        ),
    ],
)
def test_a_wrong_key_is_named(changes: dict[str, Any], where: str, message: str) -> None:
    given = {name: value for name, value in (GIVEN | changes).items() if value is not None}
    with pytest.raises(ValidationError) as raised:
        AccountSettings.model_validate(given)
    assert [(error["loc"][-1], message in error["msg"]) for error in raised.value.errors()] == [(where, True)]


@pytest.mark.parametrize("embedded", [{"clock": "60x"}, {"clock": "manual"}])
def test_its_clock_is_real(embedded: dict[str, Any]) -> None:
    strategy = {"name": "a", "use": "trend:Trend", "markets": ["BTC"], "interval": "1h", "budget_usd": 100}
    with pytest.raises(ValidationError, match=r"needs embedded\.clock real and no embedded\.data"):
        Settings.model_validate({"account": GIVEN, "dead_man": "off", "embedded": embedded, "strategies": [strategy]})


@pytest.mark.parametrize(
    ("more", "section"),
    [
        ({}, "dead_man"),
        (
            {"dead_man": "off", "guardians": [{"type": "schedule", "cron": "0 0 * * *", "action": "flatten"}]},
            "guardians",
        ),
    ],
)
def test_a_guardian_cannot_act_on_it(more: dict[str, Any], section: str) -> None:
    strategy = {"name": "a", "use": "trend:Trend", "markets": ["BTC"], "interval": "1h", "budget_usd": 100}
    with pytest.raises(ValidationError, match="cannot act on an account that is only followed") as raised:
        Settings.model_validate({"account": GIVEN, "strategies": [strategy], **more})
    assert [error["loc"][-1] for error in raised.value.errors()] == [section]


def test_with_an_agent_only_the_dead_man_can_act() -> None:
    strategy = {"name": "a", "use": "trend:Trend", "markets": ["BTC"], "interval": "1h", "budget_usd": 100}
    account = GIVEN | {"agent_key": Path("key")}
    assert Settings.model_validate({"account": account, "strategies": [strategy]}).dead_man is not None
    guardians = [{"type": "schedule", "cron": "0 0 * * *", "action": "flatten"}]
    with pytest.raises(ValidationError, match="dead_man alone can: remove this section"):
        Settings.model_validate({"account": account, "guardians": guardians, "strategies": [strategy]})
