"""Each fault is raised as the next move, and the 18 codes of the interface all have one."""

import re

import pytest

from bot import errors
from bot.errors import (
    CODES,
    AccessLost,
    ApiError,
    BotError,
    ConfigError,
    Exit,
    JournalError,
    OutcomeUnknown,
    Problem,
    Refusal,
    Refused,
    StrategyError,
    TryLater,
)

# Copied from the interface document: code, status and retryable as decisions.md has them.
INTERFACE = {
    "invalid_input": (400, False),
    "unauthorized": (401, False),
    "forbidden": (403, False),
    "not_found": (404, False),
    "rate_limited": (429, True),
    "insufficient_funds": (422, False),
    "limit_exceeded": (422, False),
    "service_unavailable": (503, True),
    "trade_failed": (422, False),
    "internal_error": (500, True),
    "session_expired": (401, False),
    "insufficient_depth": (409, True),
    "below_min_notional": (422, False),
    "leverage_too_high": (422, False),
    "market_closed": (409, False),
    "plan_stale": (409, False),
    "key_limit_exceeded": (403, False),
    "idempotency_conflict": (409, False),
}


def test_every_code_of_the_interface_has_a_row_and_no_other_does() -> None:
    assert {code: (row.status, row.retryable) for code, row in CODES.items()} == INTERFACE
    assert len(CODES) == 18


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_error_that_says_not_submitted_is_never_in_doubt(code: str) -> None:
    error = ApiError.of(code, "no", order_submitted=False)
    expected = AccessLost if CODES[code].move is AccessLost else TryLater if CODES[code].retryable else Refused
    assert type(error) is expected
    assert error.retryable is CODES[code].retryable
    assert error.status == CODES[code].status


@pytest.mark.parametrize("code", sorted(set(CODES) - {"unauthorized", "session_expired"}))
@pytest.mark.parametrize("submitted", [True, "unknown"])
def test_an_order_that_exists_or_may_exist_is_left_open(code: str, submitted: bool | str) -> None:
    assert type(ApiError.of(code, "?", order_submitted=submitted)) is OutcomeUnknown  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "code",
    [
        "trade_failed",
        "internal_error",
        "service_unavailable",
        "insufficient_depth",
        "plan_stale",
        "idempotency_conflict",
    ],
)
def test_a_code_that_can_follow_execution_is_in_doubt_when_nothing_is_said(code: str) -> None:
    assert type(ApiError.of(code, "?")) is OutcomeUnknown
    assert type(ApiError.of(code, "?", reads=True)) in (Refused, TryLater)


@pytest.mark.parametrize("status", [None, 400, 500, 502])
def test_an_unknown_code_is_in_doubt(status: int | None) -> None:
    error = ApiError.of("from_the_future", "?", status=status)
    assert type(error) is OutcomeUnknown
    assert error.status == status


def test_what_the_answer_says_beats_what_the_code_means() -> None:
    assert type(ApiError.of("idempotency_conflict", "in flight", order_submitted=False, retryable=True)) is TryLater
    assert type(ApiError.of("forbidden", "pending", retryable=True, reads=True)) is TryLater
    assert ApiError.of("trade_failed", "venue", status=502, order_submitted="unknown").status == 502


def test_a_lost_credential_stops_whatever_else_is_said() -> None:
    assert type(ApiError.of("unauthorized", "?", retryable=True)) is AccessLost
    assert type(ApiError.of("session_expired", "?", order_submitted=False)) is AccessLost


def test_later_has_a_time() -> None:
    later = ApiError.of(
        "rate_limited", "slow down", after_ms=2_500, request_id="req_1", details={"a": 1}, fix={"action": "wait"}
    )
    assert isinstance(later, TryLater)
    assert (later.after_ms, later.request_id, later.details, later.fix) == (
        2_500,
        "req_1",
        {"a": 1},
        {"action": "wait"},
    )
    unsaid = ApiError.of("rate_limited", "slow down")
    assert isinstance(unsaid, TryLater)
    assert unsaid.after_ms == 1_000


def test_each_fault_has_the_exit_code_of_the_product_page() -> None:
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 4, 5, 6, 7, 130]
    faults: list[tuple[type[BotError], int]] = [
        (ConfigError, 4),
        (StrategyError, 1),
        (JournalError, 6),
        (AccessLost, 7),
        (Refused, 7),
        (TryLater, 5),
        (OutcomeUnknown, 5),
    ]
    assert all(fault.exit_code == code for fault, code in faults)


def test_a_refusal_is_a_value_that_compares() -> None:
    assert Refusal("not_found", "no position") == Refusal("not_found", "no position", fix=None, details=None)
    assert not isinstance(Refusal("not_found", "no position"), BaseException)


def test_a_problem_reads_as_editors_expect_it() -> None:
    assert (
        str(Problem("a.yaml", 3, 7, "account.base_url", "is required")) == "a.yaml:3:7: account.base_url: is required"
    )
    assert str(Problem("a.yaml", 1, 1, "", "empty", "    x\n    ^")) == "a.yaml:1:1: empty\n    x\n    ^"


def test_the_tree_of_the_docstring_is_that_of_the_classes() -> None:
    def tree(kind: type[errors.BotError], depth: int) -> list[tuple[int, str]]:
        own = [one for one in vars(errors).values() if isinstance(one, type) and one.__base__ is kind]
        return [(depth, kind.__name__), *(row for one in own for row in tree(one, depth + 1))]

    rows = re.findall(r"^ {4}( *)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    assert [(len(indent) // 2, name) for indent, name in rows] == tree(errors.BotError, 0)
