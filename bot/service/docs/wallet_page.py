"""The page that `webWatch` links to: a public, read-only view of one wallet."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from bot.clock import iso
from bot.service.docs.html import page, text
from bot.service.operations.wallets import WalletOperations
from bot.wire.queries import WalletTradesQuery

REFRESH_SECONDS: Final = 30
TRADES_SHOWN: Final = 20
WIDTH: Final = 960
HEIGHT: Final = 220
PAD: Final = 8
DASH: Final = "\u2013"


def watch(wallets: WalletOperations, address: str) -> str:
    """The page of one address. Refused if the address is malformed."""
    wallet = wallets.wallet_body(address)
    name = str(wallet["address"])
    pnl = wallets.wallet_pnl_body(name)
    nav = wallets.wallet_nav_body(name, "7d")
    trades = wallets.wallet_trades_body(name, WalletTradesQuery(limit=TRADES_SHOWN))["trades"]
    title = wallet["nickname"] or f"{name[:6]}\u2026{name[-4:]}"
    parts = [
        '<div class="watch">',
        f"<h1>{text(title)}</h1>",
        f'<p class="soft"><code>{text(name)}</code> &middot; {text(wallet["environment"])} &middot; {text(iso(wallet["updatedAt"]))}</p>',
    ]
    if not wallet["registered"]:
        parts.append("<p>This address has no account on this service.</p>")
    else:
        parts += [_figures(wallet, pnl), _chart(nav["series"]), _positions(wallet["positions"]), _trades(trades)]
    parts.append('<p class="soft">Public and read-only. Play money. Refreshes every 30 seconds.</p></div>')
    return page(f"{title} \u2014 portfolio", "".join(parts), refresh_seconds=REFRESH_SECONDS)


def _figures(wallet: dict[str, Any], pnl: dict[str, Any]) -> str:
    rate = pnl["winRatePct"]
    cells = [
        ("Account value", _usd(wallet["accountValueUsd"]), ""),
        ("Net profit and loss", _usd(pnl["netPnlUsd"], signed=True), _tone(pnl["netPnlUsd"])),
        ("Last 24 hours", _usd(pnl["ranges"]["1d"], signed=True), _tone(pnl["ranges"]["1d"])),
        ("Trades", f"{pnl['trades']}", ""),
        ("Won", DASH if rate is None else f"{rate} %", ""),
    ]
    figures = "".join(
        f'<div class="figure"><span class="soft">{label}</span><b class="{tone}">{value}</b></div>'
        for label, value, tone in cells
    )
    return f'<div class="figures">{figures}</div>'


def _chart(series: list[dict[str, Any]]) -> str:
    """A line chart of the last seven days. It uses attributes only, so that the content policy need not allow styles."""
    values = [float(point["navUsd"]) for point in series]
    if len(values) < 2:
        return ""
    first, last = series[0]["ts"], series[-1]["ts"]
    low, high = min(values), max(values)
    tall = high - low or max(abs(high), 1.0) * 0.02
    low -= 0 if high > low else tall / 2
    spots = [
        (
            PAD + (point["ts"] - first) / max(last - first, 1) * (WIDTH - 2 * PAD),
            HEIGHT - 24 - (value - low) / tall * (HEIGHT - 48),
        )
        for point, value in zip(series, values, strict=True)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    floor = HEIGHT - 20
    return (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Account value over the last seven days">'
        f'<polygon class="area" points="{spots[0][0]:.1f},{floor} {line} {spots[-1][0]:.1f},{floor}"/>'
        f'<polyline class="line" points="{line}"/>'
        f'<text class="axis" x="{PAD}" y="14">{_usd(max(values))}</text>'
        f'<text class="axis" x="{PAD}" y="{HEIGHT - 6}">{text(iso(first))}</text>'
        f'<text class="axis" x="{WIDTH - PAD}" y="{HEIGHT - 6}" text-anchor="end">{text(iso(last))}</text></svg></div>'
    )


def _positions(positions: list[dict[str, Any]]) -> str:
    if not positions:
        return "<h2>Positions</h2><p>None open.</p>"
    rows = "".join(
        f"<tr><td>{text(held['coin'])}</td><td>{text(held['side'])}</td><td class=num>{text(held['size'])}</td>"
        f"<td class=num>{text(held['leverage'])}x</td><td class=num>{text(held['entryPx'])}</td><td class=num>{text(held['markPx'])}</td>"
        f'<td class="num {_tone(held["unrealizedPnlUsd"])}">{_usd(held["unrealizedPnlUsd"], signed=True)}</td></tr>'
        for held in positions
    )
    head = "<tr><th>Market<th>Side<th class=num>Size<th class=num>Leverage<th class=num>Entry<th class=num>Mark<th class=num>Unrealised</tr>"
    return f'<h2>Positions</h2><div class="scroll"><table>{head}{rows}</table></div>'


def _trades(trades: list[dict[str, Any]]) -> str:
    if not trades:
        return "<h2>Trades</h2><p>None yet.</p>"
    rows = "".join(
        f"<tr><td>{text(iso(made['ts']))}</td><td>{text(made['symbol'])}</td><td>{text(made['intent'])} {text(made['side'])}</td>"
        f"<td>{text(made['kind'])}</td><td class=num>{text(made['filledSize'])}</td><td class=num>{text(made['avgPx'] or DASH)}</td>"
        f'<td class="num {_tone(made["realizedPnlUsd"])}">{_usd(made["realizedPnlUsd"], signed=True)}</td></tr>'
        for made in trades
    )
    head = "<tr><th>Time<th>Market<th>What<th>Kind<th class=num>Filled<th class=num>Price<th class=num>Realised</tr>"
    return f'<h2>Trades</h2><div class="scroll"><table>{head}{rows}</table></div>'


def _usd(amount: str | float | None, *, signed: bool = False) -> str:
    """An amount rounded to cents for display."""
    if amount is None:
        return DASH
    value = Decimal(str(amount))
    sign = "\u2212" if value < 0 else "+" if signed and value > 0 else ""
    return f"{sign}${abs(value):,.2f}"


def _tone(amount: str | None) -> str:
    if amount is None or not amount.strip("-0."):
        return ""
    return "down" if amount.startswith("-") else "up"
