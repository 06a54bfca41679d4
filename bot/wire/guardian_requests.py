"""The request that arms a guardian, and a table of the fields of each guardian type.

The venue defines what a guardian does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, model_validator

from bot.cron import BadCron, parse
from bot.wire.base import Integer, MarketName, Number, Request, Text, problem, refuse
from bot.wire.vocabulary import GuardianAction, GuardianScope, GuardianType


@dataclass(frozen=True, slots=True)
class GuardianRule:
    """The fields of one guardian type, in wire names.

    `one_of`: exactly one of these. `optional`: default value, or None without a default.
    """

    scope: str
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    optional: dict[str, str | None] = field(default_factory=dict)

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.required) | frozenset(self.one_of) | frozenset(self.optional)


GUARDIAN_RULES: dict[str, GuardianRule] = {
    "trailing_stop": GuardianRule("position", ("market",), ("trailPct", "trailR"), {"activateAtR": None}),
    "max_hold": GuardianRule("position", ("market", "seconds")),
    "account_drawdown": GuardianRule("account", ("maxLossPctFromDayStart",), (), {"action": "flatten"}),
    "dead_man_switch": GuardianRule("account", ("heartbeatSeconds",), (), {"onMiss": "cancel_orders"}),
    "schedule": GuardianRule("account", ("cron",), ("orderTemplate", "action")),
    "kill_switch": GuardianRule("account", (), (), {"action": "cancel_orders"}),
}


def _cron(value: str) -> str:
    """Refuse what the service's schedules do not understand, at the sender too."""
    try:
        parse(value)
    except BadCron as error:
        raise problem("cron", f"is not a cron line: {error}", "five fields: minute hour day month weekday") from None
    return value


class GuardianFields(Request):
    """All fields of a guardian in the interface. Each type accepts only its own fields."""

    type: GuardianType
    scope: GuardianScope | None = None
    market: MarketName | None = None
    heartbeat_seconds: Annotated[int, Integer(60, 86_400)] | None = None
    on_miss: GuardianAction | None = None
    seconds: Annotated[int, Integer(60)] | None = None
    trail_pct: Annotated[Decimal, Number(gt=0, le=50)] | None = None
    trail_r: Annotated[Decimal, Number(gt=0, le=20)] | None = None
    activate_at_r: Annotated[Decimal, Number(gt=0, le=20)] | None = None
    max_loss_pct_from_day_start: Annotated[Decimal, Number(gt=0, le=100)] | None = None
    action: GuardianAction | None = None
    cron: Annotated[str, Text(1, 64), AfterValidator(_cron)] | None = None
    order_template: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """Wire names and values of the fields that are set, without type and scope."""
        pairs = ((info.alias or name, getattr(self, name)) for name, info in type(self).model_fields.items())
        return {alias: value for alias, value in pairs if value is not None and alias not in ("type", "scope")}

    def filled(self) -> Self:
        """This request with its scope and the defaults of its type filled in."""
        rule = GUARDIAN_RULES[self.type]
        defaults: dict[str, Any] = {"scope": rule.scope}
        if self.type == "dead_man_switch" and self.on_miss is None:
            defaults["on_miss"] = rule.optional["onMiss"]
        if self.type in ("account_drawdown", "kill_switch") and self.action is None:
            defaults["action"] = rule.optional["action"]
        return self.model_copy(update=defaults)


def _hold_to_table(request: GuardianFields, *, market_implied: bool) -> None:
    rule = GUARDIAN_RULES[request.type]
    given = request.given()
    if request.scope is not None and request.scope != rule.scope:
        refuse(("scope",), f"must be {rule.scope} for {request.type}", [rule.scope])
    allowed = rule.fields | ({"market"} if market_implied else set())
    for name in given:
        if name not in allowed:
            refuse((name,), f"does not belong to {request.type}", sorted(allowed))
    for name in rule.required:
        if name not in given and not (name == "market" and market_implied):
            refuse((name,), f"is required for {request.type}")
    if rule.one_of and sum(name in given for name in rule.one_of) != 1:
        name = next((field_name for field_name in rule.one_of if field_name in given), rule.one_of[0])
        refuse((name,), f"is wrong: {request.type} takes exactly one of {' and '.join(rule.one_of)}", list(rule.one_of))


class GuardianRequest(GuardianFields):
    """Body of POST /v1/guardians."""

    @model_validator(mode="after")
    def _table(self) -> Self:
        _hold_to_table(self, market_implied=False)
        return self


class InlineGuardian(GuardianFields):
    """A guardian inside an order.

    It has the same fields; its market defaults to the market of the order. Unknown members are ignored.
    """

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _table(self) -> Self:
        _hold_to_table(self, market_implied=True)
        return self

    def on(self, market: str) -> GuardianRequest:
        """The full request, with the market of the order."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return GuardianRequest(
            **{**fields, "market": market if GUARDIAN_RULES[self.type].scope == "position" else None}
        )
