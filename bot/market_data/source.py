"""What a source of market data offers, and its errors. A plug-in implements `Source` and registers it in the entry
point group `bot.market_data`:

    [project.entry-points."bot.market_data"]
    mysource = "mypackage.mymodule:open_source"

`open_source(argument)` returns a `Source`. `argument` is the text behind the colon of `--from mysource:ARGUMENT`, or an
empty text. A source is used with `async with`, by one task at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from bot.errors import BotError, Exit


class SourceError(BotError):
    """The source did not do what was asked."""


class NotOffered(SourceError):
    """The source has no such exchange, market, interval or span. The message says what there is."""

    exit_code: ClassVar[Exit] = Exit.USAGE


class NoAnswer(SourceError):
    """The source cannot be reached, or it failed until the retries were used up. The same request may succeed later."""

    exit_code: ClassVar[Exit] = Exit.TIMEOUT


class AccessDenied(SourceError):
    """The source refuses this country, or asks for a key."""

    exit_code: ClassVar[Exit] = Exit.REFUSED


class Row(NamedTuple):
    """One candle. `at_ms`: when it opened, ms UTC."""

    at_ms: int
    open: float
    high: float
    low: float
    close: float
    volume: float


class Page(NamedTuple):
    """Candles in the order of time, closed and without duplicates. `until_ms`: the source has no other candle before
    that instant. `is_moved`: the times of some are later than the source's, because its candles are off the grid.
    """

    rows: list[Row]
    until_ms: int
    is_moved: bool = False


class Quote(NamedTuple):
    """The best prices of a market. `at_ms`: the source's clock. None: the source does not say."""

    symbol: str
    at_ms: int | None
    bid: float | None
    ask: float | None
    last: float | None


class Mark(NamedTuple):
    """The exchange's mark price of a market. `at_ms`: the source's clock, or None."""

    symbol: str
    at_ms: int | None
    px: float


class Depth(NamedTuple):
    """The order book of a market: (price, size) of each level, best first. Sizes are in the base currency."""

    symbol: str
    bids: list[tuple[float, float]]
    asks: list[tuple[float, float]]


class FundingRate(NamedTuple):
    """The funding rate that applies now, as a fraction, the hours that it is for, and one of the instants at which it
    is paid. Without an instant: at the multiples of its hours from 00:00 UTC.
    """

    symbol: str
    rate: float
    hours: int
    paid_ms: int | None = None


class Connection(NamedTuple):
    """How quotes come: websocket or polling (None: not known yet).

    `clock_difference_ms`: the source's clock less ours, to about a second; or None.
    """

    transport: str | None
    clock_difference_ms: int | None


class Missing(NamedTuple):
    """The source fails to give some data: marks, depth or funding. `message` None: it gives them again."""

    what: str
    message: str | None


Update = Quote | Mark | Depth | FundingRate | Connection | Missing


class Rate(NamedTuple):
    """One payment of funding: its instant, and the rate as a fraction."""

    at_ms: int
    rate: float


class Action(NamedTuple):
    """A split (`value` new shares for one old share) or a dividend (`value` in the quote currency, of one share)."""

    at_ms: int
    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class Instrument:
    """A market of a source.

    Fees are fractions; tick, step and bounds are decimal texts in the quote currency or the base; None: the source does
    not say.
    """

    symbol: str
    base: str
    quote: str
    # spot, swap, future, stock
    kind: str
    linear: bool = False
    active: bool = True
    listed_ms: int | None = None
    taker: str | None = None
    maker: str | None = None
    tick: str | None = None
    size_step: str | None = None
    min_notional: str | None = None
    max_leverage: str | None = None


# one line for a person: a wait, a gap, a clock that differs
Say = Callable[[str], None]


class Source(Protocol):
    """A source of history. Every method raises a `SourceError`."""

    # the name as in --from, for example ccxt:binance
    name: str
    # True: old candles change later (adjusted prices), so each pull asks for all of them and replaces them
    revises_history: bool

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def instruments(self, say: Say) -> list[Instrument]:
        """The markets of the source.

        A source without a list returns an empty one; then each coin's name is its symbol.
        """
        ...

    def history(self, symbol: str, interval: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[Page]:
        """The closed candles that open at `since_ms` or later and before `until_ms`, oldest first.

        A source never returns the unfinished candle.
        """
        ...

    def funding(self, symbol: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[list[Rate]]:
        """The funding rates paid in the span, oldest first. NotOffered if the market has none."""
        ...

    async def actions(self, symbol: str) -> list[Action]:
        """The splits and dividends of a share, oldest first; empty for everything else."""
        ...


@runtime_checkable
class LiveSource(Source, Protocol):
    """A source that also has the prices of now. Several calls of all methods may run at the same time."""

    def quotes(self, symbols: Sequence[str]) -> AsyncIterator[Sequence[Update]]:
        """The quotes of some markets as they come, and whatever else the source tells about them. An iterator may be
        silent for ever: the caller watches the age of its quotes.
        """
        ...

    async def minutes(self, symbol: str, since_ms: int, say: Say) -> Page:
        """The closed minute candles that open at `since_ms` or later, by few requests.

        `until_ms` of the page: the source has no other one before it.
        """
        ...
