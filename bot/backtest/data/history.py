"""Pull the history of a market from a source into the store: only what is missing, in chunks that are checked, written
and recorded one by one.

A pull that was killed goes on behind its last chunk, because each chunk records its span in the origin file after its
candles are on the disk.
"""

from __future__ import annotations

import csv
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Final

from bot.backtest.data.candles import BESIDE_NAMES, Candles, folder_of_market
from bot.backtest.data.findings import AuditReport
from bot.backtest.data.origins import FUNDING, Origin, Span, read_origin, write_origin
from bot.backtest.data.quality import audit, checked
from bot.backtest.data.store import Conflict, Store
from bot.clock import Clock
from bot.errors import ConfigError
from bot.market_data.source import Page, Say, Source
from bot.market_data.symbols import MappedCoin
from bot.wire.vocabulary import INTERVAL_MS

# rows kept in memory: about 5 MB
CHUNK_ROWS_MAX: Final = 100_000
CHUNK_SECONDS_MIN: Final = 1.0
# a chunk is pulled for this many times as long as the last one took to write
CHUNK_SHARE: Final = 20
# holes that are closer are asked for together
NEAR_ROWS: Final = 1_000
FUNDING_FILE, ACTIONS_FILE = BESIDE_NAMES


@dataclass(frozen=True, slots=True)
class WantedCandles:
    """What to pull: the market, the interval, and the span in ms UTC, on the grid of the interval."""

    market: MappedCoin
    interval: str
    since_ms: int
    until_ms: int

    @property
    def step_ms(self) -> int:
        return INTERVAL_MS[self.interval]

    def __str__(self) -> str:
        return f"{self.market.coin} {self.interval}"


@dataclass(slots=True)
class PullProgress:
    """How far a pull is. `share` is of the span that had to be asked for."""

    at_ms: int
    share: float
    rows: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """Seconds that the rest of the work takes at the pace so far."""
        return self.seconds * (1 - self.share) / self.share if self.share else 0.0


@dataclass(frozen=True, slots=True)
class PullTarget:
    """Where candles go: the store, the accepted faults, and whether different values are replaced.

    `clock` dates the retrieval.
    """

    store: Store
    clock: Clock
    accept: tuple[str, ...] = ()
    replacing: bool = False
    seconds: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Pulled:
    """What the store has in the span after a pull. `path` and `report` are None if it has nothing there."""

    wanted: WantedCandles
    path: Path | None
    rows: int
    added: int
    report: AuditReport | None


class _Chunk:
    """Candles that are not in the store yet, and the span that they cover."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = self.until_ms = start_ms
        self.is_moved = False
        self.at_ms: array[int] = array("q")
        # open, high, low, close, volume of each candle in turn
        self._values: array[float] = array("d")

    def __len__(self) -> int:
        return len(self.at_ms)

    def add(self, page: Page) -> None:
        for row in page.rows:
            self.at_ms.append(row.at_ms)
            self._values.extend(row[1:])
        self.until_ms = max(self.until_ms, page.until_ms)
        self.is_moved = self.is_moved or page.is_moved

    def candles(self, market: str, interval: str) -> Candles:
        o, h, low, c, v = (self._values[column::5] for column in range(5))
        return Candles(market, interval, self.at_ms, o, h, low, c, v, is_moved=self.is_moved)


class Pull:
    """One pull of one market and interval."""

    def __init__(self, source: Source, wanted: WantedCandles, target: PullTarget) -> None:
        self._source = source
        self._wanted = wanted
        self._target = target
        held = target.store.read(wanted.market.coin, wanted.interval)
        self._at_ms: array[int] = array("q") if held is None else held.at_ms
        self._origin = _origin(source, wanted.market, wanted.interval, target.store.root)
        self._added = 0
        self._wrote_seconds = 0.0

    async def run(self, say: Say, show: Callable[[PullProgress], None]) -> Pulled:
        """Pull what is missing. After an error everything that was received before it is in the store."""
        spans = self._spans()
        total_ms, done_ms, rows = sum(end - start for start, end in spans), 0, 0
        begun = self._target.seconds()
        for start, end in spans:
            chunk, since = _Chunk(start), self._target.seconds()
            pages = self._source.history(
                self._wanted.market.symbol, self._wanted.interval, self._with_overlap(start), end, say
            )
            try:
                async for page in pages:
                    chunk.add(page)
                    rows += len(page.rows)
                    now = self._target.seconds()
                    at_ms = max(start, page.until_ms)
                    show(PullProgress(at_ms, (done_ms + at_ms - start) / total_ms, rows, now - begun))
                    if len(chunk) >= CHUNK_ROWS_MAX or now - since > self._chunk_seconds():
                        whole, chunk = chunk, _Chunk(at_ms)
                        self._keep(whole)
                        since = self._target.seconds()
            finally:
                self._keep(chunk)
            done_ms += end - start
        return self._pulled()

    def _spans(self) -> list[Span]:
        """The spans to ask for. Spans that lie close together are one."""
        wanted = self._wanted
        if self._source.revises_history:
            return [(min([wanted.since_ms, *self._at_ms[:1]]), wanted.until_ms)]
        spans: list[Span] = []
        for start, end in self._origin.unasked(self._at_ms, wanted.since_ms, wanted.until_ms):
            for hole in holes(self._at_ms, start, end, wanted.step_ms):
                if spans and hole[0] - spans[-1][1] < NEAR_ROWS * wanted.step_ms:
                    spans[-1] = spans[-1][0], hole[1]
                else:
                    spans.append(hole)
        return spans

    def _with_overlap(self, start_ms: int) -> int:
        """The start, or the candle before it if the store has that: asked again, it must be the same."""
        before = start_ms - self._wanted.step_ms
        at = bisect_left(self._at_ms, before)
        return before if at < len(self._at_ms) and self._at_ms[at] == before else start_ms

    def _chunk_seconds(self) -> float:
        return max(CHUNK_SECONDS_MIN, CHUNK_SHARE * self._wrote_seconds)

    def _keep(self, chunk: _Chunk) -> None:
        """Check a chunk and write it; then record its span."""
        if chunk.until_ms == chunk.start_ms:
            return
        begun, target = self._target.seconds(), self._target
        if len(chunk):
            candles = chunk.candles(self._wanted.market.coin, self._wanted.interval)
            (sound,), _ = checked([candles], accept=target.accept)
            replacing = target.replacing or self._source.revises_history
            self._added += target.store.write(sound, replacing=replacing).added
            first, last = bisect_left(self._at_ms, sound.at_ms[0]), bisect_right(self._at_ms, sound.at_ms[-1])
            self._at_ms[first:last] = array("q", sorted({*self._at_ms[first:last], *sound.at_ms}))
        span = chunk.start_ms, chunk.until_ms
        self._origin = self._origin.after(span, self._at_ms, target.clock.now_ms())
        write_origin(target.store, self._origin)
        self._wrote_seconds = target.seconds() - begun

    def _pulled(self) -> Pulled:
        wanted, store = self._wanted, self._target.store
        candles = store.read(wanted.market.coin, wanted.interval, wanted.since_ms, wanted.until_ms)
        if candles is None or not len(candles):
            return Pulled(wanted, None, 0, self._added, None)
        path = store.file(wanted.market.coin, wanted.interval)
        return Pulled(wanted, path, len(candles), self._added, audit(candles))


def holes(at_ms: Sequence[int], start_ms: int, end_ms: int, step_ms: int) -> list[Span]:
    """The spans without candles in a span. `at_ms` is sorted."""
    spans, next_ms = [], start_ms
    for at in at_ms[bisect_left(at_ms, start_ms) : bisect_left(at_ms, end_ms)]:
        if at > next_ms:
            spans.append((next_ms, at))
        next_ms = at + step_ms
    return [*spans, (next_ms, end_ms)] if next_ms < end_ms else spans


def _origin(source: Source, market: MappedCoin, interval: str, root: Path) -> Origin:
    """The recorded origin with the instrument as it is now. ConfigError if the store has another source or symbol."""
    held = read_origin(root, market.coin, interval)
    if held is None:
        return Origin(market.coin, interval, source.name, market.symbol, 0, (), market.instrument)
    if (held.source, held.symbol) != (source.name, market.symbol):
        raise ConfigError(
            f"{market.coin} {interval}: the store has {held.symbol} of {held.source}, and {market.symbol} of"
            f" {source.name} is another series; keep it apart with another --store, or pull {market.coin}={held.symbol}"
            f" --from {held.source}"
        )
    return replace(held, instrument=market.instrument or held.instrument)


# ── Beside the candles ──────────────────────────────────────────────────────────────────────────────────────────────


async def pull_funding(source: Source, wanted: WantedCandles, target: PullTarget, say: Say) -> tuple[Path, int] | None:
    """Pull the funding rates of a span into `funding.csv`.

    Returns the file and its number of rates; None if there are none.
    """
    coin, store = wanted.market.coin, target.store
    origin = _origin(source, wanted.market, FUNDING, store.root)
    path = store.root / folder_of_market(coin) / FUNDING_FILE
    rates = _held_rates(path)
    for start, end in origin.unasked(sorted(rates), wanted.since_ms, wanted.until_ms):
        async for page in source.funding(wanted.market.symbol, start, end, say):
            for at_ms, rate in page:
                was = rates.setdefault(at_ms, rate)
                if was != rate and not target.replacing:
                    raise Conflict(
                        f"{path}: the rate of {at_ms} is {was} in the store and {rate} now; take the new one with"
                        " --replace"
                    )
                rates[at_ms] = rate
    if not rates:
        return None
    stamps = sorted(rates)
    text = "ts,rate\n" + "".join(f"{at},{_text(rates[at])}\n" for at in stamps)
    store.write_beside(coin, FUNDING_FILE, text)
    asked = (wanted.since_ms, max(wanted.since_ms, min(wanted.until_ms, stamps[-1] + 1)))
    write_origin(store, origin.after(asked, stamps, target.clock.now_ms()))
    return path, len(rates)


def _held_rates(path: Path) -> dict[int, float]:
    try:
        with path.open(newline="") as file:
            return {int(row["ts"]): float(row["rate"]) for row in csv.DictReader(file)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); move it away and pull again") from None


def _text(rate: float) -> str:
    return format(Decimal(repr(rate)), "f")


async def pull_actions(source: Source, wanted: WantedCandles, target: PullTarget) -> Path | None:
    """Record the splits and dividends of a share in `actions.csv`; None if the source knows none."""
    actions = await source.actions(wanted.market.symbol)
    if not actions:
        return None
    text = "ts,kind,value\n" + "".join(f"{action.at_ms},{action.kind},{action.value}\n" for action in actions)
    return target.store.write_beside(wanted.market.coin, ACTIONS_FILE, text)
