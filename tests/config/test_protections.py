"""The section `protections`: what may stand there, and which sentence names what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.clock import DAY_MS, HOUR_MS
from bot.config import with_params
from bot.config.protections import SHORT
from bot.config.source import json_schema, read_text
from bot.errors import ConfigError
from bot.runtime.strategy_host.strategy_limits import limits_of, protection_rules

BASE = """\
account: {base_url: embedded}
protections: {%s}
strategies:
  - {name: one, use: "trend:Trend", markets: [BTC, perp:eth], interval: 1h, budget_usd: 100, protections: {%s}}
"""
WINDOW = "within: 24h, rest: 12h"


def problem(own: str, of_account: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(BASE % (of_account, own), Path("bot.yaml"))
    return "\n".join(f"{one.key}: {one.message}" for one in caught.value.problems)


LENGTHS = "write bars of the strategy, such as `4 bars`, or a duration such as `30m`, `2h`, `3d` or `1w`"
OWN = {
    "cooldown: 4": f"cooldown.length: must be a length of time; {LENGTHS}",
    "cooldown: soon": f"cooldown.length: must be a length of time; {LENGTHS}",
    "cooldown: 0 bars": f"cooldown.length: must be at least 1 bar; {LENGTHS}",
    "cooldown: -2h": f"cooldown.length: must be at least 1 h; {LENGTHS}",
    "cooldown: 30s": "cooldown.length: unknown unit s; there are bars, m, h, d, w. The shortest duration is 1m",
    "cooldown: 91d": "cooldown.length: must be at most 90d",
    "cooldown: 2161 bars": "cooldown.length: must be at most 2160 bars, which are 90d",
    "cooldown: {only_losses: true}": "cooldown.length: is required",
    "cooldown: {length: 2h, scope: planet}": "cooldown.scope: must be 'market', 'strategy' or 'account'",
    "cooldown: {length: 2h, scope: account}": (
        "cooldown.scope: account is no scope here; write this protection in the `protections` of the top level"
    ),
    "cooldown: {length: 2h, markets: [SOL]}": (
        "cooldown.markets[0]: SOL is not traded here; remove it, or choose from BTC, ETH"
    ),
    "stop_guard: 3": (
        "stop_guard: must be a mapping with at least `within: 24h` (the window) and `rest: 12h` (how long to wait)"
    ),
    "stop_guard: {stops: 3, rest: 2h}": (
        "stop_guard.within: is required: write the window in which trades count, such as `within: 24h`"
    ),
    "stop_guard: {stops: 3, within: 2h}": (
        "stop_guard.rest: is required: write how long entries are refused, such as `rest: 12h`"
    ),
    f"stop_guard: {{stops: 0, {WINDOW}}}": "stop_guard.stops: must be 1..1000",
    f"stop_guard: {{stops: -1, {WINDOW}}}": "stop_guard.stops: must be 1..1000",
    f"stop_guard: {{{WINDOW}}}": "stop_guard.stops: is required",
    "max_entries: 0": "max_entries.entries: must be 1..1000",
    "max_entries: many": "max_entries.entries: must be an integer",
    "max_open_positions: -1": "max_open_positions.positions: must be 1..1000",
    "low_profit_market: {rest: 1d}": (
        "low_profit_market.within: is required: write the window in which trades count, such as `within: 24h`"
    ),
    f"max_drawdown: {{usd: 0, {WINDOW}}}": "max_drawdown.usd: must be > 0, <= 1000000000",
    f"max_drawdown: {{usd: -5, {WINDOW}}}": "max_drawdown.usd: must be > 0, <= 1000000000",
    f"max_drawdown: {{{WINDOW}}}": "max_drawdown.usd: is required",
    "cooldwn: 2h": "cooldwn: unknown key; did you mean cooldown?",
}
TOP = {
    "cooldown: 4 bars": (
        "cooldown.length: bars are those of a strategy; at the top level write a duration such as `4h`"
    ),
    "cooldown: {length: 4h, scope: strategy}": (
        "cooldown.scope: strategy is no scope here; write this protection in the `protections` of a strategy"
    ),
    "max_entries: {entries: 3, markets: [DOGE]}": (
        "max_entries.markets[0]: DOGE is not traded here; remove it, or choose from BTC, ETH"
    ),
}


@pytest.mark.parametrize("text", OWN)
def test_a_protection_that_cannot_be_followed_is_named_with_its_bound_and_the_way_out(text: str) -> None:
    assert problem(text) == f"strategies[0].protections.{OWN[text]}"


@pytest.mark.parametrize("text", TOP)
def test_a_protection_of_the_account_that_cannot_be_followed_is_named(text: str) -> None:
    assert problem("", text) == f"protections.{TOP[text]}"


def test_the_remedies_that_the_problems_name_are_taken() -> None:
    own = (
        "cooldown: {length: 4 bars, only_losses: true, scope: strategy}, max_entries: 5, max_open_positions: 1,"
        f" stop_guard: {{stops: 3, markets: [ETH], {WINDOW}}}, low_profit_market: {{within: 1w, rest: 1 bar}},"
        f" max_drawdown: {{usd: 10.5, {WINDOW}, trades: 4}}"
    )
    settings = read_text(
        BASE % ("cooldown: 30m, max_entries: {entries: 9, scope: market}", own), Path("b.yaml")
    ).settings
    rules = {rule.name: rule for rule in limits_of(settings, settings.strategies[0]).protections}
    assert [*rules] == [*type(settings.protections).model_fields]
    assert {rule.strategy for rule in rules.values()} == {"one"}
    cooldown = rules["cooldown"]
    assert (cooldown.rest, cooldown.scope, cooldown.only_losses) == ((4 * HOUR_MS, "4 bars", HOUR_MS), "strategy", True)
    guard = rules["stop_guard"]
    assert (guard.count, guard.markets, guard.scope) == (3, {"ETH"}, "strategy")
    assert guard.within is not None
    assert guard.within.ms == DAY_MS
    assert (rules["max_drawdown"].usd, rules["max_drawdown"].count) == (105 * 10**15, 4)
    assert (rules["low_profit_market"].scope, rules["low_profit_market"].usd) == ("market", 0)
    top = protection_rules(settings.protections)
    assert [(rule.name, rule.strategy, rule.scope, rule.count) for rule in top] == [
        ("cooldown", None, "market", 1),
        ("max_entries", None, "market", 9),
    ]


@pytest.mark.parametrize(
    ("own", "values", "changed"),
    [
        ("", {"cooldown": "4 bars"}, {"cooldown": ("length", "4 bars")}),
        ("cooldown: 2h", {"cooldown": "4 bars"}, {"cooldown": ("length", "4 bars")}),
        ("cooldown: {length: 2h, only_losses: true}", {"cooldown": "3h"}, {"cooldown": ("only_losses", True)}),
        ("max_entries: 3", {"max_entries.scope": "market"}, {"max_entries": ("entries", 3)}),
        (f"stop_guard: {{stops: 3, {WINDOW}}}", {"stop_guard.stops": "5"}, {"stop_guard": ("within", "24h")}),
    ],
)
def test_a_value_of_the_command_line_changes_one_key_and_keeps_the_others(
    own: str, values: dict[str, str], changed: dict[str, tuple[str, object]]
) -> None:
    text = with_params(BASE % ("", own), {("one", f"protections.{key}"): value for key, value in values.items()})
    section = read_text(text, Path("bot.yaml")).settings.strategies[0].protections
    for name, (key, value) in changed.items():
        assert getattr(getattr(section, name), key) == value
    again = read_text(BASE % ("", own), Path("bot.yaml")).settings.strategies[0].protections
    read = {key: int(value) if value.isdigit() else value for key, value in values.items()}
    assert again.changed(read) == section, "a sweep changes it alike"


def test_an_editor_takes_the_short_forms_too() -> None:
    keys = json_schema()["$defs"]["ProtectionSettings"]["properties"]
    short = {name: keys[name]["anyOf"][0]["type"] for name in SHORT}
    assert short == {"cooldown": "string", "max_entries": "integer", "max_open_positions": "integer"}
