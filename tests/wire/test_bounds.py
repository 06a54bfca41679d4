"""Every field of every request: below, at and above each bound, wrong type, missing, null, unknown.

The bounds are read from the document's words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

import pytest
from pydantic import ValidationError

import bot.wire
from bot.wire import Request, fields_of, message_of

TINY = Decimal("0.000000000000000001")
NOT_DIGITS = ["", "-1", "+1", "1.", ".5", "1e3", "１２", "٣", " 1", "1 ", "1\n", "0x1", "1_0", "NaN", "1,0", "9" * 65]
NULLABLE = {"maxExposureUsd", "maxDailyNotionalUsd"}


@dataclass(frozen=True)
class Facts:
    """A field in the document's words, read."""

    kind: str
    low: Decimal | None = None
    # low itself is out
    above: bool = False
    high: Decimal | None = None
    words: tuple[str, ...] = ()
    default: str | None = None
    required: bool = False


def read(text: str) -> Facts:
    """`number >0, max 1e9` and the like."""
    span = re.search(r"(\d+)\.\.(\d+)", text)
    low = re.search(r">=? ?(\d+)", text)
    high = re.search(r"max (\d[\de]*)", text)
    length = re.search(r"min length (\d+)", text)
    default = re.search(r"default (\w+)", text)
    plain = re.sub(r";? ?,? ?default \w+|required,?|^string |returns .*", "", text)
    if ("digits" in text and "six" not in text) or "numeric string" in text:
        kind = "digits"
    elif text.startswith("array"):
        kind = "array"
    else:
        kind = next((word for word in ("number", "integer", "boolean") if text.startswith(word)), "string")
    words = tuple(re.split(r", | or ", plain.strip(" ,"))) if kind == "string" and re.search(r", | or ", plain) else ()
    if any(not re.fullmatch(r"[a-z0-9_:]+", word) for word in words) or span:
        words = ()
    return Facts(
        kind,
        low=Decimal(span[1]) if span else Decimal(low[1]) if low else Decimal(length[1]) if length else None,
        above=low is not None and ">=" not in low[0],
        high=Decimal(span[2]) if span else Decimal(high[1]) if high else None,
        words=words,
        default=default[1] if default else None,
        required="required" in text,
    )


def samples(facts: Facts) -> tuple[list[object], list[object]]:
    """Values that pass and values that do not."""
    if facts.words:
        return list(facts.words), ["nope", facts.words[0].upper(), "", 5, True, [facts.words[0]]]
    if facts.kind == "boolean":
        return [True, False], [0, 1, "true", [], {}]
    if facts.kind == "digits":
        return ["1", "1.5", "0001.10", "9" * 64], [*NOT_DIGITS, 5, Decimal("1.5"), True, [], {}]
    step = Decimal(1) if facts.kind != "number" else TINY
    good: list[object] = []
    bad: list[object] = []
    if facts.low is not None:
        (bad if facts.above else good).append(facts.low)
        (good if facts.above else bad).append(facts.low + step if facts.above else facts.low - step)
        bad.append(facts.low - 1)
    if facts.high is not None:
        good.append(facts.high)
        bad.append(facts.high + step)
    if facts.kind == "number":
        wrong = [
            "5",
            True,
            [],
            {},
            float("nan"),
            float("inf"),
            Decimal("NaN"),
            Decimal("Infinity"),
            Decimal("1e999"),
            10**400,
            1e308,
        ]
        floats = [float(one) for one in good if one > TINY and one % 1]  # type: ignore[operator]
        return [*good, *floats], [*bad, *wrong]
    if facts.kind == "integer":
        whole = [int(one) for one in good]  # type: ignore[call-overload]
        return whole, [
            *(int(one) for one in bad),
            whole[0] + 0.5,
            Decimal("0.5") + whole[0],
            float("inf"),
            True,
            [],
            {},
            float("nan"),
        ]  # type: ignore[call-overload]
    texts = ["x" * int(one) for one in good]  # type: ignore[call-overload]
    return texts, [
        *("x" * int(one) for one in bad if one >= 0),
        5,
        True,
        [],
        {},
        "\ud800" * max(1, int(facts.low or 1)),
    ]  # type: ignore[operator,call-overload]


def body_around(shape, around, gone, **more):
    body = {**shape.body, **shape.around.get(around, {}), **more}
    return {key: value for key, value in body.items() if value is not gone}


def model_of(name: str) -> type[Request]:
    found = getattr(bot.wire, name)
    assert issubclass(found, Request)
    return found


def refused(model: type[Request], body: object, name: str) -> str:
    with pytest.raises(ValidationError) as caught:
        model.from_wire(body)
    fields = fields_of(caught.value)
    assert fields[0]["field"].split(".")[0] == name, fields
    assert message_of(fields).startswith(name)
    return message_of(fields)


def facts_of(shape, name: str) -> Facts:
    if name == "phoneNumber":
        return read("string 3..80, required")
    if name == "code":
        return Facts("six", required=True)
    return read("number >0, max 1e9, or null" if shape.fields[name] == "same" else shape.fields[name])


def attribute(model: type[Request], name: str) -> str:
    return next(key for key, info in model.model_fields.items() if (info.alias or key) == name)


def test_a_field_takes_what_the_document_allows_and_refuses_the_rest(model_name, field_name, shapes, gone):
    shape, model = shapes[model_name], model_of(model_name)
    facts = facts_of(shape, field_name)
    if facts.kind == "array":
        # What goes into an array is tested by itself below.
        for value in (5, "read", {}, True):
            refused(model, body_around(shape, field_name, gone, **{field_name: value}), field_name)
        return
    good, bad = (
        (["000000", "123456"], ["12345", "1234567", "12345x", "１２３４５６", 123456, "12345\n"])
        if facts.kind == "six"
        else samples(facts)
    )
    # A text with a form of its own, which the document states in words.
    if field_name == "cron":
        bad, good = [*bad, *good], ["* * * * *", "0 9 * * 1-5", " 0 0 1 1 *"]
    query = model_name.endswith("Query")
    for value in good:
        if query and facts.kind == "integer":
            value = str(value)
        if field_name == "type" and value == "market":
            # The body around it is a limit order.
            continue
        done = model.from_wire(body_around(shape, field_name, gone, **{field_name: value}))
        kept = getattr(done, attribute(model, field_name))
        expected = (
            int(value)
            if query and facts.kind == "integer"
            else Decimal(repr(value))
            if isinstance(value, float)
            else value
        )
        assert kept == expected
    for value in bad:
        refused(model, body_around(shape, field_name, gone, **{field_name: value}), field_name)


def test_an_integer_may_be_written_with_a_zero_fraction(model_name, field_name, shapes, gone):
    shape, model = shapes[model_name], model_of(model_name)
    facts = facts_of(shape, field_name)
    if facts.kind == "integer":
        whole = samples(facts)[0][0]
        for value in (Decimal(f"{whole}.0"), Decimal(f"{whole}e0"), float(whole)):
            done = model.from_wire(body_around(shape, field_name, gone, **{field_name: value}))
            kept = getattr(done, attribute(model, field_name))
            assert (kept, type(kept)) == (whole, int)


def test_null_is_refused_wherever_the_document_does_not_allow_it(model_name, field_name, shapes, gone):
    shape, model = shapes[model_name], model_of(model_name)
    body = body_around(shape, field_name, gone, **{field_name: None})
    if field_name in NULLABLE:
        assert getattr(model.from_wire(body), attribute(model, field_name)) is None
    else:
        assert "null" in refused(model, body, field_name)


def test_a_missing_required_field_is_named_and_an_optional_field_has_the_documents_default(
    model_name, field_name, shapes, gone
):
    shape, model = shapes[model_name], model_of(model_name)
    facts = facts_of(shape, field_name)
    body = {**body_around(shape, field_name, gone)}
    if facts.required:
        body.pop(field_name)
        assert "required" in refused(model, body, field_name)
        return
    info = model.model_fields[attribute(model, field_name)]
    if facts.default is not None:
        assert info.default == (
            {"empty": ""}.get(facts.default)
            if facts.default == "empty"
            else int(facts.default)
            if facts.default.isdigit()
            else facts.default
        )
    elif info.is_required():
        assert field_name in ("type", "url")


# defaults that the document does not state and the design does
OURS = {
    ("OrderRequest", "maxDriftBps"): 50,
    ("OrderRequest", "allowPartial"): False,
    ("OrderRequest", "requireProtection"): False,
    ("OrderRequest", "dryRun"): False,
    ("OrderRequest", "acknowledgeLeverageChange"): False,
    ("OrderRequest", "source"): None,
    ("SandboxAccountRequest", "startingBalanceUsd"): 10_000,
    ("KeyRequest", "name"): "key",
    ("KeyRequest", "scopes"): ("read",),
    ("CandlesQuery", "interval"): "1h",
    ("CandlesQuery", "limit"): 200,
    ("KillRequest", "flatten"): False,
}


@pytest.mark.parametrize(("cell", "value"), OURS.items())
def test_the_designs_own_defaults_are_the_models(cell, value):
    model = model_of(cell[0])
    assert model.model_fields[attribute(model, cell[1])].default == value


def test_an_unknown_field_is_named_with_the_nearest_known_one(model_name, shapes):
    shape, model = shapes[model_name], model_of(model_name)
    for known in shape.fields:
        wrong = known + "s"
        if wrong not in shape.fields:
            assert refused(model, {**shape.body, wrong: 1}, wrong) == f"{wrong} is unknown; did you mean {known}?"
    assert "is unknown" in refused(model, {**shape.body, "zzz": 1}, "zzz")


def test_the_wire_does_not_accept_python_names():
    assert "did you mean usdAmount?" in refused(
        bot.wire.OrderRequest, {"market": "BTC", "side": "long", "usd_amount": 5}, "usd_amount"
    )
    assert "did you mean stopLoss?" in refused_at(
        {"market": "BTC", "side": "long", "size": "1", "bracket": {"stop_loss": {"pct": 1}}}
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [("qty", "size"), ("Quantity", "size"), ("notional", "usdAmount"), ("symbol", "market"), ("coin", "market")],
)
def test_a_field_name_of_other_venues_is_answered_with_our_name(name, known):
    body = {"market": "BTC", "side": "long", "size": "1", name: 5}
    assert refused(bot.wire.OrderRequest, body, name) == f"{name} is unknown; did you mean {known}?"


def test_a_synonym_is_suggested_only_if_the_model_has_the_field():
    assert "did you mean" not in refused(bot.wire.CancelCoinRequest, {"coin": "BTC", "qty": 5}, "qty")


def refused_at(body: dict[str, object]) -> str:
    with pytest.raises(ValidationError) as caught:
        bot.wire.OrderRequest.from_wire(body)
    return message_of(fields_of(caught.value))


@pytest.mark.parametrize("body", [None, [], "x", 5, True])
def test_a_body_that_is_no_object_is_named_in_the_error(body, model_name):
    with pytest.raises(ValidationError) as caught:
        model_of(model_name).from_wire(body)
    assert fields_of(caught.value)[0]["field"] == "body"


@pytest.mark.parametrize(
    ("model", "body", "field", "good"),
    [
        ("KeyRequest", {"scopes": []}, "scopes", {"scopes": ["read"]}),
        (
            "KeyRequest",
            {"scopes": ["read", "trade", "trade:close_only", "outcomes", "read"]},
            "scopes",
            {"scopes": ["read", "trade", "trade:close_only", "outcomes"]},
        ),
        ("KeyRequest", {"scopes": ["read", "read"]}, "scopes", {"scopes": ["read", "trade"]}),
        ("KeyRequest", {"scopes": ["admin"]}, "scopes.0", {"scopes": ["outcomes"]}),
        ("KeyRequest", {"scopes": "read"}, "scopes", {}),
        ("KeyRequest", {"allowedCoins": ["x"] * 51}, "allowedCoins", {"allowedCoins": ["x"] * 50}),
        ("KeyRequest", {"allowedCoins": [""]}, "allowedCoins.0", {"allowedCoins": ["x"]}),
        ("KeyRequest", {"allowedCoins": ["BTC", "x" * 33]}, "allowedCoins.1", {"allowedCoins": ["BTC", "x" * 32]}),
        (
            "WebhookRequest",
            {"url": "https://h/x", "types": ["x"] * 21},
            "types",
            {"url": "https://h/x", "types": ["x"] * 20},
        ),
        (
            "WebhookRequest",
            {"url": "https://h/x", "types": ["x" * 65]},
            "types.0",
            {"url": "https://h/x", "types": ["x" * 64]},
        ),
        ("WebhookRequest", {"url": "not a uri"}, "url", {"url": "http://localhost:9/x"}),
        ("WebhookRequest", {"url": "ftp://h/x"}, "url", {"url": "https://[::1]/x"}),
        ("WebhookRequest", {"url": "https://h:99999/"}, "url", {"url": "https://h:9/"}),
        ("WebhookRequest", {}, "url", {"url": "https://h"}),
        ("CandlesQuery", {"limit": "5001"}, "limit", {"limit": "5000"}),
        ("CandlesQuery", {"limit": "1.0"}, "limit", {"limit": "1"}),
        ("TradesQuery", {"before": "-1"}, "before", {"before": "0", "coin": "BTC"}),
        ("TradesQuery", {"before": "１"}, "before", {}),
    ],
)
def test_arrays_and_what_the_table_does_not_hold(model, body, field, good):
    with pytest.raises(ValidationError) as caught:
        model_of(model).from_wire(body)
    assert fields_of(caught.value)[0]["field"] == field
    model_of(model).from_wire(good)


@pytest.mark.parametrize("value", [None, "", "none", "null"])
def test_a_cap_is_cleared_by_null_and_its_words(value):
    done = bot.wire.SettingsRequest.from_wire({"maxTradeUsd": value})
    assert done.max_trade_usd is None
    assert done.model_fields_set == {"max_trade_usd"}
    assert done.body() == b'{"maxTradeUsd":null}'


@pytest.mark.parametrize(
    ("value", "cap"),
    [
        (1, "1"),
        (Decimal("0.01"), "0.01"),
        (1_000_000_000, "1000000000"),
        ("250.50", "250.50"),
        ("1000000000", "1000000000"),
    ],
)
def test_a_cap_is_set_by_a_number_or_its_digits(value, cap):
    assert bot.wire.SettingsRequest.from_wire({"dailyTradeCapUsd": value}).daily_trade_cap_usd == Decimal(cap)


@pytest.mark.parametrize(
    "value", [0, -1, 1_000_000_001, "0", "-1", "1000000001", "1e3", "NaN", "None", " ", True, [], {}, float("inf")]
)
def test_any_other_cap_is_refused(value):
    refused(bot.wire.SettingsRequest, {"maxTradeUsd": value}, "maxTradeUsd")


def test_settings_without_a_field_are_refused():
    refused(bot.wire.SettingsRequest, {}, "maxTradeUsd")


def test_a_number_stays_exact_from_the_wire_to_the_wire():
    text = '{"market":"BTC","side":"long","usdAmount":50.123456789012345678}'
    import json

    done = bot.wire.OrderRequest.from_wire(json.loads(text, parse_float=Decimal))
    assert done.usd_amount == Decimal("50.123456789012345678")
    assert b'"usdAmount":50.123456789012345678' in done.body()
    assert bot.wire.OrderRequest.from_wire(json.loads(done.body(), parse_float=Decimal)) == done
    assert bot.wire.CloseRequest.from_wire({"fraction": 0.1}).fraction == Decimal("0.1")
