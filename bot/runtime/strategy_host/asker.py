"""Answers the questions of strategies in threads, one at a time for each strategy.

A question that hangs delays no pass and no other strategy.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from bot.clock import monotonic_ns
from bot.logs import redact_text
from bot.strategy import Answered, Question, Reply

# The trigger of an intent that a model's reply decided is this prefix and the cause of the question.
AGENT: Final = "agent"


class Asker(Protocol):
    """Takes questions from the strategies' threads; the kernel takes the replies."""

    def start(self, strategy: str, question: Question) -> str | None:
        """Begin to answer. Returns why not, None if it has begun."""

    def answered(self) -> list[str]:
        """The strategies whose replies are ready."""

    def take(self, strategy: str) -> Reply: ...


@dataclass(slots=True)
class AskTotals:
    """Counted since the start of the daemon."""

    answered: int = 0
    failed: int = 0
    tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0


class ThreadAsker:
    """One thread for each question. A thread that hangs blocks later questions of its strategy, and nothing else.

    `wake` asks for a pass when a reply is there. It is called in the kernel's event loop.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: dict[str, threading.Thread] = {}
        self._replies: dict[str, Reply] = {}
        self.totals: dict[str, AskTotals] = {}

    def start(self, strategy: str, question: Question) -> str | None:
        before = self._threads.get(strategy)
        if (before is not None and before.is_alive()) or strategy in self._replies:
            return "an earlier question is not answered yet"
        thread = threading.Thread(
            target=self._work, args=(strategy, question), name=f"question of {strategy}", daemon=True
        )
        self._threads[strategy] = thread
        thread.start()
        return None

    def answered(self) -> list[str]:
        self._loop = asyncio.get_running_loop()
        return sorted(self._replies)

    def take(self, strategy: str) -> Reply:
        reply = self._replies.pop(strategy)
        totals, answered = self.totals.setdefault(strategy, AskTotals()), reply.answered
        totals.answered += answered.text is not None
        totals.failed += answered.text is None
        totals.tokens += answered.tokens_in + answered.tokens_out
        totals.usd += answered.usd or 0.0
        totals.seconds += reply.took_ms / 1000
        return reply

    def _work(self, strategy: str, question: Question) -> None:
        self._replies[strategy] = reply_to(question)
        if self._loop is not None:
            # The daemon has ended meanwhile.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)


def reply_to(question: Question) -> Reply:
    """Answer a question in this thread. Whatever is raised becomes a reply with a problem."""
    began_ns = monotonic_ns()
    try:
        answered = question.answer()
    except BaseException as error:  # noqa: BLE001 - after any failure of a model, its strategy skips the turn
        answered = Answered(None, redact_text(f"{type(error).__name__}: {error}")[:500])
    return Reply(question.cause, question.asked_ms, question.key, answered, (monotonic_ns() - began_ns) // 1_000_000)
