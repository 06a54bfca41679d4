"""Where the candles of a store come from:

`<MARKET>/<interval>.source.json` beside the candles, with the source, its market data and the spans that were asked.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bot.backtest.data.candles import folder_of_market, market_of_folder, own_file
from bot.backtest.data.store import Store
from bot.clock import iso
from bot.errors import ConfigError
from bot.market_data.source import Instrument

SUFFIX: Final = ".source.json"
# stands in the place of an interval for the file funding.csv
FUNDING: Final = "funding"

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AskedSpan:
    """A span for which the source was asked, and how many candles the store had in it afterwards."""

    from_ms: int
    until_ms: int
    candles: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one market and interval. `instrument`: the market as the source described it at the last pull."""

    market: str
    interval: str
    source: str
    symbol: str
    retrieved_ms: int
    asked: tuple[AskedSpan, ...] = ()
    instrument: Instrument | None = None

    def unasked(self, at_ms: Sequence[int], since_ms: int, until_ms: int) -> list[Span]:
        """The parts of a span for which the source must be asked.

        A span counts as asked while the store still has all its candles.
        """
        left: list[Span] = [(since_ms, until_ms)] if since_ms < until_ms else []
        for asked in self.asked:
            if held_in(at_ms, asked.from_ms, asked.until_ms) >= asked.candles:
                left = [part for span in left for part in _without(span, asked)]
        return left

    def after(self, span: Span, at_ms: Sequence[int], now_ms: int) -> Origin:
        """The origin after the source was asked for `span`; `at_ms` is what the store has now."""
        spans = sorted([span, *((earlier.from_ms, earlier.until_ms) for earlier in self.asked)])
        joined = [spans[0]]
        for start, end in spans[1:]:
            if start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        asked = tuple(AskedSpan(start, end, held_in(at_ms, start, end)) for start, end in joined)
        return replace(self, asked=asked, retrieved_ms=now_ms)


def held_in(at_ms: Sequence[int], start_ms: int, end_ms: int) -> int:
    """The number of candles that open in a span."""
    return bisect_left(at_ms, end_ms) - bisect_left(at_ms, start_ms)


def _without(span: Span, asked: AskedSpan) -> Iterator[Span]:
    start, end = span
    if start < min(end, asked.from_ms):
        yield start, min(end, asked.from_ms)
    if max(start, asked.until_ms) < end:
        yield max(start, asked.until_ms), end


def origin_file(store: Path, market: str, interval: str) -> Path:
    """The file with the origin of a market and interval."""
    return own_file(store, f"{folder_of_market(market)}/{interval}{SUFFIX}")


def read_origin(store: Path, market: str, interval: str) -> Origin | None:
    """The origin of a market and interval; None if no source is recorded. ConfigError if the file is damaged."""
    path = origin_file(store, market, interval)
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        instrument = body["instrument"]
        return Origin(
            market,
            interval,
            body["source"],
            body["symbol"],
            body["retrievedMs"],
            tuple(AskedSpan(*map(int, span)) for span in body["asked"]),
            None if instrument is None else Instrument(**instrument),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}: is damaged; delete it, and pull again with --since") from None


def write_origin(store: Store, origin: Origin) -> None:
    """Replace the origin of a market and interval."""
    body = {
        "source": origin.source,
        "symbol": origin.symbol,
        "retrieved": iso(origin.retrieved_ms),
        "retrievedMs": origin.retrieved_ms,
        "asked": [[span.from_ms, span.until_ms, span.candles] for span in origin.asked],
        "instrument": None if origin.instrument is None else asdict(origin.instrument),
    }
    store.write_beside(origin.market, f"{origin.interval}{SUFFIX}", json.dumps(body, indent=1) + "\n")


def origins(store: Path) -> list[Origin]:
    """The origins of a store, by market and interval."""
    files = sorted(store.glob(f"*/*{SUFFIX}"))
    candidates = [
        read_origin(store, market_of_folder(file.parent.name), file.name.removesuffix(SUFFIX)) for file in files
    ]
    return [origin for origin in candidates if origin is not None]
