"""The verdict on an outcome: every code, every flag, every transport fault, and the rule after doubt.

Walked through the real client.
"""

from __future__ import annotations

import json
from itertools import product

import httpx
import pytest

from bot.client import Client, Verdict, classify, verdict_of
from bot.client.faults import BEFORE_EXECUTION, MOVES, NOT_SENT_FAULTS, FailureKind, Observation
from bot.client.http import FAULT_OF, fault_of
from bot.errors import CODES, AccessLost, ApiError, OutcomeUnknown, Refused, TryLater
from bot.wire import OrderRequest

SUBMITTED = (True, False, "unknown", None)
RETRYABLE = (True, False, None)
LETTERS = {
    "E": Verdict.EXISTS,
    "U": Verdict.UNKNOWN,
    "R": Verdict.RETRY,
    "N": Verdict.REFUSED,
    "A": Verdict.ACCESS_LOST,
}
# A word for each orderSubmitted (true, false, unknown, absent), a letter in it for each retryable (true, false,
# absent). refused before execution
PLAIN = "EEE RNN UUU RNN"
LATER = "EEE RNR UUU RRR"
ACCESS = "EEE RAA UUU RAA"
# the code alone does not say whether anything was executed
OPEN = "EEE RNR UUU UUU"
EXPECTED = {
    "invalid_input": PLAIN,
    "unauthorized": ACCESS,
    "forbidden": PLAIN,
    "not_found": PLAIN,
    "rate_limited": LATER,
    "insufficient_funds": PLAIN,
    "limit_exceeded": PLAIN,
    "service_unavailable": OPEN,
    "trade_failed": OPEN,
    "internal_error": OPEN,
    "session_expired": ACCESS,
    "insufficient_depth": OPEN,
    "below_min_notional": PLAIN,
    "leverage_too_high": PLAIN,
    "market_closed": PLAIN,
    "plan_stale": OPEN,
    "key_limit_exceeded": PLAIN,
    "idempotency_conflict": OPEN,
}
CELLS = [
    (code, submitted, retryable, LETTERS[letter])
    for code, row in EXPECTED.items()
    for (submitted, retryable), letter in zip(product(SUBMITTED, RETRYABLE), row.replace(" ", ""), strict=True)
]
ORDER = OrderRequest(market="BTC", side="long", size="1", require_protection=True)
AMBIGUOUS = {Verdict.UNKNOWN, Verdict.EXISTS, Verdict.FINGERPRINT, Verdict.USED_TOKEN, Verdict.UNPROVEN}


def body_of(code: str, submitted: object, retryable: object, details: object = None) -> bytes:
    error = {"code": code, "message": "m", "requestId": "req_1"}
    flags = {"orderSubmitted": submitted, "retryable": retryable, "details": details}
    return json.dumps(
        {"error": {**error, **{name: value for name, value in flags.items() if value is not None}}}
    ).encode()


async def placed(status: int, body: bytes, headers: dict[str, str] | None = None) -> ApiError:
    """What the client raises for an order that is answered so."""
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body, headers=headers))
    async with Client("http://localhost", "bbk_test", transport=transport) as client:
        with pytest.raises(ApiError) as caught:
            await client.place(ORDER, key="k1")
    return caught.value


def test_the_table_has_a_row_for_every_code_of_the_interface():
    assert set(EXPECTED) == set(CODES)
    assert len(CELLS) == 18 * 4 * 3


@pytest.mark.parametrize("code", EXPECTED)
async def test_every_code_with_every_flag_has_its_verdict_and_its_exception(code):
    for name, submitted, retryable, verdict in CELLS:
        if name != code:
            continue
        error = await placed(CODES[code].status, body_of(code, submitted, retryable))
        assert verdict_of(error) is verdict, (submitted, retryable)
        assert type(error) is MOVES[verdict]
        assert error.code == code
        assert error.order_submitted == submitted


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>Bad Gateway</html>", b'{"error":"no object"}', b'{"error":{"code":"not_found","message":"m"}}'],
)
async def test_an_answer_without_an_error_object_is_unknown_whatever_its_status(status, body):
    error = await placed(status, body)
    assert type(error) is OutcomeUnknown
    assert verdict_of(error) is Verdict.UNKNOWN
    assert error.order_submitted == "unknown"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b"[]", b'{"trade":null}', b"<html></html>", b'{"leverage":"n/a"}', b'{"leverage":""}']
)
async def test_a_success_that_cannot_be_read_is_unknown(body):
    error = await placed(200, body)
    assert type(error) is OutcomeUnknown
    assert verdict_of(error) is Verdict.UNKNOWN


@pytest.mark.parametrize("read", ["account", "trades", "orders", "guardians", "events"])
@pytest.mark.parametrize("body", [b"{}", b'{"items":[],"cursor":"abc"}'])
async def test_a_missing_list_is_not_read_as_an_empty_list(read: str, body: bytes):
    """Absence is a proof, of an order for one: an answer that has no list at all is none."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    async with Client("http://localhost", "bbk_test", transport=transport) as client:
        with pytest.raises(ApiError):
            await (client.events(None) if read == "events" else getattr(client, read)())


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
async def test_a_read_is_retried_after_an_unknown_code_with_a_passing_status(status: int):
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body_of("of_tomorrow", None, None)))
    async with Client("http://localhost", "bbk_test", transport=transport) as client:
        with pytest.raises(TryLater):
            await client.account()
        with pytest.raises(ApiError) as caught:
            await client.place(ORDER, key="k1")
    assert isinstance(caught.value, OutcomeUnknown)


@pytest.mark.parametrize("word", ["maybe", 1, "true", {}])
async def test_an_undefined_value_of_order_submitted_is_unknown(word):
    assert verdict_of(await placed(422, body_of("insufficient_funds", word, False))) is Verdict.UNKNOWN


@pytest.mark.parametrize("submitted", SUBMITTED)
@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("in_flight", Verdict.IN_FLIGHT),
        ("fingerprint", Verdict.FINGERPRINT),
        ("used_token", Verdict.USED_TOKEN),
        ("account_reset", Verdict.FENCED_VOID),
        ("expired", Verdict.FENCED_EXPIRED),
    ],
)
async def test_a_conflict_of_keys_is_classified_by_its_reason(reason, verdict, submitted):
    error = await placed(409, body_of("idempotency_conflict", submitted, None, {"reason": reason, "tradeId": "trd_1"}))
    if reason == "expired" and submitted is True:
        # It contradicts itself: then the order is looked for.
        verdict = Verdict.EXISTS
    assert verdict_of(error) is verdict
    assert type(error) is MOVES[verdict]
    assert error.details is not None
    assert error.details["tradeId"] == "trd_1"


def test_a_reason_that_is_not_known_leaves_the_conflict_open():
    seen = Observation(status=409, code="idempotency_conflict", reason="something")
    assert classify(seen) is Verdict.UNKNOWN


@pytest.mark.parametrize("fault", list(FailureKind))
def test_only_a_connection_never_made_proves_that_nothing_was_sent(fault):
    expected = {FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT, FailureKind.POOL_TIMEOUT}
    assert expected == NOT_SENT_FAULTS
    assert classify(Observation(fault=fault)) is (Verdict.NOT_SENT if fault in expected else Verdict.UNKNOWN)


def leaves(kind: type) -> set[type]:
    below = kind.__subclasses__()
    return {kind} if not below else set().union(*(leaves(one) for one in below))


def test_every_transport_exception_of_httpx_has_a_fault():
    named = {kind for kind in leaves(httpx.TransportError) if kind.__module__.startswith("httpx")}
    assert named <= set(FAULT_OF)
    assert len(named) >= 12
    assert fault_of(OSError()) is FailureKind.OTHER
    assert fault_of(httpx.NetworkError("")) is FailureKind.OTHER


@pytest.mark.parametrize("kind", [kind for kind in FAULT_OF if issubclass(kind, httpx.RequestError)])
async def test_a_transport_exception_becomes_the_exception_for_its_move(kind):
    def fail(request: httpx.Request) -> httpx.Response:
        raise kind("broken")

    async with Client("http://localhost", "k", transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(ApiError) as caught:
            await client.place(ORDER, key="k1")
        not_sent = FAULT_OF[kind] in NOT_SENT_FAULTS
        assert type(caught.value) is (TryLater if not_sent else OutcomeUnknown)
        assert caught.value.order_submitted == (False if not_sent else "unknown")
        assert verdict_of(caught.value) is (Verdict.NOT_SENT if not_sent else Verdict.UNKNOWN)
        # A read can change nothing, so no outcome of it is in doubt.
        with pytest.raises(TryLater):
            await client.account()


@pytest.mark.parametrize("code", sorted(EXPECTED))
def test_after_an_ambiguous_attempt_a_refusal_is_final_only_if_stored_with_the_key_or_after_the_expiry(code):
    refusal = Observation(status=CODES[code].status, code=code, order_submitted=False, retryable=False)
    kept = code in {
        "insufficient_funds",
        "limit_exceeded",
        "below_min_notional",
        "leverage_too_high",
        "market_closed",
        "plan_stale",
        "trade_failed",
    }
    alone = classify(refusal)
    if alone is Verdict.ACCESS_LOST:
        # It ends nothing.
        assert classify(refusal, after_ambiguous=True) is Verdict.ACCESS_LOST
        return
    assert alone is Verdict.REFUSED
    assert classify(refusal, after_ambiguous=True) is (Verdict.REFUSED if kept else Verdict.UNPROVEN)
    assert classify(refusal, after_ambiguous=True, stores_refusals=False) is Verdict.UNPROVEN
    assert classify(refusal, after_ambiguous=True, stores_refusals=False, fenced=True) is Verdict.REFUSED


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_refusal_of_the_gateway_is_never_treated_as_stored(status):
    refusal = Observation(status=status, code="insufficient_funds", order_submitted=False, retryable=False)
    assert classify(refusal, after_ambiguous=True) is Verdict.UNPROVEN


def test_an_earlier_doubt_never_turns_an_open_verdict_into_a_final_one():
    final = {Verdict.REFUSED, Verdict.DONE, Verdict.FENCED_VOID, Verdict.FENCED_EXPIRED}
    for code, submitted, retryable, verdict in CELLS:
        seen = Observation(status=CODES[code].status, code=code, order_submitted=submitted, retryable=retryable)
        after = classify(seen, after_ambiguous=True)
        assert verdict in final or after is verdict


def test_an_ambiguous_verdict_is_never_a_refusal():
    assert all(MOVES[verdict] is OutcomeUnknown for verdict in AMBIGUOUS)
    assert {MOVES[v] for v in (Verdict.RETRY, Verdict.NOT_SENT, Verdict.IN_FLIGHT)} == {TryLater}
    assert set(MOVES) == set(Verdict) - {Verdict.DONE}


def test_the_codes_refused_before_execution_are_those_of_the_design():
    assert {
        "invalid_input",
        "unauthorized",
        "session_expired",
        "forbidden",
        "not_found",
        "rate_limited",
        "insufficient_funds",
        "limit_exceeded",
        "below_min_notional",
        "leverage_too_high",
        "market_closed",
        "key_limit_exceeded",
    } == BEFORE_EXECUTION


@pytest.mark.parametrize("status", [200, 201, 204])
def test_a_success_whose_body_reads_is_done(status):
    assert classify(Observation(status=status, body_valid=True)) is Verdict.DONE


def test_an_empty_observation_is_unknown():
    assert classify(Observation()) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Refused("insufficient_funds", "m", order_submitted=False), Verdict.REFUSED),
        (OutcomeUnknown("internal_error", "m", order_submitted="unknown"), Verdict.UNKNOWN),
        (TryLater("rate_limited", "m", retryable=True), Verdict.RETRY),
        (AccessLost("unauthorized", "m"), Verdict.ACCESS_LOST),
        (OutcomeUnknown("read_timeout", "m"), Verdict.UNKNOWN),
        (TryLater("connect_error", "m"), Verdict.NOT_SENT),
    ],
)
def test_an_error_that_the_client_did_not_raise_is_classified_by_its_fields(error, verdict):
    assert verdict_of(error) is verdict
