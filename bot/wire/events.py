"""Events of an account, with one data class per type. The data of an unknown type stay the mapping that was read."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic.functional_serializers import SerializeAsAny

from bot.wire.base import AbsentNone, Amount, Num, Resource, problem


class FillData(Resource):
    """`position_size`, `entry_px` and `balance_usd` are the values after the fill. `remaining_size` is the rest of the order. `absorbed_usd` is what the
    service paid so that neither the balance nor an isolated margin became negative; 0 if the service does not send it.
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


class LiquidationData(Resource):
    """A `backstop` has no fill events, so its amounts appear only here. The amounts of other liquidations are the sums of their fills."""

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
}

EventData = (
    FillData | OrderData | TriggerData | GuardianData | FundingData | LiquidationData | SettlementData
    | AccountCreatedData | AccountResetData | AccountSettingsData | AccountLeverageData | AccountKeyData
)  # fmt: skip


class Event(Resource):
    """One event. `data` is the data class of its type (for `account`: of its subtype), or the mapping as read if the type is unknown."""

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
        model = DATA_OF.get(kind) if kind != "account" else DATA_OF.get(f"account/{info.data.get('subtype')}")  # type: ignore[arg-type]  # None finds no model
        if model is not None:
            return model.model_validate(value)
        if not isinstance(value, Mapping):
            raise problem("object_type", "must be an object")
        return value


class EventsPage(Resource):
    """Events, oldest first. `last_event_id` is the last event that the service examined, so that a filtered reader advances too."""

    events: tuple[Event, ...]
    last_event_id: str | None = None
