"""Each figure of the page Trades, and what the overview shows of closed trades, worked out again from the file of the
journal.

The second computation reads the file with sqlite3 alone and shares no code with the dashboard. A test compares whole
parts of a page with it, so that a figure that it lacks fails too.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from html import unescape
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.queries import FILE
from tests.dashboard.builders import NOW_MS, Browser, Daemon, order, position, status, strategy
from tests.html_tables import tables_of

HOUR_MS = 3_600_000
TRADES = 70
EXITS = {"stop_loss": "Stop", "take_profit": "Target", "market": "Strategy closed", "liquidation": "Liquidation"}
CHOICES = (
    {},
    {"strategy": "trend"},
    {"market": "ETH"},
    {"side": "short"},
    {"exit": "Target"},
    {"range": "7d"},
    {"range": "today"},
    {"market": "BTC", "side": "long", "range": "30d"},
    {"strategy": "back", "exit": "Stop", "sort": "worst result"},
    {"sort": "best R"},
)


def write(folder: Path) -> None:
    """Seventy trades of three markets and two strategies in 41 days: parts of entries and exits, moved stops, trades
    without a stop or an owner, funding, fees, and one liquidation.
    """
    chance = Random(11)
    journal = open_journal(folder / FILE, address="0xabc")
    rows = 0

    def event(kind: str, sub: str, ts: int, coin: str, data: dict[str, object], key: str | None = None) -> None:
        nonlocal rows
        rows += 1
        told = {"id": f"evt_{rows:012d}", "type": kind, "subtype": sub, "ts": ts, "coin": coin, "data": data}
        told |= {"epoch": 0, "idempotencyKey": key}
        row = (told["id"], 0, kind, sub, ts, coin, key, json.dumps(told))
        journal.database.execute(
            "INSERT INTO events (id, epoch, type, subtype, ts, coin, idempotency_key, payload)"
            " VALUES (?,?,?,?,?,?,?,?)",
            row,
        )

    with journal.database.transaction():
        for n in range(TRADES):
            coin, side, owner = (
                ("BTC", "ETH", "SOL")[n % 3],
                ("long", "short")[n % 2],
                ("trend", "back", None)[n % 5 % 3],
            )
            at, sign = NOW_MS - (TRADES - n) * 14 * HOUR_MS, 1 if side == "long" else -1
            key = f"key{n}"
            if owner is not None:
                intent = (key, owner, coin, "open", "direct", "bar", n, "a", 0, b"{}", "", at, at, "0", "accepted", at)
                names = (
                    "id, strategy, market, action, path, cause, ordinal, leg, epoch, body, body_sha256, not_after_ms"
                )
                marks = ",".join("?" * len(intent))
                sql = f"INSERT INTO intents ({names}, opened_ms, notional_usd, state, moved_ms) VALUES ({marks})"
                journal.database.execute(sql, intent)
            px, parts = Decimal(100 + n), (Decimal(1), Decimal(2)) if n % 4 == 0 else (Decimal(3),)
            stop, size = px - sign * 2, Decimal(0)
            for k, part in enumerate(parts):
                size += part
                fill = {"side": side, "size": str(part), "px": str(px + k), "feeUsd": "0.11", "kind": "market"}
                event("fill", "entry", at + k, coin, fill | {"positionSize": str(size), "tradeId": f"in{n}-{k}"}, key)
                if k == 0 and n % 6:
                    for level in (stop, px):
                        armed = {"kind": "stop_loss", "triggerPx": str(level), "tradeId": f"in{n}-0"}
                        event("order", "armed", at, coin, armed)
            event("funding", "paid", at + 2, coin, {"amountUsd": str(Decimal(n % 5 - 2) / 10)})
            by = "liquidation" if n == 33 else ("stop_loss", "take_profit", "market")[chance.randrange(3)]
            gain = Decimal(chance.randrange(-400, 500)) / 100
            ended = at + chance.randrange(1, 13) * HOUR_MS
            if by == "liquidation":
                data = {
                    "size": "3",
                    "px": str(px - sign),
                    "tradeId": f"out{n}",
                    "realizedPnlUsd": "-9",
                    "feeUsd": "0.3",
                }
                event("liquidation", "full", ended, coin, data | {"marginLostUsd": "1.25"})
                continue
            if by != "market":
                event("trigger", by, ended, coin, {"tradeId": f"out{n}"})
            for k, (part, left) in enumerate((("1", "2"), ("2", "0"))):
                fill = {"side": side, "size": part, "px": str(px + sign * gain), "feeUsd": "0.07", "kind": "market"}
                fill |= {"positionSize": left, "tradeId": f"out{n}", "realizedPnlUsd": str(gain * int(part))}
                event("fill", "exit", ended + k, coin, fill)
    journal.close()


@dataclass
class Closed:
    """A trade of the second computation."""

    market: str
    side: str
    opened_ms: int
    strategy: str = "not ours"
    size: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)
    left: Decimal = Decimal(0)
    got: Decimal = Decimal(0)
    net: Decimal = Decimal(0)
    costs: Decimal = Decimal(0)
    stop: Decimal | None = None
    risk: Decimal = Decimal(0)
    exit: str = ""
    closed_ms: int = 0

    @property
    def r(self) -> Decimal | None:
        return self.net / self.risk if self.risk > 0 else None

    @property
    def day(self) -> date:
        return datetime.fromtimestamp(self.closed_ms // 1000, UTC).date()


def read(folder: Path) -> list[Closed]:
    """The closed trades in the file, in the order of their exits."""
    with closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as db:
        owners = dict(db.execute("SELECT id, strategy FROM intents"))
        told = [json.loads(row[0]) for row in db.execute("SELECT payload FROM events ORDER BY seq")]
    now, causes, done = {}, {}, []
    for event in told:
        coin, kind, data = event["coin"], event["type"], event["data"]
        money = {
            name: Decimal(data.get(name) or 0) for name in ("feeUsd", "realizedPnlUsd", "marginLostUsd", "amountUsd")
        }
        if kind == "trigger":
            causes[data["tradeId"]] = event["subtype"]
            continue
        trade = now.get(coin)
        if (kind, event["subtype"]) == ("fill", "entry"):
            trade = now.setdefault(coin, Closed(coin, data["side"], event["ts"]))
            trade.strategy = owners.get(event["idempotencyKey"], "not ours")
            trade.size += Decimal(data["size"])
            trade.spent += Decimal(data["size"]) * Decimal(data["px"])
        assert trade is not None
        trade.costs += money["feeUsd"] - money["amountUsd"]
        trade.net += money["realizedPnlUsd"] - money["feeUsd"] - money["marginLostUsd"] + money["amountUsd"]
        if kind == "order" and trade.stop is None:
            trade.stop = Decimal(data["triggerPx"])
            trade.risk = abs(trade.spent - trade.size * trade.stop)
        if kind == "liquidation" or event["subtype"] == "exit":
            trade.left += Decimal(data["size"])
            trade.got += Decimal(data["size"]) * Decimal(data["px"])
            trade.exit = EXITS["liquidation" if kind == "liquidation" else causes.get(data["tradeId"], "market")]
            if trade.left == trade.size:
                trade.closed_ms = event["ts"]
                done.append(now.pop(coin))
    return sorted(done, key=lambda one: one.closed_ms)


def money(value: Decimal | float, places: int = 2) -> str:
    """A gain as a page shows it."""
    text = f"{round(Decimal(value), places):+,.{places}f}".replace("-", "−")
    return text if re.search("[1-9]", text) else text[1:]


def price(value: Decimal) -> str:
    """A price between 100 and 1000: six digits, and at least two decimals."""
    text = f"{value:.3f}"
    return text.removesuffix("0")


def chosen(trades: list[Closed], choice: dict[str, str]) -> list[Closed]:
    days = {"today": 1, "7d": 7, "30d": 30}.get(choice.get("range", ""), 10**4)
    first = datetime.fromtimestamp(NOW_MS / 1000, UTC).date() - timedelta(days=days - 1)
    named = [(name, choice[name]) for name in ("strategy", "market", "side", "exit") if name in choice]
    return [one for one in trades if one.day >= first and all(getattr(one, name) == text for name, text in named)]


def parts(trades: list[Closed]) -> tuple[list[Decimal], list[Decimal], list[Decimal]]:
    nets = [one.net for one in trades]
    return nets, [net for net in nets if net > 0], [net for net in nets if net < 0]


def figures(trades: list[Closed]) -> dict[str, tuple[str, str]]:
    """Name -> value and note of each figure at the top of the page Trades."""
    nets, won, lost = parts(trades)
    multiples = [one.r for one in trades if one.r is not None]
    costs = sum(one.costs for one in trades)
    gross = sum(nets) + costs
    totals = [sum(nets[: n + 1]) for n in range(len(nets))]
    fall = min(total - max([Decimal(0), *totals[: n + 1]]) for n, total in enumerate(totals))
    means = [f"{word} {money(sum(some) / len(some))}" for word, some in (("win", won), ("loss", lost)) if some]
    share = f", {100 * costs / gross:.1f} % of gross" if gross > 0 else ""
    return {
        "Closed result, USD": (money(sum(nets)), f"{len(nets)} closed, {len(won)} won, {len(lost)} lost"),
        "Win rate": (f"{100 * len(won) / len(nets):.1f} %", "after costs"),
        "Profit factor": (
            f"{sum(won) / -sum(lost):.2f}" if lost else "–",
            f"won over lost; average {', '.join(means)}",
        ),
        "Average R": (
            f"{money(sum(multiples) / len(multiples))} R" if multiples else "–",
            f"{len(multiples)} trades with a first stop",
        ),
        "Expectancy, USD": (money(sum(nets) / len(nets)), "a trade"),
        "Closed costs, USD": (money(-costs), f"fees and funding{share}"),
        "Deepest fall, USD": (money(fall), "of closed profit, added up"),
    }


def plain(markup: str) -> str:
    return " ".join(re.sub("[▲▼↑↓]", "", unescape(re.sub(r"<[^>]+>", " ", markup))).split())


def shown_figures(page: str) -> dict[str, tuple[str, str]]:
    found = re.findall(r'<dt>(.*?)</dt><dd><span class="big">(.*?)</span><span class="note">(.*?)</span></dd>', page)
    return {plain(name): (plain(value), plain(note)) for name, value, note in found}


def sources(trades: list[Closed]) -> list[list[str]]:
    """The rows by strategy, market, side and exit: the best source of each group first."""
    rows: list[list[str]] = []
    for name in ("strategy", "market", "side", "exit"):
        groups: dict[str, list[Closed]] = defaultdict(list)
        for one in trades:
            groups[getattr(one, name)].append(one)
        ordered = sorted(groups.items(), key=lambda item: (-sum(one.net for one in item[1]), item[0]))
        for n, (source, some) in enumerate(ordered):
            nets, won, _ = parts(some)
            multiples = [one.r for one in some if one.r is not None]
            mean = f"{money(sum(multiples) / len(multiples))} R" if multiples else "–"
            costs = money(-sum(one.costs for one in some))
            won_share = f"{100 * len(won) / len(nets):.1f} %"
            rows.append(
                ["" if n else name.capitalize(), source, str(len(some)), won_share, mean, costs, money(sum(nets)), ""]
            )
    return rows


def by_day(trades: Iterable[Closed]) -> dict[date, list[Decimal]]:
    days: dict[date, list[Decimal]] = defaultdict(list)
    for one in trades:
        days[one.day].append(one.net)
    return days


def calendar(trades: list[Closed], month: str) -> list[list[str]]:
    """The weeks of a month: day, whole profit and count in each cell, and the sum of the week."""
    days = {day: nets for day, nets in by_day(trades).items() if day.isoformat()[:7] == month}
    first = date.fromisoformat(f"{month}-01")
    day, weeks = first - timedelta(days=first.weekday()), []

    def cell(label: str, nets: list[Decimal]) -> str:
        count = f"{len(nets)} trade{'s' * (len(nets) != 1)}" if nets else ""
        return "".join(filter(None, (label, money(sum(nets), 0) if nets else "", count)))

    while day <= first or day.isoformat()[:7] == month:
        week = [day + timedelta(days=n) for n in range(7)]
        cells = [cell(str(one.day) if one.isoformat()[:7] == month else "", days.get(one, [])) for one in week]
        weeks.append([*cells, cell("", [net for one in week for net in days.get(one, [])])])
        day += timedelta(days=7)
    return weeks


def listed(trades: list[Closed], order: str) -> list[list[str]]:
    """The rows of the list on all its pages, without what depends on the forms of instants and durations."""
    keys: dict[str, Callable[[Closed], Any]] = {
        "newest": lambda trade: -trade.closed_ms,
        "worst result": lambda trade: (trade.net, -trade.closed_ms),
        "best R": lambda trade: (trade.r is None, -(trade.r or 0), -trade.closed_ms),
    }
    rows = []
    for trade in sorted(trades, key=keys[order]):
        px = [price(usd / size) for usd, size in ((trade.spent, trade.size), (trade.got, trade.left))]
        first_stop = "–" if trade.stop is None else f"{trade.stop:,.2f}"
        multiple = "–" if trade.r is None else money(trade.r)
        name, excursions = f"{trade.market} {trade.side}", ("not known", "not known")
        amounts = money(-trade.costs), money(trade.net), multiple
        rows.append([name, trade.strategy, f"{trade.size:f}", *px, trade.exit, first_stop, *excursions, *amounts])
    return rows


async def signed_in(folder: Path, **more: object) -> Browser:
    answers = {"/status": status(), "/positions": {"positions": []}, "/orders": {"orders": []}}
    return await Browser(Daemon(folder, answers | {"/strategies": {"strategies": [strategy()]}} | more)).signed_in()


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(choice.values()) or "all")
async def test_every_figure_of_the_page_trades_is_that_of_the_journals_file(
    tmp_path: Path, choice: dict[str, str]
) -> None:
    write(tmp_path)
    browser = await signed_in(tmp_path)
    every = read(tmp_path)
    assert len(every) == TRADES
    trades = chosen(every, choice)
    path, rows = f"/trades?{urlencode(choice)}", []
    first = (await browser.get(path)).text
    if not trades:
        assert shown_figures(first) == {}
        return
    while path:
        page = (await browser.get(path)).text
        assert shown_figures(page) == figures(trades)
        table = next(rows for rows in tables_of(page) if rows[0][0] == "Market")
        rows += table[1:]
        following = re.search(r'id="next" href="([^"#]+)', page)
        path = unescape(following[1]) if following else ""
    cells = [plain(" ".join(row[:1])) for row in rows]
    shown = [[name, row[1], *row[4:-1]] for name, row in zip(cells, rows, strict=True)]
    assert shown == listed(trades, choice.get("sort", "newest"))
    tables = tables_of(first)
    assert next(rows for rows in tables if "Win rate" in rows[0])[1:] == sources(trades)
    everyday = {name: text for name, text in choice.items() if name not in ("range", "sort")}
    month = max(one.day for one in every).isoformat()[:7]
    for name in (month, "2026-10"):
        page = (await browser.get(f"/trades?{urlencode(choice | {'month': name})}")).text
        weeks = next(rows for rows in tables_of(page) if rows[0][0] == "Mon")[1:]
        assert weeks == calendar(chosen(every, everyday), name)
        sums = [sum(nets) for day, nets in by_day(chosen(every, everyday)).items() if day.isoformat()[:7] == name]
        gains, days = sum(net > 0 for net in sums), f"{len(sums)} day{'s' * (len(sums) != 1)}"
        words = f"{gains} of {days} with trades ended with a gain. Best {money(max(sums))}, worst {money(min(sums))}."
        assert f'</table><p class="empty">{words}</p>' in page
    legend = re.search(r'<h2 id="profit-title">.*?<ul class="keys"[^>]*>(.*?)</ul>', first, re.DOTALL)
    names = sorted({one.strategy for one in trades})
    lines = [("all", trades), *((name, [one for one in trades if one.strategy == name]) for name in names)]
    if len(trades) > 1:
        assert legend is not None
        expected = [f"{name} {money(sum(parts(some)[0]))}" for name, some in (lines if len(names) > 1 else lines[:1])]
        assert [plain(key) for key in re.findall("<li>(.*?)</li>", legend[1])] == expected
        assert f'aria-label="Closed profit added up: {money(sum(parts(trades)[0]))} USD"' in first
    multiples = [one.r for one in trades if one.r is not None]
    mean = f">mean {money(sum(multiples) / len(multiples))} R<" if multiples else "No closed trade had a first stop."
    assert mean in first
    histogram = first.partition('aria-label="Histogram of R multiples"')[2].partition("</svg>")[0]
    bars = re.findall(r"<title>(\S+) to (\S+) R: (\d+)</title>", histogram)
    assert sum(int(count) for _, _, count in bars) == len(multiples)
    for low, high, count in bars:
        edges = [Decimal(text.replace("−", "-").replace(",", "")) for text in (low, high)]
        assert int(count) == sum(edges[0] <= multiple < edges[1] for multiple in multiples), (low, high)


async def test_what_the_overview_shows_of_closed_trades_and_stops_is_that_of_the_file(tmp_path: Path) -> None:
    write(tmp_path)
    held = [
        position(size="0.5", mark_px=104.0, stop_px="98"),
        position(market="ETH", side="short", size="2", mark_px=50.0, stop_px="53", unrealized_usd=-1.5),
    ]
    more = {"/positions": {"positions": held}, "/orders": {"orders": [order()]}}
    browser = await signed_in(tmp_path, **more | {"/status": status(positions=2, orders=1)})
    page, every = (await browser.get("/")).text, read(tmp_path)
    week = chosen(every, {"range": "7d"})
    nets, won, lost = parts(week)
    rate = f"{100 * len(won) / len(week):.1f} % won"
    loss = Decimal("0.5") * (98 - 104) + 2 * (50 - 53)
    exposure = Decimal("0.5") * 104 + 2 * 50
    assert shown_figures(page) == {
        "Account value, USD": ("10,000.00", ""),
        "Today, USD": ("0.00", "0.00 % since 00:00 UTC"),
        "Total, USD": ("0.00", "net of fees and funding"),
        "Open profit, USD": ("+0.50", "2 open positions"),
        "Exposure, USD": (f"{exposure:.2f}", f"{exposure / 10_000:.2f}× the account"),
        "If all stops hit, USD": (money(loss), f"from now, {money(loss / 100)} % of the account"),
        "Margin used, USD": ("1,000.00", "10.0 %; 9,000.00 free"),
        "Closed, 7 days, USD": (
            money(sum(nets)),
            f"{len(week)} trades, {rate}, profit factor {sum(won) / -sum(lost):.2f}",
        ),
    }
    days, today = by_day(every), datetime.fromtimestamp(NOW_MS / 1000, UTC).date()
    chart = page.partition('id="live-days"')[2].partition("</section>")[0]
    last = [today - timedelta(days=n) for n in range(13, -1, -1)]
    names = {day: "today" if day == today else f"{day.day} {day:%b}" for day in last}
    assert re.findall("<title>(.*?)</title>", chart) == [
        f"{names[day]}: {money(sum(days.get(day, []), Decimal(0)))}" for day in last
    ]
    results = page.partition('id="last-trades-title"')[2].partition("</section>")[0]
    shown = [
        plain(text)
        for text in re.findall(r'class="result">(.*?)</span></span>|class="result">(.*?)</span>', results)
        for text in [next(filter(None, text))]
    ]
    assert shown == [money(one.net) for one in every[::-1][:5]]
    trend = [one.net for one in every if one.strategy == "trend"]
    assert f'aria-label="Closed profit of trend, added up: {money(sum(trend))} USD"' in page
