"""The error object, what a broken request says, and the headers with a form of their own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bot.wire import ErrorBody, ErrorEnvelope, KeyRequest, OrderRequest, fields_of, message_of
from bot.wire.errors import FIELDS_SHOWN_MAX
from bot.wire.headers import format_sandbox_clock, parse_expires_after, parse_idempotency_key, parse_sandbox_clock


def problems(body):
    with pytest.raises(ValidationError) as caught:
        OrderRequest.from_wire(body)
    return fields_of(caught.value)


def test_each_broken_field_is_listed_with_its_allowed_values():
    found = problems(
        {"side": "up", "usdAmount": 0, "leverage": 51, "dryRun": 1, "bracket": 5, "guardians": {}, "marke": "BTC"}
    )
    assert found == [
        {"field": "market", "problem": "is required", "allowed": None},
        {"field": "side", "problem": "must be one of long, short", "allowed": ["long", "short"]},
        {"field": "usdAmount", "problem": "must be > 0, <= 1000000", "allowed": "> 0, <= 1000000"},
        {"field": "leverage", "problem": "must be 1..50", "allowed": "1..50"},
        {"field": "bracket", "problem": "must be an object", "allowed": "an object"},
        {"field": "guardians", "problem": "must be an array", "allowed": "an array"},
        {"field": "dryRun", "problem": "must be true or false", "allowed": [True, False]},
        {
            "field": "marke",
            "problem": "is unknown; did you mean market?",
            "allowed": [info.alias for info in OrderRequest.model_fields.values()],
        },
    ]
    assert message_of(found) == (
        "marke is unknown; did you mean market?; market is required; side must be one of long, short (and 5 more)"
    )


@pytest.mark.parametrize(
    ("scopes", "told"),
    [(["x"], ["scopes.0"]), (["x", "y"], ["scopes.0", "scopes.1"]), ([], ["scopes"]), (["read"] * 5, ["scopes"])],
)
def test_an_array_is_too_short_only_where_it_has_too_few_entries(scopes, told):
    with pytest.raises(ValidationError) as caught:
        KeyRequest.from_wire({"scopes": scopes})
    assert [one["field"] for one in fields_of(caught.value)] == told


def test_a_message_shows_no_more_than_a_screen_and_nothing_unprintable():
    found = problems({f"x{number}": 1 for number in range(1000)})
    assert len(found) == FIELDS_SHOWN_MAX
    hostile = problems({"market": "BTC", "side": "long", "size": "1", "\n\x1b\u202e" + "y" * 1000: 1})[0]
    assert len(hostile["field"]) == 100
    assert hostile["field"].isprintable()
    hostile["field"].encode()


@pytest.mark.parametrize(
    "more",
    [
        {"\ud800": 1},
        {"side": "\ud800"},
        {"bracket": {"\ud800": 1}},
        {"guardians": [{"type": "\ud800"}]},
        {"market": "\ud800"},
    ],
)
def test_a_lone_surrogate_is_refused(more):
    message_of(problems({"market": "BTC", "side": "long", "size": "1", **more})).encode()


def test_the_path_goes_into_arrays_and_objects():
    body = {"market": "BTC", "side": "long", "size": "1", "guardians": [{"type": "trailing_stop", "trailPct": 51}]}
    assert problems(body)[0]["field"] == "guardians.0.trailPct"
    wrong = problems({"market": "BTC", "side": "long", "size": "1", "bracket": {"stopLos": {"pct": 1}}})[0]
    assert wrong["field"] == "bracket.stopLos"
    assert wrong["problem"] == "is unknown; did you mean stopLoss?"


def test_an_error_leaves_out_what_does_not_apply():
    body = ErrorEnvelope(error=ErrorBody(code="not_found", message="m", request_id="req_1", retryable=False))
    assert body.json_bytes() == b'{"error":{"code":"not_found","message":"m","requestId":"req_1","retryable":false}}'
    full = ErrorBody(
        code="x",
        message="m",
        request_id="r",
        details={"a": 1},
        retryable=True,
        order_submitted="unknown",
        docs_url="u",
        fix={"action": "wait"},
    )
    assert ErrorBody.model_validate_json(full.json_bytes()) == full


def test_an_error_object_in_another_form_keeps_only_its_valid_fields():
    read = ErrorBody.model_validate(
        {
            "code": "new_code",
            "message": "m",
            "requestId": "r",
            "details": [],
            "retryable": "yes",
            "orderSubmitted": "perhaps",
            "fix": 5,
            "docsUrl": 5,
            "x": 1,
        }
    )
    assert (read.code, read.details, read.retryable, read.order_submitted, read.fix, read.docs_url) == (
        "new_code",
        None,
        None,
        "unknown",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("text", "key"), [("abc", "abc"), ('"abc"', "abc"), (" a ", "a"), ('"', '"'), ("x" * 255, "x" * 255), ("~!", "~!")]
)
def test_an_idempotency_key_is_read_without_its_quotes(text, key):
    assert parse_idempotency_key(text) == key


@pytest.mark.parametrize("text", ["", '""', "a b", "x" * 256, "é", "a\n", "a\x7f"])
def test_any_other_idempotency_key_is_refused(text):
    with pytest.raises(ValueError, match="255"):
        parse_idempotency_key(text)


def test_an_expiry_is_digits():
    assert parse_expires_after("1748736000123") == 1_748_736_000_123
    for text in ("", "-1", "1.5", "soon", "１", "9" * 17):
        with pytest.raises(ValueError, match="milliseconds"):
            parse_expires_after(text)


@pytest.mark.parametrize(
    ("now", "speed", "text"),
    [(5, 60, "5; speed=60"), (5, 0, "5; speed=0"), (5, 1.5, "5; speed=1.5"), (5, 60.0, "5; speed=60")],
)
def test_the_sandboxs_clock_goes_there_and_back(now, speed, text):
    assert format_sandbox_clock(now, speed) == text
    assert parse_sandbox_clock(text) == (now, speed)


@pytest.mark.parametrize(
    "text", ["", "5", "5; speed=", "x; speed=1", "5; speed=-1", "5; speed=nan", "-5; speed=1", "５; speed=1"]
)
def test_a_clock_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="X-Sandbox-Clock"):
        parse_sandbox_clock(text)
