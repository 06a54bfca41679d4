"""The venue's data: markets, accounts, positions, orders, trades, guardians, plans. `apply` changes them.

Objects refer to each other by number, never by reference, so that there are no reference cycles. The level lists and
the deadline heap are derived: `index.rebuild` makes them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from bot.model.events import Event
from bot.venue.model import text_set
from bot.venue.model.numbers import E8, tick_table

LONG: Final = 1
SHORT: Final = -1

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
# number that /v1/limits reports; older events are removed in blocks of a tenth
EVENTS_KEPT: Final = 100_000
OPEN_ORDERS_MAX: Final = 200
GUARDIANS_MAX: Final = 100
KEYS_MAX: Final = 50
WEBHOOKS_MAX: Final = 20
MIN_NOTIONAL: Final = 10 * E8
# per side, as at the venue
BOOK_LEVELS: Final = 20
# while the outside price is closed, depth is a third and the spread is three times as wide
CLOSED_DEPTH: Final = 3
# a used or stale token is recognised for a week
PLAN_KEPT_MS: Final = 7 * DAY_MS
# Over all accounts. Beyond it, the oldest tenth that cannot be confirmed any more is removed. The trades of used plans
# are kept.
PLANS_KEPT: Final = 2_000


class Tier(NamedTuple):
    """One margin tier: above `lower` USD of notional, leverage is at most `max_leverage`.

    `deduction` keeps maintenance continuous.
    """

    lower: int
    max_leverage: int
    deduction: int


def tiers_of(bounds: tuple[tuple[int, int], ...]) -> tuple[Tier, ...]:
    """Tiers from (lower bound in USD units, max leverage); deduction(n) = deduction(n-1) + lower * (rate(n) -
    rate(n-1)), rate = 1 / (2 max leverage).
    """
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
    """The properties of a market. Rates are fractions scaled 1e8: taker 0.045 % is 45_000; a negative maker rate is a
    rebate. `level_size` 0 means unlimited depth.
    """

    coin: str
    name: str = ""
    asset_class: str = "crypto"
    book: str = "main"
    # cross | isolated | full (events: paid in full, see outcome.py)
    margin_mode: str = "cross"
    sz_decimals: int = 5
    max_leverage: int = 40
    # (lower bound in scaled USD, max leverage); empty: one tier at max_leverage
    tiers: tuple[tuple[int, int], ...] = ()
    sig_figs: int | None = 5
    # None: 6 - sz_decimals
    px_decimals: int | None = None
    taker_rate: int = 45_000
    maker_rate: int = 15_000
    half_spread: int = 0
    level_step: int = 0
    level_size: int = 0
    level_growth: int = 0
    slippage_bps: int = 100
    # a resting limit fills at most this part of a bar's volume
    participation: int = 10_000_000
    # hourly fraction scaled 1e12 (0.0000125), without a premium
    funding_rate: int = 12_500_000
    # True: a limit fills when the price touches it; False: one tick beyond
    limit_touch: bool = False
    # the calendar of the outside price (equity | index); None: always open
    hours: str | None = None
    # True: openings are refused while the outside price is closed
    strict_hours: bool = False
    # multiplies the rate of a premium: one half for stocks
    funding_factor: int = E8
    # when an event market is settled
    expires_ms: int | None = None
    # prices come in bars of this length, and a missing bar has no price; 0: continuous prices
    bar_length_ms: int = 0
    # scaled USD of the smallest order
    min_notional: int = MIN_NOTIONAL
    # the distance of two prices at every price, with sig_figs None; None: by sig_figs and px_decimals
    tick: int | None = None
    # None: the last of sz_decimals
    size_step: int | None = None

    @property
    def lot(self) -> int:
        """The step of sizes: every order's size is a multiple of this one."""
        return 10 ** (8 - self.sz_decimals) if self.size_step is None else self.size_step


def px_inside(opened: int, closed: int, since_ms: int, length_ms: int) -> int:
    """The price at an instant after a bar's open. The close is reached in the bar's last millisecond."""
    return opened + (closed - opened) * since_ms // (length_ms - 1)


@dataclass(slots=True)
class VenueMarket:
    """The changing state of a market.

    `falling` and `rising` are level lists; the last element is the nearest to the price.
    """

    spec: MarketSpec
    mark: int
    mid: int
    oracle: int
    status: str = "open"
    funding_rate: int = 0
    # 0: no account holds a position, so nothing is scheduled
    next_funding_ms: int = 0
    point: int = 0
    bar_ms: int = 0
    # what resting limits may still fill in the running bar
    volume_left: int = 0
    # session of the outside price: open | closed; None: it has no sessions
    external: str | None = None
    opens_ms: int | None = None
    closes_ms: int | None = None
    # outcome set before the settlement; None: the last mark implies it
    resolution: int | None = None
    # set at the settlement
    outcome_px: int | None = None
    # (account, oid) of market orders that wait for the next point
    pending: list[tuple[str, int]] = field(default_factory=list)
    # (account, oid) of exits that are tried again at each point
    working: list[tuple[str, int]] = field(default_factory=list)
    # accounts with a position here, in order of entry
    holders: dict[str, None] = field(default_factory=dict)
    # the funding rate is a recorded one; premiums do not change it
    is_rate_recorded: bool = False
    # open time, open and close of the newest bar, if prices come in bars
    bar_opened_ms: int = 0
    bar_open: int = 0
    bar_close: int = 0
    # the newest price was a quote: mark and mid differ, and a limit fills by bid or ask
    is_quoted: bool = False
    # The price that a premium is measured with, in a bar that also has time outside the session; None: the mid.
    premium_px: int | None = None
    # a recorded rate is paid once in so many hours
    funding_hours: int = 1
    # the next instant at which funding is paid
    funding_ms: int = 0
    falling: list[tuple[int, int, int, WaitingLevel]] = field(default_factory=list, repr=False, compare=False)
    rising: list[tuple[int, int, int, WaitingLevel]] = field(default_factory=list, repr=False, compare=False)
    ticks: tuple[int, ...] = field(default=(), repr=False, compare=False)
    lot: int = field(default=0, repr=False, compare=False)
    tiers: tuple[Tier, ...] = field(default=(), repr=False, compare=False)
    # empty: unlimited depth
    level_sizes: tuple[int, ...] = field(default=(), repr=False, compare=False)
    # how often a margin or floor level was placed
    watches: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.ticks = tick_table(spec.sz_decimals, sig_figs=spec.sig_figs, px_decimals=spec.px_decimals, tick=spec.tick)
        self.lot = spec.lot
        self.tiers = tiers_of(spec.tiers or ((0, spec.max_leverage),))
        self.deepen()

    def deepen(self) -> None:
        """Make the sizes of the book's levels: a third while the outside price is closed."""
        spec = self.spec
        if spec.level_size:
            deep = spec.level_size if self.external != "closed" else spec.level_size // CLOSED_DEPTH
            sizes = (deep * (E8 + level * spec.level_growth) // E8 for level in range(BOOK_LEVELS))
            self.level_sizes = tuple(max(size - size % self.lot, self.lot) for size in sizes)

    def see(self, px: int) -> None:
        """Set mark and mid to a quiet price, and the oracle while the outside price is open."""
        self.mark = self.mid = px
        self.is_quoted = False
        if self.spec.bar_length_ms:
            self.premium_px = None
        if self.external != "closed":
            self.oracle = px

    def see_quote(self, mark: int, bid: int, ask: int) -> None:
        """Set mark, mid and spread to a quote, and the oracle while the outside price is open."""
        self.mark, self.mid, self.is_quoted = mark, (bid + ask) // 2, True
        # Rounded down: the book's prices are then rounded to the grid, which gives bid and ask.
        half = (ask - self.mid) * E8 // self.mid
        if half != self.spec.half_spread:
            self.spec = replace(self.spec, half_spread=half)
        if self.external != "closed":
            self.oracle = mark

    def begin_bar(self, opened_ms: int, opened: int, closed: int) -> None:
        """Begin the next bar, for prices that come in bars.

        If the outside price opens inside this bar, the bar's prices may come from after the opening. A premium before
        it is that of the last price before the bar.
        """
        if self.spec.bar_length_ms:
            self.bar_opened_ms, self.bar_open, self.bar_close = opened_ms, opened, closed
            opens_inside = self.opens_ms is not None and self.opens_ms < opened_ms + self.spec.bar_length_ms
            self.premium_px = self.mid if self.external == "closed" and opens_inside else None

    def px_at(self, now_ms: int) -> int | None:
        """The price at an instant between points. Inside a bar it lies on the straight line from open to close, because
        the newest point may be an extreme. If the bar is missing there is no price.
        """
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
        if len(tiers) == 1 or notional < tiers[1].lower:
            return tiers[0]
        reached = tiers[0]
        for tier in tiers:
            if notional < tier.lower:
                break
            reached = tier
        return reached


class WaitingLevel(NamedTuple):
    """What waits at a price level: its kind, the account, and the number of the order or guardian (0 for a margin
    level).
    """

    # limit | stop_loss | take_profit | trail | trail_move | liquidation | drawdown
    kind: str
    account: str
    number: int


class Leg(NamedTuple):
    """A computed stop or target: `px` on the grid, `pct` or `r` as given."""

    px: int
    pct: int | None = None
    r: int | None = None


@dataclass(slots=True)
class VenueBracket:
    stop: Leg | None = None
    target: Leg | None = None


@dataclass(slots=True)
class VenueOrder:
    """An open limit, a pending market order, an armed trigger or a working exit.

    `buy` is +1 or -1; `side` is the position's.
    """

    number: int
    account: str
    coin: str
    # market | limit | stop_loss | take_profit | close
    kind: str
    side: int
    buy: int
    size: int
    created_ms: int
    # open | armed | working
    status: str = "open"
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
    # The caller's bound; None: the market's default.
    slippage_bps: int | None = None
    source: str | None = None
    idempotency_key: str | None = None
    request_id: str | None = None
    key: str | None = None
    # the entry's bracket and guardians are armed
    armed: bool = False
    # the market's point at its creation; only later points can reach it
    born: int = 0
    # armed by a resting limit inside this bar: a target counts only at the bar's close
    limit_bar_ms: int = -1
    # True: armed beyond its trigger, so it fires at the current price
    through: bool = False
    leg: Leg | None = None
    reason: str | None = None
    # how much of the rest a reversing order may open; None: all
    opens: int | None = None
    # The USD of a waiting entry: its size is computed again from the price that it gets.
    usd: int | None = None

    def left_to_open(self) -> int:
        """The most that later fills of this order may open, also if the position that it should close is gone."""
        if self.reduce_only:
            return 0
        return self.size - self.filled if self.opens is None else self.opens


@dataclass(slots=True)
class LegSpec:
    """A requested stop or target: exactly one of pct (percent scaled 1e8), px, r (scaled 1e8).

    Only a target has its price by r.
    """

    pct: int | None = None
    px: int | None = None
    r: int | None = None


@dataclass(slots=True)
class GuardianSpec:
    """A requested guardian, amounts scaled 1e8. `guardians.SHAPES` lists the fields of each type."""

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
    # canonical JSON text of the request
    order_template: str | None = None
    # the same, parsed
    order: OrderSpec | None = None
    # acts only where its key may trade; None in commands of versions without this rule
    bounded: bool | None = None


@dataclass(slots=True)
class VenueGuardian:
    number: int
    account: str
    spec: GuardianSpec
    created_ms: int
    # armed | latched
    status: str = "armed"
    deadline_ms: int | None = None
    last_heartbeat_ms: int | None = None
    # side of the position that a trailing stop follows
    side: int = 0
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
    # the key that armed it: it owns a schedule's orders and limits where it closes; None: a session
    key: str | None = None


@dataclass(slots=True)
class VenuePosition:
    """One position.

    `entry_notional` is summed and entryPx derived from it. Parts are cut toward zero, so that sums stay exact.
    """

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
    # 1R as a price distance: |entry - first stop|, until a new bracket replaces it
    r_px: int | None = None
    liquidation_cooldown_ms: int = 0
    # the position's margin level in the level lists
    liquidation_level: int | None = None
    watched_point: int = -1
    # the price at which the position has lost its share of what the drawdown guardians still allow
    floor_level: int | None = None

    def entry_px(self) -> int:
        """Average entry, cut to 1e-8."""
        return self.entry_notional * E8 // self.size

    def pnl(self, mark: int) -> int:
        return self.side * (mark * self.size // E8 - self.entry_notional)


@dataclass(slots=True)
class VenueTrade:
    """The record of one accepted order. Created at acceptance, updated by its fills."""

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
    # open | done | canceled | void (an exchange has refused it, or it never got there)
    status: str = "open"
    guardian: str | None = None
    reason: str | None = None
    # what a backstop liquidation took beside the realised loss
    margin_lost: int = 0
    # what the service paid so that neither balance nor margin became negative
    absorbed: int = 0

    def fill_status(self) -> str:
        return "none" if self.filled == 0 else "filled" if self.filled >= self.size else "partial"

    def avg_px(self) -> int | None:
        return self.filled_notional * E8 // self.filled if self.filled else None


@dataclass(slots=True)
class VenueKey:
    """A credential. Only the digest of its secret is stored. A cap of None means no cap."""

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
    """A session of an account's owner. Only the digest of its token is stored. `expires_ms` is real time."""

    id: str
    account: str
    digest: str
    created_ms: int
    expires_ms: int
    revoked: bool = False


@dataclass(slots=True)
class Otp:
    """A code that was sent to a phone number, as a salted digest. `expires_ms` is real time."""

    salt: str
    digest: str
    expires_ms: int
    tries_left: int


@dataclass(slots=True)
class Grant:
    """A device that requests a key.

    `status` pending | approved | denied | used. Both codes are digests; `expires_ms` is real time.
    """

    device: str
    user: str
    origin: str
    agent: str
    expires_ms: int
    status: str = "pending"
    account: str | None = None
    name: str = ""
    scopes: tuple[str, ...] = ()
    # the key that approved; its caps limit the new key
    by: str | None = None


@dataclass(slots=True)
class VenuePlan:
    """A stored dry run.

    `state` open | used | refused | armed (a schedule with its order); a used plan has its trade. `shrinks`: its preview
    opens nothing.
    """

    # digest of the confirm token
    token: str
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
    """A requested order, amounts scaled 1e8. `side` is +1 long, -1 short."""

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


class Stand(NamedTuple):
    """An account's holdings from `ts` on: cash less the cost of its positions, and (coin, signed size, mark at that
    time) of each. See nav.py.
    """

    ts: int
    cash: int
    held: tuple[tuple[str, int, int], ...] = ()


@dataclass(slots=True)
class RecordPage:
    """Packed events or trades of one account from number `first` on, for old records that are only read.

    See pages.py.
    """

    first: int
    count: int
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReportedExecution:
    """A fill at an exchange. `buy` is +1 or -1, `before` the signed size of the position before it.

    `kind`: fill | liquidation | adl. A negative fee is a rebate.
    """

    coin: str
    at_ms: int
    trade_id: int
    order_id: str
    client_order_id: str | None
    buy: int
    size: int
    px: int
    fee: int
    before: int
    maker: bool
    kind: str = "fill"

    @property
    def key(self) -> str:
        """A key that all copies of one fill share, and no two fills of an account."""
        return f"{self.coin} {self.at_ms} {self.trade_id} {self.before}"


@dataclass(frozen=True, slots=True)
class ExchangePosition:
    """A position as an exchange has it. `margin`: of an isolated one, at cost, without unrealized profit."""

    coin: str
    size: int
    entry_px: int
    leverage: int
    isolated: bool
    margin: int
    liquidation_px: int | None


@dataclass(frozen=True, slots=True)
class ReportedOrder:
    """An open order as an exchange has it. `kind`: limit | stop_loss | take_profit; size 0: the whole position."""

    order_id: str
    client_order_id: str | None
    coin: str
    buy: int
    kind: str
    size: int
    px: int
    trigger_px: int | None
    reduce_only: bool
    placed_ms: int


@dataclass(frozen=True, slots=True)
class ExchangeMargin:
    """What an exchange has last said of the margin of one market."""

    leverage: int
    isolated: bool
    liquidation_px: int | None = None


@dataclass(frozen=True, slots=True)
class AuditDifference:
    """What the books have otherwise than the exchange. `coin` is empty if it concerns the whole account."""

    check: str
    coin: str
    text: str


@dataclass(frozen=True, slots=True)
class ExchangeAudit:
    """The last comparison of the books with the exchange, at `at_ms` of our clock.

    `equal_ms`: rows until this instant of the exchange's clock were equal. `marks`: of the last audits without a
    difference, the exchange's instant and the newest event then.
    """

    at_ms: int
    differences: tuple[AuditDifference, ...] = ()
    equal_ms: int = 0
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class VenueAction:
    """One thing that the exchange is asked to do, made by the command that commits it.

    The exchange performs it at most once under its nonce, and not after `expires_ms` of its own clock. Whether and how
    often it was sent is not kept: after a restart it may have been sent. No signature stands here.
    """

    nonce: int
    # place | protect | cancel | leverage
    kind: str
    coin: str
    # what goes first: 0 stops and kills, 1 exits, 2 cancels, 3 entries
    rank: int
    # the address of the agent that must sign it
    signer: str
    made_ms: int
    expires_ms: int
    # How often the same action was asked for before, each time with a new nonce and after the earlier one had ended.
    attempt: int = 0
    # open | voiding | placed | refused | void
    status: str = "open"
    # an end without an order that may be told
    is_final: bool = False
    idempotency_key: str | None = None
    # Of an action that places an order: the id that we gave the order, its number, its trade, and the size asked for.
    client_order_id: str | None = None
    oid: int | None = None
    trade: str | None = None
    size: int = 0
    # True: a second action with a new nonce could fill more than was asked for, so this action is given up early.
    is_part: bool = False
    # The booked part of the order, and the part that the exchange filled at once (None: the exchange has not said).
    filled: int = 0
    owed: int | None = None
    # cancel: the orders by their ids at the exchange
    cancels: tuple[str, ...] = ()
    # since when of the exchange's clock it is known to be performed
    placed_ms: int = 0
    # why the exchange or the link refuses it
    code: str | None = None
    text: str | None = None
    # when everything that it did was booked, or its end without an order could be told
    over_ms: int = 0
    # when the venue asks again for the rest of this exit; None: it does not
    again_ms: int | None = None
    # the protection orders that it places with an entry or alone, or that it cancels
    protections: tuple[str, ...] = ()
    # a change of leverage asks for these
    leverage: int = 0
    isolated: bool = False
    # the exchange's id of the order, if its answer has named it
    order_id: str | None = None
    # a guardian does not want it any more, and it may be performed all the same
    unwanted: bool = False


@dataclass(slots=True)
class ProtectionOrder:
    """A stop or a target of ours at an exchange. One stop of the venue may have several there, one after another."""

    client_order_id: str
    coin: str
    # stop_loss | take_profit
    kind: str
    # the side of the position that it protects
    side: int
    px: int
    # Of an entry's child; 0: of the whole position, which it follows.
    size: int
    # the action that places it
    nonce: int
    # asked | there | fired (filled, and its fills may be on their way) | ended
    status: str = "asked"
    # the exchange's id of it, once it is reported
    order_id: str | None = None
    fired_ms: int = 0
    # the trade that its fills are booked to
    trade: str | None = None


@dataclass(slots=True)
class PositionProtection:
    """What the venue waits for to protect the position of one market at an exchange."""

    # when it looks again; None: time alone changes nothing
    due_ms: int | None = None
    # protection orders that the exchange has refused in a row, and when the next one may be asked for
    refused: int = 0
    again_ms: int = 0
    # since when there is no position
    gone_ms: int = 0
    # when the venue exits by itself although an order of the exchange should do it
    exit_ms: int = 0
    # Where the stop there stands for a trailing stop, and the instants of its steps in the last minute.
    step_px: int | None = None
    steps_ms: tuple[int, ...] = ()
    # The side and the exact level of the wanted stop, and the newest action when a looser one was wanted last.
    nearest: tuple[int, int] | None = None
    loosened_nonce: int = 0
    # A trailing stop that has fired, and the side of the position that it closes.
    fired: tuple[str, int] | None = None


@dataclass(slots=True)
class ExchangeAccount:
    """The account at an exchange that an account of the venue follows.

    The venue executes nothing for it: fills, funding and transfers are booked when the exchange reports them.
    """

    exchange: str
    # testnet | mainnet | a port on this machine
    network: str
    # All reports until this instant of the exchange's clock are in the cash and positions that it began with.
    adopted_ms: int
    # away | behind | in_step
    link: str = "away"
    link_reason: str | None = None
    link_since_ms: int = 0
    # by the exchange's id of the order: the number of the order here
    orders: dict[str, int] = field(default_factory=dict)
    margins: dict[str, ExchangeMargin] = field(default_factory=dict)
    # by fill, funding, transfer, order: the newest instant of a report
    newest: dict[str, int] = field(default_factory=dict)
    # By the key of each report of the last days: its instant, and the signed size of a fill.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    # fills that start at another position than the booked one, until the fills between are reported
    waiting: list[ReportedExecution] = field(default_factory=list)
    # sum of all transfers since the adoption
    transferred: int = 0
    # the address of the agent that may act for it; None: it is watched only
    signer: str | None = None
    # the exchange's clock less ours
    clock_difference_ms: int = 0
    # the last nonce that was given
    action_nonce: int = 0
    # by nonce, oldest first: those that are not over, and those of the last day
    actions: dict[int, VenueAction] = field(default_factory=dict)
    # by our id of an order: the nonce of the action that asked for it
    sent: dict[str, int] = field(default_factory=dict)
    # Stops and targets of ours there by our ids of them: those that may stand, and those of the last day.
    protection_orders: dict[str, ProtectionOrder] = field(default_factory=dict)
    # by coin
    protections: dict[str, PositionProtection] = field(default_factory=dict)
    # None: the books were not compared yet, or were corrected since
    audit: ExchangeAudit | None = None
    # the most exposure that entries may lead to; None: no cap
    exposure_cap: int | None = None
    # actions that are left of the account's budget; None: not known
    actions_left: int | None = None


@dataclass(slots=True)
class VenueAccount:
    id: str
    number: int
    address: str
    name: str | None
    # starting balance of this epoch
    start_balance: int
    created_ms: int
    # the balance after a reset without a balance
    opened_with: int = 0
    balance: int = 0
    epoch: int = 0
    # margin and fees reserved for resting entries
    reserved: int = 0
    positions: dict[str, VenuePosition] = field(default_factory=dict)
    orders: dict[int, VenueOrder] = field(default_factory=dict)
    # oids of limit entries and pending market orders
    resting: dict[int, None] = field(default_factory=dict)
    guardians: dict[int, VenueGuardian] = field(default_factory=dict)
    # the newest trades; older ones may be packed into pages
    trades: list[VenueTrade] = field(default_factory=list)
    # The keys of the trades in `trades`. Those of older trades are in `old_keys`.
    trade_by_key: dict[str, str] = field(default_factory=dict)
    # keys in snapshots of versions without `old_fenced_keys`
    fenced_keys: dict[str, int] = field(default_factory=dict)
    # the newest events; older ones may be packed into pages
    events: deque[Event] = field(default_factory=deque)
    # number of the oldest event that is still stored
    events_first: int = 1
    event_seq: int = 0
    order_seq: int = 0
    trade_seq: int = 0
    # number of the oldest trade; a reset empties the list, and the numbers continue
    trade_first: int = 1
    guardian_seq: int = 0
    max_trade: int | None = None
    daily_cap: int | None = None
    day: int = 0
    day_notional: int = 0
    # includes margin lost and absorbed amounts: the effect on the balance
    day_realized: int = 0
    realized: int = 0
    fees: int = 0
    funding: int = 0
    # what backstop liquidations took
    margin_lost: int = 0
    # what the venue paid so that no balance became negative
    absorbed: int = 0
    # the UTC day of `day_value`
    value_day: int = -1
    # account value at the start of that day; for a younger account its first value
    day_value: int = 0
    # when the account was opened or last reset; nav starts there
    begun_ms: int = 0
    # oldest first; empty: only the starting balance
    history: list[Stand] = field(default_factory=list)
    # events before those in `events`, oldest first, without a gap
    pages: list[RecordPage] = field(default_factory=list)
    # pages of finished trades, as those of events
    trade_pages: list[RecordPage] = field(default_factory=list)
    # Trades by the tokens of removed plans: day of the plan's end -> digest of the token -> trade.
    spent: dict[int, dict[str, str]] = field(default_factory=dict)
    # Idempotency keys are known for ever. Those of packed trades, and those used before a reset, as text_set.Runs.
    old_keys: list[bytes] = field(default_factory=list, repr=False)
    old_fenced_keys: list[bytes] = field(default_factory=list, repr=False)
    # None: a sandbox account
    exchange: ExchangeAccount | None = None

    def events_kept(self) -> int:
        return self.event_seq - self.events_first + 1

    def is_fenced(self, key: str) -> bool:
        """True if this idempotency key was used before a reset."""
        return key in self.fenced_keys or text_set.has(self.old_fenced_keys, key)


@dataclass(slots=True)
class Rules:
    """Switches of one venue. `fill_at`: now (service) or next (backtest: market orders wait for the next point)."""

    fill_at: str = "now"
    # adaptive | ohlc | olhc | sl_first | seeded
    paths: str = "adaptive"


@dataclass(slots=True)
class VenueWebhook:
    """Where an account's events are sent.

    The service has encrypted the signing secret. `types` None means all; `disabled` is the reason.
    """

    id: str
    account: str
    url: str
    types: tuple[str, ...] | None
    encrypted_secret: str = field(repr=False)
    created_ms: int
    disabled: str | None = None


@dataclass(slots=True)
class State:
    rules: Rules = field(default_factory=Rules)
    now_ms: int = 0
    markets: dict[str, VenueMarket] = field(default_factory=dict)
    accounts: dict[str, VenueAccount] = field(default_factory=dict)
    keys: dict[str, VenueKey] = field(default_factory=dict)
    plans: dict[str, VenuePlan] = field(default_factory=dict)
    account_seq: int = 0
    # 0: no account has a position or a floor, so nothing is scheduled
    next_day_ms: int = 0
    webhooks: dict[str, VenueWebhook] = field(default_factory=dict)
    webhook_seq: int = 0
    # Digest of a number -> account.
    phones: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    session_seq: int = 0
    # Codes by the digest of their phone number.
    otps: dict[str, Otp] = field(default_factory=dict)
    # Grants by the digest of their device code.
    grants: dict[str, Grant] = field(default_factory=dict)
    commands: int = 0
    deadlines: list[tuple[int, int, int, str, str]] = field(default_factory=list, repr=False, compare=False)
    fresh: list[Event] = field(default_factory=list, repr=False, compare=False)
    # Actions that were made or changed and not yet taken with `record.changed_actions`.
    changed_actions: dict[int, VenueAction] = field(default_factory=dict, repr=False, compare=False)
    # The preview of the last plan, for a confirm that comes next: (command, token, OrderPreview).
    preview: tuple[int, str, Any] | None = field(default=None, repr=False, compare=False)


# Values of the order path: made of all fields at once, without Python code.
new_leg: Final = partial(tuple.__new__, Leg)
new_stand: Final = partial(tuple.__new__, Stand)


def side_name(side: int) -> str:
    return "long" if side > 0 else "short"


def trade_id(account: VenueAccount, seq: int) -> str:
    return f"trd_{account.number:05d}{seq:09d}"


def guardian_id(account: VenueAccount, number: int) -> str:
    return f"grd_{account.number:05d}{number:09d}"


# The text of an event's number. It is made for each event, so without Python code of its own.
event_id: Final[Callable[[int], str]] = "evt_{:012d}".format


def oid_text(account: VenueAccount, number: int) -> str:
    """venueOid of the wire: digits, unique in the venue."""
    return str(account.number * 1_000_000_000 + number)
