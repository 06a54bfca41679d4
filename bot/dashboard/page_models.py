"""The values of each page: reads the sources and calls the pure functions of `pages/`. A page and its updates use the same values."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple, get_args
from urllib.parse import urlencode

from bot.clock import SystemClock
from bot.dashboard import formatting, server_chart
from bot.dashboard.backtests import Backtests, Job, NoRun
from bot.dashboard.pages import events, frame, guardians, market, overview, runs, strategies
from bot.dashboard.sources import DaemonSource, ServiceSource, Snapshot
from bot.runtime.journal import order_trace, queries, round_trips
from bot.wire import INTERVAL_MS
from bot.wire.vocabulary import EVENT_FILTERS, EVENT_SUBTYPES, NavRange

Data = dict[str, Any]
Query = Mapping[str, str]

SPANS: Final = get_args(NavRange)
CURVE_ROWS_MAX: Final = 60
GUARDIAN_EVENTS: Final = 50
UPDATED_CANDLES: Final = 3  # in an update: the running one, the one that just closed, and one to join them


class Sources(NamedTuple):
    daemon: DaemonSource
    service: ServiceSource
    backtests: Backtests


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

    return overview.curve(None, await sources.daemon.journal(closed) or [], span)


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
    filled = await sources.daemon.journal(
        lambda db: queries.newest_events_of_coin(db, coin, types=("fill",), limit=market.FILLS_MAX)
    )
    marks, overlays = market.fills(filled or []), market.overlays(coin, candles, snapshot.strategies)
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


async def strategies_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    return values | {"strategies": strategies.rows(snapshot)}


async def strategy_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    name, rows = query["name"], strategies.rows(snapshot)
    mine = [one for one in rows if one.name == name]
    if rows and not mine:
        raise NoSuchPage(f"there is no strategy {name}; there are {', '.join(one.name for one in rows)}")

    def of_journal(db: sqlite3.Connection) -> tuple[list[strategies.Decision], list[strategies.RefusalRow]]:
        found = queries.intents(db, strategy=name, limit=strategies.DECISIONS_MAX)
        signals = {one["id"]: queries.traces(db, one["id"]).get("wish", {}).get("wish") for one in found}
        refused = queries.newest_refusals(db, strategy=name, limit=strategies.DECISIONS_MAX)
        return strategies.decisions(found, {key: text for key, text in signals.items() if text}), strategies.refusals(
            refused
        )

    decisions, refusals = await sources.daemon.journal(of_journal) or ([], [])
    params = strategies.params(snapshot.strategies, name)
    return values | {
        "title": name,
        "name": name,
        "strategies": mine,
        "decisions": decisions,
        "refusals": refusals,
        "params": params,
    }


async def events_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    given = {name: query.get(name, "").strip() for name in ("type", "market", "strategy", "q", "before")}
    if given["type"] and given["type"] not in EVENT_FILTERS:
        raise NoSuchPage(f"{given['type']} is no type of event; types are {', '.join(EVENT_SUBTYPES)}")
    types = (given["type"],) if given["type"] else ()

    def search(db: sqlite3.Connection) -> list[queries.Row]:
        return queries.search_events(
            db, types=types, coin=given["market"] or None, strategy=given["strategy"] or None, text=given["q"] or None,
            before_id=given["before"] or None, limit=events.PAGE_ROWS,
        )  # fmt: skip

    found = await sources.daemon.journal(search) or []
    configured = (snapshot.status or {}).get("strategies", ())
    coins = sorted(
        {coin for one in configured for coin in one["markets"]} | {one["market"] for one in snapshot.positions}
    )
    kept = {name: text for name, text in given.items() if text and name != "before"}
    older = f"/events?{urlencode(kept | {'before': found[0]['id']})}" if len(found) == events.PAGE_ROWS else ""
    return values | {
        "orders": events.orders(snapshot), "events": events.rows(found), "filter": given, "types": list(EVENT_SUBTYPES), "coins": coins,
        "names": [one["name"] for one in configured], "older": older, "newest": f"/events?{urlencode(kept)}",
    }  # fmt: skip


async def explain_values(sources: Sources, query: Query) -> Data:
    _, values = await read(sources)
    name = query["name"]

    def of_journal(db: sqlite3.Connection) -> list[events.StepRow] | str:
        try:
            return events.steps(order_trace.explain(db, name))
        except queries.NotFound as error:
            return str(error)

    steps = await sources.daemon.journal(of_journal)
    if steps is None or isinstance(steps, str):
        raise NoSuchPage(steps or "the journal cannot be read now")
    return values | {"title": name, "name": name, "steps": steps}


async def guardians_values(sources: Sources, query: Query) -> Data:
    _, values = await read(sources)
    acts = await sources.daemon.journal(
        lambda db: queries.search_events(db, types=("guardian",), limit=GUARDIAN_EVENTS)
    )
    return values | {"guardians": guardians.rows(await sources.daemon.guardians()), "events": events.rows(acts or [])}


async def approvals_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    return values | {
        "waiting": guardians.waiting(snapshot.status),
        "proposals": await sources.daemon.approvals(),
    }


async def runs_values(sources: Sources, query: Query) -> Data:
    snapshot, values = await read(sources)
    found = runs.rows(await sources.backtests.summaries())
    given = {name: query.get(name, "") for name in ("data", "from", "to", "balance")}
    config = (snapshot.status or {}).get("config")
    return values | {
        "runs": found,
        "folder": sources.backtests.folder,
        "job": _job(sources.backtests.job),
        "given": given,
        "config": config,
    }


def _job(job: Job | None) -> Data | None:
    if job is None:
        return None
    state, tone = (
        ("Running.", "warn")
        if job.ended is None
        else ("Done.", "good")
        if job.ended == 0
        else (f"Failed with code {job.ended}.", "bad")
    )
    return {"state": state, "tone": tone, "last": job.last}


async def compare_values(sources: Sources, query: Query) -> Data:
    _, values = await read(sources)
    try:
        answer = await sources.backtests.comparison(query.get("a", ""), query.get("b", ""))
    except NoRun as error:
        raise NoSuchPage(str(error)) from None
    return values | {"answer": answer, "rows": runs.compared(answer)}


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
        Page("strategies", "Strategies", "strategies", ("strategies",), strategies_values),
        Page("strategy", "Strategy", "strategy", ("strategies", "decisions", "refusals"), strategy_values),
        Page("events", "Orders and events", "events", ("orders", "events"), events_values),
        Page("explain", "Chain", "explain", (), explain_values),
        Page("guardians", "Guardians", "guardians", ("deadman", "guardians", "events"), guardians_values),
        Page("approvals", "Approvals", "approvals", ("waiting",), approvals_values),
        Page("runs", "Backtests", "runs", ("job", "runs"), runs_values),
        Page("compare", "Two backtests", "compare", (), compare_values),
    )
}
