"""The account state: what the daemon believes of the account's positions, orders, guardians and balance.

fold.py changes it by events, `of_snapshot` by a snapshot of the service; diff.py compares it with a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.money import E8, decimal_of_e8, e8_of_decimal
from bot.runtime.account.entry_margin import EntryTerms
from bot.runtime.model.intents import TradeOf
from bot.runtime.model.positions import AccountGuardian, AccountOrder, AccountPosition
from bot.wire import bare_coin

if TYPE_CHECKING:
    from bot.model.events import OrderChanged
    from bot.wire import AccountSnapshot, Guardian, Order, Position

# keys of trades; needed for minutes, after that the service is asked
KEYS_KEPT: Final = 2_000

# covers float errors, and margins that the service rounds up at each fill
ROUNDING_USD: Final = 0.001
# a market entry that waits may be filled at a worse price than the mark
WAITING: Final = 1.01


# The terms for an unknown market.
_DEFAULT_TERMS: Final = EntryTerms()


def _no_owner(key: str) -> str | None:
    return None


def _no_keys(trade_ids: Iterable[str], epoch: int) -> Mapping[TradeOf, str]:
    return {}


def _no_leverage(key: str) -> int | None:
    return None


def _see_nothing(event: OrderChanged) -> None:
    """Look at no order."""


class AccountPlace(NamedTuple):
    """Where the account's money is. `environment` sandbox: play money.

    `link`: what the service knows of the account at the exchange that it follows (away, behind, in_step), and the
    `reason`; None: it follows none.
    """

    environment: str | None = None
    link: str | None = None
    reason: str | None = None


class AccountState:
    """`owner_of(key)` names the strategy of an intent; None if the key is not ours.

    `keys_of_trades(trade_ids, epoch)` gives the keys of the trades that are orders of ours. `leverage_of(key)` is the
    leverage that an entry of ours requested; events do not contain it.
    """

    def __init__(
        self,
        owner_of: Callable[[str], str | None] = _no_owner,
        keys_of_trades: Callable[[Iterable[str], int], Mapping[TradeOf, str]] = _no_keys,
        leverage_of: Callable[[str], int | None] = _no_leverage,
        see_resting: Callable[[OrderChanged], None] = _see_nothing,
    ) -> None:
        self.owner_of = owner_of
        self._keys_of_trades = keys_of_trades
        self.leverage_of = leverage_of
        self.positions: dict[str, AccountPosition] = {}
        self.orders: dict[str, AccountOrder] = {}
        self.guardians: dict[str, AccountGuardian] = {}
        self.trades_by_key: dict[str, str] = {}
        # Keys of closes whose last fill has come.
        self.closed: set[str] = set()
        # the event being folded got its key from us, by its trade
        self.is_named_by_us = False
        # True once this service has shown one of our keys on a trade
        self.keys_proven = False
        # True once an event has shown one of our keys; what has no key is then not ours
        self.events_named = False
        # While one order reverses a position, by market: the order's trade, and the leverage that the new position
        # takes over.
        self.turning: dict[str, tuple[str, float]] = {}
        # Gets each order that begins to rest.
        self.see_resting = see_resting
        self.marks: dict[str, float] = {}
        # bare coin -> its terms, once the markets are known
        self.terms: dict[str, EntryTerms] = {}
        self.balance_e8 = 0
        self.epoch = 0
        self.place = AccountPlace()
        # What `unprotected` has answered last.
        self.bare: list[AccountPosition] = []
        # account value that is neither cash nor unrealised profit: isolated margin, paid event cost
        self.value_offset_usd = 0.0

    def prove_keys(self) -> None:
        """The service has shown one of our keys: what has no key is not ours from now on."""
        self.keys_proven = self.events_named = True

    @property
    def balance_usd(self) -> Decimal:
        return decimal_of_e8(self.balance_e8)

    # -- changes

    def keys_of(self, trade_ids: Iterable[str]) -> Mapping[TradeOf, str]:
        """The keys of our orders among these trades, for a service that shows no keys."""
        return self._keys_of_trades(trade_ids, self.epoch)

    def see_trade(self, key: str, trade_id: str) -> None:
        """Note a trade with our key that was read outside the feed."""
        if self.owner_of(key) is not None:
            self.keys_proven = True
        self.keep_key(key, trade_id)

    def of_snapshot(self, snapshot: AccountSnapshot) -> None:
        """Take over a snapshot.

        Owners and first stops, which the service does not know, stay for positions that are still open.
        """
        if snapshot.epoch != self.epoch:
            # A position from before a reset is not the one that is open in its market now.
            self.positions = {}
        self.epoch = snapshot.epoch
        followed = snapshot.exchange
        link, reason = (None, None) if followed is None else (followed.link, followed.reason)
        self.place = AccountPlace(snapshot.environment, link, reason)
        self.balance_e8 = e8_of_decimal(snapshot.balance_usd)
        self.positions = {
            position.coin: _position_of(position, self.positions.get(position.coin)) for position in snapshot.positions
        }
        keys = self._keys_of_orders(snapshot.orders)
        self.orders = {order.oid: _order_of(order, keys) for order in snapshot.orders}
        self.see_guardians(snapshot.guardians)
        for position in snapshot.positions:
            if position.mark_px is not None:
                self.marks[position.coin] = float(position.mark_px)
        self.value_offset_usd = float(snapshot.account_value_usd - snapshot.balance_usd - snapshot.unrealized_pnl_usd)

    def see_guardians(self, listed: Iterable[Guardian]) -> None:
        """Take over the service's list of guardians."""
        self.guardians = {guardian.id: _guardian_of(guardian) for guardian in listed}

    def adopt(self, market: str, owner: str | None, *, is_adopted: bool = False) -> None:
        """Make this strategy the owner of the position.

        `owner` None: no strategy owns it any more. `is_adopted`: somebody else has opened it.
        """
        self.positions[market] = self.positions[market]._replace(owner=owner, is_adopted=is_adopted)

    def date(self, market: str, opened_ms: int) -> AccountPosition:
        """Set when the position was opened, if the service does not say."""
        position = self.positions[market] = self.positions[market]._replace(opened_ms=opened_ms)
        return position

    # -- queries

    def stop_of(self, market: str) -> AccountOrder | None:
        return _leg(self.orders, market, "stop_loss")

    def target_of(self, market: str) -> AccountOrder | None:
        return _leg(self.orders, market, "take_profit")

    def is_protected(self, market: str) -> bool:
        """True if the service holds a stop for the whole position, or an active trailing stop."""
        position = self.positions.get(market)
        is_stopped = self.stop_of(market) is not None if position is None else self.is_stopped(position)
        return is_stopped or self._is_trailed(market)

    def unprotected(self) -> list[AccountPosition]:
        """Our own positions without a working stop.

        Every pass asks this, so each order is looked at once, not once a position.
        """
        if not self.positions:
            self.bare = []
            return []
        bare = {position.market: position.size_e8 for position in self.positions.values() if position.owner is not None}
        for order in self.orders.values():
            market = order.market
            is_stop = order.kind == "stop_loss" and market in bare and order.action == "close"
            if is_stop and order.side == self.positions[market].side:
                bare[market] -= order.size_e8 - order.filled_e8 if order.size_e8 else bare[market]
        unstopped: list[AccountPosition] = []
        if max(bare.values(), default=0) > 0:
            unstopped += [
                self.positions[coin] for coin, left in bare.items() if left > 0 and not self._is_trailed(coin)
            ]
        self.bare = unstopped
        return unstopped

    def is_stopped(self, position: AccountPosition, liquidation_px: Decimal | None = None) -> bool:
        """True if stops cover the whole position.

        A stop with size 0 covers all of it. A stop of the other side, or beyond the liquidation price, covers nothing.
        """
        left = position.size_e8
        for order in self.orders.values():
            is_stop = order.kind == "stop_loss" and order.market == position.market and order.action == "close"
            fires = liquidation_px is None or position.can_fire(order.trigger_px, liquidation_px)
            if is_stop and fires and order.side == position.side:
                left -= order.size_e8 - order.filled_e8 if order.size_e8 else left
                if left <= 0:
                    return True
        return False

    def is_unsure_of(self, market: str) -> bool:
        """True if the position has a trailing stop, and only the service's list of guardians says if it is active."""
        return any(trail.active is None for trail in _trails(self.guardians, market)) and self._has_r(market)

    def _is_trailed(self, market: str) -> bool:
        return any(
            trail.active or (trail.active is None and not self._has_r(market))
            for trail in _trails(self.guardians, market)
        )

    def _has_r(self, market: str) -> bool:
        """True if the position has had a stop.

        A trailing stop waits for a profit in units of that stop's distance (r).
        """
        position = self.positions.get(market)
        return position is not None and position.first_stop_e8 is not None

    def entries(self, market: str) -> list[AccountOrder]:
        """Resting orders of a market that could open."""
        return [o for o in self.orders.values() if o.market == market and o.could_open]

    def closing(self, market: str, strategy: str | None = None) -> list[AccountOrder]:
        """Our closes that wait for the market's next open: of one strategy, or of all."""
        waiting = [o for o in self.orders.values() if o.market == market and o.kind == "close" and o.key is not None]
        if strategy is None or not waiting:
            return waiting
        return [o for o in waiting if o.key is not None and self.owner_of(o.key) == strategy]

    def leaving(self, market: str, strategy: str | None = None) -> Decimal:
        """The size that the closes of `closing` will take from the position."""
        return sum((o.size - o.filled for o in self.closing(market, strategy)), Decimal(0))

    def resting(self) -> list[tuple[str, str]]:
        """Owner and id of each of our resting entries, sorted by market."""
        entries = []
        for order in sorted(self.orders.values(), key=attrgetter("market")):
            if order.key is not None and order.could_open:
                owner = self.owner_of(order.key)
                if owner is not None:
                    entries.append((owner, order.oid))
        return entries

    def resting_of(self, strategy: str | None) -> tuple[str, ...]:
        """Ids of the resting entries of one strategy (None: of all), sorted by market."""
        return tuple(oid for owner, oid in self.resting() if strategy in (None, owner))

    def unrealized_usd(self, position: AccountPosition) -> float:
        mark = self.marks.get(position.market)
        if mark is None or position.entry_e8 is None:
            return 0.0
        gain = (mark - position.entry_e8 / E8) * (position.size_e8 / E8)
        return gain if position.side == "long" else -gain

    @property
    def equity_usd(self) -> float:
        return self.balance_e8 / E8 + self.value_offset_usd + sum(map(self.unrealized_usd, self.positions.values()))

    @property
    def free_margin_usd(self) -> float:
        used = sum(float(p.notional_usd) / (p.leverage or 1) for p in self.positions.values())
        return self.equity_usd - used

    def all_in_usd(self, market: str, leverage: float) -> float:
        """Notional of the largest market entry that the free margin allows, by the service's rule.

        Free margin is cash plus cross positions at their marks, less what waiting entries hold back. An isolated
        position adds nothing: its margin and its profit belong to the position.
        """
        free = self.balance_e8 / E8 - ROUNDING_USD
        for p in self.positions.values():
            if self._terms_of(p.market).margin_mode == "cross":
                mark = self.marks.get(p.market, float(p.entry_px or 0))
                free += self.unrealized_usd(p) - mark * float(p.size) / (p.leverage or 1)
        for order in filter(attrgetter("could_open"), self.orders.values()):
            waiting_usd = float(order.resting_usd(self.marks.get(order.market))) * (1 if order.limit_px else WAITING)
            free -= self._terms_of(order.market).margin_usd(waiting_usd, order.leverage)
        return max(0.0, free) / self._terms_of(market).margin_usd(1, leverage)

    def _terms_of(self, market: str) -> EntryTerms:
        return self.terms.get(bare_coin(market), _DEFAULT_TERMS)

    def is_foreign(self, key: str | None) -> bool:
        """True if an order with this key was placed by somebody else: another agent, daemon or person."""
        if key is None:
            # A service that shows no keys does not say who placed an order.
            return self.events_named
        return self.owner_of(key) is None

    def _keys_of_orders(self, orders: Iterable[Order]) -> Mapping[TradeOf, str]:
        """The keys of our orders among those that show no key."""
        bare = {order.trade_id for order in orders if order.idempotency_key is None and order.trade_id is not None}
        return self.keys_of(bare) if bare and not self.events_named else {}

    def keep_key(self, key: str, trade_id: str) -> None:
        self.trades_by_key[key] = trade_id
        if len(self.trades_by_key) > KEYS_KEPT:
            del self.trades_by_key[next(iter(self.trades_by_key))]


def _trails(guardians: Mapping[str, AccountGuardian], market: str) -> list[AccountGuardian]:
    return [g for g in guardians.values() if g.type == "trailing_stop" and g.market == market and not g.latched]


def _leg(orders: Mapping[str, AccountOrder], market: str, kind: str) -> AccountOrder | None:
    for order in orders.values():
        if order.market == market and order.kind == kind and order.action == "close":
            return order
    return None


def _position_of(position: Position, known: AccountPosition | None) -> AccountPosition:
    if known is not None and known.side != position.side:
        # Another position in the same market.
        known = None
    first_stop = None if known is None else known.first_stop_e8
    return AccountPosition(
        market=position.coin,
        side=position.side,
        size_e8=e8_of_decimal(position.size),
        entry_e8=None if position.entry_px is None else e8_of_decimal(position.entry_px),
        leverage=position.leverage,
        first_stop_e8=first_stop
        if first_stop is not None
        else None
        if position.stop_px is None
        else e8_of_decimal(position.stop_px),
        opened_ms=position.opened_at or (0 if known is None else known.opened_ms),
        owner=None if known is None else known.owner,
        is_adopted=known is not None and known.is_adopted,
    )


def _order_of(order: Order, keys: Mapping[TradeOf, str]) -> AccountOrder:
    return AccountOrder(
        oid=order.oid,
        market=order.coin,
        kind=order.kind,
        side=order.side,
        action=order.intent,
        size_e8=e8_of_decimal(order.size),
        filled_e8=e8_of_decimal(order.filled_size),
        limit_e8=None if order.limit_px is None else e8_of_decimal(order.limit_px),
        trigger_e8=None if order.trigger_px is None else e8_of_decimal(order.trigger_px),
        trade_id=order.trade_id,
        key=order.idempotency_key or keys.get((order.coin, order.trade_id or "", order.intent)),
        created_ms=order.created_at or 0,
    )


def _guardian_of(guardian: Guardian) -> AccountGuardian:
    return AccountGuardian(
        guardian.id,
        guardian.type,
        guardian.coin,
        latched=guardian.status == "latched",
        blocks_opens=guardian.blocks_opens,
        active=guardian.active,
    )
