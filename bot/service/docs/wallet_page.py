"""The page that `webWatch` links to: a public, read-only view of one wallet, without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from bot.clock import datetime_of, iso
from bot.number_text import DASH, MINUS, on_page, px
from bot.service.docs.html import page, text
from bot.service.docs.nav_chart import ValuePoint, chart
from bot.service.operations.wallets import WalletOperations
from bot.wire.queries import WalletTradesQuery, WatchQuery

REFRESH_SECONDS: Final = 30
TRADES_SHOWN: Final = 20
NUMERIC: Final = frozenset(
    {
        "Size",
        "Notional",
        "Entry",
        "Mark",
        "Liquidation",
        "Funding",
        "Unrealised",
        "Filled",
        "Price",
        "Fee",
        "Realised",
        "Amount",
        "Value",
    }
)
RANGES: Final = {"1d": "1 day", "7d": "7 days", "30d": "30 days", "all": "All"}

# Amount of the account's result -> (its words, its sign in the net result).
RESULT: Final = {
    "realizedPnlUsd": ("Realised", 1),
    "unrealizedPnlUsd": ("Unrealised", 1),
    "feesUsd": ("Fees", -1),
    "fundingUsd": ("Funding", 1),
    "marginLostUsd": ("Margin lost in liquidations", -1),
    "absorbedUsd": ("Losses that the service paid", 1),
}


def watch(wallets: WalletOperations, address: str, query: WatchQuery) -> str:
    """The page of one address. Refused if the address is malformed."""
    wallet = wallets.wallet_body(address)
    name = str(wallet["address"])
    title = wallet["nickname"] or f"{name[:6]}\u2026{name[-4:]}"
    parts = [
        '<main class="watch">',
        f"<h1>{text(title)}</h1>",
        (
            f'<p class="soft"><code>{text(name)}</code> &middot; {text(wallet["environment"])} &middot;'
            f" {_time(wallet['updatedAt'])}</p>"
        ),
    ]
    if not wallet["registered"]:
        parts.append("<p>This address has no account on this service.</p>")
    else:
        pnl = wallets.wallet_pnl_body(name)
        series = wallets.wallet_nav_body(name, query.range)["series"]
        trades = wallets.wallet_trades_body(name, WalletTradesQuery(limit=TRADES_SHOWN, before=query.before))
        parts += [
            _figures(wallet, pnl),
            _value(wallet, pnl["ranges"], series, query.range),
            _positions(wallet["positions"]),
            _result(pnl),
            _trades(trades, query),
        ]
    parts.append(
        '<p class="soft">Public and read-only. Play money. Times are UTC, on the service\'s clock. Refreshes every'
        f" {REFRESH_SECONDS} seconds.</p></main>"
    )
    return page(f"{title} \u2014 portfolio", "".join(parts), refresh_seconds=REFRESH_SECONDS)


def _figures(wallet: dict[str, Any], pnl: dict[str, Any]) -> str:
    rate = pnl["winRatePct"]
    cells = [
        ("Account value", _usd(wallet["accountValueUsd"])),
        ("Net profit and loss", _gain(pnl["netPnlUsd"])),
        ("Open positions", text(len(wallet["positions"]))),
        ("Trades", text(pnl["trades"])),
        ("Closed with a gain", DASH if rate is None else f"{text(rate)} %"),
    ]
    figures = "".join(
        f'<div class="figure"><span class="soft">{label}</span><b>{value}</b></div>' for label, value in cells
    )
    return f'<div class="figures">{figures}</div>'


def _value(wallet: dict[str, Any], gains: dict[str, str], series: Sequence[dict[str, Any]], span: str) -> str:
    """The chart of one range, the links to the four ranges with the gain in each, and the values as a table."""
    here = ' aria-current="page"'
    links = "".join(
        f'<a href="?range={key}"{here if key == span else ""}>{words} {_gain(gains[key])}</a>'
        for key, words in RANGES.items()
    )
    points = [ValuePoint(one["ts"], Decimal(one["navUsd"])) for one in series]
    head = f'<h2>Account value</h2><div class="ranges">{links}</div>'
    if len(points) < 2:
        return f'{head}<p class="soft">The chart begins after the first step of this range.</p>'
    start = Decimal(wallet["accountValueUsd"]) - Decimal(gains[span])
    lowest, highest = min(point.usd for point in points), max(point.usd for point in points)
    summary = (
        f"{RANGES[span]}: from {_usd(start)} to {_usd(points[-1].usd)}, lowest {_usd(lowest)}, highest {_usd(highest)}"
    )
    rows = [[("Time", _time(point.at_ms)), ("Value", _usd(point.usd))] for point in reversed(points)]
    return (
        f'{head}<figure class="chart">{chart(points, start, f"Account value. {summary}")}<figcaption'
        f' class="soft">{summary}. The dashed line is the value at the'
        f" start.</figcaption></figure><details><summary>Values as a table</summary>{_table(rows)}</details>"
    )


def _positions(positions: Sequence[dict[str, Any]]) -> str:
    if not positions:
        return "<h2>Positions</h2><p>None open.</p>"
    rows = [
        [
            ("Market", text(held["coin"])),
            ("Side", f"{text(held['side'])} {text(held['leverage'])}x"),
            ("Size", text(held["size"])),
            ("Notional", _usd(held["notionalUsd"])),
            ("Entry", _px(held["entryPx"])),
            ("Mark", _px(held["markPx"])),
            ("Liquidation", _px(held["liquidationPx"])),
            ("Funding", _gain(held["fundingUsd"])),
            ("Unrealised", _gain(held["unrealizedPnlUsd"])),
        ]
        for held in positions
    ]
    return f"<h2>Positions</h2>{_table(rows)}"


def _trades(body: dict[str, Any], query: WatchQuery) -> str:
    rows = [
        [
            ("Time", _time(made["ts"])),
            ("Market", text(made["symbol"])),
            ("What", f"{text(made['intent'])} {text(made['side'])}"),
            ("Kind", text(made["kind"].replace("_", " "))),
            ("Filled", text(made["filledSize"])),
            ("Price", _px(made["avgPx"])),
            ("Fee", _cost(made["feeUsd"])),
            ("Realised", _gain(made["realizedPnlUsd"])),
        ]
        for made in body["trades"]
    ]
    links = []
    if query.before is not None:
        links.append(f'<a href="?range={query.range}">Newest</a>')
    if body["nextBefore"] is not None:
        links.append(f'<a href="?range={query.range}&amp;before={body["nextBefore"]}">Older</a>')
    table = _table(rows) if rows else "<p>None yet.</p>"
    return f"<h2>Trades</h2>{table}<p>{' &middot; '.join(links)}</p>"


def _result(pnl: dict[str, Any]) -> str:
    """The parts of the net result, each with the sign that it has in the sum."""
    rows = [
        [("Part", words), ("Amount", _gain(str(sign * Decimal(pnl[name]))))]
        for name, (words, sign) in RESULT.items()
        if sign * Decimal(pnl[name]) or name.endswith("PnlUsd")
    ]
    total = [("Part", "<b>Net</b>"), ("Amount", f"<b>{_gain(pnl['netPnlUsd'])}</b>")]
    return f"<h2>Profit and loss</h2>{_table([*rows, total])}"


def _table(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Rows of (column, markup). On a narrow screen each row is a block, and each cell shows its column."""
    head = "".join(f"<th{_class_of(column)}>{text(column)}</th>" for column, _ in rows[0])
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table class="cards"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (f'<td data-column="{text(column)}"{_class_of(column)}>{markup}</td>' for column, markup in row)


def _class_of(column: str) -> str:
    return ' class="num"' if column in NUMERIC else ""


def _time(at_ms: int) -> str:
    return f'<time datetime="{text(iso(at_ms))}">{text(datetime_of(at_ms).strftime("%d %b %Y %H:%M:%S"))}</time>'


def _px(price: str | None) -> str:
    return DASH if price is None else text(on_page(px(price)))


def _usd(amount: str | Decimal | None, *, signed: bool = False) -> str:
    """An amount rounded to cents for display."""
    if amount is None:
        return DASH
    value = Decimal(amount)
    sign = MINUS if value < 0 else "+" if signed and value > 0 else ""
    return f"{sign}${abs(value):,.2f}"


def _cost(amount: str | None) -> str:
    """What was paid, by its effect on the account."""
    return _usd(None if amount is None else -Decimal(amount), signed=True)


def _gain(amount: str | None) -> str:
    """A gain or loss with its sign, and a colour beside it."""
    tone = "" if amount is None or not Decimal(amount) else "down" if Decimal(amount) < 0 else "up"
    return f'<span class="{tone}">{_usd(amount, signed=True)}</span>'
