"""The values of each page: reads the sources and calls the pure functions of `pages/`. A page and its updates use the same values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple, get_args

from bot.clock import SystemClock
from bot.dashboard import formatting, server_chart
from bot.dashboard.pages import frame, market, overview
from bot.dashboard.sources import DaemonSource, ServiceSource, Snapshot
from bot.runtime.journal import queries, round_trips
from bot.wire import INTERVAL_MS
from bot.wire.vocabulary import NavRange

Data = dict[str, Any]
Query = Mapping[str, str]

SPANS: Final = get_args(NavRange)
CURVE_ROWS_MAX: Final = 60
UPDATED_CANDLES: Final = 3  # in an update: the running one, the one that just closed, and one to join them


class Sources(NamedTuple):
    daemon: DaemonSource
    service: ServiceSource


class NoSuchPage(Exception):
    """The address names something that does not exist; the message says what does."""


class Page(NamedTuple):
    """A page: its template, the fragments that are updated while it is open, and the function that gives its values.

    `values` may have `chart`, the data of the page's chart, and `chart_update`, the part of it for an update.
    """

    name: str
    title: str
    template: str
    fragments: tuple[str, ...]
    values: Callable[[Sources, Query], Awaitable[Data]]


async def read(sources: Sources) -> tuple[Snapshot, Data]:
    """The daemon's last answer, and the values of the frame."""
    snapshot = await sources.daemon.snapshot()
    status = snapshot.status or {}
    await sources.service.use(status.get("base_url"))
    return snapshot, {"frame": frame.frame(snapshot, now_ms=SystemClock().now_ms())}


async def overview_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    span = query.get("range", "1d")
    if span not in SPANS:
        raise NoSuchPage(f"range is one of {', '.join(SPANS)}")
    address = (snapshot.status or {}).get("address")
    wallet = await sources.service.wallet(address) if address else None
    curve = await _curve(sources, address, span)
    rows = curve.points[-CURVE_ROWS_MAX:][::-1]
    return values | {
        "figures": overview.figures(snapshot, wallet), "positions": overview.position_rows(snapshot, wallet),
        "health": overview.health(snapshot, await _price_age_s(sources, snapshot)), "span": span, "spans": SPANS, "curve": curve,
        "curve_rows": [(formatting.instant(at), formatting.usd(value)) for at, value in rows],
        "value_svg": server_chart.value_chart(curve.points),
        "chart": _value_chart(curve), "chart_update": _value_chart(curve),
    }  # fmt: skip


async def _curve(sources: Sources, address: str | None, span: str) -> overview.Curve:
    nav = await sources.service.nav(address, span) if address else None
    if nav is not None and nav.series:
        return overview.curve(nav, (), span)

    def closed(db: Any) -> list[tuple[int, Decimal]]:
        trips = round_trips.trips(queries.all_events(db, round_trips.TYPES))
        return [(one.closed_ms, one.net_usd) for one in trips if one.closed_ms is not None]

    return overview.curve(None, await sources.daemon.journal(closed, []), span)


def _value_chart(curve: overview.Curve) -> Data:
    """Points by second, each second once, as the chart library wants them."""
    return {"value": list({at // 1000: value for at, value in curve.points}.items())}


async def _price_age_s(sources: Sources, snapshot: Snapshot) -> float | None:
    """Age of the newest price of the first market, beyond its running bar of one minute; on the service's clock."""
    coins = [coin for one in (snapshot.status or {}).get("strategies", ()) for coin in one["markets"]]
    now_ms = snapshot.service_ms
    candles = await sources.service.candles(coins[0], "1m") if coins and now_ms else []
    return max(0, (now_ms or 0) - candles[-1].ts - INTERVAL_MS["1m"]) / 1000 if candles else None


async def market_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    markets = await sources.service.markets()
    listed = market.listed(snapshot, markets)
    coin = query.get("coin") or (listed[0].coin if listed else "BTC")
    if markets and coin not in {one.coin for one in markets}:
        raise NoSuchPage(f"the service has no market {coin}; it has {', '.join(one.coin for one in markets[:20])}")
    interval = query.get("interval") or market.intervals_of(coin, snapshot)
    if interval not in INTERVAL_MS:
        raise NoSuchPage(f"interval is one of {', '.join(INTERVAL_MS)}")
    address = (snapshot.status or {}).get("address")
    wallet = await sources.service.wallet(address) if address else None
    held = next((one for one in wallet.positions if one.coin == coin), None) if wallet else None
    candles = await sources.service.candles(coin, interval)
    nothing: list[queries.Row] = []
    events = await sources.daemon.journal(
        lambda db: queries.newest_events_of_coin(db, coin, types=("fill",), limit=market.FILLS_MAX), nothing
    )
    marks, overlays = market.fills(events), market.overlays(coin, candles, snapshot.strategies)
    lines = market.lines(coin, snapshot, None if held is None else held.liquidation_px)
    book = await sources.service.book(coin)
    asks, bids = market.book_rows(book)
    rows = overview.position_rows(snapshot, wallet)
    table = range(len(candles) - 1, max(-1, len(candles) - 1 - market.ROWS_MAX), -1)
    return values | {
        "coin": coin, "interval": interval, "intervals": tuple(INTERVAL_MS), "markets": listed, "asks": asks, "bids": bids,
        "spread": formatting.NONE if book is None or book.spread_bps is None else f"{book.spread_bps:.1f} bps",
        "position": next((one for one in rows if one.market == coin), None),
        "summary": market.summary(coin, interval, candles, marks, lines), "overlays": market.legend(overlays), "overlay_labels": [one.label for one in overlays],
        "candle_rows": [market.table_row(candles[n], [one.values[n] for one in overlays]) for n in table],
        "fill_rows": [(formatting.instant(one.at_ms), one.text) for one in marks[::-1]],
        "candle_svg": server_chart.candle_chart(candles, interval, overlays, marks, lines),
        "chart": market.chart(candles, interval, overlays, marks, lines),
        "chart_update": market.chart(candles, interval, overlays, marks, lines, newest=UPDATED_CANDLES),
    }  # fmt: skip


PAGES: Final = {
    page.name: page
    for page in (
        Page("overview", "Overview", "overview", ("figures", "curve", "positions", "health"), overview_values),
        Page(
            "market",
            "Market",
            "market",
            ("markets", "legend", "summary", "candles", "position", "book", "fills"),
            market_values,
        ),
    )
}
