"""Events of an account: one tuple class for each event type of the interface. Amounts are integers of 1e-8; bodies and
files make texts of them.

`fill((...))` and its like make an event of all its values at once. They run no Python code and check nothing, not even
the number of values.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple


class FillEvent(NamedTuple):
    """One execution: type fill, subtype entry or exit."""

    account: str
    seq: int
    ts: int
    subtype: str
    coin: str
    trade: str
    oid: str
    kind: str
    side: str
    intent: str
    reduce_only: bool
    size: int
    px: int
    fee: int
    realized: int | None
    liquidity: str
    remaining: int
    position_size: int
    entry_px: int | None
    balance: int
    request_id: str | None
    idempotency_key: str | None
    # what the service paid so that neither balance nor margin became negative
    absorbed: int = 0
    # the exchange's instant of a fill that an exchange reported
    venue_ts: int | None = None


class OrderChanged(NamedTuple):
    """type order: open, armed, changed, canceled."""

    account: str
    seq: int
    ts: int
    subtype: str
    coin: str
    oid: str
    trade: str | None
    kind: str
    side: str
    intent: str
    size: int
    filled: int
    limit_px: int | None
    trigger_px: int | None
    reason: str | None
    request_id: str | None
    idempotency_key: str | None


class Triggered(NamedTuple):
    """type trigger: stop_loss, take_profit."""

    account: str
    seq: int
    ts: int
    subtype: str
    coin: str
    oid: str
    trade: str
    side: str
    size: int
    trigger_px: int
    mark: int


class GuardianMoved(NamedTuple):
    """type guardian: armed, activated, fired, released, disarmed."""

    account: str
    seq: int
    ts: int
    subtype: str
    coin: str | None
    guardian: str
    guardian_type: str
    scope: str
    blocks_opens: bool
    action: str | None = None
    reason: str | None = None
    next_deadline: int | None = None
    mark: int | None = None
    account_value: int | None = None
    canceled: tuple[str, ...] = ()
    trades: tuple[str, ...] = ()
    code: str | None = None


class FundingPaid(NamedTuple):
    """type funding, subtype payment. `amount` is positive when the account receives it."""

    account: str
    seq: int
    ts: int
    coin: str
    side: str
    size: int
    oracle: int
    rate: int
    amount: int
    balance: int
    # the exchange's instant of a payment that an exchange reported
    venue_ts: int | None = None


class Liquidated(NamedTuple):
    """type liquidation: partial, full, backstop."""

    account: str
    seq: int
    ts: int
    subtype: str
    coin: str
    trade: str
    side: str
    size: int
    px: int
    mark: int
    realized: int
    fee: int
    margin_lost: int
    balance: int
    absorbed: int = 0


class Settled(NamedTuple):
    """type settlement, subtype settled: the outcome of an event market ended a position.

    `size` is the position's size, `payout` the amount paid.
    """

    account: str
    seq: int
    ts: int
    subtype: str
    coin: str
    trade: str
    side: str
    size: int
    outcome_px: int
    payout: int
    fee: int
    realized: int
    balance: int
    absorbed: int = 0


class AccountChanged(NamedTuple):
    """type account: created, reset, settings, leverage, key_created, key_revoked, transfer, margin, link,
    audit.

    Only the fields that apply are set.
    """

    account: str
    seq: int
    ts: int
    subtype: str
    balance: int | None = None
    epoch: int | None = None
    coin: str | None = None
    leverage_from: float | None = None
    leverage_to: float | None = None
    max_trade: int | None = None
    daily_cap: int | None = None
    key: str | None = None
    name: str | None = None
    # what a transfer added to the cash; negative for a withdrawal
    amount: int | None = None
    # the isolated margin of a position after the change, 0 for a cross one
    margin: int | None = None
    # deposit, withdrawal, ... for a transfer; away, behind, in_step for the link; equal, differs, corrected for an
    # audit
    state: str | None = None
    reason: str | None = None
    # the exchange's instant of a transfer
    venue_ts: int | None = None


Event = FillEvent | OrderChanged | Triggered | GuardianMoved | FundingPaid | Liquidated | Settled | AccountChanged

# Events of the order path, of which a session makes many.
fill: Final = partial(tuple.__new__, FillEvent)
order_changed: Final = partial(tuple.__new__, OrderChanged)
triggered: Final = partial(tuple.__new__, Triggered)

CLASSES: Final = (FillEvent, OrderChanged, Triggered, GuardianMoved, FundingPaid, Liquidated, Settled, AccountChanged)
