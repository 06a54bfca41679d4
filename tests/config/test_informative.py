"""Informative markets in a config: what is refused, where, and that the way out works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bot.cli.app import call

FILE = """\
from bot import Strategy


class Idle(Strategy):
    def on_bar(self, view, bar):
        view.closes("ETH", 3)
        view.closes("ETH", 3, interval="1h")
        return ()
"""
SIGNALS = """\
from bot import Strategy
from bot.strategy import Signals


class Idle(Strategy):
    def signals(self, bars):
        return Signals(long=bars.close > 0, usd=100, stop_pct=1)
"""


def check(folder: Path, strategies: Sequence[str], text: str = FILE) -> int:
    (folder / "strategies").mkdir(exist_ok=True)
    (folder / "strategies" / "idle.py").write_text(text)
    rows = "".join(f'  - {{use: "idle:Idle", budget_usd: 500, {strategy}}}\n' for strategy in strategies)
    (folder / "bot.yaml").write_text(f"account: {{base_url: embedded}}\nstate_dir: state\nstrategies:\n{rows}")
    return call(["check", str(folder / "bot.yaml")])


def test_a_strategy_may_read_markets_that_it_does_not_trade(tmp_path: Path) -> None:
    assert check(tmp_path, ["name: a, markets: [BTC], informative: [ETH, SOL], interval: 15m"]) == 0


@pytest.mark.parametrize(
    ("strategies", "says"),
    [
        (["name: a, markets: [BTC, ETH], informative: [ETH]"], "strategies[0].informative[0]: ETH is in markets"),
        (["name: a, markets: [BTC], informative: [ETH, perp:ETH]"], "strategies[0].informative[1]: "),
        (["name: a, markets: [BTC], informative: [ETH, NOPE]"], "strategies[0].informative[1]: "),
        (["name: a, markets: [BTC], informative: [SOL]"], "ETH is not one of this strategy's markets (BTC, SOL)"),
        (
            ["name: a, markets: [BTC], informative: [ETH]", "name: b, markets: [ETH], informative: [BTC]"],
            "strategies[0].informative[0]: ETH is traded by a strategy that reads a market of a",
        ),
        (
            [
                "name: a, markets: [BTC], informative: [ETH]",
                "name: b, markets: [ETH], informative: [SOL]",
                "name: c, markets: [SOL], informative: [BTC]",
            ],
            "give one of them another interval",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategies: Sequence[str], says: str
) -> None:
    assert check(tmp_path, strategies) == 4
    shown = " ".join("".join(capsys.readouterr()).split())
    assert says in shown, shown


def test_strategies_that_read_each_other_may_have_different_intervals(tmp_path: Path) -> None:
    strategies = [
        "name: a, markets: [BTC], informative: [ETH], interval: 15m",
        "name: b, markets: [ETH], informative: [BTC], interval: 1h",
    ]
    assert check(tmp_path, strategies) == 0


def test_signals_read_one_market(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, ["name: a, markets: [BTC], informative: [ETH]"], SIGNALS) == 4
    assert "write on_bar to read informative markets" in " ".join("".join(capsys.readouterr()).split())
