"""Rules between fields: amounts, types of orders, brackets, closes, and the fields of each guardian type."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bot.wire import GUARDIAN_RULES, CloseRequest, GuardianRequest, InlineGuardian, OrderRequest, fields_of, message_of
from bot.wire.control import AdvanceRequest, ClockRequest

BASE = {"market": "BTC", "side": "long", "usdAmount": 50}
LIMIT = {"market": "BTC", "side": "long", "size": "1", "type": "limit", "limitPx": "100"}


def broken(model, body):
    with pytest.raises(ValidationError) as caught:
        model.from_wire(body)
    fields = fields_of(caught.value)
    assert message_of(fields).startswith(fields[0]["field"])
    return fields[0]["field"]


def bracket(**legs):
    return {**BASE, "bracket": legs}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"market": "BTC", "side": "long"}, "usdAmount"),
        ({**BASE, "size": "1"}, "size"),
        ({**BASE, "usdAmount": 0}, "usdAmount"),
        ({"market": "BTC", "side": "long", "size": "0"}, "size"),
        ({"market": "BTC", "side": "long", "size": "0.000"}, "size"),
        ({**BASE, "limitPx": "100"}, "limitPx"),
        ({**BASE, "type": "limit"}, "limitPx"),
        ({**LIMIT, "limitPx": "0.0"}, "limitPx"),
        ({**LIMIT, "maxSlippageBps": 10}, "maxSlippageBps"),
        ({**LIMIT, "allowPartial": True}, "allowPartial"),
        (bracket(), "bracket.stopLoss"),
        (bracket(stopLoss={}), "bracket.stopLoss"),
        (bracket(stopLoss={"pct": 2, "px": "98"}), "bracket.stopLoss"),
        (bracket(stopLoss={"pct": 2, "r": 1}), "bracket.stopLoss"),
        (bracket(stopLoss={"r": 0}), "bracket.stopLoss.r"),
        (bracket(stopLoss={"pct": 0}), "bracket.stopLoss.pct"),
        (bracket(stopLoss={"pct": -1}), "bracket.stopLoss.pct"),
        (bracket(stopLoss={"pct": "2"}), "bracket.stopLoss.pct"),
        (bracket(stopLoss={"px": 98}), "bracket.stopLoss.px"),
        (bracket(stopLoss={"px": "0"}), "bracket.stopLoss.px"),
        (bracket(stopLoss={"pct": 2}, takeProfit={}), "bracket.takeProfit"),
        (bracket(stopLoss={"pct": 2}, takeProfit={"pct": 1, "r": 2}), "bracket.takeProfit"),
        (bracket(stopLoss={"pct": 2}, takeProfit={"r": 0}), "bracket.takeProfit.r"),
        (bracket(stopLoss=None), "bracket.stopLoss"),
        (bracket(stopLoss={"pct": 2}, trailing={}), "bracket.trailing"),
        ({**BASE, "bracket": []}, "bracket"),
        ({**BASE, "guardians": {}}, "guardians"),
        ({**BASE, "guardians": [{}]}, "guardians.0.type"),
        ({**BASE, "guardians": [5]}, "guardians.0"),
        (
            {**BASE, "guardians": [{"type": "trailing_stop", "trailPct": 2}, {"type": "max_hold"}]},
            "guardians.1.seconds",
        ),
        ({**BASE, "guardians": [{"type": "trailing_stop", "trailPct": 2, "market": "ETH"}]}, "guardians.0.market"),
    ],
)
def test_an_order_that_breaks_a_rule_names_the_field(body, field):
    assert broken(OrderRequest, body) == field


@pytest.mark.parametrize(
    "body",
    [
        BASE,
        LIMIT,
        {**LIMIT, "allowPartial": False},
        {**BASE, "maxSlippageBps": 0, "allowPartial": True},
        bracket(stopLoss={"pct": 2}),
        bracket(stopLoss={"px": "98.5"}, takeProfit={"r": 2}),
        bracket(stopLoss={"r": 1}),
        bracket(takeProfit={"r": 2}),
        bracket(takeProfit={"pct": 4}),
        bracket(takeProfit={"px": "104"}),
        {**BASE, "market": "perp:btc", "guardians": [{"type": "trailing_stop", "trailR": 1, "market": "BTC"}]},
        {**BASE, "guardians": [{"type": "dead_man_switch", "heartbeatSeconds": 300}]},
    ],
)
def test_an_order_that_follows_the_rules_passes(body):
    assert OrderRequest.from_wire(body).market == body["market"]


@pytest.mark.parametrize(
    ("body", "field"),
    [({"fraction": 1, "size": "1"}, "size"), ({"usdAmount": 5, "fraction": 1}, "usdAmount"), ({"size": "0"}, "size")],
)
def test_a_close_takes_one_amount_at_most(body, field):
    assert broken(CloseRequest, body) == field


def test_a_close_without_an_amount_is_all_of_it():
    assert CloseRequest.from_wire({}).body() == b"{}"


VALUES = {
    "market": "BTC",
    "heartbeatSeconds": 60,
    "onMiss": "flatten",
    "seconds": 60,
    "trailPct": 2,
    "trailR": 1,
    "activateAtR": 1,
    "maxLossPctFromDayStart": 5,
    "action": "flatten",
    "cron": "0 0 * * *",
    "orderTemplate": {"side": "long"},
}
# The table of the design: required, exactly one of, optional.
TABLE = {
    "trailing_stop": ("position", {"market"}, {"trailPct", "trailR"}, {"activateAtR"}),
    "max_hold": ("position", {"market", "seconds"}, set(), set()),
    "account_drawdown": ("account", {"maxLossPctFromDayStart"}, set(), {"action"}),
    "dead_man_switch": ("account", {"heartbeatSeconds"}, set(), {"onMiss"}),
    "schedule": ("account", {"cron"}, {"orderTemplate", "action"}, set()),
    "kill_switch": ("account", set(), set(), {"action"}),
}


def least(kind):
    _, required, one_of, _ = TABLE[kind]
    names = required | set(sorted(one_of)[:1])
    return {"type": kind, **{name: VALUES[name] for name in names}}


def test_the_table_of_guardians_is_the_designs():
    assert set(GUARDIAN_RULES) == set(TABLE)
    for kind, (scope, required, one_of, optional) in TABLE.items():
        rule = GUARDIAN_RULES[kind]
        assert (rule.scope, set(rule.required), set(rule.one_of), set(rule.optional)) == (
            scope,
            required,
            one_of,
            optional,
        )


@pytest.mark.parametrize("name", sorted(VALUES))
@pytest.mark.parametrize("kind", sorted(TABLE))
def test_a_guardian_takes_the_fields_of_its_type_and_no_other(kind, name):
    scope, required, one_of, optional = TABLE[kind]
    body = {**least(kind), name: VALUES[name]}
    if name in one_of:
        body = {key: value for key, value in body.items() if key not in one_of - {name}}
    if name in required | one_of | optional:
        assert GuardianRequest.from_wire(body).filled().scope == scope
    else:
        assert broken(GuardianRequest, body) == name


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_a_guardian_without_what_its_type_requires_is_refused(kind):
    _, required, one_of, _ = TABLE[kind]
    for name in required:
        assert broken(GuardianRequest, {key: value for key, value in least(kind).items() if key != name}) == name
    if one_of:
        assert (
            broken(GuardianRequest, {key: value for key, value in least(kind).items() if key not in one_of}) in one_of
        )
        assert broken(GuardianRequest, {**least(kind), **{name: VALUES[name] for name in one_of}}) in one_of


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_a_guardian_of_another_scope_than_its_types_is_refused(kind):
    scope = TABLE[kind][0]
    other = "account" if scope == "position" else "position"
    assert broken(GuardianRequest, {**least(kind), "scope": other}) == "scope"
    assert GuardianRequest.from_wire({**least(kind), "scope": scope}).scope == scope


def test_the_defaults_of_a_type_are_filled_in():
    assert GuardianRequest.from_wire(least("dead_man_switch")).filled().on_miss == "cancel_orders"
    assert GuardianRequest.from_wire(least("account_drawdown")).filled().action == "flatten"
    assert GuardianRequest.from_wire(least("kill_switch")).filled().action == "cancel_orders"
    given = GuardianRequest.from_wire({**least("kill_switch"), "action": "flatten"})
    assert given.filled().action == "flatten"


def test_an_inline_guardian_becomes_a_full_one_on_its_market():
    trail = InlineGuardian.from_wire({"type": "trailing_stop", "trailPct": 2})
    assert trail.on("BTC") == GuardianRequest(type="trailing_stop", market="BTC", trail_pct=2)
    beat = InlineGuardian.from_wire({"type": "dead_man_switch", "heartbeatSeconds": 60})
    assert beat.on("BTC").market is None


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (AdvanceRequest, {}, "ms"),
        (AdvanceRequest, {"ms": 1, "toMs": 2}, "ms"),
        (AdvanceRequest, {"toNext": False}, "toNext"),
        (AdvanceRequest, {"ms": -1}, "ms"),
        (ClockRequest, {"speed": 3601}, "speed"),
        (ClockRequest, {"speed": 0.5}, "speed"),
        (ClockRequest, {"speed": -1}, "speed"),
    ],
)
def test_the_sandboxs_control_has_its_rules_too(model, body, field):
    assert broken(model, body) == field


def test_the_sandboxs_control_takes_what_is_right():
    assert AdvanceRequest.from_wire({"toNext": True}).body() == b'{"toNext":true}'
    assert ClockRequest.from_wire({"speed": 60}).body() == b'{"speed":60}'
