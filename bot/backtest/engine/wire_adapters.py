"""Adapters: the venue's own objects under the field names of the wire, for the kernel in this process. Each amount is a
Decimal.

A test compares every field of every adapter with what a client would have parsed. An adapter must be read before the
next command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.model import events as e
from bot.money import decimal_of_e8, format_e12
from bot.service.views import account_views, event_views
from bot.venue.model.state import event_id
from bot.wire import Event, Plan

if TYPE_CHECKING:
    from bot.venue.model.state import Account, Trade
    from bot.venue.orders.quote_draft import Quote


# each amount is read several times, and an order's size is in all of its events
AMOUNTS_KEPT: Final = 512


@lru_cache(maxsize=AMOUNTS_KEPT)
def exact(value: int) -> Decimal:
    """A scaled amount as a Decimal.

    The default context has 28 digits; a larger amount is converted through its text.
    """
    return Decimal(value) * _E_8 if -_DIGITS_28 < value < _DIGITS_28 else decimal_of_e8(value)


_E_8: Final = Decimal("1E-8")
_DIGITS_28: Final = 10**28


def _amount(name: str) -> property:
    read = attrgetter(f"of.{name}")
    return property(lambda adapter: exact(read(adapter)))


def _plain(name: str) -> property:
    return property(attrgetter(f"of.{name}"))


class _Data:
    """The `data` of one event."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of


class FillAdapter(NamedTuple):
    trade_id: str
    oid: str
    kind: str
    side: str
    intent: str
    reduce_only: bool
    size: Decimal
    px: Decimal
    fee_usd: Decimal
    realized_pnl_usd: Decimal | None
    liquidity: str
    remaining_size: Decimal
    position_size: Decimal
    entry_px: Decimal | None
    balance_usd: Decimal
    absorbed_usd: Decimal


class OrderAdapter(NamedTuple):
    oid: str
    trade_id: str | None
    kind: str
    side: str
    intent: str
    size: Decimal
    filled_size: Decimal
    limit_px: Decimal | None
    trigger_px: Decimal | None
    reason: str | None


class TriggerAdapter(_Data):
    __slots__ = ()
    oid = _plain("oid")
    trade_id = _plain("trade")
    side = _plain("side")
    size = _amount("size")
    trigger_px = _amount("trigger_px")
    mark_px = _amount("mark")


class FundingAdapter(_Data):
    __slots__ = ()
    side = _plain("side")
    size = _amount("size")
    oracle_px = _amount("oracle")
    rate = property(lambda adapter: format_e12(adapter.of.rate))
    amount_usd = _amount("amount")
    balance_usd = _amount("balance")


class EventAdapter(NamedTuple):
    """One event. Rare types are parsed from JSON, as a client does."""

    of: Any
    id: str
    type: str
    subtype: str
    ts: int
    coin: str | None
    data: FillAdapter | OrderAdapter | _Data
    request_id: str | None = None
    idempotency_key: str | None = None

    def model_dump_json(self) -> str:
        return wire_event(self.of).model_dump_json()


def wire_event(happened: e.Event) -> Event:
    """The event as a client parses it."""
    return Event.model_validate_json(json.dumps(event_views.event(happened)))


# A named tuple from its values, without the Python code of its constructor: each order leads to four events or more.
_FILL: Final = partial(tuple.__new__, FillAdapter)
_ORDER: Final = partial(tuple.__new__, OrderAdapter)
_EVENT: Final = partial(tuple.__new__, EventAdapter)


def _fill(of: Any) -> Any:
    realized, entry_px = of.realized, of.entry_px
    data = _FILL(
        (
            of.trade,
            of.oid,
            of.kind,
            of.side,
            of.intent,
            of.reduce_only,
            exact(of.size),
            exact(of.px),
            exact(of.fee),
            None if realized is None else exact(realized),
            of.liquidity,
            exact(of.remaining),
            exact(of.position_size),
            None if entry_px is None else exact(entry_px),
            exact(of.balance),
            exact(of.absorbed),
        )
    )
    return _EVENT((of, event_id(of.seq), "fill", of.subtype, of.ts, of.coin, data, of.request_id, of.idempotency_key))


def _order(of: Any) -> Any:
    limit_px, trigger_px = of.limit_px, of.trigger_px
    data = _ORDER(
        (
            of.oid,
            of.trade,
            of.kind,
            of.side,
            of.intent,
            exact(of.size),
            exact(of.filled),
            None if limit_px is None else exact(limit_px),
            None if trigger_px is None else exact(trigger_px),
            of.reason,
        )
    )
    return _EVENT((of, event_id(of.seq), "order", of.subtype, of.ts, of.coin, data, of.request_id, of.idempotency_key))


def _trigger(of: Any) -> Any:
    return EventAdapter(of, event_id(of.seq), "trigger", of.subtype, of.ts, of.coin, TriggerAdapter(of))


def _funding(of: Any) -> Any:
    return EventAdapter(of, event_id(of.seq), "funding", "payment", of.ts, of.coin, FundingAdapter(of))


EVENTS: Final[dict[type, Callable[[Any], Any]]] = {
    e.Fill: _fill,
    e.OrderChanged: _order,
    e.Triggered: _trigger,
    e.GuardianMoved: wire_event,
    e.FundingPaid: _funding,
    e.Liquidated: wire_event,
    e.Settled: wire_event,
    e.AccountChanged: wire_event,
}


def wire_form(event: e.Event) -> Event:
    """The event under the names of the wire."""
    form: Event = EVENTS[type(event)](event)
    return form


class EventsPageAdapter:
    """EventsPage."""

    __slots__ = ("events", "last_event_id")

    def __init__(self, events: tuple[Any, ...], last_event_id: str | None) -> None:
        self.events = events
        self.last_event_id = last_event_id


class PlanAdapter:
    """Plan, parsed at its first use, because most strategies never read it."""

    __slots__ = ("_made", "_quoted")

    def __init__(self, quoted: Quote) -> None:
        self._quoted = quoted
        self._made: Plan | None = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = Plan.model_validate_json(json.dumps(account_views.plan(self._quoted)))
        return getattr(self._made, name)


class PlanResultAdapter:
    """PlanResult."""

    __slots__ = ("confirm_token", "expires_at", "plan")
    dry_run = True
    order_submitted = False

    def __init__(self, quoted: Quote, confirm_token: str, expires_at: int) -> None:
        self.plan = PlanAdapter(quoted)
        self.confirm_token = confirm_token
        self.expires_at = expires_at


class TradeAdapter:
    """Trade in its state at the time of reading. The runtime mostly needs the id alone."""

    __slots__ = ("_account", "_trade", "id")

    def __init__(self, account: Account, trade: Trade) -> None:
        self.id = trade.id
        self._account = account
        self._trade = trade

    def __getattr__(self, name: str) -> Any:
        from bot.wire import Trade as WireTrade

        return getattr(WireTrade.model_validate_json(json.dumps(account_views.trade(self._account, self._trade))), name)


class OrderResultAdapter:
    """OrderResult: the trade is there at once; the rest comes from the operation's own answer and must be read
    before the next command.
    """

    __slots__ = ("_whole", "trade")
    dry_run = False
    order_submitted = True

    def __init__(self, account: Account, trade: Trade, whole: Callable[[], Any]) -> None:
        self.trade = TradeAdapter(account, trade)
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole(), name)
