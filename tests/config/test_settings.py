"""A good config becomes exactly what it says, with the defaults of the design."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bot.config import Settings, heartbeat_seconds_min, json_schema, load, read, redacted
from bot.money import format_decimal

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))

WHOLE = """\
name: whole
account: {base_url: "http://127.0.0.1:8700/", api_key: "${env:KEY}"}
dead_man: {heartbeat_seconds: 600, on_miss: block_opens}
guardians:
  - {type: account_drawdown, max_loss_pct_from_day_start: 5.25, action: flatten}
  - {type: schedule, cron: "55 20 * * 5", action: flatten}
  - type: schedule
    cron: "0 9 * * 1"
    order_template: {market: BTC, side: long, usdAmount: 50}
safety: {require_protection: false, on_exit: flatten, foreign_positions: adopt}
strategies:
  - {name: one, use: "trend:Trend", markets: [BTC, perp:eth], interval: 1h, budget_usd: 500.10, max_leverage: 3, \
params: {n: 20, x: 0.1, on: true}}
  - {name: two, use: pkg.module:Class, markets: ["event:Some-Slug"], budget_usd: 1e3}
orders: {path: direct}
reconcile_seconds: 60
state_dir: state
strategies_dir: ~/plugins
log: {level: debug, format: json}
"""


def written(tmp_path: Path, text: str, name: str = "whole.yaml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


@pytest.fixture
def whole(tmp_path: Path) -> Settings:
    return load(written(tmp_path, WHOLE), {"KEY": "k"})


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_config_is_good(file: Path) -> None:
    settings = load(file, {"BOT_API_KEY": "k"})
    assert settings.strategies
    json.dumps(redacted(settings))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_config_names_strategies_that_exist(file: Path) -> None:
    settings = load(file, {"BOT_API_KEY": "k"})
    for strategy in settings.strategies:
        module, name = strategy.use.split(":")
        assert f"class {name}(" in (settings.strategies_dir / f"{module}.py").read_text()


def test_there_are_configs_to_start_from() -> None:
    assert [file.name for file in CONFIGS] == ["agents.yaml", "demo.yaml", "live.example.yaml", "paper.yaml"]


def test_every_key_is_read(whole: Settings) -> None:
    assert (whole.name, whole.account.base_url, whole.account.embedded) == ("whole", "http://127.0.0.1:8700", False)
    assert whole.dead_man is not None
    assert (whole.dead_man.heartbeat_seconds, whole.dead_man.on_miss) == (600, "block_opens")
    assert (whole.safety.require_protection, whole.safety.on_exit, whole.safety.foreign_positions) == (
        False,
        "flatten",
        "adopt",
    )
    one, two = whole.strategies
    assert (one.markets, one.interval, one.budget_usd, one.max_leverage) == (("BTC", "ETH"), "1h", Decimal("500.10"), 3)
    assert (two.markets, two.interval, two.budget_usd, two.max_leverage) == (
        ("event:Some-Slug",),
        "1m",
        Decimal(1000),
        1,
    )
    assert (whole.orders.path, whole.reconcile_seconds, whole.log.level, whole.log.pretty) == (
        "direct",
        60,
        "debug",
        False,
    )


def test_an_amount_is_exactly_what_is_written(whole: Settings) -> None:
    assert str(whole.strategies[0].budget_usd) == "500.10"
    assert whole.guardians[0].max_loss_pct_from_day_start == Decimal("5.25")


def test_a_strategys_own_numbers_are_plain_numbers(whole: Settings) -> None:
    assert whole.strategies[0].params == {"n": 20, "x": 0.1, "on": True}
    assert [type(value) for value in whole.strategies[0].params.values()] == [int, float, bool]


def test_a_guardian_is_what_the_service_is_asked_for(whole: Settings) -> None:
    drawdown, flatten, order = (guardian.request() for guardian in whole.guardians)
    assert drawdown.given() == {"maxLossPctFromDayStart": Decimal("5.25"), "action": "flatten"}
    assert flatten.given() == {"cron": "55 20 * * 5", "action": "flatten"}
    assert order.given()["orderTemplate"] == {"market": "BTC", "side": "long", "usdAmount": 50}


def test_paths_are_relative_to_the_config(whole: Settings, tmp_path: Path) -> None:
    assert whole.state_dir == tmp_path / "state"
    assert whole.strategies_dir == Path.home() / "plugins"


def test_little_needs_to_be_said(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "account: {base_url: embedded}\nstrategies: [{name: a, use: b, markets: [BTC], budget_usd: 1}]\n",
        "My Bot (2).yaml",
    )
    settings = load(file, {})
    assert settings.name == "my-bot-2"
    assert settings.account.api_key is None
    assert settings.dead_man is not None
    assert (settings.dead_man.heartbeat_seconds, settings.dead_man.on_miss) == (300, "flatten")
    assert (settings.safety.require_protection, settings.safety.on_exit, settings.safety.foreign_positions) == (
        True,
        "leave",
        "ignore",
    )
    assert (settings.orders.path, settings.reconcile_seconds, settings.log.pretty) == ("plan", 300, None)
    assert (settings.embedded.port, settings.embedded.speed, settings.embedded.markets, settings.embedded.data) == (
        0,
        1.0,
        (),
        (),
    )
    assert settings.state_dir == Path.home() / ".local" / "state" / "bot" / "my-bot-2"


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/bot"}, "/var/lib/bot"),
        ({"STATE_DIRECTORY": "/var/lib/bot:/var/lib/other"}, "/var/lib/bot"),
        ({"XDG_STATE_HOME": "/s"}, "/s/bot/paper"),
    ],
)
def test_the_state_stands_where_the_system_wants_it(tmp_path: Path, environ: dict[str, str], folder: str) -> None:
    file = written(
        tmp_path,
        "account: {base_url: embedded}\nstrategies: [{name: a, use: b, markets: [BTC], budget_usd: 1}]\n",
        "paper.yaml",
    )
    assert load(file, environ).state_dir == Path(folder)


def test_strategies_are_looked_for_beside_the_config_first(tmp_path: Path) -> None:
    text = "account: {base_url: embedded}\nstrategies: [{name: a, use: b, markets: [BTC], budget_usd: 1}]\n"
    (tmp_path / "configs").mkdir()
    file = written(tmp_path / "configs", text)
    assert load(file, {}).strategies_dir == tmp_path / "strategies"
    (tmp_path / "configs" / "strategies").mkdir()
    assert load(file, {}).strategies_dir == tmp_path / "configs" / "strategies"
    (tmp_path / "configs" / "strategies").rmdir()
    # As one into a folder that may not be entered.
    (tmp_path / "configs" / "strategies").symlink_to("x" * 300)
    assert load(file, {}).strategies_dir == tmp_path / "configs" / "strategies"


@pytest.mark.parametrize("word", ["off", "null", "false", "~", '"off"'])
def test_the_dead_man_can_be_switched_off(tmp_path: Path, word: str) -> None:
    assert (
        load(
            written(tmp_path, WHOLE.replace("{heartbeat_seconds: 600, on_miss: block_opens}", word)), {"KEY": "k"}
        ).dead_man
        is None
    )


@pytest.mark.parametrize(
    ("clock", "speed"), [("real", 1.0), ("manual", 0.0), ("60x", 60.0), ("1.5x", 1.5), ("3600x", 3600.0)]
)
def test_a_clock_has_a_speed(tmp_path: Path, clock: str, speed: float) -> None:
    text = (
        "account: {base_url: embedded}\ndead_man: {heartbeat_seconds: 86400}\n"
        f"embedded: {{clock: {clock}, port: 8700, seed: 3, markets: [btc], data: [{{file: c.csv, market: ETH}}]}}\n"
        "strategies: [{name: a, use: b, markets: [BTC], budget_usd: 1}]\n"
    )
    (tmp_path / "c.csv").write_text("ts,open,high,low,close,volume\n")
    embedded = load(written(tmp_path, text), {}).embedded
    assert (embedded.speed, embedded.port, embedded.seed, embedded.markets) == (speed, 8700, 3, ("BTC",))
    assert (embedded.data[0].file, embedded.data[0].market) == (tmp_path / "c.csv", "ETH")


@pytest.mark.parametrize(
    ("speed", "least"), [(0.0, 60), (1.0, 60), (3.0, 60), (3.1, 62), (60.0, 1200), (600.0, 12_000)]
)
def test_a_beat_has_twenty_seconds_of_real_time(speed: float, least: int) -> None:
    assert heartbeat_seconds_min(speed) == least


@pytest.mark.parametrize(
    "url",
    [
        "https://c.example",
        "https://c.example:8443/api",
        "http://localhost:8700",
        "http://[::1]:8700",
        "http://127.9.9.9",
    ],
)
def test_https_anywhere_and_http_on_this_machine_are_addresses(tmp_path: Path, url: str) -> None:
    assert load(written(tmp_path, WHOLE.replace("http://127.0.0.1:8700/", url)), {"KEY": "k"}).account.base_url == url


def test_a_reference_in_a_number_is_a_number(tmp_path: Path) -> None:
    text = WHOLE.replace("reconcile_seconds: 60", 'reconcile_seconds: "${env:SECONDS}"').replace(
        "budget_usd: 1e3", "budget_usd: ${env:USD}", 1
    )
    text = text.replace(
        '{name: two, use: pkg.module:Class, markets: ["event:Some-Slug"], budget_usd: ${env:USD}}',
        "name: two\n    use: b\n    markets: [SOL]\n    budget_usd: ${env:USD}",
    )
    settings = load(written(tmp_path, text), {"KEY": "k", "SECONDS": "120", "USD": "0.10"})
    assert settings.reconcile_seconds == 120
    assert str(settings.strategies[1].budget_usd) == "0.10"


def test_unicode_stands_where_text_may(tmp_path: Path) -> None:
    text = WHOLE.replace("params: {n: 20", 'params: {"\u7b56\u7565": "\u20bf \U0001f680", n: 20')
    (tmp_path / "\u00fcber.yaml").write_text("\ufeff" + text, encoding="utf-8")
    settings = load(tmp_path / "\u00fcber.yaml", {"KEY": "k"})
    assert settings.strategies[0].params["\u7b56\u7565"] == "\u20bf \U0001f680"


def test_settings_do_not_change(whole: Settings) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        whole.reconcile_seconds = 1  # type: ignore[misc]


def test_whoever_reads_a_param_can_name_its_place(tmp_path: Path) -> None:
    source = read(written(tmp_path, WHOLE), {"KEY": "k"})
    problem = source.problem(("strategies", 0, "params", "x"), "must be at least 1")
    assert (problem.line, problem.key) == (12, "strategies[0].params.x")
    assert problem.shown.splitlines()[0][4:][problem.column - 1 :].startswith("0.1,")
    assert (
        source.problem(("strategies", 0, "params", "n"), "unknown key", at_key=True).column
        == problem.column - len("n: 20, x: ") + 0
    )
    assert source.problem(("strategies", 1, "params", "none"), "is required").line == 13


def test_the_schema_for_editors_knows_every_section() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Settings.model_fields)
    assert sorted(schema["required"]) == ["account", "strategies"]
    assert schema["additionalProperties"] is False
    assert "pattern" in json.dumps(schema["$defs"]["AccountSettings"]["properties"]["api_key"])
    json.dumps(schema)


@given(st.decimals(min_value="0.00000001", max_value=1_000_000, places=8))
def test_every_budget_is_read_to_its_last_digit(tmp_path_factory: pytest.TempPathFactory, usd: Decimal) -> None:
    text = (
        "account: {base_url: embedded}\nstrategies: [{name: a, use: b, markets: [BTC], budget_usd:"
        f" {format_decimal(usd)}}}]\n"
    )
    file = tmp_path_factory.getbasetemp() / "budget.yaml"
    file.write_text(text)
    assert load(file, {}).strategies[0].budget_usd == usd
