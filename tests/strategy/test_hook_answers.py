"""What a hook answers is executed or refused; no part of it is thrown away.

Walked over every hook and every form of an answer.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bot.errors import StrategyError
from bot.runtime.account.account_state import AccountState
from bot.runtime.passes.bar_feed import BarFeed, BarSeries
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.runtime.strategy_host.loader import HOOKS, load
from bot.strategy import Bar, Close, Open, Strategy
from bot.strategy.hook_answers import WANT_NOTHING

OPEN = Open("BTC", "long", usd=100)
CLOSE = Close("BTC")
WITH_INTENTS = [hook for hook in HOOKS if hook not in WANT_NOTHING]


def generator(*answers: Any, then: Any = None) -> Any:
    yield from answers
    return then


async def coroutine() -> list[Any]:
    return [OPEN]


async def async_generator() -> Any:
    yield OPEN


KEPT: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "nothing": (lambda: None, []),
    "an empty list": (list, []),
    "a list": (lambda: [OPEN, CLOSE], [OPEN, CLOSE]),
    "a generator": (lambda: generator(OPEN, CLOSE), [OPEN, CLOSE]),
    "a generator that ends early": (lambda: generator(), []),
    "an empty list after a yield": (lambda: generator(OPEN, then=[]), [OPEN]),
    "an empty tuple after a yield": (lambda: generator(OPEN, then=()), [OPEN]),
    "a map": (lambda: map(Close, ["BTC"]), [CLOSE]),
}
LOST: dict[str, tuple[Callable[[], Any], str]] = {
    "one intent": (lambda: OPEN, "returned Open(market='BTC'"),
    "an intent after a yield": (lambda: generator(CLOSE, then=OPEN), "returned Open(market='BTC'"),
    "an intent in place of a yield": (lambda: generator(then=OPEN), "write yield in place of return"),
    "a list after a yield": (lambda: generator(then=[OPEN]), "yield from"),
    "a generator after a yield": (lambda: generator(then=generator(OPEN)), "returned a generator, which is lost"),
    "a number after a yield": (lambda: generator(then=False), "returned False, which is lost"),
    "a generator of a generator": (lambda: generator(generator(OPEN)), "yielded <generator"),
    "a list of lists": (lambda: [[OPEN]], "yielded [Open("),
    "a coroutine": (coroutine, "is async; write a plain def"),
    "an async generator": (async_generator, "is async; write a plain def"),
    "a number": (lambda: 1, "'int' object is not iterable; a hook yields its signals"),
}


def called(hook: str, answer: Callable[[], Any]) -> list[Any]:
    """Call a hook as the daemon does, with a strategy whose hook gives this answer."""
    given = functools.wraps(getattr(Strategy, hook))(lambda *_: answer())
    given.__isabstractmethod__ = False
    strategy = type("Any", (Strategy,), {"on_bar": lambda *_: None, hook: given})(name="any", markets=["BTC"])
    feed = BarFeed({BarSeries("BTC", "1m"): 1})
    instance = StrategyInstance(strategy, interval="1m", account_state=AccountState(lambda _key: None), feed=feed)
    bound = functools.partial(getattr(strategy, hook), instance.view, *HOOKS[hook][2:])
    if hook in WANT_NOTHING:
        instance.call_without_signals(bound, now_ms=0)
        return []
    return instance.call(bound, now_ms=0)


@pytest.mark.parametrize("form", KEPT)
@pytest.mark.parametrize("hook", WITH_INTENTS)
def test_each_hook_may_yield_its_intents_or_return_a_list(hook: str, form: str) -> None:
    answer, intents = KEPT[form]
    assert called(hook, answer) == intents


@pytest.mark.parametrize("form", LOST)
@pytest.mark.parametrize("hook", WITH_INTENTS)
def test_an_answer_that_would_be_lost_is_refused_in_each_hook(hook: str, form: str) -> None:
    answer, says = LOST[form]
    with pytest.raises(StrategyError) as refused:
        called(hook, answer)
    assert says in str(refused.value) and str(refused.value).startswith("any: ")
    assert "yielded" in says or "not iterable" in says or f"{hook} " in str(refused.value)


@pytest.mark.parametrize("form", [*LOST, "a list", "a generator", "a map"])
@pytest.mark.parametrize("hook", ["on_start", "on_stop"])
def test_intents_of_a_hook_that_orders_nothing_are_refused(hook: str, form: str) -> None:
    answer, _ = LOST.get(form) or KEPT[form]
    with pytest.raises(StrategyError, match=r"lost|async|not iterable|yielded"):
        called(hook, answer)


@pytest.mark.parametrize("answer", [None, OPEN, "yes", 1, [], generator(True), coroutine])
def test_confirm_returns_true_or_false(answer: Any) -> None:
    class Asked(Strategy):
        def on_bar(self, view: Any, bar: Bar) -> Any:
            return ()

        def confirm(self, plan: Any) -> Any:
            return answer() if answer is coroutine else answer

    feed = BarFeed({BarSeries("BTC", "1m"): 1})
    strategy = Asked(name="asked", markets=["BTC"])
    instance = StrategyInstance(strategy, interval="1m", account_state=AccountState(lambda _key: None), feed=feed)
    with pytest.raises(
        StrategyError, match=r"^asked: .*confirm (returned .*; it returns True or False|is async|has a yield)"
    ):
        instance.confirms(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    ["Open(bar.market, 'long', usd=50)", "bot.Close(bar.market)", "[Close(bar.market)]", "(Close(m) for m in ())"],
)
@pytest.mark.parametrize("hook", WITH_INTENTS)
def test_a_return_of_intents_beside_a_yield_is_refused_with_its_line_before_it_runs(
    hook: str, value: str, tmp_path: Path
) -> None:
    arguments = ", ".join(("self", "view", "bar", *HOOKS[hook][3:]))
    text = f"""\
import bot
from bot import Close, Open, Strategy


class Mine(Strategy):
    def on_bar(self, view, bar):
        return ()

    def {hook}({arguments}):
        def helper():
            return [1]
        if view.equity_usd < 0:
            return {value}
        yield Close(bar.market)
"""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(StrategyError, match=rf"mine\.py: Mine\.{hook} returns intents at line 13, which are lost"):
        load("mine", tmp_path)


LOST_IN_A_STATEMENT = {
    "Open(bar.market, 'long', usd=50)": "makes an intent at line {line} and throws it away: write yield in front",
    "bot.Close(bar.market)": "makes an intent at line {line} and throws it away",
    "self.entry(bar)": "calls entry at line {line}, which has a yield, so nothing of it runs: write yield from",
    "super().on_bar(view, bar)": "calls on_bar at line {line}, which has a yield",
    "at_module(bar)": "calls at_module at line {line}, which has a yield",
    "self.plain(bar)": "throws away at line {line} the intent that plain returns: write yield in front",
    "nested()": "calls nested at line {line}, which has a yield",
    "yield from self.returns(bar)": (
        "loses at line {line} the intents that returns returns at line 20: write yield there"
    ),
}


@pytest.mark.parametrize("decorator", ["", "@kept"])
@pytest.mark.parametrize("statement", LOST_IN_A_STATEMENT)
def test_a_statement_that_throws_signals_away_is_refused_with_its_line(
    statement: str, decorator: str, tmp_path: Path
) -> None:
    text = f"""\
import functools, bot
from bot import Close, Open, Strategy

def at_module(bar):
    yield Close(bar.market)

def kept(function):
    return functools.wraps(function)(lambda *given: function(*given))

class Base(Strategy):
    def entry(self, bar):
        yield Open(bar.market, "long", usd=50)

    def plain(self, bar):
        return Close(bar.market)

    def returns(self, bar):
        if bar.close < 0:
            yield Close(bar.market)
        return [Open(bar.market, "long", usd=50)]

    def on_bar(self, view, bar):
        yield from self.entry(bar)

class Mine(Base):
    {decorator}
    def on_bar(self, view, bar):
        def nested():
            yield Close(bar.market)
        if bar.close > 100:
            {statement}
        yield from super().on_bar(view, bar)
"""
    (tmp_path / "mine.py").write_text(text)
    said = LOST_IN_A_STATEMENT[statement].format(line=31)
    with pytest.raises(StrategyError, match=re.escape(f"Mine.on_bar {said}")):
        load("mine:Mine", tmp_path)
    (tmp_path / "kept.py").write_text(text.replace(f"            {statement}", f"            answer = {statement}"))
    assert load("kept:Mine", tmp_path).strategy.__name__ == "Mine"


def test_a_generator_may_return_nothing_or_the_answer_of_a_call_that_returns_nothing(tmp_path: Path) -> None:
    text = """\
from bot import Close, Strategy


class Mine(Strategy):
    def on_bar(self, view, bar):
        if bar.close < 0:
            return
        if bar.close < 0.5:
            return ()
        if bar.close < 1:
            return view.log("low")
        yield Close(bar.market)
"""
    (tmp_path / "mine.py").write_text(text)
    assert load("mine", tmp_path).strategy.__name__ == "Mine"
