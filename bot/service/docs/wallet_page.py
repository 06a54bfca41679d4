"""The page that `webWatch` links to: a public, read-only view of one wallet, without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from bot.clock import datetime_of, iso
from bot.figures import LEFT, Column, Figure
from bot.number_text import usd
from bot.service.docs.html import page, text
from bot.service.docs.nav_chart import ValuePoint, chart
from bot.service.operations.wallets import WalletOperations
from bot.wire.queries import WalletTradesQuery, WatchQuery

REFRESH_SECONDS: Final = 30
# Puts the newest values into the page while somebody sees it. Opened details and the focus stay.
SCRIPT: Final = f"""\
const read = async () => {{
  if (document.hidden) return;
  const answer = await fetch(location.href).catch(() => null), main = document.querySelector("main");
  if (!answer?.ok) {{
    document.getElementById("state").textContent = "The service does not answer: the values are old.";
    return;
  }}
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (fresh.innerHTML === main.innerHTML) return;
  const links = [...main.querySelectorAll("a, summary")].indexOf(document.activeElement);
  const open = [...main.querySelectorAll("details")].map((part) => part.open);
  main.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((part, n) => {{ part.open = open[n]; }});
  fresh.querySelectorAll("a, summary")[links]?.focus({{ preventScroll: true }});
}};
setInterval(read, {REFRESH_SECONDS * 1000});
"""
TRADES_SHOWN: Final = 20
VALUES: Final = (Column("Time"), Column("Value", "usd", unit="USD"))
POSITIONS: Final = (
    Column("Market", "words"),
    Column("Side"),
    Column("Size", "size"),
    Column("Notional", "usd", unit="USD"),
    Column("Entry", "px"),
    Column("Mark", "px"),
    Column("Liquidation", "px"),
    Column("Funding", "gain", "higher", unit="USD"),
    Column("Unrealised", "gain", "higher", unit="USD"),
)
TRADES: Final = (
    Column("Time"),
    Column("Market", "words"),
    Column("What"),
    Column("Kind"),
    Column("Filled", "size"),
    Column("Price", "px"),
    Column("Fee", "cost", unit="USD"),
    Column("Realised", "gain", "higher", unit="USD"),
)
PARTS: Final = (Column("Part"), Column("Amount", "gain", "higher", unit="USD"))
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
        '<p class="soft">Public and read-only. Play money. Times are UTC, on the service\'s clock. Read again every'
        f' {REFRESH_SECONDS} seconds.<noscript> Without script: <a href="">read again</a>.</noscript>'
        ' <b id="state" role="status"></b></p></main>'
    )
    return page(f"{title} \u2014 portfolio", "".join(parts), script=SCRIPT)


def _figures(wallet: dict[str, Any], pnl: dict[str, Any]) -> str:
    rate = pnl["winRatePct"]
    figures = (
        Figure("Account value", wallet["accountValueUsd"], "usd", unit="USD"),
        Figure("Net profit and loss", pnl["netPnlUsd"], "gain", "higher", "USD"),
        Figure("Open positions", len(wallet["positions"]), "count"),
        Figure("Trades", pnl["trades"], "count"),
        Figure("Closed with a gain", rate, "share"),
    )
    cells = (
        f'<div class="figure"><span class="soft">{text(", ".join(filter(None, (figure.name, figure.unit))))}</span>'
        f"<b>{_toned(figure.shown, figure.tone)}</b></div>"
        for figure in figures
    )
    return f'<div class="figures">{"".join(cells)}</div>'


def _value(wallet: dict[str, Any], gains: dict[str, str], series: Sequence[dict[str, Any]], span: str) -> str:
    """The chart of one range, the links to the four ranges with the gain in each, and the values as a table."""
    here = ' aria-current="page"'
    links = "".join(
        f'<a href="?range={key}"{here if key == span else ""}>{words} {_gain(gains[key])} USD</a>'
        for key, words in RANGES.items()
    )
    points = [ValuePoint(row["ts"], Decimal(row["navUsd"])) for row in series]
    head = f'<h2>Account value</h2><div class="ranges">{links}</div>'
    if len(points) < 2:
        return f'{head}<p class="soft">The chart begins after the first step of this range.</p>'
    start = Decimal(wallet["accountValueUsd"]) - Decimal(gains[span])
    lowest, highest = min(point.usd for point in points), max(point.usd for point in points)
    summary = (
        f"{RANGES[span]}: from {usd(start)} to {usd(points[-1].usd)} USD, lowest {usd(lowest)}, highest {usd(highest)}"
    )
    rows = [(_time(point.at_ms), point.usd) for point in reversed(points)]
    return (
        f'{head}<figure class="chart">{chart(points, start, f"Account value. {summary}")}<figcaption'
        f' class="soft">{summary}. The dashed line is the value at the'
        f" start.</figcaption></figure><details><summary>Values as a table</summary>{_table(VALUES, rows)}</details>"
    )


def _positions(positions: Sequence[dict[str, Any]]) -> str:
    if not positions:
        return "<h2>Positions</h2><p>None open.</p>"
    amounts = ("size", "notionalUsd", "entryPx", "markPx", "liquidationPx", "fundingUsd", "unrealizedPnlUsd")
    rows = [
        (text(held["coin"]), f"{text(held['side'])} {text(held['leverage'])}x", *(held[name] for name in amounts))
        for held in positions
    ]
    return f"<h2>Positions</h2>{_table(POSITIONS, rows)}"


def _trades(body: dict[str, Any], query: WatchQuery) -> str:
    rows = [
        (
            _time(trade["ts"]),
            text(trade["symbol"]),
            f"{text(trade['intent'])} {text(trade['side'])}",
            text(trade["kind"].replace("_", " ")),
            *(trade[name] for name in ("filledSize", "avgPx", "feeUsd", "realizedPnlUsd")),
        )
        for trade in body["trades"]
    ]
    links = []
    if query.before is not None:
        links.append(f'<a href="?range={query.range}">Newest</a>')
    if body["nextBefore"] is not None:
        links.append(f'<a href="?range={query.range}&amp;before={body["nextBefore"]}">Older</a>')
    table = _table(TRADES, rows) if rows else "<p>None yet.</p>"
    return f"<h2>Trades</h2>{table}<p>{' &middot; '.join(links)}</p>"


def _result(pnl: dict[str, Any]) -> str:
    """The parts of the net result, each with the sign that it has in the sum."""
    rows = [
        (words, sign * Decimal(pnl[name]))
        for name, (words, sign) in RESULT.items()
        if sign * Decimal(pnl[name]) or name.endswith("PnlUsd")
    ]
    return f"<h2>Profit and loss</h2>{_table(PARTS, [*rows, ('<b>Net</b>', pnl['netPnlUsd'])])}"


def _table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> str:
    """Texts of `rows` are markup. On a narrow screen each row is a block, and each cell shows its column."""
    head = "".join(f"<th{_class_of(column)}>{text(column.title)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(_cell(column, value) for column, value in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    table = f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _cell(column: Column, value: Any) -> str:
    is_markup = column.form in LEFT
    markup = str(value) if is_markup else _toned(column.shown(value), column.tone(value))
    return f'<td data-column="{text(column.title)}"{_class_of(column)}>{markup}</td>'


def _class_of(column: Column) -> str:
    return "" if column.form in LEFT else ' class="num"'


def _toned(shown: str, tone: str) -> str:
    return text(shown) if tone == "flat" else f'<span class="{tone}">{text(shown)}</span>'


def _time(at_ms: int) -> str:
    return f'<time datetime="{text(iso(at_ms))}">{text(datetime_of(at_ms).strftime("%d %b %Y %H:%M:%S"))}</time>'


def _gain(amount: str) -> str:
    """A gain or loss with its sign, and a colour beside it."""
    gain = Figure("", amount, "gain", "higher")
    return _toned(gain.shown, gain.tone)
