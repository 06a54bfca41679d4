"""Query strings of the read operations. Values arrive as text; integers are ASCII digits."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict

from bot.wire.base import CoinName, Integer, Request, Text
from bot.wire.vocabulary import (
    CANDLES_MAX,
    EVENT_FILTERS,
    EVENTS_PAGE_MAX,
    TRADES_PAGE_MAX,
    AssetClass,
    Interval,
    MarketsView,
    NavRange,
)


class EmptyQuery(Request):
    """An operation without query parameters."""


class MarketsQuery(Request):
    """Query of GET /v1/markets."""

    query: Annotated[str, Text(0, 64)] = ""
    asset_class: AssetClass = "all"
    view: MarketsView = "trending"
    limit: Annotated[int, Integer(1, 250, query=True)] = 150

    # the interface writes asset_class, not assetClass
    model_config = ConfigDict(alias_generator=None)


class CandlesQuery(Request):
    """Query of GET /v1/markets/{coin}/candles."""

    interval: Interval = "1h"
    limit: Annotated[int, Integer(1, CANDLES_MAX, query=True)] = 200


class OrdersQuery(Request):
    """Query of GET /v1/orders."""

    coin: CoinName | None = None


class EventStreamQuery(Request):
    """Query of GET /v1/events/stream."""

    since: Annotated[str, Text(1, 64)] | None = None
    types: Annotated[str, Text(0, 1024)] | None = None

    @property
    def filters(self) -> frozenset[str] | None:
        """The requested types (or type.subtype). None means all."""
        if self.types is None:
            return None
        names = frozenset(part.strip() for part in self.types.split(",") if part.strip())
        return names or None

    @property
    def unknown_types(self) -> list[str]:
        """The requested types that this version has not. They match nothing; a later version may have them."""
        return sorted((self.filters or frozenset()) - EVENT_FILTERS)


class EventsQuery(EventStreamQuery):
    """Query of GET /v1/events."""

    limit: Annotated[int, Integer(1, EVENTS_PAGE_MAX, query=True)] = 50


class TradesQuery(Request):
    """Query of GET /v1/trades. The wallet route has the same fields without coin."""

    limit: Annotated[int, Integer(1, TRADES_PAGE_MAX, query=True)] = 50
    before: Annotated[int, Integer(0, query=True)] | None = None
    coin: CoinName | None = None


class WalletTradesQuery(Request):
    """Query of GET /v1/wallets/{address}/trades."""

    limit: Annotated[int, Integer(1, TRADES_PAGE_MAX, query=True)] = 50
    before: Annotated[int, Integer(0, query=True)] | None = None


class NavQuery(Request):
    """Query of GET /v1/wallets/{address}/nav."""

    range: NavRange = "7d"


class WatchQuery(NavQuery):
    """Query of GET /watch/{address}: the range of the chart, and the trades before this one."""

    before: Annotated[int, Integer(0, query=True)] | None = None
