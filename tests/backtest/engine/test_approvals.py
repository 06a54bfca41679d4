"""In a backtest nobody is asked: `--approve` answers, and a policy is called as in a live run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.engine.memory_journal import MemoryJournal
from bot.backtest.engine.options import SessionOptions
from bot.backtest.results.assumptions import assumptions_of
from bot.config import Settings
from bot.strategy import Bar, Bracket, Intent, Open, View
from tests.backtest.builders import minutes, placing, settings

POLICY = """\
def small(proposal):
    return proposal.notional_usd < 100 or "too large"
"""


def hourly(view: View, bar: Bar) -> list[Intent]:
    if bar.at_ms % 3_600_000 or view.position(bar.market):
        return []
    return [Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=0.1, target_pct=0.1))]


def ran(approve: object, options: SessionOptions, folder: Path) -> tuple[str, set[tuple[str, str | None]]]:
    """The digest of the events, and how the entries ended."""
    (folder / "mine.py").write_text(POLICY)
    plain = settings()
    (one,) = plain.strategies
    changed = one.model_copy(update={"approve": approve})
    made: Settings = plain.model_copy(update={"strategies": (changed,), "strategies_dir": folder})
    test = Backtest(made, [minutes(300)], options, place=placing(hourly))
    result = test.run()
    assert isinstance(test.journal, MemoryJournal)
    return result.digest, {(one.state, one.code) for one in test.journal.intents.by_id.values() if one.action == "open"}


def test_all_is_as_if_nobody_needed_to_agree_and_none_opens_nothing(tmp_path: Path) -> None:
    alone, ends = ran("never", SessionOptions(), tmp_path)
    assert ends == {("accepted", None)}
    assert ran("always", SessionOptions(), tmp_path) == (alone, ends)
    none = SessionOptions(approve="none")
    assert ran("always", none, tmp_path)[1] <= {("rejected", "not_approved")}
    assert ran("never", none, tmp_path) == (alone, ends)
    assert SessionOptions.of_plain(none.plain()) == none


@pytest.mark.parametrize("options", [SessionOptions(), SessionOptions(approve="none")])
def test_a_policy_is_called_whatever_the_option_says(tmp_path: Path, options: SessionOptions) -> None:
    assert ran("mine:small", options, tmp_path)[1] <= {("rejected", "not_approved")}
    assert ran("mine:small", options, tmp_path)[0] != ran("never", options, tmp_path)[0]


def test_the_report_names_the_rule() -> None:
    test = Backtest(settings(), [minutes(60)], SessionOptions(approve="none"), place=placing(hourly))
    said = assumptions_of(test.session.timeline, test.options, test.exchange, funded=[], asking=["trend"])
    assert "nobody is asked: each entry of trend that needs approval is refused (--approve none)" in said
