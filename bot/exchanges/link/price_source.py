"""Prices and candles of an exchange through its link, as a source of market data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from bot.exchanges.link.client import ExchangeLink
from bot.exchanges.link.values import all_of
from bot.exchanges.protocol import NoExchangeAnswer, UnknownForm
from bot.market_data import source
from bot.market_data.source import Action, Instrument, Page, Rate, Say, SourceError, Update


class LinkSource:
    """The markets of one exchange at one place. Its process lives as long as the source is open."""

    revises_history = False

    def __init__(self, exchange: str, place: str) -> None:
        self.name = f"{exchange}:{place}"
        self._link = ExchangeLink(exchange, place)

    async def __aenter__(self) -> Self:
        with _source_errors():
            await self._link.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.__aexit__(kind, error, trace)

    async def instruments(self, say: Say) -> list[Instrument]:
        return all_of(Instrument, await self._ask("instruments"))

    async def minutes(self, symbol: str, since_ms: int, say: Say) -> Page:
        return all_of(Page, await self._ask("minutes", symbol=symbol, since_ms=since_ms))[0]

    async def quotes(self, symbols: Sequence[str]) -> AsyncIterator[Sequence[Update]]:
        with _source_errors():
            async for updates in self._link.stream("quotes", symbols=list(symbols)):
                yield updates

    async def history(self, symbol: str, interval: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[Page]:
        asked = {"symbol": symbol, "interval": interval, "since_ms": since_ms, "until_ms": until_ms}
        with _source_errors():
            async for pages in self._link.stream("history", **asked):
                for page in all_of(Page, pages):
                    yield page

    async def funding(self, symbol: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[list[Rate]]:
        with _source_errors():
            async for rates in self._link.stream("funding", symbol=symbol, since_ms=since_ms, until_ms=until_ms):
                yield all_of(Rate, rates)

    async def actions(self, symbol: str) -> list[Action]:
        return []

    async def _ask(self, op: str, **fields: Any) -> list[Any]:
        with _source_errors():
            return await self._link.ask(op, **fields)


@contextmanager
def _source_errors() -> Iterator[None]:
    """Errors of an exchange as errors of a source."""
    try:
        yield
    except NoExchangeAnswer as error:
        raise source.NoAnswer(str(error)) from None
    except UnknownForm as error:
        raise SourceError(str(error)) from None
