"""`bot check` calls each strategy on generated bars: what fails there is named with its file and line, what works
passes.
"""

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
        (
            "return 200",
            "return 1 / 0",
            (
                "on_bar at bar 9 fails on generated bars: ZeroDivisionError: division by zero (mine.py:15 in size, from"
                " mine.py:12 in on_bar)"
            ),
        ),
        (
            "print(",
            "undefined(",
            "on_bar at bar 1 fails on generated bars: NameError: name 'undefined' is not defined (mine.py:8)",
        ),
        (
            "yield Close(bar.market)",
            "yield Close(bar.markt)",
            "AttributeError: 'Bar' object has no attribute 'markt' (mine.py:10)",
        ),
        ("usd=self.size(view)", "usd=self.fast", "fails on generated bars"),
        ("yield Close(bar.market)", "yield bar", "a hook yields Open, Close or Cancel"),
        (
            "print(",
            "view.state['x'] = {1}; print(",
            "view.state after on_bar fails on generated bars: view.state must hold only",
        ),
        (
            "    def on_bar",
            "    def on_start(self, view):\n        self.no\n\n    def on_bar",
            "on_start fails on generated bars: AttributeError",
        ),
        (
            "    def size",
            "    def on_fill(self, view, fill):\n        self.no\n\n    def size",
            "on_fill fails on generated bars: AttributeError",
        ),
        (
            "    def size",
            "    def on_trigger(self, view, trigger):\n        self.no\n\n    def size",
            "on_trigger fails on generated bars: Attr",
        ),
        (
            "    def size",
            "    def on_guardian(self, view, note):\n        self.no\n\n    def size",
            "on_guardian fails on generated bars: Attr",
        ),
        (
            "    def size",
            "    timers = {'a': '0 0 1 * *'}\n    def on_timer(self, view, timer):\n        self.no\n\n    def size",
            "on_timer of a fails",
        ),
        (
            "    def size",
            "    def on_stop(self, view):\n        self.no\n\n    def size",
            "on_stop fails on generated bars: AttributeError",
        ),
        ("print(", "exit(", "on_bar at bar 1 fails on generated bars: SystemExit"),
    ],
)
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


REFUSED = {
    "no stop": (", bracket=Bracket(stop_pct=2)", "", "no_protection"),
    "more than the budget": ("return 200", "return 900", "over_budget"),
    "more leverage than is allowed": ("bracket=", "leverage=20, bracket=", "over_leverage"),
    "another market": ("yield Open(bar.market,", "yield Open('SOL',", "market_not_yours"),
    "another market beside its own": (
        'print("a line of its own")',
        "yield Open('SOL', 'long', usd=200, bracket=Bracket(stop_pct=2))",
        "market_not_yours",
    ),
    "a close of another market": ('print("a line of its own")', "yield Close('SOL')", "market_not_yours"),
    "a target of less than a dollar": (
        "bracket=Bracket(stop_pct=2)",
        "bracket=Bracket(stop_pct=2, targets=[(0.01, '1R'), (0.5, '2R')])",
        "below_min_notional",
    ),
}


@pytest.mark.parametrize(
    ("usd", "bracket", "message"),
    [
        (100, "None", "every entry in ETH is refused by the risk checks on generated bars: no_protection "),
        (
            5000,
            "Bracket(stop_pct=2)",
            "every entry in ETH is refused by the risk checks on generated bars: over_budget ",
        ),
        # Not hopeless: the position in BTC takes the budget, and may be closed.
        (400, "Bracket(stop_pct=2)", None),
    ],
)
def test_a_market_in_which_no_entry_can_pass_fails_the_check_beside_one_that_works(
    usd: int, bracket: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.py").write_text(f"""\
from bot import Bracket, Open, Strategy


class Two(Strategy):
    def on_bar(self, view, bar):
        if bar.market == "ETH":
            yield Open("ETH", "long", usd={usd}, bracket={bracket})
        elif not view.position("BTC"):
            yield Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=2))
""")
    (tmp_path / "bot.yaml").write_text(
        "account: {base_url: embedded}\nembedded: {markets: [BTC, ETH]}\nstate_dir: state\nstrategies_dir: .\n"
        "strategies: [{name: two, use: two, markets: [BTC, ETH], budget_usd: 500, max_leverage: 1}]\n"
    )
    assert call(["check", str(tmp_path / "bot.yaml"), "--json"]) == (0 if message is None else 4)
    answer = json.loads(capsys.readouterr().out)
    if message is None:
        assert "over_budget" in answer["notes"][0]
    else:
        assert message in answer["problems"][0]["message"]


@pytest.mark.parametrize("case", REFUSED)
def test_orders_that_the_risk_checks_refuse_fail_the_check_with_the_code_of_a_run(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, code = REFUSED[case]
    assert check(tmp_path, old, new) == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert f"on generated bars: {code} " in problem["message"]
    assert problem["key"] == "strategies[0].use"


def test_the_orders_of_a_timer_are_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_timer = (
        "    timers = {'a': '0 9 * * 1'}\n    def on_timer(self, view, timer):\n        yield Open('BTC', 'long',"
        " usd=200)\n\n    def size"
    )
    old = STRATEGY[STRATEGY.index("        if view.position") : STRATEGY.index("    def size")]
    assert check(tmp_path, old + "    def size", f"        return ()\n\n{by_timer}") == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "no_protection 41, first on_timer of a: an entry needs a stop" in problem["message"]


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ("return 200", "return 200 if view.state.setdefault('n', 0) else view.state.update(n=1) or 900", "mine: 1 of "),
        ("elif self", "elif False and self", "mine: 0 decisions on 410 generated bars: nothing was yielded"),
        ("return 200", "return view.all_in_usd('BTC') or 20", None),
        (
            "Bracket(stop_pct=2)",
            "Bracket(stop_pct=2, targets=[(0.5, 5.0), (0.5, 6.0)])",
            "mine: 402 of 402 entries on generated bars refused: invalid_input",
        ),
        ("", "", None),
    ],
)
def test_some_refused_entries_and_no_decision_are_notes(
    old: str, new: str, note: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, old, new) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes == [] if note is None else notes[0].startswith(note)
    assert call(["check", str(tmp_path / "bot.yaml")]) == 0
    assert (note or "") in capsys.readouterr().out


LONGER = """\
from bot import Bracket, Open, Strategy, sma


class Mine(Strategy):
    slow = sma(200, interval="4h")
    intervals = {"1d": 3}

    def on_bar(self, view, bar):
        days = view.closes(bar.market, 3, interval="1d")
        if self.slow[bar.market] is not None and len(days) == 3 and not view.position(bar.market):
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2))
"""


@pytest.mark.parametrize(
    ("interval", "old", "new", "says"),
    [
        ("15m", "", "", ""),
        ("1m", "", "", ""),
        (
            "1d",
            "",
            "",
            'slow: interval=\\"4h\\" is shorter than the strategy\'s own interval 1d: read 1d, 1w, or write',
        ),
        ("15m", '{"1d"', '{"10m"', "intervals: interval is one of 1m, 3m"),
        ("4h", '"4h"', '"6h"', 'slow: interval=\\"6h\\" is not a multiple of the strategy\'s own interval 4h'),
        ("15m", 'interval="1d"', 'interval="5m"', 'interval=\\"5m\\" is shorter than the strategy\'s own interval 15m'),
        (
            "15m",
            'interval="1d"',
            'interval="9h"',
            "on_bar at bar 1 fails on generated bars: StrategyError: interval is one of 1m, 3m",
        ),
    ],
)
def test_longer_intervals_are_checked_with_their_past(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], interval: str, old: str, new: str, says: str
):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "mine.py").write_text(LONGER.replace(old, new) if old else LONGER)
    (tmp_path / "bot.yaml").write_text(
        "account: {base_url: embedded}\n"
        f'strategies: [{{name: mine, use: "mine:Mine", markets: [BTC], interval: {interval}, budget_usd: 500}}]\n'
        "state_dir: state\n"
    )
    code = call(["check", "--json", str(tmp_path / "bot.yaml")])
    printed = capsys.readouterr()
    shown = printed.out + printed.err
    assert says in shown, shown
    assert code == (4 if says else 0), shown
    assert "0 decisions" not in shown
