"""`bot check` calls each strategy on generated bars: what fails there is named with its file and line, what works passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bot.checks import strategy_check
from bot.cli.app import call

STRATEGY = """\
from bot import Bracket, Close, Open, Strategy, sma


class Mine(Strategy):
    fast = sma(5)

    def on_bar(self, view, bar):
        print("a line of its own")
        if view.position(bar.market):
            yield Close(bar.market)
        elif self.fast[bar.market] is not None:
            yield Open(bar.market, "long", usd=self.size(view), bracket=Bracket(stop_pct=2))

    def size(self, view):
        return 200
"""


def check(folder: Path, old: str, new: str) -> int:
    (folder / "strategies").mkdir()
    text = STRATEGY.replace(old, new)
    assert (text == STRATEGY) == (old == new)
    (folder / "strategies" / "mine.py").write_text(text)
    (folder / "bot.yaml").write_text(
        "account: {base_url: embedded}\n"
        "strategies:\n"
        '  - {name: mine, use: "mine:Mine", markets: [BTC, ETH], interval: 1m, budget_usd: 500}\n'
        "state_dir: state\n"
    )
    return call(["check", "--json", str(folder / "bot.yaml")])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return 200", "return 1 / 0", "on_bar at bar 9 fails on generated bars: ZeroDivisionError: division by zero (mine.py:15 in size, from mine.py:12 in on_bar)"),
        ("print(", "undefined(", "on_bar at bar 1 fails on generated bars: NameError: name 'undefined' is not defined (mine.py:8)"),
        ("yield Close(bar.market)", "yield Close(bar.markt)", "AttributeError: 'Bar' object has no attribute 'markt' (mine.py:10)"),
        ("usd=self.size(view)", "usd=self.fast", "fails on generated bars"),
        ("yield Close(bar.market)", "yield bar", "a hook must return Open, Close or Cancel"),
        ("print(", "view.state['x'] = {1}; print(", "view.state after on_bar fails on generated bars: TypeError"),
        ("    def on_bar", "    def on_start(self, view):\n        self.no\n\n    def on_bar", "on_start fails on generated bars: AttributeError"),
        ("print(", "exit(", "on_bar at bar 1 fails on generated bars: SystemExit"),
    ],
)  # fmt: skip
def test_a_strategy_that_fails_at_its_bars_fails_the_check_with_file_and_line(
    old: str, new: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, old, new) == 4
    told = json.loads(capsys.readouterr().out)
    (problem,) = told["problems"]
    assert says in problem["message"]
    assert (problem["line"], problem["key"]) == (3, "strategies[0].use")


def test_a_strategy_that_hangs_fails_the_check_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_check, "HANGS_S", 0.5)
    assert check(tmp_path, "return 200", "\n        import threading; threading.Event().wait(60)") == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "on_bar at bar 9 does not return within 0.5 s on generated bars (mine.py:16)" in problem["message"]


def test_a_strategy_that_works_passes_and_its_own_lines_do_not_mix_with_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, "", "") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is True
    assert "a line of its own" in captured.err


def test_debug_shows_the_whole_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOT_DEBUG", "1")
    assert check(tmp_path, "return 200", "return 1 / 0") == 4
    assert "Traceback (most recent call last)" in capsys.readouterr().err
