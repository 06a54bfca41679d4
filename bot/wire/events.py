"""Events of an account, with one data class per type. The data of an unknown type stay the mapping that was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

from pydantic import Field, ValidationInfo, field_validator
from pydantic.functional_serializers import SerializeAsAny

from bot.model import events as m
from bot.money import E8, e8_of_decimal
from bot.wire.base import AMOUNT_DIGITS_MAX, AbsentNone, Amount, Num, Resource, problem
from bot.wire.resources import Warning_
from bot.wire.vocabulary import EVENT_SUBTYPES


class FillData(Resource):
    """`position_size`, `entry_px` and `balance_usd` are the values after the fill. `remaining_size` is the rest of the
    order. `absorbed_usd` is what the service paid so that neither the balance nor an isolated margin became negative; 0
    if the service does not send it. `venue_ts` is the exchange's instant of a fill that an exchange reported.
    """

    trade_id: str
    oid: str
    kind: str
    side: str
    intent: str
    reduce_only: bool
    size: Amount
    px: Amount
    fee_usd: Amount
    realized_pnl_usd: Amount | None = None
    liquidity: str
    remaining_size: Amount
    position_size: Amount
    entry_px: Amount | None = None
    balance_usd: Amount
    absorbed_usd: Amount = Decimal(0)
    venue_ts: int | None = AbsentNone


class OrderData(Resource):
    oid: str
    trade_id: str | None = None
    kind: str
    side: str
    intent: str
    size: Amount
    filled_size: Amount
    limit_px: Amount | None = None
    trigger_px: Amount | None = None
    reason: str | None = None


class TriggerData(Resource):
    """`trade_id` is the trade of the exit."""

    oid: str
    trade_id: str
    side: str
    size: Amount
    trigger_px: Amount
    mark_px: Amount


class GuardianData(Resource):
    """`code`: why a scheduled order was refused, as an error code."""

    guardian_id: str
    guardian_type: str
    scope: str
    action: str | None = None
    reason: str | None = None
    next_deadline: int | None = None
    mark_px: Amount | None = None
    account_value_usd: Amount | None = None
    canceled_oids: tuple[str, ...] = ()
    trade_ids: tuple[str, ...] = ()
    blocks_opens: bool = False
    code: str | None = None


class FundingData(Resource):
    """`rate` is the fraction per hour. `amount_usd` is negative if the account paid."""

    side: str
    size: Amount
    oracle_px: Amount
    rate: str
    amount_usd: Amount
    balance_usd: Amount
    venue_ts: int | None = AbsentNone


class LiquidationData(Resource):
    """A `backstop` has no fill events, so its amounts appear only here.

    The amounts of other liquidations are the sums of their fills.
    """

    trade_id: str
    side: str
    size: Amount
    px: Amount
    mark_px: Amount
    realized_pnl_usd: Amount
    fee_usd: Amount
    margin_lost_usd: Amount
    absorbed_usd: Amount = Decimal(0)
    balance_usd: Amount


class SettlementData(Resource):
    trade_id: str
    side: str
    size: Amount
    outcome_px: Amount
    payout_usd: Amount
    fee_usd: Amount
    realized_pnl_usd: Amount
    absorbed_usd: Amount = Decimal(0)
    balance_usd: Amount


class AccountCreatedData(Resource):
    balance_usd: Amount


class AccountResetData(Resource):
    balance_usd: Amount
    epoch: int


class AccountSettingsData(Resource):
    max_trade_usd: Amount | None = None
    daily_trade_cap_usd: Amount | None = None


class AccountLeverageData(Resource):
    coin: str
    old: Num = Field(alias="from")
    new: Num = Field(alias="to")


class AccountKeyData(Resource):
    key_id: str
    name: str


class AccountTransferData(Resource):
    """Money that came to the account or left it, and no trade caused. `amount_usd` is negative if it left."""

    kind: str
    amount_usd: Amount
    balance_usd: Amount
    venue_ts: int | None = AbsentNone


class AccountMarginData(Resource):
    """The isolated margin of a position moved to or from the balance; the account's value did not change."""

    coin: str
    margin_usd: Amount
    balance_usd: Amount


class AccountLinkData(Resource):
    """What the service knows of the account at its exchange: `state` of the link is away, behind or in_step, that of an
    audit equal, differs or corrected.
    """

    state: str
    reason: str | None = None


DATA_OF: dict[str, type[Resource]] = {
    "fill": FillData,
    "order": OrderData,
    "trigger": TriggerData,
    "guardian": GuardianData,
    "funding": FundingData,
    "liquidation": LiquidationData,
    "settlement": SettlementData,
    "account/created": AccountCreatedData,
    "account/reset": AccountResetData,
    "account/settings": AccountSettingsData,
    "account/leverage": AccountLeverageData,
    "account/key_created": AccountKeyData,
    "account/key_revoked": AccountKeyData,
    "account/transfer": AccountTransferData,
    "account/margin": AccountMarginData,
    "account/link": AccountLinkData,
    "account/audit": AccountLinkData,
}

AccountData = (
    AccountCreatedData
    | AccountResetData
    | AccountSettingsData
    | AccountLeverageData
    | AccountKeyData
    | AccountTransferData
    | AccountMarginData
    | AccountLinkData
)
EventData = (
    FillData | OrderData | TriggerData | GuardianData | FundingData | LiquidationData | SettlementData | AccountData
)


class Event(Resource):
    """One event.

    `data` is the data class of its type (for `account`: of its subtype), or the mapping as read if the type is unknown.
    """

    id: str
    type: str
    subtype: str
    ts: int
    coin: str | None = AbsentNone
    request_id: str | None = AbsentNone
    idempotency_key: str | None = AbsentNone
    data: SerializeAsAny[Any]

    @field_validator("data", mode="plain")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("type")
        name = kind if kind != "account" else f"account/{info.data.get('subtype')}"
        model = DATA_OF.get(name or "")
        if model is not None:
            return model.model_validate(value)
        if not isinstance(value, Mapping):
            raise problem("object_type", "must be an object")
        return value


class EventsPage(Resource):
    """Events, oldest first.

    `last_event_id` is the last event that the service examined, so that a filtered reader advances too.
    """

    events: tuple[Event, ...]
    last_event_id: str | None = None
    warnings: tuple[Warning_, ...] = Field(default=(), exclude_if=lambda value: not value)


# -- the same event with integers of 1e-8, as the daemon folds it

# exact for every Amount, and in every decimal context
_scaled: Final = Context(prec=2 * AMOUNT_DIGITS_MAX).multiply
_E8: Final = Decimal(E8)


def model_event(event: Event) -> m.Event | None:
    """The event as the venue makes it, but without its number: a client knows the id alone.

    None if this version does not know its type or subtype.
    """
    make = _MAKERS.get((event.type, event.subtype))
    return None if make is None else make(event, event.data)


def _fill(event: Event, data: FillData) -> m.Event:
    realized, entry_px = data.realized_pnl_usd, data.entry_px
    return m.fill(
        (
            "",
            -1,
            event.ts,
            event.subtype,
            event.coin,
            data.trade_id,
            data.oid,
            data.kind,
            data.side,
            data.intent,
            data.reduce_only,
            int(_scaled(data.size, _E8)),
            int(_scaled(data.px, _E8)),
            int(_scaled(data.fee_usd, _E8)),
            None if realized is None else int(_scaled(realized, _E8)),
            data.liquidity,
            int(_scaled(data.remaining_size, _E8)),
            abs(int(_scaled(data.position_size, _E8))),
            None if entry_px is None else int(_scaled(entry_px, _E8)),
            int(_scaled(data.balance_usd, _E8)),
            event.request_id,
            event.idempotency_key,
            int(_scaled(data.absorbed_usd, _E8)),
            data.venue_ts,
        )
    )


def _order(event: Event, data: OrderData) -> m.Event:
    limit_px, trigger_px = data.limit_px, data.trigger_px
    return m.order_changed(
        (
            "",
            -1,
            event.ts,
            event.subtype,
            event.coin,
            data.oid,
            data.trade_id,
            data.kind,
            data.side,
            data.intent,
            int(_scaled(data.size, _E8)),
            int(_scaled(data.filled_size, _E8)),
            None if limit_px is None else int(_scaled(limit_px, _E8)),
            None if trigger_px is None else int(_scaled(trigger_px, _E8)),
            data.reason,
            event.request_id,
            event.idempotency_key,
        )
    )


def _trigger(event: Event, data: TriggerData) -> m.Event:
    return m.Triggered(
        "",
        -1,
        event.ts,
        event.subtype,
        event.coin or "",
        data.oid,
        data.trade_id,
        data.side,
        e8_of_decimal(data.size),
        e8_of_decimal(data.trigger_px),
        e8_of_decimal(data.mark_px),
    )


def _guardian(event: Event, data: GuardianData) -> m.Event:
    mark, value = data.mark_px, data.account_value_usd
    return m.GuardianMoved(
        "",
        -1,
        event.ts,
        event.subtype,
        event.coin,
        data.guardian_id,
        data.guardian_type,
        data.scope,
        data.blocks_opens,
        data.action,
        data.reason,
        data.next_deadline,
        None if mark is None else e8_of_decimal(mark),
        None if value is None else e8_of_decimal(value),
        data.canceled_oids,
        data.trade_ids,
        data.code,
    )


def _funding(event: Event, data: FundingData) -> m.Event:
    """Without the rate, which the daemon does not read: the amount is what was paid."""
    return m.FundingPaid(
        "",
        -1,
        event.ts,
        event.coin or "",
        data.side,
        e8_of_decimal(data.size),
        e8_of_decimal(data.oracle_px),
        0,
        e8_of_decimal(data.amount_usd),
        e8_of_decimal(data.balance_usd),
        data.venue_ts,
    )


def _liquidation(event: Event, data: LiquidationData) -> m.Event:
    amounts = (
        data.size,
        data.px,
        data.mark_px,
        data.realized_pnl_usd,
        data.fee_usd,
        data.margin_lost_usd,
        data.balance_usd,
        data.absorbed_usd,
    )
    coin = event.coin or ""
    return m.Liquidated("", -1, event.ts, event.subtype, coin, data.trade_id, data.side, *map(e8_of_decimal, amounts))


def _settlement(event: Event, data: SettlementData) -> m.Event:
    amounts = (
        data.size,
        data.outcome_px,
        data.payout_usd,
        data.fee_usd,
        data.realized_pnl_usd,
        data.balance_usd,
        data.absorbed_usd,
    )
    coin = event.coin or ""
    return m.Settled("", -1, event.ts, event.subtype, coin, data.trade_id, data.side, *map(e8_of_decimal, amounts))


def _account(event: Event, data: AccountData) -> m.Event:
    changed = m.AccountChanged("", -1, event.ts, event.subtype)
    if isinstance(data, AccountCreatedData):
        return changed._replace(balance=e8_of_decimal(data.balance_usd))
    if isinstance(data, AccountResetData):
        return changed._replace(balance=e8_of_decimal(data.balance_usd), epoch=data.epoch)
    if isinstance(data, AccountLeverageData):
        return changed._replace(coin=data.coin, leverage_from=data.old, leverage_to=data.new)
    if isinstance(data, AccountKeyData):
        return changed._replace(key=data.key_id, name=data.name)
    if isinstance(data, AccountTransferData):
        amount, balance = e8_of_decimal(data.amount_usd), e8_of_decimal(data.balance_usd)
        return changed._replace(state=data.kind, amount=amount, balance=balance, venue_ts=data.venue_ts)
    if isinstance(data, AccountMarginData):
        margin, balance = e8_of_decimal(data.margin_usd), e8_of_decimal(data.balance_usd)
        return changed._replace(coin=data.coin, margin=margin, balance=balance)
    if isinstance(data, AccountLinkData):
        return changed._replace(state=data.state, reason=data.reason)
    return changed


_BY_TYPE: Final[Mapping[str, Callable[[Event, Any], m.Event]]] = {
    "fill": _fill,
    "order": _order,
    "trigger": _trigger,
    "guardian": _guardian,
    "funding": _funding,
    "liquidation": _liquidation,
    "settlement": _settlement,
    "account": _account,
}
_MAKERS: Final = {(type_, subtype): _BY_TYPE[type_] for type_, known in EVENT_SUBTYPES.items() for subtype in known}
