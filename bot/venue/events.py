"""Events of the venue: one class for each event type of the interface. Amounts are scaled 1e8; the service formats them.

The type checker treats them as frozen. They are not frozen at run time, because a frozen dataclass takes six times as long to build.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def event(cls: type[T]) -> type[T]:
    """A slots dataclass that the type checker treats as frozen."""
    return dataclass(slots=True)(cls)


@event
class Fill:
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
    absorbed: int = 0  # what the service paid so that neither balance nor margin became negative


@event
class OrderChanged:
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


@event
class Triggered:
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


@event
class GuardianMoved:
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


@event
class FundingPaid:
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


@event
class Liquidated:
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


@event
class Settled:
    """type settlement, subtype settled: the outcome of an event market ended a position. `size` is the position's size, `payout` the amount paid."""

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


@event
class AccountChanged:
    """type account: created, reset, settings, leverage, key_created, key_revoked. Only the fields that apply are set."""

    account: str
    seq: int
    ts: int
    subtype: str
    balance: int | None = None
    epoch: int | None = None
    coin: str | None = None
    leverage_from: int | None = None
    leverage_to: int | None = None
    max_trade: int | None = None
    daily_cap: int | None = None
    key: str | None = None
    name: str | None = None


Event = Fill | OrderChanged | Triggered | GuardianMoved | FundingPaid | Liquidated | Settled | AccountChanged
