"""What a hook has answered, read so that nothing of it is lost: an answer of which a part would be thrown away is an
error.

A hook yields its intents or returns a list of them. A generator may not also return a value: Python would throw the
value away. `return ()` loses nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable
from types import GeneratorType
from typing import Any, Final

from bot.errors import StrategyError
from bot.strategy.intents import Cancel, Close, Open

INTENTS: Final = (Open, Close, Cancel)
# hooks that may not answer with intents
WANT_NOTHING: Final = ("on_start", "on_stop", "confirm")
_NOTHING: Final = ()


def intents_of(answer: Any, hook: str) -> Iterable[Any]:
    """The intents of a hook's answer.

    StrategyError, also while they are read, if a part of the answer would be lost.
    """
    if type(answer) is tuple or type(answer) is list:
        return answer
    if answer is None:
        return _NOTHING
    if isinstance(answer, GeneratorType):
        return _all_of(answer, hook)
    if isinstance(answer, INTENTS):
        if hook in WANT_NOTHING:
            raise StrategyError(f"{hook} returned {_short(answer)}, which is lost: yield it in on_bar")
        raise StrategyError(f"{hook} returned {_short(answer)}: write yield in place of return, or return a list")
    refuse_unread(answer, hook)
    intents: Iterable[Any] = answer
    return intents


def _all_of(generator: Generator[Any, Any, Any], hook: str) -> Iterable[Any]:
    """The intents of a generator, which must not return a value after them."""
    lost = yield from generator
    if lost is not None and lost != () and lost != []:
        form = "yield" if isinstance(lost, INTENTS) else "yield (of a list or a generator: yield from)"
        raise StrategyError(
            f"{hook} returned {_short(lost)}, which is lost, because {hook} also has a yield: write {form} in place of"
            " return"
        )


def agreement_of(answer: Any, asked: str) -> bool:
    """The answer of a function that agrees or not. StrategyError if it is neither True nor False."""
    # A comparison of numpy's numbers gives a bool of its own.
    if isinstance(answer, bool) or type(answer).__name__ in ("bool", "bool_"):
        return bool(answer)
    refuse_unread(answer, asked)
    raise StrategyError(f"{asked} returned {_short(answer)}; it returns True or False")


def refuse_unread(answer: Any, asked: str) -> None:
    """StrategyError for the answer of a function that has not run: of an async function, or of one with a yield."""
    if inspect.isasyncgen(answer) or inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            # Python would warn that nobody waited for the coroutine.
            answer.close()
        raise StrategyError(f"{asked} is async; write a plain def, because the daemon does the I/O")
    if isinstance(answer, GeneratorType):
        raise StrategyError(f"{asked} has a yield, so its answer is not read: write return")


def _short(answer: Any) -> str:
    return "a generator" if isinstance(answer, GeneratorType) else f"{answer!r:.200}"
