"""No order of events makes one wish act twice, or lets the client be told something that is not so."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any, get_args

import pytest

from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange.action_lifecycle import ActionStatus, Seen, Step, TrackedAction
from tests.venue.action_search import SHORT_GRID_MS, Search

EXPIRES_MS = life.EXPIRY_MS
OVER_MS = EXPIRES_MS + life.PATIENCE_MS + 1
# The first is the one of the suite; the others take minutes.
SEARCHES: tuple[dict[str, Any], ...] = (
    {"grid_ms": SHORT_GRID_MS, "copies": 1},
    {"grid_ms": SHORT_GRID_MS, "copies": 1, "forgets": True},
    {"copies": 1},
    {"copies": 2},
    {"copies": 2, "forgets": True},
)


@pytest.mark.soak(worlds=1, full=len(SEARCHES))
def test_every_order_of_events_keeps_the_promises(worlds: int) -> None:
    for arguments in SEARCHES[:worlds]:
        search = Search(**arguments).run()
        assert search.faults == {}, arguments
        assert search.states > 10_000 and min(search.ends[status] for status in life.ENDED) > 100, search.ends


@pytest.mark.parametrize(
    ("name", "seeded", "forgets", "fault"),
    [
        ("PATIENCE_MS", 0, False, "ended without an order, and there is one"),
        ("may_ask_anew", lambda action: action.copies > 0, False, "two actions for one wish can both act"),
        ("may_be_told", lambda action: action.status in life.ENDED, True, "told that there is no order"),
        ("given_up", lambda action: replace(action, status="void"), False, "ended without an order, and there is one"),
        ("after_restart", lambda action: action, False, ""),
    ],
    ids=["no patience", "signed anew under a new nonce", "told at the fence's ok", "no fence", "no bug"],
)
def test_a_seeded_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, seeded: Any, forgets: bool, fault: str
) -> None:
    monkeypatch.setattr(life, name, seeded)
    search = Search(grid_ms=SHORT_GRID_MS, copies=1, forgets=forgets).run(ends_at_a_fault=True)
    assert any(text.startswith(fault) for text in search.faults) if fault else search.faults == {}


def action(status: ActionStatus = "open", **more: Any) -> TrackedAction:
    return TrackedAction(1, more.pop("is_entry", True), 0, EXPIRES_MS, status, **more)


# One copy of the action was sent, and it has not expired. Row: what the service sees. Column: the status before. Cell:
# the status after; "-" means that it does not change.
MEANINGS = """
              open     voiding  placed   refused  void
placed        placed   placed   -        placed   placed
refused       refused  refused  -        -        -
nonce_used    -        -        -        -        -
malformed     refused  -        -        -        -
not_sent      refused  -        -        -        -
wrong_signer  -        -        -        -        -
void_done     -        void     -        -        -
unknown       -        -        -        -        -
known_refused refused  refused  -        -        refused
"""


def test_each_thing_that_is_seen_in_each_status_means_what_the_table_says() -> None:
    head, *lines = MEANINGS.strip().splitlines()
    rows = {line.split()[0]: dict(zip(head.split(), line.split()[1:], strict=True)) for line in lines}
    assert set(rows) == set(get_args(Seen)) and set(head.split()) == set(get_args(ActionStatus))
    for what, status in product(get_args(Seen), get_args(ActionStatus)):
        after = life.seen(action(status, copies=1), what, 100, 100)
        expected = rows[what][status]
        assert after.status == (status if expected == "-" else expected), (what, status)


@pytest.mark.parametrize(
    ("copies", "what", "status", "is_final"),
    [
        (1, "refused", "refused", True),
        (2, "refused", "refused", False),
        (1, "malformed", "refused", True),
        (2, "malformed", "open", False),
        (1, "not_sent", "refused", True),
        (2, "not_sent", "open", False),
    ],
)
def test_only_the_only_copy_ends_an_action_at_once(copies: int, what: Seen, status: str, is_final: bool) -> None:
    after = life.seen(action(copies=copies), what, 100, 100)
    assert (after.status, after.is_final, life.may_be_told(after)) == (status, is_final, is_final)


@pytest.mark.parametrize(
    ("used_ms", "asked_ms", "status", "is_final"),
    [
        (None, 5_000, "open", False),
        (1_000, 1_000 + life.PATIENCE_MS - 1, "open", False),
        (1_000, 1_000 + life.PATIENCE_MS, "refused", False),
        (None, OVER_MS - 1, "open", False),
        (None, OVER_MS, "void", True),
        (1_000, OVER_MS, "void", True),
    ],
)
def test_an_unknown_order_is_a_proof_after_the_expiry_or_long_after_the_nonce_was_used(
    used_ms: int | None, asked_ms: int, status: str, is_final: bool
) -> None:
    after = life.seen(action(used_ms=used_ms, copies=2), "unknown", asked_ms, asked_ms)
    assert (after.status, after.is_final) == (status, is_final)


def steps(tracked: TrackedAction, until_ms: int) -> list[tuple[int, Step]]:
    """What is done when nothing is ever heard, looked at each 100 ms."""
    done: list[tuple[int, Step]] = []
    for now_ms in range(tracked.made_ms, until_ms, 100):
        what = life.step(tracked, now_ms, now_ms)
        if what is not None:
            done.append((now_ms, what))
        if what == "send":
            tracked = life.sent(tracked, now_ms)
        elif what == "void":
            tracked = life.voided(tracked, now_ms)
        elif what == "look":
            tracked = life.looked(tracked, now_ms)
        elif what == "give_up":
            tracked = life.given_up(tracked)
    return done


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_to_be_done_before_the_instant_that_is_named_for_it(seed: int) -> None:
    random = Random(f"{seed}:timers")
    ahead_ms, now_ms = random.randint(-2_000, 2_000), 0
    tracked = action(is_entry=random.random() < 0.5)
    while now_ms < OVER_MS + 4_000 and not life.may_be_told(tracked):
        what = life.step(tracked, now_ms, now_ms + ahead_ms)
        at_ms = life.next_step_ms(tracked, now_ms, now_ms + ahead_ms)
        if what is None:
            assert at_ms is not None and at_ms > now_ms
            instants = [random.randint(now_ms, at_ms - 1) for _ in range(20)] + [at_ms - 1]
            assert {life.step(tracked, earlier, earlier + ahead_ms) for earlier in instants} == {None}
            now_ms = at_ms
            continue
        assert at_ms == now_ms
        if what == "send":
            tracked = life.sent(tracked, now_ms)
            if random.random() < 0.1:
                tracked = life.seen(tracked, "nonce_used", now_ms, now_ms + ahead_ms)
        elif what == "void":
            tracked = life.voided(tracked, now_ms)
        elif what == "look":
            tracked = life.looked(tracked, now_ms)
            tracked = life.seen(tracked, "unknown", now_ms, now_ms + ahead_ms) if random.random() < 0.5 else tracked
        else:
            tracked = life.given_up(tracked)
        now_ms += random.choice((0, 1, 700))
    assert life.may_be_told(tracked) or now_ms >= OVER_MS + 4_000


def test_an_entry_without_an_answer_is_sent_four_times_then_voided_then_looked_up() -> None:
    done = steps(action(), OVER_MS + 400)
    assert done[:5] == [(0, "send"), (1_500, "send"), (3_000, "send"), (4_500, "send"), (6_000, "give_up")]
    assert [at_ms for at_ms, what in done if what == "void"] == [6_100, 6_600, 7_600, 9_600, 13_600]
    assert [at_ms for at_ms, what in done if what == "look"] == [17_100, 17_400]


def test_what_is_not_an_entry_is_sent_until_it_expires_and_never_voided_by_itself() -> None:
    done = steps(action(is_entry=False), OVER_MS + 100)
    assert [at_ms for at_ms, what in done if what == "send"] == list(range(0, EXPIRES_MS + 1, life.RESEND_MS))
    assert {what for _, what in done} == {"send", "look"}


def test_an_entry_that_is_old_at_a_start_is_given_up_and_never_sent() -> None:
    restarted = life.after_restart(action(copies=1, sent_ms=0))
    assert life.step(restarted, life.GIVE_UP_MS - 1, life.GIVE_UP_MS - 1) == "send"
    assert life.step(restarted, life.GIVE_UP_MS, life.GIVE_UP_MS) == "give_up"
    assert not life.may_be_told(life.seen(restarted, "refused", 100, 100))


def test_a_used_nonce_is_looked_up_and_nothing_more_is_sent() -> None:
    used = life.seen(action(copies=1, sent_ms=0), "nonce_used", 200, 200)
    assert [what for _, what in steps(used, 1_000)] == ["look"] * 4


def test_a_signature_that_is_misread_stops_sending_and_the_expiry_decides() -> None:
    frozen = life.seen(action(copies=1, sent_ms=0), "wrong_signer", 100, 100)
    assert frozen.is_frozen
    assert {what for _, what in steps(frozen, OVER_MS + 100)} == {"give_up", "look"}
    assert life.may_be_told(life.seen(frozen, "unknown", OVER_MS, OVER_MS))


def test_a_clock_that_is_ahead_of_the_exchange_sends_nothing_that_has_expired() -> None:
    assert life.step(action(is_entry=False), 0, EXPIRES_MS) == "send"
    assert life.step(action(is_entry=False), 0, EXPIRES_MS + 1) is None
    assert life.step(action(is_entry=False), 0, OVER_MS) == "look"
