"""The books of an account in one form, whether the service or the exchange has written them.

Amounts are integers of 1e-8. Only what happened after the beginning of the account stands there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bot.clock import HOUR_MS
from bot.model.events import AccountChanged, Event, FillEvent, FundingPaid, Liquidated, Settled
from bot.venue.accounting import nav
from bot.venue.model.state import State, VenueAccount
from bot.venue.storage import pages


@dataclass(frozen=True, slots=True, order=True)
class BookedFill:
    """One fill by market and instant of the exchange; `size` is signed."""

    market: str
    at_ms: int
    size: int
    px: int
    fee: int


@dataclass(frozen=True, slots=True, order=True)
class BookedPayment:
    """A payment of funding, one an hour and market; or a transfer, of no market."""

    market: str
    at_ms: int
    amount: int


@dataclass(frozen=True, slots=True)
class BookedOrder:
    """An open order or stop. `size` is what is not filled yet; None if it always has the position's size."""

    market: str
    buy: int
    px: int
    size: int | None


@dataclass(slots=True)
class AccountBooks:
    """`margins`: leverage and whether it is isolated, by market. `sum`: the cash as start, gains, fees, funding and
    transfers less what open positions have cost make it; None: the exchange does not say it.
    """

    cash: int
    sizes: dict[str, int]
    fills: list[BookedFill] = field(default_factory=list)
    funding: list[BookedPayment] = field(default_factory=list)
    transfers: list[BookedPayment] = field(default_factory=list)
    orders: dict[str, BookedOrder] = field(default_factory=dict)
    margins: dict[str, tuple[int, bool]] = field(default_factory=dict)
    sum: int | None = None


def hour_of(at_ms: int) -> int:
    """The full hour of a payment of funding, whose copies may differ by milliseconds."""
    return (at_ms + HOUR_MS // 2) // HOUR_MS * HOUR_MS


def books_of(state: State, account: VenueAccount, begin_ms: int, seq: int = 0) -> AccountBooks:
    """The books of the service for an account that follows an exchange, with the rows after `begin_ms` of its clock.

    `seq`: no event until this number is of such a row.
    """
    assert account.exchange is not None
    events = [event for event in pages.after(account, seq) if (getattr(event, "venue_ts", 0) or 0) > begin_ms]
    held = account.positions
    return AccountBooks(
        cash=nav.stand_of(account, state).cash,
        sizes={coin: position.side * position.size for coin, position in held.items()},
        fills=_fills(event for event in events if isinstance(event, FillEvent)),
        funding=[
            BookedPayment(e.coin, hour_of(e.venue_ts or 0), e.amount) for e in events if isinstance(e, FundingPaid)
        ],
        transfers=[_transfer(e) for e in events if isinstance(e, AccountChanged) and e.subtype == "transfer"],
        orders=_open_orders(account),
        margins={coin: (position.leverage, position.isolated) for coin, position in held.items()},
        sum=account.start_balance
        + account.realized
        - account.fees
        + account.funding
        + account.exchange.transferred
        - account.margin_lost
        - sum(position.side * position.entry_notional for position in held.values()),
    )


def _fills(events: Iterable[FillEvent]) -> list[BookedFill]:
    """Fills as the exchange counts them: one that turned a position is two events here, an exit and then an entry."""
    fills: list[BookedFill] = []
    before: FillEvent | None = None
    for event in events:
        size = event.size if (event.side == "long") == (event.intent == "open") else -event.size
        fill = BookedFill(event.coin, event.venue_ts or 0, size, event.px, event.fee)
        turned = before is not None and _is_rest_of(before, event)
        if turned:
            closing = fills.pop()
            fill = BookedFill(fill.market, fill.at_ms, closing.size + size, fill.px, closing.fee + fill.fee)
        fills.append(fill)
        before = event
    return fills


def _is_rest_of(before: FillEvent, event: FillEvent) -> bool:
    is_turn = (before.subtype, before.position_size, event.subtype) == ("exit", 0, "entry")
    same = (before.trade, before.px, before.venue_ts, before.seq + 1) == (
        event.trade,
        event.px,
        event.venue_ts,
        event.seq,
    )
    return is_turn and same


def _transfer(event: Event) -> BookedPayment:
    assert isinstance(event, AccountChanged)
    return BookedPayment("", event.venue_ts or 0, event.amount or 0)


def _open_orders(account: VenueAccount) -> dict[str, BookedOrder]:
    """Orders that stand at the exchange, our stops and targets among them, by the exchange's ids."""
    assert account.exchange is not None
    orders = {order_id: _waiting(account, number) for order_id, number in account.exchange.orders.items()}
    for order in account.exchange.protection_orders.values():
        if order.status == "there" and order.order_id is not None:
            orders[order.order_id] = BookedOrder(order.coin, -order.side, order.px, order.size or None)
    return orders


def _waiting(account: VenueAccount, number: int) -> BookedOrder:
    order = account.orders[number]
    px = order.trigger_px or order.limit_px or 0
    return BookedOrder(order.coin, order.buy, px, order.size - order.filled)


def own_differences(account: VenueAccount) -> list[tuple[str, str, int, int]]:
    """Sums of an account that do not agree with each other: (what, name, as it stands, as it should be)."""
    margins = sum(position.margin for position in account.positions.values())
    transferred = 0 if account.exchange is None else account.exchange.transferred
    sums = account.start_balance + account.realized - account.fees + account.funding + transferred
    sums += account.absorbed - account.margin_lost
    rows = [("equity", "balance and margins", account.balance + margins, sums)]
    newest: dict[str, int] = {}
    for event in pages.after(account, 0):
        if isinstance(event, FillEvent):
            newest[event.coin] = event.position_size
        elif isinstance(event, Settled | Liquidated) and event.subtype != "partial":
            newest[event.coin] = 0
    for coin, size in newest.items():
        held = account.positions.get(coin)
        rows.append(("size", coin, 0 if held is None else held.size, size))
    return [row for row in rows if row[2] != row[3]]
