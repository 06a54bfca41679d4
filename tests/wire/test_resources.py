"""Bodies there and back: written as the design says, read tolerantly, secrets shown to no log."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import typing
from decimal import Decimal

import pytest
from pydantic import ValidationError

import bot.wire
from bot.wire import Event, EventsPage, Position, Resource, TradeResource
from bot.wire.events import DATA_OF

FILL = {
    "tradeId": "trd_1",
    "oid": "17",
    "kind": "market",
    "side": "long",
    "intent": "open",
    "reduceOnly": False,
    "size": "0.5",
    "px": "100.25",
    "feeUsd": "0.02",
    "realizedPnlUsd": None,
    "liquidity": "taker",
    "remainingSize": "0",
    "positionSize": "0.5",
    "entryPx": "100.25",
    "balanceUsd": "9999.98",
    "absorbedUsd": "0",
}


def every_resource() -> list[type[Resource]]:
    found = [getattr(bot.wire, name) for name in dir(bot.wire)]
    return [
        one
        for one in found
        if isinstance(one, type) and issubclass(one, Resource) and one is not Resource and one is not Event
    ]


def sample(annotation: object) -> object:
    """A value of the wire for a type."""
    if annotation is Decimal:
        return "12.5"
    if annotation is str:
        return "word"
    if annotation is bool:
        return True
    if annotation is int:
        return 7
    if annotation is float:
        return 2.5
    if isinstance(annotation, type) and issubclass(annotation, Resource):
        return full(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return sample(next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        return [sample(args[0])]
    if origin is dict:
        return {"a": "x" if args[1] is str else 1}
    if origin is typing.Literal:
        return args[0]
    if origin is typing.Annotated:
        return sample(args[0])
    raise AssertionError(annotation)


def full(model: type[Resource]) -> dict[str, object]:
    if model is Event:
        return {"id": "evt_1", "type": "fill", "subtype": "entry", "ts": 1, "coin": "BTC", "data": FILL}
    return {info.alias or name: sample(info.annotation) for name, info in model.model_fields.items()}


@pytest.mark.parametrize("model", every_resource(), ids=lambda model: model.__name__)
def test_a_body_comes_back_as_it_was_written(model):
    body = full(model)
    assert json.loads(model.model_validate_json(json.dumps(body)).json_bytes()) == body


@pytest.mark.parametrize("model", every_resource(), ids=lambda model: model.__name__)
def test_unknown_fields_are_ignored_and_absent_nullable_fields_are_none(model):
    body = full(model)
    required = {info.alias or name for name, info in model.model_fields.items() if info.is_required()}
    least = model.model_validate({**{name: body[name] for name in required}, "fromTheFuture": {"x": 1}})
    for name, info in model.model_fields.items():
        if not info.is_required():
            assert getattr(least, name) == info.get_default()


def test_a_body_is_built_by_attribute_and_frozen():
    position = Position(
        coin="BTC", side="sideways", size=Decimal("1E+2"), leverage=3, book="main", entry_px=Decimal("0E-8")
    )
    written = json.loads(position.json_bytes())
    assert (written["size"], written["entryPx"], written["leverage"]) == ("100", "0", 3)
    assert written["markPx"] is None, "a nullable field is always there"
    with pytest.raises(ValidationError):
        position.coin = "ETH"  # type: ignore[misc]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "abc", ""])
def test_a_text_that_is_no_amount_is_refused(text):
    with pytest.raises(ValidationError):
        Position.model_validate({"coin": "BTC", "side": "long", "size": text, "leverage": 1, "book": "main"})


def test_an_amount_keeps_every_digit():
    text = "12345678901234567890123456789.12345678"
    trade = TradeResource.model_validate(
        {
            "id": "t",
            "kind": "k",
            "symbol": "s",
            "side": "long",
            "intent": "open",
            "reduceOnly": False,
            "size": text,
            "status": "done",
        }
    )
    assert json.loads(trade.json_bytes())["size"] == text


@pytest.mark.parametrize("kind", sorted(DATA_OF))
def test_an_event_has_the_data_of_its_type(kind):
    model = DATA_OF[kind]
    type_, _, subtype = kind.partition("/")
    body = {"id": "evt_1", "type": type_, "subtype": subtype or "any", "ts": 1, "data": full(model)}
    event = Event.model_validate_json(json.dumps(body))
    assert type(event.data) is model
    assert json.loads(event.json_bytes()) == body, (
        "coin, requestId and idempotencyKey are absent when they do not apply"
    )
    assert Event(id="evt_1", type=type_, subtype=subtype or "any", ts=1, data=event.data) == event


@pytest.mark.parametrize(("type_", "subtype"), [("rebate", "paid"), ("account", "renamed")])
def test_an_event_of_an_unknown_type_keeps_its_mapping(type_, subtype):
    event = Event.model_validate({"id": "evt_1", "type": type_, "subtype": subtype, "ts": 1, "data": {"amount": "1"}})
    assert event.data == {"amount": "1"}
    with pytest.raises(ValidationError):
        Event.model_validate({"id": "evt_1", "type": type_, "subtype": subtype, "ts": 1, "data": "text"})


def test_a_fill_that_lacks_a_field_is_refused():
    with pytest.raises(ValidationError):
        EventsPage.model_validate(
            {"events": [{"id": "e", "type": "fill", "subtype": "entry", "ts": 1, "data": {"px": "1"}}]}
        )


def test_the_filters_of_the_feed_are_the_types_of_the_data():
    assert {kind.split("/")[0] for kind in DATA_OF} == set(bot.wire.EVENT_SUBTYPES)
    assert {kind.split("/")[1] for kind in DATA_OF if "/" in kind} == set(bot.wire.EVENT_SUBTYPES["account"])


SECRETS = {
    "SandboxAccountResult": "apiKey",
    "KeyCreated": "apiKey",
    "WebhookCreated": "secret",
    "VerifyResult": "accessToken",
    "DeviceResult": "deviceCode",
    "DeviceTokenResult": "accessToken",
    "PlanResult": "confirmToken",
    "MintKeyResult": "apiKey",
    "OtpResult": "sandboxCode",
}


@pytest.mark.parametrize(("name", "field"), SECRETS.items())
def test_a_secret_is_in_the_body_and_in_no_repr(name, field):
    model = getattr(bot.wire, name)
    body = {**full(model), field: "canary-in-the-mine"}
    read = model.model_validate(body)
    assert "canary-in-the-mine" not in repr(read) + str(read)
    assert b"canary-in-the-mine" in read.json_bytes()


def test_a_secret_in_a_request_is_in_no_repr_and_no_error():
    made = [
        bot.wire.WebhookRequest(url="https://h/x", secret="canary-in-the-mine"),
        bot.wire.ConfirmRequest(confirm_token="canary-in-the-mine"),
        bot.wire.DeviceTokenRequest(device_code="canary-in-the-mine"),
    ]
    assert "canary" not in repr(made) + "".join(str(one) for one in made)
    with pytest.raises(ValidationError) as caught:
        bot.wire.WebhookRequest.from_wire({"url": 5, "secret": "canary-in-the-mine"})
    assert "canary" not in str(caught.value)


def test_every_exported_name_can_be_imported_and_a_wrong_one_cannot():
    assert all(getattr(bot.wire, name) is not None for name in dir(bot.wire))
    with pytest.raises(AttributeError):
        _ = bot.wire.Orders


def test_importing_the_package_loads_no_models():
    code = (
        "import bot.wire, sys; assert 'pydantic' not in sys.modules; bot.wire.Position; assert 'bot.wire.account' not"
        " in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
