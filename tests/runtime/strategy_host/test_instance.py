"""A strategy instance: log lines and state of warm-up bars are dropped, and every error names the strategy."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from bot import logs
from bot.errors import StrategyError
from bot.runtime.account.account_state import AccountState
from bot.runtime.passes.bar_feed import BarFeed, BarSeries
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.strategy import Bar, Intent, Strategy, View


class Talker(Strategy):
    """Logs each bar, and saves it in its state."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        view.log("seen", at_ms=bar.at_ms)
        view.state.setdefault("seen", []).append(bar.at_ms)
        return ()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def make_instance() -> StrategyInstance:
    feed = BarFeed({BarSeries("BTC", "1m"): 1})
    strategy = Talker(name="talker", markets=["BTC"], params={})
    return StrategyInstance(strategy, interval="1m", account_state=AccountState(lambda _key: None), feed=feed)


def test_an_error_without_a_text_still_names_the_strategy() -> None:
    def hook() -> Iterable[Intent]:
        raise Unspeakable

    with pytest.raises(StrategyError, match=r"^talker: Unspeakable: .*test_instance\.py:\d+\)$"):
        make_instance().call(hook, now_ms=0)


def test_an_error_names_each_line_of_the_strategys_file_and_debug_shows_the_whole_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def size() -> int:
        return json.loads("{")  # type: ignore[no-any-return]  # It fails in a library, called from here.

    def hook() -> Iterable[Intent]:
        size()
        return ()

    place = r"\(test_instance\.py:\d+ in size, from test_instance\.py:\d+ in hook\)$"
    with capture_logs() as lines, pytest.raises(StrategyError, match=place):
        make_instance().call(hook, now_ms=0)
    assert lines == []
    monkeypatch.setenv("BOT_DEBUG", "1")
    with capture_logs() as lines, pytest.raises(StrategyError, match=place):
        make_instance().call(hook, now_ms=0)
    assert [line["event"] for line in lines] == ["strategy.traceback"]
    assert "json/decoder.py" in lines[0]["exception"]


def test_log_lines_and_state_changes_during_warm_up_are_dropped() -> None:
    instance = make_instance()
    old, new = (Bar("BTC", at_ms, 1.0, 1.0, 1.0, 1.0, 1.0) for at_ms in (60_000, 120_000))
    with capture_logs() as lines:
        instance.warm_up(lambda: instance.strategy.on_bar(instance.view, old), now_ms=old.at_ms)
        instance.call(lambda: instance.strategy.on_bar(instance.view, new), now_ms=new.at_ms)
    assert [line["at_ms"] for line in lines] == instance.source.state["seen"] == [120_000]


@pytest.mark.parametrize("pretty", [False, True])
def test_a_log_line_of_a_strategy_has_its_name_and_all_its_fields(pretty: bool) -> None:
    out, handlers, level = io.StringIO(), list(logging.root.handlers), logging.root.level
    logs.configure(pretty=pretty, stream=out)
    try:
        fields = {
            "level": 104_500,
            "strategy": "other",
            "method_name": "mean",
            "exc_info": "none",
            "_api_key": "hunter2",
        }
        make_instance().view.log("level.crossed", held={("BTC", "long"): 2}, **fields)
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        structlog.reset_defaults()
    (line,) = out.getvalue().splitlines()
    assert "hunter2" not in line
    if not pretty:
        told = json.loads(line)
        assert (told["level"], told["strategy"], told["held"]) == ("info", "talker", {"('BTC', 'long')": 2})
        assert {name: told[f"said_{name}"] for name in fields} == fields | {"_api_key": "[hidden]"}


def test_a_reference_to_the_state_from_before_the_warm_up_is_still_the_state_afterwards() -> None:
    instance = make_instance()
    kept = instance.view.state
    kept["trades"] = 1
    assert instance.changed_state() == '{"trades": 1}'
    instance.warm_up(lambda: kept.update(trades=7), now_ms=60_000)
    assert kept == instance.view.state == {"trades": 1}
    kept["trades"] += 1
    assert instance.changed_state() == '{"trades": 2}'


@pytest.mark.parametrize("state", [{1_748_736_000_000: "entered"}, {"on": [{"BTC": {None: 1}}]}, {"on": ({True: 1},)}])
def test_a_state_key_that_is_not_a_string_is_refused(state: dict[Any, Any]) -> None:
    instance = make_instance()
    instance.source.state |= state
    with pytest.raises(
        StrategyError, match=r"^talker: the keys of view\.state must be strings, and (1748736000000|None|True) is not"
    ):
        instance.changed_state()
    assert make_instance().changed_state() is None


def test_a_state_change_to_an_equal_value_of_another_type_is_seen() -> None:
    """1, 1.0 and True are equal, and not the same after a restart."""
    instance = make_instance()
    state = instance.source.state
    told = []
    for value in (1, 1.0, True, -0.0, 0.0, "1", [1], (1,), [1.0], [True], {"a": 1, "b": 2}, {"b": 2, "a": 1}, None, 1):
        state["n"] = value
        told.append(instance.changed_state())
        assert instance.changed_state() is None, "it is told once"
    texts = [None if text is None else json.loads(text)["n"] for text in told]
    assert list(map(repr, texts)) == [
        "1",
        "1.0",
        "True",
        "-0.0",
        "0.0",
        "'1'",
        "[1]",
        "None",
        "[1.0]",
        "[True]",
        "{'a': 1, 'b': 2}",
        "None",
        "None",
        "1",
    ]
    assert told[-2] == '{"n": null}'
    instance.source.state["n"] = float("nan")
    for _ in range(2):
        with pytest.raises(StrategyError, match=r"^talker: view\.state must hold only numbers"):
            instance.changed_state()
    instance.source.state["n"] = 1
    assert instance.changed_state() is None


@pytest.mark.parametrize("state", [{1_748_736_000_000: "entered"}, {"n": Unspeakable}])
def test_a_state_that_cannot_be_saved_is_refused_each_time(state: dict[Any, Any]) -> None:
    instance = make_instance()
    instance.source.state |= state
    for _ in range(2):
        with pytest.raises(StrategyError):
            instance.changed_state()


def test_a_state_nested_as_deeply_as_json_allows_is_saved() -> None:
    instance, deep = make_instance(), dict[str, Any]()
    for _ in range(300):
        deep = {"in": [deep]}
    instance.source.state["deep"] = deep
    text = instance.changed_state()
    assert text is not None
    assert json.loads(text) == instance.source.state
