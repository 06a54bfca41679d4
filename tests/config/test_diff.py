"""What two configs differ in: the places that matter, by the names of strategies, and never a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.config import Settings, load
from bot.config.diff import diff

BASE = """\
account: {base_url: "https://example.com", api_key: "${env:KEY}"}
dead_man: {heartbeat_seconds: 300, on_miss: flatten}
guardians: [{type: account_drawdown, max_loss_pct_from_day_start: 5, action: flatten}]
state_dir: state
strategies:
  - {name: one, use: "trend:Trend", markets: [BTC], budget_usd: 500, params: {lookback: 20, usd: 100.0}}
  - {name: two, use: "trend:Trend", markets: [ETH], budget_usd: 500}
"""


def settings(tmp_path: Path, text: str, key: str = "bbk_test_one", **environ: str) -> Settings:
    path = tmp_path / "bot.yaml"
    path.write_text(text)
    return load(path, {"KEY": key, **environ})


def lines(tmp_path: Path, text: str, **more: str) -> list[str]:
    return [str(one) for one in diff(settings(tmp_path, BASE), settings(tmp_path, text, **more))]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", []),
        ("heartbeat_seconds: 300, ", "", []),
        ("budget_usd: 500, p", "budget_usd: 5e2, p", []),
        ("lookback: 20", "lookback: 30", ["~ strategies.one.params.lookback: 20 -> 30"]),
        ("lookback: 20, ", "", ["- strategies.one.params.lookback: 20"]),
        ("on_miss: flatten", "on_miss: cancel_orders", ["~ dead_man.on_miss: flatten -> cancel_orders"]),
        ("[BTC]", "[BTC, SOL]", ['~ strategies.one.markets: ["BTC"] -> ["BTC", "SOL"]']),
        ("action: flatten}", "action: block_opens}", ["~ guardians[0].action: flatten -> block_opens"]),
        ("usd: 100.0", "flag: true, usd: 100.0", ["+ strategies.one.params.flag: true"]),
    ],
)
def test_a_change_is_told_by_its_place(tmp_path: Path, old: str, new: str, said: list[str]) -> None:
    assert lines(tmp_path, BASE.replace(old, new, 1) if old else BASE) == said


def test_strategies_go_by_their_names_and_not_by_their_places(tmp_path: Path) -> None:
    *head, one, two = BASE.splitlines()
    swapped = "\n".join([*head, two, one])
    assert lines(tmp_path, swapped) == []
    found = lines(tmp_path, "\n".join([*head, two]))
    assert [line[:16] for line in found] == ["- strategies.one"]
    found = lines(tmp_path, BASE.replace("name: two", "name: three"))
    assert [line[:18] for line in found] == ["- strategies.two: ", "+ strategies.three"]


def test_a_secret_that_changed_is_seen_and_not_shown(tmp_path: Path) -> None:
    assert lines(tmp_path, BASE, key="bbk_test_two") == ["~ account.api_key: [hidden] -> [hidden]"]


def test_what_came_by_reference_or_looks_like_a_secret_is_hidden(tmp_path: Path) -> None:
    text = BASE.replace("lookback: 20", 'lookback: "${env:LOOK}", note: "bbk_test_abc", webhook_token: "${env:LOOK}"')
    found = lines(tmp_path, text, LOOK="hunter2")
    assert found[0] == "~ strategies.one.params.lookback: 20 -> [hidden]"
    assert not any("hunter2" in line or "test_abc" in line for line in found)
