"""The values of each page: reads the sources and calls the pure functions of `pages/`.

A page and its updates use the same values.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args
from urllib.parse import urlencode

from bot.backtest.proof.trend import read_trend
from bot.clock import DAY_MS, SystemClock
from bot.dashboard import server_chart
from bot.dashboard.backtests import Backtests, Job, NoRun
from bot.dashboard.pages import events, fleet, frame, guardians, market, overview, proof, runs, strategies, trades
from bot.dashboard.sources import DaemonSource, FleetSource, ServiceSource
from bot.dashboard.values import formatting
from bot.dashboard.values.identity import ACCOUNT, account_of, account_stamp, check_account, resume_stamp
from bot.dashboard.values.reading import NOW, Known, Reading, old, unknown, worst
from bot.dashboard.values.snapshot import DaemonSnapshot
from bot.runtime.journal import order_trace, proof_files, queries
from bot.wire import INTERVAL_MS
from bot.wire.resources import Market
from bot.wire.vocabulary import EVENT_FILTERS, EVENT_SUBTYPES, NavRange
from bot.wire.wallets import WalletNavResult, WalletResult

Data = dict[str, Any]
Query = Mapping[str, str]

SPANS: Final = get_args(NavRange)
SPAN: Final[NavRange] = "7d"
# newest decisions on the overview
DECISIONS: Final = 5
CURVE_ROWS_MAX: Final = 60
GUARDIAN_EVENTS: Final = 50
# The parts of pages, each known, old or not known.
PARTS: Final = (
    "account",
    "positions",
    "orders",
    "health",
    "curve",
    "candles",
    "book",
    "markets",
    "journal",
    "strategies",
    "params",
    "guardians",
    "approvals",
    "waiting",
    "config",
)
# choices of the page Trades whose values are kept
PAGES_KEPT: Final = 20
# candles in an update: the running one, the one that just closed, and the one before
UPDATED_CANDLES: Final = 3


class PageSources(NamedTuple):
    daemon: DaemonSource
    service: ServiceSource
    backtests: Backtests
    # None: this dashboard sees only its own daemon
    fleet: FleetSource | None = None


class NoSuchPage(Exception):
    """The address names something that does not exist; the message says what does."""


class PageSpec(NamedTuple):
    """A page: its template, the fragments that are updated while it is open, and the function that gives its values.

    `values` may have `chart`, the data of the page's chart, and `chart_update`, the part of it for an update.
    """

    name: str
    title: str
    template: str
    fragments: tuple[str, ...]
    values: Callable[[PageSources, Query], Awaitable[Data]]
    # what the updates of the page must name
    identity: tuple[str, ...] = (ACCOUNT,)


class Read(NamedTuple):
    """What every page begins with: the daemon's last answer, the service's answer about its account, and the values of
    the frame.
    """

    snapshot: DaemonSnapshot
    wallet: Reading[WalletResult | None]
    values: Data
    # how well the parts that the daemon says are known
    daemon: Known
    now_ms: int


async def read(sources: PageSources, query: Query) -> Read:
    """Moved if the page was loaded for another account."""
    snapshot = await sources.daemon.snapshot()
    check_account(query.get(ACCOUNT), snapshot)
    status, now_ms = snapshot.status or {}, SystemClock().now_ms()
    await sources.service.use(status.get("base_url"))
    wallet = await sources.service.wallet(status.get("address"))
    known = daemon_known(snapshot, now_ms)
    account = account_of(snapshot)
    stamps = {
        "account": account_stamp(account),
        "resume": resume_stamp(
            account, status.get("strategies") or (), (status.get("intents") or {}).get("waiting") or ()
        ),
    }
    values = {
        "frame": frame.frame(snapshot, now_ms=now_ms),
        "identity": {ACCOUNT: account},
        "stamps": stamps,
        "known": dict.fromkeys(PARTS, NOW),
    }
    return Read(snapshot, wallet, values, known, now_ms)


def daemon_known(snapshot: DaemonSnapshot, now_ms: int) -> Known:
    """How well the account is known by the daemon: now, from an earlier answer or the journal, or not at all."""
    if not snapshot.knows_account:
        why = snapshot.trouble or "the daemon has not read its account yet"
        return unknown(f"{why}.")
    if snapshot.is_of_journal:
        return old(snapshot.at_ms, now_ms, "The daemon's journal was written last")
    if snapshot.trouble:
        return old(snapshot.at_ms, now_ms, "The daemon answered last")
    return old(now_ms - round(snapshot.age_s * 1000), now_ms, "The daemon read the account") if snapshot.is_old else NOW


def positions_known(read: Read) -> Known:
    """The service shows positions while the daemon does not answer; the stops are still those that the daemon knew."""
    if not read.snapshot.trouble or read.wallet.value is None:
        return read.daemon
    if read.wallet.known.state == "known" and not read.wallet.value.positions:
        return Known("old", "No open position at the service now.")
    if read.wallet.known.state == "known":
        return Known(
            "old",
            f"Size, entry, mark and profit are read from the service now. Stops and strategies: {read.daemon.text}",
        )
    return worst(read.wallet.known, read.daemon)


def journal_known(read: Read, reading: Reading[Any]) -> Known:
    """A journal that nobody writes is as old as its last line."""
    if reading.known.state != "known" or not read.snapshot.trouble:
        return reading.known
    return read.daemon if read.daemon.state == "old" else old(None, read.now_ms)


async def overview_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    snapshot, wallet = current.snapshot, current.wallet.value
    span = query.get("range", SPAN)
    if span not in SPANS:
        raise NoSuchPage(f"range is one of {', '.join(SPANS)}")
    curve, curve_known = await _curve(sources, current, span)
    rows = curve.points[-CURVE_ROWS_MAX:][::-1]
    account_known = current.daemon if not snapshot.trouble or wallet is None else current.wallet.known
    current.values["known"] |= {
        "account": account_known,
        "positions": positions_known(current),
        "curve": curve_known,
        "health": unknown("a daemon that does not answer has no health.") if snapshot.trouble else NOW,
    }
    closed = await sources.daemon.closed_trades()
    decided = await sources.daemon.journal(lambda db: _decisions(db, None, DECISIONS))
    current.values["known"] |= {"journal": journal_known(current, closed), "strategies": current.daemon}
    now_ms = snapshot.service_ms or current.now_ms
    figures = overview.figures(snapshot, wallet)
    before = server_chart.week_ago(curve.points)
    day = "overview", now_ms // DAY_MS
    of_trades = _kept(sources.daemon, day, closed.value, lambda: _trades_of(closed.value or (), now_ms))
    week = [of_trades["week"]] if closed.value is not None and figures else []
    return (
        current.values
        | of_trades
        | {
            "verdict": overview.verdict(snapshot, figures),
            "figures": figures + week,
            "strategies": strategies.rows(snapshot),
            "decisions": decided.value or [],
            "week_ago": None if before is None else formatting.usd(before),
            "positions": overview.position_rows(snapshot, wallet),
            "health": overview.health(snapshot, await _price_age_s(sources, snapshot)),
            "span": span,
            "spans": SPANS,
            "curve": curve,
            "curve_rows": [(formatting.instant(at), formatting.usd(value)) for at, value in rows],
            "value_svg": server_chart.value_chart(curve.points),
            "chart": _value_chart(curve),
            "chart_update": _value_chart(curve),
        }
    )


def _trades_of(closed: Sequence[trades.ClosedTrade], now_ms: int) -> Data:
    """What the overview shows of the closed trades."""
    days_svg, days_text = trades.by_day(closed, now_ms)
    return {
        "days_svg": days_svg,
        "days_text": days_text,
        "week": trades.of_week(closed, now_ms),
        "last_trades": trades.newest(closed),
        "lines": trades.strategy_lines(closed),
    }


def _kept(daemon: DaemonSource, about: object, closed: object, make: Callable[[], Data]) -> Data:
    """Values that are made of the closed trades. The newest trades, or none, are the same list until the journal has
    others.
    """
    kept = daemon.trades_pages.get(about)
    if kept is None or kept[0] is not closed:
        kept = daemon.trades_pages[about] = closed, make()
        while len(daemon.trades_pages) > PAGES_KEPT:
            daemon.trades_pages.pop(next(iter(daemon.trades_pages)))
    return kept[1]


async def _curve(sources: PageSources, read: Read, span: str) -> tuple[overview.ValueCurve, Known]:
    address = account_of(read.snapshot)
    nav: Reading[WalletNavResult | None] = Reading(None, unknown("the address of the account is not known."))
    if address:
        nav = await sources.service.nav(address, span)
    if nav.value is not None and nav.value.series:
        return overview.curve(nav.value, (), span), nav.known

    closed = await sources.daemon.closed_trades()
    known = closed.known if closed.value is None else journal_known(read, closed)
    if len(closed.value or ()) < 2:
        # The journal cannot stand for a service that has not said its curve.
        known = worst(nav.known, known)
    return overview.curve(None, [(trade.closed_ms, trade.net) for trade in closed.value or ()], span), known


def _value_chart(curve: overview.ValueCurve) -> Data:
    """Points by second, each second once, as the chart library wants them."""
    points = list({at // 1000: value for at, value in curve.points}.items())
    return {"value": points, "week_ago": server_chart.week_ago(curve.points)}


async def _price_age_s(sources: PageSources, snapshot: DaemonSnapshot) -> float | None:
    """Age of the newest price of the first market, beyond its running bar of one minute; on the service's clock."""
    coins = [coin for strategy in (snapshot.status or {}).get("strategies", ()) for coin in strategy["markets"]]
    now_ms = snapshot.service_ms
    if not coins or not now_ms or snapshot.trouble:
        return None
    candles = await sources.service.candles(coins[0], "1m")
    if not candles.value or candles.known.state != "known":
        return None
    return max(0, now_ms - candles.value[-1].ts - INTERVAL_MS["1m"]) / 1000


async def market_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    snapshot, wallet = current.snapshot, current.wallet.value
    markets = await sources.service.markets()
    listed = market.listed(snapshot, markets.value)
    coin, interval = _market_of(query, snapshot, listed, markets)
    current.values["identity"] |= {"coin": coin, "interval": interval}
    held = next((position for position in wallet.positions if position.coin == coin), None) if wallet else None
    candles = await sources.service.candles(coin, interval)
    filled = await sources.daemon.journal(
        lambda db: queries.newest_events_of_coin(db, coin, types=("fill",), limit=market.FILLS_MAX)
    )
    marks = market.fills(filled.value or [])
    overlays = market.overlays(coin, candles.value, snapshot.strategies, interval)
    lines = market.lines(coin, snapshot, None if held is None else held.liquidation_px)
    book = await sources.service.book(coin)
    asks, bids = market.book_rows(book.value)
    rows = overview.position_rows(snapshot, wallet, coin)
    table = range(len(candles.value) - 1, max(-1, len(candles.value) - 1 - market.ROWS_MAX), -1)
    current.values["known"] |= {
        "positions": positions_known(current),
        "candles": candles.known,
        "book": book.known,
        "markets": markets.known,
        "journal": journal_known(current, filled),
    }
    spread = None if book.value is None else book.value.spread_bps
    return current.values | {
        "coin": coin,
        "interval": interval,
        "intervals": tuple(INTERVAL_MS),
        "markets": listed,
        "asks": asks,
        "bids": bids,
        "spread": formatting.NONE if spread is None else f"{spread:.1f} bps",
        "position": next(iter(rows), None),
        "summary": market.summary(coin, interval, candles.value, marks if filled.value is not None else None, lines),
        "overlays": market.legend(overlays),
        "candle_columns": market.candle_columns([overlay.label for overlay in overlays]),
        "candle_rows": [market.table_row(candles.value[n], [overlay.values[n] for overlay in overlays]) for n in table],
        "fill_rows": [(formatting.instant(mark.at_ms), mark.text) for mark in marks[::-1]],
        "candle_svg": server_chart.candle_chart(candles.value, interval, overlays, marks, lines),
        "chart": market.chart(candles.value, interval, overlays, marks, lines),
        "chart_update": market.chart(candles.value, interval, overlays, marks, lines, newest=UPDATED_CANDLES),
    }


def _market_of(
    query: Query, snapshot: DaemonSnapshot, listed: Sequence[market.Listed], markets: Reading[tuple[Market, ...]]
) -> tuple[str, str]:
    """The market and the interval of the page.

    Its updates name both, so they are chosen once, when the page is loaded.
    """
    coin = query.get("coin") or (listed[0].coin if listed else "")
    if not coin:
        raise NoSuchPage(f"no market is known: {markets.known.text or 'the service has none'}")
    if markets.value and coin not in {known.coin for known in markets.value}:
        names = ", ".join(known.coin for known in markets.value[:20])
        raise NoSuchPage(f"the service has no market {coin}; it has {names}")
    interval = query.get("interval") or market.intervals_of(coin, snapshot)
    if interval not in INTERVAL_MS:
        raise NoSuchPage(f"interval is one of {', '.join(INTERVAL_MS)}")
    return coin, interval


def _decisions(db: sqlite3.Connection, strategy: str | None, limit: int) -> list[strategies.DecisionRow]:
    """The newest decisions of a strategy, or of all, newest first."""
    intents = queries.intents(db, strategy=strategy, limit=limit)
    signals = {intent["id"]: queries.traces(db, intent["id"]).get("wish", {}).get("wish") for intent in intents}
    return strategies.decisions(intents, {key: text for key, text in signals.items() if text})


async def strategies_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    current.values["known"]["strategies"] = current.daemon
    return current.values | {"strategies": strategies.rows(current.snapshot)}


async def strategy_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    name, rows = query["name"], strategies.rows(current.snapshot)
    mine = [row for row in rows if row.name == name]
    if rows and not mine:
        raise NoSuchPage(f"there is no strategy {name}; there are {', '.join(row.name for row in rows)}")

    def of_journal(db: sqlite3.Connection) -> tuple[list[strategies.DecisionRow], list[strategies.RefusalRow]]:
        refused = queries.newest_refusals(db, strategy=name, limit=strategies.DECISIONS_MAX)
        return _decisions(db, name, strategies.DECISIONS_MAX), strategies.refusals(refused)

    journal = await sources.daemon.journal(of_journal)
    decisions, refusals = journal.value or ([], [])
    is_declared = any(row["name"] == name for row in current.snapshot.strategies)
    declared = (
        current.daemon if is_declared else unknown("the daemon has not started the strategy, or does not answer.")
    )
    current.values["known"] |= {
        "strategies": current.daemon,
        "journal": journal_known(current, journal),
        "params": declared,
    }
    return current.values | {
        "title": name,
        "name": name,
        "strategies": mine,
        "decisions": decisions,
        "refusals": refusals,
        "params": strategies.params(current.snapshot.strategies, name),
    }


async def events_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    snapshot = current.snapshot
    given = {name: query.get(name, "").strip() for name in ("type", "market", "strategy", "q", "before")}
    if given["type"] and given["type"] not in EVENT_FILTERS:
        raise NoSuchPage(f"{given['type']} is no type of event; types are {', '.join(EVENT_SUBTYPES)}")
    types = (given["type"],) if given["type"] else ()

    def search(db: sqlite3.Connection) -> list[queries.Row]:
        return queries.search_events(
            db,
            types=types,
            coin=given["market"] or None,
            strategy=given["strategy"] or None,
            text=given["q"] or None,
            before_id=given["before"] or None,
            limit=events.PAGE_ROWS,
        )

    searched = await sources.daemon.journal(search)
    page_events = searched.value or []
    configured = (snapshot.status or {}).get("strategies", ())
    coins = sorted(
        {coin for strategy in configured for coin in strategy["markets"]}
        | {position["market"] for position in snapshot.positions}
    )
    kept = {name: text for name, text in given.items() if text and name != "before"}
    older = (
        f"/events?{urlencode(kept | {'before': page_events[0]['id']})}" if len(page_events) == events.PAGE_ROWS else ""
    )
    current.values["known"] |= {"orders": current.daemon, "journal": journal_known(current, searched)}
    return current.values | {
        "orders": events.orders(snapshot),
        "events": events.rows(page_events),
        "filter": given,
        "types": list(EVENT_SUBTYPES),
        "coins": coins,
        "names": [strategy["name"] for strategy in configured],
        "older": older,
        "newest": f"/events?{urlencode(kept)}",
    }


async def explain_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    name = query["name"]

    def of_journal(db: sqlite3.Connection) -> list[events.StepRow] | str:
        try:
            return events.steps(order_trace.explain(db, name))
        except queries.NotFound as error:
            return str(error)

    steps = await sources.daemon.journal(of_journal)
    if steps.value is None or isinstance(steps.value, str):
        raise NoSuchPage(steps.value or f"the journal cannot be read now: {steps.known.text}")
    return current.values | {"title": name, "name": name, "steps": steps.value}


async def guardians_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    acts = await sources.daemon.journal(
        lambda db: queries.search_events(db, types=("guardian",), limit=GUARDIAN_EVENTS)
    )
    answer = current.snapshot.guardians
    known = current.daemon if answer is not None else unknown(current.daemon.text or "the daemon has not said it.")
    current.values["known"] |= {"guardians": known, "journal": journal_known(current, acts)}
    return current.values | {"guardians": guardians.rows(answer), "events": events.rows(acts.value or [])}


async def approvals_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    proposals = await sources.daemon.approvals()
    has_intents = "waiting" in ((current.snapshot.status or {}).get("intents") or {})
    waiting = (
        current.daemon if has_intents or current.daemon.state == "unknown" else unknown("the daemon has not said it.")
    )
    current.values["known"] |= {"approvals": worst(proposals.known, waiting), "waiting": waiting}
    return current.values | {
        "waiting": guardians.waiting(current.snapshot.status),
        "proposals": guardians.proposals(proposals.value, account_of(current.snapshot)),
    }


async def trades_values(sources: PageSources, query: Query) -> Data:
    """The closed trades of the journal, filtered by the address."""
    state = await read(sources, query)
    given = {name: query.get(name, "").strip() for name in (*trades.FILTERS, "range", "day", "month", "sort")}
    given |= {name: given[name] or usual for name, usual in (("range", "all"), ("sort", "newest"))}
    for name, known in (("range", trades.RANGES), ("sort", trades.SORTS)):
        if given[name] not in known:
            raise NoSuchPage(f"{name} is one of {', '.join(known)}")

    closed = await sources.daemon.closed_trades()
    every, now_ms = closed.value or [], state.snapshot.service_ms or state.now_ms
    state.values["known"]["journal"] = journal_known(state, closed)
    about = (*given.values(), now_ms // DAY_MS)
    page = _kept(sources.daemon, about, closed.value, lambda: _trades_page(every, given, now_ms))
    try:
        listed = trades.list_page(page["ordered"], int(query.get("page") or 1))
    except ValueError:
        raise NoSuchPage("page is a number, 1 or more") from None
    return state.values | page | {"listed": listed}


def _trades_page(every: Sequence[trades.ClosedTrade], given: dict[str, str], now_ms: int) -> Data:
    """The figures, drawings and rows of one choice, all of the same trades. NoSuchPage if it names no day or month."""
    try:
        shown = trades.chosen(every, given, now_ms)
        months = trades.months_of(every)
        month = given["month"] or (months[0] if months else formatting.iso(now_ms)[:7])
        weeks = trades.calendar(trades.chosen(every, given | {"range": "all", "day": ""}, now_ms), month)
    except ValueError:
        raise NoSuchPage("day is a date like 2026-11-20, month is one like 2026-11") from None
    return {
        "figures": trades.figures(shown),
        "ordered": trades.in_order(shown, given["sort"]),
        "csv_rows": shown,
        "columns": trades.TRADES,
        "weeks": weeks,
        "weeks_text": trades.calendar_text(weeks),
        "month": month,
        "months": months,
        "earlier": max((name for name in months if name < month), default=""),
        "later": min((name for name in months if name > month), default=""),
        "choices": trades.choices(every),
        "filter": given,
        "ranges": tuple(trades.RANGES),
        "sorts": tuple(trades.SORTS),
        "kept": urlencode({name: text for name, text in given.items() if text and name not in ("day", "month")}),
        "whole": urlencode({name: text for name, text in given.items() if text}),
        "profit_svg": trades.profit_chart(shown),
        "sources_html": trades.source_table(shown),
        "multiples_svg": trades.multiples_chart(shown),
    }


async def fleet_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    if sources.fleet is None:
        raise NoSuchPage("this dashboard sees only its own daemon; bot fleet lists all of this machine")
    daemons = fleet.rows(await sources.fleet.members(), current.now_ms)
    return current.values | {"daemons": daemons, "sums": fleet.sums(daemons), "columns": list(fleet.DAEMONS)}


async def runs_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    stored = runs.rows(await sources.backtests.summaries())
    given = {name: query.get(name, "") for name in ("data", "from", "to", "balance")}
    status = current.snapshot.status or {}
    has_said = "config" in status
    current.values["known"]["config"] = NOW if has_said else unknown("the daemon has not said which config it runs.")
    return current.values | {
        "runs": stored,
        "folder": sources.backtests.folder,
        "job": _job(sources.backtests.job),
        "given": given,
        "config": status.get("config"),
    }


def _job(job: Job | None) -> Data | None:
    if job is None:
        return None
    if job.ended is None:
        return {"state": "Running.", "tone": "warn", "last": job.last if job.last != "running" else ""}
    if job.ended == 0:
        return {"state": "Done.", "tone": "good", "last": job.last}
    return {"state": f"Failed with code {job.ended}.", "tone": "bad", "last": job.last}


async def proof_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    folder = sources.daemon.control.folder
    trend = await asyncio.to_thread(read_trend, folder)
    day = query.get("day", "")
    document = await asyncio.to_thread(proof_files.read_proof, folder, day) if day in proof_files.days(folder) else None
    if day and document is None:
        raise NoSuchPage(f"{day} has no proof")
    return current.values | {
        "figures": proof.figures(trend),
        "days": proof.day_rows(trend),
        "day_columns": proof.DAYS,
        "markets": proof.group_rows(trend.markets, proof.MARKETS),
        "market_columns": proof.MARKETS,
        "hours": proof.group_rows(trend.hours, proof.HOURS),
        "hour_columns": proof.HOURS,
        "document": document,
        "differences": [] if document is None else proof.difference_rows(document),
        "difference_columns": proof.DIFFERENCES,
    }


async def compare_values(sources: PageSources, query: Query) -> Data:
    current = await read(sources, query)
    try:
        answer = await sources.backtests.comparison(query.get("a", ""), query.get("b", ""))
    except NoRun as error:
        raise NoSuchPage(str(error)) from None
    return current.values | {"answer": answer, "rows": runs.compared(answer)}


OVERVIEW: Final = ("figures", "curve", "days", "positions", "recent", "health")
PAGES: Final = {
    page.name: page
    for page in (
        PageSpec("overview", "Overview", "overview", OVERVIEW, overview_values),
        PageSpec(
            "market",
            "Market",
            "market",
            ("markets", "legend", "summary", "candles", "position", "book", "fills"),
            market_values,
            (ACCOUNT, "coin", "interval"),
        ),
        PageSpec("trades", "Trades", "trades", ("closed",), trades_values),
        PageSpec("fleet", "Fleet", "fleet", ("fleet",), fleet_values),
        PageSpec("strategies", "Strategies", "strategies", ("strategies",), strategies_values),
        PageSpec("strategy", "Strategy", "strategy", ("strategies", "decisions", "refusals"), strategy_values),
        PageSpec("events", "Orders and events", "events", ("orders", "events"), events_values),
        PageSpec("explain", "Chain", "explain", (), explain_values),
        PageSpec("guardians", "Guardians", "guardians", ("deadman", "guardians", "events"), guardians_values),
        PageSpec("approvals", "Approvals", "approvals", ("waiting",), approvals_values),
        PageSpec("runs", "Backtests", "runs", ("job", "runs"), runs_values),
        PageSpec("proof", "Proof", "proof", (), proof_values),
        PageSpec("compare", "Two backtests", "compare", (), compare_values),
    )
}
