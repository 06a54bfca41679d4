"""Adapters: the venue's own objects under the field names of the wire, for the kernel in this process. Each amount is a Decimal.

A test compares every field of every adapter with what a client would have parsed. An adapter must be read before the next command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from bot.money import decimal_of_e8, format_e12
from bot.service.views import account_views, event_views
from bot.venue import events as e
from bot.venue.state import event_id
from bot.wire import Event, Plan

if TYPE_CHECKING:
    from bot.venue.quote_draft import Quote
    from bot.venue.state import Account, Trade


AMOUNTS_KEPT: Final = 512  # each amount is read several times, and an order's size is in all of its events


@lru_cache(maxsize=AMOUNTS_KEPT)
def exact(value: int) -> Decimal:
    """A scaled amount as a Decimal. The default context has 28 digits; a larger amount is converted through its text."""
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


class FillAdapter:
    """Account state and attribution read nearly every field, so all are computed at once."""

    __slots__ = (
        "absorbed_usd", "balance_usd", "entry_px", "fee_usd", "intent", "kind", "liquidity", "oid", "position_size", "px", "realized_pnl_usd",
        "reduce_only", "remaining_size", "side", "size", "trade_id",
    )  # fmt: skip

    def __init__(self, of: e.Fill) -> None:
        self.trade_id = of.trade
        self.oid = of.oid
        self.kind = of.kind
        self.side = of.side
        self.intent = of.intent
        self.reduce_only = of.reduce_only
        self.size = exact(of.size)
        self.px = exact(of.px)
        self.fee_usd = exact(of.fee)
        self.realized_pnl_usd = None if of.realized is None else exact(of.realized)
        self.liquidity = of.liquidity
        self.remaining_size = exact(of.remaining)
        self.position_size = exact(of.position_size)
        self.entry_px = None if of.entry_px is None else exact(of.entry_px)
        self.balance_usd = exact(of.balance)
        self.absorbed_usd = exact(of.absorbed)


class OrderAdapter:
    __slots__ = (
        "filled_size", "intent", "kind", "limit_px", "oid", "reason", "side", "size", "trade_id", "trigger_px",
    )  # fmt: skip

    def __init__(self, of: e.OrderChanged) -> None:
        self.oid = of.oid
        self.trade_id = of.trade
        self.kind = of.kind
        self.side = of.side
        self.intent = of.intent
        self.size = exact(of.size)
        self.filled_size = exact(of.filled)
        self.limit_px = None if of.limit_px is None else exact(of.limit_px)
        self.trigger_px = None if of.trigger_px is None else exact(of.trigger_px)
        self.reason = of.reason


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


class EventAdapter:
    """One event. Rare types are parsed from JSON, as a client does."""

    __slots__ = ("coin", "data", "id", "idempotency_key", "of", "request_id", "subtype", "ts", "type")

    def __init__(
        self, of: Any, type_: str, subtype: str, data: FillAdapter | OrderAdapter | _Data, request_id: str | None = None, idempotency_key: str | None = None
    ) -> None:  # fmt: skip
        self.of = of
        self.id = event_id(of.seq)
        self.type = type_
        self.subtype = subtype
        self.ts = of.ts
        self.coin = of.coin
        self.request_id = request_id
        self.idempotency_key = idempotency_key
        self.data = data

    def model_dump_json(self) -> str:
        return wire_event(self.of).model_dump_json()


def wire_event(happened: e.Event) -> Event:
    """The event as a client parses it."""
    return Event.model_validate_json(json.dumps(event_views.event(happened)))


def _fill(happened: Any) -> Any:
    return EventAdapter(
        happened, "fill", happened.subtype, FillAdapter(happened), happened.request_id, happened.idempotency_key
    )


def _order(happened: Any) -> Any:
    return EventAdapter(
        happened, "order", happened.subtype, OrderAdapter(happened), happened.request_id, happened.idempotency_key
    )


def _trigger(happened: Any) -> Any:
    return EventAdapter(happened, "trigger", happened.subtype, TriggerAdapter(happened))


def _funding(happened: Any) -> Any:
    return EventAdapter(happened, "funding", "payment", FundingAdapter(happened))


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
    """OrderResult: the trade is there at once; the rest comes from the operation's own answer and must be read before the next command."""

    __slots__ = ("_whole", "trade")
    dry_run = False
    order_submitted = True

    def __init__(self, account: Account, trade: Trade, whole: Callable[[], Any]) -> None:
        self.trade = TradeAdapter(account, trade)
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole(), name)
