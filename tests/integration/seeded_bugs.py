"""Mistakes that such daemons make, each as a small patch of the production code: the worlds must catch every one. Test
of the tests.

Each has the first seed whose world catches it. A change of what the daemon asks, and when, makes other worlds of the
same seeds:
`python -m tests.integration.seeded_bugs` then looks for the first seeds anew and writes them into this file.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import tempfile
from base64 import b32encode
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from bot.errors import OutcomeUnknown, TryLater
from bot.runtime.decisions import intent_builder
from bot.runtime.execution import order_sender
from bot.runtime.execution.open_intents import OpenIntents
from bot.runtime.execution.order_sender import OrderSender
from bot.runtime.execution.outcome import Again, End, Fences, Look, Move, settle_move
from bot.runtime.journal.database import JournalDatabase
from bot.runtime.journal.event_log import EventLog
from bot.runtime.journal.journal import Journal
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.model.intents import Intent
from bot.runtime.reconciliation import protection, reconciler
from bot.runtime.reconciliation.guardians import Guardians
from bot.service.operations.executor import OperationExecutor
from bot.venue.orders import orders as venue_orders
from bot.wire import OrderRequest
from tests.integration.simulated import LENGTHS, Rules, run_world

Patch = Callable[[pytest.MonkeyPatch], Rules | None]


class Bug(NamedTuple):
    """`seed` is the first world that catches it."""

    seed: int
    patch: Patch


# ── Keys and answers ────────────────────────────────────────────────────────────────────────────────────────────────


def a_new_key_for_each_retry(to: pytest.MonkeyPatch) -> None:
    request = OrderSender._request

    async def renamed(self: OrderSender, intent: Intent) -> str:
        return await request(
            self, replace(intent, id=intent.id[:-1] + str(intent.attempts)) if intent.attempts > 1 else intent
        )

    to.setattr(OrderSender, "_request", renamed)


def _keys_of_chance(to: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    for where in (intent_builder, protection):
        to.setattr(where, "intent_key", lambda **_: b32encode(chance.randbytes(20)).decode())


def another_body_on_a_retry(to: pytest.MonkeyPatch) -> None:
    request = OrderSender._request

    async def repriced(self: OrderSender, intent: Intent) -> str:
        if intent.attempts > 1 and intent.action == "open" and intent.confirm_token is None:
            order: OrderRequest = intent.order()
            if order.usd_amount is not None:
                intent = replace(intent, request=order.model_copy(update={"usd_amount": order.usd_amount + Decimal(1)}))
        return await request(self, intent)

    to.setattr(OrderSender, "_request", repriced)


def _judged(to: pytest.MonkeyPatch, judge: Callable[..., Move]) -> None:
    to.setattr(order_sender, "settle_move", judge)


def a_timeout_is_a_failure(to: pytest.MonkeyPatch) -> None:
    def judge(error: Any, **known: Any) -> Move:
        return (
            End("rejected", error.code, error.message)
            if isinstance(error, OutcomeUnknown)
            else settle_move(error, **known)
        )

    _judged(to, judge)


def not_found_is_a_failure(to: pytest.MonkeyPatch) -> None:
    def judge(error: Any, **known: Any) -> Move:
        move = settle_move(error, **known)
        return Look(absent=End("rejected", error.code, "not found")) if isinstance(move, Again) and move.doubt else move

    _judged(to, judge)


def a_refusal_after_doubt_is_final(to: pytest.MonkeyPatch) -> None:
    def judge(error: Any, **known: Any) -> Move:
        return settle_move(error, **known | {"ambiguous_before": False})

    _judged(to, judge)


def a_busy_answer_is_final(to: pytest.MonkeyPatch) -> None:
    def judge(error: Any, **known: Any) -> Move:
        return (
            End("rejected", error.code, error.message) if isinstance(error, TryLater) else settle_move(error, **known)
        )

    _judged(to, judge)


def absence_is_proof_before_the_fence(to: pytest.MonkeyPatch) -> None:
    to.setattr(Fences, "passed", lambda *_: True)


def giving_up_after_two_tries(to: pytest.MonkeyPatch) -> None:
    settle = OrderSender._settle

    async def impatient(self: OrderSender, intent: Intent, move: Move, error: Any, *, is_past: bool) -> Intent:
        if isinstance(move, Again) and intent.attempts >= 2:
            return self.outcomes.end(intent, "expired", error.code, "given up")
        return await settle(self, intent, move, error, is_past=is_past)

    to.setattr(OrderSender, "_settle", impatient)


def a_reset_forgets_the_keys(to: pytest.MonkeyPatch) -> None:
    stored_answer = OperationExecutor._stored_answer

    def forgetful(self: OperationExecutor, principal: Any, key: str, context: Any) -> Any:
        reply = self.machine.log.reply(principal.account, key)
        if reply is not None and reply.epoch != self.account(principal).epoch:
            return None
        return stored_answer(self, principal, key, context)

    fenced = venue_orders.fenced

    def open_gate(state: Any, account: Any, command: Any) -> Any:
        return None if account.is_fenced(command.idempotency_key) else fenced(state, account, command)

    to.setattr(OperationExecutor, "_stored_answer", forgetful)
    to.setattr(venue_orders, "fenced", open_gate)


# ── The journal ─────────────────────────────────────────────────────────────────────────────────────────────────────


def a_restart_forgets_what_is_open(to: pytest.MonkeyPatch) -> None:
    to.setattr(OpenIntents, "reload", lambda self, _account_state: self.live.clear())


def nothing_is_written_before_the_answer(to: pytest.MonkeyPatch) -> None:
    """Decisions are kept in memory and written once they are settled; and their keys are of chance."""
    _keys_of_chance(to)
    commit, begin = JournalDatabase._commit, JournalDatabase._begin

    def lazy_begin(self: JournalDatabase) -> None:
        if self.db.conn.in_transaction:
            self._statements = []
        else:
            begin(self)

    count = itertools.count()

    def lazy_commit(self: JournalDatabase) -> None:
        if next(count) % 6 == 5:
            commit(self)

    to.setattr(JournalDatabase, "_begin", lazy_begin)
    to.setattr(JournalDatabase, "_commit", lazy_commit)


def the_cursor_is_written_before_its_effects(to: pytest.MonkeyPatch) -> None:
    take = Journal.take

    def torn(self: Journal, events: Any, last_id: str, *, epoch: int, **named: Any) -> Any:
        with self.database.transaction():
            self.events.move_cursor(last_id, events, epoch)
        return take(self, events, last_id, epoch=epoch, **named)

    to.setattr(Journal, "take", torn)


def events_are_not_told_apart(to: pytest.MonkeyPatch) -> None:
    execute = JournalDatabase.execute

    def tolerant(self: JournalDatabase, sql: str, values: Any = ()) -> Any:
        return execute(self, sql.replace("INSERT INTO events", "INSERT OR IGNORE INTO events"), values)

    to.setattr(EventLog, "unseen", lambda self, events: list(events))
    to.setattr(JournalDatabase, "execute", tolerant)


# ── Protection ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def a_lost_stop_is_not_replaced(to: pytest.MonkeyPatch) -> None:
    to.setattr(protection, "protect", _nothing)
    to.setitem(reconciler.REPAIRS, "naked_position", _nothing)


def a_guardian_is_armed_under_one_key_for_ever(to: pytest.MonkeyPatch) -> None:
    key = Guardians._key
    to.setattr(Guardians, "_key", lambda self, one, _serial, epoch: key(self, one, 1, epoch))


# ── The heartbeat ───────────────────────────────────────────────────────────────────────────────────────────────────


def beats_without_proof_of_life(to: pytest.MonkeyPatch) -> Rules:
    class Unconditional(Rules):
        def judge(self, lengths: Any, heart: Any, *, now_ns: int, **_: Any) -> Any:
            return "beat" if now_ns >= heart.next_ns else "wait"

    return Unconditional()


def boot_beats_without_end(to: pytest.MonkeyPatch) -> Rules:
    class Endless(Rules):
        def judge(self, lengths: Any, heart: Any, **named: Any) -> Any:
            return heartbeat_rule.judge(lengths, heart._replace(boot_beats=0), **named)

    return Endless()


def a_failed_beat_waits_for_the_next_period(to: pytest.MonkeyPatch) -> Rules:
    class Slow(Rules):
        def answered(self, lengths: Any, heart: Any, answer: Any, **named: Any) -> Any:
            after = heartbeat_rule.answered(lengths, heart, answer, **named)
            return (
                after._replace(next_ns=named["now_ns"] + lengths.period_ns * 5 // 2)
                if answer.kind == "retry"
                else after
            )

    return Slow()


def a_brain_may_be_silent_for_as_long_as_the_switch(to: pytest.MonkeyPatch) -> None:
    to.setattr(heartbeat_rule, "beat_timing", lambda _: LENGTHS._replace(stale_ns=LENGTHS.deadline_ns))


def downtime_of_the_service_counts_as_silence(to: pytest.MonkeyPatch) -> Rules:
    class Impatient(Rules):
        service_counts_downtime = True

    return Impatient()


BUGS: dict[str, Bug] = {
    patch.__name__: Bug(seed, patch)
    for seed, patch in (
        (19, a_new_key_for_each_retry),
        (75, another_body_on_a_retry),
        (75, a_timeout_is_a_failure),
        (75, not_found_is_a_failure),
        (75, a_refusal_after_doubt_is_final),
        (331, a_busy_answer_is_final),
        (75, absence_is_proof_before_the_fence),
        (75, giving_up_after_two_tries),
        (27, a_reset_forgets_the_keys),
        (9, a_restart_forgets_what_is_open),
        (16, nothing_is_written_before_the_answer),
        (70, the_cursor_is_written_before_its_effects),
        (11, events_are_not_told_apart),
        (81, a_lost_stop_is_not_replaced),
        (0, a_guardian_is_armed_under_one_key_for_ever),
        (5, beats_without_proof_of_life),
        (5, boot_beats_without_end),
        (102, a_failed_beat_waits_for_the_next_period),
        (9, a_brain_may_be_silent_for_as_long_as_the_switch),
        (33, downtime_of_the_service_counts_as_silence),
    )
}


# ── Looking for the seeds ───────────────────────────────────────────────────────────────────────────────────────────

# worlds in which a bug is looked for
SEARCH_MAX = 2_000


def caught(name: str, seed: int, folder: Path) -> str | None:
    """What the world says of the bug; None when it does not notice."""
    with pytest.MonkeyPatch.context() as to:
        rules = BUGS[name].patch(to)
        try:
            run_world(seed, folder, rules)
        except (AssertionError, RuntimeError) as error:
            return str(error) or type(error).__name__
    return None


def first_seed(name: str, folder: Path) -> int | None:
    return next((seed for seed in range(SEARCH_MAX) if caught(name, seed, folder)), None)


def _main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    file = Path(__file__)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for name, bug in BUGS.items():
            seed = first_seed(name, Path(folder))
            print(f"{name}: {seed}" + ("" if seed == bug.seed else f" (was {bug.seed})"), flush=True)
            if seed is not None:
                file.write_text(
                    re.sub(rf"\(\d+, {name}\)", f"({seed}, {name})", file.read_text(encoding="utf-8")), encoding="utf-8"
                )


if __name__ == "__main__":
    _main()
