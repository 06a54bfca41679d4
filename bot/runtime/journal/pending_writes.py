"""Rows that wait for the journal's next transaction.

They may be lost in a crash: deciding again gives the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bot.runtime.journal.bars_seen import Values, write_seen
from bot.runtime.journal.database import Execute
from bot.runtime.journal.failover import seal
from bot.strategy import AskRecord


class PendingWrites:
    """Finished bars, strategy states, refusals and traces that are not written yet."""

    def __init__(self) -> None:
        self.bars: dict[tuple[str, str], int] = {}
        self.states: dict[str, str] = {}
        self.refusals: list[tuple[Any, ...]] = []
        self.traces: list[tuple[str, str, int, str]] = []
        self.asks: list[tuple[str, AskRecord]] = []
        self.seen: list[tuple[str, str, int, Values]] = []

    def add(self, states: Mapping[str, str], bars: Iterable[tuple[str, str, int]]) -> None:
        self.states.update(states)
        for market, interval, at_ms in bars:
            self.bars[market, interval] = at_ms

    def is_empty(self) -> bool:
        return not (self.bars or self.states or self.refusals or self.traces or self.asks or self.seen)

    def clear(self) -> None:
        self.bars.clear()
        self.states.clear()
        self.refusals.clear()
        self.traces.clear()
        self.asks.clear()
        self.seen.clear()

    def write(self, execute: Execute) -> None:
        for (market, interval), at_ms in self.bars.items():
            write_bar(execute, market, interval, at_ms)
        for strategy, state in self.states.items():
            _write_state(execute, strategy, state)
        for row in self.refusals:
            execute(
                "INSERT INTO refusals (at_ms, strategy, market, cause, ordinal, code, message) VALUES (?,?,?,?,?,?,?)"
                " ON CONFLICT DO NOTHING",
                row,
            )
        for trace in self.traces:
            execute(
                "INSERT INTO traces (intent_id, kind, at_ms, payload) VALUES (?,?,?,?) ON CONFLICT DO NOTHING", trace
            )

        for strategy, record in self.asks:
            _write_ask(execute, strategy, record)
        for market, interval, close_ms, values in self.seen:
            write_seen(execute, market, interval, close_ms, values)

    def write_states(self, execute: Execute, states: Mapping[str, str]) -> None:
        """Write these states now; they replace pending ones, which are older."""
        for strategy, state in states.items():
            self.states.pop(strategy, None)
            _write_state(execute, strategy, state)


def write_bar(execute: Execute, market: str, interval: str, at_ms: int) -> None:
    execute(
        "INSERT INTO progress (market, interval, at_ms, seal) VALUES (?,?,?,?) ON CONFLICT (market, interval) DO UPDATE"
        " SET at_ms=excluded.at_ms, seal=excluded.seal WHERE excluded.at_ms > at_ms",
        (market, interval, at_ms, seal(market, interval, at_ms)),
    )


def _write_ask(execute: Execute, strategy: str, record: AskRecord) -> None:
    """Write a question to a model, or replace its row, and remove the strategy's oldest questions."""
    *given, kept = record
    # A text of a model may hold lone surrogates, which cannot be encoded.
    values = [value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value for value in given]
    execute(
        "INSERT INTO asks (strategy, cause, asked_ms, key, setup, prompt, model, answer, problem, outcomes, tokens_in,"
        " tokens_out, usd, took_ms) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (strategy, cause) DO UPDATE SET"
        " key=excluded.key, setup=excluded.setup, prompt=excluded.prompt, model=excluded.model, answer=excluded.answer,"
        " problem=excluded.problem, outcomes=excluded.outcomes, tokens_in=excluded.tokens_in,"
        " tokens_out=excluded.tokens_out, usd=excluded.usd, took_ms=excluded.took_ms",
        (strategy, *values),
    )
    execute(
        "DELETE FROM asks WHERE strategy=? AND seq <="
        " (SELECT seq FROM asks WHERE strategy=? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (strategy, strategy, kept),
    )


def _write_state(execute: Execute, strategy: str, state: str) -> None:
    execute(
        "INSERT INTO strategy_state (strategy, state, seal) VALUES (?,?,?)"
        " ON CONFLICT (strategy) DO UPDATE SET state=excluded.state, seal=excluded.seal",
        (strategy, state, seal(strategy, state)),
    )
