"""The receiver's side: what the library signs is genuine, every change and every malformed header is not, and
nothing raises.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from standardwebhooks.webhooks import Webhook as Library

from bot.client.webhooks import SeenIds, verify

NOW_S = 1_780_000_000
BODY = b'{"id":"evt_1"}'


def signed(key: bytes, *, at_s: int = NOW_S, body: bytes = BODY) -> dict[str, str]:
    signature = Library(key).sign("evt_1", datetime.fromtimestamp(at_s, UTC), body.decode())
    return {"Webhook-Id": "evt_1", "Webhook-Timestamp": str(at_s), "Webhook-Signature": signature}


def check(headers: dict[str, str], secret: Any = "plain text", body: bytes = BODY) -> bool:
    return verify(body, headers, secret, now_ms=NOW_S * 1000)


@pytest.mark.parametrize("key", [b"plain text", "пароль и ещё".encode(), b"\x00" * 24])
def test_a_signature_of_the_standard_library_is_valid_in_every_form_of_the_secret(key: bytes) -> None:
    assert check(signed(key), key)
    assert check(signed(key), "whsec_" + base64.b64encode(key).decode())
    assert not check(signed(key), b"another key")


def test_plain_text_is_its_own_bytes_and_not_base64() -> None:
    assert check(signed(b"12345678"), "12345678")
    assert not check(signed(base64.b64decode("12345678")), "12345678")


def test_five_minutes_are_allowed_either_way() -> None:
    for shift, genuine in ((-301, False), (-300, True), (300, True), (301, False)):
        assert check(signed(b"plain text", at_s=NOW_S + shift)) is genuine


def test_in_a_rotation_either_side_may_have_two_keys() -> None:
    old, new = signed(b"old secret"), signed(b"new secret")
    both = old | {"Webhook-Signature": f"v1,AAAA {old['Webhook-Signature']} {new['Webhook-Signature']}"}
    assert check(both, "new secret") and check(both, "old secret")
    assert check(old, ["new secret", b"old secret"])
    assert not check(old, [])


@pytest.mark.parametrize("secret", ["", b"", ["plain text", ""], "1234567", b"1234567"])
def test_a_secret_that_is_too_short_is_refused(secret: Any) -> None:
    """As of a variable that is not set."""
    with pytest.raises(ValueError, match="at least 8 bytes"):
        check(signed(b"plain text"), secret)


@pytest.mark.parametrize(
    "change",
    [
        {"Webhook-Id": "evt_2"},
        {"Webhook-Id": ""},
        {"Webhook-Timestamp": "nan"},
        {"Webhook-Timestamp": f"{NOW_S}.9"},
        {"Webhook-Timestamp": "inf"},
        {"Webhook-Timestamp": ""},
        {"Webhook-Timestamp": "-1"},
        {"Webhook-Timestamp": "9" * 400},
        {"Webhook-Timestamp": "\u0661\u0662"},
        {"Webhook-Signature": ""},
        {"Webhook-Signature": "v1"},
        {"Webhook-Signature": "v1,@@@"},
        {"Webhook-Signature": "v1,a,b"},
        {"Webhook-Signature": "v2,AAAA"},
        {"Webhook-Signature": "\ud800"},
        {"Webhook-Id": "\ud800"},
        {"Webhook-Signature": "v1,AAAA " * 1000},
    ],
)
def test_a_malformed_header_gives_false_and_no_error(change: dict[str, str]) -> None:
    assert check(signed(b"plain text") | change) is False


def test_a_missing_header_gives_false() -> None:
    for name in signed(b"plain text"):
        assert not check({key: value for key, value in signed(b"plain text").items() if key != name})


@given(
    some.binary(max_size=60),
    some.dictionaries(some.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), some.text()),
)
def test_no_delivery_makes_verify_raise(body: bytes, headers: dict[str, str]) -> None:
    assert check(headers, body=body) is False
    assert check(signed(b"plain text"), body=body) is (body == BODY)


def test_an_id_is_new_until_it_was_added_and_the_oldest_is_forgotten() -> None:
    seen = SeenIds(2)
    assert seen.is_new("a") and seen.is_new("a")
    for name in ("a", "b", "a", "c"):
        seen.add(name)
    assert [seen.is_new(name) for name in ("a", "b", "c")] == [False, True, False]
