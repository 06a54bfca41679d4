"""The overview: the account in figures, its value over time, the open positions, and the health of the daemon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import number
from bot.dashboard.values.identity import account_of, position_stamp
from bot.dashboard.values.snapshot import DaemonSnapshot
from bot.dashboard.values.tables import TableRows
from bot.figures import Figure, State
from bot.wire.resources import Position
from bot.wire.wallets import WalletNavResult, WalletResult

Data = Mapping[str, Any]

FOREIGN: Final = "@foreign"
# Figure of health -> from which value on it warns, and from which it is bad.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "loop": (0.25, 2.0),
    "pass": (5.0, 20.0),
    "cursor": (1.0, 6.0),
    "price": (90.0, 300.0),
}
# The page warns when less than this part of a rate limit is left.
RATE_WARNS: Final = 0.25
RATE_BAD: Final = 0.05


class Way(NamedTuple):
    """The places of a position's prices on a track from 0, the worst of them, to 1, the best."""

    stop: float
    entry: float
    mark: float
    targets: tuple[float, ...]
    # for a screen reader
    text: str


@dataclass(frozen=True, slots=True)
class PositionRow:
    market: str
    side: str
    size: str
    entry: str
    mark: str
    unrealized: str
    direction: str
    r: str
    way: Way | None
    stop: str
    stop_away: str
    targets: tuple[str, ...]
    # the result of the trade, before costs, if its stop is hit
    at_stop: Figure
    liquidation: str
    notional: str
    leverage: str
    strategy: str
    is_protected: bool
    held: str
    stamp: str = ""


class AccountVerdict(NamedTuple):
    """The account in one sentence: what matters first, the rest, and how it looks."""

    lead: str
    rest: str
    tone: str


@dataclass(frozen=True, slots=True)
class HealthPanel:
    label: str
    value: str
    tone: str
    note: str


@dataclass(frozen=True, slots=True)
class ValueCurve:
    """The value of the account over time: instants in milliseconds and USD."""

    points: tuple[tuple[int, float], ...]
    source: str
    text: str


def figures(snapshot: DaemonSnapshot, wallet: WalletResult | None) -> list[Figure]:
    """The figures of the account: by the daemon's last answer, and what the service says of it now where the daemon
    does not answer.
    """
    status = snapshot.status or {}
    account = None if snapshot.trouble and wallet is not None else status.get("account")
    if account is None and wallet is None:
        return []
    value = number(account["value_usd"]) if account is not None else wallet.account_value_usd if wallet else None
    value = value or Decimal(0)
    free = None if account is None else number(account["free_usd"])
    held = wallet.positions if wallet is not None and snapshot.trouble else None
    margins = (
        None
        if wallet is None
        else sum((position.margin_used_usd or Decimal(0) for position in wallet.positions), Decimal(0))
    )
    used = margins if margins is not None else None if free is None else value - free
    return [
        Figure("Account value", value, "usd", unit="USD"),
        *_profit_figures(status, value),
        *_open_figures(snapshot, held, value),
        _at_stops(snapshot, wallet, value),
        Figure("Margin used", used, "usd", unit="USD", note=_margin_note(used, free, value)),
    ]


def _profit_figures(status: Data, value: Decimal) -> list[Figure]:
    if "account" not in status:
        note = "the daemon knows it"
        return [Figure(name, form="gain", note=note, state="unknown") for name in ("Today", "Total")]
    today, total = profit(status)
    since = f"{_part(today, value - today)} since 00:00 UTC"
    return [
        Figure("Today", today, "gain", "higher", "USD", since),
        Figure("Total", total, "gain", "higher", "USD", "net of fees and funding"),
    ]


def _open_figures(snapshot: DaemonSnapshot, held: Sequence[Position] | None, value: Decimal) -> list[Figure]:
    """Of the positions that the service shows (`held`), else of those of the daemon."""
    if held is not None:
        count, is_old = len(held), False
        gain = sum((position.unrealized_pnl_usd or Decimal(0) for position in held), Decimal(0))
        exposure = sum((abs(position.mark_px or Decimal(0)) * abs(position.size) for position in held), Decimal(0))
    else:
        count, is_old = len(snapshot.positions), snapshot.is_old
        gain = sum((number(position["unrealized_usd"]) or Decimal(0) for position in snapshot.positions), Decimal(0))
        exposure = sum((notional(position) for position in snapshot.positions), Decimal(0))
    share = f"{formatting.times(exposure / value)} the account" if value > 0 else ""
    return [
        Figure("Open profit", gain, "gain", "higher", "USD", _positions(count, is_old=is_old)),
        Figure("Exposure", exposure, "usd", unit="USD", note=share),
    ]


def _at_stops(snapshot: DaemonSnapshot, wallet: WalletResult | None, value: Decimal) -> Figure:
    """What the account loses, or still gains, from now on if every position ends at its stop. Not known if one position
    has no price for its stop: a trailing stop moves, and a missing stop bounds nothing.
    """
    positions, total, without = positions_now(snapshot, wallet), Decimal(0), 0
    for position in positions:
        mark, stop, size = (number(position.get(name)) for name in ("mark_px", "stop_px", "size"))
        if mark is None or stop is None or size is None or position["protected"] is False:
            without += 1
        else:
            total += abs(size) * (stop - mark if position["side"] == "long" else mark - stop)
    if not snapshot.knows_account:
        return Figure("If all stops hit", form="gain", unit="USD", note="the daemon knows the stops", state="unknown")
    if without:
        note = f"{without:,} of {len(positions):,} without a fixed stop"
        return Figure("If all stops hit", form="gain", unit="USD", note=note, state="unknown")
    of_account = f"from now, {_part(total, value)} of the account"
    note = of_account if positions else _positions(0, is_old=snapshot.is_old)
    state: State = "old" if snapshot.is_old else "known"
    return Figure("If all stops hit", total, "gain", unit="USD", note=note, state=state)


def verdict(snapshot: DaemonSnapshot, shown: Sequence[Figure]) -> AccountVerdict | None:
    """What the account means now, in one sentence of the same figures. None while it is old or not known."""
    if not shown or snapshot.is_old or not snapshot.knows_account:
        return None
    count, bare = len(snapshot.positions), sum(position["protected"] is False for position in snapshot.positions)
    positions = _positions(count, is_old=False)
    lead = f"{positions[0].upper()}{positions[1:]}{', each with its stop at the service' if count else ''}."
    if bare:
        lead = f"{bare:,} of {positions} without a stop."
    at_stops = next(figure for figure in shown if figure.name == "If all stops hit")
    texts = [f"If every stop is hit now: {at_stops.shown} USD ({at_stops.note})."] if count and not bare else []
    doubt = ((snapshot.status or {}).get("intents") or {}).get("in_doubt")
    if doubt is not None:
        texts.append(f"{doubt or 'No'} {'order' if doubt in (0, 1) else 'orders'} in doubt.")
    return AccountVerdict(lead, " ".join(texts), "bad" if bare or doubt else "good")


def _margin_note(used: Decimal | None, free: Decimal | None, value: Decimal) -> str:
    if used is None or value <= 0:
        return ""
    rest = "free margin not known" if free is None else f"{formatting.usd(free)} free"
    return f"{formatting.share(used / value)}; {rest}"


def profit(status: Data) -> tuple[Decimal, Decimal]:
    """Today's and total profit of all strategies, those removed from the config too, as `bot status` has it."""
    books = [strategy.get("book") or {} for strategy in status["strategies"]]
    books += [other["book"] for other in status.get("other_books", ()) if other["name"] != FOREIGN]
    today, total = (
        sum((Decimal(str(book.get(name, 0))) for book in books), Decimal(0)) for name in ("day_usd", "net_usd")
    )
    return today, total


def notional(position: Data) -> Decimal:
    """At the mark; at the entry without a mark."""
    mark, size = number(position.get("mark_px")), number(position["size"]) or Decimal(0)
    if mark is None or position["market"].startswith("event:"):
        return number(position.get("notional_usd")) or Decimal(0)
    return abs(mark * size)


def position_rows(
    snapshot: DaemonSnapshot, wallet: WalletResult | None, market: str | None = None
) -> TableRows[PositionRow]:
    """The open positions, those without a stop first. `market`: only that of one market."""
    theirs = None if wallet is None else {position.coin: position for position in wallet.positions}
    now_ms, account = snapshot.service_ms, account_of(snapshot)
    orders: dict[str, list[Data]] = defaultdict(list)
    for order in snapshot.orders:
        orders[order["market"]].append(order)
    shown = [position for position in positions_now(snapshot, wallet) if market is None or position["market"] == market]
    shown.sort(key=lambda position: (position["protected"] is not False, position["market"]))
    return TableRows(
        shown,
        lambda position: _row(
            position, orders.get(position["market"], ()), theirs, now_ms, position_stamp(account, position)
        ),
    )


def positions_now(snapshot: DaemonSnapshot, wallet: WalletResult | None) -> list[Data]:
    """The positions: the daemon's; while it does not answer, those that the service shows, with what the daemon knew
    of them.
    """
    if not snapshot.trouble or wallet is None:
        return list(snapshot.positions)
    known = {(position["market"], position["side"]): position for position in snapshot.positions}
    return [_of_service(position, known.get((position.coin, position.side))) for position in wallet.positions]


def _of_service(position: Position, known: Data | None) -> Data:
    """A position as the service shows it now. Stop, targets and strategy are those that the daemon knew."""
    base: Data = known or {
        "market": position.coin,
        "side": position.side,
        "strategy": None,
        "shares": {},
        "stop_px": None,
        "first_stop_px": None,
        "trailing_stops": [],
        "protected": None,
        "opened_ms": position.opened_at,
    }
    return {
        **base,
        "size": position.size,
        "entry_px": position.entry_px,
        "mark_px": position.mark_px,
        "unrealized_usd": position.unrealized_pnl_usd,
        "notional_usd": position.notional_usd,
        "leverage": position.leverage,
    }


def _row(
    position: Data, orders: Iterable[Data], theirs: Mapping[str, Position] | None, now_ms: int | None, stamp: str
) -> PositionRow:
    entry, mark, stop = (number(position.get(name)) for name in ("entry_px", "mark_px", "stop_px"))
    first = number(position.get("first_stop_px"))
    targets = targets_of(position["market"], orders)
    shares = position.get("shares") or {}
    return PositionRow(
        market=position["market"],
        side=position["side"],
        size=formatting.size(position["size"]),
        entry=formatting.px(entry),
        mark=formatting.NOT_KNOWN if mark is None else formatting.px(mark),
        unrealized=(
            formatting.NOT_KNOWN
            if position["unrealized_usd"] is None
            else formatting.signed_usd(position["unrealized_usd"])
        ),
        direction=formatting.direction(position["unrealized_usd"]),
        r=formatting.r(r_multiple(position["side"], entry, mark, first)),
        way=way(position["side"], entry, mark, None if position["protected"] is False else stop, targets),
        stop=(
            formatting.NOT_KNOWN
            if position["protected"] is None
            else formatting.px(stop)
            if stop is not None
            else "trailing"
            if position.get("trailing_stops")
            else "no stop"
        ),
        stop_away=_away(mark, stop),
        targets=tuple(map(formatting.px, targets)),
        at_stop=_at_stop(position, entry, stop),
        liquidation=(
            formatting.NOT_KNOWN
            if theirs is None or position["market"] not in theirs
            else formatting.px(theirs[position["market"]].liquidation_px)
        ),
        notional=formatting.usd(notional(position)),
        leverage=formatting.times(position.get("leverage")),
        strategy=" + ".join(shares) if len(shares) > 1 else position["strategy"] or "not ours",
        is_protected=position["protected"] is not False,
        stamp=stamp,
        held=(
            formatting.duration((now_ms - position["opened_ms"]) / 1000)
            if now_ms and position.get("opened_ms")
            else formatting.NONE
        ),
    )


def r_multiple(side: str, entry: Decimal | None, mark: Decimal | None, first_stop: Decimal | None) -> Decimal | None:
    """The profit so far in multiples of the distance from the entry to the first stop."""
    if entry is None or mark is None or first_stop is None or entry == first_stop:
        return None
    gain = mark - entry if side == "long" else entry - mark
    return gain / abs(entry - first_stop)


def targets_of(market: str, orders: Iterable[Data]) -> list[Decimal]:
    """The prices of the targets of a position, nearest first in the order of the service."""
    mine = [order for order in orders if order["market"] == market and order["action"] == "close"]
    prices = [number(order.get("trigger_px")) for order in mine if order["kind"] == "take_profit"]
    prices += [number(order.get("limit_px")) for order in mine if order["kind"] == "limit"]
    return sorted({price for price in prices if price is not None})


def way(
    side: str, entry: Decimal | None, mark: Decimal | None, stop: Decimal | None, targets: Sequence[Decimal]
) -> Way | None:
    """The track of a position. Without a target it ends at 2 R. None without a stop, an entry or a mark."""
    if entry is None or mark is None or stop is None:
        return None
    sign = 1 if side == "long" else -1
    end = targets or [entry + 2 * abs(entry - stop) * sign]
    prices = [sign * px for px in (stop, entry, mark, *end)]
    low, room = min(prices), max(prices) - min(prices)
    if not room:
        return None
    stop_at, entry_at, mark_at, *targets_at = (float((px - low) / room) for px in prices)
    named = [("stop", stop), ("entry", entry), ("mark", mark), *(("target", px) for px in targets)]
    text = ", ".join(f"{name} {formatting.px(px)}" for name, px in named)
    return Way(stop_at, entry_at, mark_at, tuple(targets_at) if targets else (), text)


def _at_stop(position: Data, entry: Decimal | None, stop: Decimal | None) -> Figure:
    name, size = "At the stop", number(position.get("size"))
    if position["protected"] is not True or entry is None or stop is None or size is None:
        return Figure(name, form="gain", state="unknown")
    lost = abs(size) * (stop - entry if position["side"] == "long" else entry - stop)
    return Figure(name, lost, "gain", "higher")


def _away(mark: Decimal | None, px: Decimal | None) -> str:
    """How far the mark is from a price, in percent of the mark."""
    return "" if not mark or px is None else f"{abs(px - mark) / mark * 100:.2f} % away"


def _part(gain: Decimal, base: Decimal) -> str:
    return formatting.pct(gain / base * 100) if base > 0 else formatting.NONE


def _positions(count: int, *, is_old: bool) -> str:
    if not count:
        return "0 open positions then" if is_old else "no open position"
    return "1 open position" if count == 1 else f"{count} open positions"


def curve(nav: WalletNavResult | None, trips: Sequence[tuple[int, Decimal]], span: str) -> ValueCurve:
    """The account's value by the service; without it the profit of the closed trades in the journal, added up."""
    if nav is not None and nav.series:
        points = tuple((point.ts, float(point.nav_usd)) for point in nav.series)
        return ValueCurve(points, "Account value by the service, in USD", _in_words(points, "The account"))
    total, points_found = Decimal(0), []
    for at_ms, net in trips:
        total += net
        points_found.append((at_ms, float(total)))
    points = tuple(points_found)
    return ValueCurve(points, "Profit of closed trades in the journal, in USD", _in_words(points, "Closed trades"))


def _in_words(points: Sequence[tuple[int, float]], what: str) -> str:
    if len(points) < 2:
        return "There are not two points yet."
    values = [value for _, value in points]
    first, last, low, high = values[0], values[-1], min(values), max(values)
    word = "rose" if last > first else "fell" if last < first else "stands as at the beginning"
    moved = f"{word} by {formatting.usd(abs(last - first))} USD" if last != first else word
    return (
        f"{what} {moved}: from {formatting.usd(first)} at {formatting.instant(points[0][0])} to {formatting.usd(last)}"
        f" at {formatting.instant(points[-1][0])}. Lowest {formatting.usd(low)}, highest {formatting.usd(high)}."
    )


def health(snapshot: DaemonSnapshot, price_age_s: float | None) -> list[HealthPanel]:
    """The health of a daemon that answers. Of another one nothing is good or bad: it is not known."""
    status = {} if snapshot.trouble else snapshot.status or {}
    told, beat = status.get("health") or {}, status.get("heartbeat") or {}
    passed_ms = status.get("last_pass_ms")
    passed_s = None if passed_ms is None else passed_ms / 1000
    return [
        _health("Loop lag", told.get("loop_lag_s"), "loop", "how late the newest pass of the daemon began"),
        _health("Last pass", passed_s, "pass", "time since the daemon has finished a pass"),
        _health("Event lag", told.get("cursor_lag_s"), "cursor", "how long the events could not be read to their end"),
        _health("Price age", price_age_s, "price", "age of the newest price of the service, on its clock"),
        _beat(beat),
        _rate(told.get("rates") or ()),
        _journal_health(told),
        _doubt(status.get("intents")),
        *_exchange(status.get("exchange")),
    ]


def _journal_health(told: Data) -> HealthPanel:
    note = "the daemon writes each order before it sends it"
    if "journal_fault" not in told:
        return HealthPanel("Journal", formatting.NOT_KNOWN, "idle", note)
    fault = told["journal_fault"]
    return HealthPanel("Journal", "fault" if fault else "written", "bad" if fault else "good", fault or note)


def _doubt(intents: Data | None) -> HealthPanel:
    note = "sent, and without a known outcome"
    if intents is None or "in_doubt" not in intents:
        return HealthPanel("Orders in doubt", formatting.NOT_KNOWN, "idle", note)
    doubt = intents["in_doubt"]
    return HealthPanel("Orders in doubt", str(doubt), "bad" if doubt else "good", note)


def _exchange(known: Data | None) -> list[HealthPanel]:
    """What is known of the account at an exchange; nothing if the service follows none."""
    tones = {"ok": "good", "warn": "warn", "fail": "bad"}
    words = {"ok": "well", "warn": "look", "fail": "mend"}
    return [
        HealthPanel(
            f"Exchange: {fact['name']}",
            words.get(fact["level"], formatting.NOT_KNOWN),
            tones.get(fact["level"], "idle"),
            fact["line"],
        )
        for fact in (() if known is None else known["facts"])
    ]


def _health(label: str, value: float | None, bound: str, note: str) -> HealthPanel:
    if value is None:
        return HealthPanel(label, formatting.NOT_KNOWN, "idle", note)
    warns, bad = BOUNDS[bound]
    text = f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.1f} s" if value < 60 else formatting.duration(value)
    return HealthPanel(label, text, "bad" if value >= bad else "warn" if value >= warns else "good", note)


def _beat(beat: Data) -> HealthPanel:
    age_s = beat.get("age_s")
    note = "time since the newest heartbeat that the service accepted"
    if age_s is None:
        return HealthPanel("Heartbeat age", formatting.NOT_KNOWN, "idle", note)
    window_s = age_s + beat["deadline_s"]
    tone = (
        "bad"
        if age_s > 0.66 * window_s or beat.get("failures", 0) > 2
        else "warn"
        if age_s > 0.4 * window_s
        else "good"
    )
    return HealthPanel("Heartbeat age", f"{age_s:,.1f} s", tone, note)


def _rate(rates: Sequence[Data]) -> HealthPanel:
    note = "requests that the service's tightest rate limit still allows"
    parts = [(rate["left"] / rate["requests"], rate) for rate in rates if rate["requests"]]
    if not parts:
        return HealthPanel("Rate budget", formatting.NOT_KNOWN, "idle", note)
    part, rate = min(parts, key=lambda pair: pair[0])
    tone = "bad" if part < RATE_BAD else "warn" if part < RATE_WARNS else "good"
    return HealthPanel(
        "Rate budget", f"{max(0, rate['left']):,} of {rate['requests']:,}", tone, f"{note} ({rate['policy']})"
    )
