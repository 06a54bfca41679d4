"""The page of closed trades: each figure, computed again from the events of the journal, is the one that it shows."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import date, timedelta
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bot.dashboard.page_models import PAGES
from bot.dashboard.pages import overview, trades
from bot.dashboard.values.reading import Reading
from bot.plain_text import csv_text
from bot.runtime.journal import queries, round_trips
from bot.runtime.journal.round_trips import COLUMNS, TYPES_WITH_STOPS, trips
from tests.dashboard.builders import Browser, Daemon, position, snapshot, status, strategy
from tests.faulty_port import FaultyPort
from tests.html_tables import tables_of
from tests.runtime.builders import Scripted, make_kernel, minutes

DAY = 86_400_000
# 2026-11-30 00:00 UTC, a Monday
MONDAY_MS = 1_795_996_800_000
# (market, side, hours of entry and exit, entry, exit, size, fee of each fill, funding, first stop, exit by, owner)
ROUND_TRIPS = (
    ("BTC", "long", (1, 5), 100, 106, 2, "0.5", "-0.25", 98, "take_profit", "trend"),
    ("ETH", "short", (2, 26), 50, 52, 4, "0.1", "0.05", 51, "stop_loss", "back"),
    ("BTC", "long", (30, 31), 100, 103, 1, "0.2", "0", None, "market", "trend"),
    ("BTC", "short", (49, 50), 120, 121, 1, "0.3", "0", 122, "market", "trend"),
    ("ETH", "long", (170, 180), 40, 45, 10, "0.4", "-1", 38, "take_profit", "back"),
)


def events() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for n, (market, side, hours, entry, exit_, size, fee, funding, stop, by, owner) in enumerate(ROUND_TRIPS):
        at = [MONDAY_MS + hour * 3_600_000 for hour in hours]
        fill = {"side": side, "size": str(size), "feeUsd": fee, "kind": "market"}
        gain = Decimal(size) * (exit_ - entry) * (1 if side == "long" else -1)
        made.append(
            {"type": "fill", "subtype": "entry", "coin": market, "ts": at[0], "idempotencyKey": f"{owner}-{n}"}
            | {"data": fill | {"px": str(entry), "positionSize": str(size), "tradeId": f"in{n}"}}
        )
        if stop is not None:
            armed = {"kind": "stop_loss", "triggerPx": str(stop), "tradeId": f"in{n}"}
            made.append({"type": "order", "subtype": "armed", "coin": market, "ts": at[0], "data": armed})
            # A stop that is moved later is not the first.
            moved = armed | {"triggerPx": str(entry)}
            made.append({"type": "order", "subtype": "armed", "coin": market, "ts": at[0], "data": moved})
        paid = {"amountUsd": funding}
        made.append({"type": "funding", "subtype": "paid", "coin": market, "ts": at[0], "data": paid})
        if by != "market":
            made.append({"type": "trigger", "subtype": by, "coin": market, "ts": at[1], "data": {"tradeId": f"out{n}"}})
        left = fill | {"px": str(exit_), "positionSize": "0", "tradeId": f"out{n}", "realizedPnlUsd": str(gain)}
        made.append({"type": "fill", "subtype": "exit", "coin": market, "ts": at[1], "data": left})
    return sorted(made, key=lambda event: event["ts"])


def closed() -> list[trades.ClosedTrade]:
    return trades.closed(trips(events()), lambda keys: [keys[0].partition("-")[0]])


def nets() -> list[tuple[str, str, int, Decimal, Decimal | None]]:
    """(owner, market, exit's day, result, R) of each round trip, by hand."""
    results = []
    for market, side, hours, entry, exit_, size, fee, funding, stop, _by, owner in ROUND_TRIPS:
        sign = 1 if side == "long" else -1
        net = Decimal(size) * (exit_ - entry) * sign - 2 * Decimal(fee) + Decimal(funding)
        risk = None if stop is None else Decimal(size) * (entry - stop) * sign
        results.append((owner, market, hours[1] // 24, net, None if not risk else net / risk))
    return results


def test_each_figure_is_the_one_of_the_events() -> None:
    shown = {figure.name: figure for figure in trades.figures(closed())}
    results = [net for *_, net, _ in nets()]
    multiples = [r for *_, r in nets() if r is not None]
    won, lost = [net for net in results if net > 0], [net for net in results if net < 0]
    costs = sum(2 * Decimal(row[6]) - Decimal(row[7]) for row in ROUND_TRIPS)
    assert shown["Closed result"].value == sum(results)
    assert shown["Closed result"].note == f"5 closed, {len(won)} won, {len(lost)} lost"
    assert shown["Win rate"].shown == f"{100 * len(won) / 5:.1f} %"
    assert shown["Profit factor"].shown == f"{sum(won) / -sum(lost):.2f}"
    assert shown["Expectancy"].value == sum(results) / 5
    assert shown["Closed costs"].shown == f"−{costs:.2f}"
    assert shown["Average R"].value == pytest.approx(float(sum(multiples) / len(multiples)))
    totals = [sum(results[: n + 1]) for n in range(5)]
    falls = [total - max([Decimal(0), *totals[: n + 1]]) for n, total in enumerate(totals)]
    assert shown["Deepest fall"].value == min(falls) < 0
    assert shown["Deepest fall"].tone == "flat", "a fall alone is neither good nor bad"


def test_r_is_over_the_first_stop_and_a_trade_without_one_has_none() -> None:
    assert [trade.trip.r_multiple for trade in closed()] == [r for *_, r in nets()]
    assert all(trip.stop_px is None for trip in trips(e for e in events() if e["type"] != "order"))


def test_the_excursions_are_those_of_the_recorded_extremes() -> None:
    events_, known = [event | {"id": f"evt_{n}"} for n, event in enumerate(events())], {}
    for event in events_:
        if event["subtype"] == "exit":
            known[event["id"]] = ("30", "130")
    shown = trades.closed(round_trips.with_extremes(trips(events_), known), lambda keys: keys[:1])
    heads = [column.head for column in trades.TRADES]
    for trade, (_, side, _, entry, _, _, _, _, stop, _, _) in zip(shown, ROUND_TRIPS, strict=True):
        cells = [text for text, _ in trades.row(trade)["cells"]]
        against, toward = (entry - 30, 130 - entry) if side == "long" else (130 - entry, entry - 30)
        risk = None if stop is None else abs(entry - stop)
        expected = ["–", "–"] if risk is None else [f"−{against / risk:.2f}", f"+{toward / risk:.2f}"]
        assert [cells[heads.index("MAE")], cells[heads.index("MFE")]] == expected
        assert {tone for text, tone in trades.row(trade)["cells"] if text in expected} == {"flat"}


def test_the_calendar_has_each_day_under_its_weekday_and_the_sum_of_each_week() -> None:
    november, december = (trades.calendar(closed(), month) for month in ("2026-11", "2026-12"))
    assert {len(week) for week in (*november, *december)} == {8}
    days: dict[int, Decimal] = {}
    for _, _, day, net, _ in nets():
        days[day] = days.get(day, Decimal(0)) + net
    # The first day of the events is the 30th of November, a Monday; the others are in December.
    assert november[-1][0].label == "30"
    assert november[-1][0].text == f"{days[0]:+.0f}"
    cells = {cell.day: (n % 7, cell) for week in december for n, cell in enumerate(week) if cell.day}
    for day, net in days.items():
        if day:
            weekday, cell = cells[date(2026, 12, day).isoformat()]
            assert weekday == date(2026, 12, day).weekday()
            assert cell.text == f"{net:+.0f}".replace("-", "−")
            assert cell.kind[0] == ("u" if net > 0 else "d")
    sums = [week[7].text for week in december]
    assert sums[0] == f"{sum(net for day, net in days.items() if 1 <= day <= 6):+.0f}".replace("-", "−")
    assert sums[1] == f"{days[7]:+.0f}"


def test_the_filters_leave_the_trades_that_the_csv_has() -> None:
    every, blank = closed(), dict.fromkeys((*trades.FILTERS, "day"), "") | {"range": "all"}
    now_ms = MONDAY_MS + 8 * DAY
    assert trades.chosen(every, blank, now_ms) == every
    mine = trades.chosen(every, blank | {"strategy": "trend", "side": "long"}, now_ms)
    assert [trade.market for trade in mine] == ["BTC", "BTC"]
    assert [trade.exit for trade in mine] == ["Target", "Strategy closed"]
    assert len(trades.chosen(every, blank | {"range": "7d"}, now_ms)) == 2
    assert trades.chosen(every, blank | {"day": "2026-12-03"}, now_ms) == []
    assert len(trades.chosen(every, blank | {"day": "2026-12-07"}, now_ms)) == 1
    with pytest.raises(ValueError, match="isoformat"):
        trades.chosen(every, blank | {"day": "soon"}, now_ms)
    rows = list(csv.DictReader(io.StringIO(csv_text(trades.csv_rows(mine), COLUMNS))))
    assert [Decimal(row["net_usd"]) for row in rows] == [trade.net for trade in mine]
    assert [row["first_stop_px"] for row in rows] == ["98", ""]
    evil = csv_text([dict.fromkeys(COLUMNS, "=1+1")], COLUMNS)
    assert ",=1" not in evil


async def test_the_page_lists_the_trades_of_the_journal_with_their_sources(tmp_path: Path) -> None:
    from bot.strategy import Bracket, Close, Open

    def decide(view: Any, _bar: Any) -> list[Any]:
        if view.position("BTC") is not None:
            return [Close("BTC")]
        return [Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=5))]

    venue = FaultyPort()
    kernel = make_kernel(venue, path=tmp_path / queries.FILE, strategies=[Scripted(decide, name="trend")])
    await kernel.recover()
    await minutes(kernel, venue, *["100", "101"] * 4)
    kernel.journal.flush()
    kernel.journal.close()
    with queries.opened(tmp_path) as db:
        known = [trip for trip in trips(queries.all_events(db, TYPES_WITH_STOPS)) if trip.closed_ms is not None]
    assert known
    answers = {"/status": status(), "/strategies": {"strategies": [strategy()]}, "/positions": {"positions": []}}
    browser = await Browser(Daemon(tmp_path, answers | {"/orders": {"orders": []}})).signed_in()
    page = (await browser.get("/trades")).text
    text = unescape(re.sub(r"<[^>]+>", " ", page))
    net = sum(trip.net_usd for trip in known)
    assert f"{net:+,.2f}".replace("-", "−") in text
    rows = next(rows for rows in tables_of(page) if rows[0][0] == "Market" and "R" in rows[0])
    assert len(rows) == len(known) + 1
    heads = rows[0]
    assert {row[heads.index("Strategy")] for row in rows[1:]} == {"trend"}
    for name in ("MAE, R", "MFE, R"):
        assert {row[heads.index(name)] for row in rows[1:]} == {"not known"}, "nobody has recorded the extremes"
    assert all(float(row[heads.index("First stop")].replace(",", "")) > 0 for row in rows[1:])
    sources = next(rows for rows in tables_of(page) if "Win rate" in rows[0])
    assert [row[1] for row in sources[1:]][:2] == ["trend", "BTC"]
    table = await browser.get("/data/trades.csv?strategy=trend")
    assert table.headers["content-disposition"] == 'attachment; filename="trades.csv"'
    assert len(table.text.splitlines()) == len(known) + 1
    for address in ("/trades?range=1y", "/trades?day=soon", "/trades?month=x", "/data/trades.csv?range=1y"):
        assert (await browser.get(address)).status_code == 404, address
    assert "No closed trade here" in (await browser.get("/trades?strategy=none")).text


def test_if_all_stops_hit_is_the_way_from_the_mark_to_each_stop() -> None:
    def figure(*positions: dict[str, Any]) -> Any:
        shown = overview.figures(snapshot(positions=list(positions)), None)
        return next(one for one in shown if one.name == "If all stops hit")

    long = position(size="0.5", mark_px=104.0, stop_px="98")
    short = position(market="ETH", side="short", size="2", mark_px=50.0, stop_px="53")
    both = figure(long, short)
    assert (both.shown, both.tone) == ("−9.00", "flat")
    assert both.note == "from now, −0.09 % of the account"
    assert figure(position(size="1", mark_px=104.0, stop_px="106")).shown == "+2.00", "a stop beyond the mark"
    assert (figure().shown, figure().note) == ("0.00", "no open position")
    trailing = figure(long, position(market="ETH", stop_px=None, trailing_stops=[{"id": "1", "active": True}]))
    assert (trailing.shown, trailing.note) == ("not known", "1 of 2 without a fixed stop")
    assert figure(position(protected=False)).shown == "not known"


async def test_an_open_page_of_trades_gets_each_new_trade_with_all_its_sums_at_once(tmp_path: Path) -> None:
    """Figures, calendar, sources and list come in one fragment, made of one reading of the journal."""
    from bot.strategy import Bracket, Close, Open

    def decide(view: Any, _bar: Any) -> list[Any]:
        if view.position("BTC") is not None:
            return [Close("BTC")]
        return [Open("BTC", "long", usd=200, bracket=Bracket(stop_pct=5))]

    venue = FaultyPort()
    kernel = make_kernel(venue, path=tmp_path / queries.FILE, strategies=[Scripted(decide, name="trend")])
    await kernel.recover()
    await minutes(kernel, venue, *["100", "101"] * 3)
    kernel.journal.flush()
    answers = {"/status": status(), "/strategies": {"strategies": [strategy()]}, "/positions": {"positions": []}}
    browser = await Browser(Daemon(tmp_path, answers | {"/orders": {"orders": []}})).signed_in()
    cookie = browser.http.cookies[browser.sign_in.cookie_name]
    updates = browser.dashboard.updates(PAGES["trades"], {"account": "0xabc"}, cookie)
    first = json.loads((await anext(updates))["data"])["fragments"]["closed"]
    assert (await browser.sources.daemon.closed_trades()).value is (await browser.sources.daemon.closed_trades()).value
    await minutes(kernel, venue, "100", "101")
    kernel.journal.flush()
    later: dict[str, str] = {}
    while "closed" not in later:
        later = json.loads((await anext(updates))["data"])["fragments"]
    counts: list[int] = []
    for shown in (first, later["closed"]):
        rows = next(rows for rows in tables_of(shown) if rows[0][0] == "Market" and "R" in rows[0])
        count = len(rows) - 1
        counts.append(count)
        text = unescape(re.sub(r"<[^>]+>", " ", shown))
        assert f"{count} closed, {count} won, 0 lost" in text
        results = [Decimal(row[rows[0].index("Result, USD")].lstrip("▲▼ ").replace("−", "-")) for row in rows[1:]]
        assert f"{sum(results):+,.2f}" in text
        sources = next(rows for rows in tables_of(shown) if "Win rate" in rows[0])
        assert {row[2] for row in sources[1:]} == {str(count)}
    assert counts[1] == counts[0] + 1
    await updates.aclose()
    kernel.journal.close()


def test_the_bars_and_the_week_of_the_overview_are_sums_of_the_trades_on_their_days() -> None:
    now_ms = MONDAY_MS + 8 * DAY + 3_600_000
    drawn, words = trades.by_day(closed(), now_ms)
    days: dict[int, Decimal] = {}
    for _, _, day, net, _ in nets():
        days[day] = days.get(day, Decimal(0)) + net
    gains = sum(total > 0 for total in days.values())
    signed = [f"{total:+,.2f}".replace("-", "−") for total in (max(days.values()), min(days.values()))]
    assert words == f"{gains} of 14 days with a gain. Best {signed[0]}, worst {signed[1]}."
    titles = re.findall(r"<title>(.*?)</title>", drawn)
    assert len(titles) == trades.DAYS
    expected = {(date(2026, 11, 30) + timedelta(days=day)): total for day, total in days.items()}
    for day, total in expected.items():
        text = f"{total:+,.2f}".replace("-", "−")
        assert f"{day.day} {day:%b}: {text}" in titles
    assert titles[-1] == "today: 0.00"
    assert drawn.count(" soft") == 2, "the bar of today and its legend"
    assert trades.by_day(closed(), now_ms + 30 * DAY) == ("", "")
    week = trades.of_week(closed(), now_ms)
    assert week.value == sum(total for day, total in days.items() if day >= 2)
    shown = [trade for trade in nets() if trade[2] >= 2]
    assert week.note.startswith(f"{len(shown)} trades, {100 * sum(t[3] > 0 for t in shown) / len(shown):.1f} % won")
    assert trades.of_week([], now_ms).note == "no trade"


def test_the_last_trades_of_the_overview_are_the_newest_of_the_list() -> None:
    newest = trades.newest(closed())
    assert [(one.market, one.result.value) for one in newest] == [
        (trade.market, trade.net) for trade in closed()[::-1][: trades.RECENT]
    ]
    assert newest[0].about == "back · held 10 h · +2.41 R", "10 * (45 - 40) - 0.8 - 1 over 10 * (40 - 38)"


def many(count: int) -> list[trades.ClosedTrade]:
    """Closed trades, one a minute, with results and R multiples in no order; each seventh has no first stop."""
    template, made = closed()[0], []
    for n in range(count):
        net, multiple = Decimal(n * 37 % 101 - 50), None if n % 7 == 0 else float(n * 53 % 89 - 40)
        made.append(template._replace(closed_ms=MONDAY_MS + n * 60_000, net=net, r_multiple=multiple))
    return made


def test_each_order_of_the_list_goes_over_all_pages_and_each_trade_stands_on_one() -> None:
    every = many(3 * trades.PAGE_ROWS + 4)
    expected = {
        "newest": every[::-1],
        "oldest": every,
        "best result": sorted(every, key=lambda trade: (-trade.net, -trade.closed_ms)),
        "worst result": sorted(every, key=lambda trade: (trade.net, -trade.closed_ms)),
    }
    for order in trades.SORTS:
        ordered = trades.in_order(every, order)
        pages, number = [], 1
        while number:
            page = trades.list_page(ordered, number)
            pages.append(page)
            number = page.after
        assert [len(page.rows) for page in pages] == [25, 25, 25, 4]
        assert [page.before for page in pages] == [0, 1, 2, 3]
        assert pages[-1].text == "76 to 79 of 79"
        assert [shown for page in pages for shown in page.rows] == [trades.row(trade) for trade in ordered]
        if order in expected:
            assert ordered == expected[order], order
        else:
            known = [trade.r_multiple for trade in ordered if trade.r_multiple is not None]
            assert known == sorted(known, reverse=order == "best R"), order
            assert all(trade.r_multiple is None for trade in ordered[len(known) :]), order
    assert trades.list_page(every, 99) == trades.list_page(every, 4), "the list got shorter while a person read it"
    assert (trades.list_page([], 1).rows, trades.list_page([], 1).after) == ([], 0)
    with pytest.raises(ValueError, match="page 0"):
        trades.list_page(every, 0)


async def test_a_page_of_the_list_has_the_sums_and_the_file_of_all_trades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = many(60)

    async def read() -> Reading[list[trades.ClosedTrade]]:
        return Reading(every)

    answers = {"/status": status(), "/strategies": {"strategies": [strategy()]}, "/positions": {"positions": []}}
    browser = await Browser(Daemon(tmp_path, answers | {"/orders": {"orders": []}})).signed_in()
    monkeypatch.setattr(browser.sources.daemon, "closed_trades", read)
    path, seen, sums = "/trades?strategy=trend&sort=worst+result", [], set()
    for _ in range(3):
        page = (await browser.get(path)).text
        sums.add(page.partition('<dl class="figures')[2].partition("</dl>")[0])
        rows = next(rows for rows in tables_of(page) if rows[0][0] == "Market" and "R" in rows[0])
        seen += [row[rows[0].index("Result, USD")] for row in rows[1:]]
        following = re.search(r'id="next" href="([^"#]+)', page)
        path = unescape(following[1]) if following else ""
    assert not path
    assert seen == [trades.Figure("", net, "gain").shown for net in sorted(trade.net for trade in every)]
    assert len(sums) == 1
    assert "60 closed" in sums.pop()
    table = await browser.get("/data/trades.csv?strategy=trend&sort=worst+result&page=2")
    assert len(table.text.splitlines()) == 61
    for wrong, word in (
        ("page=0", "page is a number"),
        ("page=x", "page is a number"),
        ("sort=size", "sort is one of newest"),
    ):
        answer = await browser.get(f"/trades?{wrong}")
        assert answer.status_code == 404
        assert word in answer.text
