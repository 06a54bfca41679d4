"""The mirror: what we believe the account to be, folded from the service's events and corrected by its snapshots.

One table folds events by type and subtype; each fold sets what the event says is so afterwards, so that taking an event
again changes nothing. Comparing with a snapshot names drifts; their repair is reconciler.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.runtime.model.intents import TradeOf
from bot.runtime.model.positions import EVENT, PROTECTIVE, Drift, MirrorGuardian, MirrorOrder, MirrorPosition, Named
from bot.wire import Event, bare_coin

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot, Guardian, Market, Order, Position

KEYS_KEPT: Final = 2_000  # of trades: an intent asks for its own within minutes, and later the service

ROUNDING_USD: Final = 0.001  # of floats, and of margins that the service rounds up fill by fill
FEE_ROUNDING: Final = 1e-8  # a rate is told in basis points with four decimals
WAITING: Final = 1.01  # an entry at market that waits may meet a worse price than the mark


class EntryTerms(NamedTuple):
    """What a market asks of an entry: the highest taker fee, as a fraction of the notional, and how the margin is held (cross, isolated, full)."""

    fee: float = 0.0
    margin_mode: str = "cross"

    def margin_usd(self, notional_usd: float, leverage: float) -> float:
        """What an entry of this notional takes of the free margin. The fee of an isolated position is paid out of its own margin."""
        return notional_usd * (1 / leverage + (0 if self.margin_mode == "isolated" else self.fee))


_ORDINARY: Final = EntryTerms()  # of a market that is not known


def _no_owner(key: str) -> str | None:
    return None


def _covers(stops: Iterable[MirrorOrder], position: MirrorPosition) -> bool:
    """A stop that stood before the position grew or turned over is one for what it was, not for what it is. Size 0: all of it."""
    covered = Decimal(0)
    for stop in stops:
        if not stop.size:
            return True
        if stop.side == position.side:
            covered += stop.size - stop.filled
    return covered >= position.size


def _no_keys(trade_ids: Iterable[str], epoch: int) -> Mapping[TradeOf, str]:
    return {}


def _no_leverage(key: str) -> int | None:
    return None


class Mirror:
    """`owner_of(key)` names the strategy of an intent, None for a key that is not ours; `keys_of_trades(trade_ids, epoch)`
    says which of them are orders of ours.

    `leverage_of(key)` is what an entry of ours has asked for: events do not tell it.
    """

    def __init__(
        self,
        owner_of: Callable[[str], str | None] = _no_owner,
        keys_of_trades: Callable[[Iterable[str], int], Mapping[TradeOf, str]] = _no_keys,
        leverage_of: Callable[[str], int | None] = _no_leverage,
    ) -> None:
        self.owner_of = owner_of
        self._keys_of_trades = keys_of_trades
        self.leverage_of = leverage_of
        self.positions: dict[str, MirrorPosition] = {}
        self.orders: dict[str, MirrorOrder] = {}
        self.guardians: dict[str, MirrorGuardian] = {}
        self.trades_by_key: dict[str, str] = {}
        # Keys of closes whose last fill has come, as long as somebody may still count on them.
        self.closed: set[str] = set()
        self.keys_proven = False  # this service has shown one of our keys on a trade
        self.events_named = False  # an event has shown one, so that an event or an order without a key is none of ours
        # Of a position that an order has closed and goes on to open the other way: the order's trade, and the leverage that it takes over.
        self.turning: dict[str, tuple[str, float]] = {}
        self.marks: dict[str, float] = {}
        self.terms: dict[str, EntryTerms] = {}  # by bare coin, once the markets are known
        self.balance_usd = Decimal(0)
        self.epoch = 0
        self.environment: str | None = None  # "sandbox": play money
        self.value_offset_usd = (
            0.0  # account value that is neither cash nor unrealised profit: isolated margin, paid event cost
        )

    # -- learning

    def keys_of(self, trade_ids: Iterable[str]) -> Mapping[TradeOf, str]:
        """The keys of our orders among these trades. They tell whose the orders are if the service shows no keys."""
        return self._keys_of_trades(trade_ids, self.epoch)

    def apply(self, event: Event) -> None:
        """Fold one event. A type that this version does not know changes nothing."""
        key = event.idempotency_key
        if key is not None:
            trade_id = getattr(event.data, "trade_id", None)
            if trade_id is not None and not (self.events_named and self.trades_by_key.get(key) == trade_id):
                self._see_event(event, key, trade_id)
        fold = FOLD.get((event.type, event.subtype))
        if fold is not None:
            fold(self, event, event.data)

    def named(self, events: list[Event]) -> list[Event]:
        """With our key, where an event shows none and its trade is known to be an order of ours. For as long as no event has shown one."""
        bare = {
            event.id: (event.coin or "", event.data.trade_id, event.data.intent)
            for event in events
            if event.idempotency_key is None and event.type in ("fill", "order") and event.data.trade_id is not None
        }
        if not bare:
            return events
        keys = self.keys_of({trade_id for _, trade_id, _ in bare.values()})
        given = {event_id: keys[trade] for event_id, trade in bare.items() if trade in keys}
        return [_named(event, given[event.id]) if event.id in given else event for event in events]

    def see_trade(self, key: str, trade_id: str) -> None:
        """A trade that carries our key, seen outside the feed."""
        if self.owner_of(key) is not None:
            self.keys_proven = True
        self._keep_key(key, trade_id)

    def of_snapshot(self, snapshot: AccountSnapshot) -> None:
        """Believe the service. What only we know (owners, first stops) is kept for positions that are still the same."""
        if snapshot.epoch != self.epoch:
            self.positions = {}  # Those of before a reset are gone, whatever stands in their markets by now.
        self.epoch = snapshot.epoch
        self.environment = snapshot.environment
        self.balance_usd = snapshot.balance_usd
        self.positions = {one.coin: self._position_of(one) for one in snapshot.positions}
        keys = self._keys_of_orders(snapshot.orders)
        self.orders = {one.oid: _order_of(one, keys) for one in snapshot.orders}
        self.see_guardians(snapshot.guardians)
        for one in snapshot.positions:
            if one.mark_px is not None:
                self.marks[one.coin] = float(one.mark_px)
        self.value_offset_usd = float(snapshot.account_value_usd - snapshot.balance_usd - snapshot.unrealized_pnl_usd)

    def see_guardians(self, listed: Iterable[Guardian]) -> None:
        """The list of guardians, as the service has just given it."""
        self.guardians = {one.id: _guardian_of(one) for one in listed}

    def adopt(self, market: str, owner: str) -> None:
        """From now on this strategy answers for the position."""
        self.positions[market] = self.positions[market]._replace(owner=owner)

    def date(self, market: str, opened_ms: int) -> MirrorPosition:
        """When the position began, where the service does not tell."""
        position = self.positions[market] = self.positions[market]._replace(opened_ms=opened_ms)
        return position

    def mark(self, market: str, px: float) -> None:
        self.marks[market] = px

    # -- answering

    def stop_of(self, market: str) -> MirrorOrder | None:
        return self._leg(market, "stop_loss")

    def target_of(self, market: str) -> MirrorOrder | None:
        return self._leg(market, "take_profit")

    def _leg(self, market: str, kind: str) -> MirrorOrder | None:
        for order in self.orders.values():
            if order.market == market and order.kind == kind and order.action == "close":
                return order
        return None

    def is_protected(self, market: str) -> bool:
        """A stop for all of the position, or a trailing stop that does not sleep, stands at the service."""
        position = self.positions.get(market)
        stops = self._stops().get(market, [])
        return self._is_trailed(market) or (bool(stops) if position is None else _covers(stops, position))

    def unprotected(self) -> list[MirrorPosition]:
        """Our own positions without a working stop."""
        ours = [position for position in self.positions.values() if position.owner is not None]
        if not ours:
            return ours
        stops = self._stops()
        return [p for p in ours if not _covers(stops.get(p.market, ()), p) and not self._is_trailed(p.market)]

    def _stops(self) -> dict[str, list[MirrorOrder]]:
        found: dict[str, list[MirrorOrder]] = {}
        for order in self.orders.values():
            if order.kind == "stop_loss" and order.action == "close":
                found.setdefault(order.market, []).append(order)
        return found

    def is_unsure_of(self, market: str) -> bool:
        """Whether a trailing stop is there of which only the list of guardians tells if it sleeps."""
        return any(one.active is None for one in self._trails(market)) and self._has_r(market)

    def _is_trailed(self, market: str) -> bool:
        return any(one.active or (one.active is None and not self._has_r(market)) for one in self._trails(market))

    def _trails(self, market: str) -> list[MirrorGuardian]:
        guardians = self.guardians.values()
        return [g for g in guardians if g.type == "trailing_stop" and g.market == market and not g.latched]

    def _has_r(self, market: str) -> bool:
        """Whether the position has had a stop: without one nothing can sleep until a profit that is counted in its distance."""
        position = self.positions.get(market)
        return position is not None and position.first_stop_px is not None

    def entries(self, market: str) -> list[MirrorOrder]:
        """Resting orders of a market that could open."""
        return [o for o in self.orders.values() if o.market == market and o.could_open]

    def closing(self, market: str, strategy: str | None = None) -> list[MirrorOrder]:
        """Our closes that wait for the next open, as they do in a session: of one strategy, or of all."""
        waiting = [o for o in self.orders.values() if o.market == market and o.kind == "close" and o.key is not None]
        if strategy is None or not waiting:
            return waiting
        return [o for o in waiting if o.key is not None and self.owner_of(o.key) == strategy]

    def leaving(self, market: str, strategy: str | None = None) -> Decimal:
        """How much they are about to take."""
        return sum((o.size - o.filled for o in self.closing(market, strategy)), Decimal(0))

    def resting(self) -> list[tuple[str, str]]:
        """Our resting entries, market by market: whose, and their ids."""
        found = []
        for order in sorted(self.orders.values(), key=attrgetter("market")):
            if order.key is not None and order.could_open:
                owner = self.owner_of(order.key)
                if owner is not None:
                    found.append((owner, order.oid))
        return found

    def resting_of(self, strategy: str | None) -> tuple[str, ...]:
        """Ids of our resting entries, market by market: of one strategy, or of all."""
        return tuple(oid for owner, oid in self.resting() if strategy in (None, owner))

    def unrealized_usd(self, position: MirrorPosition) -> float:
        mark = self.marks.get(position.market)
        if mark is None or position.entry_px is None:
            return 0.0
        gain = (mark - float(position.entry_px)) * float(position.size)
        return gain if position.side == "long" else -gain

    @property
    def equity_usd(self) -> float:
        return float(self.balance_usd) + self.value_offset_usd + sum(map(self.unrealized_usd, self.positions.values()))

    @property
    def free_margin_usd(self) -> float:
        used = sum(float(p.notional_usd) / (p.leverage or 1) for p in self.positions.values())
        return self.equity_usd - used

    def all_in_usd(self, market: str, leverage: float) -> float:
        """Notional of the largest entry at market that free margin carries, by the service's own rule: cash and cross positions at their marks, less what
        entries that wait hold back. The margin of an isolated position and its profit are its own."""
        free = float(self.balance_usd) - ROUNDING_USD
        for p in self.positions.values():
            if self._terms_of(p.market).margin_mode == "cross":
                mark = self.marks.get(p.market, float(p.entry_px or 0))
                free += self.unrealized_usd(p) - mark * float(p.size) / (p.leverage or 1)
        for order in filter(attrgetter("could_open"), self.orders.values()):
            waiting_usd = float(order.resting_usd(self.marks.get(order.market))) * (1 if order.limit_px else WAITING)
            free -= self._terms_of(order.market).margin_usd(waiting_usd, order.leverage)
        return max(0.0, free) / self._terms_of(market).margin_usd(1, leverage)

    def _terms_of(self, market: str) -> EntryTerms:
        return self.terms.get(bare_coin(market), _ORDINARY)

    def diff(self, snapshot: AccountSnapshot) -> list[Drift]:
        """What differs, of a snapshot as of the last event that was folded. Judges nothing by itself: an owner is a fact."""
        drifts: list[Drift] = []
        theirs = {one.coin: one for one in snapshot.positions}
        for market in sorted(theirs.keys() | self.positions.keys()):
            drifts += self._position_drift(market, theirs.get(market), self.positions.get(market))
        for one in snapshot.orders:
            if one.oid not in self.orders:
                drifts.append(
                    Drift("missing_fill", one.coin, one.oid, f"order {one.oid} ({one.kind}) stands at the service only")
                )
            if one.kind not in PROTECTIVE and self.is_foreign(one.idempotency_key):
                drifts.append(Drift("foreign_order", one.coin, one.oid, f"order {one.oid} was not placed by us"))
        there = {one.oid for one in snapshot.orders}
        for order in self.orders.values():
            if order.oid not in there:
                drifts.append(
                    Drift(
                        "order_gone", order.market, order.oid, f"order {order.oid} ({order.kind}) is not there any more"
                    )
                )
        listed = {one.id for one in snapshot.guardians}
        drifts += [
            Drift("guardian_gone", g.market, g.id, f"guardian {g.id} ({g.type}) is not there any more")
            for g in self.guardians.values()
            if g.id not in listed
        ]
        return drifts

    # -- inside

    def _position_drift(self, market: str, theirs: Position | None, ours: MirrorPosition | None) -> list[Drift]:
        if theirs is None:
            return [Drift("missing_fill", market, "", f"our {market} position is closed at the service")]
        if ours is None or (ours.side, ours.size) != (theirs.side, theirs.size):
            had = "none" if ours is None else f"{ours.side} {ours.size}"
            return [Drift("missing_fill", market, "", f"the service has {theirs.side} {theirs.size}, we had {had}")]
        return []

    def is_foreign(self, key: str | None) -> bool:
        """Whether an order with this key is another hand's."""
        if key is None:
            return self.events_named  # A service that shows no keys does not tell whose an order is.
        return self.owner_of(key) is None

    def _see_event(self, event: Event, key: str, trade_id: str) -> None:
        if not self.events_named and not isinstance(event, Named) and self.owner_of(key) is not None:
            self.keys_proven = self.events_named = True
        self._keep_key(key, trade_id)

    def _keys_of_orders(self, orders: Iterable[Order]) -> Mapping[TradeOf, str]:
        """As `named`, of those that show none."""
        bare = {one.trade_id for one in orders if one.idempotency_key is None and one.trade_id is not None}
        return self.keys_of(bare) if bare and not self.events_named else {}

    def _keep_key(self, key: str, trade_id: str) -> None:
        self.trades_by_key[key] = trade_id
        if len(self.trades_by_key) > KEYS_KEPT:
            del self.trades_by_key[next(iter(self.trades_by_key))]

    def _position_of(self, one: Position) -> MirrorPosition:
        known = self.positions.get(one.coin)
        same = known is not None and known.side == one.side
        first_stop = known.first_stop_px if same and known is not None else None
        return MirrorPosition(
            market=one.coin,
            side=one.side,
            size=one.size,
            entry_px=one.entry_px,
            leverage=one.leverage,
            first_stop_px=first_stop if first_stop is not None else one.stop_px,
            opened_ms=one.opened_at or (known.opened_ms if same and known is not None else 0),
            owner=known.owner if same and known is not None else None,
        )


# -- folds: each sets what is so after the event

Fold = Callable[[Mirror, Any, Any], None]


def _filled(mirror: Mirror, event: Any, data: Any) -> None:
    gained = (data.realized_pnl_usd or Decimal(0)) + data.absorbed_usd - data.fee_usd
    _gain(mirror, gained, balance_usd=data.balance_usd)
    _take_from_order(mirror, data.oid, data.remaining_size)
    if data.intent == "close" and not data.remaining_size and event.idempotency_key is not None:
        mirror.closed.add(event.idempotency_key)
    size = data.position_size
    known = mirror.positions.get(event.coin)
    if not size:
        if known is not None and data.remaining_size:
            mirror.turning[event.coin] = (data.trade_id, known.leverage)
        _flat(mirror, event.coin)
        return
    owner = (
        mirror.owner_of(event.idempotency_key) if event.idempotency_key is not None and data.intent == "open" else None
    )
    if known is None or known.side != data.side:
        asked = None if owner is None else mirror.leverage_of(event.idempotency_key)
        turned, had = mirror.turning.pop(event.coin, ("", 1))
        mirror.positions[event.coin] = MirrorPosition(
            event.coin, data.side, abs(size), data.entry_px, opened_ms=event.ts, owner=owner,
            leverage=asked or (had if turned == data.trade_id else 1),
        )  # fmt: skip
        return
    mirror.positions[event.coin] = known._replace(
        size=abs(size),
        entry_px=data.entry_px,
        owner=known.owner if known.owner is not None else owner,
    )


def _take_from_order(mirror: Mirror, oid: str, remaining: Decimal) -> None:
    order = mirror.orders.get(oid)
    if order is None:
        return
    if remaining:
        mirror.orders[oid] = order._replace(filled=order.size - remaining)
    else:
        del mirror.orders[oid]


def _flat(mirror: Mirror, market: str) -> None:
    """The position is gone, and with it what was linked to it."""
    mirror.positions.pop(market, None)


def _order_stands(mirror: Mirror, event: Any, data: Any) -> None:
    oid, kind, trigger_px = data.oid, data.kind, data.trigger_px
    known = mirror.orders.get(oid)
    mirror.orders[oid] = MirrorOrder(
        oid, event.coin, kind, data.side, data.intent, data.size, data.filled_size, data.limit_px, trigger_px, data.trade_id,
        event.idempotency_key, event.ts if known is None else known.created_ms,
        1 if kind in PROTECTIVE or data.intent != "open" else _leverage_asked(mirror, event.idempotency_key),
    )  # fmt: skip
    if kind != "stop_loss":
        return
    position = mirror.positions.get(event.coin)
    if position is not None and (event.subtype == "armed" or position.first_stop_px is None):
        mirror.positions[event.coin] = position._replace(first_stop_px=trigger_px)


def _leverage_asked(mirror: Mirror, key: str | None) -> float:
    return (None if key is None else mirror.leverage_of(key)) or 1


def _order_gone(mirror: Mirror, event: Any, data: Any) -> None:
    mirror.orders.pop(data.oid, None)


def _guardian_stands(mirror: Mirror, event: Any, data: Any) -> None:
    known = mirror.guardians.get(data.guardian_id)
    is_told = event.subtype == "activated" or data.guardian_type != "trailing_stop"
    mirror.guardians[data.guardian_id] = MirrorGuardian(
        data.guardian_id, data.guardian_type, event.coin, blocks_opens=data.blocks_opens,
        active=True if is_told else None if known is None else known.active,
    )  # fmt: skip


def _guardian_fired(mirror: Mirror, event: Any, data: Any) -> None:
    if data.blocks_opens:
        mirror.guardians[data.guardian_id] = MirrorGuardian(
            data.guardian_id, data.guardian_type, event.coin, latched=True, blocks_opens=True
        )
    elif data.guardian_type != "schedule":
        mirror.guardians.pop(data.guardian_id, None)


def _guardian_released(mirror: Mirror, event: Any, data: Any) -> None:
    """A drawdown's block ends and it stands armed again; any other is gone."""
    if data.guardian_type == "account_drawdown":
        mirror.guardians[data.guardian_id] = MirrorGuardian(data.guardian_id, data.guardian_type, event.coin)
    else:
        mirror.guardians.pop(data.guardian_id, None)


def _guardian_gone(mirror: Mirror, event: Any, data: Any) -> None:
    mirror.guardians.pop(data.guardian_id, None)


def _gain(mirror: Mirror, usd: Decimal, *, balance_usd: Decimal) -> None:
    """The account is worth so much more. What the cash does not show of it went to an isolated margin, or came from there."""
    mirror.value_offset_usd += float(mirror.balance_usd + usd - balance_usd)
    mirror.balance_usd = balance_usd


def _funded(mirror: Mirror, event: Any, data: Any) -> None:
    _gain(mirror, data.amount_usd, balance_usd=data.balance_usd)


def _paid(mirror: Mirror, event: Any, data: Any) -> None:
    mirror.balance_usd = data.balance_usd


def _lost(mirror: Mirror, event: Any, data: Any) -> None:
    """Liquidated; the fills beside it have told what it cost."""
    mirror.balance_usd = data.balance_usd
    _flat(mirror, event.coin)


def _taken(mirror: Mirror, event: Any, data: Any) -> None:
    """By the backstop, and no fill tells of it. Where the service says of neither how much, the next snapshot does."""
    if data.margin_lost_usd or data.absorbed_usd:
        gained = data.realized_pnl_usd - data.margin_lost_usd + data.absorbed_usd
        _gain(mirror, gained, balance_usd=data.balance_usd)
    _lost(mirror, event, data)


def _settled(mirror: Mirror, event: Any, data: Any) -> None:
    """What it had cost is cash again, or gone."""
    _gain(mirror, data.realized_pnl_usd + data.absorbed_usd - data.fee_usd, balance_usd=data.balance_usd)
    _flat(mirror, event.coin)


def _leverage(mirror: Mirror, event: Any, data: Any) -> None:
    position = mirror.positions.get(data.coin)
    if position is not None:
        mirror.positions[data.coin] = position._replace(leverage=data.new)


def _began(mirror: Mirror, event: Any, data: Any) -> None:
    """An account is made or wiped: nothing of before is true any more."""
    mirror.positions.clear()
    mirror.orders.clear()
    mirror.guardians.clear()
    mirror.balance_usd = data.balance_usd
    mirror.value_offset_usd = 0.0


FOLD: Final[Mapping[tuple[str, str], Fold]] = {
    ("fill", "entry"): _filled,
    ("fill", "exit"): _filled,
    ("order", "open"): _order_stands,
    ("order", "armed"): _order_stands,
    ("order", "changed"): _order_stands,
    ("order", "canceled"): _order_gone,
    ("trigger", "stop_loss"): _order_gone,
    ("trigger", "take_profit"): _order_gone,
    ("guardian", "armed"): _guardian_stands,
    ("guardian", "activated"): _guardian_stands,
    ("guardian", "fired"): _guardian_fired,
    ("guardian", "released"): _guardian_released,
    ("guardian", "disarmed"): _guardian_gone,
    ("funding", "payment"): _funded,
    ("liquidation", "partial"): _paid,
    ("liquidation", "full"): _lost,
    ("liquidation", "backstop"): _taken,
    ("settlement", "settled"): _settled,
    ("account", "created"): _began,
    ("account", "reset"): _began,
    ("account", "leverage"): _leverage,
}


def _named(event: Event, key: str) -> Event:
    return Named.model_construct(
        id=event.id, type=event.type, subtype=event.subtype, ts=event.ts, coin=event.coin, request_id=event.request_id,
        idempotency_key=key, data=event.data,
    )  # fmt: skip


def _order_of(one: Order, keys: Mapping[TradeOf, str]) -> MirrorOrder:
    return MirrorOrder(
        oid=one.oid,
        market=one.coin,
        kind=one.kind,
        side=one.side,
        action=one.intent,
        size=one.size,
        filled=one.filled_size,
        limit_px=one.limit_px,
        trigger_px=one.trigger_px,
        trade_id=one.trade_id,
        key=one.idempotency_key or keys.get((one.coin, one.trade_id or "", one.intent)),
        created_ms=one.created_at or 0,
    )


def entry_terms(market: Market) -> EntryTerms:
    """As the list of markets tells them. An event's fee is told for a Yes at its present price; a No, or another price, may pay up to the whole rate."""
    fee = float(market.taker_fee_bps or 0) / 10_000 + FEE_ROUNDING
    if market.coin.startswith(EVENT) and market.mark_px is not None and market.mark_px < 1:
        fee /= 1 - float(market.mark_px)
    return EntryTerms(fee, market.margin_mode or "cross")


def _guardian_of(one: Guardian) -> MirrorGuardian:
    return MirrorGuardian(
        one.id, one.type, one.coin, latched=one.status == "latched", blocks_opens=one.blocks_opens, active=one.active
    )
