"""The commands of the venue. Ids, tokens and instants are arguments; the service draws all random values."""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.venue.state import Grant, GuardianSpec, Key, MarketSpec, OrderSpec, Otp, Rules, Session

# ── The venue itself ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class SetRules:
    rules: Rules


@dataclass(slots=True)
class ListMarket:
    spec: MarketSpec
    px: int


@dataclass(slots=True)
class SetMarket:
    """Status open | closed | halted, a recorded hourly funding rate (fraction scaled 1e12), the outcome that an event market will settle to,
    or the session of the outside price: open | closed, with its next change in `turns_ms`."""

    coin: str
    status: str | None = None
    funding_rate: int | None = None
    outcome_px: int | None = None
    external: str | None = None
    turns_ms: int | None = None


# ── Time and prices ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Pulse:
    """Run what is due at or before now."""


@dataclass(slots=True)
class RunOverdue:
    """Run what was due before now. Deadlines at exactly this instant wait for its remaining prices."""


@dataclass(slots=True)
class PricePoint:
    """One point of a market's path. `step` 0 is a bar's open (a gap is possible), 1 and 2 its extremes, 3 its close."""

    coin: str
    px: int
    step: int = 0
    bar_ms: int = 0
    volume: int | None = None  # of the whole bar, scaled 1e8; None: no resting limit is bounded by it
    oracle: int | None = None
    mid: int | None = None


@dataclass(slots=True)
class PayFunding:
    """What is due of funding, before the prices of this instant: ((coin, px), ...) are the opens among them."""

    opens: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class PassBar:
    """A whole candle: four points in the order of the path policy. `at_ms` is its open time."""

    coin: str
    at_ms: int
    open: int
    high: int
    low: int
    close: int
    volume: int
    interval_ms: int = 60_000
    path: str | None = None  # None: the rules' policy
    seed: int = 0  # for path "seeded"


@dataclass(slots=True)
class PassBars:
    """A whole candle of each of several markets, all of one instant and one length: point by point of all of them, in the order given."""

    bars: tuple[PassBar, ...]


@dataclass(slots=True)
class PassPoints:
    """Points of several markets in order of time, as a session walks them: (at_ms, coin, px, step, bar_ms, volume, ahead, close), `ahead` the lowest
    and highest point still to come in that bar, for the policy sl_first. What is due on the way runs at its own instant, up to `until_ms`."""

    points: tuple[tuple[int, str, int, int, int, int, tuple[int, int] | None, int], ...]
    until_ms: int


@dataclass(slots=True)
class SetMarks:
    """Marks of bars that were skipped because the market was calm: ((coin, px), ...).

    `running`: of calm points, whose bar may go on: what of it resting limits may still take stays theirs.
    """

    marks: tuple[tuple[str, int], ...]
    running: bool = False


@dataclass(slots=True)
class ShiftDeadlines:
    """Sent once at a restart, at the last instant the service was alive: for `ms` no client could send a heartbeat, and none is at fault."""

    ms: int
    floor_ms: int


# ── Accounts and keys ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class OpenAccount:
    account: str
    address: str
    name: str | None
    balance: int
    key: Key | None = None


@dataclass(slots=True)
class CreateKey:
    key: Key


@dataclass(slots=True)
class RevokeKey:
    """`sweeps`: cancel the key's resting entries and disarm its schedules. False in commands that were written before a revocation did so."""

    account: str
    key: str
    sweeps: bool = False


@dataclass(slots=True)
class AddWebhook:
    """`sealed` is the signing secret as only the service can open it."""

    account: str
    url: str
    types: tuple[str, ...] | None
    sealed: str = field(repr=False)


@dataclass(slots=True)
class RemoveWebhook:
    account: str
    webhook: str


@dataclass(slots=True)
class DisableWebhook:
    """Sent by the service: nothing is delivered to this webhook until its owner registers it again."""

    webhook: str
    reason: str


@dataclass(slots=True)
class ResetAccount:
    account: str
    balance: int | None = None  # None: the starting balance


@dataclass(slots=True)
class ChangeSettings:
    """Both caps as they shall be; None clears."""

    account: str
    max_trade: int | None
    daily_cap: int | None


# ── Sign-in and devices (real time is an argument: `real_ms` is the wall's) ────────────────────────────────────────


@dataclass(slots=True)
class SendOtp:
    """A code goes to a number; the one before is void."""

    phone: str
    otp: Otp
    real_ms: int


@dataclass(slots=True)
class SignIn:
    """Judge a code by its digest; the first time, open the account. `session` None: only say whose number it is."""

    phone: str
    digest: str
    real_ms: int
    opening: OpenAccount  # What a new number gets.
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
    """The owner's yes or no to a device."""

    device: str
    account: str
    approved: bool
    real_ms: int
    name: str = ""
    scopes: tuple[str, ...] = ()
    by: str | None = None


@dataclass(slots=True)
class RedeemGrant:
    """The device takes its key, once."""

    device: str
    key: Key


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
    """A dry run: quote the order and keep it under `token` (the digest of the confirm token)."""

    account: str
    order: OrderSpec
    token: str
    ttl_ms: int
    max_drift_bps: int = 50
    key: str | None = None


@dataclass(slots=True)
class ConfirmPlan:
    """`reduce_only`: the caller may only shrink positions, whoever made the plan."""

    account: str
    token: str
    key: str | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    expires_ms: int | None = None
    reduce_only: bool = False


@dataclass(slots=True)
class ClosePosition:
    """At most one of fraction (scaled 1e8), usd, size; none of them: all of it."""

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
    """`key` is the caller's: a schedule's orders are that key's orders, and a bounded guardian acts only where that key may trade. `plan`: the
    token of the plan that showed its order, used up by this."""

    account: str
    spec: GuardianSpec
    idempotency_key: str | None = None
    key: str | None = None
    plan: str | None = None


@dataclass(slots=True)
class Kill:
    """Arm a kill_switch that has acted when the answer is there: entries canceled, with `flatten` every position closed where `key` may trade."""

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
    """`ahead_ms`: a backtest knows that heartbeats go on for this long and sends one command for all. Only the deadline moves."""

    account: str
    ahead_ms: int = 0


Command = (
    SetRules
    | ListMarket
    | SetMarket
    | Pulse
    | RunOverdue
    | PricePoint
    | PayFunding
    | PassBar
    | PassBars
    | PassPoints
    | SetMarks
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
)
