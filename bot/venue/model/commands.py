"""The commands of the venue. Ids, tokens and instants are arguments; the service draws all random values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from bot.venue.model.state import (
    AuditDifference,
    ExchangePosition,
    Grant,
    GuardianSpec,
    MarketSpec,
    OrderSpec,
    Otp,
    ReportedExecution,
    ReportedOrder,
    Rules,
    Session,
    VenueKey,
)

# ── The venue itself ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class SetRules:
    rules: Rules


@dataclass(slots=True)
class ListMarket:
    spec: MarketSpec
    px: int


@dataclass(slots=True)
class ChangeListing:
    """Give a market other rules, or list it at `px` while the service runs. Refused if a rule that changes concerns an
    open order or position.
    """

    spec: MarketSpec
    px: int


@dataclass(slots=True)
class SetMarket:
    """Change a market. `status`: open | closed | halted. Also: a recorded funding rate (fraction scaled 1e12), the
    outcome of an event market, or the session of the outside price: open | closed, with its next change in
    `turns_ms`.

    `premium_px`: until the next one, premiums are measured with this price, because the newest price may be an extreme
    of a long candle; 0: with the newest price again. With `external` closed it is also the last price of the session.

    A recorded rate is paid whole, every `funding_hours` hours; `funding_ms` is one of the instants at which it is
    paid. Default: every hour.
    """

    coin: str
    status: str | None = None
    funding_rate: int | None = None
    outcome_px: int | None = None
    external: str | None = None
    turns_ms: int | None = None
    funding_hours: int = 1
    funding_ms: int = 0
    premium_px: int | None = None


# ── Time and prices ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Pulse:
    """Run everything that is due at or before now."""


@dataclass(slots=True)
class RunOverdue:
    """Run everything that was due before now.

    Deadlines at exactly this instant wait for the remaining prices of the instant.
    """


@dataclass(slots=True)
class PricePoint:
    """One price point of a market.

    `step` 0 is a bar's open (it may jump from the close before), 1 and 2 its extremes, 3 its close.
    """

    coin: str
    px: int
    step: int = 0
    bar_ms: int = 0
    # The volume of the whole bar, scaled 1e8; None: no limit on what resting limits may fill.
    volume: int | None = None
    oracle: int | None = None
    mid: int | None = None


@dataclass(slots=True)
class QuotePoint:
    """A quote of a real exchange.

    Triggers and liquidations go by the mark, resting limits by bid and ask, and fills by the book around them.
    """

    coin: str
    mark: int
    bid: int
    ask: int


@dataclass(slots=True)
class SetBook:
    """The book of a market, of the form that `book.py` describes: its step and growth are fractions scaled 1e8, its
    size that of the first level.
    """

    coin: str
    level_step: int
    level_size: int
    level_growth: int


@dataclass(slots=True)
class PayFunding:
    """Apply the funding that is due, before the prices of this instant.

    ((coin, px), ...) are the opens among those prices.
    """

    opens: tuple[tuple[str, int], ...]


class PassBar(NamedTuple):
    """A whole candle: four points in the order of the path policy. `at_ms` is its open time."""

    coin: str
    at_ms: int
    open: int
    high: int
    low: int
    close: int
    volume: int
    interval_ms: int = 60_000
    # None: the policy of the rules
    path: str | None = None
    # for the path "seeded"
    seed: int = 0


pass_bar: Final = partial(tuple.__new__, PassBar)


@dataclass(slots=True)
class PassBars:
    """A whole candle of each of several markets, all with the same open time and length.

    Points are applied across the markets in the given order.
    """

    bars: tuple[PassBar, ...]


@dataclass(slots=True)
class PassPoints:
    """Points of several markets in time order, from a backtest: (at_ms, coin, px, step, bar_ms, volume, ahead, close).
    `ahead` is the lowest and highest point still to come in that bar, for the policy sl_first. Deadlines up to
    `until_ms` run at their own instants.
    """

    points: tuple[tuple[int, str, int, int, int, int, tuple[int, int] | None, int], ...]
    until_ms: int


@dataclass(slots=True)
class SetMarks:
    """Marks of skipped bars, which were inside the quiet band: ((coin, px), ...).

    `running`: the bar may still be running, so resting limits keep the volume that they may still fill in it.
    """

    marks: tuple[tuple[str, int], ...]
    running: bool = False


@dataclass(slots=True)
class SetQuotes:
    """Quotes inside the quiet band: ((coin, mark, bid, ask), ...)."""

    quotes: tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class ShiftDeadlines:
    """Sent once after a restart, at the last instant that the service was alive.

    For `ms` no client could send a heartbeat, so deadlines move.
    """

    ms: int
    floor_ms: int


# ── Accounts and keys ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class OpenAccount:
    account: str
    address: str
    name: str | None
    balance: int
    key: VenueKey | None = None


@dataclass(slots=True)
class CreateKey:
    key: VenueKey


@dataclass(slots=True)
class RevokeKey:
    """`sweeps`: also cancel the key's resting entries and disarm its schedules.

    False in commands of versions that did not do so.
    """

    account: str
    key: str
    sweeps: bool = False


@dataclass(slots=True)
class AddWebhook:
    """`encrypted_secret` is the signing secret, encrypted; only the service can decrypt it."""

    account: str
    url: str
    types: tuple[str, ...] | None
    encrypted_secret: str = field(repr=False)


@dataclass(slots=True)
class RemoveWebhook:
    account: str
    webhook: str


@dataclass(slots=True)
class DisableWebhook:
    """Sent by the service. The webhook gets no deliveries until its owner registers it again."""

    webhook: str
    reason: str


@dataclass(slots=True)
class ResetAccount:
    account: str
    # None: the starting balance
    balance: int | None = None


@dataclass(slots=True)
class ChangeSettings:
    """Set both caps; None clears a cap."""

    account: str
    max_trade: int | None
    daily_cap: int | None


# ── Sign-in and devices (`real_ms` is real time, given as an argument) ──────────────────────────────────────────────


@dataclass(slots=True)
class SendOtp:
    """Store a code for a phone number. It replaces the code before."""

    phone: str
    otp: Otp
    real_ms: int


@dataclass(slots=True)
class SignIn:
    """Check a code by its digest; the first sign-in also opens the account.

    `session` None: only return the account of the number.
    """

    phone: str
    digest: str
    real_ms: int
    # used for a new phone number
    opening: OpenAccount
    invited: bool = True
    session: Session | None = None


@dataclass(slots=True)
class RevokeSession:
    account: str
    session: str


@dataclass(slots=True)
class StartGrant:
    grant: Grant
    real_ms: int


@dataclass(slots=True)
class DecideGrant:
    """The owner approves or denies a device."""

    device: str
    account: str
    approved: bool
    real_ms: int
    name: str = ""
    scopes: tuple[str, ...] = ()
    by: str | None = None


@dataclass(slots=True)
class RedeemGrant:
    """The device collects its key, once."""

    device: str
    key: VenueKey


# ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class PlaceOrder:
    account: str
    order: OrderSpec
    key: str | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    expires_ms: int | None = None


@dataclass(slots=True)
class StorePlan:
    """A dry run: preview the order and store the plan under `token`, the digest of the confirm token."""

    account: str
    order: OrderSpec
    token: str
    ttl_ms: int
    max_drift_bps: int = 50
    key: str | None = None


@dataclass(slots=True)
class ConfirmPlan:
    """`reduce_only`: the caller may only shrink positions, whichever caller made the plan."""

    account: str
    token: str
    key: str | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    expires_ms: int | None = None
    reduce_only: bool = False


@dataclass(slots=True)
class ClosePosition:
    """At most one of fraction (scaled 1e8), usd and size. None of them closes the whole position."""

    account: str
    coin: str
    fraction: int | None = None
    usd: int | None = None
    size: int | None = None
    slippage_bps: int | None = None
    source: str | None = None
    key: str | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    expires_ms: int | None = None


@dataclass(slots=True)
class CancelOrder:
    account: str
    oid: str


@dataclass(slots=True)
class CancelCoin:
    account: str
    coin: str


# ── Guardians ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class ArmGuardian:
    """`key` is the caller's key: a schedule places its orders as that key, and a bounded guardian acts only where that
    key may trade. `plan`: the token of the plan with the schedule's order; arming uses it up.
    """

    account: str
    spec: GuardianSpec
    idempotency_key: str | None = None
    key: str | None = None
    plan: str | None = None


@dataclass(slots=True)
class Kill:
    """Arm a kill_switch that acts at once: it cancels entries, and with `flatten` closes every position that `key`
    may trade.
    """

    account: str
    flatten: bool = False
    idempotency_key: str | None = None
    expires_ms: int | None = None
    key: str | None = None


@dataclass(slots=True)
class DisarmGuardian:
    account: str
    guardian: str


@dataclass(slots=True)
class Heartbeat:
    """`ahead_ms`: a backtest sends one command for all heartbeats of this span. Only the deadline moves."""

    account: str
    ahead_ms: int = 0


# ── Reports of an exchange about an account that follows it. Each is booked once, however often it comes. ────────────


@dataclass(slots=True)
class AdoptExchangeAccount:
    """Open an account that begins with the cash at cost and the positions of an exchange at `at_ms` of its clock."""

    account: str
    address: str
    name: str | None
    exchange: str
    network: str
    at_ms: int
    cash: int
    positions: tuple[ExchangePosition, ...]
    key: VenueKey | None = None


@dataclass(slots=True)
class BookExecution:
    account: str
    fill: ReportedExecution


@dataclass(slots=True)
class BookFunding:
    """`amount` is positive when the account receives it; `size` is signed; `rate` is a fraction scaled 1e12."""

    account: str
    coin: str
    at_ms: int
    amount: int
    size: int
    rate: int


@dataclass(slots=True)
class BookTransfer:
    """Money that came without a trade; a negative amount left. `transfer` is the exchange's name of it."""

    account: str
    transfer: str
    at_ms: int
    kind: str
    amount: int


@dataclass(slots=True)
class BookTakeover:
    """The exchange took the positions of these markets without fills: a backstop liquidation.

    `cash` is the cash at cost that it left.
    """

    account: str
    takeover: str
    at_ms: int
    coins: tuple[str, ...]
    cash: int


@dataclass(slots=True)
class SeeReportedOrder:
    account: str
    order: ReportedOrder


@dataclass(slots=True)
class EndReportedOrder:
    """`reason` None: it was filled, and it leaves when the fills are booked. `order_id` "": it is not known."""

    account: str
    order_id: str
    at_ms: int
    reason: str | None
    client_order_id: str | None = None


@dataclass(slots=True)
class SeeMargins:
    """What the exchange says of the margin of its positions. Sizes are not taken from here."""

    account: str
    positions: tuple[ExchangePosition, ...]


@dataclass(slots=True)
class SeeLink:
    """`state`: away | behind | in_step."""

    account: str
    state: str
    reason: str | None = None


@dataclass(slots=True)
class SeeAudit:
    """The books were compared with the exchange. `at_ms`: of its clock, before its first row was read."""

    account: str
    at_ms: int
    differences: tuple[AuditDifference, ...]


@dataclass(slots=True)
class CorrectBooks:
    """Make cash and positions those of the exchange at `at_ms` of its clock, as a person has decided."""

    account: str
    at_ms: int
    cash: int
    positions: tuple[ExchangePosition, ...]


@dataclass(slots=True)
class SetExposureCap:
    """The most exposure that entries may lead to, as the operator of the service has set it; None: no cap."""

    account: str
    cap: int | None


# ── Actions that an exchange is asked to perform ────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class SeeAgent:
    """Which agent may act for the account now; None: nothing can be sent. The exchange's clock less ours.

    `actions_left`: of the account's budget; None: not known.
    """

    account: str
    signer: str | None
    clock_difference_ms: int
    actions_left: int | None = None


@dataclass(slots=True)
class SeeAction:
    """What is known of an action now, by an answer, a lookup, a void or its expiry.

    `status`, `is_final`: as `action_lifecycle` decides. `filled`: of a placed order, at once; `order_id`: of one that
    rests. `canceled`: orders that the exchange says are canceled. `protections`: what it says of stops and targets, by
    our ids. `at_ms`: of the exchange's clock.
    """

    account: str
    nonce: int
    status: str
    is_final: bool
    at_ms: int
    filled: int | None = None
    canceled: tuple[str, ...] = ()
    code: str | None = None
    text: str | None = None
    order_id: str | None = None
    protections: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class SettleActions:
    """All fills until `at_ms` of the exchange's clock are booked: the standing of the exchange equals the books."""

    account: str
    at_ms: int


Command = (
    SetRules
    | ListMarket
    | ChangeListing
    | SetMarket
    | Pulse
    | RunOverdue
    | PricePoint
    | QuotePoint
    | SetBook
    | PayFunding
    | PassBar
    | PassBars
    | PassPoints
    | SetMarks
    | SetQuotes
    | ShiftDeadlines
    | OpenAccount
    | CreateKey
    | RevokeKey
    | AddWebhook
    | RemoveWebhook
    | DisableWebhook
    | ResetAccount
    | ChangeSettings
    | SendOtp
    | SignIn
    | RevokeSession
    | StartGrant
    | DecideGrant
    | RedeemGrant
    | PlaceOrder
    | StorePlan
    | ConfirmPlan
    | ClosePosition
    | CancelOrder
    | CancelCoin
    | ArmGuardian
    | Kill
    | DisarmGuardian
    | Heartbeat
    | AdoptExchangeAccount
    | BookExecution
    | BookFunding
    | BookTransfer
    | BookTakeover
    | SeeReportedOrder
    | EndReportedOrder
    | SeeMargins
    | SeeLink
    | SeeAudit
    | CorrectBooks
    | SetExposureCap
    | SeeAgent
    | SeeAction
    | SettleActions
)
