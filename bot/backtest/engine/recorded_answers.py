"""Answers the questions of agents in a backtest: from recorded answers, or from the live model within a budget, which
records them.

The same recording gives the same events. An answer is found by its key, which covers model, settings, tools, schema,
instructions and prompt.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from bot.clock import iso
from bot.errors import ConfigError, StrategyError
from bot.runtime.strategy_host.asker import reply_to
from bot.strategy import Answered, Question, Reply

COLUMNS: Final = (
    "strategy",
    "cause",
    "asked_ms",
    "key",
    "setup",
    "prompt",
    "model",
    "answer",
    "problem",
    "tokens_in",
    "tokens_out",
    "usd",
    "took_ms",
)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How agents get answers.

    replay   recorded answers only; a missing one is an error
    live     recorded answers, and the model for the others, for at most `usd_max`
    alike    for `bot replay`: also an answer to another prompt on the same cause, if the setup is the same; else none
    """

    answers: Literal["replay", "live", "alike"] = "replay"
    # A file of JSON lines, or a daemon's journal.db.
    file: Path | None = None
    usd_max: float = 0.0

    def plain(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "file": None if self.file is None else str(self.file.absolute()),
            "usd_max": self.usd_max,
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> AgentOptions:
        """From a manifest. A repetition of a backtest asks no model."""
        return cls("alike", None if plain["file"] is None else Path(plain["file"]))


RECORDED_ONLY: Final = AgentOptions()


class RecordedAnswers:
    """An Asker for one backtest. A reply is ready at once, so that it is taken in the pass of its bar."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        # read at the first question
        self._by_key: dict[str, dict[str, Any]] | None = None
        self._by_cause: dict[tuple[str, str], dict[str, Any]] = {}
        self._replies: dict[str, Reply] = {}
        self.spent_usd = 0.0

    def start(self, strategy: str, question: Question) -> str | None:
        if self._by_key is None:
            self._by_key = {}
            for row in _rows(self._options.file):
                self._by_key[row["key"]] = self._by_cause[row["strategy"], row["cause"]] = row
        recorded = self._by_key.get(question.key)
        if self._options.answers == "live":
            if recorded is None or recorded["answer"] is None:
                recorded = self._asked(strategy, question)
        elif recorded is None and self._options.answers == "alike":
            recorded = self._by_cause.get((strategy, question.cause))
            if recorded is None or recorded["setup"] != question.setup:
                return "no answer is recorded for this question"
        elif recorded is None:
            raise StrategyError(
                f"no recorded answer for the question on {question.cause} ({iso(question.asked_ms)})"
                + ("" if self._options.file is None else f" in {self._options.file}")
                + ": bars, account, params or instructions differ from those of a recording, or there is none; ask the"
                " model with --agents live --max-usd AMOUNT"
            )
        answered = Answered(
            recorded["answer"],
            recorded["problem"],
            recorded["model"],
            recorded["tokens_in"],
            recorded["tokens_out"],
            None if recorded["usd"] is None else float(recorded["usd"]),
        )
        self._replies[strategy] = Reply(question.cause, question.asked_ms, question.key, answered, recorded["took_ms"])
        return None

    def answered(self) -> list[str]:
        return sorted(self._replies)

    def take(self, strategy: str) -> Reply:
        return self._replies.pop(strategy)

    def _asked(self, strategy: str, question: Question) -> dict[str, Any]:
        """Ask the live model, and record its answer on disk before anything is decided on it."""
        file = self._options.file
        assert file is not None
        assert self._by_key is not None
        if self.spent_usd + question.usd_max > self._options.usd_max:
            raise StrategyError(
                f"the question on {question.cause} ({iso(question.asked_ms)}) may cost {question.usd_max:.4f} USD, and"
                f" of --max-usd {self._options.usd_max:g} are {self.spent_usd:.4f} spent; give more, or a shorter"
                f" range: what is answered is in {file}"
            )
        replies: list[Reply] = []
        # A thread, because a notebook runs an event loop in this one.
        thread = threading.Thread(target=lambda: replies.append(reply_to(question)), name=f"question of {strategy}")
        thread.start()
        thread.join()
        (reply,) = replies
        answered = reply.answered
        self.spent_usd += question.usd_max if answered.usd is None else answered.usd
        row = {
            "strategy": strategy,
            "cause": question.cause,
            "asked_ms": question.asked_ms,
            "key": question.key,
            "setup": question.setup,
            "prompt": question.prompt,
            "model": answered.model,
            "answer": answered.text,
            "problem": answered.problem,
            "tokens_in": answered.tokens_in,
            "tokens_out": answered.tokens_out,
            "usd": answered.usd,
            "took_ms": reply.took_ms,
        }
        try:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
                lines.flush()
                os.fsync(lines.fileno())
        except OSError as error:
            raise StrategyError(f"{file}: the answer cannot be recorded: {error.strerror or error}") from error
        self._by_key[question.key] = row
        return row


def _rows(file: Path | None) -> Iterator[dict[str, Any]]:
    """The recorded answers, oldest first. ConfigError names the line that cannot be read."""
    if file is None or not file.is_file():
        return
    if file.suffix == ".db":
        yield from _rows_of_journal(file)
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                yield {name: row[name] for name in COLUMNS}
            except (ValueError, KeyError, TypeError):
                raise ConfigError(
                    f"{file}, line {number}: is no recorded answer; remove the line, or give another file with"
                    " --answers"
                ) from None


def _rows_of_journal(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name='asks'").fetchone() is None:
                return
            # Constants only.
            for values in db.execute(f"SELECT {', '.join(COLUMNS)} FROM asks ORDER BY seq"):  # noqa: S608
                yield dict(zip(COLUMNS, values, strict=True))
    except sqlite3.Error as error:
        raise ConfigError(f"{file}: its recorded answers cannot be read: {error}") from error
