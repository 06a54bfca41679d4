"""The meaning of an answer for an intent: every code, every doubt, every time."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from bot.errors import CODES, ApiError
from bot.runtime.execution.outcome import STORED, Accept, Again, End, Fences, Look, Stop, settle_move

FENCE = 100_000
EARLY, LATE = 50_000, FENCE + 5_001
EDGE = {"unauthorized", "session_expired"}


def error(code: str, submitted: Any, retryable: bool | None = None, **named: Any) -> ApiError:
    return ApiError.of(code, "said", request_id="req_1", order_submitted=submitted, retryable=retryable, **named)


def move(problem: ApiError, *, ambiguous: bool = False, now_ms: int = EARLY, keys_proven: bool = False) -> Any:
    return settle_move(
        problem, ambiguous_before=ambiguous, now_ms=now_ms, fences=Fences(FENCE, keys_proven=keys_proven)
    )


CELLS = list(
    product(
        [*CODES, "a_code_of_tomorrow"],
        [True, False, "unknown", None],
        [True, False, None],
        [False, True],
        [EARLY, LATE],
    )
)


@pytest.mark.parametrize(("code", "submitted", "retryable", "ambiguous", "now_ms"), CELLS)
def test_every_answer_has_a_next_step_and_no_doubt_becomes_a_refusal(
    code: str, submitted: Any, retryable: bool | None, ambiguous: bool, now_ms: int
) -> None:
    got = move(error(code, submitted, retryable), ambiguous=ambiguous, now_ms=now_ms)
    if code in EDGE:
        assert isinstance(got, Stop)
        return
    if submitted is True:
        assert got == Look(absent=None), "the order exists, so only a search can settle it"
    elif submitted == "unknown":
        assert isinstance(got, Look if now_ms == LATE else Again)
        assert got.doubt
    elif isinstance(got, End):
        assert not ambiguous, "after a doubtful attempt only a search can end it"
        if submitted is None and code != "idempotency_conflict":
            assert CODES[code].before_execution
    elif isinstance(got, Look):
        assert now_ms == LATE
        assert isinstance(got.absent, End)
    if ambiguous and now_ms == EARLY:
        assert isinstance(got, Again) or got == Look(absent=None)


@pytest.mark.parametrize("code", sorted(STORED))
def test_a_stored_refusal_settles_a_doubt_if_the_service_keeps_keys(code: str) -> None:
    no = error(code, False, False)
    assert isinstance(move(no, ambiguous=True, keys_proven=False), Again)
    assert move(no, ambiguous=True, keys_proven=True) == End("rejected", code, "said")


def test_a_used_token_with_a_trade_means_that_the_order_was_accepted() -> None:
    used = error("idempotency_conflict", True, False, details={"reason": "used_token", "tradeId": "trd_7"})
    assert move(used, ambiguous=True) == Accept("trd_7")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("account_reset", End("void", "idempotency_conflict", "said")),
        ("expired", End("expired", "idempotency_conflict", "said")),
        ("fingerprint", Look(absent="quarantined")),
        ("used_token", Look(absent=None)),
        ("in_flight", Again(doubt=True)),
        ("of_tomorrow", Again(doubt=True)),
    ],
)
def test_each_conflict_has_its_own_next_step(reason: str, expected: object) -> None:
    got = move(error("idempotency_conflict", None, None, details={"reason": reason}), ambiguous=True)
    assert got == expected


def test_a_copy_still_executing_after_its_fence_is_searched_for_and_not_ended() -> None:
    running = error("idempotency_conflict", False, True, details={"reason": "in_flight"})
    assert move(running, ambiguous=True, now_ms=LATE) == Look(absent=None)


def test_a_conflict_with_expired_and_submitted_is_searched_for() -> None:
    torn = error("idempotency_conflict", True, None, details={"reason": "expired"})
    assert move(torn, ambiguous=True) == Look(absent=None)


def test_a_stale_plan_decides_nothing_before_its_fence_and_causes_a_search_after_it() -> None:
    stale = error("plan_stale", False, False)
    assert move(stale, ambiguous=True) == Again(doubt=False)
    assert move(stale, ambiguous=True, now_ms=FENCE + 5_000) == Again(doubt=False), "not settled at the fence itself"
    assert move(stale, ambiguous=True, now_ms=LATE) == Look(absent=End("expired", "plan_stale", "said"), doubt=False)
    assert move(stale, ambiguous=False) == End("rejected", "plan_stale", "said")


def test_a_temporary_limit_is_waited_for() -> None:
    busy = error("rate_limited", False, True, after_ms=700)
    assert move(busy) == Again(doubt=False, after_ms=700)
    assert move(busy, now_ms=LATE) == End("expired", "rate_limited", "said")


def test_a_stale_plan_settles_a_doubt_if_the_service_keeps_keys() -> None:
    """Any later copy gets the same answer; if the first copy had been accepted, its answer would have been repeated."""
    stale = error("plan_stale", False, False)
    assert move(stale, ambiguous=True, keys_proven=True) == End("rejected", "plan_stale", "said")
