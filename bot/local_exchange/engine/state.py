"""The state of the local exchange: accounts by address, orders, fills, agents, and what happened since the last look
(`reports`).

Amounts are integers of 1e-8, times are milliseconds. The venue's `State` holds markets, balances and positions: one
account for each address and dex. Lists have limits, so that memory does not grow with time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bot.local_exchange import switches
from bot.local_exchange.engine.book import Book
from bot.local_exchange.engine.raw_ledger import RawAccount
from bot.local_exchange.engine.records import Agent, ExchangeFill, ExchangeOrder, ExchangeTrade, Report
from bot.local_exchange.engine.venue_rules import State, VenueAccount, VenueMarket, open_account

# The fills of an account, as many as the exchange keeps.
FILLS_KEPT: Final = 10_000
# rows of historicalOrders
HISTORY_KEPT: Final = 2_000
# ended orders that orderStatus still knows, over all accounts
ENDED_KEPT: Final = 20_000
# The trades of a market.
TRADES_KEPT: Final = 100
# a client must hold 64-bit order ids
FIRST_OID: Final = 300_000_000_000

# the other participants
MAKER: Final = "0x" + "4d" * 20
# the vault that takes over positions
LIQUIDATOR: Final = "0x" + "4c" * 20


@dataclass(slots=True)
class User:
    """One address: a master, a sub-account, or the exchange's own. `leverage` by coin: (is cross, value)."""

    address: str
    master: str | None = None
    name: str = ""
    spot_usd: int = 0
    leverage: dict[str, tuple[bool, int]] = field(default_factory=dict)
    orders: dict[int, ExchangeOrder] = field(default_factory=dict)
    cloids: dict[str, int] = field(default_factory=dict)
    fills: deque[ExchangeFill] = field(default_factory=lambda: deque(maxlen=FILLS_KEPT))
    history: deque[ExchangeOrder] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    fundings: deque[Any] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    ledger_rows: deque[Any] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    values: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    # day -> [taker, maker] of the last 15 days
    day_volume: dict[int, list[int]] = field(default_factory=dict)
    volume: int = 0
    # growth-mode markets count a tenth
    budget_volume: int = 0
    requests: int = 0
    reserved_requests: int = 0
    # when an address without budget may act again
    next_spare_ms: int = 0
    builders: dict[str, int] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    cancel_all_ms: int | None = None
    # (day, how many)
    cancel_firings: tuple[int, int] = (0, 0)
    # coin -> end of the 30 s after a partial one
    liquidation_until: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Nonces:
    """The nonces of one signer: all of the time window in `seen`, the 100 highest decide what is too low."""

    seen: set[int] = field(default_factory=set)
    highest: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Coin:
    """A market of the exchange beside the venue's `VenueMarket`: its asset number, book, trades, candles and premium
    samples.
    """

    name: str
    asset: int
    dex: str
    market: VenueMarket
    book: Book
    margin_table: int
    # normal | noCross | strictIsolated
    mode: str = "normal"
    is_delisted: bool = False
    # live trigger orders by oid
    triggers: dict[int, ExchangeOrder] = field(default_factory=dict)
    previous_mark: int = 0
    trades: deque[ExchangeTrade] = field(default_factory=lambda: deque(maxlen=TRADES_KEPT))
    # interval ms -> [open ms, o, h, l, c, v, n]
    candles: dict[int, deque[list[int]]] = field(default_factory=dict)
    # (day, price)
    day_open: tuple[int, int] = (0, 0)
    # day, notional, size
    day_volume: list[int] = field(default_factory=lambda: [0, 0, 0])
    # scaled 1e12
    premium: int = 0
    # premium times milliseconds of this hour
    premium_sum: int = 0
    premium_from_ms: int = 0
    funding_history: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=500))


class Dex(NamedTuple):
    """A perpetual exchange: the main one has the name "". Fees of a HIP-3 dex are scaled by its deployer."""

    name: str
    full_name: str
    # scaled 1e8
    fee_scale: int
    growth: bool
    coins: tuple[str, ...]


@dataclass(slots=True)
class Exchange:
    """The whole state. `block` numbers the executed actions and price updates; hashes are made from it."""

    network: str
    seed: int
    now_ms: int
    switches: dict[str, str]
    venue: State = field(default_factory=State)
    coins: dict[str, Coin] = field(default_factory=dict)
    assets: dict[int, str] = field(default_factory=dict)
    dexes: list[Dex] = field(default_factory=list)
    users: dict[str, User] = field(default_factory=dict)
    raw: dict[str, RawAccount] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    used_agents: set[str] = field(default_factory=set)
    nonces: dict[str, Nonces] = field(default_factory=dict)
    ended: dict[int, ExchangeOrder] = field(default_factory=dict)
    next_oid: int = FIRST_OID
    block: int = 0
    block_is_action: bool = False
    post_only_until_ms: int = 0
    next_hour_ms: int = 0
    next_price_ms: int = 0
    reports: list[Report] = field(default_factory=list)

    def switch(self, name: str) -> str:
        return self.switches[name]


def new_exchange(network: str, seed: int, now_ms: int, chosen: dict[str, str] | None = None) -> Exchange:
    exchange = Exchange(network, seed, now_ms, {**switches.defaults(), **(chosen or {})})
    exchange.venue.now_ms = now_ms
    for address in (MAKER, LIQUIDATOR):
        exchange.users[address] = User(address)
    return exchange


def account_id(address: str, dex: str) -> str:
    return f"{address}/{dex}"


def user_of(exchange: Exchange, address: str) -> User:
    user = exchange.users.get(address)
    if user is None:
        user = exchange.users[address] = User(address)
    return user


def account_of(exchange: Exchange, address: str, dex: str) -> VenueAccount:
    """The venue's account of an address in a dex; it is made on first use."""
    name = account_id(address, dex)
    account = exchange.venue.accounts.get(name)
    if account is None:
        account = open_account(exchange.venue, name, exchange.now_ms)
        exchange.raw[name] = RawAccount()
    return account


def accounts_of(exchange: Exchange, address: str) -> Iterator[tuple[str, VenueAccount]]:
    """(dex, account) of each dex in which the address has been."""
    for dex in exchange.dexes:
        account = exchange.venue.accounts.get(account_id(address, dex.name))
        if account is not None:
            yield dex.name, account


def position_size(exchange: Exchange, address: str, coin: str) -> int:
    """Signed size of a position; 0 without one."""
    raw = exchange.raw.get(account_id(address, exchange.coins[coin].dex))
    return 0 if raw is None else raw.sizes.get(coin, 0)


def leverage_of(exchange: Exchange, user: User, coin: str) -> tuple[bool, int]:
    """(is cross, leverage) that the user has chosen; by default cross where allowed, and at most 20."""
    chosen = user.leverage.get(coin)
    if chosen is not None:
        return chosen
    listed = exchange.coins[coin]
    return listed.mode == "normal", min(20, listed.market.spec.max_leverage)


def take_oid(exchange: Exchange) -> int:
    exchange.next_oid += 1
    return exchange.next_oid


def block_hash(exchange: Exchange) -> str:
    """The transaction's hash; zeros if no user's action caused the block."""
    if not exchange.block_is_action:
        return "0x" + "0" * 64
    return "0x" + hashlib.blake2b(f"{exchange.seed}:{exchange.block}".encode(), digest_size=32).hexdigest()


def trade_id(buyer_oid: int, seller_oid: int) -> int:
    """50 bits of a hash of both orders."""
    digest = hashlib.blake2b(f"{buyer_oid}:{seller_oid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 14


def set_status(exchange: Exchange, order: ExchangeOrder, status: str) -> None:
    """Write an order's new status, with its history row and its report. An ended order leaves the open orders."""
    order.status, order.status_ms, order.told_sz = status, exchange.now_ms, order.sz
    user = exchange.users[order.user]
    row = copy(order)
    user.history.append(row)
    exchange.reports.append(Report("order", order.user, row))
    if status not in ("open", "triggered"):
        user.orders.pop(order.oid, None)
        exchange.ended[order.oid] = row
        if len(exchange.ended) > ENDED_KEPT:
            forgotten = exchange.ended.pop(next(iter(exchange.ended)))
            owner = exchange.users[forgotten.user]
            if forgotten.cloid is not None and owner.cloids.get(forgotten.cloid) == forgotten.oid:
                del owner.cloids[forgotten.cloid]
        if status.endswith("Canceled") and status != "canceled":
            exchange.reports.append(Report("cancel", order.user, row))


def find_order(exchange: Exchange, user: User, key: int | str) -> ExchangeOrder | None:
    """The order with this oid or cloid, as its last status left it."""
    if isinstance(key, str):
        oid = user.cloids.get(key)
        if oid is None:
            return None
        key = oid
    order = user.orders.get(key) or exchange.ended.get(key)
    return order if order is not None and order.user == user.address else None
