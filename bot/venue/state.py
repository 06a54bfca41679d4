"""What the venue knows: markets, accounts, positions, orders, trades, guardians, plans. Data only; apply.py moves it.

Ids refer to objects by number, never by reference, so nothing here forms a cycle. The level lists and the deadline heap are
derived: `index.rebuild` makes them again from the rest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bot.venue import text_set
from bot.venue.events import Event
from bot.venue.numbers import E8, tick_table

LONG: Final = 1
SHORT: Final = -1

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
EVENTS_KEPT: Final = 100_000  # What /v1/limits reports; older ones go in blocks of a tenth.
OPEN_ORDERS_MAX: Final = 200
GUARDIANS_MAX: Final = 100
KEYS_MAX: Final = 50
WEBHOOKS_MAX: Final = 20
MIN_NOTIONAL: Final = 10 * E8
BOOK_LEVELS: Final = 20  # What the venue's own book shows a side.
CLOSED_DEPTH: Final = 3  # While the outside price is closed, depth is a third and the spread three times as wide.
PLAN_KEPT_MS: Final = 7 * DAY_MS  # For a week a used or stale token is answered as such.
# Of all accounts. Beyond it the oldest tenth that can no longer be confirmed is removed; the trades of used plans are kept.
PLANS_KEPT: Final = 2_000


class Tier(NamedTuple):
    """One margin tier: from `lower` USD of notional on, at most `max_leverage`; `deduction` keeps maintenance continuous."""

    lower: int
    max_leverage: int
    deduction: int


def tiers_of(bounds: tuple[tuple[int, int], ...]) -> tuple[Tier, ...]:
    """Tiers from (lower bound in USD units, max leverage); deduction(n) = deduction(n-1) + lower * (rate(n) - rate(n-1)), rate = 1 / (2 max leverage)."""
    tiers: list[Tier] = []
    for lower, leverage in bounds:
        if not tiers:
            tiers.append(Tier(lower, leverage, 0))
            continue
        last = tiers[-1]
        step = lower * (last.max_leverage - leverage) // (2 * leverage * last.max_leverage)
        tiers.append(Tier(lower, leverage, last.deduction + step))
    return tuple(tiers)


@dataclass(frozen=True, slots=True)
class MarketSpec:
    """What a market is. Rates are fractions scaled 1e8: taker 0.045 % is 45_000. `level_size` 0 means unlimited depth."""

    coin: str
    name: str = ""
    asset_class: str = "crypto"
    book: str = "main"
    margin_mode: str = "cross"  # cross | isolated | full (events: paid at once, outcome.py)
    sz_decimals: int = 5
    max_leverage: int = 40
    tiers: tuple[
        tuple[int, int], ...
    ] = ()  # (lower bound in scaled USD, max leverage); empty: one tier at max_leverage
    sig_figs: int | None = 5
    px_decimals: int | None = None  # None: 6 - sz_decimals
    taker_rate: int = 45_000
    maker_rate: int = 15_000
    half_spread: int = 0
    level_step: int = 0
    level_size: int = 0
    level_growth: int = 0
    slippage_bps: int = 100
    participation: int = 10_000_000  # A resting limit takes at most this part of a bar's volume.
    funding_rate: int = 12_500_000  # Hourly fraction scaled 1e12 (0.0000125), the rate in the neutral band.
    limit_touch: bool = False  # True: a resting limit fills at its price; False: one tick through it.
    hours: str | None = (
        None  # The outside price's calendar (equity | index), which the service keeps; None: it never closes.
    )
    strict_hours: bool = False  # True: nothing is opened while the outside price is closed.
    funding_factor: int = E8  # On the rate that a premium makes: half of it for stocks.
    expires_ms: int | None = None  # When an event market is settled.
    bar_length_ms: int = 0  # Prices come in bars of this length, and without one there is none. 0: around the clock.


def px_inside(opened: int, closed: int, since_ms: int, length_ms: int) -> int:
    """The price so long after a bar's open: its close comes in its last millisecond."""
    return opened + (closed - opened) * since_ms // (length_ms - 1)


@dataclass(slots=True)
class Market:
    """A market in motion. `falling` and `rising` are level lists whose last element is the nearest to the price."""

    spec: MarketSpec
    mark: int
    mid: int
    oracle: int
    status: str = "open"
    funding_rate: int = 0
    next_funding_ms: int = 0  # 0: no account holds a position, nothing is scheduled.
    point: int = 0
    bar_ms: int = 0
    volume_left: int = 0  # What resting limits may still take of the running bar.
    external: str | None = None  # Session of the outside price: open | closed; None: it has none.
    opens_ms: int | None = None
    closes_ms: int | None = None
    resolution: int | None = None  # The outcome set before the settlement; None: the last mark implies it.
    outcome_px: int | None = None  # After the settlement.
    pending: list[tuple[str, int]] = field(
        default_factory=list
    )  # (account, oid) of market orders that wait for the next point.
    working: list[tuple[str, int]] = field(
        default_factory=list
    )  # (account, oid) of exits whose rest is tried again at each point.
    holders: dict[str, None] = field(default_factory=dict)  # Accounts with a position here, in order of entry.
    is_rate_told: bool = False  # The funding rate is a recorded one, which no premium changes.
    bar_opened_ms: int = 0  # Of prices that come in bars, the newest: when it opened, its open and its close.
    bar_open: int = 0
    bar_close: int = 0
    falling: list[tuple[int, int, int, Level]] = field(default_factory=list, repr=False, compare=False)
    rising: list[tuple[int, int, int, Level]] = field(default_factory=list, repr=False, compare=False)
    ticks: tuple[int, ...] = field(default=(), repr=False, compare=False)
    lot: int = field(default=0, repr=False, compare=False)
    tiers: tuple[Tier, ...] = field(default=(), repr=False, compare=False)
    level_sizes: tuple[int, ...] = field(default=(), repr=False, compare=False)  # Empty: unlimited depth.
    watches: int = field(default=0, repr=False, compare=False)  # How often a margin or floor watch was placed.

    def __post_init__(self) -> None:
        spec = self.spec
        self.ticks = tick_table(spec.sz_decimals, sig_figs=spec.sig_figs, px_decimals=spec.px_decimals)
        self.lot = 10 ** (8 - spec.sz_decimals)
        self.tiers = tiers_of(spec.tiers or ((0, spec.max_leverage),))
        self.deepen()

    def deepen(self) -> None:
        """Make the book's level sizes: a third of them while the outside price is closed."""
        spec = self.spec
        if spec.level_size:
            deep = spec.level_size if self.external != "closed" else spec.level_size // CLOSED_DEPTH
            sizes = (deep * (E8 + level * spec.level_growth) // E8 for level in range(BOOK_LEVELS))
            self.level_sizes = tuple(max(size - size % self.lot, self.lot) for size in sizes)

    def see(self, px: int) -> None:
        """A calm price: mark and mid, and the oracle while the outside price is open."""
        self.mark = self.mid = px
        if self.external != "closed":
            self.oracle = px

    def begin_bar(self, opened_ms: int, opened: int, closed: int) -> None:
        """Of prices that come in bars, the next one."""
        if self.spec.bar_length_ms:
            self.bar_opened_ms, self.bar_open, self.bar_close = opened_ms, opened, closed

    def px_at(self, now_ms: int) -> int | None:
        """The price at an instant that no point names. Inside a bar it is on the straight line from its open to its close, since the newest point
        may be an extreme; where a bar is missing there is no price."""
        length_ms = self.spec.bar_length_ms
        if not length_ms:
            return self.mid
        since_ms = now_ms - self.bar_opened_ms
        return None if since_ms >= length_ms else px_inside(self.bar_open, self.bar_close, since_ms, length_ms)

    def tick(self, px: int) -> int:
        return self.ticks[len(str(px))]

    def grid_down(self, px: int) -> int:
        return px - px % self.ticks[len(str(px))]

    def grid_up(self, px: int) -> int:
        return -(-px // (tick := self.ticks[len(str(px))])) * tick

    def tier(self, notional: int) -> Tier:
        tiers = self.tiers
        if len(tiers) == 1:
            return tiers[0]
        found = tiers[0]
        for tier in tiers:
            if notional < tier.lower:
                break
            found = tier
        return found


class Level(NamedTuple):
    """What waits at a level: its kind, the account and the number of the order or guardian (0 for a margin watch)."""

    kind: str  # limit | stop_loss | take_profit | trail | trail_move | liquidation | drawdown
    account: str
    number: int


@dataclass(slots=True)
class Leg:
    """A resolved stop or target: `px` on the grid, `pct` or `r` as given."""

    px: int
    pct: int | None = None
    r: int | None = None


@dataclass(slots=True)
class Bracket:
    stop: Leg | None = None
    target: Leg | None = None


@dataclass(slots=True)
class Order:
    """An open limit, a pending market order, an armed trigger or an exit that still works. `buy` is +1 or -1; `side` is the position's."""

    number: int
    account: str
    coin: str
    kind: str  # market | limit | stop_loss | take_profit | close
    side: int
    buy: int
    size: int
    created_ms: int
    status: str = "open"  # open | armed | working
    filled: int = 0
    trade: str | None = None
    limit_px: int | None = None
    trigger_px: int | None = None
    stop_leg: LegSpec | None = None
    target_leg: LegSpec | None = None
    guardians: tuple[GuardianSpec, ...] = ()
    require_protection: bool = False
    reduce_only: bool = False
    leverage: int = 1
    reserved: int = 0
    bound_px: int = 0
    slippage_bps: int | None = None  # The caller's own; None: the market's.
    source: str | None = None
    idempotency_key: str | None = None
    request_id: str | None = None
    key: str | None = None
    armed: bool = False  # An entry whose bracket and guardians stand already.
    born: int = 0  # The market's point at which it came to be: only later points can meet it.
    limit_bar_ms: int = -1  # Armed by a resting limit inside this bar: a target then counts at the bar's close only.
    through: bool = False  # Armed already beyond its trigger: fires at the current price.
    leg: Leg | None = None
    reason: str | None = None
    opens: int | None = None  # Rest of what a reversing order may open. None: all of its rest.
    usd: int | None = (
        None  # Of an entry in USD that waits for the next point: its size is reckoned again by the price that it meets.
    )

    def left_to_open(self) -> int:
        """The most that its later fills may open, whatever has become of the position that it was to close."""
        if self.reduce_only:
            return 0
        return self.size - self.filled if self.opens is None else self.opens


@dataclass(slots=True)
class LegSpec:
    """A stop or target as asked for: exactly one of pct (percent scaled 1e8), px, r (scaled 1e8)."""

    pct: int | None = None
    px: int | None = None
    r: int | None = None


@dataclass(slots=True)
class GuardianSpec:
    """A guardian as asked for, amounts scaled 1e8. Which field belongs to which type: guardians.FIELDS."""

    type: str
    scope: str | None = None
    coin: str | None = None
    heartbeat_seconds: int | None = None
    on_miss: str | None = None
    seconds: int | None = None
    trail_pct: int | None = None
    trail_r: int | None = None
    activate_at_r: int | None = None
    max_loss_pct: int | None = None
    action: str | None = None
    cron: str | None = None
    order_template: str | None = None  # canonical JSON text, as it was given
    order: OrderSpec | None = None  # the same, read
    bounded: bool | None = (
        None  # It acts only where its key may trade. None in commands that were written before this was judged.
    )


@dataclass(slots=True)
class Guardian:
    number: int
    account: str
    spec: GuardianSpec
    created_ms: int
    status: str = "armed"  # armed | latched
    deadline_ms: int | None = None
    last_heartbeat_ms: int | None = None
    side: int = 0  # Side of the position that a trailing stop follows.
    active: bool = True
    extreme: int | None = None
    stop_px: int | None = None
    r_px: int | None = None
    trade: str | None = None
    fired_ms: int | None = None
    fire_count: int = 0
    blocks_opens: bool = False
    born: int = 0
    through: bool = False
    key: str | None = (
        None  # The key that armed it: whose orders a schedule places, and where it may close. None: a session's.
    )


@dataclass(slots=True)
class Position:
    """One position. `entry_notional` is summed, entryPx derived; parts taken out are cut toward zero, so sums stay exact."""

    account: str
    coin: str
    side: int
    size: int
    entry_notional: int
    leverage: int
    isolated: bool
    opened_ms: int
    margin: int = 0
    funding: int = 0
    stop_oid: int | None = None
    target_oid: int | None = None
    r_px: int | None = None  # 1R in price: |entry - first stop|, until a new bracket replaces it.
    liquidation_cooldown_ms: int = 0
    liquidation_level: int | None = None  # Where the margin watch stands in the level lists.
    watched_point: int = -1
    floor_level: int | None = None  # Where this position's share of a drawdown's slack ends.

    def entry_px(self) -> int:
        """Average entry, cut to 1e-8."""
        return self.entry_notional * E8 // self.size

    def pnl(self, mark: int) -> int:
        return self.side * (mark * self.size // E8 - self.entry_notional)


@dataclass(slots=True)
class Trade:
    """The record of one accepted order, made at acceptance and updated by its fills."""

    seq: int
    id: str
    request_id: str | None
    source: str | None
    kind: str
    coin: str
    side: int
    intent: str
    reduce_only: bool
    size: int
    ts: int
    updated_ms: int
    leverage: int
    oid: int | None = None
    idempotency_key: str | None = None
    filled: int = 0
    filled_notional: int = 0
    fee: int = 0
    realized: int | None = None
    status: str = "open"  # open | done | canceled
    guardian: str | None = None
    reason: str | None = None
    margin_lost: int = 0  # What a backstop liquidation took beside the realised loss.
    absorbed: int = 0  # What the service paid so that nothing went below zero.

    def fill_status(self) -> str:
        return "none" if self.filled == 0 else "filled" if self.filled >= self.size else "partial"

    def avg_px(self) -> int | None:
        return self.filled_notional * E8 // self.filled if self.filled else None


@dataclass(slots=True)
class Key:
    """A credential's record. The secret is known by its digest only. Caps None: no cap."""

    id: str
    account: str
    name: str
    prefix: str
    digest: str
    scopes: tuple[str, ...]
    created_ms: int
    source: str
    owner: bool = False
    max_exposure: int | None = None
    max_daily_notional: int | None = None
    max_leverage: int | None = None
    allowed_coins: tuple[str, ...] | None = None
    max_open_positions: int | None = None
    expires_ms: int | None = None
    revoked: bool = False
    day: int = 0
    day_notional: int = 0


@dataclass(slots=True)
class Session:
    """A sign-in of an account's owner. The token is known by its digest only; it ends in real time, so `expires_ms` is the wall's."""

    id: str
    account: str
    digest: str
    created_ms: int
    expires_ms: int
    revoked: bool = False


@dataclass(slots=True)
class Otp:
    """A code that was sent to a number, by its salted digest. `expires_ms` is the wall's."""

    salt: str
    digest: str
    expires_ms: int
    tries_left: int


@dataclass(slots=True)
class Grant:
    """A device that asks for a key. `status` pending | approved | denied | used; both codes are digests, `expires_ms` is the wall's."""

    device: str
    user: str
    origin: str
    agent: str
    expires_ms: int
    status: str = "pending"
    account: str | None = None
    name: str = ""
    scopes: tuple[str, ...] = ()
    by: str | None = None  # The key that approved: its caps bind the new one.


@dataclass(slots=True)
class Plan:
    """A dry run kept for its confirm. `state` open | used | refused | armed (a schedule of its order); a used one knows its trade. `shrinks`: its quote opened nothing."""

    token: str  # digest of the confirm token
    account: str
    key: str | None
    order: OrderSpec
    mid: int
    made_ms: int
    expires_ms: int
    max_drift_bps: int
    state: str = "open"
    trade: str | None = None
    shrinks: bool = False


@dataclass(slots=True)
class OrderSpec:
    """An order as asked for, amounts scaled 1e8, `side` +1 long or -1 short."""

    coin: str
    side: int
    usd: int | None = None
    size: int | None = None
    leverage: int | None = None
    leverage_mode: str = "error"
    type: str = "market"
    limit_px: int | None = None
    slippage_bps: int | None = None
    allow_partial: bool = False
    require_protection: bool = False
    stop: LegSpec | None = None
    target: LegSpec | None = None
    guardians: tuple[GuardianSpec, ...] = ()
    acknowledge_leverage_change: bool = False
    source: str | None = None
    reduce_only: bool = False


@dataclass(slots=True)
class Stand:
    """What an account held from `ts` on: cash less what its positions cost, and (coin, signed size, mark then) of each. See nav.py."""

    ts: int
    cash: int
    held: tuple[tuple[str, int, int], ...] = ()


@dataclass(slots=True)
class Page:
    """Events or trades of one account from number `first` on, packed: what is old is only read. See pages.py."""

    first: int
    count: int
    packed: bytes = field(repr=False)


@dataclass(slots=True)
class Account:
    id: str
    number: int
    address: str
    name: str | None
    start_balance: int  # what this epoch began with
    created_ms: int
    opened_with: int = 0  # what a reset without a balance goes back to
    balance: int = 0
    epoch: int = 0
    reserved: int = 0  # Margin and fees that resting entries hold back.
    positions: dict[str, Position] = field(default_factory=dict)
    orders: dict[int, Order] = field(default_factory=dict)
    resting: dict[int, None] = field(default_factory=dict)  # Oids of limit entries (and pending market orders).
    guardians: dict[int, Guardian] = field(default_factory=dict)
    trades: list[Trade] = field(default_factory=list)  # The newest ones; older ones may have been packed into pages.
    trade_by_key: dict[str, str] = field(
        default_factory=dict
    )  # Of the trades in `trades`; of older ones see `old_keys`.
    fenced_keys: dict[str, int] = field(default_factory=dict)  # Of snapshots of before `old_fenced_keys`.
    events: deque[Event] = field(default_factory=deque)  # The newest ones; older ones may have been packed into pages.
    events_first: int = 1  # Sequence number of the oldest event that is kept.
    event_seq: int = 0
    order_seq: int = 0
    trade_seq: int = 0
    trade_first: int = 1  # Sequence number of the oldest trade: a reset starts the list anew, the numbers go on.
    guardian_seq: int = 0
    max_trade: int | None = None
    daily_cap: int | None = None
    day: int = 0
    day_notional: int = 0
    day_realized: int = 0  # With margin lost and absorbed amounts: the effect on the balance.
    realized: int = 0
    fees: int = 0
    funding: int = 0
    margin_lost: int = 0  # What backstop liquidations took.
    absorbed: int = 0  # What the venue paid so that no balance went below zero.
    value_day: int = -1  # The UTC day that `day_value` belongs to.
    day_value: int = 0  # Account value as that day began; the first value of an account that is younger.
    begun_ms: int = 0  # When it was opened or last reset: nav starts there.
    history: list[Stand] = field(default_factory=list)  # Oldest first; empty: the starting balance, untouched.
    pages: list[Page] = field(default_factory=list)  # Events before those in `events`, oldest first, without a gap.
    trade_pages: list[Page] = field(default_factory=list)  # The same of trades that are over.
    # Trades by the tokens of their plans, once those plans had to go: day of the plan's end -> digest of the token -> trade.
    spent: dict[int, dict[str, str]] = field(default_factory=dict)
    # A key of a trade is known for ever. Those of packed trades, and those that were used before a reset, as text_set.Runs.
    old_keys: list[bytes] = field(default_factory=list, repr=False)
    old_fenced_keys: list[bytes] = field(default_factory=list, repr=False)

    def events_kept(self) -> int:
        return self.event_seq - self.events_first + 1

    def is_fenced(self, key: str) -> bool:
        """Whether this idempotency key was used before a reset."""
        return key in self.fenced_keys or text_set.has(self.old_fenced_keys, key)


@dataclass(slots=True)
class Rules:
    """Switches of one venue. `fill_at` now (served) or next (a session: market orders meet the next point)."""

    fill_at: str = "now"
    paths: str = "adaptive"  # adaptive | ohlc | olhc | sl_first | seeded


@dataclass(slots=True)
class Webhook:
    """Where an account wants its events sent. The signing secret is encrypted by the service; `types` None means all, `disabled` says why."""

    id: str
    account: str
    url: str
    types: tuple[str, ...] | None
    sealed: str = field(repr=False)
    created_ms: int
    disabled: str | None = None


@dataclass(slots=True)
class State:
    rules: Rules = field(default_factory=Rules)
    now_ms: int = 0
    markets: dict[str, Market] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    account_seq: int = 0
    next_day_ms: int = 0  # 0: no account has a position or a floor, nothing is scheduled.
    webhooks: dict[str, Webhook] = field(default_factory=dict)
    webhook_seq: int = 0
    phones: dict[str, str] = field(default_factory=dict)  # Digest of a number -> account.
    sessions: dict[str, Session] = field(default_factory=dict)
    session_seq: int = 0
    otps: dict[str, Otp] = field(default_factory=dict)  # By digest of the number.
    grants: dict[str, Grant] = field(default_factory=dict)  # By digest of the device code.
    commands: int = 0
    deadlines: list[tuple[int, int, int, str, str]] = field(default_factory=list, repr=False, compare=False)
    fresh: list[Event] = field(default_factory=list, repr=False, compare=False)
    # The last plan's quote, for the confirm that comes next: (command, token, Quote).
    quoted: tuple[int, str, Any] | None = field(default=None, repr=False, compare=False)


def side_name(side: int) -> str:
    return "long" if side > 0 else "short"


def trade_id(account: Account, seq: int) -> str:
    return f"trd_{account.number:05d}{seq:09d}"


def guardian_id(account: Account, number: int) -> str:
    return f"grd_{account.number:05d}{number:09d}"


def event_id(seq: int) -> str:
    return f"evt_{seq:012d}"


def oid_text(account: Account, number: int) -> str:
    """The wire's venueOid: digits, unique in the venue."""
    return str(account.number * 1_000_000_000 + number)
