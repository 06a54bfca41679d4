"""One market: candles with volume, the indicators that a strategy declares, fills, the lines of stop and targets,
the order book.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bot.dashboard.pages.overview import targets_of
from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import number
from bot.dashboard.values.snapshot import DaemonSnapshot
from bot.dashboard.values.tables import TableRows
from bot.errors import StrategyError
from bot.figures import Column
from bot.strategy.indicator_library import series_of
from bot.strategy.indicators import SOURCES, Columns, Described
from bot.wire import INTERVAL_MS, Candle
from bot.wire.market import BookResult
from bot.wire.resources import Market

Data = Mapping[str, Any]

# The colours of indicators. A fifth has the first one's again.
COLOURS: Final = 4
# The levels of each side of the book.
LEVELS: Final = 10
# newest, on one chart
FILLS_MAX: Final = 300
# candles in the table beside the chart
ROWS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class PriceLine:
    """A horizontal line: what it stands for, and its price."""

    # entry, stop, target, liquidation, limit
    kind: str
    px: float
    text: str


@dataclass(frozen=True, slots=True)
class Overlay:
    """An indicator: its name in the strategy, and a value for each candle. `pane` 0 is that of the candles."""

    name: str
    label: str
    pane: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class LegendRow:
    label: str
    last: str
    colour: int


@dataclass(frozen=True, slots=True)
class FillMark:
    at_ms: int
    px: float
    # bought or sold
    side: str
    text: str


@dataclass(frozen=True, slots=True)
class BookRow:
    px: str
    size: str
    total: str
    # The part of the deepest level, in percent.
    part: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A market in the list: with a position or a strategy first."""

    coin: str
    mark: str
    change: str
    has_position: bool


def listed(snapshot: DaemonSnapshot, markets: Sequence[Market]) -> TableRows[Listed]:
    """The markets of the strategies and positions; without a daemon, all of the service."""
    used = [coin for strategy in (snapshot.status or {}).get("strategies", ()) for coin in strategy["markets"]]
    held = {position["market"] for position in snapshot.positions}
    known = {market.coin: market for market in markets}
    coins = list(dict.fromkeys([*sorted(held), *used])) or list(known)

    def row(coin: str) -> Listed:
        market = known.get(coin)
        change = None if market is None else market.change24h_pct
        mark = formatting.NOT_KNOWN if market is None else formatting.px(market.mark_px)
        return Listed(coin, mark, formatting.pct(change), coin in held)

    return TableRows(coins, row)


def intervals_of(coin: str, snapshot: DaemonSnapshot) -> str:
    """The interval that the market's strategy decides on; else 1m."""
    for strategy in (snapshot.status or {}).get("strategies", ()):
        if coin in strategy["markets"] and strategy["interval"] in INTERVAL_MS:
            return str(strategy["interval"])
    return "1m"


def overlays(coin: str, candles: Sequence[Candle], strategies: Sequence[Data], interval: str = "1m") -> list[Overlay]:
    """The declared indicators of each strategy of the market, over these candles of `interval`.

    A running candle counts as if it closed now. An indicator of a shorter interval than that of the candles is left
    out.
    """
    lines = ([float(getattr(candle, name)) for candle in candles] for name in SOURCES)
    columns = Columns._make([*lines, [candle.ts + INTERVAL_MS[interval] for candle in candles]])
    # Pane 1 has the volume.
    drawn, pane = list[Overlay](), 2
    several = sum(coin in strategy["markets"] for strategy in strategies) > 1
    for strategy in strategies:
        if coin not in strategy["markets"]:
            continue
        for declared in strategy.get("indicators", ()):
            described = Described(**declared)
            try:
                values = series_of(described, interval).column(columns)
            # A library of the daemon is not installed here, or these candles cannot make the indicator's bars.
            except StrategyError:
                continue
            name = f"{strategy['name']}.{described.name}" if several else described.name
            place = 0 if described.on_price else pane
            drawn.append(Overlay(name, f"{name}: {described.label}", place, tuple(values)))
            pane += not described.on_price
    return drawn


def legend(overlays: Sequence[Overlay]) -> list[LegendRow]:
    """Each indicator with its newest value, in the order and the colours of the chart."""
    rows = []
    for n, overlay in enumerate(overlays):
        last = overlay.values[-1] if overlay.values else None
        rows.append(LegendRow(overlay.label, formatting.px(None if last is None else round(last, 8)), n % COLOURS))
    return rows


def lines(coin: str, snapshot: DaemonSnapshot, liquidation: Decimal | None) -> list[PriceLine]:
    """The lines of the open position and of the resting entries."""
    price_lines = []
    position = next((held for held in snapshot.positions if held["market"] == coin), None)
    if position is not None:
        for kind, value in (
            ("entry", position.get("entry_px")),
            ("stop", position.get("stop_px")),
            ("liquidation", liquidation),
        ):
            if (px := number(value)) is not None:
                price_lines.append(PriceLine(kind, float(px), f"{kind} {formatting.px(px)}"))
        targets = targets_of(coin, snapshot.orders)
        for n, px in enumerate(targets, 1):
            name = "target" if len(targets) == 1 else f"target {n}"
            price_lines.append(PriceLine("target", float(px), f"{name} {formatting.px(px)}"))
    for order in snapshot.orders:
        px = number(order.get("limit_px"))
        if order["market"] == coin and order["action"] == "open" and px is not None:
            price_lines.append(PriceLine("limit", float(px), f"entry order {order['side']} {formatting.px(px)}"))
    return price_lines


def fills(events: Sequence[Data]) -> list[FillMark]:
    """The newest fills among these events, oldest first."""
    fill_marks = []
    for event in events:
        if event["type"] != "fill":
            continue
        data = event["data"]
        is_buy = (data["side"] == "long") == (event["subtype"] == "entry")
        word = "bought" if is_buy else "sold"
        pnl = number(data.get("realizedPnlUsd"))
        gain = f", {formatting.signed_usd(pnl)} USD" if event["subtype"] == "exit" and pnl is not None else ""
        fill_marks.append(
            FillMark(
                event["ts"],
                float(data["px"]),
                word,
                f"{word} {formatting.size(data['size'])} at {formatting.px(data['px'])}{gain}",
            )
        )
    return fill_marks[-FILLS_MAX:]


def chart(
    candles: Sequence[Candle],
    interval: str,
    overlays: Sequence[Overlay],
    marks: Sequence[FillMark],
    lines: Sequence[PriceLine],
    *,
    newest: int | None = None,
) -> dict[str, Any]:
    """The data of the chart for the script, times in seconds.

    `newest`: the number of last candles that an update needs.
    """
    start = 0 if newest is None else max(0, len(candles) - newest)
    step_ms = INTERVAL_MS[interval]
    times = [candle.ts // 1000 for candle in candles]
    return {
        "interval": interval,
        "candles": [
            [at, float(candle.open), float(candle.high), float(candle.low), float(candle.close), float(candle.volume)]
            for at, candle in zip(times[start:], candles[start:], strict=True)
        ],
        "overlays": [
            {
                "name": overlay.name,
                "label": overlay.label,
                "pane": overlay.pane,
                "values": [
                    [at, value]
                    for at, value in zip(times[start:], overlay.values[start:], strict=True)
                    if value is not None
                ],
            }
            for overlay in overlays
        ],
        "fills": [
            {"time": mark.at_ms // step_ms * step_ms // 1000, "px": mark.px, "side": mark.side, "text": mark.text}
            for mark in marks
        ],
        "lines": [{"kind": line.kind, "px": line.px, "text": line.text} for line in lines],
    }


def candle_columns(labels: Sequence[str]) -> list[Column]:
    """The columns of `table_row`."""
    return [Column("Open time"), *(Column(name, "px") for name in ("Open", "High", "Low", "Close", "Volume", *labels))]


def table_row(candle: Candle, values: Sequence[float | None]) -> list[str]:
    """A candle as a row of the table: its time, prices, volume, and the value of each indicator."""
    prices = [formatting.px(px) for px in (candle.open, candle.high, candle.low, candle.close)]
    volume = f"{candle.volume:,.4g}" if candle.volume < 1 else f"{candle.volume:,.2f}"
    return [
        formatting.instant(candle.ts),
        *prices,
        volume,
        *(formatting.px(None if value is None else round(value, 8)) for value in values),
    ]


def summary(
    coin: str, interval: str, candles: Sequence[Candle], marks: Sequence[FillMark] | None, lines: Sequence[PriceLine]
) -> str:
    """The chart in words; "" without candles. `marks` None: the fills are not known."""
    if not candles:
        return ""
    first, last = candles[0], candles[-1]
    change = (last.close - first.open) / first.open * 100 if first.open else Decimal(0)
    low, high = min(candle.low for candle in candles), max(candle.high for candle in candles)
    text = (
        f"{coin}, {len(candles)} bars of {interval}: {formatting.px(last.close)} now, {formatting.pct(change)} since"
        f" {formatting.instant(first.ts)} UTC. Lowest {formatting.px(low)}, highest {formatting.px(high)}."
    )
    text += "".join(f" {line.text[:1].upper()}{line.text[1:]}." for line in lines)
    if marks is None:
        return f"{text} The fills are not known."
    return text + (f" {len(marks)} fills; the newest: {marks[-1].text}." if marks else " No fills.")


def book_rows(book: BookResult | None) -> tuple[list[BookRow], list[BookRow]]:
    """Asks (highest first) and bids (highest first), each with the running total from the best price on."""
    if book is None:
        return [], []
    sides = []
    deepest = max(
        (sum((entry.sz for entry in side[:LEVELS]), Decimal(0)) for side in (book.bids, book.asks)), default=Decimal(0)
    )
    places = max(
        (-int(entry.sz.normalize().as_tuple().exponent) for entry in (*book.bids[:LEVELS], *book.asks[:LEVELS])),
        default=0,
    )
    for side in (book.asks, book.bids):
        total, rows = Decimal(0), []
        for level in side[:LEVELS]:
            total += level.sz
            part = round(total / deepest * 100) if deepest else 0
            size, sum_ = (f"{amount:,.{max(0, places)}f}" for amount in (level.sz, total))
            rows.append(BookRow(formatting.px(level.px), size, sum_, part))
        sides.append(rows)
    return sides[0][::-1], sides[1]
