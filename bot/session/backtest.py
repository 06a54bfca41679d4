"""A backtest whole: candles, funding and config become a session, the session a result, the result a folder. What `bot backtest` calls."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from bot.config import Settings
from bot.runtime.desk import Placed
from bot.runtime.journal import Journal, open_journal
from bot.runtime.loader import load as load_strategy
from bot.session import result as results
from bot.session.book import Book
from bot.session.candles import Candles
from bot.session.journal import SessionJournal
from bot.session.options import PathPolicy, SessionOptions
from bot.session.result import Result
from bot.session.run import Session, Told, local
from bot.session.slippage import Prices, Slips
from bot.session.stage import ADDRESS, EVENTS_SHOWN, Stage
from bot.venue.numbers import E8

EVENTS_HELD: Final = 6_000  # in memory before they are folded and written
OTHER_PATH: Final[Mapping[str, PathPolicy]] = {
    "sl_first": "adaptive",
    "adaptive": "sl_first",
    "ohlc": "olhc",
    "olhc": "ohlc",
}

Rates = Mapping[str, list[tuple[int, int]]]


class Lines(Protocol):
    """What takes the lines of events.jsonl: a file open for text."""

    def write(self, text: str, /) -> object: ...


@dataclass(slots=True)
class Backtest:
    """One session with its book. Make it, `run` it once."""

    settings: Settings
    candles: Sequence[Candles]
    options: SessionOptions
    rates: Rates = field(default_factory=dict)
    journal_path: Path | None = None
    place: Callable[[Settings], list[Placed]] | None = None
    address: str = ADDRESS
    session: Session = field(init=False)
    stage: Stage = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = (
            SessionJournal(address=self.address)
            if self.journal_path is None
            else open_journal(self.journal_path, address=self.address)
        )
        named: dict[str, Any] = {} if self.place is None else {"place": self.place}
        try:
            self.session, self.stage = local(
                self.settings,
                self.candles,
                self.options,
                journal=self.journal,
                address=self.address,
                rates=self.rates,
                **named,
            )
        except BaseException:
            self.journal.close()
            raise

    def run(self, *, progress: Told | None = None, events: Lines | None = None) -> Result:
        """To the end, or until `progress` says stop. `events` takes the lines of events.jsonl."""
        stage, session = self.stage, self.session
        slips = Slips(Prices(session.ground.lanes, self.options.path))
        book = Book(int(self.options.balance_usd * E8), self._owner_of, None if events is None else events.write, slips)
        told = stage.told

        def spill(done: int, of: int) -> bool:
            if len(told.events) > EVENTS_HELD:
                ready = len(told.events) - EVENTS_SHOWN
                book.take(told.events[book.count + 1 - told.first : ready])
                del told.events[:ready]
                told.first += ready
                stage.forget(told.first)
                if isinstance(self.journal, SessionJournal):
                    self.journal.forget()
            return True if progress is None else progress(done, of)

        try:
            course = session.run(spill)
            refusals, rejections = self._refusals()
            books = {} if session.loop is None else session.loop.books.rows
            return results.result_of(stage, book, course, session.ground, self.options, refusals, rejections, books)
        finally:
            self.journal.close()

    def _owner_of(self, key: str) -> str | None:
        loop = self.session.loop
        if loop is not None:
            return loop.owner_of(key)
        intent = self.journal.find(key)
        return None if intent is None else intent.strategy

    def _refusals(self) -> tuple[Counter[str], Counter[str]]:
        """Codes of what the gate refused and of what the service did, as far as the journal keeps them."""
        if isinstance(self.journal, SessionJournal):
            return self.journal.refusals, self.journal.rejections
        self.journal.flush()
        by_gate, by_service = (
            Counter({str(code or ""): int(count) for code, count in self.journal.db.execute(sql)})
            for sql in (_REFUSALS, _REJECTIONS)
        )
        return by_gate, by_service


_REFUSALS: Final = "SELECT code, count(*) FROM refusals GROUP BY code"
_REJECTIONS: Final = "SELECT code, count(*) FROM intents WHERE state = 'rejected' GROUP BY code"


def strategies_of(settings: Settings) -> list[dict[str, Any]]:
    """For the manifest: each strategy and the hash of its source."""
    return [
        {"name": one.name, "use": one.use, "sha256": load_strategy(one.use, settings.strategies_dir).sha256}
        for one in settings.strategies
    ]


def band_of(first: Result, second: Result, path: str) -> dict[str, Any]:
    """How far two path policies are apart: the figures of the other, and how many trades differ."""
    rows = [[trip.row(0) for trip in one.book.trips] for one in (first, second)]
    same = len(set(rows[0]) & set(rows[1]))
    return {
        "path": path,
        "figures": dict(second.figures),
        "differing": {"here": len(rows[0]) - same, "there": len(rows[1]) - same},
        "endUsd": [min(first.end_usd, second.end_usd), max(first.end_usd, second.end_usd)],
    }


# ── Causality ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Proof:
    """`cut_ms` are the instants at which the data ended in the repeated runs. `differs` names the first event that was not the same, if any was.
    Not whole: a run was stopped, or there was no instant to cut at; then nothing is proven."""

    cut_ms: tuple[int, ...]
    compared: int
    differs: str | None = None
    is_whole: bool = True

    def plain(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "cutsMs": list(self.cut_ms),
            "eventsCompared": self.compared,
            "differs": self.differs,
            "isWhole": self.is_whole,
        }


def prove_causal(
    make: Callable[[SessionOptions, int], Backtest], options: SessionOptions, whole: Sequence[str], cuts: Sequence[int],
    *, progress: Told | None = None,
) -> Proof:  # fmt: skip
    """Run again on data that end at each cut: all that happened before it must be the same, line by line.

    `make(options, cut_ms)` gives the session no candle that opens at the cut or later. Outages after a cut are left out with the data.
    Data that are cut in a hole (a night) end before it. `progress` may stop it, as it stops a session.
    """
    compared = 0
    for number, cut_ms in enumerate(cuts):
        again = make(replace(options, end_ms=cut_ms), cut_ms)
        lines = io.StringIO(newline="")
        result = again.run(progress=progress, events=lines)
        if result.course.is_partial:
            return Proof(tuple(cuts[:number]), compared, is_whole=False)
        mine = lines.getvalue().splitlines(keepends=True)
        compared += len(mine)
        if mine != list(whole[: len(mine)]) or (len(whole) > len(mine) and _ts(whole[len(mine)]) < result.end_ms - 1):
            at = next(
                (n for n, (a, b) in enumerate(zip(mine, whole, strict=False)) if a != b), min(len(mine), len(whole))
            )
            seen = whole[at].strip() if at < len(whole) else "nothing"
            cut = mine[at].strip() if at < len(mine) else "nothing"
            return Proof(tuple(cuts), compared, f"event {at + 1}: with all data {seen}, with data until {cut_ms} {cut}")
    return Proof(tuple(cuts), compared, is_whole=bool(cuts))


def cuts_between(count: int, start_ms: int, end_ms: int, *, step_ms: int, seed: int) -> list[int]:
    """Instants at which the data are cut: the middle of each of `count` parts, moved a little by chance; few in a short range, or none.

    They lie on the grid of `step_ms`, the coarsest candles that drive. A cut inside a bar would take that bar away from its open on, and with it
    what happened before the cut.
    """
    chance = Random(f"{seed}:cuts")
    part = (end_ms - start_ms) // count
    found = [start_ms + int((number + 0.25 + chance.random() / 2) * part) for number in range(count)]
    return sorted({at - at % step_ms for at in found if at - at % step_ms > start_ms})


def _ts(line: str) -> int:
    import json

    return int(json.loads(line)["ts"])
