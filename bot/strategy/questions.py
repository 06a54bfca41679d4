"""Questions: slow work of a strategy, such as asking a language model, that the daemon does in a thread of its own.

A strategy asks with `view.ask` and gets the reply in `on_reply`, at a later pass. Meanwhile nobody waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Answered(NamedTuple):
    """What came of a question. Without `text` there is a `problem`. `usd` is None if the usage is not known."""

    text: str | None
    problem: str | None = None
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `setup` and `prompt` decide the answer, so that a recorded answer is found by both of them.

    cause     what it is asked on, "bar:BTC:1760000000000"; a strategy asks once on one cause
    asked_ms  close of the bar, or instant of the event; intents of the reply are as fresh as this instant
    usd_max   the most that the answer can cost
    answer    does the work; called in a thread of its own, and returns within its own time limit
    """

    cause: str
    asked_ms: int
    setup: str
    prompt: str
    usd_max: float
    answer: Callable[[], Answered]

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.setup}\0{self.prompt}".encode(errors="backslashreplace")).hexdigest()


class Reply(NamedTuple):
    """The reply to a question, as `on_reply` gets it. `took_ms` is real time."""

    cause: str
    asked_ms: int
    key: str
    answered: Answered
    took_ms: int


class AskRecord(NamedTuple):
    """A question and what came of it, for the journal. `outcomes` is JSON: a list with one object for each decision of
    the answer.

    kept   how many of the newest records of the strategy are kept
    """

    cause: str
    asked_ms: int
    key: str
    setup: str
    prompt: str
    model: str
    answer: str | None
    problem: str | None
    outcomes: str
    tokens_in: int
    tokens_out: int
    usd: str
    took_ms: int
    kept: int
